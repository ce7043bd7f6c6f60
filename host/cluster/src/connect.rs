//! Connections to the API.

use std::time::Duration;

use hyper_util::{
    client::legacy::{self, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use kube::{
    Client, Config,
    client::{ClientBuilder, ConfigExt as _},
};
use tower::{BoxError, ServiceBuilder};

/// How long connections stay open that nobody uses: each holds its buffers, and a burst needs as many as it has requests at once. No
/// bound on their number: with sixteen, a burst of 2,000 claims opened new ones all the time, for half as much CPU again.
const IDLE: Duration = Duration::from_secs(60);

/// A client as kube makes one (HTTP/1.1: ADR 0017), over connections whose small writes do not wait for each other: its own connections leave Nagle's
/// algorithm on, and a request behind the end of a handshake then waits 40 ms for the other side's delayed acknowledgement.
///
/// Through a proxy it is kube's own client.
///
/// # Errors
/// Where the configuration's certificates or credentials cannot be used.
pub fn client(config: Config) -> Result<Client, kube::Error> {
    if config.proxy_url.is_some() {
        return Client::try_from(config);
    }
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(config.connect_timeout);
    let connector = config.rustls_https_connector_with_connector(tcp)?;
    let connections = legacy::Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE)
        .build(connector);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(connections);
    Ok(ClientBuilder::new(service, config.default_namespace).build())
}
