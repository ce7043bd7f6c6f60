//! Lists, part by part, and single volumes as they stand.

use cofferdam_guest::{
    Condition, Result, StorageError, VolumeStatus,
    abilities::VolumePage,
    paging,
    state::{Found, Store},
};

use crate::{
    publishing,
    records::{self, Call, VOLUMES, Volume},
    request, settings, volumes,
};

/// Most entries of a part, also when none or more were asked for.
const MAX_ENTRIES: u32 = 1_000;
/// The condition of a volume of which nothing else was said.
const WELL: &str = "no problem is known";

/// Goes through the keys of a kind, part by part.
#[derive(Debug)]
pub(crate) struct Pages<'a> {
    prefix: &'a str,
    scope: &'a str,
    limit: u32,
    /// The last key that was seen.
    after: Option<String>,
    more: bool,
}

impl<'a> Pages<'a> {
    /// Begins where an earlier part ended. Its token says in which listing that was.
    pub(crate) fn new(
        prefix: &'a str,
        scope: &'a str,
        token: Option<&str>,
        limit: Option<u32>,
    ) -> Result<Self> {
        // No handle of ours has a space.
        let after = match paging::key(token)?.map(|key| key.split_once(' ')) {
            None => None,
            Some(Some((handle, listing))) if listing == scope => Some(format!("{prefix}{handle}")),
            Some(_) => {
                let message = format!("{token:?} is the end of another listing: begin anew");
                return Err(StorageError::aborted(message).nothing_happened().unless_changed());
            }
        };
        let limit = limit.filter(|limit| *limit > 0).unwrap_or(MAX_ENTRIES).min(MAX_ENTRIES);
        Ok(Self { prefix, scope, limit, after, more: true })
    }

    /// The next entries: no more than there is room for beside those that were taken already.
    pub(crate) fn next(&mut self, store: &impl Store, taken: usize) -> Result<Vec<Found>> {
        let room = self.limit.saturating_sub(u32::try_from(taken).unwrap_or(u32::MAX));
        let page = store.scan(self.prefix, self.after.as_deref(), room)?;
        self.more = page.more;
        if let Some(last) = page.entries.last() {
            self.after = Some(last.key.clone());
        }
        Ok(page.entries)
    }

    /// Whether nothing more is to be taken.
    pub(crate) fn is_full(&self, taken: usize) -> bool {
        !self.more || u32::try_from(taken).unwrap_or(u32::MAX) >= self.limit
    }

    /// Where the next part begins; nothing at the end.
    pub(crate) fn token(&self) -> Option<String> {
        let after = self.after.as_deref().filter(|_| self.more)?;
        Some(paging::place(&format!("{} {}", after.strip_prefix(self.prefix)?, self.scope)))
    }
}

/// The handle of an entry.
pub(crate) fn handle<'a>(found: &'a Found, prefix: &str) -> &'a str {
    found.key.strip_prefix(prefix).unwrap_or(&found.key)
}

/// Lists volumes.
pub(crate) fn list<S: Store>(
    call: &Call<'_, S>,
    after: Option<&str>,
    limit: Option<u32>,
) -> Result<VolumePage> {
    let mut pages = Pages::new(VOLUMES, VOLUMES, after, limit)?;
    let entries = pages.next(call.store, 0)?;
    let status = |found: &Found| Ok(status(call.settings, handle(found, VOLUMES), &records::decode(found)?));
    Ok(VolumePage { volumes: entries.iter().map(status).collect::<Result<_>>()?, next: pages.token() })
}

/// Describes a volume.
pub(crate) fn get<S: Store>(call: &Call<'_, S>, handle: &str) -> Result<VolumeStatus> {
    request::given("volume handle", handle)?;
    Ok(status(call.settings, handle, &records::volume(call.store, handle)?.value))
}

fn status(settings: &settings::Settings, handle: &str, record: &Volume) -> VolumeStatus {
    let features = settings.features;
    VolumeStatus {
        volume: volumes::describe(handle, record),
        owner: record.owner.as_ref().map(records::Owner::write),
        published_nodes: if features.published_nodes { publishing::nodes(&record.nodes) } else { Vec::new() },
        condition: features.volume_condition.then(|| condition(settings, record)),
        changed_at_ms: Some(record.changed_ms),
    }
}

fn condition(settings: &settings::Settings, record: &Volume) -> Condition {
    let own = record.shape.parameters.get(request::CONDITION);
    let own = own.and_then(|text| settings::Condition::parse(text).ok());
    match own.or_else(|| settings.condition.clone()) {
        Some(condition) => Condition { abnormal: condition.abnormal, message: condition.message },
        None => Condition { abnormal: false, message: WELL.to_owned() },
    }
}
