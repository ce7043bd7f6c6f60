//! What a node knows of a driver that it never runs: the manifest that `cofferdam backend inspect -o
//! manifest` wrote.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::Read as _,
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

/// The only version that is read.
const MANIFEST_VERSION: u32 = 1;
/// Largest manifest that is read, in bytes.
const MAX_MANIFEST_BYTES: u64 = 1 << 20;
/// The topology key whose value is the node's name.
const NODE_TOPOLOGY_KEY: &str = "topology.cofferdam.dev/node";

/// Why a manifest cannot be used. One line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the manifest {path}: {problem}")]
pub struct ManifestError {
    path: String,
    problem: String,
}

/// A driver, as its manifest describes it.
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
struct ManifestDocument {
    driver: DriverName,
    version: String,
    topology_keys: Vec<String>,
    volumes_per_node: Option<u32>,
    features: Vec<String>,
    abilities: Vec<String>,
}

/// Whether a text is a driver's name: the socket of its registration is called so.
fn is_dns_subdomain(name: &str) -> bool {
    let is_valid_end = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
    let is_valid_byte = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.');
    name.len() <= 63
        && is_valid_end(name.bytes().next())
        && is_valid_end(name.bytes().next_back())
        && name.bytes().all(is_valid_byte)
}

impl DriverManifest {
    /// The manifest of a driver that runs in this process.
    ///
    /// # Errors
    /// When its name is none, for the socket of its registration is called so.
    pub fn from_description(description: Description, abilities: BTreeSet<Ability>) -> Result<Self, String> {
        if !is_dns_subdomain(description.name.as_str()) {
            return Err(format!(
                "names the driver {:?}: expected a DNS subdomain",
                description.name.as_str()
            ));
        }
        Ok(Self { description: Description { placement: Placement::Central, ..description }, abilities })
    }

    /// Reads a file.
    ///
    /// # Errors
    /// [`ManifestError`], which names it.
    pub fn open(path: &Path) -> Result<Self, ManifestError> {
        let fail = |problem: String| ManifestError { path: path.display().to_string(), problem };
        let mut bytes = Vec::new();
        let file = File::open(path).map_err(|error| fail(error.to_string()))?;
        file.take(MAX_MANIFEST_BYTES).read_to_end(&mut bytes).map_err(|error| fail(error.to_string()))?;
        Self::parse(&bytes).map_err(fail)
    }

    /// Reads a document.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(document: impl AsRef<[u8]>) -> Result<Self, String> {
        let parse_error = |error: serde_json::Error| {
            format!("is none: {error}; expected what `cofferdam backend inspect -o manifest` writes")
        };
        let document = document.as_ref();
        // First of all: another version has other members.
        let ManifestVersion { manifest_version: version } =
            serde_json::from_slice(document).map_err(parse_error)?;
        if version != MANIFEST_VERSION {
            return Err(format!(
                "has version {version}: expected {MANIFEST_VERSION}, as this program's `backend inspect -o manifest` writes it"
            ));
        }
        let document: ManifestDocument = serde_json::from_slice(document).map_err(parse_error)?;
        if !is_dns_subdomain(document.driver.as_str()) {
            return Err(format!("names the driver {:?}: expected a DNS subdomain", document.driver.as_str()));
        }
        // An ability that a later release has is nothing that a node does.
        let abilities = document.abilities.iter().filter_map(|name| Ability::from_interface(name)).collect();
        let description = Description {
            name: document.driver,
            version: document.version,
            topology_keys: document.topology_keys,
            placement: Placement::Central,
            volumes_per_node: document.volumes_per_node,
            features: document.features,
        };
        Ok(Self { description, abilities })
    }

    /// The driver's name.
    pub const fn driver(&self) -> &DriverName {
        &self.description.name
    }

    /// The vendor's version.
    pub fn version(&self) -> &str {
        &self.description.version
    }

    /// How many volumes fit a node; absent when there is no limit.
    pub const fn volumes_per_node(&self) -> Option<u32> {
        self.description.volumes_per_node
    }

    /// Whether the driver says that it has a feature.
    pub fn has_feature(&self, feature: Feature) -> bool {
        self.description.has_feature(feature)
    }

    /// Whether attachments come with each publication, and not with the volume.
    pub fn has_publishing(&self) -> bool {
        self.abilities.contains(&Ability::Publishing)
    }

    /// What the Identity service says of the driver.
    pub fn plugin_capabilities(&self) -> BTreeSet<PluginCapability> {
        plugin_capabilities(&self.abilities, &self.description)
    }

    /// Keys whose values only the Node object knows: its labels of these names.
    pub fn topology_labels(&self) -> impl Iterator<Item = &str> {
        self.description.topology_keys.iter().map(String::as_str).filter(|key| *key != NODE_TOPOLOGY_KEY)
    }

    /// Where this node is, for the driver's keys.
    ///
    /// # Errors
    /// The key for which there is no value.
    pub fn topology_segments(
        &self,
        node: &str,
        labels: &BTreeMap<String, String>,
    ) -> Result<BTreeMap<String, String>, String> {
        let value = |key: &String| match (key.as_str(), labels.get(key)) {
            (NODE_TOPOLOGY_KEY, _) => Ok((key.clone(), node.to_owned())),
            (_, Some(value)) => Ok((key.clone(), value.clone())),
            (_, None) => {
                Err(format!("the node {node} has no label {key:?}, which the driver's topology needs"))
            }
        };
        self.description.topology_keys.iter().map(value).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALID_MANIFEST: &str = r#"{"manifestVersion":1,"driver":"pool.example.com","version":"2","digest":"sha256:0","placement":"node",
        "topologyKeys":["topology.cofferdam.dev/node","zone"],"volumesPerNode":7,"features":["volume-mount-group"],
        "abilities":["expansion","publishing","telepathy"]}"#;

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
        assert!(manifest.topology_segments("n1", &BTreeMap::new()).unwrap_err().contains("zone"));
        for (from, to) in [
            ("\"manifestVersion\":1", "\"manifestVersion\":2"),
            ("pool.example.com", "../etc"),
            ("pool.example.com", ""),
            ("\"driver\"", "\"river\""),
        ] {
            assert!(DriverManifest::parse(VALID_MANIFEST.replace(from, to)).is_err(), "{from} {to}");
        }
        let newer_version = DriverManifest::parse(r#"{"manifestVersion":2}"#).unwrap_err();
        assert!(newer_version.contains("version 2"), "{newer_version}");
        let component = DriverManifest::parse(b"\0asm\xff").unwrap_err();
        assert!(component.contains("inspect -o manifest"), "{component}");
        let missing = DriverManifest::open(Path::new("/nowhere/manifest.json")).unwrap_err().to_string();
        assert!(missing.contains("/nowhere/manifest.json"), "{missing}");
    }
}
