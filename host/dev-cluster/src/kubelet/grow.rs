//! The node's part of growing: NodeExpandVolume, and what the claim's status says of it.

use std::sync::Arc;

use cofferdam_cluster::{EventType, Kind as _};
use cofferdam_csi::v1::{CapacityRange, NodeExpandVolumeRequest};
use cofferdam_domain::{
    AccessMode, Claim, Quantity,
    claim::{ConditionKind, ResizeState},
    names,
};
use serde_json::{Value, json};
use tokio::time::Instant;
use tonic::{Code, Status};

use super::{COMPONENT, Held, Kubelet, Wanted, calls, lock, mount::capability};
use crate::{
    observer::StepKind,
    world::{Patch, pod_name},
};

/// Member of a claim's status that says how far a growth has come.
const STATUSES: &str = "allocatedResourceStatuses";

/// Whether the node has a part to do.
pub(super) fn is_due(wanted: &Wanted, held: Option<&Held>) -> bool {
    let (Some(claim), Some(volume), Some(held)) = (&wanted.claim, &wanted.volume, held) else { return false };
    if held.refused {
        return false;
    }
    match claim.progress().resize {
        Some(ResizeState::NodePending | ResizeState::NodeInProgress) => true,
        Some(
            ResizeState::ControllerInProgress
            | ResizeState::ControllerInfeasible
            | ResizeState::NodeInfeasible,
        ) => false,
        None if claim.progress().holds(ConditionKind::FileSystemResizePending) => true,
        // Of a volume on many nodes each one has its own part.
        None => {
            volume.slim.access_modes.iter().any(|mode| mode == AccessMode::ReadWriteMany)
                && held.size.is_some_and(|size| Some(size) < volume.slim.capacity)
                && claim.status_capacity >= volume.slim.capacity
                && !claim.meta.has_annotation(names::NODE_EXPANSION_NOT_REQUIRED)
        }
    }
}

/// What the claim says of its growth, read past the cache.
struct Growth {
    claim: Claim,
    /// The size that it grows to, as the API spells it.
    target: String,
    /// Conditions that are not about growing.
    conditions: Vec<Value>,
}

impl Kubelet {
    /// Does the node's part, by way of a pod's mount.
    pub(super) async fn grow(&self, wanted: &Wanted) -> Result<(), String> {
        let Some(growth) = self.growth(wanted).await? else { return Ok(()) };
        if wanted.read_only {
            let note = "requested read-only file system";
            self.world.note(&*wanted.pod, COMPONENT, EventType::Warning, "FileSystemResizeFailed", note);
            return self.finish(wanted, &growth).await;
        }
        let plugin = self.plugin(&wanted.driver)?;
        let abilities = self.abilities(&plugin).await?;
        if !abilities.expands {
            return self.finish(wanted, &growth).await;
        }
        let growth = self.begin(growth).await?;
        let paths = self.paths(wanted, &plugin);
        let required = Quantity::parse(&growth.target).ok().and_then(Quantity::to_csi_bytes);
        let source = wanted.volume.as_ref().and_then(|volume| volume.spec().csi.as_ref());
        let request = NodeExpandVolumeRequest {
            volume_id: wanted.handle.clone(),
            volume_path: paths.target(&wanted.pod.slim.meta.uid),
            capacity_range: Some(CapacityRange {
                required_bytes: required.and_then(|bytes| i64::try_from(bytes).ok()).unwrap_or_default(),
                limit_bytes: 0,
            }),
            staging_target_path: self.staging(wanted, &paths),
            volume_capability: Some(capability(wanted, abilities)),
            secrets: self.secrets_of(source.and_then(|csi| csi.node_expand_secret_ref.as_ref())).await?,
        };
        let started = Instant::now();
        let answer =
            calls::node(&plugin.endpoint, async |client| client.node_expand_volume(request).await).await;
        match answer {
            Ok(_) => {
                let text = format!("grows volume {} on {} to {}", paths.name, self.name, growth.target);
                let name = pod_name(&wanted.pod.slim.key);
                self.world.told(COMPONENT, name, StepKind::Acts, text, Some(started.elapsed()));
                self.finish(wanted, &growth).await
            }
            Err(status) => self.not_grown(wanted, &growth, &status).await,
        }
    }

    /// What is to be done; absent where somebody has done it meanwhile.
    async fn growth(&self, wanted: &Wanted) -> Result<Option<Growth>, String> {
        let Some(known) = &wanted.claim else { return Ok(None) };
        let path =
            format!("/api/v1/namespaces/{}/persistentvolumeclaims/{}", known.key.namespace, known.key.name);
        let target = format!("PersistentVolumeClaim {}", known.key);
        let read = self.world.read(&path, &target).await.map_err(|error| error.to_string())?;
        let object = read.ok_or_else(|| format!("claim {} does not exist", known.key))?;
        let claim = Claim::decode(&object.to_string())?;
        // Whoever looks next sees it, too: else the same would follow at once.
        self.world.claims.apply(Ok(claim.clone()));
        let live = Wanted { claim: Some(Arc::new(claim.clone())), ..wanted.clone() };
        if claim.meta.uid != known.meta.uid || !is_due(&live, lock(&self.held).get(&wanted.id)) {
            return Ok(None);
        }
        let allocated = object.pointer("/status/allocatedResources/storage").and_then(Value::as_str);
        let capacity = wanted.volume.as_ref().and_then(|volume| volume.spec().capacity.clone());
        let capacity = capacity.and_then(|capacity| capacity.get("storage").cloned());
        let target = allocated.map(str::to_owned).or_else(|| capacity.map(|capacity| capacity.0));
        let of_growth = |condition: &Value| {
            let kind = condition.get("type").and_then(Value::as_str).unwrap_or_default();
            ConditionKind::OF_GROWTH.iter().any(|one| one.as_str() == kind)
        };
        let conditions = object.pointer("/status/conditions").and_then(Value::as_array).cloned();
        let conditions = conditions.unwrap_or_default().into_iter().filter(|one| !of_growth(one)).collect();
        Ok(target.map(|target| Growth { claim, target, conditions }))
    }

    /// Says that the node is at it.
    async fn begin(&self, growth: Growth) -> Result<Growth, String> {
        if growth.claim.progress().resize != Some(ResizeState::NodePending) {
            return Ok(growth);
        }
        let state = json!({"storage": ResizeState::NodeInProgress.as_str()});
        let patch = json!({"status": {STATUSES: state}});
        let written = self.world.patch(&growth.claim, "/status", Patch::Merge, patch).await;
        Ok(Growth { claim: written.map_err(|error| error.to_string())?, ..growth })
    }

    /// Says that the claim is as large as its volume.
    async fn finish(&self, wanted: &Wanted, growth: &Growth) -> Result<(), String> {
        let size = wanted.volume.as_ref().and_then(|volume| volume.slim.capacity);
        let conditions = if growth.conditions.is_empty() { Value::Null } else { json!(growth.conditions) };
        let patch = json!({"status": {
            "capacity": {"storage": growth.target},
            STATUSES: null,
            "conditions": conditions,
        }});
        let grown = Quantity::parse(&growth.target).ok();
        let progress = growth.claim.progress();
        // What says that the node has a part to do must not stand after it.
        let told = progress.resize.is_some() || progress.holds(ConditionKind::FileSystemResizePending);
        if told || growth.claim.status_capacity < grown {
            let text = format!("the claim has {}", growth.target);
            let write = self.world.patch(&growth.claim, "/status", Patch::Merge, patch);
            let object = growth.claim.key.to_string();
            let written = self.world.act(COMPONENT, object, &text, write).await;
            let claim: Claim = written.map_err(|error| error.to_string())?;
            let note = "MountVolume.NodeExpandVolume succeeded for volume";
            let note = format!(
                "{note} {:?}",
                growth.claim.volume.as_ref().map(ToString::to_string).unwrap_or_default()
            );
            let reason = "FileSystemResizeSuccessful";
            self.world.note(&claim, COMPONENT, EventType::Normal, reason, note.as_str());
            self.world.note(&*wanted.pod, COMPONENT, EventType::Normal, reason, note);
        }
        if let Some(held) = lock(&self.held).get_mut(&wanted.id) {
            held.size = size;
        }
        Ok(())
    }

    async fn not_grown(&self, wanted: &Wanted, growth: &Growth, status: &Status) -> Result<(), String> {
        let words = calls::words(status);
        let note = format!("MountVolume.NodeExpandVolume failed: {words}");
        self.world.note(&*wanted.pod, COMPONENT, EventType::Warning, "VolumeResizeFailed", note);
        match status.code() {
            Code::InvalidArgument | Code::OutOfRange | Code::NotFound => {
                let state = json!({"storage": ResizeState::NodeInfeasible.as_str()});
                let patch = json!({"status": {STATUSES: state}});
                let written = self.world.patch(&growth.claim, "/status", Patch::Merge, patch).await;
                written.map(drop).map_err(|error| error.to_string())
            }
            // Not while it is in use: the next mount tries again.
            Code::FailedPrecondition => {
                if let Some(held) = lock(&self.held).get_mut(&wanted.id) {
                    held.refused = true;
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
            | Code::Unauthenticated => Err(words),
        }
    }
}
