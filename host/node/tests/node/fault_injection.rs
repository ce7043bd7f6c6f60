//! A [`Mounter`] that injects faults into a fake host: the process crashes, an effect fails, a call pauses, a
//! record is unreadable. It panics if the fake host records a violated rule.

use std::{
    net::{IpAddr, SocketAddr},
    sync::mpsc,
};

use cofferdam_fake_host::{FakeHost, FakeMounter};
use cofferdam_node::{
    BindSource, CephUser, Device, DeviceContent, DeviceInfo, FileId, Filesystem, FilesystemUsage,
    KubeletPath, LoopDevice, MountAttributes, MountOptions, Mounter, MounterError, NfsExport, Nqn,
    NvmeController, NvmeDisk, NvmeNamespace, PathInfo, RbdDevice, RbdImage, RootedPath, VolumeRecord,
    VolumeRecords,
};
use parking_lot::{Mutex, MutexGuard};

type Result<T> = std::result::Result<T, MounterError>;

/// The injected faults, and the effects so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Faults {
    /// Messages about unreadable records, which the query of all records returns.
    pub(crate) unreadable_records: Vec<String>,
    /// Remaining effects until the crash; absent for no crash.
    effects_left: Option<usize>,
    has_crashed: bool,
    /// Remaining effects until one fails without a change; absent for none.
    fails_after: Option<usize>,
    /// True if setting a group fails.
    fails_set_mount_group: bool,
    /// True if the last effect before the crash is partial. Only formatting can be: it leaves unknown data.
    is_last_effect_partial: bool,
    /// The effects in order, including those that the fake host rejected.
    pub(crate) effects: Vec<String>,
}

/// A point at which a call pauses.
#[derive(Debug)]
struct PausePoint {
    /// Prefix of the effect before which the call pauses, or the query `usage` or `records`.
    effect_prefix: &'static str,
    reached: mpsc::Sender<()>,
    resume: mpsc::Receiver<()>,
}

/// The mounter of a fake host, with faults.
#[derive(Debug)]
pub(crate) struct FaultyMounter {
    host: FakeHost,
    inner: FakeMounter,
    faults: Mutex<Faults>,
    pause_point: Mutex<Option<PausePoint>>,
}

fn failed<T>(message: &str) -> Result<T> {
    Err(MounterError::Failed(message.to_owned()))
}

impl FaultyMounter {
    pub(crate) fn new(host: FakeHost) -> Self {
        let inner = FakeMounter::new(&host);
        Self { host, inner, faults: Mutex::default(), pause_point: Mutex::default() }
    }

    /// The mounter of the same host after a restart of the process.
    pub(crate) fn restarted(&self) -> Self {
        let restarted = Self {
            host: self.host.clone(),
            inner: self.inner.clone(),
            faults: Mutex::new(self.faults().clone()),
            pause_point: Mutex::default(),
        };
        restarted.set_crash_after(None, false);
        restarted
    }

    pub(crate) fn host(&self) -> &FakeHost {
        &self.host
    }

    /// Locks the faults. Queries and effects wait while the lock is held.
    pub(crate) fn faults(&self) -> MutexGuard<'_, Faults> {
        self.faults.lock()
    }

    /// Pauses the next call before an effect with this prefix, or before the query `usage` or `records`.
    /// Returns the receiver of the signal that the point is reached, and the sender of the signal to resume.
    pub(crate) fn pause_before(&self, effect_prefix: &'static str) -> (mpsc::Receiver<()>, mpsc::Sender<()>) {
        let ((reached, pause_reached), (send_resume, resume)) = (mpsc::channel(), mpsc::channel());
        *self.pause_point.lock() = Some(PausePoint { effect_prefix, reached, resume });
        (pause_reached, send_resume)
    }

    fn pause_if_requested(&self, effect: &str) {
        let pause_point =
            self.pause_point.lock().take_if(|pause_point| effect.starts_with(pause_point.effect_prefix));
        if let Some(pause_point) = pause_point {
            pause_point.reached.send(()).unwrap();
            // A failed test has dropped its sender.
            let _ = pause_point.resume.recv();
        }
    }

    /// Restarts the process. It then crashes after this number of effects; `None` for no crash.
    pub(crate) fn set_crash_after(&self, effects_left: Option<usize>, is_last_effect_partial: bool) {
        let mut faults = self.faults();
        (faults.effects_left, faults.has_crashed, faults.is_last_effect_partial) =
            (effects_left, false, is_last_effect_partial);
    }

    /// Makes one effect fail with ENOSPC after a number of others.
    pub(crate) fn fail_after(&self, effects: usize) {
        self.faults().fails_after = Some(effects);
    }

    /// Makes setting a group fail.
    pub(crate) fn fail_set_mount_group(&self) {
        self.faults().fails_set_mount_group = true;
    }

    /// Returns true if the process has crashed since the last restart.
    pub(crate) fn has_crashed(&self) -> bool {
        self.faults().has_crashed
    }

    /// Describes remaining mounts, loop devices and records; empty if there are none.
    pub(crate) fn leftovers(&self) -> String {
        let (mounts, records) = (self.host.leftover_mounts(), self.inner.records().unwrap());
        if mounts.is_empty() && records.readable.is_empty() {
            return String::new();
        }
        format!("{mounts:?} {records:?}")
    }

    /// Queries the host, unless the process has crashed.
    fn query<T>(&self, query: impl FnOnce(&FakeMounter) -> Result<T>) -> Result<T> {
        let faults = self.faults();
        if faults.has_crashed { failed("the process has crashed") } else { query(&self.inner) }
    }

    /// Applies an effect, unless it fails. The flag of `change` is true if the effect must be partial.
    fn apply<T>(&self, effect: String, change: impl FnOnce(&FakeMounter, bool) -> Result<T>) -> Result<T> {
        self.pause_if_requested(&effect);
        let mut faults = self.faults();
        if faults.has_crashed {
            return failed("the process has crashed");
        }
        let is_last = faults.effects_left == Some(1);
        let is_partial = is_last && faults.is_last_effect_partial;
        if faults.effects_left == Some(0) {
            faults.has_crashed = true;
            return failed("the process has crashed");
        }
        match &mut faults.fails_after {
            Some(0) => {
                faults.fails_after = None;
                return failed("no space left on device");
            }
            Some(remaining) => *remaining -= 1,
            None => {}
        }
        faults.effects.push(effect);
        let result = change(&self.inner, is_partial);
        let violations = self.host.violations();
        assert!(violations.is_empty(), "{violations:?} after {:?}", faults.effects);
        faults.effects_left = faults.effects_left.map(|remaining| remaining - 1);
        if is_last {
            faults.has_crashed = true;
            return failed("the process crashed after this effect");
        }
        result
    }
}

impl Mounter for FaultyMounter {
    fn inspect(&self, path: &KubeletPath) -> Result<Option<PathInfo>> {
        self.query(|inner| inner.inspect(path))
    }

    fn mount_refs(&self, path: &KubeletPath) -> Result<Vec<String>> {
        self.query(|inner| inner.mount_refs(path))
    }

    fn directory_id(&self, path: &RootedPath) -> Result<FileId> {
        self.query(|inner| inner.directory_id(path))
    }

    fn image_file(&self, path: &RootedPath) -> Result<(FileId, u64)> {
        self.query(|inner| inner.image_file(path))
    }

    fn loop_devices(&self, file: FileId) -> Result<Vec<LoopDevice>> {
        self.query(|inner| inner.loop_devices(file))
    }

    fn block_device(&self, stable_id: &str) -> Result<DeviceInfo> {
        self.query(|inner| inner.block_device(stable_id))
    }

    fn resolve(&self, name: &str) -> Result<Vec<IpAddr>> {
        self.query(|inner| inner.resolve(name))
    }

    fn device_users(&self, device: &Device, may_open: bool) -> Result<Vec<String>> {
        self.query(|inner| inner.device_users(device, may_open))
    }

    fn hold_device(&self, device: &Device) -> Result<Box<dyn Send>> {
        self.query(|inner| inner.hold_device(device))
    }

    fn nvme_controllers(&self) -> Result<Vec<NvmeController>> {
        self.query(|inner| inner.nvme_controllers())
    }

    fn nvme_disks(&self, awaited: Option<&NvmeNamespace>) -> Result<Vec<NvmeDisk>> {
        self.query(|inner| inner.nvme_disks(awaited))
    }

    fn wait_for_nvme_size(&self, device: &Device, size: u64) -> Result<()> {
        self.query(|inner| inner.wait_for_nvme_size(device, size))
    }

    fn rbd_devices(&self) -> Result<Vec<RbdDevice>> {
        self.query(|inner| inner.rbd_devices())
    }

    fn device_content(&self, device: &Device) -> Result<DeviceContent> {
        self.query(|inner| inner.device_content(device))
    }

    fn device_size(&self, number: (u32, u32)) -> Result<u64> {
        self.query(|inner| inner.device_size(number))
    }

    fn usage(&self, path: &KubeletPath) -> Result<FilesystemUsage> {
        self.pause_if_requested("usage");
        self.query(|inner| inner.usage(path))
    }

    fn mount_group(&self, path: &KubeletPath) -> Result<Option<u32>> {
        self.query(|inner| inner.mount_group(path))
    }

    fn records(&self) -> Result<VolumeRecords> {
        self.pause_if_requested("records");
        let unreadable = self.faults().unreadable_records.clone();
        self.query(|inner| Ok(VolumeRecords { unreadable, ..inner.records()? }))
    }

    fn record(&self, volume: &str) -> Result<Option<VolumeRecord>> {
        self.query(|inner| inner.record(volume))
    }

    fn save_record(&self, record: &VolumeRecord) -> Result<()> {
        self.apply(format!("save {}", record.volume), |inner, _| inner.save_record(record))
    }

    fn delete_record(&self, volume: &str) -> Result<()> {
        self.apply(format!("delete {volume}"), |inner, _| inner.delete_record(volume))
    }

    fn make_directory(&self, path: &KubeletPath) -> Result<()> {
        self.apply(format!("mkdir {path}"), |inner, _| inner.make_directory(path))
    }

    fn make_file(&self, path: &KubeletPath) -> Result<()> {
        self.apply(format!("touch {path}"), |inner, _| inner.make_file(path))
    }

    fn remove_if_empty(&self, path: &KubeletPath) -> Result<()> {
        self.apply(format!("remove {path}"), |inner, _| inner.remove_if_empty(path))
    }

    fn attach_loop(&self, path: &RootedPath, file: FileId, read_only: bool) -> Result<Device> {
        self.apply(format!("attach {path}"), |inner, _| {
            // No test replaces an image.
            assert_eq!(inner.image_file(path)?.0, file);
            inner.attach_loop(path, file, read_only)
        })
    }

    fn refresh_loop_size(&self, device: &Device) -> Result<()> {
        self.apply(format!("refresh {device}"), |inner, _| inner.refresh_loop_size(device))
    }

    fn detach_loop(&self, device: &Device) -> Result<()> {
        self.apply(format!("detach {device}"), |inner, _| inner.detach_loop(device))
    }

    fn make_filesystem(&self, device: &Device, filesystem: Filesystem, is_retry: bool) -> Result<()> {
        self.apply(format!("mkfs {device}"), |inner, is_partial| {
            inner.make_filesystem(device, filesystem, is_retry)?;
            if is_partial { self.host.write_device(device, DeviceContent::Unknown) } else { Ok(()) }
        })
    }

    fn check_filesystem(&self, device: &Device, filesystem: Filesystem) -> Result<()> {
        self.apply(format!("fsck {device}"), |inner, _| inner.check_filesystem(device, filesystem))
    }

    fn grow_filesystem(&self, device: &Device, filesystem: Filesystem, path: &KubeletPath) -> Result<()> {
        self.apply(format!("grow {device}"), |inner, _| inner.grow_filesystem(device, filesystem, path))
    }

    fn mount_device(
        &self,
        device: &Device,
        filesystem: Filesystem,
        options: &MountOptions,
        path: &KubeletPath,
    ) -> Result<()> {
        self.apply(format!("mount {device} {} {:?}", filesystem.as_str(), options.data), |inner, _| {
            inner.mount_device(device, filesystem, options, path)
        })
    }

    fn mount_tmpfs(&self, name: &str, size: u64, options: &MountOptions, path: &KubeletPath) -> Result<()> {
        self.apply(format!("mount tmpfs {size} {:?}", options.data), |inner, _| {
            inner.mount_tmpfs(name, size, options, path)
        })
    }

    fn mount_nfs(
        &self,
        export: &NfsExport,
        address: IpAddr,
        options: &MountOptions,
        path: &KubeletPath,
    ) -> Result<()> {
        self.apply(format!("mount nfs {} {:?}", export.source(), options.data), |inner, _| {
            inner.mount_nfs(export, address, options, path)
        })
    }

    fn nvme_connect(&self, nqn: &Nqn, portal: SocketAddr) -> Result<()> {
        self.apply(format!("connect {nqn} {portal}"), |inner, _| inner.nvme_connect(nqn, portal))
    }

    fn nvme_disconnect(&self, controller: &NvmeController) -> Result<()> {
        self.apply(format!("disconnect {} {}", controller.nqn, controller.portal), |inner, _| {
            inner.nvme_disconnect(controller)
        })
    }

    fn nvme_rescan(&self, controller: &NvmeController) -> Result<()> {
        self.apply(format!("rescan {}", controller.nqn), |inner, _| inner.nvme_rescan(controller))
    }

    fn rbd_map(&self, image: &RbdImage, user: &CephUser, key_name: &str) -> Result<()> {
        self.apply(format!("map {image}"), |inner, _| inner.rbd_map(image, user, key_name))
    }

    fn rbd_unmap(&self, device: &RbdDevice) -> Result<()> {
        self.apply(format!("unmap {}", device.image), |inner, _| inner.rbd_unmap(device))
    }

    fn rbd_refresh(&self, device: &RbdDevice, size: u64) -> Result<()> {
        self.apply(format!("refresh {}", device.image), |inner, _| inner.rbd_refresh(device, size))
    }

    fn resize_tmpfs(&self, size: u64, path: &KubeletPath) -> Result<()> {
        self.apply(format!("resize tmpfs {size}"), |inner, _| inner.resize_tmpfs(size, path))
    }

    fn bind(&self, source: &BindSource, path: &KubeletPath) -> Result<()> {
        self.apply(format!("bind {path}"), |inner, _| inner.bind(source, path))
    }

    fn restrict(&self, path: &KubeletPath, attributes: MountAttributes) -> Result<()> {
        self.apply(format!("restrict {path}"), |inner, _| inner.restrict(path, attributes))
    }

    fn unmount(&self, path: &KubeletPath) -> Result<()> {
        self.apply(format!("umount {path}"), |inner, _| inner.unmount(path))
    }

    fn set_mount_group(&self, path: &KubeletPath, group: u32) -> Result<()> {
        let fails = self.faults().fails_set_mount_group;
        self.apply(format!("chgrp {path} {group}"), |inner, _| {
            if fails { failed("too many levels of directories") } else { inner.set_mount_group(path, group) }
        })
    }
}
