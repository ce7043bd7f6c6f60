//! The Controller service.

use cofferdam_backend::{Call, in_flight::OperationKey};
use cofferdam_domain::{
    NodeId, SnapshotHandle, VolumeHandle,
    storage::{
        CapacityQuery, CreateSnapshot, CreateVolume, CreatedVolume, ErrorKind, ExpandVolume, Parameters,
        PublishVolume, ValidateVolume, Validation, ability::ControllerCapability as Can, connection_info,
    },
};
use tonic::{Request, Response, Status};

use super::{
    BackendServer, answers,
    outcome::{changed, read},
    rules::{self, Id, invalid},
    with,
};
use crate::v1::{self, controller_server::Controller, volume_content_source as source};

type Answer<T> = Result<Response<T>, Status>;

fn answer<T>(message: T) -> Answer<T> {
    Ok(Response::new(message))
}

/// Where a new volume's content comes from.
enum Source {
    Volume(Id<VolumeHandle>),
    Snapshot(Id<SnapshotHandle>),
}

impl BackendServer {
    fn source(&self, asked: Option<&v1::VolumeContentSource>) -> Result<Option<Source>, Status> {
        let Some(asked) = asked else { return Ok(None) };
        let rules = self.rules();
        match asked.r#type.clone() {
            None => Err(invalid("volume_content_source.type is missing; expected snapshot or volume")),
            Some(source::Type::Volume(volume)) => {
                let id = rules.volume("volume_content_source.volume.volume_id", volume.volume_id)?;
                match rules.can(Can::CloneVolume) {
                    true => Ok(Some(Source::Volume(id))),
                    false => Err(invalid(
                        "volume_content_source.volume needs CLONE_VOLUME, which the driver does not announce",
                    )),
                }
            }
            Some(source::Type::Snapshot(snapshot)) => {
                let id = rules.id("volume_content_source.snapshot.snapshot_id", snapshot.snapshot_id)?;
                match rules.restores {
                    true => Ok(Some(Source::Snapshot(id))),
                    false => Err(invalid(
                        "volume_content_source.snapshot: the driver makes no volumes of snapshots",
                    )),
                }
            }
        }
    }

    async fn create(
        &self,
        call: Call,
        request: CreateVolume,
        source: Option<Source>,
    ) -> Result<CreatedVolume, Status> {
        let backend = self.backend();
        changed(match source {
            None => backend.create_volume(call, request).await,
            Some(Source::Volume(id)) => {
                backend.clone_volume(call, request, id.existing("source volume")?).await
            }
            Some(Source::Snapshot(id)) => {
                backend.restore_snapshot(call, request, id.existing("source snapshot")?).await
            }
        })
    }

    /// The snapshots of a call that names one: it, or none.
    async fn one_snapshot(
        &self,
        call: Call,
        id: Id<SnapshotHandle>,
        of: Option<&Id<VolumeHandle>>,
    ) -> Result<v1::ListSnapshotsResponse, Status> {
        let none = v1::ListSnapshotsResponse::default();
        let Id::Possible(id) = id else { return Ok(none) };
        let found = match self.backend().get_snapshot(call, id).await {
            Err(error) if error.kind == ErrorKind::NotFound => return Ok(none),
            found => read(found)?,
        };
        if of.is_some_and(|of| *of != Id::Possible(found.source.clone())) {
            return Ok(none);
        }
        let entry = v1::list_snapshots_response::Entry { snapshot: Some(answers::snapshot(found)) };
        Ok(v1::ListSnapshotsResponse { entries: vec![entry], next_token: String::new() })
    }
}

#[tonic::async_trait]
impl Controller for BackendServer {
    async fn controller_get_capabilities(
        &self,
        _: Request<v1::ControllerGetCapabilitiesRequest>,
    ) -> Answer<v1::ControllerGetCapabilitiesResponse> {
        use v1::controller_service_capability::{Rpc, Type};
        let announced = |capability: &Can| v1::ControllerServiceCapability {
            r#type: Some(Type::Rpc(Rpc { r#type: *capability as i32 })),
        };
        let capabilities = self.rules().controller.iter().map(announced).collect();
        answer(v1::ControllerGetCapabilitiesResponse { capabilities })
    }

    async fn create_volume(
        &self,
        request: Request<v1::CreateVolumeRequest>,
    ) -> Answer<v1::CreateVolumeResponse> {
        let (asked, call) = self.take("/csi.v1.Controller/CreateVolume", request);
        let rules = self.rules();
        rules.offers(Can::CreateDeleteVolume)?;
        let name = rules::name(asked.name)?;
        if asked.volume_capabilities.is_empty() {
            return Err(invalid("volume_capabilities are missing; expected at least one"));
        }
        let source = self.source(asked.volume_content_source.as_ref())?;
        let request = CreateVolume {
            name: name.clone(),
            capacity: asked.capacity_range.map(rules::capacity).transpose()?.unwrap_or_default(),
            capabilities: rules.capabilities(asked.volume_capabilities)?,
            parameters: rules.parameters("parameters", asked.parameters)?,
            mutable_parameters: rules.mutable(asked.mutable_parameters)?,
            topology: rules.requirement(asked.accessibility_requirements)?,
            // CSI does not say for whom; drivers whose parameters tell keep it their own way.
            owner: None,
        };
        let call = with(call, rules::secrets(asked.secrets)?);
        let _lock = self.lock(OperationKey::VolumeName(name.into()))?;
        let volume = self.create(call, request, source).await?;
        let volume = answers::volume(volume, asked.volume_content_source);
        answer(v1::CreateVolumeResponse { volume: Some(volume) })
    }

    async fn delete_volume(
        &self,
        request: Request<v1::DeleteVolumeRequest>,
    ) -> Answer<v1::DeleteVolumeResponse> {
        let (asked, call) = self.take("/csi.v1.Controller/DeleteVolume", request);
        self.rules().offers(Can::CreateDeleteVolume)?;
        let id = self.rules().volume("volume_id", asked.volume_id)?;
        let call = with(call, rules::secrets(asked.secrets)?);
        if let Id::Possible(id) = id {
            let id: VolumeHandle = id;
            let _lock = self.lock(OperationKey::Volume(id.clone()))?;
            changed(self.backend().delete_volume(call, id).await)?;
        }
        answer(v1::DeleteVolumeResponse {})
    }

    async fn controller_publish_volume(
        &self,
        request: Request<v1::ControllerPublishVolumeRequest>,
    ) -> Answer<v1::ControllerPublishVolumeResponse> {
        let (asked, call) = self.take("/csi.v1.Controller/ControllerPublishVolume", request);
        let rules = self.rules();
        rules.offers(Can::PublishUnpublishVolume)?;
        let id: Id<VolumeHandle> = rules.volume("volume_id", asked.volume_id)?;
        let node: Id<NodeId> = rules::node(asked.node_id)?;
        let capability = asked.volume_capability.ok_or_else(|| invalid("volume_capability is missing"))?;
        let capability = rules.capability(capability)?;
        if asked.readonly && !rules.can(Can::PublishReadonly) {
            return Err(invalid("readonly needs PUBLISH_READONLY, which the driver does not announce"));
        }
        rules::context(&asked.volume_context)?;
        let call = with(call, rules::secrets(asked.secrets)?);
        let request = PublishVolume {
            handle: id.existing("volume")?,
            node_id: node.existing("node")?,
            // CSI knows the node by its id alone.
            node_identities: Parameters::new(),
            capability,
            read_only: asked.readonly,
            context: connection_info::driver_attributes(asked.volume_context),
        };
        let _lock = self.lock(OperationKey::Volume(request.handle.clone()))?;
        let connection_info = changed(self.backend().publish_volume(call, request).await)?;
        let publish_context = connection_info::into_publish_context(connection_info);
        answer(v1::ControllerPublishVolumeResponse { publish_context })
    }

    async fn controller_unpublish_volume(
        &self,
        request: Request<v1::ControllerUnpublishVolumeRequest>,
    ) -> Answer<v1::ControllerUnpublishVolumeResponse> {
        let (asked, call) = self.take("/csi.v1.Controller/ControllerUnpublishVolume", request);
        self.rules().offers(Can::PublishUnpublishVolume)?;
        let id: Id<VolumeHandle> = self.rules().volume("volume_id", asked.volume_id)?;
        let node = Some(asked.node_id).filter(|node| !node.is_empty()).map(rules::node).transpose()?;
        let call = with(call, rules::secrets(asked.secrets)?);
        let node: Option<NodeId> = match node {
            None => None,
            Some(Id::Possible(node)) => Some(node),
            // Nothing is published to a node that cannot be.
            Some(Id::Impossible) => return answer(v1::ControllerUnpublishVolumeResponse {}),
        };
        if let Id::Possible(id) = id {
            let _lock = self.lock(OperationKey::Volume(id.clone()))?;
            changed(self.backend().unpublish_volume(call, id, node).await)?;
        }
        answer(v1::ControllerUnpublishVolumeResponse {})
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<v1::ValidateVolumeCapabilitiesRequest>,
    ) -> Answer<v1::ValidateVolumeCapabilitiesResponse> {
        let (asked, call) = self.take("/csi.v1.Controller/ValidateVolumeCapabilities", request);
        let rules = self.rules();
        let id: Id<VolumeHandle> = rules.volume("volume_id", asked.volume_id)?;
        if asked.volume_capabilities.is_empty() {
            return Err(invalid("volume_capabilities are missing; expected at least one"));
        }
        let questions = asked.volume_capabilities.iter().cloned();
        let capabilities = questions.map(|one| rules.question(one)).collect::<Result<Vec<_>, _>>()?;
        rules::context(&asked.volume_context)?;
        let request = ValidateVolume {
            handle: id.existing("volume")?,
            context: connection_info::driver_attributes(asked.volume_context.clone()),
            capabilities: capabilities.clone(),
            parameters: rules.parameters("parameters", asked.parameters.clone())?,
            mutable_parameters: rules.mutable(asked.mutable_parameters.clone())?,
        };
        let call = with(call, rules::secrets(asked.secrets)?);
        let found = read(self.backend().validate_volume(call, request).await)?;
        let lacking = capabilities.iter().find_map(|capability| rules.lacking(capability));
        let refusal = match (found, lacking) {
            (Validation::Refused(reason), _) => Some(reason),
            (Validation::Confirmed, Some(lacking)) => Some(format!("the driver has no {lacking}")),
            (Validation::Confirmed, None) => None,
        };
        let confirmed = refusal.is_none().then_some(v1::validate_volume_capabilities_response::Confirmed {
            volume_context: asked.volume_context,
            volume_capabilities: asked.volume_capabilities,
            parameters: asked.parameters,
            mutable_parameters: asked.mutable_parameters,
        });
        answer(v1::ValidateVolumeCapabilitiesResponse { confirmed, message: refusal.unwrap_or_default() })
    }

    async fn list_volumes(
        &self,
        request: Request<v1::ListVolumesRequest>,
    ) -> Answer<v1::ListVolumesResponse> {
        let (asked, call) = self.take("/csi.v1.Controller/ListVolumes", request);
        self.rules().offers(Can::ListVolumes)?;
        let page = rules::page(asked.max_entries, asked.starting_token)?;
        let found = read(self.backend().list_volumes(call, page).await)?;
        answer(answers::volume_page(found, self.rules()))
    }

    async fn controller_get_volume(
        &self,
        request: Request<v1::ControllerGetVolumeRequest>,
    ) -> Answer<v1::ControllerGetVolumeResponse> {
        let (asked, call) = self.take("/csi.v1.Controller/ControllerGetVolume", request);
        self.rules().offers(Can::GetVolume)?;
        let id: Id<VolumeHandle> = self.rules().volume("volume_id", asked.volume_id)?;
        let found = read(self.backend().get_volume(call, id.existing("volume")?).await)?;
        answer(answers::volume_status(found, self.rules()))
    }

    async fn controller_modify_volume(
        &self,
        request: Request<v1::ControllerModifyVolumeRequest>,
    ) -> Answer<v1::ControllerModifyVolumeResponse> {
        let (asked, call) = self.take("/csi.v1.Controller/ControllerModifyVolume", request);
        self.rules().offers(Can::ModifyVolume)?;
        let id: Id<VolumeHandle> = self.rules().volume("volume_id", asked.volume_id)?;
        let parameters = self.rules().mutable(asked.mutable_parameters)?;
        let call = with(call, rules::secrets(asked.secrets)?);
        let id = id.existing("volume")?;
        let _lock = self.lock(OperationKey::Volume(id.clone()))?;
        changed(self.backend().modify_volume(call, id, parameters).await)?;
        answer(v1::ControllerModifyVolumeResponse {})
    }

    async fn get_capacity(
        &self,
        request: Request<v1::GetCapacityRequest>,
    ) -> Answer<v1::GetCapacityResponse> {
        let (asked, call) = self.take("/csi.v1.Controller/GetCapacity", request);
        let rules = self.rules();
        rules.offers(Can::GetCapacity)?;
        let query = CapacityQuery {
            capabilities: rules.capabilities(asked.volume_capabilities)?,
            parameters: rules.parameters("parameters", asked.parameters)?,
            topology: rules.place(asked.accessible_topology)?,
        };
        answer(answers::capacity(read(self.backend().get_capacity(call, query).await)?))
    }

    async fn create_snapshot(
        &self,
        request: Request<v1::CreateSnapshotRequest>,
    ) -> Answer<v1::CreateSnapshotResponse> {
        let (asked, call) = self.take("/csi.v1.Controller/CreateSnapshot", request);
        self.rules().offers(Can::CreateDeleteSnapshot)?;
        let name = rules::name(asked.name)?;
        let source: Id<VolumeHandle> = self.rules().volume("source_volume_id", asked.source_volume_id)?;
        let parameters = self.rules().parameters("parameters", asked.parameters)?;
        let call = with(call, rules::secrets(asked.secrets)?);
        let source = source.existing("source volume")?;
        let request = CreateSnapshot { name: name.clone(), source, parameters, owner: None };
        let _lock = self.lock(OperationKey::SnapshotName(name.into()))?;
        let snapshot = changed(self.backend().create_snapshot(call, request).await)?;
        answer(v1::CreateSnapshotResponse { snapshot: Some(answers::snapshot(snapshot)) })
    }

    async fn delete_snapshot(
        &self,
        request: Request<v1::DeleteSnapshotRequest>,
    ) -> Answer<v1::DeleteSnapshotResponse> {
        let (asked, call) = self.take("/csi.v1.Controller/DeleteSnapshot", request);
        self.rules().offers(Can::CreateDeleteSnapshot)?;
        let id: Id<SnapshotHandle> = self.rules().id("snapshot_id", asked.snapshot_id)?;
        let call = with(call, rules::secrets(asked.secrets)?);
        if let Id::Possible(id) = id {
            let _lock = self.lock(OperationKey::Snapshot(id.clone()))?;
            changed(self.backend().delete_snapshot(call, id).await)?;
        }
        answer(v1::DeleteSnapshotResponse {})
    }

    async fn list_snapshots(
        &self,
        request: Request<v1::ListSnapshotsRequest>,
    ) -> Answer<v1::ListSnapshotsResponse> {
        let (asked, call) = self.take("/csi.v1.Controller/ListSnapshots", request);
        let rules = self.rules();
        rules.offers(Can::ListSnapshots)?;
        let page = rules::page(asked.max_entries, asked.starting_token)?;
        let filled = |text: String| Some(text).filter(|text| !text.is_empty());
        let one = filled(asked.snapshot_id).map(|id| rules.id("snapshot_id", id)).transpose()?;
        let of = filled(asked.source_volume_id).map(|id| rules.volume("source_volume_id", id)).transpose()?;
        let call = with(call, rules::secrets(asked.secrets)?);
        match (one, of) {
            // Of one snapshot there is no second part.
            (Some(_), _) if page.starting_token.is_some() => {
                Err(Status::aborted("starting_token is no place in the listing: begin anew"))
            }
            (Some(id), of) => answer(self.one_snapshot(call, id, of.as_ref()).await?),
            (None, Some(Id::Impossible)) => answer(v1::ListSnapshotsResponse::default()),
            (None, of) => {
                let of = of.and_then(|of| match of {
                    Id::Possible(id) => Some(id),
                    Id::Impossible => None,
                });
                answer(answers::snapshot_page(read(self.backend().list_snapshots(call, of, page).await)?))
            }
        }
    }

    async fn get_snapshot(
        &self,
        request: Request<v1::GetSnapshotRequest>,
    ) -> Answer<v1::GetSnapshotResponse> {
        let (asked, call) = self.take("/csi.v1.Controller/GetSnapshot", request);
        self.rules().offers(Can::GetSnapshot)?;
        let id: Id<SnapshotHandle> = self.rules().id("snapshot_id", asked.snapshot_id)?;
        let call = with(call, rules::secrets(asked.secrets)?);
        let found = read(self.backend().get_snapshot(call, id.existing("snapshot")?).await)?;
        answer(v1::GetSnapshotResponse { snapshot: Some(answers::snapshot(found)) })
    }

    async fn controller_expand_volume(
        &self,
        request: Request<v1::ControllerExpandVolumeRequest>,
    ) -> Answer<v1::ControllerExpandVolumeResponse> {
        let (asked, call) = self.take("/csi.v1.Controller/ControllerExpandVolume", request);
        let rules = self.rules();
        rules.offers(Can::ExpandVolume)?;
        let id: Id<VolumeHandle> = rules.volume("volume_id", asked.volume_id)?;
        let capacity = asked.capacity_range.ok_or_else(|| invalid("capacity_range is missing"))?;
        let capacity = rules::capacity(capacity)?;
        let capability = asked.volume_capability.map(|one| rules.capability(one)).transpose()?;
        let call = with(call, rules::secrets(asked.secrets)?);
        let request = ExpandVolume { handle: id.existing("volume")?, capacity, capability };
        let _lock = self.lock(OperationKey::Volume(request.handle.clone()))?;
        let expanded = changed(self.backend().expand_volume(call, request).await)?;
        answer(v1::ControllerExpandVolumeResponse {
            capacity_bytes: i64::try_from(expanded.capacity).unwrap_or(i64::MAX),
            node_expansion_required: expanded.node_expansion_required,
        })
    }
}
