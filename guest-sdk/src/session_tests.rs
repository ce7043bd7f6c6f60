//! Tests of sessions on a mock host: reuse and expiry of a login, the lock of a key, a login that fails or
//! cannot be stored, renewal of a login that the storage rejects, and [`crate::has_changed`] after a login.

use std::cell::Cell;

use super::*;
use crate::{ErrorKind, Finality, http, mock::MockHost};

const TTL: Duration = Duration::from_secs(60);

#[test]
fn a_login_is_reused_until_its_ttl_expires() {
    let host = MockHost::new().install();
    let logins = Cell::new(0_u8);
    let log_in = || {
        logins.set(logins.get() + 1);
        Ok(vec![logins.get()])
    };
    let value = || login("k", TTL, log_in).unwrap().value().to_vec();
    assert_eq!((value(), value()), (vec![1], vec![1]));
    host.advance(TTL - Duration::from_millis(1));
    assert_eq!(value(), [1]);
    host.advance(Duration::from_millis(1));
    assert_eq!((value(), host.session_keys()), (vec![2], vec!["k".to_owned()]));
    host.clear_sessions();
    assert_eq!(value(), [3]);
}

#[test]
fn a_failed_login_releases_the_lock() {
    let host = MockHost::new().install();
    host.call(|| {
        let error = login("k", TTL, || Err(StorageError::unauthenticated("no"))).unwrap_err();
        assert_eq!((error.kind, host.locked_session_key()), (ErrorKind::Unauthenticated, None));
        let too_large = login("k", TTL, || Ok(vec![0; 8193])).unwrap_err();
        assert_eq!(
            (too_large.kind, too_large.finality, host.locked_session_key()),
            (ErrorKind::Internal, Finality::Final, None)
        );
        assert_eq!(login("", TTL, || Ok(vec![])).unwrap_err().kind, ErrorKind::Internal);
    });
}

#[test]
fn a_call_that_holds_a_lock_cannot_acquire_another() {
    let host = MockHost::new().install();
    host.call(|| {
        assert_eq!(acquire("a"), Ok(Acquired::Locked));
        assert_eq!(acquire("b"), Err(SessionError::LockHeld("a".to_owned())));
    });
    assert_eq!(host.locked_session_key(), None, "the end of the call has given it back");
}

#[test]
fn a_login_that_cannot_be_stored_serves_its_own_call() {
    let _host = MockHost::new().max_sessions(1).install();
    login("a", TTL, || Ok(vec![1])).unwrap();
    let logins = Cell::new(0);
    for _ in 0..2 {
        let login = login("b", TTL, || {
            logins.set(logins.get() + 1);
            Ok(b"text".to_vec())
        });
        assert_eq!(login.unwrap().text(), Ok("text".to_owned()));
    }
    assert_eq!(logins.get(), 2);
}

#[test]
fn an_expired_login_is_renewed_once() {
    let _host = MockHost::new().install();
    let logins = Cell::new(0_u8);
    let log_in = || {
        logins.set(logins.get() + 1);
        Ok(vec![logins.get()])
    };
    let second = with_login("k", TTL, log_in, |login| {
        Ok(if login.value() == [1] {
            SessionOutcome::Expired
        } else {
            SessionOutcome::Done(login.value().to_vec())
        })
    });
    assert_eq!(second, Ok(vec![2]));
    let never = with_login("k", TTL, log_in, |_| Ok(SessionOutcome::<()>::Expired)).unwrap_err();
    assert_eq!((never.kind, never.finality), (ErrorKind::Unauthenticated, Finality::Final));
    assert_eq!(logins.get(), 3, "2 was held, 3 was refused as well");
}

#[test]
fn a_login_renewed_by_another_call_is_reused() {
    let _host = MockHost::new().install();
    let use_login = |login: &Login| {
        if login.value() == b"old" {
            // Another call has already replaced the session.
            put("k", b"new", TTL).unwrap();
            return Ok(SessionOutcome::Expired);
        }
        Ok(SessionOutcome::Done(login.text()?))
    };
    let logins = Cell::new(0);
    let log_in = || {
        logins.set(logins.get() + 1);
        Ok(b"old".to_vec())
    };
    assert_eq!(with_login("k", TTL, log_in, use_login), Ok("new".to_owned()));
    assert_eq!(logins.get(), 1);
}

#[test]
fn a_login_does_not_count_as_a_change() {
    let host =
        MockHost::new().on(http::Method::Post, "http://a/", |_| Ok(http::Response::new(200))).install();
    host.call(|| {
        login("k", TTL, || Ok(http::Request::post("http://a/login").send()?.body)).unwrap();
        assert!(!crate::has_changed());
        http::Request::post("http://a/volumes").send().unwrap();
        assert!(crate::has_changed());
    });
    assert!(!crate::has_changed(), "the next call has changed nothing yet");
}
