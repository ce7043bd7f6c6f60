//! The services over a backend that does what ids and names tell it to.
#![expect(clippy::wildcard_enum_match_arm, reason = "of protobuf's kinds and gRPC's codes, few occur here")]

mod mutations;
mod socket;
mod validation;
