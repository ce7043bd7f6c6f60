//! A volume that somebody else has by the time its claim is gone.

use cofferdam_controllers::Role;
use cofferdam_sim::{
    Fault, Outcome,
    Sign::Called,
    Simulation,
    UserAction::{self, Create, Delete, Settle, Until},
    objects::{claim, class, volume, with},
};
use serde_json::json;

const CLAIM: &str = "/api/v1/namespaces/default/persistentvolumeclaims/a";

/// What happens when the driver has made the volume, and nobody has heard of it.
async fn play(then: impl IntoIterator<Item = UserAction>) -> (Outcome, Vec<String>) {
    let simulation = Simulation::new(&Role::ALL, vec![Fault::LostAnswer], vec![]);
    let begin = [Create(class("gold")), Create(claim("a", "gold")), Until(Called(1))];
    let user: Vec<UserAction> = begin.into_iter().chain(then).chain([Settle]).collect();
    let (outcome, effects) = simulation.play(&user, None).await;
    (outcome, effects.iter().map(|effect| format!("{effect:?}")).collect())
}

#[tokio::test(start_paused = true)]
async fn it_is_not_deleted() {
    let (_, effects) = play([]).await;
    let effects = effects.join(" ");
    let at = effects.find("create pvc-").unwrap() + "create ".len();
    let name: String = effects.chars().skip(at).take("pvc-".len() + 36).collect();
    // An administrator has found the volume on the array, and keeps it.
    let kept = json!({"spec": {
        "persistentVolumeReclaimPolicy": "Retain", "csi": {"volumeHandle": format!("handle-{name}")},
    }});
    let rescued = || with(volume("rescued", "other", "1Gi"), &kept);

    let deletes = |outcome: &Outcome| outcome.calls.iter().any(|call| call.starts_with("delete"));
    let (outcome, _) = play([Create(rescued()), Delete(CLAIM)]).await;
    assert!(outcome.faults.is_empty() && !deletes(&outcome), "{:?} {:?}", outcome.faults, outcome.calls);
    assert_eq!((outcome.intents, outcome.array.len()), (0, 1), "{:?}", outcome.calls);

    // While the claim lives, it is told.
    let (outcome, _) = play([Create(rescued())]).await;
    assert!(outcome.faults.is_empty() && !deletes(&outcome), "{:?} {:?}", outcome.faults, outcome.calls);
    assert_eq!(outcome.claims, ["a Pending"]);
    assert!(outcome.events.iter().any(|event| event.contains("ProvisioningFailed")), "{:?}", outcome.events);
}
