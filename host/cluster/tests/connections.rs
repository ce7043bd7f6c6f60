//! Connections to the API server: reuse, and replacement after a disconnect.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use cofferdam_apiserver::{ApiServer, Options, ServeOptions};
use cofferdam_cluster::{ApiError, Cache, Writer, connect, metrics::Metrics};
use cofferdam_domain::{
    StorageClass,
    term::{Permit, PermitSource, Term, TermEnded},
};
use futures::future::join_all;
use http::{Request, StatusCode};
use kube::{Client, Config, client::Body, config::Kubeconfig};
use serde_json::json;
use tokio::{
    io,
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
};

/// A TCP proxy that counts connections, and closes all of them when `disconnect` changes.
struct CountingProxy {
    address: SocketAddr,
    connections: Arc<AtomicUsize>,
    disconnect: watch::Sender<()>,
    _forwarders: JoinSet<()>,
}

impl CountingProxy {
    async fn start(api: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Arc::new(AtomicUsize::new(0));
        let (cut, mut disconnected) = watch::channel(());
        let mut forwarders = JoinSet::new();
        let count = Arc::clone(&connections);
        forwarders.spawn(async move {
            let mut open = JoinSet::new();
            loop {
                tokio::select! {
                    Ok((mut from, _)) = listener.accept() => {
                        count.fetch_add(1, Ordering::Relaxed);
                        open.spawn(async move {
                            let mut to = TcpStream::connect(api).await.unwrap();
                            io::copy_bidirectional(&mut from, &mut to).await.ok();
                        });
                    }
                    Ok(()) = disconnected.changed() => open.shutdown().await,
                }
            }
        });
        Self { address, connections, disconnect: cut, _forwarders: forwarders }
    }

    fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }
}

async fn request_status(client: &Client) -> Option<StatusCode> {
    let request = Request::get("/api/v1/persistentvolumes").body(Body::empty()).unwrap();
    let answer = client.send(request).await.ok()?;
    Some(answer.status())
}

#[tokio::test]
async fn connections_are_reused_and_replaced_after_a_disconnect() {
    let api = ApiServer::new(Options::default());
    let server = api.serve(ServeOptions::default()).await.unwrap();
    let proxy = CountingProxy::start(server.local_addr()).await;
    let mut config = Config::from_custom_kubeconfig(
        Kubeconfig::from_yaml(&server.kubeconfig()).unwrap(),
        &Default::default(),
    )
    .await
    .unwrap();
    config.cluster_url = format!("https://{}", proxy.address).parse().unwrap();
    let client = connect::client(config).unwrap();

    for _ in 0..20 {
        assert_eq!(request_status(&client).await, Some(StatusCode::OK));
    }
    assert_eq!(proxy.connections(), 1);
    let answers = join_all((0..20).map(|_| request_status(&client))).await;
    assert!(answers.iter().all(|answer| *answer == Some(StatusCode::OK)), "{answers:?}");
    let burst = proxy.connections();
    assert!(burst <= 20, "{burst} connections for 20 requests at once");

    proxy.disconnect.send(()).unwrap();
    // A request on a closing connection fails, and the caller retries it.
    let mut answer = request_status(&client).await;
    for _ in 0..burst {
        answer = if answer.is_none() { request_status(&client).await } else { break };
    }
    assert_eq!(answer, Some(StatusCode::OK));
    assert!(proxy.connections() > burst, "broken connections are not reused");
    server.shutdown().await;
}

/// The term ends after the first permit.
struct OnePermit(AtomicUsize);

impl PermitSource for OnePermit {
    fn permit(&self) -> Result<Permit, TermEnded> {
        match self.0.fetch_add(1, Ordering::SeqCst) {
            0 => Term::permanent().permit(),
            _ => Err(TermEnded),
        }
    }
}

/// A request waits for credentials and for a connection after its permit.
#[tokio::test]
async fn a_write_is_not_sent_after_the_end_of_the_term() {
    let api = ApiServer::new(Options::default());
    let server = api.serve(ServeOptions::default()).await.unwrap();
    let kubeconfig = Kubeconfig::from_yaml(&server.kubeconfig()).unwrap();
    let config = Config::from_custom_kubeconfig(kubeconfig, &Default::default()).await.unwrap();
    let client = connect::client(config).unwrap();
    let writer = Writer::new(client, Arc::new(Cache::default()), Metrics::default());
    let class = |name: &str| json!({"metadata": {"name": name}, "provisioner": "a.example"});
    let late = writer.clone().with_permits(OnePermit(AtomicUsize::new(0)));
    let error = late.create::<StorageClass>(None, &class("late")).await.unwrap_err();
    assert!(matches!(error, ApiError::Unavailable { .. }), "{error}");
    writer.create::<StorageClass>(None, &class("in-time")).await.unwrap();
    let exists = async |name: &str| writer.get::<StorageClass>(&name.into()).await.unwrap().is_some();
    assert!(exists("in-time").await && !exists("late").await);
    server.shutdown().await;
}
