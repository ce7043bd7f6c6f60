//! The heap that cached objects take, with their part of the indexes.
#![expect(clippy::unwrap_used, clippy::cast_precision_loss, reason = "a test")]

#[path = "common/objects.rs"]
mod objects;

use std::alloc::System;

use cofferdam_cluster::{Cache, decode, store::CachedKind};
use cofferdam_domain::{Claim, Pod, Volume, VolumeAttachment, VolumeSnapshot, VolumeSnapshotContent};
use serde_json::Value;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Number of objects of each kind. The tables of the cache have room for almost twice as many, as they have
/// for 15,000.
const COUNT: usize = 940;
/// Largest heap of an object in bytes, on average over the kinds.
const MAX_AVERAGE_BYTES: f64 = 750.0;
/// Largest heap of an object of any kind in bytes.
const MAX_BYTES: f64 = 1024.0;

/// Caches objects. Returns the kind, and the heap that each object takes in bytes.
fn cache_all<K: CachedKind>(cache: &Cache, object: impl Fn(usize) -> Value) -> (&'static str, f64) {
    let region = Region::new(ALLOCATOR);
    for number in 0..COUNT {
        K::store(cache).apply(decode::object::<K>(&object(number).to_string()).unwrap());
    }
    let change = region.change();
    let taken = change.bytes_allocated - change.bytes_deallocated;
    assert_eq!(K::store(cache).len(), COUNT);
    (K::RESOURCE.kind, taken as f64 / COUNT as f64)
}

#[test]
fn objects_take_at_most_750_bytes_on_average() {
    let cache = Cache::default();
    let kinds = [
        cache_all::<Claim>(&cache, objects::claim),
        cache_all::<Volume>(&cache, objects::volume),
        cache_all::<VolumeAttachment>(&cache, objects::attachment),
        cache_all::<Pod>(&cache, objects::pod),
        cache_all::<VolumeSnapshot>(&cache, objects::snapshot),
        cache_all::<VolumeSnapshotContent>(&cache, objects::content),
    ];
    for (kind, bytes) in kinds {
        println!("{kind}: {bytes:.0} bytes of heap");
        assert!(bytes <= MAX_BYTES, "{kind}: {bytes:.0} bytes of heap, expected at most {MAX_BYTES}");
    }
    let average = kinds.iter().map(|(_, bytes)| bytes).sum::<f64>() / kinds.len() as f64;
    println!("average: {average:.0} bytes of heap");
    assert!(average <= MAX_AVERAGE_BYTES, "{average:.0} bytes of heap: expected at most {MAX_AVERAGE_BYTES}");
}
