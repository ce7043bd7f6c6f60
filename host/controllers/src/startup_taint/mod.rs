//! `startup-taint`: removes the start-up taint of a driver from the nodes on which the driver is registered.
//! Upstream has no sidecar for it: the node services of some drivers remove the taint themselves, with the
//! right to patch every Node.

mod declaration;
pub mod reconcile;
pub mod rules;

pub use declaration::ROLE;
