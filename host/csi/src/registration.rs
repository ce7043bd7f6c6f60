//! kubelet's plugin registration API, generated from `proto/registration.proto`.
#![expect(
    missing_docs,
    clippy::allow_attributes_without_reason,
    reason = "generated; documented in proto/registration.proto"
)]

include!("generated/pluginregistration.rs");
