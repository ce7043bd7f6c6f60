//! Conversion and validation of CSI requests. kubelet passes on values that others wrote, so nothing is
//! trusted.

use std::collections::BTreeMap;

use cofferdam_csi::v1::{
    self, CapacityRange, NodePublishVolumeRequest, NodeStageVolumeRequest,
    volume_capability::{AccessType as CsiAccessType, MountVolume, access_mode::Mode},
};
use cofferdam_domain::{
    Quantity,
    storage::{AccessType, CsiAccessMode, ErrorKind, Secret, VolumeCapability, connection_info},
    text::printable,
};
use tonic::{Code, Status};

use crate::{
    connection::CONTENT_SOURCE,
    error::NodeError,
    node::{PublishInlineRequest, PublishRequest, StageRequest},
};

/// Maximum total length of a volume's mount flags in bytes.
const MAX_MOUNT_FLAGS_BYTES: usize = 4096;

type Result<T> = std::result::Result<T, Status>;

/// Maximum length of a volume handle in bytes.
const MAX_VOLUME_ID_BYTES: usize = 128;
/// Prefix of the keys that kubelet adds to a volume context.
const KUBELET_PREFIX: &str = "csi.storage.k8s.io/";
/// Key by which kubelet marks inline volumes.
const EPHEMERAL_KEY: &str = "csi.storage.k8s.io/ephemeral";
/// The only attribute of inline volumes: a quantity in bytes.
const SIZE_KEY: &str = "size";
/// kubelet's handle of an inline volume is this prefix and a SHA-256 in hex.
const INLINE_PREFIX: &str = "csi-";
const INLINE_DIGEST_LEN: usize = 64;

/// Converts an error to a gRPC status. kubelet shows its message in an event of the pod.
pub(super) fn status(error: &NodeError) -> Status {
    let code = match error.kind() {
        ErrorKind::InvalidArgument => Code::InvalidArgument,
        ErrorKind::NotFound => Code::NotFound,
        ErrorKind::AlreadyExists => Code::AlreadyExists,
        ErrorKind::PermissionDenied => Code::PermissionDenied,
        ErrorKind::FailedPrecondition => Code::FailedPrecondition,
        ErrorKind::OutOfRange => Code::OutOfRange,
        ErrorKind::Unauthenticated
        | ErrorKind::ResourceExhausted
        | ErrorKind::Aborted
        | ErrorKind::Unimplemented
        | ErrorKind::Internal
        | ErrorKind::Unavailable
        | ErrorKind::DeadlineExceeded
        | ErrorKind::Cancelled
        | ErrorKind::DataLoss
        | ErrorKind::Unknown => Code::Internal,
    };
    Status::new(code, printable(&error.to_string()))
}

pub(super) fn check_required(field: &str, value: &str) -> Result<()> {
    if value.is_empty() { Err(Status::invalid_argument(format!("{field} is missing"))) } else { Ok(()) }
}

/// Validates a volume handle.
pub(super) fn check_volume_id(handle: &str) -> Result<()> {
    check_required("volume_id", handle)?;
    if handle.len() > MAX_VOLUME_ID_BYTES {
        return Err(Status::invalid_argument(format!(
            "volume_id has {} bytes: expected at most {MAX_VOLUME_ID_BYTES}",
            handle.len()
        )));
    }
    if handle.contains(char::is_control) {
        return Err(Status::invalid_argument("volume_id has a control character: expected none"));
    }
    Ok(())
}

/// Returns true if a handle has the form that kubelet generates for inline volumes. Drivers must not use this
/// form.
fn is_inline_volume_id(handle: &str) -> bool {
    let is_digest =
        |text: &str| text.len() == INLINE_DIGEST_LEN && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    handle.strip_prefix(INLINE_PREFIX).is_some_and(is_digest)
}

/// Converts a volume capability.
pub(super) fn volume_capability(capability: v1::VolumeCapability) -> Result<VolumeCapability> {
    let invalid = |text: &str| Status::invalid_argument(format!("volume_capability {text}"));
    let mode = capability.access_mode.ok_or_else(|| invalid("has no access_mode"))?.mode;
    let mode = match Mode::try_from(mode) {
        Ok(Mode::SingleNodeWriter) => CsiAccessMode::SingleNodeWriter,
        Ok(Mode::SingleNodeReaderOnly) => CsiAccessMode::SingleNodeReaderOnly,
        Ok(Mode::MultiNodeReaderOnly) => CsiAccessMode::MultiNodeReaderOnly,
        Ok(Mode::MultiNodeSingleWriter) => CsiAccessMode::MultiNodeSingleWriter,
        Ok(Mode::MultiNodeMultiWriter) => CsiAccessMode::MultiNodeMultiWriter,
        Ok(Mode::SingleNodeSingleWriter) => CsiAccessMode::SingleNodeSingleWriter,
        Ok(Mode::SingleNodeMultiWriter) => CsiAccessMode::SingleNodeMultiWriter,
        Ok(Mode::Unknown) | Err(_) => return Err(invalid("has an access_mode that CSI 1.12 does not know")),
    };
    let text = |text: String| (!text.is_empty()).then_some(text);
    let access = match capability.access_type {
        None => return Err(invalid("has no access_type")),
        Some(CsiAccessType::Block(_)) => AccessType::Block,
        Some(CsiAccessType::Mount(MountVolume { fs_type, mount_flags, volume_mount_group })) => {
            // The same limit as in csi-server. Each publication stores the flags in the volume's record.
            if mount_flags.iter().map(|flag| flag.len()).sum::<usize>() > MAX_MOUNT_FLAGS_BYTES {
                return Err(invalid("has mount_flags of more than 4096 bytes together"));
            }
            AccessType::Filesystem {
                fs_type: text(fs_type),
                mount_flags,
                mount_group: text(volume_mount_group),
            }
        }
    };
    Ok(VolumeCapability { access_mode: mode, access_type: access })
}

fn required_capability(capability: Option<v1::VolumeCapability>) -> Result<VolumeCapability> {
    volume_capability(capability.ok_or_else(|| Status::invalid_argument("volume_capability is missing"))?)
}

/// Converts a capacity range to (required, limit) in bytes. CSI's 0 becomes `None`.
pub(super) fn capacity_range(range: Option<CapacityRange>) -> Result<(Option<u64>, Option<u64>)> {
    let Some(CapacityRange { required_bytes, limit_bytes }) = range else { return Ok((None, None)) };
    let bytes = |field: &str, bytes: i64| match u64::try_from(bytes) {
        Ok(0) => Ok(None),
        Ok(bytes) => Ok(Some(bytes)),
        Err(_) => Err(Status::invalid_argument(format!("capacity_range.{field} is negative"))),
    };
    Ok((bytes("required_bytes", required_bytes)?, bytes("limit_bytes", limit_bytes)?))
}

/// Converts a size to CSI's signed number of bytes. A size that does not fit becomes the maximum.
pub(super) fn to_csi_bytes(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// Converts a NodeStageVolume request. With `has_publishing`, the connection info is in the publish context.
pub(super) fn stage_request(request: NodeStageVolumeRequest, has_publishing: bool) -> Result<StageRequest> {
    check_volume_id(&request.volume_id)?;
    check_required("staging_target_path", &request.staging_target_path)?;
    let capability = required_capability(request.volume_capability)?;
    if is_inline_volume_id(&request.volume_id) {
        return Err(Status::invalid_argument(
            "volume_id has the shape of an inline volume's, which is not staged",
        ));
    }
    let connection_info =
        connection_info::from_contexts(&request.publish_context, &request.volume_context, has_publishing)
            .map_err(|error| Status::invalid_argument(printable(&error.to_string())))?;
    Ok(StageRequest {
        volume: request.volume_id,
        staging_path: request.staging_target_path,
        capability,
        connection_info,
        has_content_source: request.volume_context.contains_key(CONTENT_SOURCE),
        secrets: request.secrets.into_iter().map(|(name, text)| (name, Secret::new(text))).collect(),
    })
}

/// A NodePublishVolume request for a staged or an inline volume.
#[derive(Debug)]
pub(super) enum AnyPublishRequest {
    Staged(PublishRequest),
    Inline(PublishInlineRequest),
}

/// Converts a NodePublishVolume request.
pub(super) fn publish_request(request: NodePublishVolumeRequest) -> Result<AnyPublishRequest> {
    check_volume_id(&request.volume_id)?;
    check_required("target_path", &request.target_path)?;
    let capability = required_capability(request.volume_capability)?;
    let context = &request.volume_context;
    let ephemeral = context.get(EPHEMERAL_KEY).map(String::as_str);
    if is_inline_volume_id(&request.volume_id) {
        let size = inline_size(context, &request.publish_context, ephemeral)?;
        return Ok(AnyPublishRequest::Inline(PublishInlineRequest {
            volume: request.volume_id,
            target_path: request.target_path,
            capability,
            read_only: request.readonly,
            size,
        }));
    }
    if ephemeral == Some("true") {
        return Err(Status::invalid_argument(
            "an inline volume has the handle of another one: expected kubelet's own",
        ));
    }
    if request.staging_target_path.is_empty() {
        return Err(Status::failed_precondition(
            "staging_target_path is missing: this driver's volumes are staged",
        ));
    }
    Ok(AnyPublishRequest::Staged(PublishRequest {
        volume: request.volume_id,
        staging_path: request.staging_target_path,
        target_path: request.target_path,
        capability,
        read_only: request.readonly,
    }))
}

/// Returns the size in bytes from an inline volume's attributes, which the pod's author wrote; `None` if they
/// have no size. Rejects unknown attributes, a publish context, and a volume that kubelet marks as not
/// ephemeral.
fn inline_size(
    context: &BTreeMap<String, String>,
    publish_context: &BTreeMap<String, String>,
    ephemeral: Option<&str>,
) -> Result<Option<u64>> {
    if ephemeral.is_some_and(|ephemeral| ephemeral != "true") || !publish_context.is_empty() {
        return Err(Status::invalid_argument(
            "volume_id has the shape of an inline volume's, and it is none",
        ));
    }
    let unknown = context.keys().find(|key| *key != SIZE_KEY && !key.starts_with(KUBELET_PREFIX));
    if let Some(unknown) = unknown {
        return Err(Status::invalid_argument(format!(
            "an inline volume has the attribute {unknown:?}: expected {SIZE_KEY:?} at most"
        )));
    }
    let Some(size) = context.get(SIZE_KEY) else { return Ok(None) };
    let bytes = Quantity::parse(size).ok().and_then(Quantity::bytes_within_int64);
    match bytes {
        Some(bytes) => Ok(Some(bytes)),
        None => Err(Status::invalid_argument(format!(
            "size is {size:?}: expected a quantity of bytes, such as 64Mi"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_responses_have_no_control_and_format_characters() {
        let error = NodeError::NotFound("/srv/a\u{1b}[2J\u{202e}b\n does not exist".to_owned());
        let status = status(&error);
        assert_eq!((status.code(), status.message()), (Code::NotFound, "/srv/a [2J b  does not exist"));
    }
}
