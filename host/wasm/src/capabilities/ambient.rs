//! `ambient`: wall clock and random bytes.

use std::time::{SystemTime, UNIX_EPOCH};

use wasmtime::component::HasData;

use crate::bindings::cofferdam::storage::ambient::Host;

/// Maximum random bytes of one call of `random-bytes`, by contract.
const MAX_RANDOM: u32 = 4_096;

/// The `ambient` import. It has no state.
pub(crate) struct Ambient;

impl HasData for Ambient {
    type Data<'a> = Self;
}

impl Host for Ambient {
    fn now_ms(&mut self) -> wasmtime::Result<u64> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
        Ok(u64::try_from(now.as_millis())?)
    }

    fn random_bytes(&mut self, length: u32) -> wasmtime::Result<Vec<u8>> {
        if length > MAX_RANDOM {
            return Err(wasmtime::Error::msg(format!(
                "{length} random bytes at once; at most {MAX_RANDOM} are allowed"
            )));
        }
        let mut bytes = vec![0; usize::try_from(length)?];
        getrandom::fill(&mut bytes)
            .map_err(|error| wasmtime::Error::msg(format!("no random bytes: {error}")))?;
        Ok(bytes)
    }
}
