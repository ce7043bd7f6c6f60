//! Components that no honest compiler makes, written by hand: each gets a typed error of one short line, the process lives on,
//! and the next call works.
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
    BackendConfig, CompiledCache, Engine, EngineOptions, Grant, Limits, LoadError, Source, WasmBackend,
};
use common::{call, create, request};
use wat::{CREATE, DELETE, DESCRIBE, FREE, Guest, PROBE, words};

const LOOP: &str = "(loop $l (br $l)) (unreachable)";
/// Longest line that anybody gets to read: a guest's text of 1,000 bytes, and what is said around it.
const LINE: usize = 1_500;

/// Short times, and a breaker that stays out of the way.
fn limits() -> Limits {
    Limits { breaker_failures: 1_000, cpu_ms: 50, deadline_ms: 20_000, ..Limits::default() }
}

/// Compiled anew each time: a cache would fill with what no later run needs.
fn engine() -> Engine {
    Engine::new(EngineOptions { cache: CompiledCache::Off, ..EngineOptions::default() }).unwrap()
}

async fn load_with(engine: &Engine, guest: &Guest, limits: Limits) -> Result<Arc<WasmBackend>, LoadError> {
    load_binary(engine, guest.binary(), limits).await
}

async fn load_binary(
    engine: &Engine,
    bytes: &'static [u8],
    limits: Limits,
) -> Result<Arc<WasmBackend>, LoadError> {
    let source = Source::Bytes { name: "x.wasm".to_owned(), bytes };
    engine.load(source, BackendConfig { limits, grants: Grant::ALL.into(), ..BackendConfig::default() }).await
}

fn one_line(text: &str, expected: &str) {
    assert!(text.contains(expected), "expected {expected:?} in: {text}");
    assert!(text.len() <= LINE && !text.chars().any(char::is_control), "{} bytes: {text:?}", text.len());
}

/// A component is refused, and the engine goes on: a good one loads and works.
async fn refused(guest: &Guest, limits: Limits, expected: &str) {
    let engine = engine();
    let error = load_with(&engine, guest, limits).await.unwrap_err().to_string();
    assert!(error.starts_with("x.wasm: "), "{error}");
    one_line(&error, expected);
    works(&load_with(&engine, &Guest::default(), Limits::default()).await.unwrap()).await;
}

async fn works(backend: &WasmBackend) {
    assert_eq!(create(backend, "well-behaved", 7).await.unwrap().handle, VolumeHandle::new("v"));
}

/// A misdeed in `create` is an internal error with an open outcome, twice alike, while `delete` of the same backend works.
async fn fails(guest: &Guest, limits: Limits, expected: &str) {
    let backend = load_with(&engine(), guest, limits).await.unwrap();
    for _ in 0..2 {
        let error = create(&backend, "x", 7).await.unwrap_err();
        assert_eq!((error.kind, error.finality), (ErrorKind::Internal, Finality::Unknown), "{error}");
        one_line(&error.message, expected);
        backend.delete_volume(call(), VolumeHandle::new("v")).await.unwrap();
    }
}

fn core(core: impl Into<String>) -> Guest {
    Guest { core: core.into(), ..Guest::default() }
}

fn creating(create: &str) -> Guest {
    Guest { create: create.to_owned(), ..Guest::default() }
}

#[tokio::test]
async fn the_guest_without_a_misdeed_works() {
    let backend = load_with(&engine(), &Guest::default(), limits()).await.unwrap();
    works(&backend).await;
    backend.delete_volume(call(), VolumeHandle::new("v")).await.unwrap();
    backend.probe(call()).await.unwrap();
}

#[tokio::test]
async fn lying_pointers_and_lengths() {
    let handle = CREATE + 8;
    let context = CREATE + 32;
    #[rustfmt::skip] // one row a lie
    let lies: [(&str, String, &str); 11] = [
        ("a text beyond the memory",             words(handle, &[65_530, 100]),          "pointer"),
        ("a text that begins beyond it",         words(handle, &[0x7fff_ffff, 1]),       "pointer"),
        ("a text that ends where it wraps",      words(handle, &[0xffff_fff0, 0x20]),    "pointer"),
        ("a text of 4 GiB",                      words(handle, &[0, u32::MAX]),          "pointer"),
        ("a text in UTF-16's lone halves",       words(handle, &[FREE, 3]) + &wat::bytes(FREE, b"\xed\xa0\x80"), "utf-8"),
        ("a text that is no UTF-8",              words(handle, &[FREE, 2]) + &wat::bytes(FREE, b"\xff\xfe"), "utf-8"),
        ("a list beyond the memory",             words(context, &[65_520, 1_000]),       "list"),
        ("a list of 4 Gi entries",               words(context, &[0, u32::MAX]),         "list"),
        ("a list that is not aligned",           words(context, &[FREE + 1, 1]),         "list pointer is not aligned"),
        ("an option that is neither",            words(CREATE + 16, &[2]),               "discriminant"),
        ("a result that is neither",             words(CREATE, &[7]),                    "discriminant"),
    ];
    for (lie, data, expected) in lies {
        println!("{lie}");
        fails(&core(data), limits(), expected).await;
    }
    println!("an answer beyond the memory");
    fails(&creating("(i32.const 65535)"), limits(), "pointer").await;
    println!("an answer that is not aligned");
    fails(&creating("(i32.const 2049)"), limits(), "aligned").await;
}

#[tokio::test]
async fn invalid_enums_in_an_error() {
    // A well-formed failure whose kind, option or finality does not exist.
    for (offset, value) in [(8, 200), (24, 9), (40, 3)] {
        let data = words(CREATE, &[1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]) + &words(CREATE + offset, &[value]);
        fails(&core(data), limits(), "trapped").await;
    }
}

#[tokio::test]
async fn sizes_that_are_none() {
    let size = CREATE + 24;
    for (words_of_size, expected) in [
        ([u32::MAX, u32::MAX], "the volume has 18446744073709551615 bytes"),
        ([0, 0x8000_0000], "the volume has 9223372036854775808 bytes"),
        ([0, 0], "the volume has 0 bytes; expected 1 to 9223372036854775807"),
    ] {
        fails(&core(words(size, &words_of_size)), limits(), expected).await;
    }
}

#[tokio::test]
async fn results_over_the_cap() {
    // 5 MiB of a's: within the memory, over the cap.
    let large = Guest {
        memory: r#"(memory (export "memory") 100)"#.to_owned(),
        create: format!(
            "(memory.fill (i32.const 65536) (i32.const 97) (i32.const 5242880)) (i32.const {CREATE})"
        ),
        core: words(CREATE + 8, &[65_536, 5 << 20]),
        ..Guest::default()
    };
    fails(&large, limits(), "passed a value of more than 4194304 bytes (limit `result-bytes`)").await;
    // One entry of the list many times: little memory of the guest, much of the host.
    let many = Guest { memory: large.memory.clone(), ..core(words(CREATE + 32, &[65_536, 300_000])) };
    fails(&many, limits(), "passed a value of more than 4194304 bytes (limit `result-bytes`)").await;
}

#[tokio::test]
async fn endless_loops_wherever_guests_run() {
    let computed = "computed for more than 50ms (limit `cpu-ms`)";
    let start = core(format!("(func $s {LOOP}) (start $s)"));
    refused(&start, limits(), computed).await;
    let describe = Guest { describe: LOOP.to_owned(), ..Guest::default() };
    refused(&describe, limits(), computed).await;
    let probe = Guest { probe: LOOP.to_owned(), ..Guest::default() };
    refused(&probe, limits(), computed).await;
    fails(&creating(LOOP), limits(), computed).await;
    let post = Guest { post_create: LOOP.to_owned(), ..Guest::default() };
    fails(&post, limits(), computed).await;
    // Only `create` and `delete` have texts to be put into the guest, so it loads.
    let realloc = Guest { realloc: LOOP.to_owned(), ..Guest::default() };
    only_creation_fails(&realloc, computed).await;
    // A loop without an iteration that the engine sees: one instruction that works for long.
    let fill = "(loop $l (memory.fill (i32.const 0) (i32.const 0) (i32.const 65536)) (br $l)) (unreachable)";
    fails(&creating(fill), limits(), computed).await;
}

/// Misdeeds that meet every call with a text.
async fn only_creation_fails(guest: &Guest, expected: &str) {
    let backend = load_with(&engine(), guest, limits()).await.unwrap();
    for _ in 0..2 {
        let error = create(&backend, "x", 7).await.unwrap_err();
        assert_eq!((error.kind, error.finality), (ErrorKind::Internal, Finality::Unknown), "{error}");
        one_line(&error.message, expected);
    }
    backend.probe(call()).await.unwrap();
}

#[tokio::test]
async fn traps_wherever_guests_run() {
    let unreachable = "trapped: wasm `unreachable` instruction executed";
    let start = core("(func $s (unreachable)) (start $s)");
    refused(&start, limits(), unreachable).await;
    let describe = Guest { describe: "(unreachable)".to_owned(), ..Guest::default() };
    refused(&describe, limits(), "identity.describe failed: Internal: the backend trapped").await;
    let probe = Guest { probe: "(unreachable)".to_owned(), ..Guest::default() };
    refused(&probe, limits(), "identity.probe failed: Internal: the backend trapped").await;
    let post = Guest { post_create: "(unreachable)".to_owned(), ..Guest::default() };
    fails(&post, limits(), unreachable).await;
    let realloc = Guest { realloc: "(unreachable)".to_owned(), ..Guest::default() };
    only_creation_fails(&realloc, unreachable).await;
    for (address, expected) in [("-1", "trapped: realloc return: "), ("65535", "trapped: realloc return: ")] {
        let realloc = Guest { realloc: format!("(i32.const {address})"), ..Guest::default() };
        only_creation_fails(&realloc, expected).await;
    }
    for (code, expected) in [
        ("(i32.div_u (i32.const 1) (i32.const 0))", "trapped: integer divide by zero"),
        ("(i32.load (i32.const 65536))", "trapped: out of bounds memory access"),
        ("(drop (call $r)) (unreachable)", "trapped: call stack exhausted"),
        ("(call_indirect (result i32) (i32.const 5))", "trapped: "),
    ] {
        let core = "(table 1 funcref) (func $r (result i32) (i32.add (call $r) (i32.const 1)))".to_owned();
        fails(&Guest { core, ..creating(code) }, limits(), expected).await;
    }
}

/// Slots are used again, and each guest looks over all that it gets: a mark that an earlier one has left is a trap.
#[tokio::test]
async fn nothing_of_a_guest_is_left_for_the_next() {
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
    // One guest ends well and one traps, so that slots come back both ways.
    let tidy = Guest { core: core.clone(), ..creating(&format!("(call $look) (i32.const {})", wat::CREATE)) };
    let messy = Guest { core, ..creating("(call $look) (call_indirect (result i32) (i32.const 5))") };
    let engine = engine();
    let tidy = load_with(&engine, &tidy, Limits::default()).await.unwrap();
    let messy =
        load_with(&engine, &messy, Limits { breaker_failures: u32::MAX, ..Limits::default() }).await.unwrap();
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
async fn memory_is_bounded_however_it_is_taken() {
    let memory = "wanted more than 67108864 bytes of memory (limit `memory-bytes`)";
    let one_big = Guest { memory: r#"(memory (export "memory") 2000)"#.to_owned(), ..Guest::default() };
    refused(&one_big, limits(), memory).await;
    let several = core("(memory 600) (memory 600)");
    refused(&several, limits(), memory).await;
    let in_start = core(
        "(func $s (if (i32.eq (memory.grow (i32.const 60000)) (i32.const -1)) (then (unreachable)))) (start $s)",
    );
    refused(&in_start, limits(), memory).await;
    let grown = "(if (i32.eq (memory.grow (i32.const 1023)) (i32.const -1)) (then (unreachable)))";
    fails(
        &Guest { core: "(memory $own 2)".to_owned(), ..creating(&format!("{grown} (i32.const {CREATE})")) },
        limits(),
        memory,
    )
    .await;
    let many_small = "(loop $l (if (i32.eq (memory.grow (i32.const 1)) (i32.const -1)) (then (unreachable))) (br $l)) (unreachable)";
    fails(&creating(many_small), limits(), memory).await;
    // Who takes the refusal well goes on.
    let modest = creating(&format!("(drop (memory.grow (i32.const 60000))) (i32.const {CREATE})"));
    works(&load_with(&engine(), &modest, limits()).await.unwrap()).await;
}

#[tokio::test]
async fn tables_instances_and_memories_are_bounded() {
    let elements = "wanted more than 20000 elements of a table (limit `table-elements`)";
    refused(&core("(table 20001 funcref)"), limits(), elements).await;
    let grow = "(if (i32.eq (table.grow $t (ref.null func) (i32.const 1000000)) (i32.const -1)) (then (unreachable))) (unreachable)";
    fails(&Guest { core: "(table $t 1 funcref)".to_owned(), ..creating(grow) }, limits(), elements).await;
    refused(&core("(table 1 funcref)".repeat(17)), limits(), "wanted more than 16 tables (limit `tables`)")
        .await;
    refused(&core("(memory 0)".repeat(8)), limits(), "wanted more than 8 memories (limit `memories`)").await;
    let bomb = (0..130).fold("(core module $b)".to_owned(), |text, n| {
        text + &format!("(core instance $b{n} (instantiate $b))")
    });
    refused(
        &Guest { imports: bomb, ..Guest::default() },
        limits(),
        "wanted more than 128 instances (limit `instances`)",
    )
    .await;
}

#[tokio::test]
async fn compositions_that_multiply_are_refused() {
    // Each level instantiates the one below twice: 2^20 instances in a small file.
    let mut text = "(component $c0 (core module $m) (core instance (instantiate $m)))".to_owned();
    for level in 1..=20 {
        let below = level - 1;
        text += &format!(
            "(component $c{level} (alias outer 1 $c{below} (component $b)) (instance (instantiate $b)) (instance (instantiate $b)))"
        );
    }
    let bomb = Guest { imports: text + "(instance (instantiate $c20))", ..Guest::default() };
    let found = "no call of it can be served: The component transitively contains 1048578 core module instances, which exceeds the configured maximum of 1024";
    refused(&bomb, limits(), found).await;
    let deep = Guest { imports: "(component ".repeat(80) + &")".repeat(80), ..Guest::default() };
    let engine = engine();
    works(&load_with(&engine, &deep, limits()).await.unwrap()).await;
}

#[tokio::test]
async fn versions_of_the_future() {
    for (version, accepted) in
        [("0.1.99", true), ("0.1.0", true), ("0.2.0", false), ("1.0.0", false), ("0.1.0-rc.1", false)]
    {
        let guest = Guest { version: version.to_owned(), ..Guest::default() };
        if accepted {
            works(&load_with(&engine(), &guest, limits()).await.unwrap()).await;
        } else {
            let expected = format!("speaks `cofferdam:storage/identity@{version}`; this program speaks");
            refused(&guest, limits(), &expected).await;
        }
    }
    let stranger = Guest { package: "cofferdam:storag".to_owned(), ..Guest::default() };
    refused(&stranger, limits(), "does not export `cofferdam:storage/identity@0.1.0`").await;
}

#[tokio::test]
async fn optional_exports_must_be_what_they_are_called() {
    for (exports, expected) in [
        (r#"(instance $o) (export "cofferdam:storage/snapshots@0.1.0" (instance $o))"#, "snapshots"),
        (
            r#"(instance $o (export "get" (func $delete))) (export "cofferdam:storage/inspection@0.1.0" (instance $o))"#,
            "inspection",
        ),
        (r#"(export "cofferdam:storage/listing@0.1.0" (func $probe))"#, "listing"),
    ] {
        let guest = Guest { exports: exports.to_owned(), ..Guest::default() };
        refused(&guest, limits(), "does not match the contract: ").await;
        let error = load_with(&engine(), &guest, limits()).await.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let extra = r#"(instance $o (export "init" (func $probe))) (export "init" (instance $o))
        (export "vendor:own/thing@3.0.0" (instance $o)) (export "cofferdam:storage/later@0.1.7" (instance $o))"#;
    works(
        &load_with(&engine(), &Guest { exports: extra.to_owned(), ..Guest::default() }, limits())
            .await
            .unwrap(),
    )
    .await;
}

#[tokio::test]
async fn imports_of_another_type_are_refused_by_name() {
    for (interface, function) in [
        ("log", "write"),
        ("ambient", "now-ms"),
        ("ambient", "random-bytes"),
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
            r#"(import "cofferdam:storage/{interface}@0.1.0" (instance (export "{function}" (func (param "x" f64) (result char)))))"#
        );
        let guest = Guest { imports, ..Guest::default() };
        let expected = format!(
            "does not match the contract: component imports instance `cofferdam:storage/{interface}@0.1.0`"
        );
        refused(&guest, limits(), &expected).await;
    }
    let missing = r#"(import "cofferdam:storage/settings@0.1.0" (instance (export "set" (func (param "key" string)))))"#;
    refused(&Guest { imports: missing.to_owned(), ..Guest::default() }, limits(), "settings@0.1.0").await;
    let no_instance = r#"(import "cofferdam:storage/log@0.1.0" (func))"#;
    refused(&Guest { imports: no_instance.to_owned(), ..Guest::default() }, limits(), "log@0.1.0").await;
}

#[tokio::test]
async fn what_nobody_offers_is_named_with_a_way_out() {
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
        let guest = Guest { imports, ..Guest::default() };
        refused(&guest, limits(), expected).await;
        refused(&guest, limits(), &format!("`{import}`")).await;
    }
}

#[tokio::test]
async fn names_of_two_megabytes_and_with_control_characters() {
    let long = format!("a{}", "-b".repeat(1 << 20));
    let guest = Guest { imports: format!(r#"(import "{long}" (func))"#), ..Guest::default() };
    let error = load_with(&engine(), &guest, limits()).await.unwrap_err().to_string();
    one_line(&error, "x.wasm: ");
    let guest = Guest { imports: format!(r#"(import "{}" (func))"#, &long[..40_001]), ..Guest::default() };
    refused(&guest, limits(), "which this program does not offer").await;
    // A name that is well-formed for the text and not for the validator: the bytes are changed afterwards.
    let good = Guest { imports: r#"(import "evil-thing" (func))"#.to_owned(), ..Guest::default() };
    let mut binary = good.binary().to_vec();
    let at = binary.windows(10).position(|window| window == b"evil-thing").unwrap();
    binary[at + 4..at + 6].copy_from_slice(b"\n\x1b");
    let error = load_binary(&engine(), binary.leak(), limits()).await.unwrap_err().to_string();
    one_line(&error, "x.wasm: is not a valid WebAssembly component: ");
}

#[tokio::test]
async fn files_that_are_no_components() {
    let engine = engine();
    let good = Guest::default().binary();
    let machine_code = wasmtime::Engine::default().precompile_component(good).unwrap().leak();
    let with_core = [&good[..4], &[1, 0, 0, 0], &good[8..]].concat().leak();
    for (bytes, expected) in [
        (&*machine_code, "is compiled machine code, which is never loaded from a file"),
        (&*with_core, "is a core WebAssembly module"),
        (b"(component)", "is WebAssembly text"),
        (b"\0asm\x0d\0\x01\0\xff\xff\xff\xff\xff", "is not a valid WebAssembly component"),
        (vec![0; 65 << 20].leak(), "has 68157440 bytes; at most 67108864 are allowed (limit `file-bytes`)"),
    ] {
        one_line(&load_binary(&engine, bytes, limits()).await.unwrap_err().to_string(), expected);
    }
    works(&load_binary(&engine, good, limits()).await.unwrap()).await;
}

#[tokio::test]
async fn a_file_cut_off_or_garbled_anywhere_ends_in_words() {
    let engine = engine();
    let memory = cofferdam_carried::MEMORY;
    for part in 0..64 {
        let error = load_binary(&engine, &memory[..memory.len() * part / 64], limits()).await.unwrap_err();
        // A cut between two sections leaves a component that is whole and lacks what came after.
        one_line(&error.to_string(), "x.wasm: ");
    }
    // A garbled file may be a good one: then it loads, and its calls end.
    let good = Guest::default().binary();
    for part in 0..64 {
        let mut garbled = good.to_vec();
        let at = 8 + (garbled.len() - 8) * part / 64;
        garbled[at] ^= 0x55;
        match load_binary(&engine, garbled.leak(), limits()).await {
            Ok(backend) => drop(create(&backend, "x", 7).await),
            Err(error) => one_line(&error.to_string(), "x.wasm: "),
        }
    }
    works(&load_binary(&engine, good, limits()).await.unwrap()).await;
}

#[tokio::test]
async fn ids_of_ten_kilobytes_in_both_directions() {
    let backend = load_with(&engine(), &Guest::default(), limits()).await.unwrap();
    let long = "i".repeat(10 << 10);
    create(&backend, &long, 7).await.unwrap();
    backend.delete_volume(call(), VolumeHandle::new(&*long)).await.unwrap();
    let handle = core(words(CREATE + 8, &[65_536, 10 << 10]));
    let handle = Guest { memory: r#"(memory (export "memory") 2)"#.to_owned(), ..handle };
    fails(&handle, limits(), "the volume handle has 10240 bytes; expected 1 to 128").await;
}

/// Imports of `secrets` and `reveal`, and a body of `create`.
fn with_secrets(create: &str) -> Guest {
    Guest {
        imports: r#"
  (import "cofferdam:storage/types@0.1.0" (instance $types (export "secret" (type (sub resource)))))
  (alias export $types "secret" (type $secret))
  (import "cofferdam:storage/secrets@0.1.0" (instance $secrets
    (alias outer 1 $secret (type $s')) (export "secret" (type $s (eq $s')))
    (export "get" (func (param "name" string) (result (option (own $s)))))))
  (import "cofferdam:storage/reveal@0.1.0" (instance $reveal
    (alias outer 1 $secret (type $s')) (export "secret" (type $s (eq $s')))
    (export "reveal" (func (param "secret" (borrow $s)) (result string)))))
  (core func $get (canon lower (func $secrets "get") (memory (core memory $libc "memory")) (realloc (core func $libc "realloc"))))
  (core func $reveal (canon lower (func $reveal "reveal") (memory (core memory $libc "memory")) (realloc (core func $libc "realloc"))))
  (core func $drop (canon resource.drop $secret))"#
            .to_owned(),
        with: r#"(with "host" (instance (export "get" (func $get)) (export "reveal" (func $reveal)) (export "drop" (func $drop))))"#
            .to_owned(),
        core_imports: r#"
    (import "host" "get" (func $get (param i32 i32 i32)))
    (import "host" "reveal" (func $reveal (param i32 i32)))
    (import "host" "drop" (func $drop (param i32)))"#
            .to_owned(),
        // The secret's name, and where its handle comes to lie.
        core: wat::bytes(FREE, b"password"),
        create: create.to_owned(),
        ..Guest::default()
    }
}

fn secret_call() -> Call {
    Call {
        secrets: [("password".to_owned(), Secret::new("hunter2-hunter2"))].into_iter().collect(),
        ..call()
    }
}

#[tokio::test]
async fn forged_dropped_and_lent_handles() {
    let get = format!("(call $get (i32.const {FREE}) (i32.const 8) (i32.const 4200))");
    let handle = "(i32.load (i32.const 4204))";
    for (create, expected) in [
        ("(call $reveal (i32.const 1) (i32.const 4300))".to_owned(), "trapped: "),
        ("(call $reveal (i32.const -1) (i32.const 4300))".to_owned(), "trapped: "),
        ("(call $drop (i32.const 1))".to_owned(), "trapped: "),
        (format!("{get} (call $drop {handle}) (call $drop {handle})"), "trapped: "),
        (format!("{get} (call $drop {handle}) (call $reveal {handle} (i32.const 4300))"), "trapped: "),
        (format!("(loop $l {get} (br $l))"), "wanted more than 1024 handles (limit `handles`)"),
        ("(call $get (i32.const 65000) (i32.const 4000) (i32.const 4200))".to_owned(), "trapped: "),
        (format!("(call $get (i32.const {FREE}) (i32.const 8) (i32.const -4))"), "trapped: "),
    ] {
        let guest = with_secrets(&format!("{create} (i32.const {CREATE})"));
        let roomy = Limits { cpu_ms: 5_000, ..limits() };
        let backend = load_with(&engine(), &guest, roomy).await.unwrap();
        let error = backend.create_volume(secret_call(), request("x", 7)).await.unwrap_err();
        assert_eq!((error.kind, error.finality), (ErrorKind::Internal, Finality::Unknown), "{error}");
        one_line(&error.message, expected);
        backend.delete_volume(secret_call(), VolumeHandle::new("v")).await.unwrap();
    }
}

#[tokio::test]
async fn a_revealed_secret_does_not_come_back_as_an_id() {
    let create = format!(
        "(call $get (i32.const {FREE}) (i32.const 8) (i32.const 4200)) (call $reveal (i32.load (i32.const 4204)) (i32.const {}))
         (i32.const {CREATE})",
        CREATE + 8
    );
    let backend = load_with(&engine(), &with_secrets(&create), limits()).await.unwrap();
    let error = backend.create_volume(secret_call(), request("x", 7)).await.unwrap_err();
    one_line(&error.message, "the volume handle holds a secret of the call");
    assert!(!error.message.contains("hunter2"));
}

#[tokio::test]
async fn a_handle_of_another_type_is_no_secret() {
    // A resource of the guest's own, passed where a secret is expected: the validator sees it.
    let imports = r#"
  (import "cofferdam:storage/types@0.1.0" (instance $types))
  (type $own (resource (rep i32)))
  (import "cofferdam:storage/reveal@0.1.0" (instance $reveal
    (export "secret" (type $s (sub resource)))
    (export "reveal" (func (param "secret" (borrow $s)) (result string)))))"#;
    let guest = Guest { imports: imports.to_owned(), ..Guest::default() };
    let own = load_with(&engine(), &guest, limits()).await.unwrap_err().to_string();
    one_line(&own, "instance export `secret` has the wrong type");
    let stolen = r#"
  (import "cofferdam:storage/types@0.1.0" (instance $types (export "secret" (type (sub resource)))))
  (alias export $types "secret" (type $secret))
  (core func $new (canon resource.new $secret))"#;
    let text = Guest { imports: stolen.to_owned(), ..Guest::default() };
    // Making secrets is nobody's: only who defines a resource can.
    refused(&text, limits(), "is not a valid WebAssembly component").await;
}

#[tokio::test]
async fn random_bytes_without_measure() {
    let guest = Guest {
        imports: r#"(import "cofferdam:storage/ambient@0.1.0" (instance $ambient
              (export "random-bytes" (func (param "length" u32) (result (list u8))))))
  (core func $random (canon lower (func $ambient "random-bytes") (memory (core memory $libc "memory")) (realloc (core func $libc "realloc"))))"#
            .to_owned(),
        with: r#"(with "host" (instance (export "random" (func $random))))"#.to_owned(),
        core_imports: r#"(import "host" "random" (func $random (param i32 i32)))"#.to_owned(),
        create: format!("(call $random (i32.const -1) (i32.const {FREE})) (i32.const {CREATE})"),
        ..Guest::default()
    };
    fails(&guest, limits(), "trapped: 4294967295 random bytes at once; at most 4096 are allowed").await;
}

#[tokio::test]
async fn log_lines_that_lie() {
    let guest = |call: &str| {
        Guest {
        imports: r#"(import "cofferdam:storage/log@0.1.0" (instance $log
    (type $l' (enum "trace" "debug" "info" "warn" "error")) (export "level" (type $l (eq $l')))
    (export "write" (func (param "level" $l) (param "message" string) (param "fields" (list (tuple string string)))))))
  (core func $write (canon lower (func $log "write") (memory (core memory $libc "memory")) (realloc (core func $libc "realloc"))))"#
            .to_owned(),
        with: r#"(with "host" (instance (export "write" (func $write))))"#.to_owned(),
        core_imports: r#"(import "host" "write" (func $write (param i32 i32 i32 i32 i32)))"#.to_owned(),
        create: format!("{call} (i32.const {CREATE})"),
        ..Guest::default()
    }
    };
    let write = |level: i32, text: i32, length: i32, fields: i32, count: i32| {
        format!(
            "(call $write (i32.const {level}) (i32.const {text}) (i32.const {length}) (i32.const {fields}) (i32.const {count}))"
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
        fails(&guest(&line), limits(), expected).await;
    }
    // A flood by fields: thousands of empty ones in each line, in a loop. Lines are lost, and the time is the guest's own.
    let flood = format!("(loop $l {} (br $l))", write(2, 40, 0, 8_192, 400));
    fails(&guest(&flood), limits(), "computed for more than 50ms").await;
}

#[tokio::test]
async fn sleeping_for_ever_ends_with_the_deadline() {
    let guest = Guest {
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
        with: r#"(with "host" (instance (export "subscribe" (func $subscribe)) (export "block" (func $block))))"#.to_owned(),
        core_imports: r#"(import "host" "subscribe" (func $subscribe (param i64) (result i32)))
    (import "host" "block" (func $block (param i32)))"#
            .to_owned(),
        create: format!("(call $block (call $subscribe (i64.const -1))) (i32.const {CREATE})"),
        ..Guest::default()
    };
    let backend = load_with(&engine(), &guest, limits()).await.unwrap();
    let mut hurried = call();
    hurried.deadline = Duration::from_millis(100);
    let error = backend.create_volume(hurried, request("x", 7)).await.unwrap_err();
    assert_eq!((error.kind, error.finality), (ErrorKind::DeadlineExceeded, Finality::Unknown), "{error}");
    backend.delete_volume(call(), VolumeHandle::new("v")).await.unwrap();
}

#[tokio::test]
async fn descriptions_that_lie() {
    for (data, expected) in [
        (words(DESCRIBE + 8, &[0, u32::MAX]), "identity.describe failed: Internal: the backend trapped"),
        (words(DESCRIBE + 12, &[0]), "the driver name is \"\"; expected a DNS subdomain"),
        (
            words(DESCRIBE + 16, &[FREE, 2]) + &wat::bytes(FREE, b"1\n"),
            "the version \"1 \" has control characters",
        ),
        (words(DESCRIBE + 20, &[129]), "the version has 129 bytes; expected 1 to 128"),
        (words(DESCRIBE + 32, &[2]), "identity.describe failed: Internal: the backend trapped"),
        (
            words(DESCRIBE + 24, &[FREE, 2]) + &words(FREE, &[32, 1, 32, 1]),
            "the topology key \"1\" is given twice",
        ),
        (words(DESCRIBE + 44, &[FREE, 65]), "65 of features; at most 64 are allowed"),
        (words(DESCRIBE, &[1]), "identity.describe failed: "),
        (words(PROBE + 8, &[2]), "identity.probe failed: Internal: the backend trapped"),
    ] {
        refused(&core(data), limits(), expected).await;
    }
    // One that is not ready, in a megabyte of text, is loaded.
    let text = words(PROBE + 8, &[1, 8_192, 40_000]);
    works(&load_with(&engine(), &core(text), limits()).await.unwrap()).await;
    // A deletion that fails with a text of control characters.
    let text = words(DELETE, &[1, 0, 11, FREE, 6, 0, 0, 0, 0, 0, 0]) + &wat::bytes(FREE, b"\x1b[31m\n");
    let backend = load_with(&engine(), &core(text), limits()).await.unwrap();
    let error = backend.delete_volume(call(), VolumeHandle::new("v")).await.unwrap_err();
    assert_eq!((error.kind, error.message.as_str()), (ErrorKind::Unavailable, " [31m "));
}
