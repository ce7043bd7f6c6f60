//! Requests to the API server.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use cofferdam_domain::{
    ids::ResourceVersion,
    term::{Permit, PermitSource, Term},
};
use http::{Method, Request, header};
use http_body_util::BodyExt;
use kube::client::Body;
use serde::Deserialize;
use serde_json::Value;

use super::{ApiError, ApiResource, ListPage, Scope, write_body::WritePermits};
use crate::{metrics::Metrics, reflector::WATCH_TIMEOUT};

/// Timeout of a request, including its response's body; [`ApiClient::open`] has none. After the timeout, the
/// outcome is unknown. Half of kube-apiserver's default timeout of 60 s for non-watch requests.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum size of a response's body in bytes; a larger body is [`ApiError::Unavailable`].
/// [`ApiClient::open`] limits only the body of an error status, and [`ApiClient::read_page`] has a limit of
/// its own.
const MAX_RESPONSE_BYTES: usize = 64 << 20;

/// Default of [`ApiClient::max_page_bytes`]: 500 objects of 32 KiB, and more than any single object, which
/// etcd limits to 1.5 MiB before JSON escapes.
const MAX_PAGE_BYTES: usize = 16 << 20;

/// The name under which kube-apiserver records this program's writes in `metadata.managedFields`: the part of
/// the `User-Agent` before the slash.
pub const FIELD_MANAGER: &str = "cofferdam";
const USER_AGENT: &str = concat!("cofferdam/", env!("CARGO_PKG_VERSION"));

/// `Accept` header of JSON responses.
const ACCEPT_JSON: &str = "application/json";
/// Media type of a JSON patch (RFC 6902).
pub(crate) const JSON_PATCH_CONTENT_TYPE: &str = "application/json-patch+json";
/// `Accept` header of responses with metadata only, without spec and status. An API server that does not
/// support this returns the whole object.
const ACCEPT_METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";

/// A client of the API server. It neither retries requests nor caches responses. Each write needs a permit.
/// Clones share the connections.
#[derive(Clone)]
pub struct ApiClient {
    client: kube::Client,
    permits: Arc<dyn PermitSource>,
    metrics: Metrics,
    max_page_bytes: usize,
    watch_timeout: Duration,
}

impl ApiClient {
    /// A client over `client`, which must not retry. It may always write.
    pub fn new(client: kube::Client, metrics: Metrics) -> Self {
        Self {
            client,
            permits: Arc::new(Term::permanent()),
            metrics,
            max_page_bytes: MAX_PAGE_BYTES,
            watch_timeout: WATCH_TIMEOUT,
        }
    }

    /// The same client, whose writes begin only with a permit of `permits`.
    #[must_use]
    pub fn with_permits(self, permits: impl PermitSource + 'static) -> Self {
        Self { permits: Arc::new(permits), ..self }
    }

    /// The same client with another [`ApiClient::max_page_bytes`].
    #[must_use]
    pub(crate) fn with_max_page_bytes(self, max_page_bytes: usize) -> Self {
        Self { max_page_bytes, ..self }
    }

    /// Maximum size of a list page's body in bytes. A larger page is requested again with fewer objects.
    pub(crate) const fn max_page_bytes(&self) -> usize {
        self.max_page_bytes
    }

    /// The same client with another [`ApiClient::watch_timeout`].
    #[must_use]
    pub(crate) fn with_watch_timeout(self, watch_timeout: Duration) -> Self {
        Self { watch_timeout, ..self }
    }

    /// `timeoutSeconds` of the watches.
    pub(crate) const fn watch_timeout(&self) -> Duration {
        self.watch_timeout
    }

    /// Sends a request with a JSON body and returns the response's body. `target` names the object in errors.
    ///
    /// # Errors
    /// [`ApiError`]
    pub async fn send_json(
        &self,
        method: Method,
        path: &str,
        content_type: &'static str,
        body: &Value,
        target: &str,
    ) -> Result<String, ApiError> {
        let body = Bytes::from(body.to_string());
        self.send(method, path, Some(content_type), body, ACCEPT_JSON, target).await
    }

    /// As [`ApiClient::send_json`], but requests only the object's metadata and returns its new
    /// resourceVersion. A PATCH is a merge patch.
    ///
    /// # Errors
    /// [`ApiError`]
    pub async fn send_json_for_version(
        &self,
        method: Method,
        path: &str,
        body: &Value,
        target: &str,
    ) -> Result<ResourceVersion, ApiError> {
        #[derive(Deserialize)]
        struct Object {
            metadata: Meta,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Meta {
            resource_version: String,
        }
        let content_type =
            if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
        let body = Bytes::from(body.to_string());
        let response = self.send(method, path, Some(content_type), body, ACCEPT_METADATA, target).await?;
        let object: Object =
            serde_json::from_str(&response).map_err(|error| ApiError::invalid_response(target, error))?;
        object.metadata.resource_version.parse().map_err(|error| ApiError::invalid_response(target, error))
    }

    /// Sends a GET request and returns the response's body.
    ///
    /// # Errors
    /// [`ApiError`]
    pub async fn read(&self, path: &str, target: &str) -> Result<String, ApiError> {
        self.send(Method::GET, path, None, Bytes::new(), ACCEPT_JSON, target).await
    }

    /// The current resourceVersion of a collection: that of a list with a limit of one.
    ///
    /// # Errors
    /// [`ApiError`]
    pub(crate) async fn current_version(
        &self,
        resource: ApiResource,
        scope: &Scope,
    ) -> Result<ResourceVersion, ApiError> {
        let target = format!("{}s", resource.kind);
        let response = self.read(&scope.path(resource, [("limit", "1")]), &target).await?;
        let page: ListPage<'_> =
            serde_json::from_str(&response).map_err(|error| ApiError::invalid_response(&target, error))?;
        page.version().map_err(|error| ApiError::invalid_response(&target, error))
    }

    /// Sends a GET request and returns the response before its body is read. The request has no timeout and
    /// is not counted in the metrics.
    ///
    /// # Errors
    /// [`ApiError`], also for an error status.
    pub(crate) async fn open(&self, path: &str, target: &str) -> Result<http::Response<Body>, ApiError> {
        let response = self.send_get(path, target).await?;
        Self::check_status(response, target).await
    }

    /// Sends a GET request for a list page and returns the response's body; `None` if it has more than
    /// [`ApiClient::max_page_bytes`]. The body is in memory once.
    ///
    /// # Errors
    /// [`ApiError`]; [`ApiError::Unavailable`] after `timeout`.
    pub(crate) async fn read_page(
        &self,
        path: &str,
        target: &str,
        timeout: Duration,
    ) -> Result<Option<Vec<u8>>, ApiError> {
        let exchange = async {
            let response =
                self.send_get(path, target).await.inspect_err(|_| self.metrics.request("get", "none"))?;
            self.metrics.request("get", response.status().as_str());
            let mut body = Self::check_status(response, target).await?.into_body();
            let mut bytes = Vec::new();
            while let Some(frame) = body.frame().await {
                let frame = frame.map_err(|error| ApiError::unavailable(target, &error))?;
                let Ok(data) = frame.into_data() else { continue };
                if data.len() > self.max_page_bytes.saturating_sub(bytes.len()) {
                    return Ok(None);
                }
                bytes.extend_from_slice(&data);
            }
            Ok(Some(bytes))
        };
        tokio::time::timeout(timeout, exchange).await.unwrap_or_else(|_| {
            let message = format!("no response within {timeout:?}");
            Err(ApiError::Unavailable { target: target.to_owned(), message })
        })
    }

    /// Sends a write. Its body needs another permit when the connection sends it ([`RequestBody`]). Any
    /// status is a response.
    ///
    /// [`RequestBody`]: super::write_body::RequestBody
    async fn begin_write(&self, request: Request<Body>, _: Permit) -> kube::Result<http::Response<Body>> {
        self.client.send(request).await
    }

    /// Sends a GET request. Any status is a response.
    async fn send_get(&self, path: &str, target: &str) -> Result<http::Response<Body>, ApiError> {
        let request = Request::get(path)
            .header(header::ACCEPT, ACCEPT_JSON)
            .header(header::USER_AGENT, USER_AGENT)
            .body(Body::empty());
        let request = request.map_err(|error| ApiError::unavailable(target, &error))?;
        self.client.send(request).await.map_err(|error| ApiError::unavailable(target, &error))
    }

    /// Returns a response with a success status.
    ///
    /// # Errors
    /// [`ApiError`] of any other status.
    async fn check_status(
        response: http::Response<Body>,
        target: &str,
    ) -> Result<http::Response<Body>, ApiError> {
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let body = http_body_util::Limited::new(response.into_body(), MAX_RESPONSE_BYTES).collect().await;
        let body = body.map(|body| body.to_bytes()).unwrap_or_default();
        Err(ApiError::from_response(status, &body, target, false))
    }

    /// Sends a request and returns the response's body.
    ///
    /// # Errors
    /// [`ApiError`]
    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        content_type: Option<&'static str>,
        body: Bytes,
        accept: &'static str,
        target: &str,
    ) -> Result<String, ApiError> {
        let verb = verb(&method);
        let unavailable = |message: String| ApiError::Unavailable { target: target.to_owned(), message };
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::ACCEPT, accept)
            .header(header::USER_AGENT, USER_AGENT);
        if let Some(content_type) = content_type {
            request = request.header(header::CONTENT_TYPE, content_type);
        }
        let is_write = request.method_ref() != Some(&Method::GET);
        if is_write {
            request = request.extension(WritePermits(Arc::clone(&self.permits)));
        }
        let request = request.body(Body::from(body)).map_err(|error| ApiError::Refused {
            target: target.to_owned(),
            code: 0,
            message: error.to_string(),
        })?;
        let permit = match is_write {
            false => None,
            true => Some(self.permits.permit().map_err(|_| ApiError::TermEnded(target.to_owned()))?),
        };
        let exchange = async {
            let sent = match permit {
                None => self.client.send(request).await,
                Some(permit) => self.begin_write(request, permit).await,
            };
            let response = sent.map_err(|error| ApiError::unavailable(target, &error))?;
            let (head, body) = response.into_parts();
            let body = http_body_util::Limited::new(body, MAX_RESPONSE_BYTES).collect().await;
            let body = body.map_err(|error| unavailable(error.to_string()))?.to_bytes();
            Ok((head.status, body))
        };
        let outcome = tokio::time::timeout(REQUEST_TIMEOUT, exchange).await;
        let (status, body) = outcome
            .unwrap_or_else(|_| Err(unavailable(format!("no response within {REQUEST_TIMEOUT:?}"))))
            .inspect_err(|_| self.metrics.request(verb, "none"))?;
        self.metrics.request(verb, status.as_str());
        if status.is_success() {
            return String::from_utf8(body.into()).map_err(|error| ApiError::invalid_response(target, error));
        }
        let is_json_patch = content_type == Some(JSON_PATCH_CONTENT_TYPE);
        Err(ApiError::from_response(status, &body, target, is_json_patch))
    }
}

/// The `method` label of rest_client_requests.
const fn verb(method: &Method) -> &'static str {
    match *method {
        Method::POST => "create",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "get",
    }
}
