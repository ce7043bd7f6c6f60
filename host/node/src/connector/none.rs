//! Kind `none`: a volume without storage on the node. Its pods see an empty directory, which is read-only
//! because written data would be lost.

use cofferdam_domain::storage::{AccessType, VolumeCapability};

use super::{
    Connector, StageContext,
    tmpfs::{stage_tmpfs, tmpfs_source},
};
use crate::{error::NodeError, mounter::Mounter, path::KubeletPath, record::VolumeRecord};

/// Size of the empty tmpfs in bytes. The kernel rounds it up to a page; 0 would mean no limit.
const EMPTY_TMPFS_BYTES: u64 = 4096;

/// Mounts an empty read-only tmpfs.
pub(crate) struct NoneConnector;

impl Connector for NoneConnector {
    fn check_capability(&self, capability: &VolumeCapability) -> Result<(), NodeError> {
        match capability.access_type {
            AccessType::Filesystem { .. } => Ok(()),
            AccessType::Block => Err(NodeError::FailedPrecondition(
                "this volume has no storage on the node: there is no device for a raw block volume"
                    .to_owned(),
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
