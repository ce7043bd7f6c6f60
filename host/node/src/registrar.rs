//! Registers a driver with kubelet: serves the registration socket in kubelet's plugin registration directory
//! until shutdown.

use std::{path::PathBuf, sync::Arc, time::Duration};

use cofferdam_csi::{
    Address, AddressError,
    registration::{
        InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
        registration_server::{Registration as RegistrationService, RegistrationServer},
    },
    server::{
        Server, ServerMetrics, ServerOptions, ServerSocket, SocketError, SocketOptions, remove_stale_socket,
    },
};
use tokio::{sync::watch, time::sleep};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

/// Plugin type of CSI drivers.
const PLUGIN_TYPE: &str = "CSIPlugin";
/// Supported CSI versions. node-driver-registrar reports the same value.
const SUPPORTED_VERSIONS: [&str; 1] = ["1.0.0"];
/// Timeout of a call without a deadline. kubelet sends a deadline.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// Initial backoff before the registration socket is created again. It doubles each time, until kubelet
/// registers the driver.
const INITIAL_BACKOFF: Duration = Duration::from_secs(1);
/// Maximum backoff.
const MAX_BACKOFF: Duration = Duration::from_secs(60);

/// Interval of the check that the registration socket exists. Without the socket, kubelet does not know the
/// driver.
const SOCKET_CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// An unhealthy registration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegistrationError {
    /// The registration socket does not exist.
    #[error("the registration socket {} does not exist", path.display())]
    SocketMissing {
        /// The socket's path.
        path: PathBuf,
    },
    /// kubelet rejected the driver.
    #[error("kubelet rejected the driver: {reason}")]
    Rejected {
        /// kubelet's error.
        reason: String,
    },
}

/// The state of a registration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum RegistrationState {
    /// kubelet has sent no status since the registration socket was last created.
    #[default]
    Pending,
    /// kubelet has registered the driver.
    Registered,
    /// kubelet rejected the driver with this error. The registration is retried.
    Failed(String),
}

/// The registration of one driver.
#[derive(Debug)]
pub struct Registrar {
    driver: String,
    endpoint: String,
    socket: PathBuf,
    /// The socket of node-driver-registrar for the same driver.
    go_socket: PathBuf,
    state: watch::Sender<RegistrationState>,
}

#[derive(Clone, Debug)]
struct RegistrationHandler {
    driver: String,
    endpoint: String,
    state: watch::Sender<RegistrationState>,
}

impl Registrar {
    /// Creates the registrar of a driver. `endpoint` is the path of the driver's CSI socket on the host.
    /// `directory` is kubelet's plugin registration directory.
    pub fn new(driver: String, endpoint: String, directory: &std::path::Path) -> Self {
        // kubelet uses the percent-encoded socket path as `:authority`, which is not a valid host, and the
        // `h2` crate rejects such requests. The text before an "@" is parsed as user info, which may be
        // percent-encoded.
        let socket = directory.join(format!("{driver}@reg.sock"));
        let go_socket = directory.join(format!("{driver}-reg.sock"));
        let state = watch::Sender::new(RegistrationState::Pending);
        Self { driver, endpoint, socket, go_socket, state }
    }

    /// Subscribes to the registration state.
    pub fn state(&self) -> watch::Receiver<RegistrationState> {
        self.state.subscribe()
    }

    /// Checks that the socket exists and that kubelet has not rejected the driver.
    ///
    /// # Errors
    /// [`RegistrationError`]
    pub fn check_health(&self) -> Result<(), RegistrationError> {
        if !self.socket.exists() {
            return Err(RegistrationError::SocketMissing { path: self.socket.clone() });
        }
        match &*self.state.borrow() {
            RegistrationState::Pending | RegistrationState::Registered => Ok(()),
            RegistrationState::Failed(reason) => Err(RegistrationError::Rejected { reason: reason.clone() }),
        }
    }

    /// Serves the registration socket until `stop`, then removes it, which makes kubelet unregister the
    /// driver. If kubelet rejects the driver, the server ends or the socket is removed, creates the socket
    /// again after a backoff: kubelet retries only for a new socket. Before each time, removes the socket
    /// that a killed node-driver-registrar of the driver left behind.
    ///
    /// # Errors
    /// [`SocketError`] if the socket cannot be created.
    pub async fn serve(
        self: Arc<Self>,
        metrics: &ServerMetrics,
        stop: CancellationToken,
    ) -> Result<(), SocketError> {
        let mut backoff = INITIAL_BACKOFF;
        while !stop.is_cancelled() {
            self.remove_stale_go_socket().await;
            let address = self.address()?;
            let socket = ServerSocket::bind(&SocketOptions::new(address)).await?;
            self.state.send_replace(RegistrationState::Pending);
            let (attempt, mut state) = (stop.child_token(), self.state.subscribe());
            let handler = RegistrationHandler {
                driver: self.driver.clone(),
                endpoint: self.endpoint.clone(),
                state: self.state.clone(),
            };
            let options = ServerOptions { driver: self.driver.clone(), default_timeout: CALL_TIMEOUT };
            let server = Server::new(socket, options, metrics).with_service(RegistrationServer::new(handler));
            let mut server_task = tokio::spawn(server.serve(attempt.clone()));
            let (driver, socket) = (&self.driver, self.socket.display());
            tracing::info!(driver, %socket, "waiting for kubelet to register the driver");
            loop {
                tokio::select! {
                    _ = &mut server_task => break,
                    Ok(()) = state.changed() => match &*state.borrow_and_update() {
                        RegistrationState::Failed(_) => attempt.cancel(),
                        RegistrationState::Registered => backoff = INITIAL_BACKOFF,
                        RegistrationState::Pending => {}
                    },
                    () = sleep(SOCKET_CHECK_INTERVAL), if !attempt.is_cancelled() => {
                        if !self.socket.exists() {
                            tracing::warn!(driver, %socket, "the registration socket was removed; creating it");
                            attempt.cancel();
                        }
                    }
                }
            }
            tokio::select! {
                () = stop.cancelled() => {}
                () = sleep(backoff) => {}
            }
            backoff = (backoff * 2).min(MAX_BACKOFF);
        }
        Ok(())
    }

    /// Removes the socket of a node-driver-registrar that was killed. kubelet keeps a registration as long as
    /// its socket exists, and rejects a second one of the same driver with another socket. A socket with a
    /// listener remains: its registrar is running.
    async fn remove_stale_go_socket(&self) {
        if let Err(error) = remove_stale_socket(&self.go_socket).await {
            let driver = &self.driver;
            tracing::warn!(driver, %error, "cannot remove the registration socket of node-driver-registrar");
        }
    }

    fn address(&self) -> Result<Address, SocketError> {
        let path = self.socket.display().to_string();
        path.parse().map_err(|error: AddressError| SocketError::Io {
            path: path.clone(),
            step: "use the socket's path",
            source: std::io::Error::other(error),
        })
    }
}

#[tonic::async_trait]
impl RegistrationService for RegistrationHandler {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: PLUGIN_TYPE.to_owned(),
            name: self.driver.clone(),
            endpoint: self.endpoint.clone(),
            supported_versions: SUPPORTED_VERSIONS.map(str::to_owned).to_vec(),
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let RegistrationStatus { plugin_registered, error } = request.into_inner();
        if plugin_registered {
            tracing::info!(driver = self.driver, "kubelet registered the driver");
            self.state.send_replace(RegistrationState::Registered);
        } else {
            tracing::warn!(driver = self.driver, error, "kubelet rejected the driver");
            self.state.send_replace(RegistrationState::Failed(error));
        }
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}
