//! Declaration of the protection controller.

use std::sync::Arc;

use cofferdam_backend::Backend;
use cofferdam_domain::{Pod, VolumeAttributesClass};
use prometheus_client::registry::Registry;

use super::reconcile::{Protection, ProtectionContext};
use crate::{
    context::ProcessContext,
    controller::DeclaredController,
    rbac::{CORE, DriverPlacement, Rule, RuleSet, STORAGE, WATCH},
    role::Role,
    settings::Settings,
    watches::WatchSpec,
};

/// The protection controller's name in `--role`.
pub const ROLE: Role = Role::new("protection");

/// RBAC rules of this controller, in addition to the rules that every process has. Upstream's counterparts
/// are the ClusterRoles of kube-controller-manager's pvc-, pv- and volumeattributesclass-protection
/// controllers.
const RULES: &[Rule] = &[
    Rule::cluster(CORE, "pods", WATCH),
    Rule::cluster(CORE, "persistentvolumeclaims", &["patch"]),
    Rule::cluster(CORE, "persistentvolumes", &["patch"]),
    Rule::cluster(STORAGE, "volumeattributesclasses", &["get", "list", "patch", "watch"]),
];

/// Returns true if the protection controller runs in a process with these settings.
pub(crate) fn is_enabled(settings: &Settings) -> bool {
    settings.roles.contains(&ROLE)
}

impl DeclaredController for Protection {
    const ROLE: Role = ROLE;
    const HELP: &'static str =
        "Adds and removes the protection finalizers of claims, volumes and VolumeAttributesClasses";
    const REPLACES: &'static str = "pvc-, pv- and vac-protection of kube-controller-manager";
    type Metrics = ();

    fn watches(_: &Settings, _: &[Arc<dyn Backend>]) -> Vec<WatchSpec> {
        vec![WatchSpec::all::<Pod>(), WatchSpec::all::<VolumeAttributesClass>()]
    }

    fn rbac_rules(_: DriverPlacement) -> RuleSet {
        &[RULES]
    }

    fn register_metrics(_: &mut Registry) -> Self::Metrics {}

    fn context(process: &ProcessContext, (): ()) -> ProtectionContext {
        ProtectionContext {
            cache: Arc::clone(&process.cache),
            writer: process.writer.clone(),
            recorders: process.recorders(ROLE),
            backoff: process.settings.calls.api_backoff(),
            queue_metrics: process.queue_metrics.clone(),
            provisioned_drivers: Arc::clone(&process.provisioned_drivers),
        }
    }
}
