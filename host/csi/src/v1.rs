//! CSI 1.12's messages, clients and servers, generated from `proto/csi.proto`. `Debug` redacts the fields
//! that CSI marks as secret.
#![expect(
    missing_docs,
    clippy::allow_attributes_without_reason,
    reason = "generated; documented in proto/csi.proto"
)]

include!("generated/csi.v1.rs");
include!("generated/debug.rs");
