//! Tells kubelet of the driver: a socket in its directory of plugins, for as long as the driver shall be
//! known.

use std::{path::PathBuf, sync::Arc, time::Duration};

use cofferdam_csi::{
    Address,
    registration::{
        InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
        registration_server::{Registration as Service, RegistrationServer},
    },
    server::{Server, ServerMetrics, ServerOptions, ServerSocket, SocketError, SocketOptions},
};
use tokio::{sync::watch, time::sleep};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

/// What kubelet calls drivers of storage.
const PLUGIN_TYPE: &str = "CSIPlugin";
/// The versions that kubelet is told: the API's major version, as every registrar says it.
const SUPPORTED_VERSIONS: [&str; 1] = ["1.0.0"];
/// How long one answer may take; kubelet waits a second.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// First pause after kubelet refused; it doubles with each.
const INITIAL_BACKOFF: Duration = Duration::from_secs(1);
/// Longest pause.
const MAX_BACKOFF: Duration = Duration::from_secs(60);

/// How far it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum RegistrationState {
    /// Kubelet has not answered yet.
    #[default]
    Pending,
    /// Kubelet uses the driver.
    Registered,
    /// Kubelet refused, for this reason; it is tried again.
    Failed(String),
}

/// The registration of one driver.
#[derive(Debug)]
pub struct Registrar {
    driver: String,
    endpoint: String,
    socket: PathBuf,
    state: watch::Sender<RegistrationState>,
}

#[derive(Clone, Debug)]
struct RegistrationHandler {
    driver: String,
    endpoint: String,
    state: watch::Sender<RegistrationState>,
}

impl Registrar {
    /// A driver that kubelet reaches at `endpoint`, a path on the host; `directory` is kubelet's directory of
    /// plugins.
    pub fn new(driver: String, endpoint: String, directory: &std::path::Path) -> Self {
        // Kubelet names the server by the socket's whole path, percent-encoded, which is no host; the HTTP/2
        // of ours refuses such a request. Before an "@" it is a user's name, and may be anything.
        let socket = directory.join(format!("{driver}@reg.sock"));
        Self { driver, endpoint, socket, state: watch::Sender::new(RegistrationState::Pending) }
    }

    /// How far it is, now and later.
    pub fn state(&self) -> watch::Receiver<RegistrationState> {
        self.state.subscribe()
    }

    /// Whether it does its work: the socket is there, and kubelet did not refuse.
    ///
    /// # Errors
    /// What is wrong, for people.
    pub fn check_health(&self) -> Result<(), String> {
        if !self.socket.exists() {
            return Err(format!("the socket {} is not there", self.socket.display()));
        }
        match &*self.state.borrow() {
            RegistrationState::Pending | RegistrationState::Registered => Ok(()),
            RegistrationState::Failed(reason) => Err(format!("kubelet refused the driver: {reason}")),
        }
    }

    /// Serves until `stop`; then the socket goes, and kubelet forgets the driver. Where kubelet refuses, the
    /// socket goes too and comes back after a pause: that is what makes kubelet ask again.
    ///
    /// # Errors
    /// When the socket cannot be listened on.
    pub async fn serve(
        self: Arc<Self>,
        metrics: &ServerMetrics,
        stop: CancellationToken,
    ) -> Result<(), SocketError> {
        let mut backoff = INITIAL_BACKOFF;
        while !stop.is_cancelled() {
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
            tracing::info!(driver = self.driver, socket = %self.socket.display(), "kubelet may register the driver");
            loop {
                tokio::select! {
                    _ = &mut server_task => break,
                    Ok(()) = state.changed() => match &*state.borrow_and_update() {
                        RegistrationState::Failed(_) => attempt.cancel(),
                        RegistrationState::Registered => backoff = INITIAL_BACKOFF,
                        RegistrationState::Pending => {}
                    },
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

    fn address(&self) -> Result<Address, SocketError> {
        let path = self.socket.display().to_string();
        path.parse().map_err(|error: String| SocketError::Io {
            path: path.clone(),
            step: "use the socket's path",
            source: std::io::Error::other(error),
        })
    }
}

#[tonic::async_trait]
impl Service for RegistrationHandler {
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
            tracing::info!(driver = self.driver, "kubelet has registered the driver");
            self.state.send_replace(RegistrationState::Registered);
        } else {
            tracing::warn!(driver = self.driver, error, "kubelet refused the driver");
            self.state.send_replace(RegistrationState::Failed(error));
        }
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}
