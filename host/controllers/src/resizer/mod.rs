//! `resizer`: makes volumes larger and changes their parameters, as claims ask. Takes the place of external-resizer.

mod calls;
pub(crate) mod expand;
mod memory;
pub mod modification;
mod modify;
mod object;
pub mod reconcile;
pub mod rules;
