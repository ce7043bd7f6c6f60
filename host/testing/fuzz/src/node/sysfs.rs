//! Attributes of NVMe controllers, NVMe disks and RBD devices. A line `NAME=TEXT` is an attribute.

use std::net::{IpAddr, SocketAddr};

use cofferdam_node::{
    ControllerState, NvmeController, NvmeDisk, NvmeHost, RbdDevice,
    fuzzing::{self, Attributes},
};

use crate::message::assert_printable;

/// Most bytes of an error about a device.
const MAX_MESSAGE_BYTES: usize = 100;
/// Size of a sector in bytes.
const SECTOR: u64 = 512;

fn attributes(content: &[u8]) -> Attributes {
    let attribute = |line: &[u8]| {
        let at = line.iter().position(|byte| *byte == b'=')?;
        let (name, text) = line.split_at(at);
        Some((String::from_utf8_lossy(name).into_owned(), text.get(1..)?.to_owned()))
    };
    content.split(|byte| *byte == b'\n').filter_map(attribute).collect()
}

fn text(attributes: &Attributes, name: &str) -> Option<String> {
    attributes.get(name).map(|content| String::from_utf8_lossy(content).into_owned())
}

fn to_attributes<const N: usize>(attributes: [(&str, String); N]) -> Attributes {
    attributes.map(|(name, text)| (name.to_owned(), format!("{text}\n").into_bytes())).into()
}

pub(super) fn nvme_controller(content: &[u8]) {
    let attributes = attributes(content);
    let Ok(host) = NvmeHost::new("nqn.2026-11.dev.cofferdam:{node}", "n1") else { return };
    let parse = |host, attributes: &Attributes| {
        let parsed = fuzzing::nvme_controller("nvme1", host, attributes);
        assert!(parsed.is_ok(), "the attributes of a controller fail the list of all: {parsed:?}");
        parsed.ok().flatten()
    };
    let address = text(&attributes, "address");
    let portal = address.as_deref().and_then(fuzzing::controller_address);
    let has_texts = ["subsysnqn", "state"].iter().all(|name| attributes.contains_key(*name));
    let is_tcp = text(&attributes, "transport").as_deref() == Some("tcp");
    let parsed = parse(Some(&host), &attributes);
    assert_eq!(parsed.is_some(), is_tcp && has_texts && portal.is_some());
    let Some(controller) = parsed else { return };
    check_portal(controller.portal);
    assert_eq!(text(&attributes, "subsysnqn").as_ref(), Some(&controller.nqn));
    assert_eq!(controller.is_own, text(&attributes, "hostnqn").as_deref() == Some(host.nqn.as_str()));
    assert!(parse(None, &attributes).is_some_and(|found| !found.is_own), "a node without a name owns it");
    assert_eq!(parse(Some(&host), &controller_attributes(&controller, &host)), Some(controller));
}

/// An address of a controller is compared with portals, so it has their only form.
fn check_portal(portal: SocketAddr) {
    assert_eq!(portal.ip(), portal.ip().to_canonical());
    assert_eq!(SocketAddr::new(portal.ip(), portal.port()), portal, "a zone or a flow label");
    let address = format!("traddr={},trsvcid={},src_addr=10.0.0.9", portal.ip(), portal.port());
    assert_eq!(fuzzing::controller_address(&address), Some(portal));
    if let IpAddr::V4(address) = portal.ip() {
        let mapped = format!("traddr=::ffff:{address},trsvcid={}", portal.port());
        assert_eq!(fuzzing::controller_address(&mapped), Some(portal));
    }
}

fn controller_attributes(controller: &NvmeController, host: &NvmeHost) -> Attributes {
    let state = match controller.state {
        ControllerState::Live => "live",
        ControllerState::Reconnecting => "connecting",
        ControllerState::Removed => "deleting",
    };
    let host_nqn = if controller.is_own { host.nqn.to_string() } else { String::new() };
    to_attributes([
        ("transport", "tcp".to_owned()),
        ("address", format!("traddr={},trsvcid={}", controller.portal.ip(), controller.portal.port())),
        ("subsysnqn", controller.nqn.clone()),
        ("state", state.to_owned()),
        ("hostnqn", host_nqn),
    ])
}

pub(super) fn nvme_disk(content: &[u8]) {
    let attributes = attributes(content);
    let name = text(&attributes, "name").filter(|name| fuzzing::is_nvme_disk(name));
    let name = name.unwrap_or_else(|| "nvme0n1".to_owned());
    assert!(name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit()), "{name:?}");
    match fuzzing::nvme_disk(&name, &attributes) {
        Ok(None) => {
            let needed = ["dev", "size", "device/subsysnqn"];
            assert!(needed.iter().any(|name| !attributes.contains_key(*name)), "a disk is omitted");
        }
        Ok(Some(disk)) => check_disk(&attributes, &disk),
        // The kernel writes number and size, and no array chooses their form.
        Err(error) => {
            assert_printable(&error.to_string(), MAX_MESSAGE_BYTES + name.len());
            let number = text(&attributes, "dev").as_deref().and_then(fuzzing::device_number);
            let sectors = text(&attributes, "size").and_then(|sectors| sectors.parse::<u64>().ok());
            assert!(number.is_none() || sectors.is_none(), "{error}");
        }
    }
}

fn check_disk(attributes: &Attributes, disk: &NvmeDisk) {
    for (name, id) in [("nguid", disk.nguid), ("uuid", disk.uuid)] {
        let Some(id) = id else { continue };
        assert_ne!(id, [0; 16], "an identifier that is none");
        let shown = text(attributes, name).map(|text| text.to_ascii_lowercase());
        assert_eq!(shown, Some(fuzzing::uuid_text(id)));
    }
    assert_eq!(text(attributes, "device/subsysnqn").as_ref(), Some(&disk.nqn));
    let (major, minor) = disk.device.number;
    assert_eq!(fuzzing::device_number(&format!("{major}:{minor}")), Some(disk.device.number));
    let sectors = if disk.size == u64::MAX { disk.size } else { disk.size / SECTOR };
    let id = |id: Option<[u8; 16]>| id.map(fuzzing::uuid_text).unwrap_or_default();
    let again = to_attributes([
        ("dev", format!("{major}:{minor}")),
        ("size", sectors.to_string()),
        ("device/subsysnqn", disk.nqn.clone()),
        ("nguid", id(disk.nguid)),
        ("uuid", id(disk.uuid)),
    ]);
    assert_eq!(fuzzing::nvme_disk(&disk.device.name, &again), Ok(Some(disk.clone())));
}

pub(super) fn nvme_instance(content: &[u8]) {
    match fuzzing::check_nvme_instance(content) {
        Ok(()) => assert!(content.starts_with(b"instance=")),
        Err(error) => {
            assert!(!content.starts_with(b"instance="));
            assert_printable(&error.to_string(), 100 + 10 * content.len());
        }
    }
}

pub(super) fn rbd_device(content: &[u8]) {
    let attributes = attributes(content);
    match fuzzing::rbd_device("3", &attributes) {
        Ok(None) => {}
        Ok(Some(device)) => {
            assert_eq!(device.device.to_string(), "/dev/rbd3");
            let names = [
                ("cluster_fsid", &device.cluster_fsid),
                ("pool", &device.pool),
                ("pool_ns", &device.namespace),
                ("name", &device.image),
                ("image_id", &device.image_id),
                ("current_snap", &device.snapshot),
            ];
            for (name, shown) in names {
                assert_eq!(text(&attributes, name).as_ref(), Some(shown), "{name}");
            }
            let again = fuzzing::rbd_device("3", &rbd_attributes(&device));
            assert_eq!(again, Ok(Some(device)));
        }
        // The kernel writes numbers and size, and no cluster chooses their form.
        Err(error) => {
            assert_printable(&error.to_string(), MAX_MESSAGE_BYTES);
            let is_number =
                |name| text(&attributes, name).is_some_and(|number| number.parse::<u32>().is_ok());
            let is_size = text(&attributes, "size").is_some_and(|size| size.parse::<u64>().is_ok());
            assert!(!is_number("major") || !is_number("minor") || !is_size, "{error}");
        }
    }
}

fn rbd_attributes(device: &RbdDevice) -> Attributes {
    let (major, minor) = device.device.number;
    let key = device.key_name.iter().map(|name| format!(" key={name}"));
    let command = std::iter::once(device.monitors.clone()).chain(key).collect();
    to_attributes([
        ("major", major.to_string()),
        ("minor", minor.to_string()),
        ("size", device.size.to_string()),
        ("config_info", command),
        ("cluster_fsid", device.cluster_fsid.clone()),
        ("pool", device.pool.clone()),
        ("pool_ns", device.namespace.clone()),
        ("name", device.image.clone()),
        ("image_id", device.image_id.clone()),
        ("current_snap", device.snapshot.clone()),
    ])
}
