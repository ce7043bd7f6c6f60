use std::{
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use prometheus_client::registry::Registry;
use tonic::Request as Call;

use super::*;
use crate::{
    server::ServerMetrics,
    v1::{self, identity_server},
};

/// What the service does with a call.
#[derive(Clone, Copy)]
enum Does {
    Answers,
    Panics,
    Hangs,
}

struct Driver {
    does: Does,
    left: Arc<AtomicBool>,
}

struct Leaves(Arc<AtomicBool>);

impl Drop for Leaves {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

#[tonic::async_trait]
impl identity_server::Identity for Driver {
    async fn probe(
        &self,
        request: Call<v1::ProbeRequest>,
    ) -> Result<tonic::Response<v1::ProbeResponse>, Status> {
        let _leaves = Leaves(Arc::clone(&self.left));
        match self.does {
            Does::Answers => {
                assert_eq!(Deadline::left(&request), Duration::from_secs(5));
                Ok(tonic::Response::new(v1::ProbeResponse { ready: Some(true) }))
            }
            Does::Panics => panic!("on purpose"),
            Does::Hangs => pending().await,
        }
    }
}

struct Rig {
    gate: Gate<Body>,
    registry: Registry,
    left: Arc<AtomicBool>,
}

fn rig(does: Does) -> Rig {
    let mut registry = Registry::default();
    let counted = ServerMetrics::register(&mut registry).of("a.example");
    let mut gate = Gate::new("a.example".to_owned(), Duration::from_secs(60), counted);
    let left = Arc::default();
    gate.add(identity_server::IdentityServer::new(Driver { does, left: Arc::clone(&left) }));
    Rig { gate, registry, left }
}

impl Rig {
    fn counted(&self) -> String {
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

/// An empty message, as gRPC frames it.
fn request(path: &str, timeout: &str) -> Request<Body> {
    let body = http_body_util::Full::new(bytes::Bytes::from_static(&[0; 5]));
    Request::post(path)
        .header("content-type", "application/grpc")
        .header("grpc-timeout", timeout)
        .body(Body::new(body))
        .unwrap()
}

async fn code(gate: &Gate<Body>, path: &str, timeout: &str) -> (Code, String) {
    let answer = gate.answer(request(path, timeout)).await;
    let status = Status::from_header_map(answer.headers());
    status.map_or((Code::Ok, String::new()), |status| (status.code(), status.message().to_owned()))
}

#[tokio::test(start_paused = true)]
async fn a_call_passes_with_its_deadline() {
    let rig = rig(Does::Answers);
    assert_eq!(code(&rig.gate, PROBE, "5S").await.0, Code::Ok);
    assert_eq!(code(&rig.gate, PROBE, "soon").await.0, Code::InvalidArgument);
    let of = r#"driver_name="a.example",method_name="/csi.v1.Identity/Probe",grpc_status_code="#;
    assert_eq!(
        rig.counted(),
        format!(
            "in_flight{{driver_name=\"a.example\"}} 0\nseconds_count{{{of}\"InvalidArgument\"}} 1\nseconds_count{{{of}\"OK\"}} 1"
        )
    );
}

#[tokio::test]
async fn what_nobody_serves_is_unimplemented() {
    let rig = rig(Does::Answers);
    for path in ["/csi.v1.Controller/CreateVolume", "/", "/x", "//", "/csi.v1.Identity"] {
        let (code, message) = code(&rig.gate, path, "5S").await;
        assert_eq!(code, Code::Unimplemented, "{path}");
        assert!(message.starts_with("this socket does not serve \""), "{message}");
    }
    assert_eq!(code(&rig.gate, "/csi.v1.Identity/Nothing", "5S").await.0, Code::Unimplemented);
    let counted = rig.counted();
    assert!(counted.contains("method_name=\"unknown\",grpc_status_code=\"Unimplemented\"} 5"), "{counted}");
}

#[tokio::test(start_paused = true)]
async fn a_panic_ends_its_call_only() {
    let rig = rig(Does::Panics);
    for _ in 0..2 {
        assert_eq!(code(&rig.gate, PROBE, "5S").await, (Code::Internal, DEFECT.to_owned()));
    }
    assert!(rig.counted().contains("in_flight{driver_name=\"a.example\"} 0"));
}

#[tokio::test(start_paused = true)]
async fn a_deadline_ends_the_work() {
    let rig = rig(Does::Hangs);
    let begun = Instant::now();
    assert_eq!(code(&rig.gate, PROBE, "7S").await.0, Code::DeadlineExceeded);
    assert_eq!(begun.elapsed(), Duration::from_secs(7));
    assert!(rig.left.load(Ordering::Acquire));
}

#[tokio::test(start_paused = true)]
async fn callers_who_go_away_end_the_work() {
    let rig = rig(Does::Hangs);
    {
        let mut answer = std::pin::pin!(rig.gate.answer(request(PROBE, "5S")));
        assert!(futures::poll!(answer.as_mut()).is_pending());
        assert!(!rig.left.load(Ordering::Acquire));
    }
    assert!(rig.left.load(Ordering::Acquire));
    let counted = rig.counted();
    assert!(counted.contains("grpc_status_code=\"Canceled\"} 1"), "{counted}");
    assert!(counted.contains("in_flight{driver_name=\"a.example\"} 0"), "{counted}");
}
