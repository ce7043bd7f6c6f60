//! etcd is restored to a copy that is at least 30 s old. The claims created after the copy are lost, and
//! their volumes at the storage look like orphans.
//!
//! The rule under test: Cofferdam detects the restore and deletes no volume, also after a restart, until the
//! operator deletes the ConfigMap `cofferdam-restored`. It then deletes the volumes of Released
//! PersistentVolumes and those that its journal of volume creations names, and no other volume.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::{ConfigMap, Event, PersistentVolume};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams},
};
use serde_json::Value;

use super::{
    CLAIMS,
    fixture::{CONCURRENT_CLAIMS, DRIVER, FaultFixture, TIMEOUT, create_continuously, wait_recovery},
};
use crate::{
    claims::{Claims, ContinuousClaimLoad},
    namespaces,
    wait::until,
};

/// Minimum age of the snapshot at the restore. It is older by the time until [`BOUND_IN_SNAPSHOT`] further
/// claims are Bound.
const SNAPSHOT_AGE: Duration = Duration::from_secs(30);
/// Minimum number of claims of the load during which the snapshot is taken.
const CLAIMS_IN_SNAPSHOT: usize = 400;
/// Minimum number of Bound claims when the snapshot is taken, and of claims of the second load that become
/// Bound before the restore.
const BOUND_IN_SNAPSHOT: usize = 200;
/// Claims of the snapshot that are deleted after the restore.
const DELETED_CLAIMS: usize = 20;
const RESTORE_MARKER: &str = "cofferdam-restored";
const DELETION_FREEZE_METRIC: &str = "cofferdam_deletions_frozen";

pub(super) async fn restore_old_snapshot(fixture: &mut FaultFixture<'_>) -> Result<()> {
    let claims = Claims::new(fixture.plane.client(), "restored", DRIVER).await?;
    ensure!(
        fixture.cofferdam.metric(DELETION_FREEZE_METRIC).await? == "0",
        "deletions are held before anything was restored"
    );
    let restored = restore(fixture, &claims).await?;

    // Claims of the snapshot become Bound, and no volume is deleted.
    wait_recovery(fixture.run, &claims, "etcd restored from 30 s ago", restored, Instant::now()).await?;
    check_restore_reported(fixture).await?;
    // Check the metrics of the process that saw the restore before `stored_volumes` restarts it.
    ensure_no_deletions(fixture).await?;
    let stored = fixture.stored_volumes().await?;
    let (owned, created_after_restore) = volume_handles(fixture, &claims).await?;
    ensure!(owned.len() == restored, "{} volumes for {restored} claims", owned.len());
    let missing: Vec<_> =
        owned.union(&created_after_restore).filter(|handle| !stored.contains_key(*handle)).collect();
    ensure!(missing.is_empty(), "the storage does not have {missing:?}");
    // Volumes in creation got a PersistentVolume in the restored cluster, without their claim.
    let created_after_restore = created_after_restore.len();
    let unknown_to_snapshot = stored.len() - restored - created_after_restore;
    ensure!(
        unknown_to_snapshot + created_after_restore > 0,
        "every claim of the storage is in the snapshot: expected one that was made later"
    );

    // Deletions are frozen, also in the next process.
    claims.delete(0..DELETED_CLAIMS).await?;
    let released = until("the volumes of deleted claims are Released", TIMEOUT, async || {
        let released = released_volumes(fixture).await?;
        ensure!(released.len() == DELETED_CLAIMS + created_after_restore, "{} are", released.len());
        anyhow::Ok(released)
    })
    .await?;
    let events: Api<Event> = Api::default_namespaced(fixture.plane.client().clone());
    until("DeletionFrozen is told", TIMEOUT, async || {
        let reported = events.list(&ListParams::default().fields("reason=DeletionFrozen")).await?.items;
        let reported: BTreeSet<_> =
            reported.into_iter().filter_map(|event| event.involved_object.name).collect();
        let unreported: Vec<_> = released.values().filter(|name| !reported.contains(*name)).collect();
        ensure!(unreported.is_empty(), "but of {unreported:?}");
        Ok(())
    })
    .await?;
    ensure_no_deletions(fixture).await?;
    ensure!(fixture.stored_volumes().await? == stored, "volumes went before the operator had looked");
    ensure!(
        fixture.cofferdam.metric(DELETION_FREEZE_METRIC).await? == "1",
        "the next process does not hold deletions"
    );

    // Volumes in creation without a PersistentVolume are in the journal.
    let pending = self::pending_volumes(fixture).await?;
    let expected_deleted: BTreeSet<_> = stored
        .iter()
        .filter(|(handle, name)| released.contains_key(*handle) || pending.contains(*name))
        .map(|(handle, _)| handle)
        .collect();
    let expected_kept: BTreeSet<_> =
        stored.keys().filter(|handle| !expected_deleted.contains(handle)).collect();

    ensure_no_deletions(fixture).await?;

    // The operator allows deletions.
    let maps: Api<ConfigMap> = Api::namespaced(fixture.plane.client().clone(), namespaces::COFFERDAM);
    maps.delete(RESTORE_MARKER, &DeleteParams::default()).await?;
    claims.wait_remaining(restored - DELETED_CLAIMS, TIMEOUT).await?;
    until("the journal is empty", TIMEOUT, async || {
        let open = self::pending_volumes(fixture).await?;
        ensure!(open.is_empty(), "it has {open:?}");
        Ok(())
    })
    .await?;
    ensure!(
        fixture.cofferdam.metric(DELETION_FREEZE_METRIC).await? == "0",
        "deletions are held without the mark"
    );
    let deletions = fixture.cofferdam.delete_calls().await?;
    ensure!(
        !deletions.is_empty(),
        "the metrics say nothing of deletions: expected {} of them",
        expected_deleted.len()
    );
    let remaining = fixture.stored_volumes().await?;
    let remaining: BTreeSet<_> = remaining.keys().collect();
    ensure!(
        remaining == expected_kept,
        "of {} volumes, {:?} went and were to stay, {:?} stayed and were to go",
        stored.len(),
        expected_kept.difference(&remaining).collect::<Vec<_>>(),
        remaining.difference(&expected_kept).collect::<Vec<_>>(),
    );
    fixture.run.add_note(&format!(
        "the storage kept {} volumes that the snapshot did not have; without the marker it deleted \
         {DELETED_CLAIMS} of deleted claims, and {} of claims that were lost while their volume was created",
        expected_kept.len() - (restored - DELETED_CLAIMS),
        expected_deleted.len() - DELETED_CLAIMS,
    ))
}

/// Takes the snapshot during a first load, and restores etcd to it during a second one. Returns the number of
/// claims after the restore.
async fn restore(fixture: &mut FaultFixture<'_>, claims: &Claims) -> Result<usize> {
    let (run, plane) = (fixture.run, &mut fixture.plane);
    let load = ContinuousClaimLoad::new(CLAIMS_IN_SNAPSHOT, CONCURRENT_CLAIMS);
    let snapshot = async {
        claims.wait_bound(BOUND_IN_SNAPSHOT, TIMEOUT).await?;
        claims.wait_unfinished(TIMEOUT).await?;
        plane.snapshot_etcd(run, "half-a-minute").await?;
        anyhow::Ok((load.finish(), Instant::now()))
    };
    let ((), (count, taken_at)) = tokio::try_join!(create_continuously(claims, &load), snapshot)?;
    claims.wait_bound(count, TIMEOUT).await?;
    tokio::time::sleep(SNAPSHOT_AGE.saturating_sub(taken_at.elapsed())).await;
    let middle = async {
        claims.wait_bound(count + BOUND_IN_SNAPSHOT, TIMEOUT).await?;
        claims.wait_unfinished(TIMEOUT).await
    };
    // The load never ends: the restore interrupts it.
    let load = ContinuousClaimLoad::starting_at(count, CLAIMS, CONCURRENT_CLAIMS);
    tokio::select! {
        created = create_continuously(claims, &load) => created,
        reached = middle => reached,
    }?;
    plane.restore(run, "half-a-minute").await?;
    claims.count().await
}

/// Checks that the restore marker, the log and the metric report the restore.
async fn check_restore_reported(fixture: &FaultFixture<'_>) -> Result<()> {
    let maps: Api<ConfigMap> = Api::namespaced(fixture.plane.client().clone(), namespaces::COFFERDAM);
    let map = until("a mark stands", TIMEOUT, async || {
        maps.get(RESTORE_MARKER).await.context("nothing marks the restore")
    })
    .await?;
    let reported = map.data.and_then(|mut data| data.remove("detected")).unwrap_or_default();
    ensure!(reported.contains("the cluster was restored"), "the mark says {reported:?}");
    let log = std::fs::read_to_string(fixture.cofferdam.process.log())?;
    ensure!(log.contains(&reported), "the log does not say {reported:?}");
    ensure!(
        fixture.cofferdam.metric(DELETION_FREEZE_METRIC).await? == "1",
        "the metric {DELETION_FREEZE_METRIC} is not 1"
    );
    fixture.run.add_note(&reported)
}

/// Handles of volumes with and without an existing claim.
async fn volume_handles(
    fixture: &FaultFixture<'_>,
    claims: &Claims,
) -> Result<(BTreeSet<String>, BTreeSet<String>)> {
    let claim_uids = claims.uids().await?;
    let volumes: Api<PersistentVolume> = Api::all(fixture.plane.client().clone());
    let (mut owned, mut unowned) = (BTreeSet::new(), BTreeSet::new());
    for spec in volumes.list(&ListParams::default()).await?.items.into_iter().filter_map(|volume| volume.spec)
    {
        let owner = spec.claim_ref.and_then(|claim| claim.uid);
        let set = if owner.is_some_and(|uid| claim_uids.contains(&uid)) { &mut owned } else { &mut unowned };
        set.extend(spec.csi.map(|csi| csi.volume_handle));
    }
    Ok((owned, unowned))
}

/// Checks that the running process has not called DeleteVolume.
async fn ensure_no_deletions(fixture: &FaultFixture<'_>) -> Result<()> {
    let deletions = fixture.cofferdam.delete_calls().await?;
    ensure!(deletions.is_empty(), "volumes were deleted before the operator had looked: {deletions:?}");
    Ok(())
}

/// Released volumes: names by handle.
async fn released_volumes(fixture: &FaultFixture<'_>) -> Result<BTreeMap<String, String>> {
    let volumes: Api<PersistentVolume> = Api::all(fixture.plane.client().clone());
    let volumes = volumes.list(&ListParams::default()).await?.items;
    let is_released = |volume: &PersistentVolume| {
        volume.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Released")
    };
    let entry = |volume: PersistentVolume| Some((volume.spec?.csi?.volume_handle, volume.metadata.name?));
    Ok(volumes.into_iter().filter(is_released).filter_map(entry).collect())
}

/// Names of the volumes in the intent journal: their creation may have been requested from the driver, and
/// their intent is not removed yet. Intents are removed after the PersistentVolume exists.
async fn pending_volumes(fixture: &FaultFixture<'_>) -> Result<BTreeSet<String>> {
    let maps: Api<ConfigMap> = Api::namespaced(fixture.plane.client().clone(), namespaces::COFFERDAM);
    let shards = maps.list(&ListParams::default()).await?.items;
    let journal = format!("cofferdam-intents-{DRIVER}-");
    let shards = shards.into_iter().filter(|page| page.name_any().starts_with(&journal));
    let mut names = BTreeSet::new();
    for intent in shards.filter_map(|page| page.data).flat_map(BTreeMap::into_values) {
        let intent: Value = serde_json::from_str(&intent)?;
        let name = intent.pointer("/request/name").and_then(Value::as_str);
        names.insert(
            name.with_context(|| format!("an intent without its volume's name: {intent}"))?.to_owned(),
        );
    }
    Ok(names)
}
