//! Tests of panics: of a host function that a guest calls, and of guests.

use std::collections::{BTreeMap, BTreeSet};

use cofferdam_domain::storage::Secrets;
use wasmtime::component::Component;

use super::*;
use crate::{
    CompiledCache, Digest, Engine, EngineOptions,
    exports::{self, Exports},
    loader::{BackendConfig, ComponentSource},
};

fn engine() -> Engine {
    Engine::new(EngineOptions { cache: CompiledCache::Off, ..EngineOptions::default() }).unwrap()
}

fn context() -> CallContext {
    CallContext::new(Instant::now() + Duration::from_secs(60), Secrets::default())
}

/// The memory backend, with a function of the host behind `settings.entries` that panics.
async fn shared_state_with_panicking_import(engine: &Engine) -> Arc<SharedState> {
    let source = ComponentSource::Bytes { name: "memory".to_owned(), bytes: cofferdam_carried::MEMORY };
    let digest: Digest = engine.load(source, BackendConfig::default()).await.unwrap().digest();
    let wasm = &engine.inner.wasm;
    let component = Component::from_binary(wasm, cofferdam_carried::MEMORY).unwrap();
    let mut linker = engine.inner.linker.clone();
    linker.allow_shadowing(true);
    linker
        .instance("cofferdam:storage/settings@0.1.0")
        .unwrap()
        .func_wrap("entries", |_, (): ()| -> wasmtime::Result<(Vec<(String, String)>,)> {
            panic!("a defect of the host");
        })
        .unwrap();
    let pre = linker.instantiate_pre(&component).unwrap();
    let exports = Exports::find(&pre, &BTreeSet::new()).unwrap();
    let manifest = crate::inspect::ComponentInterfaces {
        imports: Vec::new(),
        exports: Vec::new(),
        grants: BTreeSet::new(),
        abilities: BTreeSet::new(),
    };
    Arc::new(SharedState {
        engine: wasm.clone(),
        compiled: Arc::new(CompiledComponent {
            digest,
            size: 0,
            interfaces: manifest,
            pre,
            exports,
            required_instances: 1,
        }),
        capabilities: SharedCapabilities::unconfigured(BTreeMap::new(), &Limits::default()),
        limits: Limits::default(),
        secrets: Secrets::default(),
        class_secrets: false,
        state_config: StateConfig::default(),
        pool_config: None,
        instance_quota: Arc::new(crate::instance_pool::InstanceQuota::new(Arc::default())),
        cpu_scheduler: engine.inner.new_cpu_scheduler(),
    })
}

#[tokio::test]
async fn host_panic_fails_only_its_call() {
    let engine = engine();
    let shared_state = shared_state_with_panicking_import(&engine).await;
    for _ in 0..2 {
        let outcome = spawn(
            context().begin().unwrap(),
            engine.inner.guest_runtime(),
            Arc::clone(&shared_state),
            context(),
            "describe",
            exports::describe(),
        )
        .await;
        assert_eq!(outcome.result.map(drop), Err(CallFailure::Panic));
    }
    // The engine and its threads still work: another backend loads and responds.
    let source = ComponentSource::Bytes { name: "memory".to_owned(), bytes: cofferdam_carried::MEMORY };
    engine.load(source, BackendConfig::default()).await.unwrap();
}

#[test]
fn the_message_of_a_panic_is_found_in_the_output() {
    let rust = "created vol-7\n\nthread 'main' (1) panicked at src/volumes.rs:79:22:\ncalled \
                `Option::unwrap()` on a `None` value\nnote: run with `RUST_BACKTRACE=1`";
    let unnamed = "thread '<unnamed>' panicked at src/lib.rs:1:1:\nno zone";
    let expected = "panicked at src/volumes.rs:79:22: called `Option::unwrap()` on a `None` value";
    for (output, expected) in [
        (rust, Some(expected)),
        (unnamed, Some("panicked at src/lib.rs:1:1: no zone")),
        (
            "x\npanic: runtime error: nil pointer dereference\n",
            Some("panic: runtime error: nil pointer dereference"),
        ),
        ("Assertion failed: size > 0 (d.c: create: 7)", Some("Assertion failed: size > 0 (d.c: create: 7)")),
        ("thread 'main' panicked at src/lib.rs:1:1:", Some("panicked at src/lib.rs:1:1: ")),
        ("panic: first\nand\npanic: last", Some("panic: last")),
        ("the array panicked at noon", None),
        ("", None),
    ] {
        assert_eq!(panic_message(output).as_deref(), expected, "{output:?}");
    }
    let long = format!("panic: {}", "a".repeat(1_000));
    assert_eq!(panic_message(&long).unwrap().len(), MAX_PANIC_CHARS);
}
