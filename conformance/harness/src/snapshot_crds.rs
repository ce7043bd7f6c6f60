//! The CustomResourceDefinitions of snapshots, which a Kubernetes does not have by itself. The embedded API
//! serves their kinds.

use std::time::Duration;

use anyhow::{Result, ensure};
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, PostParams},
};

use crate::wait::until;

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
    let gvk = GroupVersionKind::gvk("apiextensions.k8s.io", "v1", "CustomResourceDefinition");
    let resource = ApiResource::from_gvk_with_plural(&gvk, "customresourcedefinitions");
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
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
