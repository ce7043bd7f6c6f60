//! `tmpfs`: memory of the node, empty after each mount.

use cofferdam_domain::{names, storage::VolumeCapability};

use super::{Executor, Job, filesystem_only, restrict};
use crate::{
    error::{NodeError, Step as _},
    machine::{Attributes, Found, Machine},
    options::{MountOptions, Of},
    path::Place,
    record::VolumeRecord,
};

/// Memory of a size.
pub(crate) struct Memory {
    /// Bytes.
    pub(crate) size: u64,
    /// Most bytes that the policy allows.
    pub(crate) most: u64,
}

/// What the mount table calls the memory of a volume: it tells one from another.
pub(crate) fn memory_name(volume: &str) -> String {
    format!("cofferdam-{:.32}", names::sha256_hex([volume]))
}

/// Whether a place holds the memory of this name.
pub(crate) fn is_memory(found: &Found, name: &str) -> bool {
    found.mounts.last().is_some_and(|top| top.fs_type == "tmpfs" && top.source == name)
}

/// Mounts memory where it is not mounted yet.
pub(crate) fn stage_memory(job: &Job<'_>, name: &str, size: u64, read_only: bool) -> Result<(), NodeError> {
    let mut options = MountOptions::read(job.flags(), Of::Memory, job.least)?;
    options.attributes.read_only |= read_only;
    if !job.mounted(job.place, |found| is_memory(found, name))? {
        job.machine.mount_memory(name, size, &options, job.place).step("mount the volume's memory")?;
    }
    restrict(job.machine, job.place, Attributes { read_only, ..job.least })
}

impl Executor for Memory {
    fn supports(&self, capability: &VolumeCapability) -> Result<(), NodeError> {
        filesystem_only("memory", capability)
    }

    fn identify(&self, _: &dyn Machine, _: &mut VolumeRecord) -> Result<(), NodeError> {
        Ok(())
    }

    fn stage(&self, job: &mut Job<'_>) -> Result<(), NodeError> {
        // What it has grown to since it was attached counts after a reboot too.
        let size = job.record.size.unwrap_or_default().max(self.size);
        stage_memory(job, &memory_name(&job.record.volume), size, job.read_only())
    }

    fn expand(
        &self,
        machine: &dyn Machine,
        record: &VolumeRecord,
        place: &Place,
        required: Option<u64>,
    ) -> Result<Option<u64>, NodeError> {
        let now = machine.usage(place).step("measure the volume's memory")?.total;
        let Some(required) = required.filter(|required| *required > now) else {
            return Ok(Some(now));
        };
        if required > self.most {
            let most = self.most;
            return Err(NodeError::Range(format!(
                "memory of {required} bytes: expected at most {most} on this node"
            )));
        }
        if record.size != Some(required) {
            let grown = VolumeRecord { size: Some(required), ..record.clone() };
            machine.keep(&grown).step("keep the volume's record")?;
        }
        machine.resize_memory(required, place).step("grow the volume's memory")?;
        Ok(Some(required))
    }
}
