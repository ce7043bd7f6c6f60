//! The driver of dev mode passes.

mod common;

use cofferdam_backend::Source;
use cofferdam_suite::{Options, run};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_memory_backend_passes() {
    let source = Source::Bytes { name: "memory.wasm".to_owned(), bytes: cofferdam_guests::MEMORY };
    let report = run(&common::engine(), source, Options::default()).await.unwrap();
    assert!(report.passed(), "{}", report.to_text(false));
    assert_eq!(report.left, [""; 0]);
}
