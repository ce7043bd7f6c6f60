//! StorageClass, as far as the roles decide on it.

use crate::{
    ids::{DriverName, ObjectMeta, StorageClassName, VolumeAttributesClassName},
    names,
    storage::Parameters,
    volume::ReclaimPolicy,
};

/// `volumeBindingMode`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BindingMode {
    /// Bound and provisioned at once.
    Immediate,
    /// Bound and provisioned once the scheduler has chosen a node.
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
    /// `parameters`, the reserved ones included.
    pub parameters: Parameters,
    /// `reclaimPolicy`; the API's default is Delete.
    pub reclaim_policy: ReclaimPolicy,
    /// `mountOptions`
    pub mount_options: Vec<String>,
    /// `volumeBindingMode`; the API always fills it, a class without it makes binding an error.
    pub binding_mode: Option<BindingMode>,
    /// `allowedTopologies`: each term a list of keys with their allowed values.
    pub allowed_topologies: Vec<Vec<(String, Vec<String>)>>,
}

impl StorageClass {
    /// Whether an administrator marked the class as default.
    pub fn is_default(&self) -> bool {
        [names::DEFAULT_CLASS, names::DEFAULT_CLASS_BETA]
            .iter()
            .any(|key| self.meta.annotation(key) == Some("true"))
    }
}

/// A VolumeAttributesClass: parameters of a volume that can be changed.
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

/// The class that a claim without any gets: the newest one marked as default, then the smallest name
/// (Kubernetes' admission and its retroactive assignment choose alike).
pub fn default_class<'a, C: std::ops::Deref<Target = StorageClass> + 'a>(
    classes: impl IntoIterator<Item = C>,
) -> Option<C> {
    classes
        .into_iter()
        .filter(|class| class.is_default())
        .min_by(|a, b| b.meta.created_ms.cmp(&a.meta.created_ms).then_with(|| a.name.cmp(&b.name)))
}
