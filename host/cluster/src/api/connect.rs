//! Connections to the API server.

use std::{sync::Arc, time::Duration};

use super::RequestBody;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper_util::{
    client::legacy::{self, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use kube::{
    Client, Config,
    client::{AuthError, Body, ClientBuilder, ConfigExt as _},
};
use parking_lot::Mutex;
use tower::{BoxError, ServiceBuilder, ServiceExt as _, service_fn, util::BoxCloneService};

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

/// Sends requests with the credentials of one configuration.
type Connections = BoxCloneService<Request<Body>, Response<Incoming>, BoxError>;

/// The connections of a [`replaceable_client`], and of its clones.
#[derive(Clone)]
pub struct ReplaceableConnections(Arc<Mutex<Connections>>);

impl ReplaceableConnections {
    /// Replaces URL, certificates and credentials. Requests that have begun, such as watches, go on with the
    /// former ones.
    ///
    /// # Errors
    /// As [`client`]. The client then continues with what it has.
    pub fn replace(&self, config: Config) -> Result<(), kube::Error> {
        *self.0.lock() = connections(config)?;
        Ok(())
    }
}

/// A kube client (HTTP/1.1: ADR 0017) over connections with TCP_NODELAY. kube's own connections use Nagle's
/// algorithm, so that a request after a handshake waits 40 ms for a delayed acknowledgement.
///
/// # Errors
/// [`kube::Error`] if the certificates, credentials or impersonation headers of the configuration are
/// invalid, or if it has a proxy, which this build does not support.
pub fn client(config: Config) -> Result<Client, kube::Error> {
    Ok(replaceable_client(config)?.0)
}

/// As [`client`], with connections that can be replaced.
///
/// # Errors
/// As [`client`].
pub fn replaceable_client(config: Config) -> Result<(Client, ReplaceableConnections), kube::Error> {
    let namespace = config.default_namespace.clone();
    let current = ReplaceableConnections(Arc::new(Mutex::new(connections(config)?)));
    let service = {
        let current = current.clone();
        service_fn(move |request| {
            let connections = current.0.lock().clone();
            connections.oneshot(request)
        })
    };
    Ok((ClientBuilder::new(service, namespace).build(), current))
}

fn connections(config: Config) -> Result<Connections, kube::Error> {
    if let Some(proxy_url) = &config.proxy_url {
        return Err(kube::Error::ProxyProtocolUnsupported { proxy_url: Box::new(proxy_url.clone()) });
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
    let pool = legacy::Client::builder(TokioExecutor::new())
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
        .map_request(RequestBody::of_request)
        .service(pool);
    Ok(BoxCloneService::new(service))
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
