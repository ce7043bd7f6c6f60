//! Declaration of the PersistentVolume controller.

use std::sync::Arc;

use cofferdam_backend::Backend;
use cofferdam_cluster::metrics::Metrics;
use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;

use super::reconcile::PvController;
use crate::{
    context::ControllerContext,
    controller::Controller,
    rbac::{CORE, DriverPlacement, Rule, RuleSet},
    role::Role,
    settings::Settings,
    watches::WatchSpec,
};

/// The role of the PersistentVolume controller.
pub const ROLE: Role = Role::new("pv-controller");

/// The rules of kube-controller-manager's persistent-volume-binder.
const RULES: &[Rule] = &[
    Rule::cluster(CORE, "persistentvolumeclaims", &["patch"]),
    Rule::cluster(CORE, "persistentvolumeclaims/status", &["patch"]),
    Rule::cluster(CORE, "persistentvolumes", &["patch"]),
    Rule::cluster(CORE, "persistentvolumes/status", &["patch"]),
];

/// The controller runs in a process with these settings.
pub(crate) fn is_enabled(settings: &Settings) -> bool {
    settings.roles.contains(&ROLE)
}

impl Controller for PvController {
    const ROLE: Role = ROLE;
    const HELP: &'static str = "Binds claims and volumes, maintains their phases, releases volumes";
    const REPLACES: &'static str = "PersistentVolumeController of kube-controller-manager";
    type Metrics = ();

    fn watches(_: &Settings, _: &[Arc<dyn Backend>]) -> Vec<WatchSpec> {
        Vec::new()
    }

    fn rules(_: DriverPlacement) -> RuleSet {
        &[RULES]
    }

    fn register_metrics(_: &mut Registry) -> Self::Metrics {}

    fn new(context: Arc<ControllerContext>, queues: &Metrics, (): Self::Metrics) -> Arc<Self> {
        Self::new(context, queues)
    }

    fn subscribe(self: &Arc<Self>) {
        self.subscribe_to_cache();
    }

    async fn run(self: Arc<Self>, stop: CancellationToken) {
        self.run_queues(stop).await;
    }
}
