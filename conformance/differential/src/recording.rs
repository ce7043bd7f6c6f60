//! Comparison of responses with the recorded ones of kube-apiserver, and [`record`], which writes new ones.

use std::{fs, path::Path};

use anyhow::{Context as _, Result};

use crate::{
    compare::{ScriptComparison, compare},
    requests::{REQUEST_FILES, RequestScript, parse},
    runner::{ApiResponse, run_script},
};

/// The recorded responses, in the order of `REQUEST_FILES`.
const ANSWERS: [&str; 9] = [
    include_str!("../answers/apply.jsonl"),
    include_str!("../answers/claims.jsonl"),
    include_str!("../answers/core.jsonl"),
    include_str!("../answers/custom.jsonl"),
    include_str!("../answers/lists.jsonl"),
    include_str!("../answers/snapshots.jsonl"),
    include_str!("../answers/storage.jsonl"),
    include_str!("../answers/volumes.jsonl"),
    include_str!("../answers/expiry.jsonl"),
];

/// A file of requests, and the comparison of its responses with the recorded ones.
#[derive(Debug)]
pub struct ScriptRun {
    /// The file's name without `.txt`.
    pub name: &'static str,
    /// The requests of the file.
    pub script: RequestScript,
    /// The comparison of the responses.
    pub comparison: ScriptComparison,
}

/// Sends the whole set to an empty API server, and compares its responses with the recorded ones. `compact`
/// compacts the server's history.
///
/// # Errors
/// If the API server does not respond, the compaction fails, or a file is malformed.
pub async fn compare_with_recording(
    client: &kube::Client,
    mut compact: impl AsyncFnMut() -> Result<()>,
) -> Result<Vec<ScriptRun>> {
    let mut runs = Vec::new();
    for ((name, text), answers) in REQUEST_FILES.into_iter().zip(ANSWERS) {
        let script = parse(text).with_context(|| format!("{name}.txt"))?;
        let expected: Result<Vec<ApiResponse>, _> = answers.lines().map(serde_json::from_str).collect();
        let expected = expected.with_context(|| format!("{name}.jsonl"))?;
        let found = run_script(client, &script, &mut compact).await.with_context(|| format!("{name}.txt"))?;
        let comparison = compare(&script, &expected, &found);
        runs.push(ScriptRun { name, script, comparison });
    }
    Ok(runs)
}

/// Sends the whole set to an empty API server, and writes its responses to a directory: a file `NAME.jsonl`
/// for each file of requests. `compact` compacts the server's history.
///
/// # Errors
/// If the API server does not respond, the compaction fails, a file of requests is malformed, or the
/// responses cannot be written.
pub async fn record(
    client: &kube::Client,
    mut compact: impl AsyncFnMut() -> Result<()>,
    directory: &Path,
) -> Result<()> {
    for (name, text) in REQUEST_FILES {
        let script = parse(text).with_context(|| format!("{name}.txt"))?;
        let answers =
            run_script(client, &script, &mut compact).await.with_context(|| format!("{name}.txt"))?;
        let lines: Result<Vec<String>, _> = answers.iter().map(serde_json::to_string).collect();
        let path = directory.join(format!("{name}.jsonl"));
        fs::write(&path, lines?.join("\n") + "\n").with_context(|| path.display().to_string())?;
    }
    Ok(())
}
