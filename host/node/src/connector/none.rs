//! `none`: a volume whose content no node reaches. A pod that has one sees an empty directory in which it
//! cannot write: what it wrote would be on the node's disk, and nobody would find it again.

use cofferdam_domain::storage::{AccessType, VolumeCapability};

use super::{
    Connector, StageContext,
    tmpfs::{stage_tmpfs, tmpfs_source},
};
use crate::{error::NodeError, mounter::Mounter, path::KubeletPath, record::VolumeRecord};

/// Memory of the empty directory in bytes: one page is the least that the kernel takes.
const EMPTY_TMPFS_BYTES: u64 = 4096;

/// Nothing to reach.
pub(crate) struct NoneConnector;

impl Connector for NoneConnector {
    fn check_capability(&self, capability: &VolumeCapability) -> Result<(), NodeError> {
        match capability.access_type {
            AccessType::Filesystem { .. } => Ok(()),
            AccessType::Block => Err(NodeError::FailedPrecondition(
                "no node reaches this volume: there is no device that a pod could have".to_owned(),
            )),
        }
    }

    fn identify(&self, _: &dyn Mounter, _: &mut VolumeRecord) -> Result<(), NodeError> {
        Ok(())
    }

    fn stage(&self, context: &mut StageContext<'_>) -> Result<(), NodeError> {
        stage_tmpfs(context, &tmpfs_source(&context.record.volume), EMPTY_TMPFS_BYTES, true)
    }

    fn expand(
        &self,
        _: &dyn Mounter,
        _: &VolumeRecord,
        _: &KubeletPath,
        required: Option<u64>,
    ) -> Result<Option<u64>, NodeError> {
        Ok(required)
    }
}
