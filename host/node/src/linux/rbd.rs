//! RBD images by the kernel's `/sys/bus/rbd`, without the program `rbd`.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write as _},
    path::Path,
    time::Duration,
};

use keyutils::{Key, KeyType, Keyring, SpecialKeyring};
use rustix::io::Errno;

use super::{
    paths::Result,
    probe,
    sysfs::{is_missing, read_attribute},
    wait::{WaitTimes, wait_for},
};
use crate::{
    block_device::Device,
    error::MounterError,
    rbd::{CephUser, RbdDevice, RbdImage},
};

pub(super) const BUS: &str = "/sys/bus/rbd";
/// Maximum time until a monitor responds.
const PROBE_LIMIT: Duration = Duration::from_secs(3);
/// Maximum time of the kernel's connection to the cluster.
const MOUNT_TIMEOUT_SECONDS: u32 = 10;
/// Maximum time and interval of the removal of a device that is in use. udev may keep it open for a moment.
const UNMAP_WAIT: WaitTimes = (Duration::from_secs(2), Duration::from_millis(100));
/// Maximum time and interval of the wait for a new size.
const SIZE_WAIT: WaitTimes = (Duration::from_secs(5), Duration::from_millis(20));

fn failed<T>(message: String) -> Result<T> {
    Err(MounterError::Failed(message))
}

/// The kernel's type of keys for Ceph. Programs cannot read their payload.
struct CephKeyType;

impl KeyType for CephKeyType {
    type Description = str;
    type Payload = [u8];

    fn name() -> &'static str {
        "ceph"
    }
}

/// A key in the keyring of this thread, which other threads and processes do not see. It is removed on drop;
/// the kernel's client has a copy.
struct ThreadKey {
    keyring: Keyring,
    key: Key,
}

impl ThreadKey {
    fn add(user: &CephUser, key_name: &str) -> Result<Self> {
        let payload = user.decoded_key().map_err(|error| MounterError::Failed(error.to_string()))?;
        let fail = |error: keyutils::Error| {
            MounterError::Failed(format!("the kernel's keyring does not take the key of Ceph: {error}"))
        };
        let mut keyring = Keyring::attach_or_create(SpecialKeyring::Thread).map_err(fail)?;
        let key = keyring.add_key::<CephKeyType, _, _>(key_name, payload.as_slice()).map_err(fail)?;
        Ok(Self { keyring, key })
    }
}

impl Drop for ThreadKey {
    fn drop(&mut self) {
        // It ends with its thread at the latest.
        let _ = self.keyring.unlink_key(&self.key);
    }
}

/// The command that maps an image. It has the name of the key, and not the key: sysfs shows the command to
/// administrators.
pub(super) fn map_command(image: &RbdImage, user: &CephUser, key_name: &str) -> String {
    let mut options = format!("name={},key={key_name},mount_timeout={MOUNT_TIMEOUT_SECONDS}", user.name);
    if image.is_messenger_v2() {
        options.push_str(",ms_mode=prefer-crc");
    }
    if !image.namespace.is_empty() {
        options.push_str(&format!(",_pool_ns={}", image.namespace));
    }
    format!("{} {options} {} {} -", image.monitor_list(), image.pool, image.image)
}

/// Writes an attribute of the bus with one write.
fn write_once(path: &Path, text: &str) -> io::Result<()> {
    let written = OpenOptions::new().write(true).open(path)?.write(text.as_bytes())?;
    if written == text.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

/// Maps an image. The kernel has added the device when this returns.
pub(super) fn map(bus: &Path, image: &RbdImage, user: &CephUser, key_name: &str) -> Result<()> {
    let path = bus.join("add_single_major");
    if !path.exists() {
        return failed(format!(
            "{} does not exist: expected the kernel module rbd to be loaded",
            path.display()
        ));
    }
    probe_monitors(image)?;
    let _key = ThreadKey::add(user, key_name)?;
    write_once(&path, &map_command(image, user, key_name))
        .map_err(|error| MounterError::Failed(map_error(image, user, &error)))
}

/// Fails if no monitor responds: the kernel connects one cluster at a time, and would wait for this one.
fn probe_monitors(image: &RbdImage) -> Result<()> {
    let mut reasons = Vec::new();
    for monitor in &image.monitors {
        match probe::probe_ceph(*monitor, PROBE_LIMIT) {
            Ok(()) => return Ok(()),
            Err(error) => reasons.push(format!("{monitor}: {error}")),
        }
    }
    failed(format!("no monitor of the cluster responds: {}", reasons.join(", ")))
}

/// Explains the error of a mapping.
fn map_error(image: &RbdImage, user: &CephUser, error: &io::Error) -> String {
    let hint = match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NOENT) => "expected the pool, the namespace and the image to exist".to_owned(),
        Some(Errno::PERM | Errno::ACCESS) => {
            format!("expected the key and the capabilities of the user {}", user.name)
        }
        Some(Errno::TIMEDOUT | Errno::IO | Errno::CONNREFUSED | Errno::HOSTUNREACH) => {
            format!("expected a monitor to respond at {}", image.monitor_list())
        }
        Some(Errno::NXIO) => "expected features of the image that this kernel supports".to_owned(),
        Some(Errno::SHUTDOWN) => "expected the node not to be in the blocklist of the cluster".to_owned(),
        Some(_) | None => "the log of the kernel has the reason".to_owned(),
    };
    format!("{image} cannot be mapped: {error}; {hint}")
}

/// Returns the mapped images. Those that disappear meanwhile are omitted.
pub(super) fn devices(bus: &Path) -> Result<Vec<RbdDevice>> {
    let directory = bus.join("devices");
    let fail = |error: &io::Error| MounterError::Failed(format!("{}: {error}", directory.display()));
    let entries = match fs::read_dir(&directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(|error| fail(&error))?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|error| fail(&error))?;
        if let Ok(id) = entry.file_name().into_string() {
            found.extend(device(&entry.path(), &id)?);
        }
    }
    Ok(found)
}

fn device(directory: &Path, id: &str) -> Result<Option<RbdDevice>> {
    parse_device(id, |attribute| read_attribute(directory, attribute))
}

/// Parses the attributes of a mapped image, which a function reads.
pub(super) fn parse_device(
    id: &str,
    attribute: impl Fn(&str) -> Result<Option<String>>,
) -> Result<Option<RbdDevice>> {
    let mut values = Vec::new();
    for name in [
        "major",
        "minor",
        "size",
        "config_info",
        "cluster_fsid",
        "pool",
        "pool_ns",
        "name",
        "image_id",
        "current_snap",
    ] {
        let Some(text) = attribute(name)? else { return Ok(None) };
        values.push(text);
    }
    let Ok([major, minor, size, command, cluster_fsid, pool, namespace, image, image_id, snapshot]) =
        <[String; 10]>::try_from(values)
    else {
        return Ok(None);
    };
    let (Ok(major), Ok(minor), Ok(size)) = (major.parse(), minor.parse(), size.parse()) else {
        return failed(format!("the mapped image {id} has no number or no size"));
    };
    let mut words = command.split_whitespace();
    let monitors = words.next().unwrap_or_default().to_owned();
    let mut options = words.next().unwrap_or_default().split(',');
    Ok(Some(RbdDevice {
        id: id.to_owned(),
        device: Device { name: format!("rbd{id}"), number: (major, minor) },
        size,
        monitors,
        key_name: options.find_map(|option| option.strip_prefix("key=")).map(str::to_owned),
        cluster_fsid,
        pool,
        namespace,
        image,
        image_id,
        snapshot,
    }))
}

/// Unmaps a device. Succeeds if it does not exist.
pub(super) fn unmap(bus: &Path, expected: &RbdDevice) -> Result<()> {
    let current = device(&bus.join("devices").join(&expected.id), &expected.id)?;
    if current.is_none_or(|current| !current.is_same(expected)) {
        return Ok(());
    }
    let path = bus.join("remove_single_major");
    let removed = wait_for(UNMAP_WAIT, || match write_once(&path, &expected.id) {
        Ok(()) => Ok(Some(())),
        Err(error) if error.raw_os_error() == Some(Errno::NOENT.raw_os_error()) => Ok(Some(())),
        Err(error) if error.raw_os_error() == Some(Errno::BUSY.raw_os_error()) => Ok(None),
        Err(error) => failed(format!("{} cannot be unmapped: {error}", expected.device)),
    })?;
    removed.map_or_else(|| failed(format!("{} is in use: it is not unmapped", expected.device)), Ok)
}

/// Makes the kernel read the size of an image, and waits until the device has at least `size` bytes.
pub(super) fn refresh(bus: &Path, expected: &RbdDevice, size: u64) -> Result<()> {
    let directory = bus.join("devices").join(&expected.id);
    match write_once(&directory.join("refresh"), "1") {
        Ok(()) => {}
        Err(error) if is_missing(&error) => return Ok(()),
        Err(error) => return failed(format!("the size of {} cannot be read: {error}", expected.device)),
    }
    let grown = wait_for(SIZE_WAIT, || {
        let is_grown = device(&directory, &expected.id)?.is_none_or(|current| current.size >= size);
        Ok(is_grown.then_some(()))
    });
    grown.map(drop)
}

#[cfg(test)]
mod tests {
    use std::thread;

    use cofferdam_domain::storage::Secret;

    use super::*;
    use crate::rbd::RbdFields;

    const KEY: &str = "AQAAAAAAAAAAAAAQAAAAAAAAAAAAAAAAAAAAAA==";

    fn image(monitors: &str, namespace: Option<&str>) -> RbdImage {
        let cluster_fsid = "0f6d1e52-3f3c-4e0a-9d0e-3f5f2f1b7a10";
        let fields =
            RbdFields { monitors, cluster_fsid, pool: "p", namespace, image: "pvc-1", image_id: "11ab" };
        RbdImage::parse(fields).unwrap()
    }

    fn user() -> CephUser {
        let secrets = [("userID", "csi"), ("userKey", KEY)];
        let secrets = secrets.map(|(name, text)| (name.to_owned(), Secret::new(text))).into_iter().collect();
        CephUser::from_secrets(&secrets).unwrap()
    }

    #[test]
    fn the_command_names_the_key_and_does_not_have_it() {
        let command = |image: RbdImage| map_command(&image, &user(), "key-1");
        assert_eq!(
            command(image("10.0.0.5,[fd00::5]", None)),
            "10.0.0.5:6789,[fd00::5]:6789 name=csi,key=key-1,mount_timeout=10 p pvc-1 -"
        );
        assert_eq!(
            command(image("10.0.0.5:3300", Some("ns"))),
            "10.0.0.5:3300 name=csi,key=key-1,mount_timeout=10,ms_mode=prefer-crc,_pool_ns=ns p pvc-1 -"
        );
    }

    #[test]
    fn mapped_images_are_read_from_sysfs_and_unmapped() {
        let bus = tempfile::TempDir::new().unwrap();
        let bus = bus.path();
        assert_eq!(devices(bus), Ok(Vec::new()), "without the module");
        let error = map(bus, &image("10.0.0.5", None), &user(), "key-1").unwrap_err().to_string();
        assert!(error.contains("expected the kernel module rbd"), "{error}");
        let directory = bus.join("devices/3");
        fs::create_dir_all(&directory).unwrap();
        assert_eq!(devices(bus), Ok(Vec::new()), "a device that is being added");
        for (name, text) in [
            ("major", "252"),
            ("minor", "48"),
            ("size", "1048576"),
            ("config_info", "10.0.0.5:6789 name=csi,key=client.csi p pvc-1 -"),
            ("cluster_fsid", "0f6d1e52-3f3c-4e0a-9d0e-3f5f2f1b7a10"),
            ("pool", "p"),
            ("pool_ns", ""),
            ("name", "pvc-1"),
            ("image_id", "11ab"),
            ("current_snap", "-"),
            ("refresh", ""),
        ] {
            fs::write(directory.join(name), format!("{text}\n")).unwrap();
        }
        let found = devices(bus).unwrap();
        assert_eq!(found.len(), 1);
        let device = &found[0];
        assert_eq!((device.device.to_string().as_str(), device.device.number), ("/dev/rbd3", (252, 48)));
        assert_eq!((device.monitors.as_str(), device.size), ("10.0.0.5:6789", 1 << 20));
        assert_eq!(device.key_name.as_deref(), Some("client.csi"));
        assert_eq!(crate::rbd::select_device(&found, &image("10.0.0.5", None)), Ok(Some(device)));
        // Another cluster chooses the names and ids of its images, of any bytes.
        fs::create_dir(bus.join("devices/4")).unwrap();
        for entry in fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            fs::copy(&path, bus.join("devices/4").join(path.file_name().unwrap())).unwrap();
        }
        fs::write(bus.join("devices/4/image_id"), b"11ab\xff\n").unwrap();
        assert_eq!(devices(bus).map(|all| all.len()), Ok(2));
        assert_eq!(
            crate::rbd::select_device(&devices(bus).unwrap(), &image("10.0.0.5", None)),
            Ok(Some(device))
        );
        // White space is a part of a name.
        for (attribute, text) in [("image_id", "11ab\n"), ("pool", "p \n")] {
            fs::write(bus.join("devices/4").join(attribute), text).unwrap();
        }
        assert_eq!(
            crate::rbd::select_device(&devices(bus).unwrap(), &image("10.0.0.5", None)),
            Ok(Some(device))
        );
        fs::remove_dir_all(bus.join("devices/4")).unwrap();

        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(50));
                fs::write(directory.join("size"), "2097152\n").unwrap();
            });
            refresh(bus, device, 2 << 20).unwrap();
        });
        assert_eq!(devices(bus).unwrap()[0].size, 2 << 20);

        fs::write(bus.join("remove_single_major"), "").unwrap();
        let replaced = RbdDevice { image_id: "12".to_owned(), ..device.clone() };
        unmap(bus, &replaced).unwrap();
        assert_eq!(fs::read_to_string(bus.join("remove_single_major")).unwrap(), "");
        unmap(bus, device).unwrap();
        assert_eq!(fs::read_to_string(bus.join("remove_single_major")).unwrap(), "3");
    }

    #[test]
    fn errors_of_a_mapping_name_their_cause() {
        let message = |errno: Errno| {
            let error = io::Error::from_raw_os_error(errno.raw_os_error());
            map_error(&image("10.0.0.5", None), &user(), &error)
        };
        assert!(message(Errno::TIMEDOUT).ends_with("expected a monitor to respond at 10.0.0.5:6789"));
        assert!(message(Errno::ACCESS).ends_with("capabilities of the user csi"));
        assert!(message(Errno::NOENT).contains("p/pvc-1"));
        assert!(!message(Errno::ACCESS).contains(KEY));
    }
}
