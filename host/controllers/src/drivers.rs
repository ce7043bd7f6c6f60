//! The drivers of a process.

use std::{collections::HashMap, sync::Arc};

use cofferdam_backend::Backend;
use cofferdam_cluster::Journal;
use cofferdam_domain::DriverName;

/// The drivers of a process, by name.
pub(crate) type Backends = HashMap<DriverName, Arc<dyn Backend>>;

/// A driver with its journal, and the names by which this process identifies itself in the driver's
/// PersistentVolumes and in events.
#[derive(Clone)]
pub(crate) struct ManagedDriver {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) journal: Journal,
    /// `spec.csi.volumeAttributes["storage.kubernetes.io/csiProvisionerIdentity"]` of provisioned volumes,
    /// unless the driver returns this attribute itself.
    pub(crate) identity: String,
    /// `source.component` of the events of the provisioner and of the scan for orphaned volumes.
    pub(crate) component: Box<str>,
}
