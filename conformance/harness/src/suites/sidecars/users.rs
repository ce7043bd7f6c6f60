//! Users that create a claim, use its volume, expand it, and delete everything. A volume is used by a pod on
//! a real kubelet, or attached to a simulated node.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeSet,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::{
    core::v1::{PersistentVolume, PersistentVolumeClaim, Pod},
    storage::v1::VolumeAttachment,
};
use kube::{
    Api, Client,
    api::{ListParams, LogParams},
};
use serde_json::json;
use tokio::sync::watch;

use crate::{
    claims::{ClaimExpansion, Claims, ContinuousClaimLoad},
    pod::{self, MOUNT_PATH},
    retry,
    wait::until,
};

use super::slot::{ATTACHER, RESIZER, Slot};

/// Time limit of each wait. Sufficient also if a sidecar is replaced meanwhile, and its successor waits for a
/// Lease or repeats calls with back-off.
pub(super) const TIMEOUT: Duration = Duration::from_secs(300);
/// Size of expanded claims.
const EXPANDED_SIZE: &str = "2Gi";

/// The actions of users with a volume.
#[derive(Clone, Copy, Debug)]
pub(super) struct VolumeUse {
    /// Run a pod with the claim. Otherwise, attach the volume if `is_attached`.
    pub(super) is_mounted: bool,
    /// Create a VolumeAttachment as the attach-detach controller does, and delete it.
    pub(super) is_attached: bool,
    /// Expand the claim.
    pub(super) is_expanded: bool,
    /// The class has the volume binding mode WaitForFirstConsumer. Without a pod, the user selects the node
    /// as kube-scheduler does.
    pub(super) is_delayed: bool,
}

/// Selects the node of a claim whose class has the volume binding mode WaitForFirstConsumer, as
/// kube-scheduler does for a pod.
///
/// # Errors
/// If the request fails.
pub(super) async fn select_node(claims: &Api<PersistentVolumeClaim>, claim: &str, node: &str) -> Result<()> {
    let selected = json!({ "volume.kubernetes.io/selected-node": node });
    retry::merge_patch(claims, claim, &json!({ "metadata": { "annotations": selected } })).await
}

pub(super) struct Users {
    client: Client,
    namespace: &'static str,
    node: &'static str,
    driver: String,
    pub(super) claims: Claims,
    volume_use: VolumeUse,
    /// Number of users that have used their volumes.
    finished: Cell<usize>,
    /// Handles of all volumes so far.
    handles: RefCell<BTreeSet<String>>,
    /// No user creates a claim while this is `true`.
    is_paused: watch::Sender<bool>,
    /// Number of users whose claim is not Bound yet.
    unbound: Cell<usize>,
}

impl Users {
    pub(super) fn new(
        client: &Client,
        namespace: &'static str,
        node: &'static str,
        driver: &str,
        claims: Claims,
        volume_use: VolumeUse,
    ) -> Self {
        Self {
            client: client.clone(),
            namespace,
            node,
            driver: driver.to_owned(),
            claims,
            volume_use,
            finished: Cell::new(0),
            handles: RefCell::default(),
            is_paused: watch::Sender::new(false),
            unbound: Cell::new(0),
        }
    }

    pub(super) fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), self.namespace)
    }

    fn claim_api(&self) -> Api<PersistentVolumeClaim> {
        Api::namespaced(self.client.clone(), self.namespace)
    }

    pub(super) fn attachments(&self) -> Api<VolumeAttachment> {
        Api::all(self.client.clone())
    }

    /// Runs users until the load is finished. Returns their number.
    pub(super) async fn run_all(&self, load: &ContinuousClaimLoad) -> Result<usize> {
        load.numbers()
            .map(|number| async move { self.run_one(number).await.with_context(|| format!("user {number}")) })
            .buffer_unordered(load.concurrency)
            .try_collect::<()>()
            .await?;
        let (count, different) = (load.finish(), self.handles.borrow().len());
        ensure!(different == count, "{different} volumes for {count} claims");
        Ok(count)
    }

    async fn run_one(&self, number: usize) -> Result<()> {
        let (claim, name) = (format!("claim-{number}"), format!("user-{number}"));
        self.is_paused.subscribe().wait_for(|is_paused| !is_paused).await?;
        self.unbound.set(self.unbound.get() + 1);
        self.claims.create(number..number + 1).await?;
        if self.volume_use.is_delayed && !self.volume_use.is_mounted {
            select_node(&self.claim_api(), &claim, self.node).await?;
        }
        let is_mounted = self.volume_use.is_mounted;
        if is_mounted {
            self.run_pod(&name, &claim, number).await?;
        }
        let volume = self.wait_bound(&claim).await?;
        self.unbound.set(self.unbound.get() - 1);
        let is_attached = self.volume_use.is_attached && !is_mounted;
        if is_attached {
            self.attach(&name, &volume).await?;
        }
        if self.volume_use.is_expanded {
            self.expand(&claim, is_mounted.then_some(name.as_str())).await?;
        }
        self.finished.set(self.finished.get() + 1);

        if is_mounted {
            retry::delete(&self.pods(), &name).await?;
        }
        if is_attached {
            retry::delete(&self.attachments(), &name).await?;
            until("the volume is detached", TIMEOUT, async || {
                ensure!(self.attachments().get_opt(&name).await?.is_none(), "{name} exists");
                Ok(())
            })
            .await?;
        }
        self.claims.delete(number..number + 1).await?;
        until("the volume is deleted", TIMEOUT, async || {
            let found = Api::<PersistentVolume>::all(self.client.clone()).get_opt(&volume).await?;
            let phase = found.map(|volume| volume.status.and_then(|status| status.phase));
            ensure!(phase.is_none(), "{volume} is {:?}", phase.flatten());
            Ok(())
        })
        .await
    }

    /// Starts a pod, and waits for output that shows that the volume was empty, and is a directory of its
    /// own that can be written.
    async fn run_pod(&self, name: &str, claim: &str, number: usize) -> Result<()> {
        let script =
            format!("trap exit TERM; cd {MOUNT_PATH}; ls; echo {number} > f; sync; cat f; sleep 3600 & wait");
        let pod = serde_json::from_value(pod::with_claim(name, claim, &script))?;
        retry::create(&self.pods(), &pod).await?;
        until("the pod runs", TIMEOUT, async || {
            let phase =
                self.pods().get(name).await?.status.and_then(|status| status.phase).unwrap_or_default();
            ensure!(phase == "Running", "it is {phase}");
            Ok(())
        })
        .await?;
        let expected = format!("{number}\n");
        until(&format!("{name} prints {expected:?}"), TIMEOUT, async || {
            let log = self.pods().logs(name, &LogParams::default()).await?;
            ensure!(log == expected, "it has printed {log:?}");
            Ok(())
        })
        .await
    }

    /// Waits until a claim is Bound, and returns the name of its volume. Checks that its handle is unique.
    async fn wait_bound(&self, claim: &str) -> Result<String> {
        let name = until(&format!("{claim} is Bound"), TIMEOUT, async || {
            let found = self.claim_api().get(claim).await?;
            let phase = found.status.and_then(|status| status.phase).unwrap_or_default();
            ensure!(phase == "Bound", "it is {phase}");
            found.spec.and_then(|spec| spec.volume_name).context("it names no volume")
        })
        .await?;
        let volumes = Api::<PersistentVolume>::all(self.client.clone());
        let volume = retry::request(async |_| volumes.get(&name).await).await?;
        let handle = volume.spec.and_then(|spec| spec.csi).context("no CSI volume")?.volume_handle;
        ensure!(self.handles.borrow_mut().insert(handle.clone()), "{handle} is the volume of two claims");
        Ok(name)
    }

    async fn attach(&self, name: &str, volume: &str) -> Result<()> {
        let attachment = serde_json::from_value(json!({
            "metadata": { "name": name },
            "spec": {
                "attacher": self.driver,
                "nodeName": self.node,
                "source": { "persistentVolumeName": volume },
            },
        }))?;
        retry::create(&self.attachments(), &attachment).await?;
        until(&format!("{volume} is attached"), TIMEOUT, async || {
            let status = self.attachments().get(name).await?.status.context("no status")?;
            ensure!(status.attached, "error: {:?}", status.attach_error.and_then(|error| error.message));
            Ok(())
        })
        .await
    }

    /// Requests a larger size, and waits until the volume has it at the storage, and with a pod also on the
    /// node. The pod is annotated to trigger kubelet, which syncs a pod every minute otherwise.
    async fn expand(&self, claim: &str, pod: Option<&str>) -> Result<()> {
        let patch = json!({ "spec": { "resources": { "requests": { "storage": EXPANDED_SIZE } } } });
        retry::merge_patch(&self.claim_api(), claim, &patch).await?;
        until("the volume is expanded at the storage", TIMEOUT, async || {
            let ClaimExpansion { capacity, state, .. } = self.expansion(claim).await?;
            ensure!(
                capacity == EXPANDED_SIZE || state.starts_with("NodeResize"),
                "it has {capacity}, state {state:?}"
            );
            Ok(())
        })
        .await?;
        let Some(pod) = pod else { return Ok(()) };
        let patch = json!({ "metadata": { "annotations": { "expanded": EXPANDED_SIZE } } });
        retry::merge_patch(&self.pods(), pod, &patch).await?;
        until("the claim is expanded", TIMEOUT, async || {
            let ClaimExpansion { capacity, state, .. } = self.expansion(claim).await?;
            ensure!(capacity == EXPANDED_SIZE && state.is_empty(), "it has {capacity}, state {state:?}");
            Ok(())
        })
        .await
    }

    async fn expansion(&self, claim: &str) -> Result<ClaimExpansion> {
        Ok(ClaimExpansion::from_claim(&self.claim_api().get(claim).await?))
    }

    /// Waits until this number of users has used their volumes from now on.
    pub(super) async fn wait_more_finished(&self, more: usize) -> Result<()> {
        let least = self.finished.get() + more;
        until(&format!("{least} volumes were used"), TIMEOUT, async || {
            let finished = self.finished.get();
            ensure!(finished >= least, "{finished} were");
            Ok(())
        })
        .await
    }

    /// Stops creating claims, and waits until all claims are Bound.
    pub(super) async fn pause_claims(&self) -> Result<()> {
        self.is_paused.send_replace(true);
        until("all claims are Bound", TIMEOUT, async || {
            let unbound = self.unbound.get();
            ensure!(unbound == 0, "{unbound} are not");
            Ok(())
        })
        .await
    }

    /// Creates claims again.
    pub(super) fn resume_claims(&self) {
        self.is_paused.send_replace(false);
    }

    /// Waits until there is work for a sidecar.
    pub(super) async fn wait_pending(&self, slot: Slot) -> Result<()> {
        until(&format!("work is pending for {}", slot.name), TIMEOUT, async || {
            if slot == ATTACHER {
                let all = self.attachments().list(&ListParams::default()).await?.items;
                let is_pending = all.iter().any(|attachment| {
                    let attached = attachment.status.as_ref().is_some_and(|status| status.attached);
                    attachment.metadata.deletion_timestamp.is_some() || !attached
                });
                ensure!(is_pending, "all {} VolumeAttachments are attached", all.len());
            } else if slot == RESIZER {
                let all = self.claims.expansions().await?;
                let claims = self.claim_api().list(&ListParams::default()).await?.items;
                let is_requested = |claim: &PersistentVolumeClaim| {
                    let requests =
                        claim.spec.as_ref().and_then(|spec| spec.resources.as_ref()?.requests.as_ref());
                    let requested = requests.and_then(|requests| requests.get("storage"));
                    let expansion = ClaimExpansion::from_claim(claim);
                    requested.is_some_and(|size| size.0 == EXPANDED_SIZE)
                        && expansion.capacity != EXPANDED_SIZE
                        && !expansion.state.starts_with("NodeResize")
                };
                ensure!(claims.iter().any(is_requested), "all {} claims have their size", all.len());
            } else {
                self.claims.ensure_unfinished().await?;
            }
            Ok(())
        })
        .await
    }
}
