//! The Ceph user of a volume, from the secrets of NodeStageVolume.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use cofferdam_domain::storage::{Secret, Secrets};
use zeroize::Zeroizing;

use super::is_name;

/// Names of the secrets.
const USER: &str = "userID";
const KEY: &str = "userKey";

/// Secrets that are no Ceph user. The text has no secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidUser {
    /// A secret is missing.
    #[error(
        "the volume has no node-stage secret {name:?}: expected userID and userKey, the user and key of Ceph"
    )]
    Missing {
        /// The name of the secret.
        name: &'static str,
    },
    /// The user is invalid.
    #[error(
        "the node-stage secret \"userID\" is invalid: expected the name of a Ceph user without \"client.\""
    )]
    User,
    /// The key is not base64.
    #[error("the node-stage secret \"userKey\" is invalid: expected a key of Ceph, in base64")]
    Key,
}

/// A user of a Ceph cluster. `Debug` does not show its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CephUser {
    /// The name, without `client.`.
    pub name: String,
    key: Secret,
}

impl CephUser {
    /// Reads the user from the secrets `userID` and `userKey`.
    ///
    /// # Errors
    /// [`InvalidUser`]
    pub fn from_secrets(secrets: &Secrets) -> Result<Self, InvalidUser> {
        let secret = |name| secrets.get(name).ok_or(InvalidUser::Missing { name });
        let (name, key) = (secret(USER)?.expose(), secret(KEY)?);
        if !is_name(name) || name.starts_with("client.") {
            return Err(InvalidUser::User);
        }
        let user = Self { name: name.to_owned(), key: Secret::new(key.expose().trim()) };
        user.decoded_key().map(|_| user)
    }

    /// Returns the key as the kernel's keyring takes it.
    ///
    /// # Errors
    /// [`InvalidUser::Key`]
    pub fn decoded_key(&self) -> Result<Zeroizing<Vec<u8>>, InvalidUser> {
        let decoded = STANDARD.decode(self.key.expose()).map_err(|_| InvalidUser::Key)?;
        if decoded.is_empty() { Err(InvalidUser::Key) } else { Ok(Zeroizing::new(decoded)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(pairs: &[(&str, &str)]) -> Result<CephUser, InvalidUser> {
        let secrets = pairs.iter().map(|(name, text)| ((*name).to_owned(), Secret::new(*text))).collect();
        CephUser::from_secrets(&secrets)
    }

    #[test]
    fn a_user_has_a_name_and_a_key() {
        let key = "AQAAAAAAAAAAAAAQAAAAAAAAAAAAAAAAAAAAAA==";
        let found = user(&[("userID", "csi-node"), ("userKey", &format!("{key}\n"))]).unwrap();
        assert_eq!((found.name.as_str(), found.decoded_key().unwrap().first()), ("csi-node", Some(&1)));
        assert!(!format!("{found:?}").contains(key));
        assert_eq!(user(&[("userID", "a")]), Err(InvalidUser::Missing { name: "userKey" }));
        assert_eq!(user(&[("userKey", key)]), Err(InvalidUser::Missing { name: "userID" }));
        for bad in ["", "a b", "a,secret=x", "client.a", "a/b"] {
            assert_eq!(user(&[("userID", bad), ("userKey", key)]), Err(InvalidUser::User), "{bad:?}");
        }
        for bad in ["", "%", "AQAA AAAA"] {
            assert_eq!(user(&[("userID", "a"), ("userKey", bad)]), Err(InvalidUser::Key), "{bad:?}");
        }
    }
}
