//! Sections of drivers in the configuration.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    path::PathBuf,
    str::FromStr,
};

use cofferdam_csi::Address;
use cofferdam_domain::DriverName;
use cofferdam_wasm::{Digest, Grant, HttpConfig, Limits, PoolConfig, StateConfig};
use serde::{Deserialize, Deserializer, de};

use super::value::deserialize_from_str;

/// Name of the default driver of dev mode.
pub(crate) const MEMORY_BACKEND: &str = "memory";

/// Component of a driver that is built into the program, by the name of its section; `None` for other names.
/// In dev mode the section needs no file.
pub(crate) fn carried_component(name: &str) -> Option<&'static [u8]> {
    match name {
        MEMORY_BACKEND => Some(cofferdam_carried::MEMORY),
        "pool" => Some(cofferdam_carried::POOL),
        _ => None,
    }
}

/// Keys of a section that apply to components only, not to CSI drivers.
pub(crate) const COMPONENT_KEYS: [&str; 9] =
    ["file", "sha256", "settings", "class-secrets", "grants", "http", "state", "pool", "limits"];

/// `[backend.NAME]`: one component with its settings and grants, or one CSI driver.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct BackendSection {
    /// File of the component; absent for CSI drivers, and in dev mode for the built-in drivers.
    pub(crate) file: Option<PathBuf>,
    /// Socket of an existing CSI driver, in place of a component.
    pub(crate) csi: Option<CsiSocketAddress>,
    /// Socket on which the role `csi-server` serves this driver.
    pub(crate) socket: Option<CsiSocketAddress>,
    /// Name that the CSI driver must report; absent to accept any name.
    pub(crate) driver_name: Option<DriverName>,
    /// Digest that the component's file must have; absent to accept any file.
    pub(crate) sha256: Option<Digest>,
    /// Values that the component reads through its `settings` import.
    #[serde(default)]
    pub(crate) settings: BTreeMap<String, SettingValue>,
    /// Files with the secrets of every call, by the secrets' names.
    #[serde(default)]
    pub(crate) secrets: BTreeMap<String, PathBuf>,
    /// Grants the component the secrets that a call has from its caller, such as those that a class names.
    #[serde(default)]
    pub(crate) class_secrets: bool,
    /// Imports that are granted; absent for the default grants.
    pub(crate) grants: Option<BTreeSet<Grant>>,
    /// Origins to which the component can send HTTP requests. At least one origin grants `http`.
    #[serde(default)]
    pub(crate) http: HttpConfig,
    /// Storage of the component's state.
    #[serde(default)]
    pub(crate) state: StateConfig,
    /// Directory of the component's pool; grants `pool`. Absent for a component without a pool.
    pub(crate) pool: Option<PoolConfig>,
    /// Limits of the component and of one call.
    #[serde(default)]
    pub(crate) limits: Limits,
}

impl BackendSection {
    /// The files that the section names: the component, secrets and certificates.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        let origins = self.http.origins.iter();
        let of_origins =
            origins.flat_map(|origin| [&origin.ca_file, &origin.certificate_file, &origin.key_file]);
        let secrets = self.secrets.values();
        self.file.iter().chain(secrets).chain(of_origins.flatten()).cloned().collect()
    }

    /// Returns `true` if the section has the location of its driver: `file` or `csi`.
    pub(crate) fn has_location(&self) -> bool {
        self.file.is_some() || self.csi.is_some()
    }
}

/// Address of a CSI driver's socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CsiSocketAddress(pub(crate) Address);

impl<'de> Deserialize<'de> for CsiSocketAddress {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserialize_from_str(deserializer, "the path of a CSI driver's socket")
    }
}

impl FromStr for CsiSocketAddress {
    type Err = <Address as FromStr>::Err;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self)
    }
}

/// A value that a component reads; numbers and booleans are converted to text.
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
