//! `none`: a volume whose content no node reaches. A pod that has one sees an empty directory in which it
//! cannot write: what it wrote would be on the node's disk, and nobody would find it again.

use cofferdam_domain::storage::{AccessType, VolumeCapability};

use super::{
    Executor, Job,
    memory::{memory_name, stage_memory},
};
use crate::{error::NodeError, machine::Machine, path::Place, record::VolumeRecord};

/// Memory of the empty directory in bytes: one page is the least that the kernel takes.
const PAGE: u64 = 4096;

/// Nothing to reach.
pub(crate) struct Nothing;

impl Executor for Nothing {
    fn supports(&self, capability: &VolumeCapability) -> Result<(), NodeError> {
        match capability.access_type {
            AccessType::Filesystem { .. } => Ok(()),
            AccessType::Block => Err(NodeError::Precondition(
                "no node reaches this volume: there is no device that a pod could have".to_owned(),
            )),
        }
    }

    fn identify(&self, _: &dyn Machine, _: &mut VolumeRecord) -> Result<(), NodeError> {
        Ok(())
    }

    fn stage(&self, job: &mut Job<'_>) -> Result<(), NodeError> {
        stage_memory(job, &memory_name(&job.record.volume), PAGE, true)
    }

    fn expand(
        &self,
        _: &dyn Machine,
        _: &VolumeRecord,
        _: &Place,
        required: Option<u64>,
    ) -> Result<Option<u64>, NodeError> {
        Ok(required)
    }
}
