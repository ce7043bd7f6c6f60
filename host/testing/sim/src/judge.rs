//! What must never happen to attachments that are made for pods, looked at in the API itself with every write of a process: a volume
//! for one node is never asked for on two, and none is taken from a node that is told of it or uses it, but by force; from a pod, not
//! even so.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use cofferdam_domain::{DriverName, NodeName, VolumeHandle, names};
use http::Method;
use serde_json::Value;
use tokio::time::Instant;

use crate::{
    simulation::UserAction,
    world::{ATTACHMENTS, NODES, World, call, text},
};

const VOLUMES: &str = "/api/v1/persistentvolumes";
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// What a volume in use is left on a node that is not heard any more, or gone.
const FORCE_AFTER: Duration = Duration::from_secs(360);
/// What a pod may have been there without every process knowing of it.
const TOLD: Duration = Duration::from_secs(1);

/// What users have done, and when, as far as it is judged.
#[derive(Default)]
pub(crate) struct Memory {
    /// Pods by name.
    came: HashMap<String, Instant>,
    /// When the last pod of a claim has left a node.
    left: HashMap<(String, String), Instant>,
    /// What nodes that are gone used last.
    used: HashMap<String, Value>,
    /// Attachments whose deletion a process has asked for, by uid: what has begun is carried through.
    asked: HashSet<String>,
}

/// Takes note of what a user is about to do.
pub(crate) async fn user(world: &World, action: &UserAction) {
    match action {
        UserAction::Create(object) if text(object, "/kind") == "Pod" => {
            let name = text(object, "/metadata/name").to_owned();
            world.memory(|memory| memory.came.insert(name, Instant::now()));
        }
        UserAction::Create(object) if text(object, "/kind") == "Node" => {
            world.memory(|memory| memory.used.remove(text(object, "/metadata/name")));
        }
        UserAction::Delete(path) if !world.is_real() => {
            let Some(object) = get(world, path.split('?').next().unwrap_or_default()).await else { return };
            let name = text(&object, "/metadata/name").to_owned();
            match text(&object, "/kind") {
                "Pod" => world.memory(|memory| {
                    let node = text(&object, "/spec/nodeName");
                    for claim in claims(&object) {
                        memory.left.insert((node.to_owned(), claim.to_owned()), Instant::now());
                    }
                }),
                "Node" => {
                    let used = object.pointer("/status/volumesInUse").cloned().unwrap_or_default();
                    world.memory(|memory| drop(memory.used.insert(name, used)));
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
pub(crate) async fn before(world: &World, method: &Method, path: &str) {
    let Some(name) = path.strip_prefix(ATTACHMENTS).and_then(|rest| rest.strip_prefix('/')) else { return };
    if *method != Method::DELETE || !is_for_pods(name) || world.is_real() {
        return;
    }
    let Some(attachment) = get(world, path).await else { return };
    let uid = text(&attachment, "/metadata/uid").to_owned();
    let is_new = world.memory(|memory| memory.asked.insert(uid));
    let what = alias(&attachment);
    let node_name = text(&attachment, "/spec/nodeName");
    let volume = volume(world, &attachment).await;
    let claim = claim_of(world, &attachment, volume.as_ref()).await;
    let (unique, node) = (volume.as_ref().map(unique), get(world, &format!("{NODES}/{node_name}")).await);
    let names = |one: &Value| unique.is_some() && one.as_str() == unique.as_deref();
    let told = node.iter().flat_map(|node| list(node, "/status/volumesAttached"));
    if told.filter_map(|one| one.get("name")).any(names) {
        world.fault(format!("detached: {what}, of which the node is told"));
    }
    if !is_new {
        return;
    }
    let used = match &node {
        Some(node) => list(node, "/status/volumesInUse").to_vec(),
        None => world
            .memory(|memory| memory.used.get(node_name).map(|used| list(used, "").to_vec()))
            .unwrap_or_default(),
    };
    let in_use = used.iter().any(names);
    let left = |claim: &String| {
        let key = (node_name.to_owned(), claim.clone());
        world.memory(|memory| memory.left.get(&key).map(Instant::elapsed))
    };
    let in_time = claim.as_ref().and_then(left).is_some_and(|left| left < FORCE_AFTER);
    if in_use && !node.as_ref().is_some_and(is_down) && (node.as_ref().is_some_and(is_ready) || in_time) {
        world.fault(format!("detached: {what}, which the node uses"));
    }
    // What was made by way of an object that is no more goes under a pod that does not use it yet, and is made again.
    let is_orphan = text(&attachment, "/spec/source/persistentVolumeName")
        != volume.as_ref().map(|volume| text(volume, "/metadata/name")).unwrap_or_default();
    let Some(claim) = claim.filter(|_| in_use || !is_orphan) else { return };
    if is_attached(world, &attachment).await && has_pod(world, node_name, &claim).await {
        world.fault(format!("detached: {what}, which a pod there uses"));
    }
}

fn is_down(node: &Value) -> bool {
    list(node, "/spec/taints").iter().any(|taint| text(taint, "/key") == OUT_OF_SERVICE)
}

fn is_ready(node: &Value) -> bool {
    let conditions = list(node, "/status/conditions").iter();
    let mut ready = conditions.filter(|condition| text(condition, "/type") == "Ready");
    ready.any(|condition| text(condition, "/status") == "True")
}

/// Whether the driver of an attachment has its volumes attached.
async fn is_attached(world: &World, attachment: &Value) -> bool {
    let path = format!("/apis/storage.k8s.io/v1/csidrivers/{}", text(attachment, "/spec/attacher"));
    let driver = get(world, &path).await;
    driver.is_none_or(|driver| driver.pointer("/spec/attachRequired") != Some(&Value::Bool(false)))
}

/// Whether a pod on a node, of which every process has heard, uses a claim.
async fn has_pod(world: &World, node: &str, claim: &str) -> bool {
    let pods = world.list("/api/v1/pods").await;
    pods.iter().any(|pod| {
        let runs =
            list(pod, "/status/containerStatuses").iter().any(|one| one.pointer("/state/running").is_some());
        let over = matches!(text(pod, "/status/phase"), "Failed" | "Succeeded")
            || (pod.pointer("/metadata/deletionTimestamp").is_some() && !runs);
        let came = world.memory(|memory| memory.came.get(text(pod, "/metadata/name")).map(Instant::elapsed));
        text(pod, "/spec/nodeName") == node
            && !over
            && claims(pod).any(|of| of == claim)
            && came.is_none_or(|came| came >= TOLD)
    })
}

/// The claims that a pod names.
fn claims(pod: &Value) -> impl Iterator<Item = &str> {
    list(pod, "/spec/volumes").iter().map(|volume| text(volume, "/persistentVolumeClaim/claimName"))
}

/// The claim that an attachment's volume is of; where the volume is gone, the one that names it.
async fn claim_of(world: &World, attachment: &Value, volume: Option<&Value>) -> Option<String> {
    let of = text(attachment, "/spec/source/persistentVolumeName");
    let name = match volume {
        Some(volume) => text(volume, "/spec/claimRef/name").to_owned(),
        None => {
            let claims = world.list("/api/v1/persistentvolumeclaims").await;
            let claim = claims.iter().find(|claim| text(claim, "/spec/volumeName") == of)?;
            text(claim, "/metadata/name").to_owned()
        }
    };
    (!name.is_empty()).then_some(name)
}

/// Whether what a request brings about is judged by its answer.
pub(crate) fn is_judged(world: &World, method: &Method, path: &str) -> bool {
    *method == Method::POST && path == ATTACHMENTS && !world.is_real()
}

/// Judges an attachment that has been made.
pub(crate) async fn made(world: &World, attachment: &Value) {
    let (name, node) = (text(attachment, "/metadata/name"), text(attachment, "/spec/nodeName"));
    let of = text(attachment, "/spec/source/persistentVolumeName");
    if !is_for_pods(name) || !volume(world, attachment).await.is_some_and(|volume| is_exclusive(&volume)) {
        return;
    }
    for other in world.made(of, name).into_iter().filter(|other| other != name) {
        let Some(there) = get(world, &format!("{ATTACHMENTS}/{other}")).await else { continue };
        if text(&there, "/spec/source/persistentVolumeName") == of {
            world.fault(format!("on two nodes: {of}, on {} and {node}", text(&there, "/spec/nodeName")));
        }
    }
}

/// Volumes that nodes are told of and that are not attached.
pub(crate) fn told_too_much(nodes: &[Value], attachments: &[Value]) -> Vec<String> {
    let attached = |node: &str, handle: &str| {
        attachments.iter().any(|one| {
            is_for_pods(text(one, "/metadata/name"))
                && text(one, "/spec/nodeName") == node
                && one.pointer("/status/attached").and_then(Value::as_bool) == Some(true)
                && one.pointer("/metadata/deletionTimestamp").is_none()
                && handle.ends_with(text(one, "/spec/source/persistentVolumeName"))
        })
    };
    let mut faults = Vec::new();
    for node in nodes {
        let name = text(node, "/metadata/name");
        let astray = handles(node).into_iter().filter(|handle| !attached(name, handle));
        faults.extend(astray.map(|handle| format!("told: {name} of {handle}, which is not attached")));
    }
    faults
}

/// A node with what it is told of; absent for one that is told of nothing.
pub(crate) fn told_line(node: &Value) -> Option<String> {
    let handles = handles(node);
    (!handles.is_empty()).then(|| format!("{} on {}", handles.join(", "), text(node, "/metadata/name")))
}

/// The name of an attachment; one that was made for pods by its volume and node.
pub(crate) fn alias(attachment: &Value) -> String {
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
fn handles(node: &Value) -> Vec<String> {
    let names = list(node, "/status/volumesAttached").iter().map(|one| text(one, "/name"));
    let mut handles: Vec<String> =
        names.map(|name| name.split_once('^').map_or(name, |(_, handle)| handle).to_owned()).collect();
    handles.sort();
    handles
}

fn is_for_pods(name: &str) -> bool {
    name.strip_prefix("csi-").is_some_and(|digest| digest.len() == 64)
}

fn is_exclusive(volume: &Value) -> bool {
    let modes = list(volume, "/spec/accessModes");
    !modes.iter().any(|mode| matches!(mode.as_str(), Some("ReadWriteMany" | "ReadOnlyMany")))
}

fn unique(volume: &Value) -> String {
    let (driver, handle) = (text(volume, "/spec/csi/driver"), text(volume, "/spec/csi/volumeHandle"));
    format!("kubernetes.io/csi/{driver}^{handle}")
}

fn list<'a>(object: &'a Value, pointer: &str) -> &'a [Value] {
    object.pointer(pointer).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// The volume that an attachment names, or else the one that has its identity.
async fn volume(world: &World, attachment: &Value) -> Option<Value> {
    let named = text(attachment, "/spec/source/persistentVolumeName");
    if let Some(volume) = get(world, &format!("{VOLUMES}/{named}")).await {
        return Some(volume);
    }
    let node = NodeName::from(text(attachment, "/spec/nodeName"));
    world.list(VOLUMES).await.into_iter().find(|volume| {
        let driver = DriverName::from(text(volume, "/spec/csi/driver"));
        let handle = VolumeHandle::from(text(volume, "/spec/csi/volumeHandle"));
        names::attachment(&driver, &handle, &node).as_str() == text(attachment, "/metadata/name")
    })
}

async fn get(world: &World, path: &str) -> Option<Value> {
    let (status, object) = call(&world.user, Method::GET, path, "", &Value::Null).await.ok()?;
    status.is_success().then_some(object)
}
