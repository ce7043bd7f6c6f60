//! A scripted driver. It implements HTTP/2 itself, so that it can also violate gRPC.

use std::{
    collections::{HashMap, VecDeque},
    convert::Infallible,
    os::unix::net::UnixStream as StdStream,
    path::PathBuf,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use cofferdam_backend::{BackendMetrics, Call};
use cofferdam_csi::{Address, ConnectError, ConnectionMetrics, CsiBackend, CsiConfig, v1};
use cofferdam_domain::storage::{
    AccessType, CapacityRange, CreateVolume, CsiAccessMode, Secret, VolumeCapability,
};
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::{BodyExt as _, Full, combinators::BoxBody};
use hyper::{body::Incoming, server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prometheus_client::registry::Registry;
use prost::Message;
use tempfile::TempDir;
use tokio::{net::UnixListener, sync::watch, task::JoinHandle};

pub(crate) const DRIVER_NAME: &str = "fake.example";

pub(crate) const PROBE: &str = "/csi.v1.Identity/Probe";
pub(crate) const PLUGIN_INFO: &str = "/csi.v1.Identity/GetPluginInfo";
pub(crate) const PLUGIN_CAPABILITIES: &str = "/csi.v1.Identity/GetPluginCapabilities";
pub(crate) const CONTROLLER_CAPABILITIES: &str = "/csi.v1.Controller/ControllerGetCapabilities";
pub(crate) const GROUP_CAPABILITIES: &str = "/csi.v1.GroupController/GroupControllerGetCapabilities";
pub(crate) const CREATE: &str = "/csi.v1.Controller/CreateVolume";
pub(crate) const DELETE: &str = "/csi.v1.Controller/DeleteVolume";

/// The driver's reaction to a call.
#[derive(Clone, Debug)]
pub(crate) enum ScriptedReply {
    /// A message and status OK.
    Message(Vec<u8>),
    /// An error status.
    Status(i32, &'static str),
    /// An error with malformed status details, in trailers or headers.
    InvalidStatusDetails { in_headers: bool },
    /// A message followed by an error status.
    MessageThenStatus(Vec<u8>, i32),
    /// A message without a status.
    MessageWithoutStatus(Vec<u8>),
    /// Raw bytes and status OK.
    RawBytes(Vec<u8>),
    /// An HTTP error.
    Http(u16),
    /// No response.
    Hang,
    /// Closes all connections.
    CloseConnection,
}

pub(crate) fn message_reply(message: &impl Message) -> ScriptedReply {
    ScriptedReply::Message(message.encode_to_vec())
}

/// A received call.
#[derive(Clone, Debug)]
pub(crate) struct ReceivedCall {
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    body: Bytes,
}

impl ReceivedCall {
    /// Decodes the message after gRPC's 5-byte prefix.
    pub(crate) fn message<M: Message + Default>(&self) -> M {
        M::decode(&self.body[5..]).unwrap()
    }
}

#[derive(Default)]
struct DriverScript {
    next_replies: HashMap<&'static str, VecDeque<ScriptedReply>>,
    default_replies: HashMap<&'static str, ScriptedReply>,
    received: Vec<ReceivedCall>,
    streams: Vec<StdStream>,
}

/// A scripted driver, stopped on drop.
pub(crate) struct FakeCsiDriver {
    directory: TempDir,
    script: Arc<Mutex<DriverScript>>,
    calls: watch::Sender<usize>,
    accepting: Option<JoinHandle<()>>,
}

impl FakeCsiDriver {
    /// Creates a driver that does not listen yet.
    pub(crate) fn not_listening() -> Self {
        let driver = Self {
            directory: TempDir::new().unwrap(),
            script: Arc::default(),
            calls: watch::Sender::new(0),
            accepting: None,
        };
        driver.set_reply(PROBE, message_reply(&v1::ProbeResponse { ready: None }));
        driver.set_name(DRIVER_NAME);
        driver.set_plugin_capabilities(&[1, 2, 3], &[1]);
        driver.set_controller_capabilities(&(1..=15).collect::<Vec<_>>());
        driver.set_reply(GROUP_CAPABILITIES, message_reply(&group_capabilities()));
        driver
    }

    /// Starts a driver with all controller capabilities, topology, group snapshots and online expansion. It
    /// has no Node service.
    pub(crate) fn start() -> Self {
        let mut driver = Self::not_listening();
        driver.listen();
        driver
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.path().join("csi.sock")
    }

    pub(crate) fn listen(&mut self) {
        let listener = UnixListener::bind(self.socket()).unwrap();
        let (script, calls) = (Arc::clone(&self.script), self.calls.clone());
        self.accepting = Some(tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let stream = stream.into_std().unwrap();
                script.lock().unwrap().streams.push(stream.try_clone().unwrap());
                let stream = tokio::net::UnixStream::from_std(stream).unwrap();
                let (script, calls) = (Arc::clone(&script), calls.clone());
                let service = service_fn(move |request| serve(Arc::clone(&script), calls.clone(), request));
                tokio::spawn(
                    http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service),
                );
            }
        }));
    }

    /// Stops like a killed process: connections are closed, the socket is removed.
    pub(crate) fn stop(&mut self) {
        if let Some(accepting) = self.accepting.take() {
            accepting.abort();
        }
        let _ = std::fs::remove_file(self.socket());
        close_connections(&self.script);
    }

    /// Sets the default reply of a method.
    pub(crate) fn set_reply(&self, path: &'static str, reply: ScriptedReply) {
        self.script.lock().unwrap().default_replies.insert(path, reply);
    }

    /// Queues a reply for the next call of a method.
    pub(crate) fn queue_reply(&self, path: &'static str, reply: ScriptedReply) {
        self.script.lock().unwrap().next_replies.entry(path).or_default().push_back(reply);
    }

    pub(crate) fn set_name(&self, name: &str) {
        let info = v1::GetPluginInfoResponse {
            name: name.to_owned(),
            vendor_version: "1.2".to_owned(),
            ..Default::default()
        };
        self.set_reply(PLUGIN_INFO, message_reply(&info));
    }

    /// Sets the plugin services and expansion modes by CSI's numbers.
    pub(crate) fn set_plugin_capabilities(&self, services: &[i32], expansions: &[i32]) {
        use v1::plugin_capability::{Service, Type, VolumeExpansion};
        let services = services.iter().map(|r#type| Type::Service(Service { r#type: *r#type }));
        let expansions =
            expansions.iter().map(|r#type| Type::VolumeExpansion(VolumeExpansion { r#type: *r#type }));
        let capabilities =
            services.chain(expansions).map(|r#type| v1::PluginCapability { r#type: Some(r#type) }).collect();
        self.set_reply(
            PLUGIN_CAPABILITIES,
            message_reply(&v1::GetPluginCapabilitiesResponse { capabilities }),
        );
    }

    /// Sets the controller capabilities by CSI's numbers.
    pub(crate) fn set_controller_capabilities(&self, numbers: &[i32]) {
        use v1::controller_service_capability::{Rpc, Type};
        let capability = |r#type: &i32| v1::ControllerServiceCapability {
            r#type: Some(Type::Rpc(Rpc { r#type: *r#type })),
        };
        let capabilities = numbers.iter().map(capability).collect();
        self.set_reply(
            CONTROLLER_CAPABILITIES,
            message_reply(&v1::ControllerGetCapabilitiesResponse { capabilities }),
        );
    }

    /// Returns the received calls of a method.
    pub(crate) fn received(&self, path: &str) -> Vec<ReceivedCall> {
        self.script.lock().unwrap().received.iter().filter(|call| call.path == path).cloned().collect()
    }

    /// Waits until a method was called a number of times.
    pub(crate) async fn wait_received(&self, path: &str, times: usize) {
        self.calls.subscribe().wait_for(|_| self.received(path).len() >= times).await.unwrap();
    }

    pub(crate) fn config(&self) -> CsiConfig {
        let address: Address = self.socket().to_str().unwrap().parse().unwrap();
        CsiConfig {
            expected_driver: Some(DRIVER_NAME.into()),
            ready_timeout: Some(Duration::ZERO),
            ..CsiConfig::new(address)
        }
    }

    pub(crate) async fn connect(&self) -> Arc<CsiBackend> {
        connect(self.config()).await.unwrap()
    }
}

impl Drop for FakeCsiDriver {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Connects with unregistered metrics.
pub(crate) async fn connect(config: CsiConfig) -> Result<Arc<CsiBackend>, ConnectError> {
    CsiBackend::connect(config, &BackendMetrics::default(), &ConnectionMetrics::default()).await
}

/// Connects with registered metrics; returns a function that encodes them.
pub(crate) async fn connect_with_metrics(config: CsiConfig) -> (Arc<CsiBackend>, impl Fn() -> Vec<String>) {
    let mut registry = Registry::default();
    let calls = BackendMetrics::register(&mut registry);
    let connections = ConnectionMetrics::register(&mut registry);
    let backend = CsiBackend::connect(config, &calls, &connections).await.unwrap();
    let read_metrics = move || {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        text.lines().map(str::to_owned).collect()
    };
    (backend, read_metrics)
}

fn group_capabilities() -> v1::GroupControllerGetCapabilitiesResponse {
    use v1::group_controller_service_capability::{Rpc, Type};
    let r#type = Some(Type::Rpc(Rpc { r#type: 1 }));
    v1::GroupControllerGetCapabilitiesResponse {
        capabilities: vec![v1::GroupControllerServiceCapability { r#type }],
    }
}

fn close_connections(script: &Mutex<DriverScript>) {
    for stream in script.lock().unwrap().streams.drain(..) {
        // It may be closed already.
        let _ = stream.shutdown(std::net::Shutdown::Both);
    }
}

/// Adds gRPC's frame to a message.
pub(crate) fn grpc_frame(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap();
    [&[0], &length.to_be_bytes()[..], message].concat()
}

fn trailers(code: i32, text: &'static str) -> HeaderMap {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", code.into());
    trailers.insert("grpc-message", HeaderValue::from_static(text));
    trailers
}

type HttpResponse = Response<BoxBody<Bytes, Infallible>>;

fn grpc_response(body: Vec<u8>, trailers: Option<HeaderMap>) -> HttpResponse {
    let body = Full::new(Bytes::from(body));
    let body = match trailers {
        Some(trailers) => body.with_trailers(std::future::ready(Some(Ok(trailers)))).boxed(),
        None => body.boxed(),
    };
    Response::builder().header("content-type", "application/grpc").body(body).unwrap()
}

async fn serve(
    script: Arc<Mutex<DriverScript>>,
    calls: watch::Sender<usize>,
    request: Request<Incoming>,
) -> Result<HttpResponse, Infallible> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let path = parts.uri.path().to_owned();
    let reply = {
        let mut script = script.lock().unwrap();
        script.received.push(ReceivedCall { path: path.clone(), headers: parts.headers, body });
        let queued = script.next_replies.get_mut(path.as_str()).and_then(VecDeque::pop_front);
        queued.or_else(|| script.default_replies.get(path.as_str()).cloned())
    };
    calls.send_modify(|count| *count += 1);
    Ok(match reply.unwrap_or(ScriptedReply::Status(12, "no reply is scripted")) {
        ScriptedReply::Message(message) => grpc_response(grpc_frame(&message), Some(trailers(0, ""))),
        ScriptedReply::Status(code, text) => grpc_response(Vec::new(), Some(trailers(code, text))),
        ScriptedReply::InvalidStatusDetails { in_headers } => {
            let mut trailers = trailers(13, "no");
            trailers.insert("grpc-status-details-bin", HeaderValue::from_static("!!!"));
            if in_headers {
                let mut response = grpc_response(Vec::new(), None);
                response.headers_mut().extend(trailers);
                response
            } else {
                grpc_response(Vec::new(), Some(trailers))
            }
        }
        ScriptedReply::MessageThenStatus(message, code) => {
            grpc_response(grpc_frame(&message), Some(trailers(code, "late")))
        }
        ScriptedReply::MessageWithoutStatus(message) => grpc_response(grpc_frame(&message), None),
        ScriptedReply::RawBytes(bytes) => grpc_response(bytes, Some(trailers(0, ""))),
        ScriptedReply::Http(status) => {
            Response::builder().status(status).body(Full::new(Bytes::from("no")).boxed()).unwrap()
        }
        ScriptedReply::Hang => std::future::pending().await,
        ScriptedReply::CloseConnection => {
            close_connections(&script);
            std::future::pending().await
        }
    })
}

/// Far longer than any test takes.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(30);

/// A call with a secret.
pub(crate) fn call() -> Call {
    let secrets = [("password".to_owned(), Secret::new("hunter2hunter2"))].into_iter().collect();
    Call { secrets, ..Call::with_deadline(TEST_TIMEOUT) }
}

/// Deadline of calls that get no response. Even a busy machine delivers the call within it.
pub(crate) const SHORT_DEADLINE: Duration = Duration::from_secs(2);

/// A call with [`SHORT_DEADLINE`].
pub(crate) fn call_with_short_deadline() -> Call {
    Call::with_deadline(SHORT_DEADLINE)
}

pub(crate) fn capability() -> VolumeCapability {
    let access = AccessType::Filesystem {
        fs_type: Some("ext4".to_owned()),
        mount_flags: vec!["noatime".to_owned()],
        mount_group: None,
    };
    VolumeCapability { access_mode: CsiAccessMode::SingleNodeWriter, access_type: access }
}

pub(crate) fn create_request(name: &str) -> CreateVolume {
    CreateVolume {
        name: name.to_owned(),
        capacity: CapacityRange { required: Some(1 << 30), limit: None },
        capabilities: vec![capability()],
        parameters: [("tier".to_owned(), "fast".to_owned())].into(),
        mutable_parameters: Default::default(),
        topology: None,
        owner: None,
        source: None,
    }
}

/// A valid volume.
pub(crate) fn volume(handle: &str) -> v1::Volume {
    v1::Volume {
        capacity_bytes: 1 << 30,
        volume_id: handle.to_owned(),
        volume_context: [("a".to_owned(), "b".to_owned())].into(),
        ..Default::default()
    }
}

pub(crate) fn created_reply(volume: v1::Volume) -> ScriptedReply {
    message_reply(&v1::CreateVolumeResponse { volume: Some(volume) })
}
