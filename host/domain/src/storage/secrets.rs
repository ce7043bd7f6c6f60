//! Secrets of a call: they are carried, and nothing prints them.

use std::{collections::BTreeMap, fmt, sync::Arc};

use zeroize::Zeroizing;

/// One secret text. It is wiped when the last copy goes, and `Debug` shows nothing of it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Zeroizing<String>);

impl Secret {
    /// Takes a text in.
    pub fn new(text: impl Into<String>) -> Self {
        Self(Zeroizing::new(text.into()))
    }

    /// The text, for those who send it where it belongs.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[secret]")
    }
}

/// The secrets of one call, by name. CSI's `secrets` maps; clones share them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Secrets(Arc<BTreeMap<String, Secret>>);

impl Secrets {
    /// The secret of a name.
    pub fn get(&self, name: &str) -> Option<&Secret> {
        self.0.get(name)
    }

    /// Names and secrets in the order of the names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Secret)> {
        self.0.iter().map(|(name, secret)| (name.as_str(), secret))
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromIterator<(String, Secret)> for Secrets {
    fn from_iter<I: IntoIterator<Item = (String, Secret)>>(secrets: I) -> Self {
        Self(Arc::new(secrets.into_iter().collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_a_secret_is_printed() {
        let secrets: Secrets = [("password".to_owned(), Secret::new("hunter2"))].into_iter().collect();
        assert_eq!(format!("{secrets:?}"), r#"Secrets({"password": [secret]})"#);
        assert_eq!(secrets.get("password").map(Secret::expose), Some("hunter2"));
    }
}
