//! A driver made of answers. It speaks HTTP/2 itself, so that it can also break every rule of gRPC.

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
    AccessType, CapacityRange, CreateVolume, CsiAccessMode, Secret, Secrets, VolumeCapability,
};
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::{BodyExt as _, Full, combinators::BoxBody};
use hyper::{body::Incoming, server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prometheus_client::registry::Registry;
use prost::Message;
use tempfile::TempDir;
use tokio::{net::UnixListener, sync::watch, task::JoinHandle};

pub(crate) const NAME: &str = "fake.example";

pub(crate) const PROBE: &str = "/csi.v1.Identity/Probe";
pub(crate) const INFO: &str = "/csi.v1.Identity/GetPluginInfo";
pub(crate) const PLUGIN: &str = "/csi.v1.Identity/GetPluginCapabilities";
pub(crate) const CONTROLLER: &str = "/csi.v1.Controller/ControllerGetCapabilities";
pub(crate) const GROUP: &str = "/csi.v1.GroupController/GroupControllerGetCapabilities";
pub(crate) const CREATE: &str = "/csi.v1.Controller/CreateVolume";
pub(crate) const DELETE: &str = "/csi.v1.Controller/DeleteVolume";

/// What the driver does with a call.
#[derive(Clone, Debug)]
pub(crate) enum Reply {
    /// Answers.
    Message(Vec<u8>),
    /// Fails.
    Status(i32, &'static str),
    /// Fails with trailers that gRPC does not allow, or with the same in the headers only.
    Details { in_headers: bool },
    /// Answers, and fails then all the same.
    Late(Vec<u8>, i32),
    /// Answers and does not say how the call ended.
    Unfinished(Vec<u8>),
    /// Sends these bytes and says that all is well.
    Bytes(Vec<u8>),
    /// Answers as a web server.
    Http(u16),
    /// Says nothing, for ever.
    Hang,
    /// Ends the connection.
    Cut,
}

pub(crate) fn message(message: &impl Message) -> Reply {
    Reply::Message(message.encode_to_vec())
}

/// What the driver heard.
#[derive(Clone, Debug)]
pub(crate) struct Heard {
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    body: Bytes,
}

impl Heard {
    /// The message, behind gRPC's five bytes.
    pub(crate) fn message<M: Message + Default>(&self) -> M {
        M::decode(&self.body[5..]).unwrap()
    }
}

#[derive(Default)]
struct Script {
    once: HashMap<&'static str, VecDeque<Reply>>,
    always: HashMap<&'static str, Reply>,
    heard: Vec<Heard>,
    streams: Vec<StdStream>,
}

/// A driver. It stops when it is dropped.
pub(crate) struct Fake {
    directory: TempDir,
    script: Arc<Mutex<Script>>,
    calls: watch::Sender<usize>,
    accepting: Option<JoinHandle<()>>,
}

impl Fake {
    /// A driver that is not there yet.
    pub(crate) fn absent() -> Self {
        let fake = Self {
            directory: TempDir::new().unwrap(),
            script: Arc::default(),
            calls: watch::Sender::new(0),
            accepting: None,
        };
        fake.always(PROBE, message(&v1::ProbeResponse { ready: None }));
        fake.named(NAME);
        fake.plugin(&[1, 2, 3], &[1]);
        fake.controller(&(1..=15).collect::<Vec<_>>());
        fake.always(GROUP, message(&group_capabilities()));
        fake
    }

    /// A driver that can do everything.
    pub(crate) fn start() -> Self {
        let mut fake = Self::absent();
        fake.listen();
        fake
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

    /// Stops as a process that is killed: connections end, the socket's file goes.
    pub(crate) fn stop(&mut self) {
        if let Some(accepting) = self.accepting.take() {
            accepting.abort();
        }
        let _ = std::fs::remove_file(self.socket());
        cut(&self.script);
    }

    /// Answers a call so, as long as nothing else is said.
    pub(crate) fn always(&self, path: &'static str, reply: Reply) {
        self.script.lock().unwrap().always.insert(path, reply);
    }

    /// Answers the next call so.
    pub(crate) fn once(&self, path: &'static str, reply: Reply) {
        self.script.lock().unwrap().once.entry(path).or_default().push_back(reply);
    }

    pub(crate) fn named(&self, name: &str) {
        let info = v1::GetPluginInfoResponse {
            name: name.to_owned(),
            vendor_version: "1.2".to_owned(),
            ..Default::default()
        };
        self.always(INFO, message(&info));
    }

    /// Announces services and ways of expansion by CSI's numbers.
    pub(crate) fn plugin(&self, services: &[i32], expansions: &[i32]) {
        use v1::plugin_capability::{Service, Type, VolumeExpansion};
        let services = services.iter().map(|r#type| Type::Service(Service { r#type: *r#type }));
        let expansions =
            expansions.iter().map(|r#type| Type::VolumeExpansion(VolumeExpansion { r#type: *r#type }));
        let capabilities =
            services.chain(expansions).map(|r#type| v1::PluginCapability { r#type: Some(r#type) }).collect();
        self.always(PLUGIN, message(&v1::GetPluginCapabilitiesResponse { capabilities }));
    }

    /// Announces what the controller can do, by CSI's numbers.
    pub(crate) fn controller(&self, numbers: &[i32]) {
        use v1::controller_service_capability::{Rpc, Type};
        let capability = |r#type: &i32| v1::ControllerServiceCapability {
            r#type: Some(Type::Rpc(Rpc { r#type: *r#type })),
        };
        let capabilities = numbers.iter().map(capability).collect();
        self.always(CONTROLLER, message(&v1::ControllerGetCapabilitiesResponse { capabilities }));
    }

    /// What it heard of one call.
    pub(crate) fn heard(&self, path: &str) -> Vec<Heard> {
        self.script.lock().unwrap().heard.iter().filter(|heard| heard.path == path).cloned().collect()
    }

    /// Waits until it has heard a call so many times.
    pub(crate) async fn until_heard(&self, path: &str, times: usize) {
        self.calls.subscribe().wait_for(|_| self.heard(path).len() >= times).await.unwrap();
    }

    pub(crate) fn config(&self) -> CsiConfig {
        let address: Address = self.socket().to_str().unwrap().parse().unwrap();
        CsiConfig { driver: Some(NAME.into()), ready: Some(Duration::ZERO), ..CsiConfig::new(address) }
    }

    pub(crate) async fn connect(&self) -> Arc<CsiBackend> {
        connect(self.config()).await.unwrap()
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Connects with metrics that nobody reads.
pub(crate) async fn connect(config: CsiConfig) -> Result<Arc<CsiBackend>, ConnectError> {
    CsiBackend::connect(config, &BackendMetrics::default(), &ConnectionMetrics::default()).await
}

/// Connects with metrics, and a way to read them.
pub(crate) async fn measured(config: CsiConfig) -> (Arc<CsiBackend>, impl Fn() -> Vec<String>) {
    let mut registry = Registry::default();
    let calls = BackendMetrics::register(&mut registry);
    let connections = ConnectionMetrics::register(&mut registry);
    let backend = CsiBackend::connect(config, &calls, &connections).await.unwrap();
    let read = move || {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        text.lines().map(str::to_owned).collect()
    };
    (backend, read)
}

fn group_capabilities() -> v1::GroupControllerGetCapabilitiesResponse {
    use v1::group_controller_service_capability::{Rpc, Type};
    let r#type = Some(Type::Rpc(Rpc { r#type: 1 }));
    v1::GroupControllerGetCapabilitiesResponse {
        capabilities: vec![v1::GroupControllerServiceCapability { r#type }],
    }
}

fn cut(script: &Mutex<Script>) {
    for stream in script.lock().unwrap().streams.drain(..) {
        // It may be gone already.
        let _ = stream.shutdown(std::net::Shutdown::Both);
    }
}

/// gRPC's frame around a message.
pub(crate) fn framed(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap();
    [&[0], &length.to_be_bytes()[..], message].concat()
}

fn trailers(code: i32, text: &'static str) -> HeaderMap {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", code.into());
    trailers.insert("grpc-message", HeaderValue::from_static(text));
    trailers
}

type Sent = Response<BoxBody<Bytes, Infallible>>;

fn grpc(body: Vec<u8>, end: Option<HeaderMap>) -> Sent {
    let body = Full::new(Bytes::from(body));
    let body = match end {
        Some(end) => body.with_trailers(std::future::ready(Some(Ok(end)))).boxed(),
        None => body.boxed(),
    };
    Response::builder().header("content-type", "application/grpc").body(body).unwrap()
}

async fn serve(
    script: Arc<Mutex<Script>>,
    calls: watch::Sender<usize>,
    request: Request<Incoming>,
) -> Result<Sent, Infallible> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let path = parts.uri.path().to_owned();
    let reply = {
        let mut script = script.lock().unwrap();
        script.heard.push(Heard { path: path.clone(), headers: parts.headers, body });
        let once = script.once.get_mut(path.as_str()).and_then(VecDeque::pop_front);
        once.or_else(|| script.always.get(path.as_str()).cloned())
    };
    calls.send_modify(|count| *count += 1);
    Ok(match reply.unwrap_or(Reply::Status(12, "not told what to answer")) {
        Reply::Message(message) => grpc(framed(&message), Some(trailers(0, ""))),
        Reply::Status(code, text) => grpc(Vec::new(), Some(trailers(code, text))),
        Reply::Details { in_headers } => {
            let mut end = trailers(13, "no");
            end.insert("grpc-status-details-bin", HeaderValue::from_static("!!!"));
            if in_headers {
                let mut response = grpc(Vec::new(), None);
                response.headers_mut().extend(end);
                response
            } else {
                grpc(Vec::new(), Some(end))
            }
        }
        Reply::Late(message, code) => grpc(framed(&message), Some(trailers(code, "late"))),
        Reply::Unfinished(message) => grpc(framed(&message), None),
        Reply::Bytes(bytes) => grpc(bytes, Some(trailers(0, ""))),
        Reply::Http(status) => {
            Response::builder().status(status).body(Full::new(Bytes::from("no")).boxed()).unwrap()
        }
        Reply::Hang => std::future::pending().await,
        Reply::Cut => {
            cut(&script);
            std::future::pending().await
        }
    })
}

/// Far longer than anything here takes: a test that meets it has failed.
pub(crate) const LONG: Duration = Duration::from_secs(30);

/// A call with a secret.
pub(crate) fn call() -> Call {
    let secrets = [("password".to_owned(), Secret::new("hunter2hunter2"))].into_iter().collect();
    Call { deadline: LONG, secrets }
}

/// Time that a driver which does not answer is given: a busy machine brings the call to it within that.
pub(crate) const SHORT: Duration = Duration::from_secs(2);

/// A call that has little time.
pub(crate) fn hurried() -> Call {
    Call { deadline: SHORT, secrets: Secrets::default() }
}

pub(crate) fn capability() -> VolumeCapability {
    let access = AccessType::Filesystem {
        fs_type: Some("ext4".to_owned()),
        mount_flags: vec!["noatime".to_owned()],
        mount_group: None,
    };
    VolumeCapability { access_mode: CsiAccessMode::SingleNodeWriter, access_type: access }
}

pub(crate) fn creation(name: &str) -> CreateVolume {
    CreateVolume {
        name: name.to_owned(),
        capacity: CapacityRange { required: Some(1 << 30), limit: None },
        capabilities: vec![capability()],
        parameters: [("tier".to_owned(), "fast".to_owned())].into(),
        mutable_parameters: Default::default(),
        topology: None,
        owner: None,
    }
}

/// A volume that breaks no rule.
pub(crate) fn volume(handle: &str) -> v1::Volume {
    v1::Volume {
        capacity_bytes: 1 << 30,
        volume_id: handle.to_owned(),
        volume_context: [("a".to_owned(), "b".to_owned())].into(),
        ..Default::default()
    }
}

pub(crate) fn created(volume: v1::Volume) -> Reply {
    message(&v1::CreateVolumeResponse { volume: Some(volume) })
}
