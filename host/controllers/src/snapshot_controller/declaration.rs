//! Declaration of the snapshot controller.

use std::sync::Arc;

use cofferdam_backend::Backend;
use cofferdam_domain::{VolumeSnapshot, VolumeSnapshotClass, VolumeSnapshotContent};
use prometheus_client::registry::Registry;

use super::{
    metrics::SnapshotControllerMetrics,
    reconcile::{SnapshotController, SnapshotControllerContext},
};
use crate::{
    context::ProcessContext,
    controller::DeclaredController,
    error::ControllerManagerError,
    rbac::{COORDINATION, CORE, DriverPlacement, NodeTopologySource, Rule, RuleSet, SNAPSHOT},
    role::Role,
    settings::Settings,
    watches::WatchSpec,
};

/// The controller's name in `--role`.
pub const ROLE: Role = Role::new("snapshot-controller");
/// Name of the Lease, as in external-snapshotter.
pub const LEASE_NAME: &str = "snapshot-controller-leader";

/// RBAC rules of this controller, in addition to those of every process. Upstream's counterpart is the
/// ClusterRole of snapshot-controller.
const RULES: &[Rule] = &[
    // The finalizer of source claims.
    Rule::cluster(CORE, "persistentvolumeclaims", &["patch"]),
    Rule::cluster(SNAPSHOT, "volumesnapshotclasses", &["get", "list", "watch"]),
    Rule::cluster(SNAPSHOT, "volumesnapshotcontents", &["create", "delete", "get", "list", "patch", "watch"]),
    Rule::cluster(SNAPSHOT, "volumesnapshots", &["get", "list", "patch", "watch"]),
    Rule::cluster(SNAPSHOT, "volumesnapshots/status", &["patch"]),
    // The Lease of another snapshot-controller, at the start.
    Rule::cluster(COORDINATION, "leases", &["get"]).named(LEASE_NAME),
];

/// RBAC rules of `--enable-distributed-snapshotting`.
const NODES: &[Rule] = &[Rule::cluster(CORE, "nodes", &["list"])];

impl DeclaredController for SnapshotController {
    const ROLE: Role = ROLE;
    const HELP: &'static str = "Creates and binds the VolumeSnapshotContents of VolumeSnapshots";
    const REPLACES: &'static str = "external-snapshotter's snapshot-controller";
    type Metrics = SnapshotControllerMetrics;

    fn lease_name(_: &cofferdam_domain::DriverName) -> String {
        LEASE_NAME.to_owned()
    }

    fn check(settings: &Settings, backends: &[Arc<dyn Backend>]) -> Result<(), ControllerManagerError> {
        settings.check_no_local_driver(backends, ROLE, "which runs once in the cluster")
    }

    fn watches(_: &Settings, _: &[Arc<dyn Backend>]) -> Vec<WatchSpec> {
        vec![
            WatchSpec::all::<VolumeSnapshot>(),
            WatchSpec::all::<VolumeSnapshotContent>(),
            WatchSpec::all::<VolumeSnapshotClass>(),
        ]
    }

    fn rbac_rules(placement: DriverPlacement) -> RuleSet {
        match placement {
            DriverPlacement::ClusterWide | DriverPlacement::NodeLocal(NodeTopologySource::Name) => &[RULES],
            DriverPlacement::NodeLocal(NodeTopologySource::Labels | NodeTopologySource::CsiNode) => {
                &[RULES, NODES]
            }
        }
    }

    fn register_metrics(registry: &mut Registry) -> Self::Metrics {
        SnapshotControllerMetrics::register(registry)
    }

    fn context(process: &ProcessContext, metrics: SnapshotControllerMetrics) -> SnapshotControllerContext {
        SnapshotControllerContext {
            cache: Arc::clone(&process.cache),
            writer: process.writer.clone(),
            events: process.events.clone(),
            recorders: process.recorders(ROLE),
            clock: Arc::clone(&process.clock),
            distributed: process.settings.snapshots.distributed,
            prevent_volume_mode_conversion: process.settings.snapshots.prevent_volume_mode_conversion,
            workers: process.settings.snapshots.workers,
            backoff: process.settings.calls.backoff(),
            conflicts: process.conflict_detector(ROLE),
            metrics,
            queue_metrics: process.queue_metrics.clone(),
        }
    }
}
