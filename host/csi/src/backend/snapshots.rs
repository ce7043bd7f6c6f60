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
    CsiBackend, Exhausted, Job,
    methods::{failed, open, same, text},
};
use crate::{answer, request, v1, wire::Wire};

const GROUPS: &str = "CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT";
const LIST_SNAPSHOTS: &str = "/csi.v1.Controller/ListSnapshots";

fn list_snapshots(
    wire: Wire,
    request: tonic::Request<v1::ListSnapshotsRequest>,
) -> BoxFuture<'static, Result<tonic::Response<v1::ListSnapshotsResponse>, tonic::Status>> {
    Box::pin(async { wire.controller().list_snapshots(request).await })
}

fn texts(handles: BTreeSet<SnapshotHandle>) -> Vec<String> {
    handles.iter().map(ToString::to_string).collect()
}

impl CsiBackend {
    pub(super) fn cut_snapshot(&self, call: Call, request: CreateSnapshot) -> BackendFuture<'_, Snapshot> {
        if let Some(error) = self.lacks_to_create(Can::CreateDeleteSnapshot) {
            return failed(error);
        }
        let subject = OperationKey::SnapshotName(request.name.as_str().into());
        let source = request.source.clone();
        let intent = OperationRequest::new(subject, "create-snapshot", &request)
            .with_sources([OperationKey::Volume(source.clone())]);
        let message = v1::CreateSnapshotRequest {
            source_volume_id: text(&request.source),
            name: request.name,
            secrets: self.secrets(&call),
            parameters: request.parameters,
        };
        let watch = self.watch(&call);
        let accept = move |found: v1::CreateSnapshotResponse| {
            let snapshot = answer::snapshot(found.snapshot)?;
            watch.id("snapshot handle", snapshot.handle.as_str());
            same("source", &source, &snapshot.source).map(|()| snapshot)
        };
        let job = Job::new(
            "/csi.v1.Controller/CreateSnapshot",
            Some(intent),
            message,
            |wire, request| Box::pin(async { wire.controller().create_snapshot(request).await }),
            accept,
        );
        let remember: fn(&OperationPermit, &Snapshot) =
            |guard, snapshot| guard.add_alias(OperationKey::Snapshot(snapshot.handle.clone()));
        self.answer(call, Job { exhausted: Exhausted::Open, remember, ..job })
    }

    pub(super) fn drop_snapshot(&self, call: Call, handle: SnapshotHandle) -> BackendFuture<'_, ()> {
        if let Some(error) = self.lacks(Can::CreateDeleteSnapshot) {
            return failed(error);
        }
        let message = v1::DeleteSnapshotRequest { snapshot_id: text(&handle), secrets: self.secrets(&call) };
        let job = Job::new(
            "/csi.v1.Controller/DeleteSnapshot",
            Some(OperationRequest::deletion(OperationKey::Snapshot(handle), "delete-snapshot", &())),
            message,
            |wire, request| Box::pin(async { wire.controller().delete_snapshot(request).await }),
            |v1::DeleteSnapshotResponse {}| Ok(()),
        );
        let remember: fn(&OperationPermit, &()) = |guard, ()| guard.remove_alias();
        self.answer(call, Job { exhausted: Exhausted::Open, remember, ..job })
    }

    pub(super) fn describe_snapshot(
        &self,
        call: Call,
        handle: SnapshotHandle,
    ) -> BackendFuture<'_, Snapshot> {
        if self.lacks(Can::GetSnapshot).is_some() {
            // Older than GetSnapshot: the listing of one does.
            return match self.lacks(Can::ListSnapshots) {
                None => Box::pin(self.find_snapshot(call, handle)),
                Some(_) => failed(self.unable("GET_SNAPSHOT, nor LIST_SNAPSHOTS")),
            };
        }
        let message = v1::GetSnapshotRequest { snapshot_id: text(&handle), secrets: self.secrets(&call) };
        let accept = move |found: v1::GetSnapshotResponse| {
            let snapshot = answer::snapshot(found.snapshot)?;
            same("snapshot", &handle, &snapshot.handle).map(|()| snapshot)
        };
        let job = Job::new(
            "/csi.v1.Controller/GetSnapshot",
            None,
            message,
            |wire, request| Box::pin(async { wire.controller().get_snapshot(request).await }),
            accept,
        );
        self.answer(call, job)
    }

    /// One snapshot of a driver that can list them and cannot describe one.
    async fn find_snapshot(&self, call: Call, handle: SnapshotHandle) -> Result<Snapshot, StorageError> {
        let message = v1::ListSnapshotsRequest {
            snapshot_id: text(&handle),
            secrets: self.secrets(&call),
            ..v1::ListSnapshotsRequest::default()
        };
        let asked = handle.clone();
        let accept = move |found: v1::ListSnapshotsResponse| {
            let page = answer::snapshot_page(found, &PageRequest::default())?;
            let Some(snapshot) = page.snapshots.into_iter().next() else { return Ok(None) };
            same("snapshot", &asked, &snapshot.handle).map(|()| Some(snapshot))
        };
        let found =
            self.perform(call, Job::new(LIST_SNAPSHOTS, None, message, list_snapshots, accept)).await?;
        found.ok_or_else(|| {
            StorageError::final_outcome(ErrorKind::NotFound, format!("the driver lists no snapshot {handle}"))
        })
    }

    pub(super) fn page_of_snapshots(
        &self,
        call: Call,
        source: Option<VolumeHandle>,
        page: PageRequest,
    ) -> BackendFuture<'_, SnapshotPage> {
        if let Some(error) = self.lacks(Can::ListSnapshots) {
            return failed(error);
        }
        let (max_entries, starting_token) = request::page(&page);
        let message = v1::ListSnapshotsRequest {
            max_entries,
            starting_token,
            source_volume_id: source.as_ref().map(text).unwrap_or_default(),
            secrets: self.secrets(&call),
            snapshot_id: String::new(),
        };
        let accept = move |found| {
            let page = answer::snapshot_page(found, &page)?;
            let stranger = |source: &VolumeHandle| page.snapshots.iter().find(|one| one.source != *source);
            match source.as_ref().and_then(stranger) {
                Some(other) => Err(format!("it lists {:?}, which is another volume's", other.handle)),
                None => Ok(page),
            }
        };
        self.answer(call, Job::new(LIST_SNAPSHOTS, None, message, list_snapshots, accept))
    }

    pub(super) fn cut_group(
        &self,
        call: Call,
        request: CreateGroupSnapshot,
    ) -> BackendFuture<'_, GroupSnapshot> {
        if !self.abilities().contains(&Ability::GroupSnapshots) {
            return failed(open(self.unable(GROUPS)));
        }
        let sources = request.sources.clone();
        let intent = OperationRequest::new(
            OperationKey::GroupSnapshotName(request.name.as_str().into()),
            "create-group-snapshot",
            &request,
        )
        .with_sources(sources.iter().cloned().map(OperationKey::Volume));
        let message = v1::CreateVolumeGroupSnapshotRequest {
            name: request.name,
            source_volume_ids: request.sources.iter().map(text).collect(),
            secrets: self.secrets(&call),
            parameters: request.parameters,
        };
        let watch = self.watch(&call);
        let accept = move |found: v1::CreateVolumeGroupSnapshotResponse| {
            let group = answer::group(found.group_snapshot)?;
            watch.id("group snapshot handle", group.handle.as_str());
            group.snapshots.iter().for_each(|member| watch.id("snapshot handle", member.handle.as_str()));
            let members: BTreeSet<_> = group.snapshots.iter().map(|member| &member.source).collect();
            if members == sources.iter().collect() && group.snapshots.len() == sources.len() {
                Ok(group)
            } else {
                Err("the group's members are not one snapshot of each volume that was asked for".to_owned())
            }
        };
        let job = Job::new(
            "/csi.v1.GroupController/CreateVolumeGroupSnapshot",
            Some(intent),
            message,
            |wire, request| {
                Box::pin(async { wire.group_controller().create_volume_group_snapshot(request).await })
            },
            accept,
        );
        let remember: fn(&OperationPermit, &GroupSnapshot) =
            |guard, group| guard.add_alias(OperationKey::GroupSnapshot(group.handle.clone()));
        self.answer(call, Job { exhausted: Exhausted::Open, remember, ..job })
    }

    pub(super) fn drop_group(
        &self,
        call: Call,
        handle: GroupSnapshotHandle,
        snapshots: BTreeSet<SnapshotHandle>,
    ) -> BackendFuture<'_, ()> {
        if !self.abilities().contains(&Ability::GroupSnapshots) {
            return failed(self.unable(GROUPS));
        }
        let intent = OperationRequest::deletion(
            OperationKey::GroupSnapshot(handle.clone()),
            "delete-group-snapshot",
            &snapshots,
        );
        let message = v1::DeleteVolumeGroupSnapshotRequest {
            group_snapshot_id: text(&handle),
            snapshot_ids: texts(snapshots),
            secrets: self.secrets(&call),
        };
        let job = Job::new(
            "/csi.v1.GroupController/DeleteVolumeGroupSnapshot",
            Some(intent),
            message,
            |wire, request| {
                Box::pin(async { wire.group_controller().delete_volume_group_snapshot(request).await })
            },
            |v1::DeleteVolumeGroupSnapshotResponse {}| Ok(()),
        );
        let remember: fn(&OperationPermit, &()) = |guard, ()| guard.remove_alias();
        self.answer(call, Job { exhausted: Exhausted::Open, remember, ..job })
    }

    pub(super) fn describe_group(
        &self,
        call: Call,
        handle: GroupSnapshotHandle,
        snapshots: BTreeSet<SnapshotHandle>,
    ) -> BackendFuture<'_, GroupSnapshot> {
        if !self.abilities().contains(&Ability::GroupSnapshots) {
            return failed(self.unable(GROUPS));
        }
        let message = v1::GetVolumeGroupSnapshotRequest {
            group_snapshot_id: text(&handle),
            snapshot_ids: texts(snapshots),
            secrets: self.secrets(&call),
        };
        let accept = move |found: v1::GetVolumeGroupSnapshotResponse| {
            let group = answer::group(found.group_snapshot)?;
            same("group snapshot", &handle, &group.handle).map(|()| group)
        };
        let job = Job::new(
            "/csi.v1.GroupController/GetVolumeGroupSnapshot",
            None,
            message,
            |wire, request| {
                Box::pin(async { wire.group_controller().get_volume_group_snapshot(request).await })
            },
            accept,
        );
        self.answer(call, job)
    }
}
