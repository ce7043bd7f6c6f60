//! The time of staging, compared with that of the plain commands in the same machine.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::{node::MachineNode, outage::ServerVolumes};
use crate::run::SuiteRun;

/// Stages and mounts by hand, which alternate.
const ROUNDS: usize = 5;

/// Compares NodeStageVolume with the script that mounts by hand, each without the time of an empty call. Adds a
/// note with the medians.
pub(in crate::suites) async fn compare(
    run: &SuiteRun,
    node: &MachineNode<'_>,
    volumes: &ServerVolumes,
) -> Result<()> {
    let ServerVolumes { kind, written, mount_by_hand, unmount_by_hand } = volumes;
    let (mut stages, mut scripts) = (Vec::new(), Vec::new());
    // The first ones may format.
    node.make_directories(written).await?;
    node.stage(written).await?;
    node.unstage(written).await?;
    node.machine.shell(mount_by_hand).await?;
    node.machine.shell(unmount_by_hand).await?;
    for _ in 0..ROUNDS {
        let started = Instant::now();
        node.is_running().await?;
        let empty_call = started.elapsed();
        node.make_directories(written).await?;
        let started = Instant::now();
        node.stage(written).await?;
        stages.push(started.elapsed().saturating_sub(empty_call));
        node.unstage(written).await?;

        let started = Instant::now();
        node.machine.shell("true").await?;
        let empty_script = started.elapsed();
        let started = Instant::now();
        node.machine.shell(mount_by_hand).await?;
        scripts.push(started.elapsed().saturating_sub(empty_script));
        node.machine.shell(unmount_by_hand).await?;
    }
    let (stage, script) = (median(stages), median(scripts));
    let ratio = stage.as_secs_f64() / script.as_secs_f64();
    run.add_note(&format!("{kind}: staged within {stage:.0?}, by plain commands {script:.0?}: {ratio:.2} ×"))
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times.get(times.len() / 2).copied().unwrap_or_default()
}
