//! The services over a backend whose results are selected by keywords in ids and names.
#![expect(clippy::wildcard_enum_match_arm, reason = "of protobuf's kinds and gRPC's codes, few occur here")]

mod mutations;
mod socket;
mod validation;
