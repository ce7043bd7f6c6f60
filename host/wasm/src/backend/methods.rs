//! The methods of [`Backend`]: the guest function of each, and the checks of its response.

use std::collections::BTreeSet;

use cofferdam_domain::{
    GroupSnapshotHandle, NodeId, SnapshotHandle, VolumeHandle,
    storage::{
        Ability, Capacity, CapacityQuery, ConnectionInfo, ContentSource, CreateGroupSnapshot, CreateSnapshot,
        CreateVolume, CreatedVolume, Description, ErrorKind, ExpandVolume, ExpandedVolume, GroupSnapshot,
        PageRequest, Parameters, PublishVolume, Readiness, Snapshot, SnapshotPage, StorageError,
        ValidateVolume, Validation, VolumePage, VolumeStatus,
    },
};

use super::WasmBackend;
use crate::{
    bindings::{
        cofferdam::storage::types as wit,
        exports::cofferdam::storage::{capacity, expansion, group_snapshots, listing, snapshots},
    },
    convert,
    exports::{self, GuestFunction},
};
use cofferdam_backend::{
    Backend, BackendFuture, Call, CallSpec, ContractViolation, Redactor,
    checks::{self, ResponseLimits},
    in_flight::OperationKey,
};

/// Limits of components' responses: those of the CSI specification.
const LIMITS: ResponseLimits = ResponseLimits::CSI_SPEC;

impl WasmBackend {
    /// Runs a call of a guest function, as the type of future that [`Backend`] returns.
    fn run_boxed<T: Send + 'static, U: Send + 'static>(
        &self,
        call: Call,
        spec: CallSpec<T, U>,
        function: GuestFunction<T>,
    ) -> BackendFuture<'_, U> {
        Box::pin(self.run(call, spec, function))
    }

    /// Runs a call that needs an ability. Returns `Unimplemented` if the component does not have it.
    fn run_with_ability<T: Send + 'static, U: Send + 'static>(
        &self,
        ability: Ability,
        call: Call,
        spec: CallSpec<T, U>,
        function: GuestFunction<T>,
    ) -> BackendFuture<'_, U> {
        if self.abilities().contains(&ability) {
            return self.run_boxed(call, spec, function);
        }
        let message = format!("the driver {} has no `{ability}`", self.driver());
        Box::pin(std::future::ready(Err(StorageError::with_known_effect(ErrorKind::Unimplemented, message))))
    }
}

/// Converts and checks a created volume.
pub(crate) fn checked_volume(
    volume: wit::Volume,
    redactor: &Redactor,
) -> Result<CreatedVolume, ContractViolation> {
    let volume = convert::created_volume(volume)?;
    LIMITS.check_created_volume(&volume)?;
    check_no_secret_in_volume(&volume, redactor)?;
    Ok(volume)
}

/// Rejects a volume with a secret of the call.
fn check_no_secret_in_volume(volume: &CreatedVolume, redactor: &Redactor) -> Result<(), ContractViolation> {
    checks::check_no_secret_in_id("the volume handle", volume.handle.as_str(), redactor)?;
    checks::check_no_secret_in_map("the context", &volume.context, redactor)?;
    for segments in &volume.topology {
        checks::check_no_secret_in_map("the topology", segments, redactor)?;
    }
    volume.connection_info.as_ref().map_or(Ok(()), |info| check_no_secret_in_connection_info(info, redactor))
}

/// Rejects connection info with a secret of the call.
fn check_no_secret_in_connection_info(
    connection_info: &ConnectionInfo,
    redactor: &Redactor,
) -> Result<(), ContractViolation> {
    checks::check_no_secret_in_id("the connection info's kind", &connection_info.kind, redactor)?;
    checks::check_no_secret_in_map("the connection info", &connection_info.fields, redactor)
}

/// Rejects a snapshot with a secret of the call.
fn check_no_secret_in_snapshot(snapshot: &Snapshot, redactor: &Redactor) -> Result<(), ContractViolation> {
    checks::check_no_secret_in_id("the snapshot handle", snapshot.handle.as_str(), redactor)?;
    checks::check_no_secret_in_id("the snapshot's source", snapshot.source.as_str(), redactor)?;
    if let Some(group) = &snapshot.group {
        checks::check_no_secret_in_id("the group's handle", group.as_str(), redactor)?;
    }
    let Some(owner) = &snapshot.owner else { return Ok(()) };
    checks::check_no_secret_in_id("the owner's cluster", owner.cluster_id.as_str(), redactor)?;
    checks::check_no_secret_in_id("the owner's snapshot", &owner.snapshot_uid.to_string(), redactor)?;
    checks::check_no_secret_in_id("the owner's content", &owner.content_name, redactor)
}

/// Rejects a volume's status with a secret of the call. The orphan report, a ConfigMap, has handles and
/// owners of listed volumes.
fn check_no_secret_in_status(status: &VolumeStatus, redactor: &Redactor) -> Result<(), ContractViolation> {
    check_no_secret_in_volume(&status.volume, redactor)?;
    for node in &status.published_node_ids {
        checks::check_no_secret_in_id("the node id", node.as_str(), redactor)?;
    }
    let Some(owner) = &status.owner else { return Ok(()) };
    checks::check_no_secret_in_id("the owner's cluster", owner.cluster_id.as_str(), redactor)?;
    checks::check_no_secret_in_id("the owner's claim", &owner.claim_uid.to_string(), redactor)?;
    checks::check_no_secret_in_id("the owner's volume", owner.pv_name.as_str(), redactor)
}

/// Converts and checks a connection info.
pub(crate) fn checked_connection_info(
    connection_info: wit::ConnectionInfo,
    redactor: &Redactor,
) -> Result<ConnectionInfo, ContractViolation> {
    let connection_info = convert::connection_info(connection_info)?;
    LIMITS.check_connection_info(&connection_info)?;
    check_no_secret_in_connection_info(&connection_info, redactor)?;
    Ok(connection_info)
}

/// Converts and checks a snapshot.
pub(crate) fn checked_snapshot(
    snapshot: wit::Snapshot,
    redactor: &Redactor,
) -> Result<Snapshot, ContractViolation> {
    let snapshot = convert::snapshot(snapshot);
    LIMITS.check_snapshot(&snapshot)?;
    check_no_secret_in_snapshot(&snapshot, redactor)?;
    Ok(snapshot)
}

/// Converts and checks a group snapshot.
pub(crate) fn checked_group_snapshot(
    group: group_snapshots::GroupSnapshot,
    redactor: &Redactor,
) -> Result<GroupSnapshot, ContractViolation> {
    let group = convert::group_snapshot(group);
    LIMITS.check_group_snapshot(&group)?;
    checks::check_no_secret_in_id("the group's handle", group.handle.as_str(), redactor)?;
    group.snapshots.iter().try_for_each(|member| check_no_secret_in_snapshot(member, redactor))?;
    Ok(group)
}

/// Converts and checks an expanded volume.
pub(crate) fn checked_expansion(
    expanded: expansion::ExpandResponse,
    _: &Redactor,
) -> Result<ExpandedVolume, ContractViolation> {
    let expanded = ExpandedVolume {
        capacity: expanded.capacity_bytes,
        node_expansion_required: expanded.node_expansion,
    };
    checks::check_expanded_volume(&expanded).map(|()| expanded)
}

/// Converts and checks the status of a volume.
pub(crate) fn checked_status(
    status: wit::VolumeStatus,
    redactor: &Redactor,
) -> Result<VolumeStatus, ContractViolation> {
    let status = convert::volume_status(status, redactor)?;
    LIMITS.check_volume_status(&status)?;
    check_no_secret_in_status(&status, redactor)?;
    Ok(status)
}

/// Converts and checks a page of volumes.
pub(crate) fn checked_volume_page(
    page: listing::VolumePage,
    request: &PageRequest,
    redactor: &Redactor,
) -> Result<VolumePage, ContractViolation> {
    let page = convert::volume_page(page, redactor)?;
    LIMITS.check_volume_page(&page, request)?;
    page.volumes.iter().try_for_each(|status| check_no_secret_in_status(status, redactor))?;
    Ok(page)
}

/// Converts and checks a page of snapshots. If `source` is set, all snapshots must be of that volume.
pub(crate) fn checked_snapshot_page(
    page: snapshots::SnapshotPage,
    request: &PageRequest,
    source: Option<&VolumeHandle>,
    redactor: &Redactor,
) -> Result<SnapshotPage, ContractViolation> {
    let page = convert::snapshot_page(page);
    LIMITS.check_snapshot_page(&page, request, source)?;
    page.snapshots.iter().try_for_each(|snapshot| check_no_secret_in_snapshot(snapshot, redactor))?;
    Ok(page)
}

/// Converts and checks a capacity.
pub(crate) fn checked_capacity(
    report: capacity::CapacityReport,
    _: &Redactor,
) -> Result<Capacity, ContractViolation> {
    let capacity = convert::capacity(report);
    checks::check_capacity(&capacity).map(|()| capacity)
}

fn handle_text(handle: &impl ToString) -> String {
    handle.to_string()
}

fn handle_texts(handles: &BTreeSet<SnapshotHandle>) -> Vec<String> {
    handles.iter().map(ToString::to_string).collect()
}

impl Backend for WasmBackend {
    fn takes_node_identities(&self) -> bool {
        true
    }

    fn description(&self) -> &Description {
        &self.inner.description
    }

    fn abilities(&self) -> &BTreeSet<Ability> {
        &self.interfaces().abilities
    }

    fn probe(&self, call: Call) -> BackendFuture<'_, Readiness> {
        let spec = CallSpec::probe(|readiness, redactor| Ok(convert::readiness(readiness, redactor)));
        self.run_boxed(call, spec, exports::probe())
    }

    fn create_volume(&self, call: Call, mut request: CreateVolume) -> BackendFuture<'_, CreatedVolume> {
        let spec = CallSpec::create_volume(&request, checked_volume);
        let source = request.source.take();
        let ability = source.as_ref().map(ContentSource::required_ability);
        let request = convert::create_request(request);
        let function = match source {
            None => exports::create(request),
            Some(ContentSource::Volume(handle)) => exports::create_from_volume(request, handle_text(&handle)),
            Some(ContentSource::Snapshot(handle)) => {
                exports::create_from_snapshot(request, handle_text(&handle))
            }
        };
        match ability {
            None => self.run_boxed(call, spec, function),
            Some(ability) => self.run_with_ability(ability, call, spec, function),
        }
    }

    fn delete_volume(&self, call: Call, handle: VolumeHandle) -> BackendFuture<'_, ()> {
        self.run_boxed(call, CallSpec::delete_volume(&handle), exports::delete(handle_text(&handle)))
    }

    fn validate_volume(&self, call: Call, request: ValidateVolume) -> BackendFuture<'_, Validation> {
        let spec =
            CallSpec::validate_volume(|validation, redactor| Ok(convert::validation(validation, redactor)))
                .reading(Some(OperationKey::Volume(request.handle.clone())));
        self.run_boxed(call, spec, exports::validate(convert::validate_request(request)))
    }

    fn publish_volume(&self, call: Call, request: PublishVolume) -> BackendFuture<'_, ConnectionInfo> {
        let spec = CallSpec::publish_volume(&request, checked_connection_info);
        let function = exports::publish(convert::publish_request(request));
        self.run_with_ability(Ability::Publishing, call, spec, function)
    }

    fn unpublish_volume(
        &self,
        call: Call,
        handle: VolumeHandle,
        node: Option<NodeId>,
    ) -> BackendFuture<'_, ()> {
        let spec = CallSpec::unpublish_volume(&handle, node.as_ref());
        let function = exports::unpublish(handle_text(&handle), node.as_ref().map(handle_text));
        self.run_with_ability(Ability::Publishing, call, spec, function)
    }

    fn expand_volume(&self, call: Call, request: ExpandVolume) -> BackendFuture<'_, ExpandedVolume> {
        let spec = CallSpec::expand_volume(&request, checked_expansion);
        let function = exports::expand(convert::expand_request(request));
        self.run_with_ability(Ability::Expansion, call, spec, function)
    }

    fn modify_volume(
        &self,
        call: Call,
        handle: VolumeHandle,
        parameters: Parameters,
    ) -> BackendFuture<'_, ()> {
        let spec = CallSpec::modify_volume(&handle, &parameters);
        let function = exports::modify(handle_text(&handle), convert::pairs(parameters));
        self.run_with_ability(Ability::Modification, call, spec, function)
    }

    fn create_snapshot(&self, call: Call, request: CreateSnapshot) -> BackendFuture<'_, Snapshot> {
        let source = request.source.clone();
        let spec = CallSpec::create_snapshot(&request, move |found, redactor| {
            let snapshot = checked_snapshot(found, redactor)?;
            checks::check_same_handle("source", &source, &snapshot.source).map(|()| snapshot)
        });
        let function = exports::create_snapshot(convert::create_snapshot_request(request));
        self.run_with_ability(Ability::Snapshots, call, spec, function)
    }

    fn delete_snapshot(&self, call: Call, handle: SnapshotHandle) -> BackendFuture<'_, ()> {
        let spec = CallSpec::delete_snapshot(&handle);
        let function = exports::delete_snapshot(handle_text(&handle));
        self.run_with_ability(Ability::Snapshots, call, spec, function)
    }

    fn get_snapshot(&self, call: Call, handle: SnapshotHandle) -> BackendFuture<'_, Snapshot> {
        let function = exports::get_snapshot(handle_text(&handle));
        let key = Some(OperationKey::Snapshot(handle.clone()));
        let spec = CallSpec::get_snapshot(move |found, redactor| {
            let snapshot = checked_snapshot(found, redactor)?;
            checks::check_same_handle("snapshot", &handle, &snapshot.handle).map(|()| snapshot)
        })
        .reading(key);
        self.run_with_ability(Ability::Snapshots, call, spec, function)
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
        let key = source.clone().map(OperationKey::Volume);
        let spec = CallSpec::list_snapshots(move |found, redactor| {
            checked_snapshot_page(found, &page, source.as_ref(), redactor)
        })
        .reading(key);
        self.run_with_ability(Ability::Snapshots, call, spec, function)
    }

    fn create_group_snapshot(
        &self,
        call: Call,
        request: CreateGroupSnapshot,
    ) -> BackendFuture<'_, GroupSnapshot> {
        let sources = request.sources.clone();
        let spec = CallSpec::create_group_snapshot(&request, move |found, redactor| {
            let group = checked_group_snapshot(found, redactor)?;
            checks::check_group_members(&group, &sources).map(|()| group)
        });
        let function = exports::create_group(convert::create_group_snapshot_request(request));
        self.run_with_ability(Ability::GroupSnapshots, call, spec, function)
    }

    fn delete_group_snapshot(
        &self,
        call: Call,
        handle: GroupSnapshotHandle,
        snapshots: BTreeSet<SnapshotHandle>,
    ) -> BackendFuture<'_, ()> {
        let spec = CallSpec::delete_group_snapshot(&handle, &snapshots);
        let function = exports::delete_group(handle_text(&handle), handle_texts(&snapshots));
        self.run_with_ability(Ability::GroupSnapshots, call, spec, function)
    }

    fn get_group_snapshot(
        &self,
        call: Call,
        handle: GroupSnapshotHandle,
        snapshots: BTreeSet<SnapshotHandle>,
    ) -> BackendFuture<'_, GroupSnapshot> {
        let function = exports::get_group(handle_text(&handle), handle_texts(&snapshots));
        let key = Some(OperationKey::GroupSnapshot(handle.clone()));
        let spec = CallSpec::get_group_snapshot(move |found, redactor| {
            let group = checked_group_snapshot(found, redactor)?;
            checks::check_same_handle("group snapshot", &handle, &group.handle).map(|()| group)
        })
        .reading(key);
        self.run_with_ability(Ability::GroupSnapshots, call, spec, function)
    }

    fn list_volumes(&self, call: Call, page: PageRequest) -> BackendFuture<'_, VolumePage> {
        let function = exports::list_volumes(page.starting_token.clone(), page.max_entries);
        let spec = CallSpec::list_volumes(move |found, redactor| checked_volume_page(found, &page, redactor));
        self.run_with_ability(Ability::Listing, call, spec, function)
    }

    fn get_volume(&self, call: Call, handle: VolumeHandle) -> BackendFuture<'_, VolumeStatus> {
        let function = exports::get_volume(handle_text(&handle));
        let key = Some(OperationKey::Volume(handle.clone()));
        let spec = CallSpec::get_volume(move |found, redactor| {
            let status = checked_status(found, redactor)?;
            checks::check_same_handle("volume", &handle, &status.volume.handle).map(|()| status)
        })
        .reading(key);
        self.run_with_ability(Ability::Inspection, call, spec, function)
    }

    fn get_capacity(&self, call: Call, query: CapacityQuery) -> BackendFuture<'_, Capacity> {
        let function = exports::available(convert::capacity_request(query));
        let spec = CallSpec::get_capacity(checked_capacity);
        self.run_with_ability(Ability::Capacity, call, spec, function)
    }
}
