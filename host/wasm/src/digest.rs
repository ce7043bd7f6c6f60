//! SHA-256 digests as operators write and read them.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, de};
use sha2::{Digest as _, Sha256};

/// Hexadecimal digits of a digest.
const HEX_DIGITS: usize = 64;

/// SHA-256 of a component's bytes: identifies the component independently of its file name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest([u8; 32]);

impl Digest {
    pub(crate) fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }
}

/// A text that is not a digest.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("found {found:?}, expected 64 hexadecimal digits, as `sha256sum` prints them of the component")]
pub struct ParseDigestError {
    /// The text.
    found: String,
}

/// 64 hexadecimal digits, as `sha256sum` prints them, with or without `sha256:` before them.
impl FromStr for Digest {
    type Err = ParseDigestError;

    fn from_str(text: &str) -> Result<Self, ParseDigestError> {
        let digest = parse_hex(text.strip_prefix("sha256:").unwrap_or(text)).map(Self);
        digest.ok_or_else(|| ParseDigestError { found: text.to_owned() })
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", to_hex(&self.0))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The bytes of a digest; absent when the text is not 64 hexadecimal digits.
pub(crate) fn parse_hex(text: &str) -> Option<[u8; 32]> {
    let digits = text.as_bytes();
    if digits.len() != HEX_DIGITS {
        return None;
    }
    let mut digest = [0; 32];
    for (byte, pair) in digest.iter_mut().zip(digits.chunks_exact(2)) {
        let high = char::from(*pair.first()?).to_digit(16)?;
        let low = char::from(*pair.last()?).to_digit(16)?;
        *byte = u8::try_from(high * 16 + low).ok()?;
    }
    Some(digest)
}

pub(crate) fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_64_hexadecimal_digits() {
        let digest = Digest::of(b"");
        let text = digest.to_string();
        assert_eq!(text, "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
        assert_eq!(text.parse(), Ok(digest));
        assert_eq!(text.replace("sha256:", "").to_uppercase().parse(), Ok(digest));
        for text in
            ["", "ab", &"g".repeat(64), &"a".repeat(63), &"a".repeat(66), &"ab:".repeat(32), &"ä".repeat(32)]
        {
            let error = text.parse::<Digest>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("found {text:?}, expected 64")), "{error}");
        }
    }
}
