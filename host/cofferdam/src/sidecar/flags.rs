//! The flags of the sidecars, and what this program does with each.
//!
//! Sources: the flags of external-provisioner 6.3, external-attacher 4.13, external-resizer 2.3,
//! external-snapshotter 8.7, node-driver-registrar 2.17, livenessprobe 2.19, csi-lib-utils 0.24,
//! component-base's logging options, and klog, whose flags earlier versions of the sidecars had.

use std::fmt::Write as _;

use super::{
    program::Sidecar::{
        self, Attacher, LivenessProbe, Provisioner, Registrar, Resizer, SnapshotController, Snapshotter,
    },
    value::ValueType::{
        self, Bool, Duration, Float, Int, Labels, ModuleVerbosity, Quantity, Severity, SourceLine, Text,
        Uint, Verbosity,
    },
};
use FlagEffect::{Ignored, Sets, Translated};

/// A flag of one or more sidecars.
#[derive(Clone, Copy, Debug)]
pub(super) struct SidecarFlag {
    /// Name without dashes.
    pub(super) name: &'static str,
    /// The sidecars that have the flag.
    pub(super) sidecars: &'static [Sidecar],
    /// Type of the value.
    pub(super) value: ValueType,
    /// Default in the sidecars, in the syntax of the program's settings.
    pub(super) default: &'static str,
    /// Effect in this program.
    pub(super) effect: FlagEffect,
}

/// Effect of a sidecar's flag in this program.
#[derive(Clone, Copy, Debug)]
pub(super) enum FlagEffect {
    /// Sets this setting.
    Sets(&'static str),
    /// Has this effect, which [`super::translate`] implements.
    Translated(&'static str),
    /// Has no effect; the text says what happens instead. A value other than the default is named in the
    /// warning at the start.
    Ignored(&'static str),
}

const ALL: &[Sidecar] = &Sidecar::ALL;
/// The sidecars of a driver.
const DRIVER: &[Sidecar] = &[Provisioner, Attacher, Resizer, Snapshotter, Registrar, LivenessProbe];
/// The sidecars that use the Kubernetes API.
const API: &[Sidecar] = &[Provisioner, Attacher, Resizer, Snapshotter, SnapshotController];
/// The sidecars of a driver that use the Kubernetes API.
const DRIVER_API: &[Sidecar] = &[Provisioner, Attacher, Resizer, Snapshotter];
/// The sidecars with an address of the metrics only.
const METRICS_ADDRESS: &[Sidecar] = &[Provisioner, Attacher, Resizer, Snapshotter, LivenessProbe];
/// The sidecars with a path of the metrics.
const METRICS_PATH: &[Sidecar] =
    &[Provisioner, Attacher, Resizer, Snapshotter, SnapshotController, LivenessProbe];
const PROVISIONER: &[Sidecar] = &[Provisioner];
const ATTACHER: &[Sidecar] = &[Attacher];
const RESIZER: &[Sidecar] = &[Resizer];
const SNAPSHOTTER: &[Sidecar] = &[Snapshotter];
const SNAPSHOT_CONTROLLER: &[Sidecar] = &[SnapshotController];
const SNAPSHOTS: &[Sidecar] = &[Snapshotter, SnapshotController];
const REGISTRAR: &[Sidecar] = &[Registrar];
const LIVENESS: &[Sidecar] = &[LivenessProbe];

const NO_RATE_LIMIT: &str = "requests to the API are not rate limited";
const NO_PPROF: &str = "there is no /debug/pprof; the metrics show the memory";
const STDERR: &str = "the log is written to stderr";
const ONE_STREAM: &str = "all log messages are written to stderr, unbuffered";
const LOG_FORMAT: &str = "the format of log lines does not depend on it";
const NO_CAPACITY: &str = "CSIStorageCapacity objects are not updated";
const NO_CAPACITY_OBJECTS: &str = "CSIStorageCapacity objects are not updated; the program ends if the CSIDriver \
     has storageCapacity true, at the start or later";
const NO_SWEEP: &str = "changes of claims and VolumeSnapshots remove the finalizer";
const NO_GROUPS: &str = "VolumeGroupSnapshots are left alone";
const NODE_DEPLOYMENT: FlagEffect =
    Translated("sets `node-deployment`, and `node-name` to the environment variable NODE_NAME");
const WORKER_THREADS: &str = "`worker-threads` is the limit";

/// A feature gate of a sidecar that has one value in this program.
#[derive(Clone, Copy, Debug)]
pub(super) struct FixedGate {
    /// Name of the gate.
    pub(super) name: &'static str,
    /// The sidecars that have the gate, or had it in earlier versions.
    pub(super) sidecars: &'static [Sidecar],
    /// Value in this program.
    pub(super) value: bool,
    /// The program's behavior with the other value.
    pub(super) instead: &'static str,
}

/// The feature gates that have one value.
pub(super) static FIXED_GATES: &[FixedGate] = &[
    FixedGate { name: "CSIVolumeGroupSnapshot", sidecars: SNAPSHOTS, value: false, instead: NO_GROUPS },
    FixedGate {
        name: "CrossNamespaceVolumeDataSource",
        sidecars: PROVISIONER,
        value: false,
        instead: "claims with a data source in another namespace are rejected, with an event",
    },
    // Always on since external-provisioner 5.
    FixedGate {
        name: "HonorPVReclaimPolicy",
        sidecars: PROVISIONER,
        value: true,
        instead: "the reclaim policy of a PersistentVolume is honored when it is deleted before its claim",
    },
    FixedGate {
        name: "RecoverVolumeExpansionFailure",
        sidecars: RESIZER,
        value: true,
        instead: "a failed expansion can be replaced by a smaller one, and the claim's status has its size",
    },
    FixedGate {
        name: "ReleaseLeaderElectionOnExit",
        sidecars: API,
        value: true,
        instead: "the Lease is released on exit",
    },
];

/// Gates of the libraries in external-provisioner, external-attacher and external-resizer. They concern API
/// servers, and change nothing in a sidecar. Each version has others; these are of the versions above.
pub(super) static LIBRARY_GATES: &[&str] = &[
    "APIResponseCompression",
    "APIServerIdentity",
    "APIServerWebhookAuthenticationToken",
    "APIServingWithRoutine",
    "AllowParsingUserUIDFromCertAuth",
    "AllowUnsafeMalformedObjectDeletion",
    "CBORServingAndStorage",
    "ComponentFlagz",
    "ComponentStatusz",
    "ConcurrentWatchObjectDecode",
    "ConsistentListFromCacheSkipTimeoutFallback",
    "ConstrainedImpersonation",
    "CoordinatedLeaderElection",
    "DeclarativeValidationBeta",
    "DetectCacheInconsistency",
    "EtcdRangeStream",
    "ExcludeAdmissionWebhookVirtualResources",
    "ListFromCacheSnapshot",
    "ManifestBasedAdmissionControlConfig",
    "NativeHistograms",
    "OpenAPIEnums",
    "RemoteRequestHeaderUID",
    "ShardedListAndWatch",
    "SizeBasedListCostEstimate",
    "StorageVersionAPI",
    "StorageVersionHash",
    "StructuredAuthenticationConfigurationEgressSelector",
    "StructuredAuthenticationConfigurationJWKSMetrics",
    "TokenRequestServiceAccountUIDValidation",
    "UnauthenticatedHTTP2DOSMitigation",
    "UnknownVersionInteroperabilityProxy",
    "WatchCacheInitializationPostStartHook",
    "WatchList",
    "WatchListCompression",
    "WebhookRoundTripLoadBalancing",
];

const fn flag(
    name: &'static str,
    sidecars: &'static [Sidecar],
    value: ValueType,
    default: &'static str,
    effect: FlagEffect,
) -> SidecarFlag {
    SidecarFlag { name, sidecars, value, default, effect }
}

/// The flags of all sidecars. A sidecar has at most one flag of a name.
#[rustfmt::skip] // one row per flag
pub(super) static FLAGS: &[SidecarFlag] = &[
    flag("version", &[Provisioner, Attacher, Resizer, Snapshotter, SnapshotController, Registrar], Bool, "false",
        Translated("prints the version and exits")),
    flag("csi-address", DRIVER, Text, "/run/csi/socket", Sets("csi-address")),
    flag("http-endpoint", ALL, Text, "", Sets("http-endpoint")),
    flag("metrics-address", METRICS_ADDRESS, Text, "", Sets("metrics-address")),
    flag("metrics-path", METRICS_PATH, Text, "/metrics", Sets("metrics-path")),
    flag("kubeconfig", API, Text, "", Sets("kubeconfig")),
    flag("master", &[Provisioner, Resizer], Text, "", Sets("master")),
    flag("kube-api-qps", API, Float, "5", Ignored(NO_RATE_LIMIT)),
    flag("kube-api-burst", API, Int, "10", Ignored(NO_RATE_LIMIT)),
    flag("leader-election", API, Bool, "false", Sets("leader-election")),
    flag("leader-election-namespace", API, Text, "", Sets("leader-election-namespace")),
    flag("leader-election-lease-duration", API, Duration, "15s", Sets("leader-election-lease-duration")),
    flag("leader-election-renew-deadline", API, Duration, "10s", Sets("leader-election-renew-deadline")),
    flag("leader-election-retry-period", API, Duration, "5s", Sets("leader-election-retry-period")),
    flag("leader-election-labels", DRIVER_API, Labels, "", Sets("leader-election-labels")),
    flag("feature-gates", API, Text, "",
        Translated("sets `feature-gates`; other gates of the sidecar have one value")),
    flag("retry-interval-start", API, Duration, "1s", Sets("retry-interval-start")),
    flag("retry-interval-max", API, Duration, "5m", Sets("retry-interval-max")),
    flag("timeout", PROVISIONER, Duration, "10s", Sets("timeout")),
    flag("timeout", ATTACHER, Duration, "15s", Sets("timeout")),
    flag("timeout", RESIZER, Duration, "10s", Sets("timeout")),
    flag("timeout", SNAPSHOTTER, Duration, "1m", Sets("timeout")),
    flag("timeout", REGISTRAR, Duration, "1s", Sets("probe-timeout")),
    flag("worker-threads", PROVISIONER, Uint, "100", Sets("worker-threads")),
    flag("worker-threads", ATTACHER, Uint, "10", Sets("worker-threads")),
    flag("worker-threads", SNAPSHOTS, Int, "10", Sets("worker-threads")),
    flag("default-fstype", &[Provisioner, Attacher], Text, "", Sets("default-fstype")),
    // csi-provisioner
    flag("volume-name-prefix", PROVISIONER, Text, "pvc", Sets("volume-name-prefix")),
    flag("volume-name-uuid-length", PROVISIONER, Int, "-1", Sets("volume-name-uuid-length")),
    flag("extra-create-metadata", &[Provisioner, Snapshotter], Bool, "false", Sets("extra-create-metadata")),
    flag("strict-topology", PROVISIONER, Bool, "false", Sets("strict-topology")),
    flag("immediate-topology", PROVISIONER, Bool, "true", Sets("immediate-topology")),
    flag("controller-publish-readonly", PROVISIONER, Bool, "false", Sets("controller-publish-readonly")),
    flag("node-deployment", PROVISIONER, Bool, "false", NODE_DEPLOYMENT),
    flag("node-deployment-immediate-binding", PROVISIONER, Bool, "true",
        Sets("node-deployment-immediate-binding")),
    flag("node-deployment-base-delay", PROVISIONER, Duration, "20s", Sets("node-deployment-base-delay")),
    flag("node-deployment-max-delay", PROVISIONER, Duration, "60s", Sets("node-deployment-max-delay")),
    flag("enable-capacity", PROVISIONER, Bool, "false", Ignored(NO_CAPACITY_OBJECTS)),
    flag("capacity-for-immediate-binding", PROVISIONER, Bool, "false", Ignored(NO_CAPACITY)),
    flag("capacity-poll-interval", PROVISIONER, Duration, "1m", Ignored(NO_CAPACITY)),
    flag("capacity-ownerref-level", PROVISIONER, Int, "1", Ignored(NO_CAPACITY)),
    flag("capacity-threads", PROVISIONER, Uint, "1", Ignored(NO_CAPACITY)),
    flag("kube-api-capacity-qps", PROVISIONER, Float, "1", Ignored(NO_CAPACITY)),
    flag("kube-api-capacity-burst", PROVISIONER, Int, "5", Ignored(NO_CAPACITY)),
    flag("cloning-protection-threads", PROVISIONER, Uint, "1", Ignored(WORKER_THREADS)),
    flag("snapshot-orphan-sweep-interval", PROVISIONER, Duration, "5m", Ignored(NO_SWEEP)),
    flag("prevent-volume-mode-conversion", &[Provisioner, SnapshotController], Bool, "true",
        Sets("prevent-volume-mode-conversion")),
    // csi-attacher
    flag("resync", ATTACHER, Duration, "10m", Sets("resync")),
    flag("reconcile-sync", ATTACHER, Duration, "1m", Sets("reconcile-sync")),
    flag("max-entries", ATTACHER, Int, "0", Sets("max-entries")),
    flag("max-grpc-log-length", ATTACHER, Int, "-1", Ignored("requests and responses are not logged")),
    // csi-resizer
    flag("resync-period", RESIZER, Duration, "10m", Sets("resync-period")),
    flag("workers", RESIZER, Int, "10", Sets("workers")),
    flag("resize-timeout", RESIZER, Duration, "10s",
        Translated("sets `resize-timeout`; has no effect with `timeout`, as in the sidecar")),
    flag("modify-timeout", RESIZER, Duration, "10s",
        Translated("sets `modify-timeout`; has no effect with `timeout`, as in the sidecar")),
    flag("handle-volume-inuse-error", RESIZER, Bool, "true", Sets("handle-volume-inuse-error")),
    flag("extra-modify-metadata", RESIZER, Bool, "false", Sets("extra-modify-metadata")),
    // csi-snapshotter and snapshot-controller
    flag("snapshot-name-prefix", SNAPSHOTTER, Text, "snapshot", Sets("snapshot-name-prefix")),
    flag("snapshot-name-uuid-length", SNAPSHOTTER, Int, "-1", Sets("snapshot-name-uuid-length")),
    flag("resync-period", SNAPSHOTS, Duration, "15m",
        Ignored("watches report each change; a snapshot that is not ready is asked for again after a back-off")),
    flag("node-deployment", SNAPSHOTTER, Bool, "false", NODE_DEPLOYMENT),
    flag("enable-distributed-snapshotting", SNAPSHOT_CONTROLLER, Bool, "false",
        Sets("enable-distributed-snapshotting")),
    flag("retry-crd-interval-max", SNAPSHOT_CONTROLLER, Duration, "30s",
        Ignored("the process waits for the kinds as long as it runs")),
    flag("groupsnapshot-name-prefix", SNAPSHOTTER, Text, "groupsnapshot", Ignored(NO_GROUPS)),
    flag("groupsnapshot-name-uuid-length", SNAPSHOTTER, Int, "-1", Ignored(NO_GROUPS)),
    // csi-node-driver-registrar
    flag("kubelet-registration-path", REGISTRAR, Text, "", Sets("kubelet-registration-path")),
    flag("plugin-registration-path", REGISTRAR, Text, "/registration", Sets("plugin-registration-path")),
    flag("health-port", REGISTRAR, Int, "0",
        Translated("sets `http-endpoint` to this port of every address; 0 is none")),
    flag("mode", REGISTRAR, Text, "",
        Translated("with kubelet-registration-probe exits with code 0; other values register the driver")),
    flag("connection-timeout", REGISTRAR, Duration, "0", Ignored("the sidecar ignores it, too")),
    // livenessprobe
    flag("probe-timeout", LIVENESS, Duration, "3s", Sets("probe-timeout")),
    flag("health-port", LIVENESS, Int, "9808", Sets("health-port")),
    // Flags of earlier versions, which manifests still have
    flag("csiTimeout", RESIZER, Duration, "10s", Sets("timeout")),
    flag("enable-leader-election", PROVISIONER, Bool, "false", Sets("leader-election")),
    flag("leader-election-type", PROVISIONER, Text, "leases", Translated("accepts leases only")),
    flag("enable-volume-group-snapshots", SNAPSHOTS, Bool, "false", Ignored(NO_GROUPS)),
    flag("connection-timeout", PROVISIONER, Duration, "0", Ignored("the process connects for up to 30 s")),
    // Diagnostics
    flag("enable-pprof", &[Provisioner, Registrar], Bool, "false", Ignored(NO_PPROF)),
    flag("automaxprocs", ALL, Bool, "false",
        Translated("limits the runtime's threads to the CPU quota of the container")),
    flag("v", ALL, Verbosity, "0",
        Translated("sets `log`: info up to 3; from 4 on debug for this program's modules")),
    flag("logging-format", ALL, Text, "text", Translated("sets `log-format`: text or json")),
    flag("vmodule", ALL, ModuleVerbosity, "", Ignored("the log level is that of --v for every module")),
    flag("log-flush-frequency", ALL, Duration, "5s", Ignored(ONE_STREAM)),
    flag("log-text-split-stream", ALL, Bool, "false", Ignored(ONE_STREAM)),
    flag("log-text-info-buffer-size", ALL, Quantity, "0", Ignored(ONE_STREAM)),
    flag("log-json-split-stream", ALL, Bool, "false", Ignored(ONE_STREAM)),
    flag("log-json-info-buffer-size", ALL, Quantity, "0", Ignored(ONE_STREAM)),
    // klog
    flag("add_dir_header", ALL, Bool, "false", Ignored(LOG_FORMAT)),
    flag("alsologtostderr", ALL, Bool, "false", Ignored(STDERR)),
    flag("alsologtostderrthreshold", ALL, Severity, "0", Ignored(STDERR)),
    flag("legacy_stderr_threshold_behavior", ALL, Bool, "true", Ignored(STDERR)),
    flag("log_backtrace_at", ALL, SourceLine, "", Ignored("log lines have no stack traces")),
    flag("log_dir", ALL, Text, "", Ignored(STDERR)),
    flag("log_file", ALL, Text, "", Ignored(STDERR)),
    flag("log_file_max_size", ALL, Uint, "1800", Ignored(STDERR)),
    flag("logtostderr", ALL, Bool, "true", Ignored(STDERR)),
    flag("one_output", ALL, Bool, "false", Ignored(STDERR)),
    flag("skip_headers", ALL, Bool, "false", Ignored(LOG_FORMAT)),
    flag("skip_log_headers", ALL, Bool, "false", Ignored(STDERR)),
    flag("stderrthreshold", ALL, Severity, "2", Ignored(STDERR)),
];

/// Returns the flag of a sidecar.
pub(super) fn find(sidecar: Sidecar, name: &str) -> Option<&'static SidecarFlag> {
    of_sidecar(sidecar).find(|flag| flag.name == name)
}

/// The flags of a sidecar.
pub(super) fn of_sidecar(sidecar: Sidecar) -> impl Iterator<Item = &'static SidecarFlag> {
    FLAGS.iter().filter(move |flag| flag.sidecars.contains(&sidecar))
}

/// Help: the flags, with their defaults and effects.
pub(crate) fn help(sidecar: Sidecar) -> String {
    let (program, role) = (sidecar.program(), sidecar.role());
    let mut text = format!(
        "{program}: the role {role} of cofferdam {}, with the command line of {program}\n\nFlags:\n",
        env!("CARGO_PKG_VERSION")
    );
    for flag in of_sidecar(sidecar) {
        let default = if flag.default.is_empty() { "none" } else { flag.default };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  --{} [default: {default}]\n        {}", flag.name, flag.effect);
    }
    text
}
