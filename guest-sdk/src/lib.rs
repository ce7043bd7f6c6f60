//! Write a Cofferdam storage backend in Rust.
//!
//! A backend is a type that implements [`Backend`], and one line that makes a WebAssembly component of it:
//!
//! ```
//! #![forbid(unsafe_code)]
//! use cofferdam_guest::{
//!     Backend, CreateRequest, Description, Placement, Readiness, Result, StorageError, ValidateRequest, Validation, Volume,
//!     settings,
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
//! Build it as a `cdylib` for `wasm32-wasip2` with plain cargo; the file is the component.
//!
//! # What to keep in mind
//!
//! - Every call runs in a fresh instance: statics start anew each time. What must last is the storage's, or
//!   stands in [`state`].
//! - Every call is idempotent by name or handle, because its answer may have been lost.
//! - A panic is a trap, and a trap is a defect: the caller learns nothing but that it does not know what
//!   happened. Return a [`StorageError`] instead; its constructors are named for the kind and choose the
//!   finality that the kind has.
//! - Imports that a backend never calls are not in its component, and need not be granted.
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
        AccessMode, AccessType, Attachment, CapacityRange, Condition, CreateRequest, ErrorKind,
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

/// Whether this call may have changed something outside: it has committed to the state or the pool, or has
/// sent a request that may have had an effect. The SDK keeps count, so that an error that it converts is
/// never final after a change.
///
/// A request counts when its method can change something ([`changes_nothing`](http::Request::changes_nothing)
/// says that this one does not) and the answer does not refuse it with 4xx (other than 408), 501, 505 or 507.
pub fn has_changed() -> bool {
    host::has_changed()
}

/// What every function of a backend returns.
pub type Result<T> = std::result::Result<T, StorageError>;

/// Makes a component of a type that implements [`Backend`]: `export!(MyArray)`, or, with what it can do
/// beside, `export!(MyArray: snapshots, restoring, expansion)`. The names are those of the contract's
/// interfaces, and each needs the trait of [`abilities`]. Once per crate, in a crate of type `cdylib`.
///
/// What it expands to needs exported symbols, which Rust counts as unsafe code; as it comes from this crate,
/// the crate that uses it can still forbid unsafe code of its own.
#[macro_export]
macro_rules! export {
    ($backend:ty $(: $($ability:ident),+ $(,)?)?) => {
        // Native linkers read the `@` in the exports' names as a symbol version; a native build is for tests
        // only.
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
        $crate::bindings::modification::export_modification!(Exported with_types_in $crate::bindings::modification);
    };
    (snapshots) => {
        $crate::bindings::snapshots::export_snapshots!(Exported with_types_in $crate::bindings::snapshots);
    };
    (group_snapshots) => {
        $crate::bindings::group_snapshots::export_group_snapshots!(Exported with_types_in $crate::bindings::group_snapshots);
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

/// Makes a native build check that a type has what it exports.
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
