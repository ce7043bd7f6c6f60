//! Tests of [`CsiBackend`](cofferdam_csi::CsiBackend) against a scripted driver on a unix socket in this
//! process.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "test support: a failure is the test's")]

mod calls;
mod connection;
mod fake_driver;
mod faults;
mod generated_server;
mod invalid_responses;
