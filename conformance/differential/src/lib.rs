//! A set of requests for any Kubernetes API server, and comparison of the responses of two API servers: those
//! of kube-apiserver, which are recorded, and those of the embedded API (the crate `cofferdam-apiserver`).
//!
//! The requests are in `requests/*.txt`, the responses of kube-apiserver in `answers/*.jsonl`, and intended
//! differences in [`deviations::DEVIATIONS`]. The suite `differential` of `make conformance` sends the set to
//! kube-apiserver and compares or records its responses; the test of this crate sends it to the embedded API.

#![forbid(unsafe_code)]

pub mod compare;
pub mod deviations;
pub mod normalizer;
pub mod recording;
pub mod requests;
pub mod runner;
