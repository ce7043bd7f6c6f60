//! Live reads that return 404: a cached object is removed, unless it was recreated during the read.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::{convert::Infallible, sync::Arc};

use bytes::Bytes;
use cofferdam_cluster::{Cache, Lookup, Writer, decode, metrics::Metrics};
use cofferdam_domain::{Claim, ClaimKey, ResourceVersion};
use http::{Request, Response};
use http_body_util::Full;
use kube::client::Body;

const NOT_FOUND: &str = r#"{
    "kind": "Status", "reason": "NotFound", "code": 404,
    "details": {"name": "c", "kind": "persistentvolumeclaims"}
}"#;

fn claim(uid: &str, version: u64) -> Claim {
    let json = serde_json::json!({
        "metadata": {"name": "c", "namespace": "default", "uid": uid, "resourceVersion": version.to_string()},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    });
    decode::object::<Claim>(&json.to_string()).unwrap().unwrap()
}

#[tokio::test]
async fn a_late_404_does_not_remove_a_recreated_object() {
    let (cache, key) = (Arc::new(Cache::default()), ClaimKey::new("default", "c"));
    cache.claims.apply(Ok(claim("old", 5)));
    let watch = Arc::clone(&cache);
    // The watch shows the deletion and the recreated object before the response is applied.
    let service = tower::service_fn(move |_: Request<Body>| {
        let cache = Arc::clone(&watch);
        async move {
            cache.claims.delete(&ClaimKey::new("default", "c"), &"old".into(), ResourceVersion(6));
            cache.claims.apply(Ok(claim("new", 7)));
            let body = Full::new(Bytes::from(NOT_FOUND));
            Ok::<_, Infallible>(Response::builder().status(404).body(body).unwrap())
        }
    });
    let writer = Writer::new(kube::Client::new(service, "default"), Arc::clone(&cache), Metrics::default());
    assert!(writer.get::<Claim>(&key).await.unwrap().is_none());
    let uid = |cache: &Cache| match cache.claims.get(&key) {
        Lookup::Found(claim) => Some(claim.meta.uid.clone()),
        Lookup::Undecodable(_) | Lookup::Missing => None,
    };
    assert_eq!(uid(&cache), Some("new".into()));
    // A cached object that does not exist is removed.
    let not_found_service = tower::service_fn(|_: Request<Body>| async {
        let body = Full::new(Bytes::from(NOT_FOUND));
        Ok::<_, Infallible>(Response::builder().status(404).body(body).unwrap())
    });
    let client = kube::Client::new(not_found_service, "default");
    let writer = Writer::new(client, Arc::clone(&cache), Metrics::default());
    assert!(writer.get::<Claim>(&key).await.unwrap().is_none());
    assert_eq!(uid(&cache), None);
}
