//! Hashes of secrets, for storage that expects signed requests. The host computes them, so the backend never
//! sees the secret. They need the grant `sign`, which an operator has to add.
//!
//! ```
//! use cofferdam_guest::{Result, digest, mock, secrets, sign::{Algorithm, Key}};
//!
//! /// The signature of AWS Signature Version 4.
//! fn signature(date: &str, string_to_sign: &str) -> Result<String> {
//!     let secret = secrets::require("secret-access-key")?;
//!     let key = Key::new(&secret).prefix("AWS4");
//!     let parts = [date, "us-east-1", "ec2", "aws4_request", string_to_sign];
//!     Ok(digest::hex(key.hmac(Algorithm::Sha256, &parts)?))
//! }
//!
//! let host = mock::MockHost::new().secret("secret-access-key", "wJalrXUtnFEMI").install();
//! assert_eq!(signature("20150830", "text").unwrap().len(), 64);
//! assert!(host.revealed().is_empty());
//! ```

pub use crate::bindings::cofferdam::storage::sign::{Algorithm, Encoding};
use crate::{Result, StorageError, bindings::cofferdam::storage::sign::SignError, host, secrets::Secret};

/// A key that the host has as a secret.
#[derive(Clone, Debug)]
#[must_use = "a key does nothing by itself"]
pub struct Key<'a> {
    pub(crate) secret: &'a Secret,
    pub(crate) encoding: Encoding,
    pub(crate) prefix: Vec<u8>,
}

impl<'a> Key<'a> {
    /// The bytes of the text of a secret.
    pub fn new(secret: &'a Secret) -> Self {
        Self { secret, encoding: Encoding::Text, prefix: Vec::new() }
    }

    /// The secret has the key in Base64, such as an account key of Azure.
    ///
    /// ```
    /// use cofferdam_guest::{digest, mock, secrets, sign::{Algorithm, Key}};
    ///
    /// let _host = mock::MockHost::new().secret("key", "SmVmZQ==").install();
    /// let key = secrets::require("key").unwrap();
    /// let message = ["what do ya want for nothing?"];
    /// let signature = Key::new(&key).base64().hmac(Algorithm::Sha256, &message).unwrap();
    /// assert_eq!(signature, digest::hmac_sha256("Jefe", message[0]));
    /// ```
    pub fn base64(mut self) -> Self {
        self.encoding = Encoding::Base64;
        self
    }

    /// The secret has the key in hexadecimal digits.
    pub fn hex(mut self) -> Self {
        self.encoding = Encoding::Hex;
        self
    }

    /// Bytes before those of the secret.
    pub fn prefix(mut self, prefix: impl Into<Vec<u8>>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// The HMAC of a message (RFC 2104). With several messages, the HMAC of each one is the key of the next, and
    /// the last one is returned.
    ///
    /// # Errors
    ///
    /// - [`failed_precondition`](StorageError::failed_precondition) if the secret does not have the encoding of
    ///   the key.
    /// - [`internal`](StorageError::internal) without a message.
    ///
    /// Both are final unless this call has changed something before.
    pub fn hmac(&self, algorithm: Algorithm, messages: &[impl AsRef<[u8]>]) -> Result<Vec<u8>> {
        let messages: Vec<Vec<u8>> = messages.iter().map(|message| message.as_ref().to_vec()).collect();
        host::hmac(algorithm, self, &messages).map_err(|error| match error {
            SignError::InvalidSecret(encoding) => {
                let expected = match encoding {
                    Encoding::Text => "a text",
                    Encoding::Base64 => "Base64",
                    Encoding::Hex => "hexadecimal digits",
                };
                StorageError::failed_precondition(format!(
                    "the secret {:?} is no key; expected {expected}",
                    self.secret.name()
                ))
                .final_unless_changed()
            }
            SignError::NoMessage => {
                StorageError::internal("an HMAC of no message").without_effect().final_unless_changed()
            }
        })
    }
}

/// A part of the data of [`digest`].
#[derive(Clone, Copy, Debug)]
#[expect(clippy::exhaustive_enums, reason = "the contract has these two")]
pub enum Part<'a> {
    /// Bytes.
    Bytes(&'a [u8]),
    /// The text of a secret.
    Secret(&'a Secret),
}

/// The digest of parts, one after the other, such as `user:realm:password`.
///
/// ```
/// use cofferdam_guest::{digest, mock, secrets, sign::{self, Algorithm, Part}};
///
/// let _host = mock::MockHost::new().secret("password", "hunter2").install();
/// let password = secrets::require("password").unwrap();
/// let parts = [Part::Bytes(b"admin:array:"), Part::Secret(&password)];
/// let found = sign::digest(Algorithm::Sha256, &parts);
/// assert_eq!(found, digest::sha256("admin:array:hunter2"));
/// ```
pub fn digest(algorithm: Algorithm, parts: &[Part<'_>]) -> Vec<u8> {
    host::digest(algorithm, parts)
}
