//! Handles of volumes and snapshots: the same for the same name, readable where that is possible.

use sha2::{Digest, Sha256};

/// Longest handle that the contract allows, in bytes.
pub const MAX_LENGTH: usize = 128;
/// What a handle that is no readable name has after its prefix.
const DIGEST_PREFIX: &str = "sha-";
/// Digits of a digest: 128 bits, so that nobody finds two names that share one.
const DIGEST_DIGITS: usize = 32;

/// The handle of a name: `prefix-name` for names of a-z, A-Z, 0-9, `-`, `_` and `.` that fit, `prefix-sha-`
/// and 32 digits of a digest otherwise. Two names never share a handle.
///
/// ```
/// use cofferdam_guest::handle;
///
/// assert_eq!(handle::from_name("vol", "pvc-1"), "vol-pvc-1");
/// assert_eq!(handle::from_name("vol", "päck"), "vol-sha-b1b6016006f4ea04f85fadf6255b7a04");
/// ```
pub fn from_name(prefix: &str, name: &str) -> String {
    from_name_with_limit(prefix, name, MAX_LENGTH)
}

/// The same for storage whose names are at most `max` bytes. A digest is never cut: `max` is at least the
/// prefix' length and 37.
pub fn from_name_with_limit(prefix: &str, name: &str, max: usize) -> String {
    let readable = format!("{prefix}-{name}");
    let is_readable =
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    // A name in the shape of a digest gets a digest of its own, or it could pass for another name.
    let has_digest_prefix = name.starts_with(DIGEST_PREFIX);
    if is_readable && !has_digest_prefix && readable.len() <= max.min(MAX_LENGTH) && !is_inline(&readable) {
        return readable;
    }
    format!("{prefix}-{DIGEST_PREFIX}{}", digest(name, DIGEST_DIGITS))
}

/// Whether a handle has the shape that kubelet gives to inline volumes.
fn is_inline(handle: &str) -> bool {
    handle
        .strip_prefix("csi-")
        .is_some_and(|rest| rest.len() == 64 && rest.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// The first hexadecimal digits of a text's SHA-256.
pub(crate) fn digest(text: &str, digits: usize) -> String {
    let mut hex: String = Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
    hex.truncate(digits);
    hex
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_names_never_share_a_handle() {
        let digest = from_name("v", "ä");
        assert_eq!(digest.len(), 2 + 4 + 32);
        let guessed = digest.strip_prefix("v-").unwrap();
        assert_ne!(from_name("v", guessed), digest, "a name that looks like a digest is not taken for it");
        let long = "n".repeat(127);
        assert!(from_name("v", &long).starts_with("v-sha-"), "129 bytes do not fit");
        assert_eq!(from_name("v", &long[..126]).len(), 128);
        assert!(from_name_with_limit("v", "pvc-12345678", 10).starts_with("v-sha-"));
        assert_ne!(from_name("v", "a/b"), from_name("v", "a/c"));
    }

    #[test]
    fn no_handle_has_the_shape_of_an_inline_volume() {
        assert!(from_name("csi", &"0".repeat(64)).starts_with("csi-sha-"));
        assert_eq!(from_name("csi", "0"), "csi-0");
    }
}
