//! The GroupController service.

use std::collections::BTreeSet;

use cofferdam_backend::in_flight::OperationKey;
use cofferdam_domain::{GroupSnapshotHandle, SnapshotHandle, VolumeHandle, storage::CreateGroupSnapshot};
use tonic::{Request, Response, Status};

use super::{
    BackendServer,
    grpc_status::{read_result, write_result},
    responses,
    validation::{self, CheckedId, invalid_argument},
    with_secrets,
};
use crate::v1::{self, group_controller_server::GroupController};

impl BackendServer {
    /// Validates the snapshot ids of a group. An id that cannot exist makes the result
    /// [`CheckedId::NonExistent`].
    fn member_ids(&self, ids: Vec<String>) -> Result<CheckedId<BTreeSet<SnapshotHandle>>, Status> {
        let mut members = BTreeSet::new();
        for id in ids {
            match self.validator().object_id("snapshot_ids", id)? {
                CheckedId::Valid(id) => members.insert(id),
                CheckedId::NonExistent => return Ok(CheckedId::NonExistent),
            };
        }
        Ok(CheckedId::Valid(members))
    }
}

const FOREIGN_MEMBER: &str = "snapshot_ids has a snapshot that is not in the group";

#[tonic::async_trait]
impl GroupController for BackendServer {
    async fn group_controller_get_capabilities(
        &self,
        _: Request<v1::GroupControllerGetCapabilitiesRequest>,
    ) -> Result<Response<v1::GroupControllerGetCapabilitiesResponse>, Status> {
        use v1::group_controller_service_capability::{Rpc, Type, rpc};
        // The service is only registered if the backend supports all of it.
        let rpc = Rpc { r#type: rpc::Type::CreateDeleteGetVolumeGroupSnapshot.into() };
        let capability = v1::GroupControllerServiceCapability { r#type: Some(Type::Rpc(rpc)) };
        Ok(Response::new(v1::GroupControllerGetCapabilitiesResponse { capabilities: vec![capability] }))
    }

    async fn create_volume_group_snapshot(
        &self,
        request: Request<v1::CreateVolumeGroupSnapshotRequest>,
    ) -> Result<Response<v1::CreateVolumeGroupSnapshotResponse>, Status> {
        let (message, call) = self.receive("/csi.v1.GroupController/CreateVolumeGroupSnapshot", request);
        let name = validation::check_name(message.name)?;
        if message.source_volume_ids.is_empty() {
            return Err(invalid_argument("source_volume_ids are missing; expected at least one"));
        }
        let ids = message
            .source_volume_ids
            .into_iter()
            .map(|id| self.validator().volume_id("source_volume_ids", id));
        let ids = ids.collect::<Result<Vec<CheckedId<VolumeHandle>>, _>>()?;
        let parameters = self.validator().parameters("parameters", message.parameters)?;
        let call = with_secrets(call, validation::secrets(message.secrets)?);
        let sources = ids.into_iter().map(|id| id.or_not_found("source volume")).collect::<Result<_, _>>()?;
        let request = CreateGroupSnapshot { name: name.clone(), sources, parameters, owner: None };
        let _lock = self.lock(OperationKey::GroupSnapshotName(name.into()))?;
        let group = write_result(self.backend().create_group_snapshot(call, request).await)?;
        let group_snapshot = Some(responses::group_snapshot(group));
        Ok(Response::new(v1::CreateVolumeGroupSnapshotResponse { group_snapshot }))
    }

    async fn delete_volume_group_snapshot(
        &self,
        request: Request<v1::DeleteVolumeGroupSnapshotRequest>,
    ) -> Result<Response<v1::DeleteVolumeGroupSnapshotResponse>, Status> {
        let (message, call) = self.receive("/csi.v1.GroupController/DeleteVolumeGroupSnapshot", request);
        let id: CheckedId<GroupSnapshotHandle> =
            self.validator().object_id("group_snapshot_id", message.group_snapshot_id)?;
        let members = self.member_ids(message.snapshot_ids)?;
        let call = with_secrets(call, validation::secrets(message.secrets)?);
        if let CheckedId::Valid(id) = id {
            let CheckedId::Valid(members) = members else { return Err(invalid_argument(FOREIGN_MEMBER)) };
            let _lock = self.lock(OperationKey::GroupSnapshot(id.clone()))?;
            write_result(self.backend().delete_group_snapshot(call, id, members).await)?;
        }
        Ok(Response::new(v1::DeleteVolumeGroupSnapshotResponse {}))
    }

    async fn get_volume_group_snapshot(
        &self,
        request: Request<v1::GetVolumeGroupSnapshotRequest>,
    ) -> Result<Response<v1::GetVolumeGroupSnapshotResponse>, Status> {
        let (message, call) = self.receive("/csi.v1.GroupController/GetVolumeGroupSnapshot", request);
        let id: CheckedId<GroupSnapshotHandle> =
            self.validator().object_id("group_snapshot_id", message.group_snapshot_id)?;
        let members = self.member_ids(message.snapshot_ids)?;
        let call = with_secrets(call, validation::secrets(message.secrets)?);
        let id = id.or_not_found("group snapshot")?;
        let CheckedId::Valid(members) = members else { return Err(invalid_argument(FOREIGN_MEMBER)) };
        let group = read_result(self.backend().get_group_snapshot(call, id, members).await)?;
        Ok(Response::new(v1::GetVolumeGroupSnapshotResponse {
            group_snapshot: Some(responses::group_snapshot(group)),
        }))
    }
}
