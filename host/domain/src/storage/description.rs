//! Self-description of a driver.

use serde::Serialize;

use crate::{ids::DriverName, storage::Feature};

/// The processes that may make a driver's controller calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// Any process in the cluster.
    #[default]
    Central,
    /// A process on the node with the storage.
    Node,
}

/// Name, version and properties of a driver, as the driver reports them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Description {
    /// The driver's name, as in a StorageClass' `provisioner`.
    pub name: DriverName,
    /// The vendor's version.
    pub version: String,
    /// Supported topology keys. Empty for existing CSI drivers, whose topology keys are in CSINode.
    pub topology_keys: Vec<String>,
    /// The processes that may make the controller calls.
    pub placement: Placement,
    /// Maximum number of volumes per node. `None` if unlimited, and for existing CSI drivers.
    pub volumes_per_node: Option<u32>,
    /// Names of optional behaviours. [`Feature`] has the known names.
    pub features: Vec<String>,
}

impl Description {
    /// Returns `true` if the driver declares a feature.
    pub fn has_feature(&self, feature: Feature) -> bool {
        self.features.iter().any(|name| name == feature.as_str())
    }
}

/// CSI `Probe`: readiness of a driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Readiness {
    /// The driver accepts calls.
    Ready,
    /// The driver does not accept calls at present. The message has the reason that a WebAssembly component
    /// gives; an existing CSI driver gives none.
    NotReady(String),
}
