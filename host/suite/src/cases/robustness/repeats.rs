//! Calls that change nothing.

use cofferdam_backend::Backend as _;
use cofferdam_domain::storage::{Ability, CreateVolume, CreatedVolume, PageRequest, Snapshot};

use crate::{
    bench::Bench,
    check::{Checked, done, same},
};

pub(super) async fn reads(bench: &Bench) -> Checked {
    let (request, volume) = bench.volume("reread").await?;
    let snapshot = if bench.backend.abilities().contains(&Ability::Snapshots) {
        Some(bench.snapshot("reread", &volume.handle).await?)
    } else {
        None
    };
    let first = told(bench, &request, &volume, snapshot.as_ref()).await?;
    let second = told(bench, &request, &volume, snapshot.as_ref()).await?;
    first.iter().zip(&second).try_for_each(|((what, first), (_, second))| same(what, first, second))
}

/// Everything that the driver tells of a volume and its snapshot, each with what it is.
async fn told(
    bench: &Bench,
    request: &CreateVolume,
    volume: &CreatedVolume,
    snapshot: Option<&Snapshot>,
) -> Checked<Vec<(&'static str, String)>> {
    let can = |ability| bench.backend.abilities().contains(&ability);
    let validation = done("validate", bench.validate(volume, &request.capabilities).await)?;
    let mut told = vec![("the validation", format!("{validation:?}"))];
    if can(Ability::Inspection) {
        let status = done("the description", bench.inspect(&volume.handle).await)?;
        told.push(("the description", format!("{status:?}")));
    }
    if can(Ability::Listing) {
        // Volumes of others may come and go.
        let mut listed = bench.list_all(None).await?;
        listed.retain(|status| status.volume.handle == volume.handle);
        told.push(("the listed volume", format!("{listed:?}")));
    }
    if let Some(snapshot) = snapshot {
        let found = done("the snapshot", bench.get_snapshot(&snapshot.handle).await)?;
        told.push(("the snapshot", format!("{found:?}")));
        let source = Some(volume.handle.clone());
        let page = bench.backend.list_snapshots(bench.call(), source, PageRequest::default()).await;
        told.push(("the snapshots of the volume", format!("{:?}", done("the snapshots", page)?)));
    }
    Ok(told)
}
