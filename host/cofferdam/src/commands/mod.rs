//! The subcommands, one module each.

pub(crate) mod backend;
pub(crate) mod dev;
pub(crate) mod orphans;
pub(crate) mod pre_stop;
pub(crate) mod render;
pub(crate) mod run;
pub(crate) mod status;
