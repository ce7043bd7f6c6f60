//! Mutable parameters.

use cofferdam_guest::{
    KeyValues, Result,
    state::{self, Decision, Store, Versioned, decide},
};

use crate::{
    records::{MemoryCall, read_volume, volume_key},
    request,
};

/// Sets parameters of a volume, all or none. Other parameters remain unchanged.
pub(crate) fn modify<S: Store>(call: &MemoryCall<'_, S>, handle: &str, parameters: &KeyValues) -> Result<()> {
    request::require_id("volume handle", handle)?;
    let parameters = request::parse_mutable_parameters(parameters)?;
    decide(call.store, |_| {
        let Versioned { value: mut volume, version } = read_volume(call.store, handle)?;
        let before = volume.mutable.clone();
        volume.mutable.extend(parameters.clone());
        if volume.mutable == before {
            return Ok(Decision::Done(()));
        }
        volume.changed_ms = call.now_ms;
        Ok(Decision::Commit(vec![state::put(&volume_key(handle), &volume, Some(version))?], ()))
    })
}
