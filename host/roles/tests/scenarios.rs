//! The scenario table of provisioner, pv-controller and protection: objects in, faults in → objects, events, driver calls out.
//!
//! Every scenario is played twice. Once as it stands; and once for each of its effects with a process that is killed after it,
//! the answer lost, and another one that starts on what is there: the same objects must come out, with no volume leaked, lost or
//! asked for in two ways.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use cofferdam_domain::storage::ErrorKind;
use cofferdam_roles::{Role, rbac};
use cofferdam_sim::{
    Fault, Outcome, Simulation,
    UserAction::{self, Backup, Compact, Create, Delete, Patch, Restore, Settle, Wait},
    objects::{claim, class, pod, volume, with},
};
use serde_json::json;

const CLAIM: &str = "/api/v1/namespaces/default/persistentvolumeclaims/a";
const CLASS: &str = "/apis/storage.k8s.io/v1/storageclasses/gold";
const HALF_A_SECOND: Duration = Duration::from_millis(500);

#[derive(Default)]
struct Scenario {
    name: &'static str,
    user: Vec<UserAction>,
    create_faults: Vec<Fault>,
    delete_faults: Vec<Fault>,
    claims: &'static [&'static str],
    volumes: &'static [&'static str],
    array: &'static [&'static str],
    events: &'static [&'static str],
    calls: &'static [&'static str],
}

fn gold_claim() -> Vec<UserAction> {
    vec![Create(class("gold")), Create(claim("a", "gold"))]
}

fn after_gold_claim(more: impl IntoIterator<Item = UserAction>) -> Vec<UserAction> {
    gold_claim().into_iter().chain(more).collect()
}

const BOUND: &[&str] = &["a Bound of-a"];
const VOLUME: &[&str] = &["of-a Bound a"];
const SUCCEEDED: &[&str] = &["a Normal ProvisioningSucceeded"];
/// The second try comes a second after the first: by then the claim has waited long enough to be told.
const FAILED_THEN_SUCCEEDED: &[&str] =
    &["a Normal ExternalProvisioning", "a Normal ProvisioningSucceeded", "a Warning ProvisioningFailed"];

#[expect(clippy::too_many_lines, reason = "one table")]
fn scenarios() -> Vec<Scenario> {
    let base = Scenario::default;
    let retain = || with(class("gold"), &json!({"reclaimPolicy": "Retain"}));
    vec![
        Scenario {
            name: "a claim gets its volume",
            user: gold_claim(),
            claims: BOUND,
            volumes: VOLUME,
            array: &["a"],
            events: SUCCEEDED,
            calls: &["create a"],
            ..base()
        },
        Scenario {
            name: "and nothing is left when the claim goes",
            user: after_gold_claim([Settle, Delete(CLAIM)]),
            events: SUCCEEDED,
            calls: &["create gone", "delete gone"],
            ..base()
        },
        Scenario {
            name: "with Retain the volume stays, Released",
            user: vec![Create(retain()), Create(claim("a", "gold")), Settle, Delete(CLAIM)],
            volumes: &["of-gone Released a"],
            array: &["gone"],
            events: SUCCEEDED,
            calls: &["create gone"],
            ..base()
        },
        Scenario {
            name: "the default class is used",
            user: vec![
                Create(with(
                    class("gold"),
                    &json!({"metadata": {"annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}}),
                )),
                Create(with(claim("a", "gold"), &json!({"spec": {"storageClassName": null}}))),
            ],
            claims: BOUND,
            volumes: VOLUME,
            array: &["a"],
            events: SUCCEEDED,
            calls: &["create a"],
            ..base()
        },
        Scenario {
            name: "a class that comes late",
            user: vec![Create(claim("a", "gold")), Settle, Create(class("gold"))],
            claims: BOUND,
            volumes: VOLUME,
            array: &["a"],
            events: &["a Normal ProvisioningSucceeded", "a Warning ProvisioningFailed"],
            calls: &["create a"],
            ..base()
        },
        Scenario {
            name: "late binding waits for the scheduler's node",
            user: vec![
                Create(with(class("gold"), &json!({"volumeBindingMode": "WaitForFirstConsumer"}))),
                Create(claim("a", "gold")),
                Settle,
                Patch(
                    CLAIM,
                    json!({"metadata": {"annotations": {"volume.kubernetes.io/selected-node": "n"}}}),
                ),
            ],
            claims: BOUND,
            volumes: VOLUME,
            array: &["a"],
            events: &["a Normal ProvisioningSucceeded", "a Normal WaitForFirstConsumer"],
            calls: &["create a"],
            ..base()
        },
        Scenario {
            name: "a static volume: the smallest that fits",
            user: vec![
                Create(volume("small", "none", "1Gi")),
                Create(volume("large", "none", "9Gi")),
                Create(volume("fitting", "none", "3Gi")),
                Settle,
                Create(with(
                    claim("a", "none"),
                    &json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}}),
                )),
            ],
            claims: &["a Bound fitting"],
            volumes: &["fitting Bound a", "large Available", "small Available"],
            ..base()
        },
        Scenario {
            name: "a static volume that comes after its claim",
            user: vec![Create(claim("a", "none")), Settle, Create(volume("v", "none", "1Gi"))],
            claims: &["a Bound v"],
            volumes: &["v Bound a"],
            events: &["a Warning ProvisioningFailed"],
            ..base()
        },
        Scenario {
            name: "a static volume with Retain is released with its claim",
            user: vec![
                Create(volume("v", "none", "1Gi")),
                Settle,
                Create(claim("a", "none")),
                Settle,
                Delete(CLAIM),
            ],
            volumes: &["v Released a"],
            ..base()
        },
        Scenario {
            name: "the driver's answer is lost",
            user: gold_claim(),
            create_faults: vec![Fault::LostAnswer],
            claims: BOUND,
            volumes: VOLUME,
            array: &["a"],
            events: FAILED_THEN_SUCCEEDED,
            calls: &["create a", "create a"],
            ..base()
        },
        Scenario {
            name: "the request is lost, twice",
            user: gold_claim(),
            create_faults: vec![Fault::LostRequest, Fault::LostRequest],
            claims: BOUND,
            volumes: VOLUME,
            array: &["a"],
            events: FAILED_THEN_SUCCEEDED,
            calls: &["create a", "create a", "create a"],
            ..base()
        },
        Scenario {
            name: "the array is full, and then has room",
            user: gold_claim(),
            create_faults: vec![Fault::Refuse(ErrorKind::ResourceExhausted)],
            claims: BOUND,
            volumes: VOLUME,
            array: &["a"],
            events: FAILED_THEN_SUCCEEDED,
            calls: &["create a", "create a"],
            ..base()
        },
        Scenario {
            name: "the volume is too small: it is deleted, and asked for anew",
            user: gold_claim(),
            create_faults: vec![Fault::Size(1 << 20)],
            claims: BOUND,
            volumes: VOLUME,
            array: &["a"],
            events: FAILED_THEN_SUCCEEDED,
            calls: &["create a", "delete a", "create a"],
            ..base()
        },
        Scenario {
            name: "the driver takes its time, and the claim is told",
            user: gold_claim(),
            create_faults: vec![Fault::Slow(Duration::from_secs(20))],
            claims: BOUND,
            volumes: VOLUME,
            array: &["a"],
            events: &[
                "a Normal ExternalProvisioning",
                "a Normal Provisioning",
                "a Normal ProvisioningSucceeded",
            ],
            calls: &["create a"],
            ..base()
        },
        Scenario {
            name: "the claim is deleted while the driver works",
            user: gold_claim(),
            create_faults: vec![Fault::Meanwhile(Delete(CLAIM))],
            calls: &["create gone", "delete gone"],
            ..base()
        },
        Scenario {
            name: "the claim is deleted while the driver works, with Retain",
            user: vec![Create(retain()), Create(claim("a", "gold"))],
            create_faults: vec![Fault::Meanwhile(Delete(CLAIM))],
            volumes: &["of-gone Released a"],
            array: &["gone"],
            calls: &["create gone"],
            ..base()
        },
        Scenario {
            name: "the answer is lost and the claim deleted",
            user: after_gold_claim([Wait(HALF_A_SECOND), Delete(CLAIM)]),
            create_faults: vec![Fault::LostAnswer],
            events: &["a Warning ProvisioningFailed"],
            calls: &["create gone", "create gone", "delete gone"],
            ..base()
        },
        Scenario {
            name: "the claim is deleted and comes again",
            user: after_gold_claim([
                Wait(HALF_A_SECOND),
                Delete(CLAIM),
                Wait(HALF_A_SECOND),
                Create(claim("a", "gold")),
            ]),
            create_faults: vec![Fault::LostAnswer],
            claims: BOUND,
            volumes: VOLUME,
            array: &["a"],
            events: &["a Normal ProvisioningSucceeded", "a Warning ProvisioningFailed"],
            calls: &["create gone", "create gone", "delete gone", "create a"],
            ..base()
        },
        Scenario {
            name: "the class is removed while the answer is out",
            user: after_gold_claim([Wait(HALF_A_SECOND), Delete(CLASS)]),
            create_faults: vec![Fault::LostAnswer],
            claims: BOUND,
            volumes: VOLUME,
            array: &["a"],
            events: &["a Normal ProvisioningSucceeded", "a Warning ProvisioningFailed"],
            calls: &["create a", "create a"],
            ..base()
        },
        Scenario {
            name: "the class changes while the answer is out: the first request is repeated",
            user: after_gold_claim([
                Wait(HALF_A_SECOND),
                Delete(CLASS),
                Create(with(class("gold"), &json!({"parameters": {"tier": "slow"}}))),
            ]),
            create_faults: vec![Fault::LostAnswer],
            claims: BOUND,
            volumes: VOLUME,
            array: &["a"],
            events: &["a Normal ProvisioningSucceeded", "a Warning ProvisioningFailed"],
            calls: &["create a", "create a"],
            ..base()
        },
        Scenario {
            name: "an invalid request waits for another class",
            user: after_gold_claim([Wait(Duration::from_secs(2)), Delete(CLASS), Create(class("gold"))]),
            create_faults: vec![Fault::Refuse(ErrorKind::InvalidArgument)],
            claims: BOUND,
            volumes: VOLUME,
            array: &["a"],
            events: FAILED_THEN_SUCCEEDED,
            calls: &["create a", "create a"],
            ..base()
        },
        Scenario {
            name: "deleting fails once, and its answer is lost once",
            user: after_gold_claim([Settle, Delete(CLAIM)]),
            delete_faults: vec![Fault::Refuse(ErrorKind::Internal), Fault::LostAnswer],
            events: &["a Normal ProvisioningSucceeded", "volume Warning VolumeFailedDelete"],
            calls: &["create gone", "delete gone", "delete gone", "delete gone"],
            ..base()
        },
        Scenario {
            name: "watches fall behind",
            user: after_gold_claim([Settle, Compact, Delete(CLAIM), Compact]),
            events: SUCCEEDED,
            calls: &["create gone", "delete gone"],
            ..base()
        },
        Scenario {
            name: "a claim in use stays until its pod is gone",
            user: after_gold_claim([Settle, Create(pod("p", "a")), Settle, Delete(CLAIM), Settle]),
            claims: BOUND,
            volumes: VOLUME,
            array: &["a"],
            events: SUCCEEDED,
            calls: &["create a"],
            ..base()
        },
        Scenario {
            name: "and then goes",
            user: after_gold_claim([
                Settle,
                Create(pod("p", "a")),
                Settle,
                Delete(CLAIM),
                Settle,
                Delete("/api/v1/namespaces/default/pods/p?gracePeriodSeconds=0"),
            ]),
            events: SUCCEEDED,
            calls: &["create gone", "delete gone"],
            ..base()
        },
        Scenario {
            name: "a volume that goes under its claim",
            user: vec![
                Create(volume("v", "none", "1Gi")),
                Settle,
                Create(claim("a", "none")),
                Settle,
                Patch("/api/v1/persistentvolumes/v", json!({"metadata": {"finalizers": null}})),
                Delete("/api/v1/persistentvolumes/v"),
                Patch("/api/v1/persistentvolumes/v", json!({"metadata": {"finalizers": null}})),
            ],
            claims: &["a Lost v"],
            events: &["a Warning ClaimLost"],
            ..base()
        },
        Scenario {
            name: "two claims, one free volume: the other gets a new one",
            user: vec![
                Create(class("gold")),
                Create(volume("v", "gold", "1Gi")),
                Settle,
                Create(claim("a", "gold")),
                Create(claim("b", "gold")),
            ],
            claims: &["a Bound v", "b Bound of-b"],
            volumes: &["of-b Bound b", "v Bound a"],
            array: &["b"],
            events: &["b Normal ProvisioningSucceeded"],
            calls: &["create b"],
            ..base()
        },
        Scenario {
            name: "a class that restricts topologies",
            user: vec![
                Create(with(
                    class("gold"),
                    &json!({"allowedTopologies": [{"matchLabelExpressions": [{"key": "zone", "values": ["a"]}]}]}),
                )),
                Create(claim("a", "gold")),
            ],
            claims: &["a Pending"],
            events: &["a Normal ExternalProvisioning", "a Warning ProvisioningFailed"],
            ..base()
        },
        Scenario {
            name: "sizes and parameters that cannot be",
            user: vec![
                Create(class("gold")),
                Create(with(
                    claim("a", "gold"),
                    &json!({"spec": {"resources": {"requests": {"storage": "1e99"}}}}),
                )),
                Create(with(class("odd"), &json!({"parameters": {"csi.storage.k8s.io/odd": "x"}}))),
                Create(claim("b", "odd")),
            ],
            claims: &["a Pending", "b Pending"],
            events: &[
                "a Normal ExternalProvisioning",
                "a Warning ProvisioningFailed",
                "b Normal ExternalProvisioning",
                "b Warning ProvisioningFailed",
            ],
            ..base()
        },
    ]
}

async fn play(scenario: &Scenario, die_after: Option<usize>) -> (Outcome, usize) {
    let simulation =
        Simulation::new(&Role::ALL, scenario.create_faults.clone(), scenario.delete_faults.clone());
    let (outcome, effects) = simulation.play(&scenario.user, die_after).await;
    (outcome, effects.len())
}

#[tokio::test(start_paused = true)]
async fn every_scenario_ends_as_it_should() {
    let mut differences = Vec::new();
    for scenario in scenarios() {
        let (outcome, _) = play(&scenario, None).await;
        let mut compare = |what: &str, found: &[String], expected: &[&str]| {
            if found != expected {
                differences
                    .push(format!("{}: {what}: expected {expected:?}, found {found:?}", scenario.name));
            }
        };
        compare("faults", &outcome.faults, &[]);
        compare("claims", &outcome.claims, scenario.claims);
        compare("volumes", &outcome.volumes, scenario.volumes);
        compare("array", &outcome.array, scenario.array);
        compare("events", &outcome.events, scenario.events);
        compare("calls", &outcome.calls, scenario.calls);
        compare("intents", &[outcome.intents.to_string()], &["0"]);
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

#[tokio::test(start_paused = true)]
async fn every_scenario_ends_so_with_a_process_for_each_role_and_its_rules_alone() {
    let mut used: BTreeMap<Role, BTreeSet<String>> = BTreeMap::new();
    for scenario in scenarios() {
        let faults = (scenario.create_faults.clone(), scenario.delete_faults.clone());
        let simulation = Simulation::new(&Role::ALL, faults.0, faults.1).apart();
        let (outcome, _) = simulation.play(&scenario.user, None).await;
        let name = scenario.name;
        assert_eq!(outcome.faults, Vec::<String>::new(), "{name}");
        assert_eq!(outcome.claims, scenario.claims, "claims: {name}");
        assert_eq!(outcome.volumes, scenario.volumes, "volumes: {name}");
        assert_eq!(outcome.array, scenario.array, "array: {name}");
        assert_eq!(outcome.intents, 0, "intents: {name}");
        for (roles, rules) in simulation.used_rules() {
            roles.into_iter().for_each(|role| used.entry(role).or_default().extend(rules.clone()));
        }
    }
    // And no rule is there for nothing.
    let mut idle = Vec::new();
    for role in Role::ALL {
        for rule in rbac::rules(&[role].into()) {
            for verb in rule.verbs {
                let right = format!("{verb} {}/{}", rule.group, rule.resource);
                // Whatever a role does, it may have to tell of an object that it cannot read, and to read anew what it writes.
                let any_time = rule.resource == "events" || verb == "get";
                if !any_time && !used[&role].contains(&right) {
                    idle.push(format!("{role}: {right}"));
                }
            }
        }
    }
    assert!(idle.is_empty(), "rights that no scenario uses: {idle:#?}");
}

#[tokio::test(start_paused = true)]
async fn every_scenario_ends_so_wherever_the_process_dies() {
    let mut deaths = 0;
    for scenario in scenarios() {
        let (_, effects) = play(&scenario, None).await;
        assert!(effects > 0, "{} has no effect to die after", scenario.name);
        for n in 1..=effects {
            let (outcome, _) = play(&scenario, Some(n)).await;
            let at = format!("{}, killed after effect {n} of {effects}", scenario.name);
            assert_eq!(outcome.faults, Vec::<String>::new(), "{at}");
            assert_eq!(outcome.claims, scenario.claims, "claims: {at}");
            assert_eq!(outcome.volumes, scenario.volumes, "volumes: {at}");
            assert_eq!(outcome.array, scenario.array, "array: {at}");
            assert_eq!(outcome.intents, 0, "intents: {at}");
            deaths += 1;
        }
    }
    assert!(deaths > 200, "only {deaths} deaths were died");
}

#[tokio::test(start_paused = true)]
async fn deletions_wait_after_a_restore() {
    const MARK: &str = "/api/v1/namespaces/default/configmaps/cofferdam-restored";
    let simulation = Simulation::new(&Role::ALL, Vec::new(), Vec::new());
    let user = after_gold_claim([
        Settle,
        Backup,
        Create(claim("b", "gold")),
        Settle,
        Restore,
        // What the processes see next makes them list anew.
        Settle,
        Delete(CLAIM),
        Settle,
    ]);
    let (outcome, _) = simulation.play(&user, None).await;
    assert_eq!(outcome.volumes, ["of-gone Released a"]);
    assert_eq!(
        outcome.array,
        ["gone", "gone"],
        "nothing is deleted, least of all what the backup does not know"
    );
    assert!(outcome.events.contains(&"volume Warning DeletionHeld".to_owned()), "{:?}", outcome.events);
    let (outcome, _) = simulation.play(&[Settle], None).await;
    assert_eq!(outcome.array, ["gone", "gone"], "also not by the next process");
    let (outcome, _) = simulation.play(&[Settle, Delete(MARK), Settle], None).await;
    assert_eq!(outcome.volumes, [""; 0]);
    assert_eq!(outcome.array, ["gone"], "what the backup does not know is found by nobody here, and stays");
}
