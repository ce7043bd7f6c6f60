//! The table of controllers. A new role is a folder with a `Controller` and
//! one line in this table.

use crate::{
    attach_detach::reconcile::AttachDetach, attacher::reconcile::Attacher, controller::Declaration,
    protection::reconcile::Protection, provisioner::reconcile::Provisioner,
    pv_controller::reconcile::PvController, resizer::reconcile::Resizer,
};

/// Every controller. The order is that of `--role` in help texts and of start-up.
pub const CONTROLLERS: &[Declaration] = &[
    Declaration::of::<Provisioner>(),
    Declaration::of::<Attacher>(),
    Declaration::of::<Resizer>(),
    Declaration::of::<PvController>(),
    Declaration::of::<Protection>(),
    Declaration::of::<AttachDetach>(),
];
