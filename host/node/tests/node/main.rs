//! Tests of the node plugin: CSI calls on a fake host, with rejections, concurrent calls, random input,
//! failed effects, crashes and reboots; on the mounts of this machine; and the registration with kubelet.
#![expect(clippy::unwrap_used, reason = "tests: a failed step fails the test")]
#![expect(clippy::indexing_slicing, reason = "tests: a missing item fails the test")]

mod calls;
mod concurrency;
mod crashes;
mod fault_injection;
mod fuzz;
#[cfg(target_os = "linux")]
mod linux;
mod nvme;
mod policy;
mod rbd;
mod registrar;
mod requests;
mod sequences;
mod support;
