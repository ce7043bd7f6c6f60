//! Kind `directory`: an existing directory, bind-mounted.

use cofferdam_domain::storage::VolumeCapability;

use super::{Connector, StageContext, require_filesystem};
use crate::{
    error::{NodeError, StepContext as _},
    mount_options::{MountOptions, MountType},
    mount_point::MountAttributes,
    mounter::{BindSource, Mounter},
    path::{KubeletPath, RootedPath},
    record::VolumeRecord,
};

/// Bind-mounts this directory, which is below the policy's root.
pub(crate) struct DirectoryConnector(pub(crate) RootedPath);

impl Connector for DirectoryConnector {
    fn check_capability(&self, capability: &VolumeCapability) -> Result<(), NodeError> {
        require_filesystem("a directory", capability)
    }

    fn identify(&self, mounter: &dyn Mounter, _: &mut VolumeRecord) -> Result<(), NodeError> {
        mounter.directory_id(&self.0).step("find the volume's directory").map(drop)
    }

    fn stage(&self, context: &mut StageContext<'_>) -> Result<(), NodeError> {
        let options =
            MountOptions::from_flags(context.mount_flags(), MountType::Bind, context.base_attributes)?;
        let id = context.mounter.directory_id(&self.0).step("find the volume's directory")?;
        let attributes = MountAttributes {
            read_only: options.attributes.read_only || context.is_read_only(),
            ..options.attributes
        };
        context
            .bind_to_staging_path(&BindSource::Directory(self.0.clone()), attributes, |found| found.id == id)
    }

    fn expand(
        &self,
        _: &dyn Mounter,
        _: &VolumeRecord,
        _: &KubeletPath,
        required: Option<u64>,
    ) -> Result<Option<u64>, NodeError> {
        // The node does not limit the size of a directory.
        Ok(required)
    }
}
