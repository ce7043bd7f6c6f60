//! Digests for requests that a driver signs.
//!
//! ```
//! use cofferdam_guest::digest;
//!
//! let key = digest::hmac_sha256("AWS4wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "20150830");
//! let key = ["us-east-1", "iam", "aws4_request"].iter().fold(key, digest::hmac_sha256);
//! assert_eq!(digest::hex(key), "c4afb1cc5771d871763a393e44b703571b55cc28424d1a5e86da6ed3c154a4b9");
//! ```

use std::fmt::Write as _;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use sha2::{Digest as _, Sha256};

/// Bytes of a block of SHA-256.
const BLOCK: usize = 64;

/// The SHA-256 of bytes or a text.
///
/// ```
/// use cofferdam_guest::digest;
///
/// assert_eq!(digest::hex(digest::sha256("")), digest::sha256_hex(""));
/// ```
pub fn sha256(data: impl AsRef<[u8]>) -> [u8; 32] {
    Sha256::digest(data).into()
}

/// The SHA-256 of bytes or a text as 64 lower-case hexadecimal digits.
///
/// ```
/// use cofferdam_guest::digest;
///
/// assert_eq!(
///     digest::sha256_hex(""),
///     "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
/// );
/// ```
pub fn sha256_hex(data: impl AsRef<[u8]>) -> String {
    hex(sha256(data))
}

/// The HMAC (RFC 2104) of a message with SHA-256. A key of more than 64 bytes is hashed first.
///
/// ```
/// use cofferdam_guest::digest;
///
/// let signature = digest::hmac_sha256("Jefe", "what do ya want for nothing?");
/// assert_eq!(
///     digest::hex(signature),
///     "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
/// );
/// ```
pub fn hmac_sha256(key: impl AsRef<[u8]>, message: impl AsRef<[u8]>) -> [u8; 32] {
    let key = key.as_ref();
    let mut block = [0; BLOCK];
    let hashed = (key.len() > BLOCK).then(|| sha256(key));
    for (to, from) in block.iter_mut().zip(hashed.as_ref().map_or(key, |hashed| hashed)) {
        *to = *from;
    }
    let inner = Sha256::new().chain_update(block.map(|byte| byte ^ 0x36)).chain_update(message).finalize();
    Sha256::new().chain_update(block.map(|byte| byte ^ 0x5c)).chain_update(inner).finalize().into()
}

/// Bytes as lower-case hexadecimal digits.
///
/// ```
/// assert_eq!(cofferdam_guest::digest::hex([0x0a, 0xff]), "0aff");
/// ```
pub fn hex(bytes: impl AsRef<[u8]>) -> String {
    bytes.as_ref().iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Bytes in Base64, with the standard alphabet and padding.
///
/// ```
/// assert_eq!(cofferdam_guest::digest::base64([0x0a, 0xff]), "Cv8=");
/// ```
pub fn base64(bytes: impl AsRef<[u8]>) -> String {
    STANDARD.encode(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hmac_matches_the_vectors_of_rfc_4231() {
        #[rustfmt::skip] // one row a case
        let table: [(Vec<u8>, &[u8], &str); 4] = [
            (vec![0x0b; 20],  b"Hi There",
             "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"),
            (vec![0xaa; 20],  &[0xdd; 50],
             "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe"),
            (vec![0xaa; 131], b"Test Using Larger Than Block-Size Key - Hash Key First",
             "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"),
            (vec![0xaa; 131], b"This is a test using a larger than block-size key and a larger than \
                                block-size data. The key needs to be hashed before being used by the HMAC \
                                algorithm.",
             "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2"),
        ];
        for (key, message, digest) in table {
            assert_eq!(hex(hmac_sha256(key, message)), digest);
        }
    }
}
