//! The embedded API answers every request of the set as a real kube-apiserver did.

use cofferdam_apiserver::{ApiServer, Options};
use cofferdam_differential::compare::compare;
use cofferdam_differential::play::{Answer, play};
use cofferdam_differential::requests::{FILES, parse};

/// What the real server answered, recorded by `differential record`.
const ANSWERS: [&str; 6] = [
    include_str!("../answers/apply.jsonl"),
    include_str!("../answers/claims.jsonl"),
    include_str!("../answers/core.jsonl"),
    include_str!("../answers/lists.jsonl"),
    include_str!("../answers/storage.jsonl"),
    include_str!("../answers/volumes.jsonl"),
];

#[tokio::test(start_paused = true)]
async fn the_embedded_api_answers_as_the_real_one_did() {
    let client = kube::Client::new(ApiServer::new(Options::default()).service(), "default");
    let mut problems = Vec::new();
    for ((name, text), answers) in FILES.into_iter().zip(ANSWERS) {
        let script = parse(text).unwrap();
        let expected: Vec<Answer> = answers.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let found = play(&client, &script).await.unwrap();
        let verdict = compare(&script, &expected, &found);
        problems.extend(verdict.differences.iter().map(|one| format!("{name}.txt {one}")));
        problems.extend(
            verdict.stale.iter().map(|line| format!("{name}.txt line {line}: does not differ any more")),
        );
    }
    assert!(problems.is_empty(), "{}\n{} differences", problems.join("\n"), problems.len());
}
