//! The ConfigMap in which a process reports the volumes that a driver holds without an object, and takes
//! requests to delete one.
//!
//! Only where it lives and how it is found: what stands in it is for the role that writes it and for whoever
//! asks.

use std::{collections::BTreeMap, fmt};

use cofferdam_domain::{DriverName, ObjectMeta};
use serde::Deserialize;

use crate::{
    cache::Cache,
    decode::Meta,
    kind::{ApiResource, Kind},
    reflector::Scope,
    store::ObjectStore,
    writer::CachedKind,
};

/// Label of these ConfigMaps.
pub const REPORT_LABEL: &str = "cofferdam.dev/orphans";
/// Its value.
pub const REPORT_LABEL_VALUE: &str = "report";
/// First part of their names.
const NAME_PREFIX: &str = "cofferdam-orphans-";
/// CSI's limit for the name of a driver, in bytes.
const MAX_DRIVER_NAME_BYTES: usize = 63;

/// Namespace and name of a report.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OrphanReportKey {
    /// `metadata.namespace`
    pub namespace: Box<str>,
    /// `metadata.name`
    pub name: Box<str>,
}

impl OrphanReportKey {
    /// Where the report of a driver is.
    pub fn for_driver(namespace: &str, driver: &DriverName) -> Self {
        let driver = driver.as_str();
        let is_lowercase_alphanumeric = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        let is_dns_label = |is_dns_label: &str| {
            is_dns_label.chars().all(|c| is_lowercase_alphanumeric(c) || c == '-')
                && is_dns_label.starts_with(is_lowercase_alphanumeric)
                && is_dns_label.ends_with(is_lowercase_alphanumeric)
        };
        let valid = driver.len() <= MAX_DRIVER_NAME_BYTES && driver.split('.').all(is_dns_label);
        let name = if valid {
            format!("{NAME_PREFIX}{driver}")
        } else {
            // Names that differ must not meet in one ConfigMap.
            format!("{NAME_PREFIX}{:016x}", fnv1a(driver))
        };
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for OrphanReportKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// FNV-1a: the same in every build, which the standard library's hashers do not promise.
pub(crate) fn fnv1a(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// A report as it stands in the API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrphanReport {
    /// Namespace and name.
    pub key: OrphanReportKey,
    /// Metadata.
    pub meta: ObjectMeta,
    /// `data`
    pub data: BTreeMap<Box<str>, Box<str>>,
}

impl OrphanReport {
    /// The text under a key of `data`.
    pub fn data_value(&self, key: &str) -> Option<&str> {
        self.data.get(key).map(AsRef::as_ref)
    }
}

impl Kind for OrphanReport {
    type Key = OrphanReportKey;
    type Index = ();
    const RESOURCE: ApiResource =
        ApiResource { group: "", version: "v1", kind: "ConfigMap", plural: "configmaps", namespaced: true };

    fn decode(json: &str) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Wire {
            metadata: Meta,
            data: Option<BTreeMap<Box<str>, Box<str>>>,
        }
        let Wire { metadata, data } = serde_json::from_str(json).map_err(|error| error.to_string())?;
        let key = Self::key_from_parts(&metadata.namespace(), &metadata.name());
        Ok(Self { key, meta: metadata.into_domain()?, data: data.unwrap_or_default() })
    }

    fn key(&self) -> OrphanReportKey {
        self.key.clone()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.meta
    }
}

impl CachedKind for OrphanReport {
    fn store(cache: &Cache) -> &ObjectStore<Self> {
        &cache.orphan_reports
    }
}

/// What to watch or to list for the reports of a namespace.
pub fn report_scope(namespace: &str) -> Scope {
    Scope {
        namespace: Some(namespace.to_owned()),
        label_selector: Some(format!("{REPORT_LABEL}={REPORT_LABEL_VALUE}")),
        ..Scope::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_driver_gets_a_valid_and_unique_report_name() {
        let name = |driver: &str| OrphanReportKey::for_driver("ns", &driver.into()).name.into_string();
        assert_eq!(name("array.example.com"), "cofferdam-orphans-array.example.com");
        let drivers = [
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
        let names: std::collections::BTreeSet<String> = drivers.iter().map(|driver| name(driver)).collect();
        assert_eq!(names.len(), drivers.len());
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
