//! Metrics of the attacher's queues: the number of pending VolumeAttachments and the age of the oldest.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use cofferdam_domain::{DriverName, VolumeAttachmentName};
use parking_lot::Mutex;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, gauge::ConstGauge},
    registry::Registry,
};
use tokio::time::Instant;

use super::work_queues::QueueKind;

/// VolumeAttachments of one queue, running and waiting ones alike, with the time when they were added. A
/// VolumeAttachment is added when it is enqueued, except by the resync. It is removed when a reconcile finds
/// that it needs no effect, when it is deleted, and when it is added to the driver's other queue.
type PendingAttachments = HashMap<VolumeAttachmentName, Instant>;

/// Handles to the metrics; clones share them.
#[derive(Clone, Debug, Default)]
pub struct AttacherMetrics(Arc<Mutex<BTreeMap<DriverName, BTreeMap<QueueKind, PendingAttachments>>>>);

impl AttacherMetrics {
    /// Registers the metrics.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register_collector(Box::new(Ages(metrics.clone())));
        metrics
    }

    /// Adds the drivers of a group, with empty queues.
    pub(super) fn add_drivers<'a>(&self, drivers: impl Iterator<Item = &'a DriverName>) {
        let empty = || QueueKind::ALL.map(|kind| (kind, PendingAttachments::new())).into();
        self.0.lock().extend(drivers.map(|driver| (driver.clone(), empty())));
    }

    /// Adds an attachment to a queue and removes it from the driver's other queue. An attachment that is
    /// already in the queue keeps its age.
    pub(super) fn add_pending(&self, driver: &DriverName, kind: QueueKind, name: &VolumeAttachmentName) {
        let mut all = self.0.lock();
        for (other, pending) in all.get_mut(driver).into_iter().flatten() {
            if *other == kind {
                pending.entry(name.clone()).or_insert_with(Instant::now);
            } else {
                pending.remove(name);
            }
        }
    }

    /// Removes an attachment that needs no effect, or is deleted.
    pub(super) fn remove_pending(&self, driver: &DriverName, name: &VolumeAttachmentName) {
        for pending in self.0.lock().get_mut(driver).into_iter().flat_map(BTreeMap::values_mut) {
            pending.remove(name);
        }
    }
}

/// Computes the metrics on each scrape.
#[derive(Debug)]
struct Ages(AttacherMetrics);

impl Ages {
    fn show(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        (name, help): (&str, &str),
        of: impl Fn(&PendingAttachments) -> f64,
    ) -> Result<(), std::fmt::Error> {
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (driver, queues) in &*self.0.0.lock() {
            for (kind, pending) in queues {
                let labels = [("driver_name", driver.as_str()), ("queue", kind.as_str())];
                ConstGauge::new(of(pending)).encode(metric.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

impl Collector for Ages {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let age = ("cofferdam_attacher_queue_age_seconds", "Age of the oldest pending attachment");
        self.show(&mut encoder, age, |pending| {
            let oldest = pending.values().min();
            oldest.map_or(0.0, |since| since.elapsed().as_secs_f64())
        })?;
        let count = ("cofferdam_attacher_queue_length", "Pending attachments");
        self.show(&mut encoder, count, |pending| f64::from(u32::try_from(pending.len()).unwrap_or(u32::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn queue_age_grows_until_the_attachment_is_done() {
        let mut registry = Registry::default();
        let metrics = AttacherMetrics::register(&mut registry);
        let scrape = |registry: &Registry, queue: &str| {
            let mut text = String::new();
            prometheus_client::encoding::text::encode(&mut text, registry).unwrap();
            let label = format!("{{driver_name=\"d\",queue=\"{queue}\"}} ");
            let lines = text.lines().filter_map(|line| line.strip_prefix("cofferdam_attacher_queue_"));
            let values = lines.filter_map(|line| Some(line.split_once(&label)?.1.to_owned()));
            values.collect::<Vec<_>>()
        };
        let driver = DriverName::from("d");
        assert!(scrape(&registry, "attach").is_empty());
        metrics.add_drivers([&driver].into_iter());
        assert_eq!(scrape(&registry, "attach"), ["0.0", "0.0"]);
        metrics.add_pending(&driver, QueueKind::Attach, &"a".into());
        tokio::time::advance(Duration::from_secs(3)).await;
        metrics.add_pending(&driver, QueueKind::Attach, &"a".into());
        metrics.add_pending(&driver, QueueKind::Attach, &"b".into());
        // Another group of drivers.
        metrics.add_drivers([&DriverName::from("e")].into_iter());
        assert_eq!(scrape(&registry, "attach"), ["3.0", "2.0"]);
        metrics.add_pending(&driver, QueueKind::Detach, &"a".into());
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(scrape(&registry, "attach"), ["1.0", "1.0"]);
        assert_eq!(scrape(&registry, "detach"), ["1.0", "1.0"]);
        metrics.remove_pending(&driver, &"a".into());
        assert_eq!(scrape(&registry, "detach"), ["0.0", "0.0"]);
    }
}
