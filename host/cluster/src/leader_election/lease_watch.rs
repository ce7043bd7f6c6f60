//! A watch of one Lease, by which a standby sees each renewal and the release.

use bytes::BytesMut;
use http_body_util::BodyExt as _;
use kube::client::Body;
use serde::Deserialize;

use super::lease_spec::LeaseSpec;
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

/// An open watch.
pub(super) struct LeaseWatch {
    body: Body,
    buffer: BytesMut,
    target: String,
}

impl LeaseWatch {
    /// Opens a watch. `path` is that of a watch of one Lease without a resourceVersion, so that the first
    /// event is its current state.
    ///
    /// # Errors
    /// [`ApiError`]
    pub(super) async fn open(api: &ApiClient, path: &str, target: String) -> Result<Self, ApiError> {
        let body = api.open(path, &target).await?.into_body();
        Ok(Self { body, buffer: BytesMut::new(), target })
    }

    /// Waits for a change, and returns the spec; `None` after a deletion. Cancel safe.
    ///
    /// # Errors
    /// [`ApiError`] if the watch fails or ends. It must not be used any more.
    pub(super) async fn next(&mut self) -> Result<Option<LeaseSpec>, ApiError> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line = self.buffer.split_to(end + 1);
                let event: LeaseEvent = serde_json::from_slice(&line)
                    .map_err(|error| ApiError::invalid_response(&self.target, error))?;
                match event.kind.as_str() {
                    "DELETED" => return Ok(None),
                    "ADDED" | "MODIFIED" => return Ok(Some(event.object.spec)),
                    "BOOKMARK" => continue,
                    kind => {
                        let message = format!("a watch event of type {kind}");
                        return Err(ApiError::invalid_response(&self.target, message));
                    }
                }
            }
            if self.buffer.len() > MAX_EVENT_BYTES {
                let message = format!("a watch event has more than {MAX_EVENT_BYTES} bytes");
                return Err(ApiError::invalid_response(&self.target, message));
            }
            let Some(frame) = self.body.frame().await else {
                let message = "the watch has ended".to_owned();
                return Err(ApiError::Unavailable { target: self.target.clone(), message });
            };
            let frame = frame.map_err(|error| ApiError::unavailable(&self.target, &error))?;
            if let Ok(data) = frame.into_data() {
                self.buffer.extend_from_slice(&data);
            }
        }
    }
}
