//! Snapshots of several volumes at the same point in time, created in one commit.

use std::collections::{BTreeMap, BTreeSet};

use cofferdam_guest::{
    Result, StorageError,
    abilities::{GroupRequest, GroupSnapshot},
    handle,
    state::{self, Change, Decision, Store, Versioned, decide},
};

use crate::{
    records::{
        self, MemoryCall, MemoryGroup, MemoryOwner, MemorySnapshot, VersionedStorageUsage, group_key,
        read_entry, snapshot_key,
    },
    request::{self, LABEL},
    snapshots,
};

/// Maximum number of members. Each member is one change of the commit; the group and the usage entry are two
/// more.
const MAX_MEMBERS: usize = 14;

/// Creates a group, or returns the existing one.
pub(crate) fn create<S: Store>(call: &MemoryCall<'_, S>, request: &GroupRequest) -> Result<GroupSnapshot> {
    let handle = request::handle_from_name("group", "group name", &request.name)?;
    let sources = sources(request)?;
    let owner = request.owner.as_ref().map(MemoryOwner::from_snapshot_owner).transpose()?;
    let mut parameters = request::parse_parameters(&request.parameters, &[LABEL])?;
    // Metadata that the caller adds about its own objects is not part of the group.
    parameters.retain(|key, _| key == LABEL);
    decide(call.store, |_| {
        if let Some(found) = read_entry::<MemoryGroup>(call.store, &handle, group_key)? {
            check_same_arguments(&found.value, request, &sources, &parameters)?;
            return count_poll(call.store, &handle, &found.value);
        }
        let mut usage = VersionedStorageUsage::read(call.store)?;
        usage.usage.add_snapshots(sources.len(), call.settings)?;
        let mut changes = vec![usage.to_change()?];
        let mut members = BTreeMap::new();
        let mut answer = Vec::with_capacity(sources.len());
        for source in &sources {
            let size = records::read_volume(call.store, source)?.value.size;
            // A name with a space always becomes a digest, so the handle cannot be confused with a plain
            // name.
            let member = handle::from_name("member", &format!("{handle} {source}"));
            let record = MemorySnapshot {
                owner: owner.clone(),
                name: request.name.clone(),
                source: (*source).clone(),
                size,
                created_ms: call.now_ms,
                polls_left: call.settings.snapshot_ready_after,
                group: Some(handle.clone()),
            };
            changes.push(state::put(&snapshot_key(&member), &record, None)?);
            answer.push(snapshots::describe(&member, &record));
            members.insert((*source).clone(), member);
        }
        let record = MemoryGroup {
            name: request.name.clone(),
            parameters: parameters.clone(),
            members,
            created_ms: call.now_ms,
        };
        changes.push(state::put(&group_key(&handle), &record, None)?);
        Ok(Decision::Commit(changes, describe(&handle, &record, answer)))
    })
}

fn sources(request: &GroupRequest) -> Result<BTreeSet<&String>> {
    let count = request.sources.len();
    if count == 0 || count > MAX_MEMBERS {
        return Err(StorageError::invalid_argument(format!(
            "the group {:?} has {count} source volumes; expected 1 to {MAX_MEMBERS}",
            request.name
        )));
    }
    request.sources.iter().try_for_each(|source| request::require_id("source volume", source))?;
    let sources: BTreeSet<_> = request.sources.iter().collect();
    if sources.len() < count {
        return Err(StorageError::invalid_argument("a source volume is given twice"));
    }
    Ok(sources)
}

fn check_same_arguments(
    found: &MemoryGroup,
    request: &GroupRequest,
    sources: &BTreeSet<&String>,
    parameters: &BTreeMap<String, String>,
) -> Result<()> {
    let differs = if !found.members.keys().eq(sources.iter().copied()) {
        "other source volumes"
    } else if found.parameters != *parameters {
        "other parameters"
    } else {
        return Ok(());
    };
    Err(StorageError::already_exists(format!("the group {:?} exists, with {differs}", request.name)))
}

/// Counts a create or get request for an existing group, for each member that is not ready yet. A member
/// becomes ready after as many requests as the setting `snapshot-ready-after` says.
fn count_poll(store: &impl Store, handle: &str, group: &MemoryGroup) -> Result<Decision<GroupSnapshot>> {
    let mut changes = Vec::new();
    let mut members = Vec::with_capacity(group.members.len());
    for (member, Versioned { value: mut record, version }) in read_members(store, group)? {
        if record.polls_left > 0 {
            record.polls_left = record.polls_left.saturating_sub(1);
            changes.push(state::put(&snapshot_key(member), &record, Some(version))?);
        }
        members.push(snapshots::describe(member, &record));
    }
    let answer = describe(handle, group, members);
    Ok(if changes.is_empty() { Decision::Done(answer) } else { Decision::Commit(changes, answer) })
}

fn read_members<'a>(
    store: &impl Store,
    group: &'a MemoryGroup,
) -> Result<Vec<(&'a String, Versioned<MemorySnapshot>)>> {
    let mut members = Vec::with_capacity(group.members.len());
    for member in group.members.values() {
        if let Some(found) = read_entry::<MemorySnapshot>(store, member, snapshot_key)? {
            members.push((member, found));
        }
    }
    Ok(members)
}

/// Rejects a list of members that differs from the group's members.
fn check_members(handle: &str, group: &MemoryGroup, given_members: &[String]) -> Result<()> {
    let members: BTreeSet<_> = group.members.values().collect();
    let given_members: BTreeSet<_> = given_members.iter().collect();
    if members == given_members {
        return Ok(());
    }
    let foreign_member = given_members.difference(&members).next();
    Err(StorageError::invalid_argument(match foreign_member {
        Some(foreign_member) => {
            format!("the snapshot {foreign_member:?} is not a member of the group {handle:?}")
        }
        None => format!(
            "the group {handle:?} has {} members; {} of them were given",
            members.len(),
            given_members.len()
        ),
    }))
}

/// Deletes a group and its members. Succeeds if the group does not exist.
pub(crate) fn delete<S: Store>(call: &MemoryCall<'_, S>, handle: &str, members: &[String]) -> Result<()> {
    request::require_id("group handle", handle)?;
    decide(call.store, |_| {
        let Some(Versioned { value: group, version }) =
            read_entry::<MemoryGroup>(call.store, handle, group_key)?
        else {
            return Ok(Decision::Done(()));
        };
        check_members(handle, &group, members)?;
        let found = read_members(call.store, &group)?;
        let mut usage = VersionedStorageUsage::read(call.store)?;
        let count = found.len().try_into().unwrap_or(u64::MAX);
        usage.usage.snapshots = usage.usage.snapshots.saturating_sub(count);
        let mut changes: Vec<Change> =
            found.iter().map(|(member, found)| state::remove(&snapshot_key(member), found.version)).collect();
        changes.push(state::remove(&group_key(handle), version));
        changes.push(usage.to_change()?);
        Ok(Decision::Commit(changes, ()))
    })
}

/// Returns a group. Counts the request for each member that is not ready yet, see [`count_poll`].
pub(crate) fn get<S: Store>(
    call: &MemoryCall<'_, S>,
    handle: &str,
    members: &[String],
) -> Result<GroupSnapshot> {
    request::require_id("group handle", handle)?;
    decide(call.store, |_| {
        let Some(found) = read_entry::<MemoryGroup>(call.store, handle, group_key)? else {
            return Err(StorageError::not_found(format!("there is no group {handle:?}")));
        };
        check_members(handle, &found.value, members)?;
        count_poll(call.store, handle, &found.value)
    })
}

fn describe(handle: &str, group: &MemoryGroup, members: Vec<cofferdam_guest::Snapshot>) -> GroupSnapshot {
    GroupSnapshot {
        handle: handle.to_owned(),
        created_at_ms: group.created_ms,
        ready: members.iter().all(|member| member.ready),
        snapshots: members,
    }
}
