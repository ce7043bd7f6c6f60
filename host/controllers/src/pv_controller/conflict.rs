//! Changes that only a PersistentVolume controller makes. No role of tenants has the rights for them:
//! `persistentvolumes`, `persistentvolumes/status` and `persistentvolumeclaims/status`.
//!
//! These changes do not count, although a PersistentVolume controller makes them:
//! - `claimRef.uid` and the annotation `bound-by-controller` are set: kube-scheduler reserves static volumes of
//!   delayed claims with the same write (`bindAPIUpdate`).
//! - A field is removed, such as `claimRef` when a binding is undone: `metadata.managedFields` does not show
//!   who removed it, and a second replica of this process makes the same change.

use cofferdam_cluster::Change;
use cofferdam_domain::{Claim, Volume, names};

use crate::conflicts::FieldPath;

const PHASE: FieldPath = &["f:status", "f:phase"];
const STATUS_ACCESS_MODES: FieldPath = &["f:status", "f:accessModes"];
const MIGRATED_TO: FieldPath = &["f:metadata", "f:annotations", "f:pv.kubernetes.io/migrated-to"];
const FINALIZER: FieldPath = &["f:metadata", "f:finalizers", "v:\"kubernetes.io/pv-controller\""];

/// Returns the field of a claim that only a PersistentVolume controller writes, if the change is one of it.
pub(super) fn claim_field(change: &Change<Claim>) -> Option<FieldPath> {
    let (old, new) = (change.old.as_ref()?, change.new.as_ref()?);
    if old.meta.uid != new.meta.uid {
        return None;
    }
    if old.phase != new.phase {
        return Some(PHASE);
    }
    let modes = |claim: &Claim| (claim.status_access_modes, claim.status_access_mode_list.clone());
    (modes(old) != modes(new) && !new.status_access_modes.is_empty()).then_some(STATUS_ACCESS_MODES)
}

/// As [`claim_field`], for a PersistentVolume.
pub(super) fn volume_field(change: &Change<Volume>) -> Option<FieldPath> {
    let (old, new) = (change.old.as_ref()?, change.new.as_ref()?);
    if old.meta.uid != new.meta.uid {
        return None;
    }
    if old.phase != new.phase {
        return Some(PHASE);
    }
    let migrated_to =
        |volume: &Volume| volume.meta.annotation(names::MIGRATED_TO).unwrap_or_default().to_owned();
    if migrated_to(old) != migrated_to(new) && !migrated_to(new).is_empty() {
        return Some(MIGRATED_TO);
    }
    let has_finalizer = |volume: &Volume| volume.meta.finalizer_index(names::IN_TREE_FINALIZER).is_some();
    (has_finalizer(new) && !has_finalizer(old)).then_some(FINALIZER)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::conflicts::foreign_change as change;

    fn claim(uid: &str, phase: &str) -> Value {
        let metadata = json!({"name": "c", "namespace": "default", "uid": uid, "resourceVersion": "1"});
        json!({"kind": "PersistentVolumeClaim", "metadata": metadata, "spec": {}, "status": {"phase": phase}})
    }

    fn volume(phase: &str, claim_uid: Option<&str>, annotated: bool) -> Value {
        let annotations = if annotated { json!({names::BOUND_BY_CONTROLLER: "yes"}) } else { json!({}) };
        json!({
            "kind": "PersistentVolume",
            "metadata": {"name": "v", "uid": "v", "resourceVersion": "1", "annotations": annotations},
            "spec": {
                "capacity": {"storage": "1Gi"},
                "accessModes": ["ReadWriteOnce"],
                "csi": {"driver": "d", "volumeHandle": "h"},
                "claimRef": {"namespace": "default", "name": "c", "uid": claim_uid},
            },
            "status": {"phase": phase},
        })
    }

    #[test]
    fn only_changes_of_the_loop_count() {
        let (pending, bound) = (claim("1", "Pending"), claim("1", "Bound"));
        let with_modes = |modes: &[&str]| {
            let mut claim = claim("1", "Bound");
            claim["status"]["accessModes"] = json!(modes);
            claim
        };
        let shared = with_modes(&["ReadWriteOnce", "ReadWriteMany"]);
        let reordered = with_modes(&["ReadWriteMany", "ReadWriteOnce"]);
        type ClaimCase<'a> = (&'static str, Option<&'a Value>, Option<&'a Value>, Option<FieldPath>);
        #[rustfmt::skip] // one row a case
        let claims: [ClaimCase<'_>; 8] = [
            ("bound", Some(&pending), Some(&bound), Some(PHASE)),
            ("another field", Some(&bound), Some(&bound), None),
            ("access modes", Some(&bound), Some(&shared), Some(STATUS_ACCESS_MODES)),
            ("access modes in another order", Some(&shared), Some(&reordered), Some(STATUS_ACCESS_MODES)),
            ("access modes removed", Some(&shared), Some(&bound), None),
            ("created", None, Some(&bound), None),
            ("deleted", Some(&bound), None, None),
            ("recreated", Some(&pending), Some(&claim("2", "Bound")), None),
        ];
        for (name, old, new, field) in claims {
            assert_eq!(claim_field(&change(old, new)), field, "claim {name}");
        }
        let with = |change: Value| {
            let mut object = volume("Available", None, false);
            for (field, value) in change.as_object().unwrap() {
                object["metadata"][field] = value.clone();
            }
            object
        };
        let migrated = |driver: &str| with(json!({"annotations": {names::MIGRATED_TO: driver}}));
        let protected = with(json!({"finalizers": ["kubernetes.io/pv-protection"]}));
        let in_tree =
            with(json!({"finalizers": ["kubernetes.io/pv-protection", "kubernetes.io/pv-controller"]}));
        let free = volume("Available", None, false);
        let provisioned = volume("Pending", Some("1"), false);
        #[rustfmt::skip] // one row a case
        let volumes = [
            ("phase", Some(&free), volume("Released", None, false), Some(PHASE)),
            ("reserved by the scheduler", Some(&free), volume("Available", Some("1"), true), None),
            ("bound by an administrator", Some(&free), volume("Available", Some("1"), false), None),
            ("reserved without a UID", Some(&free), volume("Available", None, true), None),
            ("unbound", Some(&volume("Available", Some("1"), true)), free.clone(), None),
            ("migrated", Some(&free), migrated("d"), Some(MIGRATED_TO)),
            ("no longer migrated", Some(&migrated("d")), free.clone(), None),
            ("finalizer added", Some(&protected), in_tree.clone(), Some(FINALIZER)),
            ("finalizer removed", Some(&in_tree), protected.clone(), None),
            ("protection finalizer added", Some(&free), protected.clone(), None),
            ("created by a provisioner", None, provisioned.clone(), None),
            ("annotated", Some(&provisioned), volume("Pending", Some("1"), true), None),
        ];
        for (name, old, new, field) in volumes {
            assert_eq!(volume_field(&change(old, Some(&new))), field, "volume {name}");
        }
    }
}
