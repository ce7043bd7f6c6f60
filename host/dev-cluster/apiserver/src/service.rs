//! The `tower` service for HTTP requests.

use std::convert::Infallible;
use std::fmt::Display;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use futures::Stream;
use http::{HeaderValue, Request, Response, StatusCode, header, request::Parts};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use serde_json::{Value, json};

use crate::bind;
use crate::delete::{DeleteOptions, DeleteOutcome};
use crate::descriptors::ResourceKind;
use crate::discovery;
use crate::inner::Inner;
use crate::meta;
use crate::openapi;
use crate::patch::{go_error, go_type};
use crate::protobuf;
use crate::read;
use crate::render::{Renderer, set_empty_continue};
use crate::request::{self, BodyType, Discovery, PatchType, Query, Target, Verb};
use crate::status::{Status, body_excerpt};
use crate::store::StoredObject;
use crate::write::{Warnings, WriteOptions};

type Frames = Pin<Box<dyn Stream<Item = Bytes> + Send>>;

/// A response body: bytes, or the frames of a watch.
pub struct ApiBody(BodyContent);

enum BodyContent {
    Bytes(Option<Bytes>),
    Frames(Frames),
}

impl std::fmt::Debug for ApiBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0 {
            BodyContent::Bytes(bytes) => f.debug_tuple("Bytes").field(bytes).finish(),
            BodyContent::Frames(_) => f.write_str("Frames"),
        }
    }
}

impl From<Bytes> for ApiBody {
    fn from(bytes: Bytes) -> Self {
        Self(BodyContent::Bytes(Some(bytes)))
    }
}

impl Body for ApiBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match &mut self.0 {
            BodyContent::Bytes(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            BodyContent::Frames(frames) => {
                frames.as_mut().poll_next(context).map(|frame| frame.map(|bytes| Ok(Frame::data(bytes))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.0, BodyContent::Bytes(None))
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            BodyContent::Bytes(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            BodyContent::Frames(_) => SizeHint::default(),
        }
    }
}

/// The API as a `tower` service. Clones share their state.
#[derive(Clone)]
pub struct ApiService {
    inner: Arc<Inner>,
}

impl std::fmt::Debug for ApiService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ApiService").finish_non_exhaustive()
    }
}

impl ApiService {
    pub(crate) fn new(inner: Arc<Inner>) -> Self {
        Self { inner }
    }
}

impl<B> tower::Service<Request<B>> for ApiService
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Display,
{
    type Response = Response<ApiBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<ApiBody>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let inner = Arc::clone(&self.inner);
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let answer = match read_body(body, inner.body_limit).await {
                Ok(body) => inner.handle_request(&parts, &body),
                Err(status) => Err(status),
            };
            Ok(answer.unwrap_or_else(|status| error_response(&status)))
        })
    }
}

async fn read_body<B>(body: B, limit: usize) -> Result<Bytes, Status>
where
    B: Body<Data = Bytes>,
    B::Error: Display,
{
    let mut body = pin!(body);
    let mut first = Bytes::new();
    let mut rest = BytesMut::new();
    while let Some(frame) = body.as_mut().frame().await {
        let frame =
            frame.map_err(|error| Status::bad_request(format!("the body could not be read: {error}")))?;
        let Ok(data) = frame.into_data() else { continue };
        if first.len() + rest.len() + data.len() > limit {
            return Err(Status::too_large(limit));
        }
        if first.is_empty() {
            first = data;
        } else {
            rest.extend_from_slice(&data);
        }
    }
    if rest.is_empty() {
        return Ok(first);
    }
    let mut all = BytesMut::with_capacity(first.len() + rest.len());
    all.extend_from_slice(&first);
    all.extend_from_slice(&rest);
    Ok(all.freeze())
}

type ApiResult = Result<Response<ApiBody>, Status>;

fn response(code: StatusCode, content_type: &'static str, content: BodyContent) -> Response<ApiBody> {
    let mut response = Response::new(ApiBody(content));
    *response.status_mut() = code;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    response
}

fn json_response(code: StatusCode, bytes: Bytes) -> Response<ApiBody> {
    response(code, "application/json", BodyContent::Bytes(Some(bytes)))
}

fn json_value_response(value: &Value) -> Response<ApiBody> {
    json_response(StatusCode::OK, value.to_string().into())
}

fn text_response(code: StatusCode, text: &'static str) -> Response<ApiBody> {
    response(code, "text/plain; charset=utf-8", BodyContent::Bytes(Some(Bytes::from_static(text.as_bytes()))))
}

/// The response for a path that no part of the server handles.
fn page_not_found() -> Response<ApiBody> {
    text_response(StatusCode::NOT_FOUND, "404 page not found\n")
}

/// Adds `Warning` headers to a response.
fn with_warning_headers(mut response: Response<ApiBody>, warnings: Warnings) -> Response<ApiBody> {
    for warning in warnings.into_inner() {
        let quoted = warning.replace('\\', "\\\\").replace('"', "\\\"");
        if let Ok(value) = HeaderValue::from_str(&format!("299 - \"{quoted}\"")) {
            response.headers_mut().append(header::WARNING, value);
        }
    }
    response
}

/// The response of a failed request.
pub(crate) fn error_response(status: &Status) -> Response<ApiBody> {
    json_response(status.code, status.to_value().to_string().into())
}

/// Returns `true` if a path requires no token, as in kube-apiserver.
pub(crate) fn is_public(path: &str) -> bool {
    matches!(path, "/healthz" | "/livez" | "/readyz" | "/version" | "/version/")
}

/// Parses an object in JSON or YAML. Null is an empty object.
fn json_body(parts: &Parts, body: &[u8], kind: &str) -> Result<Value, Status> {
    let to_bad_request = |why: &str| {
        Status::bad_request(format!(
            "the object provided is unrecognized (must be of type {kind}): couldn't get version/kind; json \
             parse error: {why} ({})",
            body_excerpt(body)
        ))
    };
    let value: Value = match request::body_type(&parts.headers)? {
        BodyType::Json => serde_json::from_slice(body).map_err(|error| to_bad_request(&go_error(&error)))?,
        BodyType::Yaml => std::str::from_utf8(body)
            .map_err(|error| error.to_string())
            .and_then(|text| serde_saphyr::from_str(text).map_err(|error| error.to_string()))
            .map_err(|error| to_bad_request(&format!("error converting YAML to JSON: yaml: {error}")))?,
    };
    match go_type(&value) {
        None => Ok(if value.is_null() { json!({}) } else { value }),
        Some(found) => Err(to_bad_request(&format!(
            "json: cannot unmarshal {found} into Go value of type struct {{ APIVersion string \
             \"json:\\\"apiVersion,omitempty\\\"\"; Kind string \"json:\\\"kind,omitempty\\\"\" }}"
        ))),
    }
}

/// Parses the object of a create or update: JSON or YAML, and for some kinds protobuf.
fn object_body(parts: &Parts, target: &Target, body: &[u8]) -> Result<Value, Status> {
    let kind = target.resource.id;
    if request::is_protobuf(&parts.headers) && protobuf::is_supported(kind) {
        return protobuf::decode(kind, body).ok_or_else(|| {
            Status::bad_request("the protobuf body is malformed or has fields that are not served: send JSON")
        });
    }
    json_body(parts, body, target.resource.kind)
}

impl Inner {
    fn handle_request(self: &Arc<Self>, parts: &Parts, body: &Bytes) -> ApiResult {
        let path = parts.uri.path();
        match request::target(path) {
            // Only lists and watches of custom resources span namespaces.
            Some(target) if target.resource.is_custom && target.is_misplaced(&parts.method) => {
                Ok(page_not_found())
            }
            Some(target) => self.handle_resource(parts, &target, body),
            None if parts.method == http::Method::GET => document(parts),
            None if path.starts_with("/api") && !request::is_custom_path(path) => {
                Err(Status::method_not_allowed())
            }
            None => Ok(page_not_found()),
        }
    }

    fn handle_resource(self: &Arc<Self>, parts: &Parts, target: &Target, body: &Bytes) -> ApiResult {
        let query = Query::parse(parts.uri.query());
        let verb = request::verb(&parts.method, target, &query)?;
        if bind::is_binding(target) {
            return match verb {
                Verb::Create => self.create_binding(parts, target, &query, body),
                Verb::Get
                | Verb::List
                | Verb::Watch
                | Verb::Update
                | Verb::Patch
                | Verb::Delete
                | Verb::DeleteCollection => Err(Status::method_not_allowed()),
            };
        }
        target.write_endpoint()?;
        let view = request::response_format(&parts.headers, target.resource)?;
        let renderer = Renderer::new(target.resource.id, view, query.get("includeObject"), (self.now)())?;
        let warnings = Warnings::default();
        let answer = self.handle_verb((parts, target, body), verb, &query, renderer, &warnings);
        let response = answer.unwrap_or_else(|status| error_response(&status));
        Ok(with_warning_headers(response, warnings))
    }

    /// Handles a request for a resource other than a binding. Adds the warnings of the request, also if it
    /// fails.
    fn handle_verb(
        self: &Arc<Self>,
        (parts, target, body): (&Parts, &Target, &Bytes),
        verb: Verb,
        query: &Query,
        renderer: Renderer,
        warnings: &Warnings,
    ) -> ApiResult {
        let agent = request::user_agent(&parts.headers);
        let one = |code, object: &StoredObject| Ok(json_response(code, renderer.object(object)));
        match verb {
            Verb::Get => one(StatusCode::OK, self.get(target, query)?.as_ref()),
            Verb::List => Ok(json_response(StatusCode::OK, self.list(target, query, &renderer)?)),
            Verb::Watch => {
                let frames = Box::pin(self.watch(target, query, renderer)?);
                Ok(response(StatusCode::OK, "application/json", BodyContent::Frames(frames)))
            }
            Verb::Create => {
                if target.subresource.is_some() {
                    return Err(Status::method_not_allowed());
                }
                let body = object_body(parts, target, body)?;
                let options = WriteOptions::parse("CreateOptions", query, agent, None, warnings)?;
                let object = self.create(target, body, options)?;
                one(StatusCode::CREATED, &object)
            }
            Verb::Update => {
                let body = object_body(parts, target, body)?;
                let options = WriteOptions::parse("UpdateOptions", query, agent, None, warnings)?;
                let (object, created) = self.update(target, body, options)?;
                one(if created { StatusCode::CREATED } else { StatusCode::OK }, &object)
            }
            Verb::Patch => {
                let patch_type = request::patch_type(&parts.headers, target.resource)?;
                let options = WriteOptions::parse("PatchOptions", query, agent, Some(patch_type), warnings)?;
                if patch_type == PatchType::Apply {
                    let (object, created) = self.apply(target, body, options)?;
                    one(if created { StatusCode::CREATED } else { StatusCode::OK }, &object)
                } else {
                    one(StatusCode::OK, self.patch(target, patch_type, body, options)?.as_ref())
                }
            }
            Verb::Delete if target.subresource.is_some() => Err(Status::method_not_allowed()),
            Verb::Delete => {
                let deleted = self.delete(target, &self.delete_options(parts, query, body)?)?;
                Ok(delete_response(target, &deleted, &renderer))
            }
            Verb::DeleteCollection => {
                let options = self.delete_options(parts, query, body)?;
                self.delete_collection(target, query, &options)
            }
        }
    }

    fn create_binding(&self, parts: &Parts, target: &Target, query: &Query, body: &Bytes) -> ApiResult {
        let warnings = Warnings::default();
        let agent = request::user_agent(&parts.headers);
        let options = WriteOptions::parse("CreateOptions", query, agent, None, &warnings)?;
        self.bind(target, &json_body(parts, body, "Binding")?, options.dry_run)?;
        let status =
            json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201});
        Ok(json_response(StatusCode::CREATED, status.to_string().into()))
    }

    fn delete_options(&self, parts: &Parts, query: &Query, body: &Bytes) -> Result<DeleteOptions, Status> {
        let body = if body.is_empty() { Value::Null } else { json_body(parts, body, "DeleteOptions")? };
        DeleteOptions::parse(query, &body)
    }

    fn delete_collection(&self, target: &Target, query: &Query, options: &DeleteOptions) -> ApiResult {
        let kind = target.resource.id;
        if kind == ResourceKind::Namespace || target.resource.namespaced == target.namespace.is_empty() {
            return Err(Status::method_not_allowed());
        }
        let selector = read::selector(kind, query)?;
        let prefix =
            if target.namespace.is_empty() { String::new() } else { format!("{}/", target.namespace) };
        // A list of the current state cannot fail.
        let listing = self.store.list(kind, &prefix, None).map_err(|_| Status::no_such_resource())?;
        let mut items = Vec::new();
        for object in listing.objects.iter().filter(|object| selector.matches(&object.value)) {
            let one = Target { name: Some(object.name().to_owned()), ..target.clone() };
            match self.delete(&one, options) {
                Ok(_) => items.push(object.to_list_item()),
                // The object was deleted concurrently.
                Err(status) if status.code == StatusCode::NOT_FOUND => {}
                Err(status) => return Err(status),
            }
        }
        let resource = target.resource;
        let mut meta = json!({"resourceVersion": self.store.version().to_string()});
        set_empty_continue(resource, &mut meta);
        Ok(json_value_response(&json!({
            "kind": format!("{}List", resource.kind),
            "apiVersion": resource.api_version(),
            "metadata": meta,
            "items": items,
        })))
    }
}

/// The response of a deletion: the state of the object, or a Status with `Success` if the object was removed
/// and is of one of some kinds.
fn delete_response(target: &Target, deleted: &DeleteOutcome, renderer: &Renderer) -> Response<ApiBody> {
    let resource = target.resource;
    match deleted {
        DeleteOutcome::Removed(object)
            if matches!(
                resource.id,
                ResourceKind::ConfigMap
                    | ResourceKind::Secret
                    | ResourceKind::Lease
                    | ResourceKind::Event
                    | ResourceKind::Node
                    | ResourceKind::Namespace
                    | ResourceKind::VolumeSnapshot
                    | ResourceKind::VolumeSnapshotContent
                    | ResourceKind::VolumeSnapshotClass
            ) =>
        {
            let mut details = json!({
                "name": object.name(),
                "group": resource.group,
                "kind": resource.plural,
                "uid": object.uid(),
            });
            if resource.group.is_empty() {
                meta::remove(&mut details, "group");
            }
            json_value_response(&json!({
                "kind": "Status",
                "apiVersion": "v1",
                "metadata": {},
                "status": "Success",
                "details": details,
            }))
        }
        DeleteOutcome::Removed(object) | DeleteOutcome::Terminating(object) => {
            json_response(StatusCode::OK, renderer.object(object))
        }
    }
}

/// Responds to a GET whose path names no served resource: with discovery, OpenAPI or version documents, the
/// text of a health check, or 404.
fn document(parts: &Parts) -> ApiResult {
    let path = parts.uri.path();
    let known = match path.trim_end_matches('/') {
        "/healthz" | "/livez" | "/readyz" => return Ok(text_response(StatusCode::OK, "ok")),
        "/version" => Some(discovery::version()),
        "/api" | "/apis" if request::discovery(&parts.headers) == Discovery::Aggregated => {
            if let Some(document) = discovery::aggregated(path) {
                let content = BodyContent::Bytes(Some(document.to_string().into()));
                let content_type = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
                return Ok(response(StatusCode::OK, content_type, content));
            }
            None
        }
        "/openapi/v2" if request::wants_protobuf_openapi(&parts.headers) => {
            let content_type = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
            let content = BodyContent::Bytes(Some(Bytes::from_static(openapi::V2_PROTOBUF)));
            return Ok(response(StatusCode::OK, content_type, content));
        }
        "/openapi/v2" => Some(openapi::v2()),
        path if path.starts_with("/openapi/v3") => openapi::document(path),
        path => discovery::document(path),
    };
    match known {
        Some(document) => Ok(json_value_response(&document)),
        None if request::is_resource_path(path) && !request::is_custom_path(path) => {
            Err(Status::no_such_resource())
        }
        None => Ok(page_not_found()),
    }
}
