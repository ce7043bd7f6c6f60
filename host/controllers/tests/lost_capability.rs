//! A driver that loses CREATE_DELETE_VOLUME between two processes. The first process has sent a CreateVolume
//! request, whose volume must not be forgotten: its intent stays until the driver has the capability again.

#![expect(clippy::expect_used, reason = "a missing value fails the test")]

use cofferdam_controllers::Role;
use cofferdam_sim::{
    DriverFault, Effect, Simulation,
    UserAction::{self, Create, Delete},
    objects::{claim, class},
};

const CLAIM: &str = "/api/v1/namespaces/default/persistentvolumeclaims/a";

fn simulation() -> Simulation {
    Simulation::new(&Role::ALL, vec![DriverFault::LostResponse], Vec::new())
}

fn claim_created() -> [UserAction; 2] {
    [Create(class("gold")), Create(claim("a", "gold"))]
}

/// Number of the first driver call among the effects, counted from 1.
async fn number_of_first_call() -> usize {
    let (_, effects) = simulation().run(&claim_created(), None).await;
    let is_call = |effect: &Effect| matches!(effect, Effect::Call(_));
    effects.iter().position(is_call).expect("CreateVolume is called") + 1
}

#[tokio::test(start_paused = true)]
async fn an_intent_stays_while_its_driver_lacks_create_delete() {
    let crash_after = number_of_first_call().await;
    let simulation = simulation();
    let actions = claim_created();
    let lose_capability = async {
        // The first process is running. Its replacement after the crash does not have the capability.
        tokio::task::yield_now().await;
        simulation.driver().set_create_delete(false);
    };
    let ((outcome, _), ()) = tokio::join!(simulation.run(&actions, Some(crash_after)), lose_capability);
    assert_eq!((outcome.claims, outcome.intents), (vec!["a Pending".to_owned()], 1));
    assert_eq!((outcome.array_owners, outcome.violations), (vec!["a".to_owned()], Vec::new()));
    assert!(outcome.events.contains(&"a Warning ProvisioningFailed".to_owned()), "{:?}", outcome.events);

    // The intent stays without its claim.
    let (outcome, _) = simulation.run(&[Delete(CLAIM)], None).await;
    assert_eq!((outcome.intents, outcome.array_owners), (1, vec!["gone".to_owned()]));

    simulation.driver().set_create_delete(true);
    let (outcome, _) = simulation.run(&[], None).await;
    assert_eq!((outcome.intents, outcome.array_owners), (0, Vec::new()));
    assert_eq!((outcome.calls.last().map(String::as_str), outcome.violations), (Some("delete gone"), vec![]));
}
