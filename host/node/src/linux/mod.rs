//! The machine for real: Linux 5.12 or later, as root.

mod devices;
mod group;
mod mounts;
mod paths;
mod records;
mod table;
mod tools;

use std::path::Path;

use rustix::{
    fs::{AtFlags, Mode, OFlags, fstatvfs, mkdirat, openat, unlinkat},
    io::Errno,
};

use crate::{
    error::MachineError,
    machine::{
        Attributes, Content, Device, DeviceFacts, FileId, Filesystem, Found, FoundKind, LoopDevice, Machine,
        Source, Usage,
    },
    options::MountOptions,
    path::{Beneath, Place},
    policy::Policy,
    record::{VolumeRecord, VolumeRecords},
};

use paths::{Result, failure};
use records::Records;
use tools::{Tool, Tools};

/// This machine.
#[derive(Debug)]
pub struct Linux {
    tools: Tools,
    records: Records,
}

impl Linux {
    /// The machine with what a policy needs; `records` is a directory that outlives reboots and is this
    /// process' own.
    ///
    /// # Errors
    /// Programs that are missing, or records that another process has.
    pub fn open(policy: &Policy, records: &Path) -> std::result::Result<Self, String> {
        Ok(Self { tools: Tools::of(policy)?, records: Records::open(records)? })
    }
}

impl Machine for Linux {
    fn look(&self, place: &Place) -> Result<Option<Found>> {
        let opened = match paths::at(place) {
            Err(MachineError::Missing(_)) => return Ok(None),
            opened => opened?,
        };
        let stat = paths::stat(place, &opened)?;
        let at = paths::canonical(place)?;
        let lines = table::read()?.into_iter().filter(|line| line.at == at);
        let mounts = lines.map(|line| line.mount).collect();
        Ok(Some(Found { kind: paths::kind(&stat), id: paths::id(&stat), mounts }))
    }

    fn mounted_elsewhere(&self, place: &Place) -> Result<Vec<String>> {
        mounts::elsewhere(place)
    }

    fn directory(&self, path: &Beneath) -> Result<FileId> {
        let stat = paths::stat(path, paths::beneath(path)?)?;
        match paths::kind(&stat) {
            FoundKind::Directory => Ok(paths::id(&stat)),
            FoundKind::File(_) | FoundKind::Device(_) | FoundKind::Other => {
                Err(MachineError::Refused(format!("{path} is no directory")))
            }
        }
    }

    fn image(&self, path: &Beneath) -> Result<(FileId, u64)> {
        let stat = paths::stat(path, paths::beneath(path)?)?;
        match paths::kind(&stat) {
            FoundKind::File(size) => Ok((paths::id(&stat), size)),
            FoundKind::Directory | FoundKind::Device(_) | FoundKind::Other => {
                Err(MachineError::Refused(format!("{path} is no plain file")))
            }
        }
    }

    fn loops(&self, file: FileId) -> Result<Vec<LoopDevice>> {
        devices::loops(&self.tools, file)
    }

    fn device(&self, stable_id: &str) -> Result<DeviceFacts> {
        devices::by_stable_id(stable_id)
    }

    fn probe(&self, device: &Device) -> Result<Content> {
        devices::probe(&self.tools, device)
    }

    fn device_size(&self, number: (u32, u32)) -> Result<u64> {
        devices::size(number)
    }

    fn usage(&self, place: &Place) -> Result<Usage> {
        let found = fstatvfs(paths::at(place)?).map_err(|error| failure(place, error))?;
        let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
        Ok(Usage {
            total: bytes(found.f_blocks),
            used: bytes(found.f_blocks.saturating_sub(found.f_bfree)),
            available: bytes(found.f_bavail),
            inodes: found.f_files,
            inodes_used: found.f_files.saturating_sub(found.f_ffree),
            inodes_free: found.f_ffree,
        })
    }

    fn group(&self, place: &Place) -> Result<Option<u32>> {
        group::of(&paths::at(place)?).map_err(|error| failure(place, error))
    }

    fn records(&self) -> Result<VolumeRecords> {
        self.records.all()
    }

    fn record(&self, volume: &str) -> Result<Option<VolumeRecord>> {
        self.records.get(volume)
    }

    fn keep(&self, record: &VolumeRecord) -> Result<()> {
        self.records.keep(record)
    }

    fn forget(&self, volume: &str) -> Result<()> {
        self.records.forget(volume)
    }

    fn make_directory(&self, place: &Place) -> Result<()> {
        let mode = Mode::RWXU | Mode::RGRP | Mode::XGRP;
        mkdirat(paths::parent(place)?, paths::name(place), mode).map_err(|error| failure(place, error))
    }

    fn make_file(&self, place: &Place) -> Result<()> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        openat(paths::parent(place)?, paths::name(place), flags, Mode::RUSR | Mode::WUSR)
            .map(drop)
            .map_err(|error| failure(place, error))
    }

    fn remove_empty(&self, place: &Place) -> Result<()> {
        let flags = match paths::kind(&paths::stat(place, paths::at(place)?)?) {
            FoundKind::Directory => AtFlags::REMOVEDIR,
            FoundKind::File(0) => AtFlags::empty(),
            FoundKind::File(_) | FoundKind::Device(_) | FoundKind::Other => {
                return Err(MachineError::Refused(format!("{place} is not empty: it is not removed")));
            }
        };
        match unlinkat(paths::parent(place)?, paths::name(place), flags) {
            Err(Errno::NOTEMPTY | Errno::EXIST) => {
                Err(MachineError::Refused(format!("{place} holds files: they are not removed")))
            }
            removed => removed.map_err(|error| failure(place, error)),
        }
    }

    fn attach_loop(&self, path: &Beneath, file: FileId, read_only: bool) -> Result<Device> {
        let opened = paths::beneath(path)?;
        if paths::id(&paths::stat(path, &opened)?) != file {
            return Err(MachineError::Refused(format!("{path} was replaced meanwhile")));
        }
        // The program resolves this to a path and opens that: what it got is looked up afterwards.
        let through = paths::through(&opened).replace("self", &std::process::id().to_string());
        let mut arguments = vec!["--find", "--show", "--nooverlap"];
        if read_only {
            arguments.push("--read-only");
        }
        arguments.push(&through);
        let name = self.tools.succeed(Tool::Losetup, &arguments, &[0])?;
        let found = devices::loops(&self.tools, file)?;
        let ours = found.into_iter().find(|found| found.device.to_string() == name.trim());
        match ours {
            Some(found) => Ok(found.device),
            None => {
                self.tools.succeed(Tool::Losetup, &["--detach", name.trim()], &[0])?;
                Err(MachineError::Refused(format!("{path} was replaced while it was attached")))
            }
        }
    }

    fn refresh_loop(&self, device: &Device) -> Result<()> {
        self.tools.succeed(Tool::Losetup, &["--set-capacity", &device.to_string()], &[0]).map(drop)
    }

    fn detach_loop(&self, device: &Device) -> Result<()> {
        devices::detach(&self.tools, device)
    }

    fn make_filesystem(&self, device: &Device, filesystem: Filesystem, unfinished: bool) -> Result<()> {
        match devices::probe(&self.tools, device)? {
            Content::Blank => {}
            Content::Unknown if unfinished => {}
            Content::Unknown => {
                return Err(MachineError::Refused(format!(
                    "{device} holds unknown data: it is not formatted"
                )));
            }
            Content::Other(what) | Content::Filesystem(what) => {
                return Err(MachineError::Refused(format!("{device} holds {what}: it is not formatted")));
            }
        }
        let path = device.to_string();
        // Never with force: the programs refuse by themselves what they know.
        let (tool, arguments): (_, &[&str]) = match filesystem {
            Filesystem::Ext4 => (Tool::MkfsExt4, &["-q", "-m", "0", &path]),
            Filesystem::Xfs => (Tool::MkfsXfs, &["-q", &path]),
        };
        self.tools.succeed(tool, arguments, &[0]).map(drop)
    }

    fn check_filesystem(&self, device: &Device, filesystem: Filesystem) -> Result<()> {
        match filesystem {
            // 1: it was repaired.
            Filesystem::Ext4 => {
                self.tools.succeed(Tool::E2fsck, &["-p", &device.to_string()], &[0, 1]).map(drop)
            }
            // It plays back its journal when it is mounted, and has nothing else to do before.
            Filesystem::Xfs => Ok(()),
        }
    }

    fn grow_filesystem(&self, device: &Device, filesystem: Filesystem, place: &Place) -> Result<()> {
        match filesystem {
            Filesystem::Ext4 => self.tools.succeed(Tool::Resize2fs, &[&device.to_string()], &[0]).map(drop),
            // It takes the place as the table of mounts shows it, and nothing else.
            Filesystem::Xfs => {
                self.tools.succeed(Tool::XfsGrowfs, &["-d", &paths::canonical(place)?], &[0]).map(drop)
            }
        }
    }

    fn mount_device(
        &self,
        device: &Device,
        filesystem: Filesystem,
        options: &MountOptions,
        place: &Place,
    ) -> Result<()> {
        mounts::mount(filesystem.as_str(), &device.to_string(), options, &[], place)
    }

    fn mount_memory(&self, name: &str, size: u64, options: &MountOptions, place: &Place) -> Result<()> {
        mounts::mount("tmpfs", name, options, &[("size", &size.to_string())], place)
    }

    fn resize_memory(&self, size: u64, place: &Place) -> Result<()> {
        mounts::resize_memory(size, place)
    }

    fn bind(&self, source: &Source, place: &Place) -> Result<()> {
        let from = match source {
            Source::Directory(path) => paths::beneath(path)?,
            Source::Device(device) => devices::node(device, OFlags::PATH)?,
            Source::Place(place) => paths::at(place)?,
        };
        mounts::bind(&from, place)
    }

    fn restrict(&self, place: &Place, attributes: Attributes) -> Result<()> {
        mounts::restrict(place, attributes)
    }

    fn unmount(&self, place: &Place) -> Result<()> {
        mounts::unmount(place)
    }

    fn set_group(&self, place: &Place, group: u32) -> Result<()> {
        group::give(&paths::directory_at(place)?, group).map_err(|error| failure(place, error))
    }
}
