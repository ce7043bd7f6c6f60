//! Changes that only a PersistentVolume controller makes. No role of tenants has the rights for them:
//! `persistentvolumes`, `persistentvolumes/status` and `persistentvolumeclaims/status`.

use cofferdam_cluster::Change;
use cofferdam_domain::{Claim, Volume, names};

use crate::conflicts::FieldPath;

const PHASE: FieldPath = &["f:status", "f:phase"];
const CLAIM_UID: FieldPath = &["f:spec", "f:claimRef", "f:uid"];

/// Returns the field of a claim that only a PersistentVolume controller writes, if the change is one of it.
pub(super) fn claim_field(change: &Change<Claim>) -> Option<FieldPath> {
    let (old, new) = (change.old.as_ref()?, change.new.as_ref()?);
    (old.meta.uid == new.meta.uid && old.phase != new.phase).then_some(PHASE)
}

/// As [`claim_field`], for a PersistentVolume. A provisioner creates PersistentVolumes that are bound to a
/// claim, and an administrator reserves them without a UID: neither counts.
pub(super) fn volume_field(change: &Change<Volume>) -> Option<FieldPath> {
    let (old, new) = (change.old.as_ref()?, change.new.as_ref()?);
    if old.meta.uid != new.meta.uid {
        return None;
    }
    if old.phase != new.phase {
        return Some(PHASE);
    }
    let claim_uid = |volume: &Volume| volume.claim_ref.as_ref().and_then(|reference| reference.uid.clone());
    let is_bound_now = claim_uid(new).is_some() && claim_uid(new) != claim_uid(old);
    (is_bound_now && new.meta.has_annotation(names::BOUND_BY_CONTROLLER)).then_some(CLAIM_UID)
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
        type ClaimCase<'a> = (&'static str, Option<&'a Value>, Option<&'a Value>, Option<FieldPath>);
        #[rustfmt::skip] // one row a case
        let claims: [ClaimCase<'_>; 5] = [
            ("bound", Some(&pending), Some(&bound), Some(PHASE)),
            ("another field", Some(&bound), Some(&bound), None),
            ("created", None, Some(&bound), None),
            ("deleted", Some(&bound), None, None),
            ("recreated", Some(&pending), Some(&claim("2", "Bound")), None),
        ];
        for (name, old, new, field) in claims {
            assert_eq!(claim_field(&change(old, new)), field, "claim {name}");
        }
        let free = volume("Available", None, false);
        let provisioned = volume("Pending", Some("1"), false);
        #[rustfmt::skip] // one row a case
        let volumes = [
            ("phase", Some(&free), volume("Released", None, false), Some(PHASE)),
            ("bound by a controller", Some(&free), volume("Available", Some("1"), true), Some(CLAIM_UID)),
            ("bound by an administrator", Some(&free), volume("Available", Some("1"), false), None),
            ("reserved without a UID", Some(&free), volume("Available", None, true), None),
            ("created by a provisioner", None, provisioned.clone(), None),
            ("annotated", Some(&provisioned), volume("Pending", Some("1"), true), None),
        ];
        for (name, old, new, field) in volumes {
            assert_eq!(volume_field(&change(old, Some(&new))), field, "volume {name}");
        }
    }
}
