use std::{
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use prometheus_client::registry::Registry;
use tonic::Request as TonicRequest;

use super::*;
use crate::{
    server::ServerMetrics,
    v1::{self, identity_server},
};

/// Behavior of the service.
#[derive(Clone, Copy)]
enum ProbeBehavior {
    Respond,
    Panic,
    Hang,
}

struct ProbeDriver {
    behavior: ProbeBehavior,
    is_dropped: Arc<AtomicBool>,
}

struct SetOnDrop(Arc<AtomicBool>);

impl Drop for SetOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

#[tonic::async_trait]
impl identity_server::Identity for ProbeDriver {
    async fn probe(
        &self,
        request: TonicRequest<v1::ProbeRequest>,
    ) -> Result<tonic::Response<v1::ProbeResponse>, Status> {
        let _set_on_drop = SetOnDrop(Arc::clone(&self.is_dropped));
        match self.behavior {
            ProbeBehavior::Respond => {
                assert_eq!(Deadline::remaining(&request), Duration::from_secs(5));
                Ok(tonic::Response::new(v1::ProbeResponse { ready: Some(true) }))
            }
            ProbeBehavior::Panic => panic!("on purpose"),
            ProbeBehavior::Hang => pending().await,
        }
    }
}

struct DispatchFixture {
    dispatcher: Dispatcher<Body>,
    registry: Registry,
    is_dropped: Arc<AtomicBool>,
}

fn dispatch_fixture(behavior: ProbeBehavior) -> DispatchFixture {
    let mut registry = Registry::default();
    let metrics = ServerMetrics::register(&mut registry).driver_metrics("a.example");
    let mut dispatcher = Dispatcher::new("a.example".to_owned(), Duration::from_secs(60), metrics);
    let is_dropped = Arc::default();
    dispatcher.add_service(identity_server::IdentityServer::new(ProbeDriver {
        behavior,
        is_dropped: Arc::clone(&is_dropped),
    }));
    DispatchFixture { dispatcher, registry, is_dropped }
}

impl DispatchFixture {
    fn metrics_text(&self) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).unwrap();
        let counts = text.lines().filter(|line| line.contains("_count{") || line.contains("in_flight{"));
        let mut counts: Vec<_> =
            counts.map(|line| line.replace("cofferdam_csi_server_operations_", "")).collect();
        counts.sort();
        counts.join("\n")
    }
}

const PROBE: &str = "/csi.v1.Identity/Probe";

/// An empty message in a gRPC frame.
fn request(path: &str, timeout: &str) -> Request<Body> {
    let body = http_body_util::Full::new(bytes::Bytes::from_static(&[0; 5]));
    Request::post(path)
        .header("content-type", "application/grpc")
        .header("grpc-timeout", timeout)
        .body(Body::new(body))
        .unwrap()
}

async fn send_for_code(dispatcher: &Dispatcher<Body>, path: &str, timeout: &str) -> (Code, String) {
    let response = dispatcher.handle(request(path, timeout)).await;
    let status = Status::from_header_map(response.headers());
    status.map_or((Code::Ok, String::new()), |status| (status.code(), status.message().to_owned()))
}

#[tokio::test(start_paused = true)]
async fn call_carries_its_deadline_and_is_counted() {
    let fixture = dispatch_fixture(ProbeBehavior::Respond);
    assert_eq!(send_for_code(&fixture.dispatcher, PROBE, "5S").await.0, Code::Ok);
    assert_eq!(send_for_code(&fixture.dispatcher, PROBE, "soon").await.0, Code::InvalidArgument);
    let labels = r#"driver_name="a.example",method_name="/csi.v1.Identity/Probe",grpc_status_code="#;
    assert_eq!(
        fixture.metrics_text(),
        format!(
            "in_flight{{driver_name=\"a.example\"}} 0\n\
             seconds_count{{{labels}\"InvalidArgument\"}} 1\nseconds_count{{{labels}\"OK\"}} 1"
        )
    );
}

#[tokio::test]
async fn unserved_method_returns_unimplemented() {
    let fixture = dispatch_fixture(ProbeBehavior::Respond);
    for path in ["/csi.v1.Controller/CreateVolume", "/", "/x", "//", "/csi.v1.Identity"] {
        let (code, message) = send_for_code(&fixture.dispatcher, path, "5S").await;
        assert_eq!(code, Code::Unimplemented, "{path}");
        assert!(message.starts_with("this socket does not serve \""), "{message}");
    }
    assert_eq!(
        send_for_code(&fixture.dispatcher, "/csi.v1.Identity/Nothing", "5S").await.0,
        Code::Unimplemented
    );
    let metrics = fixture.metrics_text();
    assert!(metrics.contains("method_name=\"unknown\",grpc_status_code=\"Unimplemented\"} 5"), "{metrics}");
}

#[tokio::test(start_paused = true)]
async fn panic_fails_only_its_call_with_internal() {
    let fixture = dispatch_fixture(ProbeBehavior::Panic);
    for _ in 0..2 {
        assert_eq!(
            send_for_code(&fixture.dispatcher, PROBE, "5S").await,
            (Code::Internal, PANIC_RESPONSE.to_owned())
        );
    }
    assert!(fixture.metrics_text().contains("in_flight{driver_name=\"a.example\"} 0"));
}

#[tokio::test(start_paused = true)]
async fn deadline_cancels_the_handler() {
    let fixture = dispatch_fixture(ProbeBehavior::Hang);
    let started = Instant::now();
    assert_eq!(send_for_code(&fixture.dispatcher, PROBE, "7S").await.0, Code::DeadlineExceeded);
    assert_eq!(started.elapsed(), Duration::from_secs(7));
    assert!(fixture.is_dropped.load(Ordering::Acquire));
}

#[tokio::test(start_paused = true)]
async fn client_disconnect_cancels_the_handler() {
    let fixture = dispatch_fixture(ProbeBehavior::Hang);
    {
        let mut response = std::pin::pin!(fixture.dispatcher.handle(request(PROBE, "5S")));
        assert!(futures::poll!(response.as_mut()).is_pending());
        assert!(!fixture.is_dropped.load(Ordering::Acquire));
    }
    assert!(fixture.is_dropped.load(Ordering::Acquire));
    let metrics = fixture.metrics_text();
    assert!(metrics.contains("grpc_status_code=\"Canceled\"} 1"), "{metrics}");
    assert!(metrics.contains("in_flight{driver_name=\"a.example\"} 0"), "{metrics}");
}
