//! Names and labels of the journal's ConfigMaps.

use std::collections::BTreeMap;

use cofferdam_domain::{DriverName, NodeName};

use crate::{api::ApiResource, objects::orphan_report::fnv1a};

/// Label of the journal's ConfigMaps.
pub const JOURNAL_LABEL: &str = "cofferdam.dev/journal";
/// Value of [`JOURNAL_LABEL`].
pub const JOURNAL_LABEL_VALUE: &str = "intents";
/// Prefix of the ConfigMaps' names. The driver's name and the number of the shard follow, and between them
/// the digest of a node's name.
pub const NAME_PREFIX: &str = "cofferdam-intents-";
/// Hexadecimal digits of the digest of a node's name.
const NODE_DIGEST_LENGTH: usize = 16;
/// Annotation of the ConfigMaps of a node's journal: the node's name.
pub const NODE_ANNOTATION: &str = "cofferdam.dev/node";
/// Annotation with the format of the intents. ConfigMaps of older versions have none, and format 1.
pub(super) const FORMAT_ANNOTATION: &str = "cofferdam.dev/journal-format";
/// The format that this version reads and writes. A field that older versions can ignore does not change it:
/// they reject intents with a field that they do not know.
pub(super) const FORMAT: u64 = 1;
/// Kind of a shard.
pub(super) const CONFIG_MAP: ApiResource =
    ApiResource { group: "", version: "v1", kind: "ConfigMap", plural: "configmaps", namespaced: true };
/// ConfigMaps per journal. With `MAX_SHARD_INTENTS` it limits the number of a journal's volumes whose state
/// is unknown.
pub(super) const SHARD_COUNT: usize = 8;

/// Name of a ConfigMap of the driver's journal, or of its journal on a node.
pub(super) fn shard_name(driver: &DriverName, node: Option<&NodeName>, index: usize) -> String {
    match node {
        None => format!("{NAME_PREFIX}{driver}-{index}"),
        // A digest, because both names together can exceed the length limit. The node's name is in an
        // annotation.
        Some(node) => format!("{NAME_PREFIX}{driver}.{}-{index}", node_digest(node.as_str())),
    }
}

fn node_digest(node: &str) -> String {
    format!("{:0NODE_DIGEST_LENGTH$x}", fnv1a(node))
}

/// Returns the driver of a ConfigMap with the label of journals, by its name. `None` if the name is not
/// that of a journal's ConfigMap. `annotations` are those of the ConfigMap: they have the node of a node's
/// journal.
pub fn driver_of_config_map(name: &str, annotations: &BTreeMap<String, String>) -> Option<DriverName> {
    let (journal, shard) = name.strip_prefix(NAME_PREFIX)?.rsplit_once('-')?;
    shard.parse::<usize>().ok().filter(|shard| *shard < SHARD_COUNT)?;
    let driver = match annotations.get(NODE_ANNOTATION) {
        Some(node) => journal.strip_suffix(&format!(".{}", node_digest(node)))?,
        None => journal,
    };
    (!driver.is_empty()).then(|| driver.into())
}
