//! Declaration of the resizer.

use std::sync::Arc;

use cofferdam_backend::Backend;
use cofferdam_domain::{CsiNode, DriverName, Node, Pod, VolumeAttributesClass, storage::Ability};
use prometheus_client::registry::Registry;

use super::{
    expand::is_offline_expansion_only,
    reconcile::{Resizer, ResizerContext},
};
use crate::{
    context::ProcessContext,
    controller::DeclaredController,
    rbac::{
        CORE, DriverPlacement, NodeTopologySource, Rule, RuleSet, STORAGE, WATCH, WATCH_CSI_NODES,
        WATCH_NODES,
    },
    role::Role,
    settings::Settings,
    watches::WatchSpec,
};

/// The resizer's name in `--role`.
pub const ROLE: Role = Role::new("resizer");

/// RBAC rules of the resizer, from external-resizer. The Secrets are those of `controllerExpandSecretRef` and
/// of the annotations that name a modification's Secret.
const RULES: &[Rule] = &[
    Rule::cluster(CORE, "persistentvolumeclaims/status", &["patch"]),
    Rule::cluster(CORE, "persistentvolumes", &["patch"]),
    // Volumes in use, for drivers that expand offline only.
    Rule::cluster(CORE, "pods", WATCH),
    Rule::driver_secrets(),
    Rule::cluster(STORAGE, "volumeattributesclasses", WATCH),
];

impl DeclaredController for Resizer {
    const ROLE: Role = ROLE;
    const HELP: &'static str = "Expands volumes and changes their VolumeAttributesClass, as claims request";
    const REPLACES: &'static str = "external-resizer";
    const NEEDS_DRIVER: bool = true;
    type Metrics = ();

    fn lease_name(driver: &DriverName) -> String {
        format!("external-resizer-{driver}")
    }

    fn watches(settings: &Settings, backends: &[Arc<dyn Backend>]) -> Vec<WatchSpec> {
        let mut watches = Vec::new();
        let is_offline_only = |backend: &Arc<dyn Backend>| is_offline_expansion_only(&**backend);
        if settings.resizer.handle_volume_inuse_error && backends.iter().any(is_offline_only) {
            watches.push(WatchSpec::all::<Pod>());
        }
        let modifies = |backend: &Arc<dyn Backend>| backend.abilities().contains(&Ability::Modification);
        if settings.resizer.volume_attributes_class && backends.iter().any(modifies) {
            watches.push(WatchSpec::all::<VolumeAttributesClass>());
        }
        // A node-local volume is recognized by its topology segment.
        if let Some(local_node) = settings.local_node(backends) {
            let node = local_node.node.as_str();
            watches.extend(local_node.needs_keys().then(|| WatchSpec::named::<CsiNode>(node)));
            watches.extend(local_node.needs_labels().then(|| WatchSpec::named::<Node>(node)));
        }
        watches
    }

    fn rbac_rules(placement: DriverPlacement) -> RuleSet {
        match placement {
            DriverPlacement::ClusterWide | DriverPlacement::NodeLocal(NodeTopologySource::Name) => &[RULES],
            DriverPlacement::NodeLocal(NodeTopologySource::Labels) => &[RULES, WATCH_NODES],
            DriverPlacement::NodeLocal(NodeTopologySource::CsiNode) => &[RULES, WATCH_NODES, WATCH_CSI_NODES],
        }
    }

    fn register_metrics(_: &mut Registry) -> Self::Metrics {}

    fn context(process: &ProcessContext, (): ()) -> ResizerContext {
        ResizerContext {
            cache: Arc::clone(&process.cache),
            writer: process.writer.clone(),
            secrets: process.secrets.clone(),
            events: process.events.clone(),
            recorders: process.recorders(ROLE),
            clock: Arc::clone(&process.clock),
            drivers: process.backends(),
            local_node: process.local_node.clone(),
            settings: process.settings.resizer,
            calls: process.settings.calls,
            term: process.term.clone(),
            queue_metrics: process.queue_metrics.clone(),
        }
    }
}
