//! What a backend says of itself.

use serde::Serialize;

use crate::{ids::DriverName, storage::ability::Feature};

/// Where a backend's controller calls run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// Anywhere in the cluster.
    #[default]
    Central,
    /// In a process on the node that holds the storage.
    Node,
}

/// What a backend says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Description {
    /// Name, as a StorageClass' `provisioner` spells it.
    pub name: DriverName,
    /// The vendor's version.
    pub version: String,
    /// Topology keys that it understands.
    pub topology_keys: Vec<String>,
    /// Where its controller calls run.
    pub placement: Placement,
    /// How many volumes fit a node; absent when unlimited.
    pub volumes_per_node: Option<u32>,
    /// What CSI can only express as behaviour, by name; [`Feature`] has the names that mean something here.
    pub features: Vec<String>,
}

impl Description {
    /// Whether the backend says that it has a feature.
    pub fn has_feature(&self, feature: Feature) -> bool {
        self.features.iter().any(|name| name == feature.as_str())
    }
}

/// Whether a backend is ready. CSI `Probe`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Readiness {
    /// It can be called.
    Ready,
    /// It is still starting; the message says why.
    NotReady(String),
}
