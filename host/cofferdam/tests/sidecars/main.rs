//! Tests of the built binary under the names of the sidecars: the command lines of the sidecars and of public
//! drivers, the effect of each flag, leader election, core dumps, and the log.
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test fails by panicking, also in what its functions share"
)]

mod command_line;
mod core_dumps;
mod driver;
mod fixture;
mod flags;
mod leader_election;
mod log;
mod manifests;
#[path = "../common/process.rs"]
mod process;
mod snapshots;
