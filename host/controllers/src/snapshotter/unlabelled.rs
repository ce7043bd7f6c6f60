//! VolumeSnapshotContents of node-local drivers without the label of a node: the process of a node does not
//! watch them, and one of them may keep a snapshot of the node.

use std::{collections::BTreeSet, sync::Arc};

use cofferdam_cluster::{ApiError, Writer, objects::DecodeResult, reflector::Scope};
use cofferdam_domain::{DriverName, SnapshotHandle, VolumeSnapshotContent, names};

use super::rules;
use crate::live_reads::SingleFlightReads;

/// Reads contents without a node. Concurrent deletions share the reads.
pub(super) struct UnlabelledContents {
    writer: Writer,
    /// The node-local drivers of the process.
    drivers: BTreeSet<DriverName>,
    reads: SingleFlightReads<Arc<[DecodeResult<VolumeSnapshotContent>]>>,
}

impl UnlabelledContents {
    pub(super) fn new(writer: Writer, drivers: BTreeSet<DriverName>) -> Self {
        Self { writer, drivers, reads: SingleFlightReads::default() }
    }

    /// Returns the reason why the snapshot of a content must not be deleted: a content without a node keeps
    /// it, or cannot be decoded. `None` if there is none.
    ///
    /// # Errors
    /// The contents cannot be read.
    pub(super) async fn find_keeper(
        &self,
        content: &VolumeSnapshotContent,
        handle: &SnapshotHandle,
    ) -> Result<Option<String>, ApiError> {
        if !self.drivers.contains(&content.driver) {
            return Ok(None);
        }
        let keeps = |other: &DecodeResult<VolumeSnapshotContent>| match other {
            Ok(other) => {
                let is_of_snapshot = other.driver == content.driver && other.handle() == Some(handle);
                (is_of_snapshot && rules::keeps_snapshot(other, content))
                    .then(|| rules::kept_by(&other.name, handle))
            }
            Err(other) => Some(rules::undecodable(&other.key, handle)),
        };
        Ok(self.reads.read_live("", |_| self.read()).await?.iter().find_map(keeps))
    }

    /// Most contents without a node are those of other drivers.
    async fn read(&self) -> Result<Arc<[DecodeResult<VolumeSnapshotContent>]>, ApiError> {
        let label_selector = Some(format!("!{}", names::SNAPSHOT_MANAGED_BY));
        let scope = Scope { label_selector, ..Scope::default() };
        let is_relevant = |content: &DecodeResult<VolumeSnapshotContent>| {
            content.as_ref().map_or(true, |content| self.drivers.contains(&content.driver))
        };
        Ok(self.writer.read_scope(&scope, is_relevant).await?.into())
    }
}
