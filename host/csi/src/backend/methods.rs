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

use super::{
    CsiBackend, CsiCallQueue, CsiCallSpec, ResourceExhaustedMeaning, response_warnings::ResponseWarnings,
};
use crate::{
    identity::PROBE_METHOD,
    request, response,
    v1::{self, volume_content_source as source},
};

/// Kind and version of the attachment that carries a driver's publish context to its own node service.
const CSI_CONNECTION_KIND: &str = "csi";
const CSI_CONNECTION_VERSION: u32 = 1;

/// The act of deleting a volume, as guards know it.
const DELETE: &str = "delete";

/// How often a volume that was not filled is tried to be deleted, as external-provisioner does.
const MAX_CLEANUP_ATTEMPTS: usize = 5;

pub(super) fn failed_call<T: Send + 'static>(error: StorageError) -> BackendFuture<'static, T> {
    Box::pin(ready(Err(error)))
}

/// A refusal that the driver did not speak, of a creation that it may have begun before.
pub(super) fn as_unknown(error: StorageError) -> StorageError {
    StorageError { finality: Finality::Unknown, ..error }
}

pub(super) fn handle_text(handle: &impl ToString) -> String {
    handle.to_string()
}

/// Whether the driver told of what it was asked for.
pub(super) fn check_same_handle<H: PartialEq + fmt::Display>(
    object: &str,
    expected: &H,
    found: &H,
) -> Result<(), String> {
    if expected == found {
        return Ok(());
    }
    Err(format!("it describes another {object} than {}", checks::printable(&expected.to_string())))
}

/// A volume, and why nobody may get it, if so.
type CreatedOrWithheld = (CreatedVolume, Option<&'static str>);

const SOURCE_NOT_CONFIRMED: &str = "the driver does not say that it has the content of its source";
const DELETION_IN_DOUBT: &str = "it was to be deleted, and nobody knows whether that has ended";

/// Whether the deletion of a volume has an open outcome: what it may still take must not be handed out.
fn has_deletion_in_doubt(in_flight: &InFlightTable, handle: &VolumeHandle) -> bool {
    in_flight.acquire(volume_operation(handle, "hand out", &())).err()
        == Some(OperationConflict::PendingOperation(DELETE))
}

impl CsiBackend {
    pub(super) fn boxed_call<Q, R, U>(&self, call: Call, spec: CsiCallSpec<Q, R, U>) -> BackendFuture<'_, U>
    where
        Q: fmt::Debug + Send + 'static,
        R: fmt::Debug + Send + 'static,
        U: Send + 'static,
    {
        Box::pin(self.call(call, spec))
    }

    /// That the driver lacks what a call needs; `None` when it has it.
    pub(super) fn missing_capability(&self, capability: Can) -> Option<StorageError> {
        (!self.identity.has_capability(capability)).then(|| self.unimplemented(capability.as_str()))
    }

    pub(super) fn unimplemented(&self, capability: &str) -> StorageError {
        let driver = self.driver();
        StorageError::final_outcome(
            ErrorKind::Unimplemented,
            format!("the CSI driver {driver} has no {capability}"),
        )
    }

    /// The same for a creation. An earlier try may have been made when the driver still had it, perhaps by
    /// another process: that nobody is asked now says nothing of what there is.
    pub(super) fn missing_create_capability(&self, capability: Can) -> Option<StorageError> {
        self.missing_capability(capability).map(as_unknown)
    }

    fn capability(&self, capability: VolumeCapability) -> v1::VolumeCapability {
        request::volume_capability(capability, self.identity.has_capability(Can::SingleNodeMultiWriter))
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
    pub(super) fn response_warnings(&self, call: &Call) -> ResponseWarnings {
        let redactor = Redactor::new(self.all_secrets(call));
        ResponseWarnings::new(self.driver().clone(), redactor, Arc::clone(&self.warnings_logged))
    }

    /// CreateVolume's message. Only a request that CSI cannot express is refused for good: no driver can have
    /// heard it.
    fn create_volume_request(
        &self,
        call: &Call,
        request: CreateVolume,
        source: Option<v1::VolumeContentSource>,
    ) -> Result<v1::CreateVolumeRequest, StorageError> {
        let invalid = |message: &str| StorageError::unknown_outcome(ErrorKind::InvalidArgument, message);
        if let Some(error) = self.missing_create_capability(Can::CreateDeleteVolume) {
            return Err(error);
        }
        if request.topology.is_some()
            && !self.identity.plugin_capabilities.contains(&PluginCapability::AccessibilityConstraints)
        {
            return Err(invalid(
                "a topology is asked for; expected none for a driver without VOLUME_ACCESSIBILITY_CONSTRAINTS",
            ));
        }
        if !request.mutable_parameters.is_empty() && !self.identity.has_capability(Can::ModifyVolume) {
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
            accessibility_requirements: request.topology.map(request::topology_requirement),
            mutable_parameters: request.mutable_parameters,
        })
    }

    /// Creates a volume, of a source or empty.
    async fn create_or_withhold(
        &self,
        method: &'static str,
        call: Call,
        request: CreateVolume,
        content_source: Option<(OperationKey, source::Type)>,
    ) -> Result<CreatedOrWithheld, StorageError> {
        let key = OperationKey::VolumeName(request.name.as_str().into());
        let source_key = content_source.as_ref().map(|(key, _)| key.clone());
        let operation = OperationRequest::new(key, method, &(&request, &source_key)).with_sources(source_key);
        let requested_source =
            content_source.map(|(_, r#type)| v1::VolumeContentSource { r#type: Some(r#type) });
        let message = self.create_volume_request(&call, request, requested_source.clone())?;
        let warnings = self.response_warnings(&call);
        let in_flight = self.in_flight.clone();
        let convert = move |response: v1::CreateVolumeResponse| {
            let is_source_confirmed = requested_source.as_ref().map(|requested_source| {
                response::has_content_source(response.volume.as_ref(), requested_source)
            });
            let volume = response::volume(response.volume)?;
            warnings.check_id("volume handle", volume.handle.as_str());
            warnings.check_map("volume context", &volume.context);
            let withheld_reason = match is_source_confirmed {
                None => None,
                Some(false) => Some(SOURCE_NOT_CONFIRMED),
                Some(true) => has_deletion_in_doubt(&in_flight, &volume.handle).then_some(DELETION_IN_DOUBT),
            };
            Ok((volume, withheld_reason))
        };
        let spec = CsiCallSpec::new(
            "/csi.v1.Controller/CreateVolume",
            Some(operation),
            message,
            |wire, request| Box::pin(async { wire.controller().create_volume(request).await }),
            convert,
        );
        // One that is withheld is deleted again: as long as that is open, its name must not be the same as
        // its handle, or the creation could never be repeated.
        let on_success: fn(&OperationPermit, &CreatedOrWithheld) = |guard, (volume, withheld_reason)| {
            if withheld_reason.is_none() {
                guard.add_alias(OperationKey::Volume(volume.handle.clone()));
            }
        };
        self.call(call, CsiCallSpec { on_success, ..spec }).await
    }

    /// Creates a volume of a source. A driver that does not confirm the source has made an empty one: nobody
    /// may get it.
    async fn create_from_source(
        &self,
        method: &'static str,
        call: Call,
        request: CreateVolume,
        content_source: (OperationKey, source::Type),
    ) -> Result<CreatedVolume, StorageError> {
        let started = Instant::now();
        let (volume, withheld_reason) =
            self.create_or_withhold(method, call.clone(), request, Some(content_source)).await?;
        let Some(reason) = withheld_reason else { return Ok(volume) };
        let mut cleanup_result = "deleted again".to_owned();
        for _ in 0..MAX_CLEANUP_ATTEMPTS {
            let deadline = call.deadline.saturating_sub(started.elapsed());
            let delete_call = Call { deadline, secrets: call.secrets.clone() };
            match self.delete_volume(delete_call, volume.handle.clone()).await {
                Ok(()) => {
                    cleanup_result = "deleted again".to_owned();
                    break;
                }
                Err(error) => cleanup_result = format!("not deleted: {error}"),
            }
        }
        let redactor = Redactor::new(self.all_secrets(&call));
        let handle = checks::printable(&redactor.redact_escaped(volume.handle.as_str()));
        Err(StorageError::unknown_outcome(
            ErrorKind::Internal,
            format!("volume {handle} is not handed out: {reason}; it was {cleanup_result}"),
        ))
    }
}

fn volume_operation(handle: &VolumeHandle, method: &'static str, request: &impl Hash) -> OperationRequest {
    OperationRequest::new(OperationKey::Volume(handle.clone()), method, request)
}

impl Backend for CsiBackend {
    fn description(&self) -> &Description {
        &self.identity.description
    }

    fn abilities(&self) -> &BTreeSet<Ability> {
        &self.identity.abilities
    }

    fn has_topology(&self) -> bool {
        self.identity.plugin_capabilities.contains(&PluginCapability::AccessibilityConstraints)
    }

    fn probe(&self, call: Call) -> BackendFuture<'_, Readiness> {
        let convert = |found: v1::ProbeResponse| {
            Ok(match found.ready.unwrap_or(true) {
                true => Readiness::Ready,
                false => Readiness::NotReady("the driver says that it is not ready".to_owned()),
            })
        };
        let spec = CsiCallSpec::new(
            PROBE_METHOD,
            None,
            v1::ProbeRequest {},
            |wire, request| Box::pin(async { wire.identity().probe(request).await }),
            convert,
        );
        self.boxed_call(call, spec)
    }

    fn create_volume(&self, call: Call, request: CreateVolume) -> BackendFuture<'_, CreatedVolume> {
        Box::pin(async move { Ok(self.create_or_withhold("create", call, request, None).await?.0) })
    }

    fn clone_volume(
        &self,
        call: Call,
        request: CreateVolume,
        source: VolumeHandle,
    ) -> BackendFuture<'_, CreatedVolume> {
        if let Some(error) = self.missing_create_capability(Can::CloneVolume) {
            return failed_call(error);
        }
        let r#type = source::Type::Volume(source::VolumeSource { volume_id: handle_text(&source) });
        Box::pin(self.create_from_source(
            "create-from-volume",
            call,
            request,
            (OperationKey::Volume(source), r#type),
        ))
    }

    fn restore_snapshot(
        &self,
        call: Call,
        request: CreateVolume,
        source: SnapshotHandle,
    ) -> BackendFuture<'_, CreatedVolume> {
        if let Some(error) = self.missing_create_capability(Can::CreateDeleteSnapshot) {
            return failed_call(error);
        }
        let r#type = source::Type::Snapshot(source::SnapshotSource { snapshot_id: handle_text(&source) });
        Box::pin(self.create_from_source(
            "create-from-snapshot",
            call,
            request,
            (OperationKey::Snapshot(source), r#type),
        ))
    }

    fn delete_volume(&self, call: Call, handle: VolumeHandle) -> BackendFuture<'_, ()> {
        if let Some(error) = self.missing_capability(Can::CreateDeleteVolume) {
            return failed_call(error);
        }
        let message =
            v1::DeleteVolumeRequest { volume_id: handle_text(&handle), secrets: self.secrets(&call) };
        let spec = CsiCallSpec::new(
            "/csi.v1.Controller/DeleteVolume",
            Some(OperationRequest::deletion(OperationKey::Volume(handle), DELETE, &())),
            message,
            |wire, request| Box::pin(async { wire.controller().delete_volume(request).await }),
            |v1::DeleteVolumeResponse {}| Ok(()),
        );
        self.boxed_call(call, CsiCallSpec { on_success: |guard, ()| guard.remove_alias(), ..spec })
    }

    fn validate_volume(&self, call: Call, request: ValidateVolume) -> BackendFuture<'_, Validation> {
        let capabilities = self.capabilities(request.capabilities);
        let message = v1::ValidateVolumeCapabilitiesRequest {
            volume_id: handle_text(&request.handle),
            volume_context: request.context,
            volume_capabilities: capabilities.clone(),
            parameters: request.parameters,
            secrets: self.secrets(&call),
            mutable_parameters: request.mutable_parameters,
        };
        let spec = CsiCallSpec::new(
            "/csi.v1.Controller/ValidateVolumeCapabilities",
            None,
            message,
            |wire, request| Box::pin(async { wire.controller().validate_volume_capabilities(request).await }),
            move |found| Ok(response::validation(found, &capabilities)),
        );
        self.boxed_call(call, spec)
    }

    fn publish_volume(&self, call: Call, request: PublishVolume) -> BackendFuture<'_, ConnectionInfo> {
        if let Some(error) = self.missing_capability(Can::PublishUnpublishVolume) {
            return failed_call(error);
        }
        let operation =
            volume_operation(&request.handle, "publish", &request).on_node(Some(request.node_id.clone()));
        let message = v1::ControllerPublishVolumeRequest {
            volume_id: handle_text(&request.handle),
            node_id: handle_text(&request.node_id),
            volume_capability: Some(self.capability(request.capability)),
            // A driver that does not know it never hears it; the node mounts for reading only all the same.
            readonly: request.read_only && self.identity.has_capability(Can::PublishReadonly),
            secrets: self.secrets(&call),
            volume_context: request.context,
        };
        let warnings = self.response_warnings(&call);
        let convert = move |found: v1::ControllerPublishVolumeResponse| {
            let connection_info = ConnectionInfo {
                kind: CSI_CONNECTION_KIND.to_owned(),
                version: CSI_CONNECTION_VERSION,
                fields: found.publish_context,
            };
            warnings.check_map("publish context", &connection_info.fields);
            response::RESPONSE_LIMITS.check_connection_info(&connection_info).map(|()| connection_info)
        };
        let spec = CsiCallSpec::new(
            "/csi.v1.Controller/ControllerPublishVolume",
            Some(operation),
            message,
            |wire, request| Box::pin(async { wire.controller().controller_publish_volume(request).await }),
            convert,
        );
        let spec = CsiCallSpec { queue: CsiCallQueue::Publishing, ..spec };
        self.boxed_call(call, spec)
    }

    fn unpublish_volume(
        &self,
        call: Call,
        handle: VolumeHandle,
        node: Option<NodeId>,
    ) -> BackendFuture<'_, ()> {
        if let Some(error) = self.missing_capability(Can::PublishUnpublishVolume) {
            return failed_call(error);
        }
        let message = v1::ControllerUnpublishVolumeRequest {
            volume_id: handle_text(&handle),
            node_id: node.as_ref().map(handle_text).unwrap_or_default(),
            secrets: self.secrets(&call),
        };
        let spec = CsiCallSpec::new(
            "/csi.v1.Controller/ControllerUnpublishVolume",
            Some(volume_operation(&handle, "unpublish", &node).inverse("publish", node)),
            message,
            |wire, request| Box::pin(async { wire.controller().controller_unpublish_volume(request).await }),
            |v1::ControllerUnpublishVolumeResponse {}| Ok(()),
        );
        let spec = CsiCallSpec { queue: CsiCallQueue::Publishing, ..spec };
        self.boxed_call(call, spec)
    }

    fn expand_volume(&self, call: Call, request: ExpandVolume) -> BackendFuture<'_, ExpandedVolume> {
        let required = request.capacity.required;
        if self.identity.has_node_only_expansion {
            // Nothing is to be asked of the controller: the volume has the size on its node's word.
            let capacity = required.unwrap_or_default();
            return Box::pin(ready(Ok(ExpandedVolume { capacity, node_expansion_required: true })));
        }
        if let Some(error) = self.missing_capability(Can::ExpandVolume) {
            return failed_call(error);
        }
        let operation = volume_operation(&request.handle, "expand", &request);
        let capacity_range = match request::capacity_range(request.capacity) {
            Ok(range) => Some(range),
            Err(error) => return failed_call(error),
        };
        let message = v1::ControllerExpandVolumeRequest {
            volume_id: handle_text(&request.handle),
            capacity_range,
            secrets: self.secrets(&call),
            volume_capability: request.capability.map(|capability| self.capability(capability)),
        };
        let spec = CsiCallSpec::new(
            "/csi.v1.Controller/ControllerExpandVolume",
            Some(operation),
            message,
            |wire, request| Box::pin(async { wire.controller().controller_expand_volume(request).await }),
            move |found| response::expanded_volume(found, required),
        );
        self.boxed_call(call, CsiCallSpec { resource_exhausted: ResourceExhaustedMeaning::InDoubt, ..spec })
    }

    fn modify_volume(
        &self,
        call: Call,
        handle: VolumeHandle,
        parameters: Parameters,
    ) -> BackendFuture<'_, ()> {
        if let Some(error) = self.missing_capability(Can::ModifyVolume) {
            return failed_call(error);
        }
        let operation = volume_operation(&handle, "modify", &parameters);
        let message = v1::ControllerModifyVolumeRequest {
            volume_id: handle_text(&handle),
            secrets: self.secrets(&call),
            mutable_parameters: parameters,
        };
        let spec = CsiCallSpec::new(
            "/csi.v1.Controller/ControllerModifyVolume",
            Some(operation),
            message,
            |wire, request| Box::pin(async { wire.controller().controller_modify_volume(request).await }),
            |v1::ControllerModifyVolumeResponse {}| Ok(()),
        );
        self.boxed_call(call, CsiCallSpec { resource_exhausted: ResourceExhaustedMeaning::InDoubt, ..spec })
    }

    fn create_snapshot(&self, call: Call, request: CreateSnapshot) -> BackendFuture<'_, Snapshot> {
        self.call_create_snapshot(call, request)
    }

    fn delete_snapshot(&self, call: Call, handle: SnapshotHandle) -> BackendFuture<'_, ()> {
        self.call_delete_snapshot(call, handle)
    }

    fn get_snapshot(&self, call: Call, handle: SnapshotHandle) -> BackendFuture<'_, Snapshot> {
        self.call_get_snapshot(call, handle)
    }

    fn list_snapshots(
        &self,
        call: Call,
        source: Option<VolumeHandle>,
        page: PageRequest,
    ) -> BackendFuture<'_, SnapshotPage> {
        self.call_list_snapshots(call, source, page)
    }

    fn create_group_snapshot(
        &self,
        call: Call,
        request: CreateGroupSnapshot,
    ) -> BackendFuture<'_, GroupSnapshot> {
        self.call_create_group_snapshot(call, request)
    }

    fn delete_group_snapshot(
        &self,
        call: Call,
        handle: GroupSnapshotHandle,
        snapshots: BTreeSet<SnapshotHandle>,
    ) -> BackendFuture<'_, ()> {
        self.call_delete_group_snapshot(call, handle, snapshots)
    }

    fn get_group_snapshot(
        &self,
        call: Call,
        handle: GroupSnapshotHandle,
        snapshots: BTreeSet<SnapshotHandle>,
    ) -> BackendFuture<'_, GroupSnapshot> {
        self.call_get_group_snapshot(call, handle, snapshots)
    }

    fn list_volumes(&self, call: Call, page: PageRequest) -> BackendFuture<'_, VolumePage> {
        if let Some(error) = self.missing_capability(Can::ListVolumes) {
            return failed_call(error);
        }
        let (max_entries, starting_token) = request::page_request(&page);
        let spec = CsiCallSpec::new(
            "/csi.v1.Controller/ListVolumes",
            None,
            v1::ListVolumesRequest { max_entries, starting_token },
            |wire, request| Box::pin(async { wire.controller().list_volumes(request).await }),
            move |found| response::volume_page(found, &page),
        );
        self.boxed_call(call, spec)
    }

    fn get_volume(&self, call: Call, handle: VolumeHandle) -> BackendFuture<'_, VolumeStatus> {
        if let Some(error) = self.missing_capability(Can::GetVolume) {
            return failed_call(error);
        }
        let message = v1::ControllerGetVolumeRequest { volume_id: handle_text(&handle) };
        let convert = move |found| {
            let status = response::volume_status(found)?;
            check_same_handle("volume", &handle, &status.volume.handle).map(|()| status)
        };
        let spec = CsiCallSpec::new(
            "/csi.v1.Controller/ControllerGetVolume",
            None,
            message,
            |wire, request| Box::pin(async { wire.controller().controller_get_volume(request).await }),
            convert,
        );
        self.boxed_call(call, spec)
    }

    fn get_capacity(&self, call: Call, query: CapacityQuery) -> BackendFuture<'_, Capacity> {
        if let Some(error) = self.missing_capability(Can::GetCapacity) {
            return failed_call(error);
        }
        let message = v1::GetCapacityRequest {
            volume_capabilities: self.capabilities(query.capabilities),
            parameters: query.parameters,
            accessible_topology: query.topology.map(request::topology),
        };
        let spec = CsiCallSpec::new(
            "/csi.v1.Controller/GetCapacity",
            None,
            message,
            |wire, request| Box::pin(async { wire.controller().get_capacity(request).await }),
            |found| response::capacity(&found),
        );
        self.boxed_call(call, spec)
    }
}
