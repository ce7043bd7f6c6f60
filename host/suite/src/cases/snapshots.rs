//! Snapshots.

mod listing;
mod names;

use cofferdam_backend::Backend as _;
use cofferdam_domain::{
    SnapshotHandle, VolumeHandle,
    storage::{Ability, CreateSnapshot, ErrorKind, Snapshot},
};
use tokio::time::{Instant, sleep};

use super::case;
use crate::{
    CaseRequirement::Exports,
    ConformanceCase,
    check::{
        CaseResult, expect_equal, expect_final_error, expect_recent, expect_success,
        expect_success_or_final_error, expect_that, fail,
    },
    context::{SuiteContext, retry_pause},
};

pub(super) const CASES: &[ConformanceCase] = &[
    case!(
        "snapshots/is-idempotent",
        "A repeated create returns the same snapshot, also from another process.",
        "wit snapshots.create; CSI CreateSnapshot",
        [Exports(Ability::Snapshots)],
        is_idempotent
    ),
    case!(
        "snapshots/other-source",
        "Creating the name of a snapshot for a different volume fails with already-exists.",
        "wit snapshots.create; CSI CreateSnapshot",
        [Exports(Ability::Snapshots)],
        other_source
    ),
    case!(
        "snapshots/missing-source",
        "Creating a snapshot of a missing volume fails with not-found.",
        "wit snapshots.create; CSI CreateSnapshot",
        [Exports(Ability::Snapshots)],
        missing_source
    ),
    case!(
        "snapshots/distinct-names",
        "Two names are two snapshots.",
        "wit snapshots.snapshot-request",
        [Exports(Ability::Snapshots)],
        distinct_names
    ),
    case!(
        "snapshots/creation-time",
        "The creation time of a new snapshot is the current time, within a day.",
        "wit types.snapshot; CSI Snapshot",
        [Exports(Ability::Snapshots)],
        creation_time
    ),
    case!(
        "snapshots/become-ready",
        "A snapshot becomes ready while the create is repeated.",
        "wit types.snapshot; CSI CreateSnapshot",
        [Exports(Ability::Snapshots)],
        become_ready
    ),
    case!(
        "snapshots/get",
        "`get` returns the snapshot as create did.",
        "wit snapshots.get; CSI GetSnapshot",
        [Exports(Ability::Snapshots)],
        get
    ),
    case!(
        "snapshots/get-missing",
        "`get` of a missing snapshot fails with not-found.",
        "wit snapshots.get; CSI GetSnapshot",
        [Exports(Ability::Snapshots)],
        get_missing
    ),
    case!(
        "snapshots/delete-is-idempotent",
        "A repeated delete of a snapshot succeeds.",
        "wit snapshots.delete; CSI DeleteSnapshot",
        [Exports(Ability::Snapshots)],
        delete_is_idempotent
    ),
    case!(
        "snapshots/delete-unknown",
        "Deleting a handle that never existed succeeds.",
        "wit snapshots.delete; CSI DeleteSnapshot",
        [Exports(Ability::Snapshots)],
        delete_unknown
    ),
    case!(
        "snapshots/delete-deletes",
        "A deleted snapshot does not exist any more.",
        "wit snapshots.delete; CSI DeleteSnapshot",
        [Exports(Ability::Snapshots)],
        delete_deletes
    ),
    case!(
        "snapshots/outlive-their-volume",
        "Deleting a volume with snapshots succeeds or fails with failed-precondition; the snapshots remain.",
        "wit snapshots; CSI DeleteVolume",
        [Exports(Ability::Snapshots)],
        outlive_their_volume
    ),
    case!(
        "snapshots/list-filter",
        "Listing by volume returns all snapshots of the volume and no others.",
        "wit snapshots.list; CSI ListSnapshots",
        [Exports(Ability::Snapshots)],
        listing::filter
    ),
    case!(
        "snapshots/list-unknown",
        "Listing the snapshots of a missing volume succeeds and returns none.",
        "wit snapshots.list; CSI ListSnapshots",
        [Exports(Ability::Snapshots)],
        listing::unknown
    ),
    case!(
        "snapshots/list-pages",
        "Whatever the page size, the pages contain every snapshot once.",
        "wit snapshots.list; CSI ListSnapshots",
        [Exports(Ability::Snapshots)],
        listing::pages
    ),
    case!(
        "snapshots/list-limit",
        "A page has at most the requested number of entries; any limit is accepted.",
        "wit snapshots.list; CSI ListSnapshots",
        [Exports(Ability::Snapshots)],
        listing::limit
    ),
    case!(
        "snapshots/list-while-changing",
        "Snapshots created or deleted between two pages do not hide others.",
        "wit snapshots.list; CSI ListSnapshots",
        [Exports(Ability::Snapshots)],
        listing::while_changing
    ),
    case!(
        "snapshots/long-names",
        "Names of 128 bytes are accepted; two that differ in the last byte are two snapshots.",
        "wit snapshots.snapshot-request; CSI size limits",
        [Exports(Ability::Snapshots)],
        names::long
    ),
    case!(
        "snapshots/bad-names",
        "A name that is empty, longer than 128 bytes or contains control characters fails with \
         invalid-argument.",
        "wit snapshots.snapshot-request; CSI CreateSnapshot",
        [Exports(Ability::Snapshots)],
        names::bad
    ),
    case!(
        "snapshots/bad-token",
        "A token that no listing returned fails with aborted.",
        "wit snapshots.list; CSI ListSnapshots",
        [Exports(Ability::Snapshots)],
        listing::bad_token
    ),
];

impl SuiteContext {
    /// A request for a snapshot with a unique name.
    pub(super) fn snapshot_request(&self, label: &str, source: &VolumeHandle) -> CreateSnapshot {
        CreateSnapshot {
            name: self.unique_name(label),
            source: source.clone(),
            parameters: self.options.snapshot_parameters.clone(),
            owner: None,
        }
    }

    /// Repeats a create until the snapshot is ready to use. Fails the case if a create fails, or after
    /// `SuiteOptions::retry_timeout`.
    pub(super) async fn wait_snapshot_ready(&self, request: &CreateSnapshot) -> CaseResult<Snapshot> {
        let started = Instant::now();
        for attempt in 0.. {
            let snapshot = expect_success(
                "the same snapshot again",
                self.create_snapshot(&self.backend, request).await,
            )?;
            if snapshot.ready {
                return Ok(snapshot);
            }
            if started.elapsed() >= self.options.retry_timeout {
                break;
            }
            sleep(retry_pause(attempt)).await;
        }
        fail(format!("a ready snapshot within {:?}", self.options.retry_timeout), "it is not ready")
    }

    /// Calls `snapshots.get` for a snapshot, and repeats the call after a retryable error.
    pub(super) async fn get_snapshot(
        &self,
        handle: &SnapshotHandle,
    ) -> Result<Snapshot, cofferdam_domain::storage::StorageError> {
        self.retry_until_final("get-snapshot", || self.backend.get_snapshot(self.call(), handle.clone()))
            .await
    }
}

async fn new_snapshot(context: &SuiteContext, label: &str) -> CaseResult<(CreateSnapshot, Snapshot)> {
    let (_, volume) = context.new_volume("snapped").await?;
    let request = context.snapshot_request(label, &volume.handle);
    let snapshot =
        expect_success("a new snapshot", context.create_snapshot(&context.backend, &request).await)?;
    Ok((request, snapshot))
}

async fn is_idempotent(context: &SuiteContext) -> CaseResult {
    let (request, first) = new_snapshot(context, "snapped-twice").await?;
    for backend in [&context.backend, &context.second_process()] {
        let again =
            expect_success("the same snapshot again", context.create_snapshot(backend, &request).await)?;
        // The snapshot may have become ready meanwhile, and the driver may know its size now.
        let again = Snapshot { ready: first.ready, size: first.size, ..again };
        expect_equal("the same snapshot again", &first, &again)?;
    }
    Ok(())
}

async fn other_source(context: &SuiteContext) -> CaseResult {
    let (request, _) = new_snapshot(context, "snap").await?;
    let (_, other) = context.new_volume("another").await?;
    let answer =
        context.create_snapshot(&context.backend, &CreateSnapshot { source: other.handle, ..request }).await;
    expect_final_error("the name with another volume", &answer, &[ErrorKind::AlreadyExists])
}

async fn missing_source(context: &SuiteContext) -> CaseResult {
    let request = context.snapshot_request("snap", &context.nonexistent_volume().handle);
    let answer = context.create_snapshot(&context.backend, &request).await;
    expect_final_error("a snapshot of a volume that does not exist", &answer, &[ErrorKind::NotFound])
}

async fn distinct_names(context: &SuiteContext) -> CaseResult {
    let (request, first) = new_snapshot(context, "distinct").await?;
    let other = CreateSnapshot { name: context.unique_name("distinct"), ..request };
    let second =
        expect_success("a second snapshot", context.create_snapshot(&context.backend, &other).await)?;
    let expected = || "another handle for another name".to_owned();
    expect_that(first.handle != second.handle, expected, || format!("{:?} for both", second.handle))
}

async fn creation_time(context: &SuiteContext) -> CaseResult {
    let (_, snapshot) = new_snapshot(context, "snap").await?;
    expect_recent(snapshot.created_at_ms)
}

async fn become_ready(context: &SuiteContext) -> CaseResult {
    let (request, _) = new_snapshot(context, "readying").await?;
    context.wait_snapshot_ready(&request).await.map(drop)
}

async fn get(context: &SuiteContext) -> CaseResult {
    let (request, _) = new_snapshot(context, "snap").await?;
    let ready = context.wait_snapshot_ready(&request).await?;
    let found = expect_success("the description", context.get_snapshot(&ready.handle).await)?;
    expect_equal("what the creation answered", &ready, &found)
}

async fn get_missing(context: &SuiteContext) -> CaseResult {
    let handle = SnapshotHandle::new(context.unique_name("ghost-snapshot"));
    let answer = context.get_snapshot(&handle).await;
    expect_final_error("a snapshot that does not exist", &answer, &[ErrorKind::NotFound])
}

async fn delete_is_idempotent(context: &SuiteContext) -> CaseResult {
    let (_, snapshot) = new_snapshot(context, "snap").await?;
    expect_success("delete", context.delete_snapshot(&snapshot.handle).await)?;
    expect_success("the same delete again", context.delete_snapshot(&snapshot.handle).await)?;
    let second = context.second_process();
    let again = || second.delete_snapshot(context.call(), snapshot.handle.clone());
    expect_success(
        "the same delete at another process",
        context.retry_until_final("delete-snapshot", again).await,
    )
}

async fn delete_unknown(context: &SuiteContext) -> CaseResult {
    let unknown = context.unique_name("ghost-snapshot");
    for handle in [unknown.as_str(), "../../etc/passwd", &"h".repeat(10_000)] {
        let short_handle: String = handle.chars().take(40).collect();
        let answer = context.delete_snapshot(&SnapshotHandle::from(handle)).await;
        expect_success(&format!("deleting the unknown snapshot {short_handle:?}"), answer)?;
    }
    Ok(())
}

async fn delete_deletes(context: &SuiteContext) -> CaseResult {
    let (_, snapshot) = new_snapshot(context, "deleted").await?;
    expect_success("delete", context.delete_snapshot(&snapshot.handle).await)?;
    let answer = context.get_snapshot(&snapshot.handle).await;
    expect_final_error("a deleted snapshot", &answer, &[ErrorKind::NotFound])
}

async fn outlive_their_volume(context: &SuiteContext) -> CaseResult {
    let (request, snapshot) = new_snapshot(context, "snap").await?;
    let answer = context.delete(&request.source).await;
    expect_success_or_final_error(
        "deleting a volume with a snapshot",
        &answer,
        &[ErrorKind::FailedPrecondition],
    )?;
    let found =
        expect_success("the snapshot after its volume", context.get_snapshot(&snapshot.handle).await)?;
    expect_equal("its handle", &snapshot.handle, &found.handle)
}
