//! The methods of [`Backend`]: the CSI call of each method, and the checks of the response. The methods for
//! snapshots and group snapshots are in the module `snapshots`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    future::ready,
    sync::Arc,
};

use cofferdam_backend::{
    Backend, BackendFuture, Call, CallSpec, CreatedObject, Redactor, checks, in_flight::OperationKey,
    is_deletion_in_doubt,
};
use cofferdam_domain::{
    GroupSnapshotHandle, NodeId, SnapshotHandle, VolumeHandle,
    storage::{
        Ability, Capacity, CapacityQuery, ConnectionInfo, ContentSource, CreateGroupSnapshot, CreateSnapshot,
        CreateVolume, CreatedVolume, Description, ErrorKind, ExpandVolume, ExpandedVolume, Finality,
        GroupSnapshot, PageRequest, Parameters, PublishVolume, Readiness, Snapshot, SnapshotPage,
        StorageError, ValidateVolume, Validation, VolumeCapability, VolumePage, VolumeStatus,
        ability::{ControllerCapability, PluginCapability},
    },
};
use tokio::time::Instant;

use super::{CsiBackend, CsiRequest, response_warnings::ResponseWarnings};
use crate::{
    request, response,
    v1::{self, volume_content_source as source},
};

/// Kind and version of the connection info that passes a driver's publish context to its node service.
const CSI_CONNECTION_KIND: &str = "csi";
const CSI_CONNECTION_VERSION: u32 = 1;

/// Maximum attempts to delete a volume that was created and is not returned to the caller (see
/// [`CreatedOrWithheld`]), as in external-provisioner.
const MAX_CLEANUP_ATTEMPTS: usize = 5;

pub(super) fn failed_call<T: Send + 'static>(error: StorageError) -> BackendFuture<'static, T> {
    Box::pin(ready(Err(error)))
}

/// The same error with finality `Unknown`, because an earlier attempt may have reached the driver.
pub(super) fn as_unknown(error: StorageError) -> StorageError {
    StorageError { finality: Finality::Unknown, ..error }
}

pub(super) fn handle_text(handle: &impl ToString) -> String {
    handle.to_string()
}

/// A created volume. If `withheld_reason` is set, the volume must be deleted and not returned to the caller.
struct CreatedOrWithheld {
    volume: CreatedVolume,
    withheld_reason: Option<&'static str>,
}

impl CreatedObject for CreatedOrWithheld {
    /// `None` for a withheld volume. Otherwise the volume's handle would become an alias of its name, and a
    /// deletion in doubt would block a repeated create call for the same name.
    fn operation_key(&self) -> Option<OperationKey> {
        self.withheld_reason.is_none().then(|| OperationKey::Volume(self.volume.handle.clone()))
    }
}

const SOURCE_NOT_CONFIRMED: &str = "the driver does not confirm its content source";
const DELETION_IN_DOUBT: &str = "an earlier deletion of it has not finished: its result is unknown";

impl CsiBackend {
    pub(super) fn boxed_call<Q, R, U>(
        &self,
        call: Call,
        spec: CallSpec<R, U>,
        request: CsiRequest<Q, R>,
    ) -> BackendFuture<'_, U>
    where
        Q: fmt::Debug + Send + 'static,
        R: fmt::Debug + Send + 'static,
        U: Send + 'static,
    {
        Box::pin(self.call(call, spec, request))
    }

    /// The error of a call whose capability the driver lacks; `None` if it has the capability.
    pub(super) fn missing_capability(&self, capability: ControllerCapability) -> Option<StorageError> {
        (!self.identity.has_capability(capability)).then(|| self.unimplemented(capability.as_str()))
    }

    pub(super) fn unimplemented(&self, capability: &str) -> StorageError {
        let driver = self.driver();
        StorageError::with_known_effect(
            ErrorKind::Unimplemented,
            format!("the CSI driver {driver} has no {capability}"),
        )
    }

    /// [`Self::missing_capability`] for a create call. The error is not final: an earlier attempt, perhaps of
    /// another process, may have reached the driver when it still had the capability.
    pub(super) fn missing_create_capability(&self, capability: ControllerCapability) -> Option<StorageError> {
        self.missing_capability(capability).map(as_unknown)
    }

    fn capability(&self, capability: VolumeCapability) -> v1::VolumeCapability {
        request::volume_capability(
            capability,
            self.identity.has_capability(ControllerCapability::SingleNodeMultiWriter),
        )
    }

    fn capabilities(&self, capabilities: Vec<VolumeCapability>) -> Vec<v1::VolumeCapability> {
        capabilities.into_iter().map(|capability| self.capability(capability)).collect()
    }

    pub(super) fn secrets(&self, call: &Call) -> BTreeMap<String, String> {
        request::secrets(&self.runner.secrets(call))
    }

    /// Returns the checker that logs warnings about a response and drops what the driver must not return.
    pub(super) fn response_warnings(&self) -> ResponseWarnings {
        ResponseWarnings::new(self.driver().clone(), self.has_topology(), Arc::clone(&self.warnings_logged))
    }

    /// Returns the message of CreateVolume. A size that CSI cannot express is a final error, because no
    /// driver can have received it. Other errors are not final: an earlier attempt may have reached the
    /// driver.
    fn create_volume_request(
        &self,
        call: &Call,
        request: CreateVolume,
        source: Option<v1::VolumeContentSource>,
    ) -> Result<v1::CreateVolumeRequest, StorageError> {
        let invalid = |message: &str| StorageError::with_unknown_effect(ErrorKind::InvalidArgument, message);
        if let Some(error) = self.missing_create_capability(ControllerCapability::CreateDeleteVolume) {
            return Err(error);
        }
        if request.topology.is_some()
            && !self.identity.plugin_capabilities.contains(&PluginCapability::AccessibilityConstraints)
        {
            return Err(invalid(
                "a topology is asked for; expected none for a driver without \
                 VOLUME_ACCESSIBILITY_CONSTRAINTS",
            ));
        }
        if !request.mutable_parameters.is_empty()
            && !self.identity.has_capability(ControllerCapability::ModifyVolume)
        {
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

    /// Creates a volume. A volume with a content source is withheld if the driver does not confirm the
    /// source, or if an earlier deletion of the volume is in doubt.
    async fn create_or_withhold(
        &self,
        call: Call,
        request: CreateVolume,
    ) -> Result<CreatedOrWithheld, StorageError> {
        let source = request.source.as_ref().map(|source| v1::VolumeContentSource {
            r#type: Some(match source {
                ContentSource::Volume(handle) => {
                    source::Type::Volume(source::VolumeSource { volume_id: handle_text(handle) })
                }
                ContentSource::Snapshot(handle) => {
                    source::Type::Snapshot(source::SnapshotSource { snapshot_id: handle_text(handle) })
                }
            }),
        });
        let warnings = self.response_warnings();
        let in_flight = self.runner.in_flight().clone();
        let requested_source = source.clone();
        let convert = move |response: v1::CreateVolumeResponse, redactor: &Redactor| {
            let is_source_confirmed = requested_source.as_ref().map(|requested_source| {
                response::has_content_source(response.volume.as_ref(), requested_source)
            });
            let mut volume = response::volume(response.volume)?;
            warnings.drop_unannounced_topology(&mut volume);
            warnings.check_id("volume handle", volume.handle.as_str(), redactor);
            warnings.check_map("volume context", &volume.context, redactor);
            let withheld_reason = match is_source_confirmed {
                None => None,
                Some(false) => Some(SOURCE_NOT_CONFIRMED),
                Some(true) => is_deletion_in_doubt(&in_flight, &volume.handle).then_some(DELETION_IN_DOUBT),
            };
            Ok(CreatedOrWithheld { volume, withheld_reason })
        };
        let spec = CallSpec::create_volume(&request, convert);
        let message = self.create_volume_request(&call, request, source)?;
        let request = CsiRequest::new(message, |grpc, request| {
            Box::pin(async { grpc.controller().create_volume(request).await })
        });
        self.call(call, spec, request).await
    }

    /// Creates a volume from a content source. For a withheld volume, the call fails after up to
    /// [`MAX_CLEANUP_ATTEMPTS`] attempts to delete it: if the driver does not confirm the source, the volume
    /// may be empty.
    async fn create_from_source(
        &self,
        call: Call,
        request: CreateVolume,
    ) -> Result<CreatedVolume, StorageError> {
        let started = Instant::now();
        let CreatedOrWithheld { volume, withheld_reason } =
            self.create_or_withhold(call.clone(), request).await?;
        let Some(reason) = withheld_reason else { return Ok(volume) };
        let mut cleanup_result = "deleted again".to_owned();
        for _ in 0..MAX_CLEANUP_ATTEMPTS {
            let deadline = call.deadline.saturating_sub(started.elapsed());
            let delete_call = Call { deadline, ..call.clone() };
            match self.delete_volume(delete_call, volume.handle.clone()).await {
                Ok(()) => {
                    cleanup_result = "deleted again".to_owned();
                    break;
                }
                Err(error) => cleanup_result = format!("not deleted: {error}"),
            }
        }
        let redactor = Redactor::new(self.runner.secrets(&call));
        let handle = redactor.printable(volume.handle.as_str());
        Err(StorageError::with_unknown_effect(
            ErrorKind::Internal,
            format!("volume {handle} is not handed out: {reason}; it was {cleanup_result}"),
        ))
    }
}

impl Backend for CsiBackend {
    fn description(&self) -> &Description {
        &self.identity.description
    }

    fn abilities(&self) -> &BTreeSet<Ability> {
        &self.identity.abilities
    }

    fn creates_volumes(&self) -> bool {
        self.identity.has_capability(ControllerCapability::CreateDeleteVolume)
    }

    fn has_topology(&self) -> bool {
        self.identity.plugin_capabilities.contains(&PluginCapability::AccessibilityConstraints)
    }

    fn probe(&self, call: Call) -> BackendFuture<'_, Readiness> {
        let spec = CallSpec::probe(|found: v1::ProbeResponse, _| {
            Ok(match found.ready.unwrap_or(true) {
                true => Readiness::Ready,
                false => Readiness::NotReady("the driver reports that it is not ready".to_owned()),
            })
        });
        let request = CsiRequest::new(v1::ProbeRequest {}, |grpc, request| {
            Box::pin(async { grpc.identity().probe(request).await })
        });
        self.boxed_call(call, spec, request)
    }

    fn create_volume(&self, call: Call, request: CreateVolume) -> BackendFuture<'_, CreatedVolume> {
        let capability = match &request.source {
            None => {
                return Box::pin(async move { Ok(self.create_or_withhold(call, request).await?.volume) });
            }
            Some(ContentSource::Volume(_)) => ControllerCapability::CloneVolume,
            Some(ContentSource::Snapshot(_)) => ControllerCapability::CreateDeleteSnapshot,
        };
        if let Some(error) = self.missing_create_capability(capability) {
            return failed_call(error);
        }
        Box::pin(self.create_from_source(call, request))
    }

    fn delete_volume(&self, call: Call, handle: VolumeHandle) -> BackendFuture<'_, ()> {
        if let Some(error) = self.missing_capability(ControllerCapability::CreateDeleteVolume) {
            return failed_call(error);
        }
        let message =
            v1::DeleteVolumeRequest { volume_id: handle_text(&handle), secrets: self.secrets(&call) };
        let request = CsiRequest::new(message, |grpc, request| {
            Box::pin(async { grpc.controller().delete_volume(request).await })
        });
        self.boxed_call(call, CallSpec::delete_volume(&handle), request)
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
        let spec = CallSpec::validate_volume(move |found, redactor| {
            Ok(response::validation(found, &capabilities, redactor))
        });
        let request = CsiRequest::new(message, |grpc, request| {
            Box::pin(async { grpc.controller().validate_volume_capabilities(request).await })
        });
        self.boxed_call(call, spec, request)
    }

    fn publish_volume(&self, call: Call, request: PublishVolume) -> BackendFuture<'_, ConnectionInfo> {
        if let Some(error) = self.missing_capability(ControllerCapability::PublishUnpublishVolume) {
            return failed_call(error);
        }
        let warnings = self.response_warnings();
        let convert = move |found: v1::ControllerPublishVolumeResponse, redactor: &Redactor| {
            let connection_info = ConnectionInfo {
                kind: CSI_CONNECTION_KIND.to_owned(),
                version: CSI_CONNECTION_VERSION,
                fields: found.publish_context,
            };
            warnings.check_map("publish context", &connection_info.fields, redactor);
            response::RESPONSE_LIMITS.check_connection_info(&connection_info).map(|()| connection_info)
        };
        let spec = CallSpec::publish_volume(&request, convert);
        let message = v1::ControllerPublishVolumeRequest {
            volume_id: handle_text(&request.handle),
            node_id: handle_text(&request.node_id),
            volume_capability: Some(self.capability(request.capability)),
            // Only for drivers with the capability. The node mounts the volume read-only in any case.
            readonly: request.read_only
                && self.identity.has_capability(ControllerCapability::PublishReadonly),
            secrets: self.secrets(&call),
            volume_context: request.context,
        };
        let request = CsiRequest::new(message, |grpc, request| {
            Box::pin(async { grpc.controller().controller_publish_volume(request).await })
        });
        self.boxed_call(call, spec, request.in_publish_queue())
    }

    fn unpublish_volume(
        &self,
        call: Call,
        handle: VolumeHandle,
        node: Option<NodeId>,
    ) -> BackendFuture<'_, ()> {
        if let Some(error) = self.missing_capability(ControllerCapability::PublishUnpublishVolume) {
            return failed_call(error);
        }
        let message = v1::ControllerUnpublishVolumeRequest {
            volume_id: handle_text(&handle),
            node_id: node.as_ref().map(handle_text).unwrap_or_default(),
            secrets: self.secrets(&call),
        };
        let spec = CallSpec::unpublish_volume(&handle, node.as_ref());
        let request = CsiRequest::new(message, |grpc, request| {
            Box::pin(async { grpc.controller().controller_unpublish_volume(request).await })
        });
        self.boxed_call(call, spec, request.in_publish_queue())
    }

    fn expand_volume(&self, call: Call, request: ExpandVolume) -> BackendFuture<'_, ExpandedVolume> {
        let required = request.capacity.required;
        if self.identity.has_node_only_expansion {
            // The controller has nothing to do: the node expands the volume.
            let capacity = required.unwrap_or_default();
            return Box::pin(ready(Ok(ExpandedVolume { capacity, node_expansion_required: true })));
        }
        if let Some(error) = self.missing_capability(ControllerCapability::ExpandVolume) {
            return failed_call(error);
        }
        let spec =
            CallSpec::expand_volume(&request, move |found, _| response::expanded_volume(found, required));
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
        let request = CsiRequest::new(message, |grpc, request| {
            Box::pin(async { grpc.controller().controller_expand_volume(request).await })
        });
        self.boxed_call(call, spec, request.with_resource_exhausted_in_doubt())
    }

    fn modify_volume(
        &self,
        call: Call,
        handle: VolumeHandle,
        parameters: Parameters,
    ) -> BackendFuture<'_, ()> {
        if let Some(error) = self.missing_capability(ControllerCapability::ModifyVolume) {
            return failed_call(error);
        }
        let spec = CallSpec::modify_volume(&handle, &parameters);
        let message = v1::ControllerModifyVolumeRequest {
            volume_id: handle_text(&handle),
            secrets: self.secrets(&call),
            mutable_parameters: parameters,
        };
        let request = CsiRequest::new(message, |grpc, request| {
            Box::pin(async { grpc.controller().controller_modify_volume(request).await })
        });
        self.boxed_call(call, spec, request.with_resource_exhausted_in_doubt())
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
        if let Some(error) = self.missing_capability(ControllerCapability::ListVolumes) {
            return failed_call(error);
        }
        let (max_entries, starting_token) = request::page_request(&page);
        let warnings = self.response_warnings();
        let spec = CallSpec::list_volumes(move |found, _| {
            let mut page = response::volume_page(found, &page)?;
            let volumes = page.volumes.iter_mut().map(|status| &mut status.volume);
            volumes.for_each(|volume| warnings.drop_unannounced_topology(volume));
            Ok(page)
        });
        let request =
            CsiRequest::new(v1::ListVolumesRequest { max_entries, starting_token }, |grpc, request| {
                Box::pin(async { grpc.controller().list_volumes(request).await })
            });
        self.boxed_call(call, spec, request)
    }

    fn get_volume(&self, call: Call, handle: VolumeHandle) -> BackendFuture<'_, VolumeStatus> {
        if let Some(error) = self.missing_capability(ControllerCapability::GetVolume) {
            return failed_call(error);
        }
        let message = v1::ControllerGetVolumeRequest { volume_id: handle_text(&handle) };
        let warnings = self.response_warnings();
        let convert = move |found, _: &Redactor| {
            let mut status = response::volume_status(found)?;
            warnings.drop_unannounced_topology(&mut status.volume);
            checks::check_same_handle("volume", &handle, &status.volume.handle).map(|()| status)
        };
        let spec = CallSpec::get_volume(convert);
        let request = CsiRequest::new(message, |grpc, request| {
            Box::pin(async { grpc.controller().controller_get_volume(request).await })
        });
        self.boxed_call(call, spec, request)
    }

    fn get_capacity(&self, call: Call, query: CapacityQuery) -> BackendFuture<'_, Capacity> {
        if let Some(error) = self.missing_capability(ControllerCapability::GetCapacity) {
            return failed_call(error);
        }
        let message = v1::GetCapacityRequest {
            volume_capabilities: self.capabilities(query.capabilities),
            parameters: query.parameters,
            accessible_topology: query.topology.map(request::topology),
        };
        let spec = CallSpec::get_capacity(|found, _| response::capacity(&found));
        let request = CsiRequest::new(message, |grpc, request| {
            Box::pin(async { grpc.controller().get_capacity(request).await })
        });
        self.boxed_call(call, spec, request)
    }
}
