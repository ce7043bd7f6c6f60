//! kube-apiserver still gives the recorded responses with which `make test` compares the embedded API.
//! Requests that are marked with one of `TOLERATED_DEVIATIONS` are the exception. With the environment
//! variable `RECORD` the suite records the responses instead. The definitions of snapshots equal those of
//! external-snapshotter's client, except descriptions.

use std::{env, path::Path};

use anyhow::{Result, ensure};
use cofferdam_differential::recording::{compare_with_recording, record};

use crate::{
    control_plane::{ControlPlane, ControlPlaneOptions},
    run::SuiteRun,
    snapshot_crds,
};

/// Environment variable with a directory: write the responses there instead of comparing them.
const RECORD: &str = "RECORD";
/// Minimum number of requests that the suite sends. Fewer mean that files are missing in the set.
const MIN_REQUESTS: usize = 700;

/// Ids of deviations. The responses of kube-apiserver to requests that are marked with them may differ from
/// the record: discovery documents change with the build, and YAML is not normalized.
const TOLERATED_DEVIATIONS: [&str; 2] = ["discovery", "yaml"];

pub(super) async fn run(run: &SuiteRun) -> Result<()> {
    snapshot_crds::compare_with_upstream(run.peers())?;
    let mut plane = ControlPlane::start(run, ControlPlaneOptions::default()).await?;
    let client = plane.client().clone();
    snapshot_crds::install(&client).await?;
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
        // Marked deviations are those of the embedded API; kube-apiserver must not differ from its record.
        let marked = script_run.script.requests.iter().filter(|request| {
            request.deviation.as_deref().is_some_and(|deviation| !TOLERATED_DEVIATIONS.contains(&deviation))
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
