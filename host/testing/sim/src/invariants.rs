//! What must never happen to attachments that are made for pods, looked at in the API itself with every write
//! of a process: a volume for one node is never asked for on two, and none is taken from a node that is told
//! of it or uses it, but by force; from a pod, not even so.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use cofferdam_domain::{DriverName, NodeName, VolumeHandle, names};
use http::Method;
use serde_json::Value;
use tokio::time::Instant;

use crate::{
    fixture::{NODES_PATH, SimulationFixture, VOLUME_ATTACHMENTS_PATH, send_request, text},
    simulation::UserAction,
};

const VOLUMES: &str = "/api/v1/persistentvolumes";
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// What a volume in use is left on a node that is not heard any more, or gone.
const FORCE_DETACH_AFTER: Duration = Duration::from_secs(360);
/// What a pod may have been there without every process knowing of it.
const WATCH_DELAY: Duration = Duration::from_secs(1);

/// What users have done, and when, as far as it is judged.
#[derive(Default)]
pub(crate) struct History {
    /// Pods by name.
    pods_created_at: HashMap<String, Instant>,
    /// When the last pod of a claim has left a node.
    pods_deleted_at: HashMap<(String, String), Instant>,
    /// What nodes that are gone used last.
    volumes_in_use: HashMap<String, Value>,
    /// Attachments whose deletion a process has asked for, by uid: what has begun is carried through.
    detach_requested: HashSet<String>,
}

/// Takes note of what a user is about to do.
pub(crate) async fn record_user_action(fixture: &SimulationFixture, action: &UserAction) {
    match action {
        UserAction::Create(object) if text(object, "/kind") == "Pod" => {
            let name = text(object, "/metadata/name").to_owned();
            fixture.with_history(|memory| memory.pods_created_at.insert(name, Instant::now()));
        }
        UserAction::Create(object) if text(object, "/kind") == "Node" => {
            fixture.with_history(|memory| memory.volumes_in_use.remove(text(object, "/metadata/name")));
        }
        UserAction::Delete(path) if !fixture.is_real_time() => {
            let Some(object) = get(fixture, path.split('?').next().unwrap_or_default()).await else { return };
            let name = text(&object, "/metadata/name").to_owned();
            match text(&object, "/kind") {
                "Pod" => fixture.with_history(|memory| {
                    let node = text(&object, "/spec/nodeName");
                    for claim in claim_names(&object) {
                        memory.pods_deleted_at.insert((node.to_owned(), claim.to_owned()), Instant::now());
                    }
                }),
                "Node" => {
                    let in_use = object.pointer("/status/volumesInUse").cloned().unwrap_or_default();
                    fixture.with_history(|memory| drop(memory.volumes_in_use.insert(name, in_use)));
                }
                _ => {}
            }
        }
        UserAction::Create(_)
        | UserAction::Delete(_)
        | UserAction::Patch(..)
        | UserAction::Backup
        | UserAction::Restore
        | UserAction::Compact
        | UserAction::Settle
        | UserAction::Wait(_)
        | UserAction::Until(_) => {}
    }
}

/// Judges a request before it is carried out.
pub(crate) async fn check_request(fixture: &SimulationFixture, method: &Method, path: &str) {
    let Some(name) = path.strip_prefix(VOLUME_ATTACHMENTS_PATH).and_then(|rest| rest.strip_prefix('/'))
    else {
        return;
    };
    if *method != Method::DELETE || !is_for_pods(name) || fixture.is_real_time() {
        return;
    }
    let Some(attachment) = get(fixture, path).await else { return };
    let uid = text(&attachment, "/metadata/uid").to_owned();
    let is_new = fixture.with_history(|memory| memory.detach_requested.insert(uid));
    let name_text = display_name(&attachment);
    let node_name = text(&attachment, "/spec/nodeName");
    let volume = find_volume(fixture, &attachment).await;
    let claim = claim_name(fixture, &attachment, volume.as_ref()).await;
    let (unique, node) =
        (volume.as_ref().map(unique_volume_name), get(fixture, &format!("{NODES_PATH}/{node_name}")).await);
    let is_volume = |one: &Value| unique.is_some() && one.as_str() == unique.as_deref();
    let attached = node.iter().flat_map(|node| list_at(node, "/status/volumesAttached"));
    if attached.filter_map(|one| one.get("name")).any(is_volume) {
        fixture.report_violation(format!("detached: {name_text}, of which the node is told"));
    }
    if !is_new {
        return;
    }
    let volumes_in_use = match &node {
        Some(node) => list_at(node, "/status/volumesInUse").to_vec(),
        None => fixture
            .with_history(|memory| {
                memory
                    .volumes_in_use
                    .get(node_name)
                    .map(|volumes_in_use| list_at(volumes_in_use, "").to_vec())
            })
            .unwrap_or_default(),
    };
    let in_use = volumes_in_use.iter().any(is_volume);
    let since_pod_deleted = |claim: &String| {
        let key = (node_name.to_owned(), claim.clone());
        fixture.with_history(|memory| memory.pods_deleted_at.get(&key).map(Instant::elapsed))
    };
    let is_before_force_detach = claim
        .as_ref()
        .and_then(since_pod_deleted)
        .is_some_and(|since_pod_deleted| since_pod_deleted < FORCE_DETACH_AFTER);
    if in_use
        && !node.as_ref().is_some_and(is_out_of_service)
        && (node.as_ref().is_some_and(is_ready) || is_before_force_detach)
    {
        fixture.report_violation(format!("detached: {name_text}, which the node uses"));
    }
    // What was made by way of an object that is no more goes under a pod that does not use it yet, and is
    // made again.
    let is_orphan = text(&attachment, "/spec/source/persistentVolumeName")
        != volume.as_ref().map(|volume| text(volume, "/metadata/name")).unwrap_or_default();
    let Some(claim) = claim.filter(|_| in_use || !is_orphan) else { return };
    if is_attach_required(fixture, &attachment).await && has_pod(fixture, node_name, &claim).await {
        fixture.report_violation(format!("detached: {name_text}, which a pod there uses"));
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

/// Whether the driver of an attachment has its volumes attached.
async fn is_attach_required(fixture: &SimulationFixture, attachment: &Value) -> bool {
    let path = format!("/apis/storage.k8s.io/v1/csidrivers/{}", text(attachment, "/spec/attacher"));
    let driver = get(fixture, &path).await;
    driver.is_none_or(|driver| driver.pointer("/spec/attachRequired") != Some(&Value::Bool(false)))
}

/// Whether a pod on a node, of which every process has heard, uses a claim.
async fn has_pod(fixture: &SimulationFixture, node: &str, claim: &str) -> bool {
    let pods = fixture.list("/api/v1/pods").await;
    pods.iter().any(|pod| {
        let runs = list_at(pod, "/status/containerStatuses")
            .iter()
            .any(|one| one.pointer("/state/running").is_some());
        let is_terminated = matches!(text(pod, "/status/phase"), "Failed" | "Succeeded")
            || (pod.pointer("/metadata/deletionTimestamp").is_some() && !runs);
        let since_created = fixture.with_history(|memory| {
            memory.pods_created_at.get(text(pod, "/metadata/name")).map(Instant::elapsed)
        });
        text(pod, "/spec/nodeName") == node
            && !is_terminated
            && claim_names(pod).any(|of| of == claim)
            && since_created.is_none_or(|since_created| since_created >= WATCH_DELAY)
    })
}

/// The claims that a pod names.
fn claim_names(pod: &Value) -> impl Iterator<Item = &str> {
    list_at(pod, "/spec/volumes").iter().map(|volume| text(volume, "/persistentVolumeClaim/claimName"))
}

/// The claim that an attachment's volume is of; where the volume is gone, the one that names it.
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

/// Whether what a request brings about is judged by its answer.
pub(crate) fn is_response_checked(fixture: &SimulationFixture, method: &Method, path: &str) -> bool {
    *method == Method::POST && path == VOLUME_ATTACHMENTS_PATH && !fixture.is_real_time()
}

/// Judges an attachment that has been made.
pub(crate) async fn check_created_attachment(fixture: &SimulationFixture, attachment: &Value) {
    let (name, node) = (text(attachment, "/metadata/name"), text(attachment, "/spec/nodeName"));
    let volume_name = text(attachment, "/spec/source/persistentVolumeName");
    if !is_for_pods(name)
        || !find_volume(fixture, attachment).await.is_some_and(|volume| is_single_node(&volume))
    {
        return;
    }
    for other in fixture.record_attachment(volume_name, name).into_iter().filter(|other| other != name) {
        let Some(other_attachment) = get(fixture, &format!("{VOLUME_ATTACHMENTS_PATH}/{other}")).await else {
            continue;
        };
        if text(&other_attachment, "/spec/source/persistentVolumeName") == volume_name {
            fixture.report_violation(format!(
                "on two nodes: {volume_name}, on {} and {node}",
                text(&other_attachment, "/spec/nodeName")
            ));
        }
    }
}

/// Volumes that nodes are told of and that are not attached.
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
        violations
            .extend(not_attached.map(|handle| format!("told: {name} of {handle}, which is not attached")));
    }
    violations
}

/// A node with what it is told of; absent for one that is told of nothing.
pub(crate) fn volumes_attached_line(node: &Value) -> Option<String> {
    let handles = attached_handles(node);
    (!handles.is_empty()).then(|| format!("{} on {}", handles.join(", "), text(node, "/metadata/name")))
}

/// The name of an attachment; one that was made for pods by its volume and node.
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

/// Handles of the CSI volumes that a node is told of, and the names of others.
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

fn list_at<'a>(object: &'a Value, pointer: &str) -> &'a [Value] {
    object.pointer(pointer).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// The volume that an attachment names, or else the one that has its identity.
async fn find_volume(fixture: &SimulationFixture, attachment: &Value) -> Option<Value> {
    let volume_name = text(attachment, "/spec/source/persistentVolumeName");
    if let Some(volume) = get(fixture, &format!("{VOLUMES}/{volume_name}")).await {
        return Some(volume);
    }
    let node = NodeName::from(text(attachment, "/spec/nodeName"));
    fixture.list(VOLUMES).await.into_iter().find(|volume| {
        let driver = DriverName::from(text(volume, "/spec/csi/driver"));
        let handle = VolumeHandle::from(text(volume, "/spec/csi/volumeHandle"));
        names::volume_attachment_name(&driver, &handle, &node).as_str() == text(attachment, "/metadata/name")
    })
}

async fn get(fixture: &SimulationFixture, path: &str) -> Option<Value> {
    let (status, object) = send_request(&fixture.user_api, Method::GET, path, "", &Value::Null).await.ok()?;
    status.is_success().then_some(object)
}
