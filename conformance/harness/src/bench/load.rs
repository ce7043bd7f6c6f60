//! The claim load, which is the same for every configuration, and what all loads use: concurrent clients,
//! observers of objects, and the latencies that the clients observe.

use std::{
    collections::HashMap,
    convert::Infallible,
    mem,
    ops::Range,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use http::Request;
use kube::{Client, core::WatchEvent};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{
    sync::{Notify, oneshot},
    task::JoinHandle,
};

/// Concurrent clients of every load except the pod load and the sequential load.
pub(super) const CONCURRENT_USERS: usize = 50;
/// Maximum wait for the results of a load. Sufficient on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(300);

pub(super) const VOLUMES_PATH: &str = "/api/v1/persistentvolumes";
/// Size of expanded claims.
pub(super) const EXPANDED_SIZE: &str = "2Gi";

/// Duration of a load, and the latency of each object. The result of an object is the observation of the
/// state that the load waits for. If no controller runs, clients make all writes, and the response to the
/// last write of an object is its result.
#[derive(Clone, Debug)]
pub(super) struct LoadTiming {
    /// Time from the start of the load to the last result. Zero for calls of NodePublishVolume, of which only
    /// latencies are known.
    pub(super) elapsed: Duration,
    /// In ascending order, one per object: the time from its first request to its result.
    pub(super) latencies: Vec<Duration>,
}

impl LoadTiming {
    pub(super) fn new(elapsed: Duration, mut latencies: Vec<Duration>) -> Self {
        latencies.sort_unstable();
        Self { elapsed, latencies }
    }

    /// Timing of a load from its start, the time of the first request of each object, and the observations.
    /// The keys of both maps are the names that the observer records.
    ///
    /// # Errors
    /// If an object was not observed.
    pub(super) fn from_observations(
        started: Instant,
        sent: &HashMap<String, Instant>,
        observed: &HashMap<String, ObservedObject>,
    ) -> Result<Self> {
        let mut latencies = Vec::new();
        let mut last = started;
        for (name, sent) in sent {
            let observed = observed.get(name).with_context(|| format!("nothing was seen of {name}"))?.at;
            latencies.push(observed.saturating_duration_since(*sent));
            last = last.max(observed);
        }
        Ok(Self::new(last.saturating_duration_since(started), latencies))
    }

    /// The latency at a percentile, or zero if there are no latencies.
    pub(super) fn quantile(&self, percent: usize) -> Duration {
        let index = (self.latencies.len() * percent).div_ceil(100).saturating_sub(1);
        self.latencies.get(index).copied().unwrap_or_default()
    }
}

/// Claims of one class in one namespace, which a benchmark binds, expands and deletes.
pub(super) struct ClaimLoad {
    client: Client,
    namespace: String,
    class: String,
    volume_mode: &'static str,
}

/// The observed fields of a claim, volume, VolumeAttachment, VolumeSnapshot, node or pod.
#[derive(Clone, Debug, Deserialize)]
struct WatchedObject {
    metadata: Metadata,
    #[serde(default)]
    spec: Spec,
    #[serde(default)]
    status: Status,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    name: String,
    resource_version: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    volume_name: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    phase: String,
    attached: bool,
    ready_to_use: bool,
    capacity: CapacityStatus,
    volumes_attached: Vec<AttachedVolumeStatus>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct CapacityStatus {
    storage: String,
}

#[derive(Clone, Debug, Deserialize)]
struct AttachedVolumeStatus {
    name: String,
}

#[derive(Deserialize)]
struct List {
    metadata: ListMeta,
    items: Vec<WatchedObject>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ListMeta {
    resource_version: String,
}

/// Time at which an observer saw the object in the expected state, and `spec.volumeName` of the object; empty
/// if the object has none.
#[derive(Clone, Debug)]
pub(super) struct ObservedObject {
    at: Instant,
    volume: String,
}

/// State of an object that an observer waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ObjectState {
    /// A claim, volume or pod with this `status.phase`.
    Phase(&'static str),
    /// A VolumeAttachment with `status.attached: true`.
    Attached,
    /// A VolumeSnapshot with `status.readyToUse: true`.
    ReadyToUse,
    /// A claim with this capacity in its status.
    Capacity(&'static str),
    /// A node with attached volumes. The observer records the volumes, by their unique names.
    InVolumesAttached,
    /// An object that the API server has removed.
    Deleted,
}

/// A watch that records when each object first reaches a state.
pub(super) struct ObjectObserver {
    task: JoinHandle<Result<Infallible>>,
    observed: Arc<Mutex<HashMap<String, ObservedObject>>>,
    changed: Arc<Notify>,
}

impl ObjectObserver {
    /// Lists the objects, records those that are in the state, and watches for others. Returns when the watch
    /// is open.
    ///
    /// # Errors
    /// If the list or the watch fails.
    pub(super) async fn start(client: &Client, path: &str, state: ObjectState) -> Result<Self> {
        let list: List = client.request(Request::get(path).body(Vec::new())?).await?;
        let observed = Arc::new(Mutex::new(HashMap::new()));
        let version = list.metadata.resource_version;
        for object in list.items {
            record(&observed, object, state, false);
        }
        let changed = Arc::new(Notify::new());
        let (client, path) = (client.clone(), path.to_owned());
        let (notes, notify) = (Arc::clone(&observed), Arc::clone(&changed));
        let (opened, open) = oneshot::channel();
        let task = tokio::spawn(async move {
            let (mut version, mut opened) = (version, Some(opened));
            // The API server may end a watch at any time: the next one continues from its version.
            loop {
                let watch = format!("{path}?watch=true&timeoutSeconds=3600&resourceVersion={version}");
                let events =
                    client.request_events::<WatchedObject>(Request::get(watch).body(Vec::new())?).await?;
                // Reports that the first watch is open; later ones are not awaited.
                let _ = opened.take().map(|opened| opened.send(()));
                let mut events = std::pin::pin!(events);
                while let Some(event) = events.next().await {
                    let (object, is_deleted) = match event? {
                        WatchEvent::Added(object) | WatchEvent::Modified(object) => (object, false),
                        WatchEvent::Deleted(object) => (object, true),
                        WatchEvent::Bookmark(_) => continue,
                        WatchEvent::Error(status) => bail!("the watch ended: {status:?}"),
                    };
                    version.clone_from(&object.metadata.resource_version);
                    if record(&notes, object, state, is_deleted) {
                        notify.notify_one();
                    }
                }
            }
        });
        if open.await.is_err() {
            match task.await?? {}
        }
        Ok(Self { task, observed, changed })
    }

    /// The time at which the observer first saw an object in the state; `None` before that. For
    /// [`ObjectState::InVolumesAttached`], `name` is the unique name of a volume.
    pub(super) fn observed_at(&self, name: &str) -> Option<Instant> {
        self.observed.lock().get(name).map(|observed| observed.at)
    }

    /// Waits until a number of objects reached the state, and takes the observations.
    ///
    /// # Errors
    /// If fewer reach it in time, or the watch fails.
    pub(super) async fn wait_for_count(mut self, count: usize) -> Result<HashMap<String, ObservedObject>> {
        self.wait_until_count(count).await?;
        Ok(self.take_observed())
    }

    /// Waits until each of these objects reached the state, and takes all observations.
    ///
    /// # Errors
    /// If one does not reach it in time, or the watch fails.
    pub(super) async fn wait_for_each(
        mut self,
        expected: &HashMap<String, Instant>,
    ) -> Result<HashMap<String, ObservedObject>> {
        self.wait_until_matching(expected.len(), |observed| {
            expected.keys().filter(|name| observed.contains_key(*name)).count()
        })
        .await?;
        Ok(self.take_observed())
    }

    /// Sends a request for each object, one after the other: each after the previous object reached the state.
    ///
    /// # Errors
    /// That of a request, or if an object does not reach the state in time, or another one does.
    pub(super) async fn measure_sequentially(
        &mut self,
        names: &[String],
        request: impl AsyncFn(usize) -> Result<()>,
    ) -> Result<LoadTiming> {
        let started = Instant::now();
        let mut latencies = Vec::new();
        for (number, name) in names.iter().enumerate() {
            let sent = Instant::now();
            request(number).await?;
            self.wait_until_count(number + 1).await?;
            let observed = self.observed_at(name);
            let observed = observed.with_context(|| format!("expected {name}, another object was seen"))?;
            latencies.push(observed.saturating_duration_since(sent));
        }
        Ok(LoadTiming::new(started.elapsed(), latencies))
    }

    /// `spec.volumeName` of these claims.
    fn volumes_of(&self, claims: &[String]) -> Result<Vec<String>> {
        let observed = self.observed.lock();
        let volume = |claim: &String| {
            let observed = observed.get(claim).with_context(|| format!("{claim} was not seen"))?;
            ensure!(!observed.volume.is_empty(), "{claim} is Bound to nothing");
            Ok(observed.volume.clone())
        };
        claims.iter().map(volume).collect()
    }

    fn take_observed(&self) -> HashMap<String, ObservedObject> {
        mem::take(&mut *self.observed.lock())
    }

    /// Waits until a number of objects reached the state.
    async fn wait_until_count(&mut self, count: usize) -> Result<()> {
        self.wait_until_matching(count, HashMap::len).await
    }

    /// Waits until `matching` returns at least `count` for the observations.
    async fn wait_until_matching(
        &mut self,
        count: usize,
        matching: impl Fn(&HashMap<String, ObservedObject>) -> usize,
    ) -> Result<()> {
        let number = || matching(&self.observed.lock());
        let all = async {
            while number() < count {
                self.changed.notified().await;
            }
        };
        tokio::select! {
            () = all => {}
            ended = &mut self.task => match ended?? {},
            () = tokio::time::sleep(TIMEOUT) => bail!("{} of {count} were seen within {TIMEOUT:?}", number()),
        }
        Ok(())
    }
}

impl Drop for ObjectObserver {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Records an object that has reached the state. Returns `true` if its name, or one of its attached volumes,
/// is new.
fn record(
    observed: &Mutex<HashMap<String, ObservedObject>>,
    object: WatchedObject,
    state: ObjectState,
    is_deleted: bool,
) -> bool {
    let matches = match state {
        ObjectState::Phase(phase) => !is_deleted && object.status.phase == phase,
        ObjectState::Attached => !is_deleted && object.status.attached,
        ObjectState::ReadyToUse => !is_deleted && object.status.ready_to_use,
        ObjectState::Capacity(size) => !is_deleted && object.status.capacity.storage == size,
        ObjectState::InVolumesAttached => !is_deleted,
        ObjectState::Deleted => is_deleted,
    };
    if !matches {
        return false;
    }
    let names = if state == ObjectState::InVolumesAttached {
        object.status.volumes_attached.into_iter().map(|volume| volume.name).collect()
    } else {
        vec![object.metadata.name]
    };
    let (mut observed, at) = (observed.lock(), Instant::now());
    let before = observed.len();
    for name in names {
        observed
            .entry(name)
            .or_insert_with(|| ObservedObject { at, volume: object.spec.volume_name.clone() });
    }
    observed.len() > before
}

impl ClaimLoad {
    /// Creates the namespace, and a StorageClass of the same name if there is a driver. Without a driver, the
    /// claims name a StorageClass that does not exist, and the clients create the volumes.
    ///
    /// # Errors
    /// If the API server rejects the namespace or the StorageClass.
    pub(super) async fn new(client: &Client, name: &str, driver: Option<&str>) -> Result<Self> {
        send(client, "POST", "/api/v1/namespaces", &json!({ "metadata": { "name": name } })).await?;
        if let Some(driver) = driver {
            let class = json!({
                "metadata": { "name": name },
                "provisioner": driver,
                "reclaimPolicy": "Delete",
                "volumeBindingMode": "Immediate",
                "allowVolumeExpansion": true,
            });
            send(client, "POST", "/apis/storage.k8s.io/v1/storageclasses", &class).await?;
        }
        let (client, namespace, class) = (client.clone(), name.to_owned(), name.to_owned());
        Ok(Self { client, namespace, class, volume_mode: "Filesystem" })
    }

    /// The same load with claims for block volumes, whose expansion does not involve a node.
    pub(super) fn with_block_mode(self) -> Self {
        Self { volume_mode: "Block", ..self }
    }

    /// The same load with another client.
    pub(super) fn with_client(self, client: Client) -> Self {
        Self { client, ..self }
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    pub(super) const fn volume_mode(&self) -> &str {
        self.volume_mode
    }

    pub(super) fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Path of the load's claims in the API.
    pub(super) fn claims_path(&self) -> String {
        format!("/api/v1/namespaces/{}/persistentvolumeclaims", self.namespace)
    }

    pub(super) fn claim_object(&self, number: usize) -> Value {
        json!({
            "metadata": { "name": format!("claim-{number}") },
            "spec": {
                "storageClassName": self.class,
                "accessModes": ["ReadWriteOnce"],
                "volumeMode": self.volume_mode,
                "resources": { "requests": { "storage": "1Gi" } },
            },
        })
    }

    /// The patch that requests an expansion.
    pub(super) fn expansion_patch() -> Value {
        json!({ "spec": { "resources": { "requests": { "storage": EXPANDED_SIZE } } } })
    }

    /// Creates claims one after the other: each claim after the previous claim is Bound. Also returns the names of
    /// the volumes.
    ///
    /// # Errors
    /// If the API server rejects a claim, or a claim does not become Bound in time.
    pub(super) async fn bind_sequentially(&self, count: usize) -> Result<(LoadTiming, Vec<String>)> {
        let (path, names) = (self.claims_path(), claim_names(count));
        let mut observer = ObjectObserver::start(&self.client, &path, ObjectState::Phase("Bound")).await?;
        let timing = observer
            .measure_sequentially(&names, async |number| {
                send(&self.client, "POST", &path, &self.claim_object(number)).await
            })
            .await?;
        Ok((timing, observer.volumes_of(&names)?))
    }

    /// Expands claims one after the other, as [`expand_all`](Self::expand_all) does concurrently.
    ///
    /// # Errors
    /// As [`expand_all`](Self::expand_all).
    pub(super) async fn expand_sequentially(&self, count: usize) -> Result<LoadTiming> {
        let path = self.claims_path();
        let state = ObjectState::Capacity(EXPANDED_SIZE);
        let mut observer = ObjectObserver::start(&self.client, &path, state).await?;
        let names = claim_names(count);
        observer
            .measure_sequentially(&names, async |number| {
                let claim = names.get(number).context("no claim")?;
                send(&self.client, "PATCH", &format!("{path}/{claim}"), &Self::expansion_patch()).await
            })
            .await
    }

    /// Deletes claims one after the other, as [`delete_all`](Self::delete_all) does concurrently.
    ///
    /// # Errors
    /// As [`delete_all`](Self::delete_all).
    pub(super) async fn delete_sequentially(&self, volumes: &[String]) -> Result<LoadTiming> {
        let path = self.claims_path();
        let mut observer = ObjectObserver::start(&self.client, VOLUMES_PATH, ObjectState::Deleted).await?;
        observer
            .measure_sequentially(volumes, async |number| {
                send(&self.client, "DELETE", &format!("{path}/claim-{number}"), &Value::Null).await
            })
            .await
    }

    /// Creates all claims concurrently, and waits until the last one is Bound. Also returns the names of the
    /// volumes.
    ///
    /// # Errors
    /// If the API server rejects a claim, or a claim does not become Bound in time.
    pub(super) async fn bind_all(&self, count: usize) -> Result<(LoadTiming, Vec<String>)> {
        let mut observer =
            ObjectObserver::start(&self.client, &self.claims_path(), ObjectState::Phase("Bound")).await?;
        let started = Instant::now();
        let (claims, path) = (|number| self.claim_object(number), self.claims_path());
        let sent: HashMap<String, Instant> = for_each_user(count, async |number| {
            let sent_at = Instant::now();
            send(&self.client, "POST", &path, &claims(number)).await?;
            Ok((format!("claim-{number}"), sent_at))
        })
        .await?
        .into_iter()
        .collect();
        observer.wait_until_count(count).await?;
        let volumes = observer.volumes_of(&claim_names(count))?;
        Ok((LoadTiming::from_observations(started, &sent, &observer.take_observed())?, volumes))
    }

    /// Deletes all claims concurrently, and waits until the last volume is removed.
    ///
    /// # Errors
    /// If the API server rejects a deletion, or a volume is not removed in time.
    pub(super) async fn delete_all(&self, volumes: &[String]) -> Result<LoadTiming> {
        let observer = ObjectObserver::start(&self.client, VOLUMES_PATH, ObjectState::Deleted).await?;
        let started = Instant::now();
        let (path, volumes) = (self.claims_path(), volumes.to_vec());
        let sent: HashMap<String, Instant> = for_each_user(volumes.len(), async |number| {
            let sent_at = Instant::now();
            send(&self.client, "DELETE", &format!("{path}/claim-{number}"), &Value::Null).await?;
            Ok((volumes.get(number).context("no volume")?.clone(), sent_at))
        })
        .await?
        .into_iter()
        .collect();
        let observed = observer.wait_for_count(volumes.len()).await?;
        LoadTiming::from_observations(started, &sent, &observed)
    }

    /// Expands all claims concurrently, and waits until the last one reports its new capacity.
    ///
    /// # Errors
    /// If the API server rejects a patch, or a claim does not report the new capacity in time.
    pub(super) async fn expand_all(&self, count: usize) -> Result<LoadTiming> {
        let observer =
            ObjectObserver::start(&self.client, &self.claims_path(), ObjectState::Capacity(EXPANDED_SIZE))
                .await?;
        let (started, path) = (Instant::now(), self.claims_path());
        let sent: HashMap<String, Instant> = for_each_user(count, async |number| {
            let (name, sent_at) = (format!("claim-{number}"), Instant::now());
            send(&self.client, "PATCH", &format!("{path}/{name}"), &Self::expansion_patch()).await?;
            Ok((name, sent_at))
        })
        .await?
        .into_iter()
        .collect();
        let observed = observer.wait_for_count(count).await?;
        LoadTiming::from_observations(started, &sent, &observed)
    }

    /// Creates `count` PersistentVolumes, to which the claims of the load can be bound.
    ///
    /// # Errors
    /// If the API server rejects a volume.
    pub(super) async fn create_volumes(&self, count: usize) -> Result<()> {
        for_each_user(count, async |number| {
            let volume = json!({
                "metadata": { "name": format!("{}-{number}", self.namespace) },
                "spec": {
                    "storageClassName": self.class,
                    "accessModes": ["ReadWriteOnce"],
                    "capacity": { "storage": "1Gi" },
                    "volumeMode": self.volume_mode,
                    "persistentVolumeReclaimPolicy": "Retain",
                    "csi": { "driver": "made.conformance.cofferdam.dev", "volumeHandle": number.to_string() },
                },
            });
            send(&self.client, "POST", VOLUMES_PATH, &volume).await
        })
        .await
        .map(drop)
    }

    /// Waits until at least this number of PersistentVolumes of the cluster is Available.
    ///
    /// # Errors
    /// If they are not within the time limit.
    pub(super) async fn wait_for_available(&self, count: usize) -> Result<()> {
        ObjectObserver::start(&self.client, VOLUMES_PATH, ObjectState::Phase("Available"))
            .await?
            .wait_for_count(count)
            .await
            .map(drop)
    }
}

/// Names of the claims of a load.
fn claim_names(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("claim-{number}")).collect()
}

/// Runs a task for each number below `count`, at most [`CONCURRENT_USERS`] at a time. The results have no
/// order.
///
/// # Errors
/// The first error.
pub(super) async fn for_each_user<T>(count: usize, work: impl AsyncFn(usize) -> Result<T>) -> Result<Vec<T>> {
    for_each_user_in(0..count, work).await
}

/// As [`for_each_user`], for each number of a range.
///
/// # Errors
/// The first error.
pub(super) async fn for_each_user_in<T>(
    numbers: Range<usize>,
    work: impl AsyncFn(usize) -> Result<T>,
) -> Result<Vec<T>> {
    let work = &work;
    stream::iter(numbers)
        .map(|number| async move { work(number).await })
        .buffer_unordered(CONCURRENT_USERS)
        .try_collect()
        .await
}

/// Sends a write; a PATCH is a merge patch. The response body is read and ignored.
///
/// # Errors
/// If the API server rejects it.
pub(super) async fn send(client: &Client, method: &str, path: &str, body: &Value) -> Result<()> {
    let content = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
    let bytes = if body.is_null() { Vec::new() } else { serde_json::to_vec(body)? };
    let request = Request::builder().method(method).uri(path).header("content-type", content).body(bytes)?;
    client.request_text(request).await.with_context(|| format!("{method} {path}"))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_of_the_sorted_times() {
        let milliseconds = (1..=200).rev().map(Duration::from_millis).collect();
        let timing = LoadTiming::new(Duration::ZERO, milliseconds);
        assert_eq!(timing.quantile(50), Duration::from_millis(100));
        assert_eq!(timing.quantile(99), Duration::from_millis(198));
        assert_eq!(LoadTiming::new(Duration::ZERO, Vec::new()).quantile(99), Duration::ZERO);
    }
}
