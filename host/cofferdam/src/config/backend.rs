//! A driver in the configuration.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    path::PathBuf,
    str::FromStr,
};

use cofferdam_csi::{Address, AddressError};
use cofferdam_domain::DriverName;
use cofferdam_wasm::{Digest, Grant, HttpConfig, Limits, PoolConfig, StateConfig};
use serde::{Deserialize, Deserializer, de};

use super::value::deserialize_from_str;

/// Name of the driver that dev mode has when it is given none.
pub(crate) const MEMORY_BACKEND: &str = "memory";

/// The component of a driver that the program carries, by the name of its section: it needs no file in dev
/// mode.
pub(crate) fn carried_component(name: &str) -> Option<&'static [u8]> {
    match name {
        MEMORY_BACKEND => Some(cofferdam_carried::MEMORY),
        "pool" => Some(cofferdam_carried::POOL),
        _ => None,
    }
}

/// Keys of a section that are about components; a CSI driver has none of them.
pub(crate) const COMPONENT_KEYS: [&str; 8] =
    ["file", "sha256", "settings", "grants", "http", "state", "pool", "limits"];

/// `[backend.NAME]`: one component with what it is told and granted, or one CSI driver.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct BackendSection {
    /// The component; absent only for the driver that the program carries.
    pub(crate) file: Option<PathBuf>,
    /// Where an existing CSI driver listens, instead of a component.
    pub(crate) csi: Option<CsiSocketAddress>,
    /// Where the role `csi-server` serves this driver.
    pub(crate) socket: Option<CsiSocketAddress>,
    /// Which driver has to listen there.
    pub(crate) driver_name: Option<DriverName>,
    /// Which component the file has to hold.
    pub(crate) sha256: Option<Digest>,
    /// What the component reads through its `settings` import.
    #[serde(default)]
    pub(crate) settings: BTreeMap<String, SettingValue>,
    /// Files that hold secrets of every call, by the secrets' names.
    #[serde(default)]
    pub(crate) secrets: BTreeMap<String, PathBuf>,
    /// What the component may import; absent grants what every component may have.
    pub(crate) grants: Option<BTreeSet<Grant>>,
    /// Where the component's HTTP requests may go, which grants it `http`.
    #[serde(default)]
    pub(crate) http: HttpConfig,
    /// Where the component's state is kept.
    #[serde(default)]
    pub(crate) state: StateConfig,
    /// The component's directory, which grants it `pool`.
    pub(crate) pool: Option<PoolConfig>,
    /// What the component and one call of it may use.
    #[serde(default)]
    pub(crate) limits: Limits,
}

impl BackendSection {
    /// Whether it says where the driver is.
    pub(crate) fn has_location(&self) -> bool {
        self.file.is_some() || self.csi.is_some()
    }
}

/// The socket of a CSI driver, theirs or ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CsiSocketAddress(pub(crate) Address);

impl<'de> Deserialize<'de> for CsiSocketAddress {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserialize_from_str(deserializer, "the path of a CSI driver's socket")
    }
}

impl FromStr for CsiSocketAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        text.parse().map(Self)
    }
}

/// A value that a component reads; numbers and booleans reach it as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SettingValue(pub(crate) String);

impl<'de> Deserialize<'de> for SettingValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = SettingValue;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text, a number or a boolean")
            }

            fn visit_str<E: de::Error>(self, value: &str) -> Result<SettingValue, E> {
                Ok(SettingValue(value.to_owned()))
            }

            fn visit_bool<E: de::Error>(self, value: bool) -> Result<SettingValue, E> {
                Ok(SettingValue(value.to_string()))
            }

            fn visit_i64<E: de::Error>(self, value: i64) -> Result<SettingValue, E> {
                Ok(SettingValue(value.to_string()))
            }

            fn visit_u64<E: de::Error>(self, value: u64) -> Result<SettingValue, E> {
                Ok(SettingValue(value.to_string()))
            }

            fn visit_f64<E: de::Error>(self, value: f64) -> Result<SettingValue, E> {
                Ok(SettingValue(value.to_string()))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}
