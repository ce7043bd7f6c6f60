//! Calls of kubelet to a driver's own Node service: their order, their arguments and retries, and the mounts
//! that kubelet keeps or removes when a call fails or when a pod, a PersistentVolume or the CSIDriver is
//! deleted.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{Arc, Mutex},
};

use cofferdam_csi::{
    Address,
    server::{Server, ServerMetrics, ServerOptions, ServerSocket, SocketOptions},
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

use crate::harness::{Cluster, claim_volume, wait_until};

/// Received calls, unmet expectations about their arguments, and the failures and barriers to inject.
#[derive(Default)]
struct CallLog {
    calls: Vec<String>,
    /// Status codes of the next calls, by call; the last one is used first.
    failures: BTreeMap<&'static str, Vec<Code>>,
    problems: Vec<String>,
    /// Barriers of the next calls, by call.
    barriers: BTreeMap<&'static str, CallBarrier>,
}

/// A call that blocks until the test releases it.
struct CallBarrier {
    entered: oneshot::Sender<()>,
    release: oneshot::Receiver<()>,
}

/// A Node service that records its calls and injects failures.
#[derive(Clone, Default)]
struct ExternalNodePlugin(Arc<Mutex<CallLog>>);

impl ExternalNodePlugin {
    async fn handle_call(&self, call: &'static str) -> Result<(), Status> {
        let barrier = {
            let mut log = self.0.lock().unwrap();
            log.calls.push(call.to_owned());
            log.barriers.remove(call)
        };
        if let Some(barrier) = barrier {
            barrier.entered.send(()).unwrap();
            barrier.release.await.unwrap();
        }
        let mut log = self.0.lock().unwrap();
        let next_code = log.failures.get_mut(call).and_then(Vec::pop);
        next_code.map_or(Ok(()), |code| Err(Status::new(code, "injected")))
    }

    /// Blocks the next call. Returns a receiver that signals the call, and a sender that releases it.
    fn block_next(&self, call: &'static str) -> (oneshot::Receiver<()>, oneshot::Sender<()>) {
        let ((entered, call_entered), (release_call, release)) = (oneshot::channel(), oneshot::channel());
        self.0.lock().unwrap().barriers.insert(call, CallBarrier { entered, release });
        (call_entered, release_call)
    }

    fn calls(&self) -> Vec<String> {
        self.0.lock().unwrap().calls.clone()
    }

    fn check(&self, is_valid: bool, expectation: &str) {
        if !is_valid {
            self.0.lock().unwrap().problems.push(expectation.to_owned());
        }
    }
}

type RpcResult<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl Node for ExternalNodePlugin {
    async fn node_stage_volume(
        &self,
        request: Request<NodeStageVolumeRequest>,
    ) -> RpcResult<NodeStageVolumeResponse> {
        let request = request.into_inner();
        let staging = Path::new(&request.staging_target_path);
        self.check(staging.is_dir() && staging.ends_with("globalmount"), "the staging path is a directory");
        let data = staging.parent().unwrap().join("vol_data.json");
        let data = std::fs::read_to_string(data).unwrap_or_default();
        self.check(data.contains(&request.volume_id), "vol_data.json is written before the stage call");
        self.check(!request.publish_context.is_empty(), "the publish context is passed");
        self.handle_call("stage").await?;
        Ok(Response::new(NodeStageVolumeResponse {}))
    }

    async fn node_unstage_volume(
        &self,
        _: Request<NodeUnstageVolumeRequest>,
    ) -> RpcResult<NodeUnstageVolumeResponse> {
        self.handle_call("unstage").await?;
        Ok(Response::new(NodeUnstageVolumeResponse {}))
    }

    async fn node_publish_volume(
        &self,
        request: Request<NodePublishVolumeRequest>,
    ) -> RpcResult<NodePublishVolumeResponse> {
        let request = request.into_inner();
        let target = Path::new(&request.target_path);
        self.check(target.parent().unwrap().is_dir(), "the parent of the target is a directory");
        self.check(!target.exists(), "the target is created by the driver");
        self.check(!request.staging_target_path.is_empty(), "the staging path is set");
        self.handle_call("publish").await?;
        std::fs::create_dir(target).unwrap();
        Ok(Response::new(NodePublishVolumeResponse {}))
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<NodeUnpublishVolumeRequest>,
    ) -> RpcResult<NodeUnpublishVolumeResponse> {
        let target = request.into_inner().target_path;
        self.check(Path::new(&target).is_dir(), "the target of the publish call");
        self.handle_call("unpublish").await?;
        let _ = std::fs::remove_dir(target);
        Ok(Response::new(NodeUnpublishVolumeResponse {}))
    }

    async fn node_expand_volume(
        &self,
        request: Request<NodeExpandVolumeRequest>,
    ) -> RpcResult<NodeExpandVolumeResponse> {
        let request = request.into_inner();
        self.check(Path::new(&request.volume_path).is_dir(), "the volume path is the target path");
        self.check(request.capacity_range.unwrap().required_bytes == 2 << 30, "the new size is set");
        self.handle_call("expand").await?;
        Ok(Response::new(NodeExpandVolumeResponse::default()))
    }

    async fn node_get_capabilities(
        &self,
        _: Request<NodeGetCapabilitiesRequest>,
    ) -> RpcResult<NodeGetCapabilitiesResponse> {
        let kinds = [rpc::Type::StageUnstageVolume, rpc::Type::ExpandVolume];
        let capability =
            |kind: rpc::Type| NodeServiceCapability { r#type: Some(Type::Rpc(Rpc { r#type: kind.into() })) };
        let capabilities = kinds.into_iter().map(capability).collect();
        Ok(Response::new(NodeGetCapabilitiesResponse { capabilities }))
    }

    async fn node_get_info(&self, _: Request<NodeGetInfoRequest>) -> RpcResult<NodeGetInfoResponse> {
        let segments = [("own.example/rack".to_owned(), "7".to_owned())].into();
        Ok(Response::new(NodeGetInfoResponse {
            node_id: "machine-1".to_owned(),
            max_volumes_per_node: 9,
            accessible_topology: Some(Topology { segments }),
        }))
    }
}

/// Starts a cluster with two nodes, the StorageClass `c` and the claim `data`. The driver has its own node
/// plugin, which is on the first node only. Also returns the directory of the plugin's socket, and a token
/// that stops the plugin's server.
async fn start_cluster(plugin: &ExternalNodePlugin) -> (Cluster, tempfile::TempDir, CancellationToken) {
    start_cluster_with(plugin, &[]).await
}

/// [`start_cluster`] with settings of the memory driver, which is the controller part of the driver.
async fn start_cluster_with(
    plugin: &ExternalNodePlugin,
    settings: &[(&str, &str)],
) -> (Cluster, tempfile::TempDir, CancellationToken) {
    let (directory, stop) = (tempfile::TempDir::new().unwrap(), CancellationToken::new());
    let address: Address = directory.path().join("own.sock").display().to_string().parse().unwrap();
    let socket = ServerSocket::bind(&SocketOptions::new(address.clone())).await.unwrap();
    let options = ServerOptions {
        driver: "memory.cofferdam.dev".to_owned(),
        default_timeout: std::time::Duration::from_secs(60),
    };
    let server =
        Server::new(socket, options, &ServerMetrics::default()).with_service(NodeServer::new(plugin.clone()));
    tokio::spawn(server.serve(stop.clone()));
    let cluster = Cluster::start_with(2, settings, Some(address), Mounts::Recorded).await;
    cluster.create_class("c", "Immediate", json!({})).await;
    cluster.create_claim("data", "c").await;
    (cluster, directory, stop)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn external_node_plugin_is_called_in_kubelets_order() {
    let plugin = ExternalNodePlugin::default();
    let (cluster, _directory, stop) = start_cluster(&plugin).await;
    let node = cluster.nodes().get("node-1").await.unwrap().metadata;
    let ids = &node.annotations.unwrap()["csi.volume.kubernetes.io/nodeid"];
    assert_eq!(ids, r#"{"memory.cofferdam.dev":"machine-1"}"#);
    assert_eq!(node.labels.unwrap()["own.example/rack"], "7");

    let rack = json!({"nodeSelector": {"own.example/rack": "7"}});
    cluster.create_pod("p", claim_volume("data"), rack).await;
    assert_eq!(cluster.wait_until_running("p").await, "node-1");
    let size = json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}});
    cluster.patch(&cluster.claims(), "data", size).await;
    let is_expanded = |claim: Option<&PersistentVolumeClaim>| {
        let capacity = claim.and_then(|claim| claim.status.as_ref()?.capacity.as_ref()?.get("storage"));
        capacity.is_some_and(|size| size.0 == "2Gi")
    };
    wait_until(&cluster.claims(), "data", is_expanded).await;
    cluster.delete(&cluster.pods(), "p").await;
    cluster.wait_until_empty(&cluster.pods()).await;
    cluster.view.wait_until_unmounted().await;
    let log = std::mem::take(&mut *plugin.0.lock().unwrap());
    assert_eq!(log.calls, ["stage", "publish", "expand", "unpublish", "unstage"]);
    assert_eq!(log.problems, Vec::<String>::new());
    let pods = cluster.directory.path().join("1/kubelet/pods");
    assert_eq!(std::fs::read_dir(pods).unwrap().count(), 0, "the pod's directory is removed");
    stop.cancel();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_stage_and_publish_are_reported_and_retried() {
    let plugin = ExternalNodePlugin::default();
    let failures = [("stage", vec![Code::Internal, Code::Unavailable]), ("publish", vec![Code::Internal])];
    plugin.0.lock().unwrap().failures = failures.into();
    let (cluster, _directory, stop) = start_cluster(&plugin).await;
    cluster.create_pod("p", claim_volume("data"), json!({"nodeName": "node-1"})).await;
    let message = cluster.wait_for_event("FailedMount").await;
    assert!(message.contains("MountVolume.MountDevice failed: rpc error: code = Unavailable"), "{message}");
    cluster.wait_until_running("p").await;
    let log = std::mem::take(&mut *plugin.0.lock().unwrap());
    assert_eq!(log.calls, ["stage", "stage", "stage", "publish", "publish"]);
    assert_eq!(log.problems, Vec::<String>::new());
    stop.cancel();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn volume_with_uncertain_stage_is_unstaged() {
    let plugin = ExternalNodePlugin::default();
    plugin.0.lock().unwrap().failures = [("stage", vec![Code::DeadlineExceeded; 64])].into();
    let (cluster, _directory, stop) = start_cluster(&plugin).await;
    cluster.create_pod("p", claim_volume("data"), json!({"nodeName": "node-1"})).await;
    cluster.wait_for_event("FailedMount").await;
    cluster.delete(&cluster.pods(), "p").await;
    cluster.wait_until_empty(&cluster.pods()).await;
    cluster.view.wait_until_unmounted().await;
    let log = std::mem::take(&mut *plugin.0.lock().unwrap());
    assert_eq!(log.calls.last().map(String::as_str), Some("unstage"), "{:?}", log.calls);
    stop.cancel();
}

/// Number of volumes in a Node's `volumesInUse`.
async fn count_volumes_in_use(cluster: &Cluster, node: &str) -> usize {
    let node: NodeObject = cluster.nodes().get(node).await.unwrap();
    node.status.unwrap().volumes_in_use.unwrap_or_default().len()
}

/// Replaces the CSIDriver by one with `attachRequired: false`.
async fn disable_attach(cluster: &Cluster) {
    let drivers: Api<CSIDriver> = Api::all(cluster.client.clone());
    let name = cluster.driver_name();
    cluster.delete(&drivers, &name).await;
    cluster.create::<CSIDriver>(json!({"metadata": {"name": name}, "spec": {"attachRequired": false}})).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn volume_stays_in_use_while_staging_for_a_deleted_pod() {
    let plugin = ExternalNodePlugin::default();
    let (entered, release) = plugin.block_next("stage");
    let (cluster, _directory, stop) = start_cluster(&plugin).await;
    cluster.create_pod("p", claim_volume("data"), json!({"nodeName": "node-1"})).await;
    entered.await.unwrap();
    cluster.delete(&cluster.pods(), "p").await;
    cluster.wait_until_empty(&cluster.pods()).await;
    // Another volume must not remove the first one from `volumesInUse`.
    cluster.create_claim("other", "c").await;
    cluster.create_pod("q", claim_volume("other"), json!({"nodeName": "node-1"})).await;
    cluster.wait_until_running("q").await;
    assert_eq!(count_volumes_in_use(&cluster, "node-1").await, 2);
    release.send(()).unwrap();
    cluster.delete(&cluster.pods(), "q").await;
    cluster.view.wait_until_unmounted().await;
    let calls = plugin.calls();
    assert_eq!(calls.iter().filter(|call| *call == "unstage").count(), 2, "{calls:?}");
    stop.cancel();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pod_deleted_during_publish_is_removed_after_the_call_fails() {
    let plugin = ExternalNodePlugin::default();
    let (entered, release) = plugin.block_next("publish");
    let (cluster, _directory, stop) = start_cluster(&plugin).await;
    cluster.create_pod("p", claim_volume("data"), json!({"nodeName": "node-1"})).await;
    entered.await.unwrap();
    cluster.delete(&cluster.pods(), "p").await;
    // Wait until kubelet has seen the deletion.
    cluster.create_pod("q", json!([]), json!({"nodeName": "node-1"})).await;
    cluster.wait_until_running("q").await;
    assert!(cluster.pods().get("p").await.unwrap().metadata.deletion_timestamp.is_some());
    // A final error: nothing is mounted.
    plugin.0.lock().unwrap().failures = [("publish", vec![Code::Internal])].into();
    release.send(()).unwrap();
    wait_until(&cluster.pods(), "p", |pod| pod.is_none()).await;
    cluster.view.wait_until_unmounted().await;
    assert_eq!(plugin.calls(), ["stage", "publish", "unstage"]);
    stop.cancel();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_volumes_with_one_handle_are_unpublished_from_their_own_targets() {
    let plugin = ExternalNodePlugin::default();
    let (cluster, _directory, stop) = start_cluster(&plugin).await;
    cluster.create_pod("p", claim_volume("data"), json!({"nodeName": "node-1"})).await;
    cluster.wait_until_running("p").await;
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
    cluster.create_pod("q", claim_volume("other"), json!({"nodeName": "node-1"})).await;
    cluster.wait_until_running("q").await;
    for name in ["p", "q"] {
        cluster.delete(&cluster.pods(), name).await;
        wait_until(&cluster.pods(), name, |pod| pod.is_none()).await;
    }
    cluster.view.wait_until_unmounted().await;
    let log = std::mem::take(&mut *plugin.0.lock().unwrap());
    assert_eq!(log.calls, ["stage", "publish", "publish", "unpublish", "unpublish", "unstage"]);
    assert_eq!(log.problems, Vec::<String>::new());
    stop.cancel();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn running_pod_keeps_a_volume_whose_pv_is_force_deleted() {
    let plugin = ExternalNodePlugin::default();
    let (cluster, _directory, stop) = start_cluster(&plugin).await;
    cluster.create_pod("p", claim_volume("data"), json!({"nodeName": "node-1"})).await;
    cluster.wait_until_running("p").await;
    let claim = cluster.claims().get("data").await.unwrap();
    let name = claim.spec.unwrap().volume_name.unwrap();
    cluster.delete(&cluster.volumes(), &name).await;
    let no_finalizers: Value = json!({"metadata": {"finalizers": null}});
    cluster.patch(&cluster.volumes(), &name, no_finalizers).await;
    let is_lost = |claim: Option<&PersistentVolumeClaim>| {
        let phase = claim.and_then(|claim| claim.status.as_ref()?.phase.clone());
        phase.as_deref() == Some("Lost")
    };
    wait_until(&cluster.claims(), "data", is_lost).await;
    cluster.create_pod("q", json!([]), json!({"nodeName": "node-1"})).await;
    cluster.wait_until_running("q").await;
    assert_eq!(plugin.calls(), ["stage", "publish"]);
    assert_eq!(count_volumes_in_use(&cluster, "node-1").await, 1);
    cluster.delete(&cluster.pods(), "p").await;
    wait_until(&cluster.pods(), "p", |pod| pod.is_none()).await;
    cluster.view.wait_until_unmounted().await;
    assert_eq!(plugin.calls(), ["stage", "publish", "unpublish", "unstage"]);
    stop.cancel();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn volume_that_fails_to_unpublish_at_shutdown_is_not_unstaged() {
    let plugin = ExternalNodePlugin::default();
    let (cluster, _directory, stop) = start_cluster(&plugin).await;
    cluster.create_pod("p", claim_volume("data"), json!({"nodeName": "node-1"})).await;
    cluster.wait_until_running("p").await;
    plugin.0.lock().unwrap().failures = [("unpublish", vec![Code::Internal; 64])].into();
    let leftovers = cluster.stop().await;
    assert!(leftovers.iter().any(|line| line.contains("is still mounted")), "{leftovers:?}");
    assert_eq!(plugin.calls(), ["stage", "publish", "unpublish"]);
    stop.cancel();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pod_starts_after_its_csi_driver_stops_requiring_attach() {
    let plugin = ExternalNodePlugin::default();
    let (cluster, _directory, stop) =
        start_cluster_with(&plugin, &[("errors", "publish:unavailable:1000000")]).await;
    cluster.create_pod("p", claim_volume("data"), json!({"nodeName": "node-1"})).await;
    cluster.wait_for_event("FailedAttachVolume").await;
    disable_attach(&cluster).await;
    cluster.wait_until_running("p").await;
    assert_eq!(plugin.calls(), ["stage", "publish"]);
    stop.cancel();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn second_pod_of_a_read_write_once_pod_claim_waits_for_the_first() {
    let plugin = ExternalNodePlugin::default();
    let (cluster, _directory, stop) = start_cluster(&plugin).await;
    disable_attach(&cluster).await;
    let claim_body = json!({
        "metadata": {"name": "exclusive"},
        "spec": {
            "storageClassName": "c",
            "accessModes": ["ReadWriteOncePod"],
            "resources": {"requests": {"storage": "1Gi"}},
        },
    });
    cluster.create::<PersistentVolumeClaim>(claim_body).await;
    cluster.create_pod("first", claim_volume("exclusive"), json!({})).await;
    assert_eq!(cluster.wait_until_running("first").await, "node-1", "the driver is on node-1 only");
    cluster.create_pod("next", claim_volume("exclusive"), json!({})).await;
    cluster.wait_until_unschedulable("next", "ReadWriteOncePod").await;
    cluster.delete(&cluster.pods(), "first").await;
    assert_eq!(cluster.wait_until_running("next").await, "node-1", "the driver is on node-1 only");
    stop.cancel();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn file_system_resize_pending_is_removed_after_node_expansion() {
    let plugin = ExternalNodePlugin::default();
    let (cluster, _directory, stop) = start_cluster(&plugin).await;
    cluster.create_pod("p", claim_volume("data"), json!({"nodeName": "node-1"})).await;
    cluster.wait_until_running("p").await;
    let condition = json!({"type": "FileSystemResizePending", "status": "True"});
    let patch = kube::api::Patch::Merge(json!({"status": {"conditions": [condition]}}));
    cluster.claims().patch_status("data", &PatchParams::default(), &patch).await.unwrap();
    let has_no_conditions = |claim: Option<&PersistentVolumeClaim>| {
        claim.and_then(|claim| claim.status.as_ref()?.conditions.as_ref()).is_none_or(Vec::is_empty)
    };
    wait_until(&cluster.claims(), "data", has_no_conditions).await;
    assert_eq!(plugin.calls(), ["stage", "publish", "expand"]);
    stop.cancel();
}
