//! Derives handles of volumes and snapshots from their names: always the same handle for a name, and readable
//! where possible.

use crate::digest::sha256_hex;

/// Maximum length of a handle in the contract, in bytes.
pub const MAX_LENGTH: usize = 128;
/// Marks a handle that contains a digest instead of the name, after the handle's prefix.
const DIGEST_PREFIX: &str = "sha-";
/// Hexadecimal digits of a digest: 128 bits, which makes collisions infeasible.
const DIGEST_DIGITS: usize = 32;

/// Returns the handle of a name. With the same prefix, different names never share a handle.
///
/// The handle is `prefix-name` if the name fits, is not empty and consists of a-z, A-Z, 0-9, `-`, `_` and
/// `.`. Otherwise it is `prefix-sha-` and 32 hexadecimal digits of a digest. It is also a digest if the name
/// starts with `sha-`, or if `prefix-name` has the form of a handle of kubelet's inline volumes. With a
/// prefix of more than 91 bytes, a handle with a digest is longer than [`MAX_LENGTH`].
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

/// [`from_name`] for storage with names of at most `max` bytes. A digest is never truncated, so `max` must be
/// at least the length of the prefix plus 37. A `max` above [`MAX_LENGTH`] counts as [`MAX_LENGTH`].
pub fn from_name_with_limit(prefix: &str, name: &str, max: usize) -> String {
    let readable = format!("{prefix}-{name}");
    let is_readable =
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    // A name that looks like a digest is hashed too. Otherwise it could collide with another name's digest.
    let has_digest_prefix = name.starts_with(DIGEST_PREFIX);
    if is_readable && !has_digest_prefix && readable.len() <= max.min(MAX_LENGTH) && !is_inline(&readable) {
        return readable;
    }
    format!("{prefix}-{DIGEST_PREFIX}{}", digest(name, DIGEST_DIGITS))
}

/// Returns true if a handle has the form that kubelet gives to inline volumes.
fn is_inline(handle: &str) -> bool {
    handle
        .strip_prefix("csi-")
        .is_some_and(|rest| rest.len() == 64 && rest.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// The first hexadecimal digits of the SHA-256 of a text.
pub(crate) fn digest(text: &str, digits: usize) -> String {
    let mut hex = sha256_hex(text);
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
