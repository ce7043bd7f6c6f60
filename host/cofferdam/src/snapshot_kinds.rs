//! VolumeSnapshot, VolumeSnapshotContent and VolumeSnapshotClass for kube's client, with the fields that the
//! commands read. They are custom resources, so k8s-openapi lacks them.

use k8s_openapi::{
    ClusterResourceScope, NamespaceResourceScope,
    apimachinery::pkg::{
        api::resource::Quantity,
        apis::meta::v1::{ObjectMeta, Time},
    },
};
use serde::Deserialize;

/// API group of the kinds.
pub(crate) const GROUP: &str = "snapshot.storage.k8s.io";
/// API group and version of the kinds.
pub(crate) const API_VERSION: &str = "snapshot.storage.k8s.io/v1";

/// A VolumeSnapshot.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct VolumeSnapshot {
    pub(crate) metadata: ObjectMeta,
    #[serde(default)]
    pub(crate) spec: VolumeSnapshotSpec,
    #[serde(default)]
    pub(crate) status: VolumeSnapshotStatus,
}

/// `spec` of a VolumeSnapshot.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct VolumeSnapshotSpec {
    pub(crate) source: VolumeSnapshotSource,
    pub(crate) volume_snapshot_class_name: Option<String>,
}

/// `spec.source` of a VolumeSnapshot: a claim, or an existing content.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct VolumeSnapshotSource {
    pub(crate) persistent_volume_claim_name: Option<String>,
    pub(crate) volume_snapshot_content_name: Option<String>,
}

/// `status` of a VolumeSnapshot.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct VolumeSnapshotStatus {
    pub(crate) bound_volume_snapshot_content_name: Option<String>,
    pub(crate) ready_to_use: Option<bool>,
    pub(crate) restore_size: Option<Quantity>,
    pub(crate) error: Option<SnapshotFailure>,
}

/// `status.error` of a VolumeSnapshot or VolumeSnapshotContent.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct SnapshotFailure {
    pub(crate) message: Option<String>,
    pub(crate) time: Option<Time>,
}

/// A VolumeSnapshotContent.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct VolumeSnapshotContent {
    pub(crate) metadata: ObjectMeta,
    #[serde(default)]
    pub(crate) spec: VolumeSnapshotContentSpec,
    #[serde(default)]
    pub(crate) status: VolumeSnapshotContentStatus,
}

/// `spec` of a VolumeSnapshotContent.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct VolumeSnapshotContentSpec {
    pub(crate) driver: String,
    pub(crate) volume_snapshot_ref: VolumeSnapshotRef,
}

/// `spec.volumeSnapshotRef` of a VolumeSnapshotContent.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct VolumeSnapshotRef {
    pub(crate) uid: Option<String>,
}

/// `status` of a VolumeSnapshotContent.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct VolumeSnapshotContentStatus {
    pub(crate) snapshot_handle: Option<String>,
    pub(crate) ready_to_use: Option<bool>,
    pub(crate) error: Option<SnapshotFailure>,
}

/// A VolumeSnapshotClass.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct VolumeSnapshotClass {
    pub(crate) metadata: ObjectMeta,
    #[serde(default)]
    pub(crate) driver: String,
}

macro_rules! impl_resource {
    ($kind:ident, $plural:literal, $scope:ty) => {
        impl k8s_openapi::Resource for $kind {
            const API_VERSION: &'static str = API_VERSION;
            const GROUP: &'static str = GROUP;
            const KIND: &'static str = stringify!($kind);
            const VERSION: &'static str = "v1";
            const URL_PATH_SEGMENT: &'static str = $plural;
            type Scope = $scope;
        }

        impl k8s_openapi::Metadata for $kind {
            type Ty = ObjectMeta;

            fn metadata(&self) -> &ObjectMeta {
                &self.metadata
            }

            fn metadata_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }
    };
}

impl_resource!(VolumeSnapshot, "volumesnapshots", NamespaceResourceScope);
impl_resource!(VolumeSnapshotContent, "volumesnapshotcontents", ClusterResourceScope);
impl_resource!(VolumeSnapshotClass, "volumesnapshotclasses", ClusterResourceScope);
