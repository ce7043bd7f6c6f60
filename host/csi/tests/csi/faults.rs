//! Failed calls, and the errors that the caller gets: error statuses, responses without a status, deadlines,
//! and calls that conflict with an operation on the same object.

use std::time::Duration;

use cofferdam_backend::Backend;
use cofferdam_domain::storage::{
    CapacityRange, ErrorKind, ExpandVolume,
    Finality::{self, Final, InProgress, Unknown},
    PublishVolume,
};
use prost::Message as _;

use crate::fake_driver::{
    CREATE, DELETE, FakeCsiDriver, SHORT_DEADLINE, ScriptedReply, call, call_with_short_deadline, capability,
    connect_with_metrics, create_request, created_reply, grpc_frame, message_reply, volume,
};

const EXPAND: &str = "/csi.v1.Controller/ControllerExpandVolume";

#[tokio::test]
async fn grpc_codes_of_a_driver_map_to_kind_and_finality() {
    use ErrorKind as K;
    let driver = FakeCsiDriver::start();
    let backend = driver.connect().await;
    #[rustfmt::skip] // gRPC code, kind, finality for CreateVolume, finality for ControllerExpandVolume
    let table: [(i32, ErrorKind, Finality, Finality); 16] = [
        (1,  K::Cancelled,          Unknown,    Unknown),
        (2,  K::Unknown,            Final,      Final),
        (3,  K::InvalidArgument,    Final,      Final),
        (4,  K::DeadlineExceeded,   Unknown,    Unknown),
        (5,  K::NotFound,           Final,      Final),
        (6,  K::AlreadyExists,      Final,      Final),
        (7,  K::PermissionDenied,   Final,      Final),
        (8,  K::ResourceExhausted,  Final,      Unknown),
        (9,  K::FailedPrecondition, Final,      Final),
        (10, K::Aborted,            InProgress, InProgress),
        (11, K::OutOfRange,         Final,      Final),
        (12, K::Unimplemented,      Final,      Final),
        (13, K::Internal,           Final,      Final),
        (14, K::Unavailable,        Unknown,    Unknown),
        (15, K::DataLoss,           Final,      Final),
        (16, K::Unauthenticated,    Final,      Final),
    ];
    for (code, kind, creating, expanding) in table {
        driver.queue_reply(CREATE, ScriptedReply::Status(code, "no hunter2hunter2"));
        let error = backend.create_volume(call(), create_request(&code.to_string())).await.unwrap_err();
        assert_eq!((error.kind, error.finality), (kind, creating), "CreateVolume {code}");
        assert_eq!(error.message, "no [secret]", "a driver that repeats a secret");

        driver.queue_reply(EXPAND, ScriptedReply::Status(code, "no"));
        let capacity = CapacityRange { required: Some(1), limit: None };
        let request = ExpandVolume { handle: code.to_string().into(), capacity, capability: None };
        let error = backend.expand_volume(call(), request).await.unwrap_err();
        assert_eq!((error.kind, error.finality), (kind, expanding), "ControllerExpandVolume {code}");
    }
}

#[tokio::test]
async fn failures_without_a_driver_status_are_not_final() {
    let driver = FakeCsiDriver::start();
    let (backend, metrics) = connect_with_metrics(driver.config()).await;
    let valid_response =
        || cofferdam_csi::v1::CreateVolumeResponse { volume: Some(volume("v")) }.encode_to_vec();
    let oversized = vec![0; (4 << 20) + 1];
    let table = [
        ("a broken connection", ScriptedReply::CloseConnection, ErrorKind::Unavailable, "connection-lost"),
        (
            "no end",
            ScriptedReply::MessageWithoutStatus(valid_response()),
            ErrorKind::Internal,
            "contract-violation",
        ),
        ("a web server", ScriptedReply::Http(404), ErrorKind::Internal, "contract-violation"),
        ("a web server's error", ScriptedReply::Http(503), ErrorKind::Internal, "contract-violation"),
        ("no message", ScriptedReply::RawBytes(Vec::new()), ErrorKind::Internal, "contract-violation"),
        (
            "half a message",
            ScriptedReply::RawBytes(grpc_frame(&valid_response())[..9].to_vec()),
            ErrorKind::Internal,
            "contract-violation",
        ),
        ("not protobuf", ScriptedReply::Message(vec![0xff; 20]), ErrorKind::Internal, "contract-violation"),
        ("a huge message", ScriptedReply::Message(oversized), ErrorKind::Internal, "contract-violation"),
        ("a strange code", ScriptedReply::Status(99, "?"), ErrorKind::Internal, "contract-violation"),
    ];
    for (n, (case, reply, kind, outcome)) in table.into_iter().enumerate() {
        backend.wait_connected(true).await;
        let before = count_outcome(&metrics(), outcome);
        let closes_connection = matches!(reply, ScriptedReply::CloseConnection);
        driver.queue_reply(CREATE, reply);
        let error = backend.create_volume(call(), create_request(&n.to_string())).await.unwrap_err();
        assert_eq!((error.kind, error.finality), (kind, Unknown), "{case}: {error}");
        assert_eq!(count_outcome(&metrics(), outcome), before + 1, "{case}: {error}");
        if closes_connection {
            backend.wait_connected(false).await;
        }
    }
}

/// Returns the number of CreateVolume calls with an outcome.
fn count_outcome(metrics: &[String], outcome: &str) -> u64 {
    let label = format!(r#"method_name="{CREATE}",outcome="{outcome}"#);
    let line =
        metrics.iter().find(|line| line.starts_with("cofferdam_backend_calls") && line.contains(&label));
    line.map_or(0, |line| line.rsplit(' ').next().unwrap().parse().unwrap())
}

#[tokio::test]
async fn status_in_trailers_overrides_the_message() {
    let driver = FakeCsiDriver::start();
    let backend = driver.connect().await;
    let message = cofferdam_csi::v1::CreateVolumeResponse { volume: Some(volume("v")) }.encode_to_vec();
    driver.queue_reply(CREATE, ScriptedReply::MessageThenStatus(message, 11));
    let error = backend.create_volume(call(), create_request("a")).await.unwrap_err();
    assert_eq!((error.kind, error.finality), (ErrorKind::OutOfRange, Final));
}

#[tokio::test]
async fn deadline_is_sent_to_the_driver_and_enforced() {
    let driver = FakeCsiDriver::start();
    let (backend, metrics) = connect_with_metrics(driver.config()).await;
    driver.queue_reply(CREATE, ScriptedReply::Hang);
    let error = backend.create_volume(call_with_short_deadline(), create_request("a")).await.unwrap_err();
    assert_eq!((error.kind, error.finality), (ErrorKind::DeadlineExceeded, Unknown), "{error}");
    let received = driver.received(CREATE);
    let timeout = received[0].headers["grpc-timeout"].to_str().unwrap();
    let (number, unit) = timeout.split_at(timeout.len() - 1);
    let number: u64 = number.parse().unwrap();
    let timeout = match unit {
        "n" => Duration::from_nanos(number),
        "u" => Duration::from_micros(number),
        "m" => Duration::from_millis(number),
        other => panic!("grpc-timeout in {other}"),
    };
    assert!(timeout <= SHORT_DEADLINE + Duration::from_millis(1), "{timeout:?}");
    let line = format!(
        "csi_sidecar_operations_seconds_count{{driver_name=\"fake.example\",method_name={CREATE:?},\
         grpc_status_code=\"DeadlineExceeded\",\
         migrated=\"false\"}} 1"
    );
    assert!(metrics().contains(&line));

    // The configured `call_timeout` applies if it is shorter than the caller's deadline.
    let mut config = driver.config();
    config.call_timeout = SHORT_DEADLINE;
    let backend = crate::fake_driver::connect(config).await.unwrap();
    driver.queue_reply(CREATE, ScriptedReply::Hang);
    let error = backend.create_volume(call(), create_request("b")).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::DeadlineExceeded);
}

#[tokio::test]
async fn creation_in_doubt_admits_a_mended_request() {
    let driver = FakeCsiDriver::start();
    let backend = driver.connect().await;
    driver.queue_reply(CREATE, ScriptedReply::Hang);
    let error = backend.create_volume(call_with_short_deadline(), create_request("a")).await.unwrap_err();
    assert_eq!(error.finality, Unknown);
    let mut mended_request = create_request("a");
    mended_request.parameters.clear();
    driver.queue_reply(CREATE, ScriptedReply::Status(6, "other parameters"));
    let error = backend.create_volume(call(), mended_request).await.unwrap_err();
    assert_eq!((error.kind, error.finality), (ErrorKind::AlreadyExists, Final), "{error}");
    // The result of this attempt says nothing about the previous one.
    driver.queue_reply(CREATE, ScriptedReply::Status(13, "no"));
    let error = backend.create_volume(call(), create_request("a")).await.unwrap_err();
    assert_eq!((error.kind, error.finality), (ErrorKind::Internal, Unknown), "{error}");
    driver.queue_reply(CREATE, created_reply(volume("v")));
    assert!(backend.create_volume(call(), create_request("a")).await.is_ok());
}

/// As cinder-csi-plugin does (kubernetes/cloud-provider-openstack#1265): the expansion succeeds after the
/// deadline, and every retry fails with Internal.
#[tokio::test]
async fn expansion_in_doubt_neither_blocks_publishing_nor_outlasts_a_final_error() {
    const PUBLISH: &str = "/csi.v1.Controller/ControllerPublishVolume";
    let driver = FakeCsiDriver::start();
    let backend = driver.connect().await;
    let expand = |call, bytes, capability| {
        let capacity = CapacityRange { required: Some(bytes), limit: None };
        backend.expand_volume(call, ExpandVolume { handle: "v".into(), capacity, capability })
    };
    let publish = |node: &str| {
        let request = PublishVolume {
            handle: "v".into(),
            node_id: node.into(),
            node_identities: Default::default(),
            capability: capability(),
            read_only: false,
            context: Default::default(),
        };
        backend.publish_volume(call(), request)
    };
    let published = cofferdam_csi::v1::ControllerPublishVolumeResponse::default();
    driver.set_reply(PUBLISH, message_reply(&published));
    driver.queue_reply(EXPAND, ScriptedReply::Hang);
    let error = expand(call_with_short_deadline(), 2, Some(capability())).await.unwrap_err();
    assert_eq!((error.kind, error.finality), (ErrorKind::DeadlineExceeded, Unknown));
    publish("node-2").await.unwrap();
    let error = expand(call(), 3, Some(capability())).await.unwrap_err();
    assert_eq!((error.kind, error.finality), (ErrorKind::Aborted, InProgress), "another size: {error}");
    assert_eq!(driver.received(EXPAND).len(), 1);
    // A user has changed the mount options of the PersistentVolume.
    driver.set_reply(EXPAND, ScriptedReply::Status(13, "new size must be greater"));
    let error = expand(call(), 2, None).await.unwrap_err();
    assert_eq!((error.kind, error.finality), (ErrorKind::Internal, Final), "{error}");
    let error = expand(call(), 3, Some(capability())).await.unwrap_err();
    assert_eq!((error.kind, error.finality), (ErrorKind::Internal, Final), "another size: {error}");
    assert_eq!(driver.received(EXPAND).len(), 3);
}

#[tokio::test]
async fn concurrent_calls_for_one_volume_are_aborted() {
    let driver = FakeCsiDriver::start();
    let backend = driver.connect().await;
    driver.queue_reply(DELETE, ScriptedReply::Hang);
    let first = tokio::spawn({
        let backend = backend.clone();
        async move { backend.delete_volume(call(), "v".into()).await }
    });
    driver.wait_received(DELETE, 1).await;
    let error = backend.delete_volume(call(), "v".into()).await.unwrap_err();
    assert_eq!((error.kind, error.finality), (ErrorKind::Aborted, InProgress));
    first.abort();
    assert!(first.await.unwrap_err().is_cancelled());
    // The caller was cancelled and the result is unknown: the same call may follow.
    driver
        .queue_reply(DELETE, crate::fake_driver::message_reply(&cofferdam_csi::v1::DeleteVolumeResponse {}));
    backend.delete_volume(call(), "v".into()).await.unwrap();
}
