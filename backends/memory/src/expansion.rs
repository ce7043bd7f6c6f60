//! Volumes grow.

use cofferdam_guest::{
    Result, StorageError,
    abilities::{ExpandRequest, Expanded},
    state::{self, Decision, Store, Versioned, decide},
};

use crate::{
    records::{Books, Call, volume, volume_key},
    request, volumes,
};

/// Makes a volume at least as large as required.
pub(crate) fn expand<S: Store>(call: &Call<'_, S>, request: &ExpandRequest) -> Result<Expanded> {
    request::given("volume handle", &request.handle)?;
    if let Some(capability) = &request.capability {
        request::using(capability, call.settings)?;
    }
    decide(call.store, |_| {
        let Versioned { value: mut found, version } = volume(call.store, &request.handle)?;
        let size = request::grown(request.capacity, found.size)?;
        let expanded = Expanded { capacity_bytes: size, node_expansion: found.is_filesystem() };
        let more = size.saturating_sub(found.size);
        if more == 0 {
            return Ok(Decision::Done(expanded));
        }
        if let Some(node) = found.nodes.keys().next()
            && !call.settings.features.online_expansion
        {
            return Err(StorageError::failed_precondition(format!(
                "the volume {:?} is published to {node:?}, and this driver has not the feature `online-expansion`",
                request.handle
            )));
        }
        let mut books = Books::read(call.store)?;
        volumes::room(call.settings, &books.ledger, found.place.as_ref(), more).map_err(|why| {
            StorageError::resource_exhausted(format!("{more} more bytes do not fit: {why}"))
        })?;
        books.ledger.charge(found.place.as_ref(), more);
        found.size = size;
        found.changed_ms = call.now_ms;
        let changes = vec![state::put(&volume_key(&request.handle), &found, Some(version))?, books.change()?];
        Ok(Decision::Commit(changes, expanded))
    })
}
