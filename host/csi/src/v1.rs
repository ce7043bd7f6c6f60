//! CSI 1.12's messages, clients and servers, made of `proto/csi.proto`. `Debug` shows nothing of fields that
//! CSI marks secret.
#![expect(
    missing_docs,
    clippy::allow_attributes_without_reason,
    reason = "generated: CSI's own names, documented in proto/csi.proto where a name does not say it"
)]

include!("generated/csi.v1.rs");
include!("generated/debug.rs");
