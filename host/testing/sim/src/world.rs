//! The world around the processes: the cluster that they stand on, the user, and whether anything still happens.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use cofferdam_cluster::{Cache, Seen, writer::Cached};
use cofferdam_controllers::{NodeDeployment, Process};
use cofferdam_domain::{
    Attachment, AttributesClass, Claim, CsiDriver, CsiNode, Node, Pod, StorageClass, Volume,
};
use http::{Method, Request, StatusCode};
use http_body_util::BodyExt as _;
use kube::client::Body;
use serde_json::Value;
use tokio::time::Instant;
use tower::{BoxError, ServiceExt as _};

use crate::{
    effects::{ApiFault, Effects, Mishap},
    ground::{Api, Ground, Place},
    judge,
    objects::{self, collection},
    simulation::UserAction,
};

/// On paused time: longer than every back-off of the roles together with the longest they remember anything. What has not
/// happened by then does not happen.
const SETTLE: Duration = Duration::from_secs(3600);
/// On paused time: long enough for every watch to tell.
const TOLD: Duration = Duration::from_millis(10);
/// On real time: longer than every pause that a role makes there before it does something, see [`World::longest_retry`].
const QUIET: Duration = Duration::from_millis(2_000);
/// On real time, while the driver is at work: long enough for a process that has been told to act on it. Below what a role waits
/// before it tells users that the driver takes its time.
const QUIET_IN_CALL: Duration = Duration::from_millis(400);
/// On real time: what has not become quiet by then does not.
const LIMIT: Duration = Duration::from_secs(60);
/// Pause between two looks.
const LOOK: Duration = Duration::from_millis(10);
/// The same on paused time, in the end.
const LONGEST_LOOK: Duration = Duration::from_secs(10);
/// Longest pause before everybody's knowledge is looked at again: it takes nine lists.
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

/// Where VolumeAttachments are.
pub(crate) const ATTACHMENTS: &str = "/apis/storage.k8s.io/v1/volumeattachments";

/// Where Nodes are.
pub(crate) const NODES: &str = "/api/v1/nodes";

/// A process that lives, or whose death nobody has seen yet.
struct Live {
    effects: Arc<Effects>,
    process: Option<Arc<Process>>,
    /// The only node that it looks at, where it looks at one.
    node: Option<&'static str>,
}

/// What all processes and the user share.
pub(crate) struct World {
    pub(crate) ground: Arc<dyn Ground>,
    pub(crate) user: Api,
    live: Mutex<Vec<Live>>,
    faults: Mutex<Vec<String>>,
    /// Attachments that processes have made, by volume.
    made: Mutex<HashMap<String, HashSet<String>>>,
    memory: Mutex<judge::Memory>,
    /// What goes wrong with writes, one each.
    mishaps: Mutex<Vec<ApiFault>>,
    /// Whether an administrator has made something since all processes knew everything.
    prepared: AtomicBool,
}

impl World {
    pub(crate) fn new(ground: Arc<dyn Ground>, user: Api) -> Arc<Self> {
        Arc::new(Self {
            ground,
            user,
            live: Mutex::default(),
            faults: Mutex::default(),
            made: Mutex::default(),
            memory: Mutex::default(),
            mishaps: Mutex::default(),
            prepared: AtomicBool::new(false),
        })
    }

    /// Whether time passes as on a clock on the wall.
    pub(crate) fn is_real(&self) -> bool {
        self.ground.place() != Place::InProcess
    }

    /// The longest pause of a role after a failure, where time is real: nobody waits five minutes for a test.
    pub(crate) fn longest_retry(&self) -> Option<Duration> {
        self.is_real().then_some(Duration::from_secs(1))
    }

    /// The race of nodes for claims, in a time for which somebody waits.
    pub(crate) fn hurried(&self, deployment: NodeDeployment) -> NodeDeployment {
        match self.is_real() {
            false => deployment,
            true => NodeDeployment {
                base_delay: Duration::from_millis(200),
                max_delay: Duration::from_millis(400),
                ..deployment
            },
        }
    }

    pub(crate) fn born(
        &self,
        effects: &Arc<Effects>,
        process: Option<&Arc<Process>>,
        node: Option<&'static str>,
    ) {
        self.live().push(Live { effects: Arc::clone(effects), process: process.cloned(), node });
    }

    pub(crate) fn bury(&self, effects: &Arc<Effects>) {
        self.live().retain(|live| !Arc::ptr_eq(&live.effects, effects));
    }

    /// Notes what must not be.
    pub(crate) fn fault(&self, fault: String) {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner).push(fault);
    }

    pub(crate) fn faults(&self) -> Vec<String> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Takes note of an attachment of a volume that a process has made. Returns all that have been.
    pub(crate) fn made(&self, volume: &str, attachment: &str) -> HashSet<String> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let of = made.entry(volume.to_owned()).or_default();
        of.insert(attachment.to_owned());
        of.clone()
    }

    /// What the judge remembers.
    pub(crate) fn memory<T>(&self, look: impl FnOnce(&mut judge::Memory) -> T) -> T {
        look(&mut self.memory.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Says what goes wrong with writes, one each.
    pub(crate) fn misfortune(&self, faults: Vec<ApiFault>) {
        *self.mishaps.lock().unwrap_or_else(PoisonError::into_inner) = faults;
    }

    /// What goes wrong with a write; returns the request, too.
    pub(crate) async fn mishap(
        &self,
        request: Request<Body>,
    ) -> Result<(Request<Body>, Option<Mishap>), BoxError> {
        if request.method() == Method::GET || self.mishaps_left().is_empty() {
            return Ok((request, None));
        }
        let (head, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        let text = String::from_utf8_lossy(&body);
        let mishap = {
            let mut faults = self.mishaps.lock().unwrap_or_else(PoisonError::into_inner);
            let is_it = |fault: &ApiFault| {
                fault.method == head.method.as_str()
                    && head.uri.path().starts_with(fault.path)
                    && text.contains(fault.saying)
            };
            let at = faults.iter().position(is_it);
            at.map(|at| faults.remove(at).how)
        };
        Ok((Request::from_parts(head, Body::from(body.to_vec())), mishap))
    }

    /// What has not gone wrong yet.
    pub(crate) fn mishaps_left(&self) -> Vec<ApiFault> {
        self.mishaps.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn live(&self) -> MutexGuard<'_, Vec<Live>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a user does to objects, and an operator to the cluster.
    pub(crate) async fn act(&self, action: &UserAction) {
        let json = "application/json";
        self.after_preparation(action).await;
        judge::user(self, action).await;
        let done = match action {
            UserAction::Create(object) => {
                let answer = call(&self.user, Method::POST, &collection(object), json, object).await;
                answer.and_then(|(status, body)| {
                    let message = text(&body, "/message");
                    status.is_success().then_some(()).ok_or_else(|| format!("{status}: {message}").into())
                })
            }
            // To be refused is what some rows are about.
            UserAction::Delete(path) => {
                call(&self.user, Method::DELETE, path, json, &Value::Null).await.map(drop)
            }
            UserAction::Patch(path, patch) => {
                let merge = "application/merge-patch+json";
                call(&self.user, Method::PATCH, path, merge, patch).await.map(drop)
            }
            UserAction::Backup => self.ground.backup().await,
            UserAction::Restore => self.ground.restore().await,
            UserAction::Compact => self.ground.compact().await,
            UserAction::Settle | UserAction::Wait(_) | UserAction::Until(_) => Ok(()),
        };
        if let Err(error) = done {
            self.fault(format!("a user could not {action:?}: {error}"));
        }
    }

    /// Watches of two kinds have no order on real time, and administrators prepare a cluster before it is used: what they have made is
    /// known before the first action that is not theirs.
    async fn after_preparation(&self, action: &UserAction) {
        if !self.is_real() {
            return;
        }
        if matches!(action, UserAction::Create(object) if objects::is_administrators(object)) {
            self.prepared.store(true, Ordering::SeqCst);
        } else if self.prepared.swap(false, Ordering::SeqCst) {
            let known = async {
                let mut pause = LOOK;
                while !self.everybody_knows().await {
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
            };
            if tokio::time::timeout(LIMIT, known).await.is_err() {
                self.fault(format!("not every process knows after {LIMIT:?} what administrators have made"));
            }
        }
    }

    /// Waits until nothing happens any more.
    pub(crate) async fn settle(&self) {
        if self.is_real() {
            self.quiet(QUIET, false, LIMIT).await;
        } else {
            tokio::time::sleep(SETTLE).await;
        }
    }

    /// Waits, within a call of the driver, until every process has been told of what a user has just done.
    pub(crate) async fn told(&self) {
        if self.is_real() {
            self.quiet(QUIET_IN_CALL, true, LIMIT).await;
        } else {
            tokio::time::sleep(TOLD).await;
        }
    }

    /// Waits until `sign`, or until nothing happens any more without it.
    pub(crate) async fn until<F: Future<Output = bool>>(&self, sign: impl Fn() -> F) {
        let looks = async {
            let mut pause = LOOK;
            while !sign().await {
                tokio::time::sleep(pause).await;
                // An hour of paused time is many looks.
                pause = (pause * 2).min(if self.is_real() { LOOK } else { LONGEST_LOOK });
            }
        };
        tokio::select! {
            biased;
            () = looks => {}
            () = self.settle() => {}
        }
    }

    /// Waits until every process knows what is in the API, and for so long nobody has asked the API or the driver anything.
    async fn quiet(&self, quiet: Duration, in_call: bool, limit: Duration) {
        let started = Instant::now();
        let mut pause = LOOK;
        let mut last = None;
        // Since when it is silent, and how many looks ago: on a machine that stands still, time alone is no silence.
        let mut since: Option<(Instant, u32)> = None;
        while started.elapsed() < limit {
            let now = self.activity(in_call);
            if now.is_none() || now != last {
                (last, since, pause) = (now, None, LOOK);
            } else if since.is_none_or(|(since, looks)| since.elapsed() >= quiet && LOOK * looks >= quiet / 2)
            {
                // Told of everything before the silence, and not of anything new at its end: then nobody had a reason to act.
                let known = self.everybody_knows().await && self.activity(in_call) == last;
                if known && since.is_some() {
                    return;
                }
                pause = if known { LOOK } else { (pause * 2).min(LONGEST_PAUSE) };
                since = known.then(|| (Instant::now(), 0));
            }
            tokio::time::sleep(pause).await;
            if let Some((_, looks)) = &mut since {
                *looks += 1;
            }
        }
        self.fault(format!("something still happens after {limit:?}"));
    }

    /// How much has happened; absent while something does.
    fn activity(&self, in_call: bool) -> Option<usize> {
        self.live().iter().map(|live| live.effects.activity(in_call)).sum()
    }

    /// Whether the caches of all processes show what the API has.
    async fn everybody_knows(&self) -> bool {
        let claims = self.list("/api/v1/persistentvolumeclaims").await;
        let volumes = self.list("/api/v1/persistentvolumes").await;
        let classes = self.list("/apis/storage.k8s.io/v1/storageclasses").await;
        let attachments = self.list(ATTACHMENTS).await;
        let csi_nodes = self.list("/apis/storage.k8s.io/v1/csinodes").await;
        let nodes = self.list(NODES).await;
        let csi_drivers = self.list("/apis/storage.k8s.io/v1/csidrivers").await;
        let pods = self.list("/api/v1/pods").await;
        let attributes_classes = self.list("/apis/storage.k8s.io/v1/volumeattributesclasses").await;
        let live = self.live();
        live.iter().all(|live| {
            live.process.as_ref().is_some_and(|process| {
                let cache = process.cache();
                let its_own = |objects: &[Value]| -> Vec<Value> {
                    let sees =
                        |object: &&Value| live.node.is_none_or(|node| text(object, "/metadata/name") == node);
                    objects.iter().filter(sees).cloned().collect()
                };
                *process.ready().borrow()
                    && knows::<Claim>(&cache, &claims)
                    && knows::<Volume>(&cache, &volumes)
                    && knows::<StorageClass>(&cache, &classes)
                    // Not every role looks at these.
                    && (!cache.attachments.is_synced() || knows::<Attachment>(&cache, &attachments))
                    && (!cache.csi_nodes.is_synced() || knows::<CsiNode>(&cache, &its_own(&csi_nodes)))
                    && (!cache.csi_drivers.is_synced() || knows::<CsiDriver>(&cache, &csi_drivers))
                    && (!cache.pods.is_synced() || knows::<Pod>(&cache, &pods))
                    && (!cache.attributes_classes.is_synced()
                        || knows::<AttributesClass>(&cache, &attributes_classes))
                    && (!cache.nodes.is_synced() || knows::<Node>(&cache, &its_own(&nodes)))
            })
        })
    }

    /// The objects of a collection.
    pub(crate) async fn list(&self, path: &str) -> Vec<Value> {
        match call(&self.user, Method::GET, path, "", &Value::Null).await {
            Ok((_, body)) => body.get("items").and_then(Value::as_array).cloned().unwrap_or_default(),
            Err(error) => {
                self.fault(format!("a user could not list {path}: {error}"));
                Vec::new()
            }
        }
    }
}

/// Whether the cache shows exactly these objects of a kind, each in this version.
fn knows<K: Cached>(cache: &Cache, objects: &[Value]) -> bool {
    let table = K::table(cache);
    let mut there = HashSet::new();
    let current = objects.iter().all(|object| {
        let key = K::key_of(text(object, "/metadata/namespace"), text(object, "/metadata/name"));
        let current = match table.get(&key) {
            Seen::Absent => false,
            Seen::Opaque(_) => true,
            Seen::Known(known) => known.version().to_string() == text(object, "/metadata/resourceVersion"),
        };
        there.insert(key);
        current
    });
    current && table.list().iter().all(|known| there.contains(&known.key()))
}

pub(crate) fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// One request as a user makes it: the status and the body of the answer.
///
/// # Errors
/// When there is no answer.
pub(crate) async fn call(
    api: &Api,
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
