//! `protection`: removes the protection finalizers, and adds them to objects that were created before the
//! admission plugin was enabled. Replaces the pv-, pvc- and vac-protection controllers of
//! kube-controller-manager.

mod declaration;
pub mod reconcile;
pub mod rules;

pub use declaration::ROLE;
pub(crate) use declaration::is_enabled;
