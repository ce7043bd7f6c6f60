//! The manager of one process: one cache, one set of watches, and the controllers of the process's roles,
//! once for each group of drivers.
//!
//! A restore is the restore of the cluster's etcd from a backup. After the process detects one, the manager
//! writes the restore marker, a ConfigMap that freezes deletions, and replaces the cache and the controllers.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use cofferdam_backend::Backend;
use cofferdam_cluster::{
    ApiError, Cache, Clock, EventSink, Journal, SecretReader, Writer,
    journal::{JournalReports, LostJournals},
    leadership::{LeaderTerm, Leadership},
    metrics::Metrics,
    observer::StepObserver,
    queue::ExponentialBackoff,
};
use cofferdam_domain::{ClusterId, DriverName, term::Term};
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::{
    conflicts::{RoleStops, StoppedRoles},
    context::ProcessContext,
    controller::{ControllerFactory, Declaration, RunController},
    driver_group::{AnyLeadership, DriverGroup, GroupReadiness, Readiness},
    drivers::ManagedDriver,
    error::ControllerManagerError,
    events::EventRecorder,
    node_local::NodeDeployment,
    restore::RestoreHandler,
    restore_check::RestoreCheck,
    role::Role,
    settings::Settings,
    table::CONTROLLERS,
    watches::{self, WatchSet},
};

/// A cache that was in use for less than this time counts as failed: the next one is created after a
/// back-off. The first cache of the process is an exception: the second one is created at once.
const SHORT_CACHE_LIFETIME: Duration = Duration::from_secs(60);
const RESTART_BACKOFF: ExponentialBackoff =
    ExponentialBackoff { initial: Duration::from_secs(1), max: Duration::from_secs(30) };

/// Dependencies of a process.
pub struct Dependencies {
    /// Client of the API server. It must not retry requests itself.
    pub client: kube::Client,
    /// The drivers. [`ControllerManager::new`] rejects two drivers of the same name.
    pub backends: Vec<Arc<dyn Backend>>,
    /// The wall clock.
    pub clock: Clock,
    /// Receives the steps that the controllers record.
    pub observer: Arc<dyn StepObserver>,
}

/// Runs the controllers of one process.
pub struct ControllerManager {
    settings: Settings,
    dependencies: Dependencies,
    metrics: Metrics,
    /// The declarations of the process's roles, with factories that hold the registered metrics.
    controllers: Vec<(Declaration, Box<dyn ControllerFactory>)>,
    ready: watch::Sender<bool>,
    stopped_roles: watch::Sender<StoppedRoles>,
    lost_journals: watch::Sender<LostJournals>,
    cache: Mutex<Arc<Cache>>,
}

/// The reason why the controllers of one cache have ended.
enum LifetimeEnd {
    /// The process was asked to stop, perhaps during a restore.
    Stopped,
    /// A restore was detected, and the restore marker was written. New controllers continue with a new cache.
    Restored,
}

/// One cache, and what uses it for as long as it is valid.
struct CacheLifetime<'a> {
    cluster: ClusterId,
    cache: &'a Arc<Cache>,
    writer: &'a Writer,
    /// Cancelled when the process is asked to stop.
    stop: &'a CancellationToken,
    /// Ends the watches and the controllers.
    stop_work: &'a CancellationToken,
}

/// The drivers of a group, with their journals and the events about them.
struct GroupDrivers<'a> {
    backends: &'a [Arc<dyn Backend>],
    events: &'a EventSink,
}

/// The controllers of a term, and what they share.
struct TermControllers {
    controllers: Vec<(Role, Arc<dyn RunController>)>,
    journals: Vec<Journal>,
    role_stops: Arc<RoleStops>,
    /// True if a controller provisions: then the journals are loaded before the work starts.
    provisions: bool,
}

impl TermControllers {
    /// Loads the journals, reports readiness, and runs the controllers until `stop` is cancelled. A
    /// controller whose role stops earlier ends alone. The journals are flushed after the controllers have
    /// ended.
    async fn run(
        self,
        ready: GroupReadiness<'_>,
        stop: &CancellationToken,
    ) -> Result<(), ControllerManagerError> {
        let stop_journals = CancellationToken::new();
        let run_controllers = async {
            let result = self.run_controllers(ready, stop).await;
            stop_journals.cancel();
            result
        };
        let run_journals = self.journals.iter().map(|journal| journal.run(stop_journals.clone()));
        tokio::join!(run_controllers, futures::future::join_all(run_journals)).0
    }

    async fn run_controllers(
        &self,
        ready: GroupReadiness<'_>,
        stop: &CancellationToken,
    ) -> Result<(), ControllerManagerError> {
        let loaded = self.journals.iter().filter(|_| self.provisions).map(Journal::load);
        tokio::select! {
            biased;
            () = stop.cancelled() => return Ok(()),
            loaded = futures::future::try_join_all(loaded) => {
                loaded.map_err(ControllerManagerError::Start)?
            }
        };
        ready.set(true);
        let runs = self
            .controllers
            .iter()
            .map(|(role, controller)| Arc::clone(controller).run(self.role_stops.token(*role)));
        futures::future::join_all(runs).await;
        // All roles may have stopped: the process stays, so that its readiness says why.
        stop.cancelled().await;
        Ok(())
    }
}

impl ControllerManager {
    /// Validates settings and drivers, and registers the metrics. Sends no request.
    ///
    /// # Errors
    /// [`ControllerManagerError`] for settings and drivers that cannot work together.
    pub fn new(
        settings: Settings,
        dependencies: Dependencies,
        registry: &mut Registry,
    ) -> Result<Self, ControllerManagerError> {
        Self::with_table(CONTROLLERS, settings, dependencies, registry)
    }

    /// As [`ControllerManager::new`], with another table of controllers.
    pub(crate) fn with_table(
        table: &[Declaration],
        settings: Settings,
        dependencies: Dependencies,
        registry: &mut Registry,
    ) -> Result<Self, ControllerManagerError> {
        validate(table, &settings, &dependencies.backends)?;
        let metrics = Metrics::register(registry);
        // Every process exports the same metrics, whatever its roles are.
        let mut controllers: Vec<_> =
            table.iter().map(|controller| (*controller, (controller.register)(registry))).collect();
        controllers.retain(|(controller, _)| settings.roles.contains(&controller.role));
        Ok(Self {
            metrics,
            controllers,
            ready: watch::Sender::new(false),
            stopped_roles: watch::Sender::default(),
            lost_journals: watch::Sender::default(),
            cache: Mutex::default(),
            settings,
            dependencies,
        })
    }

    /// Readiness: true once the first list of every required watch is in the cache and, in a process that
    /// leads and has the provisioner, the drivers' journals are loaded, until the controllers have ended. A
    /// process that waits for its first term is ready with its cache. False again while a new cache syncs
    /// after a restore.
    pub fn ready(&self) -> watch::Receiver<bool> {
        self.ready.subscribe()
    }

    /// The roles that have stopped because another controller does their work.
    pub fn stopped_roles(&self) -> watch::Receiver<StoppedRoles> {
        self.stopped_roles.subscribe()
    }

    /// The drivers whose journals other processes have taken: this process sends no CreateVolume request to
    /// them.
    pub fn lost_journals(&self) -> watch::Receiver<LostJournals> {
        self.lost_journals.subscribe()
    }

    /// The current cache. [`ControllerManager::run`] replaces it at its start and after a detected restore.
    pub fn cache(&self) -> Arc<Cache> {
        Arc::clone(&self.cache.lock())
    }

    /// Handles to the metrics of requests, watches, queues and events, which all controllers share.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Runs the controllers until `stop`, then shuts down: no new work starts, in-flight work finishes,
    /// journals and events are flushed.
    ///
    /// After a detected restore of the cluster from a backup, it continues with a new cache and with
    /// deletions frozen.
    ///
    /// # Errors
    /// [`ControllerManagerError::Start`] if the cluster's identity or a journal cannot be read at the first
    /// start. After a restore, these reads are retried.
    pub async fn run(&self, stop: CancellationToken) -> Result<(), ControllerManagerError> {
        self.run_while_leading(stop, Leadership::permanent()).await
    }

    /// As [`ControllerManager::run_groups`], with one group of all drivers.
    ///
    /// # Errors
    /// As [`ControllerManager::run_groups`].
    pub async fn run_while_leading(
        &self,
        stop: CancellationToken,
        leadership: Leadership,
    ) -> Result<(), ControllerManagerError> {
        let backends = &self.dependencies.backends;
        let drivers = backends.iter().map(|backend| backend.description().name.clone()).collect();
        self.run_groups(stop, &[DriverGroup { drivers, leadership, is_ready_as_standby: true }]).await
    }

    /// As [`ControllerManager::run`], but each group of drivers has controllers of its own, which run in
    /// terms of the group's leadership only. Between terms the caches stay synced. When a term ends, the
    /// controllers end at once, in-flight work included; `stop` lets it finish. A group
    /// [resigns](Leadership::resign) as soon as its work has ended after `stop`.
    ///
    /// # Errors
    /// As [`ControllerManager::run`]. In an elected leadership, reads of a journal are retried.
    pub async fn run_groups(
        &self,
        stop: CancellationToken,
        groups: &[DriverGroup],
    ) -> Result<(), ControllerManagerError> {
        let result = self.run_lifetimes(stop, groups).await;
        groups.iter().for_each(|group| group.leadership.resign());
        result
    }

    async fn run_lifetimes(
        &self,
        stop: CancellationToken,
        groups: &[DriverGroup],
    ) -> Result<(), ControllerManagerError> {
        let (mut is_first, mut short_lifetimes) = (true, 0);
        loop {
            let started = Instant::now();
            let end = self.run_lifetime(&stop, groups).await;
            self.ready.send_replace(false);
            match end {
                Ok(LifetimeEnd::Stopped) => return Ok(()),
                Ok(LifetimeEnd::Restored) => {}
                Err(error) if is_first => return Err(error),
                // The API server has just restarted, or is being restored again.
                Err(error) => tracing::warn!(%error, "cannot restart after the restore yet"),
            }
            let is_short = started.elapsed() < SHORT_CACHE_LIFETIME && !is_first;
            short_lifetimes = if is_short { short_lifetimes + 1 } else { 0 };
            is_first = false;
            let delay = match short_lifetimes {
                0 => Duration::ZERO,
                failures => RESTART_BACKOFF.delay(failures),
            };
            tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(()),
                () = tokio::time::sleep(delay) => {}
            }
        }
    }

    /// Creates a cache and runs the terms of the controllers on it, until `stop`, or until a restore was
    /// detected and its marker written.
    ///
    /// # Errors
    /// [`ControllerManagerError::Start`] if the cluster's identity or a journal cannot be read.
    async fn run_lifetime(
        &self,
        stop: &CancellationToken,
        groups: &[DriverGroup],
    ) -> Result<LifetimeEnd, ControllerManagerError> {
        // 1. Create the cache, and the writer and the event sink that use it.
        let cache = Arc::new(Cache::default());
        *self.cache.lock() = Arc::clone(&cache);
        let writer = Writer::new(self.dependencies.client.clone(), Arc::clone(&cache), self.metrics.clone())
            .with_permits(AnyLeadership::new(groups))
            .with_watch_timeout(self.settings.watch_timeout);
        let (events, event_loop) =
            EventSink::new(&writer, Arc::clone(&self.dependencies.clock), self.metrics.clone());
        let cluster = cluster_id(&writer).await.map_err(ControllerManagerError::Start)?;
        let restore = RestoreHandler {
            cache: &cache,
            writer: &writer,
            metrics: &self.metrics,
            namespace: &self.settings.namespace,
            stop,
        };
        restore.subscribe_metric();

        // 2. Describe the parts of the lifetime. These futures do nothing before step 3.
        let (stop_work, stop_events) = (stop.child_token(), CancellationToken::new());
        let lifetime = CacheLifetime { cluster, cache: &cache, writer: &writer, stop, stop_work: &stop_work };
        let readiness = Readiness::new(&self.ready, groups.len());
        let watches = self.watches();
        let run_watches = async {
            watches.run(&writer, &events, &self.metrics, &stop_work).await;
            stop_work.cancel();
        };
        // The controllers run after every required kind is synced.
        let run_groups = async {
            let result = match watches.wait_synced(&cache, &stop_work).await {
                true => {
                    restore.update_metric();
                    let runs = groups
                        .iter()
                        .enumerate()
                        .map(|(index, group)| self.run_group(&lifetime, group, readiness.of_group(index)));
                    futures::future::join_all(runs).await.into_iter().collect()
                }
                false => Ok(()),
            };
            self.ready.send_replace(false);
            stop_work.cancel();
            stop_events.cancel();
            result
        };

        // 3. Run them, and handle a restore. Events are flushed after the controllers have ended.
        let ((), result, (), is_restore_handled) = tokio::join!(
            run_watches,
            run_groups,
            event_loop.run(stop_events.clone()),
            restore.run(&stop_work, &stop_events)
        );
        if let Some(restored) = cache.restore_detector.reported().filter(|_| !is_restore_handled) {
            restore.write_marker(&restored).await;
        }
        result?;
        // Without `stop`, only a detected restore ends the watches and the controllers.
        Ok(if stop.is_cancelled() { LifetimeEnd::Stopped } else { LifetimeEnd::Restored })
    }

    /// Runs the controllers of a group until the lifetime ends, flushes their events and, if the process was
    /// asked to stop, resigns.
    ///
    /// # Errors
    /// As [`Self::run_terms`]. The lifetime then ends.
    async fn run_group(
        &self,
        lifetime: &CacheLifetime<'_>,
        group: &DriverGroup,
        ready: GroupReadiness<'_>,
    ) -> Result<(), ControllerManagerError> {
        let writer = lifetime.writer.clone().with_permits(group.leadership.clone());
        let (events, event_loop) =
            EventSink::new(&writer, Arc::clone(&self.dependencies.clock), self.metrics.clone());
        let all = self.dependencies.backends.iter();
        let backends: Vec<_> =
            all.filter(|backend| group.drivers.contains(&backend.description().name)).cloned().collect();
        let drivers = GroupDrivers { backends: &backends, events: &events };
        let stop_events = CancellationToken::new();
        let run_terms = async {
            let result = self.run_terms(lifetime, &drivers, group, ready).await;
            ready.set(false);
            if result.is_err() {
                lifetime.stop_work.cancel();
            }
            stop_events.cancel();
            result
        };
        let (result, ()) = tokio::join!(run_terms, event_loop.run(stop_events.clone()));
        // After a restore the marker is still to be written.
        if lifetime.stop.is_cancelled() && lifetime.cache.restore_detector.reported().is_none() {
            group.leadership.resign();
        }
        result
    }

    /// Runs the controllers in each term, until the lifetime ends.
    ///
    /// # Errors
    /// [`ControllerManagerError::Start`] if a journal cannot be read and the leadership is permanent.
    async fn run_terms(
        &self,
        lifetime: &CacheLifetime<'_>,
        drivers: &GroupDrivers<'_>,
        group: &DriverGroup,
        ready: GroupReadiness<'_>,
    ) -> Result<(), ControllerManagerError> {
        let (mut leadership, mut failures) = (group.leadership.clone(), 0);
        loop {
            if leadership.term().is_none() {
                ready.set(group.is_ready_as_standby);
            }
            let term = tokio::select! {
                biased;
                () = lifetime.stop_work.cancelled() => return Ok(()),
                term = leadership.wait_term() => term,
            };
            let delay = match self.run_term(lifetime, drivers, &term, ready).await {
                Ok(()) => {
                    failures = 0;
                    Duration::ZERO
                }
                Err(error) if leadership.is_permanent() => return Err(error),
                Err(error) => {
                    failures += 1;
                    ready.set(false);
                    tracing::warn!(%error, "cannot start the controllers yet");
                    RESTART_BACKOFF.delay(failures)
                }
            };
            tokio::select! {
                biased;
                () = lifetime.stop_work.cancelled() => return Ok(()),
                () = tokio::time::sleep(delay) => {}
            }
        }
    }

    /// Creates controllers and runs them until the lifetime ends, or drops them at the end of the term.
    async fn run_term(
        &self,
        lifetime: &CacheLifetime<'_>,
        drivers: &GroupDrivers<'_>,
        term: &LeaderTerm,
        ready: GroupReadiness<'_>,
    ) -> Result<(), ControllerManagerError> {
        let stop = lifetime.stop_work.child_token();
        let controllers = self.term_controllers(lifetime, drivers, term.term(), &stop);
        tokio::select! {
            biased;
            () = term.wait_end() => {
                tracing::warn!("the term has ended: the roles have stopped, and wait for another term");
                Ok(())
            }
            result = controllers.run(ready, &stop) => result,
        }
    }

    /// The union of the watches of the process.
    fn watches(&self) -> WatchSet {
        let (settings, backends) = (&self.settings, &self.dependencies.backends);
        let declared = self.controllers.iter().flat_map(|(c, _)| (c.watches)(settings, backends));
        WatchSet::union(watches::common().into_iter().chain(declared))
    }

    fn context(
        &self,
        lifetime: &CacheLifetime<'_>,
        GroupDrivers { backends, events }: &GroupDrivers<'_>,
        term: &Term,
        role_stops: &Arc<RoleStops>,
    ) -> ProcessContext {
        let CacheLifetime { cluster, cache, writer, .. } = lifetime;
        let writer = &(*writer).clone().with_permits(term.clone());
        let settings = &self.settings;
        let names = settings.cluster_wide(backends).map(|backend| backend.description().name.clone());
        ProcessContext {
            cache: Arc::clone(cache),
            term: term.clone(),
            writer: writer.clone(),
            secrets: SecretReader::new(writer, settings.secret_namespaces.clone()),
            events: EventRecorder::new((*events).clone()),
            observer: Arc::clone(&self.dependencies.observer),
            clock: Arc::clone(&self.dependencies.clock),
            settings: settings.clone(),
            cluster: cluster.clone(),
            drivers: Arc::new(self.drivers(backends, writer, events)),
            local_node: settings.local_node(backends),
            provisioned_drivers: Arc::new(names.filter(|_| self.provisions()).collect()),
            channels: Arc::default(),
            restore_check: RestoreCheck::new(writer.clone()),
            role_stops: Arc::clone(role_stops),
            queue_metrics: self.metrics.clone(),
        }
    }

    /// Returns true if a controller of this process creates and deletes volumes.
    fn provisions(&self) -> bool {
        self.controllers.iter().any(|(controller, _)| controller.provisions)
    }

    fn drivers(
        &self,
        backends: &[Arc<dyn Backend>],
        writer: &Writer,
        events: &EventSink,
    ) -> HashMap<DriverName, ManagedDriver> {
        let driver = |backend: &Arc<dyn Backend>| {
            let name = backend.description().name.clone();
            let namespace = self.settings.namespace.clone();
            let node = self.settings.node.as_ref().filter(|node| node.is_node_local(&**backend));
            let (writer, metrics) = (writer.clone(), self.metrics.clone());
            let journal = match node {
                None => Journal::new(writer, namespace, name.clone(), metrics),
                Some(NodeDeployment { node, .. }) => {
                    Journal::for_node(writer, namespace, name.clone(), node.clone(), metrics)
                }
            };
            let component: Box<str> = format!("{name}_{}", self.settings.identity).into();
            let journal = journal
                .with_identity(&self.settings.identity)
                .with_retry_interval_max(self.settings.calls.retry_interval_max)
                .with_reports(JournalReports {
                    lost: self.lost_journals.clone(),
                    events: events.clone(),
                    component: component.clone(),
                });
            let started = (self.dependencies.clock)().as_millisecond();
            let node_suffix = node.map(|node| format!("-{}", node.node)).unwrap_or_default();
            let driver = ManagedDriver {
                backend: Arc::clone(backend),
                journal,
                identity: format!("{started}-{}-{name}{node_suffix}", self.settings.identity),
                component,
            };
            (name, driver)
        };
        backends.iter().map(driver).collect()
    }

    /// Creates the controllers of a term, in the order of the table, and subscribes them: every cached object
    /// is enqueued. `stop` stops all of them.
    fn term_controllers(
        &self,
        lifetime: &CacheLifetime<'_>,
        drivers: &GroupDrivers<'_>,
        term: &Term,
        stop: &CancellationToken,
    ) -> TermControllers {
        let role_stops = Arc::new(RoleStops::new(
            self.controllers.iter().map(|(controller, _)| controller.role),
            self.stopped_roles.clone(),
            stop,
            self.metrics.clone(),
        ));
        let context = self.context(lifetime, drivers, term, &role_stops);
        TermControllers {
            controllers: self
                .controllers
                .iter()
                .map(|(controller, factory)| (controller.role, factory.create(&context)))
                .collect(),
            journals: context.drivers.values().map(|driver| driver.journal.clone()).collect(),
            role_stops,
            provisions: self.provisions(),
        }
    }
}

/// Rejects settings and drivers that cannot work together.
fn validate(
    table: &[Declaration],
    settings: &Settings,
    backends: &[Arc<dyn Backend>],
) -> Result<(), ControllerManagerError> {
    let mut names = BTreeSet::new();
    for backend in backends {
        let name = &backend.description().name;
        if !names.insert(name.clone()) {
            return Err(ControllerManagerError::TwoBackends(name.clone()));
        }
    }
    for backend in backends.iter().filter(|backend| settings.is_node_local(&***backend)) {
        if !backend.has_topology() {
            return Err(ControllerManagerError::NoTopology(backend.description().name.clone()));
        }
    }
    for controller in table.iter().filter(|controller| settings.roles.contains(&controller.role)) {
        if controller.needs_driver && backends.is_empty() {
            return Err(ControllerManagerError::NoBackend(controller.role));
        }
        (controller.check)(settings, backends)?;
    }
    match settings.provisioner.has_valid_prefix() {
        true => Ok(()),
        false => Err(ControllerManagerError::Prefix(settings.provisioner.volume_name_prefix.clone())),
    }
}

/// The cluster's identity: the uid of the kube-system namespace, which exists in every cluster and is never
/// recreated.
async fn cluster_id(writer: &Writer) -> Result<ClusterId, ApiError> {
    #[derive(serde::Deserialize)]
    struct Namespace {
        metadata: Metadata,
    }
    #[derive(serde::Deserialize)]
    struct Metadata {
        uid: String,
    }
    let target = "Namespace kube-system";
    let response = writer.api().read("/api/v1/namespaces/kube-system", target).await?;
    let namespace: Namespace = serde_json::from_str(&response).map_err(|error| {
        ApiError::InvalidResponse { target: target.to_owned(), message: error.to_string() }
    })?;
    Ok(ClusterId::from(namespace.metadata.uid))
}

#[cfg(test)]
mod tests;
