//! The connection to a driver: drivers that start late, stop, are not ready or are not the expected ones, the
//! abilities from a driver's capabilities, and the metrics of calls.

use std::{pin::pin, time::Duration};

use cofferdam_backend::Backend;
use cofferdam_csi::{ConnectError, CsiConfig, v1};
use cofferdam_domain::storage::{Ability, ErrorKind, Feature, Finality, Readiness};
use futures::poll;

use crate::fake_driver::{
    CONTROLLER_CAPABILITIES, CREATE, DRIVER_NAME, FakeCsiDriver, PLUGIN_CAPABILITIES, PLUGIN_INFO, PROBE,
    ScriptedReply, TEST_TIMEOUT, call, call_with_short_deadline, connect, connect_with_metrics,
    create_request, created_reply, message_reply, volume,
};

#[tokio::test]
async fn connect_waits_for_a_driver_that_listens_later() {
    let mut driver = FakeCsiDriver::not_listening();
    let mut connecting = pin!(connect(driver.config()));
    assert!(poll!(&mut connecting).is_pending());
    driver.listen();
    let backend = connecting.await.unwrap();
    assert_eq!(backend.driver().as_str(), DRIVER_NAME);
    assert_eq!(backend.description().version, "1.2");
}

#[tokio::test]
async fn connect_fails_after_the_timeout_without_a_listener() {
    let driver = FakeCsiDriver::not_listening();
    let config = CsiConfig { connect_timeout: Duration::from_millis(150), ..driver.config() };
    let error = connect(config).await.unwrap_err();
    assert!(matches!(error, ConnectError::Unreachable { .. }), "{error}");
    assert!(error.to_string().contains("csi.sock: no CSI driver after"), "{error}");
}

#[tokio::test]
async fn connect_fails_immediately_if_the_path_is_not_a_socket() {
    let driver = FakeCsiDriver::not_listening();
    std::fs::write(driver.socket(), "").unwrap();
    let error = connect(driver.config()).await.unwrap_err();
    assert!(matches!(error, ConnectError::NotASocket { .. }), "{error}");
    assert!(error.to_string().contains("csi.sock: is not a socket"), "{error}");
}

#[tokio::test]
async fn connect_fails_if_the_listener_does_not_speak_grpc() {
    let driver = FakeCsiDriver::not_listening();
    let listener = tokio::net::UnixListener::bind(driver.socket()).unwrap();
    tokio::spawn(async move {
        use tokio::io::AsyncWriteExt as _;
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.write_all(b"220 mail.example ESMTP ready to serve you\r\n").await;
        }
    });
    let config = CsiConfig { connect_timeout: Duration::from_millis(150), ..driver.config() };
    let error = connect(config).await.unwrap_err();
    assert!(matches!(error, ConnectError::Unreachable { .. }), "{error}");
}

#[tokio::test]
async fn connect_probes_until_the_driver_is_ready() {
    let driver = FakeCsiDriver::start();
    let starting = || message_reply(&v1::ProbeResponse { ready: Some(false) });
    driver.queue_reply(PROBE, starting());
    let config = CsiConfig { ready_timeout: None, ..driver.config() };
    assert!(connect(config).await.is_ok());
    assert_eq!(driver.received(PROBE).len(), 2);

    driver.queue_reply(PROBE, starting());
    let error = connect(driver.config()).await.unwrap_err();
    assert!(matches!(error, ConnectError::NotReady { .. }), "{error}");

    driver.queue_reply(PROBE, ScriptedReply::Hang);
    let config = CsiConfig { identity_timeout: Duration::from_millis(50), ..driver.config() };
    let error = connect(config).await.unwrap_err();
    assert!(matches!(error, ConnectError::NotReady { .. }), "{error}");
}

#[tokio::test]
async fn connect_fails_on_identity_errors_and_wrong_names() {
    let driver = FakeCsiDriver::start();
    let named = |name: &str| {
        let name = name.to_owned();
        message_reply(&v1::GetPluginInfoResponse { name, ..Default::default() })
    };
    for (path, reply, expected) in [
        (PROBE, ScriptedReply::Status(9, "no disk"), "Probe failed: FailedPrecondition: no disk"),
        (PLUGIN_INFO, ScriptedReply::Status(13, "no"), "GetPluginInfo failed: Internal: no"),
        (PLUGIN_INFO, named(""), r#"the driver name is """#),
        (PLUGIN_INFO, named("a/../b"), r#"the driver name is "a/../b""#),
        (PLUGIN_INFO, named(&"x".repeat(64)), "of 1 to 63 characters"),
        (PLUGIN_INFO, named("other.example"), "the driver is other.example; expected fake.example"),
        (
            PLUGIN_CAPABILITIES,
            ScriptedReply::Status(12, "no"),
            "GetPluginCapabilities failed: Unimplemented: no",
        ),
        (
            CONTROLLER_CAPABILITIES,
            ScriptedReply::Message(vec![0xff; 9]),
            "ControllerGetCapabilities failed: Internal",
        ),
    ] {
        driver.queue_reply(path, reply);
        let error = connect(driver.config()).await.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}; expected {expected}");
        assert!(!error.contains('\n'));
    }
}

#[tokio::test]
async fn csi_capabilities_become_backend_abilities() {
    let driver = FakeCsiDriver::start();
    let backend = driver.connect().await;
    assert_eq!(backend.abilities(), &Ability::ALL.into());
    let not_announced = [Feature::VolumeMountGroup];
    for feature in Feature::ALL {
        assert_eq!(
            backend.description().has_feature(feature),
            !not_announced.contains(&feature),
            "{feature}"
        );
    }
    assert_eq!(backend.controller_capabilities().count(), 15);

    // A driver without a controller service has no abilities.
    driver.set_plugin_capabilities(&[], &[]);
    let calls = driver.received(CONTROLLER_CAPABILITIES).len();
    let backend = driver.connect().await;
    assert!(backend.abilities().is_empty());
    assert_eq!(driver.received(CONTROLLER_CAPABILITIES).len(), calls);
    let error = backend.create_volume(call(), create_request("a")).await.unwrap_err();
    assert_eq!((error.kind, error.finality), (ErrorKind::Unimplemented, Finality::Unknown));
    assert!(error.message.contains("CREATE_DELETE_VOLUME"), "{error}");
}

#[tokio::test]
async fn reconnects_after_a_driver_restart() {
    let mut fake_driver = FakeCsiDriver::start();
    let (backend, metrics) = connect_with_metrics(fake_driver.config()).await;
    fake_driver.set_reply(CREATE, created_reply(volume("v")));
    backend.create_volume(call(), create_request("a")).await.unwrap();
    let assert_connected = |state: u8, lost: u8| {
        let lines = metrics();
        let driver = r#"{driver_name="fake.example"}"#;
        assert!(lines.contains(&format!("cofferdam_csi_connected{driver} {state}")), "{lines:#?}");
        assert!(
            lines.contains(&format!("cofferdam_csi_connections_lost_total{driver} {lost}")),
            "{lines:#?}"
        );
    };
    assert_connected(1, 0);

    fake_driver.stop();
    backend.wait_connected(false).await;
    assert_connected(0, 1);
    let error = backend.create_volume(call_with_short_deadline(), create_request("a")).await.unwrap_err();
    assert_eq!((error.kind, error.finality), (ErrorKind::Unavailable, Finality::Unknown), "{error}");
    assert!(error.message.contains("cannot be reached"), "{error}");

    // After a restart the driver is identified again, and a waiting call succeeds.
    let info_calls = fake_driver.received(PLUGIN_INFO).len();
    let waiting = tokio::spawn({
        let backend = backend.clone();
        async move {
            backend.wait_connected(true).await;
            backend.create_volume(call(), create_request("a")).await
        }
    });
    fake_driver.listen();
    waiting.await.unwrap().unwrap();
    assert_eq!(fake_driver.received(PLUGIN_INFO).len(), info_calls + 1);
    assert_connected(1, 1);
}

#[tokio::test]
async fn different_driver_on_the_socket_is_not_called() {
    let mut driver = FakeCsiDriver::start();
    let backend = driver.connect().await;
    driver.stop();
    backend.wait_connected(false).await;
    driver.set_name("other.example");
    let info_calls = driver.received(PLUGIN_INFO).len();
    driver.listen();
    // The second attempt starts after the result of the first is published.
    driver.wait_received(PLUGIN_INFO, info_calls + 2).await;
    let error = backend.create_volume(call_with_short_deadline(), create_request("a")).await.unwrap_err();
    assert!(error.message.contains("the driver is other.example; expected fake.example"), "{error}");
    assert_eq!(driver.received(CREATE).len(), 0);
    driver.set_name(DRIVER_NAME);
    driver.set_reply(CREATE, created_reply(volume("v")));
    tokio::time::timeout(TEST_TIMEOUT, backend.wait_connected(true)).await.unwrap();
    backend.create_volume(call(), create_request("a")).await.unwrap();
}

#[tokio::test]
async fn probe_reports_readiness() {
    let driver = FakeCsiDriver::start();
    let backend = driver.connect().await;
    assert_eq!(backend.probe(call()).await.unwrap(), Readiness::Ready);
    driver.queue_reply(PROBE, message_reply(&v1::ProbeResponse { ready: Some(false) }));
    assert!(matches!(backend.probe(call()).await.unwrap(), Readiness::NotReady(_)));
    driver.queue_reply(PROBE, ScriptedReply::Status(9, "no disk"));
    assert_eq!(backend.probe(call()).await.unwrap_err().kind, ErrorKind::FailedPrecondition);
}

#[tokio::test]
async fn calls_are_counted_under_the_sidecars_metric_names() {
    let fake_driver = FakeCsiDriver::start();
    let (backend, metrics) = connect_with_metrics(fake_driver.config()).await;
    fake_driver.queue_reply(CREATE, created_reply(volume("v")));
    fake_driver.queue_reply(CREATE, ScriptedReply::Status(1, "no"));
    backend.create_volume(call(), create_request("a")).await.unwrap();
    backend.create_volume(call(), create_request("b")).await.unwrap_err();
    let lines = metrics();
    for (driver, method, code) in [
        ("unknown-driver", PLUGIN_INFO, "OK"),
        (DRIVER_NAME, PROBE, "OK"),
        (DRIVER_NAME, PLUGIN_CAPABILITIES, "OK"),
        (DRIVER_NAME, CREATE, "OK"),
        (DRIVER_NAME, CREATE, "Canceled"),
    ] {
        let line = format!(
            "csi_sidecar_operations_seconds_count{{driver_name={driver:?},method_name={method:?},\
             grpc_status_code={code:?},migrated=\"false\"}} 1"
        );
        assert!(lines.contains(&line), "{line}\n{lines:#?}");
    }
    let buckets = lines.iter().filter(|line| {
        line.starts_with("csi_sidecar_operations_seconds_bucket")
            && line.contains(CREATE)
            && line.contains(r#""OK""#)
    });
    assert_eq!(buckets.count(), 14, "13 bounds and +Inf");
}
