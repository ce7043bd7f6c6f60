//! The Container Storage Interface: its messages, and existing drivers as backends.
#![forbid(unsafe_code)]

pub mod v1;
