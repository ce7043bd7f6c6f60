//! StorageClass and VolumeAttributesClass.

use crate::{
    ids::{DriverName, ObjectMeta, StorageClassName, VolumeAttributesClassName},
    names,
    parameters::Parameters,
    volume::ReclaimPolicy,
};

/// `volumeBindingMode`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BindingMode {
    /// Binds and provisions immediately.
    Immediate,
    /// Binds and provisions after the scheduler has selected a node.
    WaitForFirstConsumer,
}

/// A StorageClass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StorageClass {
    /// `metadata.name`
    pub name: StorageClassName,
    /// Metadata.
    pub meta: ObjectMeta,
    /// `provisioner`
    pub provisioner: DriverName,
    /// `parameters`, including those with the prefix `csi.storage.k8s.io/`.
    pub parameters: Parameters,
    /// `reclaimPolicy`; the API's default is Delete.
    pub reclaim_policy: ReclaimPolicy,
    /// `mountOptions`
    pub mount_options: Vec<String>,
    /// `volumeBindingMode`. The API server always sets it; binding fails for a class without it.
    pub binding_mode: Option<BindingMode>,
    /// `allowedTopologies`: for each term, its topology keys with their allowed values.
    pub allowed_topologies: Vec<Vec<(String, Vec<String>)>>,
}

impl StorageClass {
    /// Returns `true` if the class is annotated as default.
    pub fn is_default(&self) -> bool {
        [names::DEFAULT_CLASS, names::DEFAULT_CLASS_BETA]
            .iter()
            .any(|key| self.meta.annotation(key) == Some("true"))
    }
}

/// A VolumeAttributesClass: mutable volume parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeAttributesClass {
    /// `metadata.name`
    pub name: VolumeAttributesClassName,
    /// Metadata.
    pub meta: ObjectMeta,
    /// `driverName`
    pub driver: DriverName,
    /// `parameters`
    pub parameters: Parameters,
}

/// The default class, for claims that set none. Of several, the newest is chosen, then the one with the
/// smallest name, as in Kubernetes' DefaultStorageClass admission and its retroactive assignment. `None` if
/// no class is annotated as default.
pub fn default_class<'a, C: std::ops::Deref<Target = StorageClass> + 'a>(
    classes: impl IntoIterator<Item = C>,
) -> Option<C> {
    classes
        .into_iter()
        .filter(|class| class.is_default())
        .min_by(|a, b| b.meta.created_ms.cmp(&a.meta.created_ms).then_with(|| a.name.cmp(&b.name)))
}
