//! Sends the requests of a script to an API server, and normalizes the responses.

use std::time::Duration;

use anyhow::{Context as _, Result};
use http_body_util::BodyExt as _;
use kube::Client;
use kube::client::Body;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::normalizer::ResponseNormalizer;
use crate::requests::{RequestScript, ScriptRequest, substitute};

/// Time within which a request with `retry-forbidden` is repeated.
const MAX_ADMISSION_LAG: Duration = Duration::from_secs(30);
/// Delay between two attempts of a request with `retry-forbidden`.
const ADMISSION_RETRY_DELAY: Duration = Duration::from_millis(50);

/// A normalized response.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ApiResponse {
    /// Line number of the request in its file.
    pub line: usize,
    /// The HTTP status code.
    pub code: u16,
    /// The `Warning` headers, sorted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// The body. Frames of a watch are in the list `events`; so is an object with a top-level field `type`,
    /// such as an Event. For an empty body the list is empty. A body that is not JSON is in `text`.
    pub body: Value,
}

/// Sends the requests of a script, and returns the normalized responses in order. `compact` compacts the API
/// server's history.
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
        let context = || format!("line {}: {} {path}", request.line, request.method);
        let started = Instant::now();
        let mut response = send_request(client, request, &path, &body).await.with_context(context)?;
        while request.retry_forbidden
            && response.status() == http::StatusCode::FORBIDDEN
            && started.elapsed() < MAX_ADMISSION_LAG
        {
            sleep(ADMISSION_RETRY_DELAY).await;
            response = send_request(client, request, &path, &body).await.with_context(context)?;
        }
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

/// Sends a request once. Variables are already substituted in `path` and `body`.
async fn send_request(
    client: &Client,
    request: &ScriptRequest,
    path: &str,
    body: &str,
) -> Result<http::Response<Body>> {
    let mut builder = http::Request::builder()
        .method(request.method.as_str())
        .uri(path)
        .header(http::header::ACCEPT, &request.accept)
        .header(http::header::USER_AGENT, &request.user_agent);
    if let Some(media) = &request.content_type {
        builder = builder.header(http::header::CONTENT_TYPE, media);
    }
    Ok(client.send(builder.body(Body::from(body.as_bytes().to_vec()))?).await?)
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

#[cfg(test)]
mod tests {
    use std::{
        convert::Infallible,
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering},
        },
    };

    use http_body_util::Full;

    use super::*;
    use crate::requests::parse;

    /// Returns the status codes of a script, and the number of requests that were sent, if the first
    /// `rejected` requests get 403.
    async fn run_with_rejections(text: &str, rejected: usize) -> (Vec<u16>, usize) {
        let sent = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&sent);
        let service = tower::service_fn(move |_: http::Request<Body>| {
            let code = if counter.fetch_add(1, Ordering::SeqCst) < rejected { 403 } else { 200 };
            let response = http::Response::builder().status(code).body(Full::from("{}"));
            async move { Ok::<_, Infallible>(response.unwrap()) }
        });
        let client = Client::new(service, "default");
        let script = parse(text).unwrap();
        let responses = run_script(&client, &script, &mut async || Ok(())).await.unwrap();
        (responses.iter().map(|response| response.code).collect(), sent.load(Ordering::SeqCst))
    }

    #[tokio::test(start_paused = true)]
    async fn a_forbidden_request_is_repeated_only_with_its_word() {
        assert_eq!(run_with_rejections("GET /a retry-forbidden", 2).await, (vec![200], 3));
        assert_eq!(run_with_rejections("GET /a", 2).await, (vec![403], 1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_stays_forbidden_is_repeated_for_a_limited_time() {
        let (codes, sent) = run_with_rejections("GET /a retry-forbidden", usize::MAX).await;
        assert_eq!(codes, [403]);
        assert!(sent > 100, "{sent}");
    }
}
