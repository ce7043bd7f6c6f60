//! Uids and name suffixes, random or from a seed.

use std::fmt::Write as _;

use parking_lot::Mutex;
use rustls::crypto::ring;

/// The alphabet of generated names, as in Kubernetes: without vowels and ambiguous characters.
const SUFFIX_ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";

#[derive(Debug)]
pub(crate) struct Random {
    rng: Mutex<fastrand::Rng>,
    /// The next uid, in place of a random one.
    next_uid: Mutex<Option<String>>,
}

impl Random {
    pub(crate) fn new(seed: Option<u64>) -> Self {
        // Uids must be unique but not secret.
        let rng = seed.map_or_else(fastrand::Rng::new, fastrand::Rng::with_seed);
        Self { rng: Mutex::new(rng), next_uid: Mutex::default() }
    }

    pub(crate) fn set_next_uid(&self, uid: String) {
        *self.next_uid.lock() = Some(uid);
    }

    /// A uid in the form of a version 4 UUID.
    pub(crate) fn uid(&self) -> String {
        if let Some(uid) = self.next_uid.lock().take() {
            return uid;
        }
        let mut rng = self.rng.lock();
        let (high, low) = (rng.u64(..), rng.u64(..));
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
        let mut rng = self.rng.lock();
        (0..5).filter_map(|_| rng.choice(SUFFIX_ALPHABET)).map(|letter| char::from(*letter)).collect()
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
