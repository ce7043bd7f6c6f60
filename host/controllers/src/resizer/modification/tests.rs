//! Tests of the modification rules, case by case.

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

/// A claim with its requested class, its current class, and target class and state of its modification.
fn claim(requested: &str, current: &str, target: &str, state: &str) -> Value {
    let non_empty = |text: &str| if text.is_empty() { Value::Null } else { json!(text) };
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
        "spec": {"volumeName": "v", "volumeAttributesClassName": non_empty(requested)},
        "status": {
            "phase": "Bound", "currentVolumeAttributesClassName": non_empty(current),
            "modifyVolumeStatus": status, "conditions": conditions,
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
                "claimRef": {"namespace": "ns", "name": "a", "uid": "a-uid"},
                "volumeAttributesClassName": class,
                "csi": {"driver": "drv", "volumeHandle": "h"},
            },
        }),
    );
    for (name, driver) in [("old", "drv"), ("fast", "drv"), ("slow", "drv"), ("other", "other")] {
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
        ModificationVerdict::NoAction(reason) => format!("no action: {reason}"),
        ModificationVerdict::WaitForRetry => "wait for retry".to_owned(),
        ModificationVerdict::Cancel => "cancel".to_owned(),
        ModificationVerdict::MarkPending(target, problem) => format!("pending {target}: {problem}"),
        ModificationVerdict::Retry(problem) => format!("retry: {problem}"),
        ModificationVerdict::Reject(problem) => format!("reject: {problem}"),
        ModificationVerdict::MarkInProgress(target) => format!("mark {target}"),
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
    let unchanged = "no action: the claim has the requested class";
    let rolled_back = "no action: the claim requests no class";
    let modify = |name: &str| format!("modify h {name} {{\"name\": {name:?}}}");
    let (fast, slow) = (&*modify("fast"), &*modify("slow"));
    let missing = "pending gone: VAC \"gone\" does not exist.";
    let other_driver = "pending other: VAC \"other\" has driver other; expected drv";
    let waiting_for_class = "no action: waiting for the class";
    #[rustfmt::skip] // one row per case: requested, current and target class, state; is_last_call_final
    let table = [
        ("",     "",     "",     "",           false, unchanged),
        ("fast", "fast", "",     "",           false, unchanged),
        ("fast", "",     "",     "",           false, "mark fast"),
        ("fast", "old",  "",     "",           false, "mark fast"),
        ("",     "old",  "",     "",           false, rolled_back),
        ("",     "old",  "fast", "Pending",    false, rolled_back),
        ("",     "old",  "fast", "Infeasible", false, "cancel"),
        ("",     "old",  "fast", "InProgress", false, fast),
        ("",     "old",  "fast", "InProgress", true,  fast),
        ("fast", "old",  "fast", "InProgress", false, fast),
        ("slow", "old",  "fast", "InProgress", false, fast),
        ("slow", "old",  "fast", "InProgress", true,  "mark slow"),
        ("slow", "old",  "slow", "InProgress", true,  slow),
        ("fast", "old",  "fast", "Infeasible", true,  "mark fast"),
        ("slow", "old",  "fast", "Infeasible", true,  "mark slow"),
        ("old",  "old",  "fast", "Infeasible", true,  "mark old"),
        ("gone", "old",  "",     "",           false, missing),
        ("gone", "old",  "gone", "Pending",    false, waiting_for_class),
        ("gone", "old",  "fast", "Pending",    false, waiting_for_class),
        ("other", "old", "gone", "Pending",  false, other_driver),
        ("gone", "old",  "fast", "InProgress", true,  missing),
        ("gone", "old",  "fast", "Infeasible", true,  missing),
        ("fast", "old",  "gone", "InProgress", false, "retry: VAC \"gone\" does not exist."),
        ("other", "",  "",     "",           false, other_driver),
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
    assert_eq!(decide("old", ABILITIES, Some("fast"), None, infeasible.clone()), "wait for retry");
    assert_eq!(decide("old", ABILITIES, Some("slow"), None, infeasible.clone()), "mark fast");
    let unable = decide("old", ResizerAbilities::default(), None, None, infeasible);
    assert_eq!(unable, "reject: driver drv does not support modification");
    let running = || claim("fast", "old", "fast", "InProgress");
    let unmarked = with(running(), &json!({"status": {"conditions": []}}));
    assert_eq!(decide("old", ABILITIES, None, None, unmarked), "mark fast");
    assert_eq!(decide("old", ABILITIES, None, Some(("a-uid", "fast")), running()), "record v fast");
    assert_eq!(decide("fast", ABILITIES, None, Some(("a-uid", "fast")), running()), "finish fast");
    let of_other_claim = decide("old", ABILITIES, None, Some(("another", "fast")), running());
    assert!(
        of_other_claim.starts_with("modify "),
        "{of_other_claim}: the response belongs to an earlier claim of the same name"
    );
    // After a successful call the class is not read again: it may be deleted by then.
    let deleted_class = claim("gone", "old", "gone", "InProgress");
    assert_eq!(decide("gone", ABILITIES, None, Some(("a-uid", "gone")), deleted_class), "finish gone");
    let unbound = with(running(), &json!({"spec": {"volumeName": null}}));
    assert_eq!(decide("old", ABILITIES, None, None, unbound), "no action: the claim is not bound");
}

#[test]
fn the_modification_of_an_in_tree_volume_is_rejected() {
    let decide = |claim: Value| {
        let cache = Cache::default();
        put::<Volume>(
            &cache,
            &json!({
                "metadata": {"name": "v", "uid": "v-uid", "resourceVersion": "5"},
                "spec": {
                    "claimRef": {"namespace": "ns", "name": "a", "uid": "a-uid"},
                    "cinder": {"volumeID": "x"},
                },
            }),
        );
        let input = ModificationInput {
            cache: &cache,
            abilities: ABILITIES,
            is_last_call_final: false,
            infeasible: None,
            pending_reported: None,
            completed: None,
        };
        describe(decide_modification(input, &read(&claim)))
    };
    assert_eq!(
        decide(claim("fast", "", "", "")),
        "reject: PersistentVolume v belongs to an in-tree plugin that is migrated to \
         cinder.csi.openstack.org: this version of Cofferdam does not modify such volumes"
    );
    assert_eq!(decide(claim("", "", "", "")), "no action: the PersistentVolume has no spec.csi");
}

#[test]
fn storage_errors_are_classified() {
    use ErrorKind as E;
    assert_eq!(
        classify_failure(&StorageError::with_known_effect(E::InvalidArgument, "")),
        ResizeFailure::Infeasible
    );
    assert_eq!(
        classify_failure(&StorageError::with_unknown_effect(E::InvalidArgument, "")),
        ResizeFailure::InDoubt
    );
    for kind in [E::NotFound, E::OutOfRange, E::Internal, E::FailedPrecondition] {
        assert_eq!(
            classify_failure(&StorageError::with_known_effect(kind, "")),
            ResizeFailure::Final,
            "{kind}"
        );
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
    assert!(is_relevant_change(Some(&infeasible), &old), "another client has removed the status");
}
