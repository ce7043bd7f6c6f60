//! Settings of a process. A controller that has its own settings declares them in its folder.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use cofferdam_backend::{Backend, Call};
use cofferdam_cluster::{
    SecretNamespaces,
    queue::{Action, ExponentialBackoff},
    reflector::WATCH_TIMEOUT,
};
use cofferdam_domain::{storage::Secrets, term::Term};

use crate::{
    attach_detach::settings::AttachDetachSettings,
    attacher::settings::AttacherSettings,
    error::ControllerManagerError,
    node_local::{LocalNode, NodeDeployment},
    provisioner::settings::ProvisionerSettings,
    rbac::{DriverPlacement, NodeTopologySource},
    resizer::settings::ResizerSettings,
    role::Role,
    snapshotter::settings::SnapshotSettings,
};

/// First delay of [`CallSettings::api_backoff`]. client-go starts at 5 ms.
const API_BACKOFF_INITIAL: Duration = Duration::from_millis(50);
/// Longest delay of [`CallSettings::api_backoff`], as in client-go's `DefaultControllerRateLimiter`.
const API_BACKOFF_MAX: Duration = Duration::from_secs(1000);

/// Settings of a process, with the flags that set them.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The controllers of the process, by role (`--role`).
    pub roles: BTreeSet<Role>,
    /// Namespace of the journal, of orphan reports and of the restore marker (`--namespace`).
    pub namespace: String,
    /// Namespaces of the Secrets that the process reads for driver calls (`--secret-namespaces`).
    pub secret_namespaces: SecretNamespaces,
    /// Name of the process in the events of the provisioner and of the scan for orphaned volumes, and in the
    /// provisioner identity of volumes: host name or pod name. The time of the next scan depends on it, too.
    pub identity: String,
    /// Deadline of driver calls, and back-off of driver calls and API writes.
    pub calls: CallSettings,
    /// Timeout of watches, in whole seconds. Not a flag: simulations of long times raise it.
    pub watch_timeout: Duration,
    /// The node of the process and the options of node-local drivers. `None` without `--node-name`: every
    /// driver then serves the whole cluster.
    pub node: Option<NodeDeployment>,
    /// Settings of the provisioner.
    pub provisioner: ProvisionerSettings,
    /// Settings of the attacher.
    pub attacher: AttacherSettings,
    /// Settings of the resizer.
    pub resizer: ResizerSettings,
    /// Settings of the attach-detach controller.
    pub attach_detach: AttachDetachSettings,
    /// Settings of the roles of snapshots.
    pub snapshots: SnapshotSettings,
}

/// Deadline of driver calls, and back-off of driver calls and API writes.
#[derive(Clone, Copy, Debug)]
pub struct CallSettings {
    /// Deadline of one driver call (`--timeout`).
    pub timeout: Duration,
    /// First delay of the back-off after a failure, in controllers that call drivers
    /// (`--retry-interval-start`).
    pub retry_interval_start: Duration,
    /// Longest delay of the back-off after a failure, in every controller (`--retry-interval-max`). Also the
    /// delay after a failure that probably lasts until an object is changed, such as a request that the
    /// driver rejected as invalid.
    pub retry_interval_max: Duration,
}

impl Settings {
    /// Returns true if the driver is node-local. False for every driver without `--node-name`.
    pub(crate) fn is_node_local(&self, backend: &dyn Backend) -> bool {
        self.node.as_ref().is_some_and(|node| node.is_node_local(backend))
    }

    /// Checks that no driver of the process is node-local, for a role that must not run on every node.
    ///
    /// # Errors
    /// [`ControllerManagerError::RoleWithNodeLocalDriver`]
    pub(crate) fn check_no_local_driver(
        &self,
        backends: &[Arc<dyn Backend>],
        role: Role,
        reason: &'static str,
    ) -> Result<(), ControllerManagerError> {
        match backends.iter().find(|backend| self.is_node_local(&***backend)) {
            None => Ok(()),
            Some(backend) => {
                let driver = backend.description().name.clone();
                Err(ControllerManagerError::RoleWithNodeLocalDriver { driver, role, reason })
            }
        }
    }

    /// The placement of the drivers, which determines the RBAC rules of the process.
    pub fn placement(&self, backends: &[Arc<dyn Backend>]) -> DriverPlacement {
        let all_local = !backends.is_empty() && self.cluster_wide(backends).next().is_none();
        match self.local_node(backends).filter(|_| all_local) {
            None => DriverPlacement::ClusterWide,
            Some(node) if node.needs_keys() => DriverPlacement::NodeLocal(NodeTopologySource::CsiNode),
            Some(node) if node.needs_labels() => DriverPlacement::NodeLocal(NodeTopologySource::Labels),
            Some(_) => DriverPlacement::NodeLocal(NodeTopologySource::Name),
        }
    }

    /// Interval of the scans for orphans. `None` if scans are disabled, or if all drivers of this process are
    /// node-local: a driver has one orphan report, which only one process may write.
    pub(crate) fn orphan_scan_interval(&self, backends: &[Arc<dyn Backend>]) -> Option<Duration> {
        self.provisioner.orphan_scan_interval.filter(|_| self.cluster_wide(backends).next().is_some())
    }

    /// The drivers that are not node-local.
    pub(crate) fn cluster_wide<'a>(
        &self,
        backends: &'a [Arc<dyn Backend>],
    ) -> impl Iterator<Item = &'a Arc<dyn Backend>> {
        backends.iter().filter(|backend| !self.is_node_local(&***backend))
    }

    /// The node of the process, with those drivers of the process that are node-local. `None` without
    /// `--node-name`.
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
}

impl CallSettings {
    /// A driver call, which begins only in `term`.
    pub(crate) fn call(&self, term: &Term, secrets: Secrets) -> Call {
        Call { deadline: self.timeout, term: term.clone(), secrets }
    }

    /// The back-off after a failure in a controller that calls drivers.
    pub(crate) const fn backoff(&self) -> ExponentialBackoff {
        ExponentialBackoff { initial: self.retry_interval_start, max: self.retry_interval_max }
    }

    /// The delay after a failure whose error suggests one: not shorter than the back-off, not longer than
    /// `retry_interval_max`. `failures` is the number of earlier consecutive failures.
    pub(crate) fn retry_after_hint(&self, suggested: Duration, failures: u32) -> Action {
        let backoff = self.backoff().delay(failures.saturating_add(1));
        Action::BackoffFor(suggested.max(backoff).min(self.retry_interval_max))
    }

    /// The back-off after a failure in pv-controller and protection, which call no driver: from 50 ms to
    /// client-go's maximum, capped at `retry_interval_max`. attach-detach has a back-off of its own.
    pub(crate) fn api_backoff(&self) -> ExponentialBackoff {
        ExponentialBackoff { initial: API_BACKOFF_INITIAL, max: API_BACKOFF_MAX }
            .capped_at(self.retry_interval_max)
    }
}

impl Default for Settings {
    /// A process without roles, in the namespace `default`, with the default settings of each controller.
    fn default() -> Self {
        let namespace = "default";
        Self {
            roles: BTreeSet::new(),
            namespace: namespace.to_owned(),
            secret_namespaces: SecretNamespaces::only(namespace),
            identity: "cofferdam".to_owned(),
            calls: CallSettings::default(),
            watch_timeout: WATCH_TIMEOUT,
            node: None,
            provisioner: ProvisionerSettings::default(),
            attacher: AttacherSettings::default(),
            resizer: ResizerSettings::default(),
            attach_detach: AttachDetachSettings::default(),
            snapshots: SnapshotSettings::default(),
        }
    }
}

impl Default for CallSettings {
    /// The defaults of the sidecars' flags. The deadline is an exception: the sidecars' 10 s or 15 s are
    /// shorter than many arrays need, and a call that exceeds the deadline is only repeated.
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(60),
            retry_interval_start: Duration::from_secs(1),
            retry_interval_max: Duration::from_secs(300),
        }
    }
}
