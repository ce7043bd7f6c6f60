//! Metrics of the PersistentVolume controller, with the names of kube-controller-manager.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Weak},
};

use cofferdam_cluster::Cache;
use cofferdam_domain::{ClaimPhase, Volume, VolumeMode, VolumePhase};
use parking_lot::Mutex;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, gauge::ConstGauge},
    registry::Registry,
};

/// Label of a PersistentVolume whose source has no plugin.
const UNKNOWN_PLUGIN: &str = "N/A";

/// Handles to the metrics; clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct PvControllerMetrics {
    cache: Arc<Mutex<Weak<Cache>>>,
}

impl PvControllerMetrics {
    /// Registers the metrics.
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register_collector(Box::new(ObjectCollector(metrics.clone())));
        metrics
    }

    /// Sets the cache whose claims and PersistentVolumes are counted.
    pub(super) fn set_cache(&self, cache: &Arc<Cache>) {
        *self.cache.lock() = Arc::downgrade(cache);
    }
}

/// Counts the claims and PersistentVolumes in the cache on each scrape.
#[derive(Debug)]
struct ObjectCollector(PvControllerMetrics);

/// Number of objects by the values of their labels.
type Counts<const LABELS: usize> = BTreeMap<[String; LABELS], i64>;

impl Collector for ObjectCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Some(cache) = self.0.cache.lock().upgrade() else { return Ok(()) };
        let (mut bound, mut unbound, mut total) = (Counts::new(), Counts::new(), Counts::new());
        for volume in cache.volumes.list() {
            let counts = if volume.phase == VolumePhase::Bound { &mut bound } else { &mut unbound };
            *counts.entry([volume.class.to_string()]).or_default() += 1;
            *total.entry([plugin(&volume), mode(volume.mode)]).or_default() += 1;
        }
        encode_counts(&mut encoder, "bound_pv_count", "Bound PersistentVolumes", ["storage_class"], &bound)?;
        let help = "PersistentVolumes that are not Bound";
        encode_counts(&mut encoder, "unbound_pv_count", help, ["storage_class"], &unbound)?;
        let help = "PersistentVolumes by plugin and volume mode";
        encode_counts(&mut encoder, "total_pv_count", help, ["plugin_name", "volume_mode"], &total)?;

        let (mut bound, mut unbound) = (Counts::new(), Counts::new());
        for claim in cache.claims.list() {
            let class = claim.class.as_deref().unwrap_or_default().to_owned();
            let labels = [claim.key.namespace.to_string(), class, claim.attributes_class.to_string()];
            let counts = if claim.phase == ClaimPhase::Bound { &mut bound } else { &mut unbound };
            *counts.entry(labels).or_default() += 1;
        }
        let names = ["namespace", "storage_class", "volume_attributes_class"];
        encode_counts(&mut encoder, "bound_pvc_count", "Bound claims", names, &bound)?;
        encode_counts(&mut encoder, "unbound_pvc_count", "Claims that are not Bound", names, &unbound)
    }
}

fn encode_counts<const LABELS: usize>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    names: [&str; LABELS],
    counts: &Counts<LABELS>,
) -> fmt::Result {
    let name = format!("pv_collector_{name}");
    let mut metric = encoder.encode_descriptor(&name, help, None, MetricType::Gauge)?;
    for (values, count) in counts {
        let labels: Vec<(&str, &str)> = names.into_iter().zip(values.iter().map(String::as_str)).collect();
        ConstGauge::new(*count).encode(metric.encode_family(&labels)?)?;
    }
    Ok(())
}

/// The label `plugin_name`, for the plugins that Kubernetes' PersistentVolume controller has. CSI is none of
/// them, as measured with kube-controller-manager 1.36.
fn plugin(volume: &Volume) -> String {
    match volume.in_tree_source {
        Some("hostPath") => "kubernetes.io/host-path",
        Some("nfs") => "kubernetes.io/nfs",
        Some(_) | None => UNKNOWN_PLUGIN,
    }
    .to_owned()
}

fn mode(mode: VolumeMode) -> String {
    mode.as_str().to_owned()
}
