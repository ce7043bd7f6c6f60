//! Scheduling of pods with volumes, claims of generic ephemeral volumes, and the event about a failed
//! attachment.

use k8s_openapi::api::{
    core::v1::{PersistentVolume, Pod},
    storage::v1::{CSIDriver, CSINode, CSIStorageCapacity},
};
use kube::{Api, api::ListParams};
use serde_json::json;

use crate::harness::{Cluster, claim_volume, wait_until};

/// Setting of the memory driver: its topology segments are the nodes' zone labels, with these zones.
const TOPOLOGY: (&str, &str) = ("topology", "topology.kubernetes.io/zone=zone-1,zone-2,zone-3");

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wait_for_first_consumer_claim_is_provisioned_on_the_selected_node() {
    let cluster = Cluster::start(3, &[TOPOLOGY]).await;
    let csi_nodes: Api<CSINode> = Api::all(cluster.client.clone());
    let entry = csi_nodes.get("node-3").await.unwrap().spec.drivers.remove(0);
    assert_eq!(entry.topology_keys.unwrap(), ["topology.kubernetes.io/zone"]);

    cluster.create_class("late", "WaitForFirstConsumer", json!({})).await;
    cluster.create_claim("data", "late").await;
    let zone = json!({"nodeSelector": {"topology.kubernetes.io/zone": "zone-3"}});
    cluster.create_pod("first", claim_volume("data"), zone).await;
    assert_eq!(cluster.wait_until_running("first").await, "node-3");
    let claim = cluster.claims().get("data").await.unwrap();
    let selected = &claim.metadata.annotations.unwrap()["volume.kubernetes.io/selected-node"];
    assert_eq!(selected, "node-3");
    let volume_object = cluster.volumes().get(&claim.spec.unwrap().volume_name.unwrap()).await.unwrap();
    assert!(volume_object.spec.unwrap().node_affinity.is_some(), "the volume has the affinity of its zone");

    // The next pod follows the volume.
    cluster.delete(&cluster.pods(), "first").await;
    cluster.wait_until_empty(&cluster.pods()).await;
    cluster.create_pod("second", claim_volume("data"), json!({})).await;
    assert_eq!(cluster.wait_until_running("second").await, "node-3");
    let away = json!({"nodeSelector": {"topology.kubernetes.io/zone": "zone-1"}});
    cluster.create_pod("away", claim_volume("data"), away).await;
    cluster.wait_until_unschedulable("away", "1 node(s) didn't match PersistentVolume's node affinity").await;
    assert_eq!(cluster.stop().await, Vec::<String>::new(), "nothing remains on the nodes");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn static_volume_is_bound_before_one_is_provisioned() {
    let cluster = Cluster::start(1, &[]).await;
    let class = json!({"provisioner": "kubernetes.io/no-provisioner", "allowVolumeExpansion": false});
    cluster.create_class("hand", "WaitForFirstConsumer", class).await;
    cluster.create_claim("data", "hand").await;
    cluster.create_pod("p", claim_volume("data"), json!({})).await;
    cluster.wait_until_unschedulable("p", "1 node(s) didn't find available persistent volumes to bind").await;
    // A local volume: it is neither attached nor mounted in the simulation.
    cluster
        .create::<PersistentVolume>(json!({
            "metadata": {"name": "v"},
            "spec": {
                "capacity": {"storage": "1Gi"},
                "accessModes": ["ReadWriteOnce"],
                "storageClassName": "hand",
                "local": {"path": "/mnt"},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                    {"key": "kubernetes.io/hostname", "operator": "In", "values": ["node-1"]},
                ]}]}},
            },
        }))
        .await;
    assert_eq!(cluster.wait_until_running("p").await, "node-1");
    let bound = cluster.claims().get("data").await.unwrap();
    assert_eq!(bound.spec.unwrap().volume_name.as_deref(), Some("v"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pod_waits_while_nodes_exceed_their_volume_limit() {
    let cluster = Cluster::start(2, &[("volumes-per-node", "1")]).await;
    cluster.create_class("c", "Immediate", json!({})).await;
    for name in ["a", "b", "c"] {
        cluster.create_claim(name, "c").await;
        cluster.create_pod(name, claim_volume(name), json!({})).await;
    }
    let full = "0/2 nodes are available: 2 node(s) exceed max volume count.";
    let is_waiting = |pod: &Pod| {
        let conditions = pod.status.as_ref().and_then(|status| status.conditions.clone());
        conditions.unwrap_or_default().iter().any(|one| one.message.as_deref() == Some(full))
    };
    // Any of the three pods may be the last one.
    let waiting = async |name: &'static str| {
        wait_until(&cluster.pods(), name, |pod| pod.is_some_and(is_waiting)).await;
        name
    };
    let (a, b, c) = (waiting("a"), waiting("b"), waiting("c"));
    let last = tokio::select! { name = a => name, name = b => name, name = c => name };
    let first = ["a", "b", "c"].into_iter().find(|name| *name != last).unwrap();
    cluster.wait_until_running(first).await;
    cluster.delete(&cluster.pods(), first).await;
    cluster.wait_until_running(last).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pod_waits_for_csi_storage_capacity() {
    let cluster = Cluster::start(1, &[]).await;
    cluster.create_class("late", "WaitForFirstConsumer", json!({})).await;
    let drivers: Api<CSIDriver> = Api::all(cluster.client.clone());
    let name = cluster.driver_name();
    cluster.patch(&drivers, &name, json!({"spec": {"storageCapacity": true}})).await;
    cluster.create_claim("data", "late").await;
    cluster.create_pod("p", claim_volume("data"), json!({})).await;
    cluster.wait_until_unschedulable("p", "1 node(s) did not have enough free storage").await;
    let capacity = json!({
        "metadata": {"name": "capacity"},
        "storageClassName": "late",
        "nodeTopology": {"matchLabels": {"kubernetes.io/hostname": "node-1"}},
        "capacity": "10Gi",
    });
    cluster.create::<CSIStorageCapacity>(capacity).await;
    assert_eq!(cluster.wait_until_running("p").await, "node-1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ephemeral_claim_is_created_and_deleted_with_its_pod() {
    let cluster = Cluster::start(1, &[]).await;
    cluster.create_class("late", "WaitForFirstConsumer", json!({})).await;
    let template = json!({
        "metadata": {"labels": {"of": "p"}},
        "spec": {
            "storageClassName": "late",
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
        },
    });
    let volumes = json!([
        {"name": "scratch", "ephemeral": {"volumeClaimTemplate": template}},
        {"name": "inline", "csi": {"driver": "memory.cofferdam.dev", "volumeAttributes": {"size": "1Mi"}}},
        {"name": "empty", "emptyDir": {}},
    ]);
    let drivers: Api<CSIDriver> = Api::all(cluster.client.clone());
    let name = cluster.driver_name();
    cluster.delete(&drivers, &name).await;
    let modes = json!({"podInfoOnMount": true, "volumeLifecycleModes": ["Persistent", "Ephemeral"]});
    cluster.create::<CSIDriver>(json!({"metadata": {"name": name}, "spec": modes})).await;
    cluster.create_pod("p", volumes, json!({})).await;
    cluster.wait_until_running("p").await;
    let claim = cluster.claims().get("p-scratch").await.unwrap();
    assert_eq!(claim.metadata.labels.unwrap()["of"], "p");
    assert_eq!(claim.metadata.owner_references.unwrap()[0].name, "p");
    cluster.delete(&cluster.pods(), "p").await;
    cluster.wait_until_empty(&cluster.pods()).await;
    cluster.wait_until_empty(&cluster.claims()).await;
    cluster.wait_until_empty(&cluster.volumes()).await;
    let attached = cluster.attachments().list(&ListParams::default()).await.unwrap();
    assert!(attached.items.is_empty());
    assert_eq!(cluster.stop().await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attach_failure_is_reported_on_the_pod_and_retried() {
    let errors = ("errors", "publish:unavailable:1");
    let cluster = Cluster::start(1, &[errors]).await;
    cluster.create_class("c", "Immediate", json!({})).await;
    cluster.create_claim("data", "c").await;
    cluster.create_pod("p", claim_volume("data"), json!({})).await;
    cluster.wait_for_event("FailedAttachVolume").await;
    cluster.wait_until_running("p").await;
}
