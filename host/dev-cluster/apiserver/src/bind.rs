//! `pods/binding`: assigns a pod to a node. An update of a pod without scheduling gates cannot set
//! `spec.nodeName`.

use serde_json::{Value, json};

use crate::descriptors::{BINDING, ResourceKind};
use crate::inner::Inner;
use crate::meta::{self, text};
use crate::request::Target;
use crate::status::{FieldError, Status};
use crate::store::{self, StoreChange};
use crate::write::{MAX_RETRIES, check_name, check_namespace};

/// Returns `true` if the target is `pods/binding`.
pub(crate) fn is_binding(target: &Target) -> bool {
    target.resource.id == ResourceKind::Pod && target.subresource.as_deref() == Some(BINDING)
}

impl Inner {
    /// Assigns a pod to the node of the binding.
    pub(crate) fn bind(&self, target: &Target, binding: &Value, dry_run: bool) -> Result<(), Status> {
        check_namespace(target, binding)?;
        check_name(target, binding)?;
        let node = text(binding, "/target/name");
        let kind = text(binding, "/target/kind");
        let mut errors = Vec::new();
        if !matches!(kind, "" | "Node") {
            errors.push(FieldError::not_supported("target.kind", kind, &["Node", "<empty>"]));
        }
        if node.is_empty() {
            errors.push(FieldError::required("target.name", ""));
        }
        if !errors.is_empty() {
            return Err(Status::invalid(target.resource, target.name(), &errors));
        }
        let key = store::key(&target.namespace, target.name());
        for _ in 0..MAX_RETRIES {
            let current = self.find(target)?;
            self.check_bindable(target, &current.value, binding)?;
            if dry_run {
                return Ok(());
            }
            let next = with_binding(current.value.clone(), binding, node, &meta::timestamp((self.now)()));
            let change = StoreChange::Put(next, current.managed_fields.clone());
            if self.store.commit(ResourceKind::Pod, &key, Some(current.version), change).is_ok() {
                return Ok(());
            }
        }
        Err(Status::too_many_conflicts(target.resource, target.name()))
    }

    fn check_bindable(&self, target: &Target, pod: &Value, binding: &Value) -> Result<(), Status> {
        let conflict =
            |why: &str| Err(Status::conflict_on(target.resource, "pods/binding", target.name(), why));
        for member in ["uid", "resourceVersion"] {
            let pointer = format!("/metadata/{member}");
            let wanted = text(binding, &pointer);
            if !wanted.is_empty() && wanted != text(pod, &pointer) {
                return conflict(&format!(
                    "the {member} in the precondition ({wanted}) is not that of the pod"
                ));
            }
        }
        if meta::deleting(pod) {
            return conflict(&format!(
                "pod {} is being deleted, cannot be assigned to a host",
                target.name()
            ));
        }
        let node = text(pod, "/spec/nodeName");
        if !node.is_empty() {
            return conflict(&format!("pod {} is already assigned to node \"{node}\"", target.name()));
        }
        if !meta::list(pod, "/spec/schedulingGates").is_empty() {
            return conflict(&format!("pod {} has non-empty .spec.schedulingGates", target.name()));
        }
        Ok(())
    }
}

/// The pod with the node, the PodScheduled condition, and the labels and annotations of the binding.
fn with_binding(mut pod: Value, binding: &Value, node: &str, now: &Value) -> Value {
    meta::edit(&mut pod, "spec", |spec| spec.insert("nodeName".to_owned(), json!(node)));
    meta::edit_meta(&mut pod, |meta| {
        for member in ["annotations", "labels"] {
            let Some(Value::Object(additions)) = binding.pointer(&format!("/metadata/{member}")) else {
                continue;
            };
            if let Value::Object(all) = meta.entry(member).or_insert_with(|| json!({})) {
                all.extend(additions.clone());
            }
        }
    });
    meta::edit(&mut pod, "status", |status| {
        let scheduled = json!({
            "type": "PodScheduled", "status": "True", "lastProbeTime": null, "lastTransitionTime": now,
        });
        if let Value::Array(conditions) = status.entry("conditions").or_insert_with(|| json!([])) {
            conditions.retain(|one| text(one, "/type") != "PodScheduled");
            conditions.push(scheduled);
        }
    });
    pod
}
