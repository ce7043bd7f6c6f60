//! The embedded API responds to every request of the set as kube-apiserver did when its responses were
//! recorded. A request that is marked with a deviation has to get a different response.

use cofferdam_apiserver::{ApiServer, Options};
use cofferdam_differential::recording::compare_with_recording;

#[tokio::test(start_paused = true)]
async fn embedded_api_matches_the_recorded_kube_apiserver() {
    let api = ApiServer::new(Options::default());
    let client = kube::Client::new(api.service(), "default");
    let compact = async || {
        api.compact();
        Ok(())
    };
    let mut problems = Vec::new();
    for script_run in compare_with_recording(&client, compact).await.unwrap() {
        let name = script_run.name;
        problems.extend(script_run.comparison.differences.iter().map(|one| format!("{name}.txt {one}")));
        problems.extend(
            script_run
                .comparison
                .stale_deviations
                .iter()
                .map(|line| format!("{name}.txt line {line}: does not differ any more")),
        );
    }
    assert!(problems.is_empty(), "{}\n{} differences", problems.join("\n"), problems.len());
}
