//! The program under the name of a sidecar, with an API server and a CSI driver in the test.

use std::{
    collections::BTreeMap,
    io::{Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    os::unix::process::ExitStatusExt as _,
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use cofferdam_apiserver::{ApiServer, Options, ServeOptions, ServerHandle};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::JoinHandle;

use crate::{
    driver::{Behavior, NAME, RecordedCall, RecordingDriver},
    process::Process,
};

/// Value of the Secret that the class names.
pub(crate) const PASSWORD: &str = "hunter2-and-more";
/// Value of a parameter of the class: it is in every request to create a volume.
pub(crate) const TIER: &str = "tier-of-the-class";
/// Time for a condition to become true.
const TIMEOUT: Duration = Duration::from_secs(60);
pub(crate) const CLAIMS: &str = "/api/v1/namespaces/default/persistentvolumeclaims";
/// The Lease of the driver in the namespace `storage`.
pub(crate) const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/storage/leases/existing-example";

/// Ended by a signal, and if with a core dump.
pub(crate) fn core_dump(status: ExitStatus) -> (Option<i32>, bool) {
    (status.signal(), status.core_dumped())
}

/// Holder of a Lease; empty for none.
pub(crate) fn lease_holder(lease: &Value) -> &str {
    lease["spec"]["holderIdentity"].as_str().unwrap_or_default()
}

/// The API server, the driver and their directory.
pub(crate) struct Fixture {
    pub(crate) api: ApiServer,
    pub(crate) driver: RecordingDriver,
    serving: Option<ServerHandle>,
    driver_task: JoinHandle<()>,
    directory: TempDir,
    /// Number of processes that were started.
    process_count: AtomicUsize,
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.driver_task.abort();
    }
}

impl Fixture {
    /// A cluster with a Node, a StorageClass with a Secret, and a VolumeAttributesClass.
    pub(crate) async fn start(behavior: Behavior) -> Self {
        let directory = TempDir::new().unwrap();
        let api = ApiServer::new(Options::default());
        let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let serving = api.serve(ServeOptions { addr }).await.unwrap();
        std::fs::write(directory.path().join("kubeconfig"), serving.kubeconfig()).unwrap();
        let (driver, driver_task) = RecordingDriver::serve(&directory.path().join("csi.sock"), behavior);
        let (serving, process_count) = (Some(serving), AtomicUsize::default());
        let fixture = Self { api, driver, serving, driver_task, directory, process_count };
        fixture.create_cluster_objects().await;
        fixture
    }

    async fn create_cluster_objects(&self) {
        let storage = "/apis/storage.k8s.io/v1";
        self.create_namespace("storage").await;
        self.create_node("node-1", "a").await;
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "login"},
            "stringData": {"password": PASSWORD}});
        self.create("/api/v1/namespaces/storage/secrets", secret).await;
        let class = json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "gold"},
        "provisioner": NAME, "allowVolumeExpansion": true, "parameters": {
            "tier": TIER,
            "csi.storage.k8s.io/provisioner-secret-name": "login",
            "csi.storage.k8s.io/provisioner-secret-namespace": "storage",
        }});
        self.create(&format!("{storage}/storageclasses"), class).await;
        let attributes = json!({"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttributesClass",
            "metadata": {"name": "fast"}, "driverName": NAME, "parameters": {"iops": "9"}});
        self.create(&format!("{storage}/volumeattributesclasses"), attributes).await;
    }

    /// Creates a Node in a zone, and its CSINode.
    pub(crate) async fn create_node(&self, name: &str, zone: &str) {
        let node = json!({"apiVersion": "v1", "kind": "Node",
            "metadata": {"name": name, "labels": {"example/zone": zone}}});
        self.create("/api/v1/nodes", node).await;
        let csi_node = json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": name},
            "spec": {"drivers": [{"name": NAME, "nodeID": name, "topologyKeys": ["example/zone"]}]}});
        self.create("/apis/storage.k8s.io/v1/csinodes", csi_node).await;
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Ends the API server.
    pub(crate) fn stop_api(&mut self) {
        self.serving = None;
    }

    /// The flags of a sidecar that uses the Kubernetes API.
    pub(crate) fn connection_flags(&self) -> Vec<String> {
        let path = |name: &str| self.path().join(name).display().to_string();
        vec![format!("--csi-address={}", path("csi.sock")), format!("--kubeconfig={}", path("kubeconfig"))]
    }

    /// Starts a sidecar that uses the Kubernetes API.
    pub(crate) fn start_sidecar(&self, program: &str, flags: &[&str]) -> Process {
        let mut arguments = self.connection_flags();
        arguments.extend(flags.iter().map(|flag| (*flag).to_owned()));
        self.spawn(&mut self.command(program, &arguments))
    }

    /// Starts a sidecar that uses the driver only.
    pub(crate) fn start_node_sidecar(&self, program: &str, flags: &[&str]) -> Process {
        let mut arguments = self.connection_flags();
        arguments.truncate(1);
        arguments.extend(flags.iter().map(|flag| (*flag).to_owned()));
        self.spawn(&mut self.command(program, &arguments))
    }

    /// The program under the name of a sidecar, as in the image of the sidecar.
    pub(crate) fn program(&self, name: &str) -> PathBuf {
        let path = self.path().join(name);
        if !path.exists() {
            std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_cofferdam"), &path).unwrap();
        }
        path
    }

    pub(crate) fn command(&self, program: &str, arguments: &[String]) -> Command {
        let mut command = Command::new(self.program(program));
        command.args(arguments);
        command
    }

    /// Starts a process in the directory, with its log in a file there.
    pub(crate) fn spawn(&self, command: &mut Command) -> Process {
        self.spawn_with(command, &BTreeMap::new())
    }

    /// As [`Fixture::spawn`], with variables of the environment.
    pub(crate) fn spawn_with(
        &self,
        command: &mut Command,
        environment: &BTreeMap<String, String>,
    ) -> Process {
        let log = self.path().join(format!("log-{}", self.process_count.fetch_add(1, Ordering::Relaxed)));
        let command =
            command.env_clear().env("HOME", self.path()).env("TMPDIR", self.path()).envs(environment);
        let command = command.current_dir(self.path()).stdin(Stdio::null()).stdout(Stdio::null());
        Process::start_with_log(command, log)
    }

    pub(crate) async fn create(&self, path: &str, object: Value) {
        self.send(http::Method::POST, path, &object, "application/json").await;
    }

    pub(crate) async fn patch(&self, path: &str, patch: Value) {
        self.send(http::Method::PATCH, path, &patch, "application/merge-patch+json").await;
    }

    pub(crate) async fn delete(&self, path: &str) {
        let client = kube::Client::new(self.api.service(), "default");
        let request = http::Request::delete(path).body(Vec::new()).unwrap();
        client.request::<Value>(request).await.unwrap();
    }

    async fn send(&self, method: http::Method, path: &str, body: &Value, content_type: &str) {
        let client = kube::Client::new(self.api.service(), "default");
        let request = http::Request::builder().method(method).uri(path).header("content-type", content_type);
        let request = request.body(body.to_string().into_bytes()).unwrap();
        client.request::<Value>(request).await.unwrap();
    }

    pub(crate) async fn create_namespace(&self, name: &str) {
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        self.create("/api/v1/namespaces", namespace).await;
    }

    /// Creates a claim of the class for the provisioner.
    pub(crate) async fn create_claim(&self, name: &str) {
        self.create_claim_with(name, &json!({"volume.kubernetes.io/storage-provisioner": NAME})).await;
    }

    /// Creates a claim for which the scheduler has selected a node.
    pub(crate) async fn create_claim_for_node(&self, name: &str, node: &str) {
        let annotations = json!({"volume.kubernetes.io/storage-provisioner": NAME,
            "volume.kubernetes.io/selected-node": node});
        self.create_claim_with(name, &annotations).await;
    }

    async fn create_claim_with(&self, name: &str, annotations: &Value) {
        let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "annotations": annotations},
            "spec": {"storageClassName": "gold", "volumeAttributesClassName": "fast",
                "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
        self.create(CLAIMS, claim).await;
    }

    /// Creates a bound claim that requests a larger size and a VolumeAttributesClass, its volume, and a pod
    /// that uses the claim, all with this name.
    pub(crate) async fn create_claim_to_resize(&self, name: &str) {
        let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
            "spec": {"storageClassName": "gold", "volumeAttributesClassName": "fast", "volumeName": name,
                "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "2Gi"}}}});
        self.create(CLAIMS, claim).await;
        let status = json!({"status": {"phase": "Bound", "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"]}});
        self.patch(&format!("{CLAIMS}/{name}/status"), status).await;
        let claim = self.get(&format!("{CLAIMS}/{name}")).await;
        let uid = claim["metadata"]["uid"].clone();
        self.create_volume(name, json!({"name": name, "namespace": "default", "uid": uid})).await;
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {
            "nodeName": "node-1", "containers": [{"name": "c", "image": "i"}],
            "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": name}}]}});
        self.create("/api/v1/namespaces/default/pods", pod).await;
        let status = format!("/api/v1/namespaces/default/pods/{name}/status");
        self.patch(&status, json!({"status": {"phase": "Running"}})).await;
    }

    /// Creates the work of a sidecar, with this name. Returns the method that it calls.
    pub(crate) async fn create_work(&self, sidecar: &str, name: &str) -> &'static str {
        match sidecar {
            "csi-provisioner" => {
                self.create_claim(name).await;
                "CreateVolume"
            }
            "csi-attacher" => {
                self.create_attachment(name).await;
                "ControllerPublishVolume"
            }
            "csi-resizer" => {
                self.create_claim_to_resize(name).await;
                "ControllerExpandVolume"
            }
            other => panic!("{other} has no work in the cluster"),
        }
    }

    /// Creates a PersistentVolume and a VolumeAttachment of it, both with this name.
    pub(crate) async fn create_attachment(&self, name: &str) {
        self.create_volume(name, Value::Null).await;
        let attachment = json!({"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment",
            "metadata": {"name": name}, "spec": {"attacher": NAME, "nodeName": "node-1",
                "source": {"persistentVolumeName": name}}});
        self.create("/apis/storage.k8s.io/v1/volumeattachments", attachment).await;
    }

    /// Creates a PersistentVolume of the driver without a filesystem type, with the Secret of the class.
    pub(crate) async fn create_volume(&self, name: &str, claim: Value) {
        let volume = json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
            "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "claimRef": claim,
                "storageClassName": "gold", "persistentVolumeReclaimPolicy": "Retain",
                "csi": {"driver": NAME, "volumeHandle": name,
                    "controllerPublishSecretRef": {"name": "login", "namespace": "storage"},
                    "controllerExpandSecretRef": {"name": "login", "namespace": "storage"}}}});
        self.create("/api/v1/persistentvolumes", volume).await;
        let status = json!({"status": {"phase": "Bound"}});
        self.patch(&format!("/api/v1/persistentvolumes/{name}/status"), status).await;
    }

    pub(crate) async fn get(&self, path: &str) -> Value {
        let client = kube::Client::new(self.api.service(), "default");
        let request = http::Request::get(path).body(Vec::new()).unwrap();
        client.request(request).await.unwrap_or_default()
    }

    /// Waits for an object that matches.
    pub(crate) async fn wait_for(&self, path: &str, matches: impl Fn(&Value) -> bool) -> Value {
        let object = async || Some(self.get(path).await).filter(&matches);
        poll(&format!("match of {path}"), object).await
    }

    /// Waits for the PersistentVolume of a claim.
    pub(crate) async fn wait_for_volume(&self, claim: &str) -> Value {
        let volume = async || {
            let list = self.get("/api/v1/persistentvolumes").await;
            list["items"].as_array()?.iter().find(|item| item["spec"]["claimRef"]["name"] == claim).cloned()
        };
        poll(&format!("volume of claim {claim}"), volume).await
    }

    /// Waits for this number of calls of a method, and returns the last.
    pub(crate) async fn wait_for_calls(&self, method: &str, count: usize) -> RecordedCall {
        let what = format!("{count} calls of {method}");
        until(&what, || self.driver.calls(method).get(count - 1).cloned()).await
    }
}

/// Waits for a value.
pub(crate) async fn until<T>(what: &str, mut value: impl FnMut() -> Option<T>) -> T {
    poll(what, async || value()).await
}

/// As [`until`], for a value that takes time to read.
pub(crate) async fn poll<T>(what: &str, mut value: impl AsyncFnMut() -> Option<T>) -> T {
    let poll = async {
        loop {
            if let Some(value) = value().await {
                return value;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, poll).await.unwrap_or_else(|_| panic!("no {what} within {TIMEOUT:?}"))
}

/// A port that no process uses.
pub(crate) fn free_port() -> u16 {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port()
}

/// The status line and the body of a page, once the port is served.
pub(crate) async fn page(port: u16, path: &str) -> (u16, String) {
    let path = path.to_owned();
    let request = move || {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok()?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").ok()?;
        let mut response = String::new();
        stream.read_to_string(&mut response).ok()?;
        let code = response.split(' ').nth(1)?.parse().ok()?;
        Some((code, response))
    };
    let poll = tokio::task::spawn_blocking(move || {
        let start = std::time::Instant::now();
        loop {
            match request() {
                Some(found) => return found,
                None => assert!(start.elapsed() < TIMEOUT, "port {port} is not served"),
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    });
    poll.await.unwrap()
}
