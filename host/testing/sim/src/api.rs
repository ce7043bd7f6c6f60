//! Requests to the API server as a user, and access to fields of objects.

use http::{Method, Request, StatusCode};
use http_body_util::BodyExt as _;
use kube::client::Body;
use serde_json::Value;
use tower::{BoxError, ServiceExt as _};

use crate::test_cluster::ApiTransport;

/// API path of VolumeAttachments.
pub(crate) const VOLUME_ATTACHMENTS_PATH: &str = "/apis/storage.k8s.io/v1/volumeattachments";

/// API path of Nodes.
pub(crate) const NODES_PATH: &str = "/api/v1/nodes";

/// A text field; empty if it is missing.
pub(crate) fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// Sends one request as a user. Returns the status and the body of the response. `Value::Null` stands for an
/// empty body of the request, and for a body of the response that is not JSON.
///
/// # Errors
/// The request is invalid, or there is no complete response.
pub(crate) async fn send_request(
    api: &ApiTransport,
    method: Method,
    path: &str,
    content_type: &str,
    body: &Value,
) -> Result<(StatusCode, Value), BoxError> {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(http::header::CONTENT_TYPE, content_type)
        .body(Body::from(body.into_bytes()))?;
    let response = api.clone().oneshot(request).await?;
    let status = response.status();
    let bytes = response.into_body().collect().await?.to_bytes();
    Ok((status, serde_json::from_slice(&bytes).unwrap_or(Value::Null)))
}

/// Reads the object at a path. `None` if it does not exist or the request fails.
pub(crate) async fn get(api: &ApiTransport, path: &str) -> Option<Value> {
    let (status, object) = send_request(api, Method::GET, path, "", &Value::Null).await.ok()?;
    status.is_success().then_some(object)
}

/// An array field; empty if it is missing.
pub(crate) fn list_at<'a>(object: &'a Value, pointer: &str) -> &'a [Value] {
    object.pointer(pointer).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// For each volume of a pod, the name of the claim that the pod references; empty for other kinds of volumes,
/// including generic ephemeral volumes.
pub(crate) fn claim_names(pod: &Value) -> impl Iterator<Item = &str> {
    list_at(pod, "/spec/volumes").iter().map(|volume| text(volume, "/persistentVolumeClaim/claimName"))
}
