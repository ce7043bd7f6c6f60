//! Cost of a load: CPU time and memory by process; requests, watches and watch events at the API server.

use std::{
    collections::BTreeMap,
    fs,
    time::{Duration, Instant},
};

use super::results::Cost;
use crate::process::{self, ManagedProcess};
use anyhow::{Context as _, Result, ensure};
use kube::Client;

/// Verbs of writes in apiserver_request_total.
const WRITE_VERBS: [&str; 6] = ["POST", "PUT", "PATCH", "APPLY", "DELETE", "DELETECOLLECTION"];
/// Poll interval of the API server's counters. Each poll uses CPU time of the API server.
const IDLE_INTERVAL: Duration = Duration::from_millis(500);
/// Interval over which [`wait_until_at_rest`] measures.
const REST_INTERVAL: Duration = Duration::from_secs(2);
/// Maximum share of one CPU at rest.
const REST_SHARE: f64 = 0.05;
/// Maximum wait for rest. A controller that never rests is measured as it is.
const MAX_WAIT_FOR_REST: Duration = Duration::from_secs(60);

/// CPU time of the measured processes and counters of the API server, read at one time.
#[derive(Clone, Debug)]
pub(super) struct UsageReading {
    /// CPU seconds since the start of each process, by its name.
    cpu: BTreeMap<String, f64>,
    api: ApiCounters,
}

/// Counters of the API server.
#[derive(Clone, Debug, Default)]
struct ApiCounters {
    /// Responses by verb, resource and subresource.
    requests: BTreeMap<String, f64>,
    /// Writes, failed ones included.
    writes: f64,
    /// Responses with the status 403.
    forbidden: f64,
    /// Watch events sent.
    events: f64,
    /// Open watches.
    watches: f64,
}

impl UsageReading {
    /// Reads the counters after 500 ms without a write at the API server, so that delayed work counts for its
    /// load.
    ///
    /// # Errors
    /// If a process has ended, or the API does not answer.
    pub(super) async fn when_idle(client: &Client, processes: &[&ManagedProcess]) -> Result<Self> {
        let mut api = ApiCounters::read(client).await?;
        loop {
            tokio::time::sleep(IDLE_INTERVAL).await;
            let next = ApiCounters::read(client).await?;
            let is_idle = (next.writes - api.writes).abs() < f64::EPSILON;
            api = next;
            if is_idle {
                break;
            }
        }
        let mut cpu = BTreeMap::new();
        for process in processes {
            cpu.insert(process.name().to_owned(), cpu_seconds(process)?);
        }
        Ok(Self { cpu, api })
    }

    /// Cost of a load: counters per object since an earlier reading, and the current memory and open watches.
    ///
    /// # Errors
    /// If a process has ended, or the API server has rejected a request with 403.
    pub(super) fn cost_since(
        &self,
        earlier: &Self,
        objects: usize,
        processes: &[&ManagedProcess],
    ) -> Result<Cost> {
        let forbidden = self.api.forbidden - earlier.api.forbidden;
        ensure!(forbidden < 0.5, "the API has refused {forbidden} requests (403): expected none");
        #[expect(clippy::cast_precision_loss, reason = "a load has fewer objects than a float has digits")]
        let each = |now: f64, before: f64| (now - before) / objects as f64;
        let differences = |now: &BTreeMap<String, f64>, before: &BTreeMap<String, f64>, factor: f64| {
            now.iter()
                .map(|(name, now)| {
                    (name.clone(), each(*now, before.get(name).copied().unwrap_or_default()) * factor)
                })
                .collect::<BTreeMap<_, _>>()
        };
        let mut memory = BTreeMap::new();
        for process in processes {
            memory.insert(process.name().to_owned(), resident_bytes(process)?);
        }
        let mut requests = differences(&self.api.requests, &earlier.api.requests, 1.0);
        // Rarer requests are lease renewals, scrapes of the metrics, and lists at the start of watches.
        requests.retain(|_, each| *each >= 0.005);
        Ok(Cost {
            cpu: differences(&self.cpu, &earlier.cpu, 1000.0),
            memory,
            writes: each(self.api.writes, earlier.api.writes),
            requests,
            events: each(self.api.events, earlier.api.events),
            watches: self.api.watches,
        })
    }

    /// Number of watches that were open at the API server.
    pub(super) const fn watches(&self) -> f64 {
        self.api.watches
    }
}

impl ApiCounters {
    async fn read(client: &Client) -> Result<Self> {
        let page = process::metrics_page(client).await?;
        let mut api = Self::default();
        for line in page.lines() {
            api.add_metric_line(line);
        }
        ensure!(api.writes > 0.0, "the API's metrics do not count its requests");
        Ok(api)
    }

    fn add_metric_line(&mut self, line: &str) {
        let Some((name, rest)) = line.split_once('{') else { return };
        let Some((labels, value)) = rest.rsplit_once("} ") else { return };
        let Ok(value) = value.parse::<f64>() else { return };
        let label = |name: &str| {
            let (_, value) = labels.split_once(&format!("{name}=\""))?;
            value.split('"').next()
        };
        let verb = label("verb").unwrap_or_default();
        match name {
            "apiserver_request_total" => {
                if label("code") == Some("403") {
                    self.forbidden += value;
                }
                if WRITE_VERBS.contains(&verb) {
                    self.writes += value;
                }
                let resource = label(",resource").unwrap_or_default();
                let part = label("subresource").filter(|part| !part.is_empty());
                let part = part.map(|part| format!("/{part}")).unwrap_or_default();
                *self.requests.entry(format!("{verb} {resource}{part}")).or_default() += value;
            }
            "apiserver_watch_events_total" => self.events += value,
            "apiserver_longrunning_requests" if verb == "WATCH" => self.watches += value,
            _ => {}
        }
    }
}

/// CPU seconds of processes, without their children.
///
/// # Errors
/// If one has ended.
pub(super) fn total_cpu_seconds(processes: &[ManagedProcess]) -> Result<f64> {
    processes.iter().map(cpu_seconds).sum()
}

/// Waits until processes have used less than 5 % of one CPU for 2 s, at most a minute. Some controllers work
/// through their caches without writes to the API.
///
/// # Errors
/// If one has ended.
pub(super) async fn wait_until_at_rest(processes: &[ManagedProcess]) -> Result<()> {
    let started = Instant::now();
    while started.elapsed() < MAX_WAIT_FOR_REST {
        let before = total_cpu_seconds(processes)?;
        tokio::time::sleep(REST_INTERVAL).await;
        if total_cpu_seconds(processes)? - before < REST_SHARE * REST_INTERVAL.as_secs_f64() {
            break;
        }
    }
    Ok(())
}

/// CPU seconds of a process, without its children.
fn cpu_seconds(process: &ManagedProcess) -> Result<f64> {
    let stat = read_proc_file(process, "stat")?;
    // The name in parentheses may contain any characters.
    let fields = stat.rsplit_once(") ").map(|(_, fields)| fields.split(' ')).context("no name in stat")?;
    let ticks: Vec<f64> = fields.skip(11).take(2).filter_map(|field| field.parse().ok()).collect();
    ensure!(ticks.len() == 2, "/proc: no times in {stat:?}");
    #[expect(clippy::cast_precision_loss, reason = "it is 100")]
    let second = rustix::param::clock_ticks_per_second() as f64;
    Ok(ticks.iter().sum::<f64>() / second)
}

/// Resident memory of a process in bytes.
///
/// # Errors
/// If it has ended.
pub(super) fn resident_bytes(process: &ManagedProcess) -> Result<u64> {
    let status = read_proc_file(process, "status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    let kilobytes = line.trim().trim_end_matches(" kB").parse::<u64>()?;
    Ok(kilobytes * 1024)
}

fn read_proc_file(process: &ManagedProcess, name: &str) -> Result<String> {
    let id = process.id().with_context(|| format!("{} does not run", process.name()))?;
    fs::read_to_string(format!("/proc/{id}/{name}")).with_context(|| format!("{} has ended", process.name()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn api_requests_are_counted_by_verb_and_resource() {
        let mut api = ApiCounters::default();
        for line in [
            "# TYPE apiserver_request_total counter",
            "apiserver_request_total{code=\"200\",component=\"apiserver\",dry_run=\"\",group=\"\",\
             resource=\"persistentvolumes\",scope=\"resource\",subresource=\"status\",verb=\"PATCH\",\
             version=\"v1\"} 3",
            "apiserver_request_total{code=\"403\",component=\"apiserver\",dry_run=\"\",group=\"\",\
             resource=\"pods\",scope=\"cluster\",subresource=\"\",verb=\"LIST\",version=\"v1\"} 1",
            "apiserver_longrunning_requests{component=\"apiserver\",group=\"\",resource=\"pods\",\
             scope=\"cluster\",subresource=\"\",verb=\"WATCH\",version=\"v1\"} 2",
            "apiserver_watch_events_total{group=\"\",resource=\"pods\",version=\"v1\"} 7",
        ] {
            api.add_metric_line(line);
        }
        assert_eq!((api.writes, api.forbidden, api.watches, api.events), (3.0, 1.0, 2.0, 7.0));
        assert_eq!(api.requests["PATCH persistentvolumes/status"], 3.0);
        assert_eq!(api.requests["LIST pods"], 1.0);
    }
}
