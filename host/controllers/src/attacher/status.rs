//! The status of a VolumeAttachment, in external-attacher's format.

use cofferdam_domain::{VolumeAttachment, storage::Parameters};
use serde_json::{Map, Value, json};

/// Maximum length of an error message, in bytes. The API server rejects longer ones.
const MAX_MESSAGE: usize = 1024;
const ELLIPSIS: &str = "…";

/// Returns the status patch of an attached volume. It removes the attachment metadata and the error of an
/// earlier attach.
pub(super) fn attached_patch(attachment: &VolumeAttachment, metadata: &Parameters) -> Value {
    let removed = attachment.attachment_metadata.iter().map(|(key, _)| (key.to_owned(), Value::Null));
    let mut all: Map<String, Value> = removed.collect();
    all.extend(metadata.iter().map(|(key, value)| (key.clone(), json!(value))));
    let metadata = if metadata.is_empty() { Value::Null } else { Value::Object(all) };
    json!({"status": {"attached": true, "attachmentMetadata": metadata, "attachError": null}})
}

/// Returns the status patch of a detached volume.
pub(super) fn detached_patch() -> Value {
    json!({"status": {"attached": false, "attachmentMetadata": null, "detachError": null}})
}

/// Returns true if the status already has this error: the detach error with this message if the
/// VolumeAttachment is being deleted, otherwise the attach error with this message and gRPC code.
pub(super) fn has_error(attachment: &VolumeAttachment, message: &str, code: Option<i32>) -> bool {
    let (found, code) = if attachment.meta.deleting {
        (&attachment.detach_error, None)
    } else {
        (&attachment.attach_error, code)
    };
    found.as_ref().is_some_and(|found| found.message == truncate_message(message) && found.error_code == code)
}

/// Returns the status patch of a failed attach, or with `deleting` of a failed detach. `code` is the gRPC
/// code, which only the patch of a failed attach contains.
pub(super) fn error_patch(deleting: bool, now: jiff::Timestamp, message: &str, code: Option<i32>) -> Value {
    // `metav1.Time` has a resolution of one second.
    let time = jiff::Timestamp::from_second(now.as_second()).unwrap_or(now);
    let error = json!({"time": time.to_string(), "message": truncate_message(message)});
    if deleting {
        // kubelet and scheduler read the code of attach errors only.
        return json!({"status": {"detachError": error}});
    }
    let mut error = error;
    if let Some(fields) = error.as_object_mut() {
        // A merge patch without the field would keep the code of an earlier error.
        fields.insert("errorCode".to_owned(), json!(code));
    }
    json!({"status": {"attachError": error}})
}

/// Truncates a message to [`MAX_MESSAGE`] bytes.
fn truncate_message(message: &str) -> String {
    if message.len() <= MAX_MESSAGE {
        return message.to_owned();
    }
    let end = (0..=MAX_MESSAGE - ELLIPSIS.len()).rev().find(|end| message.is_char_boundary(*end));
    format!("{}{ELLIPSIS}", message.get(..end.unwrap_or_default()).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use cofferdam_domain::storage::{ConnectionInfo, connection_info::into_publish_context};

    use super::*;

    #[test]
    fn error_messages_are_truncated_to_the_api_limit() {
        assert_eq!(truncate_message("short"), "short");
        let exact = "x".repeat(1024);
        assert_eq!(truncate_message(&exact), exact);
        for letter in ["x", "ä", "€", "🚢"] {
            let truncated = truncate_message(&letter.repeat(1100));
            let length = truncated.len();
            assert!(length <= 1024 && length > 1016 && truncated.ends_with('…'), "{letter}: {length}");
        }
    }

    #[test]
    fn publish_context_wraps_connection_info_unless_it_is_csi() {
        let connection_info = |kind: &str| ConnectionInfo {
            kind: kind.to_owned(),
            version: 1,
            fields: [("path".to_owned(), "v".to_owned())].into(),
        };
        assert_eq!(
            into_publish_context(connection_info("csi")),
            [("path".to_owned(), "v".to_owned())].into()
        );
        let json = r#"{"version":1,"kind":"directory","kindVersion":1,"fields":{"path":"v"}}"#;
        let expected = [("cofferdam.dev/connection-info".to_owned(), json.to_owned())];
        assert_eq!(into_publish_context(connection_info("directory")), expected.into());
    }

    #[test]
    fn error_patches_have_the_format_of_the_api() {
        let now = "2026-01-01T00:00:00.5Z".parse().unwrap();
        assert_eq!(
            error_patch(false, now, "m", Some(8)),
            json!({"status": {"attachError": {
                "time": "2026-01-01T00:00:00Z", "message": "m", "errorCode": 8,
            }}})
        );
        assert_eq!(
            error_patch(true, now, "m", Some(8)),
            json!({"status": {"detachError": {"time": "2026-01-01T00:00:00Z", "message": "m"}}})
        );
    }
}
