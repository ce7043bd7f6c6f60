//! Simulated users of the cluster, who start in waves. Each has a claim that it expands under its first pod,
//! and a second pod that replaces the first on a different node.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::cluster_state::ClusterState;
use crate::retry;

/// Maximum number of users that are created, or make a step, at the same time.
const CONCURRENT_REQUESTS: usize = 20;
const INITIAL_SIZE: &str = "1Gi";
const EXPANDED_SIZE: &str = "2Gi";

/// Progress of a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum UserStep {
    /// The claim and the first pod are created.
    Created,
    /// The first pod ran, and the expansion is requested.
    Expanding,
    /// The claim is expanded, the second pod is created, and the deletion of the first is requested.
    Moving,
    /// The second pod ran, and its deletion and that of the claim are requested.
    Deleting,
    /// Claim, volume and pods no longer exist.
    Deleted,
}

pub(super) struct UserWorkload {
    client: Client,
    namespace: &'static str,
    class: &'static str,
    steps: Vec<UserStep>,
    handles: BTreeSet<String>,
}

impl UserWorkload {
    pub(super) fn new(client: &Client, namespace: &'static str) -> Self {
        let (steps, handles) = Default::default();
        Self { client: client.clone(), namespace, class: namespace, steps, handles }
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), self.namespace)
    }

    fn claims(&self) -> Api<PersistentVolumeClaim> {
        Api::namespaced(self.client.clone(), self.namespace)
    }

    /// Number of steps made by all users, and number of finished users.
    pub(super) fn progress(&self) -> (usize, usize) {
        let steps_made = self.steps.iter().map(|step| *step as usize).sum();
        (steps_made, self.steps.iter().filter(|step| **step == UserStep::Deleted).count())
    }

    /// Number of different volume handles of the users whose first pod ran.
    pub(super) fn volume_count(&self) -> usize {
        self.handles.len()
    }

    /// Starts users until `count` of them have been started.
    pub(super) async fn create_until(&mut self, count: usize) -> Result<()> {
        let users = &*self;
        stream::iter(self.steps.len()..count)
            .map(|user| async move {
                let claim = serde_json::from_value(json!({
                    "metadata": { "name": claim_name(user) },
                    "spec": {
                        "storageClassName": users.class,
                        // Expansion of a block volume does not involve the node.
                        "volumeMode": "Block",
                        "accessModes": ["ReadWriteOnce"],
                        "resources": { "requests": { "storage": INITIAL_SIZE } },
                    },
                }))?;
                retry::create(&users.claims(), &claim).await?;
                retry::create(&users.pods(), &pod_object(user, "a", None)?).await
            })
            .buffer_unordered(CONCURRENT_REQUESTS)
            .try_collect::<()>()
            .await?;
        self.steps.resize(count, UserStep::Created);
        Ok(())
    }

    /// Makes the next step of every user whose objects in the state are ready for it.
    pub(super) async fn step(&mut self, state: &ClusterState) -> Result<()> {
        let users = &*self;
        let open = self.steps.iter().enumerate().filter(|(_, step)| **step != UserStep::Deleted);
        let next_steps: Vec<(usize, UserStep)> = stream::iter(open)
            .map(|(user, step)| async move {
                let next = users.next_step(user, *step, state).await;
                anyhow::Ok((user, next.with_context(|| format!("user {user}"))?))
            })
            .buffer_unordered(CONCURRENT_REQUESTS)
            .try_collect()
            .await?;
        for (user, step) in next_steps {
            if step == UserStep::Expanding
                && let Some(handle) = volume_handle(state, user)
                && self.steps.get(user) == Some(&UserStep::Created)
            {
                ensure!(self.handles.insert(handle.clone()), "{handle} is the volume of two claims");
            }
            if let Some(current) = self.steps.get_mut(user) {
                *current = step;
            }
        }
        Ok(())
    }

    async fn next_step(&self, user: usize, step: UserStep, state: &ClusterState) -> Result<UserStep> {
        match step {
            UserStep::Created if running_node(state, user, "a").is_some() => {
                let patch = json!({ "spec": { "resources": { "requests": { "storage": EXPANDED_SIZE } } } });
                retry::merge_patch(&self.claims(), &claim_name(user), &patch).await?;
                Ok(UserStep::Expanding)
            }
            UserStep::Expanding if is_expanded(state, user) => {
                let node = running_node(state, user, "a").context("its first pod does not run any more")?;
                retry::create(&self.pods(), &pod_object(user, "b", Some(node))?).await?;
                retry::delete(&self.pods(), &pod_name(user, "a")).await?;
                Ok(UserStep::Moving)
            }
            UserStep::Moving if running_node(state, user, "b").is_some() => {
                retry::delete(&self.pods(), &pod_name(user, "b")).await?;
                retry::delete(&self.claims(), &claim_name(user)).await?;
                Ok(UserStep::Deleting)
            }
            UserStep::Deleting if is_deleted(state, user) => Ok(UserStep::Deleted),
            UserStep::Created
            | UserStep::Expanding
            | UserStep::Moving
            | UserStep::Deleting
            | UserStep::Deleted => Ok(step),
        }
    }
}

fn claim_name(user: usize) -> String {
    format!("claim-{user}")
}

fn pod_name(user: usize, which: &str) -> String {
    format!("pod-{user}-{which}")
}

fn pod_object(user: usize, which: &str, excluded_node: Option<&str>) -> Result<Pod> {
    let affinity = excluded_node.map_or(Value::Null, |node| {
        let expression = json!({ "key": "kubernetes.io/hostname", "operator": "NotIn", "values": [node] });
        json!({ "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{ "matchExpressions": [expression] }],
        } } })
    });
    Ok(serde_json::from_value(json!({
        "metadata": { "name": pod_name(user, which) },
        "spec": {
            "affinity": affinity,
            "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "none", "image": "none",
                "volumeDevices": [{ "name": "volume", "devicePath": "/volume" }],
            }],
            "volumes": [{ "name": "volume", "persistentVolumeClaim": { "claimName": claim_name(user) } }],
        },
    }))?)
}

/// The node of a user's pod `a` or `b`. `None` if the pod does not exist or its phase is not Running.
fn running_node<'a>(state: &'a ClusterState, user: usize, which: &str) -> Option<&'a str> {
    let pod = state.pods.get(&pod_name(user, which))?;
    let running = pod.status.as_ref()?.phase.as_deref() == Some("Running");
    pod.spec.as_ref()?.node_name.as_deref().filter(|_| running)
}

fn is_expanded(state: &ClusterState, user: usize) -> bool {
    let status = state.claims.get(&claim_name(user)).and_then(|claim| claim.status.as_ref());
    status.is_some_and(|status| {
        let current = status.capacity.as_ref().and_then(|capacity| capacity.get("storage"));
        current.is_some_and(|current| current.0 == EXPANDED_SIZE)
            && status.allocated_resource_statuses.as_ref().is_none_or(|open| open.is_empty())
    })
}

fn volume_handle(state: &ClusterState, user: usize) -> Option<String> {
    let name = state.claims.get(&claim_name(user))?.spec.as_ref()?.volume_name.as_ref()?;
    Some(state.volumes.get(name)?.spec.as_ref()?.csi.as_ref()?.volume_handle.clone())
}

fn is_deleted(state: &ClusterState, user: usize) -> bool {
    let (claim, pods) = (claim_name(user), [pod_name(user, "a"), pod_name(user, "b")]);
    let owned = state.volumes.values().any(|volume| {
        let owner = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref()?.name.as_ref());
        owner == Some(&claim)
    });
    !owned && !state.claims.contains_key(&claim) && pods.iter().all(|pod| !state.pods.contains_key(pod))
}
