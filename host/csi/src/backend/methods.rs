//! Each method of [`Backend`]: what it is about, which call of CSI answers it, and what is checked of the
//! answer.

use std::{collections::BTreeSet, fmt, future::ready, hash::Hash, sync::Arc};

use cofferdam_backend::{
    Backend, BackendFuture, Call, Redactor, checks,
    in_flight::{InFlightTable, OperationConflict, OperationKey, OperationPermit, OperationRequest},
};
use cofferdam_domain::{
    GroupSnapshotHandle, NodeId, SnapshotHandle, VolumeHandle,
    storage::{
        Ability, Capacity, CapacityQuery, ConnectionInfo, CreateGroupSnapshot, CreateSnapshot, CreateVolume,
        CreatedVolume, Description, ErrorKind, ExpandVolume, ExpandedVolume, Finality, GroupSnapshot,
        PageRequest, Parameters, PublishVolume, Readiness, Secrets, Snapshot, SnapshotPage, StorageError,
        ValidateVolume, Validation, VolumeCapability, VolumePage, VolumeStatus,
        ability::{ControllerCapability as Can, PluginCapability},
    },
};
use tokio::time::Instant;

use super::{CsiBackend, Exhausted, Job, Lane, watch::Watch};
use crate::{
    answer,
    identity::PROBE,
    request,
    v1::{self, volume_content_source as source},
};

/// Kind and version of the attachment that carries a driver's publish context to its own node service.
const ATTACHMENT_KIND: &str = "csi";
const ATTACHMENT_VERSION: u32 = 1;

/// The act of deleting a volume, as guards know it.
const DELETE: &str = "delete";

/// How often a volume that was not filled is tried to be deleted, as external-provisioner does.
const CLEANUPS: usize = 5;

pub(super) fn failed<T: Send + 'static>(error: StorageError) -> BackendFuture<'static, T> {
    Box::pin(ready(Err(error)))
}

/// A refusal that the driver did not speak, of a creation that it may have begun before.
pub(super) fn open(error: StorageError) -> StorageError {
    StorageError { finality: Finality::Unknown, ..error }
}

pub(super) fn text(handle: &impl ToString) -> String {
    handle.to_string()
}

/// Whether the driver told of what it was asked for.
pub(super) fn same<H: PartialEq + fmt::Display>(what: &str, asked: &H, found: &H) -> Result<(), String> {
    if asked == found {
        return Ok(());
    }
    Err(format!("it describes another {what} than {}", checks::printable(&asked.to_string())))
}

/// A volume, and why nobody may get it, if so.
type Filled = (CreatedVolume, Option<&'static str>);

const UNFILLED: &str = "the driver does not say that it has the content of its source";
const DOOMED: &str = "it was to be deleted, and nobody knows whether that has ended";

/// Whether the deletion of a volume has an open outcome: what it may still take must not be handed out.
fn doomed(guards: &InFlightTable, handle: &VolumeHandle) -> bool {
    guards.acquire(volume_act(handle, "hand out", &())).err()
        == Some(OperationConflict::PendingOperation(DELETE))
}

impl CsiBackend {
    pub(super) fn answer<Q, R, U>(&self, call: Call, job: Job<Q, R, U>) -> BackendFuture<'_, U>
    where
        Q: fmt::Debug + Send + 'static,
        R: fmt::Debug + Send + 'static,
        U: Send + 'static,
    {
        Box::pin(self.perform(call, job))
    }

    /// That the driver lacks what a call needs; `None` when it has it.
    pub(super) fn lacks(&self, needed: Can) -> Option<StorageError> {
        (!self.identity.can(needed)).then(|| self.unable(needed.as_str()))
    }

    pub(super) fn unable(&self, needed: &str) -> StorageError {
        let driver = self.driver();
        StorageError::final_outcome(
            ErrorKind::Unimplemented,
            format!("the CSI driver {driver} has no {needed}"),
        )
    }

    /// The same for a creation. An earlier try may have been made when the driver still had it, perhaps by
    /// another process: that nobody is asked now says nothing of what there is.
    pub(super) fn lacks_to_create(&self, needed: Can) -> Option<StorageError> {
        self.lacks(needed).map(open)
    }

    fn capability(&self, capability: VolumeCapability) -> v1::VolumeCapability {
        request::capability(capability, self.identity.can(Can::SingleNodeMultiWriter))
    }

    fn capabilities(&self, capabilities: Vec<VolumeCapability>) -> Vec<v1::VolumeCapability> {
        capabilities.into_iter().map(|capability| self.capability(capability)).collect()
    }

    fn all_secrets(&self, call: &Call) -> Secrets {
        self.config.secrets.merged_with(&call.secrets)
    }

    pub(super) fn secrets(&self, call: &Call) -> std::collections::BTreeMap<String, String> {
        request::secrets(&self.all_secrets(call))
    }

    /// Who looks at what the driver returns of a call, before it is stored.
    pub(super) fn watch(&self, call: &Call) -> Watch {
        let redactor = Redactor::new(self.all_secrets(call));
        Watch::new(self.driver().clone(), redactor, Arc::clone(&self.told))
    }

    /// CreateVolume's message. Only a request that CSI cannot express is refused for good: no driver can have
    /// heard it.
    fn creation(
        &self,
        call: &Call,
        request: CreateVolume,
        source: Option<v1::VolumeContentSource>,
    ) -> Result<v1::CreateVolumeRequest, StorageError> {
        let invalid = |message: &str| StorageError::unknown_outcome(ErrorKind::InvalidArgument, message);
        if let Some(error) = self.lacks_to_create(Can::CreateDeleteVolume) {
            return Err(error);
        }
        if request.topology.is_some()
            && !self.identity.plugin.contains(&PluginCapability::AccessibilityConstraints)
        {
            return Err(invalid(
                "a topology is asked for; expected none for a driver without VOLUME_ACCESSIBILITY_CONSTRAINTS",
            ));
        }
        if !request.mutable_parameters.is_empty() && !self.identity.can(Can::ModifyVolume) {
            return Err(invalid(
                "mutable parameters are given; expected none for a driver without MODIFY_VOLUME",
            ));
        }
        Ok(v1::CreateVolumeRequest {
            name: request.name,
            capacity_range: Some(request::capacity_range(request.capacity)?),
            volume_capabilities: self.capabilities(request.capabilities),
            parameters: request.parameters,
            secrets: self.secrets(call),
            volume_content_source: source,
            accessibility_requirements: request.topology.map(request::requirement),
            mutable_parameters: request.mutable_parameters,
        })
    }

    /// Creates a volume, of a source or empty.
    async fn create(
        &self,
        method: &'static str,
        call: Call,
        request: CreateVolume,
        from: Option<(OperationKey, source::Type)>,
    ) -> Result<Filled, StorageError> {
        let subject = OperationKey::VolumeName(request.name.as_str().into());
        let of = from.as_ref().map(|(subject, _)| subject.clone());
        let intent = OperationRequest::new(subject, method, &(&request, &of)).with_sources(of);
        let asked = from.map(|(_, r#type)| v1::VolumeContentSource { r#type: Some(r#type) });
        let message = self.creation(&call, request, asked.clone())?;
        let watch = self.watch(&call);
        let guards = self.guards.clone();
        let accept = move |found: v1::CreateVolumeResponse| {
            let filled = asked.as_ref().map(|asked| answer::is_from(found.volume.as_ref(), asked));
            let volume = answer::volume(found.volume)?;
            watch.id("volume handle", volume.handle.as_str());
            watch.map("volume context", &volume.context);
            let withheld = match filled {
                None => None,
                Some(false) => Some(UNFILLED),
                Some(true) => doomed(&guards, &volume.handle).then_some(DOOMED),
            };
            Ok((volume, withheld))
        };
        let job = Job::new(
            "/csi.v1.Controller/CreateVolume",
            Some(intent),
            message,
            |wire, request| Box::pin(async { wire.controller().create_volume(request).await }),
            accept,
        );
        // One that is withheld is deleted again: as long as that is open, its name must not be the same as
        // its handle, or the creation could never be repeated.
        let remember: fn(&OperationPermit, &Filled) = |guard, (volume, withheld)| {
            if withheld.is_none() {
                guard.add_alias(OperationKey::Volume(volume.handle.clone()));
            }
        };
        self.perform(call, Job { remember, ..job }).await
    }

    /// Creates a volume of a source. A driver that does not confirm the source has made an empty one: nobody
    /// may get it.
    async fn fill(
        &self,
        method: &'static str,
        call: Call,
        request: CreateVolume,
        from: (OperationKey, source::Type),
    ) -> Result<CreatedVolume, StorageError> {
        let begun = Instant::now();
        let (volume, withheld) = self.create(method, call.clone(), request, Some(from)).await?;
        let Some(reason) = withheld else { return Ok(volume) };
        let mut end = "deleted again".to_owned();
        for _ in 0..CLEANUPS {
            let deadline = call.deadline.saturating_sub(begun.elapsed());
            let deletion = Call { deadline, secrets: call.secrets.clone() };
            match self.delete_volume(deletion, volume.handle.clone()).await {
                Ok(()) => {
                    end = "deleted again".to_owned();
                    break;
                }
                Err(error) => end = format!("not deleted: {error}"),
            }
        }
        let redactor = Redactor::new(self.all_secrets(&call));
        let handle = checks::printable(&redactor.redact_escaped(volume.handle.as_str()));
        Err(StorageError::unknown_outcome(
            ErrorKind::Internal,
            format!("volume {handle} is not handed out: {reason}; it was {end}"),
        ))
    }
}

fn volume_act(handle: &VolumeHandle, method: &'static str, arguments: &impl Hash) -> OperationRequest {
    OperationRequest::new(OperationKey::Volume(handle.clone()), method, arguments)
}

impl Backend for CsiBackend {
    fn description(&self) -> &Description {
        &self.identity.description
    }

    fn abilities(&self) -> &BTreeSet<Ability> {
        &self.identity.abilities
    }

    fn has_topology(&self) -> bool {
        self.identity.plugin.contains(&PluginCapability::AccessibilityConstraints)
    }

    fn probe(&self, call: Call) -> BackendFuture<'_, Readiness> {
        let accept = |found: v1::ProbeResponse| {
            Ok(match found.ready.unwrap_or(true) {
                true => Readiness::Ready,
                false => Readiness::NotReady("the driver says that it is not ready".to_owned()),
            })
        };
        let job = Job::new(
            PROBE,
            None,
            v1::ProbeRequest {},
            |wire, request| Box::pin(async { wire.identity().probe(request).await }),
            accept,
        );
        self.answer(call, job)
    }

    fn create_volume(&self, call: Call, request: CreateVolume) -> BackendFuture<'_, CreatedVolume> {
        Box::pin(async move { Ok(self.create("create", call, request, None).await?.0) })
    }

    fn clone_volume(
        &self,
        call: Call,
        request: CreateVolume,
        source: VolumeHandle,
    ) -> BackendFuture<'_, CreatedVolume> {
        if let Some(error) = self.lacks_to_create(Can::CloneVolume) {
            return failed(error);
        }
        let r#type = source::Type::Volume(source::VolumeSource { volume_id: text(&source) });
        Box::pin(self.fill("create-from-volume", call, request, (OperationKey::Volume(source), r#type)))
    }

    fn restore_snapshot(
        &self,
        call: Call,
        request: CreateVolume,
        source: SnapshotHandle,
    ) -> BackendFuture<'_, CreatedVolume> {
        if let Some(error) = self.lacks_to_create(Can::CreateDeleteSnapshot) {
            return failed(error);
        }
        let r#type = source::Type::Snapshot(source::SnapshotSource { snapshot_id: text(&source) });
        Box::pin(self.fill("create-from-snapshot", call, request, (OperationKey::Snapshot(source), r#type)))
    }

    fn delete_volume(&self, call: Call, handle: VolumeHandle) -> BackendFuture<'_, ()> {
        if let Some(error) = self.lacks(Can::CreateDeleteVolume) {
            return failed(error);
        }
        let message = v1::DeleteVolumeRequest { volume_id: text(&handle), secrets: self.secrets(&call) };
        let job = Job::new(
            "/csi.v1.Controller/DeleteVolume",
            Some(OperationRequest::deletion(OperationKey::Volume(handle), DELETE, &())),
            message,
            |wire, request| Box::pin(async { wire.controller().delete_volume(request).await }),
            |v1::DeleteVolumeResponse {}| Ok(()),
        );
        self.answer(call, Job { remember: |guard, ()| guard.remove_alias(), ..job })
    }

    fn validate_volume(&self, call: Call, request: ValidateVolume) -> BackendFuture<'_, Validation> {
        let capabilities = self.capabilities(request.capabilities);
        let message = v1::ValidateVolumeCapabilitiesRequest {
            volume_id: text(&request.handle),
            volume_context: request.context,
            volume_capabilities: capabilities.clone(),
            parameters: request.parameters,
            secrets: self.secrets(&call),
            mutable_parameters: request.mutable_parameters,
        };
        let job = Job::new(
            "/csi.v1.Controller/ValidateVolumeCapabilities",
            None,
            message,
            |wire, request| Box::pin(async { wire.controller().validate_volume_capabilities(request).await }),
            move |found| Ok(answer::validation(found, &capabilities)),
        );
        self.answer(call, job)
    }

    fn publish_volume(&self, call: Call, request: PublishVolume) -> BackendFuture<'_, ConnectionInfo> {
        if let Some(error) = self.lacks(Can::PublishUnpublishVolume) {
            return failed(error);
        }
        let intent = volume_act(&request.handle, "publish", &request).on_node(Some(request.node_id.clone()));
        let message = v1::ControllerPublishVolumeRequest {
            volume_id: text(&request.handle),
            node_id: text(&request.node_id),
            volume_capability: Some(self.capability(request.capability)),
            // A driver that does not know it never hears it; the node mounts for reading only all the same.
            readonly: request.read_only && self.identity.can(Can::PublishReadonly),
            secrets: self.secrets(&call),
            volume_context: request.context,
        };
        let watch = self.watch(&call);
        let accept = move |found: v1::ControllerPublishVolumeResponse| {
            let attachment = ConnectionInfo {
                kind: ATTACHMENT_KIND.to_owned(),
                version: ATTACHMENT_VERSION,
                fields: found.publish_context,
            };
            watch.map("publish context", &attachment.fields);
            answer::BOUNDS.check_connection_info(&attachment).map(|()| attachment)
        };
        let job = Job::new(
            "/csi.v1.Controller/ControllerPublishVolume",
            Some(intent),
            message,
            |wire, request| Box::pin(async { wire.controller().controller_publish_volume(request).await }),
            accept,
        );
        let job = Job { lane: Lane::Attachments, ..job };
        self.answer(call, job)
    }

    fn unpublish_volume(
        &self,
        call: Call,
        handle: VolumeHandle,
        node: Option<NodeId>,
    ) -> BackendFuture<'_, ()> {
        if let Some(error) = self.lacks(Can::PublishUnpublishVolume) {
            return failed(error);
        }
        let message = v1::ControllerUnpublishVolumeRequest {
            volume_id: text(&handle),
            node_id: node.as_ref().map(text).unwrap_or_default(),
            secrets: self.secrets(&call),
        };
        let job = Job::new(
            "/csi.v1.Controller/ControllerUnpublishVolume",
            Some(volume_act(&handle, "unpublish", &node).inverse("publish", node)),
            message,
            |wire, request| Box::pin(async { wire.controller().controller_unpublish_volume(request).await }),
            |v1::ControllerUnpublishVolumeResponse {}| Ok(()),
        );
        let job = Job { lane: Lane::Attachments, ..job };
        self.answer(call, job)
    }

    fn expand_volume(&self, call: Call, request: ExpandVolume) -> BackendFuture<'_, ExpandedVolume> {
        let required = request.capacity.required;
        if self.identity.grows_on_node {
            // Nothing is to be asked of the controller: the volume has the size on its node's word.
            let capacity = required.unwrap_or_default();
            return Box::pin(ready(Ok(ExpandedVolume { capacity, node_expansion_required: true })));
        }
        if let Some(error) = self.lacks(Can::ExpandVolume) {
            return failed(error);
        }
        let intent = volume_act(&request.handle, "expand", &request);
        let capacity_range = match request::capacity_range(request.capacity) {
            Ok(range) => Some(range),
            Err(error) => return failed(error),
        };
        let message = v1::ControllerExpandVolumeRequest {
            volume_id: text(&request.handle),
            capacity_range,
            secrets: self.secrets(&call),
            volume_capability: request.capability.map(|capability| self.capability(capability)),
        };
        let job = Job::new(
            "/csi.v1.Controller/ControllerExpandVolume",
            Some(intent),
            message,
            |wire, request| Box::pin(async { wire.controller().controller_expand_volume(request).await }),
            move |found| answer::expanded(found, required),
        );
        self.answer(call, Job { exhausted: Exhausted::Open, ..job })
    }

    fn modify_volume(
        &self,
        call: Call,
        handle: VolumeHandle,
        parameters: Parameters,
    ) -> BackendFuture<'_, ()> {
        if let Some(error) = self.lacks(Can::ModifyVolume) {
            return failed(error);
        }
        let intent = volume_act(&handle, "modify", &parameters);
        let message = v1::ControllerModifyVolumeRequest {
            volume_id: text(&handle),
            secrets: self.secrets(&call),
            mutable_parameters: parameters,
        };
        let job = Job::new(
            "/csi.v1.Controller/ControllerModifyVolume",
            Some(intent),
            message,
            |wire, request| Box::pin(async { wire.controller().controller_modify_volume(request).await }),
            |v1::ControllerModifyVolumeResponse {}| Ok(()),
        );
        self.answer(call, Job { exhausted: Exhausted::Open, ..job })
    }

    fn create_snapshot(&self, call: Call, request: CreateSnapshot) -> BackendFuture<'_, Snapshot> {
        self.cut_snapshot(call, request)
    }

    fn delete_snapshot(&self, call: Call, handle: SnapshotHandle) -> BackendFuture<'_, ()> {
        self.drop_snapshot(call, handle)
    }

    fn get_snapshot(&self, call: Call, handle: SnapshotHandle) -> BackendFuture<'_, Snapshot> {
        self.describe_snapshot(call, handle)
    }

    fn list_snapshots(
        &self,
        call: Call,
        source: Option<VolumeHandle>,
        page: PageRequest,
    ) -> BackendFuture<'_, SnapshotPage> {
        self.page_of_snapshots(call, source, page)
    }

    fn create_group_snapshot(
        &self,
        call: Call,
        request: CreateGroupSnapshot,
    ) -> BackendFuture<'_, GroupSnapshot> {
        self.cut_group(call, request)
    }

    fn delete_group_snapshot(
        &self,
        call: Call,
        handle: GroupSnapshotHandle,
        snapshots: BTreeSet<SnapshotHandle>,
    ) -> BackendFuture<'_, ()> {
        self.drop_group(call, handle, snapshots)
    }

    fn get_group_snapshot(
        &self,
        call: Call,
        handle: GroupSnapshotHandle,
        snapshots: BTreeSet<SnapshotHandle>,
    ) -> BackendFuture<'_, GroupSnapshot> {
        self.describe_group(call, handle, snapshots)
    }

    fn list_volumes(&self, call: Call, page: PageRequest) -> BackendFuture<'_, VolumePage> {
        if let Some(error) = self.lacks(Can::ListVolumes) {
            return failed(error);
        }
        let (max_entries, starting_token) = request::page(&page);
        let job = Job::new(
            "/csi.v1.Controller/ListVolumes",
            None,
            v1::ListVolumesRequest { max_entries, starting_token },
            |wire, request| Box::pin(async { wire.controller().list_volumes(request).await }),
            move |found| answer::volume_page(found, &page),
        );
        self.answer(call, job)
    }

    fn get_volume(&self, call: Call, handle: VolumeHandle) -> BackendFuture<'_, VolumeStatus> {
        if let Some(error) = self.lacks(Can::GetVolume) {
            return failed(error);
        }
        let message = v1::ControllerGetVolumeRequest { volume_id: text(&handle) };
        let accept = move |found| {
            let status = answer::volume_status(found)?;
            same("volume", &handle, &status.volume.handle).map(|()| status)
        };
        let job = Job::new(
            "/csi.v1.Controller/ControllerGetVolume",
            None,
            message,
            |wire, request| Box::pin(async { wire.controller().controller_get_volume(request).await }),
            accept,
        );
        self.answer(call, job)
    }

    fn get_capacity(&self, call: Call, query: CapacityQuery) -> BackendFuture<'_, Capacity> {
        if let Some(error) = self.lacks(Can::GetCapacity) {
            return failed(error);
        }
        let message = v1::GetCapacityRequest {
            volume_capabilities: self.capabilities(query.capabilities),
            parameters: query.parameters,
            accessible_topology: query.topology.map(request::topology),
        };
        let job = Job::new(
            "/csi.v1.Controller/GetCapacity",
            None,
            message,
            |wire, request| Box::pin(async { wire.controller().get_capacity(request).await }),
            |found| answer::capacity(&found),
        );
        self.answer(call, job)
    }
}
