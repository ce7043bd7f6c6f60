//! Users who come in waves: each has a claim and two pods, one after the other and on different nodes, and lets the volume grow.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use super::world::World;

/// How many requests are made at once.
const AT_ONCE: usize = 20;
const FIRST_SIZE: &str = "1Gi";
const GROWN: &str = "2Gi";

/// How far a user is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    /// The claim and its first pod are asked for.
    Came,
    /// The first pod ran, and the claim asks for more.
    Grows,
    /// The claim has what it asked for; the first pod goes, and the second is there.
    Moves,
    /// The second pod ran; it goes, and the claim too.
    Leaves,
    /// Nothing of it is there.
    Gone,
}

pub(super) struct Users {
    client: Client,
    namespace: &'static str,
    class: &'static str,
    steps: Vec<Step>,
    handles: BTreeSet<String>,
}

impl Users {
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

    /// How many steps all users have made, and how many of them are gone.
    pub(super) fn progress(&self) -> (usize, usize) {
        let made = self.steps.iter().map(|step| *step as usize).sum();
        (made, self.steps.iter().filter(|step| **step == Step::Gone).count())
    }

    /// How many volumes there were.
    pub(super) fn volumes(&self) -> usize {
        self.handles.len()
    }

    /// Lets users come until there were so many.
    pub(super) async fn come(&mut self, count: usize) -> Result<()> {
        let users = &*self;
        stream::iter(self.steps.len()..count)
            .map(|user| async move {
                let claim = serde_json::from_value(json!({
                    "metadata": { "name": claim(user) },
                    "spec": {
                        "storageClassName": users.class,
                        // Growth of a device needs nothing of a node.
                        "volumeMode": "Block",
                        "accessModes": ["ReadWriteOnce"],
                        "resources": { "requests": { "storage": FIRST_SIZE } },
                    },
                }))?;
                users.claims().create(&PostParams::default(), &claim).await?;
                users.pods().create(&PostParams::default(), &pod(user, "a", None)?).await?;
                anyhow::Ok(())
            })
            .buffer_unordered(AT_ONCE)
            .try_collect::<()>()
            .await?;
        self.steps.resize(count, Step::Came);
        Ok(())
    }

    /// Lets every user do what it does next.
    pub(super) async fn act(&mut self, world: &World) -> Result<()> {
        let users = &*self;
        let open = self.steps.iter().enumerate().filter(|(_, step)| **step != Step::Gone);
        let now: Vec<(usize, Step)> = stream::iter(open)
            .map(|(user, step)| async move {
                let next = users.next(user, *step, world).await;
                anyhow::Ok((user, next.with_context(|| format!("user {user}"))?))
            })
            .buffer_unordered(AT_ONCE)
            .try_collect()
            .await?;
        for (user, step) in now {
            if step == Step::Grows
                && let Some(handle) = handle(world, user)
                && self.steps.get(user) == Some(&Step::Came)
            {
                ensure!(self.handles.insert(handle.clone()), "{handle} is the volume of two claims");
            }
            if let Some(known) = self.steps.get_mut(user) {
                *known = step;
            }
        }
        Ok(())
    }

    async fn next(&self, user: usize, step: Step, world: &World) -> Result<Step> {
        match step {
            Step::Came if runs(world, user, "a").is_some() => {
                let wish = json!({ "spec": { "resources": { "requests": { "storage": GROWN } } } });
                self.claims().patch(&claim(user), &PatchParams::default(), &Patch::Merge(wish)).await?;
                Ok(Step::Grows)
            }
            Step::Grows if has_grown(world, user) => {
                let node = runs(world, user, "a").context("its first pod does not run any more")?;
                self.pods().create(&PostParams::default(), &pod(user, "b", Some(node))?).await?;
                self.pods().delete(&name(user, "a"), &DeleteParams::default()).await?;
                Ok(Step::Moves)
            }
            Step::Moves if runs(world, user, "b").is_some() => {
                self.pods().delete(&name(user, "b"), &DeleteParams::default()).await?;
                self.claims().delete(&claim(user), &DeleteParams::default()).await?;
                Ok(Step::Leaves)
            }
            Step::Leaves if is_gone(world, user) => Ok(Step::Gone),
            Step::Came | Step::Grows | Step::Moves | Step::Leaves | Step::Gone => Ok(step),
        }
    }
}

fn claim(user: usize) -> String {
    format!("claim-{user}")
}

fn name(user: usize, which: &str) -> String {
    format!("pod-{user}-{which}")
}

fn pod(user: usize, which: &str, not_on: Option<&str>) -> Result<Pod> {
    let affinity = not_on.map_or(Value::Null, |node| {
        let elsewhere = json!({ "key": "kubernetes.io/hostname", "operator": "NotIn", "values": [node] });
        json!({ "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{ "matchExpressions": [elsewhere] }],
        } } })
    });
    Ok(serde_json::from_value(json!({
        "metadata": { "name": name(user, which) },
        "spec": {
            "affinity": affinity,
            "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "none", "image": "none", "volumeDevices": [{ "name": "volume", "devicePath": "/volume" }],
            }],
            "volumes": [{ "name": "volume", "persistentVolumeClaim": { "claimName": claim(user) } }],
        },
    }))?)
}

/// The node that a pod runs on.
fn runs<'a>(world: &'a World, user: usize, which: &str) -> Option<&'a str> {
    let pod = world.pods.get(&name(user, which))?;
    let running = pod.status.as_ref()?.phase.as_deref() == Some("Running");
    pod.spec.as_ref()?.node_name.as_deref().filter(|_| running)
}

fn has_grown(world: &World, user: usize) -> bool {
    let status = world.claims.get(&claim(user)).and_then(|claim| claim.status.as_ref());
    status.is_some_and(|status| {
        let has = status.capacity.as_ref().and_then(|capacity| capacity.get("storage"));
        has.is_some_and(|has| has.0 == GROWN)
            && status.allocated_resource_statuses.as_ref().is_none_or(|open| open.is_empty())
    })
}

fn handle(world: &World, user: usize) -> Option<String> {
    let name = world.claims.get(&claim(user))?.spec.as_ref()?.volume_name.as_ref()?;
    Some(world.volumes.get(name)?.spec.as_ref()?.csi.as_ref()?.volume_handle.clone())
}

fn is_gone(world: &World, user: usize) -> bool {
    let (claim, pods) = (claim(user), [name(user, "a"), name(user, "b")]);
    let owned = world.volumes.values().any(|volume| {
        let owner = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref()?.name.as_ref());
        owner == Some(&claim)
    });
    !owned && !world.claims.contains_key(&claim) && pods.iter().all(|pod| !world.pods.contains_key(pod))
}
