//! One login at a time, forgotten by generation.

use std::cell::Cell;

use super::*;
use crate::{ErrorKind, Finality, http, mock::Host};

const TTL: Duration = Duration::from_secs(60);

#[test]
fn a_login_is_held_until_its_time_is_over() {
    let host = Host::new().install();
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
    assert_eq!((value(), host.logins()), (vec![2], vec!["k".to_owned()]));
    host.forget_logins();
    assert_eq!(value(), [3]);
}

#[test]
fn a_login_that_fails_gives_its_turn_back() {
    let host = Host::new().install();
    host.call(|| {
        let error = login("k", TTL, || Err(StorageError::unauthenticated("no"))).unwrap_err();
        assert_eq!((error.kind, host.turn()), (ErrorKind::Unauthenticated, None));
        let too_large = login("k", TTL, || Ok(vec![0; 8193])).unwrap_err();
        assert_eq!(
            (too_large.kind, too_large.finality, host.turn()),
            (ErrorKind::Internal, Finality::Final, None)
        );
        assert_eq!(login("", TTL, || Ok(vec![])).unwrap_err().kind, ErrorKind::Internal);
    });
}

#[test]
fn a_call_with_a_turn_does_not_wait_for_another() {
    let host = Host::new().install();
    host.call(|| {
        assert_eq!(acquire("a"), Ok(Acquired::Vacant));
        assert_eq!(acquire("b"), Err(SessionError::TurnHeld("a".to_owned())));
    });
    assert_eq!(host.turn(), None, "the end of the call has given it back");
}

#[test]
fn a_full_host_lets_the_login_serve_this_call() {
    let _host = Host::new().login_limit(1).install();
    login("a", TTL, || Ok(vec![1])).unwrap();
    let made = Cell::new(0);
    for _ in 0..2 {
        let login = login("b", TTL, || {
            made.set(made.get() + 1);
            Ok(b"text".to_vec())
        });
        assert_eq!(login.unwrap().text(), Ok("text".to_owned()));
    }
    assert_eq!(made.get(), 2);
}

#[test]
fn an_expired_login_is_made_anew_once_and_not_for_ever() {
    let _host = Host::new().install();
    let logins = Cell::new(0_u8);
    let log_in = || {
        logins.set(logins.get() + 1);
        Ok(vec![logins.get()])
    };
    let second = with_login("k", TTL, log_in, |login| {
        Ok(if login.value() == [1] { Outcome::Expired } else { Outcome::Done(login.value().to_vec()) })
    });
    assert_eq!(second, Ok(vec![2]));
    let never = with_login("k", TTL, log_in, |_| Ok(Outcome::<()>::Expired)).unwrap_err();
    assert_eq!((never.kind, never.finality), (ErrorKind::Unauthenticated, Finality::Final));
    assert_eq!(logins.get(), 3, "2 was held, 3 was refused as well");
}

#[test]
fn what_another_call_has_made_anew_is_used() {
    let _host = Host::new().install();
    let work = |login: &Login| {
        if login.value() == b"old" {
            // Another call finds out first.
            put("k", b"new", TTL).unwrap();
            return Ok(Outcome::Expired);
        }
        Ok(Outcome::Done(login.text()?))
    };
    let logins = Cell::new(0);
    let log_in = || {
        logins.set(logins.get() + 1);
        Ok(b"old".to_vec())
    };
    assert_eq!(with_login("k", TTL, log_in, work), Ok("new".to_owned()));
    assert_eq!(logins.get(), 1);
}

#[test]
fn a_login_is_no_change_of_the_storage() {
    let host = Host::new().on(http::Method::Post, "http://a/", |_| Ok(http::Response::new(200))).install();
    host.call(|| {
        login("k", TTL, || Ok(http::Request::post("http://a/login").send()?.body)).unwrap();
        assert!(!crate::changed());
        http::Request::post("http://a/volumes").send().unwrap();
        assert!(crate::changed());
    });
    assert!(!crate::changed(), "the next call has changed nothing yet");
}
