//! etcd is put back to what it was half a minute ago: claims that were made since are gone, and their volumes look abandoned.

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
    stage::{DRIVER, LONG, Stage, create, recovers},
};
use crate::{account::NAMESPACE, claims::Claims, wait::until};

/// How old the snapshot is when it is put back.
const AGE: Duration = Duration::from_secs(30);
/// Claims when the snapshot is taken, and of them, how many are Bound by then.
const KNOWN: usize = 400;
const BOUND: usize = 200;
/// Claims of the snapshot that their user deletes afterwards.
const DELETED: usize = 20;
const MARK: &str = "cofferdam-restored";
const HELD: &str = "cofferdam_deletions_held";

pub(super) async fn half_a_minute(stage: &mut Stage<'_>) -> Result<()> {
    let claims = Claims::new(stage.plane.client(), "restored", DRIVER).await?;
    ensure!(stage.ours.metric(HELD).await? == "0", "deletions are held before anything was restored");
    let known = restore(stage, &claims).await?;

    // What the snapshot knew ends Bound, and nothing of the storage goes.
    recovers(stage.run, &claims, "etcd restored from 30 s ago", known, Instant::now()).await?;
    noticed(stage).await?;
    // Of the process that went through the restore, which ends with the next line.
    nothing_deleted(stage).await?;
    let stored = stage.stored().await?;
    let (owned, late) = handles(stage, &claims).await?;
    ensure!(owned.len() == known, "{} volumes for {known} claims", owned.len());
    let missing: Vec<_> = owned.union(&late).filter(|handle| !stored.contains_key(*handle)).collect();
    ensure!(missing.is_empty(), "the storage does not have {missing:?}");
    // Those whose creation was under way got their object in the restored cluster, where their claim is not.
    let late = late.len();
    let forgotten = stored.len() - known - late;
    ensure!(
        forgotten + late > 0,
        "every claim of the storage is in the snapshot: expected one that was made later"
    );

    // Deletions wait, also those of the next process.
    claims.delete(0..DELETED).await?;
    let released = until("the volumes of deleted claims are Released", LONG, async || {
        let released = released(stage).await?;
        ensure!(released.len() == DELETED + late, "{} are", released.len());
        anyhow::Ok(released)
    })
    .await?;
    let events: Api<Event> = Api::default_namespaced(stage.plane.client().clone());
    until("DeletionHeld is told", LONG, async || {
        let told = events.list(&ListParams::default().fields("reason=DeletionHeld")).await?.items;
        let told: BTreeSet<_> = told.into_iter().filter_map(|event| event.involved_object.name).collect();
        let untold: Vec<_> = released.values().filter(|name| !told.contains(*name)).collect();
        ensure!(untold.is_empty(), "but of {untold:?}");
        Ok(())
    })
    .await?;
    nothing_deleted(stage).await?;
    ensure!(stage.stored().await? == stored, "volumes went before the operator had looked");
    ensure!(stage.ours.metric(HELD).await? == "1", "the next process does not hold deletions");

    // Those whose creation was under way, and who have no object yet, stand in the journal.
    let begun = self::begun(stage).await?;
    let goes: BTreeSet<_> = stored
        .iter()
        .filter(|(handle, name)| released.contains_key(*handle) || begun.contains(*name))
        .map(|(handle, _)| handle)
        .collect();
    let kept: BTreeSet<_> = stored.keys().filter(|handle| !goes.contains(handle)).collect();

    nothing_deleted(stage).await?;

    // The operator's word.
    let maps: Api<ConfigMap> = Api::namespaced(stage.plane.client().clone(), NAMESPACE);
    maps.delete(MARK, &DeleteParams::default()).await?;
    claims.left(known - DELETED, LONG).await?;
    until("the journal is empty", LONG, async || {
        let open = self::begun(stage).await?;
        ensure!(open.is_empty(), "it has {open:?}");
        Ok(())
    })
    .await?;
    ensure!(stage.ours.metric(HELD).await? == "0", "deletions are held without the mark");
    let deletions = stage.ours.deletions().await?;
    ensure!(!deletions.is_empty(), "the metrics say nothing of deletions: expected {} of them", goes.len());
    let left = stage.stored().await?;
    let left: BTreeSet<_> = left.keys().collect();
    ensure!(
        left == kept,
        "of {} volumes, {:?} went and were to stay, {:?} stayed and were to go",
        stored.len(),
        kept.difference(&left).collect::<Vec<_>>(),
        left.difference(&kept).collect::<Vec<_>>(),
    );
    stage.run.tell(&format!(
        "the storage kept {} volumes that the snapshot did not know; when told, it let go {DELETED} of deleted claims, \
         and {} of claims that were there no more when their volume was made",
        kept.len() - (known - DELETED),
        goes.len() - DELETED,
    ))
}

/// Restores in the middle of a run; how many claims are known afterwards.
async fn restore(stage: &mut Stage<'_>, claims: &Claims) -> Result<usize> {
    let (run, plane) = (stage.run, &mut stage.plane);
    let snapshot = async {
        claims.bound(BOUND, LONG).await?;
        claims.in_the_middle().await?;
        plane.snapshot_etcd(run, "half-a-minute").await?;
        anyhow::Ok(Instant::now())
    };
    let ((), taken) = tokio::try_join!(create(claims, 0..KNOWN), snapshot)?;
    claims.bound(KNOWN, LONG).await?;
    tokio::time::sleep(AGE.saturating_sub(taken.elapsed())).await;
    let middle = async {
        claims.bound(KNOWN + BOUND, LONG).await?;
        claims.in_the_middle().await
    };
    // Nobody makes those that the user has not come to by then.
    let user = async {
        create(claims, KNOWN..CLAIMS).await?;
        std::future::pending().await
    };
    tokio::select! {
        made = user => made,
        there = middle => there,
    }?;
    plane.restore(run, "half-a-minute").await?;
    claims.count().await
}

/// A mark, the log and the metric say what happened.
async fn noticed(stage: &Stage<'_>) -> Result<()> {
    let maps: Api<ConfigMap> = Api::namespaced(stage.plane.client().clone(), NAMESPACE);
    let map =
        until("a mark stands", LONG, async || maps.get(MARK).await.context("nothing marks the restore"))
            .await?;
    let told = map.data.and_then(|mut data| data.remove("detected")).unwrap_or_default();
    ensure!(told.contains("the cluster was restored"), "the mark says {told:?}");
    let log = std::fs::read_to_string(stage.ours.process.log())?;
    ensure!(log.contains(&told), "the log does not say {told:?}");
    ensure!(stage.ours.metric(HELD).await? == "1", "the metric {HELD} is not 1");
    stage.run.tell(&told)
}

/// The handles of volumes whose claims are there, and of those whose claims are not.
async fn handles(stage: &Stage<'_>, claims: &Claims) -> Result<(BTreeSet<String>, BTreeSet<String>)> {
    let there = claims.uids().await?;
    let volumes: Api<PersistentVolume> = Api::all(stage.plane.client().clone());
    let (mut owned, mut late) = (BTreeSet::new(), BTreeSet::new());
    for spec in volumes.list(&ListParams::default()).await?.items.into_iter().filter_map(|volume| volume.spec)
    {
        let owner = spec.claim_ref.and_then(|claim| claim.uid);
        let side = if owner.is_some_and(|uid| there.contains(&uid)) { &mut owned } else { &mut late };
        side.extend(spec.csi.map(|csi| csi.volume_handle));
    }
    Ok((owned, late))
}

/// The driver has not been asked for any deletion by the process that runs.
async fn nothing_deleted(stage: &Stage<'_>) -> Result<()> {
    let deletions = stage.ours.deletions().await?;
    ensure!(deletions.is_empty(), "volumes were deleted before the operator had looked: {deletions:?}");
    Ok(())
}

/// The volumes that are Released: names by handle.
async fn released(stage: &Stage<'_>) -> Result<BTreeMap<String, String>> {
    let volumes: Api<PersistentVolume> = Api::all(stage.plane.client().clone());
    let volumes = volumes.list(&ListParams::default()).await?.items;
    let is_released = |volume: &PersistentVolume| {
        volume.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Released")
    };
    let entry = |volume: PersistentVolume| Some((volume.spec?.csi?.volume_handle, volume.metadata.name?));
    Ok(volumes.into_iter().filter(is_released).filter_map(entry).collect())
}

/// The names of volumes that our program has begun and whose objects it has not written, as its journal says.
async fn begun(stage: &Stage<'_>) -> Result<BTreeSet<String>> {
    let maps: Api<ConfigMap> = Api::namespaced(stage.plane.client().clone(), NAMESPACE);
    let pages = maps.list(&ListParams::default()).await?.items;
    let journal = format!("cofferdam-intents-{DRIVER}-");
    let pages = pages.into_iter().filter(|page| page.name_any().starts_with(&journal));
    let mut names = BTreeSet::new();
    for intent in pages.filter_map(|page| page.data).flat_map(BTreeMap::into_values) {
        let intent: Value = serde_json::from_str(&intent)?;
        let name = intent.pointer("/request/name").and_then(Value::as_str);
        names.insert(
            name.with_context(|| format!("an intent without its volume's name: {intent}"))?.to_owned(),
        );
    }
    Ok(names)
}
