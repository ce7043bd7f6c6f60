//! The demo: a user's steps through the API's socket, with checks of their results.

mod copies;
mod data;
mod error;
mod objects;

use std::collections::BTreeMap;

use cofferdam_backend::Backend;
use cofferdam_controllers::{Role, attach_detach, attacher, protection, provisioner, pv_controller, resizer};
use cofferdam_dev_cluster::NodesView;
use cofferdam_domain::{Uid, VolumeName, storage::Ability};
use k8s_openapi::api::{
    core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod},
    storage::v1::{StorageClass, VolumeAttachment},
};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};
use tokio::time::Instant;

pub(crate) use objects::NAME;

use error::DemoError;
use objects::{
    NAMESPACE, STEP_TIMEOUT, claim_phase, claim_size, ensure, ensure_empty, ensure_equal, format_list,
    is_expanding, pod_phase, pod_state,
};

use super::timeline::{Timeline, TimelineLineKind};
use crate::{
    config::{ConfigError, ResolvedConfig},
    wait::{self, Expectation},
};

const SIZE: &str = "1Gi";
const EXPANDED_SIZE: &str = "2Gi";

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
    /// Manifest of the VolumeSnapshotClass that the demo creates.
    pub(crate) snapshot_class: Value,
    /// The nodes and their number; `None` if no pod can mount the driver's volumes.
    pub(crate) nodes: Option<(&'a NodesView, usize)>,
    /// Set if the driver is on every node.
    pub(crate) on_every_node: bool,
    /// Set if the roles run that take snapshots.
    pub(crate) has_snapshot_roles: bool,
    /// Keys in the driver's state; `None` for a driver without state.
    pub(crate) state_keys: &'a (dyn Fn() -> Option<Vec<String>> + Sync),
    /// Output of the steps.
    pub(crate) timeline: &'a Timeline,
}

/// A volume of the demo.
struct DemoVolume {
    /// Name of the claim.
    claim: String,
    /// Name of the PersistentVolume.
    name: VolumeName,
    /// Handle of the volume at the driver.
    handle: String,
    /// `spec.csi.volumeAttributes` of the PersistentVolume.
    attributes: BTreeMap<String, String>,
}

/// A running pod of the demo.
struct DemoPod {
    uid: Uid,
    node: String,
}

impl Demo<'_> {
    /// Provisions a volume, runs a pod with it, expands the volume, copies it, moves the pod, and deletes
    /// everything. Leaves out what the driver does not support, the pod and the expansion if no node can
    /// mount the volume, and the move if no other node can use the volume.
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
        objects::create(&classes, "apply StorageClass", "StorageClass", self.class.clone()).await?;
        self.log_step(format!("applies PersistentVolumeClaim {NAME}, {SIZE}"));
        let claim = objects::claim_manifest(NAME, SIZE, Value::Null);
        objects::create(&claims, "apply PersistentVolumeClaim", "PersistentVolumeClaim", claim).await?;
        let volume = match self.nodes {
            Some((_, count)) => {
                let pod = self.create_pod(NAME).await?;
                let volume = self.wait_for_bound_claim(NAME, SIZE).await?;
                let expands = self.backend.abilities().contains(&Ability::Expansion);
                if expands {
                    self.expand_claim(&claims).await?;
                } else {
                    self.log_step(
                        "requests no larger size: the driver does not support expansion".to_owned(),
                    );
                }
                self.ensure_in_state("the driver's state of the volume", &volume.handle)?;
                self.copy_volume(&volume, Some(&pod), if expands { EXPANDED_SIZE } else { SIZE }).await?;
                self.move_pod(&pods, &volumes, (&pod.node, &volume), count).await?;
                volume
            }
            None => {
                self.log_step("applies no pod: no node can mount the volume".to_owned());
                let volume = self.wait_for_bound_claim(NAME, SIZE).await?;
                self.ensure_in_state("the driver's state of the volume", &volume.handle)?;
                self.copy_volume(&volume, None, SIZE).await?;
                volume
            }
        };

        if self.nodes.is_some() {
            self.log_step(format!("deletes Pod {NAME} and the claim"));
            objects::delete(&pods, NAME, "delete Pod").await?;
        } else {
            self.log_step("deletes the claim".to_owned());
        }
        objects::delete(&claims, NAME, "delete PersistentVolumeClaim").await?;
        objects::wait_for_deletion(&pods, NAME).await?;
        objects::wait_for_deletion(&claims, NAME).await?;
        objects::wait_for_deletion(&volumes, volume.name.as_str()).await?;
        if let Some(remaining) = self.state_keys_of(&volume.handle) {
            ensure_empty("the driver's state of the volume", &remaining)?;
            let other_keys = format_list(&(self.state_keys)().unwrap_or_default());
            self.log_step(format!(
                "finds no entry of the volume in the driver's state; other entries: {other_keys}"
            ));
        }
        self.check_cleanup().await?;
        self.log_step(format!("deletes StorageClass {NAME}"));
        objects::delete(&classes, NAME, "delete StorageClass").await?;
        self.log_step(format!("took {:.2} s", started.elapsed().as_secs_f64()));
        Ok(())
    }

    /// Creates a pod with the claim of the same name, and waits until it runs.
    async fn create_pod(&self, name: &str) -> Result<DemoPod, DemoError> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), NAMESPACE);
        self.log_step(format!("applies Pod {name} with the claim"));
        objects::create(&pods, "apply Pod", "Pod", objects::pod_manifest(name)).await?;
        let is_running = |pod: Option<&Pod>| pod.and_then(pod_phase) == Some("Running");
        let state = |pod: Option<&Pod>| match pod {
            Some(pod) => pod_state(pod),
            None => "absent".to_owned(),
        };
        let expectation =
            Expectation { expected: "Running", is_met: &is_running, describe: &state, timeout: STEP_TIMEOUT };
        let pod = wait::wait_for(&pods, name, &expectation).await?.unwrap_or_default();
        let uid = Uid::new(pod.uid().unwrap_or_default());
        let node = pod.spec.and_then(|spec| spec.node_name).unwrap_or_default();
        self.log_step(format!("sees the pod Running on {node}"));
        Ok(DemoPod { uid, node })
    }

    /// Expands the claim and waits for the new capacity.
    async fn expand_claim(&self, claims: &Api<PersistentVolumeClaim>) -> Result<(), DemoError> {
        self.log_step(format!("requests {EXPANDED_SIZE}"));
        let change = json!({"spec": {"resources": {"requests": {"storage": EXPANDED_SIZE}}}});
        objects::patch(claims, NAME, "patch PersistentVolumeClaim", change).await?;
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
        (node, volume): (&str, &DemoVolume),
        count: usize,
    ) -> Result<(), DemoError> {
        let found = objects::get(volumes, volume.name.as_str(), "get PersistentVolume").await?;
        let is_bound_to_node = found.spec.is_some_and(|spec| spec.node_affinity.is_some());
        let skip_reason = match (count < 2, is_bound_to_node, self.on_every_node) {
            (true, ..) => Some("there is no other node"),
            (false, true, _) => Some("the volume is reachable from some nodes only"),
            (false, false, false) => Some("the driver is on this node only"),
            (false, false, true) => None,
        };
        if let Some(reason) = skip_reason {
            self.log_step(format!("leaves the pod on {node}: {reason}"));
            return Ok(());
        }
        let nodes: Api<Node> = Api::all(self.client.clone());
        self.log_step(format!("cordons {node} and recreates the pod"));
        objects::patch(&nodes, node, "cordon Node", json!({"spec": {"unschedulable": true}})).await?;
        objects::delete(pods, NAME, "delete Pod").await?;
        objects::wait_for_deletion(pods, NAME).await?;
        let next = self.create_pod(NAME).await?.node;
        ensure("the pod's second node", &next, "another one", next != node)?;
        objects::patch(&nodes, node, "uncordon Node", json!({"spec": {"unschedulable": null}})).await?;
        Ok(())
    }

    /// Fails if a VolumeAttachment exists. Then waits until nothing is mounted, for at most
    /// [`STEP_TIMEOUT`], and fails if a mount or a directory of a volume is left. Without nodes it checks
    /// nothing.
    async fn check_cleanup(&self) -> Result<(), DemoError> {
        let Some((view, _)) = self.nodes else { return Ok(()) };
        let attachments: Api<VolumeAttachment> = Api::all(self.client.clone());
        let listed = objects::list(&attachments, "list VolumeAttachments").await?;
        let names: Vec<String> = listed.iter().map(kube::ResourceExt::name_any).collect();
        ensure_empty("the list of VolumeAttachments", &names)?;
        // Without attachments, the volume may be deleted before a node has removed its last directory.
        let waited = tokio::time::timeout(STEP_TIMEOUT, view.wait_until_unmounted()).await;
        let remaining = view.leftovers();
        ensure("the list of mounts", &format_list(&remaining), "nothing", waited.is_ok())?;
        ensure_empty("the list of leftovers on the nodes", &remaining)?;
        self.log_step("finds nothing mounted and nothing attached".to_owned());
        Ok(())
    }

    /// Keys of the driver's state that contain a handle; `None` for a driver without state.
    fn state_keys_of(&self, handle: &str) -> Option<Vec<String>> {
        (self.state_keys)().map(|keys| keys.into_iter().filter(|key| key.contains(handle)).collect())
    }

    /// Fails if the driver has a state without an entry of a handle.
    fn ensure_in_state(&self, what: &'static str, handle: &str) -> Result<(), DemoError> {
        match self.state_keys_of(handle) {
            Some(keys) => ensure(what, &format_list(&keys), "something", !keys.is_empty()),
            None => Ok(()),
        }
    }

    /// Waits until the claim is bound and checks its volume.
    async fn wait_for_bound_claim(&self, name: &str, size: &str) -> Result<DemoVolume, DemoError> {
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), NAMESPACE);
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        let is_bound = |claim: Option<&PersistentVolumeClaim>| claim.and_then(claim_phase) == Some("Bound");
        let state = |claim: Option<&PersistentVolumeClaim>| match claim {
            Some(claim) => claim_phase(claim).unwrap_or("without a phase").to_owned(),
            None => "absent".to_owned(),
        };
        let expectation =
            Expectation { expected: "Bound", is_met: &is_bound, describe: &state, timeout: STEP_TIMEOUT };
        let claim = wait::wait_for(&claims, name, &expectation).await?.unwrap_or_default();
        let volume_name = claim.spec.as_ref().and_then(|spec| spec.volume_name.clone()).unwrap_or_default();
        let volume = objects::get(&volumes, &volume_name, "get the claim's PersistentVolume").await?;

        let spec = volume.spec.unwrap_or_default();
        let csi = spec.csi.unwrap_or_default();
        ensure_equal("the volume's driver", &csi.driver, self.driver)?;
        let owner = spec.claim_ref.and_then(|reference| reference.uid).unwrap_or_default();
        ensure_equal("the uid in the volume's claimRef", &owner, &claim.uid().unwrap_or_default())?;
        let capacity = claim_size(&claim);
        ensure_equal("the claim's capacity", &capacity, size)?;
        self.log_step(format!("sees {name} Bound to {volume_name}, {capacity}"));
        Ok(DemoVolume {
            claim: name.to_owned(),
            name: VolumeName::from(volume_name),
            handle: csi.volume_handle,
            attributes: csi.volume_attributes.unwrap_or_default(),
        })
    }

    fn log_step(&self, what: String) {
        self.timeline.line("demo", TimelineLineKind::User, format!("{NAMESPACE}/{NAME}"), what, None);
    }
}
