//! Chance that can be had again: a seed, printed, that the next run may be given.

use anyhow::{Context as _, Result};

use crate::print_status;

/// Variable that holds the seed of a run that is to be repeated.
const SEED_VARIABLE: &str = "CONFORMANCE_SEED";

/// Random numbers from the seed that the environment names, or from a new one; it is printed.
///
/// # Errors
/// If the variable is no number, or there is no randomness.
pub fn seeded_rng() -> Result<fastrand::Rng> {
    let seed = match std::env::var(SEED_VARIABLE) {
        Ok(text) => {
            text.parse().with_context(|| format!("{SEED_VARIABLE} is {text:?}: expected a number"))?
        }
        Err(_) => getrandom::u64().context("no random number")?,
    };
    print_status(format_args!("  again with {SEED_VARIABLE}={seed}"));
    Ok(fastrand::Rng::with_seed(seed))
}
