//! Declaration of the snapshotter, which includes the scan for orphaned snapshots.

use std::sync::Arc;

use cofferdam_backend::Backend;
use cofferdam_cluster::{
    OrphanReport,
    deletion_freeze::{self, RestoreMarker},
    orphan_report::{self, OrphanKind},
    reflector::Scope,
};
use cofferdam_domain::{
    DriverName, VolumeSnapshot, VolumeSnapshotClass, VolumeSnapshotContent, names, storage::Ability,
};
use prometheus_client::registry::Registry;

use super::reconcile::{Snapshotter, SnapshotterContext};
use crate::{
    context::ProcessContext,
    controller::DeclaredController,
    error::ControllerManagerError,
    node_local::NodeDeployment,
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
/// csi-snapshotter's ClusterRole. The restore marker is a ConfigMap of the process's namespace, and so is the
/// journal.
const RULES: &[Rule] = &[
    Rule::own_config_maps(&["get", "list", "watch"]),
    Rule::driver_secrets(),
    Rule::cluster(SNAPSHOT, "volumesnapshotclasses", &["get", "list", "watch"]),
    Rule::cluster(SNAPSHOT, "volumesnapshotcontents", &["get", "list", "patch", "watch"]),
    Rule::cluster(SNAPSHOT, "volumesnapshotcontents/status", &["patch"]),
];

/// RBAC rules of the scan for orphans, which does not scan node-local drivers. Its reports are ConfigMaps.
const SCAN: &[Rule] =
    &[Rule::own_config_maps(&["create", "patch"]), Rule::cluster(SNAPSHOT, "volumesnapshots", WATCH)];

/// The contents that this process may manage: those of its node, if all of its drivers are node-local.
fn content_scope(settings: &Settings, backends: &[Arc<dyn Backend>]) -> Scope {
    let is_local = settings.cluster_wide(backends).next().is_none();
    let node = settings.node.as_ref().filter(|_| is_local);
    let label = |node: &NodeDeployment| format!("{}={}", names::SNAPSHOT_MANAGED_BY, node.node);
    Scope { label_selector: node.map(label), ..Scope::default() }
}

impl DeclaredController for Snapshotter {
    const ROLE: Role = ROLE;
    const HELP: &'static str = "Creates and deletes the snapshots of VolumeSnapshotContents";
    const REPLACES: &'static str = "csi-snapshotter";
    const NEEDS_DRIVER: bool = true;
    type Metrics = OrphanMetrics;

    fn lease_name(driver: &DriverName) -> String {
        format!("external-snapshotter-leader-{driver}")
    }

    fn check(settings: &Settings, _: &[Arc<dyn Backend>]) -> Result<(), ControllerManagerError> {
        let prefix = &settings.snapshots.name_prefix;
        match is_valid_prefix(prefix) {
            true => Ok(()),
            false => Err(ControllerManagerError::SnapshotPrefix(prefix.clone())),
        }
    }

    fn watches(settings: &Settings, backends: &[Arc<dyn Backend>]) -> Vec<WatchSpec> {
        let namespace = &settings.namespace;
        let mut watches = vec![
            WatchSpec::scoped::<VolumeSnapshotContent>(content_scope(settings, backends)),
            WatchSpec::all::<VolumeSnapshotClass>(),
            WatchSpec::scoped::<RestoreMarker>(deletion_freeze::marker_scope(namespace)),
        ];
        // The sidecar's rights lack both.
        if settings.orphan_scan_interval(backends).is_some() {
            let reports = orphan_report::report_scope(namespace);
            watches.push(WatchSpec::scoped::<OrphanReport>(reports).optional());
            watches.push(WatchSpec::all::<VolumeSnapshot>().optional());
        }
        watches
    }

    fn rbac_rules(placement: DriverPlacement) -> RuleSet {
        match placement {
            DriverPlacement::ClusterWide => &[RULES, SCAN],
            DriverPlacement::NodeLocal(_) => &[RULES],
        }
    }

    fn register_metrics(registry: &mut Registry) -> Self::Metrics {
        OrphanMetrics::register(registry, OrphanKind::Snapshot)
    }

    fn context(process: &ProcessContext, metrics: OrphanMetrics) -> SnapshotterContext {
        let takes_snapshots = |backend: &Arc<dyn Backend>| backend.abilities().contains(&Ability::Snapshots);
        let (drivers, others): (Vec<_>, Vec<_>) =
            process.drivers.iter().partition(|(_, driver)| takes_snapshots(&driver.backend));
        for (name, _) in others {
            tracing::info!(driver = %name, "no snapshots: the driver lacks the ability snapshots");
        }
        let backends: Vec<_> = process.drivers.values().map(|driver| Arc::clone(&driver.backend)).collect();
        SnapshotterContext {
            cache: Arc::clone(&process.cache),
            writer: process.writer.clone(),
            secrets: process.secrets.clone(),
            events: process.events.clone(),
            recorders: process.recorders(ROLE),
            clock: Arc::clone(&process.clock),
            cluster: process.cluster.clone(),
            namespace: process.settings.namespace.clone(),
            drivers: drivers.into_iter().map(|(name, driver)| (name.clone(), driver.clone())).collect(),
            settings: process.settings.snapshots.clone(),
            calls: process.settings.calls,
            term: process.term.clone(),
            restore_check: process.restore_check.clone(),
            local_node: process.local_node.clone(),
            orphans: process.settings.orphan_scan_interval(&backends).map(|interval| {
                OrphanScanner::new(OrphanContext::new(process, OrphanKind::Snapshot, interval, metrics))
            }),
            queue_metrics: process.queue_metrics.clone(),
        }
    }
}
