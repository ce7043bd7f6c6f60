//! Errors that prevent a process from starting.

use cofferdam_cluster::ApiError;
use cofferdam_domain::DriverName;

use crate::role::Role;

/// Error that prevents a process from starting.
#[derive(Debug, thiserror::Error)]
pub enum ControllerManagerError {
    /// Two backends with the same driver name.
    #[error("two backends have the driver name {0}: expected one backend per driver")]
    TwoBackends(DriverName),
    /// A role that needs a driver, in a process without one.
    #[error("role {0} needs at least one backend: name one with --backend")]
    NoBackend(Role),
    /// `--volume-name-prefix` is empty, longer than 63 bytes, starts with a dash, or contains a character
    /// other than a lower-case letter, a digit or a dash. It is also checked in a process without the
    /// provisioner.
    #[error(
        "volume name prefix {0:?} cannot start a volume's name: expected lower-case letters, digits and \
         dashes, at most 63"
    )]
    Prefix(String),
    /// A node-local driver without topology, whose volumes cannot be bound to their node.
    #[error("driver {0} is of one node and has no topology: expected a driver with topology keys")]
    NoTopology(DriverName),
    /// A role that must not run on every node, beside a node-local driver.
    #[error("driver {driver} is of one node: expected no role {role} beside it, {reason}")]
    RoleWithNodeLocalDriver {
        /// The node-local driver.
        driver: DriverName,
        /// The role.
        role: Role,
        /// Why the role must not run on every node.
        reason: &'static str,
    },
    /// `--snapshot-name-prefix` is not allowed.
    #[error(
        "snapshot name prefix {0:?} cannot start a snapshot's name: expected lower-case letters, digits and \
         dashes, at most 63 and not a dash first"
    )]
    SnapshotPrefix(String),
    /// A read failed: of the cluster's identity, or of the journal of a driver. After a restore of the
    /// cluster, the manager repeats these reads instead of returning the error.
    #[error("cannot start: {0}")]
    Start(#[source] ApiError),
}
