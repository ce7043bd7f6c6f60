//! Snapshots.

mod listed;
mod names;

use cofferdam_backend::Backend as _;
use cofferdam_domain::{
    SnapshotHandle, VolumeHandle,
    storage::{Ability, CreateSnapshot, ErrorKind, Snapshot},
};
use tokio::time::{Instant, sleep};

use super::case;
use crate::{
    Case,
    Need::Can,
    bench::{Bench, pause_after},
    check::{Checked, about_now, done, done_or_refused, failed, holds, refused, same},
};

pub(super) const CASES: &[Case] = &[
    case!(
        "snapshots/is-idempotent",
        "The same snapshot again is the same snapshot, also at another process.",
        "wit snapshots.create; CSI CreateSnapshot",
        [Can(Ability::Snapshots)],
        is_idempotent
    ),
    case!(
        "snapshots/other-source",
        "The name of a snapshot with another volume is already-exists.",
        "wit snapshots.create; CSI CreateSnapshot",
        [Can(Ability::Snapshots)],
        other_source
    ),
    case!(
        "snapshots/missing-source",
        "A snapshot of a volume that does not exist is not-found.",
        "wit snapshots.create; CSI CreateSnapshot",
        [Can(Ability::Snapshots)],
        missing_source
    ),
    case!(
        "snapshots/distinct-names",
        "Two names are two snapshots.",
        "wit snapshots.snapshot-request",
        [Can(Ability::Snapshots)],
        distinct_names
    ),
    case!(
        "snapshots/creation-time",
        "A snapshot was cut now, give or take a day.",
        "wit types.snapshot; CSI Snapshot",
        [Can(Ability::Snapshots)],
        creation_time
    ),
    case!(
        "snapshots/become-ready",
        "A snapshot becomes ready while its call is repeated.",
        "wit types.snapshot; CSI CreateSnapshot",
        [Can(Ability::Snapshots)],
        become_ready
    ),
    case!(
        "snapshots/get",
        "A snapshot is described as it was when it was cut.",
        "wit snapshots.get; CSI GetSnapshot",
        [Can(Ability::Snapshots)],
        get
    ),
    case!(
        "snapshots/get-missing",
        "A snapshot that does not exist is not-found.",
        "wit snapshots.get; CSI GetSnapshot",
        [Can(Ability::Snapshots)],
        get_missing
    ),
    case!(
        "snapshots/delete-is-idempotent",
        "Deleting a deleted snapshot is a success.",
        "wit snapshots.delete; CSI DeleteSnapshot",
        [Can(Ability::Snapshots)],
        delete_is_idempotent
    ),
    case!(
        "snapshots/delete-unknown",
        "Deleting a handle that was never given is a success.",
        "wit snapshots.delete; CSI DeleteSnapshot",
        [Can(Ability::Snapshots)],
        delete_unknown
    ),
    case!(
        "snapshots/delete-deletes",
        "A deleted snapshot is gone.",
        "wit snapshots.delete; CSI DeleteSnapshot",
        [Can(Ability::Snapshots)],
        delete_deletes
    ),
    case!(
        "snapshots/outlive-their-volume",
        "A volume with snapshots can be deleted, or that is failed-precondition; the snapshots stay.",
        "wit snapshots; CSI DeleteVolume",
        [Can(Ability::Snapshots)],
        outlive_their_volume
    ),
    case!(
        "snapshots/list-filter",
        "The snapshots of one volume are all of its own and no others.",
        "wit snapshots.list; CSI ListSnapshots",
        [Can(Ability::Snapshots)],
        listed::filter
    ),
    case!(
        "snapshots/list-unknown",
        "A volume that does not exist has no snapshots, and that is a success.",
        "wit snapshots.list; CSI ListSnapshots",
        [Can(Ability::Snapshots)],
        listed::unknown
    ),
    case!(
        "snapshots/list-pages",
        "Whatever the limit, the pages hold every snapshot once.",
        "wit snapshots.list; CSI ListSnapshots",
        [Can(Ability::Snapshots)],
        listed::pages
    ),
    case!(
        "snapshots/list-limit",
        "A page holds no more than was asked for, and any limit is answered.",
        "wit snapshots.list; CSI ListSnapshots",
        [Can(Ability::Snapshots)],
        listed::limit
    ),
    case!(
        "snapshots/list-while-changing",
        "Snapshots that come and go between two pages do not hide others.",
        "wit snapshots.list; CSI ListSnapshots",
        [Can(Ability::Snapshots)],
        listed::while_changing
    ),
    case!(
        "snapshots/long-names",
        "Names of 128 bytes work, and two that differ in the last byte are two snapshots.",
        "wit snapshots.snapshot-request; CSI size limits",
        [Can(Ability::Snapshots)],
        names::long
    ),
    case!(
        "snapshots/bad-names",
        "A name that is empty, has more than 128 bytes or has control characters is invalid-argument.",
        "wit snapshots.snapshot-request; CSI CreateSnapshot",
        [Can(Ability::Snapshots)],
        names::bad
    ),
    case!(
        "snapshots/bad-token",
        "A place that no listing returned is aborted.",
        "wit snapshots.list; CSI ListSnapshots",
        [Can(Ability::Snapshots)],
        listed::bad_token
    ),
];

impl Bench {
    /// A request for a snapshot of a fresh name.
    pub(super) fn snapshot_request(&self, label: &str, source: &VolumeHandle) -> CreateSnapshot {
        CreateSnapshot {
            name: self.name(label),
            source: source.clone(),
            parameters: self.options.snapshot_parameters.clone(),
            owner: None,
        }
    }

    /// Repeats a snapshot's call until it is ready.
    pub(super) async fn until_ready(&self, request: &CreateSnapshot) -> Checked<Snapshot> {
        let begun = Instant::now();
        for round in 0.. {
            let snapshot = done("the same snapshot again", self.cut(&self.backend, request).await)?;
            if snapshot.ready {
                return Ok(snapshot);
            }
            if begun.elapsed() >= self.options.patience {
                break;
            }
            sleep(pause_after(round)).await;
        }
        failed(format!("a ready snapshot within {:?}", self.options.patience), "it is not ready")
    }

    /// Describes a snapshot.
    pub(super) async fn get_snapshot(
        &self,
        handle: &SnapshotHandle,
    ) -> Result<Snapshot, cofferdam_domain::storage::StorageError> {
        self.settled("get-snapshot", || self.backend.get_snapshot(self.call(), handle.clone())).await
    }
}

async fn cut(bench: &Bench, label: &str) -> Checked<(CreateSnapshot, Snapshot)> {
    let (_, volume) = bench.volume("snapped").await?;
    let request = bench.snapshot_request(label, &volume.handle);
    let snapshot = done("a new snapshot", bench.cut(&bench.backend, &request).await)?;
    Ok((request, snapshot))
}

async fn is_idempotent(bench: &Bench) -> Checked {
    let (request, first) = cut(bench, "snapped-twice").await?;
    for backend in [&bench.backend, &bench.twin()] {
        let again = done("the same snapshot again", bench.cut(backend, &request).await)?;
        // It may have become ready, and its size known, meanwhile.
        let again = Snapshot { ready: first.ready, size: first.size, ..again };
        same("the same snapshot again", &first, &again)?;
    }
    Ok(())
}

async fn other_source(bench: &Bench) -> Checked {
    let (request, _) = cut(bench, "snap").await?;
    let (_, other) = bench.volume("another").await?;
    let answer = bench.cut(&bench.backend, &CreateSnapshot { source: other.handle, ..request }).await;
    refused("the name with another volume", &answer, &[ErrorKind::AlreadyExists])
}

async fn missing_source(bench: &Bench) -> Checked {
    let request = bench.snapshot_request("snap", &bench.ghost().handle);
    let answer = bench.cut(&bench.backend, &request).await;
    refused("a snapshot of a volume that does not exist", &answer, &[ErrorKind::NotFound])
}

async fn distinct_names(bench: &Bench) -> Checked {
    let (request, first) = cut(bench, "distinct").await?;
    let other = CreateSnapshot { name: bench.name("distinct"), ..request };
    let second = done("a second snapshot", bench.cut(&bench.backend, &other).await)?;
    let expected = || "another handle for another name".to_owned();
    holds(first.handle != second.handle, expected, || format!("{:?} for both", second.handle))
}

async fn creation_time(bench: &Bench) -> Checked {
    let (_, snapshot) = cut(bench, "snap").await?;
    about_now(snapshot.created_at_ms)
}

async fn become_ready(bench: &Bench) -> Checked {
    let (request, _) = cut(bench, "readying").await?;
    bench.until_ready(&request).await.map(drop)
}

async fn get(bench: &Bench) -> Checked {
    let (request, _) = cut(bench, "snap").await?;
    let ready = bench.until_ready(&request).await?;
    let found = done("the description", bench.get_snapshot(&ready.handle).await)?;
    same("what the creation answered", &ready, &found)
}

async fn get_missing(bench: &Bench) -> Checked {
    let handle = SnapshotHandle::new(bench.name("ghost-snapshot"));
    let answer = bench.get_snapshot(&handle).await;
    refused("a snapshot that does not exist", &answer, &[ErrorKind::NotFound])
}

async fn delete_is_idempotent(bench: &Bench) -> Checked {
    let (_, snapshot) = cut(bench, "snap").await?;
    done("delete", bench.delete_snapshot(&snapshot.handle).await)?;
    done("the same delete again", bench.delete_snapshot(&snapshot.handle).await)?;
    let twin = bench.twin();
    let again = || twin.delete_snapshot(bench.call(), snapshot.handle.clone());
    done("the same delete at another process", bench.settled("delete-snapshot", again).await)
}

async fn delete_unknown(bench: &Bench) -> Checked {
    let unknown = bench.name("ghost-snapshot");
    for handle in [unknown.as_str(), "../../etc/passwd", &"h".repeat(10_000)] {
        let shown: String = handle.chars().take(40).collect();
        let answer = bench.delete_snapshot(&SnapshotHandle::from(handle)).await;
        done(&format!("deleting the unknown snapshot {shown:?}"), answer)?;
    }
    Ok(())
}

async fn delete_deletes(bench: &Bench) -> Checked {
    let (_, snapshot) = cut(bench, "deleted").await?;
    done("delete", bench.delete_snapshot(&snapshot.handle).await)?;
    let answer = bench.get_snapshot(&snapshot.handle).await;
    refused("a deleted snapshot", &answer, &[ErrorKind::NotFound])
}

async fn outlive_their_volume(bench: &Bench) -> Checked {
    let (request, snapshot) = cut(bench, "snap").await?;
    let answer = bench.delete(&request.source).await;
    done_or_refused("deleting a volume with a snapshot", &answer, &[ErrorKind::FailedPrecondition])?;
    let found = done("the snapshot after its volume", bench.get_snapshot(&snapshot.handle).await)?;
    same("its handle", &snapshot.handle, &found.handle)
}
