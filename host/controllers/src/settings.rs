//! Settings of a process.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use cofferdam_backend::Backend;
use cofferdam_cluster::queue::{Action, ExponentialBackoff};

use crate::{
    provisioner::placement::{LocalNode, NodeDeployment},
    role::Role,
};

/// First delay of the back-off of API writes. client-go starts at 5 ms.
const API_BACKOFF_INITIAL: Duration = Duration::from_millis(50);
/// Longest delay of the back-off of API writes, as client-go's `DefaultControllerRateLimiter`.
const API_BACKOFF_MAX: Duration = Duration::from_secs(1000);

/// Settings of a process, with the flags that set them.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The roles of the process (`--role`).
    pub roles: BTreeSet<Role>,
    /// Namespace of the journal, of orphan reports and of the restore marker (`--namespace`).
    pub namespace: String,
    /// Name of the process in events and in the provisioner identity of volumes: host name or pod name.
    pub identity: String,
    /// Prefix of provisioned volumes' names (`--volume-name-prefix`).
    pub volume_name_prefix: String,
    /// Deadline of one driver call (`--timeout`).
    pub timeout: Duration,
    /// First delay of the back-off after a failure (`--retry-interval-start`).
    pub retry_interval_start: Duration,
    /// Longest delay of the back-off after a failure (`--retry-interval-max`).
    pub retry_interval_max: Duration,
    /// Maximum concurrent claims; the same limit applies separately to volume deletions (`--worker-threads`).
    pub worker_threads: usize,
    /// Maximum concurrent attaches per driver; the same limit applies separately to detaches
    /// (external-attacher's `--worker-threads`).
    pub attacher_worker_threads: usize,
    /// Maximum concurrent expansions per driver; the same limit applies separately to modifications
    /// (`--workers`).
    pub resizer_workers: usize,
    /// Resync period of the resizer (`--resync-period`).
    pub resync_period: Duration,
    /// Watches Pods for drivers that cannot expand volumes in use (`--handle-volume-inuse-error`).
    pub handle_volume_inuse_error: bool,
    /// Adds the names of claim and volume to the parameters of a modification (`--extra-modify-metadata`).
    pub extra_modify_metadata: bool,
    /// Resync period of the attacher (`--resync`).
    pub resync: Duration,
    /// Interval between comparisons of VolumeAttachments with ListVolumes (`--reconcile-sync`).
    pub reconcile_sync: Duration,
    /// Volumes per page of ListVolumes; absent leaves it to the driver (`--max-entries`).
    pub max_entries: Option<u32>,
    /// Filesystem type of classes and volumes that have none (`--default-fstype`).
    pub default_fs_type: Option<String>,
    /// Adds the names of claim and volume to the parameters of CreateVolume (`--extra-create-metadata`).
    pub extra_create_metadata: bool,
    /// Passes only the topology of the selected node to CreateVolume (`--strict-topology`).
    pub strict_topology: bool,
    /// Passes the topology of all nodes to CreateVolume if no node is selected and the class has no
    /// `allowedTopologies` (`--immediate-topology`).
    pub immediate_topology: bool,
    /// Force-detaches volumes from a NotReady node 6 minutes after the request to detach (not
    /// `--disable-force-detach-on-timeout`).
    pub force_detach_on_timeout: bool,
    /// Interval between scans for orphaned volumes; absent disables them.
    pub orphan_scan_interval: Option<Duration>,
    /// The node of the process and its node-local drivers; absent if every driver serves the whole cluster.
    pub node: Option<NodeDeployment>,
}

impl Settings {
    /// The driver is node-local to the node of the process.
    pub(crate) fn is_node_local(&self, backend: &dyn Backend) -> bool {
        self.node.as_ref().is_some_and(|node| node.is_node_local(backend))
    }

    /// The node of the process, with those of its drivers that are node-local.
    pub(crate) fn local_node(&self, backends: &[Arc<dyn Backend>]) -> Option<LocalNode> {
        let deployment = self.node.as_ref()?;
        let describe = |backend: &Arc<dyn Backend>| {
            let description = backend.description();
            (description.name.clone(), description.topology_keys.clone())
        };
        let drivers = backends.iter().filter(|backend| deployment.is_node_local(&***backend)).map(describe);
        Some(LocalNode {
            node: deployment.node.clone(),
            drivers: drivers.collect(),
            immediate_binding: deployment.immediate_binding,
        })
    }

    /// The back-off after a failed driver call.
    pub(crate) const fn backoff(&self) -> ExponentialBackoff {
        ExponentialBackoff { initial: self.retry_interval_start, max: self.retry_interval_max }
    }

    /// The delay after a failure whose error suggests one: not shorter than the back-off, not longer than
    /// `retry_interval_max`. `failures` excludes this one.
    pub(crate) fn retry_after_hint(&self, suggested: Duration, failures: u32) -> Action {
        let backoff = self.backoff().delay(failures.saturating_add(1));
        Action::BackoffFor(suggested.max(backoff).min(self.retry_interval_max))
    }

    /// The back-off after a failed API write: client-go's limits, capped at `retry_interval_max`.
    pub(crate) fn api_backoff(&self) -> ExponentialBackoff {
        ExponentialBackoff { initial: API_BACKOFF_INITIAL, max: API_BACKOFF_MAX }
            .capped_at(self.retry_interval_max)
    }
}

impl Default for Settings {
    /// The defaults of the sidecars' flags. The deadline of a driver call is an exception: the sidecars' 10 s
    /// is shorter than many arrays need, and a call that exceeds it is only repeated.
    fn default() -> Self {
        Self {
            roles: Role::ALL.into(),
            namespace: "default".to_owned(),
            identity: "cofferdam".to_owned(),
            volume_name_prefix: "pvc".to_owned(),
            timeout: Duration::from_secs(60),
            retry_interval_start: Duration::from_secs(1),
            retry_interval_max: Duration::from_secs(300),
            worker_threads: 100,
            attacher_worker_threads: 10,
            resizer_workers: 10,
            resync_period: Duration::from_secs(600),
            handle_volume_inuse_error: true,
            extra_modify_metadata: false,
            resync: Duration::from_secs(600),
            reconcile_sync: Duration::from_secs(60),
            max_entries: None,
            default_fs_type: None,
            extra_create_metadata: false,
            strict_topology: false,
            immediate_topology: true,
            force_detach_on_timeout: true,
            orphan_scan_interval: Some(Duration::from_secs(3600)),
            node: None,
        }
    }
}
