//! Snapshots and groups of them.

use std::collections::BTreeSet;

use cofferdam_guest::{
    Result, Snapshot, SnapshotHandle, StorageError, VolumeHandle,
    abilities::{GroupRequest, GroupSnapshot, GroupSnapshots, SnapshotPage, SnapshotRequest, Snapshots},
};

use crate::{
    Broken, broken, broken_for, dawdle,
    db::{self, Db, Group, Snap},
    nonce, request,
};

fn snapshot(handle: &str, kept: &Snap) -> Snapshot {
    let late = broken_for("snapshots/is-idempotent", &kept.name, "snapped-twice");
    let created_at_ms = match () {
        () if late => u64::from_le_bytes(cofferdam_guest::ambient::random::<8>()) >> 20,
        () if broken("snapshots/creation-time") => 0,
        () => kept.created,
    };
    Snapshot {
        handle: handle.to_owned(),
        source: kept.source.clone(),
        size_bytes: Some(kept.size),
        created_at_ms,
        ready: !broken_for("snapshots/become-ready", &kept.name, "readying"),
        group: kept.group.clone(),
        owner: None,
    }
}

fn handle_of(name: &str) -> String {
    let one = broken_for("snapshots/distinct-names", name, "distinct");
    let name = if one { name.trim_end_matches(char::is_alphanumeric) } else { name };
    let name = if broken("snapshots/long-names") { name.get(..100).unwrap_or(name) } else { name };
    format!("s-{}", request::digest(name))
}

/// Looks whether the snapshot is there, and cuts it when it was not.
fn leap(wanted: &SnapshotRequest, handle: &str) -> Result<Snapshot> {
    if let Some((handle, found)) = db::look()?.snapshots.iter().find(|(_, found)| found.name == wanted.name) {
        return Ok(snapshot(handle, found));
    }
    dawdle();
    let handle = format!("{handle}-{}", nonce().get(..8).unwrap_or_default());
    db::change(|db| {
        let size = size(db, &wanted.source, "-")?;
        let (name, source, created) = (wanted.name.clone(), wanted.source.clone(), db::now());
        let kept = Snap { name, source, size, created, group: None };
        let cut = snapshot(&handle, &kept);
        db.snapshots.insert(handle.clone(), kept);
        Ok(cut)
    })
}

impl Snapshots for Broken {
    fn create(wanted: SnapshotRequest) -> Result<Snapshot> {
        if !broken("snapshots/bad-names") {
            request::name(&wanted.name)?;
        }
        let handle = handle_of(&wanted.name);
        if broken_for("concurrency/same-snapshot", &wanted.name, "snap-race") {
            return leap(&wanted, &handle);
        }
        let dying = broken_for("crashes/snapshot", &wanted.name, "dying-snapshot");
        if dying && db::scribbled(&format!("cut/{handle}"))? {
            return Err(StorageError::already_exists("it was begun before"));
        }
        if dying {
            db::scribble(&format!("cut/{handle}"))?;
        }
        let cut = db::change(|db| {
            if let Some(found) = db.snapshots.get(&handle) {
                if found.source != wanted.source && !broken("snapshots/other-source") {
                    return Err(StorageError::already_exists(format!(
                        "{:?} is of another volume",
                        wanted.name
                    )));
                }
                return Ok(snapshot(&handle, found));
            }
            let size = size(db, &wanted.source, "snapshots/missing-source")?;
            let kept = Snap {
                name: wanted.name.clone(),
                source: wanted.source.clone(),
                size,
                created: db::now(),
                group: None,
            };
            let cut = snapshot(&handle, &kept);
            db.snapshots.insert(handle.clone(), kept);
            Ok(cut)
        })?;
        if dying {
            db::wipe(&format!("cut/{handle}"))?;
        }
        Ok(cut)
    }

    fn delete(handle: SnapshotHandle) -> Result<()> {
        let dying = |name: &str| broken_for("crashes/delete-snapshot", name, "dying-uncut");
        if db::look()?.snapshots.get(&handle).is_some_and(|found| dying(&found.name)) {
            db::scribble(&format!("trash/{handle}"))?;
            delete(&handle)?;
            return db::wipe(&format!("trash/{handle}"));
        }
        delete(&handle)
    }

    fn get(handle: SnapshotHandle) -> Result<Snapshot> {
        let db = db::look()?;
        match db.snapshots.get(&handle) {
            Some(found) => {
                let mut found = snapshot(&handle, found);
                if broken("group-snapshots/members-know") {
                    found.group = None;
                }
                if broken("snapshots/get") {
                    found.size_bytes = Some(1);
                }
                Ok(found)
            }
            None if !handle.starts_with("s-") && broken("snapshots/get-missing") => {
                Err(StorageError::invalid_argument("what is that"))
            }
            None => Err(StorageError::not_found(format!("there is no snapshot {handle:?}"))),
        }
    }

    fn list(source: Option<VolumeHandle>, after: Option<String>, limit: Option<u32>) -> Result<SnapshotPage> {
        let db = db::look()?;
        if let Some(source) = &source
            && broken("snapshots/list-unknown")
            && !db.volumes.contains_key(source)
        {
            return Err(StorageError::not_found("there is no such volume"));
        }
        let filter = source.filter(|_| !broken("snapshots/list-filter"));
        let place = crate::listing::place(after, "snapshots/bad-token")?;
        let filtered = filter.is_some();
        let of_source = |kept: &Snap| filter.as_ref().is_none_or(|source| kept.source == *source);
        let all = db.snapshots.iter().filter(|(_, kept)| of_source(kept));
        let (found, next) =
            crate::listing::page(all, place, limit, "snapshots/list-limit", "snapshots/list-while-changing");
        let mut snapshots: Vec<_> = found.into_iter().map(|(handle, kept)| snapshot(handle, kept)).collect();
        if next.is_some() && filtered && snapshots.len() > 1 && broken("snapshots/list-pages") {
            snapshots.pop();
        }
        Ok(SnapshotPage { snapshots, next })
    }
}

fn delete(handle: &str) -> Result<()> {
    db::change(|db| {
        let Some(found) = db.snapshots.get(handle) else {
            let ours = handle.starts_with("s-");
            if (ours && broken("snapshots/delete-is-idempotent"))
                || (!ours && broken("snapshots/delete-unknown"))
            {
                return Err(StorageError::not_found("there is no such snapshot"));
            }
            return Ok(());
        };
        if found.group.is_some() && !broken("group-snapshots/member-stays") {
            return Err(StorageError::invalid_argument("it belongs to a group"));
        }
        if broken_for("snapshots/delete-deletes", &found.name, "deleted") {
            return Ok(());
        }
        db.snapshots.remove(handle);
        if broken("restoring/outlives-its-source") {
            db.volumes.retain(|_, volume| volume.origin.as_deref() != Some(handle));
        }
        Ok(())
    })
}

fn size(db: &Db, source: &str, rule: &str) -> Result<u64> {
    match db.volumes.get(source) {
        Some(volume) => Ok(volume.size),
        None if broken(rule) => Ok(1),
        None => Err(StorageError::not_found(format!("there is no volume {source:?}"))),
    }
}

fn group(db: &Db, handle: &str, kept: &Group) -> GroupSnapshot {
    let member = |member: &String| db.snapshots.get(member).map(|kept| snapshot(member, kept));
    let whole = |name: &str| broken_for("group-snapshots/members", name, "whole-group");
    let short =
        kept.members.iter().filter_map(|member| db.snapshots.get(member)).any(|kept| whole(&kept.name));
    GroupSnapshot {
        handle: handle.to_owned(),
        snapshots: kept.members.iter().skip(usize::from(short)).filter_map(member).collect(),
        created_at_ms: kept.created,
        ready: true,
    }
}

fn members(kept: &Group, given: &[SnapshotHandle], rule: &str) -> Result<()> {
    let given: BTreeSet<_> = given.iter().cloned().collect();
    if given != kept.members && !broken(rule) {
        return Err(StorageError::invalid_argument("these are not the group's members"));
    }
    Ok(())
}

fn cut_group(wanted: &GroupRequest, handle: &str) -> Result<GroupSnapshot> {
    let sources: BTreeSet<_> = wanted.sources.iter().cloned().collect();
    db::change(|db| {
        if let Some(found) = db.groups.get(handle) {
            let strange = found.sources != sources && !broken("group-snapshots/other-sources");
            if strange || (found.sources == sources && broken("group-snapshots/is-idempotent")) {
                return Err(StorageError::already_exists(format!("{:?} is of other volumes", wanted.name)));
            }
            return Ok(group(db, handle, found));
        }
        let created = db::now();
        let mut kept = Group { sources: sources.clone(), members: BTreeSet::new(), created };
        for source in &sources {
            let size = size(db, source, "group-snapshots/missing-source")?;
            let name = format!("{} of {source}", wanted.name);
            let member = format!("s-{}", request::digest(&name));
            let group = Some(handle.to_owned());
            db.snapshots.insert(member.clone(), Snap { name, source: source.clone(), size, created, group });
            kept.members.insert(member);
        }
        let cut = group(db, handle, &kept);
        db.groups.insert(handle.to_owned(), kept);
        Ok(cut)
    })
}

impl GroupSnapshots for Broken {
    fn create(wanted: GroupRequest) -> Result<GroupSnapshot> {
        request::name(&wanted.name)?;
        if wanted.sources.is_empty() && !broken("group-snapshots/no-source") {
            return Err(StorageError::invalid_argument("a group of no volumes"));
        }
        let handle = format!("g-{}", request::digest(&wanted.name));
        if broken_for("crashes/group-snapshot", &wanted.name, "dying-group") {
            return db::marked(&format!("grouping/{handle}"), || cut_group(&wanted, &handle));
        }
        cut_group(&wanted, &handle)
    }

    fn delete(handle: String, snapshots: Vec<SnapshotHandle>) -> Result<()> {
        db::change(|db| {
            let Some(found) = db.groups.get(&handle) else {
                if broken("group-snapshots/delete-is-idempotent") {
                    return Err(StorageError::not_found("there is no such group"));
                }
                return Ok(());
            };
            members(found, &snapshots, "group-snapshots/delete-strangers")?;
            let gone = found.members.clone();
            db.groups.remove(&handle);
            if broken("group-snapshots/delete-members") {
                let freed =
                    gone.iter().filter_map(|member| db.snapshots.remove(member).map(|kept| (member, kept)));
                let freed: Vec<_> =
                    freed.map(|(member, kept)| (member.clone(), Snap { group: None, ..kept })).collect();
                db.snapshots.extend(freed);
            } else {
                db.snapshots.retain(|member, _| !gone.contains(member));
            }
            Ok(())
        })
    }

    fn get(handle: String, snapshots: Vec<SnapshotHandle>) -> Result<GroupSnapshot> {
        let db = db::look()?;
        let Some(found) = db.groups.get(&handle) else {
            if broken("group-snapshots/get-missing") {
                return Err(StorageError::invalid_argument("what is that"));
            }
            return Err(StorageError::not_found(format!("there is no group {handle:?}")));
        };
        members(found, &snapshots, "group-snapshots/get-strangers")?;
        let mut found = group(&db, &handle, found);
        if broken("group-snapshots/get") {
            found.created_at_ms = found.created_at_ms.wrapping_add(u64::from(nonce().len() == 32));
        }
        Ok(found)
    }
}
