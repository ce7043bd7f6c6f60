//! Metrics of the attach-detach controller, with the names of kube-controller-manager.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{Arc, Weak},
    time::Duration,
};

use cofferdam_cluster::{Cache, cache::PodIndex};
use cofferdam_domain::{DriverName, NodeName, UniqueVolumeName};
use parking_lot::Mutex;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric},
    metrics::{MetricType, family::Family, gauge::ConstGauge, histogram::Histogram},
    registry::{Registry, Unit},
};

use super::{desired_state, rules::ForceDetachReason};

/// Seconds; Kubernetes' buckets of `storage_operation_duration_seconds`.
const BUCKETS: [f64; 13] = [0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0];

/// An operation whose duration is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VolumeOperation {
    /// An attach. Its duration starts when this process has created the VolumeAttachment, or first finds it
    /// unattached, and ends with `status.attached`. The duration until a new `status.attachError` is that of
    /// a failed attach.
    Attach,
    /// A detach. Its duration starts with this process's first request to delete the VolumeAttachment, and
    /// ends with the removal of the VolumeAttachment. The duration until a new `status.detachError` is that
    /// of a failed detach.
    Detach,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OperationLabels {
    volume_plugin: String,
    operation_name: &'static str,
    status: &'static str,
    migrated: &'static str,
}

#[derive(Debug, Default)]
struct State {
    cache: Weak<Cache>,
    forced_detaches: BTreeMap<ForceDetachReason, u64>,
}

/// Handles to the metrics; clones share them.
#[derive(Clone, Debug)]
pub struct AttachDetachMetrics {
    seconds: Family<OperationLabels, Histogram>,
    state: Arc<Mutex<State>>,
}

/// The plugin name of a driver in metrics of Kubernetes.
fn plugin(driver: &DriverName) -> String {
    format!("kubernetes.io/csi:{driver}")
}

impl AttachDetachMetrics {
    /// Registers the metrics.
    pub fn register(registry: &mut Registry) -> Self {
        let histogram: fn() -> Histogram = || Histogram::new(BUCKETS);
        let metrics = Self { seconds: Family::new_with_constructor(histogram), state: Arc::default() };
        registry.register_with_unit(
            "storage_operation_duration",
            "Time from the request to attach or detach a volume to its completion",
            Unit::Seconds,
            metrics.seconds.clone(),
        );
        registry.register_collector(Box::new(VolumeCollector(metrics.clone())));
        metrics
    }

    /// Sets the cache whose volumes and VolumeAttachments are counted.
    pub(super) fn set_cache(&self, cache: &Arc<Cache>) {
        self.state.lock().cache = Arc::downgrade(cache);
    }

    /// Records the duration of an operation that succeeded (`done`) or failed.
    pub(super) fn observe_operation(
        &self,
        operation: VolumeOperation,
        driver: &DriverName,
        took: Duration,
        done: bool,
    ) {
        let labels = OperationLabels {
            volume_plugin: plugin(driver),
            operation_name: match operation {
                VolumeOperation::Attach => "volume_attach",
                VolumeOperation::Detach => "volume_detach",
            },
            status: if done { "success" } else { "fail-unknown" },
            migrated: "false",
        };
        self.seconds.get_or_create(&labels).observe(took.as_secs_f64());
    }

    /// Counts a force detach when its delete request is sent. A request that is repeated after an
    /// error response counts again.
    pub(super) fn inc_forced_detaches(&self, force: ForceDetachReason) {
        *self.state.lock().forced_detaches.entry(force).or_default() += 1;
    }
}

/// Encodes the gauges on each scrape. Counts the volumes in use and the attached VolumeAttachments in the
/// cache, and reads the number of force detaches.
#[derive(Debug)]
struct VolumeCollector(AttachDetachMetrics);

/// Volumes that must be attached and that the pods of each node use.
fn volumes_in_use(cache: &Cache) -> BTreeMap<NodeName, BTreeSet<UniqueVolumeName>> {
    let mut used: BTreeMap<NodeName, BTreeSet<UniqueVolumeName>> = BTreeMap::new();
    for node in cache.nodes_with_pods() {
        for pod in cache.pods_on_node(&node) {
            for key in PodIndex::claims_of(&pod) {
                let Ok((claim, volume)) = desired_state::bound_claim_and_volume(cache, &key) else {
                    continue;
                };
                let Some(csi) =
                    volume.csi.as_ref().filter(|csi| desired_state::is_attach_required(cache, &csi.driver))
                else {
                    continue;
                };
                if desired_state::is_using_claim(&pod, &claim) == Ok(true) {
                    let volumes = used.entry(node.clone()).or_default();
                    volumes.insert(UniqueVolumeName::from_csi(&csi.driver, &csi.handle));
                }
            }
        }
    }
    used
}

impl VolumeCollector {
    fn in_use(
        encoder: &mut DescriptorEncoder<'_>,
        used: &BTreeMap<NodeName, BTreeSet<UniqueVolumeName>>,
    ) -> fmt::Result {
        let (name, help) = ("storage_count_attachable_volumes_in_use", "Volumes that pods of a node use");
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (node, volumes) in used {
            for (plugin, count) in
                by_plugin(volumes.iter().filter_map(UniqueVolumeName::parse_csi).map(|(of, _)| of))
            {
                let labels = [("node", node.as_str()), ("volume_plugin", plugin.as_str())];
                ConstGauge::new(count).encode(metric.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }

    fn total(
        encoder: &mut DescriptorEncoder<'_>,
        cache: &Cache,
        used: &BTreeMap<NodeName, BTreeSet<UniqueVolumeName>>,
    ) -> fmt::Result {
        let (name, help) =
            ("attachdetach_controller_total_volumes", "Volumes in the desired and in the actual state");
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        let managed =
            |node: &NodeName| cache.nodes.get(node).into_object().is_some_and(|node| node.controller_managed);
        let desired = used.iter().filter(|(node, _)| managed(node)).flat_map(|(_, volumes)| volumes);
        let attachments = cache.attachments.list();
        let attached = attachments
            .iter()
            .filter(|attachment| attachment.attached)
            .map(|attachment| attachment.attacher.clone());
        let states = [
            (
                "desired_state_of_world",
                by_plugin(desired.filter_map(UniqueVolumeName::parse_csi).map(|(of, _)| of)),
            ),
            ("actual_state_of_world", by_plugin(attached)),
        ];
        for (state, counts) in states {
            for (plugin, count) in counts {
                let labels = [("plugin_name", plugin.as_str()), ("state", state)];
                ConstGauge::new(count).encode(metric.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }

    /// Encodes the number of force detaches as a gauge: the name of a counter would get a suffix that
    /// kube-controller-manager does not use.
    fn forced(encoder: &mut DescriptorEncoder<'_>, forced: &BTreeMap<ForceDetachReason, u64>) -> fmt::Result {
        let name = "attach_detach_controller_attachdetach_controller_forced_detaches";
        let help = "Volumes that were force-detached from a node";
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (force, count) in forced {
            let labels = [("reason", force.as_str())];
            let count = i64::try_from(*count).unwrap_or(i64::MAX);
            ConstGauge::new(count).encode(metric.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

fn by_plugin(drivers: impl Iterator<Item = DriverName>) -> BTreeMap<String, i64> {
    let mut counts = BTreeMap::new();
    for driver in drivers {
        *counts.entry(plugin(&driver)).or_default() += 1;
    }
    counts
}

impl Collector for VolumeCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (cache, forced) = {
            let state = self.0.state.lock();
            (state.cache.upgrade(), state.forced_detaches.clone())
        };
        Self::forced(&mut encoder, &forced)?;
        let Some(cache) = cache else { return Ok(()) };
        let used = volumes_in_use(&cache);
        Self::in_use(&mut encoder, &used)?;
        Self::total(&mut encoder, &cache, &used)
    }
}
