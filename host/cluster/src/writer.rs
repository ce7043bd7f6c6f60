//! Writes to the API server. Patches have preconditions, and deletions can have them. The cache is updated
//! from the response of every write.
//!
//! Merge patches carry the resourceVersion that the decision was based on. JSON patches remove finalizers and
//! the selected node; they test the object's uid and the removed value. Objects are never replaced as a
//! whole, so fields that this build does not know are preserved.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use cofferdam_domain::{Uid, ids::ResourceVersion, term::PermitSource};
use http::Method;
use kube::core::params::{DeleteParams, Preconditions};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};

pub use crate::store::CachedKind;
use crate::{
    api::{ApiClient, ApiError, ApiResource, JSON_PATCH_CONTENT_TYPE, PageRequests, REQUEST_TIMEOUT, Scope},
    metrics::Metrics,
    objects::{DecodeResult, Kind, decode},
    store::Cache,
};

/// Preconditions of a delete.
#[derive(Clone, Debug, Default)]
pub struct Precondition {
    /// Required uid of the object; `None` for any.
    pub uid: Option<Uid>,
    /// Required resourceVersion of the object; `None` for any.
    pub resource_version: Option<ResourceVersion>,
}

/// The part of an object that a patch changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchTarget {
    /// The object except its status.
    Object,
    /// The `status` subresource.
    Status,
}

/// Writes and live reads. Their responses update the cache.
#[derive(Clone)]
pub struct Writer {
    api: ApiClient,
    cache: Arc<Cache>,
}

impl Writer {
    /// A writer that updates `cache`. `client` must not retry.
    pub fn new(client: kube::Client, cache: Arc<Cache>, metrics: Metrics) -> Self {
        Self { api: ApiClient::new(client, metrics), cache }
    }

    /// The same writer, whose writes begin only with a permit of `permits`.
    #[must_use]
    pub fn with_permits(self, permits: impl PermitSource + 'static) -> Self {
        Self { api: self.api.with_permits(permits), ..self }
    }

    /// The same writer with another maximum size of a list page in bytes, also for reflectors that use it. A
    /// larger page is requested again with fewer objects. The default is 16 MiB.
    #[must_use]
    pub fn with_max_page_bytes(self, max_page_bytes: usize) -> Self {
        Self { api: self.api.with_max_page_bytes(max_page_bytes), ..self }
    }

    /// The same writer with another timeout of watches, for reflectors that use it. The API server ends a
    /// watch after the timeout. It is counted in whole seconds. The default is 290 s.
    #[must_use]
    pub fn with_watch_timeout(self, watch_timeout: Duration) -> Self {
        Self { api: self.api.with_watch_timeout(watch_timeout), ..self }
    }

    /// The client, for requests that do not use the cache.
    pub fn api(&self) -> &ApiClient {
        &self.api
    }

    /// The cache.
    pub fn cache(&self) -> &Arc<Cache> {
        &self.cache
    }

    /// Creates an object and caches the response.
    ///
    /// # Errors
    /// [`ApiError::AlreadyExists`] if an object of that name exists.
    pub async fn create<K: CachedKind>(&self, namespace: Option<&str>, body: &Value) -> Result<K, ApiError> {
        let name = body.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
        let target = describe_target(K::RESOURCE, namespace, name);
        let path = K::RESOURCE.collection_path(namespace);
        let highest_seen = K::store(&self.cache).highest_version();
        self.as_own_write::<K>(K::key_from_parts(namespace.unwrap_or_default(), name), async {
            let response = self.api.send_json(Method::POST, &path, "application/json", body, &target).await?;
            self.cache_write_response(&response, &target, highest_seen, None)
        })
        .await
    }

    /// Runs a request that changes the object, and registers it in the cache until its result is known.
    async fn as_own_write<K: CachedKind>(
        &self,
        key: K::Key,
        request: impl Future<Output = Result<K, ApiError>>,
    ) -> Result<K, ApiError> {
        let own_write = K::store(&self.cache).begin_write(key);
        let result = request.await;
        match &result {
            Ok(object) => own_write.written(object.resource_version()),
            Err(error) if error.is_result_unknown() => drop(own_write),
            Err(_) => own_write.rejected(),
        }
        result
    }

    /// Applies a merge patch to an object at `version` and caches the response.
    ///
    /// # Errors
    /// [`ApiError::Conflict`] if the object has another version.
    pub async fn merge_patch<K: CachedKind>(
        &self,
        key: &K::Key,
        part: PatchTarget,
        version: ResourceVersion,
        patch: Value,
    ) -> Result<K, ApiError> {
        self.patch(key, part, version, patch, "application/merge-patch+json").await
    }

    /// Applies a strategic merge patch, which merges lists with a merge key by element, and caches the
    /// response.
    ///
    /// # Errors
    /// [`ApiError::Conflict`] if the object has another version.
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
        self.as_own_write::<K>(key.clone(), async {
            let response = self.api.send_json(Method::PATCH, &path, content_type, &patch, &target).await?;
            self.cache_write_response(&response, &target, highest_seen, Some(version))
        })
        .await
    }

    /// Applies a JSON patch (RFC 6902) to an object of this uid and caches the response. `operations` include
    /// the tests of their preconditions.
    ///
    /// # Errors
    /// [`ApiError::Conflict`] if a test fails or a path is missing.
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
        self.as_own_write::<K>(key.clone(), async {
            let response =
                self.api.send_json(Method::PATCH, &path, JSON_PATCH_CONTENT_TYPE, &body, &target).await?;
            self.cache_response(&response, &target)
        })
        .await
    }

    /// Removes the finalizer `name`, which is at `index`.
    ///
    /// # Errors
    /// [`ApiError::Conflict`] if another finalizer is at that index.
    pub async fn remove_finalizer<K: CachedKind>(
        &self,
        key: &K::Key,
        uid: &Uid,
        index: usize,
        name: &str,
    ) -> Result<K, ApiError> {
        self.remove_finalizers(key, uid, &mut [(index, name)]).await
    }

    /// Removes finalizers, each by index and name.
    ///
    /// # Errors
    /// [`ApiError::Conflict`] if another finalizer is at one of the indexes.
    pub async fn remove_finalizers<K: CachedKind>(
        &self,
        key: &K::Key,
        uid: &Uid,
        finalizers: &mut [(usize, &str)],
    ) -> Result<K, ApiError> {
        // Highest index first: a removal shifts the elements after it.
        finalizers.sort_unstable_by_key(|(index, _)| std::cmp::Reverse(*index));
        let operations = finalizers.iter().flat_map(|(index, name)| {
            let path = format!("/metadata/finalizers/{index}");
            [json!({"op": "test", "path": path, "value": name}), json!({"op": "remove", "path": path})]
        });
        self.json_patch(key, uid, operations.collect()).await
    }

    /// Adds a finalizer to the object, which must still have the version of `object`.
    ///
    /// # Errors
    /// [`ApiError::Conflict`] if the object has another version.
    pub async fn add_finalizer<K: CachedKind>(&self, object: &K, name: &str) -> Result<K, ApiError> {
        self.add_finalizers(object, &[name]).await
    }

    /// As [`Writer::add_finalizer`], for several finalizers in one request.
    ///
    /// # Errors
    /// As [`Writer::add_finalizer`].
    pub async fn add_finalizers<K: CachedKind>(&self, object: &K, names: &[&str]) -> Result<K, ApiError> {
        let meta = object.meta();
        let finalizers: Vec<&str> =
            meta.finalizers.iter().map(AsRef::as_ref).chain(names.iter().copied()).collect();
        let patch = json!({"metadata": {"finalizers": finalizers}});
        self.merge_patch(object.key(), PatchTarget::Object, meta.resource_version, patch).await
    }

    /// Deletes an object and updates the cache. An object with finalizers only gets a deletionTimestamp.
    ///
    /// # Errors
    /// [`ApiError::Conflict`] if a precondition fails, [`ApiError::NotFound`] if the object does not exist.
    pub async fn delete<K: CachedKind>(
        &self,
        key: &K::Key,
        precondition: &Precondition,
    ) -> Result<(), ApiError> {
        let (namespace, name) = K::key_parts(key);
        let target = describe_target(K::RESOURCE, namespace, name);
        let preconditions = Preconditions {
            uid: precondition.uid.as_ref().map(Uid::to_string),
            resource_version: precondition.resource_version.map(|version| version.to_string()),
        };
        let options = json!(DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() });
        let path = object_path(K::RESOURCE, namespace, name, PatchTarget::Object);
        let response =
            self.api.send_json(Method::DELETE, &path, "application/json", &options, &target).await?;
        // The response is the object if it has finalizers, otherwise a Status or the last state of the
        // object.
        match decode::object::<K>(&response) {
            Ok(Ok(object)) if object.meta().deleting && !object.meta().finalizers.is_empty() => {
                K::store(&self.cache).apply(Ok(object));
            }
            Ok(_) | Err(_) => self.cache_deletion::<K>(key, precondition.uid.as_ref()),
        }
        Ok(())
    }

    /// Reads an object from the API server and caches it, for decisions that require the current state.
    /// Returns `None` if the object does not exist; a decodable object that was cached before the request is
    /// then removed from the cache.
    ///
    /// # Errors
    /// [`ApiError`]; [`ApiError::InvalidResponse`] if the object cannot be decoded. It is then not cached.
    pub async fn get<K: CachedKind>(&self, key: &K::Key) -> Result<Option<K>, ApiError> {
        let (namespace, name) = K::key_parts(key);
        let target = describe_target(K::RESOURCE, namespace, name);
        let path = object_path(K::RESOURCE, namespace, name, PatchTarget::Object);
        // Read before the request: a recreated object may be cached when the response arrives.
        let cached = K::store(&self.cache).get(key).into_object();
        match self.api.read(&path, &target).await {
            Ok(response) => {
                let object: K = Self::decode_response(&response, &target)?;
                if object.meta().deleting && object.meta().finalizers.is_empty() {
                    K::store(&self.cache).delete(key, &object.meta().uid, object.resource_version());
                    return Ok(Some(object));
                }
                K::store(&self.cache).apply_live_read(Ok(object.clone()), &response);
                Ok(Some(object))
            }
            Err(ApiError::NotFound(_)) => {
                if let Some(cached) = cached {
                    K::store(&self.cache).delete(key, &cached.meta().uid, cached.resource_version());
                }
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// As [`Writer::get`], without an effect on the cached objects: for an object that this process may not
    /// watch, and that would stay in the cache.
    ///
    /// # Errors
    /// As [`Writer::get`].
    pub async fn read<K: CachedKind>(&self, key: &K::Key) -> Result<Option<K>, ApiError> {
        self.read_with::<K, _>(key, Self::decode_response).await
    }

    /// Reads the uid and all annotations of an object from the API server; the cache keeps only those of
    /// [`CACHED_ANNOTATIONS`](cofferdam_domain::names::CACHED_ANNOTATIONS). Returns `None` if the object does
    /// not exist. The cache is not updated.
    ///
    /// # Errors
    /// [`ApiError`]
    pub async fn read_annotations<K: CachedKind>(
        &self,
        key: &K::Key,
    ) -> Result<Option<(Uid, BTreeMap<String, String>)>, ApiError> {
        #[derive(Deserialize)]
        struct Object {
            metadata: Metadata,
        }
        #[derive(Deserialize)]
        struct Metadata {
            uid: String,
            annotations: Option<BTreeMap<String, String>>,
        }
        let object = self.read_uncached::<K, Object>(key).await?;
        Ok(object.map(|Object { metadata }| (metadata.uid.into(), metadata.annotations.unwrap_or_default())))
    }

    /// Reads one value of an object from the API server: that at a JSON pointer, null if there is none.
    /// Returns `None` if the object does not exist. The cache is not updated.
    ///
    /// # Errors
    /// [`ApiError`]
    pub async fn read_value<K: CachedKind>(
        &self,
        key: &K::Key,
        pointer: &str,
    ) -> Result<Option<Value>, ApiError> {
        let object = self.read_uncached::<K, Value>(key).await?;
        Ok(object.map(|object| object.pointer(pointer).cloned().unwrap_or_default()))
    }

    /// Reads an object from the API server as another type, without an effect on the cache. Returns `None` if
    /// the object does not exist.
    async fn read_uncached<K: CachedKind, T: DeserializeOwned>(
        &self,
        key: &K::Key,
    ) -> Result<Option<T>, ApiError> {
        let decode = |response: &str, target: &str| {
            serde_json::from_str(response).map_err(|error| ApiError::invalid_response(target, error))
        };
        self.read_with::<K, _>(key, decode).await
    }

    /// Reads an object from the API server, without an effect on the cache. `decode` gets the response and
    /// the target for error messages. Returns `None` if the object does not exist.
    async fn read_with<K: CachedKind, T>(
        &self,
        key: &K::Key,
        decode: impl FnOnce(&str, &str) -> Result<T, ApiError>,
    ) -> Result<Option<T>, ApiError> {
        let (namespace, name) = K::key_parts(key);
        let target = describe_target(K::RESOURCE, namespace, name);
        let path = object_path(K::RESOURCE, namespace, name, PatchTarget::Object);
        match self.api.read(&path, &target).await {
            Ok(response) => decode(&response, &target).map(Some),
            Err(ApiError::NotFound(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Lists the objects of a namespace from the API server and caches them.
    ///
    /// # Errors
    /// [`ApiError`]
    pub async fn list<K: CachedKind>(&self, namespace: &str) -> Result<(), ApiError> {
        let scope = Scope { namespace: Some(namespace.to_owned()), ..Scope::default() };
        self.list_scope::<K>(&scope).await.map(drop)
    }

    /// Lists a scope from the API server, and caches and returns the objects. Cached objects that the list
    /// lacks are kept. A list below the highest observed version is reported as a restore, but still cached.
    ///
    /// # Errors
    /// [`ApiError`]; [`ApiError::InvalidResponse`] if not even the metadata of an object can be decoded.
    pub async fn list_scope<K: CachedKind>(&self, scope: &Scope) -> Result<Vec<DecodeResult<K>>, ApiError> {
        let cache = |object: &DecodeResult<K>| {
            K::store(&self.cache).apply(object.clone());
            true
        };
        self.read_scope(scope, cache).await
    }

    /// Lists a scope from the API server, and returns the objects that satisfy `is_wanted`, without an effect
    /// on the cached objects: for objects that this process does not watch. The others of a page are dropped
    /// with the page.
    ///
    /// # Errors
    /// As [`Writer::list_scope`].
    pub async fn read_scope<K: CachedKind>(
        &self,
        scope: &Scope,
        is_wanted: impl Fn(&DecodeResult<K>) -> bool,
    ) -> Result<Vec<DecodeResult<K>>, ApiError> {
        let target = match &scope.namespace {
            Some(namespace) => format!("{}s of namespace {namespace}", K::RESOURCE.kind),
            None => format!("{}s", K::RESOURCE.kind),
        };
        let highest_seen = K::store(&self.cache).highest_version();
        let mut pages = PageRequests::new(&self.api, K::RESOURCE, scope, &target, REQUEST_TIMEOUT);
        let mut objects = Vec::new();
        loop {
            let body = pages.read_next().await?;
            let page = pages.decode(&body)?;
            if let Ok(found) = page.version() {
                self.cache.restore_detector.report_if_older(K::RESOURCE.kind, highest_seen, found);
            }
            for item in page.items() {
                let object = decode::object::<K>(item.get())
                    .map_err(|error| ApiError::invalid_response(&target, error))?;
                if is_wanted(&object) {
                    objects.push(object);
                }
            }
            if !pages.has_next() {
                return Ok(objects);
            }
        }
    }

    /// Updates the cached object of this key from the API server, for example after [`ApiError::Conflict`].
    ///
    /// # Errors
    /// [`ApiError`]
    pub async fn refresh<K: CachedKind>(&self, key: &K::Key) -> Result<(), ApiError> {
        self.get::<K>(key).await.map(drop)
    }

    fn cache_response<K: CachedKind>(&self, response: &str, target: &str) -> Result<K, ApiError> {
        Self::decode_response(response, target).map(|object| self.cache_object(object))
    }

    /// Caches the response of a write. A write gets a version above all earlier ones, so a version below
    /// `highest_seen` means a restored cluster; this is reported before the object reaches subscribers. A
    /// patch without a change keeps the version `version_before`.
    fn cache_write_response<K: CachedKind>(
        &self,
        response: &str,
        target: &str,
        highest_seen: ResourceVersion,
        version_before: Option<ResourceVersion>,
    ) -> Result<K, ApiError> {
        let object: K = Self::decode_response(response, target)?;
        if version_before != Some(object.resource_version()) {
            self.cache.restore_detector.report_if_older(
                K::RESOURCE.kind,
                highest_seen,
                object.resource_version(),
            );
        }
        Ok(self.cache_object(object))
    }

    fn decode_response<K: Kind>(response: &str, target: &str) -> Result<K, ApiError> {
        decode::object::<K>(response)
            .and_then(|object| object.map_err(|undecodable| undecodable.reason))
            .map_err(|error| ApiError::invalid_response(target, error))
    }

    /// Caches the object in the response of a write.
    fn cache_object<K: CachedKind>(&self, object: K) -> K {
        if object.meta().deleting && object.meta().finalizers.is_empty() {
            // The patch removed the last finalizer of a deleted object, and thereby the object. Only a Pod in
            // its grace period exists in this state, and this function gets no Pods.
            let (key, uid) = (object.key(), &object.meta().uid);
            K::store(&self.cache).delete_by_own_write(key, uid, object.resource_version());
        } else {
            K::store(&self.cache).apply(Ok(object.clone()));
        }
        object
    }

    fn cache_deletion<K: CachedKind>(&self, key: &K::Key, uid: Option<&Uid>) {
        let store = K::store(&self.cache);
        if let Some(cached) = store.get(key).into_object()
            && uid.is_none_or(|uid| *uid == cached.meta().uid)
        {
            store.delete(key, &cached.meta().uid, cached.resource_version());
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
