//! The load `far`: the API server is some milliseconds away from the controllers. A link between each
//! controller and the API server delays both directions and does not limit the throughput. The clients of the
//! load and the observer of the claims connect directly.

use std::{io::Write as _, time::Duration};

use anyhow::Result;

use super::{
    configurations::{DRIVER, start_control_plane},
    load::ClaimLoad,
    measure::UsageReading,
    recorder::LoadRecorder,
    results::{FarApi, LoadKind},
    stacks::{Scope, Stack},
    upper_bound,
};
use crate::run::SuiteRun;

/// The distances: milliseconds of a round trip.
const ROUND_TRIPS: [u64; 4] = [0, 5, 20, 50];
/// Number of claims that are created one after the other.
pub(super) const SEQUENTIAL_CLAIMS: usize = 10;

/// The measured stacks.
const STACKS: [Stack; 3] = [Stack::Upstream, Stack::UpstreamWithDefaults, Stack::Cofferdam];

/// Number of claims that are created concurrently.
pub(super) const fn concurrent_claims(stack: Stack) -> usize {
    match stack {
        // It binds 4 claims per second.
        Stack::UpstreamWithDefaults => 60,
        Stack::Upstream | Stack::Cofferdam => 300,
    }
}

/// Measures each stack at each distance, each on a new control plane, and the API server only without
/// distance, which does not limit the throughput of concurrent clients.
///
/// # Errors
/// If a process does not run, or a load does not finish in time.
pub(super) async fn measure(run: &SuiteRun) -> Result<Vec<FarApi>> {
    let mut measured = Vec::new();
    for stack in STACKS {
        for round_trip_ms in ROUND_TRIPS {
            measured.push(measure_distance(run, stack, round_trip_ms).await?);
        }
    }
    measured.push(measure_upper_bound(run).await?);
    Ok(measured)
}

async fn measure_distance(run: &SuiteRun, stack: Stack, round_trip_ms: u64) -> Result<FarApi> {
    let plane = start_control_plane(run).await?;
    let watches = UsageReading::when_idle(plane.client(), &[]).await?.watches();
    let running = stack.prepare_with_links(run, &plane, &Scope::BINDING).await?.start(run, &plane).await?;
    // Progress: a distance takes up to a minute.
    let _ = writeln!(std::io::stderr(), "  {}, {round_trip_ms} ms away:", stack.name());
    running.set_round_trip(Duration::from_millis(round_trip_ms));
    let client = plane.client().clone();
    let mut recorder =
        LoadRecorder::new(stack.name(), &plane, running.configuration.processes(), watches).await?;
    let sequential = ClaimLoad::new(&client, "alone", Some(DRIVER)).await?;
    recorder.begin_load().await?;
    let (timing, _) = sequential.bind_sequentially(SEQUENTIAL_CLAIMS).await?;
    recorder.end_load(LoadKind::BindSequentially, &timing).await?;
    let load = ClaimLoad::new(&client, "far", Some(DRIVER)).await?;
    recorder.begin_load().await?;
    let (timing, _) = load.bind_all(concurrent_claims(stack)).await?;
    recorder.end_load(LoadKind::BindDynamic, &timing).await?;
    let results = running.results(recorder.into_measurements());
    drop((sequential, load, client));
    running.stop().await?;
    plane.stop().await?;
    Ok(FarApi { round_trip_ms, results })
}

/// Measures the API server only, without distance: clients make the writes that bind a claim.
async fn measure_upper_bound(run: &SuiteRun) -> Result<FarApi> {
    let plane = start_control_plane(run).await?;
    let results =
        upper_bound::measure_binding(&plane, concurrent_claims(Stack::Cofferdam), SEQUENTIAL_CLAIMS).await?;
    plane.stop().await?;
    Ok(FarApi { round_trip_ms: 0, results })
}
