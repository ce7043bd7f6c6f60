//! Users that create a claim and a pod, expand the claim under the pod, and delete both.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeSet,
    ops::Range,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::{
    core::v1::{PersistentVolume, PersistentVolumeClaim, Pod},
    storage::v1::VolumeAttachment,
};
use kube::{
    Api, Client, ResourceExt as _,
    api::{ListParams, LogParams},
};
use serde_json::json;

use crate::{
    claims::{ClaimExpansion, Claims},
    class_secret::ClassSecret,
    control_plane::ControlPlane,
    pod::{self, MOUNT_PATH},
    retry,
    wait::until,
};

use super::storage::DriverUnderTest;

/// Time limit of each wait, such as until a pod runs. Sufficient also if a controller is replaced meanwhile,
/// and its replacement repeats calls with back-off.
pub(super) const TIMEOUT: Duration = Duration::from_secs(300);
/// Concurrent pods: the maximum volumes of the driver `memory` on a node.
const CONCURRENT_PODS: usize = 20;
/// Size of expanded claims.
const EXPANDED_SIZE: &str = "2Gi";
/// [`EXPANDED_SIZE`] in KiB, as `df` prints it.
const EXPANDED_KIB: u64 = 2 << 20;

pub(super) struct PodWorkload {
    client: Client,
    namespace: &'static str,
    pub(super) claims: Claims,
    /// True if a pod sees the size of its volume.
    has_volume_sizes: bool,
    /// Number of pods that printed the expected output and whose claim was expanded.
    finished: Cell<usize>,
    /// Handles of the volumes of all expanded claims so far.
    handles: RefCell<BTreeSet<String>>,
}

impl PodWorkload {
    pub(super) async fn new(
        plane: &ControlPlane,
        namespace: &'static str,
        storage: &DriverUnderTest,
    ) -> Result<Self> {
        let (client, has_volume_sizes) = (plane.client().clone(), storage.has_volume_sizes());
        let parameters = match storage.class_secret() {
            None => json!({}),
            Some(_) => ClassSecret::class_parameters(),
        };
        let claims = Claims::with_parameters(&client, namespace, storage.driver(), parameters).await?;
        if let Some(secret) = storage.class_secret() {
            secret.write(&client).await?;
        }
        Ok(Self {
            client,
            namespace,
            claims,
            has_volume_sizes,
            finished: Cell::new(0),
            handles: RefCell::default(),
        })
    }

    pub(super) const fn client(&self) -> &Client {
        &self.client
    }

    pub(super) fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), self.namespace)
    }

    fn claim_api(&self) -> Api<PersistentVolumeClaim> {
        Api::namespaced(self.client.clone(), self.namespace)
    }

    /// Runs the users with these numbers, which follow those of the earlier users.
    pub(super) async fn run_all(&self, numbers: Range<usize>) -> Result<()> {
        let count = numbers.end;
        stream::iter(numbers)
            .map(|number| async move { self.run_one(number).await.with_context(|| format!("user {number}")) })
            .buffer_unordered(CONCURRENT_PODS)
            .try_collect::<()>()
            .await?;
        let different = self.handles.borrow().len();
        ensure!(different == count, "{different} volumes for {count} claims");
        Ok(())
    }

    async fn run_one(&self, number: usize) -> Result<()> {
        let (name, claim) = (format!("pod-{number}"), format!("claim-{number}"));
        self.claims.create(number..number + 1).await?;
        let pod = serde_json::from_value(pod::with_claim(&name, &claim, &self.script(number)))?;
        retry::create(&self.pods(), &pod).await?;
        until("the pod runs", TIMEOUT, async || {
            let phase =
                self.pods().get(&name).await?.status.and_then(|status| status.phase).unwrap_or_default();
            ensure!(phase == "Running", "it is {phase}");
            Ok(())
        })
        .await?;
        self.wait_log(&name, &format!("{number}\nmounted\n")).await?;
        self.expand(&claim, &name).await?;
        if self.has_volume_sizes {
            self.wait_log(&name, &format!("{number}\nmounted\ngrown\n")).await?;
        }
        let volume = self.claim_volume(&claim).await?;
        self.finished.set(self.finished.get() + 1);

        retry::delete(&self.pods(), &name).await?;
        self.claims.delete(number..number + 1).await?;
        until("the volume is gone", TIMEOUT, async || {
            let volumes = Api::<PersistentVolume>::all(self.client.clone());
            let phase =
                volumes.get_opt(&volume).await?.map(|volume| volume.status.and_then(|status| status.phase));
            ensure!(phase.is_none(), "{volume} is {:?}", phase.flatten());
            Ok(())
        })
        .await
    }

    /// The script of a pod. Its output shows that the volume was empty and is a mount of its own, not a
    /// directory of the node's filesystem; if the pod sees the volume's size, also that the volume was
    /// expanded.
    fn script(&self, number: usize) -> String {
        let expansion_script = if self.has_volume_sizes {
            format!(
                "size() {{ df -P -k . | {{ read -r _; read -r _ kib _; echo $kib; }}; }}
                 until test $(size) = {EXPANDED_KIB}; do sleep 0.2; done; echo grown"
            )
        } else {
            String::new()
        };
        format!(
            "trap exit TERM; cd {MOUNT_PATH}; ls; echo {number} > f; sync; cat f
             test $(stat -c %d .) != $(stat -c %d /) && echo mounted
             {expansion_script}
             sleep 3600 & wait"
        )
    }

    async fn wait_log(&self, pod: &str, expected: &str) -> Result<()> {
        until(&format!("{pod} says {expected:?}"), TIMEOUT, async || {
            let log = self.pods().logs(pod, &LogParams::default()).await?;
            // The pod may have printed more.
            ensure!(log.starts_with(expected), "it says {log:?}");
            Ok(())
        })
        .await
    }

    /// Requests a larger size for the claim, and waits until the claim has it. Once the volume is expanded at
    /// the storage, annotates the pod to trigger kubelet, which syncs a pod every minute otherwise.
    async fn expand(&self, claim: &str, pod: &str) -> Result<()> {
        let patch = json!({ "spec": { "resources": { "requests": { "storage": EXPANDED_SIZE } } } });
        retry::merge_patch(&self.claim_api(), claim, &patch).await?;
        until("the volume has grown at the storage", TIMEOUT, async || {
            let ClaimExpansion { capacity, state, .. } = self.expansion(claim).await?;
            ensure!(
                capacity == EXPANDED_SIZE || state.starts_with("NodeResize"),
                "it has {capacity}, state {state:?}"
            );
            Ok(())
        })
        .await?;
        let patch = json!({ "metadata": { "annotations": { "expanded": EXPANDED_SIZE } } });
        retry::merge_patch(&self.pods(), pod, &patch).await?;
        until("the claim has grown", TIMEOUT, async || {
            let ClaimExpansion { capacity, state, .. } = self.expansion(claim).await?;
            ensure!(capacity == EXPANDED_SIZE && state.is_empty(), "it has {capacity}, state {state:?}");
            Ok(())
        })
        .await
    }

    async fn expansion(&self, claim: &str) -> Result<ClaimExpansion> {
        Ok(ClaimExpansion::from_claim(&self.claim_api().get(claim).await?))
    }

    /// The name of a claim's volume. Checks that its handle is unique.
    async fn claim_volume(&self, claim: &str) -> Result<String> {
        let claims = self.claim_api();
        let name =
            retry::request(async |_| claims.get(claim).await).await?.spec.and_then(|spec| spec.volume_name);
        let name = name.context("no volume")?;
        let volumes = Api::<PersistentVolume>::all(self.client.clone());
        let volume = retry::request(async |_| volumes.get(&name).await).await?;
        let handle = volume.spec.and_then(|spec| spec.csi).context("no CSI volume")?.volume_handle;
        ensure!(self.handles.borrow_mut().insert(handle.clone()), "{handle} is the volume of two claims");
        Ok(name)
    }

    /// Waits until at least this number of pods has printed the expected output, and their claims are
    /// expanded.
    pub(super) async fn wait_finished(&self, least: usize) -> Result<()> {
        until(&format!("{least} pods have run"), TIMEOUT, async || {
            let finished = self.finished.get();
            ensure!(finished >= least, "{finished} have");
            Ok(())
        })
        .await
    }

    pub(super) async fn wait_pending_claim(&self) -> Result<()> {
        until("a claim waits for its volume", TIMEOUT, async || self.claims.ensure_unfinished().await).await
    }

    pub(super) async fn wait_pending_expansion(&self) -> Result<()> {
        until("a claim waits for its growth", TIMEOUT, async || {
            let claims = self.claim_api().list(&ListParams::default()).await?.items;
            let is_pending = |claim: &&PersistentVolumeClaim| {
                let requested =
                    claim.spec.as_ref().and_then(|spec| spec.resources.as_ref()?.requests.as_ref());
                let capacity = claim.status.as_ref().and_then(|status| status.capacity.as_ref());
                capacity.is_some_and(|capacity| {
                    requested.is_some_and(|requested| requested.get("storage") != capacity.get("storage"))
                })
            };
            ensure!(
                claims.iter().any(|claim| is_pending(&claim)),
                "all {} have what they ask for",
                claims.len()
            );
            Ok(())
        })
        .await
    }

    pub(super) async fn wait_pending_attachment(&self) -> Result<()> {
        until("an attachment waits", TIMEOUT, async || {
            let all = self.attachments().await?;
            let is_pending = all.iter().any(|attachment| {
                let attached = attachment.status.as_ref().is_some_and(|status| status.attached);
                attachment.metadata.deletion_timestamp.is_some() || !attached
            });
            ensure!(is_pending, "all {} are where they shall be", all.len());
            Ok(())
        })
        .await
    }

    pub(super) async fn wait_pending_pod(&self) -> Result<()> {
        until("a pod waits for a VolumeAttachment, or one is left of a pod", TIMEOUT, async || {
            let pods = self.pods().list(&ListParams::default()).await?.items;
            let scheduled: BTreeSet<String> = pods.iter().filter_map(claim_of_scheduled).collect();
            let claims = self.claim_api().list(&ListParams::default()).await?.items;
            let claims = claims.into_iter().filter(|claim| scheduled.contains(&claim.name_any()));
            let volumes: BTreeSet<String> = claims.filter_map(|claim| claim.spec?.volume_name).collect();
            let attachments = self.attachments().await?;
            let attached = attachments.into_iter().filter_map(|one| one.spec.source.persistent_volume_name);
            let unmatched = volumes.symmetric_difference(&attached.collect()).count();
            ensure!(unmatched > 0, "each of the {} pods has one", scheduled.len());
            Ok(())
        })
        .await
    }

    pub(super) async fn attachments(&self) -> Result<Vec<VolumeAttachment>> {
        Ok(Api::all(self.client.clone()).list(&ListParams::default()).await?.items)
    }
}

/// The name of a pod's first claim. `None` if the pod is not scheduled, is being deleted, or has no claim.
fn claim_of_scheduled(pod: &Pod) -> Option<String> {
    let spec = pod.spec.as_ref().filter(|_| pod.metadata.deletion_timestamp.is_none())?;
    spec.node_name.as_ref()?;
    let claims = spec.volumes.as_ref()?.iter().find_map(|volume| volume.persistent_volume_claim.as_ref());
    Some(claims?.claim_name.clone())
}
