//! The driver manifest: a description of a driver for the node plugin, which does not run the driver itself.
//! `cofferdam backend inspect -o manifest` writes it as a JSON file.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::{self, Read as _},
    path::Path,
};

use cofferdam_domain::{
    DriverName,
    storage::{
        Ability, Description, Feature, Placement,
        ability::{PluginCapability, plugin_capabilities},
    },
};
use serde::Deserialize;

/// The supported manifest version.
const MANIFEST_VERSION: u32 = 1;
/// Maximum manifest size in bytes.
const MAX_MANIFEST_BYTES: u64 = 1 << 20;
/// Topology key whose value is the node's name.
const NODE_TOPOLOGY_KEY: &str = "topology.cofferdam.dev/node";

/// An invalid manifest. The text is one line and continues "the manifest".
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidManifest {
    /// The file cannot be read.
    #[error("cannot be read: {reason}")]
    Unreadable {
        /// The cause.
        reason: String,
    },
    /// The text is not JSON, lacks a field, or has a field of another type. Also a file that is larger than
    /// 1 MiB: the rest is not read.
    #[error("is malformed: {reason}; expected the output of `cofferdam backend inspect -o manifest`")]
    Malformed {
        /// The cause.
        reason: String,
    },
    /// The version is not supported.
    #[error(
        "has version {found}: expected {MANIFEST_VERSION}, as written by this program's \
         `backend inspect -o manifest`"
    )]
    UnsupportedVersion {
        /// The version.
        found: u32,
    },
    /// The driver's name has more than 63 bytes, has other characters than ASCII letters, digits, `-` and
    /// `.`, or does not start and end with a letter or digit.
    #[error("has the driver name {name:?}: expected a DNS subdomain")]
    DriverName {
        /// The name.
        name: String,
    },
}

/// An unusable manifest file. The text is one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the manifest {path} {source}")]
pub struct ManifestError {
    path: String,
    source: InvalidManifest,
}

/// A Node without a label that the driver's topology needs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the node {node} has no label {key:?}, which the driver's topology needs")]
pub struct MissingTopologyLabel {
    node: String,
    key: String,
}

/// A driver's description and abilities.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverManifest {
    description: Description,
    abilities: BTreeSet<Ability>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ManifestVersion {
    manifest_version: u32,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ManifestFields {
    driver: DriverName,
    version: String,
    topology_keys: Vec<String>,
    volumes_per_node: Option<u32>,
    features: Vec<String>,
    abilities: Vec<String>,
}

/// Checks that a driver name has at most 63 ASCII letters, digits, `-` and `.`, and starts and ends with a
/// letter or digit: it is part of the registration socket's file name.
fn check_driver_name(name: &DriverName) -> Result<(), InvalidManifest> {
    let name = name.as_str();
    let is_valid_end = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
    let is_valid_byte = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.');
    let is_valid = name.len() <= 63
        && is_valid_end(name.bytes().next())
        && is_valid_end(name.bytes().next_back())
        && name.bytes().all(is_valid_byte);
    if is_valid { Ok(()) } else { Err(InvalidManifest::DriverName { name: name.to_owned() }) }
}

impl DriverManifest {
    /// Creates the manifest of a driver that runs in this process. Sets the placement to
    /// [`Placement::Central`], as [`Self::parse`] does: the node plugin does not use the placement.
    ///
    /// # Errors
    /// [`InvalidManifest::DriverName`]
    pub fn from_description(
        description: Description,
        abilities: BTreeSet<Ability>,
    ) -> Result<Self, InvalidManifest> {
        check_driver_name(&description.name)?;
        Ok(Self { description: Description { placement: Placement::Central, ..description }, abilities })
    }

    /// Reads a manifest file.
    ///
    /// # Errors
    /// [`ManifestError`], with the file's path.
    pub fn open(path: &Path) -> Result<Self, ManifestError> {
        let fail = |source| ManifestError { path: path.display().to_string(), source };
        let unreadable = |error: io::Error| fail(InvalidManifest::Unreadable { reason: error.to_string() });
        let mut bytes = Vec::new();
        let file = File::open(path).map_err(unreadable)?;
        file.take(MAX_MANIFEST_BYTES).read_to_end(&mut bytes).map_err(unreadable)?;
        Self::parse(&bytes).map_err(fail)
    }

    /// Parses a JSON manifest.
    ///
    /// # Errors
    /// [`InvalidManifest`]
    pub fn parse(json: impl AsRef<[u8]>) -> Result<Self, InvalidManifest> {
        let malformed = |error: serde_json::Error| InvalidManifest::Malformed { reason: error.to_string() };
        let json = json.as_ref();
        // The version first: other versions may have other fields.
        let ManifestVersion { manifest_version: found } = serde_json::from_slice(json).map_err(malformed)?;
        if found != MANIFEST_VERSION {
            return Err(InvalidManifest::UnsupportedVersion { found });
        }
        let manifest: ManifestFields = serde_json::from_slice(json).map_err(malformed)?;
        check_driver_name(&manifest.driver)?;
        // Unknown abilities come from later releases and do not concern the node.
        let abilities = manifest.abilities.iter().filter_map(|name| Ability::from_interface(name)).collect();
        let description = Description {
            name: manifest.driver,
            version: manifest.version,
            topology_keys: manifest.topology_keys,
            placement: Placement::Central,
            volumes_per_node: manifest.volumes_per_node,
            features: manifest.features,
        };
        Ok(Self { description, abilities })
    }

    /// Returns the driver's name.
    pub const fn driver(&self) -> &DriverName {
        &self.description.name
    }

    /// Returns the driver's version, CSI's `vendor_version`.
    pub fn version(&self) -> &str {
        &self.description.version
    }

    /// Returns the maximum number of volumes per node; absent if unlimited.
    pub const fn volumes_per_node(&self) -> Option<u32> {
        self.description.volumes_per_node
    }

    /// Returns true if the driver declares a feature.
    pub fn has_feature(&self, feature: Feature) -> bool {
        self.description.has_feature(feature)
    }

    /// Returns true if ControllerPublishVolume returns the connection info, instead of CreateVolume.
    pub fn has_publishing(&self) -> bool {
        self.abilities.contains(&Ability::Publishing)
    }

    /// Returns the capabilities for GetPluginCapabilities: those of the whole driver. They include CSI's
    /// Controller service, which the node plugin does not serve.
    pub fn plugin_capabilities(&self) -> BTreeSet<PluginCapability> {
        plugin_capabilities(&self.abilities, &self.description)
    }

    /// Returns the topology keys whose values are labels of the Node object.
    pub fn topology_labels(&self) -> impl Iterator<Item = &str> {
        self.description.topology_keys.iter().map(String::as_str).filter(|key| *key != NODE_TOPOLOGY_KEY)
    }

    /// Returns the node's topology segments for the driver's keys.
    ///
    /// # Errors
    /// [`MissingTopologyLabel`]
    pub fn topology_segments(
        &self,
        node: &str,
        labels: &BTreeMap<String, String>,
    ) -> Result<BTreeMap<String, String>, MissingTopologyLabel> {
        let value = |key: &String| match (key.as_str(), labels.get(key)) {
            (NODE_TOPOLOGY_KEY, _) => Ok((key.clone(), node.to_owned())),
            (_, Some(value)) => Ok((key.clone(), value.clone())),
            (_, None) => Err(MissingTopologyLabel { node: node.to_owned(), key: key.clone() }),
        };
        self.description.topology_keys.iter().map(value).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALID_MANIFEST: &str = r#"{
        "manifestVersion":1,"driver":"pool.example.com","version":"2","digest":"sha256:0","placement":"node",
        "topologyKeys":["topology.cofferdam.dev/node","zone"],"volumesPerNode":7,
        "features":["volume-mount-group"],"abilities":["expansion","publishing","telepathy"]
    }"#;

    #[test]
    fn manifest_of_backend_inspect_is_parsed() {
        let manifest = DriverManifest::parse(VALID_MANIFEST).unwrap();
        assert_eq!((manifest.driver().as_str(), manifest.version()), ("pool.example.com", "2"));
        assert!(manifest.has_publishing() && manifest.has_feature(Feature::VolumeMountGroup));
        assert_eq!(manifest.volumes_per_node(), Some(7));
        assert_eq!(manifest.topology_labels().collect::<Vec<_>>(), ["zone"]);
        let labels = |value: &str| [("zone".to_owned(), value.to_owned())].into();
        let segments = manifest.topology_segments("n1", &labels("a")).unwrap();
        assert_eq!(segments.values().collect::<Vec<_>>(), ["n1", "a"]);
        assert!(manifest.topology_segments("n1", &BTreeMap::new()).unwrap_err().to_string().contains("zone"));
        for (from, to) in [
            ("\"manifestVersion\":1", "\"manifestVersion\":2"),
            ("pool.example.com", "../etc"),
            ("pool.example.com", ""),
            ("\"driver\"", "\"river\""),
        ] {
            assert!(DriverManifest::parse(VALID_MANIFEST.replace(from, to)).is_err(), "{from} {to}");
        }
        let newer_version = DriverManifest::parse(r#"{"manifestVersion":2}"#).unwrap_err().to_string();
        assert!(newer_version.contains("version 2"), "{newer_version}");
        let component = DriverManifest::parse(b"\0asm\xff").unwrap_err().to_string();
        assert!(component.contains("inspect -o manifest"), "{component}");
        let missing = DriverManifest::open(Path::new("/nowhere/manifest.json")).unwrap_err().to_string();
        assert!(missing.contains("/nowhere/manifest.json"), "{missing}");
    }
}
