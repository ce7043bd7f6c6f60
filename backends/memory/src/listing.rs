//! Paged listings, and the status of single volumes.

use cofferdam_guest::{
    Condition, Result, StorageError, VolumeStatus,
    abilities::VolumePage,
    paging,
    state::{ScanEntry, Store},
};

use crate::{
    publishing,
    records::{self, MemoryCall, MemoryVolume, VOLUME_PREFIX},
    request, settings, volumes,
};

/// Maximum entries of a page, also without a limit in the request.
const MAX_ENTRIES: u32 = 1_000;
/// Message of the default condition.
const HEALTHY_MESSAGE: &str = "no problem is known";

/// Reads entries with a key prefix for one page of a listing. A filtered page can need several reads.
#[derive(Debug)]
pub(crate) struct StatePager<'a> {
    prefix: &'a str,
    scope: &'a str,
    limit: u32,
    /// The last key that was read.
    after: Option<String>,
    has_more: bool,
}

impl<'a> StatePager<'a> {
    /// Starts a page: the first, or the one after `token`. `scope` names the listing; tokens of other
    /// listings are rejected.
    pub(crate) fn new(
        prefix: &'a str,
        scope: &'a str,
        token: Option<&str>,
        limit: Option<u32>,
    ) -> Result<Self> {
        // Handles contain no space.
        let after = match paging::key_of_token(token)?.map(|key| key.split_once(' ')) {
            None => None,
            Some(Some((handle, listing))) if listing == scope => Some(format!("{prefix}{handle}")),
            Some(_) => {
                let message = format!("{token:?} is the end of another listing: begin anew");
                return Err(StorageError::aborted(message).without_effect().final_unless_changed());
            }
        };
        let limit = limit.filter(|limit| *limit > 0).unwrap_or(MAX_ENTRIES).min(MAX_ENTRIES);
        Ok(Self { prefix, scope, limit, after, has_more: true })
    }

    /// Reads the next entries, up to the limit minus `listed_count`, the number of entries that are on the
    /// page.
    pub(crate) fn next(&mut self, store: &impl Store, listed_count: usize) -> Result<Vec<ScanEntry>> {
        let page_size = self.limit.saturating_sub(u32::try_from(listed_count).unwrap_or(u32::MAX));
        let page = store.scan(self.prefix, self.after.as_deref(), page_size)?;
        self.has_more = page.more;
        if let Some(last) = page.entries.last() {
            self.after = Some(last.key.clone());
        }
        Ok(page.entries)
    }

    /// Returns true if the page is full or there are no more entries.
    pub(crate) fn is_complete(&self, listed_count: usize) -> bool {
        !self.has_more || u32::try_from(listed_count).unwrap_or(u32::MAX) >= self.limit
    }

    /// The token of the next page, or `None` at the end.
    pub(crate) fn token(&self) -> Option<String> {
        let after = self.after.as_deref().filter(|_| self.has_more)?;
        Some(paging::token(&format!("{} {}", after.strip_prefix(self.prefix)?, self.scope)))
    }
}

/// The handle of an entry.
pub(crate) fn handle<'a>(found: &'a ScanEntry, prefix: &str) -> &'a str {
    found.key.strip_prefix(prefix).unwrap_or(&found.key)
}

/// Lists volumes.
pub(crate) fn list<S: Store>(
    call: &MemoryCall<'_, S>,
    after: Option<&str>,
    limit: Option<u32>,
) -> Result<VolumePage> {
    let mut pages = StatePager::new(VOLUME_PREFIX, VOLUME_PREFIX, after, limit)?;
    let entries = pages.next(call.store, 0)?;
    let status = |found: &ScanEntry| {
        Ok(status(call.settings, handle(found, VOLUME_PREFIX), &records::decode_entry(found)?))
    };
    Ok(VolumePage { volumes: entries.iter().map(status).collect::<Result<_>>()?, next: pages.token() })
}

/// Returns a volume and its status.
pub(crate) fn get<S: Store>(call: &MemoryCall<'_, S>, handle: &str) -> Result<VolumeStatus> {
    request::require_id("volume handle", handle)?;
    Ok(status(call.settings, handle, &records::read_volume(call.store, handle)?.value))
}

fn status(settings: &settings::MemorySettings, handle: &str, record: &MemoryVolume) -> VolumeStatus {
    let features = settings.features;
    VolumeStatus {
        volume: volumes::describe(handle, record),
        owner: record.owner.as_ref().map(records::MemoryOwner::to_volume_owner),
        published_nodes: if features.published_nodes {
            publishing::published_nodes(&record.nodes)
        } else {
            Vec::new()
        },
        condition: features.volume_condition.then(|| condition(settings, record)),
        changed_at_ms: Some(record.changed_ms),
    }
}

fn condition(settings: &settings::MemorySettings, record: &MemoryVolume) -> Condition {
    let volume_condition = record.arguments.parameters.get(request::CONDITION);
    let volume_condition = volume_condition.and_then(|text| settings::ConditionSetting::parse(text).ok());
    match volume_condition.or_else(|| settings.condition.clone()) {
        Some(condition) => Condition { abnormal: condition.abnormal, message: condition.message },
        None => Condition { abnormal: false, message: HEALTHY_MESSAGE.to_owned() },
    }
}
