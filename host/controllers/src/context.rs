//! Dependencies, settings and drivers of a process that runs controllers. A controller's declaration takes
//! from them what the controller uses.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use cofferdam_cluster::{Cache, Clock, SecretReader, Writer, metrics::Metrics, observer::StepObserver};
use cofferdam_domain::{ClusterId, DriverName, term::Term};

use crate::{
    channels::Channels,
    conflicts::{ConflictDetector, RoleStops},
    drivers::{Backends, ManagedDriver},
    events::EventRecorder,
    node_local::LocalNode,
    restore_check::RestoreCheck,
    role::Role,
    settings::Settings,
    step_recorder::StepRecorders,
};

/// Dependencies, settings and drivers of a process. The manager creates a new context for each term of
/// leadership, and after each detected restore of the cluster from a backup.
pub(crate) struct ProcessContext {
    pub(crate) cache: Arc<Cache>,
    /// The term of the controllers. After its end no driver call and no write begins.
    pub(crate) term: Term,
    pub(crate) writer: Writer,
    /// Reads the Secrets of driver calls.
    pub(crate) secrets: SecretReader,
    pub(crate) events: EventRecorder,
    pub(crate) observer: Arc<dyn StepObserver>,
    pub(crate) clock: Clock,
    pub(crate) settings: Settings,
    pub(crate) cluster: ClusterId,
    pub(crate) drivers: Arc<HashMap<DriverName, ManagedDriver>>,
    /// The node of this process, and those drivers of the process that are node-local, perhaps none. `None`
    /// without `--node-name`.
    pub(crate) local_node: Option<LocalNode>,
    /// The drivers that are not node-local, if this process runs the provisioner; empty otherwise. The
    /// provisioner of a node-local driver runs on every node, so other controllers communicate with it
    /// through the API only, even if it also runs in this process.
    pub(crate) provisioned_drivers: Arc<BTreeSet<DriverName>>,
    /// Messages between the controllers of this process.
    pub(crate) channels: Arc<Channels>,
    pub(crate) restore_check: RestoreCheck,
    /// Stops roles whose work another controller does.
    pub(crate) role_stops: Arc<RoleStops>,
    /// The metrics that all controllers of the process share. Controllers register their work queues in them.
    pub(crate) queue_metrics: Metrics,
}

impl ProcessContext {
    /// The backends of the drivers, for controllers that use no journal.
    pub(crate) fn backends(&self) -> Backends {
        self.drivers.iter().map(|(name, driver)| (name.clone(), Arc::clone(&driver.backend))).collect()
    }

    /// A detector of another controller that does the work of a role.
    pub(crate) fn conflict_detector(&self, role: Role) -> Arc<ConflictDetector> {
        Arc::new(ConflictDetector::new(role, self.events.clone(), Arc::clone(&self.role_stops)))
    }

    /// Step recorders for the controller of a role: they report its steps to the observer and to the log.
    pub(crate) fn recorders(&self, role: Role) -> StepRecorders {
        StepRecorders::new(Arc::clone(&self.observer), role)
    }
}
