//! Declaration of the provisioner, which includes the scan for orphaned volumes.

use std::sync::Arc;

use cofferdam_backend::Backend;
use cofferdam_cluster::{
    OrphanReport,
    deletion_freeze::{self, RestoreMarker},
    orphan_report::{self, OrphanKind},
    writer::CachedKind,
};
use cofferdam_domain::{
    CsiNode, DriverName, Node, VolumeAttachment, VolumeAttributesClass, VolumeSnapshot,
    storage::{Ability, Feature},
};
use prometheus_client::registry::Registry;

use super::{
    metrics::ProvisionerMetrics,
    reconcile::{Provisioner, ProvisionerContext},
    rules::ProvisionerOptions,
};
use crate::{
    attacher,
    context::ProcessContext,
    controller::DeclaredController,
    node_local::LocalNode,
    orphans::{OrphanContext, OrphanScanner, metrics::OrphanMetrics},
    protection, pv_controller,
    rbac::{
        CORE, DriverPlacement, NodeTopologySource, READ, Rule, RuleSet, SNAPSHOT, STORAGE, WATCH,
        WATCH_CSI_NODES, WATCH_NODES,
    },
    role::Role,
    settings::Settings,
    watches::WatchSpec,
};

/// The provisioner's name in `--role`.
pub const ROLE: Role = Role::new("provisioner");

/// RBAC rules of a provisioner whose drivers are not node-local, in addition to the rules that every process
/// has. Upstream's counterparts are external-provisioner's ClusterRole and Role. The journal, the restore
/// marker and orphan reports are ConfigMaps of the process's namespace.
const CLUSTER_WIDE: &[Rule] = &[
    // Removes the selected node of a claim for rescheduling.
    Rule::cluster(CORE, "persistentvolumeclaims", &["patch"]),
    Rule::cluster(CORE, "nodes", WATCH),
    Rule::cluster(STORAGE, "csinodes", READ),
    Rule::cluster(CORE, "persistentvolumes", &["create", "delete", "patch"]),
    Rule::own_config_maps(&["create", "get", "list", "patch", "watch"]),
    Rule::driver_secrets(),
    // The check of `--enable-capacity`.
    Rule::cluster(STORAGE, "csidrivers", &["get"]),
    Rule::cluster(STORAGE, "volumeattachments", WATCH),
    Rule::cluster(STORAGE, "volumeattributesclasses", WATCH),
    // The sources of restored volumes, and the finalizer of VolumeSnapshots.
    Rule::cluster(SNAPSHOT, "volumesnapshots", &["get", "list", "patch", "watch"]),
    Rule::cluster(SNAPSHOT, "volumesnapshotcontents", &["get"]),
];

/// RBAC rules of a provisioner whose drivers are node-local, in addition to the rules that every process has.
/// Volumes of node-local drivers are not attached, and not scanned for orphans.
const NODE_LOCAL: &[Rule] = &[
    // Sets and removes the selected node of a claim.
    Rule::cluster(CORE, "persistentvolumeclaims", &["patch"]),
    Rule::cluster(CORE, "persistentvolumes", &["create", "delete", "patch"]),
    Rule::own_config_maps(&["create", "get", "list", "patch", "watch"]),
    Rule::driver_secrets(),
    Rule::cluster(STORAGE, "csidrivers", &["get"]),
    Rule::cluster(STORAGE, "volumeattributesclasses", WATCH),
    // The sources of restored volumes.
    Rule::cluster(SNAPSHOT, "volumesnapshots", &["get"]),
    Rule::cluster(SNAPSHOT, "volumesnapshotcontents", &["get"]),
];

/// The watch of a kind with topology information (CSINode or Node): every object if a driver with topology is
/// not node-local, else only the object of this process's node if a node-local driver needs the object.
/// `None` if no driver needs any.
fn topology_watch<K: CachedKind>(
    settings: &Settings,
    backends: &[Arc<dyn Backend>],
    is_needed: fn(&LocalNode) -> bool,
) -> Option<WatchSpec> {
    let has_topology = |backend: &Arc<dyn Backend>| settings.provisioner.topology && backend.has_topology();
    if settings.cluster_wide(backends).any(has_topology) {
        return Some(WatchSpec::all::<K>());
    }
    let node = settings.local_node(backends).filter(is_needed)?;
    Some(WatchSpec::named::<K>(node.node.as_str()))
}

/// Returns the options of the provisioning rules.
fn options(process: &ProcessContext) -> ProvisionerOptions {
    let settings = &process.settings;
    let drivers_with = |has: &dyn Fn(&dyn Backend) -> bool| {
        let drivers = process.drivers.iter().filter(|(_, driver)| has(&*driver.backend));
        drivers.map(|(name, _)| name.clone()).collect()
    };
    ProvisionerOptions {
        prefix: settings.provisioner.volume_name_prefix.clone(),
        uuid_length: settings.provisioner.volume_name_uuid_length,
        default_fs_type: settings.provisioner.default_fs_type.clone(),
        extra_create_metadata: settings.provisioner.extra_create_metadata,
        controller_publish_read_only: settings.provisioner.controller_publish_read_only,
        volume_attributes_class: settings.provisioner.volume_attributes_class,
        cluster: process.cluster.clone(),
        runs_pv_controller: pv_controller::is_enabled(settings),
        single_node_multi_writer_drivers: drivers_with(&|backend| {
            backend.description().has_feature(Feature::SingleNodeMultiWriter)
        }),
        create_drivers: drivers_with(&|backend| backend.creates_volumes()),
        cloning_drivers: drivers_with(&|backend| backend.abilities().contains(&Ability::Cloning)),
        restoring_drivers: drivers_with(&|backend| backend.abilities().contains(&Ability::Restoring)),
        prevent_volume_mode_conversion: settings.snapshots.prevent_volume_mode_conversion,
        modification_drivers: drivers_with(&|backend| backend.abilities().contains(&Ability::Modification)),
        topology_drivers: drivers_with(&|backend| settings.provisioner.topology && backend.has_topology()),
        strict_topology: settings.provisioner.strict_topology,
        immediate_topology: settings.provisioner.immediate_topology,
        local_node: process.local_node.clone(),
    }
}

impl DeclaredController for Provisioner {
    const ROLE: Role = ROLE;
    const HELP: &'static str = "Provisions volumes for PersistentVolumeClaims and deletes released volumes";
    const REPLACES: &'static str = "external-provisioner";
    const NEEDS_DRIVER: bool = true;
    const PROVISIONS: bool = true;
    type Metrics = (ProvisionerMetrics, OrphanMetrics);

    fn lease_name(driver: &DriverName) -> String {
        driver.as_str().replace('/', "-")
    }

    fn watches(settings: &Settings, backends: &[Arc<dyn Backend>]) -> Vec<WatchSpec> {
        let namespace = &settings.namespace;
        let mut watches = vec![WatchSpec::scoped::<RestoreMarker>(deletion_freeze::marker_scope(namespace))];
        // A volume is not deleted while a VolumeAttachment names it. Node-local volumes are not attached.
        let publishes = |backend: &Arc<dyn Backend>| backend.abilities().contains(&Ability::Publishing);
        if settings.cluster_wide(backends).any(publishes) {
            watches.push(WatchSpec::all::<VolumeAttachment>());
        }
        let modifies = |backend: &Arc<dyn Backend>| backend.abilities().contains(&Ability::Modification);
        if settings.provisioner.volume_attributes_class && backends.iter().any(modifies) {
            watches.push(WatchSpec::all::<VolumeAttributesClass>());
        }
        // The events of VolumeSnapshots shorten the waits of claims. The sidecar's rights may lack the watch.
        let restores = |backend: &Arc<dyn Backend>| backend.abilities().contains(&Ability::Restoring);
        if settings.cluster_wide(backends).any(restores) {
            watches.push(WatchSpec::all::<VolumeSnapshot>().optional());
        }
        watches.extend(topology_watch::<CsiNode>(settings, backends, LocalNode::needs_keys));
        watches.extend(topology_watch::<Node>(settings, backends, LocalNode::needs_labels));
        if settings.orphan_scan_interval(backends).is_some() {
            let reports = orphan_report::report_scope(namespace);
            watches.push(WatchSpec::scoped::<OrphanReport>(reports).optional());
        }
        watches
    }

    fn rbac_rules(placement: DriverPlacement) -> RuleSet {
        match placement {
            DriverPlacement::ClusterWide => &[CLUSTER_WIDE],
            DriverPlacement::NodeLocal(NodeTopologySource::Name) => &[NODE_LOCAL],
            DriverPlacement::NodeLocal(NodeTopologySource::Labels) => &[NODE_LOCAL, WATCH_NODES],
            DriverPlacement::NodeLocal(NodeTopologySource::CsiNode) => {
                &[NODE_LOCAL, WATCH_NODES, WATCH_CSI_NODES]
            }
        }
    }

    fn register_metrics(registry: &mut Registry) -> Self::Metrics {
        (ProvisionerMetrics::register(registry), OrphanMetrics::register(registry, OrphanKind::Volume))
    }

    fn context(
        process: &ProcessContext,
        (metrics, orphan_metrics): (ProvisionerMetrics, OrphanMetrics),
    ) -> ProvisionerContext {
        let settings = &process.settings;
        let backends: Vec<_> = process.drivers.values().map(|driver| Arc::clone(&driver.backend)).collect();
        ProvisionerContext {
            cache: Arc::clone(&process.cache),
            writer: process.writer.clone(),
            secrets: process.secrets.clone(),
            events: process.events.clone(),
            clock: Arc::clone(&process.clock),
            recorders: process.recorders(ROLE),
            drivers: Arc::clone(&process.drivers),
            local_node: process.local_node.clone(),
            node_deployment: settings.node.clone(),
            namespace: settings.namespace.clone(),
            options: options(process),
            workers: settings.provisioner.worker_threads,
            calls: settings.calls,
            term: process.term.clone(),
            runs_protection: protection::is_enabled(settings),
            runs_attacher: settings.roles.contains(&attacher::ROLE),
            channels: Arc::clone(&process.channels),
            stuck_after: process.settings.provisioner.stuck_after,
            restore_check: process.restore_check.clone(),
            orphans: settings.orphan_scan_interval(&backends).map(|interval| {
                OrphanScanner::new(OrphanContext::new(process, OrphanKind::Volume, interval, orphan_metrics))
            }),
            metrics,
            queue_metrics: process.queue_metrics.clone(),
        }
    }
}
