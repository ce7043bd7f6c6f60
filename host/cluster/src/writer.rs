//! Writes to the API: each one states what it depends on, and its answer goes through the cache.
//!
//! A decision over the whole object is a merge patch that carries the resourceVersion it was made on; a list
//! member is a JSON patch that tests the uid and the element. There is no whole-object update: fields that
//! this build does not know survive.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use cofferdam_domain::{
    Uid,
    ids::{InvalidResourceVersion, ResourceVersion},
};
use http::{Method, Request, StatusCode, header};
use http_body_util::BodyExt;
use kube::client::Body;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{
    cache::Cache,
    decode,
    kind::{ApiResource, Kind},
    metrics::Metrics,
    reflector::{self, ListPage, Scope},
    store::{DecodeResult, ObjectStore},
};

/// How long one request may take before its outcome counts as unknown. The API server's own limit for
/// non-watch requests is 60 s; half of it leaves room for a second try within a caller's patience.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// No answer to a request that this crate sends is larger: a list page of 500 objects stays below it.
const MAX_RESPONSE_BYTES: usize = 64 << 20;

/// Objects per page of a list: the page that the API server's own clients use.
const LIST_PAGE_SIZE: &str = "500";

const ACCEPT_JSON: &str = "application/json";
const JSON_PATCH_CONTENT_TYPE: &str = "application/json-patch+json";
/// Asks for an answer without spec and status.
const ACCEPT_METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";

/// Why a request to the API failed.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// The object is not as the decision saw it (409 Conflict, or a JSON patch test that failed). Normal:
    /// read again, decide again; neither an event nor an error log.
    #[error("{0} has changed meanwhile")]
    Conflict(String),
    /// The object is gone.
    #[error("{0} does not exist")]
    NotFound(String),
    /// An object of that name exists.
    #[error("{0} already exists")]
    AlreadyExists(String),
    /// The API refuses: forbidden, invalid, too large. Trying again without a change does not help.
    #[error("the API refuses {target}: {message} ({code})")]
    Refused {
        /// What was to be written.
        target: String,
        /// HTTP status.
        code: u16,
        /// The API's own words.
        message: String,
    },
    /// No answer, or one that says "later": the request may or may not have had its effect.
    #[error("the API did not answer for {target}: {message}")]
    Unavailable {
        /// What was to be written.
        target: String,
        /// What went wrong on the way.
        message: String,
    },
    /// The answer cannot be read.
    #[error("the API's answer for {target} cannot be read: {message}")]
    InvalidResponse {
        /// What was written.
        target: String,
        /// Which part of the answer.
        message: String,
    },
}

/// What a delete depends on.
#[derive(Clone, Debug, Default)]
pub struct Precondition {
    /// The object must still be this one.
    pub uid: Option<Uid>,
    /// And at this version.
    pub resource_version: Option<ResourceVersion>,
}

/// A kind with a table in the cache.
pub trait CachedKind: Kind {
    /// Where the cache keeps the kind.
    fn store(cache: &Cache) -> &ObjectStore<Self>;
}

macro_rules! cached {
    ($($kind:ident => $field:ident),*) => {$(
        impl CachedKind for cofferdam_domain::$kind {
            fn store(cache: &Cache) -> &ObjectStore<Self> {
                &cache.$field
            }
        }
    )*};
}
cached!(
    Claim => claims, Volume => volumes, StorageClass => classes, Pod => pods, VolumeAttachment => attachments,
    CsiNode => csi_nodes, CsiDriver => csi_drivers, Node => nodes, VolumeAttributesClass => attributes_classes
);

/// Part of an object that a patch addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchTarget {
    /// The object without its status.
    Object,
    /// The status alone.
    Status,
}

/// The client side of the API: writes with write-through, and the live reads that a decision needs now and
/// then.
#[derive(Clone)]
pub struct Writer {
    client: kube::Client,
    cache: Arc<Cache>,
    metrics: Metrics,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Status {
    message: String,
    reason: String,
    details: Details,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Details {
    causes: Vec<Cause>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Cause {
    field: String,
}

impl Writer {
    /// A writer over a client without retries of its own, whose answers go to `cache`.
    pub fn new(client: kube::Client, cache: Arc<Cache>, metrics: Metrics) -> Self {
        Self { client, cache, metrics }
    }

    /// The client, for watches.
    pub fn client(&self) -> &kube::Client {
        &self.client
    }

    /// The cache that answers go through.
    pub fn cache(&self) -> &Arc<Cache> {
        &self.cache
    }

    /// Creates an object from its JSON and caches the answer.
    ///
    /// # Errors
    /// [`WriteError`]; `AlreadyExists` where the name is taken.
    pub async fn create<K: CachedKind>(&self, namespace: Option<&str>, body: &Value) -> Result<K, ApiError> {
        let name = body.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
        let target = describe_target(K::RESOURCE, namespace, name);
        let path = K::RESOURCE.collection_path(namespace);
        let highest_seen = K::store(&self.cache).highest_version();
        let answer = self.send_json(Method::POST, &path, "application/json", body, &target).await?;
        self.cache_write_response(&answer, &target, highest_seen, None)
    }

    /// Merge patch on an object as it was at `version`, and caches the answer.
    ///
    /// # Errors
    /// [`WriteError`]; `Conflict` where the object is no longer at that version.
    pub async fn merge_patch<K: CachedKind>(
        &self,
        key: &K::Key,
        part: PatchTarget,
        version: ResourceVersion,
        patch: Value,
    ) -> Result<K, ApiError> {
        self.patch(key, part, version, patch, "application/merge-patch+json").await
    }

    /// The same as a strategic merge patch: members of lists that have a key are changed one by one, and the
    /// others stay.
    ///
    /// # Errors
    /// [`WriteError`]; `Conflict` where the object is no longer at that version.
    pub async fn strategic_merge_patch<K: CachedKind>(
        &self,
        key: &K::Key,
        part: PatchTarget,
        version: ResourceVersion,
        patch: Value,
    ) -> Result<K, ApiError> {
        self.patch(key, part, version, patch, "application/strategic-merge-patch+json").await
    }

    async fn patch<K: CachedKind>(
        &self,
        key: &K::Key,
        part: PatchTarget,
        version: ResourceVersion,
        mut patch: Value,
        content_type: &'static str,
    ) -> Result<K, ApiError> {
        let (namespace, name) = K::key_parts(key);
        let target = describe_target(K::RESOURCE, namespace, name);
        if let Some(metadata) = patch
            .as_object_mut()
            .map(|patch| patch.entry("metadata").or_insert_with(|| json!({})))
            .and_then(Value::as_object_mut)
        {
            metadata.insert("resourceVersion".to_owned(), json!(version.to_string()));
        }
        let path = object_path(K::RESOURCE, namespace, name, part);
        let highest_seen = K::store(&self.cache).highest_version();
        let answer = self.send_json(Method::PATCH, &path, content_type, &patch, &target).await?;
        self.cache_write_response(&answer, &target, highest_seen, Some(version))
    }

    /// JSON patch (RFC 6902) on an object of this uid, and caches the answer. `operations` test what they
    /// depend on.
    ///
    /// # Errors
    /// [`WriteError`]; `Conflict` where a test fails.
    pub async fn json_patch<K: CachedKind>(
        &self,
        key: &K::Key,
        uid: &Uid,
        mut operations: Vec<Value>,
    ) -> Result<K, ApiError> {
        let (namespace, name) = K::key_parts(key);
        let target = describe_target(K::RESOURCE, namespace, name);
        operations.insert(0, json!({"op": "test", "path": "/metadata/uid", "value": uid}));
        let path = object_path(K::RESOURCE, namespace, name, PatchTarget::Object);
        let body = Value::Array(operations);
        let answer = self.send_json(Method::PATCH, &path, JSON_PATCH_CONTENT_TYPE, &body, &target).await?;
        self.cache_response(&answer, &target)
    }

    /// Removes a finalizer that stands at `index`, if it still does.
    ///
    /// # Errors
    /// [`WriteError`]; `Conflict` where another finalizer stands there now.
    pub async fn remove_finalizer<K: CachedKind>(
        &self,
        key: &K::Key,
        uid: &Uid,
        index: usize,
        name: &str,
    ) -> Result<K, ApiError> {
        self.remove_finalizers(key, uid, &mut [(index, name)]).await
    }

    /// Removes finalizers, each with the index at which it stands, if all of them still do.
    ///
    /// # Errors
    /// [`WriteError`]; `Conflict` where another finalizer stands at one of the places now.
    pub async fn remove_finalizers<K: CachedKind>(
        &self,
        key: &K::Key,
        uid: &Uid,
        finalizers: &mut [(usize, &str)],
    ) -> Result<K, ApiError> {
        // The last one first: what is removed moves those behind it.
        finalizers.sort_unstable_by_key(|(index, _)| std::cmp::Reverse(*index));
        let operations = finalizers.iter().flat_map(|(index, name)| {
            let path = format!("/metadata/finalizers/{index}");
            [json!({"op": "test", "path": path, "value": name}), json!({"op": "remove", "path": path})]
        });
        self.json_patch(key, uid, operations.collect()).await
    }

    /// Adds a finalizer to an object as it was at `version`.
    ///
    /// # Errors
    /// [`WriteError`]; `Conflict` where the object is no longer at that version.
    pub async fn add_finalizer<K: CachedKind>(&self, object: &K, name: &str) -> Result<K, ApiError> {
        let meta = object.meta();
        let mut finalizers: Vec<&str> = meta.finalizers.iter().map(AsRef::as_ref).collect();
        finalizers.push(name);
        let patch = json!({"metadata": {"finalizers": finalizers}});
        self.merge_patch(&object.key(), PatchTarget::Object, meta.resource_version, patch).await
    }

    /// Deletes an object. An object with finalizers stays, marked; the cache has what the API answers.
    ///
    /// # Errors
    /// [`WriteError`]; `Conflict` where a precondition fails, `NotFound` where it is gone already.
    pub async fn delete<K: CachedKind>(
        &self,
        key: &K::Key,
        precondition: &Precondition,
    ) -> Result<(), ApiError> {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Wire<'a> {
            #[serde(skip_serializing_if = "Option::is_none")]
            uid: Option<&'a Uid>,
            #[serde(skip_serializing_if = "Option::is_none")]
            resource_version: Option<String>,
        }
        let (namespace, name) = K::key_parts(key);
        let target = describe_target(K::RESOURCE, namespace, name);
        let preconditions = Wire {
            uid: precondition.uid.as_ref(),
            resource_version: precondition.resource_version.map(|v| v.to_string()),
        };
        let options = json!({"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": preconditions});
        let path = object_path(K::RESOURCE, namespace, name, PatchTarget::Object);
        let answer = self.send_json(Method::DELETE, &path, "application/json", &options, &target).await?;
        // Gone at once, the API answers with a Status or with the object's last state; with finalizers, with
        // the object.
        match decode::object::<K>(&answer) {
            Ok(Ok(object)) if object.meta().deleting && !object.meta().finalizers.is_empty() => {
                K::store(&self.cache).apply(Ok(object));
            }
            Ok(_) | Err(_) => self.cache_deletion::<K>(key, precondition.uid.as_ref()),
        }
        Ok(())
    }

    /// Reads an object past the cache, for the few decisions that may not rest on a stale one, and caches it.
    ///
    /// # Errors
    /// [`WriteError`], without `NotFound`: that is `None`.
    pub async fn get<K: CachedKind>(&self, key: &K::Key) -> Result<Option<K>, ApiError> {
        let (namespace, name) = K::key_parts(key);
        let target = describe_target(K::RESOURCE, namespace, name);
        let path = object_path(K::RESOURCE, namespace, name, PatchTarget::Object);
        // What the answer is about: a successor of the same name may be cached by the time it is here.
        let cached = K::store(&self.cache).get(key).into_object();
        match self.send(Method::GET, &path, None, Bytes::new(), ACCEPT_JSON, &target).await {
            Ok(answer) => self.cache_response(&answer, &target).map(Some),
            Err(ApiError::NotFound(_)) => {
                if let Some(cached) = cached {
                    K::store(&self.cache).delete(key, &cached.meta().uid, cached.resource_version());
                }
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Reads every object of a namespace past the cache, and caches them.
    ///
    /// # Errors
    /// [`WriteError`]
    pub async fn list<K: CachedKind>(&self, namespace: &str) -> Result<(), ApiError> {
        let scope = Scope { namespace: Some(namespace.to_owned()), ..Scope::default() };
        self.list_scope::<K>(&scope).await.map(drop)
    }

    /// Reads every object of a scope past the cache, page by page, caches and returns them.
    ///
    /// # Errors
    /// [`WriteError`]
    pub async fn list_scope<K: CachedKind>(&self, scope: &Scope) -> Result<Vec<DecodeResult<K>>, ApiError> {
        let target = match &scope.namespace {
            Some(namespace) => format!("{}s of namespace {namespace}", K::RESOURCE.kind),
            None => format!("{}s", K::RESOURCE.kind),
        };
        let unreadable = |message| ApiError::InvalidResponse { target: target.clone(), message };
        let highest_seen = K::store(&self.cache).highest_version();
        let mut objects = Vec::new();
        let mut continue_token: Option<String> = None;
        loop {
            let token = continue_token.as_deref().map(|token| ("continue", token));
            let path = scope.path(K::RESOURCE, [("limit", LIST_PAGE_SIZE)].into_iter().chain(token));
            let answer = self.read(&path, &target).await?;
            let mut page: ListPage<'_> =
                serde_json::from_str(&answer).map_err(|error| unreadable(error.to_string()))?;
            if let Ok(found) = page.version() {
                self.cache.restore_detector.detect_rollback(K::RESOURCE.kind, highest_seen, found);
            }
            continue_token = page.take_continue_token();
            for item in page.items() {
                let object = decode::object::<K>(item.get()).map_err(unreadable)?;
                K::store(&self.cache).apply(object.clone());
                objects.push(object);
            }
            if continue_token.is_none() {
                return Ok(objects);
            }
        }
    }

    /// The version that the cluster has now: that of a list of one object.
    ///
    /// # Errors
    /// [`WriteError`]
    pub(crate) async fn current_version<K: Kind>(&self, scope: &Scope) -> Result<ResourceVersion, ApiError> {
        let target = format!("{}s", K::RESOURCE.kind);
        let answer = self.read(&scope.path(K::RESOURCE, [("limit", "1")]), &target).await?;
        reflector::parse_list_version(&answer)
            .map_err(|message| ApiError::InvalidResponse { target, message })
    }

    /// After a [`WriteError::Conflict`] or `NotFound`: brings the cache up to date for this key.
    ///
    /// # Errors
    /// [`WriteError`] of the read.
    pub async fn refresh<K: CachedKind>(&self, key: &K::Key) -> Result<(), ApiError> {
        self.get::<K>(key).await.map(drop)
    }

    /// A request with a JSON body for objects that are not cached (events, the journal's ConfigMaps); returns
    /// the answer.
    ///
    /// # Errors
    /// [`WriteError`]
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

    /// Like [`Writer::send_json`], for objects whose content the caller knows: only their new version comes
    /// back. A PATCH is a merge patch.
    ///
    /// # Errors
    /// [`WriteError`]
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
        let answer = self.send(method, path, Some(content_type), body, ACCEPT_METADATA, target).await?;
        let unreadable = |message| ApiError::InvalidResponse { target: target.to_owned(), message };
        let object: Object = serde_json::from_str(&answer).map_err(|error| unreadable(error.to_string()))?;
        let version = object.metadata.resource_version.parse();
        version.map_err(|error: InvalidResourceVersion| unreadable(error.to_string()))
    }

    /// A read of something that is not cached; returns the answer.
    ///
    /// # Errors
    /// [`WriteError`]
    pub async fn read(&self, path: &str, target: &str) -> Result<String, ApiError> {
        self.send(Method::GET, path, None, Bytes::new(), ACCEPT_JSON, target).await
    }

    async fn send(
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
        let mut request = Request::builder().method(method).uri(path).header(header::ACCEPT, accept);
        if let Some(content_type) = content_type {
            request = request.header(header::CONTENT_TYPE, content_type);
        }
        let request = request.body(Body::from(body)).map_err(|error| ApiError::Refused {
            target: target.to_owned(),
            code: 0,
            message: error.to_string(),
        })?;
        let exchange = async {
            let response =
                self.client.send(request).await.map_err(|error| unavailable(error_chain(&error)))?;
            let (head, body) = response.into_parts();
            let body = http_body_util::Limited::new(body, MAX_RESPONSE_BYTES).collect().await;
            let body = body.map_err(|error| unavailable(error.to_string()))?.to_bytes();
            Ok((head.status, body))
        };
        let outcome = tokio::time::timeout(REQUEST_TIMEOUT, exchange).await;
        let (status, body) = outcome
            .unwrap_or_else(|_| Err(unavailable(format!("no answer within {REQUEST_TIMEOUT:?}"))))
            .inspect_err(|_| self.metrics.request(verb, "none"))?;
        self.metrics.request(verb, status.as_str());
        if status.is_success() {
            return String::from_utf8(body.into()).map_err(|error| ApiError::InvalidResponse {
                target: target.to_owned(),
                message: error.to_string(),
            });
        }
        Err(error_from_status(status, &body, target, content_type == Some(JSON_PATCH_CONTENT_TYPE)))
    }

    fn cache_response<K: CachedKind>(&self, answer: &str, target: &str) -> Result<K, ApiError> {
        Self::decode_response(answer, target).map(|object| self.cache_object(object))
    }

    /// What is written gets a version above all that were `seen` before: but in a cluster that was restored.
    /// That is known before the object wakes anybody. A patch that changes nothing is no write, and leaves
    /// the object as old as `before`.
    fn cache_write_response<K: CachedKind>(
        &self,
        answer: &str,
        target: &str,
        highest_seen: ResourceVersion,
        version_before: Option<ResourceVersion>,
    ) -> Result<K, ApiError> {
        let object: K = Self::decode_response(answer, target)?;
        if version_before != Some(object.resource_version()) {
            self.cache.restore_detector.detect_rollback(
                K::RESOURCE.kind,
                highest_seen,
                object.resource_version(),
            );
        }
        Ok(self.cache_object(object))
    }

    fn decode_response<K: Kind>(answer: &str, target: &str) -> Result<K, ApiError> {
        let unreadable = |message| ApiError::InvalidResponse { target: target.to_owned(), message };
        decode::object::<K>(answer).map_err(unreadable)?.map_err(|opaque| unreadable(opaque.reason))
    }

    fn cache_object<K: CachedKind>(&self, object: K) -> K {
        if object.meta().deleting && object.meta().finalizers.is_empty() {
            // The last finalizer of a deleted object went with this write, and the object with it.
            K::store(&self.cache).delete(&object.key(), &object.meta().uid, object.resource_version());
        } else {
            K::store(&self.cache).apply(Ok(object.clone()));
        }
        object
    }

    fn cache_deletion<K: CachedKind>(&self, key: &K::Key, uid: Option<&Uid>) {
        let table = K::store(&self.cache);
        if let Some(cached) = table.get(key).into_object()
            && uid.is_none_or(|uid| *uid == cached.meta().uid)
        {
            table.delete(key, &cached.meta().uid, cached.resource_version());
        }
    }
}

fn object_path(resource: ApiResource, namespace: Option<&str>, name: &str, part: PatchTarget) -> String {
    let collection = resource.collection_path(namespace);
    match part {
        PatchTarget::Object => format!("{collection}/{name}"),
        PatchTarget::Status => format!("{collection}/{name}/status"),
    }
}

fn describe_target(resource: ApiResource, namespace: Option<&str>, name: &str) -> String {
    match namespace {
        Some(namespace) => format!("{} {namespace}/{name}", resource.kind),
        None => format!("{} {name}", resource.kind),
    }
}

const fn verb(method: &Method) -> &'static str {
    match *method {
        Method::POST => "create",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "get",
    }
}

/// An error with everything beneath it, on one line.
fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let cause = error.to_string();
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
        source = error.source();
    }
    text
}

fn error_from_status(status: StatusCode, body: &[u8], target: &str, json_patch: bool) -> ApiError {
    let parsed: Status = serde_json::from_slice(body).unwrap_or_default();
    let target = target.to_owned();
    match (status, parsed.reason.as_str()) {
        (StatusCode::CONFLICT, "AlreadyExists") => ApiError::AlreadyExists(target),
        (StatusCode::CONFLICT, _) => ApiError::Conflict(target),
        // A JSON patch whose test failed names no field; a validation error names at least one.
        (StatusCode::UNPROCESSABLE_ENTITY, _)
            if json_patch && parsed.details.causes.iter().all(|c| c.field.is_empty()) =>
        {
            ApiError::Conflict(target)
        }
        (StatusCode::NOT_FOUND, _) => ApiError::NotFound(target),
        (StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS, _) => {
            ApiError::Unavailable { target, message: parsed.message }
        }
        (status, _) if status.is_server_error() => ApiError::Unavailable { target, message: parsed.message },
        (status, _) => ApiError::Refused { target, code: status.as_u16(), message: parsed.message },
    }
}
