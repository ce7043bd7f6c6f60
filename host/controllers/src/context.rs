//! Dependencies, settings and drivers of a process. A controller's declaration takes from them what the
//! controller uses.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use cofferdam_cluster::{Cache, Clock, Writer, metrics::Metrics, observer::StepObserver};
use cofferdam_domain::{ClusterId, DriverName};

use crate::{
    channels::Channels,
    drivers::{Backends, ManagedDriver},
    events::EventRecorder,
    node_local::LocalNode,
    restore_check::RestoreCheck,
    role::Role,
    settings::Settings,
    step_recorder::StepRecorders,
};

/// Dependencies, settings and drivers of a process. The manager creates them with each cache.
pub(crate) struct ProcessContext {
    pub(crate) cache: Arc<Cache>,
    pub(crate) writer: Writer,
    pub(crate) events: EventRecorder,
    pub(crate) observer: Arc<dyn StepObserver>,
    pub(crate) clock: Clock,
    pub(crate) settings: Settings,
    pub(crate) cluster: ClusterId,
    pub(crate) drivers: Arc<HashMap<DriverName, ManagedDriver>>,
    /// The node of this process and its node-local drivers, perhaps none. `None` without `--node-name`.
    pub(crate) local_node: Option<LocalNode>,
    /// Drivers whose provisioner runs in this process. Excludes node-local drivers: their provisioner runs on
    /// every node, and other controllers communicate with it through the API only.
    pub(crate) provisioned_drivers: Arc<BTreeSet<DriverName>>,
    /// Messages between the controllers of this process.
    pub(crate) channels: Arc<Channels>,
    pub(crate) restore_check: RestoreCheck,
    /// Metrics that all controllers share. A controller uses those of work queues.
    pub(crate) queue_metrics: Metrics,
}

impl ProcessContext {
    /// The backends of the drivers, for controllers that use no journal.
    pub(crate) fn backends(&self) -> Backends {
        self.drivers.iter().map(|(name, driver)| (name.clone(), Arc::clone(&driver.backend))).collect()
    }

    /// The step recorders of a role.
    pub(crate) fn recorders(&self, role: Role) -> StepRecorders {
        StepRecorders::new(Arc::clone(&self.observer), role)
    }
}
