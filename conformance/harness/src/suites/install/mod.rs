//! The chart and the images, installed as a user does it: the images are imported into containerd, and Helm
//! installs the chart on a real kubelet, with Pod Security enforced. docs/conformance.md lists the values
//! that differ from the defaults, with the reason of each.

mod admission;
mod component;
mod csi_driver;
mod definitions;
pub(super) mod helm;
pub(super) mod images;
mod node_local;
mod values;

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    fs,
    path::PathBuf,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use http::Request;
use k8s_openapi::{
    api::{
        apps::v1::{DaemonSet, Deployment},
        core::v1::{Namespace, PersistentVolume, Pod},
    },
    apimachinery::pkg::apis::meta::v1::APIResourceList,
};
use kube::{
    Api, Client,
    api::{DeleteParams, PostParams},
};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    account::Kubectl,
    control_plane::{ControlPlane, ControlPlaneOptions},
    node::KubeletNode,
    pod,
    run::SuiteRun,
    wait::until,
};

const TIMEOUT: Duration = Duration::from_secs(240);
pub(super) const NODE: &str = "node-1";
/// Namespaces of the releases `memory` and `my-array`, which are installed one after the other.
const NAMESPACE: &str = "storage";
const NODE_NAMESPACE: &str = "storage-node";
/// The page with the commands that delete what a release leaves, their beginning, and the driver in them.
const CLEAN_UP_PAGE: &str = "deploy/README.md";
const CLEAN_UP_COMMAND: &str = "kubectl --namespace storage delete ";
const PRINTED_DRIVER: &str = "array.example.com";
/// The versions of the image.
pub(super) const VERSIONS: [&str; 2] = ["v1", "v2"];

pub(super) async fn run(run: &SuiteRun) -> Result<()> {
    let phases = Phases::default();
    let install = async {
        let ((plane, node), archive) = tokio::try_join!(
            phases.run("start of the cluster", start_cluster(run)),
            phases.run("images", images::write(run)),
        )?;
        let kubectl = Kubectl::new(run, &plane)?;
        let cluster = Cluster { run, kubectl: &kubectl, plane: &plane };
        tokio::try_join!(
            phases.run("import of the images", node.import_images(run, &archive)),
            phases.run("definitions of snapshots", definitions::check(&cluster)),
        )?;
        phases.run("admission policies", admission::check(&cluster)).await?;
        cluster.create_namespace(NAMESPACE, "restricted").await?;
        phases.run("component", component::install(&cluster)).await?;
        // The chart keeps it: it may have other drivers, and the next release creates its own.
        kubectl.run(&["delete", "namespace", NODE_NAMESPACE]).await?;
        Ok((plane, node, kubectl))
    };
    // Helm renders the cases while the cluster waits for pods.
    let (rendered, (plane, node, kubectl)) =
        tokio::try_join!(phases.run("values", values::check(run)), install)?;
    let cluster = Cluster { run, kubectl: &kubectl, plane: &plane };
    let driver = phases.run("CSI driver", csi_driver::CsiDriverRelease::install(&cluster)).await?;
    // The node has no taint any more, and still has the image.
    tokio::try_join!(
        phases.run("images of the CSI driver", driver.replace_images()),
        phases.run("node-local component", node_local::install(&cluster)),
        phases.run("strict dry run of the cases of values", cluster.dry_run_other_kinds(&rendered)),
    )?;
    phases.run("end of the CSI driver", driver.uninstall(&node)).await?;
    let stop = async {
        node.wait_idle(run, TIMEOUT).await?;
        node.stop().await?;
        plane.stop().await
    };
    phases.run("end", stop).await?;
    run.add_note(&phases.note())
}

/// Starts a cluster with all controllers and one node, whose kubelet has the default root directory.
pub(super) async fn start_cluster(run: &SuiteRun) -> Result<(ControlPlane, KubeletNode)> {
    let options = ControlPlaneOptions {
        controllers: Some("*".to_owned()),
        has_scheduler: true,
        serves_pods: true,
        ..ControlPlaneOptions::default()
    };
    let plane = ControlPlane::start(run, options).await?;
    let node = KubeletNode::start_at_default_root(run, &plane, NODE).await?;
    Ok((plane, node))
}

/// Times of the suite's phases, in the order of their ends.
#[derive(Default)]
struct Phases(RefCell<Vec<(&'static str, Duration)>>);

impl Phases {
    /// Runs a phase. Its error begins with its name.
    async fn run<T>(&self, name: &'static str, phase: impl Future<Output = Result<T>>) -> Result<T> {
        let started = Instant::now();
        let result = phase.await.context(name)?;
        self.0.borrow_mut().push((name, started.elapsed()));
        Ok(result)
    }

    fn note(&self) -> String {
        let phases = self.0.borrow();
        let times = phases.iter().map(|(name, time)| format!("{name} {:.1} s", time.as_secs_f64()));
        format!("phases, some of which run concurrently: {}", times.collect::<Vec<_>>().join(", "))
    }
}

/// The files of `deploy/manifests`.
fn manifests() -> Result<Vec<PathBuf>> {
    let directory = helm::source_directory().join("deploy/manifests");
    let mut files: Vec<_> = fs::read_dir(&directory)?.map(|file| Ok(file?.path())).collect::<Result<_>>()?;
    files.sort();
    ensure!(!files.is_empty(), "{} has no manifests", directory.display());
    Ok(files)
}

/// A text field of an object; empty if it is absent.
fn text_field<'a>(object: &'a Value, field: &str) -> &'a str {
    object.get(field).and_then(Value::as_str).unwrap_or_default()
}

/// The cluster of the suite.
struct Cluster<'a> {
    run: &'a SuiteRun,
    plane: &'a ControlPlane,
    kubectl: &'a Kubectl,
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
        for file in manifests()? {
            self.dry_run(&file.display().to_string()).await?;
        }
        Ok(())
    }

    async fn dry_run(&self, file: &str) -> Result<()> {
        let apply = ["apply", "--dry-run=server", "--validate=strict", "--filename", file];
        self.kubectl.run(&apply).await.with_context(|| file.to_owned())?;
        Ok(())
    }

    /// Validates the rendered objects of the kinds that `deploy/manifests` lacks in the same way. The note
    /// names the kinds that the API does not serve.
    async fn dry_run_other_kinds(&self, rendered: &[Value]) -> Result<()> {
        let mut known = BTreeSet::new();
        for file in manifests()? {
            let objects: Vec<Value> = serde_saphyr::from_multiple(&fs::read_to_string(&file)?)?;
            known.extend(objects.iter().map(|object| text_field(object, "kind").to_owned()));
        }
        let is_other = |object: &&Value| !known.contains(text_field(object, "kind"));
        // Most cases render the same objects.
        let others: BTreeMap<String, &Value> =
            rendered.iter().filter(is_other).map(|object| (object.to_string(), object)).collect();
        let mut served: BTreeMap<(&str, &str), bool> = BTreeMap::new();
        let mut accepted = Vec::new();
        for object in others.into_values() {
            let kind = (text_field(object, "apiVersion"), text_field(object, "kind"));
            let is_served = match served.entry(kind) {
                Entry::Occupied(known) => *known.get(),
                Entry::Vacant(unknown) => *unknown.insert(self.serves(kind).await?),
            };
            if is_served {
                accepted.push(object);
            }
        }
        let file = self.run.directory().join("other-kinds.json");
        let list = json!({"apiVersion": "v1", "kind": "List", "items": accepted});
        fs::write(&file, list.to_string())?;
        self.dry_run(&file.display().to_string()).await?;
        let names = |is_served: bool| {
            let names = served.iter().filter(|(_, served)| **served == is_served);
            names.map(|((version, kind), _)| format!("{kind} ({version})")).collect::<Vec<_>>().join(", ")
        };
        ensure!(names(true).contains("VolumeSnapshotClass"), "validated: {}", names(true));
        let (count, validated, unserved) = (accepted.len(), names(true), names(false));
        self.run.add_note(&format!(
            "strict dry run: the manifests, and {count} objects of further kinds: {validated}; the API \
             does not serve {unserved}"
        ))
    }

    /// Reports if the API serves a kind of a version.
    async fn serves(&self, (version, kind): (&str, &str)) -> Result<bool> {
        let root = if version.contains('/') { "apis" } else { "api" };
        let request = Request::get(format!("/{root}/{version}")).body(Vec::new())?;
        match self.client().request::<APIResourceList>(request).await {
            Ok(list) => Ok(list.resources.iter().any(|resource| resource.kind == kind)),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Creates a namespace that enforces a Pod Security Standard.
    async fn create_namespace(&self, name: &str, standard: &str) -> Result<()> {
        let labels = json!({"pod-security.kubernetes.io/enforce": standard});
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

    /// Deletes the journal, the reports and the Leases of a driver by the commands that the chart's README
    /// prints, and checks that none is left.
    async fn clean_up(&self, driver: &str) -> Result<()> {
        let path = helm::source_directory().join(CLEAN_UP_PAGE);
        let page =
            std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let of_lease = |name: &str| name.replace('.', "-");
        let commands: Vec<String> = page
            .lines()
            .filter(|line| line.starts_with(CLEAN_UP_COMMAND) && line.contains("--ignore-not-found"))
            .map(|line| line.replace(PRINTED_DRIVER, driver))
            .map(|line| line.replace(&of_lease(PRINTED_DRIVER), &of_lease(driver)))
            .collect();
        ensure!(commands.len() == 2, "{CLEAN_UP_PAGE}: {commands:?}, expected two commands");
        for command in &commands {
            let arguments: Vec<String> = command.split_whitespace().skip(1).flat_map(expand_braces).collect();
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            self.kubectl.run(&arguments).await.with_context(|| command.clone())?;
        }
        let left = ["get", "configmaps,leases", "--namespace", NAMESPACE, "--output=name"];
        let left = self.kubectl.run(&left).await?;
        let is_of_driver = |object: &&str| object.contains(driver) || object.contains(&of_lease(driver));
        let left: Vec<&str> = left.lines().filter(is_of_driver).collect();
        ensure!(left.is_empty(), "{left:?} after {commands:?}");
        Ok(())
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

/// The words of a range such as `name-{0..7}`, as a shell expands it. Other words are unchanged.
fn expand_braces(word: &str) -> Vec<String> {
    let range = word.split_once('{').and_then(|(before, rest)| {
        let (range, after) = rest.split_once('}')?;
        let (first, last) = range.split_once("..")?;
        Some((before, first.parse::<u32>().ok()?..=last.parse().ok()?, after))
    });
    match range {
        Some((before, numbers, after)) => numbers.map(|number| format!("{before}{number}{after}")).collect(),
        None => vec![word.to_owned()],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_expanded_as_in_a_shell() {
        assert_eq!(expand_braces("a-{0..2}"), ["a-0", "a-1", "a-2"]);
        assert_eq!(expand_braces("a-{x}"), ["a-{x}"]);
        assert_eq!(expand_braces("a"), ["a"]);
    }
}
