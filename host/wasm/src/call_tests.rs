//! A defect of the host, met by a guest.

use std::collections::{BTreeMap, BTreeSet};

use cofferdam_domain::storage::Secrets;
use wasmtime::component::Component;

use super::*;
use crate::{
    CompiledCache, Digest, Engine, EngineOptions, exports,
    loader::{self, BackendConfig, Source},
};
use cofferdam_backend::Redactor;

fn engine() -> Engine {
    Engine::new(EngineOptions { cache: CompiledCache::Off, ..EngineOptions::default() }).unwrap()
}

fn context() -> Context {
    Context {
        deadline: Instant::now() + Duration::from_secs(60),
        secrets: Secrets::default(),
        redactor: Redactor::default(),
        guard: None,
    }
}

/// The memory backend, with a function of the host behind `settings.entries` that panics.
async fn parts(engine: &Engine) -> Arc<Parts> {
    let source = Source::Bytes { name: "memory".to_owned(), bytes: cofferdam_carried::MEMORY };
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
    let manifest = crate::inspect::Manifest {
        imports: Vec::new(),
        exports: Vec::new(),
        grants: BTreeSet::new(),
        abilities: BTreeSet::new(),
    };
    Arc::new(Parts {
        engine: wasm.clone(),
        compiled: Arc::new(Compiled { digest, size: 0, manifest, pre, exports, slots: 1 }),
        shared: loader::bare("memory", BTreeMap::new(), &Limits::default()).await.unwrap(),
        limits: Limits::default(),
        secrets: Secrets::default(),
        slots: crate::slots::Share::new(Arc::default()),
        lane: engine.inner.lane(),
    })
}

#[tokio::test]
async fn a_panic_of_the_host_is_a_typed_error() {
    let engine = engine();
    let parts = parts(&engine).await;
    for _ in 0..2 {
        let end = spawn(&engine.inner, Arc::clone(&parts), context(), "describe", exports::describe()).await;
        assert_eq!(end.answer.map(drop), Err(Failure::Panic));
    }
    // The engine and its threads are as they were: another backend loads and answers.
    let source = Source::Bytes { name: "memory".to_owned(), bytes: cofferdam_carried::MEMORY };
    engine.load(source, BackendConfig::default()).await.unwrap();
}
