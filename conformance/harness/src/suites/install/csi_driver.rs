//! An existing CSI driver as containers of the chart's pods, with two replicas of the controller and with
//! Secrets of a StorageClass. The node has the driver's start-up taint until the driver is registered.
//!
//! The image is replaced, and the former one restored, by the commands of docs/high-availability.md.

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use serde_json::{Value, json};

use super::{
    Cluster, NODE, TIMEOUT,
    helm::{Helm, HelmVersion, write_values},
    images::DRIVER_IMAGE,
};
use crate::{
    claims::Claims,
    class_secret::{CONTROLLER_METHODS, ClassSecret, NODE_METHODS},
    pod,
    wait::until,
};

const NAMESPACE: &str = "csi";
const NODE_NAMESPACE: &str = "csi-node";
const RELEASE: &str = "array";
const DRIVER: &str = "array.conformance.cofferdam.dev";
/// Namespace of the claims, of the pods and of the Secret that the class names.
const USERS: &str = "secret-users";
const SOCKET: &str = "--socket=/csi/csi.sock";

pub(super) async fn install(cluster: &Cluster<'_>) -> Result<()> {
    let helm = Helm::new(cluster.run, cluster.plane, HelmVersion::Four)?;
    cluster.create_restricted_namespace(NAMESPACE).await?;
    // The rights to read the Secret are in its namespace, which therefore exists before the release.
    let claims = Claims::with_class(cluster.client(), USERS, RELEASE).await?;
    let secret = ClassSecret::random(USERS)?;
    secret.write(cluster.client()).await?;
    let values = write_values(cluster.run, "csi-driver-values", &values(cluster, &secret)?)?;
    let started = tokio::time::Instant::now();
    helm.run(&["install", RELEASE, "CHART", "--namespace", NAMESPACE, "--values", &values]).await?;
    cluster.wait_available(&[NAMESPACE, NODE_NAMESPACE], RELEASE).await?;
    cluster.run.add_note(&format!("a CSI driver is ready after {:.1} s", started.elapsed().as_secs_f64()))?;

    claims.create(0..1).await?;
    let pods: Api<Pod> = Api::namespaced(cluster.client().clone(), USERS);
    let script = format!("echo text > {0}/file; cat {0}/file", pod::MOUNT_PATH);
    let pod = serde_json::from_value(pod::with_claim("user", "claim-0", &script))?;
    pods.create(&PostParams::default(), &pod).await?;
    until("the pod has ended", TIMEOUT, async || {
        let status = pods.get("user").await?.status.context("no status")?;
        let phase = status.phase.as_deref().unwrap_or_default();
        let events = ["get", "events", "--namespace", USERS, "--field-selector", "type=Warning"];
        ensure!(phase == "Succeeded", "it is {phase}: {}", cluster.kubectl.run(&events).await?);
        Ok(())
    })
    .await?;
    pods.delete("user", &DeleteParams::default()).await?;
    claims.delete(0..1).await?;
    let uninstall = ["uninstall", RELEASE, "--namespace", NAMESPACE];
    // Refused until the volume is deleted.
    until("the release is uninstalled", TIMEOUT, async || helm.run(&uninstall).await.map(drop)).await?;
    cluster.ensure_nothing_left(RELEASE).await
}

fn values(cluster: &Cluster<'_>, secret: &ClassSecret) -> Result<Value> {
    let mut values = cluster.values()?;
    let name = format!("--name={DRIVER}");
    let arguments = |further: Vec<String>| -> Vec<String> {
        [SOCKET.to_owned(), name.clone()].into_iter().chain(further).collect()
    };
    let controller = [secret.driver_flags(&CONTROLLER_METHODS), vec!["--any-node".to_owned()]].concat();
    let flags = ["--any-volume", "--directory=/csi/volumes"].map(str::to_owned);
    let node = [secret.driver_flags(&NODE_METHODS), flags.to_vec(), vec![format!("--node={NODE}")]].concat();
    let fields = values.as_object_mut().context("values")?;
    fields.insert(
        "driver".to_owned(),
        json!({
            "name": DRIVER,
            "csi": {
                "controller": {"image": DRIVER_IMAGE, "args": arguments(controller)},
                "node": {"image": DRIVER_IMAGE, "args": arguments(node)},
            },
        }),
    );
    fields.insert("controller".to_owned(), json!({"secretNamespaces": [USERS]}));
    let class = json!({"name": RELEASE, "volumeBindingMode": "Immediate",
                       "parameters": ClassSecret::class_parameters()});
    fields.insert("storageClasses".to_owned(), json!([class]));
    Ok(values)
}
