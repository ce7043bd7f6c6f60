//! Connections to the API.

use std::time::Duration;

use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{self, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use kube::{
    Client, Config,
    client::{ClientBuilder, ConfigExt as _},
};
use rustls::pki_types::ServerName;
use tower::{BoxError, ServiceBuilder};

/// How long connections stay open that nobody uses. Of HTTP/2 there is one, and the watches use it.
const IDLE: Duration = Duration::from_secs(60);
/// A connection on which nothing came for so long is asked whether it still leads anywhere, as client-go does it.
const SILENCE: Duration = Duration::from_secs(30);
/// How long the other side may take to say so.
const SIGN_OF_LIFE: Duration = Duration::from_secs(15);
/// Bytes that the API may send of one answer before we have read it: those of a page of large objects.
const OF_ONE_ANSWER: u32 = 1 << 20;
/// And of all answers together: none waits for another's reader.
const OF_ALL_ANSWERS: u32 = 16 << 20;

/// A client as kube makes one, with two differences (ADR 0017). All requests share a connection (HTTP/2, where the server has it):
/// kube opens one for each request of a burst and keeps the buffers of them all. And small writes do not wait for each other: kube
/// leaves Nagle's algorithm on, and a request behind the end of a handshake then waits 40 ms for the other side's delayed
/// acknowledgement.
///
/// Through a proxy it is kube's own client.
///
/// # Errors
/// Where the configuration's certificates or credentials cannot be used.
pub fn client(config: Config) -> Result<Client, kube::Error> {
    if config.proxy_url.is_some() {
        return Client::try_from(config);
    }
    let connections = legacy::Client::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE)
        .http2_keep_alive_interval(SILENCE)
        .http2_keep_alive_timeout(SIGN_OF_LIFE)
        .http2_initial_stream_window_size(OF_ONE_ANSWER)
        .http2_initial_connection_window_size(OF_ALL_ANSWERS)
        .build(connector(&config)?);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(connections);
    Ok(ClientBuilder::new(service, config.default_namespace).build())
}

fn connector(config: &Config) -> Result<HttpsConnector<HttpConnector>, kube::Error> {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(config.connect_timeout);
    let mut tls =
        HttpsConnectorBuilder::new().with_tls_config(config.rustls_client_config()?).https_or_http();
    if let Some(name) = &config.tls_server_name {
        let name = ServerName::try_from(name.clone()).map_err(|error| kube::Error::Service(error.into()))?;
        tls = tls.with_server_name_resolver(FixedServerNameResolver::new(name));
    }
    Ok(tls.enable_http1().enable_http2().wrap_connector(tcp))
}
