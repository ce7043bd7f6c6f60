//! The answers that the embedded API is held to in `make test` are those of this API server.

use std::{env, path::Path};

use anyhow::{Result, ensure};
use cofferdam_differential::recorded::{against_the_record, record};

use crate::{
    control_plane::{ControlPlane, Options},
    run::Run,
};

/// Variable that names the directory to which the answers are written anew, instead of being compared.
const RECORD: &str = "RECORD";
/// Fewer would be a set that lost its files.
const REQUESTS: usize = 300;

/// Answers with what is never twice the same: the time of a build, and text that is compared as it stands.
const OF_ONE_RUN: [&str; 2] = ["documents", "yaml"];

pub(super) async fn run(run: &Run) -> Result<()> {
    let mut plane = ControlPlane::start(run, Options::default()).await?;
    let client = plane.client().clone();
    if let Some(directory) = env::var_os(RECORD) {
        record(&client, async || plane.compact().await, Path::new(&directory)).await?;
        return plane.stop().await;
    }
    let mut problems = Vec::new();
    let mut requests = 0;
    for played in against_the_record(&client, async || plane.compact().await).await? {
        let name = played.name;
        requests += played.script.requests.len();
        problems.extend(played.verdict.differences.iter().map(|one| format!("{name}.txt {one}")));
        // What the embedded API answers otherwise on purpose is marked; the real one must not differ there from its own record.
        let marked = played.script.requests.iter().filter(|request| {
            request.deviation.as_deref().is_some_and(|deviation| !OF_ONE_RUN.contains(&deviation))
        });
        problems.extend(marked.filter(|request| !played.verdict.stale.contains(&request.line)).map(
            |request| format!("{name}.txt line {}: the record is not what the API answers", request.line),
        ));
    }
    ensure!(requests >= REQUESTS, "only {requests} requests were played: expected at least {REQUESTS}");
    ensure!(problems.is_empty(), "{}\n{} of {requests} answers differ", problems.join("\n"), problems.len());
    plane.stop().await
}
