//! The snapshot loads: a burst of snapshots, then many snapshots of as many volumes, which are deleted at the
//! end. Cofferdam's roles `provisioner` and `pv-controller` create the volumes, and stop before the loads
//! start. In the configuration without controllers, clients make the writes of Cofferdam's controllers.

use std::{collections::HashMap, ops::Range, time::Instant};

use anyhow::Result;
use kube::Client;
use serde_json::{Value, json};

use super::{
    configurations::{DRIVER, RunningConfiguration, start_control_plane},
    load::{ClaimLoad, LoadTiming, ObjectObserver, ObjectState, for_each_user, send},
    measure::UsageReading,
    recorder::LoadRecorder,
    results::{ConfigurationResults, LoadKind},
    upper_bound::{self, ProvisioningMode, measure_each},
};
use crate::{
    account::Account,
    cofferdam,
    control_plane::{ApiUser, ControlPlane},
    driver::CsiDriverProcess,
    implementation::Implementation,
    process::ManagedProcess,
    run::SuiteRun,
    sidecar, snapshot_crds,
};

/// Number of snapshots of the burst.
const BURST: usize = 80;
/// Namespace of claims and snapshots, and name of the VolumeSnapshotClass.
pub(super) const NAMESPACE: &str = "snapshots";
pub(super) const GROUP_PATH: &str = "/apis/snapshot.storage.k8s.io/v1";
const WORKERS: &str = "--worker-threads=100";

/// The controllers of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SnapshotSubject {
    /// snapshot-controller and csi-snapshotter with their default flags. Only the burst is measured.
    UpstreamWithDefaults,
    /// snapshot-controller and csi-snapshotter with unlimited client rates.
    Upstream,
    /// Both roles of Cofferdam in one process.
    Cofferdam,
}

/// The subjects in the order of measurement. Each has a control plane of its own.
const SUBJECTS: [SnapshotSubject; 3] =
    [SnapshotSubject::UpstreamWithDefaults, SnapshotSubject::Upstream, SnapshotSubject::Cofferdam];

/// Measures all subjects one after the other, then the API server only.
///
/// # Errors
/// If a process does not run, or a load does not finish in time.
pub(super) async fn measure(run: &SuiteRun, count: usize) -> Result<Vec<ConfigurationResults>> {
    let mut all = Vec::new();
    for subject in SUBJECTS {
        all.push(subject.measure(run, count).await?);
    }
    all.push(measure_upper_bound(run, count).await?);
    Ok(all)
}

impl SnapshotSubject {
    const fn name(self) -> &'static str {
        match self {
            Self::UpstreamWithDefaults => "Upstream, snapshots, default rates",
            Self::Upstream => "Upstream, snapshots",
            Self::Cofferdam => "Cofferdam, snapshots",
        }
    }

    const fn description(self) -> &'static str {
        match self {
            Self::UpstreamWithDefaults => {
                "snapshot-controller and csi-snapshotter with their default flags, the Go driver on a unix \
                 socket"
            }
            Self::Upstream => "the same with client rates unlimited and 100 workers each",
            Self::Cofferdam => {
                "`cofferdam run` with snapshot-controller and snapshotter, the Go driver on a unix socket"
            }
        }
    }

    const fn implementation(self) -> Implementation {
        match self {
            Self::UpstreamWithDefaults | Self::Upstream => Implementation::Upstream,
            Self::Cofferdam => Implementation::Cofferdam,
        }
    }

    async fn measure(self, run: &SuiteRun, count: usize) -> Result<ConfigurationResults> {
        let plane = start_control_plane(run).await?;
        let client = plane.client().clone();
        snapshot_crds::install(&client).await?;
        let watches = UsageReading::when_idle(&client, &[]).await?.watches();
        let driver = CsiDriverProcess::start(run, DRIVER, &["--attach=false"]).await?;
        let account = Account::new(run, &plane, &["provisioner", "pv-controller"]).await?;
        let mut provisioning = cofferdam::start_with_csi_driver(run, &account, driver.socket()).await?;
        let (_, volumes) =
            ClaimLoad::new(&client, NAMESPACE, Some(DRIVER)).await?.bind_all(count.max(BURST)).await?;
        provisioning.stop().await?;

        let load = SnapshotLoad::new(&client).await?;
        let processes = self.start_controllers(run, &plane, &driver).await?;
        let controllers = RunningConfiguration {
            driver_name: DRIVER,
            controllers: processes,
            drivers: vec![driver.process],
        };
        let mut recorder = LoadRecorder::new(self.name(), &plane, controllers.processes(), watches).await?;
        recorder.begin_load().await?;
        let timing = load.take_all("burst", BURST).await?;
        recorder.end_load(LoadKind::TakeSnapshotBurst, &timing).await?;
        if self != Self::UpstreamWithDefaults {
            let timing = load.take_all("load", volumes.len()).await?;
            recorder.end_load(LoadKind::TakeSnapshots, &timing).await?;
            let timing = load.delete_all("load", volumes.len()).await?;
            recorder.end_load(LoadKind::DeleteSnapshots, &timing).await?;
        }
        let results = ConfigurationResults {
            name: self.name().to_owned(),
            description: self.description().to_owned(),
            implementation: Some(self.implementation()),
            controllers: controllers.names(),
            loads: recorder.into_measurements(),
        };
        controllers.stop().await?;
        drop((load, client));
        plane.stop().await?;
        Ok(results)
    }

    async fn start_controllers(
        self,
        run: &SuiteRun,
        plane: &ControlPlane,
        driver: &CsiDriverProcess,
    ) -> Result<Vec<ManagedProcess>> {
        if self == Self::Cofferdam {
            let account = Account::new(run, plane, &["snapshot-controller", "snapshotter"]).await?;
            return Ok(vec![cofferdam::start_with_csi_driver(run, &account, driver.socket()).await?]);
        }
        let kubeconfig = plane.kubeconfig(ApiUser::Admin)?;
        let mut processes = Vec::new();
        for (name, socket) in [("snapshot-controller", None), ("csi-snapshotter", Some(driver.socket()))] {
            let spec = sidecar::upstream_command(run, name)?;
            processes.push(if self == Self::Upstream {
                sidecar::start_program(run, spec, &kubeconfig, socket, &[WORKERS]).await?
            } else {
                sidecar::start_with_default_rates(run, spec, &kubeconfig, socket, &[]).await?
            });
        }
        Ok(processes)
    }
}

/// VolumeSnapshots of the claims `claim-0`, `claim-1` and so on.
pub(super) struct SnapshotLoad {
    client: Client,
}

impl SnapshotLoad {
    /// Creates the VolumeSnapshotClass.
    ///
    /// # Errors
    /// If the API server rejects it.
    pub(super) async fn new(client: &Client) -> Result<Self> {
        let class = json!({
            "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotClass",
            "metadata": { "name": NAMESPACE }, "driver": DRIVER, "deletionPolicy": "Delete",
        });
        send(client, "POST", &format!("{GROUP_PATH}/volumesnapshotclasses"), &class).await?;
        Ok(Self { client: client.clone() })
    }

    pub(super) fn snapshots_path() -> String {
        format!("{GROUP_PATH}/namespaces/{NAMESPACE}/volumesnapshots")
    }

    pub(super) fn snapshot(prefix: &str, number: usize) -> Value {
        json!({
            "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
            "metadata": { "name": format!("{prefix}-{number}") },
            "spec": {
                "volumeSnapshotClassName": NAMESPACE,
                "source": { "persistentVolumeClaimName": format!("claim-{number}") },
            },
        })
    }

    /// Creates snapshots concurrently, and waits until the last one is ready.
    ///
    /// # Errors
    /// If the API server rejects one, or a snapshot is not ready in time.
    async fn take_all(&self, prefix: &str, count: usize) -> Result<LoadTiming> {
        self.take_numbers(prefix, 0..count).await
    }

    /// As [`take_all`](Self::take_all), for the claims of these numbers.
    ///
    /// # Errors
    /// As [`take_all`](Self::take_all).
    pub(super) async fn take_numbers(&self, prefix: &str, numbers: Range<usize>) -> Result<LoadTiming> {
        self.run(ObjectState::ReadyToUse, numbers.len(), async |index| {
            let number = numbers.start + index;
            send(&self.client, "POST", &Self::snapshots_path(), &Self::snapshot(prefix, number)).await?;
            Ok(format!("{prefix}-{number}"))
        })
        .await
    }

    /// Deletes snapshots concurrently, and waits until the last one is removed.
    ///
    /// # Errors
    /// If the API server rejects a deletion, or a snapshot is not removed in time.
    async fn delete_all(&self, prefix: &str, count: usize) -> Result<LoadTiming> {
        self.run(ObjectState::Deleted, count, async |number| {
            let name = format!("{prefix}-{number}");
            let path = format!("{}/{name}", Self::snapshots_path());
            send(&self.client, "DELETE", &path, &Value::Null).await?;
            Ok(name)
        })
        .await
    }

    async fn run(
        &self,
        state: ObjectState,
        count: usize,
        start: impl AsyncFn(usize) -> Result<String>,
    ) -> Result<LoadTiming> {
        let observer = ObjectObserver::start(&self.client, &Self::snapshots_path(), state).await?;
        let started = Instant::now();
        let sent: HashMap<String, Instant> = for_each_user(count, async |number| {
            let sent_at = Instant::now();
            Ok((start(number).await?, sent_at))
        })
        .await?
        .into_iter()
        .collect();
        let observed = observer.wait_for_each(&sent).await?;
        LoadTiming::from_observations(started, &sent, &observed)
    }

    /// Makes the writes that take a snapshot: the client's and those of Cofferdam's controllers.
    async fn write_taken(&self, prefix: &str, number: usize) -> Result<()> {
        let claim = format!("/api/v1/namespaces/{NAMESPACE}/persistentvolumeclaims/claim-{number}");
        let snapshot = format!("{}/{prefix}-{number}", Self::snapshots_path());
        let contents = format!("{GROUP_PATH}/volumesnapshotcontents");
        let name = format!("content-{prefix}-{number}");
        let content = format!("{contents}/{name}");
        let object = json!({
            "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent",
            "metadata": { "name": name, "finalizers": ["example.com/bound"] },
            "spec": {
                "deletionPolicy": "Delete", "driver": DRIVER, "sourceVolumeMode": "Filesystem",
                "source": { "volumeHandle": format!("v-{number}") },
                "volumeSnapshotClassName": NAMESPACE,
                "volumeSnapshotRef": { "namespace": NAMESPACE, "name": format!("{prefix}-{number}") },
            },
        });
        let annotation =
            |value: Value| json!({ "metadata": { "annotations": { "example.com/open": value } } });
        let finalizers = |value: Value| json!({ "metadata": { "finalizers": value } });
        let content_status = json!({ "status": {
            "snapshotHandle": format!("s-{prefix}-{number}"), "creationTime": 1, "readyToUse": true,
            "restoreSize": 1 << 30,
        } });
        let snapshot_status = json!({ "status": {
            "boundVolumeSnapshotContentName": name, "readyToUse": true, "restoreSize": "1Gi",
            "creationTime": "2026-01-01T00:00:00Z",
        } });
        for (method, path, body) in [
            ("POST", &Self::snapshots_path(), &Self::snapshot(prefix, number)),
            ("PATCH", &snapshot, &finalizers(json!(["example.com/source"]))),
            ("PATCH", &claim, &finalizers(json!(["example.com/source"]))),
            ("POST", &contents, &object),
            ("PATCH", &snapshot, &finalizers(json!(["example.com/bound", "example.com/source"]))),
            (
                "PATCH",
                &format!("{snapshot}/status"),
                &json!({ "status": { "boundVolumeSnapshotContentName": name, "readyToUse": false } }),
            ),
            ("PATCH", &content, &annotation(json!("yes"))),
            ("PATCH", &format!("{content}/status"), &content_status),
            ("PATCH", &content, &annotation(Value::Null)),
            ("PATCH", &format!("{snapshot}/status"), &snapshot_status),
            ("PATCH", &claim, &finalizers(Value::Null)),
        ] {
            send(&self.client, method, path, body).await?;
        }
        Ok(())
    }

    /// Makes the writes that delete a snapshot: the client's and those of Cofferdam's controllers.
    async fn write_deleted(&self, prefix: &str, number: usize) -> Result<()> {
        let snapshot = format!("{}/{prefix}-{number}", Self::snapshots_path());
        let content = format!("{GROUP_PATH}/volumesnapshotcontents/content-{prefix}-{number}");
        let finalizers = json!({ "metadata": { "finalizers": null } });
        let bound_only = json!({ "metadata": { "finalizers": ["example.com/bound"] } });
        let status = json!({ "status": {
            "snapshotHandle": null, "creationTime": null, "readyToUse": null, "restoreSize": null,
        } });
        let annotation = json!({ "metadata": { "annotations": { "example.com/deleted": "yes" } } });
        for (method, path, body) in [
            ("DELETE", &snapshot, &Value::Null),
            ("PATCH", &content, &annotation),
            ("DELETE", &content, &Value::Null),
            ("PATCH", &snapshot, &bound_only),
            ("PATCH", &format!("{content}/status"), &status),
            ("PATCH", &content, &finalizers),
            ("PATCH", &snapshot, &finalizers),
        ] {
            send(&self.client, method, path, body).await?;
        }
        Ok(())
    }
}

/// Measures the loads without controllers. The throughput is the upper bound for controllers.
async fn measure_upper_bound(run: &SuiteRun, count: usize) -> Result<ConfigurationResults> {
    const NAME: &str = "API only, snapshots";
    let plane = start_control_plane(run).await?;
    let client = plane.client().clone();
    snapshot_crds::install(&client).await?;
    let watches = UsageReading::when_idle(&client, &[]).await?.watches();
    let claims = ClaimLoad::new(&client, NAMESPACE, Some(DRIVER)).await?;
    upper_bound::bind_all(&claims, count.max(BURST), ProvisioningMode::Dynamic).await?;
    let load = SnapshotLoad::new(&client).await?;
    let mut recorder = LoadRecorder::new(NAME, &plane, std::iter::empty(), watches).await?;
    recorder.begin_load().await?;
    let timing = measure_each(BURST, async |number| load.write_taken("burst", number).await).await?;
    recorder.end_load(LoadKind::TakeSnapshotBurst, &timing).await?;
    let timing = measure_each(count, async |number| load.write_taken("load", number).await).await?;
    recorder.end_load(LoadKind::TakeSnapshots, &timing).await?;
    let timing = measure_each(count, async |number| load.write_deleted("load", number).await).await?;
    recorder.end_load(LoadKind::DeleteSnapshots, &timing).await?;
    let loads = recorder.into_measurements();
    drop((claims, load, client));
    plane.stop().await?;
    Ok(ConfigurationResults {
        name: NAME.to_owned(),
        description:
            "eleven writes to take and seven to delete, made by the clients; no controllers, no watches"
                .to_owned(),
        implementation: None,
        controllers: Vec::new(),
        loads,
    })
}
