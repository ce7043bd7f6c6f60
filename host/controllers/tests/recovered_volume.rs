//! An administrator creates a PersistentVolume for a volume whose CreateVolume response was lost, before the
//! provisioner repeats the call. The provisioner does not delete the volume, because another PersistentVolume
//! refers to it. This holds if the claim that the volume was created for is deleted afterwards, and if it
//! remains and gets an event.

use cofferdam_controllers::Role;
use cofferdam_sim::{
    DriverFault, FinalState, Simulation,
    UserAction::{self, Create, Delete, Settle, Until},
    WaitFor::CallsCompleted,
    objects::{claim, class, volume, with},
};
use serde_json::json;

const CLAIM: &str = "/api/v1/namespaces/default/persistentvolumeclaims/a";

/// Runs the actions after `CreateVolume` has succeeded and its response is lost. Returns the final state, and
/// the effects (API writes and driver calls) as text.
async fn run_after_lost_response(
    next_actions: impl IntoIterator<Item = UserAction>,
) -> (FinalState, Vec<String>) {
    let simulation = Simulation::new(&Role::ALL, vec![DriverFault::LostResponse], vec![]);
    let first_actions = [Create(class("gold")), Create(claim("a", "gold")), Until(CallsCompleted(1))];
    let actions: Vec<UserAction> = first_actions.into_iter().chain(next_actions).chain([Settle]).collect();
    let (outcome, effects) = simulation.run(&actions, None).await;
    (outcome, effects.iter().map(|effect| format!("{effect:?}")).collect())
}

#[tokio::test(start_paused = true)]
async fn a_volume_recovered_by_another_pv_is_not_deleted() {
    let (_, effects) = run_after_lost_response([]).await;
    let effects = effects.join(" ");
    let at = effects.find("create pvc-").unwrap() + "create ".len();
    let name: String = effects.chars().skip(at).take("pvc-".len() + 36).collect();
    // An administrator finds the volume on the array and imports it.
    let retained_spec = json!({"spec": {
        "persistentVolumeReclaimPolicy": "Retain", "csi": {"volumeHandle": format!("handle-{name}")},
    }});
    let recovered_volume = || with(volume("recovered", "other", "1Gi"), &retained_spec);

    let deletes = |outcome: &FinalState| outcome.calls.iter().any(|call| call.starts_with("delete"));
    let (outcome, _) = run_after_lost_response([Create(recovered_volume()), Delete(CLAIM)]).await;
    assert!(
        outcome.violations.is_empty() && !deletes(&outcome),
        "{:?} {:?}",
        outcome.violations,
        outcome.calls
    );
    assert_eq!((outcome.intents, outcome.array_owners.len()), (0, 1), "{:?}", outcome.calls);

    // A claim that still exists gets an event.
    let (outcome, _) = run_after_lost_response([Create(recovered_volume())]).await;
    assert!(
        outcome.violations.is_empty() && !deletes(&outcome),
        "{:?} {:?}",
        outcome.violations,
        outcome.calls
    );
    assert_eq!(outcome.claims, ["a Pending"]);
    assert!(outcome.events.iter().any(|event| event.contains("ProvisioningFailed")), "{:?}", outcome.events);
}
