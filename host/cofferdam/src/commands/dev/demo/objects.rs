//! Requests and checks of the demo, and the manifests of its objects.

use std::{fmt, time::Duration};

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::error::DemoError;
use crate::{
    snapshot_kinds,
    wait::{self, Expectation},
};

/// Timeout of a step. A step takes milliseconds, on a busy machine seconds.
pub(super) const STEP_TIMEOUT: Duration = Duration::from_secs(30);
pub(super) const NAMESPACE: &str = "default";
/// Name of all objects that the demo creates, except for copies of the volume.
pub(crate) const NAME: &str = "demo";

/// Creates an object from a manifest; `what` and `kind` are for errors.
pub(super) async fn create<K>(
    api: &Api<K>,
    what: &'static str,
    kind: &'static str,
    manifest: Value,
) -> Result<(), DemoError>
where
    K: Clone + fmt::Debug + DeserializeOwned + serde::Serialize,
{
    let object: K =
        serde_json::from_value(manifest).map_err(|source| DemoError::Manifest { kind, source })?;
    api.create(&PostParams::default(), &object)
        .await
        .map_err(|source| DemoError::Request { action: what, source })?;
    Ok(())
}

pub(super) async fn get<K>(api: &Api<K>, name: &str, what: &'static str) -> Result<K, DemoError>
where
    K: Clone + fmt::Debug + DeserializeOwned,
{
    api.get(name).await.map_err(|source| DemoError::Request { action: what, source })
}

pub(super) async fn list<K>(api: &Api<K>, what: &'static str) -> Result<Vec<K>, DemoError>
where
    K: Clone + fmt::Debug + DeserializeOwned,
{
    let listed = api.list(&ListParams::default()).await;
    Ok(listed.map_err(|source| DemoError::Request { action: what, source })?.items)
}

pub(super) async fn patch<K>(
    api: &Api<K>,
    name: &str,
    what: &'static str,
    patch: Value,
) -> Result<(), DemoError>
where
    K: Clone + fmt::Debug + DeserializeOwned,
{
    let request = api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await;
    request.map(drop).map_err(|source| DemoError::Request { action: what, source })
}

pub(super) async fn delete<K>(api: &Api<K>, name: &str, what: &'static str) -> Result<(), DemoError>
where
    K: Clone + fmt::Debug + DeserializeOwned,
{
    let request = api.delete(name, &DeleteParams::default()).await;
    request.map(drop).map_err(|source| DemoError::Request { action: what, source })
}

/// Waits until the object does not exist.
pub(super) async fn wait_for_deletion<K>(api: &Api<K>, name: &str) -> Result<(), DemoError>
where
    K: Clone + fmt::Debug + DeserializeOwned + kube::Resource<DynamicType = ()> + Send + 'static,
{
    let is_gone = |object: Option<&K>| object.is_none();
    let state = |object: Option<&K>| match object {
        Some(object) if object.meta().deletion_timestamp.is_some() => {
            format!("being deleted, with finalizers {}", object.finalizers().join(", "))
        }
        Some(_) => "there".to_owned(),
        None => "gone".to_owned(),
    };
    wait::wait_for(
        api,
        name,
        &Expectation { expected: "gone", is_met: &is_gone, describe: &state, timeout: STEP_TIMEOUT },
    )
    .await?;
    Ok(())
}

pub(super) fn ensure(what: &'static str, found: &str, expected: &str, holds: bool) -> Result<(), DemoError> {
    if holds {
        Ok(())
    } else {
        Err(DemoError::Mismatch { subject: what, found: found.to_owned(), expected: expected.to_owned() })
    }
}

pub(super) fn ensure_equal(what: &'static str, found: &str, expected: &str) -> Result<(), DemoError> {
    ensure(what, &format!("{found:?}"), &format!("{expected:?}"), found == expected)
}

/// Fails if the list has an entry.
pub(super) fn ensure_empty(what: &'static str, found: &[String]) -> Result<(), DemoError> {
    ensure(what, &format_list(found), "nothing", found.is_empty())
}

pub(super) fn format_list(keys: &[String]) -> String {
    if keys.is_empty() { "nothing".to_owned() } else { keys.join(", ") }
}

pub(super) fn claim_phase(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.status.as_ref()?.phase.as_deref()
}

pub(super) fn pod_phase(pod: &Pod) -> Option<&str> {
    pod.status.as_ref()?.phase.as_deref()
}

/// The pod's phase, and the reason of the scheduler if it has found no node.
pub(super) fn pod_state(pod: &Pod) -> String {
    let phase = pod_phase(pod).unwrap_or("without a phase");
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let unscheduled = conditions
        .iter()
        .find(|condition| condition.type_ == "PodScheduled" && condition.status == "False")
        .and_then(|condition| condition.message.as_deref());
    match unscheduled {
        Some(reason) => format!("{phase} ({})", reason.trim_end_matches('.')),
        None => phase.to_owned(),
    }
}

/// The capacity in the claim's status.
pub(super) fn claim_size(claim: &PersistentVolumeClaim) -> String {
    let capacity = claim.status.as_ref().and_then(|status| status.capacity.as_ref());
    capacity.and_then(|capacity| capacity.get("storage").cloned()).unwrap_or_default().0
}

/// Reports if an expansion is in progress.
pub(super) fn is_expanding(claim: &PersistentVolumeClaim) -> bool {
    let status = claim.status.as_ref();
    status.is_some_and(|status| {
        status.allocated_resource_statuses.as_ref().is_some_and(|statuses| !statuses.is_empty())
    })
}

/// A pod with the claim of the same name.
pub(super) fn pod_manifest(name: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "containers": [{
                "name": "main",
                "image": "none",
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            }],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": name}}],
        },
    })
}

/// A claim; `source` is its `spec.dataSource`, null for an empty volume.
pub(super) fn claim_manifest(name: &str, size: &str, source: Value) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "storageClassName": NAME,
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": size}},
            "dataSource": source,
        },
    })
}

/// A snapshot of the demo's claim.
pub(super) fn snapshot_manifest() -> Value {
    json!({
        "apiVersion": snapshot_kinds::API_VERSION,
        "kind": "VolumeSnapshot",
        "metadata": {"name": NAME, "namespace": NAMESPACE},
        "spec": {"volumeSnapshotClassName": NAME, "source": {"persistentVolumeClaimName": NAME}},
    })
}
