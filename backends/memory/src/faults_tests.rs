//! Which calls fail, how often, and what they claim of their effect.

use std::cell::Cell;

use super::*;
use crate::{fake::Fake, settings::Settings};

fn settings(errors: &str) -> Settings {
    Settings::parse(&[("errors".to_owned(), errors.to_owned())].into()).unwrap()
}

/// What five calls answer, and how often their work was done.
fn five(errors: &str) -> (Vec<Option<(ErrorKind, Finality)>>, u32) {
    let store = Fake::default();
    let settings = settings(errors);
    let done = Cell::new(0);
    let calls = (0..5).map(|_| {
        let call = Call { store: &store, settings: &settings, now_ms: 0 };
        let answer = around(&call, "create", || {
            done.set(done.get() + 1);
            Ok(())
        });
        answer.err().map(|error| (error.kind, error.finality))
    });
    (calls.collect(), done.get())
}

#[test]
fn rules_strike_in_their_order_and_as_often_as_they_say() {
    use ErrorKind::{Internal, NotFound, Unavailable};
    use Finality::{Final, InProgress, Unknown};
    assert_eq!(five("delete:unavailable:2"), (vec![None; 5], 5));
    let lost = Some((Unavailable, Unknown));
    assert_eq!(five("create:unavailable:2"), (vec![lost, lost, None, None, None], 3));
    assert_eq!(five("create:unavailable:2:after"), (vec![lost, lost, None, None, None], 5));
    assert_eq!(five("create:unavailable:always"), (vec![lost; 5], 0));
    let refused = Some((NotFound, Final));
    assert_eq!(
        five(
            "create:not-found:1, create:unavailable:1, create:internal:2:final, create:not-found:1:after:in-progress"
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
    assert_eq!(five("create:not-found:1:after").0[0], Some((NotFound, Unknown)), "its effect is there");
}

#[test]
fn every_kind_can_be_asked_for() {
    for (name, kind) in KINDS {
        let (answers, done) = five(&format!("create:{name}:1"));
        assert_eq!((answers[0], done), (Some((kind, usual(kind))), 4), "{name}");
    }
}

#[test]
fn the_work_s_own_failure_is_told_and_not_counted() {
    let store = Fake::default();
    let settings = settings("create:unavailable:1:after");
    let call = Call { store: &store, settings: &settings, now_ms: 0 };
    let own = around(&call, "create", || Err::<(), _>(StorageError::not_found("own"))).unwrap_err();
    assert_eq!(own.kind, ErrorKind::NotFound);
    assert_eq!(around(&call, "create", || Ok(())).unwrap_err().kind, ErrorKind::Unavailable);
    assert!(around(&call, "create", || Ok(())).is_ok());
}

#[test]
fn latency_is_for_all_or_for_one() {
    let latency = Latency::parse("5, create=50, delete=0").unwrap();
    let milliseconds = |method| latency.of(method).map(|pause| pause.as_millis());
    assert_eq!(
        [milliseconds("list"), milliseconds("create"), milliseconds("delete")],
        [Some(5), Some(50), None]
    );
}
