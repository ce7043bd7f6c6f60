//! Lifecycle of a volume: it is provisioned, mounted, expanded while a pod runs, attached to another node for
//! a second pod, and deleted with its claim. Then no pod, claim, PersistentVolume or VolumeAttachment
//! remains, the driver has no volume, and nothing of the volume remains on the nodes.

use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim};
use kube::api::ListParams;
use serde_json::json;

use crate::harness::{Cluster, claim_volume, wait_until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claim_is_mounted_expanded_moved_and_deleted() {
    let cluster = Cluster::start(2, &[]).await;
    cluster.create_class("c", "Immediate", json!({})).await;
    cluster.create_claim("data", "c").await;
    cluster.create_pod("first", claim_volume("data"), json!({})).await;
    let first = cluster.wait_until_running("first").await;

    // The Node's status has the volume in use and attached.
    let node = cluster.nodes().get(&first).await.unwrap().status.unwrap();
    assert_eq!(node.volumes_in_use.unwrap().len(), 1);
    assert_eq!(node.volumes_attached.unwrap().len(), 1);
    assert_eq!(cluster.attachments().list(&ListParams::default()).await.unwrap().items.len(), 1);

    // Controller and node expansion while the pod runs.
    let size = json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}});
    cluster.patch(&cluster.claims(), "data", size).await;
    let is_expanded = |claim: Option<&PersistentVolumeClaim>| {
        let status = claim.and_then(|claim| claim.status.as_ref());
        status.is_some_and(|status| {
            let capacity = status.capacity.as_ref().and_then(|capacity| capacity.get("storage"));
            capacity.is_some_and(|size| size.0 == "2Gi") && status.allocated_resource_statuses.is_none()
        })
    };
    wait_until(&cluster.claims(), "data", is_expanded).await;

    // Move to the other node.
    cluster.patch(&cluster.nodes(), &first, json!({"spec": {"unschedulable": true}})).await;
    cluster.delete(&cluster.pods(), "first").await;
    wait_until(&cluster.pods(), "first", |pod| pod.is_none()).await;
    cluster.create_pod("second", claim_volume("data"), json!({})).await;
    let second = cluster.wait_until_running("second").await;
    assert_ne!(first, second);
    let has_no_volumes = |node: Option<&Node>| {
        let status = node.and_then(|node| node.status.as_ref());
        status.is_some_and(|status| status.volumes_in_use.is_none() && status.volumes_attached.is_none())
    };
    wait_until(&cluster.nodes(), &first, has_no_volumes).await;

    cluster.delete(&cluster.claims(), "data").await;
    let claim = cluster.claims().get("data").await.unwrap();
    assert!(claim.metadata.deletion_timestamp.is_some(), "the claim keeps its finalizer while a pod uses it");
    cluster.delete(&cluster.pods(), "second").await;
    cluster.wait_until_empty(&cluster.pods()).await;
    cluster.wait_until_empty(&cluster.claims()).await;
    cluster.wait_until_empty(&cluster.volumes()).await;
    cluster.wait_until_empty(&cluster.attachments()).await;
    wait_until(&cluster.nodes(), &second, has_no_volumes).await;
    let remaining_keys: Vec<String> =
        cluster.driver.state_keys().into_iter().filter(|key| key.contains("volume")).collect();
    assert_eq!(remaining_keys, Vec::<String>::new(), "the driver has no volume left");
    cluster.view.wait_until_unmounted().await;
    assert_eq!(cluster.view.leftovers(), Vec::<String>::new(), "nothing remains on the nodes");
    assert_eq!(cluster.stop().await, Vec::<String>::new());
}
