//! Names of the roles.

use std::{fmt, str::FromStr};

/// A role, as `--role` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// Claims to volumes, and released volumes to nothing (external-provisioner).
    Provisioner,
    /// VolumeAttachments to volumes that nodes can reach (external-attacher).
    Attacher,
    /// Claims that grow or change their VolumeAttributesClass (external-resizer).
    Resizer,
    /// Binding, phases, reclaim (PersistentVolumeController of kube-controller-manager).
    PvController,
    /// Releases the protection finalizers (pv-, pvc- and vac-protection of kube-controller-manager).
    Protection,
    /// Pods to VolumeAttachments, and what nodes are told of them (AttachDetachController of
    /// kube-controller-manager).
    AttachDetach,
}

/// A name that is no role.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown role {name:?}: expected one of {}", Role::ALL.map(Role::as_str).join(", "))]
pub struct UnknownRole {
    /// What was given.
    pub name: String,
}

impl Role {
    /// Every role.
    pub const ALL: [Self; 6] = [
        Self::Provisioner,
        Self::Attacher,
        Self::Resizer,
        Self::PvController,
        Self::Protection,
        Self::AttachDetach,
    ];

    /// The name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Provisioner => "provisioner",
            Self::Attacher => "attacher",
            Self::Resizer => "resizer",
            Self::PvController => "pv-controller",
            Self::Protection => "protection",
            Self::AttachDetach => "attach-detach",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Role {
    type Err = UnknownRole;

    fn from_str(name: &str) -> Result<Self, UnknownRole> {
        Self::ALL
            .into_iter()
            .find(|role| role.as_str() == name)
            .ok_or_else(|| UnknownRole { name: name.to_owned() })
    }
}
