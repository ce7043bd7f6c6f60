//! The import `http` through a guest and real sockets: TLS, limits, timeouts, authorization and metrics. A
//! request that the configuration does not allow is rejected before any part of it is sent.
#![expect(clippy::unwrap_used, reason = "a helper of tests fails as a test does")]

mod common;
mod net;

use std::{sync::Arc, time::Duration};

use cofferdam_backend::{BackendMetrics, Call};
use cofferdam_domain::storage::{ErrorKind, Finality};
use cofferdam_wasm::{
    BackendConfig, ComponentSource, Engine, EngineOptions, Grant, HttpConfig, Limits, LoadError,
    OriginConfig, WasmBackend, WasmMetrics,
};
use common::{call, engine};
use net::{
    TEST_TIMEOUT, TestAuthority, TestServer, backend_for_server, get, load, origin, run_script, secrets, send,
};
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

async fn load_with_origins(origins: Vec<OriginConfig>) -> Arc<WasmBackend> {
    load(&engine(), origins, Limits::default()).await.unwrap()
}

#[tokio::test]
async fn requests_to_a_configured_origin_succeed() {
    let server = TestServer::start(None).await;
    let backend = backend_for_server(&server).await;
    assert_eq!(
        send(&backend, get(&server.http("/echo?a=b#c"))).await,
        "200 GET /echo?a=b 0",
        "the fragment stays here"
    );
    let post = json!({
        "method": "POST",
        "url": server.http("/echo"),
        "body": "hello",
        "headers": [["X-Two", "a"], ["x-two", "b"]],
    });
    assert_eq!(send(&backend, post).await, "200 POST /echo 5");
    let headers = server.headers();
    assert_eq!(headers.get_all("x-two").iter().collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(headers.get("host").unwrap(), &server.address.to_string());
    assert_eq!(headers.get("content-length").unwrap(), "5");
    for (method, length) in [("POST", Some("0")), ("PUT", Some("0")), ("PATCH", Some("0")), ("GET", None)] {
        for body in [Value::Null, json!("")] {
            let request = json!({ "method": method, "url": server.http("/echo"), "body": body });
            assert_eq!(send(&backend, request).await, format!("200 {method} /echo 0"));
            let headers = server.headers();
            let found = headers.get("content-length").map(|value| value.to_str().unwrap());
            assert_eq!(found, length, "{method} without a body");
        }
    }
    for method in ["HEAD", "PUT", "PATCH", "DELETE", "OPTIONS"] {
        let expected = if method == "HEAD" { "200 ".to_owned() } else { format!("200 {method} /echo 0") };
        let request = json!({ "method": method, "url": server.http("/echo") });
        assert_eq!(send(&backend, request).await, expected);
    }
    assert_eq!(
        send(&backend, get(&server.http("/missing"))).await,
        "404 x-reason=none no such thing",
        "a response of whatever status"
    );
    let redirect = send(&backend, get(&server.http("/redirect"))).await;
    assert_eq!(redirect, "302 location=http://169.254.169.254/latest ", "nothing follows it");
}

#[tokio::test]
async fn connections_are_shared_only_by_calls_with_the_same_secrets() {
    let server = TestServer::start(None).await;
    let backend = backend_for_server(&server).await;
    let script = json!([{ "send": get(&server.http("/echo")) }, { "send": get(&server.http("/echo")) }]);
    run_script(&backend, "a", call(), script.clone()).await.unwrap();
    let before = server.connection_count();
    let other = Call { secrets: secrets(&[("password", "other")]), ..call() };
    run_script(&backend, "b", other, script).await.unwrap();
    assert!(server.connection_count() > before);
    assert!(server.connection_count() < 4, "{} connections for 4 requests", server.connection_count());
}

#[tokio::test]
async fn tls_works_with_a_private_ca_a_pin_and_a_client_certificate() {
    let (authority, clients) = (TestAuthority::new(), TestAuthority::new());
    let identity = authority.server_certificate("localhost");
    let (certificate_file, key_file) =
        clients.sign("driver", rcgen::ExtendedKeyUsagePurpose::ClientAuth).files("client");
    let open = TestServer::start(Some(identity.server_config(None))).await;
    let closed = TestServer::start(Some(identity.server_config(Some(&clients)))).await;
    let ca_file = Some(authority.certificate_file("allowed-ca.pem"));
    let by_authority =
        |server: &TestServer| OriginConfig { ca_file: ca_file.clone(), ..origin(&server.https("")) };
    let by_pin =
        |server: &TestServer| OriginConfig { pin_sha256: Some(identity.pin()), ..origin(&server.https("")) };
    for config in [
        by_authority(&open),
        by_pin(&open),
        OriginConfig { pin_sha256: Some(identity.pin().to_uppercase()), ..by_authority(&open) },
    ] {
        let backend = load_with_origins(vec![config]).await;
        assert_eq!(send(&backend, get(&open.https("/echo"))).await, "200 GET /echo 0");
    }
    let known = OriginConfig {
        certificate_file: Some(certificate_file),
        key_file: Some(key_file),
        ..by_authority(&closed)
    };
    let backend = load_with_origins(vec![known, by_authority(&open)]).await;
    assert_eq!(send(&backend, get(&closed.https("/echo"))).await, "200 GET /echo 0");
    assert_eq!(send(&backend, get(&open.https("/echo"))).await, "200 GET /echo 0");
    // The server refuses a client without a certificate when the request may be on its way already.
    let hits = closed.request_count();
    let without_certificate = load_with_origins(vec![by_authority(&closed)]).await;
    let refused = send(&without_certificate, get(&closed.https("/echo"))).await;
    assert!(refused.starts_with("Failure::Tls "), "{refused}");
    assert_eq!(closed.request_count(), hits);
}

#[tokio::test]
async fn server_with_a_wrong_certificate_receives_no_request() {
    let (authority, other) = (TestAuthority::new(), TestAuthority::new());
    let identity = authority.server_certificate("localhost");
    let server = TestServer::start(Some(identity.server_config(None))).await;
    let elsewhere =
        TestServer::start(Some(authority.server_certificate("elsewhere.example").server_config(None))).await;
    let plain = TestServer::start(None).await;
    let ca_file = Some(authority.certificate_file("right-ca.pem"));
    let of = |server: &TestServer| OriginConfig { ca_file: ca_file.clone(), ..origin(&server.https("")) };
    for (server, config) in [
        (&server, OriginConfig { ca_file: Some(other.certificate_file("wrong-ca.pem")), ..of(&server) }),
        (&server, OriginConfig { pin_sha256: Some("0".repeat(64)), ..of(&server) }),
        (&server, OriginConfig { ca_file: None, pin_sha256: Some("0".repeat(64)), ..of(&server) }),
        (
            &server,
            OriginConfig {
                ca_file: Some(other.certificate_file("wrong-ca.pem")),
                pin_sha256: Some(identity.pin()),
                ..of(&server)
            },
        ),
        (&elsewhere, of(&elsewhere)),
        (&plain, of(&plain)),
    ] {
        let backend = load_with_origins(vec![config]).await;
        let refused = send(&backend, get(&server.https("/echo"))).await;
        assert!(
            refused.starts_with("Failure::Tls maybe-sent=false TLS with https://localhost:"),
            "{refused}"
        );
        assert_eq!(server.request_count(), 0);
    }
}

#[tokio::test]
async fn request_to_another_origin_is_rejected_before_sending() {
    let server = TestServer::start(None).await;
    let other = TestServer::start(None).await;
    let backend = backend_for_server(&server).await;
    let (port, allowed) = (server.address.port(), server.http(""));
    let mapped = format!("http://[::ffff:127.0.0.1]:{port}/echo");
    for (url, failure) in [
        (other.http("/echo"), "Forbidden"),
        (allowed.replace("http:", "https:"), "Forbidden"),
        (format!("http://localhost:{port}/echo"), "Forbidden"),
        (format!("http://2130706433:{port}/echo"), "Forbidden"),
        (format!("http://0x7f000001:{port}/echo"), "Forbidden"),
        (format!("http://127.1:{port}/echo"), "Forbidden"),
        (format!("http://127.0.0.1.:{port}/echo"), "Forbidden"),
        (format!("http://[::1]:{port}/echo"), "Forbidden"),
        (mapped, "Forbidden"),
        ("http://127.0.0.1/echo".to_owned(), "Forbidden"),
        (format!("{allowed}@{}/echo", other.address), "Invalid"),
        (format!("http://user:password@127.0.0.1:{port}/echo"), "Invalid"),
        (format!("{allowed}\\@{}/echo", other.address), "Invalid"),
        (format!("ftp://127.0.0.1:{port}/echo"), "Invalid"),
        ("/echo".to_owned(), "Invalid"),
        (format!("{allowed}/echo HTTP/1.1\r\nx: y"), "Invalid"),
    ] {
        let refused = send(&backend, get(&format!("{url}?token=hidden"))).await;
        assert!(refused.starts_with(&format!("Failure::{failure} maybe-sent=false ")), "{url}: {refused}");
        assert!(!refused.contains("hidden") && !refused.contains("password"), "{refused}");
    }
    assert_eq!((server.connection_count(), other.connection_count()), (0, 0));
    // An absolute URL in the place of a path is a path.
    let nested = send(&backend, get(&format!("{allowed}/echo?http://{}/", other.address))).await;
    assert_eq!(nested, format!("200 GET /echo?http://{}/ 0", other.address));
}

#[tokio::test]
async fn name_resolving_to_loopback_is_rejected_unless_configured() {
    let server = TestServer::start(None).await;
    let name = format!("http://localhost:{}", server.address.port());
    let open = OriginConfig { addresses: None, ..origin(&name) };
    let refused = send(&*load_with_origins(vec![open]).await, get(&format!("{name}/echo"))).await;
    assert!(refused.starts_with("Failure::Forbidden maybe-sent=false localhost is at "), "{refused}");
    let elsewhere = OriginConfig { addresses: Some(vec!["10.0.0.0/8".to_owned()]), ..origin(&name) };
    let refused = send(&*load_with_origins(vec![elsewhere]).await, get(&format!("{name}/echo"))).await;
    assert!(refused.starts_with("Failure::Forbidden maybe-sent=false localhost is at "), "{refused}");
    assert_eq!(server.connection_count(), 0);
    let meant = send(&*load_with_origins(vec![origin(&name)]).await, get(&format!("{name}/echo"))).await;
    assert_eq!(meant, "200 GET /echo 0");
}

#[tokio::test]
async fn invalid_and_reserved_headers_are_rejected() {
    let server = TestServer::start(None).await;
    let backend = backend_for_server(&server).await;
    for (name, value) in [
        ("x", "a\r\nx-evil: b"),
        ("x", "a\nb"),
        ("x\r\nx-evil", "b"),
        ("x y", "b"),
        ("", "b"),
        ("Host", "evil"),
        ("Connection", "close"),
        ("Transfer-Encoding", "chunked"),
        ("content-length", "1"),
        ("Proxy-Authorization", "x"),
        ("Expect", "100-continue"),
        ("upgrade", "h2c"),
        ("TE", "trailers"),
    ] {
        let request = json!({ "method": "GET", "url": server.http("/echo"), "headers": [[name, value]] });
        let refused = send(&backend, request).await;
        assert!(refused.starts_with("Failure::Invalid maybe-sent=false "), "{name:?}: {refused}");
    }
    let many: Vec<_> = (0..129).map(|number| [format!("x-{number}"), String::new()]).collect();
    let request = json!({ "method": "GET", "url": server.http("/echo"), "headers": many });
    assert!(send(&backend, request).await.starts_with("Failure::TooLarge maybe-sent=false "));
    assert_eq!(server.connection_count(), 0);
}

#[tokio::test]
async fn request_and_response_sizes_are_bounded() {
    let server = TestServer::start(None).await;
    let limits = Limits { http_request_bytes: 1_000, http_response_bytes: 2_000, ..Limits::default() };
    let backend = load(&engine(), vec![origin(&server.http(""))], limits).await.unwrap();
    let post = |bytes: u32| json!({ "method": "POST", "url": server.http("/echo"), "body_bytes": bytes });
    assert_eq!(send(&backend, post(1_000)).await, "200 POST /echo 1000");
    let refused = send(&backend, post(1_001)).await;
    assert!(
        refused.starts_with("Failure::TooLarge maybe-sent=false the body has 1001 bytes; at most 1000"),
        "{refused}"
    );
    let large = async |bytes: u32| {
        let script = json!([{ "measure": get(&server.http(&format!("/large?{bytes}"))) }]);
        run_script(&backend, "v", call(), script).await.unwrap().remove(0)
    };
    assert_eq!(large(2_000).await, "200 with 2000 bytes");
    let refused = large(2_001).await;
    assert!(refused.starts_with("Failure::TooLarge maybe-sent=true the response of http://"), "{refused}");
    let refused = send(&backend, get(&server.http("/long-head"))).await;
    assert!(refused.starts_with("Failure::TooLarge maybe-sent=true "), "{refused}");
}

#[tokio::test]
async fn response_timeout_reports_maybe_sent() {
    let server = TestServer::start(None).await;
    let backend = backend_for_server(&server).await;
    let endless = json!({ "method": "POST", "url": server.http("/gate"), "timeout_ms": 2_000 });
    let (failed, arrived) = tokio::join!(send(&backend, endless), server.next_request());
    assert_eq!(arrived, "POST /gate ");
    assert!(failed.starts_with("Failure::Timeout maybe-sent=true http://127.0.0.1:"), "{failed}");
    assert!(failed.ends_with("did not respond within 2s"), "{failed}");
    // A server that accepts connections and sends nothing: the TLS handshake never starts.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://localhost:{}", silent.local_addr().unwrap().port());
    let backend =
        load_with_origins(vec![OriginConfig { pin_sha256: Some("0".repeat(64)), ..origin(&url) }]).await;
    let failed = send(&backend, json!({ "method": "POST", "url": url, "timeout_ms": 100 })).await;
    assert!(failed.starts_with("Failure::Timeout maybe-sent=false no connection to https://"), "{failed}");
    // Nothing listens on the port.
    let gone = silent.local_addr().unwrap();
    drop(silent);
    let backend = load_with_origins(vec![origin(&format!("http://{gone}"))]).await;
    let failed = send(&backend, get(&format!("http://{gone}/"))).await;
    assert!(failed.starts_with("Failure::Connect maybe-sent=false no connection to http://"), "{failed}");
}

#[tokio::test]
async fn sent_exchange_outlives_its_call_and_keeps_the_volume_locked() {
    let server = TestServer::start(None).await;
    let backend = backend_for_server(&server).await;
    let create = json!([{ "send": { "method": "POST", "url": server.http("/gate"), "body": "create v" } }]);
    let hurried = Call { deadline: Duration::from_secs(3), ..call() };
    let (end, arrived) =
        tokio::join!(run_script(&backend, "v", hurried, create.clone()), server.next_request());
    assert_eq!(arrived, "POST /gate create v");
    let error = end.unwrap_err();
    assert_eq!((error.kind, error.finality), (ErrorKind::DeadlineExceeded, Finality::Unknown), "{error}");
    // The guest was stopped, but the array is still processing its request.
    let error = run_script(&backend, "v", call(), create.clone()).await.unwrap_err();
    assert_eq!((error.kind, error.finality), (ErrorKind::Aborted, Finality::InProgress));
    assert_eq!(error.message, "another call for this volume is running");
    assert_eq!(server.request_count(), 1);
    server.release_gate(2);
    let other = json!([{ "send": get(&server.http("/echo")) }]);
    let wait_until_unlocked = async {
        loop {
            match run_script(&backend, "v", call(), other.clone()).await {
                Ok(answers) => return answers,
                Err(error) => assert_eq!(error.message, "another call for this volume is running"),
            }
            tokio::task::yield_now().await;
        }
    };
    // A mended request may follow the creation in doubt.
    let answers = tokio::time::timeout(TEST_TIMEOUT, wait_until_unlocked).await.unwrap();
    assert_eq!(answers, ["200 GET /echo 0"]);
    assert_eq!(server.request_count(), 2);
    assert_eq!(run_script(&backend, "v", call(), create).await.unwrap(), ["200 passed"]);
}

/// A fault of a server, after it has read a request.
enum Misbehavior {
    /// Resets the connection, after these bytes of a response.
    Reset(&'static str),
    /// Closes the connection, after these bytes of a response.
    Close(&'static str),
}

#[tokio::test]
async fn broken_responses_are_described() {
    const HALF: &str = "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf";
    #[rustfmt::skip] // one row a case
    let table = [
        ("reset", Misbehavior::Reset(""), "connection error: Connection reset by peer (os error 104)"),
        ("reset in the body", Misbehavior::Reset(HALF), "Connection reset by peer (os error 104)"),
        ("closed", Misbehavior::Close(""), "connection closed before message completed"),
        ("half a head", Misbehavior::Close("HTTP/1.1 200 OK\r\ncontent"),
            "connection closed before message completed"),
        ("half a body", Misbehavior::Close(HALF), "end of file before message length reached"),
        ("half a chunk",
            Misbehavior::Close("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n64\r\nhalf"),
            "end of file before message length reached"),
        ("not HTTP", Misbehavior::Close("SSH-2.0-OpenSSH_9.2\r\n"), "invalid HTTP version parsed"),
    ];
    for (name, behavior, expected) in table {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let backend = load_with_origins(vec![origin(url.trim_end_matches('/'))]).await;
        let server = async {
            let (mut connection, _) = listener.accept().await.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(connection.read_u8().await.unwrap());
            }
            let (bytes, is_reset) = match behavior {
                Misbehavior::Reset(bytes) => (bytes, true),
                Misbehavior::Close(bytes) => (bytes, false),
            };
            connection.write_all(bytes.as_bytes()).await.unwrap();
            if is_reset {
                connection.set_zero_linger().unwrap();
            }
        };
        let (failed, ()) = tokio::join!(send(&backend, json!({ "method": "POST", "url": url })), server);
        let start = "Failure::Broken maybe-sent=true the exchange with http://127.0.0.1:";
        assert!(failed.starts_with(start) && failed.ends_with(expected), "{name}: {failed}");
    }
}

#[tokio::test]
async fn unsent_exchange_ends_with_its_call() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://localhost:{}", silent.local_addr().unwrap().port());
    let backend =
        load_with_origins(vec![OriginConfig { pin_sha256: Some("0".repeat(64)), ..origin(&url) }]).await;
    let script = json!([{ "send": get(&url) }]);
    let hurried = Call { deadline: Duration::from_secs(3), ..call() };
    let (end, connection) = tokio::join!(run_script(&backend, "v", hurried, script), async {
        let (mut connection, _) = silent.accept().await.unwrap();
        let mut greeting = Vec::new();
        tokio::io::AsyncReadExt::read_to_end(&mut connection, &mut greeting).await.unwrap();
        greeting
    });
    assert_eq!(end.unwrap_err().kind, ErrorKind::DeadlineExceeded);
    assert_eq!(connection.first(), Some(&22), "a client's greeting, and then the end");
    let other = run_script(&backend, "v", call(), json!([])).await.unwrap();
    assert_eq!(other, [""; 0], "nothing runs any more");
}

#[tokio::test]
async fn exchanges_over_the_limit_are_rejected_immediately() {
    let server = TestServer::start(None).await;
    let limits = Limits { http_exchanges: 1, ..Limits::default() };
    let backend = load(&engine(), vec![origin(&server.http(""))], limits).await.unwrap();
    let first = {
        let (backend, url) = (Arc::clone(&backend), server.http("/gate"));
        tokio::spawn(
            async move { run_script(&backend, "first", call(), json!([{ "send": get(&url) }])).await },
        )
    };
    assert_eq!(server.next_request().await, "GET /gate ");
    let refused = send(&backend, get(&server.http("/echo"))).await;
    assert!(refused.starts_with("Failure::Overloaded maybe-sent=false 1 requests"), "{refused}");
    server.release_gate(1);
    assert_eq!(first.await.unwrap().unwrap(), ["200 passed"]);
    assert_eq!(send(&backend, get(&server.http("/echo"))).await, "200 GET /echo 0");
}

fn authorized_get(url: String, authorization: Value) -> Value {
    json!({ "method": "GET", "url": url, "authorization": authorization })
}

#[tokio::test]
async fn secrets_echoed_by_a_server_are_redacted() {
    let server = TestServer::start(None).await;
    let backend = backend_for_server(&server).await;
    let of = || Call { secrets: secrets(&[("user", "admin"), ("password", "correct horse")]), ..call() };
    for (authorization, path, header, expected) in [
        (
            json!({ "basic": ["root", "password"] }),
            "/authorization",
            "authorization",
            "Basic cm9vdDpjb3JyZWN0IGhvcnNl",
        ),
        (
            json!({ "hidden-basic": ["user", "password"] }),
            "/authorization",
            "authorization",
            "Basic YWRtaW46Y29ycmVjdCBob3JzZQ==",
        ),
        (json!({ "bearer": "password" }), "/authorization", "authorization", "Bearer correct horse"),
        (json!({ "header": ["X-API-Key", "password"] }), "/api-key", "x-api-key", "correct horse"),
    ] {
        let script = json!([{ "fail-with-body": authorized_get(server.http(path), authorization.clone()) }]);
        let error = run_script(&backend, expected, of(), script.clone()).await.unwrap_err();
        assert_eq!(server.headers().get(header).unwrap(), expected);
        let blotted = expected
            .rsplit_once("Basic ")
            .map_or_else(|| expected.replace("correct horse", "[secret]"), |_| "Basic [secret]".to_owned());
        assert_eq!(error.message, blotted);
        // In a response it is rejected: the caller would store the secret where others can read it.
        let name = authorization.to_string();
        let script = json!([{ "return-body": authorized_get(server.http(path), authorization) }]);
        let error = run_script(&backend, &name, of(), script).await.unwrap_err();
        assert!(error.message.starts_with("the backend's response breaks the contract: "), "{error}");
        assert!(!error.message.contains("horse") && !error.message.contains("Y29ycmVjdCBob3JzZ"), "{error}");
    }
}

#[tokio::test]
async fn invalid_authorization_is_rejected_without_showing_the_secret() {
    let server = TestServer::start(None).await;
    let backend = backend_for_server(&server).await;
    let of = || Call {
        secrets: secrets(&[("split", "a\r\nb: c"), ("colon", "a:b"), ("fine", "good luck")]),
        ..call()
    };
    let header = |name: &str| json!({ "header": [name, "fine"] });
    for (authorization, headers, expected) in [
        (json!({ "bearer": "split" }), json!([]), "the value of the header `authorization` has characters"),
        (
            json!({ "header": ["x-key", "split"] }),
            json!([]),
            "the value of the header `x-key` has characters",
        ),
        (json!({ "hidden-basic": ["colon", "fine"] }), json!([]), "the user's name has a colon"),
        (header("host"), json!([]), "the header `host` is the host's"),
        (header("x key"), json!([]), "\"x key\" is not a header's name"),
        (header("X-Key"), json!([["x-kEY", "e"]]), "the header `x-key` is given twice"),
        (
            json!({ "basic": ["u", "fine"] }),
            json!([["Authorization", "e"]]),
            "the header `authorization` is given",
        ),
    ] {
        let mut request = authorized_get(server.http("/echo"), authorization);
        request.as_object_mut().unwrap().insert("headers".to_owned(), headers);
        let script = json!([{ "send": request }]);
        let refused = run_script(&backend, "v", of(), script).await.unwrap().remove(0);
        assert!(refused.starts_with(&format!("Failure::Invalid maybe-sent=false {expected}")), "{refused}");
    }
    let plain =
        json!({ "method": "GET", "url": server.http("/echo"), "headers": [["Authorization", "Token t"]] });
    assert_eq!(send(&backend, plain).await, "200 GET /echo 0");
    assert_eq!(server.headers().get("authorization").unwrap(), "Token t");
    assert_eq!(server.request_count(), 1);
}

#[tokio::test]
async fn http_and_session_metrics_are_counted() {
    let mut registry = Registry::default();
    let calls = BackendMetrics::register(&mut registry);
    let metrics = WasmMetrics::register(&mut registry, calls);
    let cache = cofferdam_wasm::CompiledCache::Directory(
        std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("compiled"),
    );
    let engine = Engine::new(EngineOptions { cache, metrics }).unwrap();
    let server = TestServer::start(None).await;
    let backend = load(&engine, vec![origin(&server.http(""))], Limits::default()).await.unwrap();
    let script = json!([
        { "send": get(&server.http("/echo")) },
        { "send": get(&server.http("/missing")) },
        { "send": get("http://evil.example/") },
        { "acquire": "k" },
        { "put": ["k", "v", 60_000] },
        { "acquire": "k" },
    ]);
    run_script(&backend, "v", call(), script).await.unwrap();
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    for line in [
        "cofferdam_backend_http_exchanges_total{driver_name=\"net.example\",outcome=\"2xx\"} 1",
        "cofferdam_backend_http_exchanges_total{driver_name=\"net.example\",outcome=\"4xx\"} 1",
        "cofferdam_backend_http_exchanges_total{driver_name=\"net.example\",outcome=\"forbidden\"} 1",
        "cofferdam_backend_http_exchange_seconds_count{driver_name=\"net.example\"} 2",
        "cofferdam_backend_http_denied_total{driver_name=\"net.example\",reason=\"origin\"} 1",
        "cofferdam_backend_sessions{driver_name=\"net.example\"} 1",
        "cofferdam_backend_session_events_total{driver_name=\"net.example\",event=\"hit\"} 1",
        "cofferdam_backend_session_events_total{driver_name=\"net.example\",event=\"miss\"} 1",
        "cofferdam_backend_session_events_total{driver_name=\"net.example\",event=\"put\"} 1",
        "cofferdam_backend_session_events_total{driver_name=\"net.example\",event=\"invalidated\"} 0",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
    assert!(!text.contains("evil") && !text.contains("127.0.0.1"), "no label shows where requests go");
}

#[tokio::test]
async fn invalid_http_configuration_is_rejected_at_load() {
    let refused = async |config: OriginConfig| -> LoadError {
        load(&engine(), vec![config], Limits::default()).await.unwrap_err()
    };
    let error =
        refused(OriginConfig { ca_file: Some("/nowhere/ca.pem".into()), ..origin("https://a.example") })
            .await;
    assert!(
        error.to_string().starts_with(
            "net.wasm: the HTTP origin `https://a.example`: `ca-file` /nowhere/ca.pem: No such file"
        ),
        "{error}"
    );
    let error = refused(OriginConfig { addresses: None, ..origin("http://127.0.0.1:80") }).await;
    assert!(error.to_string().contains("127.0.0.1 is not allowed as an address"), "{error}");
}

#[tokio::test]
async fn caller_secrets_override_configured_secrets() {
    let server = TestServer::start(None).await;
    let config = BackendConfig {
        http: HttpConfig { origins: vec![origin(&server.http(""))] },
        secrets: secrets(&[("token", "of the operator")]),
        class_secrets: true,
        grants: Grant::ALL.into(),
        ..BackendConfig::default()
    };
    let source = ComponentSource::Bytes { name: "net.wasm".to_owned(), bytes: cofferdam_test_guests::NET };
    let backend = engine().load(source, config).await.unwrap();
    let request = authorized_get(server.http("/authorization"), json!({ "bearer": "token" }));
    let script = json!([{ "fail-with-body": request }]);
    let error = run_script(&backend, "a", call(), script.clone()).await.unwrap_err();
    assert_eq!(server.headers().get("authorization").unwrap(), "Bearer of the operator");
    assert_eq!(error.message, "Bearer [secret]");
    let own = Call { secrets: secrets(&[("token", "of the caller")]), ..call() };
    let error = run_script(&backend, "b", own, script).await.unwrap_err();
    assert_eq!(server.headers().get("authorization").unwrap(), "Bearer of the caller");
    assert_eq!(error.message, "Bearer [secret]");
}

/// Loads the guest with these secrets and origins; `class_secrets` grants the secrets of callers.
async fn load_with_secrets(
    configured: &[(&str, &str)],
    origins: Vec<OriginConfig>,
    class_secrets: bool,
) -> Result<Arc<WasmBackend>, LoadError> {
    let config = BackendConfig {
        http: HttpConfig { origins },
        secrets: secrets(configured),
        class_secrets,
        grants: Grant::ALL.into(),
        ..BackendConfig::default()
    };
    let source = ComponentSource::Bytes { name: "net.wasm".to_owned(), bytes: cofferdam_test_guests::NET };
    engine().load(source, config).await
}

/// An origin for the secrets of these names only.
fn origin_for_secrets(url: &str, names: &[&str]) -> OriginConfig {
    let secrets = Some(names.iter().map(|name| (*name).to_owned()).collect());
    OriginConfig { secrets, ..origin(url) }
}

#[tokio::test]
async fn a_call_with_class_secrets_fails_without_the_grant() {
    let server = TestServer::start(None).await;
    let configured = [("password", "of the operator")];
    let backend = load_with_secrets(&configured, vec![origin(&server.http(""))], false).await.unwrap();
    let request = authorized_get(server.http("/authorization"), json!({ "bearer": "password" }));
    let script = json!([{ "send": request }]);
    for pairs in [&[("password", "of the class")][..], &[("another", "of the class")]] {
        let class_call = Call { secrets: secrets(pairs), ..call() };
        let error = run_script(&backend, "v", class_call, script.clone()).await.unwrap_err();
        assert_eq!((error.kind, error.finality), (ErrorKind::PermissionDenied, Finality::Final), "{error}");
        let expected =
            "expected `class-secrets = true` in its section [backend.NAME], in the process that runs it";
        assert!(error.message.ends_with(expected), "{error}");
        assert!(!error.message.contains("of the class"), "{error}");
    }
    assert_eq!(server.request_count(), 0);
    // Neither the breaker nor other calls are affected.
    for _ in 0..10 {
        let class_call = Call { secrets: secrets(&[("a", "b")]), ..call() };
        assert!(run_script(&backend, "v", class_call, json!([])).await.is_err());
    }
    let error = run_script(
        &backend,
        "w",
        call(),
        json!([{ "fail-with-body": authorized_get(
        server.http("/authorization"), json!({ "bearer": "password" })) }]),
    );
    assert_eq!(error.await.unwrap_err().message, "Bearer [secret]");
    assert_eq!(server.headers().get("authorization").unwrap(), "Bearer of the operator");
}

#[tokio::test]
async fn class_secrets_are_visible_for_one_call() {
    let server = TestServer::start(None).await;
    let configured = [("user", "operator"), ("password", "of the operator")];
    let backend = load_with_secrets(&configured, vec![origin(&server.http(""))], true).await.unwrap();
    let reveal = || json!([{ "reveal": "user" }, { "reveal": "password" }, { "reveal": "token" }]);
    let class_call = Call { secrets: secrets(&[("password", "of a class"), ("token", "12345")]), ..call() };
    // A class replaces a configured secret of the same name, and leaves the others.
    let lengths = run_script(&backend, "a", class_call, reveal()).await.unwrap();
    assert_eq!(lengths, ["8 bytes", "10 bytes", "5 bytes"]);
    let lengths = run_script(&backend, "b", call(), reveal()).await.unwrap();
    assert_eq!(lengths, ["8 bytes", "15 bytes", "no such secret"]);
}

#[tokio::test]
async fn secrets_sign_without_being_revealed() {
    let backend = load_with_secrets(&[("key", "Jefe")], Vec::new(), false).await.unwrap();
    let message = "what do ya want for nothing?";
    let script = json!([{ "sign": ["key", message] }, { "sign": ["other", message] }]);
    let error = run_script(&backend, "v", call(), script).await.unwrap_err();
    assert_eq!(error.message, "there is no secret \"other\"");
    let answers = run_script(&backend, "v", call(), json!([{ "sign": ["key", message] }])).await.unwrap();
    // RFC 4231, test case 2, and the output of sha256sum.
    let hmac = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843";
    let digest = "689a1a0fa183259e022c4d77a4eb0810a94e9090d132c5f8732ccce2b36e3621";
    assert_eq!(answers, [format!("{hmac} {digest}")]);
}

#[tokio::test]
async fn a_call_knows_its_remaining_time() {
    let backend = load_with_secrets(&[], Vec::new(), false).await.unwrap();
    let hour = Call { deadline: Duration::from_secs(3_600), ..call() };
    let answers = run_script(&backend, "v", hour, json!(["remaining-time"])).await.unwrap();
    let milliseconds: u64 = answers.concat().parse().unwrap();
    assert!((1..=3_600_000).contains(&milliseconds), "{milliseconds}");
}

#[tokio::test]
async fn reveal_is_a_grant_apart_from_class_secrets() {
    let config = BackendConfig {
        http: HttpConfig { origins: vec![origin("http://127.0.0.1:80")] },
        class_secrets: true,
        ..BackendConfig::default()
    };
    let source = ComponentSource::Bytes { name: "net.wasm".to_owned(), bytes: cofferdam_test_guests::NET };
    let error = engine().load(source, config).await.unwrap_err().to_string();
    assert!(error.contains("; add `reveal` to its grants"), "{error}");
}

#[tokio::test]
async fn logins_with_class_secrets_are_separate_and_redacted() {
    let server = TestServer::start(None).await;
    let backend = load_with_secrets(&[], vec![origin(&server.http(""))], true).await.unwrap();
    let of =
        |tenant: &str| Call { secrets: secrets(&[("password", &format!("password of {tenant}"))]), ..call() };
    let login = || authorized_get(server.http("/login"), json!({ "bearer": "password" }));
    let keep = json!([{ "store-login": ["k", login()] }]);
    for tenant in ["tenant-a", "tenant-b"] {
        assert_eq!(run_script(&backend, tenant, of(tenant), keep.clone()).await.unwrap(), ["made"]);
    }
    assert_eq!(server.request_count(), 2, "each tenant logs in");
    // A later call finds its tenant's token, and no other; the token is redacted although it was obtained by
    // another call.
    for (tenant, other) in [("tenant-a", "tenant-b"), ("tenant-b", "tenant-a")] {
        let name = |step: &str| format!("{tenant}-{step}");
        let fail = json!([{ "fail-with-login": "k" }]);
        let error = run_script(&backend, &name("fail"), of(tenant), fail).await;
        let error = error.unwrap_err();
        assert_eq!(error.message, "the token [secret] was refused", "{tenant}");
        let show = json!([{ "acquire": "k" }]);
        let error = run_script(&backend, &name("show"), of(tenant), show).await.unwrap_err();
        assert!(error.message.contains("has a secret of the call"), "{error}");
        assert!(!error.message.contains(tenant) && !error.message.contains(other), "{error}");
    }
    let found = run_script(&backend, "c", of("tenant-c"), json!([{ "acquire": "k" }])).await.unwrap();
    assert_eq!(found, ["locked"]);
    let found = run_script(&backend, "d", call(), json!([{ "acquire": "k" }])).await.unwrap();
    assert_eq!(found, ["locked"], "a call without the class's secrets has no login of the class");
}

#[tokio::test]
async fn tokens_in_plain_headers_are_redacted() {
    let server = TestServer::start(None).await;
    let backend = backend_for_server(&server).await;
    for (header, value, path, expected) in [
        ("X-Auth-Token", "t-0123456789", "/token", "[secret]"),
        ("Authorization", "Token t-9876543210", "/authorization", "Token [secret]"),
    ] {
        let request = json!({ "method": "GET", "url": server.http(path), "headers": [[header, value]] });
        let script = json!([{ "fail-with-body": request }]);
        let error = run_script(&backend, header, call(), script).await.unwrap_err();
        assert_eq!(error.message, expected, "{header}");
    }
    // The number of signatures is unlimited, and the last ones are redacted.
    let request = |n: usize| {
        let headers = json!([["Authorization", format!("Signature s-{n}")]]);
        json!({ "method": "GET", "url": server.http("/authorization"), "headers": headers })
    };
    let mut script: Vec<Value> = (0..100).map(|n| json!({ "send": request(1_000_000 + n) })).collect();
    script.push(json!({ "fail-with-body": request(1_000_000) }));
    let error = run_script(&backend, "many", call(), Value::Array(script)).await.unwrap_err();
    assert_eq!(error.message, "Signature [secret]");
}

#[tokio::test]
async fn secrets_are_sent_only_to_their_origins() {
    let (first, second) = (TestServer::start(None).await, TestServer::start(None).await);
    let configured = [("one", "secret of one"), ("two", "secret of two"), ("both", "secret of both")];
    let origins = vec![
        origin_for_secrets(&first.http(""), &["one", "both", "of-class"]),
        origin_for_secrets(&second.http(""), &["two", "both"]),
    ];
    let backend = load_with_secrets(&configured, origins, true).await.unwrap();
    let class_call =
        || Call { secrets: secrets(&[("of-class", "from a class"), ("unbound", "from it, too")]), ..call() };
    for (name, [to_first, to_second]) in [
        ("one", [true, false]),
        ("two", [false, true]),
        ("both", [true, true]),
        ("of-class", [true, false]),
        ("unbound", [false, false]),
    ] {
        for (server, is_sent) in [(&first, to_first), (&second, to_second)] {
            for authorization in [
                json!({ "bearer": name }),
                json!({ "basic": ["root", name] }),
                json!({ "hidden-basic": [name, "both"] }),
                json!({ "hidden-basic": ["both", name] }),
                json!({ "header": ["X-Key", name] }),
            ] {
                let before = server.request_count();
                let request = authorized_get(server.http("/echo"), authorization);
                let steps = run_script(&backend, "v", class_call(), json!([{ "send": request }])).await;
                let step = steps.unwrap().remove(0);
                if is_sent {
                    assert_eq!(step, "200 GET /echo 0");
                } else {
                    let expected = format!(
                        "Failure::Forbidden maybe-sent=false the secret {name:?} may not be sent to {}; \
                         expected it in `secrets` of this origin",
                        server.http("")
                    );
                    assert!(step.starts_with(&expected), "{step}");
                }
                assert_eq!(server.request_count() - before, usize::from(is_sent));
            }
        }
    }
    // Requests without a secret go to both.
    assert_eq!(send(&backend, get(&second.http("/echo"))).await, "200 GET /echo 0");
}

#[tokio::test]
async fn without_a_list_secrets_go_to_the_only_origin() {
    let (first, second) = (TestServer::start(None).await, TestServer::start(None).await);
    let bearer = |server: &TestServer| {
        let request = authorized_get(server.http("/echo"), json!({ "bearer": "password" }));
        json!([{ "send": request }])
    };
    let configured = [("password", "hunter2-hunter2")];
    let only = load_with_secrets(&configured, vec![origin(&first.http(""))], true).await.unwrap();
    assert_eq!(run_script(&only, "v", call(), bearer(&first)).await.unwrap(), ["200 GET /echo 0"]);
    let class_call = Call { secrets: secrets(&[("password", "of a class")]), ..call() };
    assert_eq!(run_script(&only, "v", class_call, bearer(&first)).await.unwrap(), ["200 GET /echo 0"]);

    let origins = vec![origin(&first.http("")), origin(&second.http(""))];
    let several = load_with_secrets(&configured, origins, true).await.unwrap();
    for server in [&first, &second] {
        let step = run_script(&several, "v", call(), bearer(server)).await.unwrap().remove(0);
        assert!(step.starts_with("Failure::Forbidden maybe-sent=false the secret \"password\""), "{step}");
    }
    let unknown = vec![origin_for_secrets(&first.http(""), &["pasword"])];
    let error = load_with_secrets(&configured, unknown.clone(), false).await.unwrap_err().to_string();
    assert!(error.contains("\"pasword\" in `secrets`: expected a name in [backend.NAME.secrets]"), "{error}");
    // It may be the name of a class's secret.
    load_with_secrets(&configured, unknown, true).await.unwrap();
}
