//! The hashes of the import `sign`.

use sha1::Sha1;
use sha2::{
    Digest, Sha256, Sha384, Sha512,
    digest::{core_api::BlockSizeUser, typenum::Unsigned},
};

use crate::sign::Algorithm;

/// The digest of bytes.
pub(crate) fn digest(algorithm: Algorithm, data: &[u8]) -> Vec<u8> {
    match algorithm {
        Algorithm::Sha1 => Sha1::digest(data).to_vec(),
        Algorithm::Sha256 => Sha256::digest(data).to_vec(),
        Algorithm::Sha384 => Sha384::digest(data).to_vec(),
        Algorithm::Sha512 => Sha512::digest(data).to_vec(),
    }
}

/// The HMAC of a message (RFC 2104).
pub(crate) fn hmac(algorithm: Algorithm, key: &[u8], message: &[u8]) -> Vec<u8> {
    match algorithm {
        Algorithm::Sha1 => hmac_with::<Sha1>(key, message),
        Algorithm::Sha256 => hmac_with::<Sha256>(key, message),
        Algorithm::Sha384 => hmac_with::<Sha384>(key, message),
        Algorithm::Sha512 => hmac_with::<Sha512>(key, message),
    }
}

fn hmac_with<D: Digest + BlockSizeUser>(key: &[u8], message: &[u8]) -> Vec<u8> {
    let block = D::BlockSize::USIZE;
    let mut key = if key.len() > block { D::digest(key).to_vec() } else { key.to_vec() };
    key.resize(block, 0);
    let pad = |byte: u8| key.iter().map(|key| key ^ byte).collect::<Vec<u8>>();
    let inner = D::new().chain_update(pad(0x36)).chain_update(message).finalize();
    D::new().chain_update(pad(0x5c)).chain_update(inner).finalize().to_vec()
}

/// Decodes Base64 with the standard alphabet, with or without padding.
pub(crate) fn decode_base64(text: &str) -> Option<Vec<u8>> {
    let digits = text.trim_end_matches('=');
    let is_padded = digits.len() < text.len();
    if is_padded && !text.len().is_multiple_of(4) || text.len() - digits.len() > 2 {
        return None;
    }
    let mut bytes = Vec::new();
    for group in digits.as_bytes().chunks(4) {
        let mut bits = 0_u32;
        for digit in group {
            bits = bits << 6 | u32::from(base64_value(*digit)?);
        }
        let missing = 4 - group.len();
        bits <<= 6 * missing;
        let [_, first, second, third] = bits.to_be_bytes();
        match missing {
            0 => bytes.extend([first, second, third]),
            1 if third == 0 => bytes.extend([first, second]),
            2 if second == 0 && third == 0 => bytes.push(first),
            _ => return None,
        }
    }
    Some(bytes)
}

fn base64_value(digit: u8) -> Option<u8> {
    match digit {
        b'A'..=b'Z' => Some(digit - b'A'),
        b'a'..=b'z' => Some(digit - b'a' + 26),
        b'0'..=b'9' => Some(digit - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    }
}

/// Decodes hexadecimal digits.
pub(crate) fn decode_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: &u8| char::from(*byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let pairs = text.as_bytes().chunks(2);
    pairs
        .map(|pair| match pair {
            [high, low] => Some(digit(high)? << 4 | digit(low)?),
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::hex;

    /// Sources: RFC 2202 and RFC 4231, test case 2.
    #[test]
    fn an_hmac_equals_the_published_vectors() {
        for (algorithm, expected) in [
            (Algorithm::Sha1, "effcdf6ae5eb2fa2d27416d5f184df9c259a7c79"),
            (Algorithm::Sha256, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"),
            (
                Algorithm::Sha512,
                "164b7a7bfcf819e2e395fbe73b56e0a387bd64222e831fd610270cd7ea2505549758bf75c05a994a6d034f65f8f0e6fd\
                 caeab1a34d4a6b4b636e070a38bce737",
            ),
        ] {
            assert_eq!(hex(hmac(algorithm, b"Jefe", b"what do ya want for nothing?")), expected);
        }
    }

    #[test]
    fn keys_are_decoded_as_the_host_decodes_them() {
        for (text, expected) in [
            ("SmVmZQ==", Some("Jefe")),
            ("SmVmZQ", Some("Jefe")),
            ("SmVm", Some("Jef")),
            ("", Some("")),
            ("SmVmZQ=", None),
            ("SmVmZR", None),
            ("S", None),
            ("Sm V", None),
        ] {
            assert_eq!(decode_base64(text), expected.map(|text| text.as_bytes().to_vec()), "{text}");
        }
        assert_eq!(decode_hex("4A656665"), Some(b"Jefe".to_vec()));
        assert_eq!((decode_hex("4A6"), decode_hex("xy")), (None, None));
    }
}
