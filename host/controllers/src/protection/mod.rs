//! `protection`: removes the protection finalizers from objects that are being deleted and no longer in use,
//! and adds them to objects that lack them, such as those that got none at creation from the admission plugin
//! `StorageObjectInUseProtection`. Replaces the pv-, pvc- and vac-protection controllers of
//! kube-controller-manager.

mod declaration;
pub mod reconcile;
pub mod rules;

pub use declaration::ROLE;
pub(crate) use declaration::is_enabled;
