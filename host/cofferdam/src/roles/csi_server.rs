//! The role `csi-server`: serves backends as CSI drivers for any CSI client.

use std::collections::HashMap;

use cofferdam_csi::server::{
    BackendServer, Server, ServerMetrics, ServerOptions, ServerSocket, SocketOptions,
};
use tokio::task::{Id, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::{
    config::{Configuration, ServerRole},
    drivers::{DriverKind, LoadedDriver},
    error::CommandError,
};

/// Binds the sockets of all drivers that have one in the configuration; returns the servers with the drivers'
/// names in the configuration. Binds and returns none if the process does not have the role `csi-server`.
///
/// # Errors
/// [`CommandError::Socket`]
pub(crate) async fn listen(
    configuration: &Configuration,
    drivers: &[LoadedDriver],
    metrics: &ServerMetrics,
) -> Result<Vec<(String, Server)>, CommandError> {
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
        let failed = |source| CommandError::Socket { name: driver.name.clone(), source };
        let socket = ServerSocket::bind(&options).await.map_err(failed)?;
        let name = driver.backend().description().name.to_string();
        tracing::info!(driver = name, socket = %socket.path().display(), "serving CSI");
        let options = ServerOptions { driver: name, default_timeout: configuration.timeout.get() };
        let backend = match &driver.kind {
            DriverKind::Component(backend) => BackendServer::new(std::sync::Arc::clone(backend) as _),
            DriverKind::Csi(backend) => BackendServer::from_csi_driver(std::sync::Arc::clone(backend)),
        };
        servers.push((driver.name.clone(), backend.register_on(Server::new(socket, options, metrics))));
    }
    Ok(servers)
}

/// Serves until `stop`, then waits for in-flight calls.
///
/// # Errors
/// [`CommandError::SocketServerStopped`] if the task of a socket ends earlier: an unreachable driver must not
/// look healthy.
pub(crate) async fn serve(
    servers: impl IntoIterator<Item = (String, impl Future<Output = ()> + Send + 'static)>,
    stop: CancellationToken,
) -> Result<(), CommandError> {
    let mut running = JoinSet::new();
    let mut names = HashMap::new();
    for (name, server) in servers {
        names.insert(running.spawn(server).id(), name);
    }
    let mut stopped_error = |id: Id| CommandError::SocketServerStopped(names.remove(&id).unwrap_or_default());
    tokio::select! {
        biased;
        () = stop.cancelled() => {}
        Some(exit) = running.join_next_with_id() => {
            if !stop.is_cancelled() {
                return Err(match exit {
                    Ok((id, ())) => stopped_error(id),
                    Err(panicked) => {
                        tracing::error!(%panicked, "the task of a CSI socket panicked");
                        stopped_error(panicked.id())
                    }
                });
            }
        }
    }
    stop.cancelled().await;
    while let Some(exit) = running.join_next().await {
        if let Err(panicked) = exit {
            tracing::error!(%panicked, "the task of a CSI socket panicked");
        }
    }
    Ok(())
}
