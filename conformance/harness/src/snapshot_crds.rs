//! The CustomResourceDefinitions of snapshots, which a Kubernetes does not have by itself. The embedded API
//! serves their kinds.

use std::{fs, time::Duration};

use anyhow::{Context as _, Result, ensure};
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use crate::{peers::PeerPrograms, wait::until};

const TIMEOUT: Duration = Duration::from_secs(60);
const DEFINITIONS: [&str; 3] = [
    include_str!("../../../deploy/helm/cofferdam-snapshot-crds/templates/volumesnapshots.yaml"),
    include_str!("../../../deploy/helm/cofferdam-snapshot-crds/templates/volumesnapshotcontents.yaml"),
    include_str!("../../../deploy/helm/cofferdam-snapshot-crds/templates/volumesnapshotclasses.yaml"),
];
/// The kinds with their plural names.
const KINDS: [(&str, &str); 3] = [
    ("VolumeSnapshot", "volumesnapshots"),
    ("VolumeSnapshotContent", "volumesnapshotcontents"),
    ("VolumeSnapshotClass", "volumesnapshotclasses"),
];

/// The API resources of the kinds, with the name of each kind.
pub(crate) fn resources() -> [(&'static str, ApiResource); 3] {
    KINDS.map(|(kind, plural)| {
        let gvk = GroupVersionKind::gvk("snapshot.storage.k8s.io", "v1", kind);
        (kind, ApiResource::from_gvk_with_plural(&gvk, plural))
    })
}

/// Creates the definitions of Cofferdam's chart, and waits until the API server serves the kinds.
///
/// # Errors
/// The API server rejects a definition, or does not serve a kind in time.
pub(crate) async fn install(client: &Client) -> Result<()> {
    let api = definitions(client);
    for text in DEFINITIONS {
        let definition: DynamicObject = serde_saphyr::from_str(text)?;
        api.create(&PostParams::default(), &definition).await?;
    }
    for (kind, resource) in resources() {
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
        until(&format!("{kind} is served"), TIMEOUT, async || {
            let items = api.list(&ListParams::default()).await?.items;
            ensure!(items.is_empty(), "{} exist", items.len());
            Ok(())
        })
        .await?;
    }
    Ok(())
}

/// The version of the kinds that the API server serves. The stored version stays v1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Served {
    V1,
    V1beta1,
}

/// Changes the definitions so that only this version is served, and waits until v1 is served or rejected.
///
/// # Errors
/// The API server rejects a change, or does not apply it in time.
pub(crate) async fn serve(client: &Client, version: Served) -> Result<()> {
    let api = definitions(client);
    let is_v1 = version == Served::V1;
    for (_, plural) in KINDS {
        let name = format!("{plural}.snapshot.storage.k8s.io");
        let definition = api.get(&name).await?;
        let versions = definition.data.pointer("/spec/versions").and_then(Value::as_array);
        let mut versions = versions.with_context(|| format!("{name} has no versions"))?.clone();
        for version in versions.iter_mut().filter_map(Value::as_object_mut) {
            let is_served = (version.get("name").is_some_and(|name| name == "v1")) == is_v1;
            version.insert("served".to_owned(), is_served.into());
        }
        let patch = json!({ "spec": { "versions": versions } });
        api.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await?;
    }
    for (kind, resource) in resources() {
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
        until(&format!("{kind} is served in {version:?} only"), TIMEOUT, async || {
            match api.list(&ListParams::default()).await {
                Ok(_) => ensure!(is_v1, "v1 is served"),
                Err(kube::Error::Api(status)) if status.code == 404 => ensure!(!is_v1, "v1 is not served"),
                Err(error) => return Err(error.into()),
            }
            Ok(())
        })
        .await?;
    }
    Ok(())
}

fn definitions(client: &Client) -> Api<DynamicObject> {
    let gvk = GroupVersionKind::gvk("apiextensions.k8s.io", "v1", "CustomResourceDefinition");
    let resource = ApiResource::from_gvk_with_plural(&gvk, "customresourcedefinitions");
    Api::all_with(client.clone(), &resource)
}

/// Compares the definitions of Cofferdam's chart with those of external-snapshotter's client, except
/// descriptions.
///
/// # Errors
/// `make peers` has not copied the definitions, or some differ.
pub(crate) fn compare_with_upstream(peers: &PeerPrograms) -> Result<()> {
    let directory = peers.program("snapshot-crds")?;
    for ((kind, plural), ours) in KINDS.iter().zip(DEFINITIONS) {
        let path = directory.join(format!("snapshot.storage.k8s.io_{plural}.yaml"));
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let upstream = structure(serde_saphyr::from_str(&text)?);
        let ours = structure(serde_saphyr::from_str(ours)?);
        ensure!(
            ours == upstream,
            "the definition of {kind} differs from {}: expected {upstream}, found {ours}",
            path.display()
        );
    }
    Ok(())
}

/// A definition without what may differ: descriptions, the annotations of the tools that made it, and an
/// empty status.
fn structure(mut definition: Value) -> Value {
    if let Some(annotations) = definition.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut)
    {
        annotations.remove("controller-gen.kubebuilder.io/version");
        annotations.remove("helm.sh/resource-policy");
    }
    if let Some(definition) = definition.as_object_mut() {
        definition.remove("status");
    }
    remove_descriptions(&mut definition, false);
    definition
}

/// Removes the members `description` of objects, except from `properties`, whose members are names of fields.
fn remove_descriptions(value: &mut Value, is_properties: bool) {
    match value {
        Value::Object(map) => {
            if !is_properties {
                map.remove("description");
            }
            for (name, member) in map.iter_mut() {
                remove_descriptions(member, name == "properties");
            }
        }
        Value::Array(list) => list.iter_mut().for_each(|one| remove_descriptions(one, false)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_descriptions_and_marks_of_tools_may_differ() {
        let definition = |text: &str, kind: &str| {
            structure(json!({
                "metadata": {"name": "a", "annotations": {"api-approved.kubernetes.io": "b",
                    "controller-gen.kubebuilder.io/version": text}},
                "spec": {"columns": [{"name": "c", "description": text}], "schema": {"description": text,
                    "properties": {"description": {"type": kind, "description": text}}}},
                "status": {"conditions": []},
            }))
        };
        let expected = json!({
            "metadata": {"name": "a", "annotations": {"api-approved.kubernetes.io": "b"}},
            "spec": {"columns": [{"name": "c"}], "schema": {"properties": {"description": {"type": "string"}}}},
        });
        assert_eq!(definition("x", "string"), expected);
        assert_eq!(definition("y", "string"), expected);
        assert_ne!(definition("x", "integer"), expected);
    }
}
