//! Settings of the operator.

use std::{collections::BTreeMap, fmt};

use cofferdam_guest::{Result, StorageError};

/// Setting for the driver's name.
pub(crate) const DRIVER_NAME: &str = "driver-name";
/// Default name of the driver.
pub(crate) const DEFAULT_DRIVER_NAME: &str = "pool.cofferdam.dev";
/// Setting for the node's name.
const NODE: &str = "node";

/// The operator's settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PoolSettings {
    /// Name of the node with the pool.
    pub(crate) node: String,
}

/// A setting of the operator that is missing or cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SettingsError {
    /// The driver has no such setting.
    Unknown {
        /// The setting.
        key: String,
    },
    /// The setting for the node's name is missing or empty.
    NoNode,
}

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown { key } => {
                write!(f, "unknown setting {key:?}; known are {DRIVER_NAME:?} and {NODE:?}")
            }
            Self::NoNode => {
                write!(f, "the setting {NODE:?} is missing; expected the name of the node that has the pool")
            }
        }
    }
}

impl PoolSettings {
    /// Parses the settings.
    ///
    /// # Errors
    /// [`SettingsError`] with the wrong or missing setting.
    pub(crate) fn parse(settings: &BTreeMap<String, String>) -> std::result::Result<Self, SettingsError> {
        if let Some(key) = settings.keys().find(|key| ![DRIVER_NAME, NODE].contains(&key.as_str())) {
            return Err(SettingsError::Unknown { key: key.clone() });
        }
        match settings.get(NODE).filter(|node| !node.is_empty()) {
            Some(node) => Ok(Self { node: node.clone() }),
            None => Err(SettingsError::NoNode),
        }
    }
}

/// The settings of this call.
pub(crate) fn current() -> Result<PoolSettings> {
    PoolSettings::parse(&cofferdam_guest::settings::all()).map_err(|message| {
        StorageError::failed_precondition(format!("the backend is misconfigured: {message}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_node_setting_is_required_and_unknown_settings_are_rejected() {
        let parse = |pairs: &[(&str, &str)]| {
            let pairs = pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
            PoolSettings::parse(&pairs.collect())
        };
        assert_eq!(
            parse(&[("node", "n1"), ("driver-name", "x")]).map(|settings| settings.node),
            Ok("n1".to_owned())
        );
        for pairs in [&[][..], &[("node", "")]] {
            let error = parse(pairs).unwrap_err().to_string();
            assert!(error.starts_with("the setting \"node\" is missing"), "{error}");
        }
        let error = parse(&[("node", "n1"), ("path", "/x")]).unwrap_err().to_string();
        assert_eq!(error, r#"unknown setting "path"; known are "driver-name" and "node""#);
    }
}
