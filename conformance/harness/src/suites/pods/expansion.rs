//! Expansion under running pods, and recovery from a failed expansion by a smaller request.

use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::{
    ResourceExt as _,
    api::{LogParams, Patch, PatchParams},
};
use serde_json::json;

use super::fixture::{ContainerVolume, IMAGE, MEMORY, MOUNT_PATH, PodFixture, TIMEOUT, TestNamespace, XFS};
use crate::wait::until;

/// Requested sizes: as a quantity for the claim, and in MiB for comparison with the output of a pod.
const INITIAL_SIZE: ClaimSize = ClaimSize { quantity: "64Mi", mebibytes: 64 };
const SECOND_SIZE: ClaimSize = ClaimSize { quantity: "128Mi", mebibytes: 128 };
const THIRD_SIZE: ClaimSize = ClaimSize { quantity: "192Mi", mebibytes: 192 };
/// Sizes of xfs volumes: xfs has a larger minimum size.
const INITIAL_XFS_SIZE: ClaimSize = ClaimSize { quantity: "320Mi", mebibytes: 320 };
const EXPANDED_XFS_SIZE: ClaimSize = ClaimSize { quantity: "512Mi", mebibytes: 512 };
/// More than the capacity of the driver `memory`, which rejects it without a change of the volume.
const TOO_LARGE: &str = "16Ti";
/// Conditions of a claim's expansion, of which none may be left at the end.
const RESIZE_CONDITIONS: [&str; 4] =
    ["Resizing", "FileSystemResizePending", "ControllerResizeError", "NodeResizeError"];

#[derive(Clone, Copy)]
struct ClaimSize {
    quantity: &'static str,
    mebibytes: u64,
}

/// A memory volume is expanded under a running pod: `df` in the pod shows the new size, and the volume keeps
/// its data. The driver then rejects a request as too large. After it, a smaller request, still above the
/// current size, expands the volume again.
pub(super) async fn expand_mounted_volume(fixture: &PodFixture<'_>) -> Result<()> {
    let namespace = &fixture.create_namespace("growth").await?;
    namespace.create_claim("memory", MEMORY).await?;
    namespace.create_pod("df", &ContainerVolume::claim("memory"), &df_script()).await?;
    namespace.wait_phase("df", "Running").await?;
    wait_last_line(namespace, "df", &format!("{} kept", INITIAL_SIZE.mebibytes << 10)).await?;

    let requested_at = Instant::now();
    request_size(namespace, "memory", SECOND_SIZE.quantity).await?;
    wait_controller_expansion(namespace, "memory", "df", SECOND_SIZE).await?;
    wait_last_line(namespace, "df", &format!("{} kept", SECOND_SIZE.mebibytes << 10)).await?;
    fixture.run.add_note(&format!(
        "expansion under a pod: df showed it after {:.1} s",
        requested_at.elapsed().as_secs_f64()
    ))?;
    wait_expanded(namespace, "memory", SECOND_SIZE).await?;

    // Beyond the driver's capacity; a smaller request above the current size succeeds.
    request_size(namespace, "memory", TOO_LARGE).await?;
    let message = until("the claim hears that the driver refuses", TIMEOUT, async || {
        let claim = namespace.claims().get("memory").await?;
        let conditions = claim.status.and_then(|status| status.conditions).unwrap_or_default();
        let error = conditions.into_iter().find(|condition| condition.type_ == "ControllerResizeError");
        error.and_then(|condition| condition.message).context("it has no condition ControllerResizeError")
    })
    .await?;
    ensure!(message.contains("more bytes do not fit"), "the condition says {message:?}");
    until("the claim is told that the driver refuses", TIMEOUT, async || {
        let events = namespace.event_text("memory").await?;
        ensure!(events.contains("VolumeResizeFailed: "), "the claim was told {events:?}");
        Ok(())
    })
    .await?;
    let volume = namespace.wait_bound("memory").await?;
    let capacity = volume.spec.and_then(|spec| spec.capacity).unwrap_or_default();
    ensure!(
        capacity.get("storage").is_some_and(|size| size.0 == SECOND_SIZE.quantity),
        "the volume has {capacity:?}"
    );
    let requested_at = Instant::now();
    request_size(namespace, "memory", THIRD_SIZE.quantity).await?;
    wait_controller_expansion(namespace, "memory", "df", THIRD_SIZE).await?;
    wait_last_line(namespace, "df", &format!("{} kept", THIRD_SIZE.mebibytes << 10)).await?;
    fixture.run.add_note(&format!(
        "recovery from a failed expansion: df showed the smaller size after {:.1} s",
        requested_at.elapsed().as_secs_f64()
    ))?;
    wait_expanded(namespace, "memory", THIRD_SIZE).await?;
    namespace.delete_pod("df").await?;
    namespace.delete_claims().await
}

/// Two images are expanded under their pods: one as a block volume, and one with xfs. None has ext4, whose
/// online expansion requires `CAP_SYS_RESOURCE`: not every machine that runs this suite has it.
pub(super) async fn expand_images(fixture: &PodFixture<'_>) -> Result<()> {
    let namespace = &fixture.create_namespace("images").await?;
    futures::try_join!(expand_block_device(fixture, namespace), expand_filesystem(fixture, namespace))?;
    namespace.delete_claims().await
}

async fn expand_block_device(fixture: &PodFixture<'_>, namespace: &TestNamespace) -> Result<()> {
    namespace.create_claim_with_modes("device", IMAGE, "Block", "ReadWriteOnce").await?;
    let script = format!(
        "was=; trap exit TERM; while :; do now=$(dd if={MOUNT_PATH} bs=1M 2>/dev/null | wc -c)
         test \"$now\" = \"$was\" || echo $now; was=$now; sleep 0.5; done"
    );
    namespace.create_pod("reads", &ContainerVolume::block_device("device"), &script).await?;
    namespace.wait_phase("reads", "Running").await?;
    wait_last_line(namespace, "reads", &(INITIAL_SIZE.mebibytes << 20).to_string()).await?;
    request_size(namespace, "device", SECOND_SIZE.quantity).await?;
    wait_controller_expansion(namespace, "device", "reads", SECOND_SIZE).await?;
    wait_last_line(namespace, "reads", &(SECOND_SIZE.mebibytes << 20).to_string()).await?;
    wait_expanded(namespace, "device", SECOND_SIZE).await?;
    namespace.delete_pod("reads").await?;
    fixture.wait_unstaged(IMAGE, namespace, "device").await
}

async fn expand_filesystem(fixture: &PodFixture<'_>, namespace: &TestNamespace) -> Result<()> {
    namespace.create_claim_of_size("xfs", XFS, INITIAL_XFS_SIZE.quantity).await?;
    namespace.create_pod("df", &ContainerVolume::claim("xfs"), &df_script()).await?;
    namespace.wait_phase("df", "Running").await?;
    // The metadata of xfs reduces the size that the pod sees.
    wait_size_between(namespace, "df", 0, INITIAL_XFS_SIZE).await?;
    request_size(namespace, "xfs", EXPANDED_XFS_SIZE.quantity).await?;
    wait_controller_expansion(namespace, "xfs", "df", EXPANDED_XFS_SIZE).await?;
    wait_size_between(namespace, "df", INITIAL_XFS_SIZE.mebibytes << 10, EXPANDED_XFS_SIZE).await?;
    wait_expanded(namespace, "xfs", EXPANDED_XFS_SIZE).await?;
    namespace.delete_pod("df").await?;
    let output =
        namespace.run_pod("next", &ContainerVolume::claim("xfs"), &format!("cat {MOUNT_PATH}/f")).await?;
    ensure!(output == "kept", "the next pod reads {output:?}");
    fixture.wait_unstaged(XFS, namespace, "xfs").await
}

/// Waits until a pod sees a file system larger than `min_kib` and not larger than `max_size`, with the data
/// written at the start of the pod.
async fn wait_size_between(
    namespace: &TestNamespace,
    pod: &str,
    min_kib: u64,
    max_size: ClaimSize,
) -> Result<()> {
    until(&format!("pod {pod} sees at most {}", max_size.quantity), TIMEOUT, async || {
        let log = namespace.pods().logs(pod, &LogParams::default()).await?;
        let last =
            log.lines().last().and_then(|line| line.strip_suffix(" kept")).context("it has not looked")?;
        let kib: u64 = last.parse().with_context(|| format!("it says {log:?}"))?;
        ensure!(
            kib > min_kib && kib <= max_size.mebibytes << 10,
            "it says {log:?}: {}",
            namespace.event_text(pod).await?
        );
        Ok(())
    })
    .await
}

/// A script that writes data at its start. It then prints the volume's size in KiB and the data, once at
/// first and again after every change of the size.
fn df_script() -> String {
    format!(
        "cd {MOUNT_PATH}; echo kept > f; was=; size() \
         {{ df -P -k . | {{ read -r _; read -r _ kib _; echo $kib; }}; }}
         trap exit TERM; while :; do now=$(size)
         test \"$now\" = \"$was\" || echo $now $(cat f); was=$now; sleep 0.2; done"
    )
}

/// Requests a size for a claim.
async fn request_size(namespace: &TestNamespace, claim: &str, size: &str) -> Result<()> {
    let patch = Patch::Merge(json!({ "spec": { "resources": { "requests": { "storage": size } } } }));
    namespace.claims().patch(claim, &PatchParams::default(), &patch).await?;
    Ok(())
}

/// Waits until the PersistentVolume has the size. Then annotates the pod to trigger kubelet, which otherwise
/// syncs a pod every minute.
async fn wait_controller_expansion(
    namespace: &TestNamespace,
    claim: &str,
    pod: &str,
    size: ClaimSize,
) -> Result<()> {
    until(&format!("the volume of {claim} has {}", size.quantity), TIMEOUT, async || {
        let capacity =
            namespace.wait_bound(claim).await?.spec.and_then(|spec| spec.capacity).unwrap_or_default();
        ensure!(capacity.get("storage").is_some_and(|now| now.0 == size.quantity), "it has {capacity:?}");
        Ok(())
    })
    .await?;
    let annotation_patch = Patch::Merge(json!({ "metadata": { "annotations": { "grown": size.quantity } } }));
    namespace.pods().patch(pod, &PatchParams::default(), &annotation_patch).await?;
    Ok(())
}

/// Waits until a pod has printed this last line.
async fn wait_last_line(namespace: &TestNamespace, pod: &str, expected: &str) -> Result<()> {
    until(&format!("pod {pod} sees {expected:?}"), TIMEOUT, async || {
        let log = namespace.pods().logs(pod, &LogParams::default()).await?;
        ensure!(
            log.lines().last() == Some(expected),
            "it says {log:?}: {}",
            namespace.event_text(pod).await?
        );
        Ok(())
    })
    .await
}

/// Waits until a claim has this capacity, and neither a state nor a condition of an expansion. Then checks
/// that its PersistentVolume has no annotation with the capacity before the expansion.
async fn wait_expanded(namespace: &TestNamespace, claim: &str, size: ClaimSize) -> Result<()> {
    until(&format!("claim {claim} has {}", size.quantity), TIMEOUT, async || {
        let now = namespace.claims().get(claim).await?;
        let state = resize_state(&now).to_owned();
        let status = now.status.with_context(|| format!("{claim} has no status"))?;
        let capacity = status.capacity.unwrap_or_default();
        let has_size = capacity.get("storage").is_some_and(|now| now.0 == size.quantity);
        let conditions = status.conditions.unwrap_or_default();
        let open: Vec<_> = conditions
            .iter()
            .map(|one| &one.type_)
            .filter(|one| RESIZE_CONDITIONS.contains(&one.as_str()))
            .collect();
        ensure!(
            has_size && state.is_empty() && open.is_empty(),
            "it has {capacity:?}, state {state:?}, {open:?}"
        );
        Ok(())
    })
    .await?;
    let has_annotation =
        namespace.wait_bound(claim).await?.annotations().keys().any(|key| key.contains("pre-resize"));
    ensure!(!has_annotation, "the volume of {claim} still tells what it had before");
    Ok(())
}

/// The entry `storage` of a claim's `status.allocatedResourceStatuses`, such as `NodeResizePending`; empty if
/// there is none.
fn resize_state(claim: &PersistentVolumeClaim) -> &str {
    let states = claim.status.as_ref().and_then(|status| status.allocated_resource_statuses.as_ref());
    states.and_then(|states| states.get("storage")).map_or("", String::as_str)
}
