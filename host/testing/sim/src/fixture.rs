//! The world around the processes: the cluster that they stand on, the user, and whether anything still
//! happens.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use cofferdam_cluster::{Cache, Lookup, writer::CachedKind};
use cofferdam_controllers::{ControllerManager, NodeDeployment};
use cofferdam_domain::{
    Claim, CsiDriver, CsiNode, Node, Pod, StorageClass, Volume, VolumeAttachment, VolumeAttributesClass,
};
use http::{Method, Request, StatusCode};
use http_body_util::BodyExt as _;
use kube::client::Body;
use serde_json::Value;
use tokio::time::Instant;
use tower::{BoxError, ServiceExt as _};

use crate::{
    effects::{ApiFault, Effects, FaultKind},
    invariants,
    objects::{self, collection_path},
    simulation::UserAction,
    test_cluster::{ApiTransport, EnvironmentKind, TestCluster},
};

/// On paused time: longer than every back-off of the roles together with the longest they remember anything.
/// What has not happened by then does not happen.
const SETTLE_TIME: Duration = Duration::from_secs(3600);
/// On paused time: long enough for every watch to tell.
const WATCH_DELAY: Duration = Duration::from_millis(10);
/// On real time: longer than every pause that a role makes there before it does something, see
/// [`World::longest_retry`].
const QUIET_PERIOD: Duration = Duration::from_millis(2_000);
/// On real time, while the driver is at work: long enough for a process that has been told to act on it.
/// Below what a role waits before it tells users that the driver takes its time.
const QUIET_PERIOD_IN_CALL: Duration = Duration::from_millis(400);
/// On real time: what has not become quiet by then does not.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Pause between two looks.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// The same on paused time, in the end.
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(10);
/// Longest pause before everybody's knowledge is looked at again: it takes nine lists.
const MAX_CACHE_CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// Where VolumeAttachments are.
pub(crate) const VOLUME_ATTACHMENTS_PATH: &str = "/apis/storage.k8s.io/v1/volumeattachments";

/// Where Nodes are.
pub(crate) const NODES_PATH: &str = "/api/v1/nodes";

/// A process that lives, or whose death nobody has seen yet.
struct LiveProcess {
    effects: Arc<Effects>,
    process: Option<Arc<ControllerManager>>,
    /// The only node that it looks at, where it looks at one.
    node: Option<&'static str>,
}

/// What all processes and the user share.
pub(crate) struct SimulationFixture {
    pub(crate) cluster: Arc<dyn TestCluster>,
    pub(crate) user_api: ApiTransport,
    processes: Mutex<Vec<LiveProcess>>,
    violations: Mutex<Vec<String>>,
    /// Attachments that processes have made, by volume.
    created_attachments: Mutex<HashMap<String, HashSet<String>>>,
    history: Mutex<invariants::History>,
    /// What goes wrong with writes, one each.
    api_faults: Mutex<Vec<ApiFault>>,
    /// Whether an administrator has made something since all processes knew everything.
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
            has_new_setup: AtomicBool::new(false),
        })
    }

    /// Whether time passes as on a clock on the wall.
    pub(crate) fn is_real_time(&self) -> bool {
        self.cluster.environment() != EnvironmentKind::InProcess
    }

    /// The longest pause of a role after a failure, where time is real: nobody waits five minutes for a test.
    pub(crate) fn max_retry_interval(&self) -> Option<Duration> {
        self.is_real_time().then_some(Duration::from_secs(1))
    }

    /// The race of nodes for claims, in a time for which somebody waits.
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

    /// Notes what must not be.
    pub(crate) fn report_violation(&self, violation: String) {
        self.violations.lock().unwrap_or_else(PoisonError::into_inner).push(violation);
    }

    pub(crate) fn violations(&self) -> Vec<String> {
        self.violations.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Takes note of an attachment of a volume that a process has made. Returns all that have been.
    pub(crate) fn record_attachment(&self, volume: &str, attachment: &str) -> HashSet<String> {
        let mut all = self.created_attachments.lock().unwrap_or_else(PoisonError::into_inner);
        let attachments = all.entry(volume.to_owned()).or_default();
        attachments.insert(attachment.to_owned());
        attachments.clone()
    }

    /// What the judge remembers.
    pub(crate) fn with_history<T>(&self, access: impl FnOnce(&mut invariants::History) -> T) -> T {
        access(&mut self.history.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Says what goes wrong with writes, one each.
    pub(crate) fn set_api_faults(&self, api_faults: Vec<ApiFault>) {
        *self.api_faults.lock().unwrap_or_else(PoisonError::into_inner) = api_faults;
    }

    /// What goes wrong with a write; returns the request, too.
    pub(crate) async fn take_api_fault(
        &self,
        request: Request<Body>,
    ) -> Result<(Request<Body>, Option<FaultKind>), BoxError> {
        if request.method() == Method::GET || self.unused_api_faults().is_empty() {
            return Ok((request, None));
        }
        let (parts, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        let text = String::from_utf8_lossy(&body);
        let fault = {
            let mut faults = self.api_faults.lock().unwrap_or_else(PoisonError::into_inner);
            let is_matching = |fault: &ApiFault| {
                fault.method == parts.method.as_str()
                    && parts.uri.path().starts_with(fault.path_prefix)
                    && text.contains(fault.body_contains)
            };
            let index = faults.iter().position(is_matching);
            index.map(|index| faults.remove(index).kind)
        };
        Ok((Request::from_parts(parts, Body::from(body.to_vec())), fault))
    }

    /// What has not gone wrong yet.
    pub(crate) fn unused_api_faults(&self) -> Vec<ApiFault> {
        self.api_faults.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn lock_processes(&self) -> MutexGuard<'_, Vec<LiveProcess>> {
        self.processes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a user does to objects, and an operator to the cluster.
    pub(crate) async fn perform(&self, action: &UserAction) {
        let json = "application/json";
        self.wait_after_setup(action).await;
        invariants::record_user_action(self, action).await;
        let result = match action {
            UserAction::Create(object) => {
                let answer =
                    send_request(&self.user_api, Method::POST, &collection_path(object), json, object).await;
                answer.and_then(|(status, body)| {
                    let message = text(&body, "/message");
                    status.is_success().then_some(()).ok_or_else(|| format!("{status}: {message}").into())
                })
            }
            // To be refused is what some rows are about.
            UserAction::Delete(path) => {
                send_request(&self.user_api, Method::DELETE, path, json, &Value::Null).await.map(drop)
            }
            UserAction::Patch(path, patch) => {
                let merge = "application/merge-patch+json";
                send_request(&self.user_api, Method::PATCH, path, merge, patch).await.map(drop)
            }
            UserAction::Backup => self.cluster.backup().await,
            UserAction::Restore => self.cluster.restore().await,
            UserAction::Compact => self.cluster.compact().await,
            UserAction::Settle | UserAction::Wait(_) | UserAction::Until(_) => Ok(()),
        };
        if let Err(error) = result {
            self.report_violation(format!("a user could not {action:?}: {error}"));
        }
    }

    /// Watches of two kinds have no order on real time, and administrators prepare a cluster before it is
    /// used: what they have made is known before the first action that is not theirs.
    async fn wait_after_setup(&self, action: &UserAction) {
        if !self.is_real_time() {
            return;
        }
        if matches!(action, UserAction::Create(object) if objects::is_cluster_setup(object)) {
            self.has_new_setup.store(true, Ordering::SeqCst);
        } else if self.has_new_setup.swap(false, Ordering::SeqCst) {
            let caches_current = async {
                let mut pause = POLL_INTERVAL;
                while !self.is_every_cache_current().await {
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(MAX_CACHE_CHECK_INTERVAL);
                }
            };
            if tokio::time::timeout(SETTLE_TIMEOUT, caches_current).await.is_err() {
                self.report_violation(format!(
                    "not every process knows after {SETTLE_TIMEOUT:?} what administrators have made"
                ));
            }
        }
    }

    /// Waits until nothing happens any more.
    pub(crate) async fn settle(&self) {
        if self.is_real_time() {
            self.wait_for_quiet(QUIET_PERIOD, false, SETTLE_TIMEOUT).await;
        } else {
            tokio::time::sleep(SETTLE_TIME).await;
        }
    }

    /// Waits, within a call of the driver, until every process has been told of what a user has just done.
    pub(crate) async fn wait_for_watches(&self) {
        if self.is_real_time() {
            self.wait_for_quiet(QUIET_PERIOD_IN_CALL, true, SETTLE_TIMEOUT).await;
        } else {
            tokio::time::sleep(WATCH_DELAY).await;
        }
    }

    /// Waits until `sign`, or until nothing happens any more without it.
    pub(crate) async fn wait_until<F: Future<Output = bool>>(&self, is_met: impl Fn() -> F) {
        let polling = async {
            let mut pause = POLL_INTERVAL;
            while !is_met().await {
                tokio::time::sleep(pause).await;
                // An hour of paused time is many looks.
                pause = (pause * 2).min(if self.is_real_time() { POLL_INTERVAL } else { MAX_POLL_INTERVAL });
            }
        };
        tokio::select! {
            biased;
            () = polling => {}
            () = self.settle() => {}
        }
    }

    /// Waits until every process knows what is in the API, and for so long nobody has asked the API or the
    /// driver anything.
    async fn wait_for_quiet(&self, quiet: Duration, in_call: bool, limit: Duration) {
        let started = Instant::now();
        let mut pause = POLL_INTERVAL;
        let mut last_activity = None;
        // Since when it is silent, and how many looks ago: on a machine that stands still, time alone is no
        // silence.
        let mut quiet_since: Option<(Instant, u32)> = None;
        while started.elapsed() < limit {
            let now = self.activity(in_call);
            if now.is_none() || now != last_activity {
                (last_activity, quiet_since, pause) = (now, None, POLL_INTERVAL);
            } else if quiet_since.is_none_or(|(quiet_since, looks)| {
                quiet_since.elapsed() >= quiet && POLL_INTERVAL * looks >= quiet / 2
            }) {
                // Told of everything before the silence, and not of anything new at its end: then nobody had
                // a reason to act.
                let caches_current =
                    self.is_every_cache_current().await && self.activity(in_call) == last_activity;
                if caches_current && quiet_since.is_some() {
                    return;
                }
                pause =
                    if caches_current { POLL_INTERVAL } else { (pause * 2).min(MAX_CACHE_CHECK_INTERVAL) };
                quiet_since = caches_current.then(|| (Instant::now(), 0));
            }
            tokio::time::sleep(pause).await;
            if let Some((_, looks)) = &mut quiet_since {
                *looks += 1;
            }
        }
        self.report_violation(format!("something still happens after {limit:?}"));
    }

    /// How much has happened; absent while something does.
    fn activity(&self, in_call: bool) -> Option<usize> {
        self.lock_processes().iter().map(|live| live.effects.activity(in_call)).sum()
    }

    /// Whether the caches of all processes show what the API has.
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
        let live = self.lock_processes();
        live.iter().all(|live| {
            live.process.as_ref().is_some_and(|process| {
                let cache = process.cache();
                let visible = |objects: &[Value]| -> Vec<Value> {
                    let is_watched =
                        |object: &&Value| live.node.is_none_or(|node| text(object, "/metadata/name") == node);
                    objects.iter().filter(is_watched).cloned().collect()
                };
                *process.ready().borrow()
                    && is_cache_current::<Claim>(&cache, &claims)
                    && is_cache_current::<Volume>(&cache, &volumes)
                    && is_cache_current::<StorageClass>(&cache, &classes)
                    // Not every role looks at these.
                    && (!cache.attachments.is_synced() || is_cache_current::<VolumeAttachment>(&cache, &attachments))
                    && (!cache.csi_nodes.is_synced() || is_cache_current::<CsiNode>(&cache, &visible(&csi_nodes)))
                    && (!cache.csi_drivers.is_synced() || is_cache_current::<CsiDriver>(&cache, &csi_drivers))
                    && (!cache.pods.is_synced() || is_cache_current::<Pod>(&cache, &pods))
                    && (!cache.attributes_classes.is_synced()
                        || is_cache_current::<VolumeAttributesClass>(&cache, &attributes_classes))
                    && (!cache.nodes.is_synced() || is_cache_current::<Node>(&cache, &visible(&nodes)))
            })
        })
    }

    /// The objects of a collection.
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

/// Whether the cache shows exactly these objects of a kind, each in this version.
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
    current && store.list().iter().all(|known| keys.contains(&known.key()))
}

pub(crate) fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// One request as a user makes it: the status and the body of the answer.
///
/// # Errors
/// When there is no answer.
pub(crate) async fn send_request(
    api: &ApiTransport,
    method: Method,
    path: &str,
    content_type: &str,
    body: &Value,
) -> Result<(StatusCode, Value), BoxError> {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(http::header::CONTENT_TYPE, content_type)
        .body(Body::from(body.into_bytes()))?;
    let response = api.clone().oneshot(request).await?;
    let status = response.status();
    let bytes = response.into_body().collect().await?.to_bytes();
    Ok((status, serde_json::from_slice(&bytes).unwrap_or(Value::Null)))
}
