//! A process with the roles of snapshots and of provisioning is killed repeatedly with SIGKILL while
//! simulated users take snapshots of their claims, restore and clone them, and delete everything. No other
//! controller runs. In the end every user is finished, no VolumeSnapshot, VolumeSnapshotContent, claim or
//! PersistentVolume is left, and the Go driver has neither snapshots nor volumes.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::{Api, Client, ResourceExt, api::ListParams};
use serde_json::{Value, json};

use super::kills::{KilledProcess, SharedProgress, USERS, kill_repeatedly};
use crate::{
    account::Account,
    claims::Claims,
    cofferdam,
    control_plane::{ControlPlane, ControlPlaneOptions},
    driver::CsiDriverProcess,
    namespaces, retry,
    run::SuiteRun,
    snapshot_crds,
    snapshots::{Snapshots, is_ready, text_at},
    wait::until,
};

const DRIVER: &str = "snapshot-crashes.conformance.cofferdam.dev";
const NAMESPACE: &str = "snapshot-crashes";
const ROLES: [&str; 5] = ["provisioner", "pv-controller", "protection", "snapshot-controller", "snapshotter"];
/// Duration of each call of the driver: a kill may lose the responses of calls.
const LATENCY: Duration = Duration::from_millis(150);
/// Time limit of a user's step, beside the kills of the process.
const TIMEOUT: Duration = Duration::from_secs(600);
/// Pause until a user asks again whether it may start.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

pub(in crate::suites) async fn run(run: &SuiteRun) -> Result<()> {
    let plane = ControlPlane::start(run, ControlPlaneOptions::default()).await?;
    let client = plane.client();
    snapshot_crds::install(client).await?;
    let driver = CsiDriverProcess::start(run, DRIVER, &["--attach=false"]).await?;
    driver.set_latency(LATENCY).await?;
    // Creates the namespace and the StorageClass.
    Claims::new(client, NAMESPACE, DRIVER).await?;
    let workload = Workload {
        claims: Api::namespaced(client.clone(), NAMESPACE),
        volumes: Api::all(client.clone()),
        snapshots: Snapshots::new(client, NAMESPACE, DRIVER).await?,
        progress: SharedProgress::default(),
    };
    let account = Account::new(run, &plane, &ROLES).await?;
    let port = run.free_port()?;
    let spec = cofferdam::command_with_csi_driver(run, account.kubeconfig(), &ROLES, driver.socket(), port)
        .arg(format_args!("--namespace={}", namespaces::COFFERDAM))
        // The orphan scan must not hide leaks from the suite.
        .arg("--orphan-scan-interval=off");
    let mut cofferdam = KilledProcess::start(run, spec, port).await?;

    let users = try_join_all((0..USERS).map(|user| workload.run_user(user)));
    tokio::try_join!(
        async { users.await.map(drop) },
        kill_repeatedly(
            run,
            &mut cofferdam,
            &workload.progress,
            "users, each with a claim and a snapshot, two thirds with a restored and a cloned claim"
        )
    )?;
    let left = remaining(client, &workload.snapshots).await?;
    ensure!(left.is_empty(), "left in the API: {left:?}");
    let (volumes, snapshots) = (driver.volumes().await?, driver.snapshots().await?);
    ensure!(volumes.is_empty(), "{} volumes are left at the storage: {volumes:?}", volumes.len());
    ensure!(snapshots.is_empty(), "{} snapshots are left at the storage: {snapshots:?}", snapshots.len());
    let calls = driver.call_counts().await?;
    let times = |method: &str| format!("{method} {}", calls.get(method).copied().unwrap_or_default());
    let methods = ["CreateSnapshot", "DeleteSnapshot", "CreateVolume", "DeleteVolume"];
    run.add_note(&format!("calls: {}", methods.map(times).join(", ")))?;
    cofferdam.process.stop().await?;
    plane.stop().await
}

/// The users of the namespace, and their objects.
struct Workload {
    claims: Api<PersistentVolumeClaim>,
    volumes: Api<PersistentVolume>,
    snapshots: Snapshots,
    progress: SharedProgress,
}

/// Behavior of a user between the creation of its snapshot and the deletion of its objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UserKind {
    /// Waits until the snapshot is ready, then restores and clones.
    Patient,
    /// Restores and clones at once.
    Hasty,
    /// Neither restores nor clones, and does not wait until the snapshot is ready.
    Brief,
}

impl UserKind {
    const fn of(user: usize) -> Self {
        match user % 3 {
            0 => Self::Patient,
            1 => Self::Hasty,
            _ => Self::Brief,
        }
    }
}

impl Workload {
    /// A user's life, once the user is expected: until its objects are gone.
    async fn run_user(&self, user: usize) -> Result<()> {
        while self.progress.expected_users.get() <= user {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        self.take_steps(user).await.with_context(|| format!("user {user}"))?;
        let (steps, finished) = self.progress.steps_and_finished.get();
        self.progress.steps_and_finished.set((steps, finished + 1));
        Ok(())
    }

    fn count_step(&self) {
        let (steps, finished) = self.progress.steps_and_finished.get();
        self.progress.steps_and_finished.set((steps + 1, finished));
    }

    async fn take_steps(&self, user: usize) -> Result<()> {
        let [data, restored, cloned] = ["data", "restored", "cloned"].map(|what| format!("{what}-{user}"));
        let snapshot = data.as_str();
        let kind = UserKind::of(user);
        self.create_claim(&data, Value::Null).await?;
        self.wait_bound(&data).await?;
        self.count_step();
        self.snapshots.create_named(snapshot, &data).await?;
        self.count_step();
        let mut claims = vec![data.clone()];
        if kind == UserKind::Patient {
            until(&format!("the snapshot {snapshot} is ready"), TIMEOUT, async || {
                let all = self.snapshots.list().await?;
                let found = all.get(snapshot).context("it does not exist")?;
                ensure!(is_ready(found), "its status is {:?}", found.get("status"));
                Ok(())
            })
            .await?;
            self.count_step();
        }
        if kind != UserKind::Brief {
            let source =
                json!({ "apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": data });
            self.create_claim(&restored, source).await?;
            let source = json!({ "kind": "PersistentVolumeClaim", "name": data });
            self.create_claim(&cloned, source).await?;
            self.count_step();
            self.wait_bound(&restored).await?;
            self.wait_bound(&cloned).await?;
            self.count_step();
            claims.extend([restored, cloned]);
        }
        // Both orders of snapshot and source.
        let is_snapshot_first = user.is_multiple_of(2);
        if is_snapshot_first {
            claims.reverse();
            self.snapshots.delete_named(snapshot).await?;
        }
        for claim in &claims {
            retry::delete(&self.claims, claim).await?;
        }
        if !is_snapshot_first {
            self.snapshots.delete_named(snapshot).await?;
        }
        self.count_step();
        self.wait_gone(snapshot, &claims).await?;
        self.count_step();
        Ok(())
    }

    async fn create_claim(&self, name: &str, source: Value) -> Result<()> {
        let claim = serde_json::from_value(json!({
            "metadata": { "name": name },
            "spec": {
                "storageClassName": NAMESPACE,
                "accessModes": ["ReadWriteOnce"],
                "resources": { "requests": { "storage": "1Gi" } },
                "dataSource": source,
            },
        }))?;
        retry::create(&self.claims, &claim).await
    }

    async fn wait_bound(&self, name: &str) -> Result<()> {
        until(&format!("the claim {name} is Bound"), TIMEOUT, async || {
            let phase = self.claims.get(name).await?.status.and_then(|status| status.phase);
            ensure!(phase.as_deref() == Some("Bound"), "it is {phase:?}");
            Ok(())
        })
        .await
    }

    /// Waits until a snapshot, claims of these names, their volumes and the snapshot's content are gone.
    async fn wait_gone(&self, snapshot: &str, claims: &[String]) -> Result<()> {
        until(&format!("the objects of {snapshot} are gone"), TIMEOUT, async || {
            let all = self.claims.list(&ListParams::default()).await?.items;
            let left = all.iter().map(ResourceExt::name_any).find(|name| claims.contains(name));
            ensure!(left.is_none(), "the claim {left:?} exists");
            let volumes = self.volumes.list(&ListParams::default()).await?.items;
            let owner = |volume: &PersistentVolume| volume.spec.as_ref()?.claim_ref.as_ref()?.name.clone();
            let left = volumes.iter().filter_map(owner).find(|name| claims.contains(name));
            ensure!(left.is_none(), "a volume of {left:?} exists");
            ensure!(!self.snapshots.list().await?.contains_key(snapshot), "the snapshot exists");
            let contents = self.snapshots.contents().await?;
            let mut owners =
                contents.values().map(|content| text_at(content, "/spec/volumeSnapshotRef/name"));
            ensure!(owners.all(|name| name != snapshot), "its content exists");
            Ok(())
        })
        .await
    }
}

/// Names of all objects that the users or the roles created.
async fn remaining(client: &Client, snapshots: &Snapshots) -> Result<Vec<String>> {
    let claims: Api<PersistentVolumeClaim> = Api::all(client.clone());
    let volumes: Api<PersistentVolume> = Api::all(client.clone());
    let mut names: Vec<String> = snapshots.list().await?.into_keys().collect();
    names.extend(snapshots.contents().await?.into_keys());
    names.extend(claims.list(&ListParams::default()).await?.items.iter().map(ResourceExt::name_any));
    names.extend(volumes.list(&ListParams::default()).await?.items.iter().map(ResourceExt::name_any));
    Ok(names)
}
