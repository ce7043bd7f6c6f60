//! Connections to the API server.

use std::{sync::Arc, time::Duration};

use super::RequestBody;
use futures::future::join_all;
use http::{Request, Response};
use http_body_util::BodyExt as _;
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
use tokio::time::MissedTickBehavior;
use tower::{BoxError, ServiceBuilder, ServiceExt as _, service_fn, util::BoxCloneService};

/// Idle timeout of pooled connections, which keep their buffers. The number of connections is unbounded: with
/// a limit of sixteen, a burst of 2,000 claims kept opening connections and needed 50 % more CPU.
const POOL_IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// Number of connections that [`keep_open`] keeps open: as many as the requests that the chain of one claim
/// sends at once, with its event.
const SPARE_CONNECTIONS: usize = 4;
/// Interval of the requests that keep connections open. It is shorter than the idle timeouts: a minute
/// here, and 90 s in kube-apiserver.
const SPARE_INTERVAL: Duration = Duration::from_secs(25);
/// Timeout of these requests.
const SPARE_TIMEOUT: Duration = Duration::from_secs(10);
/// Path of these requests: every account may read it, and kube-apiserver answers it without etcd.
const SPARE_PATH: &str = "/version";

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

/// Keeps a few connections of an idle client open, until the returned future is dropped. A request on a new
/// connection takes three round trips, and requests that are sent at once need several connections.
pub async fn keep_open(client: Client) {
    let mut ticks = tokio::time::interval(SPARE_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        use_spare_connections(&client).await;
    }
}

/// Sends a request on each of the spare connections, and opens those that are missing. Errors are ignored:
/// the requests of the controllers report them.
async fn use_spare_connections(client: &Client) {
    let requests = (0..SPARE_CONNECTIONS).map(|_| async {
        let Ok(request) = Request::get(SPARE_PATH).body(Body::empty()) else { return };
        // The body has to be read before the connection can be reused.
        let exchange = async {
            let response = client.send(request).await?;
            response.into_body().collect().await.map_err(BoxError::from)
        };
        drop(tokio::time::timeout(SPARE_TIMEOUT, exchange).await);
    });
    join_all(requests).await;
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::{TcpListener, TcpStream},
        sync::Barrier,
    };

    use super::*;

    /// Answers requests when as many as the spare connections are in progress.
    async fn answer(mut stream: TcpStream, all: Arc<Barrier>) -> std::io::Result<()> {
        let mut received = Vec::new();
        loop {
            if stream.read_buf(&mut received).await? == 0 {
                return Ok(());
            }
            if received.ends_with(b"\r\n\r\n") {
                assert!(received.starts_with(b"GET /version "));
                received.clear();
                all.wait().await;
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").await?;
            }
        }
    }

    #[tokio::test]
    async fn spare_connections_are_opened_once_and_used_again() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let accepted = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&accepted);
        let server = tokio::spawn(async move {
            let all = Arc::new(Barrier::new(SPARE_CONNECTIONS));
            while let Ok((stream, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(answer(stream, Arc::clone(&all)));
            }
        });
        let client = client(Config::new(url.parse().unwrap())).unwrap();
        for _ in 0..3 {
            use_spare_connections(&client).await;
            assert_eq!(accepted.load(Ordering::SeqCst), SPARE_CONNECTIONS);
            // The client returns connections to its pool in a task of its own.
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
        }
        server.abort();
    }
}
