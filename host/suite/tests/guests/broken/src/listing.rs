//! What there is, and what there is room for.

use cofferdam_guest::{
    Condition, Owner, ReclaimPolicy, Result, StorageError, VolumeHandle, VolumeStatus,
    abilities::{Capacity, CapacityReport, CapacityRequest, Inspection, Listing, VolumePage},
};

use crate::{Broken, broken, db, db::Vol, has, request, volumes};

/// Reads a place that a listing returned.
pub(crate) fn place(after: Option<String>, rule: &str) -> Result<Option<String>> {
    let Some(after) = after else { return Ok(None) };
    match after.strip_prefix("after:") {
        Some(place) => Ok(Some(place.to_owned())),
        None if broken(rule) => Ok(None),
        None => Err(StorageError::aborted(format!("no listing ended at {after:?}")).nothing_happened()),
    }
}

fn status(handle: &str, kept: &Vol) -> VolumeStatus {
    let mut volume = volumes::volume(handle, kept);
    if kept.size > kept.first_size && broken("expansion/is-seen") {
        volume.capacity_bytes = Some(kept.first_size);
    }
    let nodes = has("published-nodes") && !broken("features/published-nodes");
    let healthy = Condition { abnormal: false, message: format!("parameters {:?}", kept.mutable) };
    VolumeStatus {
        volume,
        owner: kept.owner.as_ref().map(|owner| Owner {
            cluster_id: owner.cluster.clone(),
            claim_uid: if broken("listing/owner") { "another".to_owned() } else { owner.claim.clone() },
            pv_name: owner.volume.clone(),
            reclaim_policy: if owner.retain { ReclaimPolicy::Retain } else { ReclaimPolicy::Delete },
        }),
        published_nodes: if nodes { kept.published.keys().cloned().collect() } else { Vec::new() },
        condition: (has("volume-condition") && !broken("features/volume-condition")).then_some(healthy),
        changed_at_ms: Some(kept.changed),
    }
}

impl Listing for Broken {
    fn list(after: Option<String>, limit: Option<u32>) -> Result<VolumePage> {
        let db = db::look()?;
        let place = place(after, "listing/bad-token")?;
        let mut limit = usize::try_from(limit.filter(|limit| *limit > 0).unwrap_or(100)).unwrap_or(usize::MAX);
        if limit == 1 && broken("listing/limit") {
            limit = 2;
        }
        let mut found = db
            .volumes
            .iter()
            .filter(|(handle, _)| place.as_ref().is_none_or(|place| *handle > place));
        let mut volumes: Vec<_> = found.by_ref().take(limit).map(|(handle, kept)| status(handle, kept)).collect();
        let last = volumes.last().map(|last| format!("after:{}", last.volume.handle));
        let next = found.next().and(last);
        if next.is_some() && volumes.len() > 1 && broken("listing/each-once") {
            volumes.pop();
        }
        if broken("listing/equals-create") {
            volumes.iter_mut().for_each(|status| status.volume.context = vec![("a".to_owned(), "b".to_owned())]);
        }
        Ok(VolumePage { volumes, next })
    }
}

impl Inspection for Broken {
    fn get(handle: VolumeHandle) -> Result<VolumeStatus> {
        let db = db::look()?;
        match db.volumes.get(&handle) {
            Some(found) => {
                let mut status = status(&handle, found);
                if broken("inspection/equals-create") {
                    status.volume.context = vec![("a".to_owned(), "b".to_owned())];
                }
                if broken("inspection/agrees-with-listing") {
                    status.changed_at_ms = Some(1);
                }
                Ok(status)
            }
            None if broken("inspection/missing") => Err(StorageError::invalid_argument("what is that")),
            None => Err(StorageError::not_found(format!("there is no volume {handle:?}"))),
        }
    }
}

impl Capacity for Broken {
    fn available(wanted: CapacityRequest) -> Result<CapacityReport> {
        if wanted.capabilities.is_empty() && broken("capacity/no-arguments") {
            return Err(StorageError::invalid_argument("room for what"));
        }
        let minimum = if broken("capacity/sane") { u64::MAX >> 1 } else { 1 };
        let maximum = if broken("capacity/maximum-is-true") { 1 } else { request::MAX_SIZE };
        Ok(CapacityReport {
            available_bytes: 1 << 60,
            maximum_volume_bytes: Some(maximum),
            minimum_volume_bytes: Some(minimum),
        })
    }
}
