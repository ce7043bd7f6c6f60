//! Suites in which Cofferdam runs under the names of CSI sidecars and with their command lines.

mod call_log;
pub(super) mod flags;
pub(super) mod leases;
pub(super) mod mixed;
pub(super) mod oddities;
mod simulated_node;
pub(super) mod slot;
pub(super) mod strangers;
mod users;
