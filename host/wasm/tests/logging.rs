//! Log lines of guests, and of their load, are redacted and bounded, and a trap is logged with the guest's
//! output. One test only, because the log is global to the process.
#![expect(clippy::unwrap_used, reason = "a helper of tests fails as a test does")]

mod common;

use std::{
    io,
    sync::{Arc, Mutex},
};

use cofferdam_backend::{Backend as _, Call};
use cofferdam_domain::storage::Secret;
use cofferdam_wasm::{BackendConfig, ComponentSource, Limits};
use common::{call, create, engine, load, request, settings};

#[derive(Clone, Default)]
struct CapturedLog(Arc<Mutex<Vec<u8>>>);

impl io::Write for CapturedLog {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl CapturedLog {
    fn take(&self) -> String {
        String::from_utf8(std::mem::take(&mut *self.0.lock().unwrap())).unwrap()
    }
}

#[tokio::test]
async fn guest_output_is_logged_redacted_and_bounded() {
    let captured = CapturedLog::default();
    let writer = captured.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_max_level(tracing::Level::DEBUG)
        .with_writer(move || writer.clone())
        .finish();
    tracing::subscriber::set_global_default(subscriber).unwrap();
    let limits = Limits { cpu_ms: 60_000, log_bytes: 4_096, ..Limits::default() };
    let echo = [("echo", "hunter2-hunter2")];
    let backend = load(&engine(), cofferdam_test_guests::HOSTILE, &echo, limits).await.unwrap();
    captured.take();

    create(&backend, "panic", 1).await.unwrap_err();
    let log = captured.take();
    assert!(log.contains("the array answered with a fish") && log.contains("outcome=\"trap\""), "{log}");
    assert!(log.contains("driver=hostile.example method=\"/csi.v1.Controller/CreateVolume\""), "{log}");

    create(&backend, "flood", 1).await.unwrap();
    let log = captured.take();
    let lines = log.lines().filter(|line| line.contains("of a flood that nobody wants to read")).count();
    assert!((10..100).contains(&lines), "{lines} lines");
    assert!(log.contains(&format!("dropped_lines={}", 200_000 - lines)), "{log}");

    create(&backend, "stderr", 1).await.unwrap();
    let log = captured.take();
    assert!(
        log.contains("a line on stderr that nobody wants to read") && log.len() < 10_000,
        "{}",
        log.len()
    );

    let secret = ("password".to_owned(), Secret::new("hunter2-hunter2"));
    let secret_call = Call { secrets: [secret].into_iter().collect(), ..call() };
    backend.create_volume(secret_call, request("echo-log", 1)).await.unwrap();
    let log = captured.take();
    // Through the import, on standard output, and on standard error.
    assert_eq!(log.matches("the array says: [secret].").count(), 3, "{log}");
    assert!(!log.contains("hunter2"), "{log}");

    // Also encoded, here in hexadecimal.
    let digits = "68756e746572322d68756e74657232";
    let encoded =
        load(&engine(), cofferdam_test_guests::HOSTILE, &[("echo", digits)], Limits::default()).await;
    captured.take();
    let secret = ("password".to_owned(), Secret::new("hunter2-hunter2"));
    let secret_call = Call { secrets: [secret].into_iter().collect(), ..call() };
    encoded.unwrap().create_volume(secret_call, request("echo-log", 1)).await.unwrap();
    let log = captured.take();
    assert_eq!(log.matches("the array says: [secret].").count(), 3, "{log}");
    assert!(!log.contains(digits), "{log}");

    // At load, `probe` reports a secret of the backend as the reason that it is not ready.
    let source =
        ComponentSource::Bytes { name: "guest.wasm".to_owned(), bytes: cofferdam_test_guests::HOSTILE };
    let config = BackendConfig {
        settings: settings(&[("echo", "hunter2-hunter2"), ("on-probe", "echo")]),
        secrets: [("password".to_owned(), Secret::new("hunter2-hunter2"))].into_iter().collect(),
        ..BackendConfig::default()
    };
    engine().load(source, config).await.unwrap();
    let log = captured.take();
    assert!(log.contains("it reports that it is not ready"), "{log}");
    assert!(log.contains("the array says: [secret].") && !log.contains("hunter2"), "{log}");
}
