//! Why the program ends without success: one line each.

use std::time::Duration;

use cofferdam_apiserver::ServeError;
use cofferdam_controllers::ControllerManagerError;
use cofferdam_csi::{ConnectError, server::SocketError};
use cofferdam_dev_cluster::DevError;
use cofferdam_wasm::LoadError;

use crate::{
    client::ClientError,
    commands::backend::BackendCommandError,
    commands::dev::{DemoError, KubeconfigError},
    commands::orphans::OrphansError,
    commands::render::RenderError,
    commands::run::node::NodeRoleError,
    commands::status::StatusError,
    config::{ConfigError, GoDuration},
    telemetry::ListenError,
};

/// What failed.
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
    Backend { name: String, source: LoadError },
    /// The same, for who asked for this one backend and nothing else.
    #[error("backend {name}: {source}")]
    Component { name: String, source: LoadError },
    #[error("backend {name}: {source}")]
    Csi { name: String, source: ConnectError },
    #[error(
        "backend {0}: its storage is on one node (placement `node`): expected that node's name, as in --node-name, and a process on every such node"
    )]
    Placement(String),
    #[error("backend {backend}: secret {secret}: {problem}")]
    Secret { backend: String, secret: String, problem: String },
    #[error("backend {name}: {source}")]
    Socket { name: String, source: SocketError },
    #[error("backend {0}: its socket is served no more")]
    SocketServerStopped(String),
    #[error(transparent)]
    Controllers(#[from] ControllerManagerError),
    /// A first read of the API failed, of a cluster that somebody has named.
    #[error("{source}; the API is {api}")]
    ControllerStart { api: String, source: ControllerManagerError },
    #[error("cannot start the Kubernetes API: {0}")]
    ApiServer(#[source] ServeError),
    #[error(transparent)]
    Kubeconfig(#[from] KubeconfigError),
    #[error("cannot prepare the API: {0}")]
    PrepareApi(#[source] kube::Error),
    #[error("cannot make the nodes: {0}")]
    Dev(#[from] DevError),
    #[error("the demo did not hold: {0}")]
    Demo(#[from] DemoError),
    #[error("cannot listen for signals: {0}")]
    Signals(#[source] std::io::Error),
    #[error("cannot start the runtime: {0}")]
    Runtime(#[source] std::io::Error),
    #[error("{0}")]
    Node(#[from] NodeRoleError),
    #[error(transparent)]
    Orphans(#[from] OrphansError),
    #[error(transparent)]
    Status(#[from] StatusError),
    #[error(transparent)]
    BackendCommand(#[from] BackendCommandError),
    #[error(transparent)]
    Render(#[from] RenderError),
    #[error("the component does not say who it is: {0}")]
    DescribeFailed(String),
    #[error("cannot write: {0}")]
    Output(#[source] std::io::Error),
    #[error("running work did not end within drain-timeout, {}", GoDuration::from(*.0))]
    DrainTimeout(Duration),
    #[error("the roles ended before they were told to")]
    RolesStopped,
    #[error("the simulated nodes ended before they were told to; the log says why")]
    NodesStopped,
}

impl CommandError {
    /// What a shell hears: 2 for what stands wrong on the command line, as for a flag that does not exist,
    /// and where a vendor's command could not begin; 1 for all others.
    pub(crate) const fn exit_code(&self) -> u8 {
        let usage = matches!(
            self,
            Self::BackendCommand(BackendCommandError::Argument(_))
                | Self::Render(RenderError::Argument(_))
                | Self::Component { .. }
        );
        if usage { 2 } else { 1 }
    }
}
