//! Changes of VolumeSnapshotContents that only a snapshot controller makes. No role of tenants has the rights
//! for them.
//!
//! These changes do not count:
//! - A content is created for a VolumeSnapshot that does not exist here: it was copied from another cluster.
//! - The content of a VolumeSnapshot that does not exist is annotated for its deletion: administrators do so,
//!   as the event `SnapshotMissing` says.
//! - A field is removed: `metadata.managedFields` does not show who removed it.

use cofferdam_cluster::{ApiError, Cache, Change, Writer, api::FIELD_MANAGER, field_managers};
use cofferdam_domain::{VolumeSnapshotContent, VolumeSnapshotContentName, names};

use super::rules::content_name;
use crate::conflicts::FieldPath;

const SOURCE: FieldPath = &["f:spec", "f:source", "f:volumeHandle"];
const DELETION_POLICY: FieldPath = &["f:spec", "f:deletionPolicy"];
const UID: FieldPath = &["f:spec", "f:volumeSnapshotRef", "f:uid"];
const BEING_DELETED: FieldPath =
    &["f:metadata", "f:annotations", "f:snapshot.storage.kubernetes.io/volumesnapshot-being-deleted"];

/// Returns the field of a content that only a snapshot controller writes, if the change is one of it.
pub(super) fn content_field(cache: &Cache, change: &Change<VolumeSnapshotContent>) -> Option<FieldPath> {
    let new = change.new.as_ref()?;
    let Some(old) = change.old.as_ref().filter(|old| old.meta.uid == new.meta.uid) else {
        let snapshot = cache.snapshots.get(&new.snapshot.key).into_object()?;
        return (new.is_bound_to(&snapshot) && new.name == content_name(&snapshot)).then_some(SOURCE);
    };
    if old.snapshot.uid.is_none() && new.snapshot.uid.is_some() {
        return Some(UID);
    }
    let is_marked =
        |content: &VolumeSnapshotContent| content.meta.has_annotation(names::SNAPSHOT_BEING_DELETED);
    if !is_marked(new) || is_marked(old) {
        return None;
    }
    let snapshot = cache.snapshots.get(&new.snapshot.key).into_object()?;
    (snapshot.meta.deleting && new.is_bound_to(&snapshot)).then_some(BEING_DELETED)
}

/// Field manager of upstream's snapshot-controller: the name of the program.
const UPSTREAM_MANAGER: &str = "snapshot-controller";

/// Reads who has written the source and the deletion policy of a content. Returns true if it was a snapshot
/// controller of this cluster both times, and not a tool that copies objects, or an administrator.
///
/// # Errors
/// The content cannot be read.
pub(super) async fn is_written_by_controller(
    writer: &Writer,
    name: &VolumeSnapshotContentName,
) -> Result<bool, ApiError> {
    let Some(object) = writer.read_value::<VolumeSnapshotContent>(name, "").await? else { return Ok(false) };
    let is_controller = |manager: &&str| [FIELD_MANAGER, UPSTREAM_MANAGER].contains(manager);
    let is_by_controller = |field| field_managers(&object, field).iter().any(is_controller);
    Ok([SOURCE, DELETION_POLICY].into_iter().all(is_by_controller))
}

#[cfg(test)]
mod tests {
    use cofferdam_cluster::decode;
    use serde_json::{Value, json};

    use super::*;
    use crate::conflicts::foreign_change as change;

    fn content(name: &str, uid: Option<&str>, annotations: &Value) -> Value {
        json!({
            "metadata": {"name": name, "uid": "c", "resourceVersion": "1", "annotations": annotations},
            "spec": {
                "deletionPolicy": "Delete", "driver": "d", "source": {"volumeHandle": "v"},
                "volumeSnapshotRef": {"namespace": "default", "name": "s", "uid": uid},
            },
        })
    }

    #[test]
    fn only_changes_of_the_loop_count() {
        let snapshot = json!({
            "metadata": {"namespace": "default", "name": "s", "uid": "1", "resourceVersion": "1"},
            "spec": {"source": {"persistentVolumeClaimName": "p"}},
        });
        let cache = Cache::default();
        let snapshot = decode::object(&snapshot.to_string()).unwrap().unwrap();
        assert!(cache.snapshots.apply(Ok(snapshot)));
        let none = json!({});
        let marked = json!({names::SNAPSHOT_BEING_DELETED: "yes"});
        let created = json!({names::SNAPSHOT_BEING_CREATED: "yes"});
        let bound = content("snapcontent-1", Some("1"), &none);
        let unbound = content("existing", None, &none);
        #[rustfmt::skip] // one row per case
        let table = [
            ("created", None, Some(bound.clone()), Some(SOURCE)),
            ("created by an administrator", None, Some(unbound.clone()), None),
            ("copied from another cluster", None, Some(content("snapcontent-2", Some("2"), &none)), None),
            ("bound", Some(&unbound), Some(content("existing", Some("1"), &none)), Some(UID)),
            ("marked by an administrator", Some(&bound), Some(content("snapcontent-1", Some("1"), &marked)), None),
            ("written by csi-snapshotter", Some(&bound), Some(content("snapcontent-1", Some("1"), &created)), None),
            ("deleted", Some(&bound), None, None),
        ];
        for (name, old, new, expected) in table {
            assert_eq!(content_field(&cache, &change(old, new.as_ref())), expected, "{name}");
        }
        let deleting = json!({
            "metadata": {"namespace": "default", "name": "s", "uid": "1", "resourceVersion": "2",
                "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["a/b"]},
            "spec": {"source": {"persistentVolumeClaimName": "p"}},
        });
        assert!(cache.snapshots.apply(Ok(decode::object(&deleting.to_string()).unwrap().unwrap())));
        for (name, uid, expected) in
            [("marked", "1", Some(BEING_DELETED)), ("marked, of another VolumeSnapshot", "2", None)]
        {
            let old = content("snapcontent-1", Some(uid), &none);
            let new = content("snapcontent-1", Some(uid), &marked);
            assert_eq!(content_field(&cache, &change(Some(&old), Some(&new))), expected, "{name}");
        }
    }
}
