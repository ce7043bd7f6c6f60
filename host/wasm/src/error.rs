//! Errors of loading a component.

use cofferdam_domain::storage::StorageError;

use crate::{
    capabilities::{http::policy::OriginError, pool::store::PoolDirectoryError, state::file::StateFileError},
    contract::{self, Grant, InterfaceVersion},
    digest::Digest,
    failure::task_failure,
};

/// A component that cannot become a backend, or an engine that cannot start. Every message is one line. It
/// names the component, except in errors of the engine.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The engine cannot be set up.
    #[error("the WebAssembly engine cannot start: {0:#}")]
    Engine(#[source] wasmtime::Error),
    /// A thread of the engine cannot be started: one that runs guests, or the one that interrupts them.
    #[error("the threads of the WebAssembly engine cannot start: {0}")]
    Threads(#[source] std::io::Error),
    /// The component's file cannot be read, or is not a regular file.
    #[error("{name}: cannot be read: {source}")]
    Read {
        /// The component.
        name: String,
        /// The system's error, or the host's for a file that is not regular.
        source: std::io::Error,
    },
    /// The component has more bytes than the limit `file-bytes`.
    #[error("{name}: has {bytes} bytes; at most {limit} are allowed (limit `file-bytes`)")]
    TooLarge {
        /// The component.
        name: String,
        /// Its size in bytes. If the file grew while it was read, it has at least this size.
        bytes: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// The file is not a WebAssembly component.
    #[error(
        "{name}: is {found}; expected a WebAssembly component, \
         such as `cargo build --target wasm32-wasip2` makes"
    )]
    NotAComponent {
        /// The file.
        name: String,
        /// The kind of the file.
        found: String,
    },
    /// The file has another digest than the pinned one.
    #[error("{name}: has the digest {found}; expected {expected} (`sha256`)")]
    DigestMismatch {
        /// The component.
        name: String,
        /// Its digest.
        found: Digest,
        /// The pinned digest.
        expected: Digest,
    },
    /// The file has the header of a component but is damaged, or needs disabled features.
    #[error("{name}: is not a valid WebAssembly component: {reason}")]
    Invalid {
        /// The component.
        name: String,
        /// The message of wasmtime, which validates and compiles the component.
        reason: String,
    },
    /// An import or export of the contract has no version, or one that this program does not support.
    #[error(
        "{name}: speaks `{found}`; this program speaks cofferdam:storage@{supported}",
        supported = contract::CONTRACT_VERSION
    )]
    UnsupportedContract {
        /// The component.
        name: String,
        /// The imported or exported interface.
        found: InterfaceVersion,
    },
    /// The component imports an interface that the host does not offer with any grant.
    #[error("{name}: imports `{import}`, which this program does not offer; {advice}")]
    UnknownImport {
        /// The component.
        name: String,
        /// The import.
        import: String,
        /// Advice to the operator or vendor.
        advice: String,
    },
    /// A single call of the component needs more memories, tables, instances or metadata than the instance
    /// pool permits for one call. No configured limit changes that.
    #[error("{name}: cannot be instantiated: {reason}")]
    ExceedsInstancePool {
        /// The component.
        name: String,
        /// The required and the available resources.
        reason: String,
    },
    /// The component imports interfaces of the contract that the operator has not granted.
    #[error("{name}: {}", missing_grants_text(.missing))]
    NotGranted {
        /// The component.
        name: String,
        /// The missing grants, at least one, in the order of [`Grant::ALL`].
        missing: Vec<MissingGrant>,
    },
    /// The component lacks an interface that every backend must export.
    #[error("{name}: does not export `{export}`, which every backend must")]
    MissingExport {
        /// The component.
        name: String,
        /// The export.
        export: String,
    },
    /// An import or export has the right name and another type, or lacks a function of the contract.
    #[error("{name}: does not match the contract: {reason}")]
    TypeMismatch {
        /// The component.
        name: String,
        /// The difference.
        reason: String,
    },
    /// A call that loads the component failed: the check of its exports' types, `describe` or `probe`.
    #[error("{name}: {function} failed: {source}")]
    InitialCall {
        /// The component.
        name: String,
        /// The function, such as `identity.describe`; `instantiation` for the check of the types.
        function: &'static str,
        /// The error that the component returned, or the reason that the call was stopped or not started.
        source: StorageError,
    },
    /// The component's description breaks a rule of the contract.
    #[error("{name}: has an invalid description: {reason}")]
    InvalidDescription {
        /// The component.
        name: String,
        /// The broken rule, a [`ContractViolation`](cofferdam_backend::ContractViolation) without the secrets
        /// that it may quote.
        reason: String,
    },
    /// `deadline-ms`, `cpu-ms` or `concurrent-calls` is zero, `queued-calls` is less than `concurrent-calls`,
    /// or one of the two numbers of calls is more than a semaphore holds.
    #[error("{name}: the limit `{limit}` is {value}; expected {expected}")]
    InvalidLimit {
        /// The component.
        name: String,
        /// The limit.
        limit: &'static str,
        /// Its value.
        value: u64,
        /// The permitted values.
        expected: &'static str,
    },
    /// A configured limit is above what the instance pool permits for one call: `instances`, `memories`,
    /// `tables` or `table-elements`.
    #[error("{name}: the limit `{limit}` is {value}; expected at most {max}")]
    LimitTooHigh {
        /// The component.
        name: String,
        /// The limit.
        limit: &'static str,
        /// Its value.
        value: usize,
        /// The most that it may be.
        max: usize,
    },
    /// An origin for the backend's HTTP requests cannot be used.
    #[error("{name}: the HTTP origin `{origin}`: {source}")]
    Http {
        /// The component.
        name: String,
        /// The origin, as the operator wrote it.
        origin: String,
        /// The problem of a setting, or of a file that it names.
        source: Box<OriginError>,
    },
    /// The file of the backend's state cannot be used.
    #[error("{name}: the state file {file} {source}")]
    StateFile {
        /// The component.
        name: String,
        /// The file.
        file: String,
        /// The problem and the expected value.
        source: Box<StateFileError>,
    },
    /// The backend imports a pool and has none.
    #[error("{name}: imports a pool, and none is configured; expected a section `pool` with its `directory`")]
    NoPool {
        /// The component.
        name: String,
    },
    /// The backend's pool cannot be used.
    #[error("{name}: the pool {directory} {source}")]
    Pool {
        /// The component.
        name: String,
        /// The pool's directory.
        directory: String,
        /// The problem and the expected value.
        source: PoolDirectoryError,
    },
    /// A task of the host panicked or was cancelled while it loaded the component.
    #[error("{name}: could not be loaded: {step} failed: {}", task_failure(.source))]
    Internal {
        /// The component.
        name: String,
        /// The step that failed.
        step: &'static str,
        /// The panic or cancellation.
        source: tokio::task::JoinError,
    },
}

/// A grant that a component needs and does not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingGrant {
    /// The import, as the component spells it.
    pub import: String,
    /// The grant.
    pub grant: Grant,
}

/// Names the imports, and then what grants each of them.
fn missing_grants_text(missing: &[MissingGrant]) -> String {
    let imports: Vec<_> = missing.iter().map(|missing| format!("`{}`", missing.import)).collect();
    let verb = if imports.len() == 1 { "is" } else { "are" };
    let advice: Vec<_> = missing.iter().map(|missing| missing.grant.advice()).collect();
    format!("imports {}, which {verb} not granted to it; {}", imports.join(", "), advice.join("; "))
}
