//! `sign`: keyed hashes and digests of secrets. The guest gets the results only.

use base64::{
    Engine as _,
    alphabet::STANDARD,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use ring::{digest, hmac};
use wasmtime::component::{HasData, ResourceTable};

use crate::bindings::cofferdam::storage::sign::{Algorithm, Encoding, Host, Key, Part, SignError};

/// Base64 with or without padding.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// The `sign` import of one call.
pub(crate) struct SignView<'a> {
    /// The guest's handles of secrets.
    pub(crate) handles: &'a ResourceTable,
}

impl HasData for SignView<'static> {
    type Data<'a> = SignView<'a>;
}

impl Host for SignView<'_> {
    fn hmac(
        &mut self,
        algorithm: Algorithm,
        key: Key,
        messages: Vec<Vec<u8>>,
    ) -> wasmtime::Result<Result<Vec<u8>, SignError>> {
        let secret = self.handles.get(&key.secret)?.secret.expose();
        let Some(secret) = decode(secret, key.encoding) else {
            return Ok(Err(SignError::InvalidSecret(key.encoding)));
        };
        let first = [key.prefix, secret].concat();
        let hashed = messages.iter().fold(None, |previous: Option<hmac::Tag>, message| {
            let key = previous.as_ref().map_or(first.as_slice(), hmac::Tag::as_ref);
            Some(hmac::sign(&hmac::Key::new(hmac_algorithm(algorithm), key), message))
        });
        Ok(hashed.map(|tag| tag.as_ref().to_vec()).ok_or(SignError::NoMessage))
    }

    fn digest(&mut self, algorithm: Algorithm, parts: Vec<Part>) -> wasmtime::Result<Vec<u8>> {
        let mut context = digest::Context::new(digest_algorithm(algorithm));
        for part in parts {
            match part {
                Part::Bytes(bytes) => context.update(&bytes),
                Part::Secret(handle) => context.update(self.handles.get(&handle)?.secret.expose().as_bytes()),
            }
        }
        Ok(context.finish().as_ref().to_vec())
    }
}

/// The bytes of a key; `None` if the text does not have the encoding.
fn decode(text: &str, encoding: Encoding) -> Option<Vec<u8>> {
    match encoding {
        Encoding::Text => Some(text.as_bytes().to_vec()),
        Encoding::Base64 => BASE64.decode(text).ok(),
        Encoding::Hex => decode_hex(text),
    }
}

fn decode_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: &u8| char::from(*byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let pairs = text.as_bytes().chunks(2);
    pairs
        .map(|pair| match pair {
            [high, low] => Some(digit(high)? << 4 | digit(low)?),
            _ => None,
        })
        .collect()
}

fn hmac_algorithm(algorithm: Algorithm) -> hmac::Algorithm {
    match algorithm {
        Algorithm::Sha1 => hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY,
        Algorithm::Sha256 => hmac::HMAC_SHA256,
        Algorithm::Sha384 => hmac::HMAC_SHA384,
        Algorithm::Sha512 => hmac::HMAC_SHA512,
    }
}

fn digest_algorithm(algorithm: Algorithm) -> &'static digest::Algorithm {
    match algorithm {
        Algorithm::Sha1 => &digest::SHA1_FOR_LEGACY_USE_ONLY,
        Algorithm::Sha256 => &digest::SHA256,
        Algorithm::Sha384 => &digest::SHA384,
        Algorithm::Sha512 => &digest::SHA512,
    }
}

#[cfg(test)]
mod tests {
    use cofferdam_domain::storage::Secret;
    use wasmtime::component::Resource;

    use super::*;
    use crate::bindings::SecretHandle;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn with_secret<T>(text: &str, call: impl FnOnce(&mut SignView<'_>, Resource<SecretHandle>) -> T) -> T {
        let mut handles = ResourceTable::new();
        let secret = SecretHandle { name: "key".to_owned(), secret: Secret::new(text) };
        let handle = handles.push(secret).unwrap();
        let borrowed = Resource::new_borrow(handle.rep());
        call(&mut SignView { handles: &handles }, borrowed)
    }

    fn hmac_of(
        text: &str,
        encoding: Encoding,
        prefix: &str,
        algorithm: Algorithm,
        messages: &[&str],
    ) -> Result<String, String> {
        let messages = messages.iter().map(|message| message.as_bytes().to_vec()).collect();
        with_secret(text, |view, secret| {
            let key = Key { secret, encoding, prefix: prefix.as_bytes().to_vec() };
            let result = view.hmac(algorithm, key, messages).unwrap();
            result.map(|bytes| hex(&bytes)).map_err(|error| format!("{error:?}"))
        })
    }

    /// Sources: RFC 4231, test case 2; RFC 2202, test case 2.
    #[test]
    fn an_hmac_equals_the_published_vectors() {
        let message = &["what do ya want for nothing?"];
        for (algorithm, expected) in [
            (Algorithm::Sha1, "effcdf6ae5eb2fa2d27416d5f184df9c259a7c79"),
            (Algorithm::Sha256, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"),
            (
                Algorithm::Sha384,
                "af45d2e376484031617f78d2b58a6b1b9c7ef464f5a01b47e42ec3736322445e8e2240ca5e69e2c78b3239ecfab21649",
            ),
            (
                Algorithm::Sha512,
                "164b7a7bfcf819e2e395fbe73b56e0a387bd64222e831fd610270cd7ea2505549758bf75c05a994a6d034f65f8f0e6fd\
                 caeab1a34d4a6b4b636e070a38bce737",
            ),
        ] {
            for (text, encoding) in [
                ("Jefe", Encoding::Text),
                ("SmVmZQ==", Encoding::Base64),
                ("SmVmZQ", Encoding::Base64),
                ("4A656665", Encoding::Hex),
            ] {
                assert_eq!(
                    hmac_of(text, encoding, "", algorithm, message),
                    Ok(expected.to_owned()),
                    "{text}"
                );
            }
            assert_eq!(hmac_of("fe", Encoding::Text, "Je", algorithm, message), Ok(expected.to_owned()));
        }
    }

    /// Source: the AWS documentation of Signature Version 4, "Examples of how to derive a signing key".
    #[test]
    fn several_messages_derive_a_key() {
        let messages = ["20150830", "us-east-1", "iam", "aws4_request"];
        let text = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";
        assert_eq!(
            hmac_of(text, Encoding::Text, "AWS4", Algorithm::Sha256, &messages),
            Ok("c4afb1cc5771d871763a393e44b703571b55cc28424d1a5e86da6ed3c154a4b9".to_owned())
        );
    }

    #[test]
    fn a_secret_in_another_form_and_no_message_are_errors() {
        for (text, encoding) in [
            ("a", Encoding::Base64),
            ("a b=", Encoding::Base64),
            ("abc", Encoding::Hex),
            ("xy", Encoding::Hex),
        ] {
            let found = hmac_of(text, encoding, "", Algorithm::Sha256, &["m"]);
            assert!(found.is_err_and(|error| error.contains("InvalidSecret")), "{text}");
        }
        let found = hmac_of("a", Encoding::Text, "", Algorithm::Sha256, &[]);
        assert!(found.is_err_and(|error| error.contains("NoMessage")));
    }

    #[test]
    fn a_digest_covers_bytes_and_secrets_in_order() {
        let found = with_secret("b", |view, secret| {
            let parts = vec![Part::Bytes(b"a".to_vec()), Part::Secret(secret), Part::Bytes(b"c".to_vec())];
            hex(&view.digest(Algorithm::Sha256, parts).unwrap())
        });
        assert_eq!(found, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }
}
