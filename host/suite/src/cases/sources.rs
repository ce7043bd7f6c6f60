//! Volumes with the content of others: cloning and restoring.

use cofferdam_domain::{
    SnapshotHandle, VolumeHandle,
    storage::{Ability, CreateVolume, CreatedVolume, ErrorKind, Snapshot, Validation},
};

use super::{case, volumes::sized};
use crate::{
    Case,
    Need::Can,
    bench::{Bench, Origin},
    check::{Checked, done, done_or_refused, refused, same, skipped},
};

/// What the volumes are made from.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Volume,
    Snapshot,
}

pub(super) const CASES: &[Case] = &[
    case!(
        "cloning/is-idempotent",
        "The same clone again is the same volume.",
        "wit cloning.create-from-volume; CSI CreateVolume",
        [Can(Ability::Cloning)],
        is_idempotent,
        Kind::Volume
    ),
    case!(
        "cloning/missing-source",
        "A clone of a volume that does not exist is not-found.",
        "wit cloning.create-from-volume; CSI CreateVolume",
        [Can(Ability::Cloning)],
        missing_source,
        Kind::Volume
    ),
    case!(
        "cloning/too-small",
        "A clone that must be smaller than its source is out-of-range.",
        "wit cloning.create-from-volume",
        [Can(Ability::Cloning)],
        too_small,
        Kind::Volume
    ),
    case!(
        "cloning/other-source",
        "The name of a clone with another source, or with none, is already-exists.",
        "wit cloning.create-from-volume; CSI CreateVolume",
        [Can(Ability::Cloning)],
        other_source,
        Kind::Volume
    ),
    case!(
        "cloning/outlives-its-source",
        "The source of a clone can be deleted, or that is failed-precondition; the clone stays.",
        "wit cloning; CSI DeleteVolume",
        [Can(Ability::Cloning)],
        outlives_its_source,
        Kind::Volume
    ),
    case!(
        "restoring/is-idempotent",
        "The same restore again is the same volume.",
        "wit restoring.create-from-snapshot; CSI CreateVolume",
        [Can(Ability::Restoring), Can(Ability::Snapshots)],
        is_idempotent,
        Kind::Snapshot
    ),
    case!(
        "restoring/missing-source",
        "A volume of a snapshot that does not exist is not-found.",
        "wit restoring.create-from-snapshot; CSI CreateVolume",
        [Can(Ability::Restoring)],
        missing_source,
        Kind::Snapshot
    ),
    case!(
        "restoring/too-small",
        "A volume that must be smaller than its snapshot is out-of-range.",
        "wit restoring.create-from-snapshot",
        [Can(Ability::Restoring), Can(Ability::Snapshots)],
        too_small,
        Kind::Snapshot
    ),
    case!(
        "restoring/other-source",
        "The name of a restored volume with another snapshot, or with none, is already-exists.",
        "wit restoring.create-from-snapshot; CSI CreateVolume",
        [Can(Ability::Restoring), Can(Ability::Snapshots)],
        other_source,
        Kind::Snapshot
    ),
    case!(
        "restoring/outlives-its-source",
        "The snapshot of a restored volume can be deleted, or that is failed-precondition; the volume stays.",
        "wit restoring; CSI DeleteSnapshot",
        [Can(Ability::Restoring), Can(Ability::Snapshots)],
        outlives_its_source,
        Kind::Snapshot
    ),
];

impl Kind {
    const fn label(self) -> &'static str {
        match self {
            Self::Volume => "cloned",
            Self::Snapshot => "restored",
        }
    }
}

impl Bench {
    /// A ready snapshot of a volume.
    pub(super) async fn snapshot(&self, label: &str, source: &VolumeHandle) -> Checked<Snapshot> {
        let request = self.snapshot_request(label, source);
        done("a new snapshot", self.cut(&self.backend, &request).await)?;
        self.until_ready(&request).await
    }
}

/// Something to make volumes from, with its size.
async fn source(bench: &Bench, kind: Kind) -> Checked<(Origin, u64)> {
    let request = bench.request("source");
    let request = sized(&request, request.capacity.required.map(|size| size.saturating_mul(2)), None);
    let volume = done("a new volume", bench.create(&request).await)?;
    let size = volume.capacity.unwrap_or(bench.options.size.saturating_mul(2));
    Ok(match kind {
        Kind::Volume => (Origin::Volume(volume.handle), size),
        Kind::Snapshot => {
            let snapshot = bench.snapshot("source", &volume.handle).await?;
            (Origin::Snapshot(snapshot.handle), snapshot.size.unwrap_or(size))
        }
    })
}

/// A volume made from something.
async fn made(bench: &Bench, kind: Kind) -> Checked<(Origin, u64, CreateVolume, CreatedVolume)> {
    let (origin, size) = source(bench, kind).await?;
    let request = sized(&bench.request(kind.label()), Some(size), None);
    let volume = done("a volume of a source", bench.create_from(&bench.backend, &request, &origin).await)?;
    Ok((origin, size, request, volume))
}

async fn is_idempotent(bench: &Bench, kind: Kind) -> Checked {
    let (origin, _, request, first) = made(bench, kind).await?;
    for backend in [&bench.backend, &bench.twin()] {
        let again = bench.create_from(backend, &request, &origin).await;
        same("the same answer again", &first, &done("the same call again", again)?)?;
    }
    Ok(())
}

async fn missing_source(bench: &Bench, kind: Kind) -> Checked {
    let origin = match kind {
        Kind::Volume => Origin::Volume(bench.ghost().handle),
        Kind::Snapshot => Origin::Snapshot(SnapshotHandle::new(bench.name("ghost-snapshot"))),
    };
    let answer = bench.create_from(&bench.backend, &bench.request(kind.label()), &origin).await;
    refused("a volume of a source that does not exist", &answer, &[ErrorKind::NotFound])
}

async fn too_small(bench: &Bench, kind: Kind) -> Checked {
    let (origin, size) = source(bench, kind).await?;
    if size < 2 {
        return skipped("the source has no size that anything could be below");
    }
    let request = sized(&bench.request(kind.label()), Some(1), Some(size / 2));
    let answer = bench.create_from(&bench.backend, &request, &origin).await;
    let what = format!("a volume of at most {} bytes of a source of {size}", size / 2);
    refused(&what, &answer, &[ErrorKind::OutOfRange])
}

async fn other_source(bench: &Bench, kind: Kind) -> Checked {
    let (_, size, request, _) = made(bench, kind).await?;
    let (other, other_size) = source(bench, kind).await?;
    let wrong = sized(&request, Some(size.max(other_size)), None);
    for (what, origin) in
        [("the name with another source", other), ("the name without a source", Origin::Empty)]
    {
        let answer = bench.create_from(&bench.backend, &wrong, &origin).await;
        refused(what, &answer, &[ErrorKind::AlreadyExists])?;
    }
    Ok(())
}

async fn outlives_its_source(bench: &Bench, kind: Kind) -> Checked {
    let (origin, _, request, volume) = made(bench, kind).await?;
    let answer = match &origin {
        Origin::Volume(source) => bench.delete(source).await,
        Origin::Snapshot(source) => bench.delete_snapshot(source).await,
        Origin::Empty => Ok(()),
    };
    done_or_refused("deleting the source", &answer, &[ErrorKind::FailedPrecondition])?;
    let answer = done("validating the volume", bench.validate(&volume, &request.capabilities).await)?;
    same("the volume after its source", &Validation::Confirmed, &answer)
}
