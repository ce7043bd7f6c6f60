use std::net::Ipv4Addr;

use cofferdam_cluster::journal::{JournalLoss, LostJournals};
use cofferdam_controllers::Role;
use futures::FutureExt as _;
use http_body_util::BodyExt as _;
use prometheus_client::metrics::counter::Counter;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream},
    sync::mpsc,
    time::{sleep, timeout},
};

use super::{
    connections::{CONNECTION_DEADLINE, KEEP_ALIVE, MAX_CONNECTIONS},
    *,
};

const KUBELET: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
const POD: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
const GET_METRICS: &str = "GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n";
const GET_HEALTH: &str = "GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n";
/// Time of a slow health check.
const SLOW: Duration = Duration::from_secs(3);
/// Time in which a test expects progress. Time is paused, so it passes only when no task can proceed.
const SOON: Duration = Duration::from_secs(1);

fn all_pages() -> Pages {
    Pages::All("/metrics".parse().unwrap())
}

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
            stopped_roles: watch::channel(StoppedRoles::new()).1,
            lost_journals: watch::channel(LostJournals::new()).1,
            health: HealthChecks::default(),
            leader_election: None,
            stopping: CancellationToken::new(),
        },
        sender,
    )
}

/// A state whose health check takes [`SLOW`].
fn slow_state() -> TelemetryState {
    let health: HealthCheck = Arc::new(|| sleep(SLOW).map(Ok).boxed());
    let health = HealthChecks { driver: Some(health), registration: None };
    TelemetryState { health, ..test_state().0 }
}

async fn request(state: &TelemetryState, pages: &Pages, method: Method, path: &str) -> (StatusCode, String) {
    let request = Request::builder().method(method).uri(path).body(()).unwrap();
    let response = respond(pages, state, &request).await;
    let status = response.status();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

async fn get(state: &TelemetryState, path: &str) -> (StatusCode, String) {
    request(state, &all_pages(), Method::GET, path).await
}

/// A server without sockets.
struct TestServer {
    incoming: mpsc::UnboundedSender<(DuplexStream, IpAddr)>,
}

impl TestServer {
    fn start(state: TelemetryState) -> Self {
        let (incoming, mut receiver) = mpsc::unbounded_channel();
        let receive = stream::poll_fn(move |context| receiver.poll_recv(context));
        tokio::spawn(serve_connections(receive, all_pages(), state, CancellationToken::new()));
        Self { incoming }
    }

    /// A connection whose buffer holds less than one response in each direction.
    fn connect(&self, peer: IpAddr) -> DuplexStream {
        let (client, server) = tokio::io::duplex(128);
        self.incoming.send((server, peer)).unwrap();
        client
    }

    /// Opens a connection that sends the text and reads nothing, until the server closes it.
    fn send_without_reading(&self, peer: IpAddr, text: String) {
        let mut client = self.connect(peer);
        tokio::spawn(async move {
            if client.write_all(text.as_bytes()).await.is_ok() {
                std::future::pending::<()>().await;
            }
        });
    }
}

/// Sends a request with `connection: close`, and returns the whole response.
async fn get_over(mut client: DuplexStream, path: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    client.write_all(request.as_bytes()).await.unwrap();
    let mut response = String::new();
    client.read_to_string(&mut response).await.unwrap();
    response
}

/// Reads one response without a body from a connection that stays open.
async fn read_response(client: &mut DuplexStream) -> String {
    let mut response = Vec::new();
    while !response.ends_with(b"ok\n") {
        response.push(client.read_u8().await.unwrap());
    }
    String::from_utf8(response).unwrap()
}

#[tokio::test]
async fn readyz_names_stopped_roles() {
    let (state, ready) = test_state();
    ready.send_replace(true);
    let stopped = [(Role::new("pv-controller"), "another controller does the work".to_owned())];
    let state = TelemetryState { stopped_roles: watch::channel(stopped.into()).1, ..state };
    let (status, body) = get(&state, "/readyz").await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(body, "pv-controller: another controller does the work\n");
}

#[tokio::test]
async fn readyz_names_the_driver_and_the_owner_of_a_lost_journal() {
    let (state, ready) = test_state();
    ready.send_replace(true);
    let lost =
        LostJournals::from([("array.example.com".into(), JournalLoss::Taken("host-2-00ff".to_owned()))]);
    let (sender, lost_journals) = watch::channel(lost);
    let state = TelemetryState { lost_journals, ..state };
    let expected =
        "provisioner: process host-2-00ff has taken the intent journal of driver array.example.com\n";
    assert_eq!(get(&state, "/readyz").await, (StatusCode::SERVICE_UNAVAILABLE, expected.to_owned()));
    assert_eq!(get(&state, "/healthz").await.0, StatusCode::OK, "a restart does not help");
    sender.send_modify(LostJournals::clear);
    assert_eq!(get(&state, "/readyz").await.0, StatusCode::OK);
}

#[tokio::test]
async fn readyz_follows_cache_sync_and_drain() {
    let (state, ready) = test_state();
    let (status, body) = get(&state, "/readyz").await;
    assert_eq!((status, body.contains("caches: not synced")), (StatusCode::SERVICE_UNAVAILABLE, true));
    ready.send_replace(true);
    assert_eq!(get(&state, "/readyz").await.0, StatusCode::OK);
    state.stopping.cancel();
    let (status, body) = get(&state, "/readyz").await;
    assert_eq!((status, body.as_str()), (StatusCode::SERVICE_UNAVAILABLE, "stopping\n"));
    assert_eq!(get(&state, "/healthz").await.0, StatusCode::OK, "a process that drains is alive");
}

#[tokio::test]
async fn metrics_are_openmetrics_text() {
    let (state, _ready) = test_state();
    let response = respond(&all_pages(), &state, &Request::get("/metrics").body(()).unwrap()).await;
    assert_eq!(
        response.headers()[header::CONTENT_TYPE],
        "application/openmetrics-text; version=1.0.0; charset=utf-8"
    );
    let (status, body) = get(&state, "/metrics").await;
    assert_eq!(status, StatusCode::OK);
    assert!(body.contains("calls_total 1") && body.ends_with("# EOF\n"), "{body}");
}

#[tokio::test]
async fn unknown_paths_and_methods_are_rejected() {
    let (state, _ready) = test_state();
    for path in ["/", "/metrics/", "/healthz/other", "//healthz"] {
        let (status, body) = get(&state, path).await;
        assert_eq!(status, StatusCode::NOT_FOUND, "{path}");
        assert_eq!(body, "no such page: expected /healthz, /readyz and /metrics\n");
    }
    let refused = respond(&all_pages(), &state, &Request::post("/metrics").body(()).unwrap()).await;
    assert_eq!(refused.status(), StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!(refused.headers()[header::ALLOW], "GET, HEAD");
}

#[tokio::test]
async fn each_endpoint_serves_its_pages_only() {
    let (state, _ready) = test_state();
    let path = |text: &str| text.parse().unwrap();
    let (ok, missing) = (StatusCode::OK, StatusCode::NOT_FOUND);
    for (pages, requested, expected) in [
        (Pages::Metrics(path("/m")), "/m", ok),
        (Pages::Metrics(path("/m")), "/metrics", missing),
        (Pages::Metrics(path("/m")), "/healthz", missing),
        (Pages::Metrics(path("/m")), "/readyz", missing),
        (Pages::Metrics(path("/m")), "/healthz/leader-election", missing),
        (Pages::Metrics(path("/")), "/any/path", ok),
        (Pages::All(path("/")), "/any/path", ok),
        (Pages::All(path("/m/")), "/m/x", ok),
        (Pages::All(path("/m/")), "/m", missing),
        (Pages::All(path("/m")), "/healthz", ok),
        (Pages::Health, "/healthz", ok),
        (Pages::Health, "/healthz/leader-election", ok),
        (Pages::Health, "/healthz/driver", ok),
        (Pages::Health, "/healthz/registration", ok),
        (Pages::Health, "/metrics", missing),
    ] {
        let (status, _) = request(&state, &pages, Method::GET, requested).await;
        assert_eq!(status, expected, "{pages}: {requested}");
    }
}

#[tokio::test]
async fn get_and_head_of_health_pages_run_their_check() {
    let (state, _ready) = test_state();
    let failing = |problem: &'static str| -> HealthCheck {
        Arc::new(move || std::future::ready(Err(Unhealthy(problem.to_owned()))).boxed())
    };
    let health = HealthChecks {
        driver: Some(failing("no driver")),
        registration: Some(failing("kubelet rejected the driver")),
    };
    let leader: LeaderElectionHealth = Arc::new(|| Err(Unhealthy("the Lease has expired".to_owned())));
    let unhealthy = TelemetryState { health, leader_election: Some(leader), ..state.clone() };
    for method in [Method::GET, Method::HEAD] {
        for (path, problem) in [
            ("/healthz", "no driver\n"),
            ("/healthz/driver", "no driver\n"),
            ("/healthz/registration", "kubelet rejected the driver\n"),
            ("/healthz/leader-election", "the Lease has expired\n"),
        ] {
            let healthy = request(&state, &all_pages(), method.clone(), path).await;
            assert_eq!(healthy, (StatusCode::OK, "ok\n".to_owned()), "{method} {path} without a check");
            let failed = request(&unhealthy, &all_pages(), method.clone(), path).await;
            assert_eq!(failed, (StatusCode::INTERNAL_SERVER_ERROR, problem.to_owned()), "{method} {path}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn health_is_served_while_clients_pipeline_and_do_not_read() {
    let server = TestServer::start(test_state().0);
    for _ in 0..MAX_CONNECTIONS {
        server.send_without_reading(POD, GET_METRICS.repeat(2_000));
    }
    let response = timeout(SOON, get_over(server.connect(POD), "/healthz")).await.unwrap();
    assert!(response.starts_with("HTTP/1.1 200 OK\r\n"), "{response}");
}

#[tokio::test(start_paused = true)]
async fn health_is_served_while_clients_send_half_requests() {
    let server = TestServer::start(test_state().0);
    for _ in 0..200 {
        server.send_without_reading(POD, "GET /metrics HTTP/1.1\r\nhost:".to_owned());
    }
    let response = timeout(SOON, get_over(server.connect(POD), "/healthz")).await.unwrap();
    assert!(response.starts_with("HTTP/1.1 200 OK\r\n"), "{response}");
}

#[tokio::test(start_paused = true)]
async fn a_peer_with_many_connections_closes_its_own() {
    let server = TestServer::start(slow_state());
    let probe = tokio::spawn(get_over(server.connect(KUBELET), "/healthz"));
    sleep(SLOW / 2).await;
    for _ in 0..200 {
        server.send_without_reading(POD, GET_METRICS.repeat(2_000));
    }
    let response = timeout(SLOW, probe).await.unwrap().unwrap();
    assert!(response.starts_with("HTTP/1.1 200 OK\r\n"), "{response}");
}

#[tokio::test(start_paused = true)]
async fn a_connection_ends_at_its_deadline() {
    let server = TestServer::start(test_state().0);
    let mut client = server.connect(POD);
    let requests = GET_METRICS.repeat(2_000);
    // The write ends, with an error, only when the server closes the connection.
    let written = timeout(CONNECTION_DEADLINE + SOON, client.write_all(requests.as_bytes())).await;
    assert!(written.unwrap().is_err(), "the server read 2,000 requests of a client that reads nothing");
}

#[tokio::test(start_paused = true)]
async fn keep_alive_ends_without_cutting_a_response() {
    let server = TestServer::start(slow_state());
    let mut client = server.connect(KUBELET);
    for _ in 0..2 {
        client.write_all(GET_HEALTH.as_bytes()).await.unwrap();
        let response = read_response(&mut client).await;
        assert!(response.starts_with("HTTP/1.1 200 OK\r\n"), "{response}");
    }
    // The third response begins before the end of keep-alive and ends after it.
    sleep(KEEP_ALIVE - SLOW * 2 - SLOW / 2).await;
    client.write_all(GET_HEALTH.as_bytes()).await.unwrap();
    let response = read_response(&mut client).await;
    assert!(response.starts_with("HTTP/1.1 200 OK\r\n"), "{response}");
    let mut rest = Vec::new();
    timeout(SOON, client.read_to_end(&mut rest)).await.unwrap().unwrap();
    assert!(rest.is_empty(), "{rest:?}");
}

#[tokio::test]
async fn the_telemetry_servers_serve_and_stop() {
    let (state, _ready) = test_state();
    let endpoint = TelemetryEndpoint { address: "127.0.0.1:0".parse().unwrap(), pages: all_pages() };
    let server = TelemetryServer::bind(&endpoint).await.unwrap();
    let address = server.address().unwrap();
    let mut telemetry = RunningTelemetry { servers: JoinSet::new(), stop: CancellationToken::new() };
    telemetry.servers.spawn(server.serve(state, telemetry.stop.clone()));
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).await.unwrap();
    assert!(response.starts_with("HTTP/1.1 200 OK\r\n") && response.ends_with("\r\n\r\nok\n"), "{response}");
    telemetry.stop().await;
    assert!(TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn an_address_in_use_is_reported() {
    let (state, _ready) = test_state();
    let endpoint =
        |address: &str| TelemetryEndpoint { address: address.parse().unwrap(), pages: all_pages() };
    let first = TelemetryServer::bind(&endpoint("127.0.0.1:0")).await.unwrap();
    let address = first.address().unwrap().to_string();
    let error = RunningTelemetry::start(&[endpoint(&address)], state).await.unwrap_err();
    assert!(
        error.to_string().starts_with(&format!("cannot listen on {address} for metrics and health: ")),
        "{error}"
    );
}
