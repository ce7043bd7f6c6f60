//! Shared test helpers.
#![allow(dead_code, reason = "not every test uses everything")]

use cofferdam_apiserver::{ApiServer, Options};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::Client;
use serde_json::json;

pub(crate) struct ApiFixture {
    pub(crate) server: ApiServer,
    pub(crate) client: Client,
}

/// An empty API server with a fixed clock and seed.
pub(crate) fn setup() -> ApiFixture {
    let now = "2026-01-01T00:00:00Z".parse().unwrap();
    let options = Options { now: std::sync::Arc::new(move || now), uid_seed: Some(1), ..Options::default() };
    let server = ApiServer::new(options);
    let client = Client::new(server.service(), "default");
    ApiFixture { server, client }
}

/// Code and reason of a rejected request.
pub(crate) fn error_code<T>(result: kube::Result<T>) -> (u16, String) {
    match result {
        Err(kube::Error::Api(status)) => (status.code, status.reason.clone()),
        Err(other) => panic!("a status was expected: {other}"),
        Ok(_) => panic!("a refusal was expected"),
    }
}

pub(crate) fn claim(name: &str, class: Option<&str>) -> PersistentVolumeClaim {
    serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
            "storageClassName": class,
        },
    }))
    .unwrap()
}

pub(crate) fn volume(name: &str) -> PersistentVolume {
    serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "capacity": {"storage": "1Gi"},
            "csi": {"driver": "d.example.com", "volumeHandle": "h"},
        },
    }))
    .unwrap()
}

pub(crate) fn class(name: &str) -> StorageClass {
    serde_json::from_value(json!({"metadata": {"name": name}, "provisioner": "d.example.com"})).unwrap()
}
