//! Results of the benchmarks, as they are stored in benchmarks.json.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::implementation::Implementation;

/// All results of a run, and the machine that it ran on.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct BenchmarkReport {
    pub(super) environment: BenchmarkEnvironment,
    /// Medians of the iterations.
    pub(super) medians: BenchmarkResults,
    /// Empty if only the loads `full`, `far` and `chains` were measured.
    pub(super) iterations: Vec<BenchmarkResults>,
    /// The loads `full` and `far`, which may be measured without the others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) scale: Option<ScaleReport>,
    /// The load `chains`, which may be measured without the others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) chains: Option<ChainReport>,
}

/// Results of the load `chains`, and the machine that it ran on.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct ChainReport {
    pub(super) environment: BenchmarkEnvironment,
    /// Medians of the iterations.
    pub(super) medians: Vec<ConfigurationResults>,
    pub(super) iterations: Vec<Vec<ConfigurationResults>>,
}

/// Results of the loads `full` and `far`, and the machine that they ran on.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct ScaleReport {
    pub(super) environment: BenchmarkEnvironment,
    /// Medians of the iterations.
    pub(super) medians: ScaleResults,
    pub(super) iterations: Vec<ScaleResults>,
}

/// Measurements of the loads `full` and `far`: of one iteration, or medians.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct ScaleResults {
    pub(super) full: Vec<FullCluster>,
    pub(super) far: Vec<FarApi>,
}

/// A configuration in a cluster that has claims and volumes already.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct FullCluster {
    /// Number of existing volumes, and of claims that are Bound to them.
    pub(super) volumes: usize,
    /// The loads [`LoadKind::BindDynamic`] and [`LoadKind::BindSequentially`].
    pub(super) results: ConfigurationResults,
    /// Only of controllers, in the largest cluster.
    pub(super) lifecycle: Option<Lifecycle>,
}

/// Times of controllers beside the loads.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Lifecycle {
    /// Seconds from the start of the processes until a claim is Bound that was created at the same time.
    pub(super) start_seconds: f64,
    /// CPU seconds of the controllers in 30 s without work.
    pub(super) rest_cpu_seconds: f64,
    /// After a restart of the API server without the history that the watches need: all objects are listed
    /// again.
    pub(super) relist: Recovery,
    /// After a restart of the API server: a watch continues if no object was written after its last event.
    pub(super) restart: Recovery,
}

/// Recovery of the controllers from a restart of the API server.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Recovery {
    /// Seconds until a claim is Bound that was created when the API server was ready again.
    pub(super) seconds: f64,
    /// CPU seconds of the controllers from the end of the API server until then.
    pub(super) cpu_seconds: f64,
}

/// A configuration at a distance from the API server.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct FarApi {
    /// Milliseconds of a round trip between the controllers and the API server; 0 without controllers.
    pub(super) round_trip_ms: u64,
    /// The loads [`LoadKind::BindSequentially`] and [`LoadKind::BindDynamic`].
    pub(super) results: ConfigurationResults,
}

/// The machine and the size of a run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct BenchmarkEnvironment {
    /// Date of the run, such as `2026-01-31`.
    pub(super) date: String,
    /// Number of processors; 0 if unknown.
    pub(super) cores: usize,
    pub(super) processor: String,
    /// Release of the kernel.
    pub(super) kernel: String,
    /// Number of claims of the claim load.
    pub(super) claims: usize,
}

/// Kind of load. The latency of an object is the time from the first request to the object's result. Without
/// controllers, the result is always the response to the last write that the client makes for the object. The
/// load `chains` has one object at a time of each of its kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum LoadKind {
    /// Create claims one after the other. The result is a claim that is Bound to a new volume.
    BindSequentially,
    /// Create claims concurrently. The result is a claim that is Bound to a new volume.
    BindDynamic,
    /// Delete claims concurrently. The result is the removal of their volumes.
    DeleteClaims,
    /// Create claims concurrently. The result is a claim that is Bound to a volume that existed before.
    BindStatic,
    /// Create VolumeAttachments concurrently. The result is `attached: true` in the status.
    Attach,
    /// Delete VolumeAttachments concurrently. The result is their removal.
    Detach,
    /// Request a larger size for claims concurrently. The result is the new capacity in the claim's status.
    Expand,
    /// Create the first VolumeSnapshots at once. The result is `readyToUse: true` in the status.
    TakeSnapshotBurst,
    /// Create VolumeSnapshots concurrently. The result is `readyToUse: true` in the status.
    TakeSnapshots,
    /// Delete VolumeSnapshots concurrently. The result is their removal.
    DeleteSnapshots,
    /// Create pods that name their node in `spec.nodeName`. The result is the pod's volume in
    /// `volumesAttached` of the Node.
    SchedulePods,
    /// Delete pods. The result is the removal of the VolumeAttachment of the pod's volume.
    DeletePods,
    /// Create claims, and pods that use them, on a kubelet. The result is a running pod. The client deletes
    /// the pod and the claim before it creates its next ones. The deletions do not count for the latency, but
    /// for the cost and, except those after the last result, for the throughput.
    RunPods,
}

/// Measurement of one load.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct LoadMeasurement {
    pub(super) kind: LoadKind,
    pub(super) objects: usize,
    /// Seconds from the start of the load to the last result.
    pub(super) seconds: f64,
    /// Throughput: `objects` divided by `seconds`.
    pub(super) per_second: f64,
    /// Median of the milliseconds from a request to its result.
    pub(super) p50: f64,
    /// 99th percentile of the same milliseconds.
    pub(super) p99: f64,
    pub(super) cost: Cost,
}

/// All loads on one configuration.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct ConfigurationResults {
    pub(super) name: String,
    pub(super) description: String,
    /// Implementation, or `None` for the API server only.
    pub(super) implementation: Option<Implementation>,
    /// Names of the controllers' processes, whose usage is compared; empty for the API server only.
    pub(super) controllers: Vec<String>,
    pub(super) loads: Vec<LoadMeasurement>,
}

impl ConfigurationResults {
    pub(super) fn load(&self, kind: LoadKind) -> Option<&LoadMeasurement> {
        self.loads.iter().find(|measurement| measurement.kind == kind)
    }
}

/// Measurements of all configurations: of one iteration, or medians. Only the medians have `memory` and
/// `existing_snapshots`, which are measured once. Loads that were not selected are empty.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct BenchmarkResults {
    pub(super) claims: Vec<ConfigurationResults>,
    pub(super) attachments: Vec<ConfigurationResults>,
    pub(super) expansion: Vec<ConfigurationResults>,
    #[serde(default)]
    pub(super) snapshots: Vec<ConfigurationResults>,
    pub(super) scheduling: Vec<ConfigurationResults>,
    pub(super) pods: Vec<ConfigurationResults>,
    pub(super) node: Option<NodeRoleUsage>,
    pub(super) memory: Option<ResidentMemory>,
    #[serde(default)]
    pub(super) existing_snapshots: Option<ExistingSnapshots>,
}

/// Cost of a load. The counters are differences per object; memory and watches are values after the load.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Cost {
    /// CPU milliseconds per object, by process.
    pub(super) cpu: BTreeMap<String, f64>,
    /// Resident memory after the load in bytes, by process.
    pub(super) memory: BTreeMap<String, u64>,
    /// API writes per object by all clients of the API server, including the client of the load.
    pub(super) writes: f64,
    /// Requests per object, by verb, resource and subresource, without those below 0.005 per object.
    pub(super) requests: BTreeMap<String, f64>,
    /// Watch events per object.
    pub(super) events: f64,
    /// Number of watches that are open after the load, minus those that were open when the control plane was
    /// ready. In the pod load, kube-controller-manager and kube-scheduler run at that time already.
    pub(super) watches: f64,
}

/// Resource usage of the node roles.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct NodeRoleUsage {
    /// Resident memory in bytes of `node`, `registrar` and `liveness` in one process, after the pod load.
    pub(super) resident_bytes: u64,
    /// Median latency in milliseconds of the successful NodePublishVolume calls for volumes of the driver
    /// `pool` that are directories.
    pub(super) publish_p50: f64,
    /// Number of the calls that `publish_p50` is the median of.
    pub(super) publishes: usize,
}

/// Cofferdam's snapshot roles in a cluster with many VolumeSnapshots.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct ExistingSnapshots {
    /// Number of VolumeSnapshots, each with its content.
    pub(super) existing: usize,
    /// Resident memory of the idle process without a VolumeSnapshot, in bytes.
    pub(super) empty_bytes: u64,
    /// Resident memory of the idle process with them, in bytes.
    pub(super) bytes: u64,
    /// Seconds from the creation of one more VolumeSnapshot until it is ready, median.
    pub(super) median_seconds: f64,
    /// The same, maximum.
    pub(super) max_seconds: f64,
}

/// Resident memory of idle processes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct ResidentMemory {
    /// Number of volumes. There are as many claims, VolumeAttachments and pods.
    pub(super) objects: usize,
    pub(super) drivers: usize,
    pub(super) nodes: usize,
    /// Bytes of the Cofferdam process.
    pub(super) cofferdam_bytes: u64,
    /// Bytes of the upstream processes, summed by program.
    pub(super) upstream_bytes: BTreeMap<String, u64>,
}
