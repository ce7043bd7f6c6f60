//! Reads of Secrets: references that are refused before any request, and the types that are refused.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod common;

use cofferdam_apiserver::ApiServer;
use cofferdam_cluster::{SecretError, SecretNamespaces, SecretReader};
use cofferdam_domain::volume::SecretRef;
use common::{FaultyApi, api, call};
use http::Method;
use serde_json::json;

fn reference(namespace: &str, name: &str) -> SecretRef {
    SecretRef { namespace: namespace.into(), name: name.into() }
}

/// Creates a Secret in each of two namespaces.
async fn api_with_secrets() -> ApiServer {
    let api = api();
    for namespace in ["default", "kube-system"] {
        let path = format!("/api/v1/namespaces/{namespace}/secrets");
        let secret = json!({"metadata": {"name": "s"}, "stringData": {"password": namespace}});
        call(&api, Method::POST, &path, secret).await;
    }
    api
}

#[tokio::test]
async fn references_outside_of_the_listed_namespaces_cause_no_request() {
    let api = api_with_secrets().await;
    let connection = FaultyApi::new(&api);
    let reader = SecretReader::new(&connection.writer(), SecretNamespaces::only("default"));
    #[rustfmt::skip] // one row a reference
    let table = [
        ("kube-system",        "s",                       "kube-system/s"),
        ("default/secrets",    "s",                       "default/secrets"),
        ("..",                 "s",                       "\"..\""),
        ("",                   "s",                       "\"\""),
        ("a.b",                "s",                       "\"a.b\""),
        ("default",            "../../kube-system/secrets/s", "../../kube-system"),
        ("default",            "s?x=y",                   "\"s?x=y\""),
        ("default",            "s\u{1b}[2J",              "\\u{1b}[2J"),
        ("default",            "",                        "\"\""),
    ];
    for (namespace, name, shown) in table {
        let error = reader.read(&reference(namespace, name)).await.unwrap_err();
        assert!(!matches!(error, SecretError::Api(_)), "{error}");
        assert!(error.to_string().contains(shown), "{error}");
    }
    assert_eq!(*connection.gets.lock().unwrap(), 0);

    let secrets = reader.read(&reference("default", "s")).await.unwrap();
    let values: Vec<_> = secrets.iter().map(|(key, value)| (key, value.expose())).collect();
    assert_eq!(values, [("password", "default")]);
    assert_eq!(*connection.gets.lock().unwrap(), 1);
}

#[tokio::test]
async fn every_namespace_can_be_allowed() {
    let connection = FaultyApi::new(&api_with_secrets().await);
    let reader = SecretReader::new(&connection.writer(), SecretNamespaces::All);
    assert_eq!(reader.read(&reference("kube-system", "s")).await.unwrap().iter().count(), 1);
    assert!(reader.read_if_exists(&reference("kube-system", "absent")).await.unwrap().is_none());
    let error = reader.read(&reference("kube-system", "absent")).await.unwrap_err();
    assert_eq!(error.to_string(), "Secret kube-system/absent does not exist");
}

#[tokio::test]
async fn no_secret_is_read_without_namespaces() {
    let connection = FaultyApi::new(&api_with_secrets().await);
    let reader = SecretReader::new(&connection.writer(), SecretNamespaces::Listed(Default::default()));
    let error = reader.read(&reference("default", "s")).await.unwrap_err();
    assert!(matches!(error, SecretError::NamespaceNotListed { .. }), "{error}");
    assert_eq!(
        error.to_string(),
        "Secret default/s is not read: expected its namespace in the setting secret-namespaces (none) of the \
         process that runs provisioner, attacher or resizer, not of csi-server"
    );
}
