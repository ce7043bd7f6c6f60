//! Cloning and restoring.

use cofferdam_domain::{
    SnapshotHandle, VolumeHandle,
    storage::{Ability, CreateVolume, CreatedVolume, ErrorKind, Snapshot, Validation},
};

use super::{case, volumes::with_capacity};
use crate::{
    CaseRequirement::Exports,
    ConformanceCase,
    check::{
        CaseResult, expect_equal, expect_final_error, expect_success, expect_success_or_final_error, skip,
    },
    context::{SuiteContext, VolumeOrigin},
};

/// Kind of content source.
#[derive(Clone, Copy, Debug)]
enum ContentSourceKind {
    Volume,
    Snapshot,
}

pub(super) const CASES: &[ConformanceCase] = &[
    case!(
        "cloning/is-idempotent",
        "A repeated clone returns the same volume.",
        "wit cloning.create-from-volume; CSI CreateVolume",
        [Exports(Ability::Cloning)],
        is_idempotent,
        ContentSourceKind::Volume
    ),
    case!(
        "cloning/missing-source",
        "Cloning a missing volume fails with not-found.",
        "wit cloning.create-from-volume; CSI CreateVolume",
        [Exports(Ability::Cloning)],
        missing_source,
        ContentSourceKind::Volume
    ),
    case!(
        "cloning/too-small",
        "A clone with a limit below the size of its source fails with out-of-range.",
        "wit cloning.create-from-volume",
        [Exports(Ability::Cloning)],
        too_small,
        ContentSourceKind::Volume
    ),
    case!(
        "cloning/other-source",
        "Creating the name of a clone with a different source, or none, fails with already-exists.",
        "wit cloning.create-from-volume; CSI CreateVolume",
        [Exports(Ability::Cloning)],
        other_source,
        ContentSourceKind::Volume
    ),
    case!(
        "cloning/outlives-its-source",
        "Deleting the source of a clone succeeds or fails with failed-precondition; the clone remains.",
        "wit cloning; CSI DeleteVolume",
        [Exports(Ability::Cloning)],
        outlives_its_source,
        ContentSourceKind::Volume
    ),
    case!(
        "restoring/is-idempotent",
        "A repeated restore returns the same volume.",
        "wit restoring.create-from-snapshot; CSI CreateVolume",
        [Exports(Ability::Restoring), Exports(Ability::Snapshots)],
        is_idempotent,
        ContentSourceKind::Snapshot
    ),
    case!(
        "restoring/missing-source",
        "Restoring a missing snapshot fails with not-found.",
        "wit restoring.create-from-snapshot; CSI CreateVolume",
        [Exports(Ability::Restoring)],
        missing_source,
        ContentSourceKind::Snapshot
    ),
    case!(
        "restoring/too-small",
        "A restore with a limit below the size of the snapshot fails with out-of-range.",
        "wit restoring.create-from-snapshot",
        [Exports(Ability::Restoring), Exports(Ability::Snapshots)],
        too_small,
        ContentSourceKind::Snapshot
    ),
    case!(
        "restoring/other-source",
        "Creating the name of a restored volume from a different snapshot, or none, fails with \
         already-exists.",
        "wit restoring.create-from-snapshot; CSI CreateVolume",
        [Exports(Ability::Restoring), Exports(Ability::Snapshots)],
        other_source,
        ContentSourceKind::Snapshot
    ),
    case!(
        "restoring/outlives-its-source",
        "Deleting the snapshot of a restored volume succeeds or fails with failed-precondition; the volume \
         remains.",
        "wit restoring; CSI DeleteSnapshot",
        [Exports(Ability::Restoring), Exports(Ability::Snapshots)],
        outlives_its_source,
        ContentSourceKind::Snapshot
    ),
];

impl ContentSourceKind {
    const fn label(self) -> &'static str {
        match self {
            Self::Volume => "cloned",
            Self::Snapshot => "restored",
        }
    }
}

impl SuiteContext {
    /// Creates a snapshot of a volume and waits until it is ready to use. Fails the case if a create fails,
    /// or after `SuiteOptions::retry_timeout`.
    pub(super) async fn ready_snapshot(&self, label: &str, source: &VolumeHandle) -> CaseResult<Snapshot> {
        let request = self.snapshot_request(label, source);
        expect_success("a new snapshot", self.create_snapshot(&self.backend, &request).await)?;
        self.wait_snapshot_ready(&request).await
    }
}

/// Creates a volume of twice the run's size, and for [`ContentSourceKind::Snapshot`] also a snapshot of it.
/// Returns the volume or the snapshot as a content source, with its size in bytes. If the driver reports no
/// size of a snapshot, the size is that of the volume; if it reports none of a volume, the required one.
async fn create_source(context: &SuiteContext, kind: ContentSourceKind) -> CaseResult<(VolumeOrigin, u64)> {
    let request = context.volume_request("source");
    let request = with_capacity(&request, request.capacity.required.map(|size| size.saturating_mul(2)), None);
    let volume = expect_success("a new volume", context.create(&request).await)?;
    let size = volume.capacity.unwrap_or(context.options.size.saturating_mul(2));
    Ok(match kind {
        ContentSourceKind::Volume => (VolumeOrigin::Volume(volume.handle), size),
        ContentSourceKind::Snapshot => {
            let snapshot = context.ready_snapshot("source", &volume.handle).await?;
            (VolumeOrigin::Snapshot(snapshot.handle), snapshot.size.unwrap_or(size))
        }
    })
}

/// Creates a volume from a new content source. Returns the source, its size in bytes, the request and the
/// volume.
async fn volume_from_source(
    context: &SuiteContext,
    kind: ContentSourceKind,
) -> CaseResult<(VolumeOrigin, u64, CreateVolume, CreatedVolume)> {
    let (origin, size) = create_source(context, kind).await?;
    let request = with_capacity(&context.volume_request(kind.label()), Some(size), None);
    let volume = expect_success(
        "a volume of a source",
        context.create_from(&context.backend, &request, &origin).await,
    )?;
    Ok((origin, size, request, volume))
}

async fn is_idempotent(context: &SuiteContext, kind: ContentSourceKind) -> CaseResult {
    let (origin, _, request, first) = volume_from_source(context, kind).await?;
    for backend in [&context.backend, &context.second_process()] {
        let again = context.create_from(backend, &request, &origin).await;
        expect_equal("the same answer again", &first, &expect_success("the same call again", again)?)?;
    }
    Ok(())
}

async fn missing_source(context: &SuiteContext, kind: ContentSourceKind) -> CaseResult {
    let origin = match kind {
        ContentSourceKind::Volume => VolumeOrigin::Volume(context.nonexistent_volume().handle),
        ContentSourceKind::Snapshot => {
            VolumeOrigin::Snapshot(SnapshotHandle::new(context.unique_name("ghost-snapshot")))
        }
    };
    let answer = context.create_from(&context.backend, &context.volume_request(kind.label()), &origin).await;
    expect_final_error("a volume of a source that does not exist", &answer, &[ErrorKind::NotFound])
}

async fn too_small(context: &SuiteContext, kind: ContentSourceKind) -> CaseResult {
    let (origin, size) = create_source(context, kind).await?;
    if size < 2 {
        return skip("the source has no size that anything could be below");
    }
    let request = with_capacity(&context.volume_request(kind.label()), Some(1), Some(size / 2));
    let answer = context.create_from(&context.backend, &request, &origin).await;
    let what = format!("a volume of at most {} bytes of a source of {size}", size / 2);
    expect_final_error(&what, &answer, &[ErrorKind::OutOfRange])
}

async fn other_source(context: &SuiteContext, kind: ContentSourceKind) -> CaseResult {
    let (_, size, request, _) = volume_from_source(context, kind).await?;
    let (other, other_size) = create_source(context, kind).await?;
    let conflicting = with_capacity(&request, Some(size.max(other_size)), None);
    for (what, origin) in
        [("the name with another source", other), ("the name without a source", VolumeOrigin::Empty)]
    {
        let answer = context.create_from(&context.backend, &conflicting, &origin).await;
        expect_final_error(what, &answer, &[ErrorKind::AlreadyExists])?;
    }
    Ok(())
}

async fn outlives_its_source(context: &SuiteContext, kind: ContentSourceKind) -> CaseResult {
    let (origin, _, request, volume) = volume_from_source(context, kind).await?;
    let answer = match &origin {
        VolumeOrigin::Volume(source) => context.delete(source).await,
        VolumeOrigin::Snapshot(source) => context.delete_snapshot(source).await,
        VolumeOrigin::Empty => Ok(()),
    };
    expect_success_or_final_error("deleting the source", &answer, &[ErrorKind::FailedPrecondition])?;
    let answer =
        expect_success("validating the volume", context.validate(&volume, &request.capabilities).await)?;
    expect_equal("the volume after its source", &Validation::Confirmed, &answer)
}
