//! The ConfigMap in which the orphan scan reports the volumes or the snapshots of a driver to which no object
//! refers, and receives requests to delete one.
//!
//! This module defines the ConfigMap's name, labels and decoding. The scan defines its `data`.

use std::{collections::BTreeMap, fmt, hash::Hasher as _};

use cofferdam_domain::{DriverName, ObjectMeta};
use fnv::FnvHasher;
use serde::{Deserialize, Serialize};

use super::{DecodeError, Kind, ObjectKey, error::parse_json, meta::Meta};
use crate::api::{ApiResource, Scope};

/// Label of orphan report ConfigMaps.
pub const REPORT_LABEL: &str = "cofferdam.dev/orphans";
/// Value of [`REPORT_LABEL`].
pub const REPORT_LABEL_VALUE: &str = "report";
/// CSI's limit for driver names, in bytes.
const MAX_DRIVER_NAME_BYTES: usize = 63;

/// Kind of what a report is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OrphanKind {
    /// Volumes. Reports of versions that scanned only volumes name no kind.
    #[default]
    Volume,
    /// Snapshots.
    Snapshot,
}

impl OrphanKind {
    /// Every kind.
    pub const ALL: [Self; 2] = [Self::Volume, Self::Snapshot];

    /// The name in ConfigMaps, in messages and on the command line.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Volume => "volume",
            Self::Snapshot => "snapshot",
        }
    }

    /// Prefix of the names of the ConfigMaps. None is the start of another one.
    const fn name_prefix(self) -> &'static str {
        match self {
            Self::Volume => "cofferdam-orphans-",
            Self::Snapshot => "cofferdam-orphaned-snapshots-",
        }
    }
}

impl fmt::Display for OrphanKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Namespace and name of a report.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OrphanReportKey {
    /// `metadata.namespace`
    pub namespace: Box<str>,
    /// `metadata.name`
    pub name: Box<str>,
}

impl OrphanReportKey {
    /// The key of a driver's report about its volumes or its snapshots.
    pub fn for_driver(namespace: &str, kind: OrphanKind, driver: &DriverName) -> Self {
        let (prefix, driver) = (kind.name_prefix(), driver.as_str());
        let is_lowercase_alphanumeric = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        let is_dns_label = |label: &str| {
            label.chars().all(|c| is_lowercase_alphanumeric(c) || c == '-')
                && label.starts_with(is_lowercase_alphanumeric)
                && label.ends_with(is_lowercase_alphanumeric)
        };
        let is_valid = driver.len() <= MAX_DRIVER_NAME_BYTES && driver.split('.').all(is_dns_label);
        let name = if is_valid {
            format!("{prefix}{driver}")
        } else {
            // A digest of the name, so that each driver has a ConfigMap of its own.
            format!("{prefix}{:016x}", fnv1a(driver))
        };
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for OrphanReportKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// 64-bit FNV-1a. It is stable between builds, which the standard library's hashers are not.
pub(crate) fn fnv1a(text: &str) -> u64 {
    let mut hasher = FnvHasher::default();
    hasher.write(text.as_bytes());
    hasher.finish()
}

impl ObjectKey for OrphanReportKey {
    fn from_parts(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }

    fn parts(&self) -> (Option<&str>, &str) {
        (Some(&self.namespace), &self.name)
    }
}

/// The ConfigMap with an orphan report of a driver.
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
    /// Value of a key of `data`.
    pub fn data_value(&self, key: &str) -> Option<&str> {
        self.data.get(key).map(AsRef::as_ref)
    }
}

impl Kind for OrphanReport {
    type Key = OrphanReportKey;
    const RESOURCE: ApiResource =
        ApiResource { group: "", version: "v1", kind: "ConfigMap", plural: "configmaps", namespaced: true };

    fn decode(json: &str) -> Result<Self, DecodeError> {
        #[derive(Deserialize)]
        struct Wire {
            metadata: Meta,
            data: Option<BTreeMap<Box<str>, Box<str>>>,
        }
        let Wire { metadata, data } = parse_json(json)?;
        let key = Self::key_from_parts(&metadata.namespace(), &metadata.name());
        Ok(Self { key, meta: metadata.into_domain()?, data: data.unwrap_or_default() })
    }

    fn key(&self) -> &OrphanReportKey {
        &self.key
    }

    fn meta(&self) -> &ObjectMeta {
        &self.meta
    }
}

/// Selects the orphan reports of a namespace.
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
        let name = |kind: OrphanKind, driver: &str| {
            OrphanReportKey::for_driver("ns", kind, &driver.into()).name.into_string()
        };
        assert_eq!(name(OrphanKind::Volume, "array.example.com"), "cofferdam-orphans-array.example.com");
        assert_eq!(
            name(OrphanKind::Snapshot, "array.example.com"),
            "cofferdam-orphaned-snapshots-array.example.com"
        );
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
        let names: std::collections::BTreeSet<String> = OrphanKind::ALL
            .iter()
            .flat_map(|kind| drivers.iter().map(|driver| name(*kind, driver)))
            .collect();
        assert_eq!(names.len(), 2 * drivers.len());
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
