//! Declaration of the PersistentVolume controller.

use std::sync::Arc;

use cofferdam_backend::Backend;
use prometheus_client::registry::Registry;

use super::{
    metrics::PvControllerMetrics,
    reconcile::{PvController, PvControllerContext},
};
use crate::{
    context::ProcessContext,
    controller::DeclaredController,
    rbac::{CORE, DriverPlacement, Rule, RuleSet},
    role::Role,
    settings::Settings,
    watches::WatchSpec,
};

/// The PersistentVolume controller's name in `--role`.
pub const ROLE: Role = Role::new("pv-controller");

/// RBAC rules of this controller, in addition to the rules that every process has. Upstream's counterpart is
/// the ClusterRole `system:controller:persistent-volume-binder`, which allows more.
const RULES: &[Rule] = &[
    Rule::cluster(CORE, "persistentvolumeclaims", &["patch"]),
    Rule::cluster(CORE, "persistentvolumeclaims/status", &["patch"]),
    Rule::cluster(CORE, "persistentvolumes", &["patch"]),
    Rule::cluster(CORE, "persistentvolumes/status", &["patch"]),
];

/// Returns true if the PersistentVolume controller runs in a process with these settings.
pub(crate) fn is_enabled(settings: &Settings) -> bool {
    settings.roles.contains(&ROLE)
}

impl DeclaredController for PvController {
    const ROLE: Role = ROLE;
    const HELP: &'static str = "Binds claims and volumes, maintains their phases, releases volumes";
    const REPLACES: &'static str = "the persistent volume controller of kube-controller-manager";
    type Metrics = PvControllerMetrics;

    fn watches(_: &Settings, _: &[Arc<dyn Backend>]) -> Vec<WatchSpec> {
        Vec::new()
    }

    fn rbac_rules(_: DriverPlacement) -> RuleSet {
        &[RULES]
    }

    fn register_metrics(registry: &mut Registry) -> Self::Metrics {
        PvControllerMetrics::register(registry)
    }

    fn context(process: &ProcessContext, metrics: PvControllerMetrics) -> PvControllerContext {
        PvControllerContext {
            cache: Arc::clone(&process.cache),
            writer: process.writer.clone(),
            events: process.events.clone(),
            recorders: process.recorders(ROLE),
            backoff: process.settings.calls.api_backoff(),
            queue_metrics: process.queue_metrics.clone(),
            provisioned_drivers: Arc::clone(&process.provisioned_drivers),
            channels: Arc::clone(&process.channels),
            restore_check: process.restore_check.clone(),
            conflicts: process.conflict_detector(ROLE),
            metrics,
        }
    }
}
