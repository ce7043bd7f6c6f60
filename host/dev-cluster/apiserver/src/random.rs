//! Uids and name suffixes, random or from a seed.

use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};

use rustls::crypto::ring;

/// The alphabet of generated names, as in Kubernetes: without vowels and ambiguous characters.
const SUFFIX_ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";

#[derive(Debug)]
pub(crate) struct Random(Mutex<u64>);

impl Random {
    pub(crate) fn new(seed: Option<u64>) -> Self {
        let seed = seed.unwrap_or_else(|| {
            let mut bytes = [0; 8];
            if fill(&mut bytes).is_err() {
                // Uids must be unique but not secret, so the time is sufficient.
                return u64::try_from(jiff::Timestamp::now().as_nanosecond()).unwrap_or_default();
            }
            u64::from_le_bytes(bytes)
        });
        Self(Mutex::new(seed))
    }

    /// The next number of the SplitMix64 sequence.
    fn next(&self) -> u64 {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A uid in the form of a version 4 UUID.
    pub(crate) fn uid(&self) -> String {
        let (high, low) = (self.next(), self.next());
        format!(
            "{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}",
            high >> 32,
            (high >> 16) & 0xffff,
            high & 0xfff,
            ((low >> 48) & 0x3fff) | 0x8000,
            low & 0xffff_ffff_ffff
        )
    }

    /// Five characters for `generateName`.
    pub(crate) fn name_suffix(&self) -> String {
        let mut number = self.next();
        let count = SUFFIX_ALPHABET.len() as u64;
        let mut suffix = String::with_capacity(5);
        for _ in 0..5 {
            let letter = usize::try_from(number % count).ok().and_then(|index| SUFFIX_ALPHABET.get(index));
            suffix.push(char::from(letter.copied().unwrap_or(b'x')));
            number /= count;
        }
        suffix
    }
}

/// Fills a buffer with cryptographically secure random bytes.
pub(crate) fn fill(bytes: &mut [u8]) -> Result<(), rustls::Error> {
    ring::default_provider().secure_random.fill(bytes).map_err(|_| rustls::Error::FailedToGetRandomBytes)
}

/// Bytes as lower-case hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        // Writing into a string cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}
