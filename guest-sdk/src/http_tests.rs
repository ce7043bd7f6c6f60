//! Tests of HTTP requests on a mock host: kind and finality of errors, the content of a request, messages
//! from error responses, rejected URLs, and a request without a mock host.

use super::*;
use crate::{ErrorKind, Finality, mock::MockHost, secrets, time};

fn request_error(failure: Failure, maybe_sent: bool) -> HttpError {
    if maybe_sent { HttpError::lost(failure, "x") } else { HttpError::unsent(failure, "x") }
}

#[test]
fn a_request_error_is_final_only_if_nothing_was_sent() {
    #[rustfmt::skip] // one row a case
    let table = [
        (Failure::Invalid,      ErrorKind::FailedPrecondition),
        (Failure::Forbidden,    ErrorKind::FailedPrecondition),
        (Failure::NameNotFound, ErrorKind::Unavailable),
        (Failure::Connect,      ErrorKind::Unavailable),
        (Failure::Tls,          ErrorKind::Unavailable),
        (Failure::Timeout,      ErrorKind::DeadlineExceeded),
        (Failure::TooLarge,     ErrorKind::Internal),
        (Failure::Broken,       ErrorKind::Unavailable),
        (Failure::Overloaded,   ErrorKind::Unavailable),
    ];
    for (cause, kind) in table {
        for (maybe_sent, finality) in [(false, Finality::Final), (true, Finality::Unknown)] {
            let error = StorageError::from(request_error(cause, maybe_sent));
            assert_eq!((error.kind, error.finality), (kind, finality), "{cause:?} {maybe_sent}");
        }
    }
}

/// Sends these requests in one call, and then another request that has no server and is never sent. Returns
/// the finality of the error of that request.
fn finality_after(first: Vec<Request<'static>>) -> Finality {
    let answers = |status: u16| move |_: &crate::mock::ReceivedRequest| Ok(Response::new(status));
    let host = MockHost::new()
        .on(Method::Get, "http://a/", answers(200))
        .on(Method::Post, "http://a/", answers(200))
        .on(Method::Post, "http://a/404", answers(404))
        .on(Method::Post, "http://a/408", answers(408))
        .on(Method::Post, "http://a/500", answers(500))
        .on(Method::Post, "http://a/507", answers(507))
        .on(Method::Post, "http://a/lost", |_| Err(request_error(Failure::Broken, true)))
        .on(Method::Post, "http://a/unsent", |_| Err(request_error(Failure::Connect, false)))
        .install();
    host.call(|| {
        for request in first {
            let _ = request.send();
        }
        StorageError::from(Request::put("http://elsewhere/").send().unwrap_err()).finality
    })
}

#[test]
fn after_a_change_no_error_of_a_request_is_final() {
    let post = |path: &str| vec![Request::post(format!("http://a/{path}"))];
    assert_eq!(finality_after(vec![]), Finality::Final);
    assert_eq!(finality_after(vec![Request::get("http://a/")]), Finality::Final);
    for harmless_path in ["404", "507", "unsent"] {
        assert_eq!(finality_after(post(harmless_path)), Finality::Final, "{harmless_path}");
    }
    for changing_path in ["", "408", "500", "lost"] {
        assert_eq!(finality_after(post(changing_path)), Finality::Unknown, "{changing_path}");
    }
    assert_eq!(finality_after(vec![Request::post("http://a/").read_only()]), Finality::Final);
    let both = [post(""), post("404")].into_iter().flatten().collect();
    assert_eq!(finality_after(both), Finality::Unknown);
}

#[test]
fn a_refusal_after_a_change_is_not_final() {
    let host = MockHost::new()
        .on(Method::Put, "http://a/1", |_| Ok(Response::new(201)))
        .on(Method::Put, "http://a/2", |_| Ok(Response::new(409).with_header("Retry-After", "7")))
        .install();
    let second = || Request::put("http://a/2").send().unwrap().ok_or(|_| None).unwrap_err();
    assert_eq!(host.call(second).finality, Finality::Final);
    let error = host.call(|| {
        Request::put("http://a/1").send().unwrap();
        second()
    });
    assert_eq!((error.finality, error.retry_after_ms), (Finality::Unknown, Some(7000)));
}

#[test]
fn a_request_is_sent_as_built() {
    let host = MockHost::new()
        .secret("key", "s3cret")
        .on(Method::Patch, "http://a/", |request| {
            assert_eq!(request.header("X-Key"), Some("s3cret"));
            Ok(Response::new(200))
        })
        .install();
    let key = secrets::get("key").unwrap();
    let request = Request::patch(url("http://a/", &["b c"]).unwrap())
        .query("after", "ä&b")
        .query("limit", "2")
        .json(&[1])
        .unwrap()
        .secret_header("x-key", &key)
        .timeout(Duration::from_secs(3));
    assert!(!format!("{request:?}").contains("s3cret"));
    request.send().unwrap();
    let sent = &host.requests()[0];
    assert_eq!(sent.url, "http://a/b%20c?after=%C3%A4%26b&limit=2");
    assert_eq!((sent.body.as_slice(), sent.timeout), (b"[1]".as_slice(), Some(Duration::from_secs(3))));
    assert_eq!(
        (sent.secrets.as_slice(), sent.header("content-type")),
        (["key".to_owned()].as_slice(), Some("application/json"))
    );
    assert!(!format!("{sent:?}").contains("s3cret"));
}

#[test]
fn an_error_response_is_quoted_truncated_on_one_line() {
    let long = format!("a\nb{}", "c".repeat(1000));
    let error = Response::new(500).with_body(long).error();
    assert!(error.message.starts_with("the storage answered with status 500: a bccc"), "{}", error.message);
    assert!(error.message.len() < 300);
    assert_eq!(Response::new(503).error().message, "the storage answered with status 503");
    let unread = Response::new(200).with_body("{").json::<u8>().unwrap_err();
    assert_eq!((unread.kind, unread.finality), (ErrorKind::Internal, Finality::Unknown));
}

#[test]
fn messages_name_what_is_wrong_with_the_server() {
    const NOW: u64 = 1_767_323_045_000;
    let page = "<!DOCTYPE html>\n<html><head><title>503 Service\nUnavailable</title></head></html>";
    let html = |status: u16| Response::new(status).with_header("content-type", "text/html; charset=utf-8");
    let dated = |status: u16, at: u64| {
        Response::new(status).with_header("date", &time::to_http_date(Duration::from_millis(NOW + at)))
    };
    #[rustfmt::skip] // one row a case
    let table = [
        ("a page of a proxy", html(503).with_body(page),
            "the storage answered GET / with status 503: an HTML page \"503 Service Unavailable\", perhaps of a \
             proxy in place of the API"),
        ("a page without a type and a title", Response::new(502).with_body(" <HTML></HTML>"),
            "the storage answered GET / with status 502: an HTML page, perhaps of a proxy in place of the API"),
        ("another content type", html(200).with_body(page),
            "the storage's answer to GET /, of status 200 and type text/html; charset=utf-8, is not readable: it is no JSON, \
             line 1 column 1: an HTML page \"503 Service Unavailable\", perhaps of a proxy in place \
             of the API"),
        ("half a body", Response::new(200).with_body("\"1"),
            "the storage's answer to GET /, of status 200, is not readable: the JSON is incomplete, line 1 column 2"),
        ("a redirect", Response::new(302).with_header("location", "https://u:p@b/c?token=t"),
            "the storage answered GET / with status 302 and refers to https://b/c, and redirects are not followed: \
             expected the URL of the API"),
        ("a clock that is an hour ahead", dated(403, 3_600_000),
            "the storage answered GET / with status 403; the storage's clock is 3600 s ahead of this host's, and \
             signatures depend on the time"),
        ("a small difference", dated(403, 60_000), "the storage answered GET / with status 403"),
        ("another failure", dated(404, 3_600_000), "the storage answered GET / with status 404"),
    ];
    for (name, response, expected) in table {
        let host =
            MockHost::new().start_time(NOW).on(Method::Get, "http://a/", move |_| Ok(response.clone()));
        let _host = host.install();
        let signed = Request::get("http://a/").sign_with(|_| Ok(()));
        let answer: Result<u8> =
            signed.send().map_err(Into::into).and_then(|response| response.ok_or(|_| None)?.json());
        assert_eq!(answer.unwrap_err().message, expected, "{name}");
    }
    let behind = |is_signed: bool| {
        let host = MockHost::new().start_time(NOW + 7_200_000);
        let _host = host.on(Method::Get, "http://a/", move |_| Ok(dated(401, 0))).install();
        let request = Request::get("http://a/");
        let request = if is_signed { request.sign_with(|_| Ok(())) } else { request };
        request.send().unwrap().error().message
    };
    assert!(behind(true).ends_with("clock is 7200 s behind this host's, and signatures depend on the time"));
    assert!(behind(false).ends_with("status 401"), "no signature");
}

#[test]
fn without_a_mock_host_a_request_fails() {
    let error = Request::get("http://a/").send().unwrap_err();
    assert!(!error.maybe_sent && error.message.contains("cofferdam_guest::mock"), "{error:?}");
}

#[test]
fn dot_segments_are_rejected_in_urls() {
    for segment in ["", ".", ".."] {
        let error = url("http://a/", &["volumes", segment, "exports"]).unwrap_err();
        assert_eq!((error.kind, error.finality), (ErrorKind::InvalidArgument, Finality::Final));
        assert!(error.message.contains(&format!("{segment:?}")), "{error:?}");
    }
    assert_eq!(url("http://a", &["...", "%2e%2e"]).unwrap(), "http://a/.../%252e%252e");
}

#[test]
fn a_read_only_request_never_has_an_unknown_result() {
    let lost = |_: &crate::mock::ReceivedRequest| Err(request_error(Failure::Timeout, true));
    let host = MockHost::new()
        .on(Method::Get, "http://a/lost", lost)
        .on(Method::Post, "http://a/lost", lost)
        .on(Method::Get, "http://a/503", |_| Ok(Response::new(503)))
        .on(Method::Get, "http://a/423", |_| Ok(Response::new(423)))
        .on(Method::Get, "http://a/text", |_| Ok(Response::new(200).with_body("{")))
        .on(Method::Put, "http://a/", |_| Ok(Response::new(200)))
        .install();
    let read = |request: Request<'static>| -> Result<u8> { request.send()?.ok_or(|_| None)?.json() };
    let finality = |request: Request<'static>| host.call(|| read(request)).unwrap_err().finality;
    for path in ["lost", "503", "text"] {
        let get = || Request::get(format!("http://a/{path}"));
        assert_eq!(finality(get()), Finality::Final, "{path}");
        let after_a_change = host.call(|| {
            Request::put("http://a/").send().unwrap();
            read(get()).unwrap_err().finality
        });
        assert_eq!(after_a_change, Finality::Unknown, "{path}");
    }
    assert_eq!(finality(Request::get("http://a/423")), Finality::InProgress, "at work is at work");
    assert_eq!(finality(Request::post("http://a/lost")), Finality::Unknown);
    assert_eq!(finality(Request::post("http://a/lost").read_only()), Finality::Final);
    let error = Request::get("http://a/lost").send().unwrap_err();
    assert!(error.maybe_sent && !error.maybe_changed, "{error:?}");
}

#[test]
fn status_429_is_final_and_retryable() {
    let error = Response::new(429).with_header("retry-after", "3").error();
    assert_eq!(
        (error.kind, error.finality, error.retry_after_ms),
        (ErrorKind::Unavailable, Finality::Final, Some(3000))
    );
}

#[test]
fn a_body_with_a_content_type_replaces_an_earlier_one() {
    let typed = || Request::post("http://a/").header("Content-Type", "text/plain").header("x", "y");
    let headers = |request: Request<'static>| request.headers;
    let expected = |content_type: &str| {
        vec![("x".to_owned(), "y".to_owned()), ("content-type".to_owned(), content_type.to_owned())]
    };
    assert_eq!(headers(typed().json(&1).unwrap()), expected("application/json"));
    let form = expected("application/x-www-form-urlencoded");
    assert_eq!(headers(typed().form(&[("a", "b")])), form);
    assert_eq!(headers(typed().json(&1).unwrap().form(&[("a", "b")])), form);
}
