//! The demo: a user's steps through the API's socket, with checks of their results.

use std::{fmt, time::Duration};

use cofferdam_backend::Backend;
use cofferdam_controllers::{Role, attach_detach, attacher, protection, provisioner, pv_controller, resizer};
use cofferdam_dev_cluster::NodesView;
use cofferdam_domain::storage::Ability;
use k8s_openapi::api::{
    core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod},
    storage::v1::{StorageClass, VolumeAttachment},
};
use kube::{
    Api, Client, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::timeline::{Timeline, TimelineLineKind};
use crate::{
    config::{ConfigError, ResolvedConfig},
    error::CommandError,
    wait::{self, Expectation, WaitTimeout},
};

/// Timeout of a step. A step takes milliseconds, on a busy machine seconds.
const STEP_TIMEOUT: Duration = Duration::from_secs(30);
const NAMESPACE: &str = "default";
/// Name of all objects that the demo creates.
pub(crate) const NAME: &str = "demo";
const SIZE: &str = "1Gi";
const EXPANDED_SIZE: &str = "2Gi";

/// The first step of the demo that failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DemoError {
    #[error("the demo failed: {action}: {source}")]
    Request { action: &'static str, source: kube::Error },
    #[error("the demo failed: cannot create its {kind}: {source}")]
    Manifest { kind: &'static str, source: serde_json::Error },
    #[error("the demo failed: {0}")]
    WaitTimeout(#[from] WaitTimeout),
    #[error("the demo failed: {subject} is {found}: expected {expected}")]
    Mismatch { subject: &'static str, found: String, expected: String },
}

impl From<DemoError> for CommandError {
    fn from(error: DemoError) -> Self {
        Self::Other(Box::new(error))
    }
}

/// Rejects a demo without the roles that it needs.
///
/// # Errors
/// [`ConfigError::Value`] of the key `role`, with the missing roles.
pub(crate) fn check_roles(resolved: &ResolvedConfig, nodes: usize) -> Result<(), ConfigError> {
    // Without a pod no volume is attached or expanded.
    let required_roles: &[Role] = match nodes {
        0 => &[provisioner::ROLE, pv_controller::ROLE, protection::ROLE],
        1.. => &[
            provisioner::ROLE,
            attacher::ROLE,
            resizer::ROLE,
            pv_controller::ROLE,
            protection::ROLE,
            attach_detach::ROLE,
        ],
    };
    let configured_roles = &resolved.configuration.role.cluster;
    let missing: Vec<_> = required_roles
        .iter()
        .filter(|role| !configured_roles.contains(role))
        .map(|role| role.as_str())
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let problem = format!("the demo lacks {}: expected these too, or no role at all", missing.join(", "));
    Err(resolved.value_error("role", problem))
}

/// Inputs of the demo.
pub(crate) struct Demo<'a> {
    /// Client that connects through the API's socket, as a user's does.
    pub(crate) client: Client,
    /// Name of the driver.
    pub(crate) driver: &'a str,
    /// Backend of the driver, with its abilities.
    pub(crate) backend: &'a dyn Backend,
    /// Manifest of the StorageClass that the demo creates.
    pub(crate) class: Value,
    /// The nodes and their number; `None` if no pod can mount the driver's volumes.
    pub(crate) nodes: Option<(&'a NodesView, usize)>,
    /// Set if the driver is on every node.
    pub(crate) on_every_node: bool,
    /// Keys in the driver's state; `None` for a driver without state.
    pub(crate) state_keys: &'a (dyn Fn() -> Option<Vec<String>> + Sync),
    /// Output of the steps.
    pub(crate) timeline: &'a Timeline,
}

impl Demo<'_> {
    /// Provisions a volume, runs a pod with it, expands the volume, moves the pod, and deletes both. Leaves
    /// out the pod and the expansion if no node can mount the volume, the expansion if the driver does not
    /// support it, and the move if no other node can use the volume.
    ///
    /// # Errors
    /// [`DemoError`] of the first failed step.
    pub(crate) async fn run(&self) -> Result<(), DemoError> {
        let started = Instant::now();
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), NAMESPACE);
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        let classes: Api<StorageClass> = Api::all(self.client.clone());
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), NAMESPACE);

        self.log_step(format!("applies StorageClass {NAME}"));
        create(&classes, "apply StorageClass", "StorageClass", self.class.clone()).await?;
        self.log_step(format!("applies PersistentVolumeClaim {NAME}, {SIZE}"));
        create(&claims, "apply PersistentVolumeClaim", "PersistentVolumeClaim", claim_manifest()).await?;
        let (volume, handle) = match self.nodes {
            Some((_, count)) => {
                let node = self.create_pod(&pods).await?;
                let bound = self.wait_for_bound_claim(&claims, &volumes).await?;
                if self.backend.abilities().contains(&Ability::Expansion) {
                    self.expand_claim(&claims).await?;
                }
                self.move_pod(&pods, &volumes, (&node, &bound.0), count).await?;
                bound
            }
            None => {
                self.log_step("applies no pod: no node can mount the volume".to_owned());
                self.wait_for_bound_claim(&claims, &volumes).await?
            }
        };
        let volume_keys = self.state_keys_of_volume(&handle);
        if let Some(volume_keys) = &volume_keys {
            ensure(
                "the driver's state of the volume",
                &format_list(volume_keys),
                "something",
                !volume_keys.is_empty(),
            )?;
        }

        if self.nodes.is_some() {
            self.log_step(format!("deletes Pod {NAME} and the claim"));
            delete(&pods, "delete Pod").await?;
        } else {
            self.log_step("deletes the claim".to_owned());
        }
        delete(&claims, "delete PersistentVolumeClaim").await?;
        wait_for_deletion(&pods, NAME).await?;
        wait_for_deletion(&claims, NAME).await?;
        wait_for_deletion(&volumes, &volume).await?;
        if let Some(remaining) = self.state_keys_of_volume(&handle) {
            ensure(
                "the driver's state of the volume",
                &format_list(&remaining),
                "nothing",
                remaining.is_empty(),
            )?;
            let other_keys = format_list(&(self.state_keys)().unwrap_or_default());
            self.log_step(format!(
                "finds no entry of the volume in the driver's state; other entries: {other_keys}"
            ));
        }
        self.check_cleanup().await?;
        self.log_step(format!("deletes StorageClass {NAME}"));
        delete(&classes, "delete StorageClass").await?;
        self.log_step(format!("took {:.2} s", started.elapsed().as_secs_f64()));
        Ok(())
    }

    /// Creates the pod and waits until it runs; returns its node.
    async fn create_pod(&self, pods: &Api<Pod>) -> Result<String, DemoError> {
        self.log_step(format!("applies Pod {NAME} with the claim"));
        create(pods, "apply Pod", "Pod", pod_manifest()).await?;
        let is_running = |pod: Option<&Pod>| pod.and_then(pod_phase) == Some("Running");
        let state = |pod: Option<&Pod>| match pod {
            Some(pod) => pod_phase(pod).unwrap_or("without a phase").to_owned(),
            None => "absent".to_owned(),
        };
        let expectation =
            Expectation { expected: "Running", is_met: &is_running, describe: &state, timeout: STEP_TIMEOUT };
        let pod = wait::wait_for(pods, NAME, &expectation).await?.unwrap_or_default();
        let node = pod.spec.and_then(|spec| spec.node_name).unwrap_or_default();
        self.log_step(format!("sees the pod Running on {node}"));
        Ok(node)
    }

    /// Expands the claim and waits for the new capacity.
    async fn expand_claim(&self, claims: &Api<PersistentVolumeClaim>) -> Result<(), DemoError> {
        self.log_step(format!("requests {EXPANDED_SIZE}"));
        let change = json!({"spec": {"resources": {"requests": {"storage": EXPANDED_SIZE}}}});
        patch(claims, NAME, "patch PersistentVolumeClaim", change).await?;
        let is_grown = |claim: Option<&PersistentVolumeClaim>| {
            claim.is_some_and(|claim| claim_size(claim) == EXPANDED_SIZE && !is_expanding(claim))
        };
        let state = |claim: Option<&PersistentVolumeClaim>| match claim {
            Some(claim) if is_expanding(claim) => format!("{}, expanding", claim_size(claim)),
            Some(claim) => claim_size(claim),
            None => "absent".to_owned(),
        };
        let expectation = Expectation {
            expected: EXPANDED_SIZE,
            is_met: &is_grown,
            describe: &state,
            timeout: STEP_TIMEOUT,
        };
        wait::wait_for(claims, NAME, &expectation).await?;
        self.log_step(format!("sees {NAME} with {EXPANDED_SIZE}"));
        Ok(())
    }

    /// Recreates the pod on another node, if another node can use the volume. Until the new pod runs, `node`,
    /// the node of the old pod, is cordoned.
    async fn move_pod(
        &self,
        pods: &Api<Pod>,
        volumes: &Api<PersistentVolume>,
        (node, volume): (&str, &str),
        count: usize,
    ) -> Result<(), DemoError> {
        let found = volumes.get(volume).await;
        let found = found.map_err(|source| DemoError::Request { action: "get PersistentVolume", source })?;
        let is_bound_to_node = found.spec.is_some_and(|spec| spec.node_affinity.is_some());
        let skip_reason = match (count < 2, is_bound_to_node, self.on_every_node) {
            (true, ..) => Some("there is no other node"),
            (false, true, _) => Some("the volume is on this node only"),
            (false, false, false) => Some("the driver is on this node only"),
            (false, false, true) => None,
        };
        if let Some(reason) = skip_reason {
            self.log_step(format!("leaves the pod on {node}: {reason}"));
            return Ok(());
        }
        let nodes: Api<Node> = Api::all(self.client.clone());
        self.log_step(format!("cordons {node} and recreates the pod"));
        patch(&nodes, node, "cordon Node", json!({"spec": {"unschedulable": true}})).await?;
        delete(pods, "delete Pod").await?;
        wait_for_deletion(pods, NAME).await?;
        let next = self.create_pod(pods).await?;
        ensure("the pod's second node", &next, "another one", next != node)?;
        patch(&nodes, node, "uncordon Node", json!({"spec": {"unschedulable": null}})).await?;
        Ok(())
    }

    /// Fails if a VolumeAttachment exists. Then waits until nothing is mounted, for at most
    /// [`STEP_TIMEOUT`], and fails if a mount or a directory of a volume is left. Without nodes it checks
    /// nothing.
    async fn check_cleanup(&self) -> Result<(), DemoError> {
        let Some((view, _)) = self.nodes else { return Ok(()) };
        let attachments: Api<VolumeAttachment> = Api::all(self.client.clone());
        let listed = attachments.list(&ListParams::default()).await;
        let listed =
            listed.map_err(|source| DemoError::Request { action: "list VolumeAttachments", source })?;
        let names: Vec<String> = listed.iter().map(kube::ResourceExt::name_any).collect();
        ensure("the list of VolumeAttachments", &format_list(&names), "nothing", names.is_empty())?;
        // Without attachments, the volume may be deleted before a node has removed its last directory.
        let waited = tokio::time::timeout(STEP_TIMEOUT, view.wait_until_unmounted()).await;
        let remaining = view.leftovers();
        ensure("the list of mounts", &format_list(&remaining), "nothing", waited.is_ok())?;
        ensure(
            "the list of leftovers on the nodes",
            &format_list(&remaining),
            "nothing",
            remaining.is_empty(),
        )?;
        self.log_step("finds nothing mounted and nothing attached".to_owned());
        Ok(())
    }

    /// Keys of the driver's state that contain the volume's handle; `None` for a driver without state.
    fn state_keys_of_volume(&self, handle: &str) -> Option<Vec<String>> {
        (self.state_keys)().map(|keys| keys.into_iter().filter(|key| key.contains(handle)).collect())
    }

    /// Waits until the claim is bound and checks its volume; returns the volume's name and handle.
    async fn wait_for_bound_claim(
        &self,
        claims: &Api<PersistentVolumeClaim>,
        volumes: &Api<PersistentVolume>,
    ) -> Result<(String, String), DemoError> {
        let is_bound = |claim: Option<&PersistentVolumeClaim>| claim.and_then(claim_phase) == Some("Bound");
        let state = |claim: Option<&PersistentVolumeClaim>| match claim {
            Some(claim) => claim_phase(claim).unwrap_or("without a phase").to_owned(),
            None => "absent".to_owned(),
        };
        let expectation =
            Expectation { expected: "Bound", is_met: &is_bound, describe: &state, timeout: STEP_TIMEOUT };
        let claim = wait::wait_for(claims, NAME, &expectation).await?.unwrap_or_default();
        let volume_name = claim.spec.as_ref().and_then(|spec| spec.volume_name.clone()).unwrap_or_default();
        let volume = volumes
            .get(&volume_name)
            .await
            .map_err(|source| DemoError::Request { action: "get the claim's PersistentVolume", source })?;

        let spec = volume.spec.clone().unwrap_or_default();
        let csi = spec.csi.unwrap_or_default();
        ensure_equal("the volume's driver", &csi.driver, self.driver)?;
        let owner = spec.claim_ref.and_then(|reference| reference.uid).unwrap_or_default();
        ensure_equal("the uid in the volume's claimRef", &owner, &claim.uid().unwrap_or_default())?;
        let size = claim_size(&claim);
        ensure_equal("the claim's capacity", &size, SIZE)?;
        self.log_step(format!("sees {NAME} Bound to {volume_name}, {size}"));
        Ok((volume_name, csi.volume_handle))
    }

    fn log_step(&self, what: String) {
        self.timeline.line("demo", TimelineLineKind::User, format!("{NAMESPACE}/{NAME}"), what, None);
    }
}

fn format_list(keys: &[String]) -> String {
    if keys.is_empty() { "nothing".to_owned() } else { keys.join(", ") }
}

fn claim_phase(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.status.as_ref()?.phase.as_deref()
}

async fn create<K>(
    api: &Api<K>,
    what: &'static str,
    kind: &'static str,
    manifest: Value,
) -> Result<(), DemoError>
where
    K: Clone + fmt::Debug + DeserializeOwned + serde::Serialize,
{
    let object: K =
        serde_json::from_value(manifest).map_err(|source| DemoError::Manifest { kind, source })?;
    api.create(&PostParams::default(), &object)
        .await
        .map_err(|source| DemoError::Request { action: what, source })?;
    Ok(())
}

async fn wait_for_deletion<K>(api: &Api<K>, name: &str) -> Result<(), DemoError>
where
    K: Clone + fmt::Debug + DeserializeOwned + kube::Resource<DynamicType = ()> + Send + 'static,
{
    let is_gone = |object: Option<&K>| object.is_none();
    let state = |object: Option<&K>| match object {
        Some(object) if object.meta().deletion_timestamp.is_some() => {
            format!("being deleted, with finalizers {}", object.finalizers().join(", "))
        }
        Some(_) => "there".to_owned(),
        None => "gone".to_owned(),
    };
    wait::wait_for(
        api,
        name,
        &Expectation { expected: "gone", is_met: &is_gone, describe: &state, timeout: STEP_TIMEOUT },
    )
    .await?;
    Ok(())
}

fn ensure(what: &'static str, found: &str, expected: &str, holds: bool) -> Result<(), DemoError> {
    if holds {
        Ok(())
    } else {
        Err(DemoError::Mismatch { subject: what, found: found.to_owned(), expected: expected.to_owned() })
    }
}

fn ensure_equal(what: &'static str, found: &str, expected: &str) -> Result<(), DemoError> {
    ensure(what, &format!("{found:?}"), &format!("{expected:?}"), found == expected)
}

fn pod_phase(pod: &Pod) -> Option<&str> {
    pod.status.as_ref()?.phase.as_deref()
}

fn claim_size(claim: &PersistentVolumeClaim) -> String {
    let capacity = claim.status.as_ref().and_then(|status| status.capacity.as_ref());
    capacity.and_then(|capacity| capacity.get("storage").cloned()).unwrap_or_default().0
}

/// Reports if an expansion is in progress.
fn is_expanding(claim: &PersistentVolumeClaim) -> bool {
    let status = claim.status.as_ref();
    status.is_some_and(|status| {
        status.allocated_resource_statuses.as_ref().is_some_and(|statuses| !statuses.is_empty())
    })
}

async fn patch<K>(api: &Api<K>, name: &str, what: &'static str, patch: Value) -> Result<(), DemoError>
where
    K: Clone + fmt::Debug + DeserializeOwned,
{
    let request = api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await;
    request.map(drop).map_err(|source| DemoError::Request { action: what, source })
}

async fn delete<K>(api: &Api<K>, what: &'static str) -> Result<(), DemoError>
where
    K: Clone + fmt::Debug + DeserializeOwned,
{
    let request = api.delete(NAME, &DeleteParams::default()).await;
    request.map(drop).map_err(|source| DemoError::Request { action: what, source })
}

fn pod_manifest() -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": NAME, "namespace": NAMESPACE},
        "spec": {
            "containers": [{
                "name": "main",
                "image": "none",
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            }],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": NAME}}],
        },
    })
}

fn claim_manifest() -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": NAME, "namespace": NAMESPACE},
        "spec": {
            "storageClassName": NAME,
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": SIZE}},
        },
    })
}
