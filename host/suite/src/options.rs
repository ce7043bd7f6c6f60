//! What a run is told.

use std::time::Duration;

use cofferdam_backend::BackendConfig;
use cofferdam_domain::{
    NodeName,
    storage::{AccessType, CapabilityMode, Parameters, Secrets, Segments, VolumeCapability},
};

/// What a run is told. The default fits a driver that needs no parameters, secrets or topology.
#[derive(Clone, Debug)]
pub struct Options {
    /// Settings, grants and limits of the driver. The breaker is set aside: the suite makes calls die on purpose.
    pub config: BackendConfig,
    /// Secrets that every call carries.
    pub secrets: Secrets,
    /// The parameters of the class.
    pub parameters: Parameters,
    /// Parameters that `modification` accepts; without them, cases that change something are skipped.
    pub mutable_parameters: Parameters,
    /// The parameters of the class of snapshots.
    pub snapshot_parameters: Parameters,
    /// How a volume is used.
    pub capability: VolumeCapability,
    /// Where volumes must be reachable, for drivers with topology.
    pub topology: Option<Segments>,
    /// Two nodes that the driver can publish to.
    pub nodes: [NodeName; 2],
    /// Size of a volume, in bytes. A case may ask for up to four times this.
    pub size: u64,
    /// Makes the names of the run; the same seed makes the same names.
    pub seed: u64,
    /// Only cases whose id begins with one of these; all when empty.
    pub only: Vec<String>,
    /// How long one call may take.
    pub deadline: Duration,
    /// How long a call is repeated whose outcome is open, and how long a snapshot may take to become ready.
    pub patience: Duration,
    /// How many calls run at once in the cases about concurrency, and so how many volumes exist at least.
    pub concurrency: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            config: BackendConfig::default(),
            secrets: Secrets::default(),
            parameters: Parameters::new(),
            mutable_parameters: Parameters::new(),
            snapshot_parameters: Parameters::new(),
            capability: VolumeCapability {
                mode: CapabilityMode::SingleNodeWriter,
                access: AccessType::Filesystem { fs_type: None, mount_flags: Vec::new(), mount_group: None },
            },
            topology: None,
            nodes: [NodeName::new("cofferdam-test-1"), NodeName::new("cofferdam-test-2")],
            size: 1 << 20,
            seed: 0,
            only: Vec::new(),
            deadline: Duration::from_secs(30),
            patience: Duration::from_secs(60),
            concurrency: 8,
        }
    }
}

impl Options {
    /// Whether a case is to be run.
    pub(crate) fn wants(&self, id: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|prefix| id.starts_with(prefix))
    }
}
