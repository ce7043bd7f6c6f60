//! The command line. Flags that name a setting stay text here: the configuration checks them, so that a value
//! is judged by the same rule and in the same words wherever it comes from.

use std::path::PathBuf;

use clap::{Arg, Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand, ValueEnum};

use crate::commands::backend::BackendCommand;

/// Value of a flag that says true without one, as Go's flags do.
const BOOL_VALUE_NAME: &str = "BOOL";

/// What the command line says. Where it says nothing that we know, ends the process with the reason, as with
/// help.
pub(crate) fn parse() -> Cli {
    let mut command = Cli::command();
    let names: Vec<String> = command.get_subcommands().map(|each| each.get_name().to_owned()).collect();
    for name in names {
        command = command.mut_subcommand(name, |each| each.mut_args(with_optional_bool_value));
    }
    Cli::from_arg_matches(&command.get_matches()).unwrap_or_else(|error| error.exit())
}

/// Simulated nodes: each has a kubelet, which costs as much as one does.
const MAX_NODES: usize = 100;

fn parse_node_count(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| *number <= MAX_NODES);
    number.ok_or_else(|| format!("expected a number from 0 to {MAX_NODES}"))
}

fn with_optional_bool_value(arg: Arg) -> Arg {
    if arg.get_value_names().is_some_and(|names| names.iter().any(|name| name == BOOL_VALUE_NAME)) {
        arg.num_args(0..=1).require_equals(true).default_missing_value("true")
    } else {
        arg
    }
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
    /// Run roles against a cluster
    Run(ClusterFlags),
    /// Run a whole cluster in this process, from the API to pods with volumes, for kubectl on this machine
    Dev(DevFlags),
    /// Show what every driver's claims, volumes and attachments are doing, what is stuck, and what went wrong
    /// last
    Status(StatusFlags),
    /// Show volumes that drivers hold and nothing in the cluster stands for, and delete them one at a time
    Orphans(OrphansFlags),
    /// Work on a driver component without a cluster
    #[command(subcommand)]
    Backend(BackendCommand),
    /// Print what a cluster has to be given, for kubectl apply
    #[command(subcommand)]
    Render(RenderCommand),
    /// Print every effective setting and where it comes from
    Config(ClusterFlags),
    /// Print version, target and the contract with drivers
    Version,
}

/// Settings of `run` and `config`.
#[derive(Debug, Default, Args)]
pub(crate) struct ClusterFlags {
    #[command(flatten)]
    pub(crate) process: ProcessFlags,

    #[command(flatten)]
    pub(crate) node: NodeFlags,

    /// Kubeconfig file [default: $KUBECONFIG, the pod's service account, ~/.kube/config]
    #[arg(long, value_name = "FILE", help_heading = "Cluster")]
    pub(crate) kubeconfig: Option<String>,

    /// Context of the kubeconfig [default: its current one]
    #[arg(long, value_name = "NAME", help_heading = "Cluster")]
    pub(crate) context: Option<String>,

    /// Namespace of the intent journal [default: the pod's, the context's, "default"]
    #[arg(long, value_name = "NAME", help_heading = "Cluster")]
    pub(crate) namespace: Option<String>,
}

/// Settings of everything that runs roles.
#[derive(Debug, Default, Args)]
pub(crate) struct ProcessFlags {
    /// TOML file with settings [default: $COFFERDAM_CONFIG]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// Role to run; repeat it for more: provisioner, attacher, resizer, pv-controller, protection,
    /// attach-detach; on nodes: node, registrar, liveness; without a cluster: csi-server
    #[arg(long, value_name = "ROLE")]
    pub(crate) role: Vec<String>,

    /// Driver component to load, or unix:PATH for the socket of a CSI driver; repeat it for more. NAME is
    /// what the configuration calls it [default: the file's name]
    #[arg(long, value_name = "[NAME=]FILE")]
    pub(crate) backend: Vec<String>,

    /// Address of /healthz, /readyz and /metrics, such as :8080 [default: none]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) http_endpoint: Option<String>,

    /// How long running work may take to end after SIGTERM [default: 30s]
    #[arg(long, value_name = "DURATION")]
    pub(crate) drain_timeout: Option<String>,

    /// Directory of compiled components, or "off" [default: the user's cache directory]
    #[arg(long, value_name = "DIRECTORY")]
    pub(crate) compilation_cache: Option<String>,

    /// What is logged: a level, or directives as in RUST_LOG [default: info; in dev: warn]
    #[arg(long, value_name = "FILTER", help_heading = "Logging")]
    pub(crate) log: Option<String>,

    /// How it is logged: text or json [default: text]
    #[arg(long, value_name = "FORMAT", help_heading = "Logging")]
    pub(crate) log_format: Option<String>,

    /// Deadline of one driver call [default: 1m]
    #[arg(long, value_name = "DURATION", help_heading = "As in the Go sidecars")]
    pub(crate) timeout: Option<String>,

    /// Socket of a CSI driver, which is called csi here; as --backend csi=unix:PATH
    #[arg(long, visible_alias = "csi", value_name = "PATH", help_heading = "As in the Go sidecars")]
    pub(crate) csi_address: Option<String>,

    /// Socket on which the role csi-server serves the driver
    #[arg(long, value_name = "PATH", help_heading = "CSI server")]
    pub(crate) csi_socket: Option<String>,

    /// Who may connect to sockets that are served: permission bits [default: 0600]
    #[arg(long, value_name = "MODE", help_heading = "CSI server")]
    pub(crate) socket_mode: Option<String>,

    /// Group of sockets that are served, by name or number [default: the process' own]
    #[arg(long, value_name = "GROUP", help_heading = "CSI server")]
    pub(crate) socket_group: Option<String>,

    /// First part of the name of a provisioned volume [default: pvc]
    #[arg(long, value_name = "PREFIX", help_heading = "As in the Go sidecars")]
    pub(crate) volume_name_prefix: Option<String>,

    /// First pause after a failure; it doubles with each [default: 1s]
    #[arg(long, value_name = "DURATION", help_heading = "As in the Go sidecars")]
    pub(crate) retry_interval_start: Option<String>,

    /// Longest pause of any role after a failure [default: 5m]
    #[arg(long, value_name = "DURATION", help_heading = "As in the Go sidecars")]
    pub(crate) retry_interval_max: Option<String>,

    /// Claims, and as many volumes, that are worked on at once [default: 100]; of the attacher, attachments
    /// of a driver that are attached, and as many that are detached [default: 10]
    #[arg(long, value_name = "NUMBER", help_heading = "As in the Go sidecars")]
    pub(crate) worker_threads: Option<String>,

    /// Claims of a driver that the resizer grows at once, and as many that it modifies [default: 10]
    #[arg(long, value_name = "NUMBER", help_heading = "As in the Go sidecars")]
    pub(crate) workers: Option<String>,

    /// Pause between two looks of the resizer at everything [default: 10m]
    #[arg(long, value_name = "DURATION", help_heading = "As in the Go sidecars")]
    pub(crate) resync_period: Option<String>,

    /// Look at Pods for drivers that do not grow volumes in use [default: true]
    #[arg(long, value_name = BOOL_VALUE_NAME, help_heading = "As in the Go sidecars")]
    pub(crate) handle_volume_inuse_error: Option<String>,

    /// Tell the driver the names of claim and volume when it modifies one [default: false]
    #[arg(long, value_name = BOOL_VALUE_NAME, help_heading = "As in the Go sidecars")]
    pub(crate) extra_modify_metadata: Option<String>,

    /// Pause between two looks of the attacher at everything [default: 10m]
    #[arg(long, value_name = "DURATION", help_heading = "As in the Go sidecars")]
    pub(crate) resync: Option<String>,

    /// Pause between two comparisons of attachments with the driver's listing [default: 1m]
    #[arg(long, value_name = "DURATION", help_heading = "As in the Go sidecars")]
    pub(crate) reconcile_sync: Option<String>,

    /// Volumes per page of that listing; 0 leaves it to the driver [default: 0]
    #[arg(long, value_name = "NUMBER", help_heading = "As in the Go sidecars")]
    pub(crate) max_entries: Option<String>,

    /// Filesystem type for classes and volumes that name none
    #[arg(long, value_name = "TYPE", help_heading = "As in the Go sidecars")]
    pub(crate) default_fstype: Option<String>,

    /// Tell the driver the names of claim and volume
    #[arg(long, value_name = BOOL_VALUE_NAME, help_heading = "As in the Go sidecars")]
    pub(crate) extra_create_metadata: Option<String>,

    /// Ask for a volume on the node that the scheduler has chosen, and nowhere else [default: false]
    #[arg(long, value_name = BOOL_VALUE_NAME, help_heading = "As in the Go sidecars")]
    pub(crate) strict_topology: Option<String>,

    /// Name all places of the cluster to the driver where no node is chosen and the class allows every place
    /// [default: true; in dev: false]
    #[arg(long, value_name = BOOL_VALUE_NAME, help_heading = "As in the Go sidecars")]
    pub(crate) immediate_topology: Option<String>,

    /// Leave volumes on a node that is not ready for as long as it says that it uses them, and not for six
    /// minutes only [default: false]
    #[arg(long, value_name = BOOL_VALUE_NAME, help_heading = "As in kube-controller-manager")]
    pub(crate) disable_force_detach_on_timeout: Option<String>,

    /// Pause between two scans for volumes that nothing stands for, or "off" [default: 1h]
    #[arg(long, value_name = "DURATION", help_heading = "Orphans")]
    pub(crate) orphan_scan_interval: Option<String>,
}

/// Settings of the roles of a node.
#[derive(Debug, Default, Args)]
pub(crate) struct NodeFlags {
    /// What `backend inspect -o manifest` wrote of the driver that the node serves
    #[arg(long, value_name = "FILE", help_heading = "Roles of a node")]
    pub(crate) manifest: Option<String>,

    /// Socket on which the role node serves kubelet
    #[arg(long, value_name = "PATH", help_heading = "Roles of a node")]
    pub(crate) csi_endpoint: Option<String>,

    /// Name of the Node; for the provisioner too, where a driver keeps its volumes on the node
    #[arg(long, value_name = "NAME", help_heading = "Roles of a node")]
    pub(crate) node_name: Option<String>,

    /// Directory of the node's own records [default: volumes, beside the socket]
    #[arg(long, value_name = "DIRECTORY", help_heading = "Roles of a node")]
    pub(crate) node_records: Option<String>,

    /// Root of kubelet; repeat it for more [default: /var/lib/kubelet]
    #[arg(long, value_name = "DIRECTORY", help_heading = "Roles of a node")]
    pub(crate) kubelet_root: Vec<String>,

    /// Let a role that touches the node share this process with roles that run drivers
    #[arg(long, value_name = BOOL_VALUE_NAME, help_heading = "Roles of a node")]
    pub(crate) single_process: Option<String>,

    /// Every driver of this process keeps its volumes on this node, also one that does not say so, as CSI
    /// drivers cannot [default: false]
    #[arg(long, value_name = BOOL_VALUE_NAME, help_heading = "As in the Go sidecars")]
    pub(crate) node_deployment: Option<String>,

    /// Drivers of this node race with those of others for claims that no node was chosen for [default: true]
    #[arg(long, value_name = BOOL_VALUE_NAME, help_heading = "As in the Go sidecars")]
    pub(crate) node_deployment_immediate_binding: Option<String>,

    /// Longest pause before a driver of this node takes such a claim [default: 20s]
    #[arg(long, value_name = "DURATION", help_heading = "As in the Go sidecars")]
    pub(crate) node_deployment_base_delay: Option<String>,

    /// Longest pause before it tries again, having had no room [default: 1m]
    #[arg(long, value_name = "DURATION", help_heading = "As in the Go sidecars")]
    pub(crate) node_deployment_max_delay: Option<String>,

    /// Path of the driver's socket on the host, which kubelet is told [default: that of --csi-endpoint]
    #[arg(long, value_name = "PATH", help_heading = "As in the Go sidecars")]
    pub(crate) kubelet_registration_path: Option<String>,

    /// Kubelet's directory of plugins [default: /registration]
    #[arg(long, value_name = "DIRECTORY", help_heading = "As in the Go sidecars")]
    pub(crate) plugin_registration_path: Option<String>,

    /// How long the driver may take to say that it is ready [default: 3s]
    #[arg(long, value_name = "DURATION", help_heading = "As in the Go sidecars")]
    pub(crate) probe_timeout: Option<String>,

    /// Port of the role liveness where no --http-endpoint is given [default: 9808]
    #[arg(long, value_name = "PORT", help_heading = "As in the Go sidecars")]
    pub(crate) health_port: Option<String>,
}

/// What only `dev` has.
#[derive(Debug, Default, Args)]
pub(crate) struct DevFlags {
    #[command(flatten)]
    pub(crate) process: ProcessFlags,

    /// Show a volume come to a pod, grow, move to another node and go, and exit: 0 when everything held, 1
    /// otherwise
    #[arg(long)]
    pub(crate) demo: bool,

    /// Keep running after a demo that held
    #[arg(long, requires = "demo")]
    pub(crate) keep_running: bool,

    /// Simulated nodes, each with a kubelet, at most 100; 0 for an API and roles alone
    #[arg(long, value_name = "NUMBER", default_value_t = 2, value_parser = parse_node_count, allow_negative_numbers = true)]
    pub(crate) nodes: usize,

    /// Mount for real, as root, under the policy of the section node; without it mounts are recorded and not
    /// made
    #[arg(long)]
    pub(crate) real_mounts: bool,

    /// Where the kubeconfig goes [default: a new directory under $XDG_RUNTIME_DIR or the temporary directory]
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig_out: Option<PathBuf>,

    /// Port of the API on 127.0.0.1 [default: a free one]
    #[arg(long, value_name = "PORT", default_value_t = 0, hide_default_value = true)]
    pub(crate) port: u16,
}

#[derive(Debug, Subcommand)]
pub(crate) enum RenderCommand {
    /// A service account with exactly the rights that the roles use
    Rbac {
        /// Role that runs under the account; repeat it for more: provisioner, attacher, resizer,
        /// pv-controller, protection, attach-detach, node, registrar, liveness, csi-server [default: the
        /// first six]
        #[arg(long, value_name = "ROLE")]
        role: Vec<String>,

        /// Where the storage of their drivers is
        #[arg(long, value_enum, default_value_t, value_name = "WHERE")]
        drivers: DriverPlacementArg,

        /// Namespace of the account, and of the intent journal; give run the same, which takes the pod's, the
        /// context's or "default" otherwise
        #[arg(long, value_name = "NAME", default_value = "cofferdam")]
        namespace: String,

        /// Name of the account
        #[arg(long, value_name = "NAME", default_value = "cofferdam")]
        service_account: String,
    },
}

/// Where drivers' storage is, as far as rights depend on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum DriverPlacementArg {
    /// In the cluster
    #[default]
    Central,
    /// In the node of the process, which is known by its name: the one topology key is
    /// topology.cofferdam.dev/node
    Node,
    /// The same, and the driver has topology keys that are other labels of the Node
    NodeLabels,
    /// The same of an existing CSI driver, whose keys stand in the CSINode
    CsiNode,
}

/// Settings of `status`.
#[derive(Debug, Args)]
pub(crate) struct StatusFlags {
    /// Kubeconfig file [default: $KUBECONFIG, the pod's service account, ~/.kube/config]
    #[arg(long, value_name = "FILE", help_heading = "Cluster")]
    pub(crate) kubeconfig: Option<String>,

    /// Context of the kubeconfig [default: its current one]
    #[arg(long, value_name = "NAME", help_heading = "Cluster")]
    pub(crate) context: Option<String>,

    /// Show this driver only
    #[arg(long, value_name = "NAME")]
    pub(crate) driver: Option<String>,

    /// How long something may wait before it counts as stuck
    #[arg(long, value_name = "DURATION", default_value = "5m")]
    pub(crate) stuck_after: String,

    /// How the result is printed
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    pub(crate) output: OutputFormat,
}

/// What `orphans` has; without a command it lists.
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
    /// Show what the processes that own drivers have found
    List(ListFlags),
    /// Ask the process that owns the driver to delete one orphan, and wait for its answer
    Delete(DeleteFlags),
}

/// Settings of `orphans list`.
#[derive(Debug, Args)]
pub(crate) struct ListFlags {
    #[command(flatten)]
    pub(crate) connection: ConnectionFlags,

    /// Show this driver only
    #[arg(long, value_name = "NAME")]
    pub(crate) driver: Option<String>,

    /// How the result is printed
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    pub(crate) output: OutputFormat,
}

/// Settings of `orphans delete`.
#[derive(Debug, Args)]
pub(crate) struct DeleteFlags {
    /// The driver, as `orphans list` names it
    pub(crate) driver: String,

    /// The volume's handle, as `orphans list` shows it
    pub(crate) handle: String,

    #[command(flatten)]
    pub(crate) connection: ConnectionFlags,

    /// How long to wait for the answer
    #[arg(long, value_name = "DURATION", default_value = "5m")]
    pub(crate) timeout: String,

    /// How the answer is printed
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    pub(crate) output: OutputFormat,
}

/// How a cluster is reached.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ConnectionFlags {
    /// Kubeconfig file [default: $KUBECONFIG, the pod's service account, ~/.kube/config]
    #[arg(long, value_name = "FILE", help_heading = "Cluster")]
    pub(crate) kubeconfig: Option<String>,

    /// Context of the kubeconfig [default: its current one]
    #[arg(long, value_name = "NAME", help_heading = "Cluster")]
    pub(crate) context: Option<String>,

    /// Namespace of the processes [default: every one]
    #[arg(long, value_name = "NAME", help_heading = "Cluster")]
    pub(crate) namespace: Option<String>,
}

/// How a result is printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputFormat {
    /// For people
    #[default]
    Text,
    /// For programs
    Json,
}
