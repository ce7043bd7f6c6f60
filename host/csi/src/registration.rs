//! How kubelet learns of a driver: the messages, client and server of its plugin registration, made of
//! `proto/registration.proto`.
#![expect(
    missing_docs,
    clippy::allow_attributes_without_reason,
    reason = "generated: kubelet's own names, documented in proto/registration.proto where a name does not say it"
)]

include!("generated/pluginregistration.rs");
