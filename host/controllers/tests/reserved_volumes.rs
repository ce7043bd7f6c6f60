//! A PersistentVolume that is reserved for a claim and does not fit it, when the claim is bound to another
//! one: the reservation ends although no change of the PersistentVolume follows.

use cofferdam_controllers::{protection, pv_controller};
use cofferdam_sim::{
    Simulation,
    UserAction::{self, Create, Settle},
    objects::{DRIVER, claim, volume, with},
};
use serde_json::{Value, json};

const CLAIM: &str = "/api/v1/namespaces/default/persistentvolumeclaims/a";
const RESERVED: &str = "/api/v1/persistentvolumes/reserved";

/// Creates the claim `a`, then performs further actions.
async fn run(next_actions: impl IntoIterator<Item = UserAction>) -> Simulation {
    let roles = [pv_controller::ROLE, protection::ROLE];
    let simulation = Simulation::new(&roles, Vec::new(), Vec::new()).with_rest_check();
    let first_actions = [Create(claim("a", "")), Settle];
    let actions: Vec<UserAction> = first_actions.into_iter().chain(next_actions).collect();
    let (outcome, _) = simulation.run(&actions, None).await;
    assert_eq!(outcome.violations, [""; 0]);
    assert_eq!(outcome.remaining_work, Vec::new());
    simulation
}

fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// kube-controller-manager's resync ends the reservation after at most 15 s.
#[tokio::test(start_paused = true)]
async fn a_reservation_ends_when_its_claim_is_bound_to_another_volume() {
    // Every run gives the claim the same UID.
    let uid = text(&run([]).await.object(CLAIM).await.unwrap(), "/metadata/uid").to_owned();
    let provisioned = json!({
        "metadata": {"annotations": {"pv.kubernetes.io/provisioned-by": DRIVER}},
        "spec": {"persistentVolumeReclaimPolicy": "Delete"},
    });
    let by_controller = json!({"metadata": {"annotations": {"pv.kubernetes.io/bound-by-controller": "yes"}}});
    // Change of the PersistentVolume → phase, claimRef.name and claimRef.uid.
    let table = [
        ("provisioned", provisioned, ("Released", "a", uid.as_str())),
        ("reserved by the controller", by_controller, ("Available", "", "")),
        ("reserved by a user", json!({}), ("Available", "a", "")),
    ];
    for (name, change, expected) in table {
        let claim_ref = json!({"spec": {"claimRef": {
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "namespace": "default", "name": "a", "uid": uid,
        }}});
        let too_small = with(with(volume("reserved", "", "1Mi"), &claim_ref), &change);
        let simulation = run([Create(too_small), Settle, Create(volume("v", "", "1Gi"))]).await;
        let bound = simulation.object(CLAIM).await.unwrap();
        assert_eq!(text(&bound, "/spec/volumeName"), "v", "{name}");
        let reserved = simulation.object(RESERVED).await.unwrap();
        let found = ["/status/phase", "/spec/claimRef/name", "/spec/claimRef/uid"];
        let [phase, claim_name, claim_uid] = found.map(|pointer| text(&reserved, pointer));
        assert_eq!((phase, claim_name, claim_uid), expected, "{name}");
    }
}
