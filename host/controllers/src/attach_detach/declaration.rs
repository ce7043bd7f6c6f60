//! Declaration of the attach-detach controller.

use std::sync::Arc;

use cofferdam_backend::Backend;
use cofferdam_cluster::metrics::Metrics;
use cofferdam_domain::{CsiDriver, CsiNode, Node, Pod, VolumeAttachment};
use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;

use super::{metrics::AttachDetachMetrics, reconcile::AttachDetach};
use crate::{
    context::ControllerContext,
    controller::Controller,
    rbac::{CORE, DriverPlacement, READ, Rule, RuleSet, STORAGE, WATCH},
    role::Role,
    settings::Settings,
    watches::WatchSpec,
};

/// The role of the attach-detach controller.
pub const ROLE: Role = Role::new("attach-detach");

/// The rules of kube-controller-manager's attachdetach-controller.
const RULES: &[Rule] = &[
    Rule::cluster(CORE, "nodes", READ),
    Rule::cluster(CORE, "nodes/status", &["patch"]),
    Rule::cluster(CORE, "pods", WATCH),
    Rule::cluster(STORAGE, "csidrivers", WATCH),
    Rule::cluster(STORAGE, "csinodes", WATCH),
    Rule::cluster(STORAGE, "volumeattachments", &["create", "delete", "get", "list", "watch"]),
];

impl Controller for AttachDetach {
    const ROLE: Role = ROLE;
    const HELP: &'static str =
        "Creates and deletes VolumeAttachments for pods, maintains volumesAttached of Nodes";
    const REPLACES: &'static str = "AttachDetachController of kube-controller-manager";
    type Metrics = AttachDetachMetrics;

    fn watches(_: &Settings, _: &[Arc<dyn Backend>]) -> Vec<WatchSpec> {
        vec![
            WatchSpec::all::<Pod>(),
            WatchSpec::all::<VolumeAttachment>(),
            WatchSpec::all::<CsiNode>(),
            WatchSpec::all::<CsiDriver>(),
            WatchSpec::all::<Node>(),
        ]
    }

    fn rules(_: DriverPlacement) -> RuleSet {
        &[RULES]
    }

    fn register_metrics(registry: &mut Registry) -> Self::Metrics {
        AttachDetachMetrics::register(registry)
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
