//! Prints the throughput of small creates, patches, gets and one list on one core against the in-process
//! service.

use std::time::{Duration, Instant};

use bytes::Bytes;
use cofferdam_apiserver::{ApiServer, ApiService, Options};
use http::{Method, Request};
use http_body_util::{BodyExt, Full};
use tower::ServiceExt;

const OBJECTS: u32 = 20_000;
const CLAIMS: &str = "/api/v1/namespaces/default/persistentvolumeclaims";

type BoxError = Box<dyn std::error::Error>;

async fn send(service: &ApiService, method: Method, uri: &str, body: String) -> Result<usize, BoxError> {
    let content = if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
    let request = Request::builder().method(method).uri(uri).header("content-type", content);
    let response = service.clone().oneshot(request.body(Full::new(Bytes::from(body)))?).await?;
    if !response.status().is_success() {
        return Err(format!("{uri}: {}", response.status()).into());
    }
    Ok(response.into_body().collect().await?.to_bytes().len())
}

#[expect(clippy::print_stdout, reason = "the numbers are what this is for")]
fn report(what: &str, count: u32, elapsed: Duration) {
    println!("{what:<12} {:>10.0} /s", f64::from(count) / elapsed.as_secs_f64());
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), BoxError> {
    let service = ApiServer::new(Options::default()).service();
    let start = Instant::now();
    for index in 0..OBJECTS {
        let body = format!(
            r#"{{"metadata":{{"name":"claim-{index}"}},
            "spec":{{"accessModes":["ReadWriteOnce"],"storageClassName":"fast",
            "resources":{{"requests":{{"storage":"1Gi"}}}}}}}}"#
        );
        send(&service, Method::POST, CLAIMS, body).await?;
    }
    report("creates", OBJECTS, start.elapsed());
    let start = Instant::now();
    for index in 0..OBJECTS {
        let body = format!(r#"{{"metadata":{{"annotations":{{"index":"{index}"}}}}}}"#);
        send(&service, Method::PATCH, &format!("{CLAIMS}/claim-{index}"), body).await?;
    }
    report("patches", OBJECTS, start.elapsed());
    let start = Instant::now();
    for index in 0..OBJECTS {
        send(&service, Method::GET, &format!("{CLAIMS}/claim-{index}"), String::new()).await?;
    }
    report("gets", OBJECTS, start.elapsed());
    let start = Instant::now();
    send(&service, Method::GET, CLAIMS, String::new()).await?;
    report("list items", OBJECTS, start.elapsed());
    Ok(())
}
