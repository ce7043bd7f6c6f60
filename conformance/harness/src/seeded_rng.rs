//! Random numbers from a seed that is printed and can be set.

use anyhow::{Context as _, Result};

use crate::print_status;

/// Environment variable with the seed.
const SEED_VARIABLE: &str = "CONFORMANCE_SEED";

/// A generator with the seed of the environment variable `CONFORMANCE_SEED`, or with a random seed if the
/// variable is not set. Prints the seed.
///
/// # Errors
/// If the variable is not a number, or there is no random source.
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
