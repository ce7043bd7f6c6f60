//! Snapshots of several volumes at one moment.

use std::collections::BTreeSet;

use cofferdam_backend::Backend as _;
use cofferdam_domain::{
    GroupSnapshotHandle, SnapshotHandle, VolumeHandle,
    storage::{Ability, CreateGroupSnapshot, ErrorKind, GroupSnapshot, StorageError},
};

use super::case;
use crate::{
    Case,
    Need::Can,
    bench::Bench,
    check::{Checked, done, failed, refused, same},
};

pub(super) const CASES: &[Case] = &[
    case!(
        "group-snapshots/is-idempotent",
        "The same group again is the same group.",
        "wit group-snapshots.create; CSI CreateVolumeGroupSnapshot",
        [Can(Ability::GroupSnapshots)],
        is_idempotent
    ),
    case!(
        "group-snapshots/other-sources",
        "The name of a group with other volumes is already-exists.",
        "wit group-snapshots.create; CSI CreateVolumeGroupSnapshot",
        [Can(Ability::GroupSnapshots)],
        other_sources
    ),
    case!(
        "group-snapshots/missing-source",
        "A group with a volume that does not exist is not-found.",
        "CSI CreateVolumeGroupSnapshot",
        [Can(Ability::GroupSnapshots)],
        missing_source
    ),
    case!(
        "group-snapshots/no-source",
        "A group of no volumes is invalid-argument.",
        "wit group-snapshots.group-request; CSI CreateVolumeGroupSnapshot",
        [Can(Ability::GroupSnapshots)],
        no_source
    ),
    case!(
        "group-snapshots/members",
        "A group has one member for each of its volumes.",
        "wit group-snapshots.group-snapshot; CSI VolumeGroupSnapshot",
        [Can(Ability::GroupSnapshots)],
        members_of_all
    ),
    case!(
        "group-snapshots/members-know",
        "A member by itself says which group it belongs to.",
        "wit types.snapshot; CSI Snapshot",
        [Can(Ability::GroupSnapshots), Can(Ability::Snapshots)],
        members_know
    ),
    case!(
        "group-snapshots/get",
        "A group is described as it was when it was cut.",
        "wit group-snapshots.get; CSI GetVolumeGroupSnapshot",
        [Can(Ability::GroupSnapshots)],
        get
    ),
    case!(
        "group-snapshots/get-missing",
        "A group that does not exist is not-found, also when no members are named.",
        "wit group-snapshots.get; CSI GetVolumeGroupSnapshot",
        [Can(Ability::GroupSnapshots)],
        get_missing
    ),
    case!(
        "group-snapshots/get-strangers",
        "Describing a group with members that are not its own is invalid-argument.",
        "wit group-snapshots.get; CSI GetVolumeGroupSnapshot",
        [Can(Ability::GroupSnapshots)],
        get_strangers
    ),
    case!(
        "group-snapshots/delete-is-idempotent",
        "Deleting a group that does not exist, or no more, is a success.",
        "wit group-snapshots.delete; CSI DeleteVolumeGroupSnapshot",
        [Can(Ability::GroupSnapshots)],
        delete_is_idempotent
    ),
    case!(
        "group-snapshots/delete-strangers",
        "Deleting a group with members that are not its own is invalid-argument, and deletes nothing.",
        "wit group-snapshots.delete; CSI DeleteVolumeGroupSnapshot",
        [Can(Ability::GroupSnapshots)],
        delete_strangers
    ),
    case!(
        "group-snapshots/delete-members",
        "A group's members go with it.",
        "wit group-snapshots.delete; CSI DeleteVolumeGroupSnapshot",
        [Can(Ability::GroupSnapshots), Can(Ability::Snapshots)],
        delete_members
    ),
    case!(
        "group-snapshots/member-stays",
        "Deleting a member by itself is invalid-argument.",
        "wit snapshots.delete; CSI DeleteSnapshot",
        [Can(Ability::GroupSnapshots), Can(Ability::Snapshots)],
        member_stays
    ),
];

pub(super) type Members = BTreeSet<SnapshotHandle>;

impl Bench {
    /// Describes a group.
    pub(super) async fn get_group(
        &self,
        handle: &GroupSnapshotHandle,
        members: &Members,
    ) -> Result<GroupSnapshot, StorageError> {
        let begin = || self.backend.get_group_snapshot(self.call(), handle.clone(), members.clone());
        self.settled("get-group-snapshot", begin).await
    }
}

/// Two volumes.
pub(super) async fn sources(bench: &Bench) -> Checked<BTreeSet<VolumeHandle>> {
    let (_, first) = bench.volume("grouped").await?;
    let (_, second) = bench.volume("grouped").await?;
    Ok([first.handle, second.handle].into())
}

/// A group of two, with its members.
pub(super) async fn group(bench: &Bench) -> Checked<(CreateGroupSnapshot, GroupSnapshot, Members)> {
    labelled(bench, "group").await
}

async fn labelled(bench: &Bench, label: &str) -> Checked<(CreateGroupSnapshot, GroupSnapshot, Members)> {
    let request = CreateGroupSnapshot {
        name: bench.name(label),
        sources: sources(bench).await?,
        parameters: bench.options.snapshot_parameters.clone(),
        owner: None,
    };
    let group = done("a new group", bench.cut_group(&request).await)?;
    let members = group.snapshots.iter().map(|member| member.handle.clone()).collect();
    Ok((request, group, members))
}

/// A group without what may change while it becomes ready, and without the order of its members.
fn settled(group: &GroupSnapshot) -> GroupSnapshot {
    let mut group = group.clone();
    group.ready = true;
    group.snapshots.sort_by(|left, right| left.handle.cmp(&right.handle));
    for member in &mut group.snapshots {
        member.ready = true;
        member.size = None;
    }
    group
}

async fn is_idempotent(bench: &Bench) -> Checked {
    let (request, first, _) = group(bench).await?;
    let again = done("the same group again", bench.cut_group(&request).await)?;
    same("the same answer again", &settled(&first), &settled(&again))
}

async fn other_sources(bench: &Bench) -> Checked {
    let (mut request, _, _) = group(bench).await?;
    request.sources.pop_last();
    let answer = bench.cut_group(&request).await;
    refused("the name with other volumes", &answer, &[ErrorKind::AlreadyExists])
}

async fn missing_source(bench: &Bench) -> Checked {
    let mut sources = sources(bench).await?;
    sources.insert(bench.ghost().handle);
    let parameters = bench.options.snapshot_parameters.clone();
    let request = CreateGroupSnapshot { name: bench.name("group"), sources, parameters, owner: None };
    let answer = bench.cut_group(&request).await;
    refused("a group with a volume that does not exist", &answer, &[ErrorKind::NotFound])
}

async fn no_source(bench: &Bench) -> Checked {
    let request = CreateGroupSnapshot {
        name: bench.name("group"),
        sources: BTreeSet::new(),
        parameters: bench.options.snapshot_parameters.clone(),
        owner: None,
    };
    let answer = bench.cut_group(&request).await;
    refused("a group of no volumes", &answer, &[ErrorKind::InvalidArgument])
}

async fn members_of_all(bench: &Bench) -> Checked {
    let (request, group, _) = labelled(bench, "whole-group").await?;
    let mut found: Vec<_> = group.snapshots.iter().map(|member| &member.source).collect();
    found.sort();
    same("the volumes of its members", &request.sources.iter().collect(), &found)
}

async fn members_know(bench: &Bench) -> Checked {
    let (_, group, members) = group(bench).await?;
    for member in &members {
        let found = done("the member's description", bench.get_snapshot(member).await)?;
        same("its group", &Some(group.handle.clone()), &found.group)?;
    }
    Ok(())
}

async fn get(bench: &Bench) -> Checked {
    let (_, group, members) = group(bench).await?;
    let found = done("the description", bench.get_group(&group.handle, &members).await)?;
    same("what the creation answered", &settled(&group), &settled(&found))
}

fn ghost(bench: &Bench) -> GroupSnapshotHandle {
    GroupSnapshotHandle::new(bench.name("ghost-group"))
}

async fn get_missing(bench: &Bench) -> Checked {
    let answer = bench.get_group(&ghost(bench), &Members::new()).await;
    refused("a group that does not exist", &answer, &[ErrorKind::NotFound])
}

/// Members of which one is not the group's.
fn strangers(bench: &Bench, members: &Members) -> Members {
    let mut strangers = members.clone();
    strangers.pop_last();
    strangers.insert(SnapshotHandle::new(bench.name("ghost-snapshot")));
    strangers
}

async fn get_strangers(bench: &Bench) -> Checked {
    let (_, group, members) = group(bench).await?;
    let answer = bench.get_group(&group.handle, &strangers(bench, &members)).await;
    refused("describing a group with a stranger", &answer, &[ErrorKind::InvalidArgument])
}

async fn delete_is_idempotent(bench: &Bench) -> Checked {
    let (_, group, members) = group(bench).await?;
    for what in ["delete", "the same delete again"] {
        done(what, bench.delete_group(&group.handle, &members).await)?;
    }
    done("deleting an unknown group", bench.delete_group(&ghost(bench), &Members::new()).await)
}

async fn delete_strangers(bench: &Bench) -> Checked {
    let (_, group, members) = group(bench).await?;
    let wrong = strangers(bench, &members);
    let begin = || bench.backend.delete_group_snapshot(bench.call(), group.handle.clone(), wrong.clone());
    let answer = bench.settled("delete-group-snapshot", begin).await;
    refused("deleting a group with a stranger", &answer, &[ErrorKind::InvalidArgument])?;
    done("the group after that", bench.get_group(&group.handle, &members).await).map(drop)
}

async fn delete_members(bench: &Bench) -> Checked {
    let (_, group, members) = group(bench).await?;
    done("delete", bench.delete_group(&group.handle, &members).await)?;
    for member in &members {
        match bench.get_snapshot(member).await {
            // What the group left behind is not forgotten when the case ends.
            Ok(_) => {
                drop(bench.delete_snapshot(member).await);
                return failed("no members without their group", format!("{member} is still there"));
            }
            answer => refused("a member of a deleted group", &answer, &[ErrorKind::NotFound])?,
        }
    }
    Ok(())
}

async fn member_stays(bench: &Bench) -> Checked {
    let (_, _, members) = group(bench).await?;
    for member in &members {
        let answer = bench.delete_snapshot(member).await;
        refused("deleting a member by itself", &answer, &[ErrorKind::InvalidArgument])?;
    }
    Ok(())
}
