//! Tests that need a fake name resolver. The other tests of HTTP run through a guest, in `tests/http.rs`.

use std::{
    collections::VecDeque,
    io,
    net::IpAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use cofferdam_domain::{storage::Secrets, term::Term};
use futures::future::BoxFuture;
use http::{HeaderMap, HeaderValue, Method, Uri, header};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};

use super::{
    client::{ExchangeOwner, HttpClient, OutgoingRequest},
    config::{HttpConfig, OriginConfig},
    connect::{ExchangePermit, Resolve},
    error::ExchangeError,
    policy::OriginPolicy,
};
use crate::{
    bindings::cofferdam::storage::http::{Failure, Response},
    capabilities::secrets::Tenant,
    limits::Limits,
};

/// Returns one of these lists of addresses for each lookup, in order, and an error when no list is left.
#[derive(Debug, Default)]
struct FakeResolver(Mutex<VecDeque<Vec<&'static str>>>);

impl Resolve for FakeResolver {
    fn resolve<'a>(&'a self, _: &'a str, _: ExchangePermit) -> BoxFuture<'a, io::Result<Vec<IpAddr>>> {
        let answer = self.0.lock().unwrap().pop_front();
        Box::pin(async move {
            let answer = answer.ok_or_else(|| io::Error::other("no such name"))?;
            Ok(answer.into_iter().map(|address| address.parse().unwrap()).collect())
        })
    }
}

/// Starts a server that sends one response on each connection and closes it. The body is the connection's
/// number, counted from 0. Returns the server's port.
async fn start_server() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        for number in 0_usize.. {
            let (mut connection, _) = listener.accept().await.unwrap();
            let mut request = [0; 1024];
            let _ = connection.read(&mut request).await.unwrap();
            let response =
                format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 1\r\n\r\n{number}");
            connection.write_all(response.as_bytes()).await.unwrap();
        }
    });
    port
}

fn client(port: u16, addresses: &[&str], answers: &[&[&'static str]]) -> HttpClient {
    let origin = OriginConfig {
        origin: format!("http://array.example:{port}"),
        addresses: Some(addresses.iter().map(|address| (*address).to_owned()).collect()),
        ..OriginConfig::default()
    };
    let policy = OriginPolicy::new(&HttpConfig { origins: vec![origin] }).unwrap();
    let answers = answers.iter().map(|answer| answer.to_vec()).collect();
    HttpClient::new(policy, &Limits::default(), Arc::new(FakeResolver(Mutex::new(answers))))
}

async fn get(client: &HttpClient, port: u16) -> Result<Response, ExchangeError> {
    get_in_term(client, port, Term::permanent()).await
}

async fn get_in_term(client: &HttpClient, port: u16, term: Term) -> Result<Response, ExchangeError> {
    let (target, path) = client.policy.target(&format!("http://array.example:{port}/")).unwrap();
    let mut headers = HeaderMap::new();
    headers.insert(header::HOST, HeaderValue::from_static("array.example"));
    let order = OutgoingRequest {
        target,
        method: Method::GET,
        path: Uri::from(path),
        headers,
        body: Bytes::new(),
        timeout: Duration::from_secs(30),
    };
    client
        .exchange(
            order,
            ExchangeOwner { tenant: Tenant::from_secrets(&Secrets::default()), operation_permit: None, term },
        )
        .await
}

#[tokio::test]
async fn every_dns_resolution_is_checked_against_the_policy() {
    let port = start_server().await;
    let answers: [&[&str]; 5] =
        [&["127.0.0.1"], &["169.254.169.254"], &["127.0.0.2"], &["::ffff:127.0.0.2"], &[]];
    let client = client(port, &["127.0.0.1"], &answers);
    assert_eq!(get(&client, port).await.unwrap().body, b"0");
    for (address, failure) in [
        ("169.254.169.254", Failure::Forbidden),
        ("127.0.0.2", Failure::Forbidden),
        ("::ffff:127.0.0.2", Failure::Forbidden),
        ("has no address", Failure::NameNotFound),
        ("has no address: no such name", Failure::NameNotFound),
    ] {
        let failed = get(&client, port).await.unwrap_err();
        assert_eq!((failed.failure, failed.maybe_sent), (failure, false), "{failed:?}");
        assert!(failed.message.contains(address) && failed.message.contains("array.example"), "{failed:?}");
    }
}

#[tokio::test]
async fn only_allowed_addresses_are_dialled() {
    let port = start_server().await;
    // The second address has no listener; the first and the last are not allowed.
    let answers: [&[&str]; 1] = [&["169.254.169.254", "127.0.0.3", "127.0.0.1", "::1"]];
    let client = client(port, &["127.0.0.1", "127.0.0.3"], &answers);
    assert_eq!(get(&client, port).await.unwrap().body, b"0");
}

#[tokio::test]
async fn exchange_over_the_limit_is_rejected_before_sending() {
    let port = start_server().await;
    let mut client = client(port, &["127.0.0.1"], &[]);
    client = HttpClient::new(
        client.policy,
        &Limits { http_exchanges: 0, ..Limits::default() },
        Arc::new(FakeResolver::default()),
    );
    let failed = get(&client, port).await.unwrap_err();
    assert_eq!((failed.failure, failed.maybe_sent), (Failure::Overloaded, false));
    assert!(failed.message.contains("limit `http-exchanges`"), "{failed:?}");
}

#[tokio::test]
async fn no_request_is_sent_after_the_end_of_the_term() {
    let port = start_server().await;
    let client = client(port, &["127.0.0.1"], &[&["127.0.0.1"], &["127.0.0.1"], &["127.0.0.1"]]);
    let term = Term::until(Duration::from_secs(1), Arc::new(|| Duration::ZERO));
    assert_eq!(get_in_term(&client, port, term.clone()).await.unwrap().body, b"0");
    term.end();
    let failed = get_in_term(&client, port, term).await.unwrap_err();
    assert_eq!((failed.failure, failed.maybe_sent), (Failure::Overloaded, false), "{failed:?}");
    assert!(failed.message.contains("does not lead"), "{failed:?}");
    // The server has seen one request.
    assert_eq!(get(&client, port).await.unwrap().body, b"1");
}
