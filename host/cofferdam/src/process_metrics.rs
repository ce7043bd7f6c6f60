//! Metrics of the process, with the names of Prometheus' client libraries, and the version of the program.

use std::time::{SystemTime, UNIX_EPOCH};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric as _},
    metrics::{
        gauge::{ConstGauge, Gauge},
        info::Info,
    },
    registry::Registry,
};

/// Reads `/proc/self` on every scrape; without `/proc` it has no metrics.
#[derive(Debug)]
struct ProcFs;

impl Collector for ProcFs {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let files = std::fs::read_dir("/proc/self/fd").map(Iterator::count).ok();
        let gauges = [
            ("process_resident_memory_bytes", "Resident memory", resident_bytes(&status)),
            ("process_open_fds", "Open files", files.and_then(|files| i64::try_from(files).ok())),
        ];
        for (name, help, value) in gauges {
            if let Some(value) = value {
                let gauge = ConstGauge::new(value);
                gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)?;
            }
        }
        Ok(())
    }
}

/// `VmRSS`, the resident memory, in bytes; `None` if `status` has no such line. The kernel's kB are 1,024
/// bytes.
fn resident_bytes(status: &str) -> Option<i64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: i64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

/// Registers the metrics.
pub(crate) fn register(registry: &mut Registry) {
    let started = Gauge::<i64>::default();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    started.set(i64::try_from(now).unwrap_or(i64::MAX));
    registry.register("process_start_time_seconds", "Start of the process since the Unix epoch", started);
    let build = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
    registry.register("cofferdam_build", "Version of the running program", build);
    registry.register_collector(Box::new(ProcFs));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resident_memory_is_parsed_from_vmrss() {
        assert_eq!(resident_bytes("Name:\tx\nVmRSS:\t   40960 kB\nVmData: 1 kB\n"), Some(40 << 20));
        assert_eq!(resident_bytes("Name:\tx\n"), None);
    }

    #[test]
    fn a_scrape_contains_the_process_metrics() {
        let mut registry = Registry::default();
        register(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        assert!(text.contains("cofferdam_build_info{version="), "{text}");
        assert!(text.contains("\nprocess_start_time_seconds "), "{text}");
    }
}
