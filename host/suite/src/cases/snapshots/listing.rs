//! Listings of snapshots.

use std::collections::BTreeSet;

use cofferdam_backend::Backend as _;
use cofferdam_domain::{
    SnapshotHandle, VolumeHandle,
    storage::{ErrorKind, PageRequest, Snapshot},
};

use crate::{
    check::{CaseResult, expect_equal, expect_error, expect_success, expect_that, fail},
    context::SuiteContext,
};

/// After this many entries, a listing with a further page fails the case: a listing whose pages repeat never
/// ends.
const MAX_ENTRIES: usize = 100_000;

impl SuiteContext {
    /// All listed snapshots, of one volume or of all, read in pages of at most `limit` entries. With `None`,
    /// the driver chooses the size of the pages.
    pub(crate) async fn list_snapshots(
        &self,
        source: Option<&VolumeHandle>,
        limit: Option<u32>,
    ) -> CaseResult<Vec<Snapshot>> {
        let mut all = Vec::new();
        let mut after = None;
        loop {
            let page = PageRequest { starting_token: after.take(), max_entries: limit };
            let call = || self.backend.list_snapshots(self.call(), source.cloned(), page.clone());
            let page = expect_success(
                "a part of the snapshots",
                self.retry_until_final("list-snapshots", call).await,
            )?;
            all.extend(page.snapshots);
            match page.next_token {
                Some(next) if all.len() < MAX_ENTRIES => after = Some(next),
                Some(_) => return fail("a listing that ends", format!("{} snapshots and more", all.len())),
                None => return Ok(all),
            }
        }
    }
}

/// Creates snapshots of a new volume. Returns the volume and the snapshots.
async fn create_several(
    context: &SuiteContext,
    count: usize,
) -> CaseResult<(VolumeHandle, BTreeSet<SnapshotHandle>)> {
    let (_, volume) = context.new_volume("snapped").await?;
    let mut handles = BTreeSet::new();
    for _ in 0..count {
        let request = context.snapshot_request("listed", &volume.handle);
        handles.insert(
            expect_success("a new snapshot", context.create_snapshot(&context.backend, &request).await)?
                .handle,
        );
    }
    Ok((volume.handle, handles))
}

/// Checks that a listing contains each expected snapshot once, and no others.
fn check_complete(what: &str, expected: &BTreeSet<SnapshotHandle>, listed: &[Snapshot]) -> CaseResult {
    let found: BTreeSet<_> = listed.iter().map(|snapshot| snapshot.handle.clone()).collect();
    expect_that(
        found.len() == listed.len(),
        || format!("{what}: each snapshot once"),
        || format!("{} entries for {} snapshots", listed.len(), found.len()),
    )?;
    expect_equal(what, expected, &found)
}

pub(super) async fn filter(context: &SuiteContext) -> CaseResult {
    let (volume, expected) = create_several(context, 2).await?;
    create_several(context, 1).await?;
    check_complete(
        "the snapshots of a volume",
        &expected,
        &context.list_snapshots(Some(&volume), None).await?,
    )
}

pub(super) async fn unknown(context: &SuiteContext) -> CaseResult {
    let listed = context.list_snapshots(Some(&context.nonexistent_volume().handle), None).await?;
    check_complete("the snapshots of a volume that does not exist", &BTreeSet::new(), &listed)
}

pub(super) async fn pages(context: &SuiteContext) -> CaseResult {
    let (volume, expected) = create_several(context, 4).await?;
    for limit in [None, Some(1), Some(2), Some(3), Some(100)] {
        let listed = context.list_snapshots(Some(&volume), limit).await?;
        check_complete(&format!("the snapshots in pages of {limit:?}"), &expected, &listed)?;
        let all = context.list_snapshots(None, None).await?;
        let missing = expected.iter().find(|handle| !all.iter().any(|found| found.handle == **handle));
        expect_that(
            missing.is_none(),
            || "the listing of all has them too".to_owned(),
            || format!("{missing:?} is missing"),
        )?;
    }
    Ok(())
}

pub(super) async fn limit(context: &SuiteContext) -> CaseResult {
    let (volume, _) = create_several(context, 3).await?;
    for limit in [1, 2, u32::MAX] {
        let page = PageRequest { starting_token: None, max_entries: Some(limit) };
        let call = || context.backend.list_snapshots(context.call(), Some(volume.clone()), page.clone());
        expect_success(
            &format!("a page of at most {limit}"),
            context.retry_until_final("list-snapshots", call).await,
        )?;
    }
    Ok(())
}

/// Deletes the snapshots of the first page, creates a snapshot, and reads the other pages. They must list
/// each of the remaining snapshots exactly once; they may list the new snapshot.
pub(super) async fn while_changing(context: &SuiteContext) -> CaseResult {
    let (volume, mut expected) = create_several(context, 4).await?;
    let list = async |page: PageRequest| {
        let call = || context.backend.list_snapshots(context.call(), Some(volume.clone()), page.clone());
        expect_success("a part of the snapshots", context.retry_until_final("list-snapshots", call).await)
    };
    let first = list(PageRequest { starting_token: None, max_entries: Some(2) }).await?;
    for snapshot in &first.snapshots {
        expected.remove(&snapshot.handle);
        expect_success("delete", context.delete_snapshot(&snapshot.handle).await)?;
    }
    let request = context.snapshot_request("listed", &volume);
    expect_success("a new snapshot", context.create_snapshot(&context.backend, &request).await)?;
    let mut rest = Vec::new();
    let mut after = first.next_token;
    while after.is_some() && rest.len() < MAX_ENTRIES {
        let page = list(PageRequest { starting_token: after, max_entries: Some(2) }).await?;
        rest.extend(page.snapshots);
        after = page.next_token;
    }
    rest.retain(|snapshot| expected.contains(&snapshot.handle));
    check_complete("the snapshots that were there all the time", &expected, &rest)
}

pub(super) async fn bad_token(context: &SuiteContext) -> CaseResult {
    let page =
        PageRequest { starting_token: Some("cofferdam-test-no-such-place".to_owned()), max_entries: None };
    let answer = context.backend.list_snapshots(context.call(), None, page).await;
    expect_error("a token that no listing returned", &answer, ErrorKind::Aborted)
}
