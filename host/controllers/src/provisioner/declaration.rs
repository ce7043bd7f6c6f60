//! Declaration of the provisioner, which includes the scan for orphaned volumes.

use std::{sync::Arc, time::Duration};

use cofferdam_backend::Backend;
use cofferdam_cluster::{
    OrphanReport,
    deletion_freeze::{self, RestoreMarker},
    metrics::Metrics,
    orphan_report,
    writer::CachedKind,
};
use cofferdam_domain::{CsiNode, Node, VolumeAttachment, VolumeAttributesClass, storage::Ability};
use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;

use super::{metrics::ProvisionerMetrics, placement::LocalNode, reconcile::Provisioner};
use crate::{
    context::ControllerContext,
    controller::Controller,
    orphans::{OrphanScanner, metrics::OrphanMetrics},
    rbac::{
        CORE, DriverPlacement, NodeTopologySource, READ, Rule, RuleSet, STORAGE, WATCH, WATCH_CSI_NODES,
        WATCH_NODES,
    },
    role::Role,
    settings::Settings,
    watches::WatchSpec,
};

/// The role of the provisioner.
pub const ROLE: Role = Role::new("provisioner");

/// external-provisioner's rules; the journal, the restore marker and orphan reports are ConfigMaps of the
/// process's namespace.
const CLUSTER_WIDE: &[Rule] = &[
    // Removes the selected node of a claim for rescheduling.
    Rule::cluster(CORE, "persistentvolumeclaims", &["patch"]),
    Rule::cluster(CORE, "nodes", WATCH),
    Rule::cluster(STORAGE, "csinodes", READ),
    Rule::cluster(CORE, "persistentvolumes", &["create", "delete", "patch"]),
    Rule::own_config_maps(&["create", "get", "list", "patch", "watch"]),
    Rule::cluster(STORAGE, "volumeattachments", WATCH),
    Rule::cluster(STORAGE, "volumeattributesclasses", WATCH),
];

/// The rules for node-local drivers. Their volumes are not attached, and not scanned for orphans.
const NODE_LOCAL: &[Rule] = &[
    // Sets and removes the selected node of a claim.
    Rule::cluster(CORE, "persistentvolumeclaims", &["patch"]),
    Rule::cluster(CORE, "persistentvolumes", &["create", "delete", "patch"]),
    Rule::own_config_maps(&["create", "get", "list", "patch", "watch"]),
    Rule::cluster(STORAGE, "volumeattributesclasses", WATCH),
];

/// Interval of the scan for orphans, if this process scans. One process per driver writes its report, so
/// node-local drivers are not scanned.
fn orphan_scan_interval(settings: &Settings, backends: &[Arc<dyn Backend>]) -> Option<Duration> {
    let is_cluster_wide = |backend: &Arc<dyn Backend>| !settings.is_node_local(&**backend);
    settings.orphan_scan_interval.filter(|_| backends.iter().any(is_cluster_wide))
}

/// The watch of a kind that has topology: every object if volumes of a driver can be anywhere, the object of
/// this node if a node-local driver needs it.
fn topology_watch<K: CachedKind>(
    settings: &Settings,
    backends: &[Arc<dyn Backend>],
    is_needed: fn(&LocalNode) -> bool,
) -> Option<WatchSpec> {
    let is_cluster_wide =
        |backend: &Arc<dyn Backend>| backend.has_topology() && !settings.is_node_local(&**backend);
    if backends.iter().any(is_cluster_wide) {
        return Some(WatchSpec::all::<K>());
    }
    let node = settings.local_node(backends).filter(is_needed)?;
    Some(WatchSpec::named::<K>(node.node.as_str()))
}

impl Controller for Provisioner {
    const ROLE: Role = ROLE;
    const HELP: &'static str = "Provisions volumes for PersistentVolumeClaims and deletes released volumes";
    const REPLACES: &'static str = "external-provisioner";
    const NEEDS_DRIVER: bool = true;
    const PROVISIONS: bool = true;
    type Metrics = (ProvisionerMetrics, OrphanMetrics);

    fn watches(settings: &Settings, backends: &[Arc<dyn Backend>]) -> Vec<WatchSpec> {
        let has = |ability| backends.iter().any(|backend| backend.abilities().contains(&ability));
        let namespace = &settings.namespace;
        let mut watches = vec![WatchSpec::scoped::<RestoreMarker>(deletion_freeze::marker_scope(namespace))];
        // A volume is not deleted while a VolumeAttachment names it.
        if has(Ability::Publishing) {
            watches.push(WatchSpec::all::<VolumeAttachment>());
        }
        if has(Ability::Modification) {
            watches.push(WatchSpec::all::<VolumeAttributesClass>());
        }
        watches.extend(topology_watch::<CsiNode>(settings, backends, LocalNode::needs_keys));
        watches.extend(topology_watch::<Node>(settings, backends, LocalNode::needs_labels));
        if orphan_scan_interval(settings, backends).is_some() {
            let reports = orphan_report::report_scope(namespace);
            watches.push(WatchSpec::scoped::<OrphanReport>(reports).optional());
        }
        watches
    }

    fn rules(placement: DriverPlacement) -> RuleSet {
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
        (ProvisionerMetrics::register(registry), OrphanMetrics::register(registry))
    }

    fn new(
        context: Arc<ControllerContext>,
        queues: &Metrics,
        (metrics, orphan_metrics): Self::Metrics,
    ) -> Arc<Self> {
        let backends: Vec<_> = context.drivers.values().map(|driver| Arc::clone(&driver.backend)).collect();
        let orphans = orphan_scan_interval(&context.settings, &backends)
            .map(|interval| OrphanScanner::new(Arc::clone(&context), interval, queues, orphan_metrics));
        Self::new(context, queues, metrics, orphans)
    }

    fn subscribe(self: &Arc<Self>) {
        self.subscribe_to_cache();
        self.subscribe_to_messages();
        self.orphans.iter().for_each(OrphanScanner::subscribe);
    }

    async fn run(self: Arc<Self>, stop: CancellationToken) {
        let scans = self.orphans.iter().map(|orphans| orphans.run(stop.clone()));
        tokio::join!(self.run_queues(stop.clone()), futures::future::join_all(scans));
    }
}
