//! The command line of `cofferdam backend`.

use std::{collections::BTreeMap, path::PathBuf};

use clap::{Args, Subcommand, ValueEnum};
use cofferdam_domain::{
    ClusterId, Quantity, ReclaimPolicy, Uid, VolumeName,
    storage::{AccessType, CsiAccessMode, PROVIDER_ID, SnapshotOwner, VolumeCapability, VolumeOwner},
};
use cofferdam_suite::TestNode;

/// Subcommands of `backend`.
#[derive(Debug, Subcommand)]
pub(crate) enum BackendCommand {
    /// Create a project for a new driver; it builds and passes `backend test`
    New(NewFlags),
    /// Print a component's abilities and the grants that it requests, without granting any
    Inspect(Box<InspectFlags>),
    /// Call one function of a component and print the response
    Call(Box<CallFlags>),
    /// Run the conformance suite on a component, with faults, and print a report
    Test(Box<TestFlags>),
}

/// Flags of `backend new`.
#[derive(Debug, Args)]
pub(crate) struct NewFlags {
    /// Name of the driver's crate, such as my-array
    pub(crate) name: String,

    /// Directory of the project [default: a new directory of that name]
    #[arg(long, value_name = "DIRECTORY")]
    pub(crate) directory: Option<PathBuf>,
}

/// Output format of `backend call`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum CallFormat {
    /// Human-readable text
    #[default]
    Text,
    /// JSON, for programs
    Json,
}

/// Output format of `backend inspect`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum InspectFormat {
    /// Human-readable text
    #[default]
    Text,
    /// JSON, for programs
    Json,
    /// Manifest for the role node, as JSON
    Manifest,
}

/// Output format of `backend test`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReportFormat {
    /// Human-readable text
    #[default]
    Text,
    /// JSON, for programs
    Json,
    /// JUnit XML, for CI systems
    Junit,
}

/// Flags of `backend inspect`.
#[derive(Debug, Args)]
pub(crate) struct InspectFlags {
    #[command(flatten)]
    pub(crate) component: ComponentFlags,

    /// Output format
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    pub(crate) output: InspectFormat,
}

/// A component and its configuration.
#[derive(Debug, Args)]
pub(crate) struct ComponentFlags {
    /// File of the component; for inspect and call also unix:PATH, the socket of a CSI driver
    pub(crate) file: PathBuf,

    /// TOML file with the section [backend.NAME] for the component
    #[arg(long, value_name = "FILE", help_heading = "Component configuration")]
    pub(crate) config: Option<PathBuf>,

    /// Name of the section in the configuration [default: the file's name]
    #[arg(long, value_name = "NAME", help_heading = "Component configuration")]
    pub(crate) name: Option<String>,

    #[command(flatten)]
    pub(crate) values: ComponentValueFlags,

    /// Directory of compiled components, or "off" [default: the user's cache directory]
    #[arg(long, value_name = "DIRECTORY", help_heading = "Component configuration")]
    pub(crate) compilation_cache: Option<String>,
}

/// The configuration of one component, in place of its section in the configuration or in addition to it.
#[derive(Debug, Default, Args)]
pub(crate) struct ComponentValueFlags {
    /// Setting, in place of that in the configuration; repeat it for more
    #[arg(
        long = "setting",
        value_name = "KEY=VALUE",
        value_parser = parse_pair,
        help_heading = "Component configuration"
    )]
    pub(crate) settings: Vec<(String, String)>,

    /// Grant in addition to the default or configured ones, such as reveal; repeat it for more
    #[arg(long = "grant", value_name = "GRANT", help_heading = "Component configuration")]
    pub(crate) grants: Vec<String>,

    /// Secret of every call, read from a file or an environment variable; for backend call and test as from a
    /// class, which grants class-secrets; repeat it for more
    #[arg(
        long = "secret",
        value_name = "NAME=@FILE|NAME=$VARIABLE",
        value_parser = parse_pair,
        help_heading = "Component configuration"
    )]
    pub(crate) secrets: Vec<(String, String)>,

    /// File of the component's state, created if missing; without it and without one in the configuration the
    /// state is empty at the start and discarded at the end
    #[arg(long = "state", value_name = "FILE", help_heading = "Component configuration")]
    pub(crate) state: Option<PathBuf>,

    /// Directory of the component's pool; grants pool
    #[arg(long = "pool", value_name = "DIRECTORY", help_heading = "Component configuration")]
    pub(crate) pool: Option<PathBuf>,

    /// Origin of HTTP requests, such as `https://array.example:8443`; grants http; repeat it for more
    #[arg(long = "origin", value_name = "URL", help_heading = "Component configuration")]
    pub(crate) origins: Vec<String>,

    /// Address or network of these origins; required for loopback and link-local addresses; repeat it for
    /// more
    #[arg(
        long = "origin-address",
        value_name = "CIDR",
        requires = "origins",
        help_heading = "Component configuration"
    )]
    pub(crate) origin_addresses: Vec<String>,
}

impl ComponentValueFlags {
    /// The first flag that is set and that only components have; a CSI driver has secrets, too.
    pub(crate) fn first_component_flag(&self) -> Option<&'static str> {
        let flags = [
            ("--setting", self.settings.is_empty()),
            ("--grant", self.grants.is_empty()),
            ("--state", self.state.is_none()),
            ("--pool", self.pool.is_none()),
            ("--origin", self.origins.is_empty()),
        ];
        flags.into_iter().find(|(_, is_unset)| !is_unset).map(|(flag, _)| flag)
    }

    /// The first flag that is set.
    pub(crate) fn first_flag(&self) -> Option<&'static str> {
        self.first_component_flag().or_else(|| (!self.secrets.is_empty()).then_some("--secret"))
    }
}

/// Flags of `backend test`.
#[derive(Debug, Args)]
pub(crate) struct TestFlags {
    #[command(flatten)]
    pub(crate) component: ComponentFlags,

    /// Run only cases whose names start with PATTERN, or match it if it has a *; repeat it for more
    #[arg(long = "only", value_name = "PATTERN")]
    pub(crate) only: Vec<String>,

    /// Parameter of the StorageClass or VolumeSnapshotClass; repeat it for more
    #[arg(
        long = "parameter",
        value_name = "KEY=VALUE",
        value_parser = parse_pair,
        help_heading = "Requests to the driver"
    )]
    pub(crate) parameters: Vec<(String, String)>,

    /// Second valid value of a parameter of the StorageClass: a volume's name with this value in place of the
    /// first one must be rejected; repeat it for other parameters
    #[arg(
        long = "other-parameter",
        value_name = "KEY=VALUE",
        value_parser = parse_pair,
        help_heading = "Requests to the driver"
    )]
    pub(crate) other_parameters: Vec<(String, String)>,

    /// Mutable parameter of a volume, as in a VolumeAttributesClass; without one, cases of modification are
    /// skipped
    #[arg(
        long = "mutable-parameter",
        value_name = "KEY=VALUE",
        value_parser = parse_pair,
        help_heading = "Requests to the driver"
    )]
    pub(crate) mutable_parameters: Vec<(String, String)>,

    /// VolumeSnapshotClass parameter; repeat it for more
    #[arg(
        long = "snapshot-parameter",
        value_name = "KEY=VALUE",
        value_parser = parse_pair,
        help_heading = "Requests to the driver"
    )]
    pub(crate) snapshot_parameters: Vec<(String, String)>,

    /// Size of a volume; some cases request up to four times this
    #[arg(
        long,
        value_name = "QUANTITY",
        value_parser = parse_bytes,
        default_value = "1Mi",
        help_heading = "Requests to the driver"
    )]
    pub(crate) size: u64,

    /// Access mode
    #[arg(
        long,
        value_enum,
        value_name = "MODE",
        default_value = "single-node-writer",
        help_heading = "Requests to the driver"
    )]
    pub(crate) access_mode: AccessModeArg,

    /// Use volumes as block devices
    #[arg(long, help_heading = "Requests to the driver")]
    pub(crate) block: bool,

    /// Topology segment of volumes, such as zone=a,rack=7, for drivers with topology
    #[arg(
        long,
        value_name = "KEY=VALUE,…",
        value_parser = parse_topology,
        help_heading = "Requests to the driver"
    )]
    pub(crate) topology: Option<TopologyArg>,

    /// Node to publish to, with spec.providerID of its Node; repeat it for the second node [default: two node
    /// names]
    #[arg(
        long = "node",
        value_name = "NODE[=PROVIDER-ID]",
        value_parser = parse_test_node,
        help_heading = "Requests to the driver"
    )]
    pub(crate) nodes: Vec<TestNode>,

    /// Deadline of one call
    #[arg(long, value_name = "DURATION", default_value = "30s")]
    pub(crate) timeout: String,

    /// Time to retry a call whose result is unknown
    #[arg(long, value_name = "DURATION", default_value = "1m")]
    pub(crate) retry_timeout: String,

    /// Seed of the volume names [default: a random one, which is printed]
    #[arg(long, value_name = "NUMBER")]
    pub(crate) seed: Option<u64>,

    /// Output format
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    pub(crate) output: ReportFormat,
}

/// Flags of `backend call`.
#[derive(Debug, Args)]
pub(crate) struct CallFlags {
    #[command(flatten)]
    pub(crate) component: ComponentFlags,

    /// Function of the contract
    #[arg(value_enum, value_name = "FUNCTION")]
    pub(crate) function: ContractFunction,

    #[command(flatten)]
    pub(crate) arguments: ArgumentFlags,

    /// Deadline of the call
    #[arg(long, value_name = "DURATION", default_value = "1m")]
    pub(crate) timeout: String,

    /// Output format
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    pub(crate) output: CallFormat,
}

/// Arguments of the function. An argument that the function does not have is an error.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Arguments of the function")]
pub(crate) struct ArgumentFlags {
    /// Name of the volume, snapshot or group to create
    #[arg(long = "volume-name", visible_alias = "snapshot-name", value_name = "NAME")]
    pub(crate) volume_name: Option<String>,

    /// Handle of a volume, snapshot or group
    #[arg(long, value_name = "HANDLE")]
    pub(crate) handle: Option<String>,

    /// Handle of the source volume or snapshot; repeat it for the volumes of a group
    #[arg(long, value_name = "HANDLE")]
    pub(crate) source: Vec<String>,

    /// Snapshot of a group; repeat it for more
    #[arg(long = "member", value_name = "HANDLE")]
    pub(crate) members: Vec<String>,

    /// Smallest size, such as 10Gi
    #[arg(long, value_name = "QUANTITY", value_parser = parse_bytes)]
    pub(crate) size: Option<u64>,

    /// Largest size, such as 20Gi
    #[arg(long, value_name = "QUANTITY", value_parser = parse_bytes)]
    pub(crate) size_limit: Option<u64>,

    /// Access mode [default: single-node-writer]
    #[arg(long, value_enum, value_name = "MODE")]
    pub(crate) access_mode: Option<AccessModeArg>,

    /// Use the volume as a block device
    #[arg(long)]
    pub(crate) block: bool,

    /// Filesystem type
    #[arg(long, value_name = "TYPE", conflicts_with = "block")]
    pub(crate) fs_type: Option<String>,

    /// Mount option; repeat it for more
    #[arg(long, value_name = "OPTION", conflicts_with = "block")]
    pub(crate) mount_flag: Vec<String>,

    /// Group that owns the mounted volume
    #[arg(long, value_name = "GROUP", conflicts_with = "block")]
    pub(crate) mount_group: Option<String>,

    /// Volume capability in place of the five flags above, such as multi-node-multi-writer,block or
    /// single-node-writer,fs-type=ext4,mount-flag=noatime,mount-group=1000; repeat it for more
    #[arg(
        long = "capability",
        value_name = "MODE[,block|,KEY=VALUE…]",
        value_parser = parse_capability,
        conflicts_with_all = ["access_mode", "block", "fs_type", "mount_flag", "mount_group"]
    )]
    pub(crate) capabilities: Vec<VolumeCapability>,

    /// Parameter of the StorageClass or VolumeSnapshotClass; repeat it for more
    #[arg(long = "parameter", value_name = "KEY=VALUE", value_parser = parse_pair)]
    pub(crate) parameters: Vec<(String, String)>,

    /// Mutable parameter; repeat it for more
    #[arg(long = "mutable-parameter", value_name = "KEY=VALUE", value_parser = parse_pair)]
    pub(crate) mutable_parameters: Vec<(String, String)>,

    /// Entry of the volume context that the driver returned; repeat it for more
    #[arg(long = "context", value_name = "KEY=VALUE", value_parser = parse_pair)]
    pub(crate) context: Vec<(String, String)>,

    /// Other name of the node, such as provider-id=aws:///a/i-0abc or iscsi-initiator=iqn.2024-01.example:n1;
    /// repeat it for more
    #[arg(long = "node-identity", value_name = "KEY=VALUE", value_parser = parse_pair)]
    pub(crate) node_identity: Vec<(String, String)>,

    /// Topology segment of the volume, such as zone=a,rack=7; repeat it for more, in order of preference
    #[arg(long, value_name = "KEY=VALUE,…", value_parser = parse_segments)]
    pub(crate) topology: Vec<Vec<(String, String)>>,

    /// Owner of the volume, such as cluster=c,claim=UID,volume=NAME,reclaim-policy=retain; the default policy
    /// is delete
    #[arg(long, value_name = "KEY=VALUE,…", value_parser = parse_owner)]
    pub(crate) owner: Option<VolumeOwner>,

    /// Owner of the snapshot or group, such as cluster=c,snapshot=UID,content=NAME,deletion-policy=retain;
    /// the default policy is delete
    #[arg(long, value_name = "KEY=VALUE,…", value_parser = parse_snapshot_owner)]
    pub(crate) snapshot_owner: Option<SnapshotOwner>,

    /// Name of the node
    #[arg(long, value_name = "NODE")]
    pub(crate) node: Option<String>,

    /// Publish read-only
    #[arg(long)]
    pub(crate) read_only: bool,

    /// Token of the page to list, as the previous page printed it; the first page without it
    #[arg(long, value_name = "TOKEN")]
    pub(crate) after: Option<String>,

    /// Maximum number of entries
    #[arg(long, value_name = "NUMBER")]
    pub(crate) limit: Option<u32>,
}

/// Functions of the contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ContractFunction {
    #[value(name = "identity.describe")]
    Describe,
    #[value(name = "identity.probe")]
    Probe,
    #[value(name = "volumes.create")]
    Create,
    #[value(name = "volumes.delete")]
    Delete,
    #[value(name = "volumes.validate")]
    Validate,
    #[value(name = "cloning.create-from-volume")]
    CreateFromVolume,
    #[value(name = "restoring.create-from-snapshot")]
    CreateFromSnapshot,
    #[value(name = "publishing.publish")]
    Publish,
    #[value(name = "publishing.unpublish")]
    Unpublish,
    #[value(name = "expansion.expand")]
    Expand,
    #[value(name = "modification.modify")]
    Modify,
    #[value(name = "snapshots.create")]
    CreateSnapshot,
    #[value(name = "snapshots.delete")]
    DeleteSnapshot,
    #[value(name = "snapshots.get")]
    GetSnapshot,
    #[value(name = "snapshots.list")]
    ListSnapshots,
    #[value(name = "group-snapshots.create")]
    CreateGroup,
    #[value(name = "group-snapshots.delete")]
    DeleteGroup,
    #[value(name = "group-snapshots.get")]
    GetGroup,
    #[value(name = "listing.list")]
    ListVolumes,
    #[value(name = "inspection.get")]
    GetVolume,
    #[value(name = "capacity.available")]
    GetCapacity,
}

/// Access modes, with their names in the contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum AccessModeArg {
    SingleNodeWriter,
    SingleNodeReaderOnly,
    MultiNodeReaderOnly,
    MultiNodeSingleWriter,
    MultiNodeMultiWriter,
    SingleNodeSingleWriter,
    SingleNodeMultiWriter,
}

impl From<AccessModeArg> for CsiAccessMode {
    fn from(mode: AccessModeArg) -> Self {
        match mode {
            AccessModeArg::SingleNodeWriter => Self::SingleNodeWriter,
            AccessModeArg::SingleNodeReaderOnly => Self::SingleNodeReaderOnly,
            AccessModeArg::MultiNodeReaderOnly => Self::MultiNodeReaderOnly,
            AccessModeArg::MultiNodeSingleWriter => Self::MultiNodeSingleWriter,
            AccessModeArg::MultiNodeMultiWriter => Self::MultiNodeMultiWriter,
            AccessModeArg::SingleNodeSingleWriter => Self::SingleNodeSingleWriter,
            AccessModeArg::SingleNodeMultiWriter => Self::SingleNodeMultiWriter,
        }
    }
}

fn parse_pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        // Do not quote the text: it may be a secret.
        Some(_) | None => Err("expected KEY=VALUE".to_owned()),
    }
}

fn parse_test_node(text: &str) -> Result<TestNode, String> {
    let (id, provider_id) = split_node(text).ok_or_else(|| {
        format!("{text:?}: expected a node ID, or one with spec.providerID, such as node-1=aws:///a/i-0abc")
    })?;
    let identities = provider_id.map(|id| (PROVIDER_ID.to_owned(), id.to_owned()));
    Ok(TestNode { identities: identities.into_iter().collect(), ..TestNode::new(id) })
}

/// Splits `NAME[=PROVIDER-ID]`. `None` if the name is empty, or the ID has not the form `PROVIDER://ID`.
pub(crate) fn split_node(text: &str) -> Option<(&str, Option<&str>)> {
    let (name, provider_id) = match text.split_once('=') {
        Some((name, id)) => (name, Some(id)),
        None => (text, None),
    };
    let is_valid = !name.is_empty() && provider_id.is_none_or(|id| id.contains("://"));
    is_valid.then_some((name, provider_id))
}

/// A topology segment.
#[derive(Clone, Debug)]
pub(crate) struct TopologyArg(pub(crate) Vec<(String, String)>);

fn parse_topology(text: &str) -> Result<TopologyArg, String> {
    parse_segments(text).map(TopologyArg)
}

fn parse_segments(text: &str) -> Result<Vec<(String, String)>, String> {
    text.split(',').map(parse_pair).collect()
}

/// Parses a volume capability: the access mode, and `block` or options of the filesystem.
fn parse_capability(text: &str) -> Result<VolumeCapability, String> {
    let mut parts = text.split(',');
    let mode = parts.next().unwrap_or_default();
    let mode = AccessModeArg::from_str(mode, false).map_err(|_| {
        let known = AccessModeArg::value_variants().iter().filter_map(AccessModeArg::to_possible_value);
        let known: Vec<_> = known.map(|value| value.get_name().to_owned()).collect();
        format!("{mode:?}: expected one of {}", known.join(", "))
    })?;
    let rest: Vec<_> = parts.collect();
    if rest == ["block"] {
        return Ok(VolumeCapability { access_mode: mode.into(), access_type: AccessType::Block });
    }
    let (mut fs_type, mut mount_flags, mut mount_group) = (None, Vec::new(), None);
    for part in rest {
        match part.split_once('=') {
            Some(("fs-type", kind)) if fs_type.is_none() => fs_type = Some(kind.to_owned()),
            Some(("mount-flag", flag)) => mount_flags.push(flag.to_owned()),
            Some(("mount-group", group)) if mount_group.is_none() => mount_group = Some(group.to_owned()),
            _ => {
                return Err(format!(
                    "{part:?}: expected block alone, or fs-type=…, mount-flag=… and mount-group=…"
                ));
            }
        }
    }
    let access = AccessType::Filesystem { fs_type, mount_flags, mount_group };
    Ok(VolumeCapability { access_mode: mode.into(), access_type: access })
}

/// Invalid owner of a volume or snapshot.
#[derive(Debug, thiserror::Error)]
enum OwnerError {
    #[error("{0}")]
    Pair(String),
    #[error("{key:?}: expected {} or {policy_key}", keys.join(", "))]
    UnknownKey { key: String, keys: [&'static str; 3], policy_key: &'static str },
    #[error("{0}=… was set twice")]
    Repeated(String),
    #[error("{key}={value}: expected delete or retain")]
    Policy { key: &'static str, value: String },
    #[error("expected {0}=…")]
    Missing(&'static str),
}

/// Parses the owner of a volume.
fn parse_owner(text: &str) -> Result<VolumeOwner, OwnerError> {
    let ([cluster, claim, volume], retain) =
        parse_owner_fields(text, ["cluster", "claim", "volume"], "reclaim-policy")?;
    Ok(VolumeOwner {
        cluster_id: ClusterId::from(cluster),
        claim_uid: Uid::from(claim),
        pv_name: VolumeName::from(volume),
        reclaim_policy: if retain { ReclaimPolicy::Retain } else { ReclaimPolicy::Delete },
    })
}

/// Parses the owner of a snapshot or group.
fn parse_snapshot_owner(text: &str) -> Result<SnapshotOwner, OwnerError> {
    let ([cluster, snapshot, content_name], retain) =
        parse_owner_fields(text, ["cluster", "snapshot", "content"], "deletion-policy")?;
    Ok(SnapshotOwner {
        cluster_id: ClusterId::from(cluster),
        snapshot_uid: Uid::from(snapshot),
        content_name,
        retain,
    })
}

/// Parses the required `keys`, and a policy, which is `delete` (the default) or `retain`. Returns the values
/// in the order of the keys, and `true` for `retain`.
fn parse_owner_fields(
    text: &str,
    keys: [&'static str; 3],
    policy_key: &'static str,
) -> Result<([String; 3], bool), OwnerError> {
    let mut pairs = BTreeMap::new();
    for (key, value) in parse_segments(text).map_err(OwnerError::Pair)? {
        if !keys.contains(&key.as_str()) && key != policy_key {
            return Err(OwnerError::UnknownKey { key, keys, policy_key });
        }
        if pairs.contains_key(&key) {
            return Err(OwnerError::Repeated(key));
        }
        pairs.insert(key, value);
    }
    let retain = match pairs.remove(policy_key) {
        None => false,
        Some(value) => match value.as_str() {
            "delete" => false,
            "retain" => true,
            _ => return Err(OwnerError::Policy { key: policy_key, value }),
        },
    };
    let mut required = |key| pairs.remove(key).ok_or(OwnerError::Missing(key));
    let [first, second, third] = keys;
    Ok(([required(first)?, required(second)?, required(third)?], retain))
}

fn parse_bytes(text: &str) -> Result<u64, String> {
    let quantity = Quantity::parse(text).map_err(|error| error.to_string())?;
    quantity.bytes_within_int64().ok_or_else(|| format!("{text}: expected at most {} bytes", i64::MAX))
}
