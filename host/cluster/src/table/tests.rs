#![expect(clippy::type_complexity, reason = "a row of a table is spelled where the table is")]

use std::sync::{Arc, Mutex};

use cofferdam_domain::{Claim, ClaimKey, Uid, ids::ResourceVersion};
use serde_json::json;

use super::{Decoded, Seen, Table};
use crate::decode;

fn claim(uid: &str, version: u64) -> Decoded<Claim> {
    let object = json!({
        "metadata": {"namespace": "ns", "name": "c", "uid": uid, "resourceVersion": version.to_string()},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    });
    decode::object(&object.to_string()).unwrap()
}

fn key() -> ClaimKey {
    ClaimKey::new("ns", "c")
}

fn cached(table: &Table<Claim>) -> Option<(String, u64)> {
    table.get(&key()).known().map(|c| (c.meta.uid.to_string(), c.meta.version.0))
}

fn version(version: u64) -> ResourceVersion {
    ResourceVersion(version)
}

/// What arrives, one after the other, and what the cache has in the end.
enum Step {
    Object(&'static str, u64),
    Deleted(&'static str, u64),
    List(&'static [(&'static str, u64)], u64),
    Cleared,
}

#[test]
fn takes_in_lists_events_and_answers_in_any_order() {
    use Step::{Cleared, Deleted, List, Object};
    let cases: [(&str, &[Step], Option<(&str, u64)>); 16] = [
        ("first", &[Object("a", 5)], Some(("a", 5))),
        ("newer wins", &[Object("a", 5), Object("a", 6)], Some(("a", 6))),
        ("older is ignored", &[Object("a", 6), Object("a", 5)], Some(("a", 6))),
        ("versions are numbers, not text", &[Object("a", 9), Object("a", 10)], Some(("a", 10))),
        ("deletion", &[Object("a", 5), Deleted("a", 6)], None),
        ("late echo of a deleted object", &[Object("a", 5), Deleted("a", 7), Object("a", 6)], None),
        ("same uid never returns", &[Object("a", 5), Deleted("a", 7), Object("a", 8)], None),
        ("a successor does", &[Object("a", 5), Deleted("a", 7), Object("b", 8)], Some(("b", 8))),
        ("late deletion of the predecessor", &[Object("b", 8), Deleted("a", 7)], Some(("b", 8))),
        ("deletion without the object before", &[Deleted("a", 7), Object("a", 6)], None),
        ("list removes what it lacks", &[Object("a", 5), List(&[], 6)], None),
        ("list keeps what was written through after it", &[Object("a", 7), List(&[], 6)], Some(("a", 7))),
        ("list does not undo a newer answer", &[Object("a", 7), List(&[("a", 5)], 6)], Some(("a", 7))),
        ("a kind that the API does not have", &[Object("a", 5), Cleared], None),
        ("is back", &[Object("a", 5), Cleared, List(&[("a", 5)], 6)], Some(("a", 5))),
        ("list does not revive", &[Object("a", 5), Deleted("a", 8), List(&[("a", 5)], 6)], None),
    ];
    for (name, steps, expected) in cases {
        let table = Table::default();
        for step in steps {
            match step {
                Object(uid, at) => drop(table.apply(claim(uid, *at))),
                Deleted(uid, at) => drop(table.delete(&key(), &Uid::from(*uid), version(*at))),
                Cleared => table.clear(),
                List(items, at) => {
                    table.replace(items.iter().map(|(uid, v)| claim(uid, *v)).collect(), version(*at));
                }
            }
        }
        assert_eq!(cached(&table), expected.map(|(uid, v)| (uid.to_owned(), v)), "{name}");
    }
}

#[test]
fn tells_subscribers_of_every_change_and_of_nothing_else() {
    let table = Table::<Claim>::default();
    let told: Arc<Mutex<Vec<(Option<u64>, Option<u64>)>>> = Arc::default();
    let hear = Arc::clone(&told);
    table.subscribe(move |change| {
        let version = |c: &Option<Arc<Claim>>| c.as_ref().map(|c| c.meta.version.0);
        hear.lock().unwrap().push((version(&change.old), version(&change.new)));
    });
    table.apply(claim("a", 5));
    table.apply(claim("a", 5));
    table.apply(claim("a", 4));
    table.apply(claim("a", 6));
    table.delete(&key(), &Uid::from("a"), version(7));
    table.delete(&key(), &Uid::from("a"), version(7));
    table.replace(vec![claim("b", 9)], version(9));
    let expected = [(None, Some(5)), (Some(5), Some(6)), (Some(6), None), (None, Some(9))];
    assert_eq!(*told.lock().unwrap(), expected);
}

#[test]
fn keeps_the_index_equal_to_the_objects() {
    let table = Table::<Claim>::default();
    let by_uid =
        |uid: &str| table.query(|index, _| format!("{index:?}").contains(&format!("{uid:?}: ClaimKey")));
    table.apply(claim("a", 5));
    assert!(by_uid("a"));
    table.delete(&key(), &Uid::from("a"), version(6));
    table.apply(claim("b", 7));
    assert!(!by_uid("a") && by_uid("b"));
}

#[test]
fn an_object_that_does_not_decode_is_neither_known_nor_gone() {
    let table = Table::<Claim>::default();
    let heard: Arc<Mutex<u32>> = Arc::default();
    let hear = Arc::clone(&heard);
    table.subscribe(move |_| *hear.lock().unwrap() += 1);
    table.apply(claim("a", 5));
    let broken = json!({
        "metadata": {"namespace": "ns", "name": "c", "uid": "a", "resourceVersion": "6"},
        "spec": {"accessModes": ["ReadWriteSometimes"]},
    });
    let opaque = decode::object::<Claim>(&broken.to_string()).unwrap();
    let reason = &opaque.as_ref().unwrap_err().reason;
    assert!(reason.contains("spec.accessModes") && reason.contains("ReadWriteSometimes"), "{reason}");
    table.apply(opaque);
    assert!(matches!(table.get(&key()), Seen::Opaque(uid) if uid == Uid::from("a")));
    assert_eq!(*heard.lock().unwrap(), 1, "nobody may think that the claim has gone");
    table.apply(claim("a", 7));
    assert_eq!(cached(&table), Some(("a".to_owned(), 7)));
}

#[test]
fn remembers_the_highest_version_it_was_shown() {
    let table = Table::<Claim>::default();
    table.replace(Vec::new(), version(3));
    table.apply(claim("a", 5));
    assert_eq!(table.highest(), version(5));
    table.saw(version(9));
    table.apply(claim("a", 6));
    assert_eq!(table.highest(), version(9));
}

#[test]
fn forgets_the_oldest_deletions() {
    let table = Table::<Claim>::default();
    for n in 0..=super::TOMBSTONES {
        table.delete(&ClaimKey::new("ns", format!("c{n}")), &Uid::from("x"), version(5));
    }
    assert_eq!(table.read().tombstones.len(), super::TOMBSTONES);
    assert!(!table.read().tombstones.contains_key(&ClaimKey::new("ns", "c0")));
}

#[tokio::test(start_paused = true)]
async fn forgets_deletions_by_age_and_gives_their_room_back() {
    let table = Table::<Claim>::default();
    for n in 0..1_000 {
        table.delete(&ClaimKey::new("ns", format!("c{n}")), &Uid::from("x"), version(5));
    }
    tokio::time::advance(super::BURIED_FOR / 2).await;
    table.delete(&key(), &Uid::from("a"), version(7));
    table.saw(version(8));
    assert_eq!(table.read().tombstones.len(), 1_001);
    tokio::time::advance(super::BURIED_FOR / 2).await;
    // A bookmark is enough.
    table.saw(version(9));
    let (held, room) = (table.read().tombstones.len(), table.read().tombstones.capacity());
    assert!(held == 1 && room < 10, "{held} of {room}");
    assert!(!table.apply(claim("a", 8)), "the younger one stands");
    tokio::time::advance(super::BURIED_FOR).await;
    table.saw(version(10));
    assert_eq!((table.read().tombstones.len(), table.read().graves.len()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_grave_of_the_predecessor_does_not_take_the_successors() {
    let table = Table::<Claim>::default();
    table.delete(&key(), &Uid::from("a"), version(5));
    tokio::time::advance(super::BURIED_FOR / 2).await;
    table.apply(claim("b", 6));
    table.delete(&key(), &Uid::from("b"), version(7));
    tokio::time::advance(super::BURIED_FOR / 2).await;
    table.saw(version(8));
    assert!(!table.apply(claim("b", 9)), "the same uid never returns");
}
