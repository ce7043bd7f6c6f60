//! The conformance suites of Cofferdam, and the benchmarks that compare Cofferdam with upstream, which is
//! kube-controller-manager and the CSI sidecars. Both run on a real Kubernetes on this machine.
//!
//! No other crate of the workspace depends on this one. `make peers` builds the upstream programs. Each suite
//! runs in Linux namespaces of its own, which remove its processes and mounts however it ends (see
//! [`namespace_init`]).
#![cfg(target_os = "linux")]
#![forbid(unsafe_code)]

pub mod account;
pub(crate) mod audit;
pub mod backend;
mod bench;
pub mod ceph;
pub mod certificates;
pub mod claims;
pub(crate) mod class_secret;
pub mod cli;
pub mod cofferdam;
pub mod control_plane;
pub mod driver;
pub(crate) mod fake_clock;
pub mod image;
pub(crate) mod implementation;
pub(crate) mod journal;
pub mod kubeconfig;
pub mod launcher;
pub mod leftovers;
pub(crate) mod line_tail;
pub(crate) mod machine;
mod metric_names;
pub mod namespace_init;
pub mod namespaces;
pub(crate) mod network_link;
pub mod node;
mod node_files;
pub mod peers;
pub(crate) mod planted_secret;
pub(crate) mod pod;
pub(crate) mod precise_timer;
pub mod process;
pub mod proxy;
pub mod results;
pub(crate) mod retry;
pub mod run;
pub mod seeded_rng;
pub mod sidecar;
mod snapshot_crds;
pub(crate) mod snapshots;
pub(crate) mod stopped_role;
pub mod suites;
pub mod wait;

/// Prints a line to stderr. A closed stderr is ignored.
fn print_status(line: std::fmt::Arguments<'_>) {
    use std::io::Write as _;
    let _ = writeln!(std::io::stderr(), "{line}");
}
