//! VolumeSnapshot, VolumeSnapshotContent and VolumeSnapshotClass: custom resources, whose definitions a
//! cluster may lack.

use std::collections::BTreeMap;

use cofferdam_domain::{
    DriverName, ObjectMeta, SnapshotHandle, Uid, VolumeHandle, VolumeMode, VolumeSnapshot,
    VolumeSnapshotClass, VolumeSnapshotClassName, VolumeSnapshotContent, VolumeSnapshotContentName,
    VolumeSnapshotKey,
    volume_snapshot::{
        DeletionPolicy, SnapshotContentSource, SnapshotContentStatus, SnapshotError, VolumeSnapshotRef,
        VolumeSnapshotSource, VolumeSnapshotStatus,
    },
};
use serde::Deserialize;

use super::{
    DecodeError, Kind,
    error::parse_json,
    fields::WireQuantity,
    meta::Meta,
    strings::{ContentLabelPolicy, InternedStr, OwnedStr},
};
use crate::api::ApiResource;

const GROUP: &str = "snapshot.storage.k8s.io";

const fn resource(kind: &'static str, plural: &'static str, namespaced: bool) -> ApiResource {
    ApiResource { group: GROUP, version: "v1", kind, plural, namespaced }
}

/// `status.error` on the wire.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Failure {
    message: Option<Box<str>>,
    time: Option<Box<str>>,
}

impl From<Failure> for SnapshotError {
    fn from(failure: Failure) -> Self {
        Self { message: failure.message.unwrap_or_default(), time: failure.time }
    }
}

fn deletion_policy(path: &'static str, policy: &str) -> Result<DeletionPolicy, DecodeError> {
    match policy {
        "Delete" => Ok(DeletionPolicy::Delete),
        "Retain" => Ok(DeletionPolicy::Retain),
        other => Err(DecodeError::Value { path, value: other.to_owned(), expected: "Delete or Retain" }),
    }
}

fn class_name(name: Option<InternedStr>) -> Option<VolumeSnapshotClassName> {
    name.filter(|name| !name.0.is_empty()).map(|name| VolumeSnapshotClassName::new(name.0))
}

impl Kind for VolumeSnapshot {
    type Key = VolumeSnapshotKey;
    const RESOURCE: ApiResource = resource("VolumeSnapshot", "volumesnapshots", true);
    const OPTIONAL: bool = true;

    fn decode(json: &str) -> Result<Self, DecodeError> {
        #[derive(Deserialize)]
        struct Wire {
            metadata: Meta,
            spec: Spec,
            status: Option<Status>,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Spec {
            source: Source,
            volume_snapshot_class_name: Option<InternedStr>,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Source {
            persistent_volume_claim_name: Option<InternedStr>,
            volume_snapshot_content_name: Option<OwnedStr>,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Status {
            bound_volume_snapshot_content_name: Option<OwnedStr>,
            creation_time: Option<Box<str>>,
            ready_to_use: Option<bool>,
            restore_size: Option<WireQuantity>,
            error: Option<Failure>,
            volume_group_snapshot_name: Option<Box<str>>,
        }
        let Wire { metadata, spec, status } = parse_json(json)?;
        let source =
            match (spec.source.persistent_volume_claim_name, spec.source.volume_snapshot_content_name) {
                (Some(claim), None) => VolumeSnapshotSource::Claim(claim.0),
                (None, Some(content)) => {
                    VolumeSnapshotSource::Content(VolumeSnapshotContentName::new(content.0))
                }
                (None, None) => VolumeSnapshotSource::Invalid(0),
                (Some(_), Some(_)) => VolumeSnapshotSource::Invalid(2),
            };
        let content = |name: OwnedStr| VolumeSnapshotContentName::new(name.0);
        Ok(Self {
            key: VolumeSnapshotKey::new(metadata.namespace(), metadata.name()),
            meta: metadata.into_domain()?,
            source,
            class: class_name(spec.volume_snapshot_class_name),
            status: status.map(|status| VolumeSnapshotStatus {
                content: status
                    .bound_volume_snapshot_content_name
                    .filter(|name| !name.0.is_empty())
                    .map(content),
                creation_time: status.creation_time,
                ready: status.ready_to_use,
                restore_size: status.restore_size.and_then(|size| size.parse().ok()),
                error: status.error.map(|failure| Box::new(failure.into())),
                in_group: status.volume_group_snapshot_name.is_some(),
            }),
        })
    }

    fn key(&self) -> &Self::Key {
        &self.key
    }

    fn meta(&self) -> &ObjectMeta {
        &self.meta
    }
}

impl Kind for VolumeSnapshotContent {
    type Key = VolumeSnapshotContentName;
    const RESOURCE: ApiResource = resource("VolumeSnapshotContent", "volumesnapshotcontents", false);
    const OPTIONAL: bool = true;

    fn decode(json: &str) -> Result<Self, DecodeError> {
        #[derive(Deserialize)]
        struct Wire {
            metadata: Meta<ContentLabelPolicy>,
            spec: Spec,
            status: Option<Status>,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Spec {
            deletion_policy: Box<str>,
            driver: InternedStr,
            source: Source,
            source_volume_mode: Option<Box<str>>,
            volume_snapshot_class_name: Option<InternedStr>,
            volume_snapshot_ref: Reference,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Source {
            volume_handle: Option<OwnedStr>,
            snapshot_handle: Option<OwnedStr>,
        }
        #[derive(Deserialize, Default)]
        #[serde(default)]
        struct Reference {
            namespace: InternedStr,
            name: OwnedStr,
            uid: Option<Uid>,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Status {
            snapshot_handle: Option<OwnedStr>,
            creation_time: Option<i64>,
            ready_to_use: Option<bool>,
            restore_size: Option<i64>,
            error: Option<Failure>,
            volume_group_snapshot_handle: Option<Box<str>>,
        }
        let Wire { metadata, spec, status } = parse_json(json)?;
        let is_set = |text: &OwnedStr| !text.0.is_empty();
        Ok(Self {
            name: VolumeSnapshotContentName::new(metadata.name()),
            meta: metadata.into_domain()?,
            snapshot: VolumeSnapshotRef {
                key: VolumeSnapshotKey::new(
                    spec.volume_snapshot_ref.namespace.0,
                    spec.volume_snapshot_ref.name.0,
                ),
                uid: spec.volume_snapshot_ref.uid.filter(|uid| !uid.is_empty()),
            },
            deletion_policy: deletion_policy("spec.deletionPolicy", &spec.deletion_policy)?,
            driver: DriverName::new(spec.driver.0),
            class: class_name(spec.volume_snapshot_class_name),
            source: match (spec.source.volume_handle, spec.source.snapshot_handle) {
                (Some(volume), None) => SnapshotContentSource::Volume(VolumeHandle::new(volume.0)),
                (None, Some(snapshot)) => SnapshotContentSource::Snapshot(SnapshotHandle::new(snapshot.0)),
                (None, None) => SnapshotContentSource::Invalid(0),
                (Some(_), Some(_)) => SnapshotContentSource::Invalid(2),
            },
            source_volume_mode: match spec.source_volume_mode.as_deref() {
                Some("Filesystem") => Some(VolumeMode::Filesystem),
                Some("Block") => Some(VolumeMode::Block),
                Some(_) | None => None,
            },
            status: status.map(|status| SnapshotContentStatus {
                handle: status.snapshot_handle.filter(is_set).map(|handle| SnapshotHandle::new(handle.0)),
                creation_time: status.creation_time,
                ready: status.ready_to_use,
                restore_size: status.restore_size,
                error: status.error.map(|failure| Box::new(failure.into())),
                in_group: status.volume_group_snapshot_handle.is_some(),
            }),
        })
    }

    fn key(&self) -> &Self::Key {
        &self.name
    }

    fn meta(&self) -> &ObjectMeta {
        &self.meta
    }
}

impl Kind for VolumeSnapshotClass {
    type Key = VolumeSnapshotClassName;
    const RESOURCE: ApiResource = resource("VolumeSnapshotClass", "volumesnapshotclasses", false);
    const OPTIONAL: bool = true;

    fn decode(json: &str) -> Result<Self, DecodeError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Wire {
            metadata: Meta,
            driver: InternedStr,
            deletion_policy: Box<str>,
            parameters: Option<BTreeMap<String, String>>,
        }
        let Wire { metadata, driver, deletion_policy: policy, parameters } = parse_json(json)?;
        Ok(Self {
            name: VolumeSnapshotClassName::new(metadata.name()),
            meta: metadata.into_domain()?,
            driver: DriverName::new(driver.0),
            deletion_policy: deletion_policy("deletionPolicy", &policy)?,
            parameters: parameters.unwrap_or_default(),
        })
    }

    fn key(&self) -> &Self::Key {
        &self.name
    }

    fn meta(&self) -> &ObjectMeta {
        &self.meta
    }
}

#[cfg(test)]
mod tests {
    use cofferdam_domain::{Quantity, names};
    use serde_json::{Value, json};

    use super::*;
    use crate::objects::decode::object;

    fn read<K: Kind>(spec: &Value, status: &Value) -> K {
        let metadata = json!({"name": "a", "namespace": "ns", "uid": "u", "resourceVersion": "7"});
        let json = json!({"metadata": metadata, "spec": spec, "status": status});
        object::<K>(&json.to_string()).unwrap().unwrap()
    }

    #[test]
    fn snapshot_fields_are_decoded() {
        let source_of =
            |source: Value| read::<VolumeSnapshot>(&json!({"source": source}), &Value::Null).source;
        let (claim, content) = ("persistentVolumeClaimName", "volumeSnapshotContentName");
        assert_eq!(source_of(json!({claim: "c"})), VolumeSnapshotSource::Claim("c".into()));
        assert_eq!(source_of(json!({content: "c"})), VolumeSnapshotSource::Content("c".into()));
        assert_eq!(source_of(json!({})), VolumeSnapshotSource::Invalid(0));
        assert_eq!(source_of(json!({claim: "c", content: "c"})), VolumeSnapshotSource::Invalid(2));

        let spec = json!({"source": {claim: "c"}, "volumeSnapshotClassName": "fast"});
        let new: VolumeSnapshot = read(&spec, &Value::Null);
        assert_eq!((new.bound_content(), new.is_ready()), (None, false));
        let status = json!({
            "boundVolumeSnapshotContentName": "content", "creationTime": "2026-01-01T00:00:00Z",
            "readyToUse": true, "restoreSize": "1Gi", "volumeGroupSnapshotName": "group",
            "error": {"message": "m", "time": "2026-01-02T00:00:00Z"},
        });
        let read: VolumeSnapshot = read(&spec, &status);
        assert_eq!((read.key.to_string().as_str(), read.class), ("ns/a", Some("fast".into())));
        let status = read.status.unwrap();
        assert_eq!(status.content, Some("content".into()));
        assert_eq!(status.creation_time.as_deref(), Some("2026-01-01T00:00:00Z"));
        assert_eq!((status.ready, status.restore_size), (Some(true), Some(Quantity::from_bytes(1 << 30))));
        assert!(status.in_group);
        let error = SnapshotError { message: "m".into(), time: Some("2026-01-02T00:00:00Z".into()) };
        assert_eq!(status.error, Some(Box::new(error)));
    }

    #[test]
    fn snapshot_content_fields_are_decoded() {
        let spec = json!({
            "deletionPolicy": "Delete", "driver": "d", "source": {"volumeHandle": "v"},
            "sourceVolumeMode": "Block", "volumeSnapshotClassName": "fast",
            "volumeSnapshotRef": {"kind": "VolumeSnapshot", "namespace": "ns", "name": "s", "uid": "su"},
        });
        let content: VolumeSnapshotContent = read(&spec, &Value::Null);
        assert_eq!((content.handle(), content.is_ready(), content.status.is_none()), (None, false, true));
        assert_eq!(content.source, SnapshotContentSource::Volume("v".into()));
        assert_eq!(content.source_volume_mode, Some(VolumeMode::Block));
        let reference = VolumeSnapshotRef { key: VolumeSnapshotKey::new("ns", "s"), uid: Some("su".into()) };
        assert_eq!((content.snapshot, content.deletion_policy), (reference, DeletionPolicy::Delete));
        let status = json!({
            "snapshotHandle": "h", "creationTime": 1_700_000_000_000_000_000_i64, "readyToUse": true,
            "restoreSize": 1024, "error": {"message": "m"}, "volumeGroupSnapshotHandle": "g",
        });
        let content: VolumeSnapshotContent = read(&spec, &status);
        assert_eq!((content.handle(), content.is_ready()), (Some(&"h".into()), true));
        let status = content.status.unwrap();
        assert_eq!(
            (status.creation_time, status.restore_size),
            (Some(1_700_000_000_000_000_000), Some(1024))
        );
        let error = SnapshotError { message: "m".into(), time: None };
        assert_eq!((status.error, status.in_group), (Some(Box::new(error)), true));

        let managed = json!({
            "metadata": {"name": "a", "resourceVersion": "7", "labels": {names::SNAPSHOT_MANAGED_BY: "node-1", "tier": "gold"}},
            "spec": spec,
        });
        let content = object::<VolumeSnapshotContent>(&managed.to_string()).unwrap().unwrap();
        assert_eq!((content.managing_node(), content.meta.labels.len()), (Some("node-1"), 1));

        let existing = json!({
            "deletionPolicy": "Retain", "driver": "d", "source": {"snapshotHandle": "h"},
            "volumeSnapshotRef": {"namespace": "ns", "name": "s", "uid": ""},
        });
        let content: VolumeSnapshotContent = read(&existing, &Value::Null);
        assert_eq!((content.handle(), &content.snapshot.uid), (Some(&"h".into()), &None));
    }

    #[test]
    fn the_annotation_that_allows_a_mode_change_is_read_as_a_go_bool() {
        let metadata = |value: &str| json!({"name": "a", "resourceVersion": "7", "annotations": {names::ALLOW_VOLUME_MODE_CHANGE: value}});
        let spec = json!({
            "deletionPolicy": "Retain", "driver": "d", "source": {"snapshotHandle": "h"},
            "volumeSnapshotRef": {"namespace": "ns", "name": "s"},
        });
        for (value, expected) in [("true", true), ("1", true), ("T", true), ("yes", false), ("tRUE", false)] {
            let json = json!({"metadata": metadata(value), "spec": spec}).to_string();
            let content = object::<VolumeSnapshotContent>(&json).unwrap().unwrap();
            assert_eq!(content.allows_mode_change(), expected, "{value}");
        }
    }

    #[test]
    fn a_snapshot_class_has_a_policy_of_the_api() {
        let class = |policy: &str, default: &str| {
            json!({
                "metadata": {
                    "name": "fast", "resourceVersion": "7",
                    "annotations": {names::DEFAULT_SNAPSHOT_CLASS: default},
                },
                "driver": "d", "deletionPolicy": policy, "parameters": {"a": "b"},
            })
            .to_string()
        };
        let read = object::<VolumeSnapshotClass>(&class("Retain", "true")).unwrap().unwrap();
        assert_eq!((read.is_default(), read.deletion_policy), (true, DeletionPolicy::Retain));
        assert_eq!(read.parameters, [("a".to_owned(), "b".to_owned())].into());
        assert!(!object::<VolumeSnapshotClass>(&class("Delete", "yes")).unwrap().unwrap().is_default());
        let error = object::<VolumeSnapshotClass>(&class("Keep", "true")).unwrap().unwrap_err().reason;
        assert_eq!(error.to_string(), "deletionPolicy is \"Keep\": expected Delete or Retain");
    }
}
