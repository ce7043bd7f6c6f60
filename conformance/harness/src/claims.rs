//! Loads of PersistentVolumeClaims. [`Claims`] creates, expands, modifies and deletes the claims of a
//! namespace, waits for their states, and compares them with the volumes and the storage.
//! [`ContinuousClaimLoad`] determines how many claims are created while a suite injects a fault or replaces
//! a controller by another implementation.

use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use futures::{Stream, StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::{
    core::v1::{Namespace, PersistentVolume, PersistentVolumeClaim},
    storage::v1::StorageClass,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::{
    Api, Client,
    api::{ListParams, PostParams},
};
use serde_json::{Value, json};

use crate::{retry, wait::until};

/// Maximum concurrent requests of one call of [`Claims::create`], `expand`, `modify` or `delete`.
const CONCURRENT_REQUESTS: usize = 50;
/// Delay before each claim above the minimum of a [`ContinuousClaimLoad`].
const EXTRA_CLAIM_INTERVAL: Duration = Duration::from_millis(100);

/// Progress of a claim's expansion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimExpansion {
    /// `status.capacity`, such as `1Gi`; empty if none.
    pub capacity: String,
    /// `status.allocatedResources`, such as `2Gi`; empty if none.
    pub allocated: String,
    /// `status.allocatedResourceStatuses`, such as `NodeResizePending`; empty if none.
    pub state: String,
}

impl ClaimExpansion {
    /// The expansion of a claim.
    #[must_use]
    pub fn from_claim(claim: &PersistentVolumeClaim) -> Self {
        let status = claim.status.clone().unwrap_or_default();
        let size = |sizes: Option<BTreeMap<String, Quantity>>| {
            sizes.and_then(|mut sizes| sizes.remove("storage")).unwrap_or_default().0
        };
        let states = status.allocated_resource_statuses;
        Self {
            capacity: size(status.capacity),
            allocated: size(status.allocated_resources),
            state: states.and_then(|mut states| states.remove("storage")).unwrap_or_default(),
        }
    }
}

/// Progress of a claim's modification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimModification {
    /// `status.currentVolumeAttributesClassName`; empty if none.
    pub current: String,
    /// Target class in `status.modifyVolumeStatus`; empty if none.
    pub target: String,
    /// Status in `status.modifyVolumeStatus`, such as `InProgress`; empty if none.
    pub state: String,
}

/// Numbers of the claims that a load creates: until the suite calls [`finish`](Self::finish), and at least a
/// minimum. A fault that the suite injects, or a replacement of a controller, happens while claims are
/// created, however late it is, if `finish` is called after it.
#[derive(Debug)]
pub struct ContinuousClaimLoad {
    /// Number of the next claim.
    started: Cell<usize>,
    /// Minimum number of claims, which are created even if `finish` is called earlier. Includes the claims
    /// before the first number of [`starting_at`](Self::starting_at).
    minimum: usize,
    is_finished: Cell<bool>,
    /// Maximum concurrent creates of this load.
    pub(crate) concurrency: usize,
}

impl ContinuousClaimLoad {
    /// A load of at least `minimum` claims, with at most `concurrency` requests at a time.
    #[must_use]
    pub const fn new(minimum: usize, concurrency: usize) -> Self {
        Self { started: Cell::new(0), minimum, is_finished: Cell::new(false), concurrency }
    }

    /// A load that starts with the claim number `first`, because the claims below it exist already. `minimum`
    /// and the result of [`finish`](Self::finish) include the existing claims.
    #[must_use]
    pub(crate) const fn starting_at(first: usize, minimum: usize, concurrency: usize) -> Self {
        Self { started: Cell::new(first), ..Self::new(minimum, concurrency) }
    }

    /// The numbers of the claims to create. Above the minimum, each follows after `EXTRA_CLAIM_INTERVAL`.
    pub(crate) fn numbers(&self) -> impl Stream<Item = usize> {
        stream::iter(std::iter::from_fn(|| self.next())).then(async |number| {
            if number >= self.minimum {
                tokio::time::sleep(EXTRA_CLAIM_INTERVAL).await;
            }
            number
        })
    }

    /// The number of the next claim, or `None` if the load is finished and has its minimum.
    fn next(&self) -> Option<usize> {
        let number = self.started.get();
        let is_last = self.is_finished.get() && number >= self.minimum;
        (!is_last).then(|| {
            self.started.set(number + 1);
            number
        })
    }

    /// Ends the load as soon as it has its minimum. Returns its total number of claims, some of which may not
    /// have been created yet.
    pub fn finish(&self) -> usize {
        self.is_finished.set(true);
        self.started.get().max(self.minimum)
    }
}

/// Claims of one StorageClass in one namespace. They are named `claim-0`, `claim-1` and so on. Methods that
/// count or compare volumes take all PersistentVolumes of the cluster, not only those of these claims.
///
/// Requests that create, change or delete a claim are repeated for up to 2 minutes while they fail with 429
/// or 5xx, or the API server is unreachable. Other requests are repeated only by the methods that wait.
#[derive(Clone)]
pub struct Claims {
    client: Client,
    namespace: String,
    class: String,
}

impl Claims {
    /// Creates a namespace, and a StorageClass for the driver. Both have the name `name`.
    ///
    /// # Errors
    /// If the API server rejects the namespace or the StorageClass, or is unreachable.
    pub async fn new(client: &Client, name: &str, driver: &str) -> Result<Self> {
        Self::with_parameters(client, name, driver, json!({})).await
    }

    /// As [`new`](Self::new), with parameters of the StorageClass.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub(crate) async fn with_parameters(
        client: &Client,
        name: &str,
        driver: &str,
        parameters: Value,
    ) -> Result<Self> {
        let claims = Self::with_class(client, name, name).await?;
        let class: StorageClass = serde_json::from_value(json!({
            "metadata": { "name": name },
            "provisioner": driver,
            "parameters": parameters,
            "reclaimPolicy": "Delete",
            "volumeBindingMode": "Immediate",
            "allowVolumeExpansion": true,
        }))?;
        Api::all(client.clone()).create(&PostParams::default(), &class).await?;
        Ok(claims)
    }

    /// Creates a namespace, for claims of a StorageClass that exists or is created before the first claim.
    ///
    /// # Errors
    /// If the API server rejects the namespace, or is unreachable.
    pub(crate) async fn with_class(client: &Client, name: &str, class: &str) -> Result<Self> {
        let namespace: Namespace = serde_json::from_value(json!({ "metadata": { "name": name } }))?;
        Api::all(client.clone()).create(&PostParams::default(), &namespace).await?;
        Ok(Self { client: client.clone(), namespace: name.to_owned(), class: class.to_owned() })
    }

    fn api(&self) -> Api<PersistentVolumeClaim> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    fn volumes(&self) -> Api<PersistentVolume> {
        Api::all(self.client.clone())
    }

    /// Creates the claims of these numbers, without waiting until they are Bound.
    ///
    /// # Errors
    /// If the API server rejects a claim, or the repetitions of a request fail for 2 minutes.
    pub async fn create(&self, numbers: std::ops::Range<usize>) -> Result<()> {
        let api = &self.api();
        stream::iter(numbers)
            .map(|number| async move {
                let claim = serde_json::from_value(json!({
                    "metadata": { "name": format!("claim-{number}") },
                    "spec": {
                        "storageClassName": self.class,
                        "accessModes": ["ReadWriteOnce"],
                        "resources": { "requests": { "storage": "1Gi" } },
                    },
                }))?;
                retry::create(api, &claim).await
            })
            .buffer_unordered(CONCURRENT_REQUESTS)
            .try_collect()
            .await
    }

    /// Checks that the controllers have pending work: a claim that is not Bound or is being deleted, or more
    /// PersistentVolumes in the cluster than claims in the namespace.
    ///
    /// # Errors
    /// If no work is pending, or a request fails.
    pub async fn ensure_unfinished(&self) -> Result<()> {
        let claims = self.api().list(&ListParams::default()).await?.items;
        let is_unfinished = |claim: &&PersistentVolumeClaim| {
            phase(claim) != "Bound" || claim.metadata.deletion_timestamp.is_some()
        };
        let volumes = self.volumes().list(&ListParams::default()).await?.items.len();
        let unfinished = claims.iter().filter(is_unfinished).count() + volumes.saturating_sub(claims.len());
        ensure!(
            unfinished > 0,
            "all {} claims and {volumes} volumes are in their final state: expected pending ones",
            claims.len()
        );
        Ok(())
    }

    /// Waits until the controllers have pending work, see [`ensure_unfinished`](Self::ensure_unfinished).
    ///
    /// # Errors
    /// If no work becomes pending within `limit`.
    pub async fn wait_unfinished(&self, limit: Duration) -> Result<()> {
        until("claims or volumes are pending", limit, async || self.ensure_unfinished().await).await
    }

    /// Creates claims continuously until `load` is finished and has its minimum.
    ///
    /// # Errors
    /// If the API server rejects a claim, or the repetitions of a request fail for 2 minutes.
    pub async fn create_continuously(&self, load: &ContinuousClaimLoad) -> Result<()> {
        load.numbers()
            .map(|number| self.create(number..number + 1))
            .buffer_unordered(load.concurrency)
            .try_collect()
            .await
    }

    /// Number of claims.
    ///
    /// # Errors
    /// If the request fails.
    pub async fn count(&self) -> Result<usize> {
        Ok(self.api().list(&ListParams::default()).await?.items.len())
    }

    /// `metadata.uid` of each claim.
    ///
    /// # Errors
    /// If the request fails.
    pub async fn uids(&self) -> Result<BTreeSet<String>> {
        let claims = self.api().list(&ListParams::default()).await?.items;
        Ok(claims.into_iter().filter_map(|claim| claim.metadata.uid).collect())
    }

    /// Number of Bound claims.
    ///
    /// # Errors
    /// If the request fails.
    pub async fn count_bound(&self) -> Result<usize> {
        let claims = self.api().list(&ListParams::default()).await?.items;
        Ok(claims.iter().filter(|claim| phase(claim) == "Bound").count())
    }

    /// Waits until at least this number of claims is Bound.
    ///
    /// # Errors
    /// If fewer are Bound after `limit`. The error contains their number.
    pub async fn wait_bound(&self, least: usize, limit: Duration) -> Result<()> {
        until(&format!("{least} claims are Bound"), limit, async || {
            let claims = self.api().list(&ListParams::default()).await?.items;
            let bound = claims.iter().filter(|claim| phase(claim) == "Bound").count();
            ensure!(bound >= least, "{bound} of {} are", claims.len());
            Ok(())
        })
        .await
    }

    /// Requests another size for the claims of these numbers.
    ///
    /// # Errors
    /// If the API server rejects a patch, or the repetitions of a request fail for 2 minutes.
    pub async fn expand(&self, numbers: std::ops::Range<usize>, size: &str) -> Result<()> {
        self.patch(numbers, json!({ "spec": { "resources": { "requests": { "storage": size } } } })).await
    }

    /// Progress of each claim's expansion.
    ///
    /// # Errors
    /// If the request fails.
    pub async fn expansions(&self) -> Result<Vec<ClaimExpansion>> {
        Ok(self
            .api()
            .list(&ListParams::default())
            .await?
            .items
            .iter()
            .map(ClaimExpansion::from_claim)
            .collect())
    }

    /// Requests another VolumeAttributesClass for the claims of these numbers.
    ///
    /// # Errors
    /// If the API server rejects a patch, or the repetitions of a request fail for 2 minutes.
    pub async fn modify(&self, numbers: std::ops::Range<usize>, class: &str) -> Result<()> {
        self.patch(numbers, json!({ "spec": { "volumeAttributesClassName": class } })).await
    }

    async fn patch(&self, numbers: std::ops::Range<usize>, patch: Value) -> Result<()> {
        let (api, patch) = (&self.api(), &patch);
        stream::iter(numbers)
            .map(|number| async move { retry::merge_patch(api, &format!("claim-{number}"), patch).await })
            .buffer_unordered(CONCURRENT_REQUESTS)
            .try_collect()
            .await
    }

    /// Progress of each claim's modification.
    ///
    /// # Errors
    /// If the request fails.
    pub async fn modifications(&self) -> Result<Vec<ClaimModification>> {
        let claims = self.api().list(&ListParams::default()).await?.items;
        let modification_of = |claim: PersistentVolumeClaim| {
            let status = claim.status.unwrap_or_default();
            let (target, state) = status
                .modify_volume_status
                .map(|open| (open.target_volume_attributes_class_name.unwrap_or_default(), open.status))
                .unwrap_or_default();
            let current = status.current_volume_attributes_class_name.unwrap_or_default();
            ClaimModification { current, target, state }
        };
        Ok(claims.into_iter().map(modification_of).collect())
    }

    /// The VolumeAttributesClass of every PersistentVolume of the cluster; empty for a volume without one.
    ///
    /// # Errors
    /// If the request fails.
    pub async fn volume_attributes_classes(&self) -> Result<Vec<String>> {
        let volumes = self.volumes().list(&ListParams::default()).await?.items;
        let class = |volume: PersistentVolume| volume.spec?.volume_attributes_class_name;
        Ok(volumes.into_iter().map(|volume| class(volume).unwrap_or_default()).collect())
    }

    /// Waits until at least this number of claims has this capacity.
    ///
    /// # Errors
    /// If fewer have it after `limit`. The error contains their number.
    pub async fn wait_capacity(&self, size: &str, least: usize, limit: Duration) -> Result<()> {
        until(&format!("{least} claims have {size}"), limit, async || {
            let all = self.expansions().await?;
            let matching = all.iter().filter(|growth| growth.capacity == size).count();
            ensure!(matching >= least, "{matching} of {} have", all.len());
            Ok(())
        })
        .await
    }

    /// Deletes the claims of these numbers, without waiting until they are removed.
    ///
    /// # Errors
    /// If the API server rejects a deletion, or the repetitions of a request fail for 2 minutes.
    pub async fn delete(&self, numbers: std::ops::Range<usize>) -> Result<()> {
        let api = &self.api();
        stream::iter(numbers)
            .map(|number| async move { retry::delete(api, &format!("claim-{number}")).await })
            .buffer_unordered(CONCURRENT_REQUESTS)
            .try_collect()
            .await
    }

    /// Waits until at most `most` claims of the namespace and at most `most` PersistentVolumes are left.
    ///
    /// # Errors
    /// If more are left after `limit`. The error contains the numbers.
    pub async fn wait_remaining(&self, most: usize, limit: Duration) -> Result<()> {
        until(&format!("{most} claims and volumes are left"), limit, async || {
            let claims = self.api().list(&ListParams::default()).await?.items.len();
            let volumes = self.volumes().list(&ListParams::default()).await?.items.len();
            ensure!(claims <= most && volumes <= most, "{claims} claims and {volumes} volumes are");
            Ok(())
        })
        .await
    }

    /// Checks that there are `count` claims, that each is Bound to a volume of its own, that the cluster has
    /// no other PersistentVolumes, and that the storage contains exactly these volumes. `stored` is the
    /// storage's contents: names by handle, of which only the handles are compared.
    ///
    /// # Errors
    /// The first inconsistency, or a failed request.
    pub async fn ensure_consistent(&self, count: usize, stored: &BTreeMap<String, String>) -> Result<()> {
        let claims = self.api().list(&ListParams::default()).await?.items;
        ensure!(claims.len() == count, "{} claims: expected {count}", claims.len());
        let mut volumes: BTreeMap<String, PersistentVolume> = BTreeMap::new();
        for volume in self.volumes().list(&ListParams::default()).await?.items {
            let name = volume.metadata.name.clone().context("a volume without a name")?;
            volumes.insert(name, volume);
        }
        ensure!(volumes.len() == count, "{} volumes for {count} claims", volumes.len());
        let mut handles = BTreeSet::new();
        for claim in &claims {
            let name = claim.metadata.name.as_deref().unwrap_or_default();
            ensure!(phase(claim) == "Bound", "{name} is {}: expected Bound", phase(claim));
            let bound_to =
                claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref()).unwrap_or_default();
            let volume = volumes
                .get(bound_to)
                .with_context(|| format!("{name} is bound to {bound_to}, which is not there"))?;
            let spec = volume.spec.as_ref().context("a volume without a spec")?;
            let owner = spec.claim_ref.as_ref().and_then(|claim| claim.uid.as_deref());
            ensure!(
                owner == claim.metadata.uid.as_deref(),
                "{bound_to} belongs to {owner:?}: expected {name}"
            );
            let status = volume.status.as_ref().and_then(|status| status.phase.as_deref());
            ensure!(status == Some("Bound"), "{bound_to} is {status:?}: expected Bound");
            let handle =
                spec.csi.as_ref().map(|csi| csi.volume_handle.clone()).context("a volume without CSI")?;
            ensure!(
                stored.contains_key(&handle),
                "{bound_to} is {handle} at the storage, which does not have it"
            );
            if !handles.insert(handle.clone()) {
                bail!("{handle} is two volumes");
            }
        }
        let orphaned: Vec<_> = stored.keys().filter(|handle| !handles.contains(*handle)).collect();
        ensure!(
            orphaned.is_empty(),
            "{} volumes of the storage belong to nobody: {orphaned:?}",
            orphaned.len()
        );
        Ok(())
    }
}

fn phase(claim: &PersistentVolumeClaim) -> &str {
    claim.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_continues_until_it_is_finished_and_has_its_minimum() {
        let load = ContinuousClaimLoad::new(3, 1);
        assert_eq!(
            [load.next(), load.finish().into(), load.next(), load.next()],
            [Some(0), Some(3), Some(1), Some(2)]
        );
        assert_eq!(load.next(), None);
        let load = ContinuousClaimLoad::new(1, 1);
        assert_eq!(
            [load.next(), load.next(), load.finish().into(), load.next()],
            [Some(0), Some(1), Some(2), None]
        );
    }
}
