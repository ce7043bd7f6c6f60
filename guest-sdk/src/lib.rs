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
//!     fn create(request: CreateRequest) -> Result<Volume> {
//!         let size = request.capacity.required_bytes.unwrap_or(1 << 30);
//!         if size > 1 << 44 {
//!             return Err(StorageError::out_of_range(format!("{size} bytes: a volume has at most 16 TiB")));
//!         }
//!         Ok(Volume::new(request.name, size))
//!     }
//!
//!     fn delete(_handle: String) -> Result<()> {
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
//!   [`state`].
//! - Every call must be idempotent by name or handle, because an earlier response may have been lost.
//! - A panic traps, and the caller then only knows that the outcome is unknown. Return a [`StorageError`]
//!   instead. Its constructors are named for the kind and set the matching finality.
//! - Imports that a backend never calls are not part of its component and need no grant.
#![deny(unsafe_code)]

pub mod abilities;
pub mod ambient;
mod backend;
#[doc(hidden)]
pub mod bindings;
mod error;
pub mod handle;
mod host;
pub mod http;
pub mod idempotent;
pub mod log;
#[cfg(not(target_family = "wasm"))]
pub mod mock;
pub mod paging;
pub mod parameters;
pub mod pool;
pub mod secrets;
pub mod session;
pub mod settings;
pub mod sizes;
pub mod state;
mod types;

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
pub use types::to_map;

/// Returns true if this call may have changed something outside: it committed to the state or the pool, or
/// sent a request that may have had an effect. The SDK uses this so that an error it converts is never final
/// after a change.
///
/// A request counts if its method is not read-only, it is not marked with
/// [`read_only`](http::Request::read_only), and its response is neither 4xx (except 408) nor 501, 505 or 507.
pub fn has_changed() -> bool {
    host::has_changed()
}

/// Result of every backend function.
pub type Result<T> = std::result::Result<T, StorageError>;

/// Exports a type that implements [`Backend`] as a component: `export!(MyArray)`.
///
/// Optional abilities follow the type: `export!(MyArray: snapshots, restoring, expansion)`. Their names are
/// those of the contract's interfaces, and each requires the corresponding trait of [`abilities`]. Use the
/// macro once per crate, in a crate of type `cdylib`.
///
/// The expansion contains exported symbols, which Rust treats as unsafe code. The macro is defined in this
/// crate, so a crate that uses it can still forbid unsafe code.
#[macro_export]
macro_rules! export {
    ($backend:ty $(: $($ability:ident),+ $(,)?)?) => {
        // Native linkers read the `@` in export names as a symbol version. Native builds are for tests only.
        #[cfg(target_family = "wasm")]
        const _: () = {
            type Exported = $crate::Component<$backend>;
            $crate::bindings::export_component!(Exported with_types_in $crate::bindings);
            $($($crate::export_ability!($ability);)+)?
        };
        #[cfg(not(target_family = "wasm"))]
        const _: () = {
            const fn is_a_backend<B: $crate::Backend>() {}
            is_a_backend::<$backend>();
            $($($crate::check_ability!($ability, $backend);)+)?
        };
    };
}

/// Exports one optional interface of `Exported`.
#[doc(hidden)]
#[macro_export]
macro_rules! export_ability {
    (cloning) => {
        $crate::bindings::cloning::export_cloning!(Exported with_types_in $crate::bindings::cloning);
    };
    (restoring) => {
        $crate::bindings::restoring::export_restoring!(Exported with_types_in $crate::bindings::restoring);
    };
    (publishing) => {
        $crate::bindings::publishing::export_publishing!(Exported with_types_in $crate::bindings::publishing);
    };
    (expansion) => {
        $crate::bindings::expansion::export_expansion!(Exported with_types_in $crate::bindings::expansion);
    };
    (modification) => {
        $crate::bindings::modification::export_modification!(
            Exported with_types_in $crate::bindings::modification
        );
    };
    (snapshots) => {
        $crate::bindings::snapshots::export_snapshots!(Exported with_types_in $crate::bindings::snapshots);
    };
    (group_snapshots) => {
        $crate::bindings::group_snapshots::export_group_snapshots!(
            Exported with_types_in $crate::bindings::group_snapshots
        );
    };
    (listing) => {
        $crate::bindings::listing::export_listing!(Exported with_types_in $crate::bindings::listing);
    };
    (inspection) => {
        $crate::bindings::inspection::export_inspection!(Exported with_types_in $crate::bindings::inspection);
    };
    (capacity) => {
        $crate::bindings::capacity::export_capacity!(Exported with_types_in $crate::bindings::capacity);
    };
}

/// Checks in a native build that a type implements the traits of its exports.
#[doc(hidden)]
#[macro_export]
macro_rules! check_ability {
    (cloning, $backend:ty) => {
        const _: () = {
            const fn can<B: $crate::abilities::Cloning>() {}
            can::<$backend>();
        };
    };
    (restoring, $backend:ty) => {
        const _: () = {
            const fn can<B: $crate::abilities::Restoring>() {}
            can::<$backend>();
        };
    };
    (publishing, $backend:ty) => {
        const _: () = {
            const fn can<B: $crate::abilities::Publishing>() {}
            can::<$backend>();
        };
    };
    (expansion, $backend:ty) => {
        const _: () = {
            const fn can<B: $crate::abilities::Expansion>() {}
            can::<$backend>();
        };
    };
    (modification, $backend:ty) => {
        const _: () = {
            const fn can<B: $crate::abilities::Modification>() {}
            can::<$backend>();
        };
    };
    (snapshots, $backend:ty) => {
        const _: () = {
            const fn can<B: $crate::abilities::Snapshots>() {}
            can::<$backend>();
        };
    };
    (group_snapshots, $backend:ty) => {
        const _: () = {
            const fn can<B: $crate::abilities::GroupSnapshots>() {}
            can::<$backend>();
        };
    };
    (listing, $backend:ty) => {
        const _: () = {
            const fn can<B: $crate::abilities::Listing>() {}
            can::<$backend>();
        };
    };
    (inspection, $backend:ty) => {
        const _: () = {
            const fn can<B: $crate::abilities::Inspection>() {}
            can::<$backend>();
        };
    };
    (capacity, $backend:ty) => {
        const _: () = {
            const fn can<B: $crate::abilities::Capacity>() {}
            can::<$backend>();
        };
    };
}
