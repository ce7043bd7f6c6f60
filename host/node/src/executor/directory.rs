//! `directory`: a directory that the node has already, bound.

use cofferdam_domain::storage::VolumeCapability;

use super::{Executor, Job, filesystem_only};
use crate::{
    error::{NodeError, Step as _},
    machine::{Attributes, Machine, Source},
    options::{MountOptions, Of},
    path::{Beneath, Place},
    record::VolumeRecord,
};

/// A directory beneath the policy's root.
pub(crate) struct Directory(pub(crate) Beneath);

impl Executor for Directory {
    fn supports(&self, capability: &VolumeCapability) -> Result<(), NodeError> {
        filesystem_only("a directory", capability)
    }

    fn identify(&self, machine: &dyn Machine, _: &mut VolumeRecord) -> Result<(), NodeError> {
        machine.directory(&self.0).step("find the volume's directory").map(drop)
    }

    fn stage(&self, job: &mut Job<'_>) -> Result<(), NodeError> {
        let options = MountOptions::read(job.flags(), Of::Bind, job.least)?;
        let id = job.machine.directory(&self.0).step("find the volume's directory")?;
        let attributes =
            Attributes { read_only: options.attributes.read_only || job.read_only(), ..options.attributes };
        job.bind(&Source::Directory(self.0.clone()), attributes, |found| found.id == id)
    }

    fn expand(
        &self,
        _: &dyn Machine,
        _: &VolumeRecord,
        _: &Place,
        required: Option<u64>,
    ) -> Result<Option<u64>, NodeError> {
        // How much fits a directory is kept by whoever owns its filesystem.
        Ok(required)
    }
}
