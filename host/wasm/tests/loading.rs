//! Files that cannot be loaded as a backend: each gets an error of one line. A loaded backend reports its
//! digest and its interfaces.
#![expect(clippy::unwrap_used, reason = "a helper of tests fails as a test does")]

mod common;

use std::path::PathBuf;

use cofferdam_wasm::{BackendConfig, ComponentSource, Grant, Limits, LoadError};
use common::engine;

async fn load_error(bytes: &'static [u8], config: BackendConfig) -> LoadError {
    let source = ComponentSource::Bytes { name: "x.wasm".to_owned(), bytes };
    engine().load(source, config).await.unwrap_err()
}

fn component(text: &str) -> &'static [u8] {
    wat::parse_str(text).unwrap().leak()
}

#[tokio::test]
async fn invalid_components_are_rejected_with_one_line() {
    let truncated = &cofferdam_carried::MEMORY[..cofferdam_carried::MEMORY.len() / 2];
    let mut garbled = cofferdam_carried::MEMORY.to_vec();
    garbled.iter_mut().skip(100).step_by(7).for_each(|byte| *byte = !*byte);
    for (bytes, expected) in [
        (&b""[..], "is empty; expected a WebAssembly component"),
        (b"hello", "is not WebAssembly; expected a WebAssembly component"),
        (component("(module)"), "is a core WebAssembly module; expected a WebAssembly component"),
        (truncated, "is not a valid WebAssembly component: "),
        (garbled.leak(), "is not a valid WebAssembly component: "),
        (component("(component)"), "does not export `cofferdam:storage/identity@0.1.0`"),
        (
            component(r#"(component (import "evil:thing/x@1.0.0" (instance)))"#),
            "imports `evil:thing/x@1.0.0`, which this program does not offer",
        ),
        (
            component(r#"(component (import "wasi:sockets/tcp@0.2.6" (instance)))"#),
            "imports `wasi:sockets/tcp@0.2.6`, which this program does not offer",
        ),
        (
            component(r#"(component (import "cofferdam:storage/log@0.2.0" (instance)))"#),
            "speaks `cofferdam:storage/log@0.2.0`; this program speaks cofferdam:storage@0.1.0",
        ),
        (
            component(
                r#"(component (instance $i) (export "cofferdam:storage/identity@0.2.0" (instance $i)))"#,
            ),
            "speaks `cofferdam:storage/identity@0.2.0`; this program speaks cofferdam:storage@0.1.0",
        ),
        (
            component(
                r#"(component (instance $i) (export "cofferdam:storage/identity@0.1.0" (instance $i))
                              (export "cofferdam:storage/volumes@0.1.0" (instance $i)))"#,
            ),
            "does not match the contract: ",
        ),
        (
            component(
                r#"(component (import "cofferdam:storage/log@0.1.0" (instance (export "shout" (func))))
                              (instance $i) (export "cofferdam:storage/identity@0.1.0" (instance $i))
                              (export "cofferdam:storage/volumes@0.1.0" (instance $i)))"#,
            ),
            "does not match the contract: ",
        ),
    ] {
        let error = load_error(bytes, BackendConfig::default()).await.to_string();
        assert!(
            error.starts_with("x.wasm: ") && error.contains(expected) && !error.contains('\n'),
            "{error}"
        );
    }
}

#[tokio::test]
async fn import_without_a_grant_is_rejected_by_name() {
    let grants = [Grant::Log, Grant::Ambient, Grant::Settings].into();
    let error =
        load_error(cofferdam_carried::MEMORY, BackendConfig { grants, ..BackendConfig::default() }).await;
    assert_eq!(
        error.to_string(),
        "x.wasm: imports `cofferdam:storage/state@0.1.0`, which is not granted to it; \
         add `state` to its grants, or by --grant where the command has it"
    );
}

#[tokio::test]
async fn oversized_and_unreadable_files_are_rejected() {
    let limits = Limits { file_bytes: 1_000, ..Limits::default() };
    let error =
        load_error(cofferdam_carried::MEMORY, BackendConfig { limits, ..BackendConfig::default() }).await;
    assert!(error.to_string().contains("at most 1000 are allowed (limit `file-bytes`)"), "{error}");
    let absent = ComponentSource::File(PathBuf::from("/nowhere/x.wasm"));
    let error = engine().load(absent, BackendConfig::default()).await.unwrap_err();
    assert!(error.to_string().starts_with("/nowhere/x.wasm: cannot be read: "), "{error}");
    let endless = ComponentSource::File(PathBuf::from("/dev/zero"));
    let error = engine().load(endless, BackendConfig::default()).await.unwrap_err();
    assert!(error.to_string().contains("/dev/zero: cannot be read: it is not a regular file"), "{error}");
}

#[tokio::test]
async fn loaded_backend_reports_digest_and_interfaces() {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("memory.wasm");
    std::fs::write(&path, cofferdam_carried::MEMORY).unwrap();
    let backend = engine().load(ComponentSource::File(path), BackendConfig::default()).await.unwrap();
    assert!(backend.digest().to_string().starts_with("sha256:") && backend.digest().to_string().len() == 71);
    assert_eq!(backend.interfaces().grants, [Grant::Ambient, Grant::Settings, Grant::State].into());
    assert!(backend.interfaces().exports.contains(&"cofferdam:storage/volumes@0.1.0".to_owned()));
}

#[tokio::test]
async fn only_the_component_with_the_pinned_digest_is_loaded() {
    let source = || ComponentSource::Bytes { name: "memory".to_owned(), bytes: cofferdam_carried::MEMORY };
    let engine = engine();
    let found = engine.load(source(), BackendConfig::default()).await.unwrap().digest();
    let pinned = BackendConfig { sha256: Some(found), ..BackendConfig::default() };
    engine.load(source(), pinned).await.unwrap();
    let other = "0".repeat(64).parse().unwrap();
    let error =
        engine.load(source(), BackendConfig { sha256: Some(other), ..BackendConfig::default() }).await;
    assert_eq!(
        error.unwrap_err().to_string(),
        format!("memory: has the digest {found}; expected sha256:{} (`sha256`)", "0".repeat(64))
    );
}
