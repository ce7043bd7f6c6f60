//! The load `full`: new claims in a cluster that has many claims and volumes already. Each stack starts with
//! a copy of the same data of etcd.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::{
    configurations::{DRIVER, start_control_plane_with},
    existing_volumes::ExistingVolumes,
    load::ClaimLoad,
    measure::{UsageReading, total_cpu_seconds, wait_until_at_rest},
    recorder::LoadRecorder,
    results::{FullCluster, Lifecycle, LoadKind, Recovery},
    stacks::{RunningStack, Scope, Stack},
    upper_bound,
};
use crate::{
    control_plane::{self, ApiUser, ControlPlane},
    run::SuiteRun,
};

/// Number of claims that are created concurrently.
pub(super) const CONCURRENT_CLAIMS: usize = 500;
/// Number of claims that are created one after the other.
pub(super) const SEQUENTIAL_CLAIMS: usize = 60;
/// Time for which the controllers have no work.
pub(super) const REST: Duration = Duration::from_secs(30);

/// The measured stacks.
const STACKS: [Stack; 2] = [Stack::Upstream, Stack::Cofferdam];

/// Measures each stack and the API server only in each of these clusters. The lifecycle of the stacks is
/// measured in the last one.
///
/// # Errors
/// If a process does not run, or a load does not finish in time.
pub(super) async fn measure(run: &SuiteRun, clusters: &[ExistingVolumes]) -> Result<Vec<FullCluster>> {
    let mut measured = Vec::new();
    for (index, cluster) in clusters.iter().enumerate() {
        let has_lifecycle = index + 1 == clusters.len();
        for stack in STACKS {
            measured.push(measure_stack(run, stack, cluster, has_lifecycle).await?);
        }
        measured.push(measure_upper_bound(run, cluster).await?);
    }
    Ok(measured)
}

async fn measure_stack(
    run: &SuiteRun,
    stack: Stack,
    cluster: &ExistingVolumes,
    has_lifecycle: bool,
) -> Result<FullCluster> {
    let mut plane = start_control_plane_with(run, Some(&cluster.etcd_data)).await?;
    let client = plane.client().clone();
    let watches = UsageReading::when_idle(&client, &[]).await?.watches();
    let prepared = stack.prepare(run, &plane, &Scope::BINDING).await?;
    // The first claim waits until the controllers have read what exists.
    let first = ClaimLoad::new(&client, "first", Some(DRIVER)).await?;
    let started = Instant::now();
    let bind_first = async {
        first.bind_all(1).await?;
        anyhow::Ok(started.elapsed().as_secs_f64())
    };
    let (start_seconds, running) = tokio::try_join!(bind_first, prepared.start(run, &plane))?;
    let controllers = &running.configuration.controllers;
    wait_until_at_rest(controllers).await?;

    let mut recorder =
        LoadRecorder::new(stack.name(), &plane, running.configuration.processes(), watches).await?;
    let load = ClaimLoad::new(&client, "more", Some(DRIVER)).await?;
    recorder.begin_load().await?;
    let (timing, _) = load.bind_all(CONCURRENT_CLAIMS).await?;
    recorder.end_load(LoadKind::BindDynamic, &timing).await?;
    let sequential = ClaimLoad::new(&client, "alone", Some(DRIVER)).await?;
    recorder.begin_load().await?;
    let (timing, _) = sequential.bind_sequentially(SEQUENTIAL_CLAIMS).await?;
    recorder.end_load(LoadKind::BindSequentially, &timing).await?;
    let loads = recorder.into_measurements();
    drop((first, load, sequential, client));

    let lifecycle = if has_lifecycle {
        wait_until_at_rest(controllers).await?;
        let before = total_cpu_seconds(controllers)?;
        tokio::time::sleep(REST).await;
        let rest_cpu_seconds = total_cpu_seconds(controllers)? - before;
        let relist = recover(&mut plane, &running, Interruption::Relist).await?;
        let restart = recover(&mut plane, &running, Interruption::Restart).await?;
        Some(Lifecycle { start_seconds, rest_cpu_seconds, relist, restart })
    } else {
        None
    };
    let results = running.results(loads);
    running.stop().await?;
    plane.stop().await?;
    Ok(FullCluster { volumes: cluster.volumes, results, lifecycle })
}

/// An interruption of the controllers' watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Interruption {
    /// etcd is compacted and the API server restarts, and does not have the changes since the versions that
    /// the watches have reached: the controllers list all objects again.
    Relist,
    /// The API server restarts. A watch continues if no object of any kind was written after its last event.
    Restart,
}

/// Interrupts the watches. The recovery ends when a claim is Bound that was created as soon as the API server
/// was ready again.
async fn recover(
    plane: &mut ControlPlane,
    running: &RunningStack,
    interruption: Interruption,
) -> Result<Recovery> {
    let controllers = &running.configuration.controllers;
    let name = match interruption {
        Interruption::Relist => "after-relist",
        Interruption::Restart => "after-restart",
    };
    // The class exists before, so that the recovery does not wait for its watch event.
    let load = ClaimLoad::new(plane.client(), name, Some(DRIVER)).await?;
    wait_until_at_rest(controllers).await?;
    let before = total_cpu_seconds(controllers)?;
    match interruption {
        Interruption::Relist => plane.compact().await?,
        Interruption::Restart => {
            plane.api.kill().await?;
            plane.restart_api().await?;
        }
    }
    let ready = Instant::now();
    // Connections of the load's client may have ended with the API server.
    let client = control_plane::client(&plane.kubeconfig(ApiUser::Admin)?).await?;
    load.with_client(client).bind_all(1).await?;
    Ok(Recovery {
        seconds: ready.elapsed().as_secs_f64(),
        cpu_seconds: total_cpu_seconds(controllers)? - before,
    })
}

/// Measures the API server only: clients make the writes that bind a claim.
async fn measure_upper_bound(run: &SuiteRun, cluster: &ExistingVolumes) -> Result<FullCluster> {
    let plane = start_control_plane_with(run, Some(&cluster.etcd_data)).await?;
    let results = upper_bound::measure_binding(&plane, CONCURRENT_CLAIMS, SEQUENTIAL_CLAIMS).await?;
    plane.stop().await?;
    Ok(FullCluster { volumes: cluster.volumes, results, lifecycle: None })
}
