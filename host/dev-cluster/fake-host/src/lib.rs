//! A fake host: the files, mounts and devices of a node, in memory. Files have a size, but no content. Mount
//! operations behave as on Linux, and the host records violated rules, such as a volume that is unstaged
//! while it is published.
//!
//! [`FakeMounter`] is the [`Mounter`](cofferdam_node::Mounter) of one driver on a fake host.
#![forbid(unsafe_code)]

mod disk;
mod host;
mod mounter;
mod operator_files;
mod state;

pub use disk::{FakeDisk, SharedDisks};
pub use host::FakeHost;
pub use mounter::FakeMounter;
