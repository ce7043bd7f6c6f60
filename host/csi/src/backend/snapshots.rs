//! Snapshots and group snapshots.

use std::collections::BTreeSet;

use cofferdam_backend::{Backend as _, BackendFuture, Call, CallSpec, Redactor, checks};
use cofferdam_domain::{
    GroupSnapshotHandle, SnapshotHandle, VolumeHandle,
    storage::{
        Ability, CreateGroupSnapshot, CreateSnapshot, ErrorKind, GroupSnapshot, PageRequest, Snapshot,
        SnapshotPage, StorageError, ability::ControllerCapability,
    },
};
use futures::future::BoxFuture;

use super::{
    CsiBackend, CsiRequest,
    methods::{as_unknown, failed_call, handle_text},
};
use crate::{grpc::GrpcConnection, request, response, v1};

const GROUP_SNAPSHOT_CAPABILITY: &str = "CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT";

fn list_snapshots(
    grpc: GrpcConnection,
    request: tonic::Request<v1::ListSnapshotsRequest>,
) -> BoxFuture<'static, Result<tonic::Response<v1::ListSnapshotsResponse>, tonic::Status>> {
    Box::pin(async { grpc.controller().list_snapshots(request).await })
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
        if let Some(error) = self.missing_create_capability(ControllerCapability::CreateDeleteSnapshot) {
            return failed_call(error);
        }
        let source = request.source.clone();
        let warnings = self.response_warnings();
        let convert = move |found: v1::CreateSnapshotResponse, redactor: &Redactor| {
            let mut snapshot = response::snapshot(found.snapshot)?;
            warnings.check_id("snapshot handle", snapshot.handle.as_str(), redactor);
            warnings.warn_of_other_id("source", snapshot.source.as_str(), source.as_str(), redactor);
            snapshot.source = source;
            Ok(snapshot)
        };
        let spec = CallSpec::create_snapshot(&request, convert);
        let message = v1::CreateSnapshotRequest {
            source_volume_id: handle_text(&request.source),
            name: request.name,
            secrets: self.secrets(&call),
            parameters: request.parameters,
        };
        let request = CsiRequest::new(message, |grpc, request| {
            Box::pin(async { grpc.controller().create_snapshot(request).await })
        });
        self.boxed_call(call, spec, request.with_resource_exhausted_in_doubt())
    }

    pub(super) fn call_delete_snapshot(&self, call: Call, handle: SnapshotHandle) -> BackendFuture<'_, ()> {
        if let Some(error) = self.missing_capability(ControllerCapability::CreateDeleteSnapshot) {
            return failed_call(error);
        }
        let message =
            v1::DeleteSnapshotRequest { snapshot_id: handle_text(&handle), secrets: self.secrets(&call) };
        let spec = CallSpec::delete_snapshot(&handle);
        let request = CsiRequest::new(message, |grpc, request| {
            Box::pin(async { grpc.controller().delete_snapshot(request).await })
        });
        self.boxed_call(call, spec, request.with_resource_exhausted_in_doubt())
    }

    pub(super) fn call_get_snapshot(
        &self,
        call: Call,
        handle: SnapshotHandle,
    ) -> BackendFuture<'_, Snapshot> {
        if self.missing_capability(ControllerCapability::GetSnapshot).is_some() {
            // The driver predates GetSnapshot: list the one snapshot.
            return match self.missing_capability(ControllerCapability::ListSnapshots) {
                None => Box::pin(self.get_snapshot_by_listing(call, handle)),
                Some(_) => failed_call(self.unimplemented("GET_SNAPSHOT, nor LIST_SNAPSHOTS")),
            };
        }
        let message =
            v1::GetSnapshotRequest { snapshot_id: handle_text(&handle), secrets: self.secrets(&call) };
        let convert = move |found: v1::GetSnapshotResponse, _: &Redactor| {
            let snapshot = response::snapshot(found.snapshot)?;
            checks::check_same_handle("snapshot", &handle, &snapshot.handle).map(|()| snapshot)
        };
        let spec = CallSpec::get_snapshot(convert);
        let request = CsiRequest::new(message, |grpc, request| {
            Box::pin(async { grpc.controller().get_snapshot(request).await })
        });
        self.boxed_call(call, spec, request)
    }

    /// Reads one snapshot of a driver with LIST_SNAPSHOTS and without GET_SNAPSHOT.
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
        let (requested, warnings) = (handle.clone(), self.response_warnings());
        let convert = move |found: v1::ListSnapshotsResponse, redactor: &Redactor| {
            let mut snapshots = response::snapshot_page(found, &PageRequest::default(), None)?.snapshots;
            if let [snapshot] = snapshots.as_mut_slice() {
                warnings.warn_of_other_id("handle", snapshot.handle.as_str(), requested.as_str(), redactor);
                snapshot.handle = requested;
                return Ok(snapshots.pop());
            }
            // A driver that ignores the filter lists all of its snapshots.
            Ok(snapshots.into_iter().find(|snapshot| snapshot.handle == requested))
        };
        let spec = CallSpec::list_snapshots(convert);
        let found = self.call(call, spec, CsiRequest::new(message, list_snapshots)).await?;
        found.ok_or_else(|| {
            StorageError::with_known_effect(
                ErrorKind::NotFound,
                format!("the driver lists no snapshot {handle}"),
            )
        })
    }

    pub(super) fn call_list_snapshots(
        &self,
        call: Call,
        source: Option<VolumeHandle>,
        page: PageRequest,
    ) -> BackendFuture<'_, SnapshotPage> {
        if let Some(error) = self.missing_capability(ControllerCapability::ListSnapshots) {
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
        let spec =
            CallSpec::list_snapshots(move |found, _| response::snapshot_page(found, &page, source.as_ref()));
        self.boxed_call(call, spec, CsiRequest::new(message, list_snapshots))
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
        let warnings = self.response_warnings();
        let convert = move |found: v1::CreateVolumeGroupSnapshotResponse, redactor: &Redactor| {
            let group = response::group_snapshot(found.group_snapshot)?;
            warnings.check_id("group snapshot handle", group.handle.as_str(), redactor);
            group
                .snapshots
                .iter()
                .for_each(|member| warnings.check_id("snapshot handle", member.handle.as_str(), redactor));
            checks::check_group_members(&group, &sources).map(|()| group)
        };
        let spec = CallSpec::create_group_snapshot(&request, convert);
        let message = v1::CreateVolumeGroupSnapshotRequest {
            name: request.name,
            source_volume_ids: request.sources.iter().map(handle_text).collect(),
            secrets: self.secrets(&call),
            parameters: request.parameters,
        };
        let request = CsiRequest::new(message, |grpc, request| {
            Box::pin(async { grpc.group_controller().create_volume_group_snapshot(request).await })
        });
        self.boxed_call(call, spec, request.with_resource_exhausted_in_doubt())
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
        let spec = CallSpec::delete_group_snapshot(&handle, &snapshots);
        let message = v1::DeleteVolumeGroupSnapshotRequest {
            group_snapshot_id: handle_text(&handle),
            snapshot_ids: handle_texts(snapshots),
            secrets: self.secrets(&call),
        };
        let request = CsiRequest::new(message, |grpc, request| {
            Box::pin(async { grpc.group_controller().delete_volume_group_snapshot(request).await })
        });
        self.boxed_call(call, spec, request.with_resource_exhausted_in_doubt())
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
        let convert = move |found: v1::GetVolumeGroupSnapshotResponse, _: &Redactor| {
            let group = response::group_snapshot(found.group_snapshot)?;
            checks::check_same_handle("group snapshot", &handle, &group.handle).map(|()| group)
        };
        let spec = CallSpec::get_group_snapshot(convert);
        let request = CsiRequest::new(message, |grpc, request| {
            Box::pin(async { grpc.group_controller().get_volume_group_snapshot(request).await })
        });
        self.boxed_call(call, spec, request)
    }
}
