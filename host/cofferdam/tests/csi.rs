//! Tests of the built binary with an existing CSI driver, which the test serves on a unix socket.
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking, also in what its functions share"
)]

use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader},
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    time::Duration,
};

use cofferdam_apiserver::{ApiServer, Options, ServeOptions, ServerHandle};
use cofferdam_csi::v1::{
    self,
    controller_server::{Controller, ControllerServer},
    identity_server::{Identity, IdentityServer},
    node_server::{Node, NodeServer},
};
use tempfile::TempDir;
use tokio::{net::UnixListener, task::JoinHandle};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status, transport::Server};

const NAME: &str = "existing.example";

type Answer<T> = Result<Response<T>, Status>;

/// Sizes in bytes of the driver's volumes by name. Names and passwords of the create requests, in order.
#[derive(Default)]
struct TestDriverState {
    volumes: BTreeMap<String, i64>,
    created: Vec<String>,
    passwords: Vec<Option<String>>,
}

/// A driver that stores volumes in a map.
#[derive(Clone, Default)]
struct TestCsiDriver(Arc<Mutex<TestDriverState>>);

#[tonic::async_trait]
impl Identity for TestCsiDriver {
    async fn get_plugin_info(
        &self,
        _: Request<v1::GetPluginInfoRequest>,
    ) -> Answer<v1::GetPluginInfoResponse> {
        Ok(Response::new(v1::GetPluginInfoResponse {
            name: NAME.to_owned(),
            vendor_version: "7".to_owned(),
            manifest: BTreeMap::new(),
        }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<v1::GetPluginCapabilitiesRequest>,
    ) -> Answer<v1::GetPluginCapabilitiesResponse> {
        use v1::plugin_capability::{Service, Type, service};
        let service = Service { r#type: service::Type::ControllerService.into() };
        let capabilities = vec![v1::PluginCapability { r#type: Some(Type::Service(service)) }];
        Ok(Response::new(v1::GetPluginCapabilitiesResponse { capabilities }))
    }

    async fn probe(&self, _: Request<v1::ProbeRequest>) -> Answer<v1::ProbeResponse> {
        Ok(Response::new(v1::ProbeResponse { ready: Some(true) }))
    }
}

#[tonic::async_trait]
impl Controller for TestCsiDriver {
    async fn controller_get_capabilities(
        &self,
        _: Request<v1::ControllerGetCapabilitiesRequest>,
    ) -> Answer<v1::ControllerGetCapabilitiesResponse> {
        use v1::controller_service_capability::{Rpc, Type, rpc};
        let rpc = Rpc { r#type: rpc::Type::CreateDeleteVolume.into() };
        let capabilities = vec![v1::ControllerServiceCapability { r#type: Some(Type::Rpc(rpc)) }];
        Ok(Response::new(v1::ControllerGetCapabilitiesResponse { capabilities }))
    }

    async fn create_volume(
        &self,
        request: Request<v1::CreateVolumeRequest>,
    ) -> Answer<v1::CreateVolumeResponse> {
        let request = request.into_inner();
        let capacity_bytes = request.capacity_range.map(|range| range.required_bytes).unwrap_or_default();
        let mut store = self.0.lock().unwrap();
        store.created.push(request.name.clone());
        store.passwords.push(request.secrets.get("password").cloned());
        store.volumes.insert(request.name.clone(), capacity_bytes);
        let volume = v1::Volume { capacity_bytes, volume_id: request.name, ..v1::Volume::default() };
        Ok(Response::new(v1::CreateVolumeResponse { volume: Some(volume) }))
    }

    async fn delete_volume(
        &self,
        request: Request<v1::DeleteVolumeRequest>,
    ) -> Answer<v1::DeleteVolumeResponse> {
        self.0.lock().unwrap().volumes.remove(&request.into_inner().volume_id);
        Ok(Response::new(v1::DeleteVolumeResponse {}))
    }
}

/// A Node service that creates a directory as the mount.
#[tonic::async_trait]
impl Node for TestCsiDriver {
    async fn node_get_info(&self, _: Request<v1::NodeGetInfoRequest>) -> Answer<v1::NodeGetInfoResponse> {
        let node_id = "here".to_owned();
        Ok(Response::new(v1::NodeGetInfoResponse { node_id, ..v1::NodeGetInfoResponse::default() }))
    }

    async fn node_get_capabilities(
        &self,
        _: Request<v1::NodeGetCapabilitiesRequest>,
    ) -> Answer<v1::NodeGetCapabilitiesResponse> {
        Ok(Response::new(v1::NodeGetCapabilitiesResponse { capabilities: Vec::new() }))
    }

    async fn node_publish_volume(
        &self,
        request: Request<v1::NodePublishVolumeRequest>,
    ) -> Answer<v1::NodePublishVolumeResponse> {
        std::fs::create_dir_all(request.into_inner().target_path)?;
        Ok(Response::new(v1::NodePublishVolumeResponse {}))
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<v1::NodeUnpublishVolumeRequest>,
    ) -> Answer<v1::NodeUnpublishVolumeResponse> {
        std::fs::remove_dir(request.into_inner().target_path)?;
        Ok(Response::new(v1::NodeUnpublishVolumeResponse {}))
    }
}

/// A running driver and the directory of its socket.
struct RunningCsiDriver {
    driver: TestCsiDriver,
    directory: TempDir,
    server: JoinHandle<()>,
}

impl RunningCsiDriver {
    fn start() -> Self {
        Self::with_node_service(false)
    }

    /// Starts the driver, optionally with a Node service.
    fn with_node_service(has_node_service: bool) -> Self {
        let directory = TempDir::new().unwrap();
        let listener = UnixListener::bind(directory.path().join("csi.sock")).unwrap();
        let driver = TestCsiDriver::default();
        let services = Server::builder()
            .add_service(IdentityServer::new(driver.clone()))
            .add_service(ControllerServer::new(driver.clone()))
            .add_optional_service(has_node_service.then(|| NodeServer::new(driver.clone())));
        let server = tokio::spawn(async move {
            services.serve_with_incoming(UnixListenerStream::new(listener)).await.unwrap();
        });
        Self { driver, directory, server }
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("csi.sock")
    }

    /// Runs the program until it exits; returns its exit code, and stdout followed by stderr.
    async fn cofferdam(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cofferdam"));
        command.args(arguments).env_clear().stdin(Stdio::null());
        command.env("HOME", self.directory.path()).env("TMPDIR", self.directory.path());
        // Do not block this thread: the driver runs on it.
        let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
        let text = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap()).concat();
        (output.status.code(), text)
    }
}

impl Drop for RunningCsiDriver {
    fn drop(&mut self) {
        self.server.abort();
    }
}

#[tokio::test]
async fn dev_provisions_claims_with_a_csi_driver() {
    let running = RunningCsiDriver::start();
    let address = format!("existing=unix://{}", running.socket().display());
    let (code, text) = running.cofferdam(&["dev", "--demo", "--backend", &address]).await;
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("demo: succeeded") && text.contains("existing.example 7, at "), "{text}");
    assert!(text.contains("existing.example has no Node service"), "{text}");
    let store = running.driver.0.lock().unwrap();
    assert!(!store.created.is_empty());
    assert!(store.volumes.is_empty(), "what the demo deletes is gone: {:?}", store.volumes);
}

#[tokio::test]
async fn a_csi_driver_with_a_node_service_runs_on_one_node_in_dev() {
    let running = RunningCsiDriver::with_node_service(true);
    let address = format!("unix://{}", running.socket().display());
    let (code, text) = running.cofferdam(&["dev", "--demo", "--csi", &address]).await;
    assert_eq!(code, Some(0), "{text}");
    for expected in [
        "node-1, node-2, simulated: no containers run",
        "existing.example has its own Node service, which mounts on this machine, for node-1 only",
        "leaves the pod on node-1: the driver is on this node only",
        "demo: succeeded",
    ] {
        assert!(text.contains(expected), "{expected:?} in\n{text}");
    }
    assert!(!text.contains("recorded"), "{text}");
}

#[tokio::test]
async fn a_csi_driver_can_be_inspected_and_called() {
    let running = RunningCsiDriver::start();
    let address = format!("unix://{}", running.socket().display());
    let (code, text) = running.cofferdam(&["backend", "inspect", &address]).await;
    assert_eq!(code, Some(0), "{text}");
    for line in [
        "driver          existing.example 7",
        "CSI controller  CREATE_DELETE_VOLUME",
        "abilities       nothing",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
    let (code, text) = running.cofferdam(&["backend", "inspect", &address, "-o", "json"]).await;
    let shown: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((code, shown.pointer("/description/driver").unwrap().as_str()), (Some(0), Some(NAME)));

    let password = running.directory.path().join("password");
    std::fs::write(&password, "hunter2\n").unwrap();
    let secret = format!("password=@{}", password.display());
    let create = ["backend", "call", &address, "volumes.create", "--volume-name", "v", "--size", "1Gi"];
    let (code, text) = running.cofferdam(&[&create[..], &["--secret", &secret]].concat()).await;
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains(r#""handle": "v""#) && text.contains(r#""capacity": 1073741824"#), "{text}");
    assert_eq!(running.driver.0.lock().unwrap().passwords, [Some("hunter2".to_owned())]);
    let (code, text) =
        running.cofferdam(&["backend", "call", &address, "publishing.unpublish", "--handle", "v"]).await;
    assert_eq!(code, Some(1), "{text}");
    assert!(
        text.contains("Unimplemented: the CSI driver existing.example has no PUBLISH_UNPUBLISH_VOLUME"),
        "{text}"
    );
}

#[tokio::test]
async fn component_flags_are_rejected_for_csi_sockets() {
    let running = RunningCsiDriver::start();
    let address = format!("unix://{}", running.socket().display());
    for (arguments, expected) in [
        (&["backend", "test", &address][..], "backend test is for components"),
        (&["backend", "inspect", &address, "-o", "manifest"], "--output manifest is for components"),
        (&["backend", "inspect", &address, "--grant", "log"], "--grant is for components"),
    ] {
        let (code, text) = running.cofferdam(arguments).await;
        assert_eq!((code, text.lines().count()), (Some(2), 1), "{text}");
        assert!(text.contains(expected), "{text}");
    }
    let config = running.directory.path().join("config.toml");
    let section = format!("[backend.csi]\ncsi = {:?}\ndriver-name = \"other.example\"\n", running.socket());
    std::fs::write(&config, section).unwrap();
    let arguments = ["backend", "inspect", &address, "--config", config.to_str().unwrap()];
    let (code, text) = running.cofferdam(&arguments).await;
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("the driver is existing.example; expected other.example"), "{text}");
}

/// A process under the name of a sidecar. It is killed at the end of its test.
struct SidecarProcess(Child);

impl Drop for SidecarProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The program under the name of a sidecar, as in the image of the sidecar.
fn sidecar(directory: &Path, program: &str, arguments: &[&str]) -> Command {
    let path = directory.join(program);
    if !path.exists() {
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_cofferdam"), &path).unwrap();
    }
    let mut command = Command::new(path);
    command.args(arguments).env_clear().stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.env("HOME", directory).env("TMPDIR", directory);
    command
}

/// Exit code, stdout and stderr of a sidecar that exits by itself.
fn run_sidecar(directory: &Path, program: &str, arguments: &[&str]) -> (Option<i32>, String, String) {
    let mut command = sidecar(directory, program, arguments);
    let output = command.stdout(Stdio::piped()).stderr(Stdio::piped()).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn the_program_has_the_command_line_of_the_sidecar_of_its_name() {
    let directory = TempDir::new().unwrap();
    let run = |program: &str, arguments: &[&str]| run_sidecar(directory.path(), program, arguments);
    let probe = ["--kubelet-registration-path=/p/csi.sock", "--mode=kubelet-registration-probe"];
    assert_eq!(run("csi-node-driver-registrar", &probe), (Some(0), String::new(), String::new()));
    let (code, stdout, _) = run("csi-attacher", &["-version"]);
    assert_eq!((code, stdout.trim_end()), (Some(0), concat!("csi-attacher ", env!("CARGO_PKG_VERSION"))));
    let (code, stdout, _) = run("livenessprobe", &["--help"]);
    assert_eq!(code, Some(0));
    assert!(stdout.contains("--probe-timeout [default: 3s]"), "{stdout}");
    let (code, _, stderr) = run("csi-resizer", &["--resync=1m"]);
    let expected = "csi-resizer: flag provided but not defined: --resync: expected a flag of csi-resizer, as \
                    --help lists them\n";
    assert_eq!((code, stderr.as_str()), (Some(2), expected));
    let (code, _, stderr) =
        run("csi-provisioner", &["--leader-election", "--leader-election-renew-deadline=1m"]);
    assert_eq!(code, Some(2));
    assert!(
        stderr.contains("the lease duration is 15s: expected more than the renew deadline, 1m"),
        "{stderr}"
    );
}

/// Waits until the object at a path matches, and returns it.
async fn wait_for(
    api: &ApiServer,
    path: &str,
    matches: impl Fn(&serde_json::Value) -> bool,
) -> serde_json::Value {
    let client = kube::Client::new(api.service(), "default");
    let poll = async {
        loop {
            let request = http::Request::get(path).body(Vec::new()).unwrap();
            if let Ok(object) = client.request::<serde_json::Value>(request).await
                && matches(&object)
            {
                return object;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), poll).await.unwrap()
}

async fn create(api: &ApiServer, path: &str, object: serde_json::Value) {
    let client = kube::Client::new(api.service(), "default");
    let request = http::Request::post(path).body(object.to_string().into_bytes()).unwrap();
    client.request::<serde_json::Value>(request).await.unwrap();
}

const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/storage/leases/existing-example";

/// Creates a claim that asks for a volume of the driver, with a UID that its name determines.
async fn create_claim(api: &ApiServer, name: &str) {
    let claim = serde_json::json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "annotations": {"volume.kubernetes.io/storage-provisioner": NAME}},
        "spec": {
            "storageClassName": "gold", "accessModes": ["ReadOnlyMany"],
            "resources": {"requests": {"storage": "1Gi"}},
        },
    });
    create(api, "/api/v1/namespaces/default/persistentvolumeclaims", claim).await;
}

/// Waits for the PersistentVolume of a claim.
async fn wait_for_volume(api: &ApiServer, claim: &str) -> serde_json::Value {
    let of_claim = |volume: &serde_json::Value| volume["spec"]["claimRef"]["name"] == claim;
    let list = wait_for(api, "/api/v1/persistentvolumes", |list| {
        list["items"].as_array().is_some_and(|items| items.iter().any(of_claim))
    });
    let list = list.await;
    list["items"].as_array().unwrap().iter().find(|volume| of_claim(volume)).unwrap().clone()
}

/// A served API server with the namespace of the Lease and a class of the driver. Its kubeconfig is in the
/// directory.
async fn serve_api(directory: &Path) -> (ApiServer, ServerHandle) {
    let api = ApiServer::new(Options::default());
    let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let serving = api.serve(ServeOptions { addr }).await.unwrap();
    std::fs::write(directory.join("kubeconfig"), serving.kubeconfig()).unwrap();
    let namespace =
        serde_json::json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "storage"}});
    create(&api, "/api/v1/namespaces", namespace).await;
    let class = serde_json::json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
        "metadata": {"name": "gold"}, "provisioner": NAME,
    });
    create(&api, "/apis/storage.k8s.io/v1/storageclasses", class).await;
    (api, serving)
}

/// Holder of a Lease; empty for none.
fn holder(lease: &serde_json::Value) -> String {
    lease["spec"]["holderIdentity"].as_str().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn of_two_provisioners_with_leader_election_one_acts() {
    let running = RunningCsiDriver::start();
    let directory = running.directory.path();
    let (api, _serving) = serve_api(directory).await;

    let socket = running.socket().display().to_string();
    let kubeconfig = directory.join("kubeconfig").display().to_string();
    let arguments = [
        "--csi-address",
        &socket,
        "--kubeconfig",
        &kubeconfig,
        "--leader-election",
        "--leader-election-namespace=storage",
        "--leader-election-retry-period=300ms",
        "--volume-name-prefix=vol",
        "--volume-name-uuid-length=8",
        "--controller-publish-readonly",
        "-v=5",
        "--kube-api-qps=100",
    ];
    let start = || SidecarProcess(sidecar(directory, "csi-provisioner", &arguments).spawn().unwrap());
    let mut leader = start();
    let first = holder(&wait_for(&api, LEASE, |lease| !holder(lease).is_empty()).await);
    let _standby = start();
    create_claim(&api, "a").await;
    let volume = wait_for_volume(&api, "a").await;
    let name = volume["metadata"]["name"].as_str().unwrap();
    assert!(name.starts_with("vol-") && name.len() == "vol-".len() + 8, "{name}");
    assert_eq!(volume["spec"]["csi"]["readOnly"], true);

    // SIGTERM: the leader releases the Lease, and the standby takes it.
    let terminated = Command::new("kill").arg(leader.0.id().to_string()).status().unwrap();
    assert!(terminated.success());
    let is_other = |lease: &serde_json::Value| !holder(lease).is_empty() && holder(lease) != first;
    wait_for(&api, LEASE, is_other).await;
    assert_eq!(leader.0.wait().unwrap().code(), Some(0));
    create_claim(&api, "b").await;
    wait_for_volume(&api, "b").await;
    assert_eq!(running.driver.0.lock().unwrap().created.len(), 2, "each claim has one volume");
}

/// Replaces the holder of the Lease, as a process that ignores the Lease's duration does.
async fn take_lease(api: &ApiServer) {
    let client = kube::Client::new(api.service(), "default");
    let spec = serde_json::json!({"spec": {"holderIdentity": "stranger", "leaseDurationSeconds": 3600}});
    let request = http::Request::patch(LEASE).header("content-type", "application/merge-patch+json");
    let request = request.body(spec.to_string().into_bytes()).unwrap();
    client.request::<serde_json::Value>(request).await.unwrap();
}

async fn delete_lease(api: &ApiServer) {
    let client = kube::Client::new(api.service(), "default");
    let request = http::Request::delete(LEASE).body(Vec::new()).unwrap();
    client.request::<serde_json::Value>(request).await.unwrap();
}

#[tokio::test]
async fn a_provisioner_whose_lease_a_stranger_takes_stops_work_until_it_leads_again() {
    let running = RunningCsiDriver::start();
    let directory = running.directory.path();
    let (api, _serving) = serve_api(directory).await;
    let socket = running.socket().display().to_string();
    let kubeconfig = directory.join("kubeconfig").display().to_string();
    let arguments = [
        "--csi-address",
        &socket,
        "--kubeconfig",
        &kubeconfig,
        "--leader-election",
        "--leader-election-namespace=storage",
        "--leader-election-retry-period=300ms",
    ];
    let mut command = sidecar(directory, "csi-provisioner", &arguments);
    let mut leader = SidecarProcess(command.stderr(Stdio::piped()).spawn().unwrap());
    let log = BufReader::new(leader.0.stderr.take().unwrap());
    wait_for(&api, LEASE, |lease| !holder(lease).is_empty()).await;
    create_claim(&api, "first").await;
    wait_for_volume(&api, "first").await;
    // The stranger takes the Lease while claims arrive.
    let arrivals = async {
        for number in 0_u32.. {
            create_claim(&api, &format!("claim-{number}")).await;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let take = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        take_lease(&api).await;
        let lines = tokio::task::spawn_blocking(move || {
            let mut lines = log.lines().map_while(Result::ok);
            (lines.find(|line| line.contains("stranger")), lines)
        });
        lines.await.unwrap()
    };
    let (lost, log) = tokio::select! {
        () = arrivals => unreachable!("claims arrive without an end"),
        taken = tokio::time::timeout(Duration::from_secs(60), take) => taken.unwrap(),
    };
    // Later lines go nowhere, and must not block the process.
    let _log = std::thread::spawn(move || log.count());
    let lost = lost.unwrap();
    let expected = "lease storage/existing-example: \"stranger\" holds it now; this process stops work, and \
                    competes for the lease again";
    assert!(lost.contains(expected), "{lost}");
    let calls = || running.driver.0.lock().unwrap().created.len();
    let calls_at_loss = calls();
    create_claim(&api, "last").await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(calls(), calls_at_loss);
    assert_eq!(holder(&wait_for(&api, LEASE, |_| true).await), "stranger", "it is not released");
    // The same process works again.
    delete_lease(&api).await;
    wait_for_volume(&api, "last").await;
    assert_eq!(leader.0.try_wait().unwrap(), None, "losing a Lease ends no process");
}
