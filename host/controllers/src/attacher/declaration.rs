//! Declaration of the attacher.

use std::sync::Arc;

use cofferdam_backend::Backend;
use cofferdam_domain::{CsiNode, DriverName, VolumeAttachment};
use prometheus_client::registry::Registry;

use super::{
    metrics::AttacherMetrics,
    reconcile::{Attacher, AttacherContext},
};
use crate::{
    context::ProcessContext,
    controller::DeclaredController,
    error::ControllerManagerError,
    rbac::{CORE, DriverPlacement, Rule, RuleSet, STORAGE, WATCH},
    role::Role,
    settings::Settings,
    watches::WatchSpec,
};

/// The attacher's name in `--role`.
pub const ROLE: Role = Role::new("attacher");

/// RBAC rules of external-attacher, in addition to those of every process. The Secrets are those of
/// `controllerPublishSecretRef`. Nodes are read for their identities and for the annotation
/// `confirm-detached`.
const RULES: &[Rule] = &[
    Rule::cluster(CORE, "nodes", &["get"]),
    Rule::cluster(CORE, "persistentvolumes", &["patch"]),
    Rule::driver_secrets(),
    Rule::cluster(STORAGE, "csinodes", WATCH),
    Rule::cluster(STORAGE, "volumeattachments", &["get", "list", "patch", "watch"]),
    Rule::cluster(STORAGE, "volumeattachments/status", &["patch"]),
];

impl DeclaredController for Attacher {
    const ROLE: Role = ROLE;
    const HELP: &'static str = "Attaches volumes to nodes and detaches them, as VolumeAttachments request";
    const REPLACES: &'static str = "external-attacher";
    const NEEDS_DRIVER: bool = true;
    type Metrics = AttacherMetrics;

    fn lease_name(driver: &DriverName) -> String {
        format!("external-attacher-leader-{driver}")
    }

    fn check(settings: &Settings, backends: &[Arc<dyn Backend>]) -> Result<(), ControllerManagerError> {
        // The process of every node would attach volumes to every node.
        settings.check_no_local_driver(backends, ROLE, "for its volumes are not attached")
    }

    fn watches(_: &Settings, _: &[Arc<dyn Backend>]) -> Vec<WatchSpec> {
        vec![WatchSpec::all::<VolumeAttachment>(), WatchSpec::all::<CsiNode>()]
    }

    fn rbac_rules(_: DriverPlacement) -> RuleSet {
        &[RULES]
    }

    fn register_metrics(registry: &mut Registry) -> Self::Metrics {
        AttacherMetrics::register(registry)
    }

    fn context(process: &ProcessContext, metrics: AttacherMetrics) -> AttacherContext {
        AttacherContext {
            cache: Arc::clone(&process.cache),
            writer: process.writer.clone(),
            secrets: process.secrets.clone(),
            events: process.events.clone(),
            recorders: process.recorders(ROLE),
            clock: Arc::clone(&process.clock),
            drivers: process.backends(),
            settings: process.settings.attacher.clone(),
            calls: process.settings.calls,
            term: process.term.clone(),
            provisioned_drivers: Arc::clone(&process.provisioned_drivers),
            metrics,
            queue_metrics: process.queue_metrics.clone(),
        }
    }
}
