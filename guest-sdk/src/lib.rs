//! SDK for Cofferdam storage backends in Rust.
//!
//! A backend is a type that implements [`Backend`]. One line exports it as a WebAssembly component:
//!
//! ```
//! #![forbid(unsafe_code)]
//! use cofferdam_guest::{
//!     Backend, CreateRequest, Description, Placement, Readiness, Result, StorageError, ValidateRequest,
//!     Validation, Volume, settings,
//! };
//!
//! struct MyArray;
//!
//! impl Backend for MyArray {
//!     fn describe() -> Result<Description> {
//!         Ok(Description::new("csi.my-array.example", env!("CARGO_PKG_VERSION")))
//!     }
//!
//!     fn probe() -> Result<Readiness> {
//!         match settings::get("pool") {
//!             Some(_) => Ok(Readiness::Ready),
//!             None => Ok(Readiness::NotReady("the setting `pool` is missing".to_owned())),
//!         }
//!     }
//!
//!     fn create_volume(request: CreateRequest) -> Result<Volume> {
//!         let size = request.capacity.required_bytes.unwrap_or(1 << 30);
//!         if size > 1 << 44 {
//!             return Err(StorageError::out_of_range(format!("{size} bytes: a volume has at most 16 TiB")));
//!         }
//!         Ok(Volume::new(request.name, size))
//!     }
//!
//!     fn delete_volume(_handle: String) -> Result<()> {
//!         Ok(())
//!     }
//!
//!     fn validate(request: ValidateRequest) -> Result<Validation> {
//!         Err(StorageError::not_found(format!("there is no volume {:?}", request.handle)))
//!     }
//! }
//!
//! cofferdam_guest::export!(MyArray);
//! # fn main() {}
//! ```
//!
//! Build it as a `cdylib` for `wasm32-wasip2` with plain cargo. The resulting file is the component.
//!
//! # Rules for backends
//!
//! - Every call runs in a fresh instance, so statics are reset. Keep persistent data in the storage or in
//!   [`state`], which needs a file in the operator's configuration to outlive the host's process.
//! - Every call must be idempotent by name or handle, because an earlier response may have been lost.
//! - A panic traps, and the caller then only knows that the outcome is unknown. Return a [`StorageError`]
//!   instead. Its constructors are named for the kind and set the matching finality.
//! - Imports that a backend never calls are not part of its component and need no grant.
//!
//! # Where to find
//!
//! | a driver needs | it uses | grant |
//! |---|---|---|
//! | its configuration | [`settings::parse`] | `settings` |
//! | class parameters | [`parameters::parse`] | |
//! | requests in JSON or as forms | [`http::Request`] | `http` |
//! | XML | [a crate](http#xml) | |
//! | a password or token that it never sees | [`http::Request::basic`], [`http::Request::bearer`] | `secrets` |
//! | a login that is kept across calls | [`session::with_login`] | `session` |
//! | a signature of requests | [`http::Request::sign_with`], [`sign`], [`digest`], [`time`] | `ambient`, `sign` |
//! | an existing client that builds requests of the crate `http` | the feature `http`: [`http::Request`] | `http` |
//! | creation of one item per name | [`idempotent`] | |
//! | the same without unique names or tokens | [`idempotent::oldest_wins`] | `ambient` |
//! | one call at a time per name | [`lease`] | `state`, `ambient` |
//! | a wait for the storage within a call | [`poll::until`] | `deadline` |
//! | a wait for the storage across calls | [`StorageError::in_progress`] | |
//! | data that is kept across calls | [`state`] | `state` |
//! | tests | [`mock`] | |
#![deny(unsafe_code)]

pub mod abilities;
pub mod ambient;
mod backend;
#[doc(hidden)]
pub mod bindings;
pub mod deadline;
pub mod digest;
mod error;
mod export_macros;
pub mod handle;
mod host;
pub mod http;
pub mod idempotent;
pub mod lease;
pub mod log;
#[cfg(not(target_family = "wasm"))]
pub mod mock;
pub mod paging;
pub mod parameters;
pub mod poll;
pub mod pool;
pub mod secrets;
pub mod session;
pub mod settings;
pub mod sign;
pub mod sizes;
pub mod state;
pub mod time;
mod types;
mod values;

pub use backend::{Backend, Component};
pub use bindings::{
    cofferdam::storage::types::{
        AccessMode, AccessType, CapacityRange, Condition, ConnectionInfo, CreateRequest, ErrorKind,
        FilesystemAccess, Finality, KeyValues, Owner, ReclaimPolicy, Segments, Snapshot, SnapshotHandle,
        SnapshotOwner, StorageError, TopologyRequirement, Volume, VolumeCapability, VolumeHandle,
        VolumeStatus,
    },
    exports::cofferdam::storage::{
        identity::{Description, Placement, Readiness},
        volumes::{ValidateRequest, Validation},
    },
};
pub use types::{NamespaceId, NfsVersion, RbdImage, to_map};

/// Returns true if this call may have changed something outside its instance: it committed to the state,
/// changed or may have changed the pool, or sent a request that may have had an effect. The SDK uses this so
/// that an error it converts is never final after a change.
///
/// A request counts if its method is not GET, HEAD or OPTIONS, it is not marked with
/// [`read_only`](http::Request::read_only), and the server may have processed it. A request that was never
/// sent does not count, and neither does one with a response of 4xx (except 408), 501, 505 or 507.
///
/// Nothing that the login function of [`session::login`] and [`session::with_login`] does counts, and no change
/// of a [`lease`] counts.
pub fn has_changed() -> bool {
    host::has_changed()
}

/// Result of every backend function. The error is a [`StorageError`] unless a second type is named, so that a
/// driver can import this type and still return other errors.
///
/// ```
/// use cofferdam_guest::{Result, StorageError};
///
/// fn lun(text: &str) -> Result<u16, std::num::ParseIntError> {
///     text.parse()
/// }
///
/// fn export(text: &str) -> Result<u16> {
///     lun(text).map_err(|error| StorageError::internal(format!("the LUN {text:?}: {error}")))
/// }
///
/// assert_eq!(export("7").unwrap(), 7);
/// assert!(export("x").is_err());
/// ```
pub type Result<T, E = StorageError> = std::result::Result<T, E>;
