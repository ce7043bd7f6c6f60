//! The answers that the embedded API is held to in `make test` are those of this API server.

use std::{env, path::Path};

use anyhow::{Result, ensure};
use cofferdam_differential::recording::{compare_with_recording, record};

use crate::{
    control_plane::{ControlPlane, ControlPlaneOptions},
    run::SuiteRun,
};

/// Variable that names the directory to which the answers are written anew, instead of being compared.
const RECORD: &str = "RECORD";
/// Fewer would be a set that lost its files.
const MIN_REQUESTS: usize = 300;

/// Answers with what is never twice the same: the time of a build, and text that is compared as it stands.
const NONDETERMINISTIC_DEVIATIONS: [&str; 2] = ["discovery", "yaml"];

pub(super) async fn run(run: &SuiteRun) -> Result<()> {
    let mut plane = ControlPlane::start(run, ControlPlaneOptions::default()).await?;
    let client = plane.client().clone();
    if let Some(directory) = env::var_os(RECORD) {
        record(&client, async || plane.compact().await, Path::new(&directory)).await?;
        return plane.stop().await;
    }
    let mut problems = Vec::new();
    let mut requests = 0;
    for script_run in compare_with_recording(&client, async || plane.compact().await).await? {
        let name = script_run.name;
        requests += script_run.script.requests.len();
        problems.extend(script_run.comparison.differences.iter().map(|one| format!("{name}.txt {one}")));
        // What the embedded API answers otherwise on purpose is marked; the real one must not differ there
        // from its own record.
        let marked = script_run.script.requests.iter().filter(|request| {
            request
                .deviation
                .as_deref()
                .is_some_and(|deviation| !NONDETERMINISTIC_DEVIATIONS.contains(&deviation))
        });
        problems.extend(
            marked.filter(|request| !script_run.comparison.stale_deviations.contains(&request.line)).map(
                |request| format!("{name}.txt line {}: the record is not what the API answers", request.line),
            ),
        );
    }
    ensure!(
        requests >= MIN_REQUESTS,
        "only {requests} requests were played: expected at least {MIN_REQUESTS}"
    );
    ensure!(problems.is_empty(), "{}\n{} of {requests} answers differ", problems.join("\n"), problems.len());
    plane.stop().await
}
