//! Kind `nfs`: an exported directory of an NFS server.

use std::net::IpAddr;

use cofferdam_domain::storage::VolumeCapability;
use ipnet::IpNet;

use super::{Connector, StageContext, require_filesystem, restrict};
use crate::{
    error::{NodeError, StepContext as _},
    mount_options::{MountOptions, MountType},
    mount_point::MountAttributes,
    mounter::{Mounter, PathInfo},
    nfs::{NfsExport, NfsServer},
    path::KubeletPath,
    record::VolumeRecord,
};

/// Mounts this export. Its server must have an address in one of the networks.
pub(crate) struct NfsConnector {
    pub(crate) export: NfsExport,
    pub(crate) addresses: Vec<IpNet>,
}

impl NfsConnector {
    /// Returns the server's addresses that are allowed, at least one.
    fn resolve(&self, mounter: &dyn Mounter) -> Result<Vec<IpAddr>, NodeError> {
        let name = match &self.export.server {
            NfsServer::Address(address) => return Ok(vec![*address]),
            NfsServer::Name(name) => name,
        };
        let found = mounter.resolve(name).step("resolve the name of the NFS server")?;
        let is_allowed = |address: &IpAddr| self.addresses.iter().any(|network| network.contains(address));
        let allowed: Vec<IpAddr> = found.iter().map(IpAddr::to_canonical).filter(is_allowed).collect();
        if allowed.is_empty() {
            let addresses = found.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            return Err(NodeError::Denied(format!(
                "the NFS server {name} has the addresses {addresses}, which are not allowed on this node"
            )));
        }
        Ok(allowed)
    }

    /// Mounts the export from the first address whose server mounts it. Checks that the server has mounted this
    /// path: NFS 4 follows symbolic links in it, which pods can create.
    fn mount(&self, context: &StageContext<'_>, options: &MountOptions) -> Result<(), NodeError> {
        let path = context.staging_path;
        let mut result = Ok(());
        for address in self.resolve(context.mounter)? {
            result = context
                .mounter
                .mount_nfs(&self.export, address, options, path)
                .step("mount the volume's NFS export");
            if result.is_ok() {
                break;
            }
        }
        result?;
        let found = context.mounter.inspect(path).step("inspect the staging path")?;
        if found.as_ref().is_some_and(|found| self.is_mounted(found)) {
            return Ok(());
        }
        let top = found.as_ref().and_then(|found| found.mounts.last());
        let (mounted, expected) = (top.map_or("nothing", |top| top.source.as_str()), self.export.source());
        Err(NodeError::Denied(format!(
            "the NFS server mounts {mounted} for {expected}: expected a path without symbolic links"
        )))
    }

    fn is_mounted(&self, found: &PathInfo) -> bool {
        let source = self.export.source();
        found.mounts.last().is_some_and(|top| top.is_nfs() && top.source == source)
    }
}

impl Connector for NfsConnector {
    fn check_capability(&self, capability: &VolumeCapability) -> Result<(), NodeError> {
        require_filesystem("an NFS export", capability)
    }

    fn identify(&self, _: &dyn Mounter, _: &mut VolumeRecord) -> Result<(), NodeError> {
        Ok(())
    }

    fn stage(&self, context: &mut StageContext<'_>) -> Result<(), NodeError> {
        let mount_type = MountType::Nfs(self.export.version);
        let mut options =
            MountOptions::from_flags(context.mount_flags(), mount_type, context.base_attributes)?;
        options.attributes.read_only |= context.is_read_only();
        let path = context.staging_path;
        if !context.is_mounted(path, |found| self.is_mounted(found))? {
            self.mount(context, &options)?;
        }
        let attributes = MountAttributes { read_only: context.is_read_only(), ..context.base_attributes };
        restrict(context.mounter, path, attributes)
    }

    fn expand(
        &self,
        _: &dyn Mounter,
        _: &VolumeRecord,
        _: &KubeletPath,
        required: Option<u64>,
    ) -> Result<Option<u64>, NodeError> {
        // The server limits the size of an export.
        Ok(required)
    }
}
