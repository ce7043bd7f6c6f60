//! Snapshots in lists.

use std::collections::BTreeSet;

use cofferdam_backend::Backend as _;
use cofferdam_domain::{
    SnapshotHandle, VolumeHandle,
    storage::{ErrorKind, PageRequest, Snapshot},
};

use crate::{
    bench::Bench,
    check::{Checked, done, failed, holds, refused_at_all, same},
};

/// Most entries of a listing that are read: a listing that goes round in circles never ends.
const MOST: usize = 100_000;

impl Bench {
    /// Everything that a listing of snapshots returns, part by part.
    pub(crate) async fn list_snapshots(
        &self,
        source: Option<&VolumeHandle>,
        limit: Option<u32>,
    ) -> Checked<Vec<Snapshot>> {
        let mut all = Vec::new();
        let mut after = None;
        loop {
            let page = PageRequest { starting_token: after.take(), max_entries: limit };
            let begin = || self.backend.list_snapshots(self.call(), source.cloned(), page.clone());
            let page = done("a part of the snapshots", self.settled("list-snapshots", begin).await)?;
            all.extend(page.snapshots);
            match page.next_token {
                Some(next) if all.len() < MOST => after = Some(next),
                Some(_) => return failed("a listing that ends", format!("{} snapshots and more", all.len())),
                None => return Ok(all),
            }
        }
    }
}

/// Some snapshots of a new volume.
async fn some(bench: &Bench, count: usize) -> Checked<(VolumeHandle, BTreeSet<SnapshotHandle>)> {
    let (_, volume) = bench.volume("snapped").await?;
    let mut handles = BTreeSet::new();
    for _ in 0..count {
        let request = bench.snapshot_request("listed", &volume.handle);
        handles.insert(done("a new snapshot", bench.cut(&bench.backend, &request).await)?.handle);
    }
    Ok((volume.handle, handles))
}

/// Compares a listing with what must be in it, each once.
fn complete(what: &str, wanted: &BTreeSet<SnapshotHandle>, listed: &[Snapshot]) -> Checked {
    let found: BTreeSet<_> = listed.iter().map(|snapshot| snapshot.handle.clone()).collect();
    holds(
        found.len() == listed.len(),
        || format!("{what}: each snapshot once"),
        || format!("{} entries for {} snapshots", listed.len(), found.len()),
    )?;
    same(what, wanted, &found)
}

pub(super) async fn filter(bench: &Bench) -> Checked {
    let (volume, wanted) = some(bench, 2).await?;
    some(bench, 1).await?;
    complete("the snapshots of a volume", &wanted, &bench.list_snapshots(Some(&volume), None).await?)
}

pub(super) async fn unknown(bench: &Bench) -> Checked {
    let listed = bench.list_snapshots(Some(&bench.ghost().handle), None).await?;
    complete("the snapshots of a volume that does not exist", &BTreeSet::new(), &listed)
}

pub(super) async fn pages(bench: &Bench) -> Checked {
    let (volume, wanted) = some(bench, 4).await?;
    for limit in [None, Some(1), Some(2), Some(3), Some(100)] {
        let listed = bench.list_snapshots(Some(&volume), limit).await?;
        complete(&format!("the snapshots in pages of {limit:?}"), &wanted, &listed)?;
        let all = bench.list_snapshots(None, None).await?;
        let missing = wanted.iter().find(|handle| !all.iter().any(|found| found.handle == **handle));
        holds(
            missing.is_none(),
            || "the listing of all has them too".to_owned(),
            || format!("{missing:?} is missing"),
        )?;
    }
    Ok(())
}

pub(super) async fn limit(bench: &Bench) -> Checked {
    let (volume, _) = some(bench, 3).await?;
    for limit in [1, 2, u32::MAX] {
        let page = PageRequest { starting_token: None, max_entries: Some(limit) };
        let begin = || bench.backend.list_snapshots(bench.call(), Some(volume.clone()), page.clone());
        done(&format!("a page of at most {limit}"), bench.settled("list-snapshots", begin).await)?;
    }
    Ok(())
}

/// Deletes what the first page ended with, cuts another, and reads on.
pub(super) async fn while_changing(bench: &Bench) -> Checked {
    let (volume, mut wanted) = some(bench, 4).await?;
    let list = async |page: PageRequest| {
        let begin = || bench.backend.list_snapshots(bench.call(), Some(volume.clone()), page.clone());
        done("a part of the snapshots", bench.settled("list-snapshots", begin).await)
    };
    let first = list(PageRequest { starting_token: None, max_entries: Some(2) }).await?;
    for snapshot in &first.snapshots {
        wanted.remove(&snapshot.handle);
        done("delete", bench.delete_snapshot(&snapshot.handle).await)?;
    }
    let request = bench.snapshot_request("listed", &volume);
    done("a new snapshot", bench.cut(&bench.backend, &request).await)?;
    let mut rest = Vec::new();
    let mut after = first.next_token;
    while after.is_some() && rest.len() < MOST {
        let page = list(PageRequest { starting_token: after, max_entries: Some(2) }).await?;
        rest.extend(page.snapshots);
        after = page.next_token;
    }
    rest.retain(|snapshot| wanted.contains(&snapshot.handle));
    complete("the snapshots that were there all the time", &wanted, &rest)
}

pub(super) async fn bad_token(bench: &Bench) -> Checked {
    let page =
        PageRequest { starting_token: Some("cofferdam-test-no-such-place".to_owned()), max_entries: None };
    let answer = bench.backend.list_snapshots(bench.call(), None, page).await;
    refused_at_all("a place that no listing returned", &answer, ErrorKind::Aborted)
}
