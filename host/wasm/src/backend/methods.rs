//! Each method of [`Backend`]: what it is about, which function of the guest answers it, and what is checked of the answer.

use std::collections::BTreeSet;

use cofferdam_domain::{
    GroupSnapshotHandle, NodeId, SnapshotHandle, VolumeHandle,
    storage::{
        Ability, AttachmentRecord, Capacity, CapacityQuery, CreateGroupSnapshot, CreateSnapshot,
        CreateVolume, CreatedVolume, Description, ErrorKind, ExpandVolume, ExpandedVolume, GroupSnapshot,
        PageRequest, Parameters, PublishVolume, Readiness, Snapshot, SnapshotPage, StorageError,
        ValidateVolume, Validation, VolumePage, VolumeStatus,
    },
};

use super::{Job, WasmBackend};
use crate::{bindings::cofferdam::storage::types as wit, convert, exports};
use cofferdam_backend::{
    Answer, Backend, Call, Redactor, checks,
    guard::{Guard, Intent, Subject},
};

impl WasmBackend {
    /// Runs a call.
    fn answer<T: Send + 'static, U: Send + 'static>(&self, call: Call, job: Job<T, U>) -> Answer<'_, U> {
        Box::pin(self.run(call, job))
    }

    /// Runs a call that needs an ability.
    fn able<T: Send + 'static, U: Send + 'static>(
        &self,
        ability: Ability,
        call: Call,
        job: Job<T, U>,
    ) -> Answer<'_, U> {
        if self.abilities().contains(&ability) {
            return self.answer(call, job);
        }
        let message = format!("the driver {} has no `{ability}`", self.driver());
        Box::pin(std::future::ready(Err(StorageError::last(ErrorKind::Unimplemented, message))))
    }
}

/// A volume that a guest created, checked.
fn created(volume: wit::Volume, redactor: &Redactor) -> Result<CreatedVolume, String> {
    let volume = convert::created(volume)?;
    checks::created(&volume)?;
    checks::no_secret_in("the volume handle", volume.handle.as_str(), redactor)?;
    checks::no_secret("the context", &volume.context, redactor)?;
    for segments in &volume.topology {
        checks::no_secret("the topology", segments, redactor)?;
    }
    if let Some(attachment) = &volume.attachment {
        checks::no_secret("the attachment", &attachment.fields, redactor)?;
    }
    Ok(volume)
}

fn remember_created(guard: &Guard, volume: &CreatedVolume) {
    guard.created(Subject::Volume(volume.handle.clone()));
}

fn named(method: &'static str, request: &CreateVolume, source: &impl std::hash::Hash) -> Option<Intent> {
    Some(Intent::new(Subject::Name(request.name.as_str().into()), method, &(request, source)))
}

fn text(handle: &impl ToString) -> String {
    handle.to_string()
}

fn texts(handles: &BTreeSet<SnapshotHandle>) -> Vec<String> {
    handles.iter().map(ToString::to_string).collect()
}

impl Backend for WasmBackend {
    fn description(&self) -> &Description {
        &self.shared.description
    }

    fn abilities(&self) -> &BTreeSet<Ability> {
        &self.manifest().abilities
    }

    fn probe(&self, call: Call) -> Answer<'_, Readiness> {
        let accept = |readiness, redactor: &Redactor| Ok(convert::readiness(readiness, redactor));
        self.answer(call, Job::new("/csi.v1.Identity/Probe", None, exports::probe(), accept))
    }

    fn create_volume(&self, call: Call, request: CreateVolume) -> Answer<'_, CreatedVolume> {
        let intent = named("create", &request, &());
        let function = exports::create(convert::create_request(request));
        let job = Job::new("/csi.v1.Controller/CreateVolume", intent, function, created);
        self.answer(call, Job { remember: remember_created, ..job })
    }

    fn clone_volume(
        &self,
        call: Call,
        request: CreateVolume,
        source: VolumeHandle,
    ) -> Answer<'_, CreatedVolume> {
        let intent = named("create-from-volume", &request, &source)
            .map(|intent| intent.from([Subject::Volume(source.clone())]));
        let function = exports::create_from_volume(convert::create_request(request), text(&source));
        let job = Job::new("/csi.v1.Controller/CreateVolume", intent, function, created);
        self.able(Ability::Cloning, call, Job { remember: remember_created, ..job })
    }

    fn restore_snapshot(
        &self,
        call: Call,
        request: CreateVolume,
        source: SnapshotHandle,
    ) -> Answer<'_, CreatedVolume> {
        let intent = named("create-from-snapshot", &request, &source)
            .map(|intent| intent.from([Subject::Snapshot(source.clone())]));
        let function = exports::create_from_snapshot(convert::create_request(request), text(&source));
        let job = Job::new("/csi.v1.Controller/CreateVolume", intent, function, created);
        self.able(Ability::Restoring, call, Job { remember: remember_created, ..job })
    }

    fn delete_volume(&self, call: Call, handle: VolumeHandle) -> Answer<'_, ()> {
        let function = exports::delete(text(&handle));
        let intent = Intent::deleting(Subject::Volume(handle), "delete", &());
        let job = Job::new("/csi.v1.Controller/DeleteVolume", Some(intent), function, |(), _| Ok(()));
        self.answer(call, Job { remember: |guard, ()| guard.deleted(), ..job })
    }

    fn validate_volume(&self, call: Call, request: ValidateVolume) -> Answer<'_, Validation> {
        let function = exports::validate(convert::validate_request(request));
        let accept = |validation, redactor: &Redactor| Ok(convert::validation(validation, redactor));
        self.answer(call, Job::new("/csi.v1.Controller/ValidateVolumeCapabilities", None, function, accept))
    }

    fn publish_volume(&self, call: Call, request: PublishVolume) -> Answer<'_, AttachmentRecord> {
        let intent = Intent::new(Subject::Volume(request.handle.clone()), "publish", &request)
            .of_node(Some(request.node.clone()));
        let function = exports::publish(convert::publish_request(request));
        let accept = |attachment, redactor: &Redactor| {
            let attachment = convert::attachment(attachment)?;
            checks::attachment(&attachment)?;
            checks::no_secret("the attachment", &attachment.fields, redactor)?;
            Ok(attachment)
        };
        let job = Job::new("/csi.v1.Controller/ControllerPublishVolume", Some(intent), function, accept);
        self.able(Ability::Publishing, call, job)
    }

    fn unpublish_volume(&self, call: Call, handle: VolumeHandle, node: Option<NodeId>) -> Answer<'_, ()> {
        let function = exports::unpublish(text(&handle), node.as_ref().map(text));
        let intent = Intent::new(Subject::Volume(handle), "unpublish", &node).undoing("publish", node);
        let method = "/csi.v1.Controller/ControllerUnpublishVolume";
        self.able(Ability::Publishing, call, Job::new(method, Some(intent), function, |(), _| Ok(())))
    }

    fn expand_volume(&self, call: Call, request: ExpandVolume) -> Answer<'_, ExpandedVolume> {
        let intent = Intent::new(Subject::Volume(request.handle.clone()), "expand", &request);
        let function = exports::expand(convert::expand_request(request));
        let accept = |expanded: crate::bindings::exports::cofferdam::storage::expansion::Expanded,
                      _: &Redactor| {
            let expanded =
                ExpandedVolume { capacity: expanded.capacity_bytes, node_expansion: expanded.node_expansion };
            checks::expanded(&expanded).map(|()| expanded)
        };
        let job = Job::new("/csi.v1.Controller/ControllerExpandVolume", Some(intent), function, accept);
        self.able(Ability::Expansion, call, job)
    }

    fn modify_volume(&self, call: Call, handle: VolumeHandle, parameters: Parameters) -> Answer<'_, ()> {
        let intent = Intent::new(Subject::Volume(handle.clone()), "modify", &parameters);
        let function = exports::modify(text(&handle), convert::pairs(parameters));
        let method = "/csi.v1.Controller/ControllerModifyVolume";
        self.able(Ability::Modification, call, Job::new(method, Some(intent), function, |(), _| Ok(())))
    }

    fn create_snapshot(&self, call: Call, request: CreateSnapshot) -> Answer<'_, Snapshot> {
        let subject = Subject::SnapshotName(request.name.as_str().into());
        let source = request.source.clone();
        let intent =
            Intent::new(subject, "create-snapshot", &request).from([Subject::Volume(source.clone())]);
        let function = exports::create_snapshot(convert::snapshot_request(request));
        let accept = move |found, redactor: &Redactor| {
            let found = snapshot(found, redactor)?;
            same("source", &source, &found.source).map(|()| found)
        };
        let job = Job::new("/csi.v1.Controller/CreateSnapshot", Some(intent), function, accept);
        let remember: fn(&Guard, &Snapshot) =
            |guard, snapshot| guard.created(Subject::Snapshot(snapshot.handle.clone()));
        self.able(Ability::Snapshots, call, Job { remember, ..job })
    }

    fn delete_snapshot(&self, call: Call, handle: SnapshotHandle) -> Answer<'_, ()> {
        let function = exports::delete_snapshot(text(&handle));
        let intent = Intent::deleting(Subject::Snapshot(handle), "delete-snapshot", &());
        let job = Job::new("/csi.v1.Controller/DeleteSnapshot", Some(intent), function, |(), _| Ok(()));
        self.able(Ability::Snapshots, call, Job { remember: |guard, ()| guard.deleted(), ..job })
    }

    fn get_snapshot(&self, call: Call, handle: SnapshotHandle) -> Answer<'_, Snapshot> {
        let function = exports::get_snapshot(text(&handle));
        let accept = move |found, redactor: &Redactor| {
            let found = snapshot(found, redactor)?;
            same("snapshot", &handle, &found.handle).map(|()| found)
        };
        let job = Job::new("/csi.v1.Controller/GetSnapshot", None, function, accept);
        self.able(Ability::Snapshots, call, job)
    }

    fn list_snapshots(
        &self,
        call: Call,
        source: Option<VolumeHandle>,
        page: PageRequest,
    ) -> Answer<'_, SnapshotPage> {
        let function = exports::list_snapshots(source.as_ref().map(text), page.after.clone(), page.limit);
        let accept = move |found, redactor: &Redactor| {
            let found = convert::snapshot_page(found);
            checks::snapshot_page(&found, &page)?;
            for snapshot in &found.snapshots {
                checks::no_secret_in("the snapshot handle", snapshot.handle.as_str(), redactor)?;
            }
            let stranger =
                |snapshot: &&Snapshot| source.as_ref().is_some_and(|source| snapshot.source != *source);
            match found.snapshots.iter().find(stranger) {
                Some(stranger) => Err(format!("{:?} is a snapshot of another volume", stranger.handle)),
                None => Ok(found),
            }
        };
        let job = Job::new("/csi.v1.Controller/ListSnapshots", None, function, accept);
        self.able(Ability::Snapshots, call, job)
    }

    fn create_group_snapshot(&self, call: Call, request: CreateGroupSnapshot) -> Answer<'_, GroupSnapshot> {
        let subject = Subject::GroupName(request.name.as_str().into());
        let sources = request.sources.clone();
        let intent = Intent::new(subject, "create-group-snapshot", &request)
            .from(sources.iter().cloned().map(Subject::Volume));
        let function = exports::create_group(convert::group_request(request));
        let accept = move |found, redactor: &Redactor| {
            let group = group(found, redactor)?;
            let members: BTreeSet<_> = group.snapshots.iter().map(|member| member.source.clone()).collect();
            if members == sources && group.snapshots.len() == sources.len() {
                Ok(group)
            } else {
                Err("the group's members are not one snapshot of each volume that was asked for".to_owned())
            }
        };
        let method = "/csi.v1.GroupController/CreateVolumeGroupSnapshot";
        let job = Job::new(method, Some(intent), function, accept);
        let remember: fn(&Guard, &GroupSnapshot) =
            |guard, group| guard.created(Subject::Group(group.handle.clone()));
        self.able(Ability::GroupSnapshots, call, Job { remember, ..job })
    }

    fn delete_group_snapshot(
        &self,
        call: Call,
        handle: GroupSnapshotHandle,
        snapshots: BTreeSet<SnapshotHandle>,
    ) -> Answer<'_, ()> {
        let function = exports::delete_group(text(&handle), texts(&snapshots));
        let intent = Intent::deleting(Subject::Group(handle), "delete-group-snapshot", &snapshots);
        let method = "/csi.v1.GroupController/DeleteVolumeGroupSnapshot";
        let job = Job::new(method, Some(intent), function, |(), _| Ok(()));
        self.able(Ability::GroupSnapshots, call, Job { remember: |guard, ()| guard.deleted(), ..job })
    }

    fn get_group_snapshot(
        &self,
        call: Call,
        handle: GroupSnapshotHandle,
        snapshots: BTreeSet<SnapshotHandle>,
    ) -> Answer<'_, GroupSnapshot> {
        let function = exports::get_group(text(&handle), texts(&snapshots));
        let accept = move |found, redactor: &Redactor| {
            let found = group(found, redactor)?;
            same("group snapshot", &handle, &found.handle).map(|()| found)
        };
        let method = "/csi.v1.GroupController/GetVolumeGroupSnapshot";
        self.able(Ability::GroupSnapshots, call, Job::new(method, None, function, accept))
    }

    fn list_volumes(&self, call: Call, page: PageRequest) -> Answer<'_, VolumePage> {
        let function = exports::list_volumes(page.after.clone(), page.limit);
        let accept = move |found, redactor: &Redactor| {
            let found = convert::volume_page(found, redactor)?;
            checks::volume_page(&found, &page).map(|()| found)
        };
        let job = Job::new("/csi.v1.Controller/ListVolumes", None, function, accept);
        self.able(Ability::Listing, call, job)
    }

    fn get_volume(&self, call: Call, handle: VolumeHandle) -> Answer<'_, VolumeStatus> {
        let function = exports::get_volume(text(&handle));
        let accept = move |found, redactor: &Redactor| {
            let found = convert::status(found, redactor)?;
            checks::status(&found)?;
            same("volume", &handle, &found.volume.handle).map(|()| found)
        };
        let job = Job::new("/csi.v1.Controller/ControllerGetVolume", None, function, accept);
        self.able(Ability::Inspection, call, job)
    }

    fn get_capacity(&self, call: Call, query: CapacityQuery) -> Answer<'_, Capacity> {
        let function = exports::available(convert::capacity_request(query));
        let accept = |found, _: &Redactor| {
            let capacity = convert::capacity(found);
            checks::capacity(&capacity).map(|()| capacity)
        };
        let job = Job::new("/csi.v1.Controller/GetCapacity", None, function, accept);
        self.able(Ability::Capacity, call, job)
    }
}

fn snapshot(found: wit::Snapshot, redactor: &Redactor) -> Result<Snapshot, String> {
    let found = convert::snapshot(found);
    checks::snapshot(&found)?;
    checks::no_secret_in("the snapshot handle", found.handle.as_str(), redactor)?;
    Ok(found)
}

fn group(
    found: crate::bindings::exports::cofferdam::storage::group_snapshots::GroupSnapshot,
    redactor: &Redactor,
) -> Result<GroupSnapshot, String> {
    let found = convert::group_snapshot(found);
    checks::group_snapshot(&found)?;
    checks::no_secret_in("the group's handle", found.handle.as_str(), redactor)?;
    Ok(found)
}

/// Whether the guest told of what it was asked for.
fn same<H: PartialEq + std::fmt::Display>(what: &str, asked: &H, found: &H) -> Result<(), String> {
    if asked == found {
        return Ok(());
    }
    Err(format!("it describes another {what} than {}", checks::printable(&asked.to_string())))
}
