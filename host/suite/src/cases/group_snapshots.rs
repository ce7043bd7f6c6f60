//! Group snapshots.

use std::collections::BTreeSet;

use cofferdam_backend::Backend as _;
use cofferdam_domain::{
    GroupSnapshotHandle, SnapshotHandle, VolumeHandle,
    storage::{Ability, CreateGroupSnapshot, ErrorKind, GroupSnapshot, StorageError},
};

use super::case;
use crate::{
    CaseRequirement::Exports,
    ConformanceCase,
    check::{CaseResult, expect_equal, expect_final_error, expect_success, fail},
    context::SuiteContext,
};

pub(super) const CASES: &[ConformanceCase] = &[
    case!(
        "group-snapshots/is-idempotent",
        "A repeated create returns the same group snapshot.",
        "wit group-snapshots.create; CSI CreateVolumeGroupSnapshot",
        [Exports(Ability::GroupSnapshots)],
        is_idempotent
    ),
    case!(
        "group-snapshots/other-sources",
        "Creating the name of a group snapshot with different volumes fails with already-exists.",
        "wit group-snapshots.create; CSI CreateVolumeGroupSnapshot",
        [Exports(Ability::GroupSnapshots)],
        other_sources
    ),
    case!(
        "group-snapshots/missing-source",
        "Creating a group snapshot with a missing volume fails with not-found.",
        "CSI CreateVolumeGroupSnapshot",
        [Exports(Ability::GroupSnapshots)],
        missing_source
    ),
    case!(
        "group-snapshots/no-source",
        "Creating a group snapshot without volumes fails with invalid-argument.",
        "wit group-snapshots.group-request; CSI CreateVolumeGroupSnapshot",
        [Exports(Ability::GroupSnapshots)],
        no_source
    ),
    case!(
        "group-snapshots/members",
        "A group snapshot has one member per volume.",
        "wit group-snapshots.group-snapshot; CSI VolumeGroupSnapshot",
        [Exports(Ability::GroupSnapshots)],
        members
    ),
    case!(
        "group-snapshots/members-name-their-group",
        "A member snapshot names its group.",
        "wit types.snapshot; CSI Snapshot",
        [Exports(Ability::GroupSnapshots), Exports(Ability::Snapshots)],
        members_name_their_group
    ),
    case!(
        "group-snapshots/get",
        "`get` returns the group snapshot as create did.",
        "wit group-snapshots.get; CSI GetVolumeGroupSnapshot",
        [Exports(Ability::GroupSnapshots)],
        get
    ),
    case!(
        "group-snapshots/get-missing",
        "`get` of a missing group snapshot fails with not-found, also without members.",
        "wit group-snapshots.get; CSI GetVolumeGroupSnapshot",
        [Exports(Ability::GroupSnapshots)],
        get_missing
    ),
    case!(
        "group-snapshots/get-foreign-members",
        "`get` with snapshots of another group fails with invalid-argument.",
        "wit group-snapshots.get; CSI GetVolumeGroupSnapshot",
        [Exports(Ability::GroupSnapshots)],
        get_foreign_members
    ),
    case!(
        "group-snapshots/delete-is-idempotent",
        "Deleting a missing group snapshot succeeds, and so does a repeated delete.",
        "wit group-snapshots.delete; CSI DeleteVolumeGroupSnapshot",
        [Exports(Ability::GroupSnapshots)],
        delete_is_idempotent
    ),
    case!(
        "group-snapshots/delete-foreign-members",
        "Deleting a group snapshot with snapshots of another group fails with invalid-argument and deletes \
         nothing.",
        "wit group-snapshots.delete; CSI DeleteVolumeGroupSnapshot",
        [Exports(Ability::GroupSnapshots)],
        delete_foreign_members
    ),
    case!(
        "group-snapshots/delete-members",
        "Deleting a group snapshot deletes its members.",
        "wit group-snapshots.delete; CSI DeleteVolumeGroupSnapshot",
        [Exports(Ability::GroupSnapshots), Exports(Ability::Snapshots)],
        delete_members
    ),
    case!(
        "group-snapshots/delete-single-member",
        "Deleting a single member of a group snapshot fails with invalid-argument.",
        "wit snapshots.delete; CSI DeleteSnapshot",
        [Exports(Ability::GroupSnapshots), Exports(Ability::Snapshots)],
        delete_single_member
    ),
];

pub(super) type GroupMembers = BTreeSet<SnapshotHandle>;

impl SuiteContext {
    /// Calls `group-snapshots.get` for a group, and repeats the call after a retryable error.
    pub(super) async fn get_group(
        &self,
        handle: &GroupSnapshotHandle,
        members: &GroupMembers,
    ) -> Result<GroupSnapshot, StorageError> {
        let call = || self.backend.get_group_snapshot(self.call(), handle.clone(), members.clone());
        self.retry_until_final("get-group-snapshot", call).await
    }
}

/// Creates two volumes. Returns their handles.
pub(super) async fn two_volumes(context: &SuiteContext) -> CaseResult<BTreeSet<VolumeHandle>> {
    let (_, first) = context.new_volume("grouped").await?;
    let (_, second) = context.new_volume("grouped").await?;
    Ok([first.handle, second.handle].into())
}

/// Creates a group snapshot of two new volumes. Returns the request, the group and its members' handles.
pub(super) async fn new_group(
    context: &SuiteContext,
) -> CaseResult<(CreateGroupSnapshot, GroupSnapshot, GroupMembers)> {
    new_group_named(context, "group").await
}

async fn new_group_named(
    context: &SuiteContext,
    label: &str,
) -> CaseResult<(CreateGroupSnapshot, GroupSnapshot, GroupMembers)> {
    let request = CreateGroupSnapshot {
        name: context.unique_name(label),
        sources: two_volumes(context).await?,
        parameters: context.options.snapshot_parameters.clone(),
        owner: None,
    };
    let group = expect_success("a new group", context.create_group_snapshot(&request).await)?;
    let members = group.snapshots.iter().map(|member| member.handle.clone()).collect();
    Ok((request, group, members))
}

/// The group snapshot without fields that change while it becomes ready, and with sorted members.
fn without_volatile_fields(group: &GroupSnapshot) -> GroupSnapshot {
    let mut group = group.clone();
    group.ready = true;
    group.snapshots.sort_by(|left, right| left.handle.cmp(&right.handle));
    for member in &mut group.snapshots {
        member.ready = true;
        member.size = None;
    }
    group
}

async fn is_idempotent(context: &SuiteContext) -> CaseResult {
    let (request, first, _) = new_group(context).await?;
    let again = expect_success("the same group again", context.create_group_snapshot(&request).await)?;
    expect_equal("the same answer again", &without_volatile_fields(&first), &without_volatile_fields(&again))
}

async fn other_sources(context: &SuiteContext) -> CaseResult {
    let (mut request, _, _) = new_group(context).await?;
    request.sources.pop_last();
    let answer = context.create_group_snapshot(&request).await;
    expect_final_error("the name with other volumes", &answer, &[ErrorKind::AlreadyExists])
}

async fn missing_source(context: &SuiteContext) -> CaseResult {
    let mut sources = two_volumes(context).await?;
    sources.insert(context.nonexistent_volume().handle);
    let parameters = context.options.snapshot_parameters.clone();
    let request =
        CreateGroupSnapshot { name: context.unique_name("group"), sources, parameters, owner: None };
    let answer = context.create_group_snapshot(&request).await;
    expect_final_error("a group with a volume that does not exist", &answer, &[ErrorKind::NotFound])
}

async fn no_source(context: &SuiteContext) -> CaseResult {
    let request = CreateGroupSnapshot {
        name: context.unique_name("group"),
        sources: BTreeSet::new(),
        parameters: context.options.snapshot_parameters.clone(),
        owner: None,
    };
    let answer = context.create_group_snapshot(&request).await;
    expect_final_error("a group of no volumes", &answer, &[ErrorKind::InvalidArgument])
}

async fn members(context: &SuiteContext) -> CaseResult {
    let (request, group, _) = new_group_named(context, "whole-group").await?;
    let mut found: Vec<_> = group.snapshots.iter().map(|member| &member.source).collect();
    found.sort();
    expect_equal("the volumes of its members", &request.sources.iter().collect(), &found)
}

async fn members_name_their_group(context: &SuiteContext) -> CaseResult {
    let (_, group, members) = new_group(context).await?;
    for member in &members {
        let found = expect_success("the member's description", context.get_snapshot(member).await)?;
        expect_equal("its group", &Some(group.handle.clone()), &found.group)?;
    }
    Ok(())
}

async fn get(context: &SuiteContext) -> CaseResult {
    let (_, group, members) = new_group(context).await?;
    let found = expect_success("the description", context.get_group(&group.handle, &members).await)?;
    expect_equal(
        "what the creation answered",
        &without_volatile_fields(&group),
        &without_volatile_fields(&found),
    )
}

fn nonexistent_group(context: &SuiteContext) -> GroupSnapshotHandle {
    GroupSnapshotHandle::new(context.unique_name("ghost-group"))
}

async fn get_missing(context: &SuiteContext) -> CaseResult {
    let answer = context.get_group(&nonexistent_group(context), &GroupMembers::new()).await;
    expect_final_error("a group that does not exist", &answer, &[ErrorKind::NotFound])
}

/// The members' handles, one of them replaced by that of a snapshot that does not exist.
fn foreign_members(context: &SuiteContext, members: &GroupMembers) -> GroupMembers {
    let mut foreign = members.clone();
    foreign.pop_last();
    foreign.insert(SnapshotHandle::new(context.unique_name("ghost-snapshot")));
    foreign
}

async fn get_foreign_members(context: &SuiteContext) -> CaseResult {
    let (_, group, members) = new_group(context).await?;
    let answer = context.get_group(&group.handle, &foreign_members(context, &members)).await;
    expect_final_error("describing a group with a stranger", &answer, &[ErrorKind::InvalidArgument])
}

async fn delete_is_idempotent(context: &SuiteContext) -> CaseResult {
    let (_, group, members) = new_group(context).await?;
    for what in ["delete", "the same delete again"] {
        expect_success(what, context.delete_group_snapshot(&group.handle, &members).await)?;
    }
    expect_success(
        "deleting an unknown group",
        context.delete_group_snapshot(&nonexistent_group(context), &GroupMembers::new()).await,
    )
}

async fn delete_foreign_members(context: &SuiteContext) -> CaseResult {
    let (_, group, members) = new_group(context).await?;
    let foreign = foreign_members(context, &members);
    let call =
        || context.backend.delete_group_snapshot(context.call(), group.handle.clone(), foreign.clone());
    let answer = context.retry_until_final("delete-group-snapshot", call).await;
    expect_final_error("deleting a group with a stranger", &answer, &[ErrorKind::InvalidArgument])?;
    expect_success("the group after that", context.get_group(&group.handle, &members).await).map(drop)
}

async fn delete_members(context: &SuiteContext) -> CaseResult {
    let (_, group, members) = new_group(context).await?;
    expect_success("delete", context.delete_group_snapshot(&group.handle, &members).await)?;
    let mut result = Ok(());
    for member in &members {
        let answer = context.get_snapshot(member).await;
        let check = match &answer {
            Ok(_) => fail("no members without their group", format!("{member} is still there")),
            Err(_) => expect_final_error("a member of a deleted group", &answer, &[ErrorKind::NotFound]),
        };
        if check.is_err() {
            // The deleted group and its members are no longer recorded for the cleanup.
            context.record_snapshot(member);
        }
        result = result.and(check);
    }
    result
}

async fn delete_single_member(context: &SuiteContext) -> CaseResult {
    let (_, _, members) = new_group(context).await?;
    for member in &members {
        let answer = context.delete_snapshot(member).await;
        expect_final_error("deleting a member by itself", &answer, &[ErrorKind::InvalidArgument])?;
    }
    Ok(())
}
