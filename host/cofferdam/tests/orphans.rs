//! Tests of `cofferdam orphans`: the built binary as the command. The test's process runs the API, the memory
//! driver, and the controllers that write the reports.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "a test fails by panicking, also in what its functions share"
)]

use std::{
    collections::BTreeSet,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    process::{Command, Output, Stdio},
    sync::Arc,
    time::Duration,
};

use cofferdam_apiserver::{ApiServer, Options, ServeOptions, ServerHandle};
use cofferdam_backend::{Backend, BackendFuture, Call};
use cofferdam_cluster::observer::NoopStepObserver;
use cofferdam_controllers::{
    ControllerManager, ControllerManagerError, Dependencies, ProvisionerSettings, Role, Settings,
};
use cofferdam_domain::{
    ReclaimPolicy, SnapshotHandle, VolumeHandle,
    storage::{
        Ability, AccessType, CapacityRange, CreateSnapshot, CreateVolume, CreatedVolume, CsiAccessMode,
        Description, PageRequest, Readiness, Snapshot, SnapshotOwner, SnapshotPage, ValidateVolume,
        Validation, VolumeCapability, VolumeOwner, VolumePage,
    },
};
use cofferdam_wasm::{BackendConfig, CompiledCache, ComponentSource, Engine, EngineOptions, WasmMetrics};
use futures::{StreamExt as _, pin_mut};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, WatchEvent, WatchParams},
};
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

const DRIVER: &str = "memory.cofferdam.dev";
const VOLUME_REPORT: &str = "cofferdam-orphans-memory.cofferdam.dev";
const SNAPSHOT_REPORT: &str = "cofferdam-orphaned-snapshots-memory.cofferdam.dev";
const TWO_DAYS_MS: u64 = 2 * 24 * 3600 * 1000;

/// A driver that reports the last change of each volume two days too early: past the grace period of orphans.
struct AgedBackend(Arc<dyn Backend>);

impl Backend for AgedBackend {
    fn description(&self) -> &Description {
        self.0.description()
    }

    fn abilities(&self) -> &BTreeSet<Ability> {
        self.0.abilities()
    }

    fn probe(&self, call: Call) -> BackendFuture<'_, Readiness> {
        self.0.probe(call)
    }

    fn create_volume(&self, call: Call, request: CreateVolume) -> BackendFuture<'_, CreatedVolume> {
        self.0.create_volume(call, request)
    }

    fn delete_volume(&self, call: Call, handle: VolumeHandle) -> BackendFuture<'_, ()> {
        self.0.delete_volume(call, handle)
    }

    fn validate_volume(&self, call: Call, request: ValidateVolume) -> BackendFuture<'_, Validation> {
        self.0.validate_volume(call, request)
    }

    fn create_snapshot(&self, call: Call, request: CreateSnapshot) -> BackendFuture<'_, Snapshot> {
        self.0.create_snapshot(call, request)
    }

    fn delete_snapshot(&self, call: Call, handle: SnapshotHandle) -> BackendFuture<'_, ()> {
        self.0.delete_snapshot(call, handle)
    }

    fn list_snapshots(
        &self,
        call: Call,
        source: Option<VolumeHandle>,
        request: PageRequest,
    ) -> BackendFuture<'_, SnapshotPage> {
        self.0.list_snapshots(call, source, request)
    }

    fn list_volumes(&self, call: Call, request: PageRequest) -> BackendFuture<'_, VolumePage> {
        Box::pin(async move {
            let mut page = self.0.list_volumes(call, request).await?;
            for status in &mut page.volumes {
                status.changed_at_ms = status.changed_at_ms.map(|at| at - TWO_DAYS_MS);
            }
            Ok(page)
        })
    }
}

/// An API server and a memory driver in this process, and a directory with the kubeconfig.
struct OrphansFixture {
    serving: ServerHandle,
    client: Client,
    backend: Arc<dyn Backend>,
    scratch: PathBuf,
}

impl OrphansFixture {
    async fn build(name: &str) -> Self {
        let scratch = std::env::temp_dir().join(format!("cofferdam-orphans-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&scratch).unwrap();
        let api = ApiServer::new(Options::default());
        let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let serving = api.serve(ServeOptions { addr }).await.unwrap();
        std::fs::write(scratch.join("kubeconfig"), serving.kubeconfig()).unwrap();
        let metrics = WasmMetrics::default();
        let engine = Engine::new(EngineOptions { cache: CompiledCache::Off, metrics }).unwrap();
        let source = ComponentSource::Bytes { name: "memory".to_owned(), bytes: cofferdam_carried::MEMORY };
        let backend = engine.load(source, BackendConfig::default()).await.unwrap();
        let client = Client::new(api.service(), "default");
        Self { serving, client, backend: Arc::new(AgedBackend(backend)), scratch }
    }

    /// Creates a volume that no object in the cluster refers to.
    async fn create_orphan(&self, name: &str) -> VolumeHandle {
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let cluster = namespaces.get("kube-system").await.unwrap().metadata.uid.unwrap();
        let request = CreateVolume {
            name: name.to_owned(),
            capacity: CapacityRange { required: Some(1 << 30), limit: None },
            capabilities: vec![VolumeCapability {
                access_type: AccessType::Block,
                access_mode: CsiAccessMode::SingleNodeWriter,
            }],
            parameters: Default::default(),
            mutable_parameters: Default::default(),
            topology: None,
            owner: Some(VolumeOwner {
                cluster_id: cluster.into(),
                claim_uid: format!("uid-of-{name}").as_str().into(),
                pv_name: name.into(),
                reclaim_policy: ReclaimPolicy::Delete,
            }),
            source: None,
        };
        let call = Call::with_deadline(Duration::from_secs(60));
        self.backend.create_volume(call, request).await.unwrap().handle
    }

    /// Creates a snapshot that no object in the cluster refers to.
    async fn create_orphaned_snapshot(&self, source: VolumeHandle) -> SnapshotHandle {
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let cluster = namespaces.get("kube-system").await.unwrap().metadata.uid.unwrap();
        let request = CreateSnapshot {
            name: "snapshot-lost".to_owned(),
            source,
            parameters: Default::default(),
            owner: Some(SnapshotOwner {
                cluster_id: cluster.into(),
                snapshot_uid: "uid-of-a-lost-snapshot".into(),
                content_name: "snapcontent-lost".to_owned(),
                retain: false,
            }),
        };
        let call = Call::with_deadline(Duration::from_secs(60));
        self.backend.create_snapshot(call, request).await.unwrap().handle
    }

    /// Starts the controllers with the driver in this process, and waits until the driver's ConfigMap has a
    /// report. After a restart of the controllers, that may be the report of the earlier ones.
    async fn start_owner(&self) -> (CancellationToken, JoinHandle<Result<(), ControllerManagerError>>) {
        let settings = Settings {
            roles: Role::ALL.into(),
            namespace: "kube-system".to_owned(),
            provisioner: ProvisionerSettings {
                orphan_scan_interval: Some(Duration::from_secs(1)),
                ..Default::default()
            },
            ..Settings::default()
        };
        let parts = Dependencies {
            client: self.client.clone(),
            backends: vec![Arc::clone(&self.backend)],
            clock: cofferdam_cluster::system_clock(),
            observer: Arc::new(NoopStepObserver),
        };
        let process = ControllerManager::new(settings, parts, &mut Registry::default()).unwrap();
        let stop = CancellationToken::new();
        let token = stop.clone();
        let running = tokio::spawn(async move { process.run(token).await });
        self.wait_for_key("report").await;
        (stop, running)
    }

    fn config_maps(&self) -> Api<ConfigMap> {
        Api::namespaced(self.client.clone(), "kube-system")
    }

    /// Waits until the ConfigMap of the driver's volumes has this key; returns its value.
    async fn wait_for_key(&self, key: &str) -> Value {
        self.wait_for_key_of(VOLUME_REPORT, key).await
    }

    /// As [`Self::wait_for_key`], of the ConfigMap of this name.
    async fn wait_for_key_of(&self, name: &str, key: &str) -> Value {
        let maps = self.config_maps();
        let reports = WatchParams::default().fields(&format!("metadata.name={name}"));
        let events = maps.watch(&reports, "0").await.unwrap();
        pin_mut!(events);
        while let Some(event) = events.next().await {
            let (WatchEvent::Added(map) | WatchEvent::Modified(map)) = event.unwrap() else { continue };
            if let Some(text) = map.data.as_ref().and_then(|data| data.get(key)) {
                return serde_json::from_str(text).unwrap();
            }
        }
        Value::Null
    }

    /// Runs the command as a user's shell does.
    async fn orphans(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cofferdam"));
        command
            .arg("orphans")
            .args(arguments)
            .env_clear()
            .env("HOME", &self.scratch)
            .env("KUBECONFIG", self.scratch.join("kubeconfig"))
            .env("USER", "operator")
            .stdin(Stdio::null());
        tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
    }

    /// Runs the command for the namespace of the controllers; returns its stdout followed by its stderr, and
    /// its exit code.
    async fn run_output(&self, arguments: &[&str]) -> (String, Option<i32>) {
        self.run_output_in(&["--namespace", "kube-system"], arguments).await
    }

    /// Like [`Self::run_output`], with other flags that select the reports.
    async fn run_output_in(&self, scope: &[&str], arguments: &[&str]) -> (String, Option<i32>) {
        let output = self.orphans(&[arguments, scope].concat()).await;
        let text = [output.stdout, output.stderr].concat();
        (String::from_utf8(text).unwrap(), output.status.code())
    }

    async fn listed_handles(&self) -> Vec<String> {
        let request = PageRequest { starting_token: None, max_entries: None };
        let page =
            self.backend.list_volumes(Call::with_deadline(Duration::from_secs(60)), request).await.unwrap();
        page.volumes.into_iter().map(|status| status.volume.handle.to_string()).collect()
    }

    async fn shut_down(self) {
        self.serving.shutdown().await;
        std::fs::remove_dir_all(&self.scratch).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_orphan_is_listed_and_deleted_on_request() {
    let fixture = OrphansFixture::build("delete").await;
    assert_eq!(
        fixture.run_output(&[]).await.0,
        "no orphan reports in namespace kube-system: expected one from a process that runs the role \
         provisioner or snapshotter; --namespace selects another namespace\n"
    );
    let (deleted_orphan, remaining_orphan) =
        (fixture.create_orphan("pvc-lost").await, fixture.create_orphan("pvc-kept").await);
    let (stop, running) = fixture.start_owner().await;

    let (text, code) = fixture.run_output(&[]).await;
    assert_eq!(code, Some(0), "{text}");
    let row = |cells: &[&str]| {
        text.lines().any(|line| {
            let line: Vec<&str> = line.split_whitespace().collect();
            line.starts_with(cells)
        })
    };
    assert!(row(&["driver", DRIVER]) && row(&["leak", "detection:", "by", "owner"]), "{text}");
    for handle in [&deleted_orphan, &remaining_orphan] {
        assert!(row(&["orphan", handle.as_str(), "1", "GiB"]), "{text}");
    }
    let (json, _) = fixture.run_output(&["list", "--driver", DRIVER, "-o", "json"]).await;
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["drivers"][0]["report"]["counts"]["orphan"], 2, "{json:#}");

    let (text, code) = fixture.run_output(&["delete", DRIVER, "nothing"]).await;
    assert_eq!(
        (text.as_str(), code),
        ("volume nothing of memory.cofferdam.dev: refused: the driver lists no such volume\n", Some(1))
    );
    let (text, code) = fixture.run_output(&["delete", DRIVER, deleted_orphan.as_str()]).await;
    assert_eq!((text, code), (format!("volume {deleted_orphan} of {DRIVER}: deleted\n"), Some(0)));
    assert_eq!(fixture.listed_handles().await, [remaining_orphan.as_str()]);
    let (text, _) = fixture.run_output(&[]).await;
    assert!(
        text.contains(&format!("volume {deleted_orphan} of {DRIVER}: deleted")),
        "the last response: {text}"
    );
    let is_deleted_orphan =
        |line: &str| line.split_whitespace().take(2).eq(["orphan", deleted_orphan.as_str()]);
    assert!(!text.lines().any(is_deleted_orphan), "{text}");

    stop.cancel();
    running.await.unwrap().unwrap();
    fixture.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_orphaned_snapshot_is_listed_and_deleted_on_request() {
    let fixture = OrphansFixture::build("snapshot").await;
    let volume = fixture.create_orphan("pvc-source").await;
    let snapshot = fixture.create_orphaned_snapshot(volume).await;
    let (stop, running) = fixture.start_owner().await;
    let mut report = fixture.wait_for_key_of(SNAPSHOT_REPORT, "report").await;
    stop.cancel();
    running.await.unwrap().unwrap();
    // The next process continues an observation of years.
    assert_eq!(report["withinGracePeriod"][0]["handle"], snapshot.as_str(), "{report:#}");
    report["withinGracePeriod"][0]["since"] = json!("2020-01-01T00:00:00Z");
    let patch = Patch::Merge(json!({"data": {"report": report.to_string()}}));
    fixture.config_maps().patch(SNAPSHOT_REPORT, &PatchParams::default(), &patch).await.unwrap();
    let (stop, running) = fixture.start_owner().await;

    let delete_command = ["delete", DRIVER, snapshot.as_str()];
    let (text, code) = fixture.run_output(&delete_command).await;
    let refused = format!("volume {snapshot} of {DRIVER}: refused: the driver lists no such volume\n");
    assert_eq!((text, code), (refused, Some(1)));
    let (text, code) = fixture.run_output(&[&delete_command[..], &["--kind", "snapshot"]].concat()).await;
    assert_eq!((text, code), (format!("snapshot {snapshot} of {DRIVER}: deleted\n"), Some(0)));
    let (text, _) = fixture.run_output(&[]).await;
    assert!(text.contains(&format!("driver {DRIVER} in namespace kube-system, snapshots\n")), "{text}");
    let page = PageRequest { starting_token: None, max_entries: None };
    let call = Call::with_deadline(Duration::from_secs(60));
    assert_eq!(fixture.backend.list_snapshots(call, None, page).await.unwrap().snapshots, []);
    stop.cancel();
    running.await.unwrap().unwrap();
    fixture.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_an_owning_process_a_delete_request_stays_pending() {
    let fixture = OrphansFixture::build("unanswered").await;
    let orphan = fixture.create_orphan("pvc-lost").await;
    let (stop, running) = fixture.start_owner().await;
    stop.cancel();
    running.await.unwrap().unwrap();

    let delete_command = ["delete", DRIVER, orphan.as_str(), "--timeout", "100ms"];
    for _ in 0..2 {
        let (text, code) = fixture.run_output(&delete_command).await;
        assert!(text.starts_with("cofferdam: no response within 100ms: the request remains"), "{text}");
        assert_eq!(code, Some(1));
    }
    let (text, code) = fixture.run_output(&["delete", DRIVER, "another"]).await;
    assert!(text.contains(&format!("already has a request to delete {orphan}, from operator@")), "{text}");
    assert_eq!(code, Some(1));
    let (text, _) = fixture.run_output(&[]).await;
    assert!(text.contains(&format!("to be deleted: {orphan}, as operator@")), "{text}");
    assert_eq!(fixture.listed_handles().await, [orphan.as_str()]);

    // The next process of the driver finds the request.
    let (stop, running) = fixture.start_owner().await;
    let response = fixture.wait_for_key("response").await;
    assert_eq!(
        (&response["result"], &response["request"]["handle"]),
        (&"deleted".into(), &orphan.as_str().into())
    );
    assert_eq!(fixture.listed_handles().await, [""; 0]);
    stop.cancel();
    running.await.unwrap().unwrap();
    fixture.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_orphans_commands_fail_with_one_line() {
    let fixture = OrphansFixture::build("refused").await;
    for (arguments, code, line) in [
        (
            &["delete", "other", "h"][..],
            1,
            "driver other has no orphan report of volumes in namespace kube-system: expected one from a \
             process that runs the role provisioner with it; --namespace selects another namespace",
        ),
        (
            &["--driver", "other"],
            1,
            "driver other has no orphan report in namespace kube-system: expected one from a process that \
             runs the role provisioner or snapshotter with it; --namespace selects another namespace",
        ),
        (
            &["delete", "other", "h", "--timeout", "soon"],
            2,
            "flag --timeout: \"soon\" is not a duration: expected one above zero such as 500ms, 10s or 1m30s",
        ),
    ] {
        assert_eq!(fixture.run_output(arguments).await, (format!("cofferdam: {line}\n"), Some(code)));
    }
    assert_eq!(
        fixture.orphans(&["delete", "other"]).await.status.code(),
        Some(2),
        "there is no delete of all"
    );
    fixture.shut_down().await;
}

/// Every user who can write ConfigMaps in a namespace can write a report there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_report_of_another_namespace_is_ignored_unless_requested() {
    let fixture = OrphansFixture::build("forged").await;
    let orphan = fixture.create_orphan("pvc-lost").await;
    let (stop, running) = fixture.start_owner().await;
    let maps: Api<ConfigMap> = Api::namespaced(fixture.client.clone(), "kube-system");
    let real = maps.get(&format!("cofferdam-orphans-{DRIVER}")).await.unwrap();
    let mut report: Value = serde_json::from_str(&real.data.unwrap()["report"]).unwrap();
    (report["counts"]["orphan"], report["orphans"]) = (0.into(), serde_json::json!([]));
    let message = "\u{1b}[2J\u{202e}forged";
    report["leakDetection"] = serde_json::json!({"kind": "none", "message": message});
    let forged: ConfigMap = serde_json::from_value(serde_json::json!({
        "metadata": {
            "name": format!("cofferdam-orphans-{DRIVER}"), "labels": {"cofferdam.dev/orphans": "report"},
        },
        "data": {"driver": DRIVER, "report": report.to_string()},
    }))
    .unwrap();
    let tenant: Api<ConfigMap> = Api::namespaced(fixture.client.clone(), "default");
    tenant.create(&kube::api::PostParams::default(), &forged).await.unwrap();

    let (text, _) = fixture.run_output(&[]).await;
    assert!(text.starts_with(&format!("driver {DRIVER} in namespace kube-system\n")), "{text}");
    assert!(text.contains(orphan.as_str()) && !text.contains("forged"), "{text}");
    let (text, code) = fixture.run_output_in(&["--all-namespaces"], &[]).await;
    assert_eq!(code, Some(0), "{text}");
    for namespace in ["default", "kube-system"] {
        assert!(text.contains(&format!("driver {DRIVER} in namespace {namespace}\n")), "{text}");
    }
    assert!(text.contains("none: \\u{1b}[2J\\u{202e}forged\n") && !text.contains('\u{1b}'), "{text}");
    let (json, _) = fixture.run_output_in(&["-A"], &["list", "-o", "json"]).await;
    assert!(!json.contains('\u{202e}'), "{json}");
    let json: Value = serde_json::from_str(&json).unwrap();
    let drivers = json["drivers"].as_array().unwrap();
    let by_namespace = |namespace: &str| {
        drivers.iter().find(|driver| driver["namespace"] == namespace).unwrap()["report"].clone()
    };
    assert_eq!(by_namespace("default")["leakDetection"]["message"], message);
    assert_eq!(by_namespace("kube-system")["counts"]["orphan"], 1);

    // A deletion is requested from one namespace: that of the context, or that of the flag.
    let delete = ["delete", DRIVER, orphan.as_str()];
    let (text, code) = fixture.run_output_in(&["--all-namespaces"], &delete).await;
    assert_eq!(code, Some(2), "{text}");
    let (text, code) = fixture.run_output(&delete).await;
    assert_eq!((text, code), (format!("volume {orphan} of {DRIVER}: deleted\n"), Some(0)));
    let forged = tenant.get(&format!("cofferdam-orphans-{DRIVER}")).await.unwrap();
    assert!(!forged.data.unwrap().contains_key("delete"));
    stop.cancel();
    running.await.unwrap().unwrap();
    fixture.shut_down().await;
}
