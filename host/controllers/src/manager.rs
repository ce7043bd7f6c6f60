//! One process: one cache, one set of watches, any set of roles over any set of drivers.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Duration,
};

use cofferdam_backend::Backend;
use cofferdam_cluster::{
    ApiError, Cache, Clock, EventSink, Journal, OrphanReport, Writer,
    deletion_freeze::{self, RestoreDetected, RestoreMarker},
    metrics::Metrics,
    orphan_report,
    queue::{Action, ExponentialBackoff},
    reflector::{Scope, run_reflector},
};
use cofferdam_domain::{
    Claim, ClusterId, CsiDriver, CsiNode, DriverName, Node, Pod, StorageClass, Volume, VolumeAttachment,
    VolumeAttributesClass, storage::Ability,
};
use prometheus_client::registry::Registry;
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::{
    attach_detach::{metrics::AttachDetachMetrics, reconcile::AttachDetach},
    attacher::{metrics::AttacherMetrics, reconcile::Attacher},
    context::{ControllerContext, ManagedDriver},
    live_reads::SingleFlightReads,
    observer::StepObserver,
    orphans::{OrphanScanner, metrics::OrphanMetrics},
    protection::reconcile::Protection,
    provisioner::{
        metrics::ProvisionerMetrics,
        placement::{LocalNode, NodeDeployment},
        reconcile::Provisioner,
    },
    pv_controller::reconcile::PvController,
    release_hints::ReleaseHints,
    resizer::{expand::is_offline_expansion_only, reconcile::Resizer},
    role::Role,
};

/// What an operator chooses.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The roles of this process.
    pub roles: BTreeSet<Role>,
    /// Namespace of the intent journal and of the mark that a restored cluster leaves.
    pub namespace: String,
    /// Name of this process in events and in volumes' provisioner identity: host name or pod name.
    pub identity: String,
    /// First part of a provisioned volume's name (`--volume-name-prefix`).
    pub volume_name_prefix: String,
    /// Deadline of one driver call (`--timeout`).
    pub timeout: Duration,
    /// Back-off of a claim or volume after a failure: first pause (`--retry-interval-start`).
    pub retry_interval_start: Duration,
    /// Back-off of a claim or volume after a failure: longest pause (`--retry-interval-max`).
    pub retry_interval_max: Duration,
    /// Claims, and as many volumes, that are worked on at once (`--worker-threads`).
    pub worker_threads: usize,
    /// Attachments of one driver that are attached at once, and as many that are detached
    /// (external-attacher's `--worker-threads`).
    pub attacher_worker_threads: usize,
    /// Claims of one driver that grow at once, and as many that are modified (`--workers`).
    pub resizer_workers: usize,
    /// Pause between two looks of the resizer at every claim (`--resync-period`).
    pub resync_period: Duration,
    /// Whether Pods are looked at for drivers that do not grow volumes that are in use
    /// (`--handle-volume-inuse-error`).
    pub handle_volume_inuse_error: bool,
    /// Adds the names of claim and volume to the parameters of a modification (`--extra-modify-metadata`).
    pub extra_modify_metadata: bool,
    /// Pause between two looks at every attachment, whether anything has changed or not (`--resync`).
    pub resync: Duration,
    /// Pause between two comparisons of attachments with what drivers list (`--reconcile-sync`).
    pub reconcile_sync: Duration,
    /// Volumes per page of such a listing; absent leaves it to the driver (`--max-entries`).
    pub max_entries: Option<u32>,
    /// Filesystem type for classes and volumes that name none (`--default-fstype`).
    pub default_fs_type: Option<String>,
    /// Adds the names of claim and volume to the driver's parameters (`--extra-create-metadata`).
    pub extra_create_metadata: bool,
    /// A node that the scheduler has chosen is the only place for the volume (`--strict-topology`).
    pub strict_topology: bool,
    /// Where no node is chosen and the class allows everything, all places of the cluster are named
    /// (`--immediate-topology`).
    pub immediate_topology: bool,
    /// Whether volumes leave a node that is not ready, although it says that it uses them, when they were
    /// asked to leave six minutes ago (not `--disable-force-detach-on-timeout`).
    pub force_detach_on_timeout: bool,
    /// Pause between two scans for orphans; absent for none.
    pub orphan_scan_interval: Option<Duration>,
    /// The node that the process is on, where it has drivers whose storage is in it. Absent, every driver is
    /// everybody's.
    pub node: Option<NodeDeployment>,
}

impl Settings {
    /// Whether a driver's storage is in the node of this process.
    fn is_node_local(&self, backend: &dyn Backend) -> bool {
        self.node.as_ref().is_some_and(|node| node.is_node_local(backend))
    }
}

impl Settings {
    /// The back-off of what waits for a driver.
    pub(crate) const fn backoff(&self) -> ExponentialBackoff {
        ExponentialBackoff { initial: self.retry_interval_start, max: self.retry_interval_max }
    }

    /// What has failed comes again when a driver wishes it, but for its own back-off and the longest pause;
    /// `failures`: before this one.
    pub(crate) fn retry_after_hint(&self, wish: Duration, failures: u32) -> Action {
        let own = self.backoff().delay(failures.saturating_add(1));
        Action::BackoffFor(wish.max(own).min(self.retry_interval_max))
    }

    /// The back-off of what waits for the API alone: client-go's per-item limits for a controller's queue,
    /// but for a start that a person does not notice, and for the operator's longest pause.
    pub(crate) fn api_backoff(&self) -> ExponentialBackoff {
        let own = ExponentialBackoff { initial: Duration::from_millis(50), max: Duration::from_secs(1000) };
        own.capped_at(self.retry_interval_max)
    }
}

impl Default for Settings {
    /// The sidecars' defaults where they have the flag, but for the deadline: theirs, 10 s, is too short for
    /// many arrays and only makes noise, because a call that ran out of time is repeated anyway.
    fn default() -> Self {
        Self {
            roles: Role::ALL.into(),
            namespace: "default".to_owned(),
            identity: "cofferdam".to_owned(),
            volume_name_prefix: "pvc".to_owned(),
            timeout: Duration::from_secs(60),
            retry_interval_start: Duration::from_secs(1),
            retry_interval_max: Duration::from_secs(300),
            worker_threads: 100,
            attacher_worker_threads: 10,
            resizer_workers: 10,
            resync_period: Duration::from_secs(600),
            handle_volume_inuse_error: true,
            extra_modify_metadata: false,
            resync: Duration::from_secs(600),
            reconcile_sync: Duration::from_secs(60),
            max_entries: None,
            default_fs_type: None,
            extra_create_metadata: false,
            strict_topology: false,
            immediate_topology: true,
            force_detach_on_timeout: true,
            orphan_scan_interval: Some(Duration::from_secs(3600)),
            node: None,
        }
    }
}

/// What a process stands on.
pub struct Dependencies {
    /// Client of the API, without retries of its own.
    pub client: kube::Client,
    /// The drivers, each of another name.
    pub backends: Vec<Arc<dyn Backend>>,
    /// The wall clock.
    pub clock: Clock,
    /// Hears of every step.
    pub observer: Arc<dyn StepObserver>,
}

/// Why a process cannot start or go on.
#[derive(Debug, thiserror::Error)]
pub enum ControllerManagerError {
    /// Two backends say that they are the same driver.
    #[error("two backends have the driver name {0}: expected one backend per driver")]
    TwoBackends(DriverName),
    /// A role has nothing to work with.
    #[error("role {0} needs at least one backend: name one with --backend")]
    NoBackend(Role),
    /// `--volume-name-prefix` is empty or not of a volume's name.
    #[error(
        "volume name prefix {0:?} cannot start a volume's name: expected lower-case letters, digits and dashes, at most 63"
    )]
    Prefix(String),
    /// A driver whose storage is in one node cannot say so of its volumes.
    #[error("driver {0} is of one node and has no topology: expected a driver with topology keys")]
    NoTopology(DriverName),
    /// Every node's process would attach everywhere.
    #[error(
        "driver {0} is of one node: expected no role attacher beside it, for its volumes are not attached"
    )]
    AttacherWithNodeLocalDriver(DriverName),
    /// A first read of the API failed.
    #[error("cannot start: {0}")]
    Start(#[source] ApiError),
}

/// One process.
pub struct ControllerManager {
    settings: Settings,
    dependencies: Dependencies,
    metrics: Metrics,
    provisioner_metrics: ProvisionerMetrics,
    attacher_metrics: AttacherMetrics,
    attach_detach_metrics: AttachDetachMetrics,
    orphan_metrics: OrphanMetrics,
    ready: watch::Sender<bool>,
    cache: Mutex<Arc<Cache>>,
}

/// Pause before the mark of a restored cluster is written again: nothing else may happen before it stands.
const RESTORE_MARKER_RETRY: Duration = Duration::from_secs(1);
/// Tries to write it when the process is to stop; whoever waits for its end has less patience than the API
/// may need.
const RESTORE_MARKER_TRIES_AFTER_STOP: usize = 20;
/// A life of the cache that was shorter has not come to work: the next one waits.
const SHORT_CACHE_LIFETIME: Duration = Duration::from_secs(60);
const RESTART_BACKOFF: ExponentialBackoff =
    ExponentialBackoff { initial: Duration::from_secs(1), max: Duration::from_secs(30) };

impl ControllerManager {
    /// Checks settings and parts and registers the metrics. Does not touch the API.
    ///
    /// # Errors
    /// [`ProcessError`] for settings that cannot work.
    pub fn new(
        settings: Settings,
        dependencies: Dependencies,
        registry: &mut Registry,
    ) -> Result<Self, ControllerManagerError> {
        let mut drivers = BTreeSet::new();
        for backend in &dependencies.backends {
            let name = &backend.description().name;
            if !drivers.insert(name.clone()) {
                return Err(ControllerManagerError::TwoBackends(name.clone()));
            }
        }
        for backend in dependencies.backends.iter().filter(|backend| settings.is_node_local(&***backend)) {
            let name = backend.description().name.clone();
            if !backend.has_topology() {
                return Err(ControllerManagerError::NoTopology(name));
            }
            if settings.roles.contains(&Role::Attacher) {
                return Err(ControllerManagerError::AttacherWithNodeLocalDriver(name));
            }
        }
        let idle = |role: &Role| settings.roles.contains(role) && drivers.is_empty();
        if let Some(role) = [Role::Provisioner, Role::Attacher, Role::Resizer].into_iter().find(idle) {
            return Err(ControllerManagerError::NoBackend(role));
        }
        let prefix = &settings.volume_name_prefix;
        let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if prefix.is_empty() || prefix.len() > 63 || !prefix.chars().all(allowed) || prefix.starts_with('-') {
            return Err(ControllerManagerError::Prefix(prefix.clone()));
        }
        Ok(Self {
            metrics: Metrics::register(registry),
            provisioner_metrics: ProvisionerMetrics::register(registry),
            attacher_metrics: AttacherMetrics::register(registry),
            attach_detach_metrics: AttachDetachMetrics::register(registry),
            orphan_metrics: OrphanMetrics::register(registry),
            ready: watch::Sender::new(false),
            cache: Mutex::default(),
            settings,
            dependencies,
        })
    }

    /// Whether the caches are filled and the roles run.
    pub fn ready(&self) -> watch::Receiver<bool> {
        self.ready.subscribe()
    }

    /// The cache of the current run.
    pub fn cache(&self) -> Arc<Cache> {
        Arc::clone(&self.cache.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Handles to the cluster layer's metrics.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Runs the roles until `stop`, then drains: no new work, what runs comes to its end, journal and events
    /// go out.
    ///
    /// After a restore of the cluster from a backup everything starts anew, with deletions held back.
    ///
    /// # Errors
    /// [`ProcessError::Start`] where the API refuses the first reads.
    pub async fn run(&self, stop: CancellationToken) -> Result<(), ControllerManagerError> {
        let (mut first, mut short) = (true, 0);
        loop {
            let begun = Instant::now();
            match self.run_once(stop.clone()).await {
                Ok(()) => {}
                Err(error) if first => return Err(error),
                // The API has only just come back, or somebody restores it once more.
                Err(error) => tracing::warn!(%error, "nothing runs yet after the restore"),
            }
            self.ready.send_replace(false);
            short = if begun.elapsed() < SHORT_CACHE_LIFETIME && !first { short + 1 } else { 0 };
            first = false;
            let pause = if short > 0 { RESTART_BACKOFF.delay(short) } else { Duration::ZERO };
            tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(()),
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Marks a restore, however long the API refuses; after `stop` only a while.
    async fn write_restore_marker(
        &self,
        writer: &Writer,
        restored: &RestoreDetected,
        stop: &CancellationToken,
    ) {
        tracing::error!(
            "{restored}; deletions are held back until ConfigMap {} is deleted",
            deletion_freeze::RESTORE_MARKER_NAME
        );
        let mut last = RESTORE_MARKER_TRIES_AFTER_STOP;
        while let Err(error) =
            deletion_freeze::create_marker(writer, &self.settings.namespace, restored).await
        {
            tracing::error!(%error, "ConfigMap {} cannot be written; nothing runs before it stands", deletion_freeze::RESTORE_MARKER_NAME);
            if stop.is_cancelled() {
                last -= 1;
                if last == 0 {
                    tracing::error!(
                        "ConfigMap {} is not written: write it before the next process starts, which knows of no restore",
                        deletion_freeze::RESTORE_MARKER_NAME
                    );
                    return;
                }
            }
            tokio::time::sleep(RESTORE_MARKER_RETRY).await;
        }
    }

    /// One life of the cache; ends with `stop` or with the news of a restore, which is marked by then, as far
    /// as the API lets it within a stop.
    async fn run_once(&self, stop: CancellationToken) -> Result<(), ControllerManagerError> {
        let cache = Arc::new(Cache::default());
        *self.cache.lock().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&cache);
        let writer = Writer::new(self.dependencies.client.clone(), Arc::clone(&cache), self.metrics.clone());
        let (events, event_loop) =
            EventSink::new(&writer, Arc::clone(&self.dependencies.clock), self.metrics.clone());
        let cluster = cluster_id(&writer).await.map_err(ControllerManagerError::Start)?;
        let drivers = self.drivers(&writer).await?;
        let journals: Vec<Journal> = drivers.values().map(|driver| driver.journal.clone()).collect();
        let context = Arc::new(ControllerContext {
            cache: Arc::clone(&cache),
            writer: writer.clone(),
            events: events.clone(),
            observer: Arc::clone(&self.dependencies.observer),
            clock: Arc::clone(&self.dependencies.clock),
            settings: self.settings.clone(),
            cluster,
            drivers,
            local_node: self.local_node(),
            provisioner_queue: OnceLock::new(),
            release_hints: ReleaseHints::default(),
            live_reads: SingleFlightReads::default(),
        });
        // Before the watches: what they find first wakes the roles.
        let controllers = RunningControllers::new(&context, self);
        // Roles stop first; what they leave behind goes out after them.
        let (working, flushing) = (stop.child_token(), CancellationToken::new());
        let deletions_frozen = self.metrics.deletions_frozen.clone();
        let frozen_cache = Arc::clone(&cache);
        cache.restore_markers.subscribe(move |_| {
            deletions_frozen.set(i64::from(deletion_freeze::is_frozen(&frozen_cache)));
        });
        let watches = self.run_reflectors(&writer, &events, working.clone());
        let work = async {
            if self.wait_for_cache_sync(&cache, &working).await {
                // The mark may have gone between two lives, and without a provisioner nobody follows it.
                self.metrics.deletions_frozen.set(i64::from(deletion_freeze::is_frozen(&cache)));
                self.ready.send_replace(true);
                controllers.run(working.clone()).await;
            }
            self.ready.send_replace(false);
            flushing.cancel();
        };
        let background = async {
            let journals =
                futures::future::join_all(journals.iter().map(|journal| journal.run(flushing.clone())));
            tokio::join!(journals, event_loop.run(flushing.clone()));
        };
        // Beside the drain: it takes its time, and other processes delete as well. News may also come while
        // it drains.
        let marker_task = async {
            let restored = tokio::select! {
                biased;
                restored = cache.restore_detector.wait_reported() => restored,
                () = flushing.cancelled() => return false,
            };
            self.metrics.deletions_frozen.set(1);
            working.cancel();
            self.write_restore_marker(&writer, &restored, &stop).await;
            true
        };
        let ((), (), (), marker_written) = tokio::join!(
            async {
                watches.await;
                working.cancel();
            },
            work,
            background,
            marker_task,
        );
        if let Some(restored) = cache.restore_detector.reported().filter(|_| !marker_written) {
            self.write_restore_marker(&writer, &restored, &stop).await;
        }
        Ok(())
    }

    async fn drivers(
        &self,
        writer: &Writer,
    ) -> Result<HashMap<DriverName, ManagedDriver>, ControllerManagerError> {
        let mut drivers = HashMap::new();
        for backend in &self.dependencies.backends {
            let name = backend.description().name.clone();
            let namespace = self.settings.namespace.clone();
            let node = self.settings.node.as_ref().filter(|node| node.is_node_local(&**backend));
            let journal = match node {
                None => Journal::new(writer.clone(), namespace, name.clone(), self.metrics.clone()),
                Some(NodeDeployment { node, .. }) => {
                    let (writer, metrics) = (writer.clone(), self.metrics.clone());
                    Journal::for_node(writer, namespace, name.clone(), node.clone(), metrics)
                }
            };
            if self.settings.roles.contains(&Role::Provisioner) {
                journal.load().await.map_err(ControllerManagerError::Start)?;
            }
            let started = (self.dependencies.clock)().as_millisecond();
            let on = node.map(|node| format!("-{}", node.node)).unwrap_or_default();
            let driver = ManagedDriver {
                backend: Arc::clone(backend),
                journal,
                identity: format!("{started}-{}-{name}{on}", self.settings.identity),
                component: format!("{name}_{}", self.settings.identity).into(),
            };
            drivers.insert(name, driver);
        }
        Ok(drivers)
    }

    /// Follows every kind that a role of this process reads, until `stop` or until one shows a restore.
    async fn run_reflectors(&self, writer: &Writer, events: &EventSink, stop: CancellationToken) {
        let metrics = &self.metrics;
        let everything = Scope::default;
        let restore_markers = deletion_freeze::marker_scope(&self.settings.namespace);
        let needs = |role: Role| self.settings.roles.contains(&role);
        let pods = async {
            if self.is_watching_pods() {
                run_reflector::<Pod>(writer, events, metrics, everything(), stop.clone()).await
            } else {
                Ok(())
            }
        };
        let restore_markers = async {
            if needs(Role::Provisioner) {
                run_reflector::<RestoreMarker>(writer, events, metrics, restore_markers, stop.clone()).await
            } else {
                Ok(())
            }
        };
        let reports = async {
            if self.is_scanning_orphans() {
                let reports = orphan_report::report_scope(&self.settings.namespace);
                run_reflector::<OrphanReport>(writer, events, metrics, reports, stop.clone()).await
            } else {
                Ok(())
            }
        };
        let attachments = async {
            if self.is_watching_attachments() {
                run_reflector::<VolumeAttachment>(writer, events, metrics, everything(), stop.clone()).await
            } else {
                Ok(())
            }
        };
        let csi_nodes = async {
            match self.csi_node_scope() {
                Some(scope) => run_reflector::<CsiNode>(writer, events, metrics, scope, stop.clone()).await,
                None => Ok(()),
            }
        };
        let nodes = async {
            match self.node_scope() {
                Some(scope) => run_reflector::<Node>(writer, events, metrics, scope, stop.clone()).await,
                None => Ok(()),
            }
        };
        let csi_drivers = async {
            if needs(Role::AttachDetach) {
                run_reflector::<CsiDriver>(writer, events, metrics, everything(), stop.clone()).await
            } else {
                Ok(())
            }
        };
        let attributes_classes = async {
            if self.is_watching_attributes_classes() {
                run_reflector::<VolumeAttributesClass>(writer, events, metrics, everything(), stop.clone())
                    .await
            } else {
                Ok(())
            }
        };
        let nodes = futures::future::try_join(nodes, csi_drivers);
        let all = futures::future::try_join5(
            run_reflector::<Claim>(writer, events, metrics, everything(), stop.clone()),
            run_reflector::<Volume>(writer, events, metrics, everything(), stop.clone()),
            run_reflector::<StorageClass>(writer, events, metrics, everything(), stop.clone()),
            pods,
            restore_markers,
        );
        let all = futures::future::try_join5(all, reports, attachments, csi_nodes, nodes);
        // The first that shows a restore ends the others; whoever asks the cache knows it from there.
        let _ = futures::future::try_join(all, attributes_classes).await;
    }

    /// Whether somebody looks at Pods: who uses a claim, which keeps the claim, and a volume from growing at
    /// some drivers; and what is to be attached.
    fn is_watching_pods(&self) -> bool {
        let Settings { roles, handle_volume_inuse_error, .. } = &self.settings;
        let mut backends = self.dependencies.backends.iter();
        roles.contains(&Role::Protection)
            || roles.contains(&Role::AttachDetach)
            || (roles.contains(&Role::Resizer)
                && *handle_volume_inuse_error
                && backends.any(|backend| is_offline_expansion_only(&**backend)))
    }

    /// Whether somebody looks at VolumeAttributesClasses: who protects them, and who works for a driver that
    /// modifies volumes.
    fn is_watching_attributes_classes(&self) -> bool {
        let modifies = |backend: &Arc<dyn Backend>| backend.abilities().contains(&Ability::Modification);
        let roles = &self.settings.roles;
        roles.contains(&Role::Protection)
            || ((roles.contains(&Role::Resizer) || roles.contains(&Role::Provisioner))
                && self.dependencies.backends.iter().any(modifies))
    }

    /// Whether this process looks for orphans: whoever provisions owns the drivers. Of storage in nodes there
    /// is no report yet.
    fn is_scanning_orphans(&self) -> bool {
        let central = |backend: &Arc<dyn Backend>| !self.settings.is_node_local(&**backend);
        self.settings.roles.contains(&Role::Provisioner)
            && self.settings.orphan_scan_interval.is_some()
            && self.dependencies.backends.iter().any(central)
    }

    /// Whether somebody looks at attachments: before a volume is deleted at a driver that publishes, none may
    /// name it.
    fn is_watching_attachments(&self) -> bool {
        let publishes = |backend: &Arc<dyn Backend>| backend.abilities().contains(&Ability::Publishing);
        let roles = &self.settings.roles;
        roles.contains(&Role::Attacher)
            || roles.contains(&Role::AttachDetach)
            || (roles.contains(&Role::Provisioner) && self.dependencies.backends.iter().any(publishes))
    }

    /// The drivers whose storage is in this node.
    fn local_node(&self) -> Option<LocalNode> {
        let deployment = self.settings.node.as_ref()?;
        let node_local =
            self.dependencies.backends.iter().filter(|backend| deployment.is_node_local(&***backend));
        let describe = |backend: &Arc<dyn Backend>| {
            let description = backend.description();
            (description.name.clone(), description.topology_keys.clone())
        };
        let drivers = node_local.map(describe).collect();
        Some(LocalNode {
            node: deployment.node.clone(),
            drivers,
            immediate_binding: deployment.immediate_binding,
        })
    }

    /// The Nodes whose places somebody looks at: all of them, or only this one.
    fn node_scope(&self) -> Option<Scope> {
        match self.settings.roles.contains(&Role::AttachDetach) {
            true => Some(Scope::default()),
            false => self.topology_scope(LocalNode::needs_labels),
        }
    }

    /// The CSINodes at which somebody looks: for what drivers call nodes, or for their topology keys.
    fn csi_node_scope(&self) -> Option<Scope> {
        let all = [Role::Attacher, Role::AttachDetach];
        match all.iter().any(|role| self.settings.roles.contains(role)) {
            true => Some(Scope::default()),
            false => self.topology_scope(LocalNode::needs_keys),
        }
    }

    /// Everything, where a driver's volumes may be anywhere; what is this node's, where drivers of this node
    /// need it.
    fn topology_scope(&self, needed: fn(&LocalNode) -> bool) -> Option<Scope> {
        let roles = &self.settings.roles;
        if !roles.contains(&Role::Provisioner) && !roles.contains(&Role::Resizer) {
            return None;
        }
        let anywhere =
            |backend: &Arc<dyn Backend>| backend.has_topology() && !self.settings.is_node_local(&**backend);
        if roles.contains(&Role::Provisioner) && self.dependencies.backends.iter().any(anywhere) {
            return Some(Scope::default());
        }
        let local_node = self.local_node().filter(needed)?;
        Some(Scope { field_selector: Some(format!("metadata.name={}", local_node.node)), ..Scope::default() })
    }

    /// Waits for the first list of every kind; `false` when stopped before.
    async fn wait_for_cache_sync(&self, cache: &Cache, stop: &CancellationToken) -> bool {
        let all = async {
            cache.claims.wait_synced().await;
            cache.volumes.wait_synced().await;
            cache.classes.wait_synced().await;
            if self.is_watching_pods() {
                cache.pods.wait_synced().await;
            }
            if self.settings.roles.contains(&Role::AttachDetach) {
                cache.csi_drivers.wait_synced().await;
            }
            if self.is_watching_attributes_classes() {
                cache.attributes_classes.wait_synced().await;
            }
            if self.settings.roles.contains(&Role::Provisioner) {
                cache.restore_markers.wait_synced().await;
            }
            if self.is_watching_attachments() {
                cache.attachments.wait_synced().await;
            }
            if self.csi_node_scope().is_some() {
                cache.csi_nodes.wait_synced().await;
            }
            if self.node_scope().is_some() {
                cache.nodes.wait_synced().await;
            }
        };
        tokio::select! {
            biased;
            () = stop.cancelled() => false,
            () = all => true,
        }
    }
}

/// The roles of a process.
struct RunningControllers {
    pv_controller: Option<Arc<PvController>>,
    provisioner: Option<Arc<Provisioner>>,
    attacher: Option<Arc<Attacher>>,
    resizer: Option<Arc<Resizer>>,
    protection: Option<Arc<Protection>>,
    attach_detach: Option<Arc<AttachDetach>>,
    orphans: Option<Arc<OrphanScanner>>,
}

impl RunningControllers {
    fn new(context: &Arc<ControllerContext>, manager: &ControllerManager) -> Self {
        let ControllerManager {
            metrics,
            provisioner_metrics: provisioner,
            attacher_metrics: attacher,
            attach_detach_metrics: attach_detach,
            orphan_metrics,
            ..
        } = manager;
        let has = |role: Role| context.settings.roles.contains(&role);
        Self {
            pv_controller: has(Role::PvController).then(|| PvController::new(Arc::clone(context), metrics)),
            provisioner: has(Role::Provisioner)
                .then(|| Provisioner::new(Arc::clone(context), metrics, provisioner.clone())),
            attacher: has(Role::Attacher)
                .then(|| Attacher::new(Arc::clone(context), metrics, attacher.clone())),
            resizer: has(Role::Resizer).then(|| Resizer::new(Arc::clone(context), metrics)),
            protection: has(Role::Protection).then(|| Protection::new(Arc::clone(context), metrics)),
            attach_detach: has(Role::AttachDetach)
                .then(|| AttachDetach::new(Arc::clone(context), metrics, attach_detach.clone())),
            orphans: context.settings.orphan_scan_interval.filter(|_| manager.is_scanning_orphans()).map(
                |interval| OrphanScanner::new(Arc::clone(context), interval, metrics, orphan_metrics.clone()),
            ),
        }
    }

    async fn run(&self, stop: CancellationToken) {
        let (pv_controller, provisioner, attacher, resizer, protection, attach_detach, orphans) = (
            self.pv_controller.iter().map(|role| role.run(stop.clone())),
            self.provisioner.iter().map(|role| role.run(stop.clone())),
            self.attacher.iter().map(|role| role.run(stop.clone())),
            self.resizer.iter().map(|role| role.run(stop.clone())),
            self.protection.iter().map(|role| role.run(stop.clone())),
            self.attach_detach.iter().map(|role| role.run(stop.clone())),
            self.orphans.iter().map(|role| role.run(stop.clone())),
        );
        tokio::join!(
            futures::future::join_all(pv_controller),
            futures::future::join_all(provisioner),
            futures::future::join_all(attacher),
            futures::future::join_all(resizer),
            futures::future::join_all(protection),
            futures::future::join_all(attach_detach),
            futures::future::join_all(orphans),
        );
    }
}

/// The cluster's identity: the uid of the one namespace that every cluster has for all its life.
async fn cluster_id(writer: &Writer) -> Result<ClusterId, ApiError> {
    #[derive(serde::Deserialize)]
    struct Namespace {
        metadata: Meta,
    }
    #[derive(serde::Deserialize)]
    struct Meta {
        uid: String,
    }
    let target = "Namespace kube-system";
    let answer = writer.api().read("/api/v1/namespaces/kube-system", target).await?;
    let namespace: Namespace = serde_json::from_str(&answer).map_err(|error| ApiError::InvalidResponse {
        target: target.to_owned(),
        message: error.to_string(),
    })?;
    Ok(ClusterId::from(namespace.metadata.uid))
}
