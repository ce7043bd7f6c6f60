//! Errors that end the program, one line each.

use std::{collections::BTreeSet, error::Error, time::Duration};

use cofferdam_apiserver::ServeError;
use cofferdam_cluster::leader_election::LeaseInUse;
use cofferdam_controllers::ControllerManagerError;
use cofferdam_csi::{ConnectError, server::SocketError};
use cofferdam_dev_cluster::DevError;
use cofferdam_domain::DriverName;
use cofferdam_wasm::LoadError;

use crate::{
    client::ClientError,
    config::{ConfigError, GoDuration},
    secret::SecretFileError,
    telemetry::ListenError,
};

/// An error of a command.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CommandError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error(transparent)]
    Listen(#[from] ListenError),
    #[error("{0}")]
    Engine(#[source] LoadError),
    #[error("backend {name}: {source}")]
    Backend { name: String, source: Box<LoadError> },
    /// The component on the command line of `backend inspect`, `call` or `test` cannot be loaded; the exit
    /// code is 2. [`Self::Backend`] is the same for a driver of `run` or `dev`, with exit code 1.
    #[error("backend {name}: {source}")]
    Component { name: String, source: Box<LoadError> },
    #[error("backend {name}: {source}")]
    Csi { name: String, source: ConnectError },
    #[error(
        "backend {0}: its storage is on one node (placement `node`): expected that node's name, as in \
         --node-name, and a process on every such node"
    )]
    Placement(String),
    #[error(
        "backend {0}: its storage is on one node (placement `node`), and with leader election one process \
         works: expected no --leader-election"
    )]
    ElectedNode(String),
    #[error(
        "{in_use}; the `state` or `pool` of the components of {} has one owner: expected one replica, with \
         strategy Recreate",
        .drivers.iter().map(DriverName::as_str).collect::<Vec<_>>().join(", ")
    )]
    OnlyOwner {
        /// The drivers of the Lease.
        drivers: BTreeSet<DriverName>,
        in_use: LeaseInUse,
    },
    #[error(
        "--enable-capacity: the storageCapacity of CSIDriver {0} is true, and this program does not update \
         CSIStorageCapacity objects, so the scheduler would select nodes by old ones: expected storageCapacity \
         false, or csi-provisioner for this driver"
    )]
    StorageCapacity(DriverName),
    #[error("backend {backend}: secret {secret}: {source}")]
    Secret { backend: String, secret: String, source: SecretFileError },
    #[error("backend {name}: {source}")]
    Socket { name: String, source: SocketError },
    #[error("backend {0}: the server of its socket stopped")]
    SocketServerStopped(String),
    #[error(transparent)]
    Controllers(#[from] ControllerManagerError),
    /// A read of the API when the controllers started failed: the cluster's identity or the intent journal of
    /// a driver.
    #[error("{source}; the API is {api}")]
    ControllerStart { api: String, source: ControllerManagerError },
    #[error("cannot start the Kubernetes API: {0}")]
    ApiServer(#[source] ServeError),
    #[error("cannot prepare the API: {0}")]
    PrepareApi(#[source] kube::Error),
    #[error("cannot create the nodes: {0}")]
    Dev(#[from] DevError),
    #[error("cannot listen for signals: {0}")]
    Signals(#[source] std::io::Error),
    #[error("cannot start the runtime: {0}")]
    Runtime(#[source] std::io::Error),
    #[error("cannot write: {0}")]
    Output(#[source] std::io::Error),
    #[error("in-flight work did not finish within drain-timeout, {}", GoDuration::from(*.0))]
    DrainTimeout(Duration),
    #[error("the roles stopped without a signal")]
    RolesStopped,
    #[error("the simulated nodes stopped without a signal; the log has the reason")]
    NodesStopped,
    /// An error that only one command or only the node roles can return. Its type is defined beside them.
    #[error(transparent)]
    Other(Box<dyn Error + Send + Sync>),
    /// An invalid value of a flag that is no setting, a missing setting, or input that a `backend` command
    /// cannot use, such as a directory that is not empty. Also `backend new` in a program that was built
    /// without the versions of the SDK, of its dependencies or of the compiler.
    #[error(transparent)]
    Usage(Box<dyn Error + Send + Sync>),
}

impl CommandError {
    /// The exit code: 2 for an invalid command line or configuration, as for an unknown flag, and for a
    /// component of `backend inspect`, `call` or `test` that cannot be loaded; otherwise 1.
    pub(crate) const fn exit_code(&self) -> u8 {
        if matches!(self, Self::Config(_) | Self::Usage(_) | Self::Component { .. }) { 2 } else { 1 }
    }
}
