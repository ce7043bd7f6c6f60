//! Tests of the state on a mock host: retries and errors of [`decide`], the limits of a commit, and pages of
//! a scan.

use super::*;
use crate::{ErrorKind, Finality, mock};

fn increment(store: &impl Store, key: &str) -> crate::Result<u64> {
    decide(store, |store| {
        let read = read::<u64>(store, key)?;
        let (value, version) = read.map_or((0, None), |read| (read.value, Some(read.version)));
        Ok(Decision::Commit(vec![put(key, &(value + 1), version)?], value + 1))
    })
}

#[test]
fn decide_retries_conflicts_a_bounded_number_of_times() {
    let host = mock::MockHost::new().install();
    assert_eq!((increment(&HostStore, "n"), increment(&HostStore, "n")), (Ok(1), Ok(2)));
    host.before_each_commit(|host| host.write_state("n", b"7"));
    let error = host.call(|| increment(&HostStore, "n")).unwrap_err();
    assert_eq!((error.kind, error.finality), (ErrorKind::Aborted, Finality::Final));
    host.clear_before_each_commit();
    assert_eq!(increment(&HostStore, "n"), Ok(8));
}

#[test]
fn a_state_error_is_final_unless_the_call_has_changed_something() {
    let host = mock::MockHost::new().max_state_bytes(176).install();
    let full = || increment(&HostStore, "a key that does not fit").unwrap_err();
    assert_eq!((full().kind, full().finality), (ErrorKind::ResourceExhausted, Finality::Final));
    let after = host.call(|| {
        increment(&HostStore, "n").unwrap();
        full()
    });
    assert_eq!((after.kind, after.finality), (ErrorKind::ResourceExhausted, Finality::Unknown));
    assert_eq!(host.call(full).finality, Finality::Final, "another call");
}

#[test]
fn a_store_that_cannot_be_used_leaves_the_outcome_unknown() {
    let host = mock::MockHost::new().install();
    for reads in 0..2 {
        host.fail_after(reads);
        let error = increment(&HostStore, "n").unwrap_err();
        assert_eq!((error.kind, error.finality), (ErrorKind::Unavailable, Finality::Unknown));
        host.stop_failing();
        assert_eq!(host.state_keys(), [""; 0]);
    }
    drop(host);
    let error = increment(&HostStore, "n").unwrap_err();
    assert!(error.message.contains("cofferdam_guest::mock"), "{error:?}");
}

#[test]
fn the_mock_enforces_the_contracts_limits() {
    let _host = mock::MockHost::new().install();
    let set = |key: &str, size: usize| {
        Change::Put(Put { key: key.to_owned(), value: vec![0; size], precondition: Precondition::Absent })
    };
    let many: Vec<_> = (0..17).map(|n| set(&n.to_string(), 1)).collect();
    #[rustfmt::skip] // one row a case
    let table = [
        (vec![],                            StateError::BatchSize(Bound { limit: 16, given: 0 })),
        (many,                              StateError::BatchSize(Bound { limit: 16, given: 17 })),
        (vec![set("", 1)],                  StateError::KeySize(Bound { limit: 512, given: 0 })),
        (vec![set(&"k".repeat(513), 1)],    StateError::KeySize(Bound { limit: 512, given: 513 })),
        (vec![set("k", 65537)],             StateError::ValueSize(Bound { limit: 65536, given: 65537 })),
        (vec![set("k", 1), set("k", 1)],    StateError::RepeatedKey("k".to_owned())),
        (vec![remove("k", 1)],              StateError::Conflict("k".to_owned())),
    ];
    for (changes, expected) in table {
        assert_eq!(HostStore.commit(&changes), Err(expected));
    }
    let version = HostStore.commit(&[set("k", 65536), set("l", 1)]).unwrap();
    assert_eq!(HostStore.get("l").unwrap().unwrap().version, version);
    assert_eq!(
        HostStore.commit(&[set("m", 1), remove("k", version + 1)]),
        Err(StateError::Conflict("k".to_owned()))
    );
    assert_eq!(HostStore.get("m"), Ok(None), "all or none");
}

#[test]
fn a_scan_is_paged() {
    let host = mock::MockHost::new().install();
    for n in 0..20 {
        host.write_state(&format!("v/{n:02}"), &[0; 60 << 10]);
    }
    host.write_state("w", b"");
    let mut after = None;
    let mut keys = Vec::new();
    loop {
        let page = HostStore.scan("v/", after.as_deref(), u32::MAX).unwrap();
        keys.extend(page.entries.into_iter().map(|found| found.key));
        after = keys.last().cloned();
        if !page.more {
            break;
        }
        assert_eq!(keys.len(), 17, "1 MiB at once");
    }
    assert_eq!(keys.len(), 20);
    assert_eq!(HostStore.scan("v/", Some("a"), 1).unwrap().entries[0].key, "v/00");
}
