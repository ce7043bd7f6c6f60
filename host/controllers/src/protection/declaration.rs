//! Declaration of the protection controller.

use std::sync::Arc;

use cofferdam_backend::Backend;
use cofferdam_cluster::metrics::Metrics;
use cofferdam_domain::{Pod, VolumeAttributesClass};
use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;

use super::reconcile::Protection;
use crate::{
    context::ControllerContext,
    controller::Controller,
    rbac::{CORE, DriverPlacement, Rule, RuleSet, STORAGE, WATCH},
    role::Role,
    settings::Settings,
    watches::WatchSpec,
};

/// The role of the protection controller.
pub const ROLE: Role = Role::new("protection");

/// The rules of kube-controller-manager's pvc-, pv- and volumeattributesclass-protection controllers.
const RULES: &[Rule] = &[
    Rule::cluster(CORE, "pods", WATCH),
    Rule::cluster(CORE, "persistentvolumeclaims", &["patch"]),
    Rule::cluster(CORE, "persistentvolumes", &["patch"]),
    Rule::cluster(STORAGE, "volumeattributesclasses", &["get", "list", "patch", "watch"]),
];

/// The controller runs in a process with these settings.
pub(crate) fn is_enabled(settings: &Settings) -> bool {
    settings.roles.contains(&ROLE)
}

impl Controller for Protection {
    const ROLE: Role = ROLE;
    const HELP: &'static str =
        "Adds and removes the protection finalizers of claims, volumes and VolumeAttributesClasses";
    const REPLACES: &'static str = "pvc-, pv- and vac-protection of kube-controller-manager";
    type Metrics = ();

    fn watches(_: &Settings, _: &[Arc<dyn Backend>]) -> Vec<WatchSpec> {
        vec![WatchSpec::all::<Pod>(), WatchSpec::all::<VolumeAttributesClass>()]
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
