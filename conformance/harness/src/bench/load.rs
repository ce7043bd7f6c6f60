//! The load: the same for whoever answers it, and what its users see of the answers.

use std::{
    collections::HashMap,
    convert::Infallible,
    mem,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use http::Request;
use kube::{Client, core::WatchEvent};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{
    sync::{Notify, oneshot},
    task::JoinHandle,
};

/// How many users there are.
pub(super) const USERS: usize = 50;
/// How long a load may take to be answered, on a busy machine.
const LIMIT: Duration = Duration::from_secs(300);

pub(super) const VOLUMES: &str = "/api/v1/persistentvolumes";
/// What claims grow to.
pub(super) const LARGER: &str = "2Gi";

/// When each object of a load was asked for, and when it was there.
#[derive(Clone, Debug)]
pub(super) struct Answered {
    /// From the first request to the last answer.
    pub(super) took: Duration,
    /// From each request to its answer, the shortest first.
    pub(super) each: Vec<Duration>,
}

impl Answered {
    pub(super) fn new(took: Duration, mut each: Vec<Duration>) -> Self {
        each.sort_unstable();
        Self { took, each }
    }

    /// From when each was sent to when it was seen.
    ///
    /// # Errors
    /// When one was not seen.
    pub(super) fn of(
        started: Instant,
        sent: &HashMap<String, Instant>,
        seen: &HashMap<String, Seen>,
    ) -> Result<Self> {
        let mut each = Vec::new();
        let mut last = started;
        for (name, sent) in sent {
            let seen = seen.get(name).with_context(|| format!("nothing was seen of {name}"))?.at;
            each.push(seen.saturating_duration_since(*sent));
            last = last.max(seen);
        }
        Ok(Self::new(last.saturating_duration_since(started), each))
    }

    /// The time within which this share of all was answered.
    pub(super) fn quantile(&self, percent: usize) -> Duration {
        let index = (self.each.len() * percent).div_ceil(100).saturating_sub(1);
        self.each.get(index).copied().unwrap_or_default()
    }
}

/// Claims of one class in one namespace.
pub(super) struct Load {
    client: Client,
    namespace: String,
    class: String,
    mode: &'static str,
}

/// A claim, a volume, an attachment or a node, as far as it matters.
#[derive(Clone, Debug, Deserialize)]
struct Object {
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
    capacity: Capacity,
    volumes_attached: Vec<AttachedVolume>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Capacity {
    storage: String,
}

#[derive(Clone, Debug, Deserialize)]
struct AttachedVolume {
    name: String,
}

#[derive(Deserialize)]
struct List {
    metadata: ListMeta,
    items: Vec<Object>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ListMeta {
    resource_version: String,
}

/// When an object was seen, and the volume that it named then.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    at: Instant,
    volume: String,
}

/// Which state of an object a watch waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Phase(&'static str),
    Attached,
    /// A claim that has this capacity.
    Capacity(&'static str),
    /// A node that has volumes attached: what is noted are these, by the names that they have there.
    OnNode,
    Gone,
}

/// A watch that notes when each object first was in a state.
pub(super) struct Sight {
    task: JoinHandle<Result<Infallible>>,
    seen: Arc<Mutex<HashMap<String, Seen>>>,
    more: Arc<Notify>,
}

impl Sight {
    /// Looks from now on.
    ///
    /// # Errors
    /// When the API does not show them.
    pub(super) async fn of(client: &Client, path: &str, state: State) -> Result<Self> {
        let list: List = client.request(Request::get(path).body(Vec::new())?).await?;
        let seen = Arc::new(Mutex::new(HashMap::new()));
        let version = list.metadata.resource_version;
        for object in list.items {
            note(&seen, object, state, false);
        }
        let more = Arc::new(Notify::new());
        let (client, path) = (client.clone(), path.to_owned());
        let (notes, notify) = (Arc::clone(&seen), Arc::clone(&more));
        let (opened, open) = oneshot::channel();
        let task = tokio::spawn(async move {
            let (mut version, mut opened) = (version, Some(opened));
            // The API may end a watch at any time: the next one goes on where it ended.
            loop {
                let watch = format!("{path}?watch=true&timeoutSeconds=3600&resourceVersion={version}");
                let events = client.request_events::<Object>(Request::get(watch).body(Vec::new())?).await?;
                // Nobody waits for the second time.
                let _ = opened.take().map(|opened| opened.send(()));
                let mut events = std::pin::pin!(events);
                while let Some(event) = events.next().await {
                    let (object, gone) = match event? {
                        WatchEvent::Added(object) | WatchEvent::Modified(object) => (object, false),
                        WatchEvent::Deleted(object) => (object, true),
                        WatchEvent::Bookmark(_) => continue,
                        WatchEvent::Error(status) => bail!("the watch ended: {status:?}"),
                    };
                    version.clone_from(&object.metadata.resource_version);
                    if note(&notes, object, state, gone) {
                        notify.notify_one();
                    }
                }
            }
        });
        if open.await.is_err() {
            match task.await?? {}
        }
        Ok(Self { task, seen, more })
    }

    /// When an object first was in the state.
    pub(super) fn at(&self, name: &str) -> Option<Instant> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).get(name).map(|seen| seen.at)
    }

    /// Waits until so many objects were in the state, and takes them.
    ///
    /// # Errors
    /// When they are not within the limit.
    pub(super) async fn until(mut self, count: usize) -> Result<HashMap<String, Seen>> {
        self.reaches(count).await?;
        Ok(self.take())
    }

    /// Waits until each of these was in the state, whatever else was, and takes all.
    ///
    /// # Errors
    /// When they are not within the limit.
    pub(super) async fn until_each(mut self, of: &HashMap<String, Instant>) -> Result<HashMap<String, Seen>> {
        self.shows(of.len(), |seen| of.keys().filter(|name| seen.contains_key(*name)).count()).await?;
        Ok(self.take())
    }

    fn take(&self) -> HashMap<String, Seen> {
        mem::take(&mut *self.seen.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits until so many objects were in the state.
    async fn reaches(&mut self, count: usize) -> Result<()> {
        self.shows(count, HashMap::len).await
    }

    /// Waits until so many were seen of those that count.
    async fn shows(&mut self, count: usize, seen: impl Fn(&HashMap<String, Seen>) -> usize) -> Result<()> {
        let number = || seen(&self.seen.lock().unwrap_or_else(PoisonError::into_inner));
        let all = async {
            while number() < count {
                self.more.notified().await;
            }
        };
        tokio::select! {
            () = all => {}
            ended = &mut self.task => match ended?? {},
            () = tokio::time::sleep(LIMIT) => bail!("{} of {count} were seen within {LIMIT:?}", number()),
        }
        Ok(())
    }
}

impl Drop for Sight {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Whether this is the first time that the object is in the state.
fn note(seen: &Mutex<HashMap<String, Seen>>, object: Object, state: State, gone: bool) -> bool {
    let is = match state {
        State::Phase(phase) => !gone && object.status.phase == phase,
        State::Attached => !gone && object.status.attached,
        State::Capacity(size) => !gone && object.status.capacity.storage == size,
        State::OnNode => !gone,
        State::Gone => gone,
    };
    if !is {
        return false;
    }
    let names = if state == State::OnNode {
        object.status.volumes_attached.into_iter().map(|volume| volume.name).collect()
    } else {
        vec![object.metadata.name]
    };
    let (mut seen, at) = (seen.lock().unwrap_or_else(PoisonError::into_inner), Instant::now());
    let before = seen.len();
    for name in names {
        seen.entry(name).or_insert_with(|| Seen { at, volume: object.spec.volume_name.clone() });
    }
    seen.len() > before
}

impl Load {
    /// Makes the namespace, and where there is a driver the class.
    ///
    /// # Errors
    /// When the API refuses it.
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
        Ok(Self { client, namespace, class, mode: "Filesystem" })
    }

    /// The same for volumes without a filesystem, which no node has to do anything for when they grow.
    pub(super) fn of_blocks(self) -> Self {
        Self { mode: "Block", ..self }
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    pub(super) const fn mode(&self) -> &str {
        self.mode
    }

    pub(super) fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The claims of the namespace.
    pub(super) fn claims(&self) -> String {
        format!("/api/v1/namespaces/{}/persistentvolumeclaims", self.namespace)
    }

    pub(super) fn claim(&self, number: usize) -> Value {
        json!({
            "metadata": { "name": format!("claim-{number}") },
            "spec": {
                "storageClassName": self.class,
                "accessModes": ["ReadWriteOnce"],
                "volumeMode": self.mode,
                "resources": { "requests": { "storage": "1Gi" } },
            },
        })
    }

    /// What a user writes into a claim that shall grow.
    pub(super) fn larger() -> Value {
        json!({ "spec": { "resources": { "requests": { "storage": LARGER } } } })
    }

    /// One claim, and the next when it is Bound.
    ///
    /// # Errors
    /// When the API refuses one, or it does not become Bound.
    pub(super) async fn one_by_one(&self, count: usize) -> Result<Answered> {
        let started = Instant::now();
        let mut each = Vec::new();
        let mut sight = Sight::of(&self.client, &self.claims(), State::Phase("Bound")).await?;
        for number in 0..count {
            let sent = Instant::now();
            send(&self.client, "POST", &self.claims(), &self.claim(number)).await?;
            sight.reaches(number + 1).await?;
            let seen = sight.at(&format!("claim-{number}")).context("another claim became Bound")?;
            each.push(seen.saturating_duration_since(sent));
        }
        Ok(Answered::new(started.elapsed(), each))
    }

    /// Claims by all users at once, until the last one is Bound. Also the names of their volumes.
    ///
    /// # Errors
    /// When the API refuses one, or they do not become Bound.
    pub(super) async fn bound(&self, count: usize) -> Result<(Answered, Vec<String>)> {
        let sight = Sight::of(&self.client, &self.claims(), State::Phase("Bound")).await?;
        let started = Instant::now();
        let (claims, path) = (|number| self.claim(number), self.claims());
        let sent: HashMap<String, Instant> = each(count, async |number| {
            let at = Instant::now();
            send(&self.client, "POST", &path, &claims(number)).await?;
            Ok((format!("claim-{number}"), at))
        })
        .await?
        .into_iter()
        .collect();
        let seen = sight.until(count).await?;
        let volume = |number| {
            let seen = seen.get(&format!("claim-{number}")).context("a claim was not seen")?;
            ensure!(!seen.volume.is_empty(), "claim-{number} is Bound to nothing");
            Ok(seen.volume.clone())
        };
        let volumes = (0..count).map(volume).collect::<Result<_>>()?;
        Ok((Answered::of(started, &sent, &seen)?, volumes))
    }

    /// Deletes the claims by all users at once, until the last of their volumes is gone.
    ///
    /// # Errors
    /// When the API refuses one, or they do not go.
    pub(super) async fn gone(&self, volumes: &[String]) -> Result<Answered> {
        let sight = Sight::of(&self.client, VOLUMES, State::Gone).await?;
        let started = Instant::now();
        let (path, volumes) = (self.claims(), volumes.to_vec());
        let sent: HashMap<String, Instant> = each(volumes.len(), async |number| {
            let at = Instant::now();
            send(&self.client, "DELETE", &format!("{path}/claim-{number}"), &Value::Null).await?;
            Ok((volumes.get(number).context("no volume")?.clone(), at))
        })
        .await?
        .into_iter()
        .collect();
        let seen = sight.until(volumes.len()).await?;
        Answered::of(started, &sent, &seen)
    }

    /// Bound claims are grown by all users at once, until the last one says so.
    ///
    /// # Errors
    /// When the API refuses it, or they do not grow.
    pub(super) async fn grown(&self, count: usize) -> Result<Answered> {
        let sight = Sight::of(&self.client, &self.claims(), State::Capacity(LARGER)).await?;
        let (started, path) = (Instant::now(), self.claims());
        let sent: HashMap<String, Instant> = each(count, async |number| {
            let (name, at) = (format!("claim-{number}"), Instant::now());
            send(&self.client, "PATCH", &format!("{path}/{name}"), &Self::larger()).await?;
            Ok((name, at))
        })
        .await?
        .into_iter()
        .collect();
        let seen = sight.until(count).await?;
        Answered::of(started, &sent, &seen)
    }

    /// Makes volumes that fit the claims.
    ///
    /// # Errors
    /// When the API refuses one.
    pub(super) async fn volumes(&self, count: usize) -> Result<()> {
        each(count, async |number| {
            let volume = json!({
                "metadata": { "name": format!("{}-{number}", self.namespace) },
                "spec": {
                    "storageClassName": self.class,
                    "accessModes": ["ReadWriteOnce"],
                    "capacity": { "storage": "1Gi" },
                    "volumeMode": self.mode,
                    "persistentVolumeReclaimPolicy": "Retain",
                    "csi": { "driver": "made.conformance.cofferdam.dev", "volumeHandle": number.to_string() },
                },
            });
            send(&self.client, "POST", VOLUMES, &volume).await
        })
        .await
        .map(drop)
    }

    /// Waits until so many volumes can be had.
    ///
    /// # Errors
    /// When they cannot.
    pub(super) async fn available(&self, count: usize) -> Result<()> {
        Sight::of(&self.client, VOLUMES, State::Phase("Available")).await?.until(count).await.map(drop)
    }
}

/// Does something for each number, by all users at once.
///
/// # Errors
/// The first that comes.
pub(super) async fn each<T>(count: usize, work: impl AsyncFn(usize) -> Result<T>) -> Result<Vec<T>> {
    let work = &work;
    stream::iter(0..count)
        .map(|number| async move { work(number).await })
        .buffer_unordered(USERS)
        .try_collect()
        .await
}

/// One write. Its answer is read, and not looked at.
///
/// # Errors
/// When the API refuses it.
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
        let answered = Answered::new(Duration::ZERO, milliseconds);
        assert_eq!(answered.quantile(50), Duration::from_millis(100));
        assert_eq!(answered.quantile(99), Duration::from_millis(198));
        assert_eq!(Answered::new(Duration::ZERO, Vec::new()).quantile(99), Duration::ZERO);
    }
}
