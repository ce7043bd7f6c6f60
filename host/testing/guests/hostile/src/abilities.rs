//! Optional interfaces that return invalid responses.

use cofferdam_guest::{
    Condition, Owner, ReclaimPolicy, Result, Snapshot, SnapshotHandle, SnapshotOwner, Volume, VolumeHandle,
    VolumeStatus,
    abilities::{
        GroupRequest, GroupSnapshot, GroupSnapshots, Inspection, Listing, SnapshotPage, SnapshotRequest,
        Snapshots, VolumePage,
    },
};

use crate::{Hostile, echo, echo_message};

fn snapshot(handle: &str, source: &str) -> Snapshot {
    Snapshot {
        handle: handle.to_owned(),
        source: source.to_owned(),
        size_bytes: Some(1),
        created_at_ms: 1,
        ready: true,
        group: None,
        owner: None,
    }
}

fn status(handle: &str) -> VolumeStatus {
    VolumeStatus {
        volume: Volume::new(handle, 1),
        owner: None,
        published_nodes: Vec::new(),
        condition: None,
        changed_at_ms: None,
    }
}

fn owner(cluster_id: String) -> Owner {
    Owner {
        cluster_id,
        claim_uid: String::new(),
        pv_name: String::new(),
        reclaim_policy: ReclaimPolicy::Delete,
    }
}

/// The number of entries of a page and the token of the next page, selected by the token `after` of the page.
/// `limit` is the requested maximum of entries; `None` counts as 1.
fn page(after: Option<String>, limit: Option<u32>) -> (usize, Option<String>) {
    let limit = limit.unwrap_or(1).try_into().unwrap_or(usize::MAX);
    match after.as_deref() {
        Some("same") => (1, after),
        Some("no-next") => (1, Some(String::new())),
        Some("long-next") => (1, Some("n".repeat(10 << 10))),
        Some("too-many") => (limit.saturating_add(1), None),
        Some("good") => (limit, Some("end".to_owned())),
        _ => (0, None),
    }
}

impl Snapshots for Hostile {
    fn create_snapshot(request: SnapshotRequest) -> Result<Snapshot> {
        let mut cut = snapshot(&request.name, &request.source);
        match request.name.as_str() {
            "no-handle" => cut.handle.clear(),
            "echo-handle" => cut.handle = echo(),
            "too-large" => cut.size_bytes = Some(u64::MAX),
            "late" => cut.created_at_ms = u64::MAX,
            "echo-group" => cut.group = Some(echo()),
            "echo-owner" => {
                cut.owner = Some(SnapshotOwner {
                    cluster_id: String::new(),
                    snapshot_uid: String::new(),
                    content_name: echo(),
                    reclaim_policy: ReclaimPolicy::Delete,
                });
            }
            "long-group" => cut.group = Some("g".repeat(129)),
            _ => {}
        }
        Ok(cut)
    }

    fn delete_snapshot(_handle: SnapshotHandle) -> Result<()> {
        Ok(())
    }

    fn get_snapshot(handle: SnapshotHandle) -> Result<Snapshot> {
        Ok(snapshot(if handle == "other" { "another" } else { &handle }, "v"))
    }

    fn list_snapshots(
        source: Option<VolumeHandle>,
        after: Option<String>,
        limit: Option<u32>,
    ) -> Result<SnapshotPage> {
        let source = if after.as_deref() == Some("foreign-source") { None } else { source };
        let has_foreign_source = after.as_deref() == Some("foreign-source");
        let has_echo_owner = after.as_deref() == Some("echo-owner");
        let (count, next) = page(after, limit);
        let entry = snapshot("s", source.as_deref().unwrap_or("foreign-source"));
        let entry = if has_echo_owner {
            let owner = SnapshotOwner {
                cluster_id: echo(),
                snapshot_uid: String::new(),
                content_name: String::new(),
                reclaim_policy: ReclaimPolicy::Delete,
            };
            Snapshot { owner: Some(owner), ..entry }
        } else {
            entry
        };
        let has_entry = has_foreign_source || has_echo_owner;
        Ok(SnapshotPage { snapshots: vec![entry; count.max(usize::from(has_entry))], next })
    }
}

impl GroupSnapshots for Hostile {
    fn create_group_snapshot(request: GroupRequest) -> Result<GroupSnapshot> {
        let member = |source: &String| Snapshot { group: Some("g".to_owned()), ..snapshot(source, source) };
        let mut snapshots: Vec<_> = request.sources.iter().map(member).collect();
        match request.name.as_str() {
            "fewer" => drop(snapshots.pop()),
            "twice" => snapshots.extend_from_within(..1),
            "foreign-source" => {
                snapshots.iter_mut().for_each(|member| member.source = "foreign-source".to_owned())
            }
            "no-member" => snapshots.iter_mut().for_each(|member| member.group = None),
            "echo-member" => snapshots.iter_mut().for_each(|member| member.handle = echo()),
            "not-ready" => snapshots.iter_mut().for_each(|member| member.ready = false),
            _ => {}
        }
        Ok(GroupSnapshot { handle: "g".to_owned(), snapshots, created_at_ms: 1, ready: true })
    }

    fn delete_group_snapshot(_handle: String, _snapshots: Vec<SnapshotHandle>) -> Result<()> {
        Ok(())
    }

    fn get_group_snapshot(handle: String, _snapshots: Vec<SnapshotHandle>) -> Result<GroupSnapshot> {
        let handle = if handle == "other" { "another".to_owned() } else { handle };
        Ok(GroupSnapshot { handle, snapshots: Vec::new(), created_at_ms: 1, ready: true })
    }
}

impl Listing for Hostile {
    fn list_volumes(after: Option<String>, limit: Option<u32>) -> Result<VolumePage> {
        let bad_entry = match after.as_deref() {
            Some("bad-entry") => Some(status("")),
            Some("echo-entry") => Some(status(&echo())),
            _ => None,
        };
        let (count, next) = page(after, limit);
        let bad = bad_entry.is_some();
        let entry = bad_entry.unwrap_or_else(|| status("v"));
        Ok(VolumePage { volumes: vec![entry; count.max(usize::from(bad))], next })
    }
}

impl Inspection for Hostile {
    fn get_volume(handle: VolumeHandle) -> Result<VolumeStatus> {
        let mut found = status(if handle == "other" { "another" } else { &handle });
        match handle.as_str() {
            "echo" => found.condition = Some(Condition { abnormal: true, message: echo_message() }),
            "long-node" => found.published_nodes = vec!["n".repeat(10 << 10)],
            "echo-context" => found.volume.context = vec![("password".to_owned(), echo_message())],
            "echo-node" => found.published_nodes = vec![echo()],
            "echo-owner" => found.owner = Some(owner(echo())),
            "control-node" => found.published_nodes = vec!["a\nb".to_owned()],
            "many-nodes" => found.published_nodes = vec!["n".to_owned(); 10_001],
            "long-owner" => found.owner = Some(owner("c".repeat(10 << 10))),
            _ => {}
        }
        Ok(found)
    }
}
