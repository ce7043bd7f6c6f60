//! Results of the benchmarks, as they are stored in benchmarks.json.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::implementation::Implementation;

/// All results of a run, and the machine that it ran on.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct BenchmarkReport {
    pub(super) environment: BenchmarkEnvironment,
    /// Medians of the iterations.
    pub(super) medians: BenchmarkResults,
    pub(super) iterations: Vec<BenchmarkResults>,
}

/// The machine and the size of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct BenchmarkEnvironment {
    /// Date of the run, such as `2026-01-31`.
    pub(super) date: String,
    pub(super) cores: usize,
    pub(super) processor: String,
    /// Release of the kernel.
    pub(super) kernel: String,
    /// Claims of a load.
    pub(super) claims: usize,
}

/// Kind of load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum LoadKind {
    /// Create claims one after the other; each is Bound to a new volume.
    BindSequentially,
    /// Create claims concurrently; each is Bound to a new volume.
    BindDynamic,
    /// Delete claims concurrently. The result is the removal of their volumes.
    DeleteClaims,
    /// Bind claims to static volumes.
    BindStatic,
    /// Attach volumes to nodes.
    Attach,
    /// Detach volumes.
    Detach,
    /// Expand claims.
    Expand,
    /// Create pods that name their node in `spec.nodeName`, and attach their volumes.
    SchedulePods,
    /// Delete pods and detach their volumes.
    DeletePods,
    /// Create claims, and pods that use them, on a kubelet. The result is a running pod. The client then
    /// deletes both, which counts for the throughput and the cost, but not for the latency.
    RunPods,
}

/// Measurement of one load.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct LoadMeasurement {
    pub(super) kind: LoadKind,
    pub(super) objects: usize,
    /// Seconds from the first request to the last result.
    pub(super) seconds: f64,
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
    /// Names of the controllers, whose usage is compared.
    pub(super) controllers: Vec<String>,
    pub(super) loads: Vec<LoadMeasurement>,
}

impl ConfigurationResults {
    pub(super) fn load(&self, kind: LoadKind) -> Option<&LoadMeasurement> {
        self.loads.iter().find(|measurement| measurement.kind == kind)
    }
}

/// Measurements of all configurations: of one iteration, or medians. Only the medians have `memory`, which is
/// measured once. Loads that were not selected are empty.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct BenchmarkResults {
    pub(super) claims: Vec<ConfigurationResults>,
    pub(super) attachments: Vec<ConfigurationResults>,
    pub(super) expansion: Vec<ConfigurationResults>,
    pub(super) scheduling: Vec<ConfigurationResults>,
    pub(super) pods: Vec<ConfigurationResults>,
    pub(super) node: Option<NodeRoleUsage>,
    pub(super) memory: Option<ResidentMemory>,
}

/// Cost of a load. The counters are differences per object; memory and watches are values after the load.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Cost {
    /// CPU milliseconds per object, by process.
    pub(super) cpu: BTreeMap<String, f64>,
    /// Resident memory after the load in bytes, by process.
    pub(super) memory: BTreeMap<String, u64>,
    /// Writes per object, those of the load included.
    pub(super) writes: f64,
    /// Requests per object, by verb, resource and subresource, without those below 0.005 per object.
    pub(super) requests: BTreeMap<String, f64>,
    /// Watch events per object.
    pub(super) events: f64,
    /// Open watches of the controllers: those of the API server without controllers are subtracted.
    pub(super) watches: f64,
}

/// Resource usage of the node roles.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct NodeRoleUsage {
    /// Resident memory in bytes of `node`, `registrar` and `liveness` in one process, after the load.
    pub(super) resident_bytes: u64,
    /// Median latency of NodePublishVolume for directories in milliseconds.
    pub(super) publish_p50: f64,
    /// Number of these calls.
    pub(super) publishes: usize,
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
