//! Invariants of VolumeAttachments that the attach-detach controller creates.
//!
//! They are checked in paused time, against the API server, when a process creates or deletes a
//! VolumeAttachment:
//! - a single-node volume never has VolumeAttachments for two nodes;
//! - a volume in `volumesAttached` is never detached;
//! - a volume in `volumesInUse` is not detached, except from a node with the out-of-service taint, and by
//!   force-detach from a NotReady or deleted node;
//! - a volume that a pod on the node uses is not detached, if its driver requires attach; except if the
//!   PersistentVolume of the VolumeAttachment was deleted and the volume is not in `volumesInUse`.
//!
//! The last two apply to the first request to delete a VolumeAttachment, not to repeated requests.
//!
//! [`stale_volumes_attached`] is checked at the end of a run, also in real time.

use std::time::Duration;

use cofferdam_domain::{DriverName, NodeName, VolumeHandle, names};
use http::Method;
use serde_json::Value;
use tokio::time::Instant;

use crate::{
    api::{NODES_PATH, VOLUME_ATTACHMENTS_PATH, claim_names, get, list_at, text},
    fixture::SimulationFixture,
};

const VOLUMES: &str = "/api/v1/persistentvolumes";
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// Time from the deletion of the pod to the force-detach of a volume in use on a NotReady or deleted node.
const FORCE_DETACH_AFTER: Duration = Duration::from_secs(360);
/// Maximum time until every process has seen a new pod.
const WATCH_DELAY: Duration = Duration::from_secs(1);

/// Checks the deletion of a VolumeAttachment of the attach-detach controller before the request is sent, in
/// paused time. Other requests are not checked.
pub(crate) async fn check_request(fixture: &SimulationFixture, method: &Method, path: &str) {
    let Some(name) = path.strip_prefix(VOLUME_ATTACHMENTS_PATH).and_then(|rest| rest.strip_prefix('/'))
    else {
        return;
    };
    if *method != Method::DELETE || !is_for_pods(name) || fixture.is_real_time() {
        return;
    }
    let Some(attachment) = get(&fixture.user_api, path).await else { return };
    let uid = text(&attachment, "/metadata/uid").to_owned();
    let is_new = fixture.with_history(|history| history.detach_requested.insert(uid));
    let name_text = display_name(&attachment);
    let node_name = text(&attachment, "/spec/nodeName");
    let volume = find_volume(fixture, &attachment).await;
    let claim = claim_name(fixture, &attachment, volume.as_ref()).await;
    let (unique, node) = (
        volume.as_ref().map(unique_volume_name),
        get(&fixture.user_api, &format!("{NODES_PATH}/{node_name}")).await,
    );
    let is_volume = |one: &Value| unique.is_some() && one.as_str() == unique.as_deref();
    let attached = node.iter().flat_map(|node| list_at(node, "/status/volumesAttached"));
    if attached.filter_map(|one| one.get("name")).any(is_volume) {
        fixture.report_violation(format!("detached: {name_text} is still in volumesAttached"));
    }
    if !is_new {
        return;
    }
    let volumes_in_use = match &node {
        Some(node) => list_at(node, "/status/volumesInUse").to_vec(),
        None => fixture
            .with_history(|history| {
                history
                    .volumes_in_use
                    .get(node_name)
                    .map(|volumes_in_use| list_at(volumes_in_use, "").to_vec())
            })
            .unwrap_or_default(),
    };
    let in_use = volumes_in_use.iter().any(is_volume);
    let since_pod_deleted = |claim: &String| {
        let key = (node_name.to_owned(), claim.clone());
        fixture.with_history(|history| history.pods_deleted_at.get(&key).map(Instant::elapsed))
    };
    let is_before_force_detach = claim
        .as_ref()
        .and_then(since_pod_deleted)
        .is_some_and(|since_pod_deleted| since_pod_deleted < FORCE_DETACH_AFTER);
    if in_use
        && !node.as_ref().is_some_and(is_out_of_service)
        && (node.as_ref().is_some_and(is_ready) || is_before_force_detach)
    {
        fixture.report_violation(format!("detached: {name_text} is still in volumesInUse"));
    }
    // A VolumeAttachment of a deleted PersistentVolume is also deleted under a pod that does not use the
    // volume yet, and created again.
    let is_of_deleted_volume = text(&attachment, "/spec/source/persistentVolumeName")
        != volume.as_ref().map(|volume| text(volume, "/metadata/name")).unwrap_or_default();
    let Some(claim) = claim.filter(|_| in_use || !is_of_deleted_volume) else { return };
    if is_attach_required(fixture, &attachment).await && has_pod(fixture, node_name, &claim).await {
        fixture.report_violation(format!("detached: {name_text} is used by a pod on the node"));
    }
}

fn is_out_of_service(node: &Value) -> bool {
    list_at(node, "/spec/taints").iter().any(|taint| text(taint, "/key") == OUT_OF_SERVICE)
}

fn is_ready(node: &Value) -> bool {
    let conditions = list_at(node, "/status/conditions").iter();
    let mut ready = conditions.filter(|condition| text(condition, "/type") == "Ready");
    ready.any(|condition| text(condition, "/status") == "True")
}

/// Returns true if the driver of a VolumeAttachment requires attach.
async fn is_attach_required(fixture: &SimulationFixture, attachment: &Value) -> bool {
    let path = format!("/apis/storage.k8s.io/v1/csidrivers/{}", text(attachment, "/spec/attacher"));
    let driver = get(&fixture.user_api, &path).await;
    driver.is_none_or(|driver| driver.pointer("/spec/attachRequired") != Some(&Value::Bool(false)))
}

/// Returns true if a pod on the node uses the claim, is not terminated, and every process has seen it.
async fn has_pod(fixture: &SimulationFixture, node: &str, claim: &str) -> bool {
    let pods = fixture.list("/api/v1/pods").await;
    pods.iter().any(|pod| {
        let runs = list_at(pod, "/status/containerStatuses")
            .iter()
            .any(|one| one.pointer("/state/running").is_some());
        let is_terminated = matches!(text(pod, "/status/phase"), "Failed" | "Succeeded")
            || (pod.pointer("/metadata/deletionTimestamp").is_some() && !runs);
        let since_created = fixture.with_history(|history| {
            history.pods_created_at.get(text(pod, "/metadata/name")).map(Instant::elapsed)
        });
        text(pod, "/spec/nodeName") == node
            && !is_terminated
            && claim_names(pod).any(|of| of == claim)
            && since_created.is_none_or(|since_created| since_created >= WATCH_DELAY)
    })
}

/// The claim of a VolumeAttachment's volume. Of a PersistentVolume that was deleted (`volume` is `None`), the
/// claim whose `spec.volumeName` is its name.
async fn claim_name(
    fixture: &SimulationFixture,
    attachment: &Value,
    volume: Option<&Value>,
) -> Option<String> {
    let volume_name = text(attachment, "/spec/source/persistentVolumeName");
    let name = match volume {
        Some(volume) => text(volume, "/spec/claimRef/name").to_owned(),
        None => {
            let claims = fixture.list("/api/v1/persistentvolumeclaims").await;
            let claim = claims.iter().find(|claim| text(claim, "/spec/volumeName") == volume_name)?;
            text(claim, "/metadata/name").to_owned()
        }
    };
    (!name.is_empty()).then_some(name)
}

/// Returns true if [`check_created_attachment`] has to check the response of a request.
pub(crate) fn is_response_checked(fixture: &SimulationFixture, method: &Method, path: &str) -> bool {
    *method == Method::POST && path == VOLUME_ATTACHMENTS_PATH && !fixture.is_real_time()
}

/// Reports a violation if a single-node volume has VolumeAttachments for two nodes after the creation of this
/// one.
pub(crate) async fn check_created_attachment(fixture: &SimulationFixture, attachment: &Value) {
    let (name, node) = (text(attachment, "/metadata/name"), text(attachment, "/spec/nodeName"));
    let volume_name = text(attachment, "/spec/source/persistentVolumeName");
    if !is_for_pods(name)
        || !find_volume(fixture, attachment).await.is_some_and(|volume| is_single_node(&volume))
    {
        return;
    }
    for other in fixture.record_attachment(volume_name, name).into_iter().filter(|other| other != name) {
        let Some(other_attachment) =
            get(&fixture.user_api, &format!("{VOLUME_ATTACHMENTS_PATH}/{other}")).await
        else {
            continue;
        };
        if text(&other_attachment, "/spec/source/persistentVolumeName") == volume_name {
            fixture.report_violation(format!(
                "multi-attach: {volume_name} on {} and {node}",
                text(&other_attachment, "/spec/nodeName")
            ));
        }
    }
}

/// A violation for each volume in `volumesAttached` that is not attached or is being detached.
pub(crate) fn stale_volumes_attached(nodes: &[Value], attachments: &[Value]) -> Vec<String> {
    let attached = |node: &str, handle: &str| {
        attachments.iter().any(|one| {
            is_for_pods(text(one, "/metadata/name"))
                && text(one, "/spec/nodeName") == node
                && one.pointer("/status/attached").and_then(Value::as_bool) == Some(true)
                && one.pointer("/metadata/deletionTimestamp").is_none()
                && handle.ends_with(text(one, "/spec/source/persistentVolumeName"))
        })
    };
    let mut violations = Vec::new();
    for node in nodes {
        let name = text(node, "/metadata/name");
        let not_attached = attached_handles(node).into_iter().filter(|handle| !attached(name, handle));
        violations.extend(
            not_attached
                .map(|handle| format!("volumesAttached: {name} lists {handle}, which is not attached")),
        );
    }
    violations
}

/// The line of `FinalState::volumes_attached` for a Node; `None` if `volumesAttached` is empty.
pub(crate) fn volumes_attached_line(node: &Value) -> Option<String> {
    let handles = attached_handles(node);
    (!handles.is_empty()).then(|| format!("{} on {}", handles.join(", "), text(node, "/metadata/name")))
}

/// The name of a VolumeAttachment. For one that the attach-detach controller created, the name is replaced by
/// `v on node-1`, where `v` is the PersistentVolume, or `volume` if the PersistentVolume was provisioned.
pub(crate) fn display_name(attachment: &Value) -> String {
    match text(attachment, "/metadata/name") {
        name if is_for_pods(name) => {
            let volume = text(attachment, "/spec/source/persistentVolumeName");
            let volume = if volume.starts_with("pvc-") { "volume" } else { volume };
            format!("{volume} on {}", text(attachment, "/spec/nodeName"))
        }
        name => name.to_owned(),
    }
}

/// Handles of the CSI volumes in a Node's `volumesAttached`, and the names of other volumes.
fn attached_handles(node: &Value) -> Vec<String> {
    let names = list_at(node, "/status/volumesAttached").iter().map(|one| text(one, "/name"));
    let mut handles: Vec<String> =
        names.map(|name| name.split_once('^').map_or(name, |(_, handle)| handle).to_owned()).collect();
    handles.sort();
    handles
}

fn is_for_pods(name: &str) -> bool {
    name.strip_prefix("csi-").is_some_and(|digest| digest.len() == 64)
}

fn is_single_node(volume: &Value) -> bool {
    let modes = list_at(volume, "/spec/accessModes");
    !modes.iter().any(|mode| matches!(mode.as_str(), Some("ReadWriteMany" | "ReadOnlyMany")))
}

fn unique_volume_name(volume: &Value) -> String {
    let (driver, handle) = (text(volume, "/spec/csi/driver"), text(volume, "/spec/csi/volumeHandle"));
    format!("kubernetes.io/csi/{driver}^{handle}")
}

/// The PersistentVolume of a VolumeAttachment, or else one with the same driver and handle.
async fn find_volume(fixture: &SimulationFixture, attachment: &Value) -> Option<Value> {
    let volume_name = text(attachment, "/spec/source/persistentVolumeName");
    if let Some(volume) = get(&fixture.user_api, &format!("{VOLUMES}/{volume_name}")).await {
        return Some(volume);
    }
    let node = NodeName::from(text(attachment, "/spec/nodeName"));
    fixture.list(VOLUMES).await.into_iter().find(|volume| {
        let driver = DriverName::from(text(volume, "/spec/csi/driver"));
        let handle = VolumeHandle::from(text(volume, "/spec/csi/volumeHandle"));
        names::volume_attachment_name(&driver, &handle, &node).as_str() == text(attachment, "/metadata/name")
    })
}
