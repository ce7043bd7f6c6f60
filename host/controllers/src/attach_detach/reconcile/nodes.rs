//! Reconciles `status.volumesAttached` of Nodes.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    time::Duration,
};

use cofferdam_cluster::{ApiError, Lookup, queue::Action, writer::PatchTarget};
use cofferdam_domain::{Node, NodeName, UniqueVolumeName, VolumeAttachmentName, names};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{AttachDetach, node_volume_entry, rules};
use crate::{
    attach_detach::state::PreparedUpdate,
    reconcile::{MAX_EFFECTS, action_for_write_error},
};

impl AttachDetach {
    /// Reconciles `status.volumesAttached` of a Node.
    pub(super) async fn reconcile_node(&self, name: &NodeName) -> Action {
        let cache = &self.context.cache;
        for _ in 0..MAX_EFFECTS {
            let node = match cache.nodes.get(name) {
                Lookup::Found(node) => node,
                Lookup::Undecodable(_) => return Action::Done,
                Lookup::Missing => {
                    self.throttle.remove(name);
                    // The Node is deleted: no update can take effect.
                    self.enqueue_attachments(self.state.abort(name));
                    return Action::Done;
                }
            };
            if !node.controller_managed {
                return Action::Done;
            }
            if let Some(left) = self.throttle.remaining(name) {
                return Action::RequeueAfter(left);
            }
            let PreparedUpdate { volumes_attached: listed, unanswered_for, superseded } = self.state.prepare(
                name,
                node.meta.resource_version,
                self.volumes_to_report(&node),
                |attachment| self.is_attached(attachment),
            );
            self.enqueue_attachments(superseded);
            let Some(patch) = volumes_attached_patch(&node, &listed, &self.foreign_volumes(&node, &listed))
            else {
                match self.is_update_final(&node, unanswered_for).await {
                    Ok(true) => self.enqueue_attachments(self.state.commit(name)),
                    Ok(false) => continue,
                    Err(outcome) => return outcome,
                }
                return Action::Done;
            };
            let recorder = self.context.recorders.of_role();
            let text = format!("updates volumesAttached of {name}: {} volumes", listed.len());
            self.state.mark_sent(name);
            let write = self.context.writer.merge_patch::<Node>(
                name,
                PatchTarget::Status,
                node.meta.resource_version,
                patch,
            );
            let since = Instant::now();
            let written = recorder.record_effect(&text, write).await;
            match &written {
                // A conflicting update was not applied, and is computed again without a delay.
                Err(ApiError::Conflict(_)) => {}
                Err(ApiError::Refused { .. } | ApiError::TermEnded(_)) => self.throttle.record_refusal(name),
                _ => self.throttle.record_write(name, since.elapsed()),
            }
            let Err(error) = written else {
                self.enqueue_attachments(self.state.commit(name));
                continue;
            };
            if error.is_result_unknown() {
                // The request may have been in flight until now.
                self.state.mark_sent(name);
            }
            // A refused update says nothing about an earlier one. A conflict means that the Node is newer
            // than all of them.
            let refused = matches!(error, ApiError::Refused { .. });
            if !error.is_result_unknown() && (unanswered_for.is_none() || !refused) {
                self.enqueue_attachments(self.state.abort(name));
            }
            return action_for_write_error::<Node>(&self.context.writer, name, &error).await;
        }
        Action::Requeue
    }

    /// Returns true if no earlier update of `volumesAttached` can still take effect. `node` already has the
    /// desired list. Returns false if a live read shows that the Node has changed.
    ///
    /// # Errors
    /// An earlier update may still take effect, or the live read failed. The error is the action that ends
    /// the reconcile.
    async fn is_update_final(&self, node: &Node, unanswered_for: Option<Duration>) -> Result<bool, Action> {
        let Some(unanswered_for) = unanswered_for else { return Ok(true) };
        if let Err(error) = self.context.writer.refresh::<Node>(&node.name).await {
            tracing::debug!(%error, "reading a node failed");
            return Err(Action::Backoff);
        }
        let now = self.context.cache.nodes.get(&node.name).into_object();
        if now.is_none_or(|now| now.meta.resource_version != node.meta.resource_version) {
            return Ok(false);
        }
        let may_apply = self.context.settings.request_may_apply;
        match may_apply.checked_sub(unanswered_for).filter(|left| !left.is_zero()) {
            Some(left) => Err(Action::RequeueAfter(left)),
            None => Ok(true),
        }
    }

    /// Entries of CSI volumes in a Node's `volumesAttached` that an update keeps although `listed` lacks
    /// them: the VolumeAttachment cannot be decoded, or it is not being deleted and is for a volume of a
    /// migrated in-tree plugin or for a PersistentVolume that cannot be decoded.
    fn foreign_volumes(&self, node: &Node, listed: &[UniqueVolumeName]) -> BTreeSet<UniqueVolumeName> {
        let (sources, listed) = (self.sources(), listed.iter().collect::<HashSet<_>>());
        let attached = node.volumes.iter().filter(|volume| volume.attached && !listed.contains(&volume.name));
        let foreign = attached.filter(|volume| {
            let Some((driver, handle)) = volume.name.parse_csi() else { return false };
            match self
                .context
                .cache
                .attachments
                .get(&names::volume_attachment_name(&driver, &handle, &node.name))
            {
                Lookup::Missing => false,
                Lookup::Undecodable(_) => true,
                Lookup::Found(attachment) => {
                    !attachment.meta.deleting && sources.resolve_attachment(&attachment).is_none()
                }
            }
        });
        foreign.map(|volume| volume.name.clone()).collect()
    }

    /// Returns true if the attachment is attached and not being deleted.
    fn is_attached(&self, name: &VolumeAttachmentName) -> bool {
        let now = self.context.cache.attachments.get(name).into_object();
        now.is_some_and(|now| now.attached && !now.meta.deleting)
    }

    /// VolumeAttachments whose volumes belong in the Node's `volumesAttached`, with the names of the volumes.
    fn volumes_to_report(&self, node: &Node) -> Vec<(VolumeAttachmentName, UniqueVolumeName)> {
        let sources = self.sources();
        let attachments = self.context.cache.attachments_of_node(&node.name);
        let for_pods = attachments.iter().filter(|attachment| names::is_pod_attachment(&attachment.name));
        let known = for_pods.filter_map(|attachment| {
            sources
                .resolve_attachment(attachment)
                .map(|(actual_attachment, volume)| (attachment, actual_attachment, volume))
        });
        let reported = known.filter(|(_, actual_attachment, _)| {
            rules::belongs_in_volumes_attached(actual_attachment, sources.force_after)
        });
        let named = reported.filter_map(|(attachment, actual_attachment, volume)| {
            // An attachment of a deleted PersistentVolume keeps its entry.
            let listed = || {
                node_volume_entry(node, attachment, None)
                    .filter(|entry| entry.attached)
                    .map(|entry| entry.name.clone())
            };
            Some((actual_attachment.name, volume.or_else(listed)?))
        });
        named.collect()
    }
}

/// The patch that sets `status.volumesAttached` of a Node to `reported`, beside the entries of other plugins
/// and `foreign` ones. `None` if the Node's list has the same names.
fn volumes_attached_patch(
    node: &Node,
    reported: &[UniqueVolumeName],
    foreign: &BTreeSet<UniqueVolumeName>,
) -> Option<Value> {
    let attached = || node.volumes.iter().filter(|volume| volume.attached);
    let others =
        attached().filter(|volume| volume.name.parse_csi().is_none() || foreign.contains(&volume.name));
    let mut next: BTreeMap<&UniqueVolumeName, &str> =
        others.map(|volume| (&volume.name, &*volume.device_path)).collect();
    next.extend(reported.iter().map(|name| (name, "")));
    if next.keys().copied().eq(attached().map(|volume| &volume.name)) {
        return None;
    }
    let entries: Vec<Value> =
        next.iter().map(|(name, device_path)| json!({"name": name, "devicePath": device_path})).collect();
    let list = if entries.is_empty() { Value::Null } else { Value::Array(entries) };
    Some(json!({"status": {"volumesAttached": list}}))
}
