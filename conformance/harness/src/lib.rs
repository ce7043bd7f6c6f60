//! A real Kubernetes on this machine, the Go sidecars and our program beside it, and what is shown on them.
//!
//! Nothing else of the workspace depends on this crate. The programs come from `make peers`; everything that
//! runs is inside of namespaces of its own, so that processes and mounts go with them however a run ends (see
//! [`inside`]).
#![cfg(target_os = "linux")]
#![forbid(unsafe_code)]

pub mod account;
pub mod backend;
mod bench;
pub mod certificates;
pub mod claims;
pub mod cli;
pub mod cofferdam;
pub mod control_plane;
pub mod driver;
pub mod image;
pub mod kubeconfig;
pub mod launcher;
pub mod leftovers;
pub mod namespace_init;
pub mod node;
pub mod peers;
pub(crate) mod pod;
pub mod process;
pub mod proxy;
pub mod results;
pub(crate) mod retry;
pub mod run;
pub mod seeded_rng;
pub mod sidecar;
pub mod suites;
pub mod wait;

/// Tells whoever looks at the terminal. A closed stderr is no reason to end.
fn print_status(line: std::fmt::Arguments<'_>) {
    use std::io::Write as _;
    let _ = writeln!(std::io::stderr(), "{line}");
}
