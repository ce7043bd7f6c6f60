//! A volume whose claim is gone by the time that it is there.

use std::time::Duration;

use cofferdam_roles::Role;
use cofferdam_sim::{
    Fault, Outcome,
    Sign::Called,
    Simulation,
    UserAction::{self, Backup, Create, Delete, Restore, Settle, Until, Wait},
    objects::{claim, class, restore_mark, volume, with},
};
use serde_json::json;

const CLAIM: &str = "/api/v1/namespaces/default/persistentvolumeclaims/a";
const MARK: &str = "/api/v1/namespaces/default/configmaps/cofferdam-restored";

/// What happens when the driver has made the volume, and nobody has heard of it.
async fn play(then: impl IntoIterator<Item = UserAction>) -> (Outcome, Vec<String>) {
    let simulation = Simulation::new(&Role::ALL, vec![Fault::LostAnswer], vec![]);
    let begin = [Create(class("gold")), Create(claim("a", "gold")), Until(Called(1))];
    let user: Vec<UserAction> = begin.into_iter().chain(then).chain([Settle]).collect();
    let (outcome, effects) = simulation.play(&user, None).await;
    (outcome, effects.iter().map(|effect| format!("{effect:?}")).collect())
}

#[tokio::test(start_paused = true)]
async fn what_somebody_else_has_is_not_deleted() {
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

#[tokio::test(start_paused = true)]
async fn after_a_restore_it_waits_until_the_operator_has_looked() {
    let simulation = Simulation::new(&Role::ALL, vec![Fault::Meanwhile(Delete(CLAIM))], vec![]);
    // In the middle of two tries, which are five minutes apart by then.
    let looks_at = Duration::from_secs(3700);
    let user = [
        Create(restore_mark()),
        Create(class("gold")),
        Create(claim("a", "gold")),
        Wait(looks_at),
        Delete(MARK),
    ];
    let second = Duration::from_secs(1);
    let look = async {
        tokio::time::sleep(looks_at - second).await;
        let before = simulation.array().volumes().len();
        tokio::time::sleep(2 * second).await;
        (before, simulation.array().volumes().len())
    };
    let ((outcome, _), volumes) = tokio::join!(simulation.play(&user, None), look);
    assert_eq!(volumes, (1, 0), "{:?}", outcome.calls);
    assert_eq!(outcome.calls.iter().filter(|call| *call == "delete gone").count(), 1, "{:?}", outcome.calls);
    assert!(outcome.faults.is_empty() && outcome.intents == 0, "{outcome:?}");
}

/// Restored while the driver works and while no watch of the process lives: what it reads itself says that the claim is gone.
#[tokio::test(start_paused = true)]
async fn it_is_not_deleted_before_the_restore_is_noticed() {
    let faults = vec![Fault::Slow(Duration::ZERO), Fault::MeanwhileUnseen(Restore)];
    let simulation = Simulation::new(&Role::ALL, faults, vec![]);
    let user =
        [Create(class("gold")), Create(claim("b", "gold")), Settle, Backup, Create(claim("a", "gold"))];
    let (outcome, _) = simulation.play(&user, None).await;
    assert_eq!(outcome.claims, ["b Bound of-b"]);
    assert_eq!(outcome.volumes, ["of-b Bound b", "of-gone Released a"]);
    assert_eq!(outcome.array, ["b", "gone"], "{:?}", outcome.calls);
    assert!(simulation.object(MARK).await.is_some() && outcome.faults.is_empty(), "{:?}", outcome.faults);
}
