//! The declarations of all settings.
//!
//! A setting is declared once, in the `settings` call below. The declaration generates its flag with help,
//! its environment variable, its field in [`Configuration`], its default, the keys that an error about an
//! unknown key lists, and its row in the output of `cofferdam config`. A test compares the declarations with
//! the table in docs/configuration.md.

use std::{collections::BTreeMap, path::PathBuf, sync::LazyLock};

use clap::{Arg, ArgAction, builder::ValueParser};
use cofferdam_node::NodePolicy;
use serde::Deserialize;

use super::{
    backend::{BackendSection, CsiSocketAddress},
    duration::GoDuration,
    feature_gates::FeatureGateValues,
    role::Roles,
    value::{
        ApiServerUrl, CompilationCache, HttpEndpoint, LeaseLabels, LogFilter, LogFormat, MaxEntries,
        MetricsPath, NamespaceName, ScanInterval, SecretNamespaceList, SocketGroup, SocketMode,
        VolumeNameUuidLength, WorkerCount,
    },
};
use SettingDefault::{Computed, InDev, Unset, Value};
use ValueKind::{Backends, Bool, List, Number, Table, Text};

/// A setting.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    /// Key in the file, such as `csi-socket`. That setting has the flag `--csi-socket` and the environment
    /// variable `COFFERDAM_CSI_SOCKET`.
    pub(crate) name: String,
    /// Description, for `--help` and docs/configuration.md.
    pub(crate) help: &'static str,
    /// Commands, roles and help heading.
    pub(crate) group: SettingGroup,
    /// Syntax of the value on the command line and in the environment.
    pub(crate) kind: ValueKind,
    /// Value if no source sets the key.
    pub(crate) default: SettingDefault,
}

/// Settings that the same commands and roles read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SettingGroup {
    /// Commands that have the flag.
    pub(crate) scope: FlagScope,
    /// Heading in `--help`; absent for `Options`.
    heading: Option<&'static str>,
    /// Roles that read the setting, for docs/configuration.md.
    #[cfg_attr(not(test), expect(dead_code, reason = "read by the test of docs/configuration.md"))]
    pub(crate) roles: &'static str,
}

/// Commands that have a flag for a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FlagScope {
    /// `run`, `config` and `dev`.
    Process,
    /// `run` and `config`. Of these settings, `status` and `orphans` have the flags `--kubeconfig` and
    /// `--context` too, and `orphans` also `--namespace`.
    Cluster,
    /// No command: the setting is read from the file only.
    File,
}

/// Syntax of a value on the command line and in the environment, with the placeholder in `--help`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ValueKind {
    /// Text, parsed by the type of the field.
    Text(&'static str),
    /// A whole number.
    Number(&'static str),
    /// `true` or `false`; a flag without a value means `true`, as in Go.
    Bool,
    /// Items separated by commas; the flag can be repeated.
    List(&'static str),
    /// `[NAME=]FILE` or `[NAME=]unix:PATH`: sets `file` or `csi` of an entry of the table `backend`.
    Backends(&'static str),
    /// A table, in the file only.
    Table,
}

/// Value of a setting that no source sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SettingDefault {
    /// No value.
    Unset,
    /// This value, as on the command line.
    Value(&'static str),
    /// The first value; in `dev` and `backend` the second.
    InDev(&'static str, &'static str),
    /// No value in the configuration: the program derives one as described.
    Computed(&'static str),
}

/// Settings of every role.
const ALL: SettingGroup = SettingGroup { scope: FlagScope::Process, heading: None, roles: "all" };
/// Settings of every role. The Go sidecars have the same flags.
const SIDECARS: SettingGroup = SettingGroup { heading: Some("Compatible with the Go sidecars"), ..ALL };
const PROVISIONER: SettingGroup = SettingGroup { roles: "provisioner", ..SIDECARS };
const ATTACHER: SettingGroup = SettingGroup { roles: "attacher", ..SIDECARS };
const RESIZER: SettingGroup = SettingGroup { roles: "resizer", ..SIDECARS };
const PROVISIONER_AND_ATTACHER: SettingGroup = SettingGroup { roles: "provisioner, attacher", ..SIDECARS };
const WORKERS: SettingGroup =
    SettingGroup { roles: "provisioner, attacher, snapshotter, snapshot-controller", ..SIDECARS };
const SNAPSHOTTER: SettingGroup = SettingGroup { roles: "snapshotter", ..SIDECARS };
const PROVISIONER_AND_SNAPSHOTTER: SettingGroup =
    SettingGroup { roles: "provisioner, snapshotter", ..SIDECARS };
const PROVISIONER_AND_SNAPSHOT_CONTROLLER: SettingGroup =
    SettingGroup { roles: "provisioner, snapshot-controller", ..SIDECARS };
const SNAPSHOT_CONTROLLER: SettingGroup = SettingGroup { roles: "snapshot-controller", ..SIDECARS };
const ATTACH_DETACH: SettingGroup =
    SettingGroup { heading: Some("Compatible with kube-controller-manager"), roles: "attach-detach", ..ALL };
const ORPHANS: SettingGroup =
    SettingGroup { heading: Some("Orphans"), roles: "provisioner, snapshotter", ..ALL };
const SECRETS: SettingGroup =
    SettingGroup { heading: Some("Secrets"), roles: "provisioner, attacher, resizer, snapshotter", ..ALL };
const CSI_SERVER: SettingGroup = SettingGroup { heading: Some("CSI server"), roles: "csi-server", ..ALL };
const LOGGING: SettingGroup = SettingGroup { heading: Some("Logging"), ..ALL };
/// Settings of the connection to a cluster.
const CLUSTER: SettingGroup =
    SettingGroup { scope: FlagScope::Cluster, heading: Some("Cluster"), roles: "all" };
const NODE: SettingGroup =
    SettingGroup { scope: FlagScope::Cluster, heading: Some("Node roles"), roles: "node" };
const NODE_SIDECARS: SettingGroup = SettingGroup { scope: FlagScope::Cluster, ..SIDECARS };
const REGISTRAR: SettingGroup = SettingGroup { roles: "registrar", ..NODE_SIDECARS };
const PROBES: SettingGroup = SettingGroup { roles: "registrar, liveness", ..NODE_SIDECARS };
const LEADER_ELECTION: SettingGroup =
    SettingGroup { roles: "those that reconcile a cluster", ..NODE_SIDECARS };
const NODE_DEPLOYMENT: SettingGroup =
    SettingGroup { roles: "provisioner, resizer, snapshotter", ..NODE_SIDECARS };
const NODE_PROVISIONER: SettingGroup = SettingGroup { roles: "provisioner", ..NODE_SIDECARS };
const NODE_POLICY: SettingGroup = SettingGroup { scope: FlagScope::File, heading: None, roles: "node" };

macro_rules! settings {
    ($($group:expr => {
        $(
            $(#[doc = $help:literal])+
            $(#[serde($serde:ident)])?
            $field:ident: $type:ty = $kind:expr, $default:expr;
        )+
    })+) => {
        /// The values of all settings, validated.
        #[derive(Debug, Deserialize)]
        #[serde(rename_all = "kebab-case", deny_unknown_fields)]
        pub(crate) struct Configuration {
            $($(
                $(#[doc = $help])+
                $(#[serde($serde)])?
                pub(crate) $field: $type,
            )+)+
        }

        /// All settings, in the order of `cofferdam config` and docs/configuration.md.
        pub(crate) static SETTINGS: LazyLock<Vec<Setting>> = LazyLock::new(|| vec![$($(
            Setting {
                name: stringify!($field).replace('_', "-"),
                help: concat!($($help),+).trim_ascii_start(),
                group: $group,
                kind: $kind,
                default: $default,
            },
        )+)+]);
    };
}

// Defaults are those of the Go sidecars, except `timeout` (there 10 s or 15 s, too short for many arrays) and
// `probe-timeout` (there 1 s).
settings! {
    ALL => {
        /// Role to run; repeat it for more: provisioner, attacher, resizer, pv-controller, protection,
        /// attach-detach, startup-taint, snapshotter, snapshot-controller; on nodes: node, registrar,
        /// liveness; without a cluster: csi-server
        #[serde(default)]
        role: Roles = List("ROLE"), Computed("none; in dev: the first nine");
        /// Driver component to load, or unix:PATH for the socket of a CSI driver; repeat it for more. NAME is
        /// the name of the driver's section in the configuration, by default the file's name
        #[serde(default)]
        backend: BTreeMap<String, BackendSection> = Backends("[NAME=]FILE"),
            Computed("none; in dev: the memory driver");
    }
    SIDECARS => {
        /// Socket of a CSI driver; the same as --backend csi=unix:PATH
        csi_address: Option<CsiSocketAddress> = Text("PATH"), Unset;
    }
    CSI_SERVER => {
        /// Socket on which the role csi-server serves the only driver; for several drivers set `socket` in
        /// the section of each
        csi_socket: Option<CsiSocketAddress> = Text("PATH"), Unset;
        /// Permission bits of the sockets that the process serves
        socket_mode: SocketMode = Text("MODE"), Value("0600");
        /// Group of the sockets that the process serves: a number, or a name in /etc/group
        socket_group: Option<SocketGroup> = Text("GROUP"), Computed("the group of the process");
    }
    CLUSTER => {
        /// Kubeconfig file
        kubeconfig: Option<PathBuf> = Text("FILE"),
            Computed("$KUBECONFIG, the pod's service account, ~/.kube/config");
        /// URL of the API server, in place of that of the kubeconfig; with neither --kubeconfig nor
        /// KUBECONFIG, requests have no credentials
        master: Option<ApiServerUrl> = Text("URL"), Unset;
        /// Context of the kubeconfig
        context: Option<String> = Text("NAME"), Computed("the current context");
        /// Namespace of the intent journal, the restore marker and the orphan reports
        namespace: Option<NamespaceName> = Text("NAME"),
            Computed("the pod's, the context's, \"default\"");
    }
    SECRETS => {
        /// Namespace of the Secrets that StorageClasses and PersistentVolumes may name; repeat it for more;
        /// * for every namespace
        secret_namespaces: Option<SecretNamespaceList> = List("NAMESPACE"),
            Computed("that of --namespace; in dev and as a sidecar: *");
    }
    ALL => {
        /// Address of /healthz, /readyz and /metrics, such as :8080 for every address of the machine
        http_endpoint: Option<HttpEndpoint> = Text("ADDRESS"), Unset;
    }
    SIDECARS => {
        /// Address of the metrics only; --http-endpoint or --health-port then has health only
        metrics_address: Option<HttpEndpoint> = Text("ADDRESS"), Unset;
        /// Path of the metrics
        metrics_path: MetricsPath = Text("PATH"), Value("/metrics");
    }
    LEADER_ELECTION => {
        /// Run the roles only while this process holds their Leases
        leader_election: Option<bool> = Bool, Computed("in a pod without --node-name: true; otherwise: false");
        /// Namespace of the Leases
        leader_election_namespace: Option<NamespaceName> = Text("NAME"),
            Computed("$POD_NAMESPACE, the pod's, \"default\"");
        /// Time without a renewal after which another process takes a Lease
        leader_election_lease_duration: GoDuration = Text("DURATION"), Value("15s");
        /// Time without a renewal after which this process stops work
        leader_election_renew_deadline: GoDuration = Text("DURATION"), Value("10s");
        /// Time between two renewals of a Lease, or two attempts to acquire one
        leader_election_retry_period: GoDuration = Text("DURATION"), Value("5s");
        /// Label of the Leases that this process holds; repeat it for more
        #[serde(default)]
        leader_election_labels: LeaseLabels = List("KEY:VALUE"), Unset;
    }
    SIDECARS => {
        /// Deadline of one driver call; the driver's own limit applies if it is shorter
        timeout: GoDuration = Text("DURATION"), Value("1m");
    }
    ALL => {
        /// Time for in-flight work to finish after SIGTERM or SIGINT; a second signal ends the process
        /// immediately
        drain_timeout: GoDuration = Text("DURATION"), Value("30s");
    }
    PROVISIONER => {
        /// Prefix of the names of provisioned volumes, before the claim's uid
        volume_name_prefix: String = Text("PREFIX"), Value("pvc");
        /// Number of characters of the claim's uid, without its dashes, in the names of provisioned volumes,
        /// from 1 to 32; with -1 the whole uid with its dashes
        volume_name_uuid_length: VolumeNameUuidLength = Text("NUMBER"), Value("-1");
    }
    SIDECARS => {
        /// First back-off after a failure; it doubles with each failure
        retry_interval_start: GoDuration = Text("DURATION"), Value("1s");
        /// Longest back-off after a failure; a role's own limit may be shorter
        retry_interval_max: GoDuration = Text("DURATION"), Value("5m");
    }
    WORKERS => {
        /// Maximum concurrent claims of the provisioner, attach operations of a driver, and snapshots; the
        /// same limit applies separately to volume deletions and detach operations
        worker_threads: Option<WorkerCount> = Number("NUMBER"), Computed("attacher: 10; others: 100");
    }
    SIDECARS => {
        /// Feature to turn off or on; repeat it for more: Topology, VolumeAttributesClass,
        /// MutableCSINodeAllocatableCount, AnnotateFsResize; all are on by default
        #[serde(default)]
        feature_gates: FeatureGateValues = List("NAME=BOOL"), Unset;
    }
    RESIZER => {
        /// Maximum concurrent expansions per driver; the same limit applies separately to modifications
        workers: WorkerCount = Number("NUMBER"), Value("10");
        /// Deadline of an expansion, in place of --timeout
        resize_timeout: Option<GoDuration> = Text("DURATION"), Computed("that of --timeout");
        /// Deadline of a modification, in place of --timeout
        modify_timeout: Option<GoDuration> = Text("DURATION"), Computed("that of --timeout");
        /// Resync period of the resizer
        resync_period: GoDuration = Text("DURATION"), Value("10m");
        /// Delay expansions of volumes in use, for drivers that cannot expand them; this watches Pods
        handle_volume_inuse_error: bool = Bool, Value("true");
        /// Pass the names of claim and volume to the driver when modifying a volume, as
        /// csi.storage.k8s.io/pvc/name and so on
        extra_modify_metadata: bool = Bool, Value("false");
    }
    ATTACHER => {
        /// Resync period of the attacher
        resync: GoDuration = Text("DURATION"), Value("10m");
        /// Interval of comparing VolumeAttachments with the driver's volume listing
        reconcile_sync: GoDuration = Text("DURATION"), Value("1m");
        /// Volumes per page of the driver's volume listing; with 0 the driver decides
        max_entries: MaxEntries = Number("NUMBER"), Value("0");
    }
    PROVISIONER_AND_ATTACHER => {
        /// Filesystem type of classes and volumes that name none
        default_fstype: Option<String> = Text("TYPE"), Unset;
    }
    PROVISIONER_AND_SNAPSHOTTER => {
        /// Pass the names of the objects to the driver, as csi.storage.k8s.io/pvc/name,
        /// csi.storage.k8s.io/volumesnapshot/name and so on
        extra_create_metadata: bool = Bool, Value("false");
    }
    SNAPSHOTTER => {
        /// Prefix of the names of snapshots, before the uid of the VolumeSnapshot
        snapshot_name_prefix: String = Text("PREFIX"), Value("snapshot");
        /// Number of characters of the VolumeSnapshot's uid, without its dashes, in the names of snapshots,
        /// from 1 to 32; with -1 the whole uid with its dashes
        snapshot_name_uuid_length: VolumeNameUuidLength = Text("NUMBER"), Value("-1");
    }
    PROVISIONER => {
        /// Mark provisioned volumes of claims whose only access mode is ReadOnlyMany as read-only
        controller_publish_readonly: bool = Bool, Value("false");
        /// Request only the topology segment of the node that the scheduler selected
        strict_topology: bool = Bool, Value("false");
        /// Pass all topology segments of the cluster to the driver if no node is selected and the class
        /// allows every segment
        immediate_topology: bool = Bool, InDev("true", "false");
    }
    PROVISIONER_AND_SNAPSHOT_CONTROLLER => {
        /// Reject a claim with another volumeMode than the source of its snapshot
        prevent_volume_mode_conversion: bool = Bool, Value("true");
    }
    SNAPSHOT_CONTROLLER => {
        /// Label new VolumeSnapshotContents with the node that matches the node affinity of the source
        /// volume, for node-local drivers whose topology key is not topology.cofferdam.dev/node
        enable_distributed_snapshotting: bool = Bool, Value("false");
    }
    NODE_DEPLOYMENT => {
        /// Treat every driver of this process as node-local (CSI drivers cannot declare it themselves)
        node_deployment: bool = Bool, Value("false");
    }
    NODE_PROVISIONER => {
        /// Let node-local drivers compete with those of other nodes for claims without a selected node
        node_deployment_immediate_binding: bool = Bool, Value("true");
        /// Longest delay before a node-local driver claims such a claim
        node_deployment_base_delay: GoDuration = Text("DURATION"), Value("20s");
        /// Longest delay before the next attempt after the node had no capacity
        node_deployment_max_delay: GoDuration = Text("DURATION"), Value("1m");
    }
    ATTACH_DETACH => {
        /// Never force-detach volumes from a NotReady node; by default they are detached after 6 minutes
        disable_force_detach_on_timeout: bool = Bool, Value("false");
    }
    ORPHANS => {
        /// Interval of scans for volumes and snapshots that no object refers to, with up to 10 % jitter, or
        /// "off"; with "off" orphans cannot be deleted either
        orphan_scan_interval: ScanInterval = Text("DURATION"), Value("1h");
    }
    NODE => {
        /// Allow the role node in a process whose other roles run drivers
        single_process: bool = Bool, Value("false");
        /// Manifest of the driver that the node serves, as `backend inspect -o manifest` prints it
        manifest: Option<PathBuf> = Text("FILE"), Unset;
        /// Socket on which the role node serves kubelet
        csi_endpoint: Option<CsiSocketAddress> = Text("PATH"), Unset;
        /// Name of the Node, such as spec.nodeName of the pod; the provisioner of a node-local driver needs
        /// it too
        node_name: Option<String> = Text("NAME"), Unset;
        /// Directory of the node records
        node_records: Option<PathBuf> = Text("DIRECTORY"), Computed("volumes, beside the socket");
        /// Root directory of kubelet; repeat it for more
        kubelet_root: Vec<String> = List("DIRECTORY"), Value("/var/lib/kubelet");
    }
    REGISTRAR => {
        /// Path of the driver's socket on the host, for kubelet
        kubelet_registration_path: Option<String> = Text("PATH"), Computed("the path of --csi-endpoint");
        /// Plugin registration directory of kubelet
        plugin_registration_path: PathBuf = Text("DIRECTORY"), Value("/registration");
    }
    PROBES => {
        /// Timeout of a Probe call to the driver
        probe_timeout: GoDuration = Text("DURATION"), Value("3s");
        /// Deprecated: port of /healthz on every address of the machine, in place of --http-endpoint; 0 is
        /// none
        health_port: Option<u16> = Number("PORT"), Computed("liveness: 9808; registrar: 0");
    }
    NODE_POLICY => {
        /// Policy of the node: connection kinds, directories and limits that drivers may use
        #[serde(default)]
        node: NodePolicy = Table, Computed("nothing is allowed");
    }
    ALL => {
        /// Directory of compiled components, or "off"; other users must not be able to write to it
        #[serde(default)]
        compilation_cache: CompilationCache = Text("DIRECTORY"), Computed("the user's cache directory");
    }
    LOGGING => {
        /// Log level, or directives as in RUST_LOG, which is read if no other source sets this
        log: LogFilter = Text("FILTER"), InDev("info", "warn");
        /// Log format: text or json. Text is coloured on terminals unless NO_COLOR is set
        log_format: LogFormat = Text("FORMAT"), Value("text");
    }
}

impl Setting {
    /// The environment variable.
    pub(crate) fn env_var(&self) -> String {
        env_var_name(&self.name)
    }

    /// The flag; `None` for a setting that is read from the file only. The value of the flag stays text: the
    /// configuration checks the values of all sources by the same rules.
    pub(crate) fn flag(&'static self) -> Option<Arg> {
        if self.group.scope == FlagScope::File {
            return None;
        }
        let flag = Arg::new(self.name.as_str())
            .long(self.name.as_str())
            .help(self.help_with_default())
            .value_parser(ValueParser::string());
        let flag = match self.group.heading {
            Some(heading) => flag.help_heading(heading),
            None => flag,
        };
        let flag = if self.name == "csi-address" { flag.visible_alias("csi") } else { flag };
        Some(match self.kind {
            Text(placeholder) | Number(placeholder) => flag.action(ArgAction::Set).value_name(placeholder),
            Bool => flag
                .action(ArgAction::Set)
                .value_name("BOOL")
                .num_args(0..=1)
                .require_equals(true)
                .default_missing_value("true"),
            List(placeholder) | Backends(placeholder) => {
                flag.action(ArgAction::Append).value_name(placeholder)
            }
            Table => return None,
        })
    }

    fn help_with_default(&self) -> String {
        match self.default {
            Unset => self.help.to_owned(),
            Value(value) | Computed(value) => format!("{} [default: {value}]", self.help),
            InDev(value, in_dev) => format!("{} [default: {value}; in dev: {in_dev}]", self.help),
        }
    }
}

/// The environment variable of a setting.
pub(crate) fn env_var_name(name: &str) -> String {
    format!("COFFERDAM_{}", name.replace('-', "_").to_ascii_uppercase())
}
