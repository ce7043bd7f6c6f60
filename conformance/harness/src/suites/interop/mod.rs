//! Cofferdam and upstream programs together, in two rounds. In the first, csi-provisioner, csi-attacher and
//! csi-resizer call Cofferdam's `csi-server`, and a real kubelet calls Cofferdam's `node`. In the second,
//! Cofferdam's roles and a real kubelet call a Go driver. Under a load of pods with expanding volumes, the
//! provisioner, the attacher, the resizer and the attach-detach controller are each killed and replaced by
//! the other implementation, and later replaced back. The CSI socket stays the same.

mod registrar;
mod slots;
mod storage;
mod users;

use std::{collections::BTreeMap, time::Instant};

use anyhow::{Result, ensure};
use k8s_openapi::api::storage::v1::CSIDriver;
use kube::{
    Api,
    api::{ListParams, PostParams},
};

use crate::{
    control_plane::{ControlPlane, ControlPlaneOptions},
    implementation::Implementation,
    metric_names::{self, UpstreamProgram},
    node::KubeletNode,
    pod,
    run::SuiteRun,
    stopped_role,
    wait::until,
};
use slots::{ControllerSlot, ControllerSlots};
use storage::DriverUnderTest;
use users::{PodWorkload, TIMEOUT};

use super::sidecars::slot::{ATTACHER, RESIZER};

const NODE: &str = "node-1";
/// Users during a pause of the role that runs beside another attach-detach controller, and after it; and
/// their maximum number until the role stops.
const USERS_OF_TWO_CONTROLLERS: usize = 4;
const MAX_USERS_OF_TWO_CONTROLLERS: usize = 40;

/// A load during which each controller is replaced twice.
struct SwapRound {
    namespace: &'static str,
    claims: usize,
    /// Minimum number of finished pods at the first replacement. A pod is finished once it has printed the
    /// expected output and its claim is expanded.
    pods_before_first_swap: usize,
    /// The minimum number of finished pods increases by this number for each later replacement of a round.
    pods_between_swaps: usize,
    /// Implementation of every controller at the start and at the end.
    initial: Implementation,
}

const COFFERDAM_CSI_SERVER: SwapRound = SwapRound {
    namespace: "our-server",
    claims: 100,
    pods_before_first_swap: 10,
    pods_between_swaps: 9,
    initial: Implementation::Upstream,
};
const GO_DRIVER: SwapRound = SwapRound {
    namespace: "driver-in-go",
    claims: 60,
    pods_before_first_swap: 5,
    pods_between_swaps: 4,
    initial: Implementation::Cofferdam,
};

pub(super) async fn run(run: &SuiteRun) -> Result<()> {
    let options = ControlPlaneOptions {
        has_scheduler: true,
        has_audited_bodies: true,
        ..ControlPlaneOptions::default()
    };
    let mut plane = ControlPlane::start(run, options).await?;
    let node = KubeletNode::start(run, &plane, NODE).await?;
    let storage = DriverUnderTest::start_cofferdam(run, &node).await?;
    COFFERDAM_CSI_SERVER.run(run, &mut plane, &node, storage).await?;
    let storage = DriverUnderTest::start_go(run, plane.client(), &node, GO_DRIVER.namespace).await?;
    let secret = storage.class_secret().cloned();
    GO_DRIVER.run(run, &mut plane, &node, storage).await?;
    node.stop().await?;
    plane.stop().await?;
    let program = |name, prefixes| UpstreamProgram { name, replacement: metric_names::COFFERDAM, prefixes };
    let sidecar = |name| program(name, metric_names::SIDECAR_PREFIXES);
    let attach_detach = program("kube-controller-manager", &["attach", "storage_"]);
    let sidecars = ["csi-provisioner", "csi-attacher", "csi-resizer"].map(sidecar);
    metric_names::compare(run, &[&sidecars[..], &[attach_detach]].concat())?;
    match secret {
        Some(secret) => secret.ensure_not_in_files(run.directory()),
        None => Ok(()),
    }
}

impl SwapRound {
    async fn run(
        &self,
        run: &SuiteRun,
        plane: &mut ControlPlane,
        node: &KubeletNode,
        storage: DriverUnderTest,
    ) -> Result<()> {
        let driver: CSIDriver = serde_json::from_value(pod::csi_driver_object(storage.driver()))?;
        Api::all(plane.client().clone()).create(&PostParams::default(), &driver).await?;
        let users = PodWorkload::new(plane, self.namespace, &storage).await?;
        let mut slots =
            ControllerSlots::new(run, plane, storage.socket(), self.namespace, self.initial).await?;
        let started = Instant::now();
        tokio::try_join!(
            users.run_all(0..self.claims),
            self.swap_controllers(run, &users, &mut slots, &storage)
        )?;
        let (name, claims, seconds) = (self.namespace, self.claims, started.elapsed().as_secs_f64());
        run.add_note(&format!(
            "{name}: {claims} claims with pods, each expanded once, eight replacements: {seconds:.0} s"
        ))?;

        wait_clean(run, &users, &storage, node).await?;
        let calls = storage.call_counts().await?;
        let methods = || ControllerSlot::ALL.iter().flat_map(|slot| slot.methods());
        let times = |method: &str| calls.get(method).copied().unwrap_or_default();
        let call_texts: Vec<String> = methods().map(|method| format!("{method} {}", times(method))).collect();
        run.add_note(&format!("{name}: controller calls: {}", call_texts.join(", ")))?;
        for method in methods() {
            let times = times(method);
            ensure!(times >= u64::try_from(claims)?, "{times} calls of {method}: expected at least {claims}");
        }
        if self.initial == Implementation::Cofferdam {
            self.recognise_attach_detach(run, &users, &mut slots).await?;
            wait_clean(run, &users, &storage, node).await?;
        }
        if let Some(secret) = storage.class_secret() {
            let processes = slots.processes().chain(storage.processes());
            run.add_note(&secret.search(users.client(), run.directory(), processes).await?)?;
        }
        slots.stop().await?;
        storage.stop().await
    }

    /// Two attach-detach controllers run at once, as in a cluster whose kube-controller-manager cannot be
    /// configured. The role's process is paused from time to time, because nothing shows the other controller
    /// if the role always writes first. Users between two pauses give the process the time to read the writes
    /// of the other controller, by which it recognises it and stops.
    async fn recognise_attach_detach(
        &self,
        run: &SuiteRun,
        users: &PodWorkload,
        slots: &mut ControllerSlots<'_>,
    ) -> Result<()> {
        slots.start(ControllerSlot::AttachDetach, Implementation::Upstream).await?;
        let role = ControllerSlot::AttachDetach.role();
        let mut next = self.claims;
        while !stopped_role::is_stopped(slots.process(ControllerSlot::AttachDetach)?, role).await? {
            let pods = next - self.claims;
            ensure!(
                pods < MAX_USERS_OF_TWO_CONTROLLERS,
                "after {pods} pods, the role {role} has not stopped"
            );
            slots.process(ControllerSlot::AttachDetach)?.pause().await?;
            users.run_all(next..next + USERS_OF_TWO_CONTROLLERS).await?;
            slots.process(ControllerSlot::AttachDetach)?.resume()?;
            next += USERS_OF_TWO_CONTROLLERS;
            users.run_all(next..next + USERS_OF_TWO_CONTROLLERS).await?;
            next += USERS_OF_TWO_CONTROLLERS;
        }
        let process = slots.process(ControllerSlot::AttachDetach)?;
        stopped_role::ensure_reported(users.client(), process, role).await?;
        users.run_all(next..next + USERS_OF_TWO_CONTROLLERS).await?;
        let pods = next - self.claims;
        run.add_note(&format!("two attach-detach controllers: Cofferdam's has stopped within {pods} pods"))
    }

    /// Replaces each controller by the other implementation, and later back.
    async fn swap_controllers(
        &self,
        run: &SuiteRun,
        users: &PodWorkload,
        slots: &mut ControllerSlots<'_>,
        storage: &DriverUnderTest,
    ) -> Result<()> {
        let other = self.initial.other();
        let swaps = [other, self.initial]
            .into_iter()
            .flat_map(|implementation| ControllerSlot::ALL.map(|slot| (slot, implementation)));
        let mut counts_at_swap: BTreeMap<String, u64> = BTreeMap::new();
        for (number, (slot, implementation)) in swaps.enumerate() {
            users.wait_finished(self.pods_before_first_swap + number * self.pods_between_swaps).await?;
            slots.kill_current(slot).await?;
            let now = storage.call_counts().await?;
            let count_of =
                |calls: &BTreeMap<String, u64>, method: &str| calls.get(method).copied().unwrap_or_default();
            if implementation == self.initial && !slot.methods().is_empty() {
                let calls_since = |method: &&str| {
                    let times = count_of(&now, method).saturating_sub(count_of(&counts_at_swap, method));
                    format!("{method} {times}")
                };
                let call_texts: Vec<String> = slot.methods().iter().map(calls_since).collect();
                run.add_note(&format!(
                    "{}: calls of {}: {}",
                    self.namespace,
                    other.as_str(),
                    call_texts.join(", ")
                ))?;
            }
            // Wait until there is work that the replacement has to finish.
            match slot {
                ControllerSlot::Sidecar(sidecar) if sidecar == ATTACHER => {
                    users.wait_pending_attachment().await?;
                }
                ControllerSlot::Sidecar(sidecar) if sidecar == RESIZER => {
                    users.wait_pending_expansion().await?;
                }
                ControllerSlot::Sidecar(_) => users.wait_pending_claim().await?,
                ControllerSlot::AttachDetach => users.wait_pending_pod().await?,
            }
            counts_at_swap
                .extend(slot.methods().iter().map(|method| ((*method).to_owned(), count_of(&now, method))));
            slots.start(slot, implementation).await?;
        }
        Ok(())
    }
}

/// Waits until no claim, PersistentVolume, VolumeAttachment or pod is left, no volume at the storage, and no
/// mount, container or network of a pod on the node.
async fn wait_clean(
    run: &SuiteRun,
    users: &PodWorkload,
    storage: &DriverUnderTest,
    node: &KubeletNode,
) -> Result<()> {
    until("nothing is left", TIMEOUT, async || {
        users.claims.wait_remaining(0, TIMEOUT).await?;
        let attachments = users.attachments().await?.len();
        let pods = users.pods().list(&ListParams::default()).await?.items.len();
        ensure!(attachments == 0 && pods == 0, "{attachments} attachments, {pods} pods");
        storage.ensure_empty(run).await
    })
    .await?;
    node.wait_idle(run, TIMEOUT).await
}
