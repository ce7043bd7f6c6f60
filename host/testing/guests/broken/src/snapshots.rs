//! Snapshots and group snapshots.

use std::collections::BTreeSet;

use cofferdam_guest::{
    Result, Snapshot, SnapshotHandle, StorageError, VolumeHandle,
    abilities::{GroupRequest, GroupSnapshot, GroupSnapshots, SnapshotPage, SnapshotRequest, Snapshots},
};

use crate::{
    BrokenDriver, busy_wait, check_deletable,
    db::{self, BrokenDriverState, GroupEntry, SnapshotEntry},
    is_broken, is_broken_for, nonce, request,
};

fn snapshot_of(handle: &str, stored: &SnapshotEntry) -> Snapshot {
    let has_random_time = is_broken_for("snapshots/is-idempotent", &stored.name, "snapped-twice");
    let created_at_ms = match () {
        () if has_random_time => u64::from_le_bytes(cofferdam_guest::ambient::random::<8>()) >> 20,
        () if is_broken("snapshots/creation-time") => 0,
        () => stored.created_at_ms,
    };
    Snapshot {
        handle: handle.to_owned(),
        source: stored.source.clone(),
        size_bytes: Some(stored.size),
        created_at_ms,
        ready: !is_broken_for("snapshots/become-ready", &stored.name, "readying"),
        group: stored.group.clone(),
        owner: None,
    }
}

fn handle_of(name: &str) -> String {
    let is_shared = is_broken_for("snapshots/distinct-names", name, "distinct");
    let name = if is_shared { name.trim_end_matches(char::is_alphanumeric) } else { name };
    let name = if is_broken("snapshots/long-names") { name.get(..100).unwrap_or(name) } else { name };
    format!("s-{}", request::digest(name))
}

/// Creates a snapshot unless it exists. The check and the change are separate transactions: concurrent calls
/// create two.
fn create_without_lock(wanted: &SnapshotRequest, handle: &str) -> Result<Snapshot> {
    if let Some((handle, found)) = db::load()?.snapshots.iter().find(|(_, found)| found.name == wanted.name) {
        return Ok(snapshot_of(handle, found));
    }
    busy_wait();
    let handle = format!("{handle}-{}", nonce().get(..8).unwrap_or_default());
    db::update(|db| {
        let size = source_size(db, &wanted.source, "-")?;
        let (name, source, created) = (wanted.name.clone(), wanted.source.clone(), db::now());
        let stored = SnapshotEntry { name, source, size, created_at_ms: created, group: None };
        let cut = snapshot_of(&handle, &stored);
        db.snapshots.insert(handle.clone(), stored);
        Ok(cut)
    })
}

impl Snapshots for BrokenDriver {
    fn create_snapshot(wanted: SnapshotRequest) -> Result<Snapshot> {
        if !is_broken("snapshots/bad-names") {
            request::check_name(&wanted.name)?;
        }
        let handle = handle_of(&wanted.name);
        if is_broken_for("concurrency/same-snapshot", &wanted.name, "snap-race") {
            return create_without_lock(&wanted, &handle);
        }
        let dying = is_broken_for("crashes/snapshot", &wanted.name, "dying-snapshot");
        if dying && db::has_marker(&format!("cut/{handle}"))? {
            return Err(StorageError::already_exists("it was begun before"));
        }
        if dying {
            db::write_marker(&format!("cut/{handle}"))?;
        }
        let cut = db::update(|db| {
            if let Some(found) = db.snapshots.get(&handle) {
                if found.source != wanted.source && !is_broken("snapshots/other-source") {
                    return Err(StorageError::already_exists(format!(
                        "{:?} is of another volume",
                        wanted.name
                    )));
                }
                return Ok(snapshot_of(&handle, found));
            }
            let size = source_size(db, &wanted.source, "snapshots/missing-source")?;
            let stored = SnapshotEntry {
                name: wanted.name.clone(),
                source: wanted.source.clone(),
                size,
                created_at_ms: db::now(),
                group: None,
            };
            let cut = snapshot_of(&handle, &stored);
            db.snapshots.insert(handle.clone(), stored);
            Ok(cut)
        })?;
        if dying {
            db::remove_marker(&format!("cut/{handle}"))?;
        }
        Ok(cut)
    }

    fn delete_snapshot(handle: SnapshotHandle) -> Result<()> {
        let dying = |name: &str| is_broken_for("crashes/delete-snapshot", name, "dying-uncut");
        if db::load()?.snapshots.get(&handle).is_some_and(|found| dying(&found.name)) {
            db::write_marker(&format!("trash/{handle}"))?;
            delete(&handle)?;
            return db::remove_marker(&format!("trash/{handle}"));
        }
        delete(&handle)
    }

    fn get_snapshot(handle: SnapshotHandle) -> Result<Snapshot> {
        let db = db::load()?;
        match db.snapshots.get(&handle) {
            Some(found) => {
                let mut found = snapshot_of(&handle, found);
                if is_broken("group-snapshots/members-name-their-group") {
                    found.group = None;
                }
                if is_broken("snapshots/get") {
                    found.size_bytes = Some(1);
                }
                Ok(found)
            }
            None if !handle.starts_with("s-") && is_broken("snapshots/get-missing") => {
                Err(StorageError::invalid_argument("what is that"))
            }
            None => Err(StorageError::not_found(format!("there is no snapshot {handle:?}"))),
        }
    }

    fn list_snapshots(
        source: Option<VolumeHandle>,
        after: Option<String>,
        limit: Option<u32>,
    ) -> Result<SnapshotPage> {
        let db = db::load()?;
        if let Some(source) = &source
            && is_broken("snapshots/list-unknown")
            && !db.volumes.contains_key(source)
        {
            return Err(StorageError::not_found("there is no such volume"));
        }
        let filter = source.filter(|_| !is_broken("snapshots/list-filter"));
        let place = crate::listing::parse_token(after, "snapshots/bad-token")?;
        let filtered = filter.is_some();
        let of_source =
            |stored: &SnapshotEntry| filter.as_ref().is_none_or(|source| stored.source == *source);
        let all = db.snapshots.iter().filter(|(_, stored)| of_source(stored));
        let (found, next) = crate::listing::list_page(
            all,
            place,
            limit,
            "snapshots/list-limit",
            "snapshots/list-while-changing",
        );
        let mut snapshots: Vec<_> =
            found.into_iter().map(|(handle, stored)| snapshot_of(handle, stored)).collect();
        if next.is_some() && filtered && snapshots.len() > 1 && is_broken("snapshots/list-pages") {
            snapshots.pop();
        }
        Ok(SnapshotPage { snapshots, next })
    }
}

fn delete(handle: &str) -> Result<()> {
    db::update(|db| {
        let Some(found) = db.snapshots.get(handle) else {
            let ours = handle.starts_with("s-");
            if (ours && is_broken("snapshots/delete-is-idempotent"))
                || (!ours && is_broken("snapshots/delete-unknown"))
            {
                return Err(StorageError::not_found("there is no such snapshot"));
            }
            return Ok(());
        };
        if found.group.is_some() && !is_broken("group-snapshots/delete-single-member") {
            return Err(StorageError::invalid_argument("it belongs to a group"));
        }
        if is_broken_for("snapshots/delete-deletes", &found.name, "deleted") {
            return Ok(());
        }
        check_deletable(handle, &found.name)?;
        db.snapshots.remove(handle);
        if is_broken("restoring/outlives-its-source") {
            db.volumes.retain(|_, volume| volume.origin.as_deref() != Some(handle));
        }
        Ok(())
    })
}

fn source_size(db: &BrokenDriverState, source: &str, rule: &str) -> Result<u64> {
    match db.volumes.get(source) {
        Some(volume) => Ok(volume.size),
        None if is_broken(rule) => Ok(1),
        None => Err(StorageError::not_found(format!("there is no volume {source:?}"))),
    }
}

fn group_snapshot(db: &BrokenDriverState, handle: &str, stored: &GroupEntry) -> GroupSnapshot {
    let member = |member: &String| db.snapshots.get(member).map(|stored| snapshot_of(member, stored));
    let whole = |name: &str| is_broken_for("group-snapshots/members", name, "whole-group");
    let short =
        stored.members.iter().filter_map(|member| db.snapshots.get(member)).any(|stored| whole(&stored.name));
    GroupSnapshot {
        handle: handle.to_owned(),
        snapshots: stored.members.iter().skip(usize::from(short)).filter_map(member).collect(),
        created_at_ms: stored.created_at_ms,
        ready: true,
    }
}

fn check_members(stored: &GroupEntry, requested: &[SnapshotHandle], rule: &str) -> Result<()> {
    let requested: BTreeSet<_> = requested.iter().cloned().collect();
    if requested != stored.members && !is_broken(rule) {
        return Err(StorageError::invalid_argument("these are not the group's members"));
    }
    Ok(())
}

fn create_group(wanted: &GroupRequest, handle: &str) -> Result<GroupSnapshot> {
    let sources: BTreeSet<_> = wanted.sources.iter().cloned().collect();
    db::update(|db| {
        if let Some(found) = db.groups.get(handle) {
            let has_other_sources = found.sources != sources && !is_broken("group-snapshots/other-sources");
            if has_other_sources || (found.sources == sources && is_broken("group-snapshots/is-idempotent")) {
                return Err(StorageError::already_exists(format!("{:?} is of other volumes", wanted.name)));
            }
            return Ok(group_snapshot(db, handle, found));
        }
        let created = db::now();
        let mut stored =
            GroupEntry { sources: sources.clone(), members: BTreeSet::new(), created_at_ms: created };
        for source in &sources {
            let size = source_size(db, source, "group-snapshots/missing-source")?;
            let name = format!("{} of {source}", wanted.name);
            let member = format!("s-{}", request::digest(&name));
            let group = Some(handle.to_owned());
            db.snapshots.insert(
                member.clone(),
                SnapshotEntry { name, source: source.clone(), size, created_at_ms: created, group },
            );
            stored.members.insert(member);
        }
        let cut = group_snapshot(db, handle, &stored);
        db.groups.insert(handle.to_owned(), stored);
        Ok(cut)
    })
}

impl GroupSnapshots for BrokenDriver {
    fn create_group_snapshot(wanted: GroupRequest) -> Result<GroupSnapshot> {
        request::check_name(&wanted.name)?;
        if wanted.sources.is_empty() && !is_broken("group-snapshots/no-source") {
            return Err(StorageError::invalid_argument("a group of no volumes"));
        }
        let handle = format!("g-{}", request::digest(&wanted.name));
        if is_broken_for("crashes/group-snapshot", &wanted.name, "dying-group") {
            return db::with_marker(&format!("grouping/{handle}"), || create_group(&wanted, &handle));
        }
        create_group(&wanted, &handle)
    }

    fn delete_group_snapshot(handle: String, snapshots: Vec<SnapshotHandle>) -> Result<()> {
        db::update(|db| {
            let Some(found) = db.groups.get(&handle) else {
                if is_broken("group-snapshots/delete-is-idempotent") {
                    return Err(StorageError::not_found("there is no such group"));
                }
                return Ok(());
            };
            check_members(found, &snapshots, "group-snapshots/delete-foreign-members")?;
            let gone = found.members.clone();
            db.groups.remove(&handle);
            if is_broken("group-snapshots/delete-members") {
                let freed = gone
                    .iter()
                    .filter_map(|member| db.snapshots.remove(member).map(|stored| (member, stored)));
                let freed: Vec<_> = freed
                    .map(|(member, stored)| (member.clone(), SnapshotEntry { group: None, ..stored }))
                    .collect();
                db.snapshots.extend(freed);
            } else {
                db.snapshots.retain(|member, _| !gone.contains(member));
            }
            Ok(())
        })
    }

    fn get_group_snapshot(handle: String, snapshots: Vec<SnapshotHandle>) -> Result<GroupSnapshot> {
        let db = db::load()?;
        let Some(found) = db.groups.get(&handle) else {
            if is_broken("group-snapshots/get-missing") {
                return Err(StorageError::invalid_argument("what is that"));
            }
            return Err(StorageError::not_found(format!("there is no group {handle:?}")));
        };
        check_members(found, &snapshots, "group-snapshots/get-foreign-members")?;
        let mut found = group_snapshot(&db, &handle, found);
        if is_broken("group-snapshots/get") {
            found.created_at_ms = found.created_at_ms.wrapping_add(u64::from(nonce().len() == 32));
        }
        Ok(found)
    }
}
