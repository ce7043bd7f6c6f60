//! The ConfigMap in which a process reports the volumes that a driver holds without an object, and takes requests to delete one.
//!
//! Only where it lives and how it is found: what stands in it is for the role that writes it and for whoever asks.

use std::{collections::BTreeMap, fmt};

use cofferdam_domain::{DriverName, ObjectMeta};
use serde::Deserialize;

use crate::{
    cache::Cache,
    decode::Meta,
    kind::{Kind, Resource},
    table::Table,
    watch::Scope,
    writer::Cached,
};

/// Label of these ConfigMaps.
pub const LABEL: &str = "cofferdam.dev/orphans";
/// Its value.
pub const LABEL_VALUE: &str = "report";
/// First part of their names.
const PREFIX: &str = "cofferdam-orphans-";
/// CSI's limit for the name of a driver, in bytes.
const MAX_DRIVER: usize = 63;

/// Namespace and name of a report.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReportKey {
    /// `metadata.namespace`
    pub namespace: Box<str>,
    /// `metadata.name`
    pub name: Box<str>,
}

impl ReportKey {
    /// Where the report of a driver is.
    pub fn of(namespace: &str, driver: &DriverName) -> Self {
        let driver = driver.as_str();
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        let label = |label: &str| {
            label.chars().all(|c| plain(c) || c == '-') && label.starts_with(plain) && label.ends_with(plain)
        };
        let valid = driver.len() <= MAX_DRIVER && driver.split('.').all(label);
        let name = if valid {
            format!("{PREFIX}{driver}")
        } else {
            // Names that differ must not meet in one ConfigMap.
            format!("{PREFIX}{:016x}", fnv(driver))
        };
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for ReportKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// FNV-1a: the same in every build, which the standard library's hashers do not promise.
pub(crate) fn fnv(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// A report as it stands in the API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrphanReport {
    /// Namespace and name.
    pub key: ReportKey,
    /// Metadata.
    pub meta: ObjectMeta,
    /// `data`
    pub data: BTreeMap<Box<str>, Box<str>>,
}

impl OrphanReport {
    /// The text under a key of `data`.
    pub fn text(&self, key: &str) -> Option<&str> {
        self.data.get(key).map(AsRef::as_ref)
    }
}

impl Kind for OrphanReport {
    type Key = ReportKey;
    type Index = ();
    const RESOURCE: Resource =
        Resource { group: "", version: "v1", kind: "ConfigMap", plural: "configmaps", namespaced: true };

    fn decode(json: &str) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Wire {
            metadata: Meta,
            data: Option<BTreeMap<Box<str>, Box<str>>>,
        }
        let Wire { metadata, data } = serde_json::from_str(json).map_err(|error| error.to_string())?;
        let key = Self::key_of(&metadata.namespace(), &metadata.name());
        Ok(Self { key, meta: metadata.into_domain()?, data: data.unwrap_or_default() })
    }

    fn key(&self) -> ReportKey {
        self.key.clone()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.meta
    }
}

impl Cached for OrphanReport {
    fn table(cache: &Cache) -> &Table<Self> {
        &cache.orphan_reports
    }
}

/// What to watch or to list for the reports of a namespace.
pub fn scope(namespace: &str) -> Scope {
    Scope {
        namespace: Some(namespace.to_owned()),
        labels: Some(format!("{LABEL}={LABEL_VALUE}")),
        ..Scope::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_driver_has_a_valid_name_of_its_own() {
        let name = |driver: &str| ReportKey::of("ns", &driver.into()).name.into_string();
        assert_eq!(name("array.example.com"), "cofferdam-orphans-array.example.com");
        let odd = [
            "",
            "Array",
            "array",
            "a/b",
            "a_b",
            "-",
            ".a",
            "a..b",
            "a.-",
            "../../secrets/x",
            &"a".repeat(64),
            &"a".repeat(63),
        ];
        let names: std::collections::BTreeSet<String> = odd.iter().map(|driver| name(driver)).collect();
        assert_eq!(names.len(), odd.len());
        for name in names {
            assert!(name.len() <= 253, "{name}");
            assert!(
                name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.".contains(c)),
                "{name}"
            );
            let alphanumeric = |c: char| c.is_ascii_alphanumeric();
            assert!(
                name.split('.').all(|l| l.starts_with(alphanumeric) && l.ends_with(alphanumeric)),
                "{name}"
            );
        }
    }
}
