//! What there is, and what there is room for.

use cofferdam_guest::{
    Condition, Owner, ReclaimPolicy, Result, StorageError, VolumeHandle, VolumeStatus,
    abilities::{Capacity, CapacityReport, CapacityRequest, Inspection, Listing, VolumePage},
};

use crate::{Broken, broken, broken_for, db, db::Vol, has, nonce, request, volumes};

/// Reads a place that a listing returned.
pub(crate) fn place(after: Option<String>, rule: &str) -> Result<Option<String>> {
    let Some(after) = after else { return Ok(None) };
    match after.strip_prefix("after:") {
        Some(place) => Ok(Some(place.to_owned())),
        None if broken(rule) => Ok(None),
        None => Err(StorageError::aborted(format!("no listing ended at {after:?}")).nothing_happened()),
    }
}

/// A part of a listing, and where the next one begins. A rule that is broken lets one entry too many through; another one counts
/// entries instead of remembering the last.
pub(crate) fn page<'a, T>(
    all: impl Iterator<Item = (&'a String, T)>,
    place: Option<String>,
    limit: Option<u32>,
    too_many: &str,
    counted: &str,
) -> (Vec<(&'a str, T)>, Option<String>) {
    let mut limit = usize::try_from(limit.filter(|limit| *limit > 0).unwrap_or(100)).unwrap_or(usize::MAX);
    if limit == 1 && broken(too_many) {
        limit = 2;
    }
    let skipped: usize =
        place.as_deref().and_then(|place| place.strip_prefix('#')?.parse().ok()).unwrap_or_default();
    let place = place.filter(|place| !place.starts_with('#'));
    let mut rest =
        all.filter(|(handle, _)| place.as_ref().is_none_or(|place| *handle > place)).skip(skipped).peekable();
    let found: Vec<_> = rest.by_ref().take(limit).map(|(handle, kept)| (handle.as_str(), kept)).collect();
    let last = found.last().filter(|_| rest.peek().is_some());
    let next = last.map(|(handle, _)| {
        if broken(counted) { format!("after:#{}", skipped + found.len()) } else { format!("after:{handle}") }
    });
    (found, next)
}

fn status(handle: &str, kept: &Vol) -> VolumeStatus {
    let mut volume = volumes::volume(handle, kept);
    if kept.size > kept.first_size && broken("expansion/is-seen") {
        volume.capacity_bytes = Some(kept.first_size);
    }
    let nodes = (has("published-nodes") && !broken("features/published-nodes"))
        || broken("features/published-nodes-unannounced");
    let health = (has("volume-condition") && !broken("features/volume-condition"))
        || broken("features/volume-condition-unannounced");
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
        condition: health.then_some(healthy),
        changed_at_ms: Some(if broken("listing/changed-at") { 1 } else { kept.changed }),
    }
}

impl Listing for Broken {
    fn list(after: Option<String>, limit: Option<u32>) -> Result<VolumePage> {
        let db = db::look()?;
        let place = place(after, "listing/bad-token")?;
        if limit.is_some_and(|limit| limit > 1_000_000) && broken("listing/huge-limit") {
            return Err(StorageError::invalid_argument("too many at once"));
        }
        let (found, next) = page(db.volumes.iter(), place, limit, "listing/limit", "listing/while-changing");
        let mut volumes: Vec<_> = found.into_iter().map(|(handle, kept)| status(handle, kept)).collect();
        if next.is_some() && volumes.len() > 1 && broken("listing/each-once") {
            volumes.pop();
        }
        if broken("listing/equals-create") {
            volumes
                .iter_mut()
                .for_each(|status| status.volume.context = vec![("a".to_owned(), "b".to_owned())]);
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
                if broken_for("determinism/reads", &found.name, "reread") {
                    status.condition = Some(Condition { abnormal: false, message: nonce() });
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
