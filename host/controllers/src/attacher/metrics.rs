//! What waits in the lanes, and for how long.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use cofferdam_domain::{AttachmentName, DriverName};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, gauge::ConstGauge},
    registry::Registry,
};
use tokio::time::Instant;

use super::lanes::Lane;

/// Attachments that are not where they shall be, with the time since when.
type Waiting = HashMap<AttachmentName, Instant>;

/// Handles to the metrics; clones share them.
#[derive(Clone, Debug, Default)]
pub struct AttacherMetrics(Arc<Mutex<BTreeMap<DriverName, BTreeMap<Lane, Waiting>>>>);

impl AttacherMetrics {
    /// Metrics that a scrape of `registry` shows.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register_collector(Box::new(Ages(metrics.clone())));
        metrics
    }

    /// The drivers whose lanes there are, all of them empty.
    pub(super) fn begin<'a>(&self, drivers: impl Iterator<Item = &'a DriverName>) {
        let empty = || Lane::ALL.map(|lane| (lane, Waiting::new())).into();
        *self.lock() = drivers.map(|driver| (driver.clone(), empty())).collect();
    }

    /// An attachment shall go through a lane. It keeps its age when it waits there already.
    pub(super) fn waits(&self, driver: &DriverName, lane: Lane, name: &AttachmentName) {
        let mut all = self.lock();
        for (other, waiting) in all.get_mut(driver).into_iter().flatten() {
            if *other == lane {
                waiting.entry(name.clone()).or_insert_with(Instant::now);
            } else {
                waiting.remove(name);
            }
        }
    }

    /// An attachment is where it shall be, or gone.
    pub(super) fn settled(&self, driver: &DriverName, name: &AttachmentName) {
        for waiting in self.lock().get_mut(driver).into_iter().flat_map(BTreeMap::values_mut) {
            waiting.remove(name);
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<DriverName, BTreeMap<Lane, Waiting>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ages are reckoned when somebody looks.
#[derive(Debug)]
struct Ages(AttacherMetrics);

impl Ages {
    fn show(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        (name, help): (&str, &str),
        of: impl Fn(&Waiting) -> f64,
    ) -> Result<(), std::fmt::Error> {
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (driver, lanes) in &*self.0.lock() {
            for (lane, waiting) in lanes {
                let labels = [("driver_name", driver.as_str()), ("lane", lane.as_str())];
                ConstGauge::new(of(waiting)).encode(metric.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

impl Collector for Ages {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let age =
            ("cofferdam_attacher_queue_age_seconds", "Age of the oldest attachment that is not done yet");
        self.show(&mut encoder, age, |waiting| {
            let oldest = waiting.values().min();
            oldest.map_or(0.0, |since| since.elapsed().as_secs_f64())
        })?;
        let count = ("cofferdam_attacher_queue_length", "Attachments that are not done yet");
        self.show(&mut encoder, count, |waiting| f64::from(u32::try_from(waiting.len()).unwrap_or(u32::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn ages_grow_until_attachments_are_done() {
        let mut registry = Registry::default();
        let metrics = AttacherMetrics::register(&mut registry);
        let scrape = |registry: &Registry, lane: &str| {
            let mut text = String::new();
            prometheus_client::encoding::text::encode(&mut text, registry).unwrap();
            let label = format!("{{driver_name=\"d\",lane=\"{lane}\"}} ");
            let lines = text.lines().filter_map(|line| line.strip_prefix("cofferdam_attacher_queue_"));
            let values = lines.filter_map(|line| Some(line.split_once(&label)?.1.to_owned()));
            values.collect::<Vec<_>>()
        };
        let driver = DriverName::from("d");
        assert!(scrape(&registry, "attach").is_empty());
        metrics.begin([&driver].into_iter());
        assert_eq!(scrape(&registry, "attach"), ["0.0", "0.0"]);
        metrics.waits(&driver, Lane::Attach, &"a".into());
        tokio::time::advance(Duration::from_secs(3)).await;
        metrics.waits(&driver, Lane::Attach, &"a".into());
        metrics.waits(&driver, Lane::Attach, &"b".into());
        assert_eq!(scrape(&registry, "attach"), ["3.0", "2.0"]);
        metrics.waits(&driver, Lane::Detach, &"a".into());
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(scrape(&registry, "attach"), ["1.0", "1.0"]);
        assert_eq!(scrape(&registry, "detach"), ["1.0", "1.0"]);
        metrics.settled(&driver, &"a".into());
        assert_eq!(scrape(&registry, "detach"), ["0.0", "0.0"]);
    }
}
