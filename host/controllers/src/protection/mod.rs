//! `protection`: releases the protection finalizers, and puts them on what was made before admission did.
//! Takes the place of pv- and pvc-protection of kube-controller-manager.

pub mod reconcile;
pub mod rules;
