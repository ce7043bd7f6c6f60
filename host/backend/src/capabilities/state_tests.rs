//! The store's promises: all or nothing, every write on the version it names, everything bounded.

use super::*;

fn put(key: &str, value: &[u8], expected: Expected) -> Change {
    Change::Put(Put { key: key.to_owned(), value: value.to_vec(), expected })
}

fn remove(key: &str, version: u64) -> Change {
    Change::Remove(Remove { key: key.to_owned(), version })
}

fn read(store: &Store, key: &str) -> Option<(Vec<u8>, u64)> {
    store.get(key).unwrap().map(|entry| (entry.value, entry.version))
}

#[test]
fn a_write_needs_the_version_that_it_names() {
    let store = Store::new(1 << 20);
    let first = store.commit(vec![put("a", b"1", Expected::Absent)]).unwrap();
    for change in
        [put("a", b"2", Expected::Absent), put("a", b"2", Expected::At(first + 1)), remove("a", first + 1)]
    {
        assert!(matches!(store.commit(vec![change]), Err(StateError::Conflict(key)) if key == "a"));
    }
    let second = store.commit(vec![put("a", b"2", Expected::At(first))]).unwrap();
    assert_eq!(read(&store, "a"), Some((b"2".to_vec(), second)));
    store.commit(vec![remove("a", second)]).unwrap();
    assert_eq!(read(&store, "a"), None);
    assert!(matches!(store.commit(vec![remove("a", second)]), Err(StateError::Conflict(_))));
    assert!(
        store.commit(vec![put("a", b"3", Expected::Absent)]).unwrap() > second,
        "a version never returns"
    );
}

#[test]
fn a_batch_happens_as_a_whole_or_not_at_all() {
    let store = Store::new(1 << 20);
    store.commit(vec![put("a", b"1", Expected::Absent)]).unwrap();
    let before = store.usage();
    let batch = vec![put("b", b"1", Expected::Absent), put("a", b"2", Expected::Absent)];
    assert!(matches!(store.commit(batch), Err(StateError::Conflict(key)) if key == "a"));
    assert_eq!((store.usage(), read(&store, "b")), (before, None));
}

#[test]
fn everything_is_bounded() {
    let store = Store::new(300);
    let put_one = |key: &str, bytes: usize| store.commit(vec![put(key, &vec![0; bytes], Expected::Absent)]);
    assert!(matches!(put_one("", 1), Err(StateError::KeySize(Bound { limit: 512, given: 0 }))));
    assert!(matches!(put_one(&"k".repeat(513), 1), Err(StateError::KeySize(Bound { given: 513, .. }))));
    assert!(matches!(put_one("k", (64 << 10) + 1), Err(StateError::ValueSize(_))));
    assert!(matches!(store.commit(Vec::new()), Err(StateError::BatchSize(Bound { limit: 16, given: 0 }))));
    let twice = vec![put("k", b"", Expected::Absent), put("k", b"", Expected::Absent)];
    assert!(matches!(store.commit(twice), Err(StateError::RepeatedKey(_))));
    let version = put_one("a", 200).unwrap();
    assert!(matches!(put_one("b", 200), Err(StateError::Full(Bound { limit: 300, .. }))));
    store.commit(vec![remove("a", version)]).unwrap();
    assert_eq!(store.usage(), (0, 0));
    put_one("b", 200).unwrap();
}

#[test]
fn pages_follow_each_other() {
    let store = Store::new(16 << 20);
    for key in ["a/1", "b/1", "b/2", "b/3", "c"] {
        store.commit(vec![put(key, key.as_bytes(), Expected::Absent)]).unwrap();
    }
    let keys = |page: &Page| page.entries.iter().map(|found| found.key.clone()).collect::<Vec<_>>();
    let first = store.scan("b/", None, 2).unwrap();
    assert_eq!((keys(&first), first.more), (vec!["b/1".to_owned(), "b/2".to_owned()], true));
    let second = store.scan("b/", Some("b/2".to_owned()), 2).unwrap();
    assert_eq!((keys(&second), second.more), (vec!["b/3".to_owned()], false));
    assert!(keys(&store.scan("b/", Some("c".to_owned()), 2).unwrap()).is_empty());
    assert_eq!(keys(&store.scan("b/", Some("a".to_owned()), 1).unwrap()), ["b/1"]);
    for number in 0..40 {
        store.commit(vec![put(&format!("big/{number:02}"), &[0; 60 << 10], Expected::Absent)]).unwrap();
    }
    let page = store.scan("big/", None, u32::MAX).unwrap();
    assert!(page.more && page.entries.len() < 20);
}
