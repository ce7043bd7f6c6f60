//! Listing, inspection and capacity.

use cofferdam_guest::{
    Condition, Owner, ReclaimPolicy, Result, StorageError, VolumeHandle, VolumeStatus,
    abilities::{Capacity, CapacityReport, CapacityRequest, Inspection, Listing, VolumePage},
};

use crate::{
    BrokenDriver, db, db::VolumeEntry, has_feature, is_broken, is_broken_for, nonce, request, volumes,
};

/// Returns the position that a page token names: the handle or the offset after which the page begins. `None`
/// is the first page. If the rule `rule` is broken, an invalid token is the first page, too.
pub(crate) fn parse_token(after: Option<String>, rule: &str) -> Result<Option<String>> {
    let Some(after) = after else { return Ok(None) };
    match after.strip_prefix("after:") {
        Some(place) => Ok(Some(place.to_owned())),
        None if is_broken(rule) => Ok(None),
        None => Err(StorageError::aborted(format!("no listing ended at {after:?}")).without_effect()),
    }
}

/// A page, and the token of the next one. If the rule `too_many` is broken, a page of at most one entry has
/// two. If the rule `counted` is broken, tokens contain offsets, not handles.
pub(crate) fn list_page<'a, T>(
    all: impl Iterator<Item = (&'a String, T)>,
    place: Option<String>,
    limit: Option<u32>,
    too_many: &str,
    counted: &str,
) -> (Vec<(&'a str, T)>, Option<String>) {
    let mut limit = usize::try_from(limit.filter(|limit| *limit > 0).unwrap_or(100)).unwrap_or(usize::MAX);
    if limit == 1 && is_broken(too_many) {
        limit = 2;
    }
    let skipped: usize =
        place.as_deref().and_then(|place| place.strip_prefix('#')?.parse().ok()).unwrap_or_default();
    let place = place.filter(|place| !place.starts_with('#'));
    let mut rest =
        all.filter(|(handle, _)| place.as_ref().is_none_or(|place| *handle > place)).skip(skipped).peekable();
    let found: Vec<_> = rest.by_ref().take(limit).map(|(handle, stored)| (handle.as_str(), stored)).collect();
    let last = found.last().filter(|_| rest.peek().is_some());
    let next = last.map(|(handle, _)| {
        if is_broken(counted) {
            format!("after:#{}", skipped + found.len())
        } else {
            format!("after:{handle}")
        }
    });
    (found, next)
}

fn volume_status(handle: &str, stored: &VolumeEntry) -> VolumeStatus {
    let mut volume = volumes::volume_of(handle, stored);
    if stored.size > stored.first_size && is_broken("expansion/is-reported") {
        volume.capacity_bytes = Some(stored.first_size);
    }
    let has_nodes = (has_feature("published-nodes") && !is_broken("features/published-nodes"))
        || is_broken("features/published-nodes-unannounced");
    let has_condition = (has_feature("volume-condition") && !is_broken("features/volume-condition"))
        || is_broken("features/volume-condition-unannounced");
    let healthy =
        Condition { abnormal: false, message: format!("parameters {:?}", stored.mutable_parameters) };
    VolumeStatus {
        volume,
        owner: stored.owner.as_ref().map(|owner| Owner {
            cluster_id: owner.cluster.clone(),
            claim_uid: if is_broken("listing/owner") { "another".to_owned() } else { owner.claim.clone() },
            pv_name: owner.volume.clone(),
            reclaim_policy: if owner.is_retained { ReclaimPolicy::Retain } else { ReclaimPolicy::Delete },
        }),
        published_nodes: if has_nodes { stored.published.keys().cloned().collect() } else { Vec::new() },
        condition: has_condition.then_some(healthy),
        changed_at_ms: Some(if is_broken("listing/changed-at") { 1 } else { stored.changed_at_ms }),
    }
}

impl Listing for BrokenDriver {
    fn list_volumes(after: Option<String>, limit: Option<u32>) -> Result<VolumePage> {
        let db = db::load()?;
        let place = parse_token(after, "listing/bad-token")?;
        if limit.is_some_and(|limit| limit > 1_000_000) && is_broken("listing/huge-limit") {
            return Err(StorageError::invalid_argument("too many at once"));
        }
        let (found, next) =
            list_page(db.volumes.iter(), place, limit, "listing/limit", "listing/while-changing");
        let mut volumes: Vec<_> =
            found.into_iter().map(|(handle, stored)| volume_status(handle, stored)).collect();
        if next.is_some() && volumes.len() > 1 && is_broken("listing/each-once") {
            volumes.pop();
        }
        if is_broken("listing/equals-create") {
            volumes
                .iter_mut()
                .for_each(|status| status.volume.context = vec![("a".to_owned(), "b".to_owned())]);
        }
        Ok(VolumePage { volumes, next })
    }
}

impl Inspection for BrokenDriver {
    fn get_volume(handle: VolumeHandle) -> Result<VolumeStatus> {
        let db = db::load()?;
        match db.volumes.get(&handle) {
            Some(found) => {
                let mut status = volume_status(&handle, found);
                if is_broken("inspection/equals-create") {
                    status.volume.context = vec![("a".to_owned(), "b".to_owned())];
                }
                if is_broken_for("determinism/reads", &found.name, "reread") {
                    status.condition = Some(Condition { abnormal: false, message: nonce() });
                }
                if is_broken("inspection/agrees-with-listing") {
                    status.changed_at_ms = Some(1);
                }
                Ok(status)
            }
            None if is_broken("inspection/missing") => Err(StorageError::invalid_argument("what is that")),
            None => Err(StorageError::not_found(format!("there is no volume {handle:?}"))),
        }
    }
}

impl Capacity for BrokenDriver {
    fn available(wanted: CapacityRequest) -> Result<CapacityReport> {
        if wanted.capabilities.is_empty() && is_broken("capacity/no-arguments") {
            return Err(StorageError::invalid_argument("room for what"));
        }
        let minimum = if is_broken("capacity/is-consistent") { u64::MAX >> 1 } else { 1 };
        let maximum = if is_broken("capacity/maximum-is-enforced") { 1 } else { request::MAX_SIZE };
        Ok(CapacityReport {
            available_bytes: 1 << 60,
            maximum_volume_bytes: Some(maximum),
            minimum_volume_bytes: Some(minimum),
        })
    }
}
