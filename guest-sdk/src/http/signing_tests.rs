//! Tests of hooks that sign requests: what a hook sees, canonical forms, and kind and finality of its errors.

use std::cell::Cell;

use super::*;
use crate::{
    ambient,
    http::{Request, Response},
    mock::{MockHost, ReceivedRequest},
};

fn ok(_: &ReceivedRequest) -> Result<Response, HttpError> {
    Ok(Response::new(200))
}

/// Runs a look at a finished GET request to a URL.
fn look<T>(url: &str, look: impl Fn(&FinishedRequest<'_>) -> T) -> T {
    let seen = Cell::new(None);
    let hook = |request: &mut FinishedRequest<'_>| {
        seen.set(Some(look(request)));
        Ok(())
    };
    let _ = Request::get(url).sign_with(hook).send();
    seen.into_inner().unwrap()
}

#[test]
fn a_url_is_split() {
    #[rustfmt::skip] // one row a case
    let table = [
        ("https://Array.example",           "array.example",      "/",        ""),
        ("https://array.example:443/",      "array.example",      "/",        ""),
        ("https://array.example:80/a",      "array.example:80",   "/a",       ""),
        ("http://array.example:80/a%20b",   "array.example",      "/a%20b",   ""),
        ("http://[::1]:443/a/",             "[::1]:443",          "/a/",      ""),
        ("http://array?x=/&y",              "array",              "/",        "x=/&y"),
        ("http://array/a?",                 "array",              "/a",       ""),
    ];
    for (url, host, path, query) in table {
        let seen =
            look(url, |request| (request.host(), request.path().to_owned(), request.query().to_owned()));
        assert_eq!(seen, (host.to_owned(), path.to_owned(), query.to_owned()), "{url}");
    }
}

#[test]
fn a_canonical_query_is_sorted_and_encoded() {
    #[rustfmt::skip] // one row a case
    let table = [
        ("",                    ""),
        ("b=2&a=1",             "a=1&b=2"),
        ("a=2&a=1&a",           "a=&a=1&a=2"),
        ("a-=2&a=1",            "a=1&a-=2"),
        ("a=x:y&b=a+b&c=%7e",   "a=x%3Ay&b=a%2Bb&c=~"),
        ("&&k==v&",             "k=%3Dv"),
        ("a=%ff&%fE=%c3%a4ä",   "%FE=%C3%A4%C3%A4&a=%FF"),
        ("a=%&b=%4",            "a=%25&b=%254"),
    ];
    for (query, canonical) in table {
        let url = format!("http://array/?{query}");
        assert_eq!(look(&url, |request| request.canonical_query()), canonical, "{query}");
    }
}

#[test]
fn a_hook_runs_last_and_only_when_the_request_is_sent() {
    let host = MockHost::new().on(Method::Post, "http://a/", ok).install();
    let runs = Cell::new(0);
    let build = || {
        let hook = |request: &mut FinishedRequest<'_>| {
            runs.set(runs.get() + 1);
            let digest = request.body_sha256_hex();
            request.add_header("x-digest", digest);
            Ok(())
        };
        Request::post("http://a/").sign_with(hook).body("text")
    };
    drop(build());
    assert_eq!(runs.get(), 0);
    assert!(format!("{:?}", build()).contains("Signer"));
    build().send().unwrap();
    assert_eq!((runs.get(), host.requests()[0].header("x-digest")), (1, Some(&*sha256_hex("text"))));
}

#[test]
fn nothing_is_sent_after_an_error_of_the_hook() {
    let host = MockHost::new().on(Method::Post, "http://a/", ok).install();
    let fail = |error: StorageError| {
        StorageError::from(Request::post("http://a/").sign_with(|_| Err(error)).send().unwrap_err())
    };
    let error = host.call(|| fail(StorageError::failed_precondition("no key")));
    assert_eq!(error, StorageError::failed_precondition("no key"));
    let unavailable = StorageError::unavailable("no token").retry_after(std::time::Duration::from_secs(2));
    assert_eq!(host.call(|| fail(unavailable.clone())), unavailable.clone().without_effect());
    let in_progress = StorageError::in_progress("a login runs");
    assert_eq!(host.call(|| fail(in_progress.clone())), in_progress);
    assert_eq!(host.requests().len(), 0);

    let after_a_change = host.call(|| {
        Request::post("http://a/").send().unwrap();
        fail(unavailable.clone())
    });
    assert_eq!(after_a_change, unavailable, "the call has changed something");
}

#[test]
fn a_failed_hook_is_no_change() {
    let host = MockHost::new().on(Method::Post, "http://a/", ok).install();
    host.call(|| {
        let error = Request::post("http://a/").sign_with(|_| Err(StorageError::internal("x"))).send();
        assert!(matches!(error, Err(HttpError { maybe_sent: false, maybe_changed: false, .. })));
        assert!(!crate::has_changed());
    });
}

#[test]
fn a_url_that_cannot_be_signed_is_rejected() {
    let _host = MockHost::new().on(Method::Get, "", ok).install();
    for url in ["array/a", "/a", "://a/", "http:///a", "http://a/#b"] {
        let error = Request::get(url).sign_with(|_| Ok(())).send().unwrap_err();
        assert_eq!((error.failure, error.maybe_sent), (Failure::Invalid, false), "{url}");
        assert!(Request::get(url).send().is_ok(), "only a signature needs the parts");
    }
}

#[test]
fn a_hook_can_use_the_imports() {
    let _host = MockHost::new().start_time(7000).on(Method::Get, "http://a/", ok).install();
    let date = crate::http::Request::get("http://a/").sign_with(|request| {
        request.add_query("date", &crate::time::to_rfc3339(ambient::now()));
        assert_eq!(request.query_pairs(), [("date".to_owned(), "1970-01-01T00:00:07Z".to_owned())]);
        Ok(())
    });
    date.send().unwrap();
}

#[test]
fn canonical_headers_collapse_only_spaces_and_tabs() {
    let request =
        Request::get("http://a/").header("x-a", "\t 1 \t 2\u{a0}\u{2003} ").header("x-b", " \u{a0}");
    let seen = Cell::new(None);
    let request = request.sign_with(|request| {
        seen.set(Some(request.canonical_headers()));
        Ok(())
    });
    let _ = request.send();
    let seen = seen.into_inner().unwrap();
    assert_eq!((seen["x-a"].as_str(), seen["x-b"].as_str()), ("1 2\u{a0}\u{2003}", "\u{a0}"));
}
