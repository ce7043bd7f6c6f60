//! The upstream sidecars, and Cofferdam under their names and with their command lines, give the same results
//! for a Go driver with the oddities of public drivers. Each row runs with both implementations, one after
//! the other, and has one expected result. A planted Secret value must not be found outside of its Secret.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::{
    core::v1::{Event, PersistentVolume},
    storage::v1::VolumeAttachment,
};
use kube::{Api, Client, api::ListParams};
use serde_json::json;

use super::{simulated_node, slot::SLOTS};
use crate::{
    account::Account,
    claims::Claims,
    class_secret::{self, ClassSecret},
    control_plane::{ApiUser, BINDER_CONTROLLERS, ControlPlane, ControlPlaneOptions},
    driver::CsiDriverProcess,
    implementation::Implementation,
    journal,
    process::ManagedProcess,
    retry,
    run::SuiteRun,
    sidecar,
    wait::until,
};

const TIMEOUT: Duration = Duration::from_secs(120);
const NODE: &str = "node-1";
const CLAIM: &str = "claim-0";
const ATTACHMENT: &str = "attachment";
const LARGER_SIZE: &str = "2Gi";
/// Maximum length of a string field in CSI, in bytes.
const LONGEST_CSI_ID: usize = 128;
/// Length of the longest id that Cofferdam accepts, in bytes. The sidecars have no limit.
const LONGEST_ID: usize = 4 << 10;
/// Number of Probe calls until the driver is ready.
const PROBES_UNTIL_READY: u64 = 3;

/// An oddity of a driver, and what to do and to expect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Row {
    /// Calls without the Secret of the class fail with this code. The Secret is wrong at first.
    Secret(&'static str),
    /// Volumes have a topology although the driver lacks VOLUME_ACCESSIBILITY_CONSTRAINTS.
    UndeclaredTopology,
    /// The driver lacks CREATE_DELETE_VOLUME.
    NoCreate,
    /// Volume ids have this length in bytes.
    LongIds(usize),
    /// After a timeout CreateVolume fails with Internal.
    StuckCreate,
    /// After a timeout ControllerExpandVolume fails with Internal.
    StuckExpand,
    /// The driver is ready at the third Probe.
    ReadyLate,
}

const ROWS: [Row; 9] = [
    Row::Secret("UNAUTHENTICATED"),
    Row::Secret("INVALID_ARGUMENT"),
    Row::UndeclaredTopology,
    Row::NoCreate,
    Row::LongIds(LONGEST_CSI_ID),
    Row::LongIds(LONGEST_ID),
    Row::StuckCreate,
    Row::StuckExpand,
    Row::ReadyLate,
];

pub(in crate::suites) async fn run(run: &SuiteRun) -> Result<()> {
    let options = ControlPlaneOptions {
        controllers: Some(BINDER_CONTROLLERS.to_owned()),
        has_audited_bodies: true,
        ..ControlPlaneOptions::default()
    };
    let plane = ControlPlane::start(run, options).await?;
    let mut accounts = Vec::new();
    for slot in SLOTS {
        let flags = ["--secret-namespaces", "*"];
        accounts.push(Account::with_flags(run, &plane, &[slot.role], &flags).await?);
    }
    for row in ROWS {
        for implementation in [Implementation::Upstream, Implementation::Cofferdam] {
            let case = Case::start(run, &plane, &accounts, row, implementation).await?;
            case.run(run).await.with_context(|| format!("{row:?} with {}", implementation.as_str()))?;
        }
    }
    plane.stop().await
}

/// A row with one implementation: its driver, its controllers and its namespace.
struct Case {
    row: Row,
    implementation: Implementation,
    name: String,
    client: Client,
    claims: Claims,
    secret: ClassSecret,
    driver: CsiDriverProcess,
    controllers: Vec<ManagedProcess>,
}

impl Row {
    fn name(self) -> String {
        match self {
            Self::Secret("INVALID_ARGUMENT") => "secret-invalid".to_owned(),
            Self::Secret(_) => "secret".to_owned(),
            Self::UndeclaredTopology => "topology".to_owned(),
            Self::NoCreate => "no-create".to_owned(),
            Self::LongIds(length) => format!("ids-of-{length}"),
            Self::StuckCreate => "stuck-create".to_owned(),
            Self::StuckExpand => "stuck-expand".to_owned(),
            Self::ReadyLate => "ready-late".to_owned(),
        }
    }

    fn driver_flags(self, secret: &ClassSecret) -> Vec<String> {
        match self {
            Self::Secret(code) => {
                let mut flags = secret.driver_flags(&class_secret::CONTROLLER_METHODS);
                flags.push(format!("--secret-code={code}"));
                flags
            }
            Self::UndeclaredTopology => vec!["--undeclared-topology".to_owned()],
            Self::NoCreate => vec!["--no-create".to_owned()],
            Self::LongIds(length) => vec![format!("--id-length={length}")],
            Self::StuckCreate | Self::StuckExpand => Vec::new(),
            Self::ReadyLate => vec![format!("--not-ready={}", PROBES_UNTIL_READY - 1)],
        }
    }
}

impl Case {
    async fn start(
        run: &SuiteRun,
        plane: &ControlPlane,
        accounts: &[Account],
        row: Row,
        implementation: Implementation,
    ) -> Result<Self> {
        let name = format!("{}-{}", row.name(), implementation.as_str().to_lowercase());
        // Every case has its own logs.
        let run = &run.subdirectory(&name)?;
        // Short: the path of a socket has at most 107 bytes.
        let driver_name = format!("{name}.dev");
        let client = plane.client().clone();
        let secret = ClassSecret::random(&name)?;
        let mut flags = row.driver_flags(&secret);
        flags.push("--any-node".to_owned());
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let driver = CsiDriverProcess::start(run, &driver_name, &flags).await?;
        let parameters = match row {
            Row::Secret(_) => json!({
                "csi.storage.k8s.io/controller-expand-secret-name": class_secret::NAME,
                "csi.storage.k8s.io/controller-expand-secret-namespace": "${pvc.namespace}",
                "csi.storage.k8s.io/controller-publish-secret-name": class_secret::NAME,
                "csi.storage.k8s.io/controller-publish-secret-namespace": "${pvc.namespace}",
                "csi.storage.k8s.io/provisioner-secret-name": class_secret::NAME,
                "csi.storage.k8s.io/provisioner-secret-namespace": "${pvc.namespace}",
            }),
            Row::UndeclaredTopology
            | Row::NoCreate
            | Row::LongIds(_)
            | Row::StuckCreate
            | Row::StuckExpand
            | Row::ReadyLate => json!({}),
        };
        let claims = Claims::with_parameters(&client, &name, &driver_name, parameters).await?;
        simulated_node::register(&client, NODE, &driver_name, NODE, &BTreeMap::new()).await?;
        let mut controllers = Vec::new();
        for (slot, account) in SLOTS.into_iter().zip(accounts) {
            let sidecar = slot.name;
            let mut flags = vec!["--timeout=3s", "--retry-interval-start=200ms", "--retry-interval-max=1s"];
            if sidecar == "csi-provisioner" {
                // With a topology of the driver it would need one of the node.
                flags.push("--immediate-topology=false");
            }
            controllers.push(match implementation {
                Implementation::Upstream => {
                    let kubeconfig = plane.kubeconfig(ApiUser::Admin)?;
                    sidecar::start(run, sidecar, &kubeconfig, driver.socket(), &flags).await?
                }
                Implementation::Cofferdam => {
                    let kubeconfig = account.kubeconfig();
                    sidecar::start_cofferdam(run, sidecar, kubeconfig, driver.socket(), &flags).await?
                }
            });
        }
        Ok(Self { row, implementation, name, client, claims, secret, driver, controllers })
    }

    async fn run(mut self, run: &SuiteRun) -> Result<()> {
        match self.row {
            Row::Secret(_) => {
                self.secret.write_value(&self.client, "wrong").await?;
                self.claims.create(0..1).await?;
                self.wait_event("ProvisioningFailed", "CreateVolume requires the secret").await?;
                self.secret.write(&self.client).await?;
                if self.row == Row::Secret("INVALID_ARGUMENT")
                    && self.implementation == Implementation::Upstream
                {
                    // csi-provisioner repeats a request with this error only after a long delay.
                    self.claims.delete(0..1).await?;
                    self.claims.wait_remaining(0, TIMEOUT).await?;
                    self.claims.create(0..1).await?;
                }
            }
            Row::StuckCreate => {
                self.driver.set_stuck("CreateVolume", true).await?;
                self.claims.create(0..1).await?;
                self.wait_event("ProvisioningFailed", "CreateVolume is stuck").await?;
                self.driver.set_stuck("CreateVolume", false).await?;
            }
            Row::NoCreate => {
                self.claims.create(0..1).await?;
                self.wait_event("ProvisioningFailed", "CREATE_DELETE_VOLUME").await?;
                return self.finish(run, 0).await;
            }
            Row::UndeclaredTopology | Row::LongIds(_) | Row::StuckExpand | Row::ReadyLate => {
                self.claims.create(0..1).await?;
            }
        }
        self.claims.wait_bound(1, TIMEOUT).await?;
        self.claims.ensure_consistent(1, &self.driver.volumes().await?).await?;
        let volume = self.volume().await?;
        self.check_volume(&volume)?;
        if self.row == Row::StuckExpand {
            self.driver.set_stuck("ControllerExpandVolume", true).await?;
            self.claims.expand(0..1, LARGER_SIZE).await?;
            self.wait_event("VolumeResizeFailed", "ControllerExpandVolume is stuck").await?;
        }
        self.attach(&volume).await?;
        if self.row == Row::StuckExpand {
            self.driver.set_stuck("ControllerExpandVolume", false).await?;
        } else {
            self.claims.expand(0..1, LARGER_SIZE).await?;
        }
        self.claims.wait_capacity(LARGER_SIZE, 1, TIMEOUT).await?;
        self.detach().await?;
        self.finish(run, 1).await
    }

    /// Deletes the claim, checks that nothing is left and how often volumes were created, looks for the
    /// planted value, and stops the processes.
    async fn finish(&mut self, run: &SuiteRun, volumes: u64) -> Result<()> {
        self.claims.delete(0..1).await?;
        self.claims.wait_remaining(0, TIMEOUT).await?;
        let stored = self.driver.volumes().await?;
        ensure!(stored.is_empty(), "{} volumes are left at the storage", stored.len());
        let calls = self.driver.call_counts().await?;
        let created = calls.get("CreateVolume").copied().unwrap_or_default();
        ensure!((volumes == 0) == (created == 0), "{created} calls of CreateVolume");
        let probes = calls.get("Probe").copied().unwrap_or_default();
        ensure!(
            self.row != Row::ReadyLate || probes >= PROBES_UNTIL_READY,
            "{probes} calls of Probe: expected {PROBES_UNTIL_READY}"
        );
        until("an empty journal", TIMEOUT, async || journal::ensure_intents(&self.client, 0).await).await?;
        if matches!(self.row, Row::Secret(_)) {
            let hits = self.secret.search(&self.client, run.directory(), &self.controllers).await?;
            run.add_note(&format!("{}: {hits}", self.name))?;
        }
        for controller in &mut self.controllers {
            controller.stop().await?;
        }
        self.driver.process.stop().await?;
        self.secret.ensure_not_in_files(run.directory())
    }

    /// Waits for an event of the claim with this reason, whose message contains `text`.
    async fn wait_event(&self, reason: &str, text: &str) -> Result<()> {
        let events: Api<Event> = Api::namespaced(self.client.clone(), &self.name);
        until(&format!("the event {reason}: {text}"), TIMEOUT, async || {
            let events = events.list(&ListParams::default()).await?.items;
            let matches = |event: &Event| {
                event.reason.as_deref() == Some(reason)
                    && event.involved_object.name.as_deref() == Some(CLAIM)
                    && event.message.as_deref().is_some_and(|message| message.contains(text))
            };
            let messages: Vec<_> = events.iter().map(|event| (&event.reason, &event.message)).collect();
            ensure!(events.iter().any(matches), "the events are {messages:?}");
            Ok(())
        })
        .await
    }

    async fn volume(&self) -> Result<PersistentVolume> {
        let volumes = Api::<PersistentVolume>::all(self.client.clone()).list(&ListParams::default()).await?;
        volumes.items.into_iter().next().context("no PersistentVolume")
    }

    fn check_volume(&self, volume: &PersistentVolume) -> Result<()> {
        let spec = volume.spec.as_ref().context("a volume without a spec")?;
        ensure!(spec.node_affinity.is_none(), "the volume has a node affinity: {:?}", spec.node_affinity);
        let handle = spec.csi.as_ref().map(|csi| csi.volume_handle.len()).context("a volume without CSI")?;
        if let Row::LongIds(length) = self.row {
            ensure!(handle == length, "the handle has {handle} bytes: expected {length}");
        }
        Ok(())
    }

    fn attachments(&self) -> Api<VolumeAttachment> {
        Api::all(self.client.clone())
    }

    async fn attach(&self, volume: &PersistentVolume) -> Result<()> {
        let csi = volume.spec.as_ref().and_then(|spec| spec.csi.as_ref()).context("a volume without CSI")?;
        let object = json!({
            "metadata": { "name": ATTACHMENT },
            "spec": {
                "attacher": csi.driver,
                "nodeName": NODE,
                "source": { "persistentVolumeName": volume.metadata.name },
            },
        });
        retry::create(&self.attachments(), &serde_json::from_value(object)?).await?;
        until("the volume is attached", TIMEOUT, async || {
            let status = self.attachments().get(ATTACHMENT).await?.status;
            ensure!(status.as_ref().is_some_and(|status| status.attached), "its status is {status:?}");
            Ok(())
        })
        .await?;
        let nodes = self.driver.published_nodes().await?;
        ensure!(nodes == [NODE], "the volume is published to {nodes:?}");
        Ok(())
    }

    async fn detach(&self) -> Result<()> {
        retry::delete(&self.attachments(), ATTACHMENT).await?;
        until("the attachment is gone", TIMEOUT, async || {
            let left = self.attachments().get_opt(ATTACHMENT).await?;
            ensure!(left.is_none(), "it is {:?}", left.and_then(|left| left.status));
            Ok(())
        })
        .await
    }
}
