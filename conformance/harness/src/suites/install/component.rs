//! A component in a ConfigMap: installed, used, upgraded and rolled back under load, and uninstalled.

use std::cell::Cell;

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::{core::v1::Pod, rbac::v1::ClusterRoleBinding};
use kube::{
    Api,
    api::{DeleteParams, ListParams, ObjectMeta, PostParams},
};
use serde_json::{Value, json};

use super::{
    Cluster, NAMESPACE, NODE, NODE_NAMESPACE, TIMEOUT, VERSIONS,
    helm::{Helm, HelmVersion, write_values},
};
use crate::{claims::Claims, pod, process, run::SuiteRun, wait::until};

/// Namespace of the claims and pods.
const USERS: &str = "users";
const RELEASE: &str = "memory";
const DRIVER: &str = "memory.cofferdam.dev";
/// Claims that are created while the release is upgraded, and while it is rolled back.
const CLAIMS: usize = 100;
/// Maximum size in bytes of a volume on the node. The claims request 1 GiB.
const MAX_TMPFS_BYTES: u64 = 1 << 30;
/// Grace period of the pod of [`start_pod`], longer than it takes to end.
const USER_GRACE_SECONDS: u32 = 30;
/// Text in the volume of the pod that runs all the time.
const TEXT: &str = "written before the upgrade";

pub(super) async fn install(cluster: &Cluster<'_>) -> Result<()> {
    let helm = Helm::new(cluster.run, cluster.plane, HelmVersion::Three)?;
    let manifest = create_config_map(cluster, NAMESPACE, "memory", cofferdam_carried::MEMORY).await?;
    create_state_volume(cluster).await?;

    let values = write_values(cluster.run, "component-values", &values(cluster)?)?;
    let release = ["--namespace", NAMESPACE, "--values", &values, "--set-file", &manifest];
    let started = tokio::time::Instant::now();
    helm.run(&[&["install", RELEASE, "CHART"], release.as_slice()].concat()).await?;
    let namespaces = [NAMESPACE, NODE_NAMESPACE];
    cluster.wait_available(&namespaces, RELEASE).await?;
    cluster.run.add_note(&format!("a component is ready after {:.1} s", started.elapsed().as_secs_f64()))?;
    cluster.dry_run_manifests().await.context("strict dry run")?;
    match helm.run(&[&["install", "second", "CHART"], release.as_slice()].concat()).await {
        Ok(output) => bail!("a second release of the driver is installed: {output}"),
        Err(error) => {
            let text = format!("{error:#}");
            let expected = format!("the release {RELEASE} in the namespace {NAMESPACE} has this one");
            ensure!(text.contains(&expected), "a second release: {text}: expected {expected:?}");
        }
    }

    let claims = Claims::with_class(cluster.client(), USERS, "memory").await?;
    create_without_rights(cluster, &claims).await.context("without the ClusterRoleBinding")?;
    start_pod(cluster, "claim-0").await?;
    ensure_kubectl_plugin(cluster).await?;

    let tag = format!("image.tag={}", VERSIONS[1]);
    let upgrade = [&["upgrade", RELEASE, "CHART"], release.as_slice(), &["--set", &tag]].concat();
    under_load(cluster.run, "helm upgrade", &claims, 1..1 + CLAIMS, async {
        helm.run(&upgrade).await?;
        cluster.wait_available(&namespaces, RELEASE).await
    })
    .await?;
    ensure_image(cluster, VERSIONS[1]).await?;
    under_load(cluster.run, "helm rollback", &claims, 1 + CLAIMS..1 + 2 * CLAIMS, async {
        helm.run(&["rollback", RELEASE, "--namespace", NAMESPACE]).await?;
        cluster.wait_available(&namespaces, RELEASE).await
    })
    .await?;
    ensure_image(cluster, VERSIONS[0]).await?;
    ensure_pod_unchanged(cluster).await?;

    let uninstall = ["uninstall", RELEASE, "--namespace", NAMESPACE];
    match helm.run(&uninstall).await {
        Ok(output) => bail!("the release with {} volumes is uninstalled: {output}", 1 + 2 * CLAIMS),
        Err(error) => {
            let (text, expected) =
                (format!("{error:#}"), format!("is in use: {} PersistentVolumes", 1 + 2 * CLAIMS));
            ensure!(text.contains(&expected), "helm uninstall: {text}: expected {expected:?}");
        }
    }
    // Helm has noted the attempt; an upgrade needs the last revision.
    helm.run(&["rollback", RELEASE, "3", "--namespace", NAMESPACE]).await?;
    helm.run(&[&upgrade[..], &["--set", &format!("image.tag={}", VERSIONS[0])]].concat()).await?;
    drain_node(cluster).await.context("drained node")?;
    claims.delete(0..1 + 2 * CLAIMS).await?;
    cluster.wait_without_volumes(DRIVER).await?;
    helm.run(&uninstall).await?;
    cluster.ensure_nothing_left(RELEASE).await?;
    cluster.clean_up(DRIVER).await
}

/// Creates a ConfigMap with a component, under the key `NAME.wasm`. Returns Helm's value that sets its
/// manifest.
pub(super) async fn create_config_map(
    cluster: &Cluster<'_>,
    namespace: &str,
    name: &str,
    component: &[u8],
) -> Result<String> {
    let file = cluster.run.directory().join(format!("{name}.wasm"));
    let manifest = write_manifest(cluster, name, component).await?;
    let from_file = format!("--from-file={name}.wasm={}", file.display());
    cluster.kubectl.run(&["create", "configmap", name, "--namespace", namespace, &from_file]).await?;
    Ok(manifest)
}

/// Writes a component to the file `NAME.wasm` of the run, and its manifest beside it. Returns Helm's value that
/// sets the manifest.
pub(super) async fn write_manifest(cluster: &Cluster<'_>, name: &str, component: &[u8]) -> Result<String> {
    let file = cluster.run.directory().join(format!("{name}.wasm"));
    std::fs::write(&file, component)?;
    let manifest = cluster.run.directory().join(format!("{name}-manifest.json"));
    let inspected = ["backend", "inspect", &file.display().to_string(), "--output", "manifest"];
    std::fs::write(&manifest, process::run_to_completion(cluster.run.program(), &inspected).await?)?;
    Ok(format!("driver.manifest={}", manifest.display()))
}

/// The values, which name the driver. Its state is on a volume, so that it survives an upgrade.
fn values(cluster: &Cluster<'_>) -> Result<Value> {
    let mut values = cluster.values()?;
    let fields = values.as_object_mut().context("values")?;
    fields.insert(
        "driver".to_owned(),
        json!({
            "name": DRIVER,
            "component": {"configMap": {"name": "memory", "key": "memory.wasm"}},
            "settings": {"nodes": NODE, "capacity": "1Ti"},
            "state": {"file": "/var/lib/cofferdam/state.db"},
        }),
    );
    fields.insert(
        "controller".to_owned(),
        json!({
            "volumes": [{"name": "state", "persistentVolumeClaim": {"claimName": "state"}}],
            "volumeMounts": [{"name": "state", "mountPath": "/var/lib/cofferdam"}],
        }),
    );
    let policy = json!({"connection-kinds": ["tmpfs"], "tmpfs-max-bytes": MAX_TMPFS_BYTES});
    let node = json!({"settings": {"node": policy}, "preStop": {"enabled": true}});
    fields.insert("node".to_owned(), node);
    fields.insert("storageClasses".to_owned(), json!([{"name": "memory", "volumeBindingMode": "Immediate"}]));
    Ok(values)
}

/// Creates a claim of the controller's namespace, bound to a directory of the node.
async fn create_state_volume(cluster: &Cluster<'_>) -> Result<()> {
    let directory = cluster.run.scratch().join("state");
    std::fs::create_dir_all(&directory)?;
    std::os::unix::fs::chown(&directory, Some(65532), Some(65532))?;
    let capacity = json!({"storage": "64Mi"});
    let objects = [
        json!({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "state"},
            "spec": {
                "capacity": capacity, "accessModes": ["ReadWriteOnce"], "storageClassName": "none",
                "claimRef": {"namespace": NAMESPACE, "name": "state"},
                "hostPath": {"path": directory}, "persistentVolumeReclaimPolicy": "Retain",
            },
        }),
        json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"name": "state", "namespace": NAMESPACE},
            "spec": {
                "resources": {"requests": capacity}, "accessModes": ["ReadWriteOnce"],
                "storageClassName": "none", "volumeName": "state",
            },
        }),
    ];
    let file = cluster.run.directory().join("state-volume.json");
    std::fs::write(&file, json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string())?;
    cluster.kubectl.run(&["create", "--filename", &file.display().to_string()]).await?;
    Ok(())
}

/// Creates the claim 0 while the controller lacks its rights in the cluster: a line of the log names the
/// right. The claim is bound after the ClusterRoleBinding is restored.
async fn create_without_rights(cluster: &Cluster<'_>, claims: &Claims) -> Result<()> {
    let deployment = format!("{RELEASE}-cofferdam-controller");
    let bindings: Api<ClusterRoleBinding> = Api::all(cluster.client().clone());
    let name = format!("{NAMESPACE}:{deployment}");
    let binding = bindings.get(&name).await?;
    bindings.delete(&name, &DeleteParams::default()).await?;
    claims.create(0..1).await?;
    let deployment = format!("deployment/{deployment}");
    let logs = ["logs", "--namespace", NAMESPACE, &deployment, "--container", "cofferdam", "--tail=-1"];
    let line = until("the log names the missing right", TIMEOUT, async || {
        let log = cluster.kubectl.run(&logs).await?;
        let names_right = |line: &&str| {
            ["claim-0", "is forbidden", "cannot", "resource"].iter().all(|part| line.contains(part))
        };
        log.lines().find(names_right).map(str::to_owned).with_context(|| log.clone())
    })
    .await?;
    let ObjectMeta { labels, annotations, .. } = binding.metadata;
    let metadata = ObjectMeta { name: Some(name), labels, annotations, ..ObjectMeta::default() };
    bindings.create(&PostParams::default(), &ClusterRoleBinding { metadata, ..binding }).await?;
    claims.wait_bound(1, TIMEOUT).await?;
    cluster.run.add_note(&format!("without the ClusterRoleBinding: {line}"))
}

/// Checks that kubectl runs the program as its plugin.
async fn ensure_kubectl_plugin(cluster: &Cluster<'_>) -> Result<()> {
    let directory = cluster.run.scratch().join("plugins");
    std::fs::create_dir_all(&directory)?;
    std::os::unix::fs::symlink(cluster.run.program(), directory.join("kubectl-cofferdam"))?;
    let status = ["cofferdam", "status", "--driver", DRIVER, "--namespace", NAMESPACE];
    let output = cluster.kubectl.run_plugin(&directory, &status).await?;
    ensure!(
        output.starts_with(DRIVER) && output.contains("1 bound"),
        "kubectl {}: {output}",
        status.join(" ")
    );
    Ok(())
}

/// Creates claims while `change` runs, each when the one before is bound. The claims of lower numbers must be
/// bound. A note has the number of claims that were bound before the change was complete.
pub(super) async fn under_load(
    run: &SuiteRun,
    what: &str,
    claims: &Claims,
    numbers: std::ops::Range<usize>,
    change: impl Future<Output = Result<()>>,
) -> Result<()> {
    let bound = Cell::new(0);
    let load = async {
        for number in numbers.clone() {
            claims.create(number..number + 1).await?;
            claims.wait_bound(number + 1, TIMEOUT).await?;
            bound.set(bound.get() + 1);
        }
        anyhow::Ok(())
    };
    let change = async {
        change.await?;
        Ok(bound.get())
    };
    let ((), before_end) = tokio::try_join!(load, change).with_context(|| what.to_owned())?;
    run.add_note(&format!("{what}: {before_end} of {} claims were bound before its end", numbers.len()))
}

/// Deletes the node's pod of the release, and then the pod with the volume, as on a node that is removed. The
/// first one has to wait for the second one, which takes some seconds to end: its preStop hook sees that the
/// node is cordoned.
async fn drain_node(cluster: &Cluster<'_>) -> Result<()> {
    let users: Api<Pod> = Api::namespaced(cluster.client().clone(), USERS);
    let drivers: Api<Pod> = Api::namespaced(cluster.client().clone(), NODE_NAMESPACE);
    let selector = ListParams::default().labels(&format!("app.kubernetes.io/instance={RELEASE}"));
    let driver = drivers.list(&selector).await?.items.pop().context("no pod of the DaemonSet")?.metadata;
    let name = driver.name.context("a pod without a name")?;
    cluster.kubectl.run(&["cordon", NODE]).await?;
    drivers.delete(&name, &DeleteParams::default()).await?;
    users.delete("user", &DeleteParams::default().grace_period(USER_GRACE_SECONDS)).await?;
    let is_there =
        async || anyhow::Ok(drivers.get_opt(&name).await?.is_some_and(|pod| pod.metadata.uid == driver.uid));
    let mut waits = true;
    until("the pod with the volume has ended", TIMEOUT, async || {
        let is_driver_there = is_there().await?;
        let user = users.get_opt("user").await?;
        waits &= user.is_none() || is_driver_there;
        ensure!(user.is_none(), "{:?}", user.and_then(|pod| pod.status).and_then(|status| status.phase));
        Ok(())
    })
    .await?;
    ensure!(waits, "the pod {name} ended while a pod used a volume of its driver");
    until("the node's pod has ended", TIMEOUT, async || {
        ensure!(!is_there().await?, "{name} is there");
        Ok(())
    })
    .await?;
    cluster.kubectl.run(&["uncordon", NODE]).await?;
    cluster.wait_available(&[NODE_NAMESPACE], RELEASE).await
}

/// Starts a pod that writes to a volume and stays. After SIGTERM it runs for some seconds.
async fn start_pod(cluster: &Cluster<'_>, claim: &str) -> Result<()> {
    let script = format!(
        "echo '{TEXT}' > {}/text; trap 'sleep 5; exit' TERM; while :; do sleep 3600 & wait; done",
        pod::MOUNT_PATH
    );
    let pods: Api<Pod> = Api::namespaced(cluster.client().clone(), USERS);
    let pod = serde_json::from_value(pod::with_claim("user", claim, &script))?;
    pods.create(&PostParams::default(), &pod).await?;
    cluster.wait_phase(&pods, USERS, "Running").await
}

/// Checks that the pod of [`start_pod`] has never restarted, and reads its volume.
async fn ensure_pod_unchanged(cluster: &Cluster<'_>) -> Result<()> {
    let status = Api::<Pod>::namespaced(cluster.client().clone(), USERS).get("user").await?.status;
    let containers = status.and_then(|status| status.container_statuses).context("no status")?;
    ensure!(containers.iter().all(|container| container.restart_count == 0), "{containers:?}");
    let file = format!("{}/text", pod::MOUNT_PATH);
    let text = cluster.kubectl.run(&["exec", "--namespace", USERS, "user", "--", "cat", &file]).await?;
    ensure!(text.trim() == TEXT, "the volume has {text:?}");
    Ok(())
}

/// Checks that the pods of the release have the image of a version.
async fn ensure_image(cluster: &Cluster<'_>, version: &str) -> Result<()> {
    for namespace in [NAMESPACE, NODE_NAMESPACE] {
        let pods: Api<Pod> = Api::namespaced(cluster.client().clone(), namespace);
        let pods = pods
            .list(&ListParams::default().labels(&format!("app.kubernetes.io/instance={RELEASE}")))
            .await?;
        let pods = pods.items.into_iter().filter(|pod| pod.metadata.deletion_timestamp.is_none());
        let images: Vec<String> = pods
            .filter_map(|pod| pod.spec)
            .flat_map(|spec| spec.containers)
            .filter_map(|one| one.image)
            .collect();
        let tag = format!(":{version}");
        ensure!(
            !images.is_empty() && images.iter().all(|image| image.ends_with(&tag)),
            "{namespace}: {images:?}"
        );
    }
    Ok(())
}
