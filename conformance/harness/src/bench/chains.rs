//! The load `chains`: one object at a time while the API server is some milliseconds away. A time is that of a
//! chain of requests that depend on each other: claims are created, their volumes attached, detached and
//! expanded, and the claims deleted.

use std::{io::Write as _, time::Duration};

use anyhow::Result;

use super::{
    attachments::AttachmentLoad,
    configurations::{DRIVER, start_control_plane},
    load::ClaimLoad,
    measure::UsageReading,
    recorder::LoadRecorder,
    results::{ConfigurationResults, LoadKind},
    stacks::{Scope, Stack},
};
use crate::run::SuiteRun;

/// Milliseconds of a round trip.
pub(super) const ROUND_TRIP_MS: u64 = 20;
/// Number of objects of each kind.
pub(super) const OBJECTS: usize = 20;
/// The measured stacks.
const STACKS: [Stack; 2] = [Stack::Upstream, Stack::Cofferdam];

/// Measures each stack, on a new control plane.
///
/// # Errors
/// If a process does not run, or a load does not finish in time.
pub(super) async fn measure(run: &SuiteRun) -> Result<Vec<ConfigurationResults>> {
    let mut measured = Vec::new();
    for stack in STACKS {
        measured.push(measure_stack(run, stack).await?);
    }
    Ok(measured)
}

async fn measure_stack(run: &SuiteRun, stack: Stack) -> Result<ConfigurationResults> {
    let plane = start_control_plane(run).await?;
    let watches = UsageReading::when_idle(plane.client(), &[]).await?.watches();
    let running =
        stack.prepare_with_links(run, &plane, &Scope::VOLUME_LIFE).await?.start(run, &plane).await?;
    // Progress: a stack takes a minute.
    let _ = writeln!(std::io::stderr(), "  {}, one object at a time:", stack.name());
    running.set_round_trip(Duration::from_millis(ROUND_TRIP_MS));
    let client = plane.client().clone();
    let mut recorder =
        LoadRecorder::new(stack.name(), &plane, running.configuration.processes(), watches).await?;
    // The expansion of a block volume does not wait for a node.
    let claims = ClaimLoad::new(&client, "chains", Some(DRIVER)).await?.with_block_mode();
    recorder.begin_load().await?;
    let (timing, volumes) = claims.bind_sequentially(OBJECTS).await?;
    recorder.end_load(LoadKind::BindSequentially, &timing).await?;
    let attachments = AttachmentLoad::new(&client, DRIVER, volumes.clone()).await?;
    recorder.begin_load().await?;
    let timing = attachments.attach_sequentially().await?;
    recorder.end_load(LoadKind::Attach, &timing).await?;
    let timing = attachments.detach_sequentially().await?;
    recorder.end_load(LoadKind::Detach, &timing).await?;
    let timing = claims.expand_sequentially(OBJECTS).await?;
    recorder.end_load(LoadKind::Expand, &timing).await?;
    let timing = claims.delete_sequentially(&volumes).await?;
    recorder.end_load(LoadKind::DeleteClaims, &timing).await?;
    let results = running.results(recorder.into_measurements());
    drop((claims, attachments, client));
    running.stop().await?;
    plane.stop().await?;
    Ok(results)
}
