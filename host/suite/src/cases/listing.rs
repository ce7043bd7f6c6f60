//! What there is, and what there is room for.

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
    volumes::{BAD_SIZE, sized},
};
use crate::{
    Case,
    Need::{Can, Looks},
    bench::Bench,
    check::{Checked, about_now, done, failed, holds, refused, refused_at_all, same, skipped},
};

pub(super) const CASES: &[Case] = &[
    case!(
        "listing/each-once",
        "Whatever the limit, the pages hold every volume once.",
        "wit listing.list; CSI ListVolumes",
        [Can(Ability::Listing)],
        each_once
    ),
    case!(
        "listing/limit",
        "A page holds no more than was asked for.",
        "wit listing.list; CSI ListVolumes",
        [Can(Ability::Listing)],
        limit
    ),
    case!(
        "listing/huge-limit",
        "The largest limit is answered as any other.",
        "wit listing.list; CSI ListVolumes",
        [Can(Ability::Listing)],
        huge_limit
    ),
    case!(
        "listing/while-changing",
        "Volumes that come and go between two pages do not hide others.",
        "wit listing.list; CSI ListVolumes",
        [Can(Ability::Listing)],
        while_changing
    ),
    case!(
        "listing/changed-at",
        "A volume that was created now was changed now, give or take a day.",
        "wit types.volume-status",
        [Looks],
        changed_at
    ),
    case!(
        "listing/equals-create",
        "A listed volume is what its creation answered.",
        "wit types.volume-status; CSI ListVolumes",
        [Can(Ability::Listing)],
        equals_create
    ),
    case!(
        "listing/forgets-deleted",
        "A deleted volume is not listed any more.",
        "wit listing.list; CSI ListVolumes",
        [Can(Ability::Listing)],
        forgets_deleted
    ),
    case!(
        "listing/bad-token",
        "A place that no listing returned is aborted.",
        "wit listing.list; CSI ListVolumes",
        [Can(Ability::Listing)],
        bad_token
    ),
    case!(
        "listing/owner",
        "A driver that keeps who owns a volume keeps it as it was given: leak detection depends on it.",
        "wit types.owner",
        [Looks],
        owner
    ),
    case!(
        "inspection/equals-create",
        "A described volume is what its creation answered.",
        "wit inspection.get; CSI ControllerGetVolume",
        [Can(Ability::Inspection)],
        inspected_equals_create
    ),
    case!(
        "inspection/missing",
        "A volume that does not exist is not-found.",
        "wit inspection.get; CSI ControllerGetVolume",
        [Can(Ability::Inspection)],
        missing
    ),
    case!(
        "inspection/agrees-with-listing",
        "Listing and inspection tell the same of a volume.",
        "wit types.volume-status",
        [Can(Ability::Inspection), Can(Ability::Listing)],
        agrees_with_listing
    ),
    case!(
        "capacity/sane",
        "The room is a size, and the smallest volume is not larger than the largest.",
        "wit capacity.available; CSI GetCapacity",
        [Can(Ability::Capacity)],
        sane
    ),
    case!(
        "capacity/no-arguments",
        "The room is known also when neither use, parameters nor topology are given.",
        "wit capacity.capacity-request; CSI GetCapacity",
        [Can(Ability::Capacity)],
        no_arguments
    ),
    case!(
        "capacity/maximum-is-true",
        "No volume is larger than the largest one that there is room for.",
        "wit capacity.capacity-report; CSI GetCapacity",
        [Can(Ability::Capacity)],
        maximum_is_true
    ),
];

/// Most entries of a listing that are read: a listing that goes round in circles never ends.
const MOST: usize = 100_000;

impl Bench {
    /// Everything that a listing of volumes returns, part by part.
    pub(crate) async fn list_all(&self, limit: Option<u32>) -> Checked<Vec<VolumeStatus>> {
        let mut all = Vec::new();
        let mut after = None;
        loop {
            let page = PageRequest { starting_token: after.take(), max_entries: limit };
            let begin = || self.backend.list_volumes(self.call(), page.clone());
            let page = done("a part of the listing", self.settled("list", begin).await)?;
            all.extend(page.volumes);
            match page.next_token {
                Some(next) if all.len() < MOST => after = Some(next),
                Some(_) => return failed("a listing that ends", format!("{} volumes and more", all.len())),
                None => return Ok(all),
            }
        }
    }

    /// Describes a volume.
    pub(crate) async fn inspect(&self, handle: &VolumeHandle) -> Result<VolumeStatus, StorageError> {
        self.settled("get", || self.backend.get_volume(self.call(), handle.clone())).await
    }

    /// A volume as it stands, by inspection and by listing, as far as the driver has them.
    pub(super) async fn looks(&self, handle: &VolumeHandle) -> Checked<Vec<(&'static str, VolumeStatus)>> {
        let mut looks = Vec::new();
        if self.backend.abilities().contains(&Ability::Inspection) {
            looks.push(("inspection", done("the volume's description", self.inspect(handle).await)?));
        }
        if self.backend.abilities().contains(&Ability::Listing) {
            let mut listed = self.list_all(None).await?.into_iter();
            match listed.find(|status| status.volume.handle == *handle) {
                Some(status) => looks.push(("listing", status)),
                None => return failed(format!("{handle} in the listing"), "it is not listed"),
            }
        }
        Ok(looks)
    }

    /// A volume as it stands, by inspection or by listing, whichever the driver has.
    pub(super) async fn look(&self, handle: &VolumeHandle) -> Checked<VolumeStatus> {
        if self.backend.abilities().contains(&Ability::Inspection) {
            return done("the volume's description", self.inspect(handle).await);
        }
        let listed = self.list_all(None).await?.into_iter().find(|status| status.volume.handle == *handle);
        listed.map_or_else(|| failed(format!("{handle} in the listing"), "it is not listed"), Ok)
    }
}

async fn some(bench: &Bench) -> Checked<BTreeMap<VolumeHandle, (CreateVolume, CreatedVolume)>> {
    let mut volumes = BTreeMap::new();
    for _ in 0..4 {
        let (request, volume) = bench.volume("listed").await?;
        volumes.insert(volume.handle.clone(), (request, volume));
    }
    Ok(volumes)
}

async fn each_once(bench: &Bench) -> Checked {
    let volumes = some(bench).await?;
    for limit in [None, Some(3), Some(2), Some(1)] {
        let listed = bench.list_all(limit).await?;
        for handle in volumes.keys() {
            let times = listed.iter().filter(|status| status.volume.handle == *handle).count();
            let expected = || format!("{handle} once in pages of {limit:?}");
            holds(times == 1, expected, || format!("{times} times among {} volumes", listed.len()))?;
        }
    }
    Ok(())
}

async fn limit(bench: &Bench) -> Checked {
    some(bench).await?;
    for limit in 1..=3 {
        let page = PageRequest { starting_token: None, max_entries: Some(limit) };
        let begin = || bench.backend.list_volumes(bench.call(), page.clone());
        done(&format!("a page of at most {limit}"), bench.settled("list", begin).await)?;
    }
    Ok(())
}

async fn huge_limit(bench: &Bench) -> Checked {
    let volumes = some(bench).await?;
    let listed = bench.list_all(Some(u32::MAX)).await?;
    let missing = volumes.keys().find(|handle| !listed.iter().any(|status| status.volume.handle == **handle));
    holds(missing.is_none(), || "every volume".to_owned(), || format!("{missing:?} is missing"))
}

/// Deletes what the first page ended with, creates another, and reads on.
async fn while_changing(bench: &Bench) -> Checked {
    let mut wanted: BTreeSet<_> = some(bench).await?.into_keys().collect();
    let list = async |after: Option<String>| {
        let page = PageRequest { starting_token: after, max_entries: Some(2) };
        let begin = || bench.backend.list_volumes(bench.call(), page.clone());
        done("a part of the listing", bench.settled("list", begin).await)
    };
    let mut listed = Vec::new();
    let mut next = None;
    let mut changed = false;
    while listed.len() < MOST {
        let page = list(next.take()).await?;
        let ours =
            page.volumes.iter().map(|status| &status.volume.handle).find(|handle| wanted.contains(handle));
        // Before a page of this run there may be many of strangers.
        if let Some(first) = ours.filter(|_| !changed) {
            changed = true;
            for handle in page.volumes.iter().map(|status| &status.volume.handle) {
                if bench.has_made(handle) && wanted.remove(handle) {
                    done(&format!("delete {first}"), bench.delete(handle).await)?;
                }
            }
            bench.volume("listed").await?;
        }
        listed.extend(page.volumes.into_iter().map(|status| status.volume.handle));
        match page.next_token {
            Some(place) => next = Some(place),
            None => break,
        }
    }
    for handle in &wanted {
        let times = listed.iter().filter(|listed| *listed == handle).count();
        holds(
            times == 1,
            || format!("{handle}, which was there all the time, once"),
            || format!("{times} times"),
        )?;
    }
    Ok(())
}

async fn changed_at(bench: &Bench) -> Checked {
    let (_, volume) = bench.volume("dated").await?;
    match bench.look(&volume.handle).await?.changed_at_ms {
        Some(changed) => about_now(changed),
        None => skipped("the driver does not know when a volume was changed"),
    }
}

async fn equals_create(bench: &Bench) -> Checked {
    let volumes = some(bench).await?;
    for status in bench.list_all(None).await? {
        if let Some((_, created)) = volumes.get(&status.volume.handle) {
            same("what the creation answered", created, &status.volume)?;
        }
    }
    Ok(())
}

async fn forgets_deleted(bench: &Bench) -> Checked {
    let (_, volume) = bench.volume("forgotten").await?;
    done("delete", bench.delete(&volume.handle).await)?;
    let listed = bench.list_all(None).await?;
    let gone = listed.iter().all(|status| status.volume.handle != volume.handle);
    let found = || format!("{} is still listed", volume.handle);
    holds(gone, || "no deleted volume in the listing".to_owned(), found)
}

async fn bad_token(bench: &Bench) -> Checked {
    let page =
        PageRequest { starting_token: Some("cofferdam-test-no-such-place".to_owned()), max_entries: None };
    let answer = bench.backend.list_volumes(bench.call(), page).await;
    refused_at_all("a place that no listing returned", &answer, ErrorKind::Aborted)
}

async fn owner(bench: &Bench) -> Checked {
    let (request, volume) = bench.volume("owned").await?;
    let kept = bench.look(&volume.handle).await?.owner;
    bench.saw_owner(kept.is_some());
    match kept {
        Some(_) => same("the owner as it was given", &request.owner, &kept),
        None => skipped("the driver does not keep who owns a volume"),
    }
}

async fn inspected_equals_create(bench: &Bench) -> Checked {
    let (_, volume) = bench.volume("inspected").await?;
    let status = done("the volume's description", bench.inspect(&volume.handle).await)?;
    same("what the creation answered", &volume, &status.volume)
}

async fn missing(bench: &Bench) -> Checked {
    let answer = bench.inspect(&bench.ghost().handle).await;
    refused("a volume that does not exist", &answer, &[ErrorKind::NotFound])?;
    let (_, volume) = bench.volume("inspected").await?;
    done("delete", bench.delete(&volume.handle).await)?;
    refused("a deleted volume", &bench.inspect(&volume.handle).await, &[ErrorKind::NotFound])
}

async fn agrees_with_listing(bench: &Bench) -> Checked {
    let (_, volume) = bench.volume("inspected").await?;
    let inspected = done("the volume's description", bench.inspect(&volume.handle).await)?;
    let mut listed = bench.list_all(None).await?;
    listed.retain(|status| status.volume.handle == volume.handle);
    same("what inspection tells", &vec![inspected], &listed)
}

fn query(bench: &Bench) -> CapacityQuery {
    CapacityQuery {
        capabilities: vec![bench.options.capability.clone()],
        parameters: bench.options.parameters.clone(),
        topology: bench.options.topology.clone(),
    }
}

impl Bench {
    async fn room(&self, query: CapacityQuery) -> Checked<cofferdam_domain::storage::Capacity> {
        let begin = || self.backend.get_capacity(self.call(), query.clone());
        done("the room", self.settled("capacity", begin).await)
    }
}

async fn sane(bench: &Bench) -> Checked {
    bench.room(query(bench)).await.map(drop)
}

async fn no_arguments(bench: &Bench) -> Checked {
    bench.room(CapacityQuery::default()).await.map(drop)
}

async fn maximum_is_true(bench: &Bench) -> Checked {
    let Some(maximum) = bench.room(query(bench)).await?.maximum_volume_size else {
        return skipped("the driver does not know the largest volume");
    };
    let request = sized(&bench.request("largest"), Some(maximum.saturating_add(1)), None);
    let answer = bench.create(&request).await;
    refused(&format!("a volume of one byte more than {maximum}"), &answer, &BAD_SIZE)
}
