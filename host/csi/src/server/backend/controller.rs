//! The Controller service.

use cofferdam_backend::{Call, in_flight::OperationKey};
use cofferdam_domain::{
    NodeId, SnapshotHandle, VolumeHandle,
    storage::{
        CapacityQuery, ContentSource, CreateSnapshot, CreateVolume, CreatedVolume, ErrorKind, ExpandVolume,
        Parameters, PublishVolume, ValidateVolume, Validation, ability::ControllerCapability,
        connection_info,
    },
};
use tonic::{Request, Response, Status};

use super::{
    BackendServer,
    grpc_status::{read_result, write_result},
    responses,
    validation::{self, CheckedId, invalid_argument},
    with_secrets,
};
use crate::v1::{self, controller_server::Controller, volume_content_source as source};

type GrpcResult<T> = Result<Response<T>, Status>;

fn ok_response<T>(message: T) -> GrpcResult<T> {
    Ok(Response::new(message))
}

/// The content source of a new volume, by its validated id.
enum ContentSourceId {
    Volume(CheckedId<VolumeHandle>),
    Snapshot(CheckedId<SnapshotHandle>),
}

impl BackendServer {
    fn content_source(
        &self,
        message: Option<&v1::VolumeContentSource>,
    ) -> Result<Option<ContentSourceId>, Status> {
        let Some(message) = message else { return Ok(None) };
        let validator = self.validator();
        match message.r#type.clone() {
            None => {
                Err(invalid_argument("volume_content_source.type is missing; expected snapshot or volume"))
            }
            Some(source::Type::Volume(volume)) => {
                let id = validator.volume_id("volume_content_source.volume.volume_id", volume.volume_id)?;
                match validator.has_capability(ControllerCapability::CloneVolume) {
                    true => Ok(Some(ContentSourceId::Volume(id))),
                    false => Err(invalid_argument(
                        "volume_content_source.volume needs CLONE_VOLUME, which the driver does not announce",
                    )),
                }
            }
            Some(source::Type::Snapshot(snapshot)) => {
                let id = validator
                    .object_id("volume_content_source.snapshot.snapshot_id", snapshot.snapshot_id)?;
                match validator.has_restoring {
                    true => Ok(Some(ContentSourceId::Snapshot(id))),
                    false => Err(invalid_argument(
                        "volume_content_source.snapshot: the driver cannot create volumes from snapshots",
                    )),
                }
            }
        }
    }

    async fn create_from_source(
        &self,
        call: Call,
        request: CreateVolume,
        source: Option<ContentSourceId>,
    ) -> Result<CreatedVolume, Status> {
        let source = match source {
            None => None,
            Some(ContentSourceId::Volume(id)) => {
                Some(ContentSource::Volume(id.or_not_found("source volume")?))
            }
            Some(ContentSourceId::Snapshot(id)) => {
                Some(ContentSource::Snapshot(id.or_not_found("source snapshot")?))
            }
        };
        write_result(self.backend().create_volume(call, CreateVolume { source, ..request }).await)
    }

    /// Lists the snapshot with an id. The response is empty if the snapshot does not exist, or if
    /// `source_volume` is set and is not its source.
    async fn list_one_snapshot(
        &self,
        call: Call,
        id: CheckedId<SnapshotHandle>,
        source_volume: Option<&CheckedId<VolumeHandle>>,
    ) -> Result<v1::ListSnapshotsResponse, Status> {
        let empty = v1::ListSnapshotsResponse::default();
        let CheckedId::Valid(id) = id else { return Ok(empty) };
        let snapshot = match self.backend().get_snapshot(call, id).await {
            Err(error) if error.kind == ErrorKind::NotFound => return Ok(empty),
            snapshot => read_result(snapshot)?,
        };
        if source_volume
            .is_some_and(|source_volume| *source_volume != CheckedId::Valid(snapshot.source.clone()))
        {
            return Ok(empty);
        }
        let entry = v1::list_snapshots_response::Entry { snapshot: Some(responses::snapshot(snapshot)) };
        Ok(v1::ListSnapshotsResponse { entries: vec![entry], next_token: String::new() })
    }
}

#[tonic::async_trait]
impl Controller for BackendServer {
    async fn controller_get_capabilities(
        &self,
        _: Request<v1::ControllerGetCapabilitiesRequest>,
    ) -> GrpcResult<v1::ControllerGetCapabilitiesResponse> {
        use v1::controller_service_capability::{Rpc, Type};
        let rpc_capability = |capability: &ControllerCapability| v1::ControllerServiceCapability {
            r#type: Some(Type::Rpc(Rpc { r#type: *capability as i32 })),
        };
        let capabilities = self.validator().controller_capabilities.iter().map(rpc_capability).collect();
        ok_response(v1::ControllerGetCapabilitiesResponse { capabilities })
    }

    async fn create_volume(
        &self,
        request: Request<v1::CreateVolumeRequest>,
    ) -> GrpcResult<v1::CreateVolumeResponse> {
        let (message, call) = self.receive("/csi.v1.Controller/CreateVolume", request);
        let validator = self.validator();
        validator.require_capability(ControllerCapability::CreateDeleteVolume)?;
        let name = validation::check_name(message.name)?;
        if message.volume_capabilities.is_empty() {
            return Err(invalid_argument("volume_capabilities are missing; expected at least one"));
        }
        let source = self.content_source(message.volume_content_source.as_ref())?;
        let request = CreateVolume {
            name: name.clone(),
            capacity: message.capacity_range.map(validation::capacity_range).transpose()?.unwrap_or_default(),
            capabilities: validator.supported_capabilities(message.volume_capabilities)?,
            parameters: validator.parameters("parameters", message.parameters)?,
            mutable_parameters: validator.mutable_parameters(message.mutable_parameters)?,
            topology: validator.topology_requirement(message.accessibility_requirements)?,
            // CSI has no owner. Drivers may derive one from the parameters.
            owner: None,
            source: None,
        };
        let call = with_secrets(call, validation::secrets(message.secrets)?);
        let _lock = self.lock(OperationKey::VolumeName(name.into()))?;
        let volume = self.create_from_source(call, request, source).await?;
        let volume = responses::volume(volume, message.volume_content_source);
        ok_response(v1::CreateVolumeResponse { volume: Some(volume) })
    }

    async fn delete_volume(
        &self,
        request: Request<v1::DeleteVolumeRequest>,
    ) -> GrpcResult<v1::DeleteVolumeResponse> {
        let (message, call) = self.receive("/csi.v1.Controller/DeleteVolume", request);
        self.validator().require_capability(ControllerCapability::CreateDeleteVolume)?;
        let id = self.validator().volume_id("volume_id", message.volume_id)?;
        let call = with_secrets(call, validation::secrets(message.secrets)?);
        if let CheckedId::Valid(id) = id {
            let id: VolumeHandle = id;
            let _lock = self.lock(OperationKey::Volume(id.clone()))?;
            write_result(self.backend().delete_volume(call, id).await)?;
        }
        ok_response(v1::DeleteVolumeResponse {})
    }

    async fn controller_publish_volume(
        &self,
        request: Request<v1::ControllerPublishVolumeRequest>,
    ) -> GrpcResult<v1::ControllerPublishVolumeResponse> {
        let (message, call) = self.receive("/csi.v1.Controller/ControllerPublishVolume", request);
        let validator = self.validator();
        validator.require_capability(ControllerCapability::PublishUnpublishVolume)?;
        let id: CheckedId<VolumeHandle> = validator.volume_id("volume_id", message.volume_id)?;
        let node: CheckedId<NodeId> = validation::node_id(message.node_id)?;
        let capability =
            message.volume_capability.ok_or_else(|| invalid_argument("volume_capability is missing"))?;
        let capability = validator.supported_capability(capability)?;
        if message.readonly && !validator.has_capability(ControllerCapability::PublishReadonly) {
            return Err(invalid_argument(
                "readonly needs PUBLISH_READONLY, which the driver does not announce",
            ));
        }
        validation::check_volume_context(&message.volume_context)?;
        let call = with_secrets(call, validation::secrets(message.secrets)?);
        let request = PublishVolume {
            handle: id.or_not_found("volume")?,
            node_id: node.or_not_found("node")?,
            // CSI passes only the node's id.
            node_identities: Parameters::new(),
            capability,
            read_only: message.readonly,
            context: connection_info::driver_attributes(message.volume_context),
        };
        let _lock = self.lock(OperationKey::Volume(request.handle.clone()))?;
        let connection_info = write_result(self.backend().publish_volume(call, request).await)?;
        let publish_context = connection_info::into_publish_context(connection_info);
        ok_response(v1::ControllerPublishVolumeResponse { publish_context })
    }

    async fn controller_unpublish_volume(
        &self,
        request: Request<v1::ControllerUnpublishVolumeRequest>,
    ) -> GrpcResult<v1::ControllerUnpublishVolumeResponse> {
        let (message, call) = self.receive("/csi.v1.Controller/ControllerUnpublishVolume", request);
        self.validator().require_capability(ControllerCapability::PublishUnpublishVolume)?;
        let id: CheckedId<VolumeHandle> = self.validator().volume_id("volume_id", message.volume_id)?;
        let node =
            Some(message.node_id).filter(|node| !node.is_empty()).map(validation::node_id).transpose()?;
        let call = with_secrets(call, validation::secrets(message.secrets)?);
        let node: Option<NodeId> = match node {
            None => None,
            Some(CheckedId::Valid(node)) => Some(node),
            // Nothing is published to a node that cannot exist.
            Some(CheckedId::NonExistent) => return ok_response(v1::ControllerUnpublishVolumeResponse {}),
        };
        if let CheckedId::Valid(id) = id {
            let _lock = self.lock(OperationKey::Volume(id.clone()))?;
            write_result(self.backend().unpublish_volume(call, id, node).await)?;
        }
        ok_response(v1::ControllerUnpublishVolumeResponse {})
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<v1::ValidateVolumeCapabilitiesRequest>,
    ) -> GrpcResult<v1::ValidateVolumeCapabilitiesResponse> {
        let (message, call) = self.receive("/csi.v1.Controller/ValidateVolumeCapabilities", request);
        let validator = self.validator();
        let id: CheckedId<VolumeHandle> = validator.volume_id("volume_id", message.volume_id)?;
        if message.volume_capabilities.is_empty() {
            return Err(invalid_argument("volume_capabilities are missing; expected at least one"));
        }
        let requested = message.volume_capabilities.iter().cloned();
        let capabilities = requested
            .map(|requested_capability| validator.parse_capability(requested_capability))
            .collect::<Result<Vec<_>, _>>()?;
        validation::check_volume_context(&message.volume_context)?;
        let request = ValidateVolume {
            handle: id.or_not_found("volume")?,
            context: connection_info::driver_attributes(message.volume_context.clone()),
            capabilities: capabilities.clone(),
            parameters: validator.parameters("parameters", message.parameters.clone())?,
            mutable_parameters: validator.mutable_parameters(message.mutable_parameters.clone())?,
        };
        let call = with_secrets(call, validation::secrets(message.secrets)?);
        let result = read_result(self.backend().validate_volume(call, request).await)?;
        let missing = capabilities.iter().find_map(|capability| validator.missing_capability(capability));
        let rejection = match (result, missing) {
            (Validation::Refused(reason), _) => Some(reason),
            (Validation::Confirmed, Some(missing)) => Some(format!("the driver has no {missing}")),
            (Validation::Confirmed, None) => None,
        };
        let confirmed = rejection.is_none().then_some(v1::validate_volume_capabilities_response::Confirmed {
            volume_context: message.volume_context,
            volume_capabilities: message.volume_capabilities,
            parameters: message.parameters,
            mutable_parameters: message.mutable_parameters,
        });
        ok_response(v1::ValidateVolumeCapabilitiesResponse {
            confirmed,
            message: rejection.unwrap_or_default(),
        })
    }

    async fn list_volumes(
        &self,
        request: Request<v1::ListVolumesRequest>,
    ) -> GrpcResult<v1::ListVolumesResponse> {
        let (message, call) = self.receive("/csi.v1.Controller/ListVolumes", request);
        self.validator().require_capability(ControllerCapability::ListVolumes)?;
        let page = validation::page_request(message.max_entries, message.starting_token)?;
        let volumes = read_result(self.backend().list_volumes(call, page).await)?;
        ok_response(responses::volume_page(volumes, self.validator()))
    }

    async fn controller_get_volume(
        &self,
        request: Request<v1::ControllerGetVolumeRequest>,
    ) -> GrpcResult<v1::ControllerGetVolumeResponse> {
        let (message, call) = self.receive("/csi.v1.Controller/ControllerGetVolume", request);
        self.validator().require_capability(ControllerCapability::GetVolume)?;
        let id: CheckedId<VolumeHandle> = self.validator().volume_id("volume_id", message.volume_id)?;
        let volume_status = read_result(self.backend().get_volume(call, id.or_not_found("volume")?).await)?;
        ok_response(responses::volume_status(volume_status, self.validator()))
    }

    async fn controller_modify_volume(
        &self,
        request: Request<v1::ControllerModifyVolumeRequest>,
    ) -> GrpcResult<v1::ControllerModifyVolumeResponse> {
        let (message, call) = self.receive("/csi.v1.Controller/ControllerModifyVolume", request);
        self.validator().require_capability(ControllerCapability::ModifyVolume)?;
        let id: CheckedId<VolumeHandle> = self.validator().volume_id("volume_id", message.volume_id)?;
        let parameters = self.validator().mutable_parameters(message.mutable_parameters)?;
        let call = with_secrets(call, validation::secrets(message.secrets)?);
        let id = id.or_not_found("volume")?;
        let _lock = self.lock(OperationKey::Volume(id.clone()))?;
        write_result(self.backend().modify_volume(call, id, parameters).await)?;
        ok_response(v1::ControllerModifyVolumeResponse {})
    }

    async fn get_capacity(
        &self,
        request: Request<v1::GetCapacityRequest>,
    ) -> GrpcResult<v1::GetCapacityResponse> {
        let (message, call) = self.receive("/csi.v1.Controller/GetCapacity", request);
        let validator = self.validator();
        validator.require_capability(ControllerCapability::GetCapacity)?;
        let query = CapacityQuery {
            capabilities: validator.supported_capabilities(message.volume_capabilities)?,
            parameters: validator.parameters("parameters", message.parameters)?,
            topology: validator.accessible_topology(message.accessible_topology)?,
        };
        ok_response(responses::capacity(read_result(self.backend().get_capacity(call, query).await)?))
    }

    async fn create_snapshot(
        &self,
        request: Request<v1::CreateSnapshotRequest>,
    ) -> GrpcResult<v1::CreateSnapshotResponse> {
        let (message, call) = self.receive("/csi.v1.Controller/CreateSnapshot", request);
        self.validator().require_capability(ControllerCapability::CreateDeleteSnapshot)?;
        let name = validation::check_name(message.name)?;
        let source: CheckedId<VolumeHandle> =
            self.validator().volume_id("source_volume_id", message.source_volume_id)?;
        let parameters = self.validator().parameters("parameters", message.parameters)?;
        let call = with_secrets(call, validation::secrets(message.secrets)?);
        let source = source.or_not_found("source volume")?;
        let request = CreateSnapshot { name: name.clone(), source, parameters, owner: None };
        let _lock = self.lock(OperationKey::SnapshotName(name.into()))?;
        let snapshot = write_result(self.backend().create_snapshot(call, request).await)?;
        ok_response(v1::CreateSnapshotResponse { snapshot: Some(responses::snapshot(snapshot)) })
    }

    async fn delete_snapshot(
        &self,
        request: Request<v1::DeleteSnapshotRequest>,
    ) -> GrpcResult<v1::DeleteSnapshotResponse> {
        let (message, call) = self.receive("/csi.v1.Controller/DeleteSnapshot", request);
        self.validator().require_capability(ControllerCapability::CreateDeleteSnapshot)?;
        let id: CheckedId<SnapshotHandle> = self.validator().object_id("snapshot_id", message.snapshot_id)?;
        let call = with_secrets(call, validation::secrets(message.secrets)?);
        if let CheckedId::Valid(id) = id {
            let _lock = self.lock(OperationKey::Snapshot(id.clone()))?;
            write_result(self.backend().delete_snapshot(call, id).await)?;
        }
        ok_response(v1::DeleteSnapshotResponse {})
    }

    async fn list_snapshots(
        &self,
        request: Request<v1::ListSnapshotsRequest>,
    ) -> GrpcResult<v1::ListSnapshotsResponse> {
        let (message, call) = self.receive("/csi.v1.Controller/ListSnapshots", request);
        let validator = self.validator();
        validator.require_capability(ControllerCapability::ListSnapshots)?;
        let page = validation::page_request(message.max_entries, message.starting_token)?;
        let non_empty = |text: String| Some(text).filter(|text| !text.is_empty());
        let snapshot_id =
            non_empty(message.snapshot_id).map(|id| validator.object_id("snapshot_id", id)).transpose()?;
        let source_volume = non_empty(message.source_volume_id)
            .map(|id| validator.volume_id("source_volume_id", id))
            .transpose()?;
        let call = with_secrets(call, validation::secrets(message.secrets)?);
        match (snapshot_id, source_volume) {
            // A single snapshot has no second page.
            (Some(_), _) if page.starting_token.is_some() => {
                Err(Status::aborted("starting_token is invalid: start over"))
            }
            (Some(id), source_volume) => {
                ok_response(self.list_one_snapshot(call, id, source_volume.as_ref()).await?)
            }
            (None, Some(CheckedId::NonExistent)) => ok_response(v1::ListSnapshotsResponse::default()),
            (None, source_volume) => {
                let source_volume = source_volume.and_then(|source_volume| match source_volume {
                    CheckedId::Valid(id) => Some(id),
                    CheckedId::NonExistent => None,
                });
                ok_response(responses::snapshot_page(read_result(
                    self.backend().list_snapshots(call, source_volume, page).await,
                )?))
            }
        }
    }

    async fn get_snapshot(
        &self,
        request: Request<v1::GetSnapshotRequest>,
    ) -> GrpcResult<v1::GetSnapshotResponse> {
        let (message, call) = self.receive("/csi.v1.Controller/GetSnapshot", request);
        self.validator().require_capability(ControllerCapability::GetSnapshot)?;
        let id: CheckedId<SnapshotHandle> = self.validator().object_id("snapshot_id", message.snapshot_id)?;
        let call = with_secrets(call, validation::secrets(message.secrets)?);
        let snapshot = read_result(self.backend().get_snapshot(call, id.or_not_found("snapshot")?).await)?;
        ok_response(v1::GetSnapshotResponse { snapshot: Some(responses::snapshot(snapshot)) })
    }

    async fn controller_expand_volume(
        &self,
        request: Request<v1::ControllerExpandVolumeRequest>,
    ) -> GrpcResult<v1::ControllerExpandVolumeResponse> {
        let (message, call) = self.receive("/csi.v1.Controller/ControllerExpandVolume", request);
        let validator = self.validator();
        validator.require_capability(ControllerCapability::ExpandVolume)?;
        let id: CheckedId<VolumeHandle> = validator.volume_id("volume_id", message.volume_id)?;
        let capacity = message.capacity_range.ok_or_else(|| invalid_argument("capacity_range is missing"))?;
        let capacity = validation::capacity_range(capacity)?;
        let capability = message
            .volume_capability
            .map(|requested_capability| validator.supported_capability(requested_capability))
            .transpose()?;
        let call = with_secrets(call, validation::secrets(message.secrets)?);
        let request = ExpandVolume { handle: id.or_not_found("volume")?, capacity, capability };
        let _lock = self.lock(OperationKey::Volume(request.handle.clone()))?;
        let expanded = write_result(self.backend().expand_volume(call, request).await)?;
        ok_response(v1::ControllerExpandVolumeResponse {
            capacity_bytes: i64::try_from(expanded.capacity).unwrap_or(i64::MAX),
            node_expansion_required: expanded.node_expansion_required,
        })
    }
}
