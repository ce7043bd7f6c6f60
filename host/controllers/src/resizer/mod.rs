//! `resizer`: expands volumes and changes their VolumeAttributesClass, as claims request. Replaces
//! external-resizer.

mod declaration;
mod expand;
pub mod modification;
mod modify;
mod object;
pub mod reconcile;
pub mod rules;
pub(crate) mod settings;
mod state;

pub use declaration::ROLE;
