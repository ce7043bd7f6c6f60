//! Volumes grow, also under pods that run; what the driver refuses is taken back by a smaller wish.

use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::{
    ResourceExt as _,
    api::{LogParams, Patch, PatchParams},
};
use serde_json::json;

use super::ground::{AT, Ground, IMAGE, MEMORY, Room, SOON, Use, XFS};
use crate::wait::until;

/// What a claim wishes for, one after the other, as Kubernetes and as the tools in a pod write it.
const FIRST: Size = Size { wish: "64Mi", mebibytes: 64 };
const SECOND: Size = Size { wish: "128Mi", mebibytes: 128 };
const THIRD: Size = Size { wish: "192Mi", mebibytes: 192 };
/// The same of xfs, which is not made smaller.
const SMALLEST: Size = Size { wish: "320Mi", mebibytes: 320 };
const LARGER: Size = Size { wish: "512Mi", mebibytes: 512 };
/// More than the driver has: it fails for good, and nothing has happened.
const TOO_MUCH: &str = "16Ti";
/// States of a claim's growth and its conditions, all of which have to be gone at the end.
const OPEN: [&str; 4] = ["Resizing", "FileSystemResizePending", "ControllerResizeError", "NodeResizeError"];

#[derive(Clone, Copy)]
struct Size {
    wish: &'static str,
    mebibytes: u64,
}

/// Memory grows under a pod that runs: `df` in it sees it, and the pod is the same one.
pub(super) async fn under_a_pod(ground: &Ground<'_>) -> Result<()> {
    let room = &ground.room("growth").await?;
    room.claim("memory", MEMORY).await?;
    room.pod("df", &Use::claim("memory"), &watches_df()).await?;
    room.phase("df", "Running").await?;
    sees(room, "df", &format!("{} kept", FIRST.mebibytes << 10)).await?;

    let asked = Instant::now();
    asks(room, "memory", SECOND.wish).await?;
    to_the_node(room, "memory", "df", SECOND).await?;
    sees(room, "df", &format!("{} kept", SECOND.mebibytes << 10)).await?;
    ground.run.tell(&format!(
        "a volume grew under its pod: df saw it after {:.1} s",
        asked.elapsed().as_secs_f64()
    ))?;
    grown(room, "memory", SECOND).await?;

    // The driver has no room for this one; a wish below it, above what there is, goes through.
    asks(room, "memory", TOO_MUCH).await?;
    let refused = until("the claim hears that the driver refuses", SOON, async || {
        let claim = room.claims().get("memory").await?;
        let conditions = claim.status.and_then(|status| status.conditions).unwrap_or_default();
        let error = conditions.into_iter().find(|condition| condition.type_ == "ControllerResizeError");
        error.and_then(|condition| condition.message).context("it has no condition ControllerResizeError")
    })
    .await?;
    ensure!(refused.contains("more bytes do not fit"), "the condition says {refused:?}");
    until("the claim is told that the driver refuses", SOON, async || {
        let events = room.events("memory").await?;
        ensure!(events.contains("VolumeResizeFailed: "), "the claim was told {events:?}");
        Ok(())
    })
    .await?;
    let volume = room.bound("memory").await?;
    let capacity = volume.spec.and_then(|spec| spec.capacity).unwrap_or_default();
    ensure!(capacity.get("storage").is_some_and(|size| size.0 == SECOND.wish), "the volume has {capacity:?}");
    let asked = Instant::now();
    asks(room, "memory", THIRD.wish).await?;
    to_the_node(room, "memory", "df", THIRD).await?;
    sees(room, "df", &format!("{} kept", THIRD.mebibytes << 10)).await?;
    ground.run.tell(&format!(
        "growth by too much, taken back by a smaller wish: df saw that one after {:.1} s",
        asked.elapsed().as_secs_f64()
    ))?;
    grown(room, "memory", THIRD).await?;
    room.gone("df").await?;
    room.empty().await
}

/// An image grows under its pod: as a raw device, and with xfs. ext4 grows while it is mounted for who has `CAP_SYS_RESOURCE`, which
/// not every machine of this suite gives.
pub(super) async fn of_images(ground: &Ground<'_>) -> Result<()> {
    let room = &ground.room("images").await?;
    futures::try_join!(device(ground, room), filesystem(ground, room))?;
    room.empty().await
}

async fn device(ground: &Ground<'_>, room: &Room) -> Result<()> {
    room.claim_as("device", IMAGE, "Block", "ReadWriteOnce").await?;
    let script = format!(
        "was=; trap exit TERM; while :; do now=$(dd if={AT} bs=1M 2>/dev/null | wc -c)
         test \"$now\" = \"$was\" || echo $now; was=$now; sleep 0.5; done"
    );
    room.pod("reads", &Use::device("device"), &script).await?;
    room.phase("reads", "Running").await?;
    sees(room, "reads", &(FIRST.mebibytes << 20).to_string()).await?;
    asks(room, "device", SECOND.wish).await?;
    to_the_node(room, "device", "reads", SECOND).await?;
    sees(room, "reads", &(SECOND.mebibytes << 20).to_string()).await?;
    grown(room, "device", SECOND).await?;
    room.gone("reads").await?;
    ground.unstaged(IMAGE, room, "device").await
}

async fn filesystem(ground: &Ground<'_>, room: &Room) -> Result<()> {
    room.claim_of("xfs", XFS, SMALLEST.wish).await?;
    room.pod("df", &Use::claim("xfs"), &watches_df()).await?;
    room.phase("df", "Running").await?;
    // A filesystem keeps a part for itself.
    says_between(room, "df", 0, SMALLEST).await?;
    asks(room, "xfs", LARGER.wish).await?;
    to_the_node(room, "xfs", "df", LARGER).await?;
    says_between(room, "df", SMALLEST.mebibytes << 10, LARGER).await?;
    grown(room, "xfs", LARGER).await?;
    room.gone("df").await?;
    let said = room.says("next", &Use::claim("xfs"), &format!("cat {AT}/f")).await?;
    ensure!(said == "kept", "the next pod reads {said:?}");
    ground.unstaged(XFS, room, "xfs").await
}

/// Waits until a pod sees a filesystem of more than so many KiB, and of at most a size, with what was written at the start.
async fn says_between(room: &Room, pod: &str, more_than: u64, most: Size) -> Result<()> {
    until(&format!("pod {pod} sees at most {}", most.wish), SOON, async || {
        let said = room.pods().logs(pod, &LogParams::default()).await?;
        let last =
            said.lines().last().and_then(|line| line.strip_suffix(" kept")).context("it has not looked")?;
        let now: u64 = last.parse().with_context(|| format!("it says {said:?}"))?;
        ensure!(
            now > more_than && now <= most.mebibytes << 10,
            "it says {said:?}: {}",
            room.events(pod).await?
        );
        Ok(())
    })
    .await
}

/// A script that says the size of the volume in KiB whenever it has changed, with what it wrote at the start.
fn watches_df() -> String {
    format!(
        "cd {AT}; echo kept > f; was=; size() {{ df -P -k . | {{ read -r _; read -r _ kib _; echo $kib; }}; }}
         trap exit TERM; while :; do now=$(size); test \"$now\" = \"$was\" || echo $now $(cat f); was=$now; sleep 0.2; done"
    )
}

/// Lets a claim ask for a size.
async fn asks(room: &Room, claim: &str, size: &str) -> Result<()> {
    let patch = Patch::Merge(json!({ "spec": { "resources": { "requests": { "storage": size } } } }));
    room.claims().patch(claim, &PatchParams::default(), &patch).await?;
    Ok(())
}

/// Waits until the volume has the size, and wakes kubelet: by itself it looks at the volumes of a pod each minute.
async fn to_the_node(room: &Room, claim: &str, pod: &str, size: Size) -> Result<()> {
    until(&format!("the volume of {claim} has {}", size.wish), SOON, async || {
        let capacity = room.bound(claim).await?.spec.and_then(|spec| spec.capacity).unwrap_or_default();
        ensure!(capacity.get("storage").is_some_and(|now| now.0 == size.wish), "it has {capacity:?}");
        Ok(())
    })
    .await?;
    let note = Patch::Merge(json!({ "metadata": { "annotations": { "grown": size.wish } } }));
    room.pods().patch(pod, &PatchParams::default(), &note).await?;
    Ok(())
}

/// Waits until the last line of a pod is this one.
async fn sees(room: &Room, pod: &str, expected: &str) -> Result<()> {
    until(&format!("pod {pod} sees {expected:?}"), SOON, async || {
        let said = room.pods().logs(pod, &LogParams::default()).await?;
        ensure!(said.lines().last() == Some(expected), "it says {said:?}: {}", room.events(pod).await?);
        Ok(())
    })
    .await
}

/// Waits until a claim has its size, and nothing is open.
async fn grown(room: &Room, claim: &str, size: Size) -> Result<()> {
    until(&format!("claim {claim} has {}", size.wish), SOON, async || {
        let now = room.claims().get(claim).await?;
        let state = state(&now).to_owned();
        let status = now.status.with_context(|| format!("{claim} has no status"))?;
        let capacity = status.capacity.unwrap_or_default();
        let has = capacity.get("storage").is_some_and(|now| now.0 == size.wish);
        let conditions = status.conditions.unwrap_or_default();
        let open: Vec<_> =
            conditions.iter().map(|one| &one.type_).filter(|one| OPEN.contains(&one.as_str())).collect();
        ensure!(has && state.is_empty() && open.is_empty(), "it has {capacity:?}, state {state:?}, {open:?}");
        Ok(())
    })
    .await?;
    let left = room.bound(claim).await?.annotations().keys().any(|key| key.contains("pre-resize"));
    ensure!(!left, "the volume of {claim} still tells what it had before");
    Ok(())
}

/// How far the growth of a claim is.
fn state(claim: &PersistentVolumeClaim) -> &str {
    let states = claim.status.as_ref().and_then(|status| status.allocated_resource_statuses.as_ref());
    states.and_then(|states| states.get("storage")).map_or("", String::as_str)
}
