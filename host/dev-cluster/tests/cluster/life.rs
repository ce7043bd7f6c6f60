//! The life of a volume, with pods.

use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim};
use kube::api::ListParams;
use serde_json::json;

use crate::ground::{Cluster, until, volume};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_comes_to_a_pod_grows_moves_and_goes() {
    let cluster = Cluster::start(2, &[]).await;
    cluster.class("c", "Immediate", json!({})).await;
    cluster.claim("data", "c").await;
    cluster.pod("first", volume("data"), json!({})).await;
    let first = cluster.runs("first").await;

    // In use, and attached, as the node says it.
    let node = cluster.nodes().get(&first).await.unwrap().status.unwrap();
    assert_eq!(node.volumes_in_use.unwrap().len(), 1);
    assert_eq!(node.volumes_attached.unwrap().len(), 1);
    assert_eq!(cluster.attachments().list(&ListParams::default()).await.unwrap().items.len(), 1);

    // The claim cannot go while the pod has it, and grows meanwhile: the node's part comes last.
    let size = json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}});
    cluster.patch(&cluster.claims(), "data", size).await;
    let grown = |claim: Option<&PersistentVolumeClaim>| {
        let status = claim.and_then(|claim| claim.status.as_ref());
        status.is_some_and(|status| {
            let capacity = status.capacity.as_ref().and_then(|capacity| capacity.get("storage"));
            capacity.is_some_and(|size| size.0 == "2Gi") && status.allocated_resource_statuses.is_none()
        })
    };
    until(&cluster.claims(), "data", grown).await;

    // Away from its node.
    cluster.patch(&cluster.nodes(), &first, json!({"spec": {"unschedulable": true}})).await;
    cluster.delete(&cluster.pods(), "first").await;
    until(&cluster.pods(), "first", |pod| pod.is_none()).await;
    cluster.pod("second", volume("data"), json!({})).await;
    let second = cluster.runs("second").await;
    assert_ne!(first, second);
    let free = |node: Option<&Node>| {
        let status = node.and_then(|node| node.status.as_ref());
        status.is_some_and(|status| status.volumes_in_use.is_none() && status.volumes_attached.is_none())
    };
    until(&cluster.nodes(), &first, free).await;

    cluster.delete(&cluster.claims(), "data").await;
    let held = cluster.claims().get("data").await.unwrap();
    assert!(held.metadata.deletion_timestamp.is_some(), "a pod keeps its claim");
    cluster.delete(&cluster.pods(), "second").await;
    cluster.none(&cluster.pods()).await;
    cluster.none(&cluster.claims()).await;
    cluster.none(&cluster.volumes()).await;
    cluster.none(&cluster.attachments()).await;
    until(&cluster.nodes(), &second, free).await;
    let left: Vec<String> =
        cluster.driver.state_keys().into_iter().filter(|key| key.contains("volume")).collect();
    assert_eq!(left, Vec::<String>::new(), "the driver keeps nothing");
    cluster.view.empty().await;
    assert_eq!(cluster.view.left(), Vec::<String>::new(), "the nodes hold nothing");
    assert_eq!(cluster.stop().await, Vec::<String>::new());
}
