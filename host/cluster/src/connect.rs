//! Connections to the API.

use std::time::Duration;

use hyper_util::{
    client::legacy::{self, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use kube::{
    Client, Config,
    client::{AuthError, ClientBuilder, ConfigExt as _},
};
use tower::{BoxError, ServiceBuilder};

/// How long connections stay open that nobody uses: each holds its buffers, and a burst needs as many as it
/// has requests at once. No bound on their number: with sixteen, a burst of 2,000 claims opened new ones all
/// the time, for half as much CPU again.
const POOL_IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// A connection on which nothing comes for this time is asked whether the other side is there: a machine that
/// is gone says nothing, and a watch would wait for its end.
const KEEPALIVE_TIME: Duration = Duration::from_secs(15);
/// Pause until it is asked again, and how often.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_RETRIES: u32 = 3;
/// How long what was sent may stay unconfirmed: then the connection counts as dead, whatever was asked on it.
#[cfg(target_os = "linux")]
const TCP_USER_TIMEOUT: Duration = Duration::from_secs(45);

/// A client as kube makes one (HTTP/1.1: ADR 0017), over connections whose small writes do not wait for each
/// other: its own connections leave Nagle's algorithm on, and a request behind the end of a handshake then
/// waits 40 ms for the other side's delayed acknowledgement.
///
/// # Errors
/// Where the configuration's certificates or credentials cannot be used.
pub fn client(config: Config) -> Result<Client, kube::Error> {
    if config.proxy_url.is_some() {
        // A named error; proxies are no feature of this build.
        return Client::try_from(config);
    }
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(config.connect_timeout);
    tcp.set_keepalive(Some(KEEPALIVE_TIME));
    tcp.set_keepalive_interval(Some(KEEPALIVE_INTERVAL));
    tcp.set_keepalive_retries(Some(KEEPALIVE_RETRIES));
    #[cfg(target_os = "linux")]
    tcp.set_tcp_user_timeout(Some(TCP_USER_TIMEOUT));
    let connector = config.rustls_https_connector_with_connector(tcp)?;
    let connections = legacy::Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(POOL_IDLE_TIMEOUT)
        .build(connector);
    let service = ServiceBuilder::new()
        .map_err(|error: BoxError| match error.downcast_ref::<AuthError>().and_then(exec_plugin_error) {
            Some(problem) => problem.into(),
            None => error,
        })
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(connections);
    Ok(ClientBuilder::new(service, config.default_namespace).build())
}

/// What is wrong with a credential plugin, without what it has written and the environment that it gets,
/// which are secrets: kube's own text has both. Absent where it is not about a plugin.
pub fn exec_plugin_error(error: &AuthError) -> Option<String> {
    if let AuthError::AuthExecRun { out, .. } = error {
        return Some(format!("the credential plugin failed: {}", out.status));
    }
    if let AuthError::AuthExecParse(error) = error {
        let position = error
            .location()
            .map_or_else(String::new, |at| format!(" (line {}, column {})", at.line(), at.column()));
        return Some(format!(
            "what the credential plugin wrote is no ExecCredential{position}: it is not shown"
        ));
    }
    None
}
