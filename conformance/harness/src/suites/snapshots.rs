//! Cofferdam and upstream replace each other as snapshot-controller and csi-snapshotter of a Go driver: twice
//! while 200 snapshots are taken, and once while they are deleted. Each replacement kills both processes, and
//! starts the other ones when work is pending. Cofferdam's processes have the names, the flags and the Leases
//! of the upstream programs. csi-provisioner and the upstream binder provide the source claims.
//!
//! Snapshots and their contents have the finalizers, annotations, labels and statuses that the upstream
//! programs alone give them. No snapshot is left at the storage after the deletion. Cofferdam alone emits
//! events with the reasons of the upstream programs, and its processes have their metrics.
//!
//! At the end, Cofferdam's programs start beside CustomResourceDefinitions that serve only v1beta1.

mod reference;
mod versions;

use std::{path::PathBuf, time::Duration};

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::{Api, Client, api::ListParams};

use crate::{
    account::Account,
    claims::Claims,
    control_plane::{ApiUser, BINDER_CONTROLLERS, ControlPlane, ControlPlaneOptions},
    driver::CsiDriverProcess,
    implementation::Implementation,
    metric_names::{self, UpstreamProgram},
    process::ManagedProcess,
    run::SuiteRun,
    sidecar, snapshot_crds,
    snapshots::Snapshots,
    wait::until,
};

const DRIVER: &str = "snapshots.conformance.cofferdam.dev";
const NAMESPACE: &str = "snapshots";
/// Number of claims, the sources of the snapshots.
const CLAIMS: usize = 20;
const SNAPSHOTS: usize = 200;
/// Number of ready snapshots at the first and at the second replacement.
const READY_AT_SWAPS: [usize; 2] = [50, 120];
/// Number of snapshots that are created at each of these replacements, after both processes are killed.
const CREATED_AT_SWAP: usize = 30;
/// Number of deleted snapshots at the third replacement.
const DELETED_AT_SWAP: usize = 50;
/// Number of snapshots whose deletion is requested after both processes are killed.
const DELETED_LATER: usize = 40;
/// Duration of each call. With [`WORKERS`] calls at a time, calls are under way at a replacement.
const LATENCY: Duration = Duration::from_millis(400);
const WORKERS: &str = "--worker-threads=20";
const TIMEOUT: Duration = Duration::from_secs(300);
/// Finalizer of a claim while a snapshot is taken of it.
const SOURCE_FINALIZER: &str = "snapshot.storage.kubernetes.io/pvc-as-source-protection";
/// Annotation of a content while Cofferdam calls CreateSnapshot. csi-snapshotter does not know it, so it
/// stays on the contents that csi-snapshotter finishes.
const REQUEST_ANNOTATION: &str = "cofferdam.dev/create-snapshot-request";

pub(super) async fn run(run: &SuiteRun) -> Result<()> {
    let options = ControlPlaneOptions {
        controllers: Some(BINDER_CONTROLLERS.to_owned()),
        is_unlimited: true,
        ..ControlPlaneOptions::default()
    };
    let plane = ControlPlane::start(run, options).await?;
    let client = plane.client();
    snapshot_crds::install(client).await?;
    let driver = CsiDriverProcess::start(run, DRIVER, &["--attach=false"]).await?;
    let kubeconfig = plane.kubeconfig(ApiUser::Admin)?;
    let mut provisioner = sidecar::start(run, "csi-provisioner", &kubeconfig, driver.socket(), &[]).await?;
    let claims = Claims::new(client, NAMESPACE, DRIVER).await?;
    claims.create(0..CLAIMS).await?;
    claims.wait_bound(CLAIMS, TIMEOUT).await?;

    let snapshots = Snapshots::new(client, NAMESPACE, DRIVER).await?;
    let mut controllers = SnapshotControllers {
        snapshot_controller: Account::new(run, &plane, &["snapshot-controller"]).await?,
        snapshotter: Account::new(run, &plane, &["snapshotter"]).await?,
        kubeconfig,
        driver,
        run,
        processes: Vec::new(),
    };
    let reference = reference::take(&snapshots, &mut controllers, client).await?;
    for initial in [Implementation::Upstream, Implementation::Cofferdam] {
        replace_during_creation(&snapshots, initial, &mut controllers, &reference).await?;
        ensure_unprotected(client).await?;
        replace_during_deletion(&snapshots, initial, &mut controllers).await?;
    }
    controllers.stop().await?;
    versions::run(run, &snapshots, &mut controllers, client).await?;
    claims.delete(0..CLAIMS).await?;
    claims.wait_remaining(0, TIMEOUT).await?;
    let stored = controllers.driver.volumes().await?;
    ensure!(stored.is_empty(), "{} volumes are left at the storage: {stored:?}", stored.len());
    provisioner.stop().await?;
    controllers.driver.process.stop().await?;
    plane.stop().await?;
    let program = |name, replacement, prefixes| UpstreamProgram { name, replacement, prefixes };
    metric_names::compare(
        run,
        &[
            program("csi-snapshotter", "cofferdam-csi-snapshotter", metric_names::SIDECAR_PREFIXES),
            program(
                "snapshot-controller",
                "cofferdam-snapshot-controller",
                &["process_", "snapshot_controller_"],
            ),
        ],
    )
}

/// snapshot-controller and csi-snapshotter, of which one implementation runs at a time.
struct SnapshotControllers<'a> {
    run: &'a SuiteRun,
    driver: CsiDriverProcess,
    /// The administrator's, for the upstream programs.
    kubeconfig: PathBuf,
    /// Of Cofferdam's processes, with exactly their rights.
    snapshot_controller: Account,
    snapshotter: Account,
    processes: Vec<ManagedProcess>,
}

impl SnapshotControllers<'_> {
    /// Starts both programs of an implementation, and waits until they serve their metrics.
    async fn start(&mut self, implementation: Implementation) -> Result<()> {
        let programs = [
            ("snapshot-controller", &self.snapshot_controller, None),
            ("csi-snapshotter", &self.snapshotter, Some(self.driver.socket())),
        ];
        let leader_election = sidecar::leader_election();
        let mut flags: Vec<&str> = leader_election.iter().map(String::as_str).collect();
        flags.push(WORKERS);
        for (name, account, socket) in programs {
            let (spec, kubeconfig) = match implementation {
                Implementation::Upstream => {
                    (sidecar::upstream_command(self.run, name)?, self.kubeconfig.as_path())
                }
                Implementation::Cofferdam => {
                    (sidecar::cofferdam_command(self.run, name)?, account.kubeconfig())
                }
            };
            let started = sidecar::start_program(self.run, spec, kubeconfig, socket, &flags).await?;
            self.processes.push(started);
        }
        Ok(())
    }

    /// Kills both programs.
    async fn kill(&mut self) -> Result<()> {
        for mut process in self.processes.drain(..) {
            process.kill().await?;
        }
        Ok(())
    }

    /// Stops both programs.
    async fn stop(&mut self) -> Result<()> {
        for mut process in self.processes.drain(..) {
            process.stop().await?;
        }
        Ok(())
    }
}

/// Replaces the programs by the other implementation and back while snapshots are taken. Checks snapshots,
/// contents and storage. At the end, `initial` runs.
async fn replace_during_creation(
    snapshots: &Snapshots,
    initial: Implementation,
    controllers: &mut SnapshotControllers<'_>,
    reference: &str,
) -> Result<()> {
    controllers.driver.set_latency(LATENCY).await?;
    // The controllers may be faster than the creation of the objects.
    let mut created = SNAPSHOTS - READY_AT_SWAPS.len() * CREATED_AT_SWAP;
    snapshots.create(0..created, CLAIMS).await?;
    controllers.start(initial).await?;
    let mut unready = Vec::new();
    for (ready, next) in READY_AT_SWAPS.into_iter().zip([initial.other(), initial]) {
        snapshots.wait_ready(ready, TIMEOUT).await?;
        controllers.kill().await?;
        // On a slow machine all of them may be ready when the processes are killed.
        unready.push(snapshots.count_unready().await?);
        snapshots.create(created..created + CREATED_AT_SWAP, CLAIMS).await?;
        created += CREATED_AT_SWAP;
        controllers.start(next).await?;
    }
    snapshots.wait_ready(SNAPSHOTS, TIMEOUT).await?;
    controllers.driver.set_latency(Duration::ZERO).await?;
    let mut with_request = 0;
    until("all snapshots have the form of the upstream programs", TIMEOUT, async || {
        let mut forms = snapshots.forms().await?;
        forms.remove(reference);
        with_request = 0;
        for (form, names) in forms {
            let without = without_request(&form)?;
            ensure!(without == reference, "{names:?} have {form}: expected {reference}");
            with_request += names.len();
        }
        Ok(())
    })
    .await?;
    snapshots.ensure_consistent(SNAPSHOTS, &controllers.driver.snapshots().await?).await?;
    controllers.run.add_note(&format!(
        "{} first: {SNAPSHOTS} snapshots equal those of upstream; {unready:?} were not ready at the two kills; \
         {with_request} contents have {REQUEST_ANNOTATION} in addition",
        initial.as_str()
    ))
}

/// A form without Cofferdam's annotation, whose value was a call that upstream has ended.
fn without_request(form: &str) -> Result<String> {
    let mut form: serde_json::Value = serde_json::from_str(form)?;
    let annotations = form.pointer_mut("/content/metadata/annotations");
    if let Some(annotations) = annotations.and_then(serde_json::Value::as_object_mut) {
        annotations.remove(REQUEST_ANNOTATION);
    }
    Ok(form.to_string())
}

/// No claim has the finalizer of a source, because no snapshot is being taken.
async fn ensure_unprotected(client: &Client) -> Result<()> {
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), NAMESPACE);
    until("no claim has the finalizer of a source", TIMEOUT, async || {
        for claim in claims.list(&ListParams::default()).await?.items {
            let finalizers = claim.metadata.finalizers.unwrap_or_default();
            ensure!(!finalizers.contains(&SOURCE_FINALIZER.to_owned()), "{:?} has", claim.metadata.name);
        }
        Ok(())
    })
    .await
}

/// Replaces the programs by the other implementation while snapshots are deleted. Checks that the storage has
/// no snapshot.
async fn replace_during_deletion(
    snapshots: &Snapshots,
    initial: Implementation,
    controllers: &mut SnapshotControllers<'_>,
) -> Result<()> {
    controllers.driver.set_latency(LATENCY).await?;
    let swap = async {
        snapshots.wait_remaining(SNAPSHOTS - DELETED_AT_SWAP, TIMEOUT).await?;
        controllers.kill().await?;
        snapshots.delete(SNAPSHOTS - DELETED_LATER..SNAPSHOTS).await?;
        controllers.start(initial.other()).await?;
        snapshots.wait_remaining(0, TIMEOUT).await
    };
    tokio::try_join!(snapshots.delete(0..SNAPSHOTS - DELETED_LATER), swap)?;
    controllers.stop().await?;
    controllers.driver.set_latency(Duration::ZERO).await?;
    let stored = controllers.driver.snapshots().await?;
    ensure!(stored.is_empty(), "{} snapshots are left at the storage: {stored:?}", stored.len());
    Ok(())
}
