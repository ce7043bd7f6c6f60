//! The embedded API answers every request of the set as a real kube-apiserver did.

use cofferdam_apiserver::{ApiServer, Options};
use cofferdam_differential::recorded::against_the_record;

#[tokio::test(start_paused = true)]
async fn the_embedded_api_answers_as_the_real_one_did() {
    let api = ApiServer::new(Options::default());
    let client = kube::Client::new(api.service(), "default");
    let compact = async || {
        api.compact();
        Ok(())
    };
    let mut problems = Vec::new();
    for played in against_the_record(&client, compact).await.unwrap() {
        let name = played.name;
        problems.extend(played.verdict.differences.iter().map(|one| format!("{name}.txt {one}")));
        problems.extend(
            played
                .verdict
                .stale
                .iter()
                .map(|line| format!("{name}.txt line {line}: does not differ any more")),
        );
    }
    assert!(problems.is_empty(), "{}\n{} differences", problems.join("\n"), problems.len());
}
