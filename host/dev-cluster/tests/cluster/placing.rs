//! Where pods go, and what they wait for.

use k8s_openapi::api::{
    core::v1::{PersistentVolume, Pod},
    storage::v1::{CSIDriver, CSINode, CSIStorageCapacity},
};
use kube::{Api, api::ListParams};
use serde_json::json;

use crate::ground::{Cluster, until, volume};

/// Two zones, of which the driver knows by the nodes' label.
const TOPOLOGY: (&str, &str) = ("topology", "topology.kubernetes.io/zone=zone-1,zone-2,zone-3");

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_waits_is_made_where_its_pod_goes() {
    let cluster = Cluster::start(3, &[TOPOLOGY]).await;
    let csi_nodes: Api<CSINode> = Api::all(cluster.client.clone());
    let entry = csi_nodes.get("node-3").await.unwrap().spec.drivers.remove(0);
    assert_eq!(entry.topology_keys.unwrap(), ["topology.kubernetes.io/zone"]);

    cluster.class("late", "WaitForFirstConsumer", json!({})).await;
    cluster.claim("data", "late").await;
    let zone = json!({"nodeSelector": {"topology.kubernetes.io/zone": "zone-3"}});
    cluster.pod("first", volume("data"), zone).await;
    assert_eq!(cluster.runs("first").await, "node-3");
    let claim = cluster.claims().get("data").await.unwrap();
    let selected = &claim.metadata.annotations.unwrap()["volume.kubernetes.io/selected-node"];
    assert_eq!(selected, "node-3");
    let made = cluster.volumes().get(&claim.spec.unwrap().volume_name.unwrap()).await.unwrap();
    assert!(made.spec.unwrap().node_affinity.is_some(), "the volume is of its zone");

    // The next pod follows the volume.
    cluster.delete(&cluster.pods(), "first").await;
    cluster.none(&cluster.pods()).await;
    cluster.pod("second", volume("data"), json!({})).await;
    assert_eq!(cluster.runs("second").await, "node-3");
    let away = json!({"nodeSelector": {"topology.kubernetes.io/zone": "zone-1"}});
    cluster.pod("away", volume("data"), away).await;
    cluster.waits("away", "1 node(s) didn't match PersistentVolume's node affinity").await;
    assert_eq!(cluster.stop().await, Vec::<String>::new(), "a cluster that ends leaves nothing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_that_is_there_is_taken_before_one_is_made() {
    let cluster = Cluster::start(1, &[]).await;
    let class = json!({"provisioner": "kubernetes.io/no-provisioner", "allowVolumeExpansion": false});
    cluster.class("hand", "WaitForFirstConsumer", class).await;
    cluster.claim("data", "hand").await;
    cluster.pod("p", volume("data"), json!({})).await;
    cluster.waits("p", "1 node(s) didn't find available persistent volumes to bind").await;
    // A volume of no driver: there is nothing to attach, and nothing to mount that is simulated.
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
    assert_eq!(cluster.runs("p").await, "node-1");
    let bound = cluster.claims().get("data").await.unwrap();
    assert_eq!(bound.spec.unwrap().volume_name.as_deref(), Some("v"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_takes_as_many_volumes_as_its_driver_says() {
    let cluster = Cluster::start(2, &[("volumes-per-node", "1")]).await;
    cluster.class("c", "Immediate", json!({})).await;
    for name in ["a", "b", "c"] {
        cluster.claim(name, "c").await;
        cluster.pod(name, volume(name), json!({})).await;
    }
    let full = "0/2 nodes are available: 2 node(s) exceed max volume count.";
    let is_waiting = |pod: &Pod| {
        let conditions = pod.status.as_ref().and_then(|status| status.conditions.clone());
        conditions.unwrap_or_default().iter().any(|one| one.message.as_deref() == Some(full))
    };
    // Whichever is the last one.
    let waiting = async |name: &'static str| {
        until(&cluster.pods(), name, |pod| pod.is_some_and(is_waiting)).await;
        name
    };
    let (a, b, c) = (waiting("a"), waiting("b"), waiting("c"));
    let last = tokio::select! { name = a => name, name = b => name, name = c => name };
    let first = ["a", "b", "c"].into_iter().find(|name| *name != last).unwrap();
    cluster.runs(first).await;
    cluster.delete(&cluster.pods(), first).await;
    cluster.runs(last).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_waits_for_room() {
    let cluster = Cluster::start(1, &[]).await;
    cluster.class("late", "WaitForFirstConsumer", json!({})).await;
    let drivers: Api<CSIDriver> = Api::all(cluster.client.clone());
    let name = cluster.driver_name();
    cluster.patch(&drivers, &name, json!({"spec": {"storageCapacity": true}})).await;
    cluster.claim("data", "late").await;
    cluster.pod("p", volume("data"), json!({})).await;
    cluster.waits("p", "1 node(s) did not have enough free storage").await;
    let room = json!({
        "metadata": {"name": "room"},
        "storageClassName": "late",
        "nodeTopology": {"matchLabels": {"kubernetes.io/hostname": "node-1"}},
        "capacity": "10Gi",
    });
    cluster.create::<CSIStorageCapacity>(room).await;
    assert_eq!(cluster.runs("p").await, "node-1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ephemeral_claim_lives_with_its_pod() {
    let cluster = Cluster::start(1, &[]).await;
    cluster.class("late", "WaitForFirstConsumer", json!({})).await;
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
    cluster.pod("p", volumes, json!({})).await;
    cluster.runs("p").await;
    let claim = cluster.claims().get("p-scratch").await.unwrap();
    assert_eq!(claim.metadata.labels.unwrap()["of"], "p");
    assert_eq!(claim.metadata.owner_references.unwrap()[0].name, "p");
    cluster.delete(&cluster.pods(), "p").await;
    cluster.none(&cluster.pods()).await;
    cluster.none(&cluster.claims()).await;
    cluster.none(&cluster.volumes()).await;
    let attached = cluster.attachments().list(&ListParams::default()).await.unwrap();
    assert!(attached.items.is_empty());
    assert_eq!(cluster.stop().await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_driver_that_fails_is_told_to_its_pod_and_asked_again() {
    let errors = ("errors", "publish:unavailable:1");
    let cluster = Cluster::start(1, &[errors]).await;
    cluster.class("c", "Immediate", json!({})).await;
    cluster.claim("data", "c").await;
    cluster.pod("p", volume("data"), json!({})).await;
    cluster.told("FailedAttachVolume").await;
    cluster.runs("p").await;
}
