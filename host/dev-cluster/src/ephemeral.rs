//! Claims of pods' generic ephemeral volumes: kube-controller-manager's controller for them.

use std::sync::Arc;

use cofferdam_cluster::{
    EventType, WriteError,
    queue::{Backoff, Outcome, Queue},
};
use cofferdam_domain::{Claim, ClaimKey, PodKey};
use k8s_openapi::api::core::v1::Volume;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::{kinds::PodObject, world::World};

/// The back-off of Kubernetes' queues of controllers.
const BACKOFF: Backoff =
    Backoff { first: std::time::Duration::from_millis(5), most: std::time::Duration::from_secs(1000) };
/// As Kubernetes' controller has them.
const WORKERS: usize = 5;
const COMPONENT: &str = "ephemeral_volume";
const WHO: &str = "ephemeral";

/// What is to be done for a volume.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Verdict {
    /// Its claim is there.
    Done,
    /// Something else has the claim's name.
    Foreign(String),
    /// The claim that is missing.
    Create(Value),
}

/// Decides about one volume of a pod; absent for volumes that are not ephemeral.
pub(crate) fn verdict(pod: &PodObject, volume: &Volume, there: Option<&Claim>) -> Option<Verdict> {
    let template = volume.ephemeral.as_ref()?.volume_claim_template.as_ref()?;
    let (key, uid) = (&pod.slim.key, &pod.slim.meta.uid);
    let name = format!("{}-{}", key.name, volume.name);
    Some(match there {
        Some(claim) if claim.controller.as_ref() == Some(uid) => Verdict::Done,
        Some(_) => Verdict::Foreign(format!(
            "PVC {}/{name} was not created for pod {key} (pod is not owner)",
            key.namespace
        )),
        None => {
            let meta = template.metadata.clone().unwrap_or_default();
            Verdict::Create(json!({
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {
                    "name": name,
                    "namespace": &*key.namespace,
                    "labels": meta.labels.unwrap_or_default(),
                    "annotations": meta.annotations.unwrap_or_default(),
                    "ownerReferences": [{
                        "apiVersion": "v1",
                        "kind": "Pod",
                        "name": &*key.name,
                        "uid": uid,
                        "controller": true,
                        "blockOwnerDeletion": true,
                    }],
                },
                "spec": template.spec,
            }))
        }
    })
}

/// The controller.
pub(crate) struct Ephemeral {
    world: Arc<World>,
    queue: Queue<PodKey>,
}

impl Ephemeral {
    /// The controller; it hears of every change from now on.
    pub(crate) fn new(world: Arc<World>) -> Arc<Self> {
        let queue = Queue::new("dev_ephemeral", BACKOFF, &world.metrics);
        let controller = Arc::new(Self { world, queue });
        let pods = controller.queue.clone();
        controller.world.pods.subscribe(move |change| {
            let has = |pod: &Arc<PodObject>| pod.volumes().iter().any(|volume| volume.ephemeral.is_some());
            if change.new.as_ref().is_some_and(has) {
                pods.add(change.key.clone());
            }
        });
        let me = Arc::downgrade(&controller);
        controller.world.claims.subscribe(move |change| {
            if let (Some(me), None) = (me.upgrade(), &change.new) {
                me.lost(&change.key);
            }
        });
        controller
    }

    /// Works until `stop`.
    pub(crate) async fn run(self: &Arc<Self>, stop: CancellationToken) {
        let me = Arc::clone(self);
        let work = move |key: PodKey| {
            let me = Arc::clone(&me);
            async move { me.pod(&key).await }
        };
        self.queue.run(WORKERS, stop, work).await;
    }

    /// A claim is gone: who needs it gets another one.
    fn lost(&self, claim: &ClaimKey) {
        let of = |pod: &Arc<PodObject>| {
            pod.slim.key.namespace == claim.namespace && pod.slim.ephemeral_claims.contains(&claim.name)
        };
        self.world.pods.list().iter().filter(|pod| of(pod)).for_each(|pod| {
            self.queue.add(pod.slim.key.clone());
        });
    }

    async fn pod(&self, key: &PodKey) -> Outcome {
        let Some(pod) = self.world.pods.get(key).known().filter(|pod| !pod.slim.meta.deleting) else {
            return Outcome::Done;
        };
        for volume in pod.volumes() {
            let claim = ClaimKey::new(key.namespace.clone(), format!("{}-{}", key.name, volume.name));
            let there = self.world.claims.get(&claim).known();
            let problem = match verdict(&pod, volume, there.as_deref()) {
                None | Some(Verdict::Done) => continue,
                Some(Verdict::Foreign(problem)) => problem,
                Some(Verdict::Create(body)) => {
                    let write = self.world.create::<Claim>(&body);
                    match self.world.act(WHO, claim.to_string(), "makes the pod's claim", write).await {
                        Ok(_) => continue,
                        Err(WriteError::AlreadyExists(_)) => return Outcome::Again,
                        Err(error) => error.to_string(),
                    }
                }
            };
            let note = format!("ephemeral volume {}: {problem}", volume.name);
            self.world.note(&*pod, COMPONENT, EventType::Warning, "FailedBinding", note);
            return Outcome::Retry;
        }
        Outcome::Done
    }
}

#[cfg(test)]
mod tests {
    use cofferdam_cluster::Kind as _;

    use super::*;

    #[test]
    fn a_claim_of_that_name_is_the_pods_or_in_the_way() {
        let template =
            json!({"metadata": {"labels": {"a": "b"}}, "spec": {"accessModes": ["ReadWriteOnce"]}});
        let pod = json!({
            "metadata": {"name": "p", "namespace": "n", "uid": "u", "resourceVersion": "1"},
            "spec": {"containers": [], "volumes": [
                {"name": "v", "ephemeral": {"volumeClaimTemplate": template}},
                {"name": "w", "emptyDir": {}},
            ]},
        });
        let pod = PodObject::decode(&pod.to_string()).unwrap();
        let claim = |owner: &str| {
            let owner =
                json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": owner, "controller": true});
            let claim = json!({"metadata": {
                "name": "p-v", "namespace": "n", "uid": "c", "resourceVersion": "2", "ownerReferences": [owner],
            }});
            Claim::decode(&claim.to_string()).unwrap()
        };
        let [ephemeral, other] = pod.volumes() else { panic!("two volumes") };
        assert_eq!(verdict(&pod, other, None), None);
        assert_eq!(verdict(&pod, ephemeral, Some(&claim("u"))), Some(Verdict::Done));
        let foreign = "PVC n/p-v was not created for pod n/p (pod is not owner)".to_owned();
        assert_eq!(verdict(&pod, ephemeral, Some(&claim("x"))), Some(Verdict::Foreign(foreign)));
        let Some(Verdict::Create(made)) = verdict(&pod, ephemeral, None) else { panic!("a claim is made") };
        assert_eq!(
            (&made["metadata"]["name"], &made["metadata"]["labels"]["a"]),
            (&json!("p-v"), &json!("b"))
        );
        assert_eq!(made["metadata"]["ownerReferences"][0]["uid"], "u");
    }
}
