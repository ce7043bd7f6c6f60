//! An embedded Kubernetes API for development, tests and simulation.
//!
//! [`ApiServer`] keeps its objects in memory and answers as the kube-apiserver does: discovery, get, list,
//! watch, create, update, patch, delete, tables, status codes and texts, for the kinds that storage is made
//! of. In one process it is a `tower` service ([`ApiServer::service`]), deterministic under paused tokio
//! time; for `kubectl` it listens on loopback with TLS and a token of its own ([`ApiServer::serve`]).
//!
//! It does not authorise.

#![forbid(unsafe_code)]

mod apply;
mod base64;
mod bind;
mod delete;
mod descriptors;
mod discovery;
mod fields;
mod meta;
mod openapi;
mod patch;
mod pods;
mod protobuf;
mod quantity;
mod random;
mod read;
mod render;
mod request;
mod schema;
mod selector;
mod serve;
mod service;
mod status;
mod store;
mod strategy;
mod table;
mod validate;
mod write;

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::json;

pub use crate::serve::{ServeError, ServeOptions, ServerHandle};
pub use crate::service::{ApiBody, ApiService};
pub use crate::store::StateSnapshot;

use crate::descriptors::ResourceKind;
use crate::random::Random;
use crate::request::Target;
use crate::store::Store;
use crate::write::{FieldValidation, Warnings, WriteOptions};

/// The namespaces that every cluster has.
const NAMESPACES: [&str; 4] = ["default", "kube-node-lease", "kube-public", "kube-system"];

/// Watch events kept per kind unless told otherwise: some seconds of a busy cluster.
const DEFAULT_WATCH_HISTORY: usize = 10_000;

/// How a server is set up.
#[derive(Clone)]
pub struct Options {
    /// The clock of timestamps. Time-outs and bookmarks follow tokio's clock.
    pub now: Arc<dyn Fn() -> Timestamp + Send + Sync>,
    /// Makes uids and generated names the same in every run. They are random when absent.
    pub uid_seed: Option<u64>,
    /// Watch events kept per kind; who falls further behind gets 410 Gone. At least 1.
    pub watch_history: usize,
    /// The largest request body in bytes; a larger one is answered with 413.
    pub body_limit: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            now: Arc::new(Timestamp::now),
            uid_seed: None,
            watch_history: DEFAULT_WATCH_HISTORY,
            // What the kube-apiserver accepts.
            body_limit: 3 * 1024 * 1024,
        }
    }
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options")
            .field("uid_seed", &self.uid_seed)
            .field("history", &self.watch_history)
            .field("body_limit", &self.body_limit)
            .finish_non_exhaustive()
    }
}

pub(crate) struct Inner {
    pub(crate) store: Store,
    pub(crate) now: Arc<dyn Fn() -> Timestamp + Send + Sync>,
    pub(crate) body_limit: usize,
    random: Random,
}

impl Inner {
    pub(crate) fn uid(&self) -> String {
        self.random.uid()
    }

    pub(crate) fn name_suffix(&self) -> String {
        self.random.name_suffix()
    }
}

/// An in-memory Kubernetes API. Clones share their state.
#[derive(Clone)]
pub struct ApiServer {
    inner: Arc<Inner>,
}

impl std::fmt::Debug for ApiServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ApiServer")
            .field("resource_version", &self.inner.store.version())
            .finish_non_exhaustive()
    }
}

impl ApiServer {
    /// An API that holds the namespaces of a new cluster and nothing else.
    #[must_use]
    pub fn new(options: Options) -> Self {
        let inner = Inner {
            store: Store::new(options.watch_history),
            now: options.now,
            body_limit: options.body_limit,
            random: Random::new(options.uid_seed),
        };
        for name in NAMESPACES {
            let target = Target {
                resource: ResourceKind::Namespace.resource(),
                namespace: String::new(),
                name: None,
                subresource: None,
            };
            let write = WriteOptions {
                dry_run: false,
                field_validation: FieldValidation::Strict,
                manager: "kube-apiserver",
                force: false,
                warnings: &Warnings::default(),
            };
            // A new store has no namespace that this could collide with, and the names are good.
            let _ = inner.create(&target, json!({"metadata": {"name": name}}), write);
        }
        Self { inner: Arc::new(inner) }
    }

    /// The API as a service in this process. It needs no token and works with `kube::Client::new`.
    #[must_use]
    pub fn service(&self) -> ApiService {
        ApiService::new(Arc::clone(&self.inner))
    }

    /// Drops the watch history, as etcd's compaction does: older resourceVersions get 410 Gone.
    pub fn compact(&self) {
        self.inner.store.compact();
    }

    /// The present state, for [`ApiServer::restore`].
    #[must_use]
    pub fn snapshot(&self) -> StateSnapshot {
        self.inner.store.snapshot()
    }

    /// Sets objects and resourceVersion counter back to an earlier state, as an etcd restored from a backup
    /// does. Open watches end.
    pub fn restore(&self, snapshot: &StateSnapshot) {
        self.inner.store.restore(snapshot);
    }

    /// The present value of the resourceVersion counter: the number of writes so far, plus one.
    #[must_use]
    pub fn resource_version(&self) -> u64 {
        self.inner.store.version()
    }
}
