//! Changes that only an attach-detach controller makes. No role of tenants has the rights for them:
//! `volumeattachments` and `nodes/status`.

use cofferdam_cluster::Change;
use cofferdam_domain::{Node, NodeVolumeStatus, VolumeAttachment, names};

use crate::conflicts::FieldPath;

const ATTACHER: FieldPath = &["f:spec", "f:attacher"];
const VOLUMES_ATTACHED: FieldPath = &["f:status", "f:volumesAttached"];

/// Returns the field that only an attach-detach controller writes, if the change is one of it: it has created
/// a VolumeAttachment under the name for a pod's volume.
pub(super) fn attachment_field(change: &Change<VolumeAttachment>) -> Option<FieldPath> {
    let new = change.new.as_ref()?;
    (change.old.is_none() && names::is_pod_attachment(&new.name)).then_some(ATTACHER)
}

/// As [`attachment_field`], for a Node: a volume was added to `status.volumesAttached`. On a Node that is not
/// managed, kubelet writes this field.
pub(super) fn node_field(change: &Change<Node>) -> Option<FieldPath> {
    let (old, new) = (change.old.as_ref()?, change.new.as_ref()?);
    if old.meta.uid != new.meta.uid || !new.controller_managed {
        return None;
    }
    let is_listed = |volume: &&NodeVolumeStatus| volume.attached;
    let was_listed = |name| old.volumes.iter().filter(is_listed).any(|volume| volume.name == name);
    let is_added = |volume: &NodeVolumeStatus| !was_listed(volume.name.clone());
    new.volumes.iter().filter(is_listed).any(is_added).then_some(VOLUMES_ATTACHED)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::conflicts::foreign_change as change;

    fn attachment(name: &str) -> Value {
        json!({
            "kind": "VolumeAttachment",
            "metadata": {"name": name, "uid": "a", "resourceVersion": "1"},
            "spec": {"attacher": "d", "nodeName": "n", "source": {"persistentVolumeName": "v"}},
        })
    }

    fn node(is_managed: bool, attached: &[&str], in_use: &[&str]) -> Value {
        let managed = json!({names::CONTROLLER_MANAGED_ATTACH: "true"});
        let attached: Vec<Value> =
            attached.iter().map(|name| json!({"name": name, "devicePath": ""})).collect();
        json!({
            "kind": "Node",
            "metadata": {
                "name": "n", "uid": "n", "resourceVersion": "1",
                "annotations": if is_managed { managed } else { json!({}) },
            },
            "status": {"volumesAttached": attached, "volumesInUse": in_use},
        })
    }

    #[test]
    fn only_changes_of_the_loop_count() {
        let for_pod =
            attachment(names::volume_attachment_name(&"d".into(), &"h".into(), &"n".into()).as_str());
        let other = attachment("by-hand");
        #[rustfmt::skip] // one row a case
        let attachments = [
            ("created for a pod", None, Some(&for_pod), Some(ATTACHER)),
            ("created under another name", None, Some(&other), None),
            ("changed by the attacher", Some(&for_pod), Some(&for_pod), None),
            ("deleted", Some(&for_pod), None, None),
        ];
        for (name, old, new, field) in attachments {
            assert_eq!(attachment_field(&change(old, new)), field, "{name}");
        }
        let none = node(true, &[], &[]);
        #[rustfmt::skip] // one row a case
        let nodes = [
            ("added", Some(&none), node(true, &["a"], &[]), Some(VOLUMES_ATTACHED)),
            ("added, and used before", Some(&node(true, &[], &["a"])), node(true, &["a"], &["a"]),
                Some(VOLUMES_ATTACHED)),
            ("removed", Some(&node(true, &["a", "b"], &[])), node(true, &["b"], &[]), None),
            ("used by kubelet", Some(&none), node(true, &[], &["a"]), None),
            ("added by kubelet", Some(&node(false, &[], &[])), node(false, &["a"], &[]), None),
            ("a new Node", None, node(true, &["a"], &[]), None),
        ];
        for (name, old, new, field) in nodes {
            assert_eq!(node_field(&change(old, Some(&new))), field, "{name}");
        }
    }
}
