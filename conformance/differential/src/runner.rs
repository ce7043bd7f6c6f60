//! Sends the requests of a script.

use anyhow::{Context as _, Result};
use http_body_util::BodyExt as _;
use kube::Client;
use kube::client::Body;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::normalizer::ResponseNormalizer;
use crate::requests::{RequestScript, substitute};

/// A normalized response.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ApiResponse {
    /// The line of the request.
    pub line: usize,
    /// The HTTP status code.
    pub code: u16,
    /// The `Warning` headers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// The body; frames of a watch are in `events`, plain text in `text`.
    pub body: Value,
}

/// Sends the requests of a script, and returns the responses in order. `compact` compacts the history.
///
/// # Errors
/// If the API server does not respond, a request is malformed, or the compaction fails.
pub async fn run_script(
    client: &Client,
    script: &RequestScript,
    compact: &mut impl AsyncFnMut() -> Result<()>,
) -> Result<Vec<ApiResponse>> {
    let mut variables = script.variables.clone();
    let mut normalizer = ResponseNormalizer::default();
    let mut answers = Vec::new();
    for request in &script.requests {
        if request.after_compaction {
            compact().await.with_context(|| format!("line {}: compaction", request.line))?;
        }
        let path = substitute(&request.path, &variables);
        let body = substitute(&request.body, &variables);
        let mut builder = http::Request::builder()
            .method(request.method.as_str())
            .uri(&path)
            .header(http::header::ACCEPT, &request.accept)
            .header(http::header::USER_AGENT, &request.user_agent);
        if let Some(media) = &request.content_type {
            builder = builder.header(http::header::CONTENT_TYPE, media);
        }
        let context = || format!("line {}: {} {path}", request.line, request.method);
        let sent = builder.body(Body::from(body.clone().into_bytes())).with_context(context)?;
        let response = client.send(sent).await.with_context(context)?;
        let (parts, body_of_answer) = response.into_parts();
        let bytes = body_of_answer.collect().await.with_context(context)?.to_bytes();
        let value = decode_body(&bytes);
        if let Some((name, pointer)) = &request.capture {
            let captured = value.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
            variables.insert(name.clone(), captured.to_owned());
        }
        let warnings = parts.headers.get_all(http::header::WARNING).iter();
        let mut warnings: Vec<String> =
            warnings.filter_map(|value| value.to_str().ok()).map(str::to_owned).collect();
        warnings.sort_unstable();
        let prefix = serde_json::from_str::<Value>(&body).ok();
        let prefix = prefix.as_ref().and_then(|body| body.pointer("/metadata/generateName")?.as_str());
        let body = normalizer.normalize_body(value, prefix);
        answers.push(ApiResponse { line: request.line, code: parts.status.as_u16(), warnings, body });
    }
    Ok(answers)
}

fn decode_body(bytes: &[u8]) -> Value {
    if let Ok(value) = serde_json::from_slice::<Value>(bytes)
        && value.get("type").is_none()
    {
        return value;
    }
    let text = String::from_utf8_lossy(bytes);
    let frames: Result<Vec<Value>, _> = text.lines().map(serde_json::from_str).collect();
    match frames {
        Ok(frames) => json!({ "events": frames }),
        Err(_) => json!({ "text": text }),
    }
}
