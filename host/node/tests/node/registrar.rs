//! The registrar, with the test as kubelet.

use std::{path::Path, sync::Arc, time::Duration};

use cofferdam_csi::{
    once::{Channel, Once},
    registration::{InfoRequest, RegistrationStatus, registration_client::RegistrationClient},
    server::ServerMetrics,
};
use cofferdam_node::{Driver, ProbeError, Registrar, Registration};
use tokio::{net::UnixStream, time::timeout};
use tokio_util::sync::CancellationToken;

const LONG: Duration = Duration::from_secs(30);

async fn kubelet(socket: &Path) -> (Once, RegistrationClient<Channel>) {
    let once = Once::over(UnixStream::connect(socket).await.unwrap()).await.unwrap();
    let origin = format!("http://{}", authority(socket)).parse().unwrap();
    let client = once.client(|channel, _| RegistrationClient::with_origin(channel, origin));
    (once, client)
}

/// What kubelet calls the server: the socket's path, as gRPC for Go makes an authority of it.
fn authority(socket: &Path) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.~!$&'()*+,;=:[]@".contains(byte);
    let path = socket.to_str().unwrap().bytes();
    path.map(|byte| if plain(&byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

#[tokio::test]
async fn kubelet_registers_refuses_and_forgets() {
    let directory = tempfile::TempDir::new().unwrap();
    let socket = directory.path().join("pool.example.com@reg.sock");
    let endpoint = "/var/lib/kubelet/plugins/pool/csi.sock".to_owned();
    let registrar =
        Arc::new(Registrar::new("pool.example.com".to_owned(), endpoint.clone(), directory.path()));
    assert!(registrar.health().unwrap_err().contains("is not there"));
    let (stop, mut state) = (CancellationToken::new(), registrar.state());
    let serving = tokio::spawn({
        let (registrar, stop) = (Arc::clone(&registrar), stop.clone());
        async move { registrar.serve(&ServerMetrics::default(), stop).await }
    });
    let round = |state: &Registration| *state == Registration::Waiting;
    timeout(LONG, state.changed()).await.unwrap().unwrap();
    assert!(round(&state.borrow_and_update()));

    let (once, mut client) = kubelet(&socket).await;
    let info = client.get_info(InfoRequest {}).await.unwrap().into_inner();
    assert_eq!((info.r#type.as_str(), info.name.as_str()), ("CSIPlugin", "pool.example.com"));
    assert_eq!((info.endpoint, info.supported_versions), (endpoint, vec!["1.0.0".to_owned()]));
    let told =
        |plugin_registered, error: &str| RegistrationStatus { plugin_registered, error: error.to_owned() };
    client.notify_registration_status(told(true, "")).await.unwrap();
    assert_eq!(*state.borrow_and_update(), Registration::Registered);
    assert_eq!(registrar.health(), Ok(()));

    // Kubelet asks again only when the socket comes back.
    client.notify_registration_status(told(false, "a label clashes")).await.unwrap();
    drop((once, client));
    timeout(LONG, state.wait_for(round)).await.unwrap().unwrap();
    kubelet(&socket).await.1.get_info(InfoRequest {}).await.unwrap();

    stop.cancel();
    timeout(LONG, serving).await.unwrap().unwrap().unwrap();
    assert!(!socket.exists(), "kubelet forgets the driver");
}

#[tokio::test]
async fn a_driver_that_is_not_there_is_not_healthy() {
    let directory = tempfile::TempDir::new().unwrap();
    let path = directory.path().join("csi.sock");
    let driver = Driver::new(path.to_str().unwrap().parse().unwrap(), LONG);
    assert!(matches!(driver.probe().await, Err(ProbeError::Connect { .. })));
    let _listener = tokio::net::UnixListener::bind(&path).unwrap();
    let hasty = Driver::new(path.to_str().unwrap().parse().unwrap(), Duration::from_millis(1));
    assert!(matches!(hasty.probe().await, Err(ProbeError::Silent { .. })));
}

/// The kernel's own directories take no socket, whoever asks; neither does what is no directory, or is not
/// there.
#[tokio::test]
async fn a_directory_in_which_nothing_can_be_made_is_named() {
    let scratch = tempfile::TempDir::new().unwrap();
    let file = scratch.path().join("file");
    std::fs::write(&file, "").unwrap();
    for directory in [Path::new("/proc/self"), &file, &scratch.path().join("missing")] {
        let registrar = Arc::new(Registrar::new("pool.example.com".to_owned(), "/x".to_owned(), directory));
        let refused = Arc::clone(&registrar).serve(&ServerMetrics::default(), CancellationToken::new()).await;
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains(directory.to_str().unwrap()), "{refused}");
        assert!(registrar.health().is_err());
    }
}
