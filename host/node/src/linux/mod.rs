//! [`Mounter`] for Linux 5.12 or later. Requires root.

mod devices;
mod error;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod mount_group;
mod mountinfo;
mod mounts;
mod nfs;
mod nvme;
mod paths;
mod probe;
mod rbd;
mod records;
mod sysfs;
mod tools;
mod wait;

use std::{
    ffi::OsStr,
    net::{IpAddr, SocketAddr},
    path::Path,
};

use rustix::{
    fs::{AtFlags, Mode, OFlags, fstatvfs, mkdirat, openat, unlinkat},
    io::Errno,
};

use crate::{
    block_device::{Device, DeviceContent, DeviceInfo, LoopDevice},
    error::MounterError,
    file::{FileId, PathKind},
    filesystem::{Filesystem, FilesystemUsage},
    mount_options::MountOptions,
    mount_point::MountAttributes,
    mounter::{BindSource, Mounter, PathInfo},
    nfs::NfsExport,
    nvme::{Nqn, NvmeController, NvmeDisk, NvmeHost, NvmeNamespace},
    path::{KubeletPath, RootedPath},
    policy::NodePolicy,
    rbd::{CephUser, RbdDevice, RbdImage},
    record::{VolumeRecord, VolumeRecords},
};

pub use error::MounterSetupError;
use mountinfo::MountTable;
use paths::{Result, errno_error};
use records::RecordStore;
use tools::{Tool, Tools};

/// The mounts, devices and records of this machine.
#[derive(Debug)]
pub struct LinuxMounter {
    tools: Tools,
    records: RecordStore,
    /// Absent if the node cannot connect to NVMe subsystems.
    nvme_host: Option<NvmeHost>,
}

impl LinuxMounter {
    /// Finds the tools that the policy needs and locks `records`, the directory of the volume records. The
    /// directory must survive reboots and belong to this process alone.
    ///
    /// # Errors
    /// [`MounterSetupError`]
    pub fn open(policy: &NodePolicy, records: &Path) -> std::result::Result<Self, MounterSetupError> {
        Ok(Self { tools: Tools::find(policy)?, records: RecordStore::open(records)?, nvme_host: None })
    }

    /// Sets the names by which the node identifies itself to NVMe subsystems. Without them, it connects to
    /// none.
    #[must_use]
    pub fn with_nvme_host(self, nvme_host: Option<NvmeHost>) -> Self {
        Self { nvme_host, ..self }
    }
}

impl Mounter for LinuxMounter {
    fn inspect(&self, path: &KubeletPath) -> Result<Option<PathInfo>> {
        let opened = match paths::open_path(path) {
            Err(MounterError::NotFound(_)) => return Ok(None),
            opened => opened?,
        };
        let stat = paths::cached_stat(path, &opened)?;
        let mount_path = paths::canonical_path(path)?;
        let table = MountTable::read()?;
        let mounts = table.at(&mount_path)?.into_iter().map(|entry| entry.mount.clone()).collect();
        Ok(Some(PathInfo { kind: stat.kind, id: stat.id, mounts }))
    }

    fn mount_refs(&self, path: &KubeletPath) -> Result<Vec<String>> {
        mounts::mount_refs(path)
    }

    fn directory_id(&self, path: &RootedPath) -> Result<FileId> {
        let stat = paths::stat(path, paths::open_rooted(path)?)?;
        match paths::path_kind(&stat) {
            PathKind::Directory => Ok(paths::file_id(&stat)),
            PathKind::File(_) | PathKind::Device(_) | PathKind::Other => {
                Err(MounterError::FailedPrecondition(format!("{path} is not a directory")))
            }
        }
    }

    fn image_file(&self, path: &RootedPath) -> Result<(FileId, u64)> {
        let stat = paths::stat(path, paths::open_rooted(path)?)?;
        match paths::path_kind(&stat) {
            PathKind::File(size) => {
                paths::ensure_protected(path, &stat)?;
                Ok((paths::file_id(&stat), size))
            }
            PathKind::Directory | PathKind::Device(_) | PathKind::Other => {
                Err(MounterError::FailedPrecondition(format!("{path} is not a regular file")))
            }
        }
    }

    fn loop_devices(&self, file: FileId) -> Result<Vec<LoopDevice>> {
        devices::loop_devices(&self.tools, file)
    }

    fn block_device(&self, stable_id: &str) -> Result<DeviceInfo> {
        devices::by_stable_id(stable_id)
    }

    fn resolve(&self, name: &str) -> Result<Vec<IpAddr>> {
        nfs::resolve(name)
    }

    fn device_users(&self, device: &Device, may_open: bool) -> Result<Vec<String>> {
        devices::device_users(device, may_open)
    }

    fn hold_device(&self, device: &Device) -> Result<Box<dyn Send>> {
        Ok(Box::new(devices::open_new_node(device, OFlags::RDONLY)?))
    }

    fn nvme_controllers(&self) -> Result<Vec<NvmeController>> {
        nvme::controllers(Path::new(nvme::SYSFS), self.nvme_host.as_ref())
    }

    fn nvme_disks(&self, awaited: Option<&NvmeNamespace>) -> Result<Vec<NvmeDisk>> {
        nvme::wait_for_disk(Path::new(nvme::SYSFS), awaited)
    }

    fn wait_for_nvme_size(&self, device: &Device, size: u64) -> Result<()> {
        nvme::wait_for_size(Path::new(nvme::SYSFS), device, size)
    }

    fn rbd_devices(&self) -> Result<Vec<RbdDevice>> {
        rbd::devices(Path::new(rbd::BUS))
    }

    fn device_content(&self, device: &Device) -> Result<DeviceContent> {
        devices::device_content(&self.tools, device)
    }

    fn device_size(&self, number: (u32, u32)) -> Result<u64> {
        devices::size(number)
    }

    fn usage(&self, path: &KubeletPath) -> Result<FilesystemUsage> {
        let found = fstatvfs(paths::open_path(path)?).map_err(|error| errno_error(path, error))?;
        let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
        Ok(FilesystemUsage {
            total: bytes(found.f_blocks),
            used: bytes(found.f_blocks.saturating_sub(found.f_bfree)),
            available: bytes(found.f_bavail),
            inodes: found.f_files,
            inodes_used: found.f_files.saturating_sub(found.f_ffree),
            inodes_free: found.f_ffree,
        })
    }

    fn mount_group(&self, path: &KubeletPath) -> Result<Option<u32>> {
        mount_group::read_group(&paths::open_path(path)?).map_err(|error| errno_error(path, error))
    }

    fn records(&self) -> Result<VolumeRecords> {
        self.records.list()
    }

    fn record(&self, volume: &str) -> Result<Option<VolumeRecord>> {
        self.records.get(volume)
    }

    fn save_record(&self, record: &VolumeRecord) -> Result<()> {
        self.records.save(record)
    }

    fn delete_record(&self, volume: &str) -> Result<()> {
        self.records.delete(volume)
    }

    fn make_directory(&self, path: &KubeletPath) -> Result<()> {
        let mode = Mode::RWXU | Mode::RGRP | Mode::XGRP;
        mkdirat(paths::open_parent(path)?, paths::file_name(path), mode)
            .map_err(|error| errno_error(path, error))
    }

    fn make_file(&self, path: &KubeletPath) -> Result<()> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        openat(paths::open_parent(path)?, paths::file_name(path), flags, Mode::RUSR | Mode::WUSR)
            .map(drop)
            .map_err(|error| errno_error(path, error))
    }

    fn remove_if_empty(&self, path: &KubeletPath) -> Result<()> {
        let flags = match paths::path_kind(&paths::stat(path, paths::open_path(path)?)?) {
            PathKind::Directory => AtFlags::REMOVEDIR,
            PathKind::File(0) => AtFlags::empty(),
            PathKind::File(_) | PathKind::Device(_) | PathKind::Other => {
                return Err(MounterError::FailedPrecondition(format!(
                    "{path} is not empty: it is not removed"
                )));
            }
        };
        match unlinkat(paths::open_parent(path)?, paths::file_name(path), flags) {
            Err(Errno::NOTEMPTY | Errno::EXIST) => {
                Err(MounterError::FailedPrecondition(format!("{path} contains files: it is not removed")))
            }
            removed => removed.map_err(|error| errno_error(path, error)),
        }
    }

    fn attach_loop(&self, path: &RootedPath, file: FileId, read_only: bool) -> Result<Device> {
        let opened = paths::open_rooted(path)?;
        if paths::file_id(&paths::stat(path, &opened)?) != file {
            return Err(MounterError::FailedPrecondition(format!("{path} was replaced during the call")));
        }
        // losetup resolves this link and opens the resulting path, so the attached file is checked
        // afterwards.
        let proc_path = paths::proc_fd_path(&opened).replace("self", &std::process::id().to_string());
        let mut arguments = vec!["--find", "--show", "--nooverlap"];
        if read_only {
            arguments.push("--read-only");
        }
        arguments.push(&proc_path);
        let name = self.tools.run_checked(Tool::Losetup, &arguments, &[0])?;
        let found = devices::loop_devices(&self.tools, file)?;
        let attached = found.into_iter().find(|found| found.device.to_string() == name.trim());
        match attached {
            Some(found) => Ok(found.device),
            None => {
                self.tools.run_checked(Tool::Losetup, &["--detach", name.trim()], &[0])?;
                Err(MounterError::FailedPrecondition(format!("{path} was replaced while it was attached")))
            }
        }
    }

    fn refresh_loop_size(&self, device: &Device) -> Result<()> {
        self.tools.run_checked(Tool::Losetup, &["--set-capacity", &device.to_string()], &[0]).map(drop)
    }

    fn detach_loop(&self, device: &Device) -> Result<()> {
        devices::detach_loop(&self.tools, device)
    }

    fn make_filesystem(&self, device: &Device, filesystem: Filesystem, is_retry: bool) -> Result<()> {
        match devices::device_content(&self.tools, device)? {
            DeviceContent::Blank => {}
            DeviceContent::Unknown if is_retry => {}
            DeviceContent::Unknown => {
                return Err(MounterError::FailedPrecondition(format!(
                    "{device} has unknown data: it is not formatted"
                )));
            }
            DeviceContent::Other(what) | DeviceContent::Filesystem(what) => {
                return Err(MounterError::FailedPrecondition(format!(
                    "{device} has {what}: it is not formatted"
                )));
            }
        }
        let path = device.to_string();
        // Without a force option, the tools refuse to overwrite known signatures.
        let (tool, arguments): (_, &[&str]) = match filesystem {
            Filesystem::Ext4 => (Tool::MkfsExt4, &["-q", "-m", "0", &path]),
            Filesystem::Xfs => (Tool::MkfsXfs, &["-q", &path]),
        };
        self.tools.run_checked(tool, arguments, &[0]).map(drop)
    }

    fn check_filesystem(&self, device: &Device, filesystem: Filesystem) -> Result<()> {
        match filesystem {
            // Exit code 1: errors were corrected.
            Filesystem::Ext4 => {
                self.tools.run_checked(Tool::E2fsck, &["-p", &device.to_string()], &[0, 1]).map(drop)
            }
            // xfs replays its journal at mount; no other check is needed.
            Filesystem::Xfs => Ok(()),
        }
    }

    fn grow_filesystem(&self, device: &Device, filesystem: Filesystem, path: &KubeletPath) -> Result<()> {
        match filesystem {
            Filesystem::Ext4 => {
                self.tools.run_checked(Tool::Resize2fs, &[&device.to_string()], &[0]).map(drop)
            }
            // xfs_growfs requires the mount path as listed in mountinfo.
            Filesystem::Xfs => self
                .tools
                .run_checked(
                    Tool::XfsGrowfs,
                    &[OsStr::new("-d"), paths::canonical_path(path)?.as_os_str()],
                    &[0],
                )
                .map(drop),
        }
    }

    fn mount_device(
        &self,
        device: &Device,
        filesystem: Filesystem,
        options: &MountOptions,
        path: &KubeletPath,
    ) -> Result<()> {
        mounts::mount(filesystem.as_str(), &device.to_string(), options, &[], path)
    }

    fn mount_tmpfs(&self, name: &str, size: u64, options: &MountOptions, path: &KubeletPath) -> Result<()> {
        mounts::mount("tmpfs", name, options, &[("size", &size.to_string())], path)
    }

    fn mount_nfs(
        &self,
        export: &NfsExport,
        address: IpAddr,
        options: &MountOptions,
        path: &KubeletPath,
    ) -> Result<()> {
        nfs::mount(export, address, options, path)
    }

    fn nvme_connect(&self, nqn: &Nqn, portal: SocketAddr) -> Result<()> {
        match &self.nvme_host {
            Some(host) => nvme::connect(host, nqn, portal),
            None => Err(MounterError::Failed("the node has no valid host NQN".to_owned())),
        }
    }

    fn nvme_disconnect(&self, controller: &NvmeController) -> Result<()> {
        nvme::disconnect(Path::new(nvme::SYSFS), self.nvme_host.as_ref(), controller)
    }

    fn nvme_rescan(&self, controller: &NvmeController) -> Result<()> {
        nvme::rescan(Path::new(nvme::SYSFS), self.nvme_host.as_ref(), controller)
    }

    fn rbd_map(&self, image: &RbdImage, user: &CephUser, key_name: &str) -> Result<()> {
        rbd::map(Path::new(rbd::BUS), image, user, key_name)
    }

    fn rbd_unmap(&self, device: &RbdDevice) -> Result<()> {
        rbd::unmap(Path::new(rbd::BUS), device)
    }

    fn rbd_refresh(&self, device: &RbdDevice, size: u64) -> Result<()> {
        rbd::refresh(Path::new(rbd::BUS), device, size)
    }

    fn resize_tmpfs(&self, size: u64, path: &KubeletPath) -> Result<()> {
        mounts::resize_tmpfs(size, path)
    }

    fn bind(&self, source: &BindSource, kubelet_path: &KubeletPath) -> Result<()> {
        let source_fd = match source {
            BindSource::Directory(path) => paths::open_rooted(path)?,
            BindSource::Device(device) => devices::open_node(device, OFlags::PATH)?,
            BindSource::KubeletPath(kubelet_path) => paths::open_path(kubelet_path)?,
        };
        mounts::bind(&source_fd, kubelet_path)
    }

    fn restrict(&self, path: &KubeletPath, attributes: MountAttributes) -> Result<()> {
        mounts::restrict(path, attributes)
    }

    fn unmount(&self, path: &KubeletPath) -> Result<()> {
        mounts::unmount(path)
    }

    fn set_mount_group(&self, path: &KubeletPath, group: u32) -> Result<()> {
        mount_group::set_group_recursively(&paths::open_directory(path)?, group)
            .map_err(|error| errno_error(path, error))
    }
}
