//! Each method of [`Backend`]: what it is about, which function of the guest answers it, and what is checked
//! of the answer.

use std::collections::BTreeSet;

use cofferdam_domain::{
    GroupSnapshotHandle, NodeId, SnapshotHandle, VolumeHandle,
    storage::{
        Ability, Capacity, CapacityQuery, ConnectionInfo, CreateGroupSnapshot, CreateSnapshot, CreateVolume,
        CreatedVolume, Description, ErrorKind, ExpandVolume, ExpandedVolume, GroupSnapshot, PageRequest,
        Parameters, PublishVolume, Readiness, Snapshot, SnapshotPage, StorageError, ValidateVolume,
        Validation, VolumePage, VolumeStatus,
    },
};

use super::{CallSpec, WasmBackend};
use crate::{bindings::cofferdam::storage::types as wit, convert, exports};
use cofferdam_backend::{
    Backend, BackendFuture, Call, Redactor, checks,
    in_flight::{OperationKey, OperationPermit, OperationRequest},
};

impl WasmBackend {
    /// Runs a call.
    fn run_boxed<T: Send + 'static, U: Send + 'static>(
        &self,
        call: Call,
        job: CallSpec<T, U>,
    ) -> BackendFuture<'_, U> {
        Box::pin(self.run(call, job))
    }

    /// Runs a call that needs an ability.
    fn run_with_ability<T: Send + 'static, U: Send + 'static>(
        &self,
        ability: Ability,
        call: Call,
        job: CallSpec<T, U>,
    ) -> BackendFuture<'_, U> {
        if self.abilities().contains(&ability) {
            return self.run_boxed(call, job);
        }
        let message = format!("the driver {} has no `{ability}`", self.driver());
        Box::pin(std::future::ready(Err(StorageError::final_outcome(ErrorKind::Unimplemented, message))))
    }
}

/// A volume that a guest created, checked.
fn checked_volume(volume: wit::Volume, redactor: &Redactor) -> Result<CreatedVolume, String> {
    let volume = convert::created_volume(volume)?;
    checks::created_volume(&volume)?;
    checks::no_secret_in_id("the volume handle", volume.handle.as_str(), redactor)?;
    checks::no_secret_in_map("the context", &volume.context, redactor)?;
    for segments in &volume.topology {
        checks::no_secret_in_map("the topology", segments, redactor)?;
    }
    if let Some(attachment) = &volume.connection_info {
        checks::no_secret_in_map("the attachment", &attachment.fields, redactor)?;
    }
    Ok(volume)
}

fn add_volume_alias(guard: &OperationPermit, volume: &CreatedVolume) {
    guard.add_alias(OperationKey::Volume(volume.handle.clone()));
}

fn create_operation(
    method: &'static str,
    request: &CreateVolume,
    source: &impl std::hash::Hash,
) -> Option<OperationRequest> {
    Some(OperationRequest::new(
        OperationKey::VolumeName(request.name.as_str().into()),
        method,
        &(request, source),
    ))
}

fn handle_text(handle: &impl ToString) -> String {
    handle.to_string()
}

fn handle_texts(handles: &BTreeSet<SnapshotHandle>) -> Vec<String> {
    handles.iter().map(ToString::to_string).collect()
}

impl Backend for WasmBackend {
    fn description(&self) -> &Description {
        &self.inner.description
    }

    fn abilities(&self) -> &BTreeSet<Ability> {
        &self.interfaces().abilities
    }

    fn probe(&self, call: Call) -> BackendFuture<'_, Readiness> {
        let accept = |readiness, redactor: &Redactor| Ok(convert::readiness(readiness, redactor));
        self.run_boxed(call, CallSpec::new("/csi.v1.Identity/Probe", None, exports::probe(), accept))
    }

    fn create_volume(&self, call: Call, request: CreateVolume) -> BackendFuture<'_, CreatedVolume> {
        let intent = create_operation("create", &request, &());
        let function = exports::create(convert::create_request(request));
        let job = CallSpec::new("/csi.v1.Controller/CreateVolume", intent, function, checked_volume);
        self.run_boxed(call, CallSpec { on_success: add_volume_alias, ..job })
    }

    fn clone_volume(
        &self,
        call: Call,
        request: CreateVolume,
        source: VolumeHandle,
    ) -> BackendFuture<'_, CreatedVolume> {
        let intent = create_operation("create-from-volume", &request, &source)
            .map(|intent| intent.with_sources([OperationKey::Volume(source.clone())]));
        let function = exports::create_from_volume(convert::create_request(request), handle_text(&source));
        let job = CallSpec::new("/csi.v1.Controller/CreateVolume", intent, function, checked_volume);
        self.run_with_ability(Ability::Cloning, call, CallSpec { on_success: add_volume_alias, ..job })
    }

    fn restore_snapshot(
        &self,
        call: Call,
        request: CreateVolume,
        source: SnapshotHandle,
    ) -> BackendFuture<'_, CreatedVolume> {
        let intent = create_operation("create-from-snapshot", &request, &source)
            .map(|intent| intent.with_sources([OperationKey::Snapshot(source.clone())]));
        let function = exports::create_from_snapshot(convert::create_request(request), handle_text(&source));
        let job = CallSpec::new("/csi.v1.Controller/CreateVolume", intent, function, checked_volume);
        self.run_with_ability(Ability::Restoring, call, CallSpec { on_success: add_volume_alias, ..job })
    }

    fn delete_volume(&self, call: Call, handle: VolumeHandle) -> BackendFuture<'_, ()> {
        let function = exports::delete(handle_text(&handle));
        let intent = OperationRequest::deletion(OperationKey::Volume(handle), "delete", &());
        let job = CallSpec::new("/csi.v1.Controller/DeleteVolume", Some(intent), function, |(), _| Ok(()));
        self.run_boxed(call, CallSpec { on_success: |guard, ()| guard.remove_alias(), ..job })
    }

    fn validate_volume(&self, call: Call, request: ValidateVolume) -> BackendFuture<'_, Validation> {
        let function = exports::validate(convert::validate_request(request));
        let accept = |validation, redactor: &Redactor| Ok(convert::validation(validation, redactor));
        self.run_boxed(
            call,
            CallSpec::new("/csi.v1.Controller/ValidateVolumeCapabilities", None, function, accept),
        )
    }

    fn publish_volume(&self, call: Call, request: PublishVolume) -> BackendFuture<'_, ConnectionInfo> {
        let intent = OperationRequest::new(OperationKey::Volume(request.handle.clone()), "publish", &request)
            .on_node(Some(request.node_id.clone()));
        let function = exports::publish(convert::publish_request(request));
        let accept = |attachment, redactor: &Redactor| {
            let attachment = convert::connection_info(attachment)?;
            checks::connection_info(&attachment)?;
            checks::no_secret_in_map("the attachment", &attachment.fields, redactor)?;
            Ok(attachment)
        };
        let job = CallSpec::new("/csi.v1.Controller/ControllerPublishVolume", Some(intent), function, accept);
        self.run_with_ability(Ability::Publishing, call, job)
    }

    fn unpublish_volume(
        &self,
        call: Call,
        handle: VolumeHandle,
        node: Option<NodeId>,
    ) -> BackendFuture<'_, ()> {
        let function = exports::unpublish(handle_text(&handle), node.as_ref().map(handle_text));
        let intent =
            OperationRequest::new(OperationKey::Volume(handle), "unpublish", &node).inverse("publish", node);
        let method = "/csi.v1.Controller/ControllerUnpublishVolume";
        self.run_with_ability(
            Ability::Publishing,
            call,
            CallSpec::new(method, Some(intent), function, |(), _| Ok(())),
        )
    }

    fn expand_volume(&self, call: Call, request: ExpandVolume) -> BackendFuture<'_, ExpandedVolume> {
        let intent = OperationRequest::new(OperationKey::Volume(request.handle.clone()), "expand", &request);
        let function = exports::expand(convert::expand_request(request));
        let accept = |expanded: crate::bindings::exports::cofferdam::storage::expansion::Expanded,
                      _: &Redactor| {
            let expanded = ExpandedVolume {
                capacity: expanded.capacity_bytes,
                node_expansion_required: expanded.node_expansion,
            };
            checks::expanded_volume(&expanded).map(|()| expanded)
        };
        let job = CallSpec::new("/csi.v1.Controller/ControllerExpandVolume", Some(intent), function, accept);
        self.run_with_ability(Ability::Expansion, call, job)
    }

    fn modify_volume(
        &self,
        call: Call,
        handle: VolumeHandle,
        parameters: Parameters,
    ) -> BackendFuture<'_, ()> {
        let intent = OperationRequest::new(OperationKey::Volume(handle.clone()), "modify", &parameters);
        let function = exports::modify(handle_text(&handle), convert::pairs(parameters));
        let method = "/csi.v1.Controller/ControllerModifyVolume";
        self.run_with_ability(
            Ability::Modification,
            call,
            CallSpec::new(method, Some(intent), function, |(), _| Ok(())),
        )
    }

    fn create_snapshot(&self, call: Call, request: CreateSnapshot) -> BackendFuture<'_, Snapshot> {
        let subject = OperationKey::SnapshotName(request.name.as_str().into());
        let source = request.source.clone();
        let intent = OperationRequest::new(subject, "create-snapshot", &request)
            .with_sources([OperationKey::Volume(source.clone())]);
        let function = exports::create_snapshot(convert::create_snapshot_request(request));
        let accept = move |found, redactor: &Redactor| {
            let found = checked_snapshot(found, redactor)?;
            check_same_handle("source", &source, &found.source).map(|()| found)
        };
        let job = CallSpec::new("/csi.v1.Controller/CreateSnapshot", Some(intent), function, accept);
        let remember: fn(&OperationPermit, &Snapshot) =
            |guard, snapshot| guard.add_alias(OperationKey::Snapshot(snapshot.handle.clone()));
        self.run_with_ability(Ability::Snapshots, call, CallSpec { on_success: remember, ..job })
    }

    fn delete_snapshot(&self, call: Call, handle: SnapshotHandle) -> BackendFuture<'_, ()> {
        let function = exports::delete_snapshot(handle_text(&handle));
        let intent = OperationRequest::deletion(OperationKey::Snapshot(handle), "delete-snapshot", &());
        let job = CallSpec::new("/csi.v1.Controller/DeleteSnapshot", Some(intent), function, |(), _| Ok(()));
        self.run_with_ability(
            Ability::Snapshots,
            call,
            CallSpec { on_success: |guard, ()| guard.remove_alias(), ..job },
        )
    }

    fn get_snapshot(&self, call: Call, handle: SnapshotHandle) -> BackendFuture<'_, Snapshot> {
        let function = exports::get_snapshot(handle_text(&handle));
        let accept = move |found, redactor: &Redactor| {
            let found = checked_snapshot(found, redactor)?;
            check_same_handle("snapshot", &handle, &found.handle).map(|()| found)
        };
        let job = CallSpec::new("/csi.v1.Controller/GetSnapshot", None, function, accept);
        self.run_with_ability(Ability::Snapshots, call, job)
    }

    fn list_snapshots(
        &self,
        call: Call,
        source: Option<VolumeHandle>,
        page: PageRequest,
    ) -> BackendFuture<'_, SnapshotPage> {
        let function = exports::list_snapshots(
            source.as_ref().map(handle_text),
            page.starting_token.clone(),
            page.max_entries,
        );
        let accept = move |found, redactor: &Redactor| {
            let found = convert::snapshot_page(found);
            checks::snapshot_page(&found, &page)?;
            for snapshot in &found.snapshots {
                checks::no_secret_in_id("the snapshot handle", snapshot.handle.as_str(), redactor)?;
            }
            let stranger =
                |snapshot: &&Snapshot| source.as_ref().is_some_and(|source| snapshot.source != *source);
            match found.snapshots.iter().find(stranger) {
                Some(stranger) => Err(format!("{:?} is a snapshot of another volume", stranger.handle)),
                None => Ok(found),
            }
        };
        let job = CallSpec::new("/csi.v1.Controller/ListSnapshots", None, function, accept);
        self.run_with_ability(Ability::Snapshots, call, job)
    }

    fn create_group_snapshot(
        &self,
        call: Call,
        request: CreateGroupSnapshot,
    ) -> BackendFuture<'_, GroupSnapshot> {
        let subject = OperationKey::GroupSnapshotName(request.name.as_str().into());
        let sources = request.sources.clone();
        let intent = OperationRequest::new(subject, "create-group-snapshot", &request)
            .with_sources(sources.iter().cloned().map(OperationKey::Volume));
        let function = exports::create_group(convert::create_group_snapshot_request(request));
        let accept = move |found, redactor: &Redactor| {
            let group = checked_group_snapshot(found, redactor)?;
            let members: BTreeSet<_> = group.snapshots.iter().map(|member| member.source.clone()).collect();
            if members == sources && group.snapshots.len() == sources.len() {
                Ok(group)
            } else {
                Err("the group's members are not one snapshot of each volume that was asked for".to_owned())
            }
        };
        let method = "/csi.v1.GroupController/CreateVolumeGroupSnapshot";
        let job = CallSpec::new(method, Some(intent), function, accept);
        let remember: fn(&OperationPermit, &GroupSnapshot) =
            |guard, group| guard.add_alias(OperationKey::GroupSnapshot(group.handle.clone()));
        self.run_with_ability(Ability::GroupSnapshots, call, CallSpec { on_success: remember, ..job })
    }

    fn delete_group_snapshot(
        &self,
        call: Call,
        handle: GroupSnapshotHandle,
        snapshots: BTreeSet<SnapshotHandle>,
    ) -> BackendFuture<'_, ()> {
        let function = exports::delete_group(handle_text(&handle), handle_texts(&snapshots));
        let intent = OperationRequest::deletion(
            OperationKey::GroupSnapshot(handle),
            "delete-group-snapshot",
            &snapshots,
        );
        let method = "/csi.v1.GroupController/DeleteVolumeGroupSnapshot";
        let job = CallSpec::new(method, Some(intent), function, |(), _| Ok(()));
        self.run_with_ability(
            Ability::GroupSnapshots,
            call,
            CallSpec { on_success: |guard, ()| guard.remove_alias(), ..job },
        )
    }

    fn get_group_snapshot(
        &self,
        call: Call,
        handle: GroupSnapshotHandle,
        snapshots: BTreeSet<SnapshotHandle>,
    ) -> BackendFuture<'_, GroupSnapshot> {
        let function = exports::get_group(handle_text(&handle), handle_texts(&snapshots));
        let accept = move |found, redactor: &Redactor| {
            let found = checked_group_snapshot(found, redactor)?;
            check_same_handle("group snapshot", &handle, &found.handle).map(|()| found)
        };
        let method = "/csi.v1.GroupController/GetVolumeGroupSnapshot";
        self.run_with_ability(Ability::GroupSnapshots, call, CallSpec::new(method, None, function, accept))
    }

    fn list_volumes(&self, call: Call, page: PageRequest) -> BackendFuture<'_, VolumePage> {
        let function = exports::list_volumes(page.starting_token.clone(), page.max_entries);
        let accept = move |found, redactor: &Redactor| {
            let found = convert::volume_page(found, redactor)?;
            checks::volume_page(&found, &page).map(|()| found)
        };
        let job = CallSpec::new("/csi.v1.Controller/ListVolumes", None, function, accept);
        self.run_with_ability(Ability::Listing, call, job)
    }

    fn get_volume(&self, call: Call, handle: VolumeHandle) -> BackendFuture<'_, VolumeStatus> {
        let function = exports::get_volume(handle_text(&handle));
        let accept = move |found, redactor: &Redactor| {
            let found = convert::volume_status(found, redactor)?;
            checks::volume_status(&found)?;
            check_same_handle("volume", &handle, &found.volume.handle).map(|()| found)
        };
        let job = CallSpec::new("/csi.v1.Controller/ControllerGetVolume", None, function, accept);
        self.run_with_ability(Ability::Inspection, call, job)
    }

    fn get_capacity(&self, call: Call, query: CapacityQuery) -> BackendFuture<'_, Capacity> {
        let function = exports::available(convert::capacity_request(query));
        let accept = |found, _: &Redactor| {
            let capacity = convert::capacity(found);
            checks::capacity(&capacity).map(|()| capacity)
        };
        let job = CallSpec::new("/csi.v1.Controller/GetCapacity", None, function, accept);
        self.run_with_ability(Ability::Capacity, call, job)
    }
}

fn checked_snapshot(found: wit::Snapshot, redactor: &Redactor) -> Result<Snapshot, String> {
    let found = convert::snapshot(found);
    checks::snapshot(&found)?;
    checks::no_secret_in_id("the snapshot handle", found.handle.as_str(), redactor)?;
    Ok(found)
}

fn checked_group_snapshot(
    found: crate::bindings::exports::cofferdam::storage::group_snapshots::GroupSnapshot,
    redactor: &Redactor,
) -> Result<GroupSnapshot, String> {
    let found = convert::group_snapshot(found);
    checks::group_snapshot(&found)?;
    checks::no_secret_in_id("the group's handle", found.handle.as_str(), redactor)?;
    Ok(found)
}

/// Whether the guest told of what it was asked for.
fn check_same_handle<H: PartialEq + std::fmt::Display>(
    what: &str,
    expected: &H,
    found: &H,
) -> Result<(), String> {
    if expected == found {
        return Ok(());
    }
    Err(format!("it describes another {what} than {}", checks::printable(&expected.to_string())))
}
