//! Listing, inspection and capacity.

use std::collections::{BTreeMap, BTreeSet};

use cofferdam_backend::Backend as _;
use cofferdam_domain::{
    VolumeHandle,
    storage::{
        Ability, CapacityQuery, CreateVolume, CreatedVolume, ErrorKind, PageRequest, StorageError,
        VolumeStatus,
    },
};

use super::{
    case,
    volumes::{BAD_SIZE, with_capacity},
};
use crate::{
    CaseRequirement::{Exports, ListingOrInspection},
    ConformanceCase,
    check::{
        CaseResult, expect_equal, expect_error, expect_final_error, expect_recent, expect_success,
        expect_that, fail, skip,
    },
    context::SuiteContext,
};

pub(super) const CASES: &[ConformanceCase] = &[
    case!(
        "listing/each-once",
        "Whatever the page size, the pages contain every volume once.",
        "wit listing.list; CSI ListVolumes",
        [Exports(Ability::Listing)],
        lists_each_once
    ),
    case!(
        "listing/limit",
        "A page has at most the requested number of entries.",
        "wit listing.list; CSI ListVolumes",
        [Exports(Ability::Listing)],
        limit
    ),
    case!(
        "listing/huge-limit",
        "The largest possible limit is accepted.",
        "wit listing.list; CSI ListVolumes",
        [Exports(Ability::Listing)],
        huge_limit
    ),
    case!(
        "listing/while-changing",
        "Volumes created or deleted between two pages do not hide others.",
        "wit listing.list; CSI ListVolumes",
        [Exports(Ability::Listing)],
        list_while_changing
    ),
    case!(
        "listing/changed-at",
        "The change time of a new volume is the current time, within a day.",
        "wit types.volume-status",
        [ListingOrInspection],
        changed_at
    ),
    case!(
        "listing/equals-create",
        "A listed volume equals the response of its create.",
        "wit types.volume-status; CSI ListVolumes",
        [Exports(Ability::Listing)],
        equals_create
    ),
    case!(
        "listing/omits-deleted",
        "A deleted volume is not listed.",
        "wit listing.list; CSI ListVolumes",
        [Exports(Ability::Listing)],
        omits_deleted
    ),
    case!(
        "listing/bad-token",
        "A token that no listing returned fails with aborted.",
        "wit listing.list; CSI ListVolumes",
        [Exports(Ability::Listing)],
        bad_token
    ),
    case!(
        "listing/owner",
        "A driver that stores the owner of a volume returns it unchanged: leak detection depends on it.",
        "wit types.owner",
        [ListingOrInspection],
        owner
    ),
    case!(
        "inspection/equals-create",
        "An inspected volume equals the response of its create.",
        "wit inspection.get; CSI ControllerGetVolume",
        [Exports(Ability::Inspection)],
        inspected_equals_create
    ),
    case!(
        "inspection/missing",
        "Inspecting a missing volume fails with not-found.",
        "wit inspection.get; CSI ControllerGetVolume",
        [Exports(Ability::Inspection)],
        missing
    ),
    case!(
        "inspection/agrees-with-listing",
        "Listing and inspection report the same.",
        "wit types.volume-status",
        [Exports(Ability::Inspection), Exports(Ability::Listing)],
        agrees_with_listing
    ),
    case!(
        "capacity/is-consistent",
        "The available capacity is plausible, and the minimum volume size does not exceed the maximum.",
        "wit capacity.available; CSI GetCapacity",
        [Exports(Ability::Capacity)],
        capacity_is_consistent
    ),
    case!(
        "capacity/no-arguments",
        "The capacity is reported also without capability, parameters and topology.",
        "wit capacity.capacity-request; CSI GetCapacity",
        [Exports(Ability::Capacity)],
        no_arguments
    ),
    case!(
        "capacity/maximum-is-enforced",
        "A volume larger than the reported maximum cannot be created.",
        "wit capacity.capacity-report; CSI GetCapacity",
        [Exports(Ability::Capacity)],
        maximum_is_enforced
    ),
];

/// After this many entries, a listing with a further page fails the case: a listing whose pages repeat never
/// ends.
const MAX_ENTRIES: usize = 100_000;

impl SuiteContext {
    /// All listed volumes, read in pages of at most `limit` entries. With `None`, the driver chooses the size
    /// of the pages.
    pub(crate) async fn list_all(&self, limit: Option<u32>) -> CaseResult<Vec<VolumeStatus>> {
        let mut all = Vec::new();
        let mut after = None;
        loop {
            let page = PageRequest { starting_token: after.take(), max_entries: limit };
            let call = || self.backend.list_volumes(self.call(), page.clone());
            let page = expect_success("a part of the listing", self.retry_until_final("list", call).await)?;
            all.extend(page.volumes);
            match page.next_token {
                Some(next) if all.len() < MAX_ENTRIES => after = Some(next),
                Some(_) => return fail("a listing that ends", format!("{} volumes and more", all.len())),
                None => return Ok(all),
            }
        }
    }

    /// Calls `inspection.get` for a volume, and repeats the call after a retryable error.
    pub(crate) async fn inspect(&self, handle: &VolumeHandle) -> Result<VolumeStatus, StorageError> {
        self.retry_until_final("get", || self.backend.get_volume(self.call(), handle.clone())).await
    }

    /// The status of a volume from each of `inspection` and `listing` that the driver exports, with the
    /// source's name.
    pub(super) async fn volume_statuses(
        &self,
        handle: &VolumeHandle,
    ) -> CaseResult<Vec<(&'static str, VolumeStatus)>> {
        let mut statuses = Vec::new();
        if self.backend.abilities().contains(&Ability::Inspection) {
            statuses.push((
                "inspection",
                expect_success("the volume's description", self.inspect(handle).await)?,
            ));
        }
        if self.backend.abilities().contains(&Ability::Listing) {
            let mut listed = self.list_all(None).await?.into_iter();
            match listed.find(|status| status.volume.handle == *handle) {
                Some(status) => statuses.push(("listing", status)),
                None => return fail(format!("{handle} in the listing"), "it is not listed"),
            }
        }
        Ok(statuses)
    }

    /// The status of a volume from `inspection`, or from `listing` if the driver does not export
    /// `inspection`.
    pub(super) async fn volume_status(&self, handle: &VolumeHandle) -> CaseResult<VolumeStatus> {
        if self.backend.abilities().contains(&Ability::Inspection) {
            return expect_success("the volume's description", self.inspect(handle).await);
        }
        let listed = self.list_all(None).await?.into_iter().find(|status| status.volume.handle == *handle);
        listed.map_or_else(|| fail(format!("{handle} in the listing"), "it is not listed"), Ok)
    }
}

async fn create_several(
    context: &SuiteContext,
) -> CaseResult<BTreeMap<VolumeHandle, (CreateVolume, CreatedVolume)>> {
    let mut volumes = BTreeMap::new();
    for _ in 0..4 {
        let (request, volume) = context.new_volume("listed").await?;
        volumes.insert(volume.handle.clone(), (request, volume));
    }
    Ok(volumes)
}

async fn lists_each_once(context: &SuiteContext) -> CaseResult {
    let volumes = create_several(context).await?;
    for limit in [None, Some(3), Some(2), Some(1)] {
        let listed = context.list_all(limit).await?;
        for handle in volumes.keys() {
            let times = listed.iter().filter(|status| status.volume.handle == *handle).count();
            let expected = || format!("{handle} once in pages of {limit:?}");
            expect_that(times == 1, expected, || format!("{times} times among {} volumes", listed.len()))?;
        }
    }
    Ok(())
}

async fn limit(context: &SuiteContext) -> CaseResult {
    create_several(context).await?;
    for limit in 1..=3 {
        let page = PageRequest { starting_token: None, max_entries: Some(limit) };
        let call = || context.backend.list_volumes(context.call(), page.clone());
        expect_success(&format!("a page of at most {limit}"), context.retry_until_final("list", call).await)?;
    }
    Ok(())
}

async fn huge_limit(context: &SuiteContext) -> CaseResult {
    let volumes = create_several(context).await?;
    let listed = context.list_all(Some(u32::MAX)).await?;
    let missing = volumes.keys().find(|handle| !listed.iter().any(|status| status.volume.handle == **handle));
    expect_that(missing.is_none(), || "every volume".to_owned(), || format!("{missing:?} is missing"))
}

/// Creates four volumes. Deletes those on the first page that has one of them, creates another volume, and
/// reads the other pages. Each of the four that was not deleted must be listed exactly once; the new volume
/// may be listed.
async fn list_while_changing(context: &SuiteContext) -> CaseResult {
    let mut expected: BTreeSet<_> = create_several(context).await?.into_keys().collect();
    let list = async |after: Option<String>| {
        let page = PageRequest { starting_token: after, max_entries: Some(2) };
        let call = || context.backend.list_volumes(context.call(), page.clone());
        expect_success("a part of the listing", context.retry_until_final("list", call).await)
    };
    let mut listed = Vec::new();
    let mut next = None;
    let mut has_changed = false;
    while listed.len() < MAX_ENTRIES {
        let page = list(next.take()).await?;
        let has_own = page.volumes.iter().any(|status| expected.contains(&status.volume.handle));
        // Other volumes may fill the pages before those of this run.
        if has_own && !has_changed {
            has_changed = true;
            for handle in page.volumes.iter().map(|status| &status.volume.handle) {
                if context.has_created(handle) && expected.remove(handle) {
                    expect_success(&format!("delete {handle}"), context.delete(handle).await)?;
                }
            }
            context.new_volume("listed").await?;
        }
        listed.extend(page.volumes.into_iter().map(|status| status.volume.handle));
        match page.next_token {
            Some(token) => next = Some(token),
            None => break,
        }
    }
    for handle in &expected {
        let times = listed.iter().filter(|listed| *listed == handle).count();
        expect_that(
            times == 1,
            || format!("{handle}, which was there all the time, once"),
            || format!("{times} times"),
        )?;
    }
    Ok(())
}

async fn changed_at(context: &SuiteContext) -> CaseResult {
    let (_, volume) = context.new_volume("dated").await?;
    match context.volume_status(&volume.handle).await?.changed_at_ms {
        Some(changed) => expect_recent(changed),
        None => skip("the driver does not know when a volume was changed"),
    }
}

async fn equals_create(context: &SuiteContext) -> CaseResult {
    let volumes = create_several(context).await?;
    for status in context.list_all(None).await? {
        if let Some((_, created)) = volumes.get(&status.volume.handle) {
            expect_equal("what the creation answered", created, &status.volume)?;
        }
    }
    Ok(())
}

async fn omits_deleted(context: &SuiteContext) -> CaseResult {
    let (_, volume) = context.new_volume("forgotten").await?;
    expect_success("delete", context.delete(&volume.handle).await)?;
    let listed = context.list_all(None).await?;
    let gone = listed.iter().all(|status| status.volume.handle != volume.handle);
    let found = || format!("{} is still listed", volume.handle);
    expect_that(gone, || "no deleted volume in the listing".to_owned(), found)
}

async fn bad_token(context: &SuiteContext) -> CaseResult {
    let page =
        PageRequest { starting_token: Some("cofferdam-test-no-such-place".to_owned()), max_entries: None };
    let answer = context.backend.list_volumes(context.call(), page).await;
    expect_error("a token that no listing returned", &answer, ErrorKind::Aborted)
}

async fn owner(context: &SuiteContext) -> CaseResult {
    let (request, volume) = context.new_volume("owned").await?;
    let returned_owner = context.volume_status(&volume.handle).await?.owner;
    context.set_keeps_owners(returned_owner.is_some());
    match returned_owner {
        Some(_) => expect_equal("the owner as it was given", &request.owner, &returned_owner),
        None => skip("the driver does not keep who owns a volume"),
    }
}

async fn inspected_equals_create(context: &SuiteContext) -> CaseResult {
    let (_, volume) = context.new_volume("inspected").await?;
    let status = expect_success("the volume's description", context.inspect(&volume.handle).await)?;
    expect_equal("what the creation answered", &volume, &status.volume)
}

async fn missing(context: &SuiteContext) -> CaseResult {
    let answer = context.inspect(&context.nonexistent_volume().handle).await;
    expect_final_error("a volume that does not exist", &answer, &[ErrorKind::NotFound])?;
    let (_, volume) = context.new_volume("inspected").await?;
    expect_success("delete", context.delete(&volume.handle).await)?;
    expect_final_error("a deleted volume", &context.inspect(&volume.handle).await, &[ErrorKind::NotFound])
}

async fn agrees_with_listing(context: &SuiteContext) -> CaseResult {
    let (_, volume) = context.new_volume("inspected").await?;
    let inspected = expect_success("the volume's description", context.inspect(&volume.handle).await)?;
    let mut listed = context.list_all(None).await?;
    listed.retain(|status| status.volume.handle == volume.handle);
    expect_equal("what inspection tells", &vec![inspected], &listed)
}

fn query(context: &SuiteContext) -> CapacityQuery {
    CapacityQuery {
        capabilities: vec![context.options.capability.clone()],
        parameters: context.options.parameters.clone(),
        topology: context.options.topology.clone(),
    }
}

impl SuiteContext {
    async fn capacity(&self, query: CapacityQuery) -> CaseResult<cofferdam_domain::storage::Capacity> {
        let call = || self.backend.get_capacity(self.call(), query.clone());
        expect_success("the room", self.retry_until_final("capacity", call).await)
    }
}

async fn capacity_is_consistent(context: &SuiteContext) -> CaseResult {
    context.capacity(query(context)).await.map(drop)
}

async fn no_arguments(context: &SuiteContext) -> CaseResult {
    context.capacity(CapacityQuery::default()).await.map(drop)
}

async fn maximum_is_enforced(context: &SuiteContext) -> CaseResult {
    let Some(maximum) = context.capacity(query(context)).await?.maximum_volume_size else {
        return skip("the driver does not know the largest volume");
    };
    let request = with_capacity(&context.volume_request("largest"), Some(maximum.saturating_add(1)), None);
    let answer = context.create(&request).await;
    expect_final_error(&format!("a volume of one byte more than {maximum}"), &answer, &BAD_SIZE)
}
