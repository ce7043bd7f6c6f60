//! Memory of the node that volumes take: each tmpfs, inline or not, within one total.

use std::collections::BTreeSet;

use super::NodeVolumes;
use crate::{connection::NodeConnection, error::NodeError, mounter::Mounter, record::VolumeRecord};

/// Returns the size in bytes of a volume that is a tmpfs; `None` for others.
pub(super) fn memory_of(record: &VolumeRecord) -> Option<u64> {
    let Some(connection) = &record.connection_info else { return record.size };
    match NodeConnection::parse(connection) {
        Ok(NodeConnection::Tmpfs { size }) => Some(size.max(record.size.unwrap_or_default())),
        Ok(_) | Err(_) => None,
    }
}

impl<M: Mounter> NodeVolumes<M> {
    /// Rejects `size` bytes for a volume if all tmpfs together would be above the policy's total. Counts
    /// volumes that are mounted or in `active`. The caller locks the active volumes until the size is
    /// recorded.
    pub(super) fn check_total_memory(
        &self,
        volume: &str,
        size: u64,
        records: &[VolumeRecord],
        active: &BTreeSet<String>,
    ) -> Result<(), NodeError> {
        let Some(most) = self.policy.tmpfs_total_bytes else { return Ok(()) };
        let mut others = 0_u64;
        for record in records.iter().filter(|record| record.volume != volume) {
            if let Some(size) = memory_of(record)
                && (active.contains(&record.volume) || self.is_live(record)?)
            {
                others = others.saturating_add(size);
            }
        }
        if others.saturating_add(size) <= most {
            return Ok(());
        }
        Err(NodeError::FailedPrecondition(format!(
            "a tmpfs of {size} bytes beside {others} bytes of other volumes: expected at most {most} on \
             this node"
        )))
    }
}
