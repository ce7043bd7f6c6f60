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
//! - Every call runs in a fresh instance: statics start anew each time. What must last is the storage's, or stands in [`state`].
//! - Every call is idempotent by name or handle, because its answer may have been lost.
//! - A panic is a trap, and a trap is a defect: the caller learns nothing but that it does not know what happened. Return
//!   a [`StorageError`] instead; its constructors are named for the kind and choose the finality that the kind has.
//! - Imports that a backend never calls are not in its component, and need not be granted.
#![deny(unsafe_code)]

pub mod ambient;
mod backend;
#[doc(hidden)]
pub mod bindings;
mod error;
pub mod log;
pub mod settings;
pub mod state;
mod types;

pub use backend::{Backend, Component};
pub use bindings::{
    cofferdam::storage::types::{
        AccessMode, AccessType, Attachment, CapacityRange, CreateRequest, ErrorKind, FilesystemAccess,
        Finality, KeyValues, Owner, ReclaimPolicy, Segments, StorageError, TopologyRequirement, Volume,
        VolumeCapability, VolumeHandle,
    },
    exports::cofferdam::storage::{
        identity::{Description, Placement, Readiness},
        volumes::{ValidateRequest, Validation},
    },
};
pub use types::to_map;

/// What every function of a backend returns.
pub type Result<T> = std::result::Result<T, StorageError>;

/// Makes a component of a type that implements [`Backend`]. Once per crate, in a crate of type `cdylib`.
///
/// What it expands to needs exported symbols, which Rust counts as unsafe code; as it comes from this crate, the crate that
/// uses it can still forbid unsafe code of its own.
#[macro_export]
macro_rules! export {
    ($backend:ty) => {
        // Native linkers read the `@` in the exports' names as a symbol version; a native build is for tests only.
        #[cfg(target_family = "wasm")]
        const _: () = {
            type Exported = $crate::Component<$backend>;
    $crate::bindings::export_component!(Exported with_types_in $crate::bindings);
        };
        #[cfg(not(target_family = "wasm"))]
        const _: ::core::marker::PhantomData<$crate::Component<$backend>> =
            $crate::Component::<$backend>::CHECKED;
    };
}
