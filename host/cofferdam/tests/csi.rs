//! Tests of the built binary with an existing CSI driver, which the test serves on a unix socket.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, also in what its functions share")]

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    process::{Command, Stdio},
    sync::{Arc, Mutex},
};

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

/// Sizes in bytes of the driver's volumes by name, and its snapshots. Names and passwords of the create
/// requests, in order.
#[derive(Default)]
struct TestDriverState {
    /// Set if the driver takes snapshots, restores them and clones volumes. The copies have no data.
    makes_empty_copies: bool,
    volumes: BTreeMap<String, i64>,
    snapshots: BTreeSet<String>,
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
        let mut kinds = vec![rpc::Type::CreateDeleteVolume];
        if self.0.lock().unwrap().makes_empty_copies {
            kinds.extend([rpc::Type::CreateDeleteSnapshot, rpc::Type::CloneVolume]);
        }
        let capability = |kind: rpc::Type| v1::ControllerServiceCapability {
            r#type: Some(Type::Rpc(Rpc { r#type: kind.into() })),
        };
        let capabilities = kinds.into_iter().map(capability).collect();
        Ok(Response::new(v1::ControllerGetCapabilitiesResponse { capabilities }))
    }

    async fn create_snapshot(
        &self,
        request: Request<v1::CreateSnapshotRequest>,
    ) -> Answer<v1::CreateSnapshotResponse> {
        let request = request.into_inner();
        self.0.lock().unwrap().snapshots.insert(request.name.clone());
        let snapshot = v1::Snapshot {
            snapshot_id: request.name,
            source_volume_id: request.source_volume_id,
            creation_time: Some(std::time::SystemTime::now().into()),
            ready_to_use: true,
            ..v1::Snapshot::default()
        };
        Ok(Response::new(v1::CreateSnapshotResponse { snapshot: Some(snapshot) }))
    }

    async fn delete_snapshot(
        &self,
        request: Request<v1::DeleteSnapshotRequest>,
    ) -> Answer<v1::DeleteSnapshotResponse> {
        self.0.lock().unwrap().snapshots.remove(&request.into_inner().snapshot_id);
        Ok(Response::new(v1::DeleteSnapshotResponse {}))
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
        let volume = v1::Volume {
            capacity_bytes,
            volume_id: request.name,
            content_source: request.volume_content_source,
            ..v1::Volume::default()
        };
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
        std::fs::remove_dir_all(request.into_inner().target_path)?;
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
async fn a_demo_copies_volumes_of_a_csi_driver() {
    let running = RunningCsiDriver::start();
    running.driver.0.lock().unwrap().makes_empty_copies = true;
    let address = format!("unix://{}", running.socket().display());
    let (code, text) = running.cofferdam(&["dev", "--demo", "--csi", &address]).await;
    assert_eq!(code, Some(0), "{text}");
    for expected in [
        "writes no data, because no pod mounts the volume: ",
        "compares no snapshot: the driver does not return any",
        "sees restored Bound to pvc-",
        "sees cloned Bound to pvc-",
        "finds no copy and no snapshot",
    ] {
        assert!(text.contains(expected), "{expected:?} in\n{text}");
    }
    let state = running.driver.0.lock().unwrap();
    assert_eq!((state.created.len(), state.volumes.len(), state.snapshots.len()), (3, 0, 0));
}

#[tokio::test]
async fn a_demo_fails_if_a_copy_of_a_volume_has_no_data() {
    let running = RunningCsiDriver::with_node_service(true);
    running.driver.0.lock().unwrap().makes_empty_copies = true;
    let address = format!("unix://{}", running.socket().display());
    let (code, text) = running.cofferdam(&["dev", "--demo", "--csi", &address]).await;
    assert_eq!(code, Some(1), "{text}");
    let failure = text.lines().find(|line| line.contains("the demo failed: cannot read ")).unwrap();
    assert!(failure.contains("/mount/demo.txt: No such file or directory"), "{failure}");
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
