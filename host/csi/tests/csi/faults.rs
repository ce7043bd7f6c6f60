//! What goes wrong, and what the caller hears of it.

use std::time::Duration;

use cofferdam_backend::Backend;
use cofferdam_domain::storage::{
    CapacityRange, ErrorKind, ExpandVolume,
    Finality::{self, Final, InProgress, Unknown},
};
use prost::Message as _;

use crate::fake::{
    CREATE, DELETE, Fake, Reply, SHORT, call, created, creation, framed, hurried, measured, volume,
};

const EXPAND: &str = "/csi.v1.Controller/ControllerExpandVolume";

#[tokio::test]
async fn every_code_of_a_driver() {
    use ErrorKind as K;
    let fake = Fake::start();
    let backend = fake.connect().await;
    #[rustfmt::skip] // one row a code: of CreateVolume, and of ControllerExpandVolume
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
        fake.once(CREATE, Reply::Status(code, "no hunter2hunter2"));
        let error = backend.create_volume(call(), creation(&code.to_string())).await.unwrap_err();
        assert_eq!((error.kind, error.finality), (kind, creating), "CreateVolume {code}");
        assert_eq!(error.message, "no [secret]", "a driver that repeats a secret");

        fake.once(EXPAND, Reply::Status(code, "no"));
        let capacity = CapacityRange { required: Some(1), limit: None };
        let request = ExpandVolume { handle: code.to_string().into(), capacity, capability: None };
        let error = backend.expand_volume(call(), request).await.unwrap_err();
        assert_eq!((error.kind, error.finality), (kind, expanding), "ControllerExpandVolume {code}");
    }
}

#[tokio::test]
async fn only_the_drivers_own_word_is_final() {
    let fake = Fake::start();
    let (backend, metrics) = measured(fake.config()).await;
    let good = || cofferdam_csi::v1::CreateVolumeResponse { volume: Some(volume("v")) }.encode_to_vec();
    let many = vec![0; (4 << 20) + 1];
    #[rustfmt::skip] // one row a fault
    let table = [
        ("a broken connection",  Reply::Cut,                       ErrorKind::Unavailable, "broken"),
        ("no end",               Reply::Unfinished(good()),        ErrorKind::Internal,    "untrue"),
        ("a web server",         Reply::Http(404),                 ErrorKind::Internal,    "untrue"),
        ("a web server's error", Reply::Http(503),                 ErrorKind::Internal,    "untrue"),
        ("no message",           Reply::Bytes(Vec::new()),         ErrorKind::Internal,    "untrue"),
        ("half a message",       Reply::Bytes(framed(&good())[..9].to_vec()), ErrorKind::Internal, "untrue"),
        ("not protobuf",         Reply::Message(vec![0xff; 20]),   ErrorKind::Internal,    "untrue"),
        ("a huge message",       Reply::Message(many),             ErrorKind::Internal,    "untrue"),
        ("a strange code",       Reply::Status(99, "?"),           ErrorKind::Internal,    "untrue"),
    ];
    for (n, (what, reply, kind, outcome)) in table.into_iter().enumerate() {
        backend.until_connected(true).await;
        let before = count(&metrics(), outcome);
        let cuts = matches!(reply, Reply::Cut);
        fake.once(CREATE, reply);
        let error = backend.create_volume(call(), creation(&n.to_string())).await.unwrap_err();
        assert_eq!((error.kind, error.finality), (kind, Unknown), "{what}: {error}");
        assert_eq!(count(&metrics(), outcome), before + 1, "{what}: {error}");
        if cuts {
            backend.until_connected(false).await;
        }
    }
}

/// How many creations ended so.
fn count(metrics: &[String], outcome: &str) -> u64 {
    let label = format!(r#"method_name="{CREATE}",outcome="{outcome}"#);
    let line =
        metrics.iter().find(|line| line.starts_with("cofferdam_backend_calls") && line.contains(&label));
    line.map_or(0, |line| line.rsplit(' ').next().unwrap().parse().unwrap())
}

#[tokio::test]
async fn a_failure_after_the_message_counts() {
    let fake = Fake::start();
    let backend = fake.connect().await;
    let message = cofferdam_csi::v1::CreateVolumeResponse { volume: Some(volume("v")) }.encode_to_vec();
    fake.once(CREATE, Reply::Late(message, 11));
    let error = backend.create_volume(call(), creation("a")).await.unwrap_err();
    assert_eq!((error.kind, error.finality), (ErrorKind::OutOfRange, Final));
}

#[tokio::test]
async fn a_deadline_is_sent_and_held() {
    let fake = Fake::start();
    let (backend, metrics) = measured(fake.config()).await;
    fake.once(CREATE, Reply::Hang);
    let error = backend.create_volume(hurried(), creation("a")).await.unwrap_err();
    assert_eq!((error.kind, error.finality), (ErrorKind::DeadlineExceeded, Unknown), "{error}");
    let heard = fake.heard(CREATE);
    let sent = heard[0].headers["grpc-timeout"].to_str().unwrap();
    let (number, unit) = sent.split_at(sent.len() - 1);
    let number: u64 = number.parse().unwrap();
    let sent = match unit {
        "n" => Duration::from_nanos(number),
        "u" => Duration::from_micros(number),
        "m" => Duration::from_millis(number),
        other => panic!("grpc-timeout in {other}"),
    };
    assert!(sent <= SHORT + Duration::from_millis(1), "{sent:?}");
    let line = format!(
        r#"csi_sidecar_operations_seconds_count{{driver_name="fake.example",method_name="{CREATE}",grpc_status_code="DeadlineExceeded"}} 1"#
    );
    assert!(metrics().contains(&line));

    // The operator's own limit counts too.
    let mut config = fake.config();
    config.deadline = SHORT;
    let backend = crate::fake::connect(config).await.unwrap();
    fake.once(CREATE, Reply::Hang);
    let error = backend.create_volume(call(), creation("b")).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::DeadlineExceeded);
}

#[tokio::test]
async fn an_open_outcome_lets_only_the_same_call_through() {
    let fake = Fake::start();
    let backend = fake.connect().await;
    fake.once(CREATE, Reply::Hang);
    let error = backend.create_volume(hurried(), creation("a")).await.unwrap_err();
    assert_eq!(error.finality, Unknown);
    let mut other = creation("a");
    other.parameters.clear();
    let error = backend.create_volume(call(), other).await.unwrap_err();
    assert_eq!((error.kind, error.finality), (ErrorKind::Aborted, InProgress), "{error}");
    assert_eq!(fake.heard(CREATE).len(), 1, "the driver was not asked");
    // A try that did nothing says nothing about the one before.
    fake.once(CREATE, Reply::Status(13, "no"));
    let error = backend.create_volume(call(), creation("a")).await.unwrap_err();
    assert_eq!((error.kind, error.finality), (ErrorKind::Internal, Unknown), "{error}");
    fake.once(CREATE, created(volume("v")));
    assert!(backend.create_volume(call(), creation("a")).await.is_ok());
}

#[tokio::test]
async fn one_call_at_a_time_for_a_volume() {
    let fake = Fake::start();
    let backend = fake.connect().await;
    fake.once(DELETE, Reply::Hang);
    let first = tokio::spawn({
        let backend = backend.clone();
        async move { backend.delete_volume(call(), "v".into()).await }
    });
    fake.until_heard(DELETE, 1).await;
    let error = backend.delete_volume(call(), "v".into()).await.unwrap_err();
    assert_eq!((error.kind, error.finality), (ErrorKind::Aborted, InProgress));
    first.abort();
    assert!(first.await.unwrap_err().is_cancelled());
    // The caller is gone and nobody knows what the driver does: the same call may follow.
    fake.once(DELETE, crate::fake::message(&cofferdam_csi::v1::DeleteVolumeResponse {}));
    backend.delete_volume(call(), "v".into()).await.unwrap();
}
