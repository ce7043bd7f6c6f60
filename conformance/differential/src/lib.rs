//! One set of requests, played to any Kubernetes API, and what two of them answered compared.
//!
//! The requests stand in `requests/*.txt`, the answers of a real kube-apiserver in `answers/*.jsonl`, and the
//! differences that are kept on purpose in [`deviations::DEVIATIONS`]. The suite `differential` of `make
//! conformance` plays the set to a real API and compares, or writes its answers anew; the test of this crate
//! plays it to the embedded one.

#![forbid(unsafe_code)]

pub mod compare;
pub mod deviations;
pub mod normalizer;
pub mod recording;
pub mod requests;
pub mod runner;
