//! Decisions over the mock host's state, and what its errors say.

use super::*;
use crate::{ErrorKind, Finality, mock};

fn add(store: &impl Store, key: &str) -> crate::Result<u64> {
    decide(store, |store| {
        let read = read::<u64>(store, key)?;
        let (value, version) = read.map_or((0, None), |read| (read.value, Some(read.version)));
        Ok(Decision::Commit(vec![put(key, &(value + 1), version)?], value + 1))
    })
}

#[test]
fn a_decision_is_made_anew_but_not_for_ever() {
    let host = mock::Host::new().install();
    assert_eq!((add(&Host, "n"), add(&Host, "n")), (Ok(1), Ok(2)));
    host.before_commits(|host| host.write("n", b"7"));
    let error = host.call(|| add(&Host, "n")).unwrap_err();
    assert_eq!((error.kind, error.finality), (ErrorKind::Aborted, Finality::Final));
    host.leave_commits_alone();
    assert_eq!(add(&Host, "n"), Ok(8));
}

#[test]
fn a_refusal_is_final_unless_the_call_has_changed_something() {
    let host = mock::Host::new().state_limit(80).install();
    let full = || add(&Host, "a key that does not fit").unwrap_err();
    assert_eq!((full().kind, full().finality), (ErrorKind::ResourceExhausted, Finality::Final));
    let after = host.call(|| {
        add(&Host, "n").unwrap();
        full()
    });
    assert_eq!((after.kind, after.finality), (ErrorKind::ResourceExhausted, Finality::Unknown));
    assert_eq!(host.call(full).finality, Finality::Final, "another call");
}

#[test]
fn a_store_that_cannot_be_used_leaves_the_outcome_unknown() {
    let host = mock::Host::new().install();
    for reads in 0..2 {
        host.dies_after(reads);
        let error = add(&Host, "n").unwrap_err();
        assert_eq!((error.kind, error.finality), (ErrorKind::Unavailable, Finality::Unknown));
        host.lives();
        assert_eq!(host.keys(), [""; 0]);
    }
    drop(host);
    let error = add(&Host, "n").unwrap_err();
    assert!(error.message.contains("cofferdam_guest::mock"), "{error:?}");
}

#[test]
fn what_the_contract_bounds_the_mock_bounds() {
    let _host = mock::Host::new().install();
    let set = |key: &str, size: usize| {
        Change::Put(Put { key: key.to_owned(), value: vec![0; size], expected: Expected::Absent })
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
        assert_eq!(Host.commit(&changes), Err(expected));
    }
    let version = Host.commit(&[set("k", 65536), set("l", 1)]).unwrap();
    assert_eq!(Host.get("l").unwrap().unwrap().version, version);
    assert_eq!(
        Host.commit(&[set("m", 1), remove("k", version + 1)]),
        Err(StateError::Conflict("k".to_owned()))
    );
    assert_eq!(Host.get("m"), Ok(None), "all or none");
}

#[test]
fn a_scan_comes_in_parts() {
    let host = mock::Host::new().install();
    for n in 0..20 {
        host.write(&format!("v/{n:02}"), &[0; 60 << 10]);
    }
    host.write("w", b"");
    let mut after = None;
    let mut keys = Vec::new();
    loop {
        let page = Host.scan("v/", after.as_deref(), u32::MAX).unwrap();
        keys.extend(page.entries.into_iter().map(|found| found.key));
        after = keys.last().cloned();
        if !page.more {
            break;
        }
        assert_eq!(keys.len(), 17, "1 MiB at once");
    }
    assert_eq!(keys.len(), 20);
    assert_eq!(Host.scan("v/", Some("a"), 1).unwrap().entries[0].key, "v/00");
}
