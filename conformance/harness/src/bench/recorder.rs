//! Records throughput, latencies and cost of each load on one control plane.

use std::io::{self, Write as _};

use anyhow::Result;
use kube::Client;

use super::{
    load::LoadTiming,
    measure::UsageReading,
    results::{LoadKind, LoadMeasurement},
};
use crate::{control_plane::ControlPlane, process::ManagedProcess};

/// The measurements of the loads that ran on one control plane so far.
pub(super) struct LoadRecorder<'a> {
    name: &'static str,
    client: Client,
    processes: Vec<&'a ManagedProcess>,
    loads: Vec<LoadMeasurement>,
    last_reading: UsageReading,
    /// Number of watches that were open when the control plane was ready. In the pod load, these include the
    /// watches of kube-controller-manager and kube-scheduler.
    idle_watches: f64,
}

impl<'a> LoadRecorder<'a> {
    /// A recorder for the configuration `name`, which measures kube-apiserver, etcd and the processes
    /// `others`. `watches` is the number of watches that were open when the control plane was ready, before
    /// the other processes of the configuration were started.
    ///
    /// # Errors
    /// If a process has ended, or the API does not answer.
    pub(super) async fn new(
        name: &'static str,
        plane: &'a ControlPlane,
        others: impl Iterator<Item = &'a ManagedProcess>,
        watches: f64,
    ) -> Result<Self> {
        let processes: Vec<&ManagedProcess> = [&plane.api, &plane.etcd].into_iter().chain(others).collect();
        let client = plane.client().clone();
        let last = UsageReading::when_idle(&client, &processes).await?;
        Ok(Self { name, client, processes, loads: Vec::new(), last_reading: last, idle_watches: watches })
    }

    /// The measurements, in the order of the loads. Drops the recorder's client: kube-apiserver waits for
    /// idle connections when it stops.
    pub(super) fn into_measurements(self) -> Vec<LoadMeasurement> {
        self.loads
    }

    /// Waits until the API server is idle, and takes the reading before the next load.
    ///
    /// # Errors
    /// If a process has ended, or the API does not answer.
    pub(super) async fn begin_load(&mut self) -> Result<()> {
        self.last_reading = UsageReading::when_idle(&self.client, &self.processes).await?;
        Ok(())
    }

    /// Waits until the API server is idle, and adds the measurement of the load that ended. The load's cost
    /// is the usage since the last [`begin_load`](Self::begin_load) or `end_load`.
    ///
    /// # Errors
    /// As [`begin_load`](Self::begin_load), or if a request was forbidden.
    pub(super) async fn end_load(&mut self, kind: LoadKind, timing: &LoadTiming) -> Result<()> {
        let objects = timing.latencies.len();
        let now = UsageReading::when_idle(&self.client, &self.processes).await?;
        let mut cost = now.cost_since(&self.last_reading, objects, &self.processes)?;
        cost.watches -= self.idle_watches;
        let seconds = timing.elapsed.as_secs_f64();
        #[expect(clippy::cast_precision_loss, reason = "a load has fewer objects than a float has digits")]
        let per_second = objects as f64 / seconds;
        let milliseconds = |percent| timing.quantile(percent).as_secs_f64() * 1000.0;
        let (p50, p99) = (milliseconds(50), milliseconds(99));
        // Progress: a run takes minutes.
        let _ = writeln!(
            io::stderr(),
            "  {}: {kind:?}, {objects} at {per_second:.1} /s, p50 {p50:.1} ms, p99 {p99:.1} ms",
            self.name
        );
        self.loads.push(LoadMeasurement { kind, objects, seconds, per_second, p50, p99, cost });
        self.last_reading = now;
        Ok(())
    }
}
