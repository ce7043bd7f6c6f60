//! Malformed and hostile components, written as WebAssembly text: each is rejected at load or fails its call,
//! with a typed error of one line and bounded length, and a well-behaved component or call then works. Some
//! are valid and are loaded: one that handles a rejected growth of its memory, and one that is not ready. A
//! reused instance slot holds no data of an earlier guest.
#![expect(clippy::unwrap_used, reason = "a helper of tests fails as a test does")]

mod common;
mod wat;

use std::{sync::Arc, time::Duration};

use cofferdam_backend::{Backend as _, Call};
use cofferdam_domain::{
    VolumeHandle,
    storage::{ErrorKind, Finality, Secret},
};
use cofferdam_wasm::{
    BackendConfig, CompiledCache, ComponentSource, Engine, EngineOptions, Grant, Limits, LoadError,
    WasmBackend,
};
use common::{call, create, request};
use wat::{
    CREATE_RESULT, DELETE_RESULT, DESCRIBE_RESULT, FREE_MEMORY, PROBE_RESULT, WatGuest, words_segment,
};

const LOOP: &str = "(loop $l (br $l)) (unreachable)";
/// Maximum length of an error message: a guest's text of 1,000 bytes, and the host's text around it.
const MAX_MESSAGE_BYTES: usize = 1_500;

/// A small CPU limit, a shorter deadline than the default, and a circuit breaker that does not open.
fn limits() -> Limits {
    Limits { breaker_failures: 1_000, cpu_ms: 50, deadline_ms: 20_000, ..Limits::default() }
}

/// An engine without a cache: no later run needs the compiled code of these guests.
fn engine() -> Engine {
    Engine::new(EngineOptions { cache: CompiledCache::Off, ..EngineOptions::default() }).unwrap()
}

async fn load_guest(
    engine: &Engine,
    guest: &WatGuest,
    limits: Limits,
) -> Result<Arc<WasmBackend>, LoadError> {
    load_binary(engine, guest.binary(), limits).await
}

async fn load_binary(
    engine: &Engine,
    bytes: &'static [u8],
    limits: Limits,
) -> Result<Arc<WasmBackend>, LoadError> {
    let source = ComponentSource::Bytes { name: "x.wasm".to_owned(), bytes };
    let grants = Grant::ALL.into();
    let config = BackendConfig { limits, grants, class_secrets: true, ..BackendConfig::default() };
    engine.load(source, config).await
}

fn assert_one_line(text: &str, expected: &str) {
    assert!(text.contains(expected), "expected {expected:?} in: {text}");
    assert!(
        text.len() <= MAX_MESSAGE_BYTES && !text.chars().any(char::is_control),
        "{} bytes: {text:?}",
        text.len()
    );
}

/// Asserts that a component is rejected at load, and that the engine still loads and runs a well-behaved one.
async fn assert_load_rejected(guest: &WatGuest, limits: Limits, expected: &str) {
    let engine = engine();
    let error = load_guest(&engine, guest, limits).await.unwrap_err().to_string();
    assert!(error.starts_with("x.wasm: "), "{error}");
    assert_one_line(&error, expected);
    assert_works(&load_guest(&engine, &WatGuest::default(), Limits::default()).await.unwrap()).await;
}

async fn assert_works(backend: &WasmBackend) {
    assert_eq!(create(backend, "well-behaved", 7).await.unwrap().handle, VolumeHandle::new("v"));
}

/// Asserts that `create` fails twice with an internal error of unknown outcome, while `delete` of the same
/// backend works.
async fn assert_create_fails(guest: &WatGuest, limits: Limits, expected: &str) {
    let backend = load_guest(&engine(), guest, limits).await.unwrap();
    for _ in 0..2 {
        let error = create(&backend, "x", 7).await.unwrap_err();
        assert_eq!((error.kind, error.finality), (ErrorKind::Internal, Finality::Unknown), "{error}");
        assert_one_line(&error.message, expected);
        backend.delete_volume(call(), VolumeHandle::new("v")).await.unwrap();
    }
}

fn with_core(core: impl Into<String>) -> WatGuest {
    WatGuest { core_items: core.into(), ..WatGuest::default() }
}

fn with_create(create: &str) -> WatGuest {
    WatGuest { create: create.to_owned(), ..WatGuest::default() }
}

#[tokio::test]
async fn well_behaved_guest_works() {
    let backend = load_guest(&engine(), &WatGuest::default(), limits()).await.unwrap();
    assert_works(&backend).await;
    backend.delete_volume(call(), VolumeHandle::new("v")).await.unwrap();
    backend.probe(call()).await.unwrap();
}

#[tokio::test]
async fn invalid_pointers_and_lengths_trap() {
    let handle = CREATE_RESULT + 8;
    let context = CREATE_RESULT + 32;
    let text = |bytes: &[u8]| {
        let length = u32::try_from(bytes.len()).unwrap();
        words_segment(handle, &[FREE_MEMORY, length]) + &wat::bytes_segment(FREE_MEMORY, bytes)
    };
    let unaligned = "list pointer is not aligned";
    #[rustfmt::skip] // one row a lie
    let lies: [(&str, String, &str); 11] = [
        ("a text beyond the memory",        words_segment(handle, &[65_530, 100]),          "pointer"),
        ("a text that begins beyond it",    words_segment(handle, &[0x7fff_ffff, 1]),       "pointer"),
        ("a text that ends where it wraps", words_segment(handle, &[0xffff_fff0, 0x20]),    "pointer"),
        ("a text of 4 GiB",                 words_segment(handle, &[0, u32::MAX]),          "pointer"),
        ("a text in UTF-16's lone halves",  text(b"\xed\xa0\x80"),                          "utf-8"),
        ("a text that is no UTF-8",         text(b"\xff\xfe"),                              "utf-8"),
        ("a list beyond the memory",        words_segment(context, &[65_520, 1_000]),       "list"),
        ("a list of 4 Gi entries",          words_segment(context, &[0, u32::MAX]),         "list"),
        ("a list that is not aligned",      words_segment(context, &[FREE_MEMORY + 1, 1]),  unaligned),
        ("an option that is neither",       words_segment(CREATE_RESULT + 16, &[2]),        "discriminant"),
        ("a result that is neither",        words_segment(CREATE_RESULT, &[7]),             "discriminant"),
    ];
    for (lie, data, expected) in lies {
        println!("{lie}");
        assert_create_fails(&with_core(data), limits(), expected).await;
    }
    println!("an answer beyond the memory");
    assert_create_fails(&with_create("(i32.const 65535)"), limits(), "pointer").await;
    println!("an answer that is not aligned");
    assert_create_fails(&with_create("(i32.const 2049)"), limits(), "aligned").await;
}

#[tokio::test]
async fn invalid_enum_values_trap() {
    // A well-formed failure whose kind, option or finality does not exist.
    for (offset, value) in [(8, 200), (24, 9), (40, 3)] {
        let data = words_segment(CREATE_RESULT, &[1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])
            + &words_segment(CREATE_RESULT + offset, &[value]);
        assert_create_fails(&with_core(data), limits(), "trapped").await;
    }
}

#[tokio::test]
async fn invalid_volume_sizes_are_rejected() {
    let size = CREATE_RESULT + 24;
    for (words_of_size, expected) in [
        ([u32::MAX, u32::MAX], "the volume's size is 18446744073709551615 bytes"),
        ([0, 0x8000_0000], "the volume's size is 9223372036854775808 bytes"),
        ([0, 0], "the volume's size is 0 bytes; expected 1 to 9223372036854775807"),
    ] {
        assert_create_fails(&with_core(words_segment(size, &words_of_size)), limits(), expected).await;
    }
}

#[tokio::test]
async fn results_over_the_limit_are_rejected() {
    // 5 MiB of a's: within the memory, over the limit.
    let large = WatGuest {
        memory: r#"(memory (export "memory") 100)"#.to_owned(),
        create: format!(
            "(memory.fill (i32.const 65536) (i32.const 97) (i32.const 5242880)) (i32.const {CREATE_RESULT})"
        ),
        core_items: words_segment(CREATE_RESULT + 8, &[65_536, 5 << 20]),
        ..WatGuest::default()
    };
    assert_create_fails(&large, limits(), "passed a value of more than 4194304 bytes (limit `result-bytes`)")
        .await;
    // One entry of the list many times: little memory of the guest, much of the host.
    let many = WatGuest {
        memory: large.memory.clone(),
        ..with_core(words_segment(CREATE_RESULT + 32, &[65_536, 300_000]))
    };
    assert_create_fails(&many, limits(), "passed a value of more than 4194304 bytes (limit `result-bytes`)")
        .await;
}

#[tokio::test]
async fn endless_loop_in_any_function_is_stopped() {
    let computed = "computed for more than 50ms (limit `cpu-ms`)";
    let start = with_core(format!("(func $s {LOOP}) (start $s)"));
    assert_load_rejected(&start, limits(), computed).await;
    let describe = WatGuest { describe: LOOP.to_owned(), ..WatGuest::default() };
    assert_load_rejected(&describe, limits(), computed).await;
    let probe = WatGuest { probe: LOOP.to_owned(), ..WatGuest::default() };
    assert_load_rejected(&probe, limits(), computed).await;
    assert_create_fails(&with_create(LOOP), limits(), computed).await;
    let post = WatGuest { post_create: LOOP.to_owned(), ..WatGuest::default() };
    assert_create_fails(&post, limits(), computed).await;
    // `realloc` runs only in calls with strings, such as `create` and `delete`, so the component loads.
    let realloc = WatGuest { realloc: LOOP.to_owned(), ..WatGuest::default() };
    assert_only_create_fails(&realloc, computed).await;
    // Each iteration of this loop is mainly one long-running instruction.
    let fill = "(loop $l (memory.fill (i32.const 0) (i32.const 0) (i32.const 65536)) (br $l)) (unreachable)";
    assert_create_fails(&with_create(fill), limits(), computed).await;
}

/// Asserts that `create` fails, while `probe`, which has no string arguments, works. For defects of
/// `realloc`.
async fn assert_only_create_fails(guest: &WatGuest, expected: &str) {
    let backend = load_guest(&engine(), guest, limits()).await.unwrap();
    for _ in 0..2 {
        let error = create(&backend, "x", 7).await.unwrap_err();
        assert_eq!((error.kind, error.finality), (ErrorKind::Internal, Finality::Unknown), "{error}");
        assert_one_line(&error.message, expected);
    }
    backend.probe(call()).await.unwrap();
}

#[tokio::test]
async fn trap_in_any_function_is_reported() {
    let unreachable = "trapped: wasm `unreachable` instruction executed";
    let start = with_core("(func $s (unreachable)) (start $s)");
    assert_load_rejected(&start, limits(), unreachable).await;
    let describe = WatGuest { describe: "(unreachable)".to_owned(), ..WatGuest::default() };
    assert_load_rejected(&describe, limits(), "identity.describe failed: Internal: the backend trapped")
        .await;
    let probe = WatGuest { probe: "(unreachable)".to_owned(), ..WatGuest::default() };
    assert_load_rejected(&probe, limits(), "identity.probe failed: Internal: the backend trapped").await;
    let post = WatGuest { post_create: "(unreachable)".to_owned(), ..WatGuest::default() };
    assert_create_fails(&post, limits(), unreachable).await;
    let realloc = WatGuest { realloc: "(unreachable)".to_owned(), ..WatGuest::default() };
    assert_only_create_fails(&realloc, unreachable).await;
    for (address, expected) in [("-1", "trapped: realloc return: "), ("65535", "trapped: realloc return: ")] {
        let realloc = WatGuest { realloc: format!("(i32.const {address})"), ..WatGuest::default() };
        assert_only_create_fails(&realloc, expected).await;
    }
    for (code, expected) in [
        ("(i32.div_u (i32.const 1) (i32.const 0))", "trapped: integer divide by zero"),
        ("(i32.load (i32.const 65536))", "trapped: out of bounds memory access"),
        ("(drop (call $r)) (unreachable)", "trapped: call stack exhausted"),
        ("(call_indirect (result i32) (i32.const 5))", "trapped: "),
    ] {
        let core = "(table 1 funcref) (func $r (result i32) (i32.add (call $r) (i32.const 1)))".to_owned();
        assert_create_fails(&WatGuest { core_items: core, ..with_create(code) }, limits(), expected).await;
    }
}

/// Instance slots are reused. Each guest checks its memory and table, and traps if it finds data of an
/// earlier guest.
#[tokio::test]
async fn reused_instances_hold_no_data_of_earlier_guests() {
    // Pages of the first memory, of what it has grown by, and an element of a table.
    let look = r#"
        (if (i32.ne (memory.grow (i32.const 20)) (i32.const 1)) (then (unreachable)))
        (local.set $at (i32.const 32768))
        (loop $l
            (if (i32.load (local.get $at)) (then (unreachable)))
            (i32.store (local.get $at) (i32.const -1))
            (local.set $at (i32.add (local.get $at) (i32.const 1024)))
            (br_if $l (i32.lt_u (local.get $at) (i32.const 1376000))))
        (if (i32.eqz (ref.is_null (table.get $marks (i32.const 9)))) (then (unreachable)))
        (table.set $marks (i32.const 9) (ref.func $mark))"#;
    let core = r#"(table $marks 10 funcref) (elem declare func $mark) (func $mark)
        (func $look (local $at i32) "#
        .to_owned()
        + look
        + ")";
    // One guest succeeds and one traps, so that slots are released in both ways.
    let tidy = WatGuest {
        core_items: core.clone(),
        ..with_create(&format!("(call $look) (i32.const {})", wat::CREATE_RESULT))
    };
    let messy = WatGuest {
        core_items: core,
        ..with_create("(call $look) (call_indirect (result i32) (i32.const 5))")
    };
    let engine = engine();
    let tidy = load_guest(&engine, &tidy, Limits::default()).await.unwrap();
    let messy = load_guest(&engine, &messy, Limits { breaker_failures: u32::MAX, ..Limits::default() })
        .await
        .unwrap();
    for _ in 0..8 {
        let calls = (0..16).map(|number| {
            let (tidy, messy) = (&tidy, &messy);
            async move {
                let error = create(messy, &format!("messy-{number}"), 7).await.unwrap_err();
                assert!(!error.message.contains("unreachable"), "{error}");
                create(tidy, &format!("tidy-{number}"), 7).await.unwrap();
            }
        });
        futures::future::join_all(calls).await;
    }
}

#[tokio::test]
async fn memory_limit_holds_for_every_kind_of_growth() {
    let memory = "exceeded 67108864 bytes of memory (limit `memory-bytes`)";
    let one_big = WatGuest { memory: r#"(memory (export "memory") 2000)"#.to_owned(), ..WatGuest::default() };
    assert_load_rejected(&one_big, limits(), memory).await;
    let several = with_core("(memory 600) (memory 600)");
    assert_load_rejected(&several, limits(), memory).await;
    let in_start = with_core(
        "(func $s (if (i32.eq (memory.grow (i32.const 60000)) (i32.const -1)) (then (unreachable))))
         (start $s)",
    );
    assert_load_rejected(&in_start, limits(), memory).await;
    let grown = "(if (i32.eq (memory.grow (i32.const 1023)) (i32.const -1)) (then (unreachable)))";
    assert_create_fails(
        &WatGuest {
            core_items: "(memory $own 2)".to_owned(),
            ..with_create(&format!("{grown} (i32.const {CREATE_RESULT})"))
        },
        limits(),
        memory,
    )
    .await;
    let many_small = "
        (loop $l
          (if (i32.eq (memory.grow (i32.const 1)) (i32.const -1)) (then (unreachable)))
          (br $l))
        (unreachable)";
    assert_create_fails(&with_create(many_small), limits(), memory).await;
    // A guest that handles the rejection continues.
    let modest = with_create(&format!("(drop (memory.grow (i32.const 60000))) (i32.const {CREATE_RESULT})"));
    assert_works(&load_guest(&engine(), &modest, limits()).await.unwrap()).await;
}

#[tokio::test]
async fn tables_instances_and_memories_are_bounded() {
    let elements = "exceeded 20000 elements of a table (limit `table-elements`)";
    assert_load_rejected(&with_core("(table 20001 funcref)"), limits(), elements).await;
    let grow = "
        (if (i32.eq (table.grow $t (ref.null func) (i32.const 1000000)) (i32.const -1)) (then (unreachable)))
        (unreachable)";
    assert_create_fails(
        &WatGuest { core_items: "(table $t 1 funcref)".to_owned(), ..with_create(grow) },
        limits(),
        elements,
    )
    .await;
    assert_load_rejected(
        &with_core("(table 1 funcref)".repeat(17)),
        limits(),
        "exceeded 16 tables (limit `tables`)",
    )
    .await;
    assert_load_rejected(
        &with_core("(memory 0)".repeat(8)),
        limits(),
        "exceeded 8 memories (limit `memories`)",
    )
    .await;
    let bomb = (0..130).fold("(core module $b)".to_owned(), |text, n| {
        text + &format!("(core instance $b{n} (instantiate $b))")
    });
    assert_load_rejected(
        &WatGuest { imports: bomb, ..WatGuest::default() },
        limits(),
        "exceeded 128 instances (limit `instances`)",
    )
    .await;
}

#[tokio::test]
async fn exponentially_nested_components_are_rejected() {
    // Each level instantiates the one below twice: 2^20 instances in a small file.
    let mut text = "(component $c0 (core module $m) (core instance (instantiate $m)))".to_owned();
    for level in 1..=20 {
        let below = level - 1;
        text += &format!(
            "(component $c{level}
               (alias outer 1 $c{below} (component $b))
               (instance (instantiate $b))
               (instance (instantiate $b)))"
        );
    }
    let bomb = WatGuest { imports: text + "(instance (instantiate $c20))", ..WatGuest::default() };
    let found = "cannot be instantiated: The component transitively contains 1048578 core module \
                 instances, which exceeds the configured maximum of 1024";
    assert_load_rejected(&bomb, limits(), found).await;
    let deep = WatGuest { imports: "(component ".repeat(80) + &")".repeat(80), ..WatGuest::default() };
    let engine = engine();
    assert_works(&load_guest(&engine, &deep, limits()).await.unwrap()).await;
}

#[tokio::test]
async fn unsupported_contract_versions_are_rejected() {
    for (version, accepted) in
        [("0.1.99", true), ("0.1.0", true), ("0.2.0", false), ("1.0.0", false), ("0.1.0-rc.1", false)]
    {
        let guest = WatGuest { version: version.to_owned(), ..WatGuest::default() };
        if accepted {
            assert_works(&load_guest(&engine(), &guest, limits()).await.unwrap()).await;
        } else {
            let expected = format!("speaks `cofferdam:storage/identity@{version}`; this program speaks");
            assert_load_rejected(&guest, limits(), &expected).await;
        }
    }
    let stranger = WatGuest { package: "cofferdam:storag".to_owned(), ..WatGuest::default() };
    assert_load_rejected(&stranger, limits(), "does not export `cofferdam:storage/identity@0.1.0`").await;
}

#[tokio::test]
async fn optional_exports_with_a_wrong_type_are_rejected() {
    for (exports, expected) in [
        (r#"(instance $o) (export "cofferdam:storage/snapshots@0.1.0" (instance $o))"#, "snapshots"),
        (
            r#"(instance $o (export "get" (func $delete)))
               (export "cofferdam:storage/inspection@0.1.0" (instance $o))"#,
            "inspection",
        ),
        (r#"(export "cofferdam:storage/listing@0.1.0" (func $probe))"#, "listing"),
    ] {
        let guest = WatGuest { exports: exports.to_owned(), ..WatGuest::default() };
        assert_load_rejected(&guest, limits(), "does not match the contract: ").await;
        let error = load_guest(&engine(), &guest, limits()).await.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let extra = r#"(instance $o (export "init" (func $probe))) (export "init" (instance $o))
        (export "vendor:own/thing@3.0.0" (instance $o))
        (export "cofferdam:storage/later@0.1.7" (instance $o))"#;
    assert_works(
        &load_guest(&engine(), &WatGuest { exports: extra.to_owned(), ..WatGuest::default() }, limits())
            .await
            .unwrap(),
    )
    .await;
}

#[tokio::test]
async fn imports_with_a_wrong_type_are_rejected_by_name() {
    for (interface, function) in [
        ("log", "write"),
        ("ambient", "now-ms"),
        ("ambient", "random-bytes"),
        ("deadline", "remaining-ms"),
        ("sign", "hmac"),
        ("sign", "digest"),
        ("settings", "get"),
        ("settings", "entries"),
        ("secrets", "names"),
        ("secrets", "get"),
        ("reveal", "reveal"),
        ("state", "get"),
        ("state", "commit"),
        ("state", "scan"),
        ("session", "acquire"),
        ("session", "put"),
        ("session", "release"),
        ("http", "send"),
        ("pool", "create-image"),
        ("pool", "copy"),
        ("pool", "scan"),
    ] {
        let imports = format!(
            r#"(import "cofferdam:storage/{interface}@0.1.0"
                 (instance (export "{function}" (func (param "x" f64) (result char)))))"#
        );
        let guest = WatGuest { imports, ..WatGuest::default() };
        let expected = format!(
            "does not match the contract: component imports instance `cofferdam:storage/{interface}@0.1.0`"
        );
        assert_load_rejected(&guest, limits(), &expected).await;
    }
    let missing = r#"
        (import "cofferdam:storage/settings@0.1.0" (instance (export "set" (func (param "key" string)))))"#;
    assert_load_rejected(
        &WatGuest { imports: missing.to_owned(), ..WatGuest::default() },
        limits(),
        "settings@0.1.0",
    )
    .await;
    let no_instance = r#"(import "cofferdam:storage/log@0.1.0" (func))"#;
    assert_load_rejected(
        &WatGuest { imports: no_instance.to_owned(), ..WatGuest::default() },
        limits(),
        "log@0.1.0",
    )
    .await;
}

#[tokio::test]
async fn unknown_imports_are_rejected_with_a_hint() {
    for (import, expected) in [
        (
            "wasi:http/outgoing-handler@0.2.0",
            "use the contract's `http` import; JavaScript: build with `disableFeatures",
        ),
        ("wasi:sockets/tcp@0.2.6", "use the contract's `http` import; Python: build with `componentize-py"),
        ("wasi:sockets/instance-network@0.2.0", "which this program does not offer"),
        ("wasi:keyvalue/store@0.2.0-draft", "which this program does not offer"),
        ("wasi:cli/run@0.2.0", "which this program does not offer"),
        ("wasi:io/poll@0.3.0", "which this program does not offer"),
        (
            "cofferdam:storage/mount@0.1.0",
            "which this program does not offer; it offers cofferdam:storage/{log",
        ),
        ("cofferdam:storage/state@0.2.0", "speaks `cofferdam:storage/state@0.2.0`"),
    ] {
        let imports = format!(r#"(import "{import}" (instance))"#);
        let guest = WatGuest { imports, ..WatGuest::default() };
        assert_load_rejected(&guest, limits(), expected).await;
        assert_load_rejected(&guest, limits(), &format!("`{import}`")).await;
    }
}

#[tokio::test]
async fn oversized_and_malformed_import_names_are_rejected() {
    let long = format!("a{}", "-b".repeat(1 << 20));
    let guest = WatGuest { imports: format!(r#"(import "{long}" (func))"#), ..WatGuest::default() };
    let error = load_guest(&engine(), &guest, limits()).await.unwrap_err().to_string();
    assert_one_line(&error, "x.wasm: ");
    let guest =
        WatGuest { imports: format!(r#"(import "{}" (func))"#, &long[..40_001]), ..WatGuest::default() };
    assert_load_rejected(&guest, limits(), "which this program does not offer").await;
    // A name that the text parser would reject: its bytes are changed in the binary.
    let good = WatGuest { imports: r#"(import "evil-thing" (func))"#.to_owned(), ..WatGuest::default() };
    let mut binary = good.binary().to_vec();
    let at = binary.windows(10).position(|window| window == b"evil-thing").unwrap();
    binary[at + 4..at + 6].copy_from_slice(b"\n\x1b");
    let error = load_binary(&engine(), binary.leak(), limits()).await.unwrap_err().to_string();
    assert_one_line(&error, "x.wasm: is not a valid WebAssembly component: ");
}

#[tokio::test]
async fn files_that_are_not_components_are_rejected() {
    let engine = engine();
    let good = WatGuest::default().binary();
    let machine_code = wasmtime::Engine::default().precompile_component(good).unwrap().leak();
    let with_core = [&good[..4], &[1, 0, 0, 0], &good[8..]].concat().leak();
    for (bytes, expected) in [
        (&*machine_code, "is compiled machine code, which is never loaded from a file"),
        (&*with_core, "is a core WebAssembly module"),
        (b"(component)", "is WebAssembly text"),
        (b"\0asm\x0d\0\x01\0\xff\xff\xff\xff\xff", "is not a valid WebAssembly component"),
        (vec![0; 65 << 20].leak(), "has 68157440 bytes; at most 67108864 are allowed (limit `file-bytes`)"),
    ] {
        assert_one_line(&load_binary(&engine, bytes, limits()).await.unwrap_err().to_string(), expected);
    }
    assert_works(&load_binary(&engine, good, limits()).await.unwrap()).await;
}

#[tokio::test]
async fn truncated_or_corrupted_component_is_rejected_with_an_error() {
    let engine = engine();
    let memory = cofferdam_carried::MEMORY;
    for part in 0..64 {
        let error = load_binary(&engine, &memory[..memory.len() * part / 64], limits()).await.unwrap_err();
        // A cut between two sections leaves a valid component that lacks the later sections.
        assert_one_line(&error.to_string(), "x.wasm: ");
    }
    // A corrupted file may still be valid: then it loads, and its calls end.
    let good = WatGuest::default().binary();
    for part in 0..64 {
        let mut garbled = good.to_vec();
        let at = 8 + (garbled.len() - 8) * part / 64;
        garbled[at] ^= 0x55;
        match load_binary(&engine, garbled.leak(), limits()).await {
            Ok(backend) => drop(create(&backend, "x", 7).await),
            Err(error) => assert_one_line(&error.to_string(), "x.wasm: "),
        }
    }
    assert_works(&load_binary(&engine, good, limits()).await.unwrap()).await;
}

#[tokio::test]
async fn oversized_ids_are_accepted_in_and_rejected_out() {
    let backend = load_guest(&engine(), &WatGuest::default(), limits()).await.unwrap();
    let long = "i".repeat(10 << 10);
    create(&backend, &long, 7).await.unwrap();
    backend.delete_volume(call(), VolumeHandle::new(&*long)).await.unwrap();
    let handle = with_core(words_segment(CREATE_RESULT + 8, &[65_536, 10 << 10]));
    let handle = WatGuest { memory: r#"(memory (export "memory") 2)"#.to_owned(), ..handle };
    assert_create_fails(&handle, limits(), "the volume handle has 10240 bytes; expected 1 to 128").await;
}

/// A guest that imports `secrets` and `reveal`, with this body of `create`.
fn with_secrets(create: &str) -> WatGuest {
    WatGuest {
        imports: r#"
  (import "cofferdam:storage/types@0.1.0" (instance $types (export "secret" (type (sub resource)))))
  (alias export $types "secret" (type $secret))
  (import "cofferdam:storage/secrets@0.1.0" (instance $secrets
    (alias outer 1 $secret (type $s')) (export "secret" (type $s (eq $s')))
    (export "get" (func (param "name" string) (result (option (own $s)))))))
  (import "cofferdam:storage/reveal@0.1.0" (instance $reveal
    (alias outer 1 $secret (type $s')) (export "secret" (type $s (eq $s')))
    (export "reveal" (func (param "secret" (borrow $s)) (result string)))))
  (core func $get (canon lower (func $secrets "get")
    (memory (core memory $libc "memory")) (realloc (core func $libc "realloc"))))
  (core func $reveal (canon lower (func $reveal "reveal")
    (memory (core memory $libc "memory")) (realloc (core func $libc "realloc"))))
  (core func $drop (canon resource.drop $secret))"#
            .to_owned(),
        instantiation_args: r#"
    (with "host" (instance
      (export "get" (func $get))
      (export "reveal" (func $reveal))
      (export "drop" (func $drop))))"#
            .to_owned(),
        core_imports: r#"
    (import "host" "get" (func $get (param i32 i32 i32)))
    (import "host" "reveal" (func $reveal (param i32 i32)))
    (import "host" "drop" (func $drop (param i32)))"#
            .to_owned(),
        // The secret's name, as the argument of `get`.
        core_items: wat::bytes_segment(FREE_MEMORY, b"password"),
        create: create.to_owned(),
        ..WatGuest::default()
    }
}

fn secret_call() -> Call {
    Call {
        secrets: [("password".to_owned(), Secret::new("hunter2-hunter2"))].into_iter().collect(),
        ..call()
    }
}

#[tokio::test]
async fn forged_and_dropped_handles_trap() {
    let get = format!("(call $get (i32.const {FREE_MEMORY}) (i32.const 8) (i32.const 4200))");
    let handle = "(i32.load (i32.const 4204))";
    for (create, expected) in [
        ("(call $reveal (i32.const 1) (i32.const 4300))".to_owned(), "trapped: "),
        ("(call $reveal (i32.const -1) (i32.const 4300))".to_owned(), "trapped: "),
        ("(call $drop (i32.const 1))".to_owned(), "trapped: "),
        (format!("{get} (call $drop {handle}) (call $drop {handle})"), "trapped: "),
        (format!("{get} (call $drop {handle}) (call $reveal {handle} (i32.const 4300))"), "trapped: "),
        (format!("(loop $l {get} (br $l))"), "exceeded 1024 handles (limit `handles`)"),
        ("(call $get (i32.const 65000) (i32.const 4000) (i32.const 4200))".to_owned(), "trapped: "),
        (format!("(call $get (i32.const {FREE_MEMORY}) (i32.const 8) (i32.const -4))"), "trapped: "),
    ] {
        let guest = with_secrets(&format!("{create} (i32.const {CREATE_RESULT})"));
        let roomy = Limits { cpu_ms: 5_000, ..limits() };
        let backend = load_guest(&engine(), &guest, roomy).await.unwrap();
        let error = backend.create_volume(secret_call(), request("x", 7)).await.unwrap_err();
        assert_eq!((error.kind, error.finality), (ErrorKind::Internal, Finality::Unknown), "{error}");
        assert_one_line(&error.message, expected);
        backend.delete_volume(secret_call(), VolumeHandle::new("v")).await.unwrap();
    }
}

#[tokio::test]
async fn revealed_secret_is_rejected_as_a_volume_handle() {
    let create = format!(
        "(call $get (i32.const {FREE_MEMORY}) (i32.const 8) (i32.const 4200))
         (call $reveal (i32.load (i32.const 4204)) (i32.const {}))
         (i32.const {CREATE_RESULT})",
        CREATE_RESULT + 8
    );
    let backend = load_guest(&engine(), &with_secrets(&create), limits()).await.unwrap();
    let error = backend.create_volume(secret_call(), request("x", 7)).await.unwrap_err();
    assert_one_line(&error.message, "the volume handle contains a secret of the call");
    assert!(!error.message.contains("hunter2"));
}

#[tokio::test]
async fn resource_of_another_type_is_not_accepted_as_a_secret() {
    // A resource of the guest's own, passed where a secret is expected: the validator sees it.
    let imports = r#"
  (import "cofferdam:storage/types@0.1.0" (instance $types))
  (type $own (resource (rep i32)))
  (import "cofferdam:storage/reveal@0.1.0" (instance $reveal
    (export "secret" (type $s (sub resource)))
    (export "reveal" (func (param "secret" (borrow $s)) (result string)))))"#;
    let guest = WatGuest { imports: imports.to_owned(), ..WatGuest::default() };
    let own = load_guest(&engine(), &guest, limits()).await.unwrap_err().to_string();
    assert_one_line(&own, "instance export `secret` has the wrong type");
    let stolen = r#"
  (import "cofferdam:storage/types@0.1.0" (instance $types (export "secret" (type (sub resource)))))
  (alias export $types "secret" (type $secret))
  (core func $new (canon resource.new $secret))"#;
    let text = WatGuest { imports: stolen.to_owned(), ..WatGuest::default() };
    // Guests cannot create secrets: only the definer of a resource type can create its handles.
    assert_load_rejected(&text, limits(), "is not a valid WebAssembly component").await;
}

#[tokio::test]
async fn random_bytes_over_the_limit_trap() {
    let guest = WatGuest {
        imports: r#"(import "cofferdam:storage/ambient@0.1.0" (instance $ambient
              (export "random-bytes" (func (param "length" u32) (result (list u8))))))
  (core func $random (canon lower (func $ambient "random-bytes")
    (memory (core memory $libc "memory")) (realloc (core func $libc "realloc"))))"#
            .to_owned(),
        instantiation_args: r#"(with "host" (instance (export "random" (func $random))))"#.to_owned(),
        core_imports: r#"(import "host" "random" (func $random (param i32 i32)))"#.to_owned(),
        create: format!(
            "(call $random (i32.const -1) (i32.const {FREE_MEMORY}))
             (i32.const {CREATE_RESULT})"
        ),
        ..WatGuest::default()
    };
    assert_create_fails(
        &guest,
        limits(),
        "trapped: 4294967295 random bytes at once; at most 4096 are allowed",
    )
    .await;
}

#[tokio::test]
async fn invalid_log_arguments_trap() {
    let guest = |call: &str| WatGuest {
        imports: r#"(import "cofferdam:storage/log@0.1.0" (instance $log
    (type $l' (enum "trace" "debug" "info" "warn" "error")) (export "level" (type $l (eq $l')))
    (export "write" (func
      (param "level" $l) (param "message" string) (param "fields" (list (tuple string string)))))))
  (core func $write (canon lower (func $log "write")
    (memory (core memory $libc "memory")) (realloc (core func $libc "realloc"))))"#
            .to_owned(),
        instantiation_args: r#"(with "host" (instance (export "write" (func $write))))"#.to_owned(),
        core_imports: r#"(import "host" "write" (func $write (param i32 i32 i32 i32 i32)))"#.to_owned(),
        create: format!("{call} (i32.const {CREATE_RESULT})"),
        ..WatGuest::default()
    };
    let write = |level: i32, text: i32, length: i32, fields: i32, count: i32| {
        format!(
            "(call $write
               (i32.const {level})
               (i32.const {text}) (i32.const {length})
               (i32.const {fields}) (i32.const {count}))"
        )
    };
    for (line, expected) in [
        (write(77, 40, 1, 0, 0), "trapped: "),
        (write(2, 65_000, 4_000, 0, 0), "trapped: "),
        (write(2, 40, -1, 0, 0), "trapped: "),
        (write(2, 40, 1, 0, -1), "trapped: "),
        (write(2, 40, 1, 65_000, 1_000), "trapped: "),
        (write(2, 40, 1, 3, 1), "trapped: "),
    ] {
        assert_create_fails(&guest(&line), limits(), expected).await;
    }
    // A flood by fields: thousands of empty ones in each line, in a loop. Lines are dropped, and the guest
    // exceeds its CPU limit.
    let flood = format!("(loop $l {} (br $l))", write(2, 40, 0, 8_192, 400));
    assert_create_fails(&guest(&flood), limits(), "computed for more than 50ms").await;
}

#[tokio::test]
async fn sleeping_guest_is_stopped_at_the_deadline() {
    let guest = WatGuest {
        imports: r#"
  (import "wasi:io/poll@0.2.0" (instance $poll (export "pollable" (type $p (sub resource)))
    (export "[method]pollable.block" (func (param "self" (borrow $p))))))
  (alias export $poll "pollable" (type $pollable))
  (import "wasi:clocks/monotonic-clock@0.2.0" (instance $clock
    (alias outer 1 $pollable (type $p')) (export "pollable" (type $p (eq $p')))
    (export "subscribe-duration" (func (param "when" u64) (result (own $p))))))
  (core func $subscribe (canon lower (func $clock "subscribe-duration")))
  (core func $block (canon lower (func $poll "[method]pollable.block")))"#
            .to_owned(),
        instantiation_args: r#"
    (with "host" (instance
      (export "subscribe" (func $subscribe))
      (export "block" (func $block))))"#
            .to_owned(),
        core_imports: r#"(import "host" "subscribe" (func $subscribe (param i64) (result i32)))
    (import "host" "block" (func $block (param i32)))"#
            .to_owned(),
        create: format!("(call $block (call $subscribe (i64.const -1))) (i32.const {CREATE_RESULT})"),
        ..WatGuest::default()
    };
    let backend = load_guest(&engine(), &guest, limits()).await.unwrap();
    let mut hurried = call();
    hurried.deadline = Duration::from_millis(100);
    let error = backend.create_volume(hurried, request("x", 7)).await.unwrap_err();
    assert_eq!((error.kind, error.finality), (ErrorKind::DeadlineExceeded, Finality::Unknown), "{error}");
    backend.delete_volume(call(), VolumeHandle::new("v")).await.unwrap();
}

#[tokio::test]
async fn invalid_descriptions_are_rejected_at_load() {
    for (data, expected) in [
        (
            words_segment(DESCRIBE_RESULT + 8, &[0, u32::MAX]),
            "identity.describe failed: Internal: the backend trapped",
        ),
        (words_segment(DESCRIBE_RESULT + 12, &[0]), "the driver name is \"\"; expected a DNS subdomain"),
        (
            words_segment(DESCRIBE_RESULT + 16, &[FREE_MEMORY, 2]) + &wat::bytes_segment(FREE_MEMORY, b"1\n"),
            "the version \"1 \" has control characters",
        ),
        (words_segment(DESCRIBE_RESULT + 20, &[129]), "the version has 129 bytes; expected 1 to 128"),
        (
            words_segment(DESCRIBE_RESULT + 32, &[2]),
            "identity.describe failed: Internal: the backend trapped",
        ),
        (
            words_segment(DESCRIBE_RESULT + 24, &[FREE_MEMORY, 2])
                + &words_segment(FREE_MEMORY, &[32, 1, 32, 1]),
            "the topology key \"1\" is given twice",
        ),
        (
            words_segment(DESCRIBE_RESULT + 44, &[FREE_MEMORY, 65]),
            "the description has 65 features; expected 0 to 64",
        ),
        (words_segment(DESCRIBE_RESULT, &[1]), "identity.describe failed: "),
        (words_segment(PROBE_RESULT + 8, &[2]), "identity.probe failed: Internal: the backend trapped"),
    ] {
        assert_load_rejected(&with_core(data), limits(), expected).await;
    }
    // A backend that is not ready, with a message of 40,000 bytes, is loaded.
    let text = words_segment(PROBE_RESULT + 8, &[1, 8_192, 40_000]);
    assert_works(&load_guest(&engine(), &with_core(text), limits()).await.unwrap()).await;
    // A deletion that fails with a text of control characters.
    let text = words_segment(DELETE_RESULT, &[1, 0, 11, FREE_MEMORY, 6, 0, 0, 0, 0, 0, 0])
        + &wat::bytes_segment(FREE_MEMORY, b"\x1b[31m\n");
    let backend = load_guest(&engine(), &with_core(text), limits()).await.unwrap();
    let error = backend.delete_volume(call(), VolumeHandle::new("v")).await.unwrap_err();
    assert_eq!((error.kind, error.message.as_str()), (ErrorKind::Unavailable, " [31m "));
}
