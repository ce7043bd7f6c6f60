//! The status of a VolumeSnapshot: its copy from the content, and its JSON.

use cofferdam_domain::{
    Quantity, VolumeSnapshotContent,
    volume_snapshot::{SnapshotError, VolumeSnapshotStatus},
};
use jiff::Timestamp;
use serde_json::{Map, Value, json};

/// The status that a VolumeSnapshot gets from its content.
pub(super) fn copied_status(content: &VolumeSnapshotContent) -> VolumeSnapshotStatus {
    let status = content.status.clone().unwrap_or_default();
    VolumeSnapshotStatus {
        content: Some(content.name.clone()),
        creation_time: status.creation_time.and_then(time_of).map(Into::into),
        ready: Some(status.ready == Some(true)),
        restore_size: status
            .restore_size
            .and_then(|bytes| u64::try_from(bytes).ok())
            .map(Quantity::from_bytes),
        error: status.error,
        in_group: false,
    }
}

/// The time in the API's format, of nanoseconds since the Unix epoch. `None` for a time that has no such
/// format.
fn time_of(nanoseconds: i64) -> Option<String> {
    Timestamp::from_second(nanoseconds.div_euclid(1_000_000_000)).ok().map(|time| time.to_string())
}

/// The JSON of a status, for a merge patch: fields without a value are removed.
pub(super) fn status_patch(status: &VolumeSnapshotStatus) -> Value {
    json!({
        "boundVolumeSnapshotContentName": status.content,
        "creationTime": status.creation_time,
        "readyToUse": status.ready,
        "restoreSize": status.restore_size.map(|size| size.to_string()),
        "error": status.error.as_deref().map(error_value),
    })
}

/// The JSON of `status.error`.
pub(crate) fn error_value(error: &SnapshotError) -> Value {
    let mut value = Map::new();
    if let Some(time) = &error.time {
        value.insert("time".to_owned(), json!(time));
    }
    value.insert("message".to_owned(), json!(error.message));
    Value::Object(value)
}

/// `status.error` with a message, at a time.
pub(crate) fn error_now(message: &str, now: Timestamp) -> SnapshotError {
    let time = Timestamp::from_second(now.as_second()).unwrap_or(now).to_string();
    SnapshotError { message: message.into(), time: Some(time.into()) }
}
