//! Secrets of a call. `Debug` does not show them.

use std::{collections::BTreeMap, fmt, sync::Arc};

use zeroize::Zeroizing;

/// A secret text. It is zeroized on drop, and `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Zeroizing<String>);

impl Secret {
    /// Wraps a text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(Zeroizing::new(text.into()))
    }

    /// The text.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[secret]")
    }
}

/// Secrets of a call by name (CSI `secrets`). Clones share them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Secrets(Arc<BTreeMap<String, Secret>>);

impl Secrets {
    /// The secret of a name.
    pub fn get(&self, name: &str) -> Option<&Secret> {
        self.0.get(name)
    }

    /// Names and secrets, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Secret)> {
        self.0.iter().map(|(name, secret)| (name.as_str(), secret))
    }

    /// The union of both sets. For a name in both, the secret of `others` is used.
    #[must_use]
    pub fn merged_with(&self, others: &Self) -> Self {
        if others.is_empty() {
            return self.clone();
        }
        if self.is_empty() {
            return others.clone();
        }
        let all = self.0.iter().chain(others.0.iter());
        Self(Arc::new(all.map(|(name, secret)| (name.clone(), secret.clone())).collect()))
    }

    /// Returns `true` if there are no secrets.
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
    fn merged_secrets_prefer_the_added_value() {
        let secrets = |pairs: &[(&str, &str)]| -> Secrets {
            pairs.iter().map(|(name, text)| ((*name).to_owned(), Secret::new(*text))).collect()
        };
        let (base, added) = (secrets(&[("a", "1"), ("b", "2")]), secrets(&[("b", "3"), ("c", "4")]));
        assert_eq!(base.merged_with(&added), secrets(&[("a", "1"), ("b", "3"), ("c", "4")]));
        assert_eq!(base.merged_with(&Secrets::default()), base);
        assert_eq!(Secrets::default().merged_with(&added), added);
    }

    #[test]
    fn debug_output_hides_secret_values() {
        let secrets: Secrets = [("password".to_owned(), Secret::new("hunter2"))].into_iter().collect();
        assert_eq!(format!("{secrets:?}"), r#"Secrets({"password": [secret]})"#);
        assert_eq!(secrets.get("password").map(Secret::expose), Some("hunter2"));
    }
}
