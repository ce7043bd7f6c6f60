//! Declaration of the attach-detach controller.

use std::sync::Arc;

use cofferdam_backend::Backend;
use cofferdam_domain::{CsiDriver, CsiNode, Node, Pod, VolumeAttachment};
use prometheus_client::registry::Registry;

use super::{
    metrics::AttachDetachMetrics,
    reconcile::{AttachDetach, AttachDetachContext},
};
use crate::{
    context::ProcessContext,
    controller::DeclaredController,
    rbac::{CORE, DriverPlacement, READ, Rule, RuleSet, STORAGE, WATCH},
    role::Role,
    settings::Settings,
    watches::WatchSpec,
};

/// The attach-detach controller's name in `--role`.
pub const ROLE: Role = Role::new("attach-detach");

/// RBAC rules in addition to those of every process. Upstream's counterpart is the ClusterRole
/// `system:controller:attachdetach-controller`.
const RULES: &[Rule] = &[
    Rule::cluster(CORE, "nodes", READ),
    Rule::cluster(CORE, "nodes/status", &["patch"]),
    Rule::cluster(CORE, "pods", WATCH),
    Rule::cluster(STORAGE, "csidrivers", WATCH),
    Rule::cluster(STORAGE, "csinodes", WATCH),
    Rule::cluster(STORAGE, "volumeattachments", &["create", "delete", "get", "list", "watch"]),
];

impl DeclaredController for AttachDetach {
    const ROLE: Role = ROLE;
    const HELP: &'static str =
        "Creates and deletes VolumeAttachments for pods, maintains volumesAttached of Nodes";
    const REPLACES: &'static str = "the attach-detach controller of kube-controller-manager, for CSI volumes";
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

    fn rbac_rules(_: DriverPlacement) -> RuleSet {
        &[RULES]
    }

    fn register_metrics(registry: &mut Registry) -> Self::Metrics {
        AttachDetachMetrics::register(registry)
    }

    fn context(process: &ProcessContext, metrics: AttachDetachMetrics) -> AttachDetachContext {
        AttachDetachContext {
            cache: Arc::clone(&process.cache),
            writer: process.writer.clone(),
            events: process.events.clone(),
            recorders: process.recorders(ROLE),
            settings: process.settings.attach_detach,
            retry_interval_max: process.settings.calls.retry_interval_max,
            conflicts: process.conflict_detector(ROLE),
            metrics,
            queue_metrics: process.queue_metrics.clone(),
        }
    }
}
