//! NVMe over TCP by the kernel's `/dev/nvme-fabrics` and sysfs, without the program `nvme`.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Write as _},
    net::SocketAddr,
    path::Path,
    time::Duration,
};

use rustix::io::Errno;

use super::{
    devices::parse_number,
    paths::Result,
    probe,
    sysfs::{is_missing, read_attribute},
    wait::{WaitTimes, wait_for},
};
use crate::{
    block_device::Device,
    error::MounterError,
    nvme::{
        ControllerState, Nqn, NvmeController, NvmeDisk, NvmeHost, NvmeNamespace, parse_controller_address,
        parse_uuid,
    },
};

pub(super) const SYSFS: &str = "/sys";
const FABRICS: &str = "/dev/nvme-fabrics";
const SECTOR: u64 = 512;
/// Maximum time until a portal responds.
const PROBE_LIMIT: Duration = Duration::from_secs(5);
/// Seconds between two attempts of the kernel to reconnect, and until it gives up and fails all I/O.
const RECONNECT_DELAY: u32 = 2;
const CONTROLLER_LOSS_TIMEOUT: u32 = 600;
/// Maximum time and interval of the wait for a disk.
const DISK_WAIT: WaitTimes = (Duration::from_secs(10), Duration::from_millis(20));
/// Maximum time and interval of the wait for a new size.
const SIZE_WAIT: WaitTimes = (Duration::from_secs(5), Duration::from_millis(20));

fn failed<T>(message: String) -> Result<T> {
    Err(MounterError::Failed(message))
}

/// Returns the names in a directory of sysfs; none if it does not exist.
fn list(directory: &Path) -> Result<Vec<String>> {
    let fail = |error: &io::Error| MounterError::Failed(format!("{}: {error}", directory.display()));
    let entries = match fs::read_dir(directory) {
        Err(error) if is_missing(&error) => return Ok(Vec::new()),
        entries => entries.map_err(|error| fail(&error))?,
    };
    let mut names = Vec::new();
    for entry in entries {
        names.extend(entry.map_err(|error| fail(&error))?.file_name().into_string());
    }
    names.sort();
    Ok(names)
}

/// Returns the controllers with the transport TCP. Those that disappear meanwhile are omitted.
pub(super) fn controllers(sysfs: &Path, host: Option<&NvmeHost>) -> Result<Vec<NvmeController>> {
    let mut found = Vec::new();
    for name in list(&sysfs.join("class/nvme"))? {
        found.extend(controller(sysfs, &name, host)?);
    }
    Ok(found)
}

fn controller(sysfs: &Path, name: &str, host: Option<&NvmeHost>) -> Result<Option<NvmeController>> {
    let directory = sysfs.join("class/nvme").join(name);
    parse_controller(name, host, |attribute| read_attribute(&directory, attribute))
}

/// Parses the attributes of a controller, which a function reads; `None` if its transport is not TCP.
pub(super) fn parse_controller(
    name: &str,
    host: Option<&NvmeHost>,
    attribute: impl Fn(&str) -> Result<Option<String>>,
) -> Result<Option<NvmeController>> {
    if attribute("transport")?.as_deref() != Some("tcp") {
        return Ok(None);
    }
    let portal = attribute("address")?.as_deref().and_then(parse_controller_address);
    let (Some(portal), Some(nqn), Some(state)) = (portal, attribute("subsysnqn")?, attribute("state")?)
    else {
        return Ok(None);
    };
    let host_nqn = attribute("hostnqn")?;
    Ok(Some(NvmeController {
        name: name.to_owned(),
        nqn,
        portal,
        is_own: host_nqn.is_some() && host_nqn.as_deref() == host.map(|host| host.nqn.as_str()),
        state: ControllerState::from_sysfs(&state),
    }))
}

/// Returns true for the name of a namespace's disk, such as `nvme0n1`. Partitions (`nvme0n1p1`) and the
/// hidden paths of multipath (`nvme0c1n1`) have other names.
pub(super) fn is_disk_name(name: &str) -> bool {
    let numbers = name.strip_prefix("nvme").and_then(|rest| rest.split_once('n'));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    numbers.is_some_and(|(one, other)| is_number(one) && is_number(other))
}

/// Returns the disks of all namespaces. Those that disappear meanwhile are omitted.
pub(super) fn disks(sysfs: &Path) -> Result<Vec<NvmeDisk>> {
    let mut found = Vec::new();
    for name in list(&sysfs.join("class/block"))? {
        if is_disk_name(&name) {
            found.extend(disk(sysfs, &name)?);
        }
    }
    Ok(found)
}

fn disk(sysfs: &Path, name: &str) -> Result<Option<NvmeDisk>> {
    let directory = sysfs.join("class/block").join(name);
    parse_disk(name, |attribute| read_attribute(&directory, attribute))
}

/// Parses the attributes of a disk, which a function reads.
pub(super) fn parse_disk(
    name: &str,
    attribute: impl Fn(&str) -> Result<Option<String>>,
) -> Result<Option<NvmeDisk>> {
    // The parent is the subsystem, or without multipath the controller: both have the name of the subsystem.
    let (Some(number), Some(sectors), Some(nqn)) =
        (attribute("dev")?, attribute("size")?, attribute("device/subsysnqn")?)
    else {
        return Ok(None);
    };
    let (Some(number), Ok(sectors)) = (parse_number(&number), sectors.parse::<u64>()) else {
        return failed(format!("the disk {name} has no number or no size"));
    };
    Ok(Some(NvmeDisk {
        device: Device { name: name.to_owned(), number },
        size: sectors.saturating_mul(SECTOR),
        nqn,
        // The kernel shows both in the notation of a UUID.
        nguid: attribute("nguid")?.as_deref().and_then(parse_uuid),
        uuid: attribute("uuid")?.as_deref().and_then(parse_uuid),
    }))
}

/// As [`disks`]. If none has the identifier, waits for it.
pub(super) fn wait_for_disk(sysfs: &Path, awaited: Option<&NvmeNamespace>) -> Result<Vec<NvmeDisk>> {
    let found = wait_for(DISK_WAIT, || {
        let found = disks(sysfs)?;
        let is_complete = awaited.is_none_or(|awaited| found.iter().any(|disk| disk.has_id(awaited.id)));
        Ok(is_complete.then_some(found))
    })?;
    found.map_or_else(|| disks(sysfs), Ok)
}

/// The options of a connection, as the kernel reads them from `/dev/nvme-fabrics`.
fn connect_options(host: &NvmeHost, nqn: &Nqn, portal: SocketAddr) -> String {
    format!(
        "transport=tcp,traddr={},trsvcid={},nqn={nqn},hostnqn={},hostid={},reconnect_delay={RECONNECT_DELAY},\
         ctrl_loss_tmo={CONTROLLER_LOSS_TIMEOUT}",
        portal.ip(),
        portal.port(),
        host.nqn,
        host.id
    )
}

/// Connects a controller. Succeeds if it is connected.
pub(super) fn connect(host: &NvmeHost, nqn: &Nqn, portal: SocketAddr) -> Result<()> {
    // Without this exchange, a portal that does not respond would keep the write below for minutes, and the
    // kernel connects one portal at a time.
    if let Err(error) = probe::probe_nvme(portal, PROBE_LIMIT) {
        return failed(format!("the NVMe portal {portal} does not respond: {error}"));
    }
    let mut fabrics = match OpenOptions::new().read(true).write(true).open(FABRICS) {
        Ok(opened) => opened,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return failed(format!(
                "{FABRICS} does not exist: expected the kernel module nvme-tcp to be loaded"
            ));
        }
        Err(error) => return failed(format!("{FABRICS}: {error}")),
    };
    // The kernel reads the options from one write.
    let options = connect_options(host, nqn, portal);
    match fabrics.write(options.as_bytes()) {
        Ok(written) if written == options.len() => read_instance(&mut fabrics),
        Ok(_) => failed(format!("{FABRICS} has read a part of the options only")),
        Err(error) if error.raw_os_error() == Some(Errno::ALREADY.raw_os_error()) => Ok(()),
        Err(error) => failed(connect_error(host, nqn, portal, &error)),
    }
}

/// Reads the result of a connection, such as `instance=3,cntlid=1`.
fn read_instance(fabrics: &mut File) -> Result<()> {
    let mut result = [0; 64];
    let length =
        fabrics.read(&mut result).map_err(|error| MounterError::Failed(format!("{FABRICS}: {error}")))?;
    check_instance(result.get(..length).unwrap_or_default())
}

/// Checks the result of a connection.
pub(super) fn check_instance(result: &[u8]) -> Result<()> {
    let text = String::from_utf8_lossy(result);
    if text.starts_with("instance=") {
        Ok(())
    } else {
        failed(format!("{FABRICS} has no instance: {text:?}"))
    }
}

/// Explains the error of a connection.
fn connect_error(host: &NvmeHost, nqn: &Nqn, portal: SocketAddr, error: &io::Error) -> String {
    let code = error.raw_os_error();
    let hint = if code == Some(Errno::IO.raw_os_error()) {
        format!(
            "expected this subsystem at the portal, and the host NQN {} to be allowed; the log of the kernel \
             has the reason",
            host.nqn
        )
    } else if code == Some(Errno::INVAL.raw_os_error()) {
        format!(
            "expected the kernel module nvme-tcp, and no controller with the host NQN {} and another host ID \
             than {}",
            host.nqn, host.id
        )
    } else {
        "the log of the kernel has the reason".to_owned()
    };
    format!("the NVMe subsystem {nqn} at {portal} cannot be connected: {error}; {hint}")
}

/// Writes an attribute of a controller that makes the kernel act. Does nothing if the controller is no longer the
/// same.
fn trigger(sysfs: &Path, host: Option<&NvmeHost>, expected: &NvmeController, attribute: &str) -> Result<()> {
    let is_same = controller(sysfs, &expected.name, host)?.is_some_and(|found| {
        (found.nqn, found.portal, found.is_own) == (expected.nqn.clone(), expected.portal, expected.is_own)
    });
    if !is_same {
        return Ok(());
    }
    let path = sysfs.join("class/nvme").join(&expected.name).join(attribute);
    match OpenOptions::new().write(true).open(&path).and_then(|mut file| file.write_all(b"1")) {
        Ok(()) => Ok(()),
        Err(error) if is_missing(&error) => Ok(()),
        Err(error) => failed(format!("{}: {error}", path.display())),
    }
}

/// Disconnects a controller. The kernel has removed it when this returns.
pub(super) fn disconnect(sysfs: &Path, host: Option<&NvmeHost>, controller: &NvmeController) -> Result<()> {
    trigger(sysfs, host, controller, "delete_controller")
}

/// Makes a controller read its namespaces again.
pub(super) fn rescan(sysfs: &Path, host: Option<&NvmeHost>, controller: &NvmeController) -> Result<()> {
    trigger(sysfs, host, controller, "rescan_controller")
}

/// Waits until the device of a namespace has at least `size` bytes.
pub(super) fn wait_for_size(sysfs: &Path, device: &Device, size: u64) -> Result<()> {
    let grown = wait_for(SIZE_WAIT, || {
        Ok(disk(sysfs, &device.name)?.filter(|found| found.device == *device && found.size >= size))
    });
    grown.map(drop)
}

#[cfg(test)]
mod tests {
    use std::{os::unix::fs::symlink, thread};

    use super::*;

    const NQN: &str = "nqn.2024-01.com.example:one";

    fn host() -> NvmeHost {
        NvmeHost::new("nqn.2026-11.dev.cofferdam:{node}", "n1").unwrap()
    }

    fn write(sysfs: &Path, path: &str, text: &str) {
        let path = sysfs.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
    }

    fn add_controller(sysfs: &Path, name: &str, transport: &str, address: &str, host_nqn: &str) {
        for (attribute, text) in [
            ("transport", transport),
            ("address", address),
            ("subsysnqn", NQN),
            ("state", "live"),
            ("hostnqn", host_nqn),
            ("delete_controller", ""),
            ("rescan_controller", ""),
        ] {
            write(sysfs, &format!("class/nvme/{name}/{attribute}"), text);
        }
    }

    #[test]
    fn controllers_are_read_from_sysfs() {
        let sysfs = tempfile::TempDir::new().unwrap();
        let sysfs = sysfs.path();
        assert_eq!(controllers(sysfs, Some(&host())), Ok(Vec::new()), "without the module");
        let own = host().nqn.to_string();
        add_controller(sysfs, "nvme0", "pcie", "0000:01:00.0", &own);
        add_controller(sysfs, "nvme1", "tcp", "traddr=::ffff:10.0.0.5,trsvcid=4420,src_addr=10.0.0.9", &own);
        add_controller(
            sysfs,
            "nvme2",
            "tcp",
            "traddr=10.0.0.5,trsvcid=4420",
            "nqn.2014-08.org.example:other",
        );
        // A controller that is being created or removed.
        write(sysfs, "class/nvme/nvme3/transport", "tcp");
        let found = controllers(sysfs, Some(&host())).unwrap();
        let one = NvmeController {
            name: "nvme1".to_owned(),
            nqn: NQN.to_owned(),
            portal: "10.0.0.5:4420".parse().unwrap(),
            is_own: true,
            state: ControllerState::Live,
        };
        let other = NvmeController { name: "nvme2".to_owned(), is_own: false, ..one.clone() };
        assert_eq!(found, [one.clone(), other]);
        assert!(controllers(sysfs, None).unwrap().iter().all(|controller| !controller.is_own));
        // A subsystem responds with its own name, of any bytes.
        fs::write(sysfs.join("class/nvme/nvme2/subsysnqn"), b"nqn.\xff\n").unwrap();
        assert_eq!(controllers(sysfs, Some(&host())).unwrap()[0], one);

        // Only the same controller is disconnected.
        let deleted = || fs::read_to_string(sysfs.join("class/nvme/nvme1/delete_controller")).unwrap();
        let replaced = NvmeController { nqn: "nqn.2024-01.com.example:two".to_owned(), ..one.clone() };
        disconnect(sysfs, Some(&host()), &replaced).unwrap();
        assert_eq!(deleted(), "\n");
        disconnect(sysfs, Some(&host()), &one).unwrap();
        assert_eq!(deleted(), "1");
        let missing = NvmeController { name: "nvme7".to_owned(), ..one };
        disconnect(sysfs, Some(&host()), &missing).unwrap();
    }

    #[test]
    fn disks_are_read_from_sysfs_with_their_subsystem() {
        let root = tempfile::TempDir::new().unwrap();
        let sysfs = root.path();
        write(sysfs, "class/nvme-subsystem/nvme-subsys0/subsysnqn", NQN);
        let nguid = "11111111-1111-1111-1111-111111111111";
        for (name, number) in
            [("nvme0n1", "259:0"), ("nvme0n1p1", "259:1"), ("nvme0c0n1", "259:2"), ("sda", "8:0")]
        {
            write(sysfs, &format!("class/block/{name}/dev"), number);
            write(sysfs, &format!("class/block/{name}/size"), "2048");
            write(sysfs, &format!("class/block/{name}/nguid"), nguid);
            symlink("../../nvme-subsystem/nvme-subsys0", sysfs.join(format!("class/block/{name}/device")))
                .unwrap();
        }
        let disk = NvmeDisk {
            device: Device { name: "nvme0n1".to_owned(), number: (259, 0) },
            size: 1 << 20,
            nqn: NQN.to_owned(),
            nguid: Some([0x11; 16]),
            uuid: None,
        };
        assert_eq!(disks(sysfs), Ok(vec![disk.clone()]));
        // A subsystem responds with its own name, of any bytes.
        for (attribute, text) in [
            ("dev", b"259:9\n".as_slice()),
            ("size", b"8\n"),
            ("nguid", b"22222222-2222-2222-2222-222222222222\n"),
            ("device/subsysnqn", b"nqn.\xff\n"),
        ] {
            write(sysfs, &format!("class/block/nvme1n1/{attribute}"), "");
            fs::write(sysfs.join("class/block/nvme1n1").join(attribute), text).unwrap();
        }
        assert_eq!(disks(sysfs).unwrap()[0], disk);
        fs::remove_dir_all(sysfs.join("class/block/nvme1n1")).unwrap();
        let awaited = NvmeNamespace::parse("10.0.0.5", NQN, Some(&"1".repeat(32)), None).unwrap();
        assert_eq!(wait_for_disk(sysfs, Some(&awaited)), Ok(vec![disk.clone()]));

        let controller = NvmeController {
            name: "nvme1".to_owned(),
            nqn: NQN.to_owned(),
            portal: "10.0.0.5:4420".parse().unwrap(),
            is_own: true,
            state: ControllerState::Live,
        };
        add_controller(sysfs, "nvme1", "tcp", "traddr=10.0.0.5,trsvcid=4420", host().nqn.as_str());
        let resized = thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(50));
                write(sysfs, "class/block/nvme0n1/size", "4096");
            });
            rescan(sysfs, Some(&host()), &controller).unwrap();
            wait_for_size(sysfs, &disk.device, 2 << 20).unwrap();
            disks(sysfs).unwrap()[0].size
        });
        assert_eq!(resized, 2 << 20);
        assert_eq!(fs::read_to_string(sysfs.join("class/nvme/nvme1/rescan_controller")).unwrap(), "1");
    }

    #[test]
    fn names_of_disks_are_told_from_paths_and_partitions() {
        for (name, expected) in [
            ("nvme0n1", true),
            ("nvme12n34", true),
            ("nvme0c1n1", false),
            ("nvme0n1p1", false),
            ("nvme0", false),
            ("nvmen1", false),
            ("nvme0n", false),
            ("sda", false),
        ] {
            assert_eq!(is_disk_name(name), expected, "{name}");
        }
    }

    #[test]
    fn options_have_the_canonical_address() {
        let nqn = Nqn::parse(NQN).unwrap();
        let options = |portal: &str| connect_options(&host(), &nqn, portal.parse().unwrap());
        let id = host().id;
        assert_eq!(
            options("[2001:DB8:0::5]:4421"),
            format!(
                "transport=tcp,traddr=2001:db8::5,trsvcid=4421,nqn={NQN},\
                 hostnqn=nqn.2026-11.dev.cofferdam:n1,hostid={id},reconnect_delay=2,ctrl_loss_tmo=600"
            )
        );
        assert!(options("10.0.0.5:4420").starts_with("transport=tcp,traddr=10.0.0.5,trsvcid=4420,"));
    }

    #[test]
    fn errors_of_a_connection_name_their_cause() {
        let nqn = Nqn::parse(NQN).unwrap();
        let message = |errno: Errno| {
            let error = io::Error::from_raw_os_error(errno.raw_os_error());
            connect_error(&host(), &nqn, "10.0.0.5:4420".parse().unwrap(), &error)
        };
        assert!(message(Errno::IO).contains("host NQN nqn.2026-11.dev.cofferdam:n1 to be allowed"));
        assert!(message(Errno::INVAL).contains("kernel module nvme-tcp"));
        assert!(message(Errno::TIMEDOUT).contains(NQN));
        // A port that nothing listens on.
        let unused = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let error = connect(&host(), &nqn, unused).unwrap_err().to_string();
        assert!(error.contains(&format!("the NVMe portal {unused} does not respond")), "{error}");
    }
}
