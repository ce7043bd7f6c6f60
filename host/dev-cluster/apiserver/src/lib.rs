//! An embedded Kubernetes API for development, tests and simulation.
//!
//! [`ApiServer`] keeps objects in memory and behaves as kube-apiserver does for the kinds that storage uses:
//! discovery, get, list, watch, create, update, patch, delete, tables, status codes and messages. Within a
//! process it is a `tower` service ([`ApiServer::service`]), which is deterministic under paused tokio time
//! with a fixed clock and seed ([`Options`]). For `kubectl` it listens on loopback with TLS and a token
//! ([`ApiServer::serve`]).
//!
//! Requests are not authorized: every client may do everything.

#![forbid(unsafe_code)]

mod apply;
mod base64;
mod bind;
mod delete;
mod descriptors;
mod discovery;
mod fields;
mod inner;
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

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use serde_json::json;

pub use crate::serve::{ServeError, ServeOptions, ServerHandle};
pub use crate::service::{ApiBody, ApiService};
pub use crate::store::StateSnapshot;

use crate::descriptors::ResourceKind;
use crate::inner::Inner;
use crate::random::Random;
use crate::request::{FieldValidation, Target};
use crate::store::Store;
use crate::write::{Warnings, WriteOptions};

/// The namespaces of a new cluster.
const NAMESPACES: [&str; 4] = ["default", "kube-node-lease", "kube-public", "kube-system"];

/// Default number of watch events per kind: some seconds of a busy cluster.
const DEFAULT_WATCH_HISTORY: usize = 10_000;

/// Options of a server.
#[derive(Clone)]
pub struct Options {
    /// The clock for timestamps. Timeouts and bookmarks use tokio's clock.
    pub now: Arc<dyn Fn() -> Timestamp + Send + Sync>,
    /// Seed of uids and generated names, which are random without it.
    pub uid_seed: Option<u64>,
    /// Uid of the namespace `kube-system`, which clients take for the cluster's identity. `None` for a random
    /// one, or one from the seed.
    pub cluster_id: Option<String>,
    /// Number of stored watch events per kind; 0 counts as 1. Watches and exact lists at a version before the
    /// stored events get 410 Gone.
    pub watch_history: usize,
    /// Interval of the bookmarks of a watch that asks for them. One more precedes the end of the watch.
    pub bookmark_interval: Duration,
    /// Maximum size of a request body in bytes. Requests with a larger body get 413.
    pub body_limit: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            now: Arc::new(Timestamp::now),
            uid_seed: None,
            cluster_id: None,
            watch_history: DEFAULT_WATCH_HISTORY,
            // As in kube-apiserver.
            bookmark_interval: Duration::from_secs(60),
            body_limit: 3 * 1024 * 1024,
        }
    }
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options")
            .field("uid_seed", &self.uid_seed)
            .field("cluster_id", &self.cluster_id)
            .field("history", &self.watch_history)
            .field("bookmark_interval", &self.bookmark_interval)
            .field("body_limit", &self.body_limit)
            .finish_non_exhaustive()
    }
}

/// A random uid, in the form of a version 4 UUID.
#[must_use]
pub fn new_uid() -> String {
    Random::new(None).uid()
}

/// An in-memory Kubernetes API server. Clones share its state.
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
    /// An API server with the namespaces of a new cluster.
    #[must_use]
    pub fn new(options: Options) -> Self {
        let inner = Inner {
            store: Store::new(options.watch_history),
            now: options.now,
            bookmark_interval: options.bookmark_interval,
            body_limit: options.body_limit,
            random: Random::new(options.uid_seed),
        };
        let mut cluster_id = options.cluster_id;
        for name in NAMESPACES {
            if name == "kube-system"
                && let Some(uid) = cluster_id.take()
            {
                inner.random.set_next_uid(uid);
            }
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
            // The names are valid and do not exist yet.
            let _ = inner.create(&target, json!({"metadata": {"name": name}}), write);
        }
        Self { inner: Arc::new(inner) }
    }

    /// A service for use within the process, such as with `kube::Client::new`. It requires no token.
    #[must_use]
    pub fn service(&self) -> ApiService {
        ApiService::new(Arc::clone(&self.inner))
    }

    /// Drops the watch history, as an etcd compaction does. Watches and exact lists at resourceVersions
    /// before the current one get 410 Gone.
    pub fn compact(&self) {
        self.inner.store.compact();
    }

    /// A snapshot for [`ApiServer::restore`].
    #[must_use]
    pub fn snapshot(&self) -> StateSnapshot {
        self.inner.store.snapshot()
    }

    /// Restores objects and resourceVersion counter from a snapshot, as an etcd restore does. Open watches
    /// end.
    pub fn restore(&self, snapshot: &StateSnapshot) {
        self.inner.store.restore(snapshot);
    }

    /// The resourceVersion counter. It starts at 1 and increases by one with each write, including writes of
    /// the server itself, such as the creation of the initial namespaces. [`ApiServer::restore`] resets the
    /// counter to that of the snapshot.
    #[must_use]
    pub fn resource_version(&self) -> u64 {
        self.inner.store.version()
    }
}
