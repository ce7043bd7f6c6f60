//! `resizer`: makes volumes larger and changes their parameters, as claims ask. Takes the place of
//! external-resizer.

pub(crate) mod expand;
pub mod modification;
mod modify;
mod object;
pub mod reconcile;
pub mod rules;
mod state;
