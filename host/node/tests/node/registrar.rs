//! Tests of the registrar, in which the test acts as kubelet, and of the client of the liveness probe.

use std::{path::Path, sync::Arc, time::Duration};

use cofferdam_csi::{
    one_shot::{Channel, OneShotConnection},
    registration::{InfoRequest, RegistrationStatus, registration_client::RegistrationClient},
    server::ServerMetrics,
};
use cofferdam_node::{DriverClient, ProbeError, Registrar, RegistrationState};
use tokio::{net::UnixStream, time::timeout};
use tokio_util::sync::CancellationToken;

const TEST_TIMEOUT: Duration = Duration::from_secs(30);

async fn connect_as_kubelet(socket: &Path) -> (OneShotConnection, RegistrationClient<Channel>) {
    let connection = OneShotConnection::handshake(UnixStream::connect(socket).await.unwrap()).await.unwrap();
    let origin = format!("http://{}", authority(socket)).parse().unwrap();
    let client = connection.client(|channel, _| RegistrationClient::with_origin(channel, origin));
    (connection, client)
}

/// The `:authority` that kubelet's gRPC client derives from the socket path.
fn authority(socket: &Path) -> String {
    let is_unreserved = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.~!$&'()*+,;=:[]@".contains(byte);
    let path = socket.to_str().unwrap().bytes();
    path.map(|byte| if is_unreserved(&byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

#[tokio::test]
async fn kubelet_registers_rejects_and_unregisters_the_driver() {
    let directory = tempfile::TempDir::new().unwrap();
    let socket = directory.path().join("pool.example.com@reg.sock");
    let endpoint = "/var/lib/kubelet/plugins/pool/csi.sock".to_owned();
    let registrar =
        Arc::new(Registrar::new("pool.example.com".to_owned(), endpoint.clone(), directory.path()));
    assert!(registrar.check_health().unwrap_err().to_string().contains("does not exist"));
    let (stop, mut state) = (CancellationToken::new(), registrar.state());
    let server_task = tokio::spawn({
        let (registrar, stop) = (Arc::clone(&registrar), stop.clone());
        async move { registrar.serve(&ServerMetrics::default(), stop).await }
    });
    let is_pending = |state: &RegistrationState| *state == RegistrationState::Pending;
    timeout(TEST_TIMEOUT, state.changed()).await.unwrap().unwrap();
    assert!(is_pending(&state.borrow_and_update()));

    let (connection, mut client) = connect_as_kubelet(&socket).await;
    let info = client.get_info(InfoRequest {}).await.unwrap().into_inner();
    assert_eq!((info.r#type.as_str(), info.name.as_str()), ("CSIPlugin", "pool.example.com"));
    assert_eq!((info.endpoint, info.supported_versions), (endpoint, vec!["1.0.0".to_owned()]));
    let registration_status =
        |plugin_registered, error: &str| RegistrationStatus { plugin_registered, error: error.to_owned() };
    client.notify_registration_status(registration_status(true, "")).await.unwrap();
    assert_eq!(*state.borrow_and_update(), RegistrationState::Registered);
    assert_eq!(registrar.check_health(), Ok(()));

    // kubelet retries only when the socket is created again.
    client.notify_registration_status(registration_status(false, "a label clashes")).await.unwrap();
    drop((connection, client));
    timeout(TEST_TIMEOUT, state.wait_for(is_pending)).await.unwrap().unwrap();
    connect_as_kubelet(&socket).await.1.get_info(InfoRequest {}).await.unwrap();

    stop.cancel();
    timeout(TEST_TIMEOUT, server_task).await.unwrap().unwrap().unwrap();
    assert!(!socket.exists(), "without the socket, kubelet unregisters the driver");
}

#[tokio::test]
async fn a_removed_registration_socket_is_created_again() {
    let directory = tempfile::TempDir::new().unwrap();
    let socket = directory.path().join("pool.example.com@reg.sock");
    let registrar =
        Arc::new(Registrar::new("pool.example.com".to_owned(), "/csi.sock".to_owned(), directory.path()));
    let (stop, mut state) = (CancellationToken::new(), registrar.state());
    let server_task = tokio::spawn({
        let (registrar, stop) = (Arc::clone(&registrar), stop.clone());
        async move { registrar.serve(&ServerMetrics::default(), stop).await }
    });
    timeout(TEST_TIMEOUT, state.changed()).await.unwrap().unwrap();
    std::fs::remove_file(&socket).unwrap();
    assert!(registrar.check_health().is_err());

    tokio::time::pause();
    timeout(TEST_TIMEOUT, state.changed()).await.unwrap().unwrap();
    tokio::time::resume();
    assert_eq!(registrar.check_health(), Ok(()));
    connect_as_kubelet(&socket).await.1.get_info(InfoRequest {}).await.unwrap();
    stop.cancel();
    timeout(TEST_TIMEOUT, server_task).await.unwrap().unwrap().unwrap();
}

#[tokio::test]
async fn probe_fails_without_a_listener_or_a_response() {
    let directory = tempfile::TempDir::new().unwrap();
    let path = directory.path().join("csi.sock");
    let driver = DriverClient::new(path.to_str().unwrap().parse().unwrap(), TEST_TIMEOUT);
    assert!(matches!(driver.probe().await, Err(ProbeError::Connect { .. })));
    let _listener = tokio::net::UnixListener::bind(&path).unwrap();
    let with_short_timeout =
        DriverClient::new(path.to_str().unwrap().parse().unwrap(), Duration::from_millis(1));
    assert!(matches!(with_short_timeout.probe().await, Err(ProbeError::Timeout { .. })));
}

/// kubelet keeps the registration of a socket that exists, and rejects the same driver on another socket.
#[tokio::test]
async fn a_stale_socket_of_node_driver_registrar_is_removed_at_start() {
    let directory = tempfile::TempDir::new().unwrap();
    let at = |name: &str| directory.path().join(name);
    let make_stale_socket = |name: &str| drop(std::os::unix::net::UnixListener::bind(at(name)).unwrap());
    make_stale_socket("killed.example.com-reg.sock");
    let _listener = std::os::unix::net::UnixListener::bind(at("running.example.com-reg.sock")).unwrap();
    std::fs::write(at("file.example.com-reg.sock"), "content").unwrap();
    make_stale_socket("target.sock");
    std::os::unix::fs::symlink(at("target.sock"), at("link.example.com-reg.sock")).unwrap();
    make_stale_socket("other.killed.example.com-reg.sock");
    for (driver, is_removed) in [
        ("killed.example.com", true),
        ("running.example.com", false),
        ("file.example.com", false),
        ("link.example.com", false),
    ] {
        let registrar = Arc::new(Registrar::new(driver.to_owned(), "/x".to_owned(), directory.path()));
        let (stop, mut state) = (CancellationToken::new(), registrar.state());
        let server_task = tokio::spawn({
            let (registrar, stop) = (Arc::clone(&registrar), stop.clone());
            async move { registrar.serve(&ServerMetrics::default(), stop).await }
        });
        // The registrar sets the state after it has bound its own socket.
        timeout(TEST_TIMEOUT, state.changed()).await.unwrap().unwrap();
        assert!(at(&format!("{driver}@reg.sock")).exists(), "{driver}");
        let remains = at(&format!("{driver}-reg.sock")).symlink_metadata().is_ok();
        assert_eq!(remains, !is_removed, "{driver}");
        stop.cancel();
        timeout(TEST_TIMEOUT, server_task).await.unwrap().unwrap().unwrap();
    }
    assert!(at("target.sock").exists() && at("other.killed.example.com-reg.sock").exists());
    assert_eq!(std::fs::read_to_string(at("file.example.com-reg.sock")).unwrap(), "content");
}

/// `/proc` takes no sockets, even from root; neither does a file or a missing directory.
#[tokio::test]
async fn unusable_plugin_directory_is_named_in_the_error() {
    let scratch = tempfile::TempDir::new().unwrap();
    let file = scratch.path().join("file");
    std::fs::write(&file, "").unwrap();
    for directory in [Path::new("/proc/self"), &file, &scratch.path().join("missing")] {
        let registrar = Arc::new(Registrar::new("pool.example.com".to_owned(), "/x".to_owned(), directory));
        let error = Arc::clone(&registrar).serve(&ServerMetrics::default(), CancellationToken::new()).await;
        let error = error.unwrap_err().to_string();
        assert!(error.contains(directory.to_str().unwrap()), "{error}");
        assert!(registrar.check_health().is_err());
    }
}
