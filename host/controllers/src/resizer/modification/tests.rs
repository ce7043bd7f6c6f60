//! What modifying decides, case by case.

use cofferdam_cluster::{Cache, Kind, decode, writer::Cached};
use cofferdam_sim::objects::with;
use serde_json::{Value, json};

use super::*;

fn read<K: Kind>(json: &Value) -> K {
    decode::object(&json.to_string()).unwrap().unwrap()
}

fn put<K: Cached>(cache: &Cache, json: &Value) {
    K::table(cache).apply(decode::object(&json.to_string()).unwrap());
}

/// A claim with the class that it asks for, the one that it has, the one that it is to get and how far that is.
fn claim(wanted: &str, current: &str, target: &str, state: &str) -> Value {
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
        "spec": {"volumeName": "v", "volumeAttributesClassName": filled(wanted)},
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
        put::<AttributesClass>(
            &cache,
            &json!({
                "metadata": {"name": name, "uid": name, "resourceVersion": "5"},
                "driverName": driver, "parameters": {"name": name},
            }),
        );
    }
    cache
}

fn says(verdict: Verdict) -> String {
    match verdict {
        Verdict::Settled(why) => format!("settled: {why}"),
        Verdict::Slow => "slow".to_owned(),
        Verdict::Cancel => "cancel".to_owned(),
        Verdict::Pend(target, problem) => format!("pend {target}: {problem}"),
        Verdict::Refuse(problem) => format!("refuse: {problem}"),
        Verdict::Hopeless(problem) => format!("hopeless: {problem}"),
        Verdict::Begin(target) => format!("begin {target}"),
        Verdict::Modify(modify) => {
            format!("modify {} {} {:?}", modify.handle, modify.target, modify.parameters)
        }
        Verdict::Record(volume, target) => format!("record {} {target}", volume.name),
        Verdict::Finish(target) => format!("finish {target}"),
    }
}

const ABLE: Able = Able { expands: false, modifies: true, tells_writers: false };

#[test]
fn the_class_is_chosen_as_the_sidecar_chooses_it() {
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
    for (wanted, current, target, state, closed, expected) in table {
        let cache = cache("old");
        let view = View { cache: &cache, able: ABLE, closed, slow: None, told: Some("gone"), modified: None };
        let found = says(modification(view, &read(&claim(wanted, current, target, state))));
        assert_eq!(found, expected, "{wanted} {current} {target} {state} {closed}");
    }
}

#[test]
fn what_hinders_a_call_and_what_follows_one() {
    let decide = |class: &str, able, slow, modified: Option<(&str, &'static str)>, claim: Value| {
        let cache = cache(class);
        let modified = modified.map(|(uid, class)| (Uid::from(uid), class));
        let modified = modified.as_ref().map(|(uid, class)| (uid, *class));
        let view = View { cache: &cache, able, closed: false, slow, told: None, modified };
        says(modification(view, &read(&claim)))
    };
    let infeasible = claim("fast", "old", "fast", "Infeasible");
    assert_eq!(decide("old", ABLE, Some("fast"), None, infeasible.clone()), "slow");
    assert_eq!(decide("old", ABLE, Some("slow"), None, infeasible.clone()), "begin fast");
    let unable = decide("old", Able::default(), None, None, infeasible);
    assert_eq!(unable, "hopeless: driver drv does not modify volumes");
    let running = || claim("fast", "old", "fast", "InProgress");
    let unmarked = with(running(), &json!({"status": {"conditions": []}}));
    assert_eq!(decide("old", ABLE, None, None, unmarked), "begin fast");
    assert_eq!(decide("old", ABLE, None, Some(("a-uid", "fast")), running()), "record v fast");
    assert_eq!(decide("fast", ABLE, None, Some(("a-uid", "fast")), running()), "finish fast");
    let of_another = decide("old", ABLE, None, Some(("another", "fast")), running());
    assert!(
        of_another.starts_with("modify "),
        "{of_another}: the answer is for the claim, not for a successor of its name"
    );
    // The class may be gone by then.
    let gone = claim("gone", "old", "gone", "InProgress");
    assert_eq!(decide("gone", ABLE, None, Some(("a-uid", "gone")), gone), "finish gone");
    let away = with(running(), &json!({"spec": {"volumeName": null}}));
    assert_eq!(decide("old", ABLE, None, None, away), "settled: it is not bound");
}

#[test]
fn failures() {
    use ErrorKind as E;
    assert_eq!(failure(&StorageError::last(E::InvalidArgument, "")), Failure::Infeasible);
    assert_eq!(failure(&StorageError::unknown(E::InvalidArgument, "")), Failure::Open);
    for kind in [E::NotFound, E::OutOfRange, E::Internal, E::FailedPrecondition] {
        assert_eq!(failure(&StorageError::last(kind, "")), Failure::Closed, "{kind}");
    }
}

#[test]
fn what_we_write_ourselves_does_not_end_a_back_off() {
    let old: Claim = read(&claim("fast", "old", "", ""));
    let wakes = |new: Value| matters(Some(&old), &read(&new));
    assert!(matters(None, &old) && !wakes(claim("fast", "old", "", "")));
    for state in ["Pending", "InProgress", "Infeasible"] {
        assert!(!wakes(claim("fast", "old", "fast", state)), "{state}");
    }
    assert!(wakes(claim("slow", "old", "", "")) && wakes(claim("fast", "fast", "", "")));
    let infeasible: Claim = read(&claim("fast", "old", "fast", "Infeasible"));
    assert!(matters(Some(&infeasible), &old), "somebody took the status away");
}
