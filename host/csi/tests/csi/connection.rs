//! Drivers that come, go, and are others than expected.

use std::{pin::pin, time::Duration};

use cofferdam_backend::Backend;
use cofferdam_csi::{ConnectError, CsiConfig, v1};
use cofferdam_domain::storage::{Ability, ErrorKind, Feature, Finality, Readiness};
use futures::poll;

use crate::fake::{
    CONTROLLER, CREATE, Fake, INFO, LONG, NAME, PLUGIN, PROBE, Reply, call, connect, created, creation,
    hurried, measured, message, volume,
};

#[tokio::test]
async fn a_driver_that_comes_later_is_waited_for() {
    let mut fake = Fake::absent();
    let mut connecting = pin!(connect(fake.config()));
    assert!(poll!(&mut connecting).is_pending());
    fake.listen();
    let backend = connecting.await.unwrap();
    assert_eq!(backend.driver().as_str(), NAME);
    assert_eq!(backend.description().version, "1.2");
}

#[tokio::test]
async fn a_driver_that_never_comes_is_given_up() {
    let fake = Fake::absent();
    let config = CsiConfig { connect: Duration::from_millis(150), ..fake.config() };
    let error = connect(config).await.unwrap_err();
    assert!(matches!(error, ConnectError::Unreachable { .. }), "{error}");
    assert!(error.to_string().contains("csi.sock: no CSI driver after"), "{error}");
}

#[tokio::test]
async fn a_file_where_the_socket_should_be_is_not_waited_for() {
    let fake = Fake::absent();
    std::fs::write(fake.socket(), "").unwrap();
    let error = connect(fake.config()).await.unwrap_err();
    assert!(matches!(error, ConnectError::NoSocket { .. }), "{error}");
    assert!(error.to_string().contains("csi.sock: is not a socket"), "{error}");
}

#[tokio::test]
async fn something_else_behind_the_socket_is_given_up() {
    let fake = Fake::absent();
    let listener = tokio::net::UnixListener::bind(fake.socket()).unwrap();
    tokio::spawn(async move {
        use tokio::io::AsyncWriteExt as _;
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.write_all(b"220 mail.example ESMTP ready to serve you\r\n").await;
        }
    });
    let config = CsiConfig { connect: Duration::from_millis(150), ..fake.config() };
    let error = connect(config).await.unwrap_err();
    assert!(matches!(error, ConnectError::Unreachable { .. }), "{error}");
}

#[tokio::test]
async fn a_driver_that_starts_is_probed_until_it_is_ready() {
    let fake = Fake::start();
    let starting = || message(&v1::ProbeResponse { ready: Some(false) });
    fake.once(PROBE, starting());
    let config = CsiConfig { ready: None, ..fake.config() };
    assert!(connect(config).await.is_ok());
    assert_eq!(fake.heard(PROBE).len(), 2);

    fake.once(PROBE, starting());
    let error = connect(fake.config()).await.unwrap_err();
    assert!(matches!(error, ConnectError::NotReady { .. }), "{error}");

    fake.once(PROBE, Reply::Hang);
    let config = CsiConfig { deadline: Duration::from_millis(50), ..fake.config() };
    let error = connect(config).await.unwrap_err();
    assert!(matches!(error, ConnectError::NotReady { .. }), "{error}");
}

#[tokio::test]
async fn a_driver_that_refuses_or_lies_is_not_taken() {
    let fake = Fake::start();
    let named = |name: &str| {
        let name = name.to_owned();
        message(&v1::GetPluginInfoResponse { name, ..Default::default() })
    };
    for (path, reply, expected) in [
        (PROBE, Reply::Status(9, "no disk"), "Probe failed: FailedPrecondition: no disk"),
        (INFO, Reply::Status(13, "no"), "GetPluginInfo failed: Internal: no"),
        (INFO, named(""), r#"the driver name is """#),
        (INFO, named("a/../b"), r#"the driver name is "a/../b""#),
        (INFO, named(&"x".repeat(64)), "of 1 to 63 characters"),
        (INFO, named("other.example"), "the driver is other.example; expected fake.example"),
        (PLUGIN, Reply::Status(12, "no"), "GetPluginCapabilities failed: Unimplemented: no"),
        (CONTROLLER, Reply::Message(vec![0xff; 9]), "ControllerGetCapabilities failed: Internal"),
    ] {
        fake.once(path, reply);
        let error = connect(fake.config()).await.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}; expected {expected}");
        assert!(!error.contains('\n'));
    }
}

#[tokio::test]
async fn capabilities_become_abilities() {
    let fake = Fake::start();
    let backend = fake.connect().await;
    assert_eq!(backend.abilities(), &Ability::ALL.into());
    let unsaid = [Feature::VolumeMountGroup];
    for feature in Feature::ALL {
        assert_eq!(backend.description().has_feature(feature), !unsaid.contains(&feature), "{feature}");
    }
    assert_eq!(backend.controller_capabilities().count(), 15);

    // A node-only driver has no controller to ask.
    fake.plugin(&[], &[]);
    let asked = fake.heard(CONTROLLER).len();
    let backend = fake.connect().await;
    assert!(backend.abilities().is_empty());
    assert_eq!(fake.heard(CONTROLLER).len(), asked);
    let error = backend.create_volume(call(), creation("a")).await.unwrap_err();
    assert_eq!((error.kind, error.finality), (ErrorKind::Unimplemented, Finality::Unknown));
    assert!(error.message.contains("CREATE_DELETE_VOLUME"), "{error}");
}

#[tokio::test]
async fn a_driver_that_restarts_is_found_again() {
    let mut fake = Fake::start();
    let (backend, metrics) = measured(fake.config()).await;
    fake.always(CREATE, created(volume("v")));
    backend.create_volume(call(), creation("a")).await.unwrap();
    let connected = |state: u8, lost: u8| {
        let lines = metrics();
        let driver = r#"{driver_name="fake.example"}"#;
        assert!(lines.contains(&format!("cofferdam_csi_connected{driver} {state}")), "{lines:#?}");
        assert!(
            lines.contains(&format!("cofferdam_csi_connections_lost_total{driver} {lost}")),
            "{lines:#?}"
        );
    };
    connected(1, 0);

    fake.stop();
    backend.until_connected(false).await;
    connected(0, 1);
    let error = backend.create_volume(hurried(), creation("a")).await.unwrap_err();
    assert_eq!((error.kind, error.finality), (ErrorKind::Unavailable, Finality::Unknown), "{error}");
    assert!(error.message.contains("cannot be reached"), "{error}");

    // It comes back, and is asked again who it is; a call that is there already goes through.
    let asked = fake.heard(INFO).len();
    let waiting = tokio::spawn({
        let backend = backend.clone();
        async move {
            backend.until_connected(true).await;
            backend.create_volume(call(), creation("a")).await
        }
    });
    fake.listen();
    waiting.await.unwrap().unwrap();
    assert_eq!(fake.heard(INFO).len(), asked + 1);
    connected(1, 1);
}

#[tokio::test]
async fn another_driver_in_its_place_is_not_called() {
    let mut fake = Fake::start();
    let backend = fake.connect().await;
    fake.stop();
    backend.until_connected(false).await;
    fake.named("other.example");
    let asked = fake.heard(INFO).len();
    fake.listen();
    // The second try begins after what the first one found is known.
    fake.until_heard(INFO, asked + 2).await;
    let error = backend.create_volume(hurried(), creation("a")).await.unwrap_err();
    assert!(error.message.contains("the driver is other.example; expected fake.example"), "{error}");
    assert_eq!(fake.heard(CREATE).len(), 0);
    fake.named(NAME);
    fake.always(CREATE, created(volume("v")));
    tokio::time::timeout(LONG, backend.until_connected(true)).await.unwrap();
    backend.create_volume(call(), creation("a")).await.unwrap();
}

#[tokio::test]
async fn readiness_is_told() {
    let fake = Fake::start();
    let backend = fake.connect().await;
    assert_eq!(backend.probe(call()).await.unwrap(), Readiness::Ready);
    fake.once(PROBE, message(&v1::ProbeResponse { ready: Some(false) }));
    assert!(matches!(backend.probe(call()).await.unwrap(), Readiness::NotReady(_)));
    fake.once(PROBE, Reply::Status(9, "no disk"));
    assert_eq!(backend.probe(call()).await.unwrap_err().kind, ErrorKind::FailedPrecondition);
}

#[tokio::test]
async fn calls_count_under_the_sidecars_names() {
    let fake = Fake::start();
    let (backend, metrics) = measured(fake.config()).await;
    fake.once(CREATE, created(volume("v")));
    fake.once(CREATE, Reply::Status(1, "no"));
    backend.create_volume(call(), creation("a")).await.unwrap();
    backend.create_volume(call(), creation("b")).await.unwrap_err();
    let lines = metrics();
    for (driver, method, code) in [
        ("unknown-driver", INFO, "OK"),
        (NAME, PROBE, "OK"),
        (NAME, PLUGIN, "OK"),
        (NAME, CREATE, "OK"),
        (NAME, CREATE, "Canceled"),
    ] {
        let line = format!(
            r#"csi_sidecar_operations_seconds_count{{driver_name="{driver}",method_name="{method}",grpc_status_code="{code}"}} 1"#
        );
        assert!(lines.contains(&line), "{line}\n{lines:#?}");
    }
    let buckets = lines.iter().filter(|line| {
        line.starts_with("csi_sidecar_operations_seconds_bucket")
            && line.contains(CREATE)
            && line.contains(r#""OK""#)
    });
    assert_eq!(buckets.count(), 14, "thirteen, and the one without an end");
}
