//! Tests of the CSI services over a scripted backend: keywords in the ids and names of a request select the
//! backend's result.
#![expect(clippy::wildcard_enum_match_arm, reason = "of protobuf's kinds and gRPC's codes, few occur here")]

mod mutations;
mod socket;
mod validation;
