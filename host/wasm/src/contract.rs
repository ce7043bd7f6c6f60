//! The WIT contract: its package and version, and the imports that an operator can grant.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The contract's package.
pub(crate) const CONTRACT_PACKAGE: &str = "cofferdam:storage";
/// The contract's version.
pub(crate) const CONTRACT_VERSION: &str = "0.1.0";

/// An import that an operator can grant. [`Engine::load`](crate::Engine::load) rejects a component that
/// imports more than its grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Grant {
    /// Lines in the host's log.
    Log,
    /// Wall clock and random bytes.
    Ambient,
    /// The time until the deadline of the call.
    Deadline,
    /// The backend's settings.
    Settings,
    /// The call's secrets as handles.
    Secrets,
    /// The texts of the call's secrets.
    Reveal,
    /// Keyed hashes and digests of the call's secrets.
    Sign,
    /// Logins that outlive a call.
    Session,
    /// HTTP requests to the origins that the operator names.
    Http,
    /// Keyed blobs that outlive a call.
    State,
    /// A directory of the host.
    Pool,
}

impl Grant {
    /// Every grant.
    pub const ALL: [Self; 11] = [
        Self::Log,
        Self::Ambient,
        Self::Deadline,
        Self::Settings,
        Self::Secrets,
        Self::Reveal,
        Self::Sign,
        Self::Session,
        Self::Http,
        Self::State,
        Self::Pool,
    ];

    /// Default grants: imports without access to the network, to a directory of the host, or to the text or a
    /// hash of secrets.
    pub const DEFAULT: [Self; 7] =
        [Self::Log, Self::Ambient, Self::Deadline, Self::Settings, Self::Secrets, Self::Session, Self::State];

    /// Advice for the operator on granting this import.
    pub(crate) fn advice(self) -> String {
        match self {
            Self::Http => "name the origins of its requests in sections [[backend.NAME.http.origins]], \
                 or by --origin where the command has it"
                .to_owned(),
            Self::Pool => "name its directory in a section [backend.NAME.pool], \
                 or by --pool where the command has it"
                .to_owned(),
            Self::Log
            | Self::Ambient
            | Self::Deadline
            | Self::Settings
            | Self::Secrets
            | Self::Reveal
            | Self::Sign
            | Self::Session
            | Self::State => {
                format!("add {self} to its grants, or by --grant where the command has it")
            }
        }
    }

    /// Name of the granted interface.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Log => "log",
            Self::Ambient => "ambient",
            Self::Deadline => "deadline",
            Self::Settings => "settings",
            Self::Secrets => "secrets",
            Self::Reveal => "reveal",
            Self::Sign => "sign",
            Self::Session => "session",
            Self::Http => "http",
            Self::State => "state",
            Self::Pool => "pool",
        }
    }

    pub(crate) fn from_interface(interface: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|grant| grant.as_str() == interface)
    }
}

impl fmt::Display for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`", self.as_str())
    }
}

/// Name of a contract interface, without a version or in one that the host does not support.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceVersion(String);

impl InterfaceVersion {
    pub(crate) fn new(name: String) -> Self {
        Self(name)
    }
}

impl fmt::Display for InterfaceVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
