//! Requests of this process, and the changes that other processes make meanwhile.

use std::{sync::Arc, time::Duration};

use cofferdam_domain::{Volume, VolumeName};
use parking_lot::Mutex;
use serde_json::json;

use super::{Change, ObjectStore, OwnWrite};
use crate::{
    objects::{Kind as _, decode},
    store::own_writes::{MAY_APPLY, PRUNE_ABOVE},
};

fn volume(name: &str, version: u64) -> String {
    let metadata = json!({"name": name, "uid": name, "resourceVersion": version.to_string()});
    json!({"kind": "PersistentVolume", "metadata": metadata, "spec": {}}).to_string()
}

/// A store, and the `name@version` of every foreign change.
fn store() -> (ObjectStore<Volume>, Arc<Mutex<Vec<String>>>) {
    let (store, found) = (ObjectStore::default(), Arc::<Mutex<Vec<String>>>::default());
    let foreign = Arc::clone(&found);
    store.subscribe_foreign(move |change: &Change<Volume>, json| {
        let new = change.new.as_ref().unwrap();
        assert!(json.contains(&format!("\"{}\"", new.resource_version())));
        foreign.lock().push(format!("{}@{}", change.key, new.resource_version()));
    });
    (store, found)
}

fn watch(store: &ObjectStore<Volume>, name: &str, version: u64) {
    let json = volume(name, version);
    store.apply_watch_event(decode::object(&json).unwrap(), &json);
}

/// A write of this process with its response.
fn finish(write: OwnWrite<'_, Volume>, name: &str, version: u64) {
    write.store.apply(decode::object(&volume(name, version)).unwrap());
    write.written(version.to_string().parse().unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_change_is_foreign_unless_a_request_has_caused_it() {
    let (store, found) = store();
    let begin = |name: &str| store.begin_write(VolumeName::new(name));
    let expect = |changes: &[&str]| assert_eq!(std::mem::take(&mut *found.lock()), changes);
    watch(&store, "v", 1);
    expect(&["v@1"]);
    let write = begin("v");
    watch(&store, "v", 2);
    watch(&store, "w", 3);
    expect(&["w@3"]);
    finish(write, "v", 2);
    watch(&store, "v", 2);
    expect(&[]);
    let write = begin("v");
    watch(&store, "v", 4);
    expect(&[]);
    write.rejected();
    expect(&["v@4"]);
    let (first, second) = (begin("v"), begin("v"));
    watch(&store, "v", 5);
    watch(&store, "v", 6);
    first.rejected();
    expect(&[]);
    finish(second, "v", 6);
    expect(&["v@5"]);
    store.apply(decode::object(&volume("v", 7)).unwrap());
    store.delete(&VolumeName::new("v"), &"v".into(), "8".parse().unwrap());
    expect(&[]);
}

fn read_live(store: &ObjectStore<Volume>, name: &str, version: u64) {
    let json = volume(name, version);
    store.apply_live_read(decode::object(&json).unwrap(), &json);
}

#[tokio::test(start_paused = true)]
async fn a_live_read_is_foreign_unless_a_request_may_have_caused_it() {
    let (store, found) = store();
    let begin = || store.begin_write(VolumeName::new("v"));
    let expect = |changes: &[&str]| assert_eq!(std::mem::take(&mut *found.lock()), changes);
    read_live(&store, "v", 1);
    expect(&["v@1"]);
    // The watch delivers the version of a live read after a rejected request: it counts once.
    begin().rejected();
    read_live(&store, "v", 2);
    watch(&store, "v", 2);
    expect(&["v@2"]);
    // The watch delivers it first.
    let write = begin();
    watch(&store, "v", 3);
    write.rejected();
    read_live(&store, "v", 3);
    expect(&["v@3"]);
    // This process has written the version.
    finish(begin(), "v", 4);
    read_live(&store, "v", 4);
    expect(&[]);
    // A read during a request may contain its effect beside that of another process.
    let write = begin();
    read_live(&store, "v", 6);
    finish(write, "v", 5);
    watch(&store, "v", 6);
    expect(&[]);
    drop(begin());
    read_live(&store, "v", 7);
    expect(&[]);
    tokio::time::advance(MAY_APPLY).await;
    read_live(&store, "v", 8);
    expect(&["v@8"]);
}

#[tokio::test(start_paused = true)]
async fn a_request_with_an_unknown_result_leaves_doubt() {
    let (store, found) = store();
    let begin = || store.begin_write(VolumeName::new("v"));
    let write = begin();
    watch(&store, "v", 1);
    drop(write);
    watch(&store, "v", 2);
    begin().rejected();
    tokio::time::advance(MAY_APPLY - Duration::from_secs(1)).await;
    watch(&store, "v", 3);
    assert_eq!(*found.lock(), [""; 0]);
    tokio::time::advance(Duration::from_secs(1)).await;
    watch(&store, "v", 4);
    assert_eq!(*found.lock(), ["v@4"]);
}

#[tokio::test(start_paused = true)]
async fn entries_of_expired_requests_are_removed() {
    let (store, _) = store();
    for number in 0..=PRUNE_ABOVE {
        drop(store.begin_write(VolumeName::new(number.to_string())));
    }
    tokio::time::advance(MAY_APPLY).await;
    store.begin_write(VolumeName::new("0")).rejected();
    assert_eq!(store.own_writes.len(), 0);
}
