//! Creates the claims of generic ephemeral volumes, as the ephemeral volume controller of
//! kube-controller-manager does.

use std::sync::Arc;

use cofferdam_cluster::{
    ApiError, EventType,
    queue::{Action, ExponentialBackoff, Queue},
};
use cofferdam_domain::{Claim, ClaimKey, PodKey};
use k8s_openapi::api::core::v1::Volume;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::{client::ClusterClient, kinds::FullPod};

/// client-go's default back-off of controller work queues.
const BACKOFF: ExponentialBackoff = ExponentialBackoff {
    initial: std::time::Duration::from_millis(5),
    max: std::time::Duration::from_secs(1000),
};
/// kube-controller-manager's default of `--concurrent-ephemeralvolume-syncs`.
const WORKERS: usize = 5;
const COMPONENT: &str = "ephemeral_volume";
const STEP_COMPONENT: &str = "ephemeral";

/// Decision about one volume of a pod.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum EphemeralClaimDecision {
    /// The claim exists, and the pod controls it.
    Exists,
    /// A claim with the name that the volume's claim must have exists, and the pod does not control it. The
    /// text describes the conflict for the message of the pod's FailedBinding event.
    NameConflict(String),
    /// The claim does not exist and has to be created with this body.
    Create(Value),
}

/// Decides about one volume of a pod; None if the volume is not generic ephemeral. `existing` is the claim
/// with the name that the volume's claim must have.
pub(crate) fn decide(
    pod: &FullPod,
    volume: &Volume,
    existing: Option<&Claim>,
) -> Option<EphemeralClaimDecision> {
    let template = volume.ephemeral.as_ref()?.volume_claim_template.as_ref()?;
    let (key, uid) = (&pod.slim.key, &pod.slim.meta.uid);
    let name = format!("{}-{}", key.name, volume.name);
    Some(match existing {
        Some(claim) if claim.controller_uid.as_ref() == Some(uid) => EphemeralClaimDecision::Exists,
        Some(_) => EphemeralClaimDecision::NameConflict(format!(
            "PVC {}/{name} was not created for pod {key} (pod is not owner)",
            key.namespace
        )),
        None => {
            let meta = template.metadata.clone().unwrap_or_default();
            EphemeralClaimDecision::Create(json!({
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

/// The ephemeral volume controller.
pub(crate) struct EphemeralVolumeController {
    client: Arc<ClusterClient>,
    queue: Queue<PodKey>,
}

impl EphemeralVolumeController {
    /// Creates the controller and subscribes it to changes of pods with generic ephemeral volumes and to
    /// deletions of claims.
    pub(crate) fn new(client: Arc<ClusterClient>) -> Arc<Self> {
        let queue = Queue::new("dev_ephemeral", BACKOFF, &client.metrics);
        let controller = Arc::new(Self { client, queue });
        let pod_queue = controller.queue.clone();
        controller.client.pods.subscribe(move |change| {
            let has_ephemeral_volume =
                |pod: &Arc<FullPod>| pod.volumes().iter().any(|volume| volume.ephemeral.is_some());
            if change.new.as_ref().is_some_and(has_ephemeral_volume) {
                pod_queue.add(change.key.clone());
            }
        });
        let me = Arc::downgrade(&controller);
        controller.client.claims.subscribe(move |change| {
            if let (Some(me), None) = (me.upgrade(), &change.new) {
                me.enqueue_pods_of(&change.key);
            }
        });
        controller
    }

    /// Runs until `stop`.
    pub(crate) async fn run(self: &Arc<Self>, stop: CancellationToken) {
        let controller = Arc::clone(self);
        let work = move |key: PodKey| {
            let controller = Arc::clone(&controller);
            async move { controller.reconcile_pod(&key).await }
        };
        self.queue.run(WORKERS, stop, work).await;
    }

    /// Enqueues the pods with a generic ephemeral volume whose claim has this key. The claim was deleted.
    fn enqueue_pods_of(&self, claim: &ClaimKey) {
        let is_owner = |pod: &Arc<FullPod>| {
            pod.slim.key.namespace == claim.namespace && pod.slim.ephemeral_claims.contains(&claim.name)
        };
        self.client.pods.list().iter().filter(|pod| is_owner(pod)).for_each(|pod| {
            self.queue.add(pod.slim.key.clone());
        });
    }

    async fn reconcile_pod(&self, key: &PodKey) -> Action {
        let Some(pod) = self.client.pods.get(key).into_object().filter(|pod| !pod.slim.meta.deleting) else {
            return Action::Done;
        };
        for volume in pod.volumes() {
            let claim = ClaimKey::new(key.namespace.clone(), format!("{}-{}", key.name, volume.name));
            let existing = self.client.claims.get(&claim).into_object();
            let problem = match decide(&pod, volume, existing.as_deref()) {
                None | Some(EphemeralClaimDecision::Exists) => continue,
                Some(EphemeralClaimDecision::NameConflict(problem)) => problem,
                Some(EphemeralClaimDecision::Create(body)) => {
                    let write = self.client.create::<Claim>(&body);
                    match self
                        .client
                        .perform(STEP_COMPONENT, claim.to_string(), "creates the pod's claim", write)
                        .await
                    {
                        Ok(_) => continue,
                        Err(ApiError::AlreadyExists(_)) => return Action::Requeue,
                        Err(error) => error.to_string(),
                    }
                }
            };
            let note = format!("ephemeral volume {}: {problem}", volume.name);
            self.client.emit_event(&*pod, COMPONENT, EventType::Warning, "FailedBinding", note);
            return Action::Backoff;
        }
        Action::Done
    }
}

#[cfg(test)]
mod tests {
    use cofferdam_cluster::Kind as _;

    use super::*;

    #[test]
    fn claim_is_created_only_if_none_has_its_name() {
        let template =
            json!({"metadata": {"labels": {"a": "b"}}, "spec": {"accessModes": ["ReadWriteOnce"]}});
        let pod = json!({
            "metadata": {"name": "p", "namespace": "n", "uid": "u", "resourceVersion": "1"},
            "spec": {"containers": [], "volumes": [
                {"name": "v", "ephemeral": {"volumeClaimTemplate": template}},
                {"name": "w", "emptyDir": {}},
            ]},
        });
        let pod = FullPod::decode(&pod.to_string()).unwrap();
        let claim = |owner: &str| {
            let owner =
                json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": owner, "controller": true});
            let claim = json!({"metadata": {
            "name": "p-v", "namespace": "n", "uid": "c", "resourceVersion": "2",
                "ownerReferences": [owner],
            }});
            Claim::decode(&claim.to_string()).unwrap()
        };
        let [ephemeral, other] = pod.volumes() else { panic!("two volumes") };
        assert_eq!(decide(&pod, other, None), None);
        assert_eq!(decide(&pod, ephemeral, Some(&claim("u"))), Some(EphemeralClaimDecision::Exists));
        let conflict = "PVC n/p-v was not created for pod n/p (pod is not owner)".to_owned();
        assert_eq!(
            decide(&pod, ephemeral, Some(&claim("x"))),
            Some(EphemeralClaimDecision::NameConflict(conflict))
        );
        let Some(EphemeralClaimDecision::Create(claim_body)) = decide(&pod, ephemeral, None) else {
            panic!("a claim is created")
        };
        assert_eq!(
            (&claim_body["metadata"]["name"], &claim_body["metadata"]["labels"]["a"]),
            (&json!("p-v"), &json!("b"))
        );
        assert_eq!(claim_body["metadata"]["ownerReferences"][0]["uid"], "u");
    }
}
