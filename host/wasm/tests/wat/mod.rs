//! A well-behaved backend in WebAssembly text. Tests replace parts of it to make it misbehave.
#![allow(dead_code, reason = "each suite uses a part of it")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a helper of tests fails as a test does")]

use std::fmt::Write as _;

/// Address in the guest's memory of the result of `describe`. The constants below are those of the other
/// functions' results. Tests overwrite single words of the results.
pub(crate) const DESCRIBE_RESULT: u32 = 1024;
pub(crate) const PROBE_RESULT: u32 = 1536;
pub(crate) const CREATE_RESULT: u32 = 2048;
pub(crate) const DELETE_RESULT: u32 = 2560;
pub(crate) const VALIDATE_RESULT: u32 = 3072;
/// Address of memory that tests may use freely.
pub(crate) const FREE_MEMORY: u32 = 4096;

/// The well-behaved backend; each field is a part of the text that a test may replace.
#[derive(Clone, Debug)]
pub(crate) struct WatGuest {
    /// Component imports and the core functions that are lowered from them.
    pub(crate) imports: String,
    /// Arguments of the core module's instantiation.
    pub(crate) instantiation_args: String,
    /// The core module's imports.
    pub(crate) core_imports: String,
    /// More of the core module: globals, tables, functions, the start function, and data segments that
    /// overwrite the results.
    pub(crate) core_items: String,
    /// The memory, which the core module imports from `$libc`.
    pub(crate) memory: String,
    /// Body of `realloc`; `$new` is the requested size in bytes.
    pub(crate) realloc: String,
    pub(crate) describe: String,
    pub(crate) probe: String,
    pub(crate) create: String,
    pub(crate) delete: String,
    pub(crate) validate: String,
    /// Body of the function that runs after `create` has returned.
    pub(crate) post_create: String,
    /// More exports of the component.
    pub(crate) exports: String,
    /// Name of the contract's package.
    pub(crate) package: String,
    /// The version of the mandatory exports.
    pub(crate) version: String,
}

impl Default for WatGuest {
    fn default() -> Self {
        let answer = |address: u32| format!("(i32.const {address})");
        Self {
            imports: String::new(),
            instantiation_args: String::new(),
            core_imports: String::new(),
            core_items: String::new(),
            memory: r#"(memory (export "memory") 1)"#.to_owned(),
            realloc: "(local.set $p (i32.and (i32.add (global.get $heap) (i32.const 15)) (i32.const -16)))
                (global.set $heap (i32.add (local.get $p) (local.get $new)))
                (local.get $p)"
                .to_owned(),
            describe: answer(DESCRIBE_RESULT),
            probe: answer(PROBE_RESULT),
            create: answer(CREATE_RESULT),
            delete: answer(DELETE_RESULT),
            validate: answer(VALIDATE_RESULT),
            post_create: String::new(),
            exports: String::new(),
            package: "cofferdam:storage".to_owned(),
            version: "0.1.0".to_owned(),
        }
    }
}

/// WebAssembly text of a data segment that writes 32-bit words at an address.
pub(crate) fn words_segment(address: u32, words: &[u32]) -> String {
    let mut text = format!("(data (i32.const {address}) \"");
    for byte in words.iter().flat_map(|word| word.to_le_bytes()) {
        write!(text, "\\{byte:02x}").unwrap();
    }
    text + "\")\n"
}

/// WebAssembly text of a data segment that writes bytes at an address.
pub(crate) fn bytes_segment(address: u32, bytes: &[u8]) -> String {
    let mut text = format!("(data (i32.const {address}) \"");
    for byte in bytes {
        write!(text, "\\{byte:02x}").unwrap();
    }
    text + "\")\n"
}

impl WatGuest {
    /// Compiles the component. The bytes are leaked.
    pub(crate) fn binary(&self) -> &'static [u8] {
        let text = self.text();
        match wat::parse_str(&text) {
            Ok(binary) => binary.leak(),
            Err(error) => panic!("{error}"),
        }
    }

    fn text(&self) -> String {
        let Self {
            imports,
            instantiation_args: with,
            core_imports,
            core_items: core,
            memory,
            realloc,
            package,
            version,
            exports,
            ..
        } = self;
        let Self { describe, probe, create, delete, validate, post_create, .. } = self;
        let answers = [
            bytes_segment(16, b"wat.example"),
            bytes_segment(32, b"1"),
            bytes_segment(40, b"v"),
            words_segment(DESCRIBE_RESULT, &[0, 0, 16, 11, 32, 1, 0, 0, 0, 0, 0, 0, 0]),
            words_segment(PROBE_RESULT, &[0, 0, 0, 0, 0]),
            words_segment(CREATE_RESULT, &[0, 0, 40, 1, 1, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
            words_segment(DELETE_RESULT, &[0; 10]),
            words_segment(VALIDATE_RESULT, &[0, 0, 0, 0, 0]),
        ]
        .concat();
        format!(
            r#"(component
  (core module $libc
    {memory}
    (global $heap (mut i32) (i32.const 16384))
    (func (export "realloc")
      (param $old i32) (param $size i32) (param $align i32) (param $new i32) (result i32)
      (local $p i32)
      {realloc}))
  (core instance $libc (instantiate $libc))
  {imports}
  (core module $m
    (import "libc" "memory" (memory 0))
    {core_imports}
    {answers}
    (func (export "describe") (result i32) {describe})
    (func (export "probe") (result i32) {probe})
    (func (export "create") (param $request i32) (result i32) {create})
    (func (export "post-create") (param i32) {post_create})
    (func (export "delete") (param $text i32) (param $length i32) (result i32) {delete})
    (func (export "validate") (param i32 i32 i32 i32 i32 i32 i32 i32 i32 i32) (result i32) {validate})
    {core})
  (core instance $i (instantiate $m (with "libc" (instance $libc)) {with}))
{TYPES}
  (func $describe (result (result $description (error $storage-error)))
    (canon lift (core func $i "describe")
      (memory (core memory $libc "memory")) (realloc (core func $libc "realloc"))))
  (func $probe (result (result $readiness (error $storage-error)))
    (canon lift (core func $i "probe")
      (memory (core memory $libc "memory")) (realloc (core func $libc "realloc"))))
  (func $create (param "request" $create-request) (result (result $volume (error $storage-error)))
    (canon lift (core func $i "create")
      (memory (core memory $libc "memory")) (realloc (core func $libc "realloc"))
      (post-return (core func $i "post-create"))))
  (func $delete (param "handle" string) (result (result (error $storage-error)))
    (canon lift (core func $i "delete")
      (memory (core memory $libc "memory")) (realloc (core func $libc "realloc"))))
  (func $validate (param "request" $validate-request) (result (result $validation (error $storage-error)))
    (canon lift (core func $i "validate")
      (memory (core memory $libc "memory")) (realloc (core func $libc "realloc"))))
  (instance $identity (export "describe" (func $describe)) (export "probe" (func $probe)))
  (instance $volumes
    (export "create" (func $create))
    (export "delete" (func $delete))
    (export "validate" (func $validate)))
  (export "{package}/identity@{version}" (instance $identity))
  (export "{package}/volumes@{version}" (instance $volumes))
  {exports})
"#
        )
    }
}

/// The contract's types. They are exported because a function's types must have names; exports that are not
/// the contract's are tolerated.
const TYPES: &str = r#"
  (type $kind' (enum
    "invalid-argument" "not-found" "already-exists" "permission-denied" "unauthenticated"
    "resource-exhausted" "failed-precondition" "aborted" "out-of-range" "unimplemented" "internal"
    "unavailable" "deadline-exceeded" "cancelled" "data-loss" "unknown"))
  (export $kind "error-kind" (type $kind'))
  (type $finality' (enum "final" "in-progress" "unknown"))
  (export $finality "finality" (type $finality'))
  (type $storage-error' (record
    (field "kind" $kind)
    (field "message" string)
    (field "retry-after-ms" (option u64))
    (field "finality" $finality)))
  (export $storage-error "storage-error" (type $storage-error'))
  (type $placement' (enum "central" "node"))
  (export $placement "placement" (type $placement'))
  (type $description' (record
    (field "name" string)
    (field "version" string)
    (field "topology-keys" (list string))
    (field "placement" $placement)
    (field "volumes-per-node" (option u32))
    (field "features" (list string))))
  (export $description "description" (type $description'))
  (type $readiness' (variant (case "ready") (case "not-ready" string)))
  (export $readiness "readiness" (type $readiness'))
  (type $range' (record (field "required-bytes" (option u64)) (field "limit-bytes" (option u64))))
  (export $range "capacity-range" (type $range'))
  (type $mode' (enum
    "single-node-writer" "single-node-reader-only" "multi-node-reader-only" "multi-node-single-writer"
    "multi-node-multi-writer" "single-node-single-writer" "single-node-multi-writer"))
  (export $mode "access-mode" (type $mode'))
  (type $filesystem' (record (field "fs-type" (option string)) (field "mount-flags" (list string))
    (field "mount-group" (option string))))
  (export $filesystem "filesystem-access" (type $filesystem'))
  (type $access' (variant (case "block") (case "filesystem" $filesystem)))
  (export $access "access-type" (type $access'))
  (type $capability' (record (field "mode" $mode) (field "access" $access)))
  (export $capability "volume-capability" (type $capability'))
  (type $topology' (record (field "requisite" (list (list (tuple string string))))
    (field "preferred" (list (list (tuple string string))))))
  (export $topology "topology-requirement" (type $topology'))
  (type $policy' (enum "delete" "retain"))
  (export $policy "reclaim-policy" (type $policy'))
  (type $owner' (record (field "cluster-id" string) (field "claim-uid" string) (field "pv-name" string)
    (field "reclaim-policy" $policy)))
  (export $owner "owner" (type $owner'))
  (type $connection-info' (record
    (field "kind" string)
    (field "version" u32)
    (field "fields" (list (tuple string string)))))
  (export $connection-info "connection-info" (type $connection-info'))
  (type $create-request' (record
    (field "name" string)
    (field "capacity" $range)
    (field "capabilities" (list $capability))
    (field "parameters" (list (tuple string string)))
    (field "mutable-parameters" (list (tuple string string)))
    (field "topology" (option $topology))
    (field "owner" (option $owner))))
  (export $create-request "create-request" (type $create-request'))
  (type $volume' (record
    (field "handle" string)
    (field "capacity-bytes" (option u64))
    (field "context" (list (tuple string string)))
    (field "topology" (list (list (tuple string string))))
    (field "connection-info" (option $connection-info))))
  (export $volume "volume" (type $volume'))
  (type $validate-request' (record
    (field "handle" string)
    (field "context" (list (tuple string string)))
    (field "capabilities" (list $capability))
    (field "parameters" (list (tuple string string)))
    (field "mutable-parameters" (list (tuple string string)))))
  (export $validate-request "validate-request" (type $validate-request'))
  (type $validation' (variant (case "confirmed") (case "refused" string)))
  (export $validation "validation" (type $validation'))
"#;
