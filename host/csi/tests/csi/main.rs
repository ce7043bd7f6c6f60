//! A CSI driver behind the trait, against a driver in this process that answers what a test tells it, on a
//! unix socket.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "test support: a failure is the test's")]

mod calls;
mod connection;
mod fake_driver;
mod faults;
mod generated_server;
mod invalid_responses;
