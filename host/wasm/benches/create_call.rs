//! Cost of the sandbox: one CreateVolume in a fresh instance, compared with the same call over gRPC on a unix
//! socket, as between a sidecar and its driver. Prints a table with two rows of the sandbox, before and after
//! more volumes are created, and one of gRPC. Arguments: number of measured calls of each row, and number of
//! these volumes.

mod common;

use std::{
    collections::BTreeMap,
    convert::Infallible,
    sync::{Arc, Mutex},
    task::{Context, Poll},
    time::{Duration, Instant},
};

use cofferdam_wasm::{BackendConfig, CompiledCache, ComponentSource, Engine, EngineOptions};
use futures::future::BoxFuture;
use tokio::net::{UnixListener, UnixStream};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{
    body::Body,
    server::{Grpc, NamedService, UnaryService},
    transport::{Channel, Endpoint, Server, Uri},
};
use tonic_prost::ProstCodec;

use common::{BenchError, create, percentile};

/// The part of CSI's messages that a simple driver fills; field numbers as CSI 1.12 has them.
mod csi {
    #[derive(Clone, PartialEq, Eq, prost::Message)]
    pub(crate) struct CapacityRange {
        #[prost(int64, tag = "1")]
        pub(crate) required_bytes: i64,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct CreateVolumeRequest {
        #[prost(string, tag = "1")]
        pub(crate) name: String,
        #[prost(message, optional, tag = "2")]
        pub(crate) capacity_range: Option<CapacityRange>,
        #[prost(btree_map = "string, string", tag = "4")]
        pub(crate) parameters: std::collections::BTreeMap<String, String>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct Volume {
        #[prost(int64, tag = "1")]
        pub(crate) capacity_bytes: i64,
        #[prost(string, tag = "2")]
        pub(crate) volume_id: String,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct CreateVolumeResponse {
        #[prost(message, optional, tag = "1")]
        pub(crate) volume: Option<Volume>,
    }
}

const METHOD_PATH: &str = "/csi.v1.Controller/CreateVolume";

/// A driver that remembers its volumes in a map.
#[derive(Clone, Default)]
struct GrpcDriver(Arc<Mutex<BTreeMap<String, i64>>>);

impl NamedService for GrpcDriver {
    const NAME: &'static str = "csi.v1.Controller";
}

impl UnaryService<csi::CreateVolumeRequest> for GrpcDriver {
    type Response = csi::CreateVolumeResponse;
    type Future = BoxFuture<'static, Result<tonic::Response<Self::Response>, tonic::Status>>;

    fn call(&mut self, request: tonic::Request<csi::CreateVolumeRequest>) -> Self::Future {
        let driver = self.clone();
        Box::pin(async move {
            let request = request.into_inner();
            let capacity_bytes = request.capacity_range.map(|range| range.required_bytes).unwrap_or_default();
            let mut volumes = driver.0.lock().map_err(|_| tonic::Status::internal("poisoned"))?;
            volumes.insert(request.name.clone(), capacity_bytes);
            let volume = csi::Volume { capacity_bytes, volume_id: request.name };
            Ok(tonic::Response::new(csi::CreateVolumeResponse { volume: Some(volume) }))
        })
    }
}

impl tower::Service<http::Request<Body>> for GrpcDriver {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let driver = self.clone();
        let codec = ProstCodec::<csi::CreateVolumeResponse, csi::CreateVolumeRequest>::default();
        Box::pin(async move { Ok(Grpc::new(codec).unary(driver, request).await) })
    }
}

async fn grpc_channel(socket: std::path::PathBuf) -> Result<Channel, BenchError> {
    let listener = UnixListener::bind(&socket)?;
    let server = Server::builder().add_service(GrpcDriver::default());
    tokio::spawn(server.serve_with_incoming(UnixListenerStream::new(listener)));
    let connect = move |_: Uri| {
        let socket = socket.clone();
        async move {
            let stream = UnixStream::connect(socket).await?;
            Ok::<_, std::io::Error>(hyper_util::rt::TokioIo::new(stream))
        }
    };
    Ok(Endpoint::from_static("http://driver").connect_with_connector(tower::service_fn(connect)).await?)
}

async fn create_over_grpc(channel: &Channel, name: String) -> Result<(), BenchError> {
    let mut client = tonic::client::Grpc::new(channel.clone());
    client.ready().await?;
    let codec = ProstCodec::<csi::CreateVolumeRequest, csi::CreateVolumeResponse>::default();
    let request = csi::CreateVolumeRequest {
        name,
        capacity_range: Some(csi::CapacityRange { required_bytes: 1 << 30 }),
        parameters: BTreeMap::new(),
    };
    let path = http::uri::PathAndQuery::from_static(METHOD_PATH);
    let response = client.unary(tonic::Request::new(request), path, codec).await?;
    response.into_inner().volume.map(drop).ok_or_else(|| "no volume came back".into())
}

#[expect(clippy::print_stdout, reason = "a table is what this program is for")]
fn print_table(rows: &[(&str, Vec<Duration>)]) {
    let base = rows.last().map(|(_, times)| percentile(times, 50)).unwrap_or_default();
    println!("{:<44} {:>10} {:>10} {:>12}", "CreateVolume", "p50", "p99", "p50 / gRPC");
    for (name, times) in rows {
        let (middle, tail) = (percentile(times, 50), percentile(times, 99));
        let ratio = middle.as_secs_f64() / base.as_secs_f64();
        println!("{name:<44} {middle:>10.1?} {tail:>10.1?} {ratio:>12.2}");
    }
}

async fn measure(calls: usize, existing_volumes: usize) -> Result<(), BenchError> {
    let engine = Engine::new(EngineOptions { cache: CompiledCache::Off, ..EngineOptions::default() })?;
    let source = ComponentSource::Bytes { name: "memory".to_owned(), bytes: cofferdam_carried::MEMORY };
    let backend = engine.load(source, BackendConfig::default()).await?;
    let directory = std::env::temp_dir().join(format!("cofferdam-bench-{}", std::process::id()));
    std::fs::create_dir_all(&directory)?;
    let channel = grpc_channel(directory.join("csi.sock")).await?;
    let (mut few, mut many, mut grpc) = (Vec::new(), Vec::new(), Vec::new());
    // Both in turns, so that other load of the machine affects both alike.
    for number in 0..calls {
        let begun = Instant::now();
        create(&backend, format!("few-{number}")).await?;
        few.push(begun.elapsed());
        let begun = Instant::now();
        create_over_grpc(&channel, format!("grpc-{number}")).await?;
        grpc.push(begun.elapsed());
    }
    for number in 0..existing_volumes {
        create(&backend, format!("before-{number}")).await?;
    }
    for number in 0..calls {
        let begun = Instant::now();
        create(&backend, format!("many-{number}")).await?;
        many.push(begun.elapsed());
    }
    std::fs::remove_dir_all(&directory)?;
    for times in [&mut few, &mut many, &mut grpc] {
        times.sort_unstable();
    }
    let with = format!("fresh sandbox, after {} volumes", calls + existing_volumes);
    print_table(&[("fresh sandbox", few), (&with, many), ("gRPC on a unix socket", grpc)]);
    Ok(())
}

fn main() -> Result<(), BenchError> {
    let mut numbers = std::env::args().skip(1).filter_map(|argument| argument.parse().ok());
    let calls = numbers.next().unwrap_or(3_000);
    let before = numbers.next().unwrap_or(5_000);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(measure(calls, before))
}
