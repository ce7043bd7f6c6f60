//! Errors of node roles.

use std::io;

use cofferdam_csi::server::SocketError;
use cofferdam_node::{ManifestError, ProbeError};

use crate::{config::NodeRole, error::CommandError};

/// An error that prevents node roles from starting, or that ends them. One line.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NodeRoleError {
    #[error("role {role} needs {key}: expected --{key}, or {key} in the configuration")]
    Missing { role: &'static str, key: &'static str },
    #[error(
        "role node changes this machine as root, and other roles of this process run drivers: expected a \
         process of its own, or --single-process"
    )]
    SharedProcess,
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    #[error("the node's policy: {0}")]
    Policy(String),
    #[error("{0}")]
    KubeletRoots(String),
    #[error("{key}: {path} is not a directory")]
    NotADirectory { key: &'static str, path: String },
    #[error("{key}: {path}: {source}; expected a directory")]
    Directory { key: &'static str, path: String, source: io::Error },
    #[error("{0}")]
    Setup(String),
    #[error(transparent)]
    Socket(#[from] SocketError),
    #[error("role registrar: {0}")]
    Driver(#[from] ProbeError),
    #[error("cannot read the labels of node {node}: {problem}")]
    Labels { node: String, problem: String },
    #[error("role {0} stopped without a signal")]
    RoleStopped(&'static str),
}

impl From<NodeRoleError> for CommandError {
    fn from(error: NodeRoleError) -> Self {
        match error {
            NodeRoleError::Missing { .. }
            | NodeRoleError::SharedProcess
            | NodeRoleError::Policy(_)
            | NodeRoleError::KubeletRoots(_) => Self::Usage(Box::new(error)),
            NodeRoleError::Manifest(_)
            | NodeRoleError::NotADirectory { .. }
            | NodeRoleError::Directory { .. }
            | NodeRoleError::Setup(_)
            | NodeRoleError::Socket(_)
            | NodeRoleError::Driver(_)
            | NodeRoleError::Labels { .. }
            | NodeRoleError::RoleStopped(_) => Self::Other(Box::new(error)),
        }
    }
}

/// Returns a setting that a role needs.
///
/// # Errors
/// [`NodeRoleError::Missing`]
pub(super) fn required<'a, T>(
    value: &'a Option<T>,
    role: NodeRole,
    key: &'static str,
) -> Result<&'a T, NodeRoleError> {
    value.as_ref().ok_or(NodeRoleError::Missing { role: role.as_str(), key })
}
