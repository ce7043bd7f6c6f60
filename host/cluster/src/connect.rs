//! Connections to the API.

use hyper_util::{
    client::legacy::{self, connect::HttpConnector},
    rt::TokioExecutor,
};
use kube::{
    Client, Config,
    client::{ClientBuilder, ConfigExt as _},
};
use tower::{BoxError, ServiceBuilder};

/// A client as kube makes one, over connections whose small writes do not wait for each other: its own connections leave Nagle's
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
    let connections = legacy::Client::builder(TokioExecutor::new()).build(connector);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(connections);
    Ok(ClientBuilder::new(service, config.default_namespace).build())
}
