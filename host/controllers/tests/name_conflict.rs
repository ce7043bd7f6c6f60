//! A PersistentVolume of the claim that another process creates during CreateVolume, with another volume.
#![expect(clippy::unwrap_used, reason = "a missing value fails the test")]

use cofferdam_controllers::Role;
use cofferdam_domain::storage::ErrorKind;
use cofferdam_sim::{
    DriverFault, FinalState, Simulation,
    UserAction::{self, Create},
    objects::{claim, class, volume, with},
};
use serde_json::{Value, json};

const CLAIM: &str = "/api/v1/namespaces/default/persistentvolumeclaims/a";

fn actions() -> [UserAction; 2] {
    [Create(class("gold")), Create(claim("a", "gold"))]
}

/// The PersistentVolume that the claim's provisioner would create, with another handle.
async fn volume_of_claim() -> Value {
    let simulation = Simulation::new(&Role::ALL, Vec::new(), Vec::new());
    simulation.run(&actions(), None).await;
    // Every run gives the claim the same UID.
    let claim = simulation.object(CLAIM).await.unwrap();
    let uid = claim.pointer("/metadata/uid").unwrap().as_str().unwrap();
    let reference = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "default", "name": "a", "uid": uid,
    });
    let change = json!({
        "spec": {"claimRef": reference, "csi": {"volumeHandle": "other"}},
    });
    with(volume(&format!("pvc-{uid}"), "gold", "1Gi"), &change)
}

async fn run(delete_faults: Vec<DriverFault>) -> FinalState {
    let created = DriverFault::ConcurrentAction(Create(volume_of_claim().await));
    let simulation = Simulation::new(&Role::ALL, vec![created], delete_faults).with_rest_check();
    let (outcome, _) = simulation.run(&actions(), None).await;
    assert_eq!(outcome.violations, [""; 0]);
    outcome
}

#[tokio::test(start_paused = true)]
async fn a_created_volume_is_deleted_if_the_claim_has_another_volume() {
    let outcome = run(Vec::new()).await;
    assert_eq!(outcome.array_owners, [""; 0], "{:?}", outcome.calls);
    assert_eq!((outcome.intents, outcome.claims.len()), (0, 1));
    assert!(outcome.claims.iter().all(|claim| claim.starts_with("a Bound ")), "{:?}", outcome.claims);
    assert_eq!(outcome.remaining_work, []);
}

/// The intent stays until the volume is deleted, although the claim's PersistentVolume exists.
#[tokio::test(start_paused = true)]
async fn a_created_volume_is_not_forgotten_if_its_deletion_fails() {
    let outcome = run(vec![DriverFault::Refuse(ErrorKind::Internal); 3]).await;
    assert_eq!(outcome.array_owners, [""; 0], "{:?}", outcome.calls);
    assert_eq!(outcome.intents, 0);
    assert!(outcome.events.contains(&"a Warning ProvisioningFailed".to_owned()), "{:?}", outcome.events);
}
