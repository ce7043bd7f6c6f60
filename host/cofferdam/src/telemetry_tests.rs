use http_body_util::BodyExt as _;
use prometheus_client::metrics::counter::Counter;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;

fn test_state() -> (TelemetryState, watch::Sender<bool>) {
    let mut registry = Registry::default();
    let calls = Counter::<u64>::default();
    calls.inc();
    registry.register("calls", "Calls", calls);
    let (sender, ready) = watch::channel(false);
    (
        TelemetryState {
            registry: Arc::new(registry),
            ready,
            health: None,
            stopping: CancellationToken::new(),
        },
        sender,
    )
}

async fn get(state: &TelemetryState, path: &str) -> (StatusCode, String, String) {
    let response = respond(state, &Request::get(path).body(()).unwrap());
    let status = response.status();
    let content_type = response.headers()[header::CONTENT_TYPE].to_str().unwrap().to_owned();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, content_type, String::from_utf8(body.to_vec()).unwrap())
}

#[tokio::test]
async fn readyz_follows_cache_sync_and_drain() {
    let (pages, ready) = test_state();
    let (status, _, body) = get(&pages, "/readyz").await;
    assert_eq!((status, body.contains("caches: not synced")), (StatusCode::SERVICE_UNAVAILABLE, true));
    ready.send_replace(true);
    assert_eq!(get(&pages, "/readyz").await.0, StatusCode::OK);
    pages.stopping.cancel();
    let (status, _, body) = get(&pages, "/readyz").await;
    assert_eq!((status, body.as_str()), (StatusCode::SERVICE_UNAVAILABLE, "stopping\n"));
    assert_eq!(get(&pages, "/healthz").await.0, StatusCode::OK, "a process that drains is alive");
}

#[tokio::test]
async fn metrics_are_openmetrics_text() {
    let (pages, _ready) = test_state();
    let (status, content_type, body) = get(&pages, "/metrics").await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(content_type, "application/openmetrics-text; version=1.0.0; charset=utf-8");
    assert!(body.contains("calls_total 1") && body.ends_with("# EOF\n"), "{body}");
}

#[tokio::test]
async fn unknown_paths_and_methods_are_rejected() {
    let (pages, _ready) = test_state();
    assert_eq!(get(&pages, "/").await.0, StatusCode::NOT_FOUND);
    let refused = respond(&pages, &Request::post("/metrics").body(()).unwrap());
    assert_eq!(refused.status(), StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!(refused.headers()[header::ALLOW], "GET, HEAD");
}

#[tokio::test]
async fn the_telemetry_server_serves_and_stops() {
    let (pages, _ready) = test_state();
    let telemetry = TelemetryServer::bind(&"127.0.0.1:0".parse().unwrap()).await.unwrap();
    let address = telemetry.address().unwrap();
    let stop = CancellationToken::new();
    let server = tokio::spawn(telemetry.serve(pages, stop.clone()));
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).await.unwrap();
    assert!(response.starts_with("HTTP/1.1 200 OK\r\n") && response.ends_with("\r\n\r\nok\n"), "{response}");
    stop.cancel();
    server.await.unwrap();
}

#[tokio::test]
async fn an_address_in_use_is_reported() {
    let first = TelemetryServer::bind(&"127.0.0.1:0".parse().unwrap()).await.unwrap();
    let address = first.address().unwrap().to_string();
    let error = TelemetryServer::bind(&address.parse().unwrap()).await.unwrap_err();
    assert!(
        error.to_string().starts_with(&format!("cannot listen on {address} for metrics and health: ")),
        "{error}"
    );
}
