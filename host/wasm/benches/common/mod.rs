//! Helpers of the benchmarks.
#![allow(dead_code, reason = "each benchmark uses a part of it")]

use std::time::Duration;

use cofferdam_backend::{Backend as _, Call};
use cofferdam_domain::storage::{
    AccessType, CapacityRange, CreateVolume, CsiAccessMode, Parameters, VolumeCapability,
};
use cofferdam_wasm::WasmBackend;

pub(crate) type BenchError = Box<dyn std::error::Error + Send + Sync>;

/// The request for a volume of 1 GiB, as for a PersistentVolumeClaim.
pub(crate) fn request(name: String) -> CreateVolume {
    let access = AccessType::Filesystem { fs_type: None, mount_flags: Vec::new(), mount_group: None };
    CreateVolume {
        name,
        capacity: CapacityRange { required: Some(1 << 30), limit: None },
        capabilities: vec![VolumeCapability {
            access_mode: CsiAccessMode::SingleNodeWriter,
            access_type: access,
        }],
        parameters: Parameters::new(),
        mutable_parameters: Parameters::new(),
        topology: None,
        owner: None,
        source: None,
    }
}

/// Runs one CreateVolume with a deadline of 60 s.
pub(crate) async fn create(backend: &WasmBackend, name: String) -> Result<(), BenchError> {
    backend.create_volume(Call::with_deadline(Duration::from_secs(60)), request(name)).await?;
    Ok(())
}

/// The given percentile of sorted times.
pub(crate) fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    let last = sorted.len().saturating_sub(1);
    sorted.get((sorted.len() * percent / 100).min(last)).copied().unwrap_or_default()
}
