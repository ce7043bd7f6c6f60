//! Snapshots and groups of them.

use std::collections::BTreeSet;

use cofferdam_backend::{
    Backend as _, BackendFuture, Call,
    in_flight::{OperationKey, OperationPermit, OperationRequest},
};
use cofferdam_domain::{
    GroupSnapshotHandle, SnapshotHandle, VolumeHandle,
    storage::{
        Ability, CreateGroupSnapshot, CreateSnapshot, ErrorKind, GroupSnapshot, PageRequest, Snapshot,
        SnapshotPage, StorageError, ability::ControllerCapability as Can,
    },
};
use futures::future::BoxFuture;

use super::{
    CsiBackend, CsiCallSpec, ResourceExhaustedMeaning,
    methods::{as_unknown, check_same_handle, failed_call, handle_text},
};
use crate::{grpc::GrpcConnection, request, response, v1};

const GROUP_SNAPSHOT_CAPABILITY: &str = "CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT";
const LIST_SNAPSHOTS_METHOD: &str = "/csi.v1.Controller/ListSnapshots";

fn list_snapshots(
    wire: GrpcConnection,
    request: tonic::Request<v1::ListSnapshotsRequest>,
) -> BoxFuture<'static, Result<tonic::Response<v1::ListSnapshotsResponse>, tonic::Status>> {
    Box::pin(async { wire.controller().list_snapshots(request).await })
}

fn handle_texts(handles: BTreeSet<SnapshotHandle>) -> Vec<String> {
    handles.iter().map(ToString::to_string).collect()
}

impl CsiBackend {
    pub(super) fn call_create_snapshot(
        &self,
        call: Call,
        request: CreateSnapshot,
    ) -> BackendFuture<'_, Snapshot> {
        if let Some(error) = self.missing_create_capability(Can::CreateDeleteSnapshot) {
            return failed_call(error);
        }
        let key = OperationKey::SnapshotName(request.name.as_str().into());
        let source = request.source.clone();
        let operation = OperationRequest::new(key, "create-snapshot", &request)
            .with_sources([OperationKey::Volume(source.clone())]);
        let message = v1::CreateSnapshotRequest {
            source_volume_id: handle_text(&request.source),
            name: request.name,
            secrets: self.secrets(&call),
            parameters: request.parameters,
        };
        let warnings = self.response_warnings(&call);
        let convert = move |found: v1::CreateSnapshotResponse| {
            let snapshot = response::snapshot(found.snapshot)?;
            warnings.check_id("snapshot handle", snapshot.handle.as_str());
            check_same_handle("source", &source, &snapshot.source).map(|()| snapshot)
        };
        let spec = CsiCallSpec::new(
            "/csi.v1.Controller/CreateSnapshot",
            Some(operation),
            message,
            |wire, request| Box::pin(async { wire.controller().create_snapshot(request).await }),
            convert,
        );
        let on_success: fn(&OperationPermit, &Snapshot) =
            |guard, snapshot| guard.add_alias(OperationKey::Snapshot(snapshot.handle.clone()));
        self.boxed_call(
            call,
            CsiCallSpec { resource_exhausted: ResourceExhaustedMeaning::InDoubt, on_success, ..spec },
        )
    }

    pub(super) fn call_delete_snapshot(&self, call: Call, handle: SnapshotHandle) -> BackendFuture<'_, ()> {
        if let Some(error) = self.missing_capability(Can::CreateDeleteSnapshot) {
            return failed_call(error);
        }
        let message =
            v1::DeleteSnapshotRequest { snapshot_id: handle_text(&handle), secrets: self.secrets(&call) };
        let spec = CsiCallSpec::new(
            "/csi.v1.Controller/DeleteSnapshot",
            Some(OperationRequest::deletion(OperationKey::Snapshot(handle), "delete-snapshot", &())),
            message,
            |wire, request| Box::pin(async { wire.controller().delete_snapshot(request).await }),
            |v1::DeleteSnapshotResponse {}| Ok(()),
        );
        let on_success: fn(&OperationPermit, &()) = |guard, ()| guard.remove_alias();
        self.boxed_call(
            call,
            CsiCallSpec { resource_exhausted: ResourceExhaustedMeaning::InDoubt, on_success, ..spec },
        )
    }

    pub(super) fn call_get_snapshot(
        &self,
        call: Call,
        handle: SnapshotHandle,
    ) -> BackendFuture<'_, Snapshot> {
        if self.missing_capability(Can::GetSnapshot).is_some() {
            // Older than GetSnapshot: the listing of one does.
            return match self.missing_capability(Can::ListSnapshots) {
                None => Box::pin(self.get_snapshot_by_listing(call, handle)),
                Some(_) => failed_call(self.unimplemented("GET_SNAPSHOT, nor LIST_SNAPSHOTS")),
            };
        }
        let message =
            v1::GetSnapshotRequest { snapshot_id: handle_text(&handle), secrets: self.secrets(&call) };
        let convert = move |found: v1::GetSnapshotResponse| {
            let snapshot = response::snapshot(found.snapshot)?;
            check_same_handle("snapshot", &handle, &snapshot.handle).map(|()| snapshot)
        };
        let spec = CsiCallSpec::new(
            "/csi.v1.Controller/GetSnapshot",
            None,
            message,
            |wire, request| Box::pin(async { wire.controller().get_snapshot(request).await }),
            convert,
        );
        self.boxed_call(call, spec)
    }

    /// One snapshot of a driver that can list them and cannot describe one.
    async fn get_snapshot_by_listing(
        &self,
        call: Call,
        handle: SnapshotHandle,
    ) -> Result<Snapshot, StorageError> {
        let message = v1::ListSnapshotsRequest {
            snapshot_id: handle_text(&handle),
            secrets: self.secrets(&call),
            ..v1::ListSnapshotsRequest::default()
        };
        let requested = handle.clone();
        let convert = move |found: v1::ListSnapshotsResponse| {
            let page = response::snapshot_page(found, &PageRequest::default())?;
            let Some(snapshot) = page.snapshots.into_iter().next() else { return Ok(None) };
            check_same_handle("snapshot", &requested, &snapshot.handle).map(|()| Some(snapshot))
        };
        let found = self
            .call(call, CsiCallSpec::new(LIST_SNAPSHOTS_METHOD, None, message, list_snapshots, convert))
            .await?;
        found.ok_or_else(|| {
            StorageError::final_outcome(ErrorKind::NotFound, format!("the driver lists no snapshot {handle}"))
        })
    }

    pub(super) fn call_list_snapshots(
        &self,
        call: Call,
        source: Option<VolumeHandle>,
        page: PageRequest,
    ) -> BackendFuture<'_, SnapshotPage> {
        if let Some(error) = self.missing_capability(Can::ListSnapshots) {
            return failed_call(error);
        }
        let (max_entries, starting_token) = request::page_request(&page);
        let message = v1::ListSnapshotsRequest {
            max_entries,
            starting_token,
            source_volume_id: source.as_ref().map(handle_text).unwrap_or_default(),
            secrets: self.secrets(&call),
            snapshot_id: String::new(),
        };
        let convert = move |found| {
            let page = response::snapshot_page(found, &page)?;
            let foreign_snapshot =
                |source: &VolumeHandle| page.snapshots.iter().find(|snapshot| snapshot.source != *source);
            match source.as_ref().and_then(foreign_snapshot) {
                Some(foreign) => Err(format!("it lists {:?}, which is another volume's", foreign.handle)),
                None => Ok(page),
            }
        };
        self.boxed_call(call, CsiCallSpec::new(LIST_SNAPSHOTS_METHOD, None, message, list_snapshots, convert))
    }

    pub(super) fn call_create_group_snapshot(
        &self,
        call: Call,
        request: CreateGroupSnapshot,
    ) -> BackendFuture<'_, GroupSnapshot> {
        if !self.abilities().contains(&Ability::GroupSnapshots) {
            return failed_call(as_unknown(self.unimplemented(GROUP_SNAPSHOT_CAPABILITY)));
        }
        let sources = request.sources.clone();
        let operation = OperationRequest::new(
            OperationKey::GroupSnapshotName(request.name.as_str().into()),
            "create-group-snapshot",
            &request,
        )
        .with_sources(sources.iter().cloned().map(OperationKey::Volume));
        let message = v1::CreateVolumeGroupSnapshotRequest {
            name: request.name,
            source_volume_ids: request.sources.iter().map(handle_text).collect(),
            secrets: self.secrets(&call),
            parameters: request.parameters,
        };
        let warnings = self.response_warnings(&call);
        let convert = move |found: v1::CreateVolumeGroupSnapshotResponse| {
            let group = response::group_snapshot(found.group_snapshot)?;
            warnings.check_id("group snapshot handle", group.handle.as_str());
            group
                .snapshots
                .iter()
                .for_each(|member| warnings.check_id("snapshot handle", member.handle.as_str()));
            let member_sources: BTreeSet<_> = group.snapshots.iter().map(|member| &member.source).collect();
            if member_sources == sources.iter().collect() && group.snapshots.len() == sources.len() {
                Ok(group)
            } else {
                Err("the group's members are not one snapshot of each volume that was asked for".to_owned())
            }
        };
        let spec = CsiCallSpec::new(
            "/csi.v1.GroupController/CreateVolumeGroupSnapshot",
            Some(operation),
            message,
            |wire, request| {
                Box::pin(async { wire.group_controller().create_volume_group_snapshot(request).await })
            },
            convert,
        );
        let on_success: fn(&OperationPermit, &GroupSnapshot) =
            |guard, group| guard.add_alias(OperationKey::GroupSnapshot(group.handle.clone()));
        self.boxed_call(
            call,
            CsiCallSpec { resource_exhausted: ResourceExhaustedMeaning::InDoubt, on_success, ..spec },
        )
    }

    pub(super) fn call_delete_group_snapshot(
        &self,
        call: Call,
        handle: GroupSnapshotHandle,
        snapshots: BTreeSet<SnapshotHandle>,
    ) -> BackendFuture<'_, ()> {
        if !self.abilities().contains(&Ability::GroupSnapshots) {
            return failed_call(self.unimplemented(GROUP_SNAPSHOT_CAPABILITY));
        }
        let operation = OperationRequest::deletion(
            OperationKey::GroupSnapshot(handle.clone()),
            "delete-group-snapshot",
            &snapshots,
        );
        let message = v1::DeleteVolumeGroupSnapshotRequest {
            group_snapshot_id: handle_text(&handle),
            snapshot_ids: handle_texts(snapshots),
            secrets: self.secrets(&call),
        };
        let spec = CsiCallSpec::new(
            "/csi.v1.GroupController/DeleteVolumeGroupSnapshot",
            Some(operation),
            message,
            |wire, request| {
                Box::pin(async { wire.group_controller().delete_volume_group_snapshot(request).await })
            },
            |v1::DeleteVolumeGroupSnapshotResponse {}| Ok(()),
        );
        let on_success: fn(&OperationPermit, &()) = |guard, ()| guard.remove_alias();
        self.boxed_call(
            call,
            CsiCallSpec { resource_exhausted: ResourceExhaustedMeaning::InDoubt, on_success, ..spec },
        )
    }

    pub(super) fn call_get_group_snapshot(
        &self,
        call: Call,
        handle: GroupSnapshotHandle,
        snapshots: BTreeSet<SnapshotHandle>,
    ) -> BackendFuture<'_, GroupSnapshot> {
        if !self.abilities().contains(&Ability::GroupSnapshots) {
            return failed_call(self.unimplemented(GROUP_SNAPSHOT_CAPABILITY));
        }
        let message = v1::GetVolumeGroupSnapshotRequest {
            group_snapshot_id: handle_text(&handle),
            snapshot_ids: handle_texts(snapshots),
            secrets: self.secrets(&call),
        };
        let convert = move |found: v1::GetVolumeGroupSnapshotResponse| {
            let group = response::group_snapshot(found.group_snapshot)?;
            check_same_handle("group snapshot", &handle, &group.handle).map(|()| group)
        };
        let spec = CsiCallSpec::new(
            "/csi.v1.GroupController/GetVolumeGroupSnapshot",
            None,
            message,
            |wire, request| {
                Box::pin(async { wire.group_controller().get_volume_group_snapshot(request).await })
            },
            convert,
        );
        self.boxed_call(call, spec)
    }
}
