//! The GroupController service.

use std::collections::BTreeSet;

use cofferdam_backend::in_flight::OperationKey;
use cofferdam_domain::{GroupSnapshotHandle, SnapshotHandle, VolumeHandle, storage::CreateGroupSnapshot};
use tonic::{Request, Response, Status};

use super::{
    BackendServer, answers,
    outcome::{changed, read},
    rules::{self, Id, invalid},
    with,
};
use crate::v1::{self, group_controller_server::GroupController};

impl BackendServer {
    /// The members that a caller names. One that cannot exist is none of any group.
    fn members(&self, ids: Vec<String>) -> Result<Id<BTreeSet<SnapshotHandle>>, Status> {
        let mut members = BTreeSet::new();
        for id in ids {
            match self.rules().id("snapshot_ids", id)? {
                Id::Possible(id) => members.insert(id),
                Id::Impossible => return Ok(Id::Impossible),
            };
        }
        Ok(Id::Possible(members))
    }
}

const STRANGER: &str = "snapshot_ids has a snapshot that is not of the group";

#[tonic::async_trait]
impl GroupController for BackendServer {
    async fn group_controller_get_capabilities(
        &self,
        _: Request<v1::GroupControllerGetCapabilitiesRequest>,
    ) -> Result<Response<v1::GroupControllerGetCapabilitiesResponse>, Status> {
        use v1::group_controller_service_capability::{Rpc, Type, rpc};
        // The service is there only when the backend has all of it.
        let rpc = Rpc { r#type: rpc::Type::CreateDeleteGetVolumeGroupSnapshot.into() };
        let capability = v1::GroupControllerServiceCapability { r#type: Some(Type::Rpc(rpc)) };
        Ok(Response::new(v1::GroupControllerGetCapabilitiesResponse { capabilities: vec![capability] }))
    }

    async fn create_volume_group_snapshot(
        &self,
        request: Request<v1::CreateVolumeGroupSnapshotRequest>,
    ) -> Result<Response<v1::CreateVolumeGroupSnapshotResponse>, Status> {
        let (asked, call) = self.take("/csi.v1.GroupController/CreateVolumeGroupSnapshot", request);
        let name = rules::name(asked.name)?;
        if asked.source_volume_ids.is_empty() {
            return Err(invalid("source_volume_ids are missing; expected at least one"));
        }
        let ids = asked.source_volume_ids.into_iter().map(|id| self.rules().volume("source_volume_ids", id));
        let ids = ids.collect::<Result<Vec<Id<VolumeHandle>>, _>>()?;
        let parameters = self.rules().parameters("parameters", asked.parameters)?;
        let call = with(call, rules::secrets(asked.secrets)?);
        let sources = ids.into_iter().map(|id| id.existing("source volume")).collect::<Result<_, _>>()?;
        let request = CreateGroupSnapshot { name: name.clone(), sources, parameters, owner: None };
        let _lock = self.lock(OperationKey::GroupSnapshotName(name.into()))?;
        let group = changed(self.backend().create_group_snapshot(call, request).await)?;
        let group_snapshot = Some(answers::group(group));
        Ok(Response::new(v1::CreateVolumeGroupSnapshotResponse { group_snapshot }))
    }

    async fn delete_volume_group_snapshot(
        &self,
        request: Request<v1::DeleteVolumeGroupSnapshotRequest>,
    ) -> Result<Response<v1::DeleteVolumeGroupSnapshotResponse>, Status> {
        let (asked, call) = self.take("/csi.v1.GroupController/DeleteVolumeGroupSnapshot", request);
        let id: Id<GroupSnapshotHandle> = self.rules().id("group_snapshot_id", asked.group_snapshot_id)?;
        let members = self.members(asked.snapshot_ids)?;
        let call = with(call, rules::secrets(asked.secrets)?);
        if let Id::Possible(id) = id {
            let Id::Possible(members) = members else { return Err(invalid(STRANGER)) };
            let _lock = self.lock(OperationKey::GroupSnapshot(id.clone()))?;
            changed(self.backend().delete_group_snapshot(call, id, members).await)?;
        }
        Ok(Response::new(v1::DeleteVolumeGroupSnapshotResponse {}))
    }

    async fn get_volume_group_snapshot(
        &self,
        request: Request<v1::GetVolumeGroupSnapshotRequest>,
    ) -> Result<Response<v1::GetVolumeGroupSnapshotResponse>, Status> {
        let (asked, call) = self.take("/csi.v1.GroupController/GetVolumeGroupSnapshot", request);
        let id: Id<GroupSnapshotHandle> = self.rules().id("group_snapshot_id", asked.group_snapshot_id)?;
        let members = self.members(asked.snapshot_ids)?;
        let call = with(call, rules::secrets(asked.secrets)?);
        let id = id.existing("group snapshot")?;
        let Id::Possible(members) = members else { return Err(invalid(STRANGER)) };
        let group = read(self.backend().get_group_snapshot(call, id, members).await)?;
        Ok(Response::new(v1::GetVolumeGroupSnapshotResponse { group_snapshot: Some(answers::group(group)) }))
    }
}
