//! Declaration of the attacher.

use std::sync::Arc;

use cofferdam_backend::Backend;
use cofferdam_cluster::metrics::Metrics;
use cofferdam_domain::{CsiNode, VolumeAttachment};
use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;

use super::{metrics::AttacherMetrics, reconcile::Attacher};
use crate::{
    context::ControllerContext,
    controller::Controller,
    manager::ControllerManagerError,
    rbac::{CORE, DriverPlacement, Rule, RuleSet, STORAGE, WATCH},
    role::Role,
    settings::Settings,
    watches::WatchSpec,
};

/// The role of the attacher.
pub const ROLE: Role = Role::new("attacher");

/// external-attacher's rules. The Secrets are those of `controllerPublishSecretRef`.
const RULES: &[Rule] = &[
    Rule::cluster(CORE, "persistentvolumes", &["patch"]),
    Rule::cluster(CORE, "secrets", &["get"]),
    Rule::cluster(STORAGE, "csinodes", WATCH),
    Rule::cluster(STORAGE, "volumeattachments", &["get", "list", "patch", "watch"]),
    Rule::cluster(STORAGE, "volumeattachments/status", &["patch"]),
];

impl Controller for Attacher {
    const ROLE: Role = ROLE;
    const HELP: &'static str = "Attaches volumes to nodes and detaches them, as VolumeAttachments request";
    const REPLACES: &'static str = "external-attacher";
    const NEEDS_DRIVER: bool = true;
    type Metrics = AttacherMetrics;

    fn check(settings: &Settings, backends: &[Arc<dyn Backend>]) -> Result<(), ControllerManagerError> {
        match backends.iter().find(|backend| settings.is_node_local(&***backend)) {
            None => Ok(()),
            Some(backend) => {
                Err(ControllerManagerError::AttacherWithNodeLocalDriver(backend.description().name.clone()))
            }
        }
    }

    fn watches(_: &Settings, _: &[Arc<dyn Backend>]) -> Vec<WatchSpec> {
        vec![WatchSpec::all::<VolumeAttachment>(), WatchSpec::all::<CsiNode>()]
    }

    fn rules(_: DriverPlacement) -> RuleSet {
        &[RULES]
    }

    fn register_metrics(registry: &mut Registry) -> Self::Metrics {
        AttacherMetrics::register(registry)
    }

    fn new(context: Arc<ControllerContext>, queues: &Metrics, metrics: Self::Metrics) -> Arc<Self> {
        Self::new(context, queues, metrics)
    }

    fn subscribe(self: &Arc<Self>) {
        self.subscribe_to_cache();
    }

    async fn run(self: Arc<Self>, stop: CancellationToken) {
        self.run_queues(stop).await;
    }
}
