//! A complete cluster in one process: the embedded API server, all of Cofferdam's controllers, the memory
//! driver in its sandbox, and simulated nodes with real Node services on their sockets. Some tests replace
//! Cofferdam's Node service by one that records calls and injects failures. The test of the shutdown runs
//! neither Cofferdam's controllers nor a driver.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking, also in what its functions share"
)]

mod harness;
mod kubelet;
mod lifecycle;
#[cfg(target_os = "linux")]
mod real_mounts;
mod scheduling;
mod shutdown;
