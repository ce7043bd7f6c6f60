//! The command line.

pub(crate) mod backend;

use std::{collections::BTreeMap, path::PathBuf};

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use cofferdam_cluster::orphan_report::OrphanKind;
use cofferdam_controllers::rbac::{DriverPlacement, NodeTopologySource};
use cofferdam_dev_cluster::NodeOptions;

use crate::config::{ConnectionSelection, DevSelection, Roles, RunSelection, SettingFlags};
use backend::{BackendCommand, ComponentValueFlags, split_node};

/// Maximum number of nodes that `dev` simulates, each with a kubelet.
pub(crate) const MAX_NODES: usize = 100;

fn parse_node_count(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| *number <= MAX_NODES);
    number.ok_or_else(|| format!("expected a number from 0 to {MAX_NODES}"))
}

fn parse_node(text: &str) -> Result<NodeOptions, String> {
    let mut parts = text.split(',');
    let first = parts.next().unwrap_or_default();
    let named = split_node(first).filter(|(name, _)| !name.contains('/'));
    let (name, provider_id) = named.ok_or_else(|| {
        format!(
            "{first:?}: expected the node's name first, such as node-1,topology.kubernetes.io/zone=a, or with \
             its provider ID, such as node-1=aws:///a/i-0abc"
        )
    })?;
    let mut labels = BTreeMap::new();
    for part in parts {
        let (label, value) = part.split_once('=').ok_or_else(|| format!("{part:?}: expected LABEL=VALUE"))?;
        if labels.insert(label.to_owned(), value.to_owned()).is_some() {
            return Err(format!("the label {label} was set twice"));
        }
    }
    Ok(NodeOptions { name: name.to_owned(), provider_id: provider_id.map(ToOwned::to_owned), labels })
}

/// Kubernetes persistent storage from one binary; drivers are sandboxed WebAssembly components.
#[derive(Debug, Parser)]
#[command(name = "cofferdam", version, propagate_version = true, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run Cofferdam's roles: controllers, node services and CSI servers
    #[command(after_help = Roles::help())]
    Run(ClusterFlags),
    /// Run a simulated cluster in this process: API server, scheduler, kubelets, roles and driver
    #[command(after_help = Roles::help())]
    Dev(DevFlags),
    /// Show the claims, volumes, attachments and snapshots of every driver, stuck operations and the last
    /// errors
    Status(StatusFlags),
    /// List volumes and snapshots that exist in a driver and that no object in the cluster refers to; delete
    /// them one at a time
    Orphans(OrphansFlags),
    /// Create, inspect, call and test driver components, without a cluster
    #[command(subcommand)]
    Backend(BackendCommand),
    /// Print manifests for kubectl apply
    #[command(subcommand)]
    Render(RenderCommand),
    /// Wait until a drained node has no volumes: the preStop hook of pods with the role node
    PreStop(PreStopFlags),
    /// Print every setting with its value and origin
    Config(ClusterFlags),
    /// Print the completions of the command line for a shell
    Completions {
        /// Shell that reads them
        #[arg(value_enum)]
        shell: Shell,
    },
    /// Print the version, the platform and the version of the driver contract
    Version,
}

/// Flags of `run` and `config`.
pub(crate) type ClusterFlags = SettingFlags<RunSelection>;

/// Flags of `dev`.
#[derive(Debug, Default, Args)]
pub(crate) struct DevFlags {
    #[command(flatten)]
    pub(crate) settings: SettingFlags<DevSelection>,

    /// Name of the driver of --backend FILE in the configuration [default: the file's name]
    #[arg(long, value_name = "NAME", help_heading = "Component configuration")]
    pub(crate) name: Option<String>,

    #[command(flatten)]
    pub(crate) component: ComponentValueFlags,

    /// Provision a volume, mount it in a pod, expand it, snapshot, restore and clone it, move the pod to
    /// another node, delete everything, and exit: 0 if every step succeeded, else 1
    #[arg(long)]
    pub(crate) demo: bool,

    /// Keep running after a successful demo
    #[arg(long, requires = "demo")]
    pub(crate) keep_running: bool,

    /// Simulated node, with spec.providerID and labels of the Node, in place of --nodes; repeat it for more. The
    /// label topology.kubernetes.io/zone is also the value of the driver's topology keys, unless they have labels
    #[arg(
        long = "node",
        value_name = "NAME[=PROVIDER-ID][,LABEL=VALUE…]",
        value_parser = parse_node,
        conflicts_with = "nodes"
    )]
    pub(crate) named_nodes: Vec<NodeOptions>,

    /// Number of simulated nodes, each with a kubelet, at most 100; 0 for the API server and roles only
    #[arg(
        long,
        value_name = "NUMBER",
        default_value_t = 2,
        value_parser = parse_node_count,
        allow_negative_numbers = true
    )]
    pub(crate) nodes: usize,

    /// Mount volumes, as root, within the policy of the section `node`; by default mounts are only recorded
    #[arg(long)]
    pub(crate) real_mounts: bool,

    /// At the end, delete the volumes and snapshots of this cluster from the storage, also those of earlier
    /// runs in this directory; by default they are only named
    #[arg(long)]
    pub(crate) delete: bool,

    /// At the end, leave the volumes and snapshots of this cluster in the storage, and print no advice
    #[arg(long, conflicts_with = "delete")]
    pub(crate) keep: bool,

    /// Path of the kubeconfig to write [default: in a new directory under $XDG_RUNTIME_DIR or the temporary
    /// directory]
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig_out: Option<PathBuf>,

    /// Port of the API on 127.0.0.1 [default: a free one]
    #[arg(long, value_name = "PORT", default_value_t = 0, hide_default_value = true)]
    pub(crate) port: u16,
}

/// Treatment of the volumes and snapshots that remain at the end of `dev`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AtExit {
    /// Names them, with the flag that deletes them.
    Report,
    /// Names them.
    Keep,
    /// Deletes them.
    Delete,
}

impl DevFlags {
    /// Treatment of volumes and snapshots at the end.
    pub(crate) fn at_exit(&self) -> AtExit {
        match (self.delete, self.keep) {
            (true, _) => AtExit::Delete,
            (false, true) => AtExit::Keep,
            (false, false) => AtExit::Report,
        }
    }

    /// Number of simulated nodes.
    pub(crate) fn node_count(&self) -> usize {
        if self.named_nodes.is_empty() { self.nodes } else { self.named_nodes.len() }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum RenderCommand {
    /// Print a service account with exactly the permissions that the roles use
    Rbac(RbacCommand),
    /// Print ValidatingAdmissionPolicies that restrict an account; apply them before the permissions
    AdmissionPolicy {
        /// Name of the driver
        #[arg(long, value_name = "NAME")]
        driver: String,

        /// Restriction of the account
        #[arg(long, value_enum, default_value_t, value_name = "POLICY")]
        policy: AdmissionPolicyArg,

        /// Namespace of the account
        #[arg(long, value_name = "NAME", default_value = "cofferdam")]
        namespace: String,

        /// Name of the account
        #[arg(long, value_name = "NAME", default_value = "cofferdam")]
        service_account: String,
    },
    /// Print the CustomResourceDefinitions of VolumeSnapshots, their contents and classes
    Crds,
}

/// Flags of `render rbac`.
#[derive(Debug, Args)]
pub(crate) struct RbacCommand {
    /// Role that runs under the account; repeat it for more: provisioner, attacher, resizer,
    /// pv-controller, protection, attach-detach, startup-taint, snapshotter, snapshot-controller, node,
    /// registrar, liveness, csi-server [default: the first nine]
    #[arg(long, value_name = "ROLE")]
    pub(crate) role: Vec<String>,

    /// Placement of the drivers' storage
    #[arg(long, value_enum, default_value_t, value_name = "PLACEMENT")]
    pub(crate) drivers: DriverPlacementArg,

    /// Namespace of the account and of the intent journal; pass the same to run, whose default differs
    #[arg(long, value_name = "NAME", default_value = "cofferdam")]
    pub(crate) namespace: String,

    /// Name of the account
    #[arg(long, value_name = "NAME", default_value = "cofferdam")]
    pub(crate) service_account: String,

    /// Omit the account, for one that another manifest creates; roles and bindings remain
    #[arg(long)]
    pub(crate) without_service_account: bool,

    /// Namespace of the Leases, as in the argument of that name of run and of the sidecars [default: that
    /// of --namespace]
    #[arg(long, value_name = "NAME")]
    pub(crate) leader_election_namespace: Option<String>,

    /// Namespace of the Secrets that classes, PersistentVolumes and contents may name; repeat it for more;
    /// * for every namespace, an empty value for none. Pass the same to run [default: that of --namespace]
    #[arg(long, value_name = "NAMESPACE", value_delimiter = ',')]
    pub(crate) secret_namespaces: Vec<String>,

    /// Secret that the account may read; repeat it for more. It replaces --secret-namespaces; without it,
    /// the account of a driver on nodes reads no Secret
    #[arg(long, value_name = "NAMESPACE/NAME", conflicts_with = "secret_namespaces")]
    pub(crate) secret: Vec<String>,
}

/// Restriction of an account by policies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum AdmissionPolicyArg {
    /// The account of a node-local driver changes objects of its node only; the topology key of the driver is
    /// topology.cofferdam.dev/node
    #[default]
    NodeLocal,
    /// As node-local, for a driver with other topology keys: of PersistentVolumes, the account changes those
    /// of the driver on any node
    NodeLabels,
    /// The account of the role startup-taint changes nothing of Nodes but the taint DRIVER/agent-not-ready
    StartupTaint,
}

/// Placement of the drivers' storage, which determines the permissions to read nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum DriverPlacementArg {
    /// Reachable from several nodes
    #[default]
    Central,
    /// On the node of the process; the only topology key is topology.cofferdam.dev/node
    Node,
    /// On the node of the process; topology keys are other labels of the Node
    NodeLabels,
    /// On the node of the process; an existing CSI driver whose topology keys are in the CSINode
    CsiNode,
}

impl From<DriverPlacementArg> for DriverPlacement {
    fn from(argument: DriverPlacementArg) -> Self {
        match argument {
            DriverPlacementArg::Central => Self::ClusterWide,
            DriverPlacementArg::Node => Self::NodeLocal(NodeTopologySource::Name),
            DriverPlacementArg::NodeLabels => Self::NodeLocal(NodeTopologySource::Labels),
            DriverPlacementArg::CsiNode => Self::NodeLocal(NodeTopologySource::CsiNode),
        }
    }
}

impl From<DriverPlacement> for DriverPlacementArg {
    fn from(placement: DriverPlacement) -> Self {
        match placement {
            DriverPlacement::ClusterWide => Self::Central,
            DriverPlacement::NodeLocal(NodeTopologySource::Name) => Self::Node,
            DriverPlacement::NodeLocal(NodeTopologySource::Labels) => Self::NodeLabels,
            DriverPlacement::NodeLocal(NodeTopologySource::CsiNode) => Self::CsiNode,
        }
    }
}

/// Flags of `status`.
#[derive(Debug, Args)]
pub(crate) struct StatusFlags {
    #[command(flatten)]
    pub(crate) reports: ReportScopeFlags,

    /// Show only this driver
    #[arg(long, value_name = "NAME")]
    pub(crate) driver: Option<String>,

    /// Fail if PersistentVolumes, VolumeAttachments, VolumeSnapshotContents or open requests need the driver,
    /// in place of the status; for use before it is removed
    #[arg(long, requires = "driver")]
    pub(crate) require_unused: bool,

    /// Age after which a waiting operation counts as stuck
    #[arg(long, value_name = "DURATION", default_value = "5m")]
    pub(crate) stuck_after: String,

    /// Output format
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    pub(crate) output: OutputFormat,
}

/// Flags of `pre-stop`.
#[derive(Debug, Args)]
pub(crate) struct PreStopFlags {
    #[command(flatten)]
    pub(crate) connection: SettingFlags<ConnectionSelection>,

    /// Name of the Node, such as spec.nodeName of the pod [default: $COFFERDAM_NODE_NAME]
    #[arg(long, value_name = "NAME")]
    pub(crate) node_name: Option<String>,

    /// Directory of the node records of the role node
    #[arg(long, value_name = "DIRECTORY")]
    pub(crate) node_records: PathBuf,

    /// Longest wait; the pod's terminationGracePeriodSeconds must be longer
    #[arg(long, value_name = "DURATION", default_value = "4m")]
    pub(crate) timeout: String,
}

/// Flags of `orphans`; without a subcommand it lists.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct OrphansFlags {
    #[command(subcommand)]
    pub(crate) command: Option<OrphansCommand>,

    #[command(flatten)]
    pub(crate) list: ListFlags,
}

#[derive(Debug, Subcommand)]
pub(crate) enum OrphansCommand {
    /// List the orphans that provisioners and snapshotters have reported
    List(ListFlags),
    /// Request the deletion of one orphan from the provisioner or the snapshotter of its driver, and wait for
    /// the result
    Delete(DeleteFlags),
}

/// Flags of `orphans list`.
#[derive(Debug, Args)]
pub(crate) struct ListFlags {
    #[command(flatten)]
    pub(crate) reports: ReportScopeFlags,

    /// Show only this driver
    #[arg(long, value_name = "NAME")]
    pub(crate) driver: Option<String>,

    /// Output format
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    pub(crate) output: OutputFormat,
}

/// Flags of `orphans delete`.
#[derive(Debug, Args)]
pub(crate) struct DeleteFlags {
    /// Name of the driver, as in `orphans list`
    pub(crate) driver: String,

    /// Handle of the volume or snapshot, as in `orphans list`
    pub(crate) handle: String,

    /// Kind of the orphan
    #[arg(long, value_enum, default_value_t, value_name = "KIND")]
    pub(crate) kind: OrphanKindFlag,

    #[command(flatten)]
    pub(crate) reports: ReportFlags,

    /// Time to wait for the result
    #[arg(long, value_name = "DURATION", default_value = "5m")]
    pub(crate) timeout: String,

    /// Output format
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    pub(crate) output: OutputFormat,
}

/// Kind of an orphan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum OrphanKindFlag {
    /// A volume
    #[default]
    Volume,
    /// A snapshot
    Snapshot,
}

impl From<OrphanKindFlag> for OrphanKind {
    fn from(kind: OrphanKindFlag) -> Self {
        match kind {
            OrphanKindFlag::Volume => Self::Volume,
            OrphanKindFlag::Snapshot => Self::Snapshot,
        }
    }
}

/// Flags that select the orphan reports of one namespace.
#[derive(Debug, Default, Args)]
pub(crate) struct ReportFlags {
    #[command(flatten)]
    pub(crate) connection: SettingFlags<ConnectionSelection>,

    /// Namespace of the processes [default: that of the kubeconfig's context, or the pod's]
    #[arg(long, value_name = "NAME", help_heading = "Cluster")]
    pub(crate) namespace: Option<String>,
}

/// Flags that select the orphan reports of one namespace or of all.
#[derive(Debug, Default, Args)]
pub(crate) struct ReportScopeFlags {
    #[command(flatten)]
    pub(crate) reports: ReportFlags,

    /// Read the processes' ConfigMaps in all namespaces, also in those in which tenants can write some
    #[arg(short = 'A', long, conflicts_with = "namespace", help_heading = "Cluster")]
    pub(crate) all_namespaces: bool,
}

/// Output format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputFormat {
    /// Human-readable text
    #[default]
    Text,
    /// JSON, for programs
    Json,
}
