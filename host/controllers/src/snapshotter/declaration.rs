//! Declaration of the snapshotter, which includes the scan for orphaned snapshots.

use std::sync::Arc;

use cofferdam_backend::Backend;
use cofferdam_cluster::{
    OrphanReport,
    deletion_freeze::{self, RestoreMarker},
    orphan_report::{self, OrphanKind},
};
use cofferdam_domain::{
    DriverName, VolumeSnapshot, VolumeSnapshotClass, VolumeSnapshotContent, storage::Ability,
};
use prometheus_client::registry::Registry;

use super::reconcile::{Snapshotter, SnapshotterContext};
use crate::{
    context::ProcessContext,
    controller::DeclaredController,
    error::ControllerManagerError,
    orphans::{OrphanContext, OrphanScanner, metrics::OrphanMetrics},
    provisioner::settings::is_valid_prefix,
    rbac::{DriverPlacement, Rule, RuleSet, SNAPSHOT, WATCH},
    role::Role,
    settings::Settings,
    watches::WatchSpec,
};

/// The snapshotter's name in `--role`.
pub const ROLE: Role = Role::new("snapshotter");

/// RBAC rules of this controller, in addition to those of every process. Upstream's counterpart is
/// csi-snapshotter's ClusterRole. The restore marker and orphan reports are ConfigMaps of the process's
/// namespace, and so is the journal, which the scan for orphans reads.
const RULES: &[Rule] = &[
    Rule::own_config_maps(&["create", "get", "list", "patch", "watch"]),
    Rule::driver_secrets(),
    // The scan for orphans.
    Rule::cluster(SNAPSHOT, "volumesnapshots", WATCH),
    Rule::cluster(SNAPSHOT, "volumesnapshotclasses", WATCH),
    Rule::cluster(SNAPSHOT, "volumesnapshotcontents", &["get", "list", "patch", "watch"]),
    Rule::cluster(SNAPSHOT, "volumesnapshotcontents/status", &["patch"]),
];

impl DeclaredController for Snapshotter {
    const ROLE: Role = ROLE;
    const HELP: &'static str = "Creates and deletes the snapshots of VolumeSnapshotContents";
    const REPLACES: &'static str = "csi-snapshotter";
    const NEEDS_DRIVER: bool = true;
    type Metrics = OrphanMetrics;

    fn lease_name(driver: &DriverName) -> String {
        format!("external-snapshotter-leader-{driver}")
    }

    fn check(settings: &Settings, backends: &[Arc<dyn Backend>]) -> Result<(), ControllerManagerError> {
        let prefix = &settings.snapshots.name_prefix;
        if !is_valid_prefix(prefix) {
            return Err(ControllerManagerError::SnapshotPrefix(prefix.clone()));
        }
        match backends.iter().find(|backend| settings.is_node_local(&***backend)) {
            None => Ok(()),
            Some(backend) => Err(ControllerManagerError::SnapshotterWithNodeLocalDriver(
                backend.description().name.clone(),
            )),
        }
    }

    fn watches(settings: &Settings, _: &[Arc<dyn Backend>]) -> Vec<WatchSpec> {
        let namespace = &settings.namespace;
        let mut watches = vec![
            WatchSpec::all::<VolumeSnapshotContent>(),
            WatchSpec::all::<VolumeSnapshotClass>(),
            WatchSpec::scoped::<RestoreMarker>(deletion_freeze::marker_scope(namespace)),
        ];
        // The sidecar's rights lack both.
        if settings.provisioner.orphan_scan_interval.is_some() {
            let reports = orphan_report::report_scope(namespace);
            watches.push(WatchSpec::scoped::<OrphanReport>(reports).optional());
            watches.push(WatchSpec::all::<VolumeSnapshot>().optional());
        }
        watches
    }

    fn rbac_rules(_: DriverPlacement) -> RuleSet {
        &[RULES]
    }

    fn register_metrics(registry: &mut Registry) -> Self::Metrics {
        OrphanMetrics::register(registry, OrphanKind::Snapshot)
    }

    fn context(process: &ProcessContext, metrics: OrphanMetrics) -> SnapshotterContext {
        let takes_snapshots = |backend: &Arc<dyn Backend>| backend.abilities().contains(&Ability::Snapshots);
        let drivers = process.drivers.iter().filter(|(_, driver)| takes_snapshots(&driver.backend));
        SnapshotterContext {
            cache: Arc::clone(&process.cache),
            writer: process.writer.clone(),
            secrets: process.secrets.clone(),
            events: process.events.clone(),
            recorders: process.recorders(ROLE),
            clock: Arc::clone(&process.clock),
            cluster: process.cluster.clone(),
            namespace: process.settings.namespace.clone(),
            drivers: drivers.map(|(name, driver)| (name.clone(), driver.clone())).collect(),
            settings: process.settings.snapshots.clone(),
            calls: process.settings.calls,
            term: process.term.clone(),
            restore_check: process.restore_check.clone(),
            orphans: process.settings.provisioner.orphan_scan_interval.map(|interval| {
                OrphanScanner::new(OrphanContext::new(process, OrphanKind::Snapshot, interval, metrics))
            }),
            queue_metrics: process.queue_metrics.clone(),
        }
    }
}
