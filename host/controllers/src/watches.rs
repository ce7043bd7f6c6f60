//! Watches: the kinds that controllers read from the cache, and their union over a process.

use std::{any::TypeId, fmt};

use cofferdam_cluster::{
    Cache, EventSink, Writer,
    api::ApiResource,
    deletion_freeze::RestoreDetected,
    metrics::Metrics,
    reflector::{Scope, run_reflector},
    writer::CachedKind,
};
use cofferdam_domain::{Claim, StorageClass, Volume};
use futures::future::BoxFuture;
use tokio_util::sync::CancellationToken;

/// A watch that a controller needs: a kind, the scope of its objects, and whether readiness waits for it.
#[derive(Clone, Debug)]
pub struct WatchSpec {
    kind: WatchedKind,
    /// The objects of the kind that are watched.
    pub scope: Scope,
    /// True if readiness, and with it all work of the process, waits for the first list. A kind with
    /// `Kind::OPTIONAL` that the API server does not serve counts as synced and empty, such as
    /// VolumeAttributesClass on Kubernetes 1.33.
    pub required: bool,
}

impl WatchSpec {
    /// Watches every object of a kind.
    pub fn all<K: CachedKind>() -> Self {
        Self::scoped::<K>(Scope::default())
    }

    /// Watches the objects of a kind in a scope.
    pub fn scoped<K: CachedKind>(scope: Scope) -> Self {
        Self { kind: WatchedKind::of::<K>(), scope, required: true }
    }

    /// Watches the object of this name.
    pub fn named<K: CachedKind>(name: &str) -> Self {
        Self::scoped::<K>(Scope { field_selector: Some(format!("metadata.name={name}")), ..Scope::default() })
    }

    /// Lets the controllers start before the first list of the kind. The controller that declares the watch
    /// waits for the list itself.
    #[must_use]
    pub fn optional(self) -> Self {
        Self { required: false, ..self }
    }

    /// The API resource of the kind.
    pub fn resource(&self) -> ApiResource {
        self.kind.resource
    }

    fn merge(&mut self, other: Self) {
        self.required |= other.required;
        let fields = |scope: &Scope| {
            (scope.namespace.clone(), scope.field_selector.clone(), scope.label_selector.clone())
        };
        if fields(&self.scope) != fields(&other.scope) {
            self.scope = Scope::default();
        }
    }
}

/// A cached kind whose Rust type is erased. `id` identifies it, because `resource` cannot: restore markers
/// and orphan reports are both ConfigMaps.
#[derive(Clone, Copy)]
struct WatchedKind {
    id: TypeId,
    resource: ApiResource,
    run: fn(ReflectorInput) -> BoxFuture<'static, Result<(), RestoreDetected>>,
    wait_synced: for<'a> fn(&'a Cache) -> BoxFuture<'a, ()>,
}

impl WatchedKind {
    fn of<K: CachedKind>() -> Self {
        Self {
            id: TypeId::of::<K>(),
            resource: K::RESOURCE,
            run: |input| {
                Box::pin(async move {
                    let ReflectorInput { writer, events, metrics, scope, stop } = input;
                    run_reflector::<K>(&writer, &events, &metrics, scope, stop).await
                })
            },
            wait_synced: |cache| Box::pin(K::store(cache).wait_synced()),
        }
    }
}

impl fmt::Debug for WatchedKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.resource.plural)
    }
}

struct ReflectorInput {
    writer: Writer,
    events: EventSink,
    metrics: Metrics,
    scope: Scope,
    stop: CancellationToken,
}

/// Watches of every process. Every watch detects a restore of the cluster from a backup. Claims and
/// PersistentVolumes are watched whatever the roles are, so every process detects a restore.
pub fn common() -> Vec<WatchSpec> {
    vec![WatchSpec::all::<Claim>(), WatchSpec::all::<Volume>(), WatchSpec::all::<StorageClass>()]
}

/// The watches of one process: one for each kind.
#[derive(Debug)]
pub(crate) struct WatchSet(Vec<WatchSpec>);

impl WatchSet {
    /// The union of `specs`. Different scopes of a kind become one watch of all its objects, because a watch
    /// has one selector. A kind is required if any of its watches is.
    pub(crate) fn union(specs: impl IntoIterator<Item = WatchSpec>) -> Self {
        let mut union: Vec<WatchSpec> = Vec::new();
        for spec in specs {
            match union.iter_mut().find(|known| known.kind.id == spec.kind.id) {
                Some(known) => known.merge(spec),
                None => union.push(spec),
            }
        }
        Self(union)
    }

    /// Runs the reflectors until `stop`, or until one of them detects a restore.
    pub(crate) async fn run(
        &self,
        writer: &Writer,
        events: &EventSink,
        metrics: &Metrics,
        stop: &CancellationToken,
    ) {
        let reflectors = self.0.iter().map(|spec| {
            let (writer, events, metrics) = (writer.clone(), events.clone(), metrics.clone());
            (spec.kind.run)(ReflectorInput {
                writer,
                events,
                metrics,
                scope: spec.scope.clone(),
                stop: stop.clone(),
            })
        });
        // The reflector reports the restore to the cache before its future ends; the error only ends the
        // others.
        let _ = futures::future::try_join_all(reflectors).await;
    }

    /// Waits for the first list of every required kind. Returns false if stopped before.
    pub(crate) async fn wait_synced(&self, cache: &Cache, stop: &CancellationToken) -> bool {
        let synced = async {
            for spec in self.0.iter().filter(|spec| spec.required) {
                (spec.kind.wait_synced)(cache).await;
            }
        };
        tokio::select! {
            biased;
            () = stop.cancelled() => false,
            () = synced => true,
        }
    }

    /// The watches, one for each kind.
    #[cfg(test)]
    pub(crate) fn specs(&self) -> &[WatchSpec] {
        &self.0
    }
}

#[cfg(test)]
mod tests;
