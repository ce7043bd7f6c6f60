//! What a Node service hears of kubelet: the order of calls, what they carry, and what comes after a failure.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{Arc, Mutex},
};

use cofferdam_csi::{
    Address,
    server::{Options, Server, ServerMetrics, Socket, SocketOptions},
    v1::{
        NodeExpandVolumeRequest, NodeExpandVolumeResponse, NodeGetCapabilitiesRequest,
        NodeGetCapabilitiesResponse, NodeGetInfoRequest, NodeGetInfoResponse, NodePublishVolumeRequest,
        NodePublishVolumeResponse, NodeServiceCapability, NodeStageVolumeRequest, NodeStageVolumeResponse,
        NodeUnpublishVolumeRequest, NodeUnpublishVolumeResponse, NodeUnstageVolumeRequest,
        NodeUnstageVolumeResponse, Topology,
        node_server::{Node, NodeServer},
        node_service_capability::{Rpc, Type, rpc},
    },
};
use cofferdam_dev_cluster::Mounts;
use k8s_openapi::api::{
    core::v1::{Node as NodeObject, PersistentVolume, PersistentVolumeClaim},
    storage::v1::CSIDriver,
};
use kube::{Api, api::PatchParams};
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Request, Response, Status};

use crate::ground::{Cluster, until, volume};

/// What a call found, and what it answers.
#[derive(Default)]
struct Ledger {
    calls: Vec<String>,
    /// Failures to come, by the call's name.
    fails: BTreeMap<&'static str, Vec<Code>>,
    problems: Vec<String>,
    /// The next call of a name waits here.
    gates: BTreeMap<&'static str, Gate>,
}

/// A call that waits for the test.
struct Gate {
    entered: oneshot::Sender<()>,
    go: oneshot::Receiver<()>,
}

/// A node plugin that somebody else brings.
#[derive(Clone, Default)]
struct Own(Arc<Mutex<Ledger>>);

impl Own {
    async fn hears(&self, call: &'static str) -> Result<(), Status> {
        let gate = {
            let mut ledger = self.0.lock().unwrap();
            ledger.calls.push(call.to_owned());
            ledger.gates.remove(call)
        };
        if let Some(gate) = gate {
            gate.entered.send(()).unwrap();
            gate.go.await.unwrap();
        }
        let mut ledger = self.0.lock().unwrap();
        let next = ledger.fails.get_mut(call).and_then(Vec::pop);
        next.map_or(Ok(()), |code| Err(Status::new(code, "as it was told to")))
    }

    /// Holds the next call of a name: what tells that it is there, and what lets it go on.
    fn hold(&self, call: &'static str) -> (oneshot::Receiver<()>, oneshot::Sender<()>) {
        let ((entered, is_there), (open, go)) = (oneshot::channel(), oneshot::channel());
        self.0.lock().unwrap().gates.insert(call, Gate { entered, go });
        (is_there, open)
    }

    fn calls(&self) -> Vec<String> {
        self.0.lock().unwrap().calls.clone()
    }

    fn check(&self, holds: bool, what: &str) {
        if !holds {
            self.0.lock().unwrap().problems.push(what.to_owned());
        }
    }
}

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl Node for Own {
    async fn node_stage_volume(
        &self,
        request: Request<NodeStageVolumeRequest>,
    ) -> Answer<NodeStageVolumeResponse> {
        let request = request.into_inner();
        let staging = Path::new(&request.staging_target_path);
        self.check(staging.is_dir() && staging.ends_with("globalmount"), "the staging path is a directory");
        let data = staging.parent().unwrap().join("vol_data.json");
        let data = std::fs::read_to_string(data).unwrap_or_default();
        self.check(data.contains(&request.volume_id), "the volume is written down before it is staged");
        self.check(!request.publish_context.is_empty(), "what the attacher left is passed on");
        self.hears("stage").await?;
        Ok(Response::new(NodeStageVolumeResponse {}))
    }

    async fn node_unstage_volume(
        &self,
        _: Request<NodeUnstageVolumeRequest>,
    ) -> Answer<NodeUnstageVolumeResponse> {
        self.hears("unstage").await?;
        Ok(Response::new(NodeUnstageVolumeResponse {}))
    }

    async fn node_publish_volume(
        &self,
        request: Request<NodePublishVolumeRequest>,
    ) -> Answer<NodePublishVolumeResponse> {
        let request = request.into_inner();
        let target = Path::new(&request.target_path);
        self.check(target.parent().unwrap().is_dir(), "the parent of the target is a directory");
        self.check(!target.exists(), "the target is the driver's to make");
        self.check(!request.staging_target_path.is_empty(), "the staging path is told");
        self.hears("publish").await?;
        std::fs::create_dir(target).unwrap();
        Ok(Response::new(NodePublishVolumeResponse {}))
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<NodeUnpublishVolumeRequest>,
    ) -> Answer<NodeUnpublishVolumeResponse> {
        let target = request.into_inner().target_path;
        self.check(Path::new(&target).is_dir(), "the target is where it was published");
        self.hears("unpublish").await?;
        let _ = std::fs::remove_dir(target);
        Ok(Response::new(NodeUnpublishVolumeResponse {}))
    }

    async fn node_expand_volume(
        &self,
        request: Request<NodeExpandVolumeRequest>,
    ) -> Answer<NodeExpandVolumeResponse> {
        let request = request.into_inner();
        self.check(Path::new(&request.volume_path).is_dir(), "the volume path is where it is published");
        self.check(request.capacity_range.unwrap().required_bytes == 2 << 30, "the new size is told");
        self.hears("expand").await?;
        Ok(Response::new(NodeExpandVolumeResponse::default()))
    }

    async fn node_get_capabilities(
        &self,
        _: Request<NodeGetCapabilitiesRequest>,
    ) -> Answer<NodeGetCapabilitiesResponse> {
        let kinds = [rpc::Type::StageUnstageVolume, rpc::Type::ExpandVolume];
        let capability =
            |kind: rpc::Type| NodeServiceCapability { r#type: Some(Type::Rpc(Rpc { r#type: kind.into() })) };
        let capabilities = kinds.into_iter().map(capability).collect();
        Ok(Response::new(NodeGetCapabilitiesResponse { capabilities }))
    }

    async fn node_get_info(&self, _: Request<NodeGetInfoRequest>) -> Answer<NodeGetInfoResponse> {
        let segments = [("own.example/rack".to_owned(), "7".to_owned())].into();
        Ok(Response::new(NodeGetInfoResponse {
            node_id: "machine-1".to_owned(),
            max_volumes_per_node: 9,
            accessible_topology: Some(Topology { segments }),
        }))
    }
}

/// A cluster whose driver brings its own node plugin.
async fn cluster(own: &Own) -> (Cluster, tempfile::TempDir, CancellationToken) {
    cluster_with(own, &[]).await
}

/// The same, with settings of the memory driver, which is the controller.
async fn cluster_with(
    own: &Own,
    settings: &[(&str, &str)],
) -> (Cluster, tempfile::TempDir, CancellationToken) {
    let (directory, stop) = (tempfile::TempDir::new().unwrap(), CancellationToken::new());
    let address: Address = directory.path().join("own.sock").display().to_string().parse().unwrap();
    let socket = Socket::bind(&SocketOptions::new(address.clone())).await.unwrap();
    let options =
        Options { driver: "memory.cofferdam.dev".to_owned(), patience: std::time::Duration::from_secs(60) };
    let server = Server::new(socket, options, &ServerMetrics::default()).with(NodeServer::new(own.clone()));
    tokio::spawn(server.serve(stop.clone()));
    let cluster = Cluster::with(2, settings, Some(address), Mounts::Recorded).await;
    cluster.class("c", "Immediate", json!({})).await;
    cluster.claim("data", "c").await;
    (cluster, directory, stop)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_driver_with_a_node_service_of_its_own_is_called_in_kubelets_order() {
    let own = Own::default();
    let (cluster, _directory, stop) = cluster(&own).await;
    let node = cluster.nodes().get("node-1").await.unwrap().metadata;
    let ids = &node.annotations.unwrap()["csi.volume.kubernetes.io/nodeid"];
    assert_eq!(ids, r#"{"memory.cofferdam.dev":"machine-1"}"#);
    assert_eq!(node.labels.unwrap()["own.example/rack"], "7");

    let rack = json!({"nodeSelector": {"own.example/rack": "7"}});
    cluster.pod("p", volume("data"), rack).await;
    assert_eq!(cluster.runs("p").await, "node-1");
    let size = json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}});
    cluster.patch(&cluster.claims(), "data", size).await;
    let grown = |claim: Option<&PersistentVolumeClaim>| {
        let capacity = claim.and_then(|claim| claim.status.as_ref()?.capacity.as_ref()?.get("storage"));
        capacity.is_some_and(|size| size.0 == "2Gi")
    };
    until(&cluster.claims(), "data", grown).await;
    cluster.delete(&cluster.pods(), "p").await;
    cluster.none(&cluster.pods()).await;
    cluster.view.empty().await;
    let ledger = std::mem::take(&mut *own.0.lock().unwrap());
    assert_eq!(ledger.calls, ["stage", "publish", "expand", "unpublish", "unstage"]);
    assert_eq!(ledger.problems, Vec::<String>::new());
    let pods = cluster.directory.path().join("1/kubelet/pods");
    assert_eq!(std::fs::read_dir(pods).unwrap().count(), 0, "nothing is left of the pod");
    stop.cancel();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_fails_is_told_and_tried_again() {
    let own = Own::default();
    let fails = [("stage", vec![Code::Internal, Code::Unavailable]), ("publish", vec![Code::Internal])];
    own.0.lock().unwrap().fails = fails.into();
    let (cluster, _directory, stop) = cluster(&own).await;
    cluster.pod("p", volume("data"), json!({"nodeName": "node-1"})).await;
    let told = cluster.told("FailedMount").await;
    assert!(told.contains("MountVolume.MountDevice failed: rpc error: code = Unavailable"), "{told}");
    cluster.runs("p").await;
    let ledger = std::mem::take(&mut *own.0.lock().unwrap());
    assert_eq!(ledger.calls, ["stage", "stage", "stage", "publish", "publish"]);
    assert_eq!(ledger.problems, Vec::<String>::new());
    stop.cancel();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_that_may_be_staged_is_unstaged() {
    let own = Own::default();
    own.0.lock().unwrap().fails = [("stage", vec![Code::DeadlineExceeded; 64])].into();
    let (cluster, _directory, stop) = cluster(&own).await;
    cluster.pod("p", volume("data"), json!({"nodeName": "node-1"})).await;
    cluster.told("FailedMount").await;
    cluster.delete(&cluster.pods(), "p").await;
    cluster.none(&cluster.pods()).await;
    cluster.view.empty().await;
    let ledger = std::mem::take(&mut *own.0.lock().unwrap());
    assert_eq!(ledger.calls.last().map(String::as_str), Some("unstage"), "{:?}", ledger.calls);
    stop.cancel();
}

/// How many volumes a node has in use.
async fn in_use(cluster: &Cluster, node: &str) -> usize {
    let node: NodeObject = cluster.nodes().get(node).await.unwrap();
    node.status.unwrap().volumes_in_use.unwrap_or_default().len()
}

/// The same driver, of which it is said that its volumes are not attached.
async fn no_attachments(cluster: &Cluster) {
    let drivers: Api<CSIDriver> = Api::all(cluster.client.clone());
    let name = cluster.driver_name();
    cluster.delete(&drivers, &name).await;
    cluster.create::<CSIDriver>(json!({"metadata": {"name": name}, "spec": {"attachRequired": false}})).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_is_in_use_while_it_is_staged_for_a_pod_that_is_gone() {
    let own = Own::default();
    let (entered, go) = own.hold("stage");
    let (cluster, _directory, stop) = cluster(&own).await;
    cluster.pod("p", volume("data"), json!({"nodeName": "node-1"})).await;
    entered.await.unwrap();
    cluster.delete(&cluster.pods(), "p").await;
    cluster.none(&cluster.pods()).await;
    // What another volume reports does not take the first one away.
    cluster.claim("other", "c").await;
    cluster.pod("q", volume("other"), json!({"nodeName": "node-1"})).await;
    cluster.runs("q").await;
    assert_eq!(in_use(&cluster, "node-1").await, 2);
    go.send(()).unwrap();
    cluster.delete(&cluster.pods(), "q").await;
    cluster.view.empty().await;
    let calls = own.calls();
    assert_eq!(calls.iter().filter(|call| *call == "unstage").count(), 2, "{calls:?}");
    stop.cancel();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_that_is_deleted_while_it_is_mounted_stays_until_it_is_not() {
    let own = Own::default();
    let (entered, go) = own.hold("publish");
    let (cluster, _directory, stop) = cluster(&own).await;
    cluster.pod("p", volume("data"), json!({"nodeName": "node-1"})).await;
    entered.await.unwrap();
    cluster.delete(&cluster.pods(), "p").await;
    // Kubelet has seen it.
    cluster.pod("q", json!([]), json!({"nodeName": "node-1"})).await;
    cluster.runs("q").await;
    assert!(cluster.pods().get("p").await.unwrap().metadata.deletion_timestamp.is_some());
    // A final failure: nothing is mounted.
    own.0.lock().unwrap().fails = [("publish", vec![Code::Internal])].into();
    go.send(()).unwrap();
    until(&cluster.pods(), "p", |pod| pod.is_none()).await;
    cluster.view.empty().await;
    assert_eq!(own.calls(), ["stage", "publish", "unstage"]);
    stop.cancel();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_volumes_of_one_handle_are_unpublished_where_they_were_published() {
    let own = Own::default();
    let (cluster, _directory, stop) = cluster(&own).await;
    cluster.pod("p", volume("data"), json!({"nodeName": "node-1"})).await;
    cluster.runs("p").await;
    let claim = cluster.claims().get("data").await.unwrap();
    let first = cluster.volumes().get(&claim.spec.unwrap().volume_name.unwrap()).await.unwrap();
    let csi = first.spec.unwrap().csi.unwrap();
    cluster
        .create::<PersistentVolume>(json!({
            "metadata": {"name": "second"},
            "spec": {
                "capacity": {"storage": "1Gi"},
                "accessModes": ["ReadWriteOnce"],
                "storageClassName": "c",
                "claimRef": {"namespace": "default", "name": "other"},
                "csi": csi,
            },
        }))
        .await;
    cluster
        .create::<PersistentVolumeClaim>(json!({
            "metadata": {"name": "other"},
            "spec": {
                "storageClassName": "c",
                "volumeName": "second",
                "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "1Gi"}},
            },
        }))
        .await;
    cluster.pod("q", volume("other"), json!({"nodeName": "node-1"})).await;
    cluster.runs("q").await;
    for name in ["p", "q"] {
        cluster.delete(&cluster.pods(), name).await;
        until(&cluster.pods(), name, |pod| pod.is_none()).await;
    }
    cluster.view.empty().await;
    let ledger = std::mem::take(&mut *own.0.lock().unwrap());
    assert_eq!(ledger.calls, ["stage", "publish", "publish", "unpublish", "unpublish", "unstage"]);
    assert_eq!(ledger.problems, Vec::<String>::new());
    stop.cancel();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_keeps_a_volume_that_is_removed_by_force() {
    let own = Own::default();
    let (cluster, _directory, stop) = cluster(&own).await;
    cluster.pod("p", volume("data"), json!({"nodeName": "node-1"})).await;
    cluster.runs("p").await;
    let claim = cluster.claims().get("data").await.unwrap();
    let name = claim.spec.unwrap().volume_name.unwrap();
    cluster.delete(&cluster.volumes(), &name).await;
    let free: Value = json!({"metadata": {"finalizers": null}});
    cluster.patch(&cluster.volumes(), &name, free).await;
    let lost = |claim: Option<&PersistentVolumeClaim>| {
        let phase = claim.and_then(|claim| claim.status.as_ref()?.phase.clone());
        phase.as_deref() == Some("Lost")
    };
    until(&cluster.claims(), "data", lost).await;
    cluster.pod("q", json!([]), json!({"nodeName": "node-1"})).await;
    cluster.runs("q").await;
    assert_eq!(own.calls(), ["stage", "publish"]);
    assert_eq!(in_use(&cluster, "node-1").await, 1);
    cluster.delete(&cluster.pods(), "p").await;
    until(&cluster.pods(), "p", |pod| pod.is_none()).await;
    cluster.view.empty().await;
    assert_eq!(own.calls(), ["stage", "publish", "unpublish", "unstage"]);
    stop.cancel();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_unpublished_is_not_unstaged_when_the_node_ends() {
    let own = Own::default();
    let (cluster, _directory, stop) = cluster(&own).await;
    cluster.pod("p", volume("data"), json!({"nodeName": "node-1"})).await;
    cluster.runs("p").await;
    own.0.lock().unwrap().fails = [("unpublish", vec![Code::Internal; 64])].into();
    let left = cluster.stop().await;
    assert!(left.iter().any(|line| line.contains("is still mounted")), "{left:?}");
    assert_eq!(own.calls(), ["stage", "publish", "unpublish"]);
    stop.cancel();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_hears_that_its_volume_needs_no_attachment() {
    let own = Own::default();
    let (cluster, _directory, stop) = cluster_with(&own, &[("errors", "publish:unavailable:1000000")]).await;
    cluster.pod("p", volume("data"), json!({"nodeName": "node-1"})).await;
    cluster.told("FailedAttachVolume").await;
    no_attachments(&cluster).await;
    cluster.runs("p").await;
    assert_eq!(own.calls(), ["stage", "publish"]);
    stop.cancel();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_pod_of_a_claim_for_one_alone_comes_when_the_first_one_goes() {
    let own = Own::default();
    let (cluster, _directory, stop) = cluster(&own).await;
    no_attachments(&cluster).await;
    let alone = json!({
        "metadata": {"name": "alone"},
        "spec": {
            "storageClassName": "c",
            "accessModes": ["ReadWriteOncePod"],
            "resources": {"requests": {"storage": "1Gi"}},
        },
    });
    cluster.create::<PersistentVolumeClaim>(alone).await;
    cluster.pod("first", volume("alone"), json!({})).await;
    assert_eq!(cluster.runs("first").await, "node-1", "the driver is there alone");
    cluster.pod("next", volume("alone"), json!({})).await;
    cluster.waits("next", "ReadWriteOncePod").await;
    cluster.delete(&cluster.pods(), "first").await;
    assert_eq!(cluster.runs("next").await, "node-1", "the driver is there alone");
    stop.cancel();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_says_that_a_claim_shall_grow_goes_when_it_has() {
    let own = Own::default();
    let (cluster, _directory, stop) = cluster(&own).await;
    cluster.pod("p", volume("data"), json!({"nodeName": "node-1"})).await;
    cluster.runs("p").await;
    let condition = json!({"type": "FileSystemResizePending", "status": "True"});
    let patch = kube::api::Patch::Merge(json!({"status": {"conditions": [condition]}}));
    cluster.claims().patch_status("data", &PatchParams::default(), &patch).await.unwrap();
    let told = |claim: Option<&PersistentVolumeClaim>| {
        claim.and_then(|claim| claim.status.as_ref()?.conditions.as_ref()).is_none_or(Vec::is_empty)
    };
    until(&cluster.claims(), "data", told).await;
    assert_eq!(own.calls(), ["stage", "publish", "expand"]);
    stop.cancel();
}
