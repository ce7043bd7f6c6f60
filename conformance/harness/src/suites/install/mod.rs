//! The chart and the images, installed as a user does it: the images are imported into containerd, and Helm
//! installs the chart on a real kubelet, with Pod Security enforced. The values name the images, the driver
//! and the address of the API server; those of the CSI driver also select the role `startup-taint` and a
//! name.

mod admission;
mod component;
mod csi_driver;
mod helm;
mod images;
mod node_local;
mod values;

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::{
    apps::v1::{DaemonSet, Deployment},
    core::v1::{Namespace, PersistentVolume, Pod},
};
use kube::{
    Api, Client,
    api::{DeleteParams, PostParams},
};
use serde_json::{Value, json};

use crate::{
    account::Kubectl,
    control_plane::{ControlPlane, ControlPlaneOptions},
    node::KubeletNode,
    pod,
    run::SuiteRun,
    wait::until,
};

const TIMEOUT: Duration = Duration::from_secs(240);
const NODE: &str = "node-1";
/// Namespaces of the releases, which are installed one after the other.
const NAMESPACE: &str = "storage";
const NODE_NAMESPACE: &str = "storage-node";
/// The versions of the image.
const VERSIONS: [&str; 2] = ["v1", "v2"];

pub(super) async fn run(run: &SuiteRun) -> Result<()> {
    values::check(run).await?;
    let options = ControlPlaneOptions {
        controllers: Some("*".to_owned()),
        has_scheduler: true,
        serves_pods: true,
        ..ControlPlaneOptions::default()
    };
    let plane = ControlPlane::start(run, options).await?;
    let node = KubeletNode::start_at_default_root(run, &plane, NODE).await?;
    for version in VERSIONS {
        node.import_images(run, &images::write_release(run, version).await?).await?;
    }
    node.import_images(run, &images::write_driver(run)?).await?;
    let cluster = Cluster { run, kubectl: Kubectl::new(run, &plane)?, plane: &plane };
    admission::check(&cluster).await.context("admission policies")?;
    cluster.create_restricted_namespace(NAMESPACE).await?;
    component::install(&cluster).await.context("component")?;
    node_local::install(&cluster).await.context("node-local component")?;
    // The chart keeps it: it may have other drivers, and the next release creates its own.
    cluster.kubectl.run(&["delete", "namespace", NODE_NAMESPACE]).await?;
    csi_driver::install(&cluster, &node).await.context("CSI driver")?;
    drop(cluster);
    node.wait_idle(run, TIMEOUT).await?;
    node.stop().await?;
    plane.stop().await
}

/// The cluster of the suite.
struct Cluster<'a> {
    run: &'a SuiteRun,
    plane: &'a ControlPlane,
    kubectl: Kubectl,
}

impl Cluster<'_> {
    fn client(&self) -> &Client {
        self.plane.client()
    }

    /// Values that name the image and the address of the API server.
    fn values(&self) -> Result<Value> {
        let address = self.plane.pod_address().context("pods do not reach the API server")?;
        Ok(json!({
            "image": {"repository": images::REPOSITORY, "tag": VERSIONS[0]},
            "kubernetes": {"serviceHost": address.ip().to_string(), "servicePort": address.port()},
        }))
    }

    /// Lets the API server validate `deploy/manifests` strictly, without storing an object. Their namespaces
    /// exist while a release is installed.
    async fn dry_run_manifests(&self) -> Result<()> {
        let directory = helm::source_directory().join("deploy/manifests");
        let mut files: Vec<_> =
            std::fs::read_dir(&directory)?.map(|file| Ok(file?.path())).collect::<Result<_>>()?;
        files.sort();
        ensure!(!files.is_empty(), "{} has no manifests", directory.display());
        for file in files {
            let file = file.display().to_string();
            let apply = ["apply", "--dry-run=server", "--validate=strict", "--filename", &file];
            self.kubectl.run(&apply).await.with_context(|| file.clone())?;
        }
        Ok(())
    }

    /// Creates a namespace that enforces the Pod Security Standard `restricted`.
    async fn create_restricted_namespace(&self, name: &str) -> Result<()> {
        let labels = json!({"pod-security.kubernetes.io/enforce": "restricted"});
        let object = json!({"metadata": {"name": name, "labels": labels}});
        Api::<Namespace>::all(self.client().clone())
            .create(&PostParams::default(), &serde_json::from_value(object)?)
            .await?;
        Ok(())
    }

    /// Waits until every Deployment and DaemonSet of a release is updated and available.
    async fn wait_available(&self, namespaces: &[&str], release: &str) -> Result<()> {
        until(&format!("the release {release} is available"), TIMEOUT, async || {
            let selector =
                kube::api::ListParams::default().labels(&format!("app.kubernetes.io/instance={release}"));
            let mut found = 0;
            for namespace in namespaces {
                let deployments: Api<Deployment> = Api::namespaced(self.client().clone(), namespace);
                for deployment in deployments.list(&selector).await? {
                    found += 1;
                    self.ensure_deployment_available(&deployment).await?;
                }
                let daemon_sets: Api<DaemonSet> = Api::namespaced(self.client().clone(), namespace);
                for daemon_set in daemon_sets.list(&selector).await? {
                    found += 1;
                    let status = daemon_set.status.clone().context("a DaemonSet without a status")?;
                    let wanted = status.desired_number_scheduled;
                    ensure!(
                        status.observed_generation == daemon_set.metadata.generation
                            && wanted > 0
                            && status.updated_number_scheduled == Some(wanted)
                            && status.number_available == Some(wanted),
                        "DaemonSet: {status:?}; {}",
                        self.describe_pods(namespace).await?
                    );
                }
            }
            ensure!(found > 0, "it has neither a Deployment nor a DaemonSet");
            Ok(())
        })
        .await
    }

    async fn ensure_deployment_available(&self, deployment: &Deployment) -> Result<()> {
        let wanted = deployment.spec.as_ref().and_then(|spec| spec.replicas);
        let status = deployment.status.clone().context("a Deployment without a status")?;
        let namespace = deployment.metadata.namespace.clone().unwrap_or_default();
        ensure!(
            status.observed_generation == deployment.metadata.generation
                && status.updated_replicas == wanted
                && status.available_replicas == wanted
                && status.replicas == wanted,
            "Deployment, of {wanted:?} replicas: {status:?}; {}",
            self.describe_pods(&namespace).await?
        );
        Ok(())
    }

    /// The states of a namespace's pods, and its events of type Warning.
    async fn describe_pods(&self, namespace: &str) -> Result<String> {
        let pods: Api<Pod> = Api::namespaced(self.client().clone(), namespace);
        let pods: Vec<String> = pods
            .list(&Default::default())
            .await?
            .into_iter()
            .map(|pod| {
                let status = pod.status.unwrap_or_default();
                let containers = (status.init_container_statuses, status.container_statuses);
                format!("{:?}: {containers:?}", pod.metadata.name)
            })
            .collect();
        let events = ["get", "events", "--namespace", namespace, "--field-selector", "type=Warning"];
        Ok(format!("{} {}", pods.join("; "), self.kubectl.run(&events).await?))
    }

    /// Runs a pod that writes to the volume of a claim and reads it, and deletes the pod.
    async fn run_pod(&self, namespace: &str, claim: &str) -> Result<()> {
        let pods: Api<Pod> = Api::namespaced(self.client().clone(), namespace);
        let script = format!("echo text > {0}/file; cat {0}/file", pod::MOUNT_PATH);
        let pod = serde_json::from_value(pod::with_claim("user", claim, &script))?;
        pods.create(&PostParams::default(), &pod).await?;
        self.wait_phase(&pods, namespace, "Succeeded").await?;
        pods.delete("user", &DeleteParams::default()).await?;
        Ok(())
    }

    /// Waits until the pod `user` of a namespace has this phase.
    async fn wait_phase(&self, pods: &Api<Pod>, namespace: &str, expected: &str) -> Result<()> {
        until(&format!("the pod is {expected}"), TIMEOUT, async || {
            let status = pods.get("user").await?.status.context("no status")?;
            let phase = status.phase.as_deref().unwrap_or_default();
            let events = ["get", "events", "--namespace", namespace, "--field-selector", "type=Warning"];
            ensure!(phase == expected, "it is {phase}: {}", self.kubectl.run(&events).await?);
            Ok(())
        })
        .await
    }

    /// Waits until the driver has no PersistentVolume.
    async fn wait_without_volumes(&self, driver: &str) -> Result<()> {
        until("no volume is left", TIMEOUT, async || {
            let volumes: Api<PersistentVolume> = Api::all(self.client().clone());
            let left = volumes.list(&Default::default()).await?.items.into_iter();
            let of_volume = |volume: PersistentVolume| volume.spec?.csi.map(|csi| csi.driver);
            let count = left.filter_map(of_volume).filter(|name| name == driver).count();
            ensure!(count == 0, "{count} PersistentVolumes");
            Ok(())
        })
        .await
    }

    /// Checks that no object of the release is left, except the namespace of its nodes.
    async fn ensure_nothing_left(&self, release: &str) -> Result<()> {
        let kinds = self.kubectl.run(&["api-resources", "--verbs=list", "--output=name"]).await?;
        let kinds = kinds.split_whitespace().collect::<Vec<_>>().join(",");
        until("nothing of the release is left", TIMEOUT, async || {
            let selector = format!("--selector=app.kubernetes.io/instance={release}");
            let left = ["get", &kinds, "--all-namespaces", &selector, "--output=name"];
            let left = self.kubectl.run(&left).await?;
            let namespace = format!("namespace/{NODE_NAMESPACE}");
            let left: Vec<&str> = left.lines().filter(|object| *object != namespace).collect();
            ensure!(left.is_empty(), "{left:?}");
            Ok(())
        })
        .await
    }
}
