//! Waiting for a Lease that its holder releases.

use bytes::BytesMut;
use http_body_util::BodyExt as _;
use serde::Deserialize;

use super::LeaseSpec;
use crate::api::{ApiClient, ApiError};

/// Maximum size of an incomplete event in bytes: etcd's limit of an object, and its metadata.
const MAX_EVENT_BYTES: usize = 2 << 20;

#[derive(Deserialize)]
struct LeaseEvent {
    #[serde(rename = "type")]
    kind: String,
    object: EventObject,
}

#[derive(Deserialize)]
struct EventObject {
    #[serde(default)]
    spec: LeaseSpec,
}

/// Watches a Lease until it has no holder or is deleted. `path` is that of a watch of this Lease without a
/// resourceVersion, so that the first event is its current state.
///
/// # Errors
/// [`ApiError`] if the watch fails or ends.
pub(super) async fn wait_released(api: &ApiClient, path: &str, target: &str) -> Result<(), ApiError> {
    let mut body = api.open(path, target).await?.into_body();
    let mut buffer = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| ApiError::unavailable(target, &error))?;
        if let Ok(data) = frame.into_data() {
            buffer.extend_from_slice(&data);
        }
        while let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
            let line = buffer.split_to(end + 1);
            let event: LeaseEvent =
                serde_json::from_slice(&line).map_err(|error| ApiError::invalid_response(target, error))?;
            match event.kind.as_str() {
                "DELETED" => return Ok(()),
                "ADDED" | "MODIFIED" if event.object.spec.holder().is_none() => return Ok(()),
                "ADDED" | "MODIFIED" | "BOOKMARK" => {}
                kind => {
                    return Err(ApiError::invalid_response(target, format!("a watch event of type {kind}")));
                }
            }
        }
        if buffer.len() > MAX_EVENT_BYTES {
            let message = format!("a watch event has more than {MAX_EVENT_BYTES} bytes");
            return Err(ApiError::invalid_response(target, message));
        }
    }
    Err(ApiError::Unavailable { target: target.to_owned(), message: "the watch has ended".to_owned() })
}
