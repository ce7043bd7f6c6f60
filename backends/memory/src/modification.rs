//! Mutable parameters.

use cofferdam_guest::{
    KeyValues, Result,
    state::{self, Decision, Store, Versioned, decide},
};

use crate::{
    records::{Call, volume, volume_key},
    request,
};

/// Gives a volume parameters, all or none. Those that are not named stay as they are.
pub(crate) fn modify<S: Store>(call: &Call<'_, S>, handle: &str, parameters: &KeyValues) -> Result<()> {
    request::given("volume handle", handle)?;
    let parameters = request::mutable(parameters)?;
    decide(call.store, |_| {
        let Versioned { value: mut found, version } = volume(call.store, handle)?;
        let before = found.mutable.clone();
        found.mutable.extend(parameters.clone());
        if found.mutable == before {
            return Ok(Decision::Done(()));
        }
        found.changed_ms = call.now_ms;
        Ok(Decision::Commit(vec![state::put(&volume_key(handle), &found, Some(version))?], ()))
    })
}
