//! What a real kube-apiserver answered: written by `differential record`, kept with the requests.

use anyhow::{Context as _, Result};

use crate::{
    compare::{Verdict, compare},
    play::{Answer, play},
    requests::{FILES, Script, parse},
};

/// In the order of [`FILES`].
const ANSWERS: [&str; 6] = [
    include_str!("../answers/apply.jsonl"),
    include_str!("../answers/claims.jsonl"),
    include_str!("../answers/core.jsonl"),
    include_str!("../answers/lists.jsonl"),
    include_str!("../answers/storage.jsonl"),
    include_str!("../answers/volumes.jsonl"),
];

/// One file of requests, played and compared with what was recorded.
#[derive(Debug)]
pub struct Played {
    /// The file's name.
    pub name: &'static str,
    /// Its requests.
    pub script: Script,
    /// How the answers compare.
    pub verdict: Verdict,
}

/// Plays the whole set to an API that is empty, and compares its answers with the recorded ones.
///
/// # Errors
/// When the API does not answer, or a file of the set cannot be read.
pub async fn against_the_record(client: &kube::Client) -> Result<Vec<Played>> {
    let mut all = Vec::new();
    for ((name, text), answers) in FILES.into_iter().zip(ANSWERS) {
        let script = parse(text).with_context(|| format!("{name}.txt"))?;
        let expected: Result<Vec<Answer>, _> = answers.lines().map(serde_json::from_str).collect();
        let expected = expected.with_context(|| format!("{name}.jsonl"))?;
        let found = play(client, &script).await.with_context(|| format!("{name}.txt"))?;
        let verdict = compare(&script, &expected, &found);
        all.push(Played { name, script, verdict });
    }
    Ok(all)
}
