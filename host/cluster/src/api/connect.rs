//! Connections to the API server.

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

/// Idle timeout of pooled connections, which keep their buffers. The number of connections is unbounded: with
/// a limit of sixteen, a burst of 2,000 claims kept opening connections and needed 50 % more CPU.
const POOL_IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// Idle time before the first TCP keepalive probe. Without probes, a watch does not detect that the API
/// server's machine failed.
const KEEPALIVE_TIME: Duration = Duration::from_secs(15);
/// Time between two TCP keepalive probes.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// Number of unanswered TCP keepalive probes, including the first, after which the connection fails. Linux
/// ignores it and uses `TCP_USER_TIMEOUT`.
const KEEPALIVE_RETRIES: u32 = 3;
/// Time without an acknowledgement of sent data, after which the connection fails. On an idle connection, the
/// time since the last received data, if a keepalive probe is unanswered.
#[cfg(target_os = "linux")]
const TCP_USER_TIMEOUT: Duration = Duration::from_secs(45);

/// A kube client (HTTP/1.1: ADR 0017) over connections with TCP_NODELAY. kube's own connections use Nagle's
/// algorithm, so that a request after a handshake waits 40 ms for a delayed acknowledgement.
///
/// # Errors
/// [`kube::Error`] if the certificates, credentials or impersonation headers of the configuration are
/// invalid, or if it has a proxy, which this build does not support.
pub fn client(config: Config) -> Result<Client, kube::Error> {
    if config.proxy_url.is_some() {
        // Proxies are not supported by this build; kube returns the error.
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

/// The message for a credential plugin that failed or whose output is not an ExecCredential. kube's message
/// includes the plugin's output or environment, which are secret; this one does not. `None` for other errors,
/// such as a plugin that cannot be started.
pub fn exec_plugin_error(error: &AuthError) -> Option<String> {
    if let AuthError::AuthExecRun { out, .. } = error {
        return Some(format!("the credential plugin failed: {}", out.status));
    }
    if let AuthError::AuthExecParse(error) = error {
        let position = error
            .location()
            .map_or_else(String::new, |at| format!(" (line {}, column {})", at.line(), at.column()));
        return Some(format!("the output of the credential plugin is not an ExecCredential{position}"));
    }
    None
}
