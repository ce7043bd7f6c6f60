//! Decisions about the kernel's NVMe controllers and disks. A controller is one connection to a subsystem;
//! with the kernel's multipath, a namespace is one disk, whatever the number of its controllers.

use std::{collections::BTreeSet, net::SocketAddr};

use super::{NamespaceId, Nqn, NvmeNamespace};
use crate::block_device::Device;

/// State of a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControllerState {
    /// It responds.
    Live,
    /// It does not respond. The kernel reconnects it.
    Reconnecting,
    /// The kernel removes it.
    Removed,
}

impl ControllerState {
    /// Reads the state that sysfs shows.
    pub(crate) fn from_sysfs(text: &str) -> Self {
        match text.trim() {
            "live" => Self::Live,
            "dead" | "deleting" | "deleting (no IO)" => Self::Removed,
            _ => Self::Reconnecting,
        }
    }
}

/// A controller of the kernel with the transport TCP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NvmeController {
    /// Kernel name, such as `nvme3`.
    pub name: String,
    /// Name of the subsystem.
    pub nqn: String,
    /// Address and port of the subsystem.
    pub portal: SocketAddr,
    /// True if it was connected with the host NQN of this node role.
    pub is_own: bool,
    /// Its state.
    pub state: ControllerState,
}

/// A disk of the kernel that is an NVMe namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NvmeDisk {
    /// The device. The numbers in its name are not those of the namespace or the controller.
    pub device: Device,
    /// Size in bytes.
    pub size: u64,
    /// Name of the subsystem.
    pub nqn: String,
    /// The NGUID, if it has one.
    pub nguid: Option<[u8; 16]>,
    /// The UUID, if it has one; otherwise the kernel may show the NGUID.
    pub uuid: Option<[u8; 16]>,
}

impl NvmeDisk {
    /// Returns true if the namespace has this identifier.
    pub fn has_id(&self, id: NamespaceId) -> bool {
        match id {
            NamespaceId::Nguid(nguid) => self.nguid == Some(nguid),
            NamespaceId::Uuid(uuid) => self.uuid == Some(uuid),
        }
    }
}

/// A namespace's disk that must not be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum DiskError {
    /// Two disks have one identifier.
    #[error(
        "{disks} have the identifier of {namespace}: expected one disk; the kernel needs NVMe multipath \
         for several portals"
    )]
    Several { disks: String, namespace: String },
    /// The disk belongs to another subsystem.
    #[error("{disk} has the identifier of {namespace}, but belongs to the subsystem {nqn:?}")]
    OtherSubsystem { disk: String, namespace: String, nqn: String },
}

/// Returns the disk of a namespace; `None` if there is none.
pub(crate) fn select_disk<'a>(
    disks: &'a [NvmeDisk],
    namespace: &NvmeNamespace,
) -> Result<Option<&'a NvmeDisk>, DiskError> {
    let found: Vec<&NvmeDisk> = disks.iter().filter(|disk| disk.has_id(namespace.id)).collect();
    match found.as_slice() {
        [] => Ok(None),
        [disk] if disk.nqn == namespace.nqn.as_str() => Ok(Some(disk)),
        [disk] => Err(DiskError::OtherSubsystem {
            disk: disk.device.to_string(),
            namespace: namespace.to_string(),
            nqn: disk.nqn.clone(),
        }),
        several => Err(DiskError::Several {
            disks: several.iter().map(|disk| disk.device.to_string()).collect::<Vec<_>>().join(", "),
            namespace: namespace.to_string(),
        }),
    }
}

/// Returns this node role's controllers of a subsystem, except those that the kernel removes.
pub(crate) fn controllers_of<'a>(
    controllers: &'a [NvmeController],
    nqn: &'a Nqn,
) -> impl Iterator<Item = &'a NvmeController> {
    controllers.iter().filter(|controller| {
        controller.is_own && controller.nqn == nqn.as_str() && controller.state != ControllerState::Removed
    })
}

/// Returns the portals of a namespace that have no controller yet.
pub(crate) fn missing_portals(controllers: &[NvmeController], namespace: &NvmeNamespace) -> Vec<SocketAddr> {
    let connected: BTreeSet<SocketAddr> =
        controllers_of(controllers, &namespace.nqn).map(|controller| controller.portal).collect();
    namespace.portals.iter().filter(|portal| !connected.contains(portal)).copied().collect()
}

/// Returns a description of the controllers of a subsystem if none of them responds; `None` if one does.
pub(crate) fn unused_state(controllers: &[NvmeController], nqn: &Nqn) -> Option<String> {
    let own: Vec<&NvmeController> = controllers_of(controllers, nqn).collect();
    if own.iter().any(|controller| controller.state == ControllerState::Live) {
        return None;
    }
    let describe = |controller: &&NvmeController| format!("{} at {}", controller.name, controller.portal);
    Some(match own.as_slice() {
        [] => "it is not connected".to_owned(),
        own => {
            let names = own.iter().map(describe).collect::<Vec<_>>().join(", ");
            format!("the kernel reconnects {names}")
        }
    })
}

/// Returns the controllers of a subsystem that no other volume names. They may be those of a volume that was
/// removed while another one used the subsystem.
pub(crate) fn removable_controllers<'a>(
    controllers: &'a [NvmeController],
    nqn: &'a Nqn,
    others: &[NvmeNamespace],
) -> Vec<&'a NvmeController> {
    let is_named = |controller: &NvmeController| {
        others.iter().any(|other| other.nqn == *nqn && other.portals.contains(&controller.portal))
    };
    controllers_of(controllers, nqn).filter(|controller| !is_named(controller)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NQN: &str = "nqn.2024-01.com.example:one";

    fn namespace(portals: &str, nqn: &str) -> NvmeNamespace {
        NvmeNamespace::parse(portals, nqn, Some(&"1".repeat(32)), None).unwrap()
    }

    fn controller(name: &str, portal: &str, nqn: &str, state: &str, is_own: bool) -> NvmeController {
        NvmeController {
            name: name.to_owned(),
            nqn: nqn.to_owned(),
            portal: portal.parse().unwrap(),
            is_own,
            state: ControllerState::from_sysfs(state),
        }
    }

    /// Controllers of the subsystem `one`, and of others.
    fn controllers() -> Vec<NvmeController> {
        vec![
            controller("nvme0", "10.0.0.1:4420", NQN, "live\n", true),
            controller("nvme1", "10.0.0.2:4420", NQN, "connecting", true),
            controller("nvme2", "10.0.0.3:4420", NQN, "deleting", true),
            controller("nvme3", "10.0.0.4:4420", NQN, "dead", true),
            controller("nvme4", "10.0.0.5:4420", NQN, "live", false),
            controller("nvme5", "10.0.0.6:4420", "nqn.2024-01.com.example:two", "live", true),
            controller("nvme6", "[fd00::1]:4420", NQN, "resetting", true),
        ]
    }

    #[test]
    fn a_controller_of_the_same_host_subsystem_and_portal_is_reused() {
        #[rustfmt::skip] // one row a case
        let table = [
            ("10.0.0.1",              &[][..]),
            ("10.0.0.2",              &[]),
            ("10.0.0.1:4421",         &["10.0.0.1:4421"]),
            ("10.0.0.3",              &["10.0.0.3:4420"]),
            ("10.0.0.4",              &["10.0.0.4:4420"]),
            ("10.0.0.5",              &["10.0.0.5:4420"]),
            ("10.0.0.6",              &["10.0.0.6:4420"]),
            ("[fd00:0::1]",           &[]),
            ("10.0.0.1,10.0.0.9",     &["10.0.0.9:4420"]),
        ];
        for (portals, expected) in table {
            let missing = missing_portals(&controllers(), &namespace(portals, NQN));
            let missing: Vec<String> = missing.iter().map(ToString::to_string).collect();
            assert_eq!(missing, expected, "{portals}");
        }
    }

    #[test]
    fn only_own_controllers_that_no_other_volume_names_are_removable() {
        let two = "nqn.2024-01.com.example:two";
        #[rustfmt::skip] // one row a case
        let table = [
            (&[][..],                                   &["nvme0", "nvme1", "nvme6"][..]),
            (&[("10.0.0.2", NQN)],                      &["nvme0", "nvme6"]),
            (&[("10.0.0.1", two)],                      &["nvme0", "nvme1", "nvme6"]),
            (&[("10.0.0.9,10.0.0.1,[fd00:0::1]", NQN)],   &["nvme1"]),
            (&[("10.0.0.1:4421", NQN)],                 &["nvme0", "nvme1", "nvme6"]),
        ];
        for (others, expected) in table {
            let named: Vec<_> = others.iter().map(|(portals, nqn)| namespace(portals, nqn)).collect();
            let (all, nqn) = (controllers(), Nqn::parse(NQN).unwrap());
            let found = removable_controllers(&all, &nqn, &named);
            let names: Vec<&str> = found.iter().map(|controller| controller.name.as_str()).collect();
            assert_eq!(names, expected, "{others:?}");
        }
    }

    #[test]
    fn a_subsystem_responds_by_one_live_controller() {
        let nqn = |text| Nqn::parse(text).unwrap();
        let all = controllers();
        assert_eq!(unused_state(&all, &nqn(NQN)), None);
        let rest = &all[1..];
        assert_eq!(
            unused_state(rest, &nqn(NQN)).unwrap(),
            "the kernel reconnects nvme1 at 10.0.0.2:4420, nvme6 at [fd00::1]:4420"
        );
        assert_eq!(unused_state(&all, &nqn("nqn.2024-01.com.example:x")).unwrap(), "it is not connected");
    }

    #[test]
    fn a_disk_is_selected_by_its_identifier_and_its_subsystem() {
        let disk = |name: &str, nqn: &str, nguid: u8, uuid: Option<u8>| NvmeDisk {
            device: Device { name: name.to_owned(), number: (259, u32::from(nguid)) },
            size: 1,
            nqn: nqn.to_owned(),
            nguid: Some([nguid; 16]),
            uuid: uuid.map(|uuid| [uuid; 16]),
        };
        let one = namespace("10.0.0.1", NQN);
        let good = disk("nvme0n1", NQN, 0x11, None);
        let other = disk("nvme0n2", NQN, 0x22, Some(0x11));
        let foreign = disk("nvme9n1", "nqn.2024-01.com.example:two", 0x11, None);
        assert_eq!(select_disk(std::slice::from_ref(&other), &one), Ok(None));
        assert_eq!(select_disk(&[other.clone(), good.clone()], &one), Ok(Some(&good)));
        let by_uuid = NvmeNamespace { id: NamespaceId::Uuid([0x11; 16]), ..one.clone() };
        assert_eq!(select_disk(&[other.clone(), good.clone()], &by_uuid), Ok(Some(&other)));
        let error = select_disk(std::slice::from_ref(&foreign), &one).unwrap_err().to_string();
        assert!(error.contains("/dev/nvme9n1") && error.contains("example:two"), "{error}");
        let error = select_disk(&[good, foreign], &one).unwrap_err().to_string();
        assert!(error.starts_with("/dev/nvme0n1, /dev/nvme9n1 have the identifier"), "{error}");
    }
}
