//! The role `csi-server`: backends as CSI drivers, for whoever speaks CSI.

use cofferdam_csi::server::{BackendServer, Options, Server, ServerMetrics, Socket, SocketOptions};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::{
    config::{Configuration, ServerRole},
    drivers::{Driver, Kind},
    failure::Failure,
};

/// Listens on the socket of every driver that has one, when the role runs.
///
/// # Errors
/// [`Failure::Socket`]
pub(crate) async fn listen(
    configuration: &Configuration,
    drivers: &[Driver],
    metrics: &ServerMetrics,
) -> Result<Vec<Server>, Failure> {
    let mut servers = Vec::new();
    if !configuration.role.servers.contains(&ServerRole::CsiServer) {
        return Ok(servers);
    }
    for driver in drivers {
        let section = configuration.backend.get(&driver.name);
        let Some(address) = section.and_then(|section| section.socket.as_ref()) else { continue };
        let options = SocketOptions {
            address: address.0.clone(),
            mode: configuration.socket_mode.0,
            group: configuration.socket_group.as_ref().map(|group| group.0.clone()),
        };
        let failed = |source| Failure::Socket { name: driver.name.clone(), source };
        let socket = Socket::bind(&options).await.map_err(failed)?;
        let name = driver.backend().description().name.to_string();
        tracing::info!(driver = name, socket = %socket.path().display(), "serving CSI");
        let options = Options { driver: name, patience: configuration.timeout.get() };
        let backend = match &driver.kind {
            Kind::Component(backend) => BackendServer::new(std::sync::Arc::clone(backend) as _),
            Kind::Csi(backend) => BackendServer::of_driver(std::sync::Arc::clone(backend)),
        };
        servers.push(backend.on(Server::new(socket, options, metrics)));
    }
    Ok(servers)
}

/// Serves until `stop`, and then until the calls that run have ended.
pub(crate) async fn serve(servers: Vec<Server>, stop: CancellationToken) {
    let mut running: JoinSet<()> = servers.into_iter().map(|server| server.serve(stop.clone())).collect();
    while let Some(ended) = running.join_next().await {
        if let Err(panicked) = ended {
            tracing::error!(%panicked, "a CSI socket's task ended");
        }
    }
}
