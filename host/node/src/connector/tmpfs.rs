//! Kind `tmpfs`: memory of the node, empty after each mount.

use cofferdam_domain::{names, storage::VolumeCapability};

use super::{Connector, StageContext, require_filesystem, restrict};
use crate::{
    error::{NodeError, StepContext as _},
    mount_options::{MountOptions, MountType},
    mount_point::MountAttributes,
    mounter::{Mounter, PathInfo},
    path::KubeletPath,
    record::VolumeRecord,
};

/// Mounts a tmpfs.
pub(crate) struct TmpfsConnector {
    /// Size in bytes.
    pub(crate) size: u64,
    /// Maximum size in bytes that the policy allows.
    pub(crate) max_size: u64,
}

/// Returns the mount source of a volume's tmpfs, which identifies it in mountinfo.
pub(crate) fn tmpfs_source(volume: &str) -> String {
    format!("cofferdam-{:.32}", names::sha256_hex([volume]))
}

/// Returns true if the top mount is the tmpfs of this source.
pub(crate) fn is_tmpfs_mount(found: &PathInfo, name: &str) -> bool {
    found.mounts.last().is_some_and(|top| top.fs_type == "tmpfs" && top.source == name)
}

/// Mounts a tmpfs at the staging path, unless it is mounted, and adds the required attributes to the mount.
pub(crate) fn stage_tmpfs(
    context: &StageContext<'_>,
    name: &str,
    size: u64,
    read_only: bool,
) -> Result<(), NodeError> {
    let mut options =
        MountOptions::from_flags(context.mount_flags(), MountType::Tmpfs, context.base_attributes)?;
    options.attributes.read_only |= read_only;
    if !context.is_mounted(context.staging_path, |found| is_tmpfs_mount(found, name))? {
        context
            .mounter
            .mount_tmpfs(name, size, &options, context.staging_path)
            .step("mount the volume's tmpfs")?;
    }
    restrict(context.mounter, context.staging_path, MountAttributes { read_only, ..context.base_attributes })
}

impl Connector for TmpfsConnector {
    fn check_capability(&self, capability: &VolumeCapability) -> Result<(), NodeError> {
        require_filesystem("a tmpfs", capability)
    }

    fn identify(&self, _: &dyn Mounter, _: &mut VolumeRecord) -> Result<(), NodeError> {
        Ok(())
    }

    fn stage(&self, context: &mut StageContext<'_>) -> Result<(), NodeError> {
        // After a reboot, an expanded tmpfs keeps its expanded size.
        let size = context.record.size.unwrap_or_default().max(self.size);
        stage_tmpfs(context, &tmpfs_source(&context.record.volume), size, context.is_read_only())
    }

    fn expand(
        &self,
        mounter: &dyn Mounter,
        record: &VolumeRecord,
        path: &KubeletPath,
        required: Option<u64>,
    ) -> Result<Option<u64>, NodeError> {
        let current_size = mounter.usage(path).step("measure the volume's tmpfs")?.total;
        let Some(required) = required.filter(|required| *required > current_size) else {
            return Ok(Some(current_size));
        };
        if required > self.max_size {
            let max_size = self.max_size;
            return Err(NodeError::OutOfRange(format!(
                "a tmpfs of {required} bytes: expected at most {max_size} on this node"
            )));
        }
        if record.size != Some(required) {
            let new_record = VolumeRecord { size: Some(required), ..record.clone() };
            mounter.save_record(&new_record).step("save the volume's record")?;
        }
        mounter.resize_tmpfs(required, path).step("resize the volume's tmpfs")?;
        Ok(Some(required))
    }
}
