//! Node expansion: NodeExpandVolume, and the resize status of the claim.

use std::sync::Arc;

use cofferdam_cluster::{EventType, Kind as _, observer::StepResult};
use cofferdam_csi::v1::{CapacityRange, NodeExpandVolumeRequest};
use cofferdam_domain::{
    AccessMode, Claim, Quantity,
    claim::{ClaimConditionType, ResizeState},
    names,
};
use serde_json::{Value, json};
use tokio::time::Instant;
use tonic::Code;

use super::{
    error::{RpcError, VolumeError},
    mount::csi_volume_capability,
    node_calls,
    state::{COMPONENT, Kubelet, MountedVolume, VolumeToMount},
};
use crate::client::{PatchType, pod_reference};

/// Field of a claim's status with the state of the claim's expansion.
const ALLOCATED_RESOURCE_STATUSES: &str = "allocatedResourceStatuses";

/// Returns true if the mounted volume requires node expansion and the driver has not refused it.
pub(super) fn is_expansion_due(desired: &VolumeToMount, mounted_volume: Option<&MountedVolume>) -> bool {
    let (Some(claim), Some(volume), Some(mounted_volume)) = (&desired.claim, &desired.volume, mounted_volume)
    else {
        return false;
    };
    if mounted_volume.expansion_refused {
        return false;
    }
    match claim.progress().resize {
        Some(ResizeState::NodePending | ResizeState::NodeInProgress) => true,
        Some(
            ResizeState::ControllerInProgress
            | ResizeState::ControllerInfeasible
            | ResizeState::NodeInfeasible,
        ) => false,
        None if claim.progress().is_condition_true(ClaimConditionType::FileSystemResizePending) => true,
        // Each node expands a ReadWriteMany volume for itself.
        None => {
            volume.slim.access_modes.iter().any(|mode| mode == AccessMode::ReadWriteMany)
                && mounted_volume.size.is_some_and(|size| Some(size) < volume.slim.capacity)
                && claim.status_capacity >= volume.slim.capacity
                && !claim.meta.has_annotation(names::NODE_EXPANSION_NOT_REQUIRED)
        }
    }
}

/// The state of a claim's expansion, read from the API server.
struct NodeExpansion {
    claim: Claim,
    /// The target size, as the API server formats it.
    target_size: String,
    /// The claim's conditions that are not about resizing.
    other_conditions: Vec<Value>,
}

impl Kubelet {
    /// Expands a volume on the node. The volume path of the call is the pod's target path. A volume that is
    /// mounted read-only, or whose driver does not have EXPAND_VOLUME, is marked as expanded without a call.
    pub(super) async fn expand(&self, desired: &VolumeToMount) -> Result<(), VolumeError> {
        let Some(expansion) = self.read_expansion(desired).await? else { return Ok(()) };
        if desired.read_only {
            let note = "requested read-only file system";
            self.client.emit_event(
                &*desired.pod,
                COMPONENT,
                EventType::Warning,
                "FileSystemResizeFailed",
                note,
            );
            return self.mark_expanded(desired, &expansion).await;
        }
        let plugin = self.plugin(&desired.driver)?;
        let capabilities = self.node_capabilities(&plugin).await?;
        if !capabilities.expand {
            return self.mark_expanded(desired, &expansion).await;
        }
        let expansion = self.mark_in_progress(expansion).await?;
        let paths = self.volume_paths(desired, &plugin);
        let required = Quantity::parse(&expansion.target_size).ok().and_then(Quantity::bytes_within_int64);
        let source = desired.volume.as_ref().and_then(|volume| volume.spec().csi.as_ref());
        let request = NodeExpandVolumeRequest {
            volume_id: desired.handle.clone(),
            volume_path: paths.target_path(&desired.pod.slim.meta.uid),
            capacity_range: Some(CapacityRange {
                required_bytes: required.and_then(|bytes| i64::try_from(bytes).ok()).unwrap_or_default(),
                limit_bytes: 0,
            }),
            staging_target_path: self.staging_path(desired, &paths),
            volume_capability: Some(csi_volume_capability(desired, capabilities)),
            secrets: self
                .referenced_secrets(source.and_then(|csi| csi.node_expand_secret_ref.as_ref()))
                .await?,
        };
        let started = Instant::now();
        let response = node_calls::call_node_service(&plugin.endpoint, async |client| {
            client.node_expand_volume(request).await
        })
        .await;
        match response {
            Ok(_) => {
                let text = format!(
                    "expands volume {} on {} to {}",
                    paths.name, self.node_name, expansion.target_size
                );
                let name = pod_reference(&desired.pod.slim.key);
                self.client.record_timed_step(
                    COMPONENT,
                    name,
                    StepResult::Applied,
                    text,
                    Some(started.elapsed()),
                );
                self.mark_expanded(desired, &expansion).await
            }
            Err(error) => self.mark_failed(desired, &expansion, error).await,
        }
    }

    /// Reads the pending expansion from the API server. None if the claim was replaced or no longer requires
    /// an expansion, or if neither the claim nor the PersistentVolume has a target size.
    async fn read_expansion(&self, desired: &VolumeToMount) -> Result<Option<NodeExpansion>, VolumeError> {
        let Some(cached) = &desired.claim else { return Ok(None) };
        let path =
            format!("/api/v1/namespaces/{}/persistentvolumeclaims/{}", cached.key.namespace, cached.key.name);
        let target = format!("PersistentVolumeClaim {}", cached.key);
        let read = self.client.read(&path, &target).await?;
        let object = read.ok_or_else(|| VolumeError::ClaimNotFound(cached.key.clone()))?;
        let claim = Claim::decode(&object.to_string()).map_err(|error| VolumeError::InvalidClaim {
            claim: cached.key.clone(),
            message: error.to_string(),
        })?;
        // Update the cache, so that the expansion is not repeated.
        self.client.claims.apply(Ok(claim.clone()));
        let live = VolumeToMount { claim: Some(Arc::new(claim.clone())), ..desired.clone() };
        if claim.meta.uid != cached.meta.uid
            || !is_expansion_due(&live, self.mounted_volumes.lock().get(&desired.id))
        {
            return Ok(None);
        }
        let allocated = object.pointer("/status/allocatedResources/storage").and_then(Value::as_str);
        let capacity = desired.volume.as_ref().and_then(|volume| volume.spec().capacity.clone());
        let capacity = capacity.and_then(|capacity| capacity.get("storage").cloned());
        let target = allocated.map(str::to_owned).or_else(|| capacity.map(|capacity| capacity.0));
        let is_resize_condition = |condition: &Value| {
            let kind = condition.get("type").and_then(Value::as_str).unwrap_or_default();
            ClaimConditionType::RESIZE_TYPES.iter().any(|one| one.as_str() == kind)
        };
        let conditions = object.pointer("/status/conditions").and_then(Value::as_array).cloned();
        let conditions =
            conditions.unwrap_or_default().into_iter().filter(|one| !is_resize_condition(one)).collect();
        Ok(target.map(|target| NodeExpansion { claim, target_size: target, other_conditions: conditions }))
    }

    /// Sets the claim's resize status to NodeResizeInProgress if it is NodeResizePending.
    async fn mark_in_progress(&self, expansion: NodeExpansion) -> Result<NodeExpansion, VolumeError> {
        if expansion.claim.progress().resize != Some(ResizeState::NodePending) {
            return Ok(expansion);
        }
        let state = json!({"storage": ResizeState::NodeInProgress.as_str()});
        let patch = json!({"status": {ALLOCATED_RESOURCE_STATUSES: state}});
        let written = self.client.patch(&expansion.claim, "/status", PatchType::Merge, patch).await;
        Ok(NodeExpansion { claim: written?, ..expansion })
    }

    /// Sets the claim's capacity to the target size, removes its resize status and resize conditions, and
    /// emits events on the claim and the pod. Writes and emits nothing if the claim has no pending node
    /// expansion and its capacity is not smaller.
    async fn mark_expanded(
        &self,
        desired: &VolumeToMount,
        expansion: &NodeExpansion,
    ) -> Result<(), VolumeError> {
        let size = desired.volume.as_ref().and_then(|volume| volume.slim.capacity);
        let conditions = if expansion.other_conditions.is_empty() {
            Value::Null
        } else {
            json!(expansion.other_conditions)
        };
        let patch = json!({"status": {
            "capacity": {"storage": expansion.target_size},
            ALLOCATED_RESOURCE_STATUSES: null,
            "conditions": conditions,
        }});
        let new_size = Quantity::parse(&expansion.target_size).ok();
        let progress = expansion.claim.progress();
        // The pending resize status must be removed even if the capacity is unchanged.
        let is_marked_pending = progress.resize.is_some()
            || progress.is_condition_true(ClaimConditionType::FileSystemResizePending);
        if is_marked_pending || expansion.claim.status_capacity < new_size {
            let text = format!("sets the claim's capacity to {}", expansion.target_size);
            let write = self.client.patch(&expansion.claim, "/status", PatchType::Merge, patch);
            let object = expansion.claim.key.to_string();
            let written = self.client.perform(COMPONENT, object, &text, write).await;
            let claim: Claim = written?;
            let note = "MountVolume.NodeExpandVolume succeeded for volume";
            let note = format!(
                "{note} {:?}",
                expansion.claim.volume.as_ref().map(ToString::to_string).unwrap_or_default()
            );
            let reason = "FileSystemResizeSuccessful";
            self.client.emit_event(&claim, COMPONENT, EventType::Normal, reason, note.as_str());
            self.client.emit_event(&*desired.pod, COMPONENT, EventType::Normal, reason, note);
        }
        if let Some(mounted_volume) = self.mounted_volumes.lock().get_mut(&desired.id) {
            mounted_volume.size = size;
        }
        Ok(())
    }

    async fn mark_failed(
        &self,
        desired: &VolumeToMount,
        expansion: &NodeExpansion,
        error: RpcError,
    ) -> Result<(), VolumeError> {
        let note = format!("MountVolume.NodeExpandVolume failed: {error}");
        self.client.emit_event(&*desired.pod, COMPONENT, EventType::Warning, "VolumeResizeFailed", note);
        match error.code() {
            Code::InvalidArgument | Code::OutOfRange | Code::NotFound => {
                let state = json!({"storage": ResizeState::NodeInfeasible.as_str()});
                let patch = json!({"status": {ALLOCATED_RESOURCE_STATUSES: state}});
                self.client.patch(&expansion.claim, "/status", PatchType::Merge, patch).await?;
                Ok(())
            }
            // The driver does not expand a volume in use: retry after the volume is mounted again.
            Code::FailedPrecondition => {
                if let Some(mounted_volume) = self.mounted_volumes.lock().get_mut(&desired.id) {
                    mounted_volume.expansion_refused = true;
                }
                Ok(())
            }
            Code::Ok
            | Code::Cancelled
            | Code::Unknown
            | Code::DeadlineExceeded
            | Code::AlreadyExists
            | Code::PermissionDenied
            | Code::ResourceExhausted
            | Code::Aborted
            | Code::Unimplemented
            | Code::Internal
            | Code::Unavailable
            | Code::DataLoss
            | Code::Unauthenticated => Err(error.into()),
        }
    }
}
