#![expect(clippy::type_complexity, reason = "a one-off row type of a test table")]

use std::sync::{Arc, Mutex};

use cofferdam_domain::{Claim, ClaimKey, Uid, ids::ResourceVersion};
use serde_json::json;

use super::{DecodeResult, Lookup, ObjectStore};
use crate::objects::decode;

fn claim(uid: &str, version: u64) -> DecodeResult<Claim> {
    let object = json!({
        "metadata": {"namespace": "ns", "name": "c", "uid": uid, "resourceVersion": version.to_string()},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    });
    decode::object(&object.to_string()).unwrap()
}

fn key() -> ClaimKey {
    ClaimKey::new("ns", "c")
}

fn cached(table: &ObjectStore<Claim>) -> Option<(String, u64)> {
    table.get(&key()).into_object().map(|c| (c.meta.uid.to_string(), c.meta.resource_version.0))
}

fn version(version: u64) -> ResourceVersion {
    ResourceVersion(version)
}

/// An update of the store.
enum Step {
    Object(&'static str, u64),
    Deleted(&'static str, u64),
    List(&'static [(&'static str, u64)], u64),
    Cleared,
}

#[test]
fn lists_events_and_responses_are_applied_in_any_order() {
    use Step::{Cleared, Deleted, List, Object};
    let cases: [(&str, &[Step], Option<(&str, u64)>); 16] = [
        ("first", &[Object("a", 5)], Some(("a", 5))),
        ("newer wins", &[Object("a", 5), Object("a", 6)], Some(("a", 6))),
        ("older is ignored", &[Object("a", 6), Object("a", 5)], Some(("a", 6))),
        ("versions are numbers, not text", &[Object("a", 9), Object("a", 10)], Some(("a", 10))),
        ("deletion", &[Object("a", 5), Deleted("a", 6)], None),
        ("late event of a deleted object", &[Object("a", 5), Deleted("a", 7), Object("a", 6)], None),
        ("a deleted uid is not stored again", &[Object("a", 5), Deleted("a", 7), Object("a", 8)], None),
        ("a recreated object is stored", &[Object("a", 5), Deleted("a", 7), Object("b", 8)], Some(("b", 8))),
        ("late deletion of the previous object", &[Object("b", 8), Deleted("a", 7)], Some(("b", 8))),
        ("deletion before the object", &[Deleted("a", 7), Object("a", 6)], None),
        ("list removes missing objects", &[Object("a", 5), List(&[], 6)], None),
        ("list keeps newer write responses", &[Object("a", 7), List(&[], 6)], Some(("a", 7))),
        (
            "list does not undo a newer write response",
            &[Object("a", 7), List(&[("a", 5)], 6)],
            Some(("a", 7)),
        ),
        ("the API server does not serve the kind", &[Object("a", 5), Cleared], None),
        (
            "the API server serves the kind again",
            &[Object("a", 5), Cleared, List(&[("a", 5)], 6)],
            Some(("a", 5)),
        ),
        (
            "list does not restore a deleted object",
            &[Object("a", 5), Deleted("a", 8), List(&[("a", 5)], 6)],
            None,
        ),
    ];
    for (name, steps, expected) in cases {
        let table = ObjectStore::default();
        for step in steps {
            match step {
                Object(uid, at) => drop(table.apply(claim(uid, *at))),
                Deleted(uid, at) => drop(table.delete(&key(), &Uid::from(*uid), version(*at))),
                Cleared => table.clear(),
                List(items, at) => {
                    let items = items.iter().map(|(uid, v)| claim(uid, *v).map(Arc::new));
                    table.replace(items.collect(), version(*at));
                }
            }
        }
        assert_eq!(cached(&table), expected.map(|(uid, v)| (uid.to_owned(), v)), "{name}");
    }
}

#[test]
fn subscribers_receive_every_change_once() {
    let table = ObjectStore::<Claim>::default();
    let received: Arc<Mutex<Vec<(Option<u64>, Option<u64>)>>> = Arc::default();
    let recorder = Arc::clone(&received);
    table.subscribe(move |change| {
        let version = |c: &Option<Arc<Claim>>| c.as_ref().map(|c| c.meta.resource_version.0);
        recorder.lock().unwrap().push((version(&change.old), version(&change.new)));
    });
    table.apply(claim("a", 5));
    table.apply(claim("a", 5));
    table.apply(claim("a", 4));
    table.apply(claim("a", 6));
    table.delete(&key(), &Uid::from("a"), version(7));
    table.delete(&key(), &Uid::from("a"), version(7));
    table.replace(vec![claim("b", 9).map(Arc::new)], version(9));
    let expected = [(None, Some(5)), (Some(5), Some(6)), (Some(6), None), (None, Some(9))];
    assert_eq!(*received.lock().unwrap(), expected);
}

#[test]
fn index_matches_the_stored_objects() {
    let table = ObjectStore::<Claim>::default();
    let by_uid = |uid: &str| table.query(|index, _| index.by_uid.get(&uid.into()).next().is_some());
    table.apply(claim("a", 5));
    assert!(by_uid("a"));
    table.delete(&key(), &Uid::from("a"), version(6));
    table.apply(claim("b", 7));
    assert!(!by_uid("a") && by_uid("b"));
}

#[test]
fn unchanged_objects_are_kept() {
    let table = ObjectStore::<Claim>::default();
    let find = || table.get(&key()).into_object().unwrap();
    table.apply(claim("a", 5));
    let cached = find();
    assert!(!table.apply(claim("a", 5)));
    assert!(Arc::ptr_eq(&cached, &find()));
    let list = |object: u64, at| table.replace(vec![table.listed(claim("a", object))], version(at));
    list(5, 6);
    assert!(Arc::ptr_eq(&cached, &find()));
    list(7, 8);
    assert_eq!((cached.meta.resource_version, find().meta.resource_version), (version(5), version(7)));
}

#[test]
fn undecodable_object_is_neither_found_nor_missing() {
    let table = ObjectStore::<Claim>::default();
    let change_count: Arc<Mutex<u32>> = Arc::default();
    let counter = Arc::clone(&change_count);
    table.subscribe(move |_| *counter.lock().unwrap() += 1);
    table.apply(claim("a", 5));
    let broken = json!({
        "metadata": {"namespace": "ns", "name": "c", "uid": "a", "resourceVersion": "6"},
        "spec": {"accessModes": ["ReadWriteSometimes"]},
    });
    let undecodable = decode::object::<Claim>(&broken.to_string()).unwrap();
    let reason = undecodable.as_ref().unwrap_err().reason.to_string();
    assert!(reason.contains("spec.accessModes") && reason.contains("ReadWriteSometimes"), "{reason}");
    table.apply(undecodable);
    assert!(matches!(table.get(&key()), Lookup::Undecodable(uid) if uid == Uid::from("a")));
    assert_eq!(*change_count.lock().unwrap(), 1, "an undecodable claim is not a deletion");
    table.apply(claim("a", 7));
    assert_eq!(cached(&table), Some(("a".to_owned(), 7)));
}

#[test]
fn highest_observed_resource_version_is_kept() {
    let table = ObjectStore::<Claim>::default();
    table.replace(Vec::new(), version(3));
    table.apply(claim("a", 5));
    assert_eq!(table.highest_version(), version(5));
    table.observe_version(version(9));
    table.apply(claim("a", 6));
    assert_eq!(table.highest_version(), version(9));
}

#[test]
fn oldest_tombstones_are_pruned_at_the_limit() {
    let table = ObjectStore::<Claim>::default();
    for n in 0..=super::MAX_TOMBSTONES {
        table.delete(&ClaimKey::new("ns", format!("c{n}")), &Uid::from("x"), version(5));
    }
    assert_eq!(table.inner.read().tombstones.len(), super::MAX_TOMBSTONES);
    assert!(!table.inner.read().tombstones.contains_key(&ClaimKey::new("ns", "c0")));
}

#[tokio::test(start_paused = true)]
async fn expired_tombstones_are_pruned_and_memory_is_released() {
    let table = ObjectStore::<Claim>::default();
    for n in 0..1_000 {
        table.delete(&ClaimKey::new("ns", format!("c{n}")), &Uid::from("x"), version(5));
    }
    tokio::time::advance(super::TOMBSTONE_TTL / 2).await;
    table.delete(&key(), &Uid::from("a"), version(7));
    table.observe_version(version(8));
    assert_eq!(table.inner.read().tombstones.len(), 1_001);
    tokio::time::advance(super::TOMBSTONE_TTL / 2).await;
    // A bookmark also removes expired tombstones.
    table.observe_version(version(9));
    let (count, capacity) = (table.inner.read().tombstones.len(), table.inner.read().tombstones.capacity());
    assert!(count == 1 && capacity < 10, "{count} of {capacity}");
    assert!(!table.apply(claim("a", 8)), "the newer tombstone is kept");
    tokio::time::advance(super::TOMBSTONE_TTL).await;
    table.observe_version(version(10));
    assert_eq!((table.inner.read().tombstones.len(), table.inner.read().tombstone_order.len()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn expiry_of_an_old_tombstone_keeps_the_newer_one() {
    let table = ObjectStore::<Claim>::default();
    table.delete(&key(), &Uid::from("a"), version(5));
    tokio::time::advance(super::TOMBSTONE_TTL / 2).await;
    table.apply(claim("b", 6));
    table.delete(&key(), &Uid::from("b"), version(7));
    tokio::time::advance(super::TOMBSTONE_TTL / 2).await;
    table.observe_version(version(8));
    assert!(!table.apply(claim("b", 9)), "the same uid never returns");
}

#[test]
fn a_subscriber_gets_the_cached_objects_and_later_changes_while_its_owner_exists() {
    let store = ObjectStore::<Claim>::default();
    store.apply(claim("a", 5));
    let owner = Arc::new(Mutex::new(Vec::new()));
    let subscribe = |owner: &Arc<Mutex<Vec<_>>>| {
        store.subscribe_while(owner, |found: &Mutex<Vec<_>>, change| {
            let versions = [&change.old, &change.new];
            let versions = versions.map(|object| object.as_ref().map(|claim| claim.meta.resource_version.0));
            found.lock().unwrap().push(versions);
        });
    };
    subscribe(&owner);
    store.apply(claim("a", 6));
    assert_eq!(*owner.lock().unwrap(), [[None, Some(5)], [Some(5), Some(6)]]);

    drop(owner);
    store.apply(claim("a", 7));
    let owner = Arc::default();
    subscribe(&owner);
    assert_eq!(*owner.lock().unwrap(), [[None, Some(7)]]);
    assert_eq!(store.subscribers.read().len(), 1, "the former subscriber is removed");
}

#[test]
fn a_removal_by_an_own_write_is_known_until_the_object_is_another_one() {
    let table = ObjectStore::<Claim>::default();
    let removed = |uid: &str| table.removed_by_own_write(&key(), &uid.into()).is_some();
    table.apply(claim("a", 5));
    assert!(!removed("a"), "it exists");
    table.delete_by_own_write(&key(), &"a".into(), version(6));
    assert!(removed("a"));
    assert!(!removed("b"), "another object");
    table.delete(&key(), &"a".into(), version(7));
    assert!(removed("a"), "the watch event of the same deletion");
    table.apply(claim("b", 8));
    assert!(!removed("a"), "the key has another object");
    table.delete(&key(), &"b".into(), version(9));
    assert!(!removed("b"), "another client has removed it");
    table.delete_by_own_write(&key(), &"b".into(), version(9));
    table.delete(&key(), &"c".into(), version(11));
    assert!(!removed("c"), "the tombstone of a former object");
}
