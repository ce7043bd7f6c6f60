//! What modifying decides, case by case.

use cofferdam_cluster::{Cache, Kind, decode, writer::CachedKind};
use cofferdam_sim::objects::with;
use serde_json::{Value, json};

use super::*;

fn read<K: Kind>(json: &Value) -> K {
    decode::object(&json.to_string()).unwrap().unwrap()
}

fn put<K: CachedKind>(cache: &Cache, json: &Value) {
    K::store(cache).apply(decode::object(&json.to_string()).unwrap());
}

/// A claim with the class that it asks for, the one that it has, the one that it is to get and how far that
/// is.
fn claim(requested: &str, current: &str, target: &str, state: &str) -> Value {
    let filled = |text: &str| if text.is_empty() { Value::Null } else { json!(text) };
    let status = match state {
        "" => Value::Null,
        state => json!({"targetVolumeAttributesClassName": target, "status": state}),
    };
    let conditions = match state {
        "" | "Pending" => json!([]),
        _ => json!([{"type": "ModifyingVolume", "status": "True"}]),
    };
    json!({
        "metadata": {"name": "a", "namespace": "ns", "uid": "a-uid", "resourceVersion": "5"},
        "spec": {"volumeName": "v", "volumeAttributesClassName": filled(requested)},
        "status": {
            "phase": "Bound", "currentVolumeAttributesClassName": filled(current), "modifyVolumeStatus": status,
            "conditions": conditions,
        },
    })
}

fn cache(class: &str) -> Cache {
    let cache = Cache::default();
    put::<Volume>(
        &cache,
        &json!({
            "metadata": {"name": "v", "uid": "v-uid", "resourceVersion": "5"},
            "spec": {
                "claimRef": {"namespace": "ns", "name": "a", "uid": "a-uid"}, "volumeAttributesClassName": class,
                "csi": {"driver": "drv", "volumeHandle": "h"},
            },
        }),
    );
    for (name, driver) in [("old", "drv"), ("fast", "drv"), ("slow", "drv"), ("strange", "other")] {
        put::<VolumeAttributesClass>(
            &cache,
            &json!({
                "metadata": {"name": name, "uid": name, "resourceVersion": "5"},
                "driverName": driver, "parameters": {"name": name},
            }),
        );
    }
    cache
}

fn describe(verdict: ModificationVerdict) -> String {
    match verdict {
        ModificationVerdict::NoAction(reason) => format!("settled: {reason}"),
        ModificationVerdict::WaitForRetry => "slow".to_owned(),
        ModificationVerdict::Cancel => "cancel".to_owned(),
        ModificationVerdict::MarkPending(target, problem) => format!("pend {target}: {problem}"),
        ModificationVerdict::Retry(problem) => format!("refuse: {problem}"),
        ModificationVerdict::Reject(problem) => format!("hopeless: {problem}"),
        ModificationVerdict::MarkInProgress(target) => format!("begin {target}"),
        ModificationVerdict::Modify(modify) => {
            format!("modify {} {} {:?}", modify.handle, modify.target, modify.parameters)
        }
        ModificationVerdict::UpdateVolumeClass(volume, target) => format!("record {} {target}", volume.name),
        ModificationVerdict::MarkFinished(target) => format!("finish {target}"),
    }
}

const ABILITIES: ResizerAbilities =
    ResizerAbilities { expands: false, modifies: true, single_node_multi_writer: false };

#[test]
fn the_target_class_matches_external_resizer() {
    let settled = "settled: it has the class that it asks for";
    let rolled_back = "settled: it asks for no class any more";
    let modify = |name: &str| format!("modify h {name} {{\"name\": {name:?}}}");
    let (fast, slow) = (&*modify("fast"), &*modify("slow"));
    #[rustfmt::skip] // one row a case: asks for, has, is to get, how far; whether the last call is closed
    let table = [
        ("",     "",     "",     "",           false, settled),
        ("fast", "fast", "",     "",           false, settled),
        ("fast", "",     "",     "",           false, "begin fast"),
        ("fast", "old",  "",     "",           false, "begin fast"),
        ("",     "old",  "",     "",           false, rolled_back),
        ("",     "old",  "fast", "Pending",    false, rolled_back),
        ("",     "old",  "fast", "Infeasible", false, "cancel"),
        ("",     "old",  "fast", "InProgress", false, fast),
        ("",     "old",  "fast", "InProgress", true,  fast),
        ("fast", "old",  "fast", "InProgress", false, fast),
        ("slow", "old",  "fast", "InProgress", false, fast),
        ("slow", "old",  "fast", "InProgress", true,  "begin slow"),
        ("slow", "old",  "slow", "InProgress", true,  slow),
        ("fast", "old",  "fast", "Infeasible", true,  "begin fast"),
        ("slow", "old",  "fast", "Infeasible", true,  "begin slow"),
        ("old",  "old",  "fast", "Infeasible", true,  "begin old"),
        ("gone", "old",  "",     "",           false, "pend gone: VAC \"gone\" does not exist."),
        ("gone", "old",  "gone", "Pending",    false, "settled: it waits for its class"),
        ("gone", "old",  "fast", "Pending",    false, "settled: it waits for its class"),
        ("strange", "old", "gone", "Pending",  false, "pend strange: VAC \"strange\" is of driver other: expected drv"),
        ("gone", "old",  "fast", "InProgress", true,  "pend gone: VAC \"gone\" does not exist."),
        ("gone", "old",  "fast", "Infeasible", true,  "pend gone: VAC \"gone\" does not exist."),
        ("fast", "old",  "gone", "InProgress", false, "refuse: VAC \"gone\" does not exist."),
        ("strange", "",  "",     "",           false, "pend strange: VAC \"strange\" is of driver other: expected drv"),
    ];
    for (requested, current, target, state, is_last_call_final, expected) in table {
        let cache = cache("old");
        let input = ModificationInput {
            cache: &cache,
            abilities: ABILITIES,
            is_last_call_final,
            infeasible: None,
            pending_reported: Some("gone"),
            completed: None,
        };
        let found = describe(decide_modification(input, &read(&claim(requested, current, target, state))));
        assert_eq!(found, expected, "{requested} {current} {target} {state} {is_last_call_final}");
    }
}

#[test]
fn modification_steps_before_and_after_the_driver_call() {
    let decide =
        |class: &str, abilities, infeasible_class, completed: Option<(&str, &'static str)>, claim: Value| {
            let cache = cache(class);
            let completed = completed.map(|(uid, class)| (Uid::from(uid), class));
            let completed = completed.as_ref().map(|(uid, class)| (uid, *class));
            let input = ModificationInput {
                cache: &cache,
                abilities,
                is_last_call_final: false,
                infeasible: infeasible_class,
                pending_reported: None,
                completed,
            };
            describe(decide_modification(input, &read(&claim)))
        };
    let infeasible = claim("fast", "old", "fast", "Infeasible");
    assert_eq!(decide("old", ABILITIES, Some("fast"), None, infeasible.clone()), "slow");
    assert_eq!(decide("old", ABILITIES, Some("slow"), None, infeasible.clone()), "begin fast");
    let unable = decide("old", ResizerAbilities::default(), None, None, infeasible);
    assert_eq!(unable, "hopeless: driver drv does not modify volumes");
    let running = || claim("fast", "old", "fast", "InProgress");
    let unmarked = with(running(), &json!({"status": {"conditions": []}}));
    assert_eq!(decide("old", ABILITIES, None, None, unmarked), "begin fast");
    assert_eq!(decide("old", ABILITIES, None, Some(("a-uid", "fast")), running()), "record v fast");
    assert_eq!(decide("fast", ABILITIES, None, Some(("a-uid", "fast")), running()), "finish fast");
    let of_other_claim = decide("old", ABILITIES, None, Some(("another", "fast")), running());
    assert!(
        of_other_claim.starts_with("modify "),
        "{of_other_claim}: the answer is for the claim, not for a successor of its name"
    );
    // The class may be gone by then.
    let deleted_class = claim("gone", "old", "gone", "InProgress");
    assert_eq!(decide("gone", ABILITIES, None, Some(("a-uid", "gone")), deleted_class), "finish gone");
    let unbound = with(running(), &json!({"spec": {"volumeName": null}}));
    assert_eq!(decide("old", ABILITIES, None, None, unbound), "settled: it is not bound");
}

#[test]
fn storage_errors_are_classified() {
    use ErrorKind as E;
    assert_eq!(
        classify_failure(&StorageError::final_outcome(E::InvalidArgument, "")),
        ResizeFailure::Infeasible
    );
    assert_eq!(
        classify_failure(&StorageError::unknown_outcome(E::InvalidArgument, "")),
        ResizeFailure::InDoubt
    );
    for kind in [E::NotFound, E::OutOfRange, E::Internal, E::FailedPrecondition] {
        assert_eq!(classify_failure(&StorageError::final_outcome(kind, "")), ResizeFailure::Final, "{kind}");
    }
}

#[test]
fn own_status_updates_do_not_reset_the_backoff() {
    let old: Claim = read(&claim("fast", "old", "", ""));
    let is_relevant = |new: Value| is_relevant_change(Some(&old), &read(&new));
    assert!(is_relevant_change(None, &old) && !is_relevant(claim("fast", "old", "", "")));
    for state in ["Pending", "InProgress", "Infeasible"] {
        assert!(!is_relevant(claim("fast", "old", "fast", state)), "{state}");
    }
    assert!(is_relevant(claim("slow", "old", "", "")) && is_relevant(claim("fast", "fast", "", "")));
    let infeasible: Claim = read(&claim("fast", "old", "fast", "Infeasible"));
    assert!(is_relevant_change(Some(&infeasible), &old), "somebody took the status away");
}
