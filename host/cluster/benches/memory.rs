//! Private memory of cached objects by kind, and of lists: `cargo bench --package cofferdam-cluster --features
//! jemalloc --bench memory`. `OBJECTS` is their number of each kind, 10,000 by default.
//!
//! Reflectors read the objects from an API within the process, which makes each list page when it is
//! requested. Then every watch ends with 410 Gone, so that every kind is listed again: first unchanged, then
//! with a change of every object. With the feature `jemalloc`, the allocator is that of a release.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::cast_precision_loss,
    reason = "a benchmark prints its results, and ends with a panic if it fails"
)]

#[path = "../tests/common/objects.rs"]
mod objects;

use std::{
    convert::Infallible,
    env, fs,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use cofferdam_cluster::{
    Cache, EventSink, Writer,
    metrics::Metrics,
    reflector::{Scope, run_reflector},
    store::CachedKind,
};
use cofferdam_domain::{Claim, Pod, Volume, VolumeAttachment, VolumeSnapshot, VolumeSnapshotContent};
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::Frame;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

#[cfg(feature = "jemalloc")]
#[global_allocator]
static GLOBAL_ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Makes the object of a number.
type ObjectTemplate = fn(usize) -> Value;

/// The objects by the plural name of their kind.
const KINDS: [(&str, ObjectTemplate); 6] = [
    ("persistentvolumeclaims", objects::claim),
    ("persistentvolumes", objects::volume),
    ("volumeattachments", objects::attachment),
    ("pods", objects::pod),
    ("volumesnapshots", objects::snapshot),
    ("volumesnapshotcontents", objects::content),
];
/// Time until the allocator has returned free memory, and tasks are idle.
const SETTLE_TIME: Duration = Duration::from_secs(5);
/// resourceVersion of the first list.
const FIRST_VERSION: u64 = 200_000;

/// Lists `count` objects of each kind in each version. A watch ends with 410 Gone when the version changes.
#[derive(Clone)]
struct FakeApi {
    count: usize,
    version: watch::Receiver<u64>,
    /// Number of lists whose last page was read.
    lists: Arc<AtomicUsize>,
}

impl FakeApi {
    fn page(&self, object: ObjectTemplate, from: usize, limit: usize) -> Bytes {
        let version = *self.version.borrow();
        let to = (from + limit).min(self.count);
        let items: Vec<Value> = (from..to)
            .map(|number| {
                let mut object = object(number);
                // The second version changes nothing, later ones every object.
                if version > FIRST_VERSION + 1 {
                    object.pointer_mut("/metadata").unwrap()["resourceVersion"] = json!(version.to_string());
                }
                object
            })
            .collect();
        let next = if to < self.count { to.to_string() } else { String::new() };
        if to == self.count {
            self.lists.fetch_add(1, Ordering::Relaxed);
        }
        let metadata = json!({"resourceVersion": version.to_string(), "continue": next});
        json!({"metadata": metadata, "items": items}).to_string().into()
    }

    fn respond(mut self, request: &Request<Body>) -> Response<UnsyncBoxBody<Bytes, Infallible>> {
        let query = request.uri().query().unwrap_or_default();
        let parameter =
            |name: &str| query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
        if parameter("watch").is_some() {
            self.version.mark_unchanged();
            let expired = async move {
                self.version.changed().await.unwrap();
                let event = r#"{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired"}}"#;
                Ok(Frame::data(Bytes::from(format!("{event}\n"))))
            };
            return Response::new(StreamBody::new(futures::stream::once(expired)).boxed_unsync());
        }
        let (_, object) =
            KINDS.into_iter().find(|(plural, _)| request.uri().path().ends_with(plural)).unwrap();
        let number = |name: &str| parameter(name).and_then(|text| text.parse::<usize>().ok());
        let page = self.page(object, number("continue").unwrap_or_default(), number("limit").unwrap());
        Response::new(Full::new(page).boxed_unsync())
    }
}

/// Private memory of this process in bytes.
fn private_bytes() -> f64 {
    let rollup = fs::read_to_string("/proc/self/smaps_rollup").unwrap();
    let lines = rollup.lines().filter_map(|line| line.strip_prefix("Private_")?.split_once(':'));
    let kilobytes = lines.filter_map(|(_, value)| value.trim().strip_suffix(" kB")?.parse::<f64>().ok());
    kilobytes.sum::<f64>() * 1024.0
}

struct Bench {
    writer: Writer,
    events: EventSink,
    metrics: Metrics,
    count: usize,
    private_bytes: f64,
}

impl Bench {
    /// Caches the objects of a kind, and prints the memory that each takes.
    async fn cache<K: CachedKind>(&mut self) {
        let (writer, events, metrics) = (self.writer.clone(), self.events.clone(), self.metrics.clone());
        tokio::spawn(async move {
            run_reflector::<K>(&writer, &events, &metrics, Scope::default(), CancellationToken::new()).await
        });
        K::store(self.writer.cache()).wait_synced().await;
        assert_eq!(K::store(self.writer.cache()).len(), self.count);
        tokio::time::sleep(SETTLE_TIME).await;
        let before = std::mem::replace(&mut self.private_bytes, private_bytes());
        let each = (self.private_bytes - before) / self.count as f64;
        println!("{}: {each:.0} bytes of private memory", K::RESOURCE.kind);
    }
}

/// Lists every kind again, and prints the memory that this takes, and what is left of it.
async fn relist(api: &FakeApi, versions: &watch::Sender<u64>, before: f64, name: &str) {
    api.lists.store(0, Ordering::Relaxed);
    versions.send_modify(|version| *version += 1);
    let started = Instant::now();
    let mut peak = before;
    let mut seconds = [1, 10, 60].into_iter().peekable();
    let mut line = String::new();
    let mut listed_at = None;
    while let Some(second) = seconds.peek() {
        tokio::time::sleep(Duration::from_millis(5)).await;
        let now = private_bytes();
        peak = peak.max(now);
        if listed_at.is_none() && api.lists.load(Ordering::Relaxed) == KINDS.len() {
            listed_at = Some(Instant::now());
        }
        assert!(started.elapsed() < Duration::from_secs(300), "the lists were not read");
        if listed_at.is_some_and(|at| at.elapsed() >= Duration::from_secs(*second)) {
            line += &format!(", {:.1} MB after {second} s", (now - before) / 1e6);
            seconds.next();
        }
    }
    println!("lists of {name} objects: {:.1} MB more at most{line}", (peak - before) / 1e6);
}

#[tokio::main]
async fn main() {
    let count = env::var("OBJECTS").ok().map_or(10_000, |text| text.parse().unwrap());
    let (versions, version) = watch::channel(FIRST_VERSION);
    let api = FakeApi { count, version, lists: Arc::default() };
    let service = {
        let api = api.clone();
        tower::service_fn(move |request: Request<Body>| {
            let api = api.clone();
            async move { Ok::<_, Infallible>(api.respond(&request)) }
        })
    };
    let client = kube::Client::new(service, "default");
    let metrics = Metrics::default();
    let writer = Writer::new(client, Arc::new(Cache::default()), metrics.clone());
    let (events, _) = EventSink::new(&writer, Arc::new(jiff::Timestamp::now), metrics.clone());
    // The first page takes memory that later ones use again.
    drop(api.page(objects::pod, 0, 500));
    tokio::time::sleep(SETTLE_TIME).await;
    let first = private_bytes();
    let mut bench = Bench { writer, events, metrics, count, private_bytes: first };
    bench.cache::<Claim>().await;
    bench.cache::<Volume>().await;
    bench.cache::<VolumeAttachment>().await;
    bench.cache::<Pod>().await;
    bench.cache::<VolumeSnapshot>().await;
    bench.cache::<VolumeSnapshotContent>().await;
    let average = (bench.private_bytes - first) / (count * KINDS.len()) as f64;
    println!("average: {average:.0} bytes of private memory");
    relist(&api, &versions, bench.private_bytes, "unchanged").await;
    relist(&api, &versions, bench.private_bytes, "changed").await;
}
