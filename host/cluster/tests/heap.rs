//! The heap that cached snapshots take.
#![expect(clippy::unwrap_used, clippy::cast_precision_loss, reason = "a test")]

use std::alloc::System;

use cofferdam_cluster::{Cache, decode, store::CachedKind};
use cofferdam_domain::{VolumeSnapshot, VolumeSnapshotContent};
use serde_json::{Value, json};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Number of VolumeSnapshots. The tables of the cache have room for almost twice as many, as they have for
/// 15,000.
const COUNT: usize = 940;
/// Largest heap of a VolumeSnapshot, and of a VolumeSnapshotContent, in bytes.
const MAX_BYTES: f64 = 1024.0;

fn uid(kind: &str, number: usize) -> String {
    format!("{number:08x}-8b0c-4b1d-{kind}-{number:012x}")
}

fn snapshot(number: usize) -> Value {
    let uid = uid("9a57", number);
    json!({
        "metadata": {
            "name": format!("existing-{number}"), "namespace": "shop", "uid": uid,
            "resourceVersion": "123456", "creationTimestamp": "2026-01-01T00:00:00Z",
            "finalizers": [
                "snapshot.storage.kubernetes.io/volumesnapshot-as-source-protection",
                "snapshot.storage.kubernetes.io/volumesnapshot-bound-protection",
            ],
        },
        "spec": {
            "source": {"persistentVolumeClaimName": format!("data-{}", number / 7)},
            "volumeSnapshotClassName": "fast",
        },
        "status": {
            "boundVolumeSnapshotContentName": format!("snapcontent-{uid}"), "readyToUse": true,
            "restoreSize": "1Gi", "creationTime": "2026-01-01T00:00:00Z",
        },
    })
}

fn content(number: usize) -> Value {
    let uid_of_snapshot = uid("9a57", number);
    json!({
        "metadata": {
            "name": format!("snapcontent-{uid_of_snapshot}"), "uid": uid("a1b2", number),
            "resourceVersion": "123457", "creationTimestamp": "2026-01-01T00:00:00Z",
            "finalizers": ["snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection"],
        },
        "spec": {
            "deletionPolicy": "Delete", "driver": "array.example.com", "sourceVolumeMode": "Filesystem",
            "source": {"volumeHandle": format!("volume-of-pvc-{uid_of_snapshot}")},
            "volumeSnapshotClassName": "fast",
            "volumeSnapshotRef": {
                "namespace": "shop", "name": format!("existing-{number}"), "uid": uid_of_snapshot,
            },
        },
        "status": {
            "snapshotHandle": format!("snapshot-of-{uid_of_snapshot}"), "readyToUse": true,
            "creationTime": 1_767_225_600_000_000_000_i64, "restoreSize": 1 << 30,
        },
    })
}

/// Caches objects, and returns the heap that each takes, in bytes.
fn cache_all<K: CachedKind>(cache: &Cache, object: impl Fn(usize) -> Value) -> f64 {
    let region = Region::new(ALLOCATOR);
    for number in 0..COUNT {
        K::store(cache).apply(decode::object::<K>(&object(number).to_string()).unwrap());
    }
    let change = region.change();
    let taken = change.bytes_allocated - change.bytes_deallocated;
    assert_eq!(K::store(cache).len(), COUNT);
    taken as f64 / COUNT as f64
}

#[test]
fn a_snapshot_and_its_content_take_a_kilobyte_each() {
    let cache = Cache::default();
    let snapshot = cache_all::<VolumeSnapshot>(&cache, snapshot);
    let content = cache_all::<VolumeSnapshotContent>(&cache, content);
    println!("bytes of heap: VolumeSnapshot {snapshot:.0}, VolumeSnapshotContent {content:.0}");
    assert!(snapshot <= MAX_BYTES, "a VolumeSnapshot takes {snapshot:.0} bytes");
    assert!(content <= MAX_BYTES, "a VolumeSnapshotContent takes {content:.0} bytes");
}
