//! Tests of injected faults: the calls that fail, the number of failures and their finality; and of latency.

use std::cell::Cell;

use cofferdam_guest::ErrorKind;

use super::*;
use crate::{
    fake::FakeStore,
    fault_rules::{KINDS, Latency},
    settings::MemorySettings,
};

fn settings(errors: &str) -> MemorySettings {
    MemorySettings::parse(&[("errors".to_owned(), errors.to_owned())].into()).unwrap()
}

/// Returns the results of five calls, and the number of times their work was done.
fn run_five_calls(errors: &str) -> (Vec<Option<(ErrorKind, Finality)>>, u32) {
    let store = FakeStore::default();
    let settings = settings(errors);
    let done = Cell::new(0);
    let calls = (0..5).map(|_| {
        let call = MemoryCall { store: &store, settings: &settings, now_ms: 0 };
        let answer = run_with_faults(&call, "create", || {
            done.set(done.get() + 1);
            Ok(())
        });
        answer.err().map(|error| (error.kind, error.finality))
    });
    (calls.collect(), done.get())
}

#[test]
fn fault_rules_apply_in_order_and_as_often_as_configured() {
    use ErrorKind::{Internal, NotFound, Unavailable};
    use Finality::{Final, InProgress, Unknown};
    assert_eq!(run_five_calls("delete:unavailable:2"), (vec![None; 5], 5));
    let lost = Some((Unavailable, Unknown));
    assert_eq!(run_five_calls("create:unavailable:2"), (vec![lost, lost, None, None, None], 3));
    assert_eq!(run_five_calls("create:unavailable:2:after"), (vec![lost, lost, None, None, None], 5));
    assert_eq!(run_five_calls("create:unavailable:always"), (vec![lost; 5], 0));
    let refused = Some((NotFound, Final));
    assert_eq!(
        run_five_calls(
            "create:not-found:1, create:unavailable:1, create:internal:2:final, \
             create:not-found:1:after:in-progress"
        ),
        (
            vec![
                refused,
                lost,
                Some((Internal, Final)),
                Some((Internal, Final)),
                Some((NotFound, InProgress))
            ],
            1
        )
    );
    assert_eq!(
        run_five_calls("create:not-found:1:after").0[0],
        Some((NotFound, Unknown)),
        "its effect is there"
    );
}

#[test]
fn every_error_kind_can_be_injected() {
    for (name, kind) in KINDS {
        let (answers, done) = run_five_calls(&format!("create:{name}:1"));
        assert_eq!((answers[0], done), (Some((kind, kind.default_finality())), 4), "{name}");
    }
}

#[test]
fn an_error_of_the_call_itself_is_returned_and_not_counted() {
    let store = FakeStore::default();
    let settings = settings("create:unavailable:1:after");
    let call = MemoryCall { store: &store, settings: &settings, now_ms: 0 };
    let call_error =
        run_with_faults(&call, "create", || Err::<(), _>(StorageError::not_found("own"))).unwrap_err();
    assert_eq!(call_error.kind, ErrorKind::NotFound);
    assert_eq!(run_with_faults(&call, "create", || Ok(())).unwrap_err().kind, ErrorKind::Unavailable);
    assert!(run_with_faults(&call, "create", || Ok(())).is_ok());
}

#[test]
fn latency_is_set_for_all_methods_or_one() {
    let latency = Latency::parse("5, create=50, delete=0").unwrap();
    let milliseconds = |method| latency.for_method(method).map(|pause| pause.as_millis());
    assert_eq!(
        [milliseconds("list"), milliseconds("create"), milliseconds("delete")],
        [Some(5), Some(50), None]
    );
}
