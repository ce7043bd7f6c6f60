//! An existing CSI driver as containers of the chart's pods, with two replicas of the controller and with
//! Secrets of a StorageClass. The node has the driver's start-up taint until the driver is registered.
//!
//! The image is replaced, and the former one restored, by the commands of docs/high-availability.md. At the
//! end it is gone, so that the chart's check cannot run before `helm uninstall`.

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use serde_json::{Value, json};

use super::{
    Cluster, NAMESPACE, NODE, NODE_NAMESPACE, TIMEOUT, VERSIONS,
    component::under_load,
    helm::{Helm, HelmVersion, source_directory, write_values},
    images::{self, DRIVER_IMAGE},
};
use crate::{
    claims::Claims,
    class_secret::{CONTROLLER_METHODS, ClassSecret, NODE_METHODS},
    node::KubeletNode,
    process,
    wait::until,
};

const RELEASE: &str = "my-array";
const DRIVER: &str = "array.conformance.cofferdam.dev";
/// Namespace of the claims, of the pods and of the Secret that the class names.
const USERS: &str = "secret-users";
/// Claims that are created while an image is replaced.
const CLAIMS: usize = 20;
/// The page with the commands that replace an image, the beginning of these commands, and the image in them.
const PAGE: &str = "docs/high-availability.md";
const COMMAND: &str = "kubectl --namespace storage ";
const PRINTED_IMAGE: &str = "registry.example.com/cofferdam:0.2.0";
const SOCKET: &str = "--socket=/csi/csi.sock";

/// An installed release with the CSI driver.
pub(super) struct CsiDriverRelease<'a> {
    cluster: &'a Cluster<'a>,
    helm: Helm,
    claims: Claims,
}

impl<'a> CsiDriverRelease<'a> {
    /// Installs the chart on a node with a start-up taint, and runs a pod with a volume.
    pub(super) async fn install(cluster: &'a Cluster<'a>) -> Result<Self> {
        let helm = Helm::new(cluster.run, cluster.plane, HelmVersion::Four)?;
        // The rights to read the Secret are in its namespace, which therefore exists before the release.
        let claims = Claims::with_class(cluster.client(), USERS, RELEASE).await?;
        let secret = ClassSecret::random(USERS)?;
        secret.write(cluster.client()).await?;
        let values = write_values(cluster.run, "csi-driver-values", &values(cluster, &secret)?)?;
        let taint = format!("{DRIVER}/agent-not-ready=:NoExecute");
        cluster.kubectl.run(&["taint", "node", NODE, &taint]).await?;
        apply_policy(cluster).await?;
        let started = tokio::time::Instant::now();
        let release = ["--namespace", NAMESPACE, "--values", &values, "--take-ownership"];
        helm.run(&[&["install", RELEASE, "CHART"], release.as_slice()].concat()).await?;
        cluster.wait_available(&[NAMESPACE, NODE_NAMESPACE], RELEASE).await?;
        let elapsed = started.elapsed().as_secs_f64();
        cluster.run.add_note(&format!("a CSI driver is ready after {elapsed:.1} s"))?;
        until("the start-up taint is removed", TIMEOUT, async || {
            let node = Api::<Node>::all(cluster.client().clone()).get(NODE).await?;
            let taints = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
            ensure!(taints.iter().all(|taint| !taint.key.starts_with(DRIVER)), "{taints:?}");
            Ok(())
        })
        .await?;
        claims.create(0..1).await?;
        cluster.run_pod(USERS, "claim-0").await?;
        Ok(Self { cluster, helm, claims })
    }

    /// Replaces the image, and restores the former one, each while claims are created. Deletes the claims.
    pub(super) async fn replace_images(&self) -> Result<()> {
        let mut created = 1;
        for version in [VERSIONS[1], VERSIONS[0]] {
            let next = created + CLAIMS;
            let what = format!("the commands of {PAGE} with the image {version}");
            let replacement = replace_image(self.cluster, version);
            under_load(self.cluster.run, &what, &self.claims, created..next, replacement).await?;
            created = next;
        }
        self.claims.delete(0..created).await?;
        self.cluster.wait_without_volumes(DRIVER).await
    }

    /// Removes the image, and uninstalls the release without its check.
    pub(super) async fn uninstall(&self, node: &KubeletNode) -> Result<()> {
        let (cluster, helm) = (self.cluster, &self.helm);
        let uninstall = ["uninstall", RELEASE, "--namespace", NAMESPACE];
        node.remove_image(cluster.run, &images::name(VERSIONS[0])).await?;
        let refused = async {
            let error = helm.run(&[&uninstall[..], &["--timeout", "15s"]].concat()).await;
            ensure!(error.is_err(), "the release was uninstalled without its check, whose image is gone");
            Ok(())
        };
        let image_missing = until("the check waits for its image", TIMEOUT, async || {
            let pods = cluster.describe_pods(NAMESPACE).await?;
            ensure!(pods.contains("ErrImagePull") || pods.contains("ImagePullBackOff"), "{pods}");
            Ok(())
        });
        tokio::try_join!(refused, image_missing)?;
        helm.run(&[&uninstall[..], &["--no-hooks"]].concat()).await?;
        cluster.ensure_nothing_left(RELEASE).await?;
        cluster.clean_up(DRIVER).await
    }
}

/// Applies the policy of the role `startup-taint` before the rights that it restricts, which the chart
/// creates.
async fn apply_policy(cluster: &Cluster<'_>) -> Result<()> {
    let account = format!("{RELEASE}-controller");
    let render = ["render", "admission-policy", "--policy", "startup-taint", "--driver", DRIVER];
    let flags = ["--namespace", NAMESPACE, "--service-account", &account];
    let policy =
        process::run_to_completion(cluster.run.program(), &[render.as_slice(), &flags].concat()).await?;
    let file = cluster.run.directory().join("policy.yaml");
    std::fs::write(&file, policy)?;
    let apply = ["apply", "--server-side", "--field-manager=helm", "--filename"];
    cluster.kubectl.run(&[apply.as_slice(), &[&file.display().to_string()]].concat()).await?;
    Ok(())
}

/// Replaces the image of the controller as the page prints it.
async fn replace_image(cluster: &Cluster<'_>, version: &str) -> Result<()> {
    let path = source_directory().join(PAGE);
    let page = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let image = images::name(version);
    let commands: Vec<String> = page
        .lines()
        .filter(|line| line.starts_with(COMMAND))
        .map(|line| line.replace(PRINTED_IMAGE, &image))
        .collect();
    ensure!(
        commands.iter().any(|command| command.contains(&image)),
        "{PAGE}: no command with {PRINTED_IMAGE}: {commands:?}"
    );
    for command in commands {
        let arguments: Vec<&str> = command.split_whitespace().skip(1).collect();
        cluster.kubectl.run(&arguments).await.with_context(|| command.clone())?;
    }
    Ok(())
}

fn values(cluster: &Cluster<'_>, secret: &ClassSecret) -> Result<Value> {
    let mut values = cluster.values()?;
    let name = format!("--name={DRIVER}");
    let arguments = |further: Vec<String>| -> Vec<String> {
        [SOCKET.to_owned(), name.clone()].into_iter().chain(further).collect()
    };
    // A new pod begins without volumes: it must not return the ids of former ones.
    let prefix = "--id-prefix=$(POD_NAME)-".to_owned();
    let pod_name = json!({"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}});
    let flags = vec!["--any-node".to_owned(), prefix];
    let controller = [secret.driver_flags(&CONTROLLER_METHODS), flags].concat();
    let flags = ["--any-volume", "--directory=/csi/volumes"].map(str::to_owned);
    let node = [secret.driver_flags(&NODE_METHODS), flags.to_vec(), vec![format!("--node={NODE}")]].concat();
    let fields = values.as_object_mut().context("values")?;
    fields.insert(
        "driver".to_owned(),
        json!({
            "name": DRIVER,
            "csi": {
                "controller": {"image": DRIVER_IMAGE, "args": arguments(controller), "env": [pod_name]},
                "node": {"image": DRIVER_IMAGE, "args": arguments(node)},
            },
        }),
    );
    // The name of the Deployment in the commands.
    fields.insert("fullnameOverride".to_owned(), json!(RELEASE));
    let roles = ["provisioner", "attacher", "resizer", "startup-taint"];
    fields.insert("controller".to_owned(), json!({"secretNamespaces": [USERS], "roles": roles}));
    let class = json!({"name": RELEASE, "volumeBindingMode": "Immediate",
                       "parameters": ClassSecret::class_parameters()});
    fields.insert("storageClasses".to_owned(), json!([class]));
    Ok(values)
}
