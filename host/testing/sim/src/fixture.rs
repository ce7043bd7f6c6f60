//! State of a simulation that its processes and its user share: the cluster, the faults of API writes, the
//! violations, and detection of idleness.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use cofferdam_cluster::{Cache, Lookup, writer::CachedKind};
use cofferdam_controllers::{ControllerManager, NodeDeployment};
use cofferdam_domain::{
    Claim, CsiDriver, CsiNode, Node, Pod, StorageClass, Volume, VolumeAttachment, VolumeAttributesClass,
    VolumeSnapshot, VolumeSnapshotClass, VolumeSnapshotContent, names,
};
use http::{Method, request::Parts};
use parking_lot::{Mutex, MutexGuard};
use serde_json::{Value, json};
use tokio::time::Instant;
use tower::BoxError;

use crate::{
    action::UserAction,
    api::{self, NODES_PATH, VOLUME_ATTACHMENTS_PATH, send_request, text},
    effects::{ApiFault, Effects, FaultKind},
    history::History,
    objects::{self, collection_path},
    rbac, secret_values,
    test_cluster::{ApiTransport, EnvironmentKind, TestCluster},
};

/// Paused time: duration of a wait for idle processes. It is longer than every back-off of the roles plus the
/// longest time they retain any state, except that of orphan scans. The processes are idle afterwards, except
/// for orphan scans and for retries of calls that always fail.
pub(crate) const SETTLE_TIME: Duration = Duration::from_secs(3600);
/// Paused time: duration of a wait for watches, in which every watch delivers its events.
const WATCH_DELAY: Duration = Duration::from_millis(10);
/// Real time: after this time without a request or driver call, all processes count as idle. It is longer
/// than the longest back-off of the roles, see [`SimulationFixture::max_retry_interval`], and than the
/// timeouts of the attach-detach controller in rows in which they elapse. Rows that depend on another delay
/// of a role wait for its result, or are skipped in real time.
const QUIET_PERIOD: Duration = Duration::from_millis(2_000);
/// Real time, during a driver call: after this time without a request or another driver call, every process
/// counts as having seen the user's last change. It is long enough for a process to act on a watch event, and
/// shorter than the delay after which a role reports a slow driver to users.
const QUIET_PERIOD_IN_CALL: Duration = Duration::from_millis(400);
/// Real time: maximum of [`UserAction::Wait`]. It is longer than the timeouts of the processes in rows in
/// which they elapse.
const MAX_REAL_TIME_WAIT: Duration = Duration::from_secs(4);
/// Real time: time limit of waiting for idleness, of waiting for current caches after the setup, and of
/// [`UserAction::AwaitPublished`].
const SETTLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Initial interval of the polls of a wait.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Maximum interval of the polls of a wait in paused time; the interval doubles after each poll.
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(10);
/// Maximum interval of cache checks in real time: each check needs nine lists.
const MAX_CACHE_CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// A process that is running, or has crashed and is not replaced yet. It has no `process` if it could not be
/// created.
struct LiveProcess {
    effects: Arc<Effects>,
    process: Option<Arc<ControllerManager>>,
    /// The only node that the process watches; `None` if it watches all nodes.
    node: Option<&'static str>,
}

/// State of a simulation that its controller processes share with the simulated user. It outlives a process.
pub(crate) struct SimulationFixture {
    pub(crate) cluster: Arc<dyn TestCluster>,
    pub(crate) user_api: ApiTransport,
    processes: Mutex<Vec<LiveProcess>>,
    violations: Mutex<Vec<String>>,
    /// VolumeAttachments of single-node volumes that the attach-detach controller has created, by
    /// PersistentVolume. Recorded in paused time only.
    created_attachments: Mutex<HashMap<String, HashSet<String>>>,
    history: Mutex<History>,
    /// Faults of API writes that have not been applied yet. Each applies to one request.
    api_faults: Mutex<Vec<ApiFault>>,
    fault_count: AtomicUsize,
    /// Real time: true if an administrator has created objects that some process may not have seen yet.
    has_new_setup: AtomicBool,
}

impl SimulationFixture {
    pub(crate) fn new(cluster: Arc<dyn TestCluster>, user_api: ApiTransport) -> Arc<Self> {
        Arc::new(Self {
            cluster,
            user_api,
            processes: Mutex::default(),
            violations: Mutex::default(),
            created_attachments: Mutex::default(),
            history: Mutex::default(),
            api_faults: Mutex::default(),
            fault_count: AtomicUsize::new(0),
            has_new_setup: AtomicBool::new(false),
        })
    }

    /// Returns true if the cluster runs in real time.
    pub(crate) fn is_real_time(&self) -> bool {
        self.cluster.environment() != EnvironmentKind::InProcess
    }

    /// Maximum back-off of the roles in real time, so that tests do not wait five minutes. `None` in paused
    /// time: the default applies.
    pub(crate) fn max_retry_interval(&self) -> Option<Duration> {
        self.is_real_time().then_some(Duration::from_secs(1))
    }

    /// In real time, shortens the delays after which node-local processes attempt to provision a claim with
    /// immediate binding, for which they compete.
    pub(crate) fn with_short_delays(&self, deployment: NodeDeployment) -> NodeDeployment {
        match self.is_real_time() {
            false => deployment,
            true => NodeDeployment {
                base_delay: Duration::from_millis(200),
                max_delay: Duration::from_millis(400),
                ..deployment
            },
        }
    }

    pub(crate) fn add_process(
        &self,
        effects: &Arc<Effects>,
        process: Option<&Arc<ControllerManager>>,
        node: Option<&'static str>,
    ) {
        self.lock_processes().push(LiveProcess {
            effects: Arc::clone(effects),
            process: process.cloned(),
            node,
        });
    }

    pub(crate) fn remove_process(&self, effects: &Arc<Effects>) {
        self.lock_processes().retain(|live| !Arc::ptr_eq(&live.effects, effects));
    }

    /// Records the violation of an invariant.
    pub(crate) fn report_violation(&self, violation: String) {
        self.violations.lock().push(violation);
    }

    pub(crate) fn violations(&self) -> Vec<String> {
        self.violations.lock().clone()
    }

    /// Records a VolumeAttachment that a process has created for a PersistentVolume. Returns all
    /// VolumeAttachments that were recorded for this PersistentVolume, including deleted ones.
    pub(crate) fn record_attachment(&self, volume: &str, attachment: &str) -> HashSet<String> {
        let mut all = self.created_attachments.lock();
        let attachments = all.entry(volume.to_owned()).or_default();
        attachments.insert(attachment.to_owned());
        attachments.clone()
    }

    /// Accesses the history that invariants depend on.
    pub(crate) fn with_history<T>(&self, access: impl FnOnce(&mut History) -> T) -> T {
        access(&mut self.history.lock())
    }

    /// Sets the faults of API requests. Each fault applies to the first request that it matches, a lasting
    /// one to all of them.
    pub(crate) fn set_api_faults(&self, api_faults: Vec<ApiFault>) {
        *self.api_faults.lock() = api_faults;
    }

    /// Removes the first unused fault that matches the request from the list, unless it is a lasting one, and
    /// returns its kind.
    pub(crate) fn take_api_fault(&self, request: &Parts, body: &Bytes) -> Option<FaultKind> {
        let text = String::from_utf8_lossy(body);
        let mut faults = self.api_faults.lock();
        let is_watch = rbac::is_watch(&request.uri);
        let is_matching = |fault: &ApiFault| {
            (is_watch || !matches!(fault.kind, FaultKind::LateWatch(_)))
                && fault.method == request.method.as_str()
                && request.uri.path().starts_with(fault.path_prefix)
                && text.contains(fault.body_contains)
        };
        let index = faults.iter().position(is_matching)?;
        let kind = faults.get(index)?.kind;
        if !kind.is_lasting() {
            faults.remove(index);
        }
        self.fault_count.fetch_add(1, Ordering::SeqCst);
        Some(kind)
    }

    /// The faults that have not been applied yet, without lasting ones.
    pub(crate) fn unused_api_faults(&self) -> Vec<ApiFault> {
        self.api_faults.lock().iter().filter(|fault| !fault.kind.is_lasting()).cloned().collect()
    }

    /// Number of API requests that had a fault.
    pub(crate) fn fault_count(&self) -> usize {
        self.fault_count.load(Ordering::SeqCst)
    }

    fn lock_processes(&self) -> MutexGuard<'_, Vec<LiveProcess>> {
        self.processes.lock()
    }

    /// Sets `status.phase` of the object whose status has this path, as another client.
    pub(crate) async fn set_phase(&self, path: &str, phase: &str) {
        let (merge, patch) = ("application/merge-patch+json", json!({"status": {"phase": phase}}));
        if let Err(error) = send_request(&self.user_api, Method::PATCH, path, merge, &patch).await {
            self.report_violation(format!("a client could not set the phase at {path}: {error}"));
        }
    }

    /// Performs an action of a user or an administrator. `Repair`, `Settle`, `Wait` and `Until` do nothing
    /// here.
    pub(crate) async fn perform(&self, action: &UserAction) {
        let json = "application/json";
        self.wait_after_setup(action).await;
        let deleted = match action {
            UserAction::Delete(path) if !self.is_real_time() => {
                api::get(&self.user_api, path.split('?').next().unwrap_or_default()).await
            }
            UserAction::Create(_)
            | UserAction::CreateAs(..)
            | UserAction::Delete(_)
            | UserAction::Remove(_)
            | UserAction::Patch(..)
            | UserAction::PatchContents(_)
            | UserAction::RepointVolume(..)
            | UserAction::ConfirmNoVolume
            | UserAction::ConfirmCreatedVolume
            | UserAction::Repair
            | UserAction::RemoveSnapshots
            | UserAction::Backup
            | UserAction::Restore
            | UserAction::Compact
            | UserAction::Settle
            | UserAction::Wait(_)
            | UserAction::Until(_)
            | UserAction::AwaitPublished(_) => None,
        };
        self.with_history(|history| history.record(action, deleted.as_ref()));
        let result = match action {
            UserAction::Create(object) => self.create(object, "").await,
            UserAction::CreateAs(manager, object) => {
                self.create(object, &format!("?fieldManager={manager}")).await
            }
            // Some rows expect the API server to reject the request.
            UserAction::Delete(path) => {
                send_request(&self.user_api, Method::DELETE, path, json, &Value::Null).await.map(drop)
            }
            UserAction::Remove(path) => {
                let patch = json!({"metadata": {"finalizers": null}});
                let merge = "application/merge-patch+json";
                let patched = send_request(&self.user_api, Method::PATCH, path, merge, &patch);
                let deleted = send_request(&self.user_api, Method::DELETE, path, json, &Value::Null);
                if self.is_real_time() {
                    // The order of concurrent requests is not known. A process that adds the finalizers again
                    // in between sees an ordinary deletion.
                    patched.await.and(deleted.await).map(drop)
                } else {
                    // At once: a process must not add the finalizers again in between.
                    let (patched, deleted) = tokio::join!(patched, deleted);
                    patched.and(deleted).map(drop)
                }
            }
            UserAction::Patch(path, patch) => {
                let merge = "application/merge-patch+json";
                let mut patch = patch.clone();
                if path.contains("/secrets/") {
                    secret_values::mark_values(&mut patch);
                }
                send_request(&self.user_api, Method::PATCH, path, merge, &patch).await.map(drop)
            }
            UserAction::PatchContents(patch) => self.patch_contents(patch).await,
            UserAction::RepointVolume(from, to) => self.repoint_volume(from, to).await,
            UserAction::Backup => self.cluster.backup().await,
            UserAction::Restore => self.cluster.restore().await,
            UserAction::Compact => self.cluster.compact().await,
            UserAction::ConfirmNoVolume => self.confirm_no_volume(|_| "the array is gone".into()).await,
            UserAction::ConfirmCreatedVolume => {
                self.confirm_no_volume(|uid| format!("handle-pvc-{uid} is deleted by hand")).await
            }
            UserAction::Repair
            | UserAction::RemoveSnapshots
            | UserAction::Settle
            | UserAction::Wait(_)
            | UserAction::Until(_)
            | UserAction::AwaitPublished(_) => Ok(()),
        };
        if let Err(error) = result {
            self.report_violation(format!("a user could not {action:?}: {error}"));
        }
    }

    async fn create(&self, object: &Value, query: &str) -> Result<(), BoxError> {
        let mut object = object.clone();
        if text(&object, "/kind") == "Secret" {
            secret_values::mark_values(&mut object);
        }
        let path = format!("{}{query}", collection_path(&object));
        let (status, body) =
            send_request(&self.user_api, Method::POST, &path, "application/json", &object).await?;
        let message = text(&body, "/message");
        status.is_success().then_some(()).ok_or_else(|| format!("{status}: {message}").into())
    }

    /// See [`UserAction::PatchContents`].
    async fn patch_contents(&self, patch: &Value) -> Result<(), BoxError> {
        for content in self.list(VOLUME_SNAPSHOT_CONTENTS_PATH).await {
            let path = format!("{VOLUME_SNAPSHOT_CONTENTS_PATH}/{}", text(&content, "/metadata/name"));
            send_request(&self.user_api, Method::PATCH, &path, "application/merge-patch+json", patch).await?;
        }
        Ok(())
    }

    /// See [`UserAction::RepointVolume`].
    async fn repoint_volume(&self, from: &str, to: &str) -> Result<(), BoxError> {
        let read = async |path| api::get(&self.user_api, path).await.ok_or("the claim does not exist");
        let (from, to) = (read(from).await?, read(to).await?);
        let volume = text(&from, "/spec/volumeName");
        if volume.is_empty() {
            return Err("the claim has no volume".into());
        }
        let metadata = |field: &str| text(&to, &format!("/metadata/{field}")).to_owned();
        let claim = json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": metadata("namespace"),
            "name": metadata("name"), "uid": metadata("uid"), "resourceVersion": metadata("resourceVersion"),
        });
        let (path, merge) = (format!("/api/v1/persistentvolumes/{volume}"), "application/merge-patch+json");
        let patch = json!({"spec": {"claimRef": claim}});
        send_request(&self.user_api, Method::PATCH, &path, merge, &patch).await.map(drop)
    }

    /// The ConfigMaps of the intent journals.
    pub(crate) async fn journal_shards(&self) -> Vec<Value> {
        let maps = self.list("/api/v1/namespaces/default/configmaps").await;
        let is_shard = |map: &Value| text(map, "/metadata/name").starts_with("cofferdam-intents-");
        maps.into_iter().filter(is_shard).collect()
    }

    /// Confirms for every intent of the journals that the driver has no volume. `reason` returns the reason
    /// for the UID of a claim.
    async fn confirm_no_volume(&self, reason: impl Fn(&str) -> String) -> Result<(), BoxError> {
        for shard in self.journal_shards().await {
            let uids = shard.get("data").and_then(Value::as_object).into_iter().flatten();
            let annotations: serde_json::Map<String, Value> = uids
                .map(|(uid, _)| (names::confirm_no_volume(&uid.as_str().into()), reason(uid).into()))
                .collect();
            let path = format!("/api/v1/namespaces/default/configmaps/{}", text(&shard, "/metadata/name"));
            let patch = json!({"metadata": {"annotations": annotations}});
            let merge = "application/merge-patch+json";
            send_request(&self.user_api, Method::PATCH, &path, merge, &patch).await?;
        }
        Ok(())
    }

    /// Waits until all processes have seen the administrator's objects before the first other action. In real
    /// time watches of different kinds are not ordered, and administrators prepare a cluster before it is
    /// used.
    async fn wait_after_setup(&self, action: &UserAction) {
        if !self.is_real_time() {
            return;
        }
        if matches!(action, UserAction::Create(object) if objects::is_cluster_setup(object)) {
            self.has_new_setup.store(true, Ordering::SeqCst);
        } else if self.has_new_setup.swap(false, Ordering::SeqCst) {
            let caches_current = async {
                let mut interval = POLL_INTERVAL;
                while !self.is_every_cache_current().await {
                    tokio::time::sleep(interval).await;
                    interval = (interval * 2).min(MAX_CACHE_CHECK_INTERVAL);
                }
            };
            if tokio::time::timeout(SETTLE_TIMEOUT, caches_current).await.is_err() {
                self.report_violation(format!(
                    "the cache of a process does not have all setup objects after {SETTLE_TIMEOUT:?}"
                ));
            }
        }
    }

    /// Waits until all processes are idle.
    pub(crate) async fn settle(&self) {
        if self.is_real_time() {
            self.wait_for_quiet(QUIET_PERIOD, false, SETTLE_TIMEOUT).await;
        } else {
            tokio::time::sleep(SETTLE_TIME).await;
        }
    }

    /// Waits during a driver call until every process has seen the user's last change.
    pub(crate) async fn wait_for_watches(&self) {
        if self.is_real_time() {
            self.wait_for_quiet(QUIET_PERIOD_IN_CALL, true, SETTLE_TIMEOUT).await;
        } else {
            tokio::time::sleep(WATCH_DELAY).await;
        }
    }

    /// Waits for this time: in real time at most for [`MAX_REAL_TIME_WAIT`].
    pub(crate) async fn wait(&self, time: Duration) {
        tokio::time::sleep(if self.is_real_time() { time.min(MAX_REAL_TIME_WAIT) } else { time }).await;
    }

    /// Waits until `is_met` returns true. Reports a violation if it does not within [`SETTLE_TIMEOUT`] of
    /// real time, or [`SETTLE_TIME`] of paused time.
    pub(crate) async fn await_condition(&self, condition: &str, is_met: impl Fn() -> bool) {
        let limit = if self.is_real_time() { SETTLE_TIMEOUT } else { SETTLE_TIME };
        let polling = async {
            while !is_met() {
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        };
        if tokio::time::timeout(limit, polling).await.is_err() {
            self.report_violation(format!("{condition}: not met after {limit:?}"));
        }
    }

    /// Waits until `is_met` returns true, or until all processes are idle.
    pub(crate) async fn wait_until<F: Future<Output = bool>>(&self, is_met: impl Fn() -> F) {
        let polling = async {
            let mut interval = POLL_INTERVAL;
            while !is_met().await {
                tokio::time::sleep(interval).await;
                // An hour of paused time would need many polls.
                interval =
                    (interval * 2).min(if self.is_real_time() { POLL_INTERVAL } else { MAX_POLL_INTERVAL });
            }
        };
        tokio::select! {
            biased;
            () = polling => {}
            () = self.settle() => {}
        }
    }

    /// Waits until every cache is current and for the time `quiet` no request was sent to the API server or
    /// the driver. Reports a violation after `limit`.
    async fn wait_for_quiet(&self, quiet: Duration, in_call: bool, limit: Duration) {
        let started = Instant::now();
        let mut interval = POLL_INTERVAL;
        let mut last_activity = None;
        // Start of the silence, and number of polls since: on an overloaded machine elapsed time alone proves
        // nothing.
        let mut quiet_since: Option<(Instant, u32)> = None;
        while started.elapsed() < limit {
            let now = self.activity(in_call);
            if now.is_none() || now != last_activity {
                (last_activity, quiet_since, interval) = (now, None, POLL_INTERVAL);
            } else if quiet_since.is_none_or(|(quiet_since, polls)| {
                quiet_since.elapsed() >= quiet && POLL_INTERVAL * polls >= quiet / 2
            }) {
                // The caches were current before the silence and are at its end, so no process has anything
                // left to do.
                let caches_current =
                    self.is_every_cache_current().await && self.activity(in_call) == last_activity;
                if caches_current && quiet_since.is_some() {
                    return;
                }
                interval =
                    if caches_current { POLL_INTERVAL } else { (interval * 2).min(MAX_CACHE_CHECK_INTERVAL) };
                quiet_since = caches_current.then(|| (Instant::now(), 0));
            }
            tokio::time::sleep(interval).await;
            if let Some((_, polls)) = &mut quiet_since {
                *polls += 1;
            }
        }
        self.report_violation(format!("the processes are not idle after {limit:?}"));
    }

    /// Sum of [`Effects::activity`] over all processes. `None` if it is `None` for one of them.
    fn activity(&self, in_call: bool) -> Option<usize> {
        self.lock_processes().iter().map(|live| live.effects.activity(in_call)).sum()
    }

    /// Returns true if all processes are ready and their caches match the API server.
    async fn is_every_cache_current(&self) -> bool {
        let claims = self.list("/api/v1/persistentvolumeclaims").await;
        let volumes = self.list("/api/v1/persistentvolumes").await;
        let classes = self.list("/apis/storage.k8s.io/v1/storageclasses").await;
        let attachments = self.list(VOLUME_ATTACHMENTS_PATH).await;
        let csi_nodes = self.list("/apis/storage.k8s.io/v1/csinodes").await;
        let nodes = self.list(NODES_PATH).await;
        let csi_drivers = self.list("/apis/storage.k8s.io/v1/csidrivers").await;
        let pods = self.list("/api/v1/pods").await;
        let attributes_classes = self.list("/apis/storage.k8s.io/v1/volumeattributesclasses").await;
        let snapshots = self.list(VOLUME_SNAPSHOTS_PATH).await;
        let snapshot_contents = self.list(VOLUME_SNAPSHOT_CONTENTS_PATH).await;
        let snapshot_classes = self.list(VOLUME_SNAPSHOT_CLASSES_PATH).await;
        let live = self.lock_processes();
        live.iter().all(|live| {
            live.process.as_ref().is_some_and(|process| {
                let cache = process.cache();
                // The process of a node watches the objects of the node only, of some kinds.
                let of_node = |objects: &[Value], pointer: &str| -> Vec<Value> {
                    let is_watched =
                        |object: &&Value| live.node.is_none_or(|node| text(object, pointer) == node);
                    objects.iter().filter(is_watched).cloned().collect()
                };
                let visible = |objects: &[Value]| of_node(objects, "/metadata/name");
                *process.ready().borrow()
                    && is_cache_current::<Claim>(&cache, &claims)
                    && is_cache_current::<Volume>(&cache, &volumes)
                    && is_cache_current::<StorageClass>(&cache, &classes)
                    // Not every role watches these kinds.
                    && (!cache.attachments.is_synced()
                        || is_cache_current::<VolumeAttachment>(&cache, &attachments))
                    && (!cache.csi_nodes.is_synced()
                        || is_cache_current::<CsiNode>(&cache, &visible(&csi_nodes)))
                    && (!cache.csi_drivers.is_synced() || is_cache_current::<CsiDriver>(&cache, &csi_drivers))
                    && (!cache.pods.is_synced() || is_cache_current::<Pod>(&cache, &pods))
                    && (!cache.attributes_classes.is_synced()
                        || is_cache_current::<VolumeAttributesClass>(&cache, &attributes_classes))
                    && (!cache.snapshots.is_synced() || is_cache_current::<VolumeSnapshot>(&cache, &snapshots))
                    && (!cache.snapshot_contents.is_synced()
                        || is_cache_current::<VolumeSnapshotContent>(
                            &cache,
                            &of_node(&snapshot_contents, &managing_node_pointer()),
                        ))
                    && (!cache.snapshot_classes.is_synced()
                        || is_cache_current::<VolumeSnapshotClass>(&cache, &snapshot_classes))
                    && (!cache.nodes.is_synced() || is_cache_current::<Node>(&cache, &visible(&nodes)))
            })
        })
    }

    /// The objects of a collection. Reports a violation if there is no response. Empty without a violation if
    /// the response is an error, such as that of a kind that is not served.
    pub(crate) async fn list(&self, path: &str) -> Vec<Value> {
        match send_request(&self.user_api, Method::GET, path, "", &Value::Null).await {
            Ok((_, body)) => body.get("items").and_then(Value::as_array).cloned().unwrap_or_default(),
            Err(error) => {
                self.report_violation(format!("a user could not list {path}: {error}"));
                Vec::new()
            }
        }
    }
}

/// API paths of the kinds of snapshots.
pub(crate) const VOLUME_SNAPSHOTS_PATH: &str = "/apis/snapshot.storage.k8s.io/v1/volumesnapshots";
pub(crate) const VOLUME_SNAPSHOT_CONTENTS_PATH: &str =
    "/apis/snapshot.storage.k8s.io/v1/volumesnapshotcontents";
const VOLUME_SNAPSHOT_CLASSES_PATH: &str = "/apis/snapshot.storage.k8s.io/v1/volumesnapshotclasses";

/// JSON pointer of the label of a VolumeSnapshotContent that names a node.
pub(crate) fn managing_node_pointer() -> String {
    format!("/metadata/labels/{}", names::SNAPSHOT_MANAGED_BY.replace('/', "~1"))
}

/// Returns true if the cache contains exactly these objects of a kind, in the same versions. The version of
/// an object that cannot be decoded is not compared.
fn is_cache_current<K: CachedKind>(cache: &Cache, objects: &[Value]) -> bool {
    let store = K::store(cache);
    let mut keys = HashSet::new();
    let current = objects.iter().all(|object| {
        let key = K::key_from_parts(text(object, "/metadata/namespace"), text(object, "/metadata/name"));
        let current = match store.get(&key) {
            Lookup::Missing => false,
            Lookup::Undecodable(_) => true,
            Lookup::Found(known) => {
                known.resource_version().to_string() == text(object, "/metadata/resourceVersion")
            }
        };
        keys.insert(key);
        current
    });
    current && store.list().iter().all(|known| keys.contains(known.key()))
}
