//! What growing decides, case by case, and against a model.

use cofferdam_cluster::{Kind, decode, writer::Cached};
use cofferdam_domain::{Pod, storage::CapabilityMode};
use cofferdam_sim::objects::with;
use serde_json::{Value, json};

use super::*;
use crate::resizer::object;

const GIB: u64 = 1 << 30;

fn read<K: Kind>(json: &Value) -> K {
    decode::object(&json.to_string()).unwrap().unwrap()
}

/// A bound claim of 1 GiB.
fn claim_json() -> Value {
    json!({
        "metadata": {"name": "a", "namespace": "ns", "uid": "a-uid", "resourceVersion": "5"},
        "spec": {"volumeName": "v", "resources": {"requests": {"storage": "1Gi"}}},
        "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}},
    })
}

fn volume_json() -> Value {
    json!({
        "metadata": {"name": "v", "uid": "v-uid", "resourceVersion": "5"},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"},
            "claimRef": {"namespace": "ns", "name": "a", "uid": "a-uid"},
            "csi": {"driver": "drv", "volumeHandle": "h", "fsType": "xfs"},
        },
    })
}

fn asks(size: &str) -> Value {
    json!({"spec": {"resources": {"requests": {"storage": size}}}})
}

/// What stands in the status before the driver is asked.
fn begun(size: &str, state: &str) -> Value {
    json!({"status": {
        "allocatedResources": {"storage": size}, "allocatedResourceStatuses": {"storage": state},
        "conditions": [{"type": "Resizing", "status": "True"}],
    }})
}

fn sized(size: &str) -> Value {
    json!({"spec": {"capacity": {"storage": size}}})
}

#[derive(Clone)]
struct World {
    claim: Value,
    volume: Value,
    pod: Option<Value>,
    able: Able,
    known: Known,
    grown: Option<Grown>,
}

impl World {
    fn new() -> Self {
        let able = Able { expands: true, ..Able::default() };
        Self {
            claim: claim_json(),
            volume: volume_json(),
            pod: None,
            able,
            known: Known::default(),
            grown: None,
        }
    }

    fn claim(self, change: &Value) -> Self {
        Self { claim: with(self.claim, change), ..self }
    }

    fn volume(self, change: &Value) -> Self {
        Self { volume: with(self.volume, change), ..self }
    }

    fn known(self, known: Known) -> Self {
        Self { known, ..self }
    }

    fn decide(&self) -> Verdict {
        let cache = Cache::default();
        put::<Volume>(&cache, &self.volume);
        self.pod.iter().for_each(|pod| put::<Pod>(&cache, pod));
        let view = View { cache: &cache, able: self.able, known: self.known, grown: self.grown.as_ref() };
        growth(view, &read(&self.claim))
    }

    fn says(&self) -> String {
        match self.decide() {
            Verdict::Settled(why) => format!("settled: {why}"),
            Verdict::Forget(volume) => format!("forget {}", volume.name),
            Verdict::Slow => "slow".to_owned(),
            Verdict::Refuse(problem) => format!("refuse: {problem}"),
            Verdict::Hopeless(problem) => format!("hopeless: {problem}"),
            Verdict::Begin(Begin { target, anew }) => {
                format!("begin {target}{}", if anew { "" } else { " again" })
            }
            Verdict::Expand(expand) => format!("expand {}", expand.target),
            Verdict::Enlarge(Enlarge { size, before, .. }) => {
                let text = |size: Option<Quantity>| size.map_or("-".to_owned(), |size| size.to_string());
                format!("enlarge {} was {}", text(size), text(before))
            }
            Verdict::HandOver => "hand over".to_owned(),
            Verdict::Finish(size) => format!("finish {size}"),
        }
    }
}

fn put<K: Cached>(cache: &Cache, json: &Value) {
    K::table(cache).apply(decode::object(&json.to_string()).unwrap());
}

#[test]
fn the_size_is_chosen_as_the_sidecar_chooses_it() {
    let last = |finality| Known { last: Some(finality), ..Known::default() };
    let (fresh, closed, open) = (Known::default(), last(Finality::Final), last(Finality::Unknown));
    let stop = "settled: the node has to do its part";
    #[rustfmt::skip] // one row a case: state, allocated, size of the volume; the claim asks for 3Gi
    let table = [
        ("",                           "",    "1Gi", fresh,  "begin 3Gi"),
        ("",                           "2Gi", "1Gi", fresh,  "begin 3Gi"),
        ("NodeResizeInfeasible",       "2Gi", "2Gi", fresh,  "expand 2Gi"),
        ("NodeResizeInfeasible",       "",    "2Gi", fresh,  "begin 3Gi"),
        ("NodeResizePending",          "2Gi", "2Gi", fresh,  stop),
        ("NodeResizePending",          "2Gi", "1Gi", fresh,  "expand 2Gi"),
        ("NodeResizeInProgress",       "2Gi", "2Gi", fresh,  stop),
        ("ControllerResizeInProgress", "2Gi", "1Gi", fresh,  "expand 2Gi"),
        ("ControllerResizeInProgress", "2Gi", "1Gi", open,   "expand 2Gi"),
        ("ControllerResizeInProgress", "2Gi", "1Gi", closed, "begin 3Gi"),
        ("ControllerResizeInfeasible", "2Gi", "1Gi", fresh,  "begin 3Gi"),
        ("ControllerResizeInfeasible", "2Gi", "1Gi", closed, "begin 3Gi"),
        // Another try of what was infeasible may have done something.
        ("ControllerResizeInfeasible", "2Gi", "1Gi", open,   "expand 2Gi"),
        // The volume's object is large enough.
        ("NodeResizeInProgress",       "3Gi", "3Gi", fresh,  stop),
        ("NodeResizePending",          "3Gi", "4Gi", fresh,  stop),
        ("NodeResizeInfeasible",       "3Gi", "3Gi", fresh,  "expand 3Gi"),
        ("ControllerResizeInProgress", "3Gi", "3Gi", fresh,  "expand 3Gi"),
        ("ControllerResizeInProgress", "4Gi", "4Gi", closed, "expand 4Gi"),
        ("ControllerResizeInfeasible", "4Gi", "4Gi", fresh,  "expand 4Gi"),
        ("",                           "2Gi", "4Gi", fresh,  "begin 2Gi"),
        ("",                           "",    "4Gi", fresh,  "begin 3Gi"),
        // A size that the claim has is of an earlier growth.
        ("",                           "1Gi", "4Gi", fresh,  "begin 3Gi"),
        ("ControllerResizeInProgress", "1Gi", "1Gi", fresh,  "begin 3Gi"),
    ];
    for (state, allocated, size, known, expected) in table {
        let status = json!({"status": {
            "allocatedResources": if allocated.is_empty() { json!(null) } else { json!({"storage": allocated}) },
            "allocatedResourceStatuses": if state.is_empty() { json!(null) } else { json!({"storage": state}) },
            "conditions": [{"type": "Resizing", "status": "True"}],
        }});
        let world = World::new().claim(&asks("3Gi")).claim(&status).volume(&sized(size)).known(known);
        assert_eq!(world.says(), expected, "{state} {allocated} {size} {known:?}");
    }
    let pending = json!({"status": {"conditions": [{"type": "FileSystemResizePending", "status": "True"}]}});
    let world = World::new().claim(&asks("3Gi")).claim(&pending).volume(&sized("3Gi"));
    assert_eq!(world.says(), stop, "handed over by one that knew no states");
}

#[test]
fn what_is_no_growth_of_ours() {
    let grows = || World::new().claim(&asks("2Gi"));
    #[rustfmt::skip] // one row a case
    let table: [(World, &str); 15] = [
        (World::new(), "settled: it has the size that it asks for"),
        (World::new().claim(&asks("512Mi")), "settled: it has the size that it asks for"),
        (grows().claim(&json!({"status": {"phase": "Lost"}})), "settled: it is not bound"),
        (grows().claim(&json!({"spec": {"volumeName": null}})), "settled: it is not bound"),
        (grows().claim(&json!({"spec": {"volumeName": "w"}})), "settled: its volume is not there"),
        (grows().volume(&json!({"spec": {"claimRef": {"uid": "other"}}})), "settled: its volume is not bound to it"),
        (grows().volume(&json!({"spec": {"claimRef": {"uid": null}}})), "settled: its volume is not bound to it"),
        (grows().volume(&json!({"spec": {"csi": null}})), "settled: its volume is of no CSI driver"),
        (World { able: Able::default(), ..grows() }, "hopeless: driver drv does not expand volumes"),
        (grows().claim(&asks("9Ei")),
            "hopeless: spec.resources.requests.storage is 9Ei: expected at most 9223372036854775807 bytes"),
        (grows().claim(&asks("1e99")),
            "hopeless: spec.resources.requests.storage: quantity \"1e99\" is too large: expected at most 2^127 bytes"),
        (grows().volume(&json!({"spec": {"accessModes": ["ReadWriteOnce", "ReadOnlyMany"]}})),
            "refuse: PersistentVolume v: spec.accessModes has ReadOnlyMany and ReadWriteOnce: expected one of them, or ReadWriteMany"),
        (grows(), "begin 2Gi"),
        (World::new().volume(&json!({"metadata": {"annotations": {names::PRE_RESIZE_CAPACITY: "512Mi"}}})), "forget v"),
        (grows().volume(&json!({
            "metadata": {"annotations": {names::PRE_RESIZE_CAPACITY: "1Gi"}}, "spec": {"capacity": {"storage": "2Gi"}},
        })), "begin 2Gi"),
    ];
    for (world, expected) in table {
        assert_eq!(world.says(), expected);
    }
}

#[test]
fn one_effect_after_the_other_up_to_the_answer() {
    let world = World::new().claim(&asks("2Gi")).claim(&begun("2Gi", "ControllerResizeInProgress"));
    let Verdict::Expand(expand) = world.decide() else { panic!("{}", world.says()) };
    assert_eq!(expand.request.handle.as_str(), "h");
    assert_eq!(expand.request.capacity, CapacityRange { required: Some(2 * GIB), limit: None });
    assert_eq!(expand.request.capability.unwrap().mode, CapabilityMode::SingleNodeWriter);
    let not_required = json!({"metadata": {"annotations": {names::NODE_EXPANSION_NOT_REQUIRED: "true"}}});
    assert_eq!(
        world.clone().claim(&not_required).says(),
        "begin 2Gi again",
        "the node may have to do its part"
    );
    let unmarked = json!({"status": {"conditions": []}});
    assert_eq!(world.clone().claim(&unmarked).says(), "begin 2Gi again");

    let answer = |capacity, node_expansion| Grown {
        claim: "a-uid".into(),
        target: Quantity::from_bytes(2 * GIB),
        volume: ExpandedVolume { capacity, node_expansion },
    };
    let with_answer = |capacity, node| World { grown: Some(answer(capacity, node)), ..world.clone() };
    let noted = json!({"metadata": {"annotations": {names::PRE_RESIZE_CAPACITY: "1Gi"}}});
    let large = |world: World, size: &str| world.volume(&sized(size));
    #[rustfmt::skip] // one row a case
    let table = [
        (with_answer(2 * GIB, false),                             "enlarge 2Gi was -"),
        (large(with_answer(2 * GIB, false), "2Gi"),               "finish 2Gi"),
        (with_answer(2 * GIB, true),                              "enlarge 2Gi was 1Gi"),
        (large(with_answer(2 * GIB, true), "2Gi"),                "enlarge - was 1Gi"),
        (large(with_answer(2 * GIB, true), "2Gi").volume(&noted), "hand over"),
        (with_answer(4 * GIB, false),                             "enlarge 4Gi was -"),
        // The object is never made smaller.
        (large(with_answer(2 * GIB, false), "8Gi"),               "finish 2Gi"),
        // An answer to what is not asked for any more is none.
        (with_answer(2 * GIB, false).claim(&asks("3Gi")).known(Known { last: Some(Finality::Final), ..Known::default() }),
                                                                  "begin 3Gi"),
    ];
    for (world, expected) in table {
        assert_eq!(world.says(), expected);
    }
    let of_another =
        World { grown: Some(Grown { claim: "another".into(), ..answer(2 * GIB, false) }), ..world };
    assert_eq!(
        of_another.says(),
        "expand 2Gi",
        "the answer is for the claim, not for a successor of its name"
    );
}

#[test]
fn what_hinders_a_call() {
    let world = || World::new().claim(&asks("2Gi")).claim(&begun("2Gi", "ControllerResizeInfeasible"));
    let slow = Known { slow: true, ..Known::default() };
    assert_eq!(world().known(slow).says(), "slow");
    assert_eq!(world().known(slow).claim(&asks("3Gi")).says(), "begin 3Gi", "another size is another matter");
    let in_use = Known { in_use: true, ..Known::default() };
    let pod = |phase: &str| {
        json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": "p-uid", "resourceVersion": "5"},
            "spec": {"volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "a"}}]},
            "status": {"phase": phase},
        })
    };
    let used = |phase| World { pod: Some(pod(phase)), ..world().known(in_use) };
    assert_eq!(
        used("Running").says(),
        "refuse: driver drv does not expand a volume that is in use, and pod ns/p uses it"
    );
    assert_eq!(used("Succeeded").says(), "expand 2Gi");
    assert_eq!(
        World { known: Known::default(), ..used("Running") }.says(),
        "expand 2Gi",
        "it was not asked yet"
    );
}

#[test]
fn failures() {
    use ErrorKind as E;
    for kind in [E::InvalidArgument, E::OutOfRange, E::NotFound] {
        assert_eq!(failure(&StorageError::last(kind, "")), Failure::Infeasible, "{kind}");
        assert_eq!(failure(&StorageError::unknown(kind, "")), Failure::Open, "{kind}");
    }
    for kind in [E::FailedPrecondition, E::Internal, E::ResourceExhausted, E::PermissionDenied] {
        assert_eq!(failure(&StorageError::last(kind, "")), Failure::Closed, "{kind}");
    }
    let answer = |capacity| ExpandedVolume { capacity, node_expansion: false };
    let target = Quantity::from_bytes(2 * GIB);
    assert_eq!(large_enough(target, answer(2 * GIB)), Ok(()));
    let said = "the driver has made the volume 1Gi large: expected at least 2Gi";
    assert_eq!(large_enough(target, answer(GIB)), Err(said.to_owned()));
}

#[test]
fn what_we_write_ourselves_does_not_end_a_back_off() {
    let claim = |change: &Value| read::<Claim>(&with(with(claim_json(), &asks("2Gi")), change));
    let old = claim(&json!({}));
    let wakes = |change: &Value| matters(Some(&old), &claim(change));
    assert!(matters(None, &old) && !wakes(&json!({})));
    for state in ["ControllerResizeInProgress", "ControllerResizeInfeasible", "NodeResizePending"] {
        assert!(!wakes(&begun("2Gi", state)), "{state}");
    }
    assert!(wakes(&begun("2Gi", "NodeResizeInfeasible")));
    assert!(wakes(&asks("3Gi")) && wakes(&asks("1Gi")));
    assert!(wakes(&json!({"status": {"capacity": {"storage": "2Gi"}}})));
    assert!(wakes(&json!({"status": {"phase": "Lost"}})));
    assert!(wakes(&json!({"metadata": {"uid": "another"}})));
}

/// A small generator, so that a failure can be played again by its seed.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: u64) -> u64 {
        // Knuth's constants for a linear congruence.
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// A merge patch and a strategic one with conditions, as the API applies them to what the model keeps.
fn apply(claim: &mut Value, mut patch: Value) {
    let conditions = patch.pointer_mut("/status").and_then(|s| s.as_object_mut()?.remove("conditions"));
    *claim = with(claim.take(), &patch);
    strip(claim);
    let there = claim.pointer("/status/conditions").and_then(Value::as_array).cloned().unwrap_or_default();
    let mut there: Vec<Value> = there;
    for change in conditions.and_then(|c| c.as_array().cloned()).unwrap_or_default() {
        there.retain(|one| one["type"] != change["type"]);
        if change["$patch"] != "delete" {
            there.push(change);
        }
    }
    claim["status"]["conditions"] = json!(there);
}

/// Takes what is null away.
fn strip(value: &mut Value) {
    if let Some(map) = value.as_object_mut() {
        map.retain(|_, member| !member.is_null());
        map.values_mut().for_each(strip);
    }
}

/// The model: an array with one volume, whose size only grows, and calls with open outcomes.
#[test]
fn whatever_happens_nothing_shrinks_and_all_comes_to_rest() {
    for seed in 1..=3000 {
        let mut chance = Chance(seed);
        let mut world = World::new();
        let mut real = GIB;
        // What may still take effect at the array, as the contract with drivers has it.
        let mut open: Option<u64> = None;
        let on_node = chance.below(2) == 0;
        let (mut sizes, mut steps) = ((GIB, GIB), 0);
        let mut troubles: u32 = 6;
        loop {
            steps += 1;
            assert!(steps < 400, "seed {seed} does not come to rest: {}", world.says());
            if troubles > 0 && chance.below(4) == 0 {
                troubles -= 1;
                match chance.below(4) {
                    // A user grows it, or takes back what is not there yet, as the API lets them.
                    0 | 1 => {
                        let least = size(&world.claim, "/status/capacity/storage") / GIB;
                        let wanted = least + 1 + chance.below(5);
                        world = world.claim(&asks(&format!("{wanted}Gi")));
                    }
                    // The process dies.
                    2 => (world.known, world.grown) = (Known::default(), None),
                    // Somebody enlarges the volume's object by hand.
                    _ => {
                        let larger = size(&world.volume, "/spec/capacity/storage") + GIB;
                        real = real.max(larger);
                        world = world.volume(&sized(&Quantity::from_bytes(larger).to_string()));
                    }
                }
            }
            let claim: Claim = read(&world.claim);
            let now = jiff::Timestamp::UNIX_EPOCH;
            match world.decide() {
                Verdict::Settled(_) => {
                    let state = claim.progress().resize;
                    if state == Some(ResizeState::NodePending) {
                        let infeasible = troubles > 0 && chance.below(3) == 0;
                        let patch = match infeasible {
                            true => {
                                json!({"status": {"allocatedResourceStatuses": {"storage": "NodeResizeInfeasible"}}})
                            }
                            // kubelet's: all conditions of the growth go.
                            false => json!({"status": {
                                "capacity": {"storage": claim.progress().allocated.unwrap().to_string()},
                                "allocatedResourceStatuses": {"storage": null}, "conditions":
                                    ConditionKind::OF_GROWTH
                                        .map(|kind| json!({"type": kind.as_str(), "$patch": "delete"})),
                            }}),
                        };
                        apply(&mut world.claim, patch);
                    } else if troubles == 0 {
                        break;
                    } else {
                        troubles -= 1;
                    }
                }
                Verdict::Forget(_) => {
                    world = world.volume(&json!({"metadata": {"annotations": null}}));
                }
                Verdict::Slow => world.known.slow = false,
                Verdict::Refuse(problem) | Verdict::Hopeless(problem) => panic!("seed {seed}: {problem}"),
                Verdict::Begin(begin) => apply(&mut world.claim, object::begun(&claim, now, begin)),
                Verdict::Expand(expand) => {
                    let asked = expand.request.capacity.required.unwrap();
                    assert!(
                        open.is_none_or(|open| open == asked),
                        "seed {seed}: {asked} while {open:?} is open"
                    );
                    let kind = if troubles > 0 { chance.below(5) } else { 9 };
                    troubles = troubles.saturating_sub(u32::from(kind < 4));
                    match kind {
                        0 => (open, world.known.last) = (Some(asked), Some(Finality::Unknown)),
                        1 => {
                            real = real.max(asked);
                            (open, world.known.last) = (Some(asked), Some(Finality::Unknown));
                        }
                        2 if open.is_none() => {
                            let patch = object::failed(
                                &claim,
                                now,
                                &StorageError::last(ErrorKind::OutOfRange, "no"),
                                true,
                            );
                            patch.into_iter().for_each(|patch| apply(&mut world.claim, patch));
                            world.known = Known { last: Some(Finality::Final), slow: true, ..world.known };
                        }
                        3 if open.is_none() => {
                            let patch = object::failed(
                                &claim,
                                now,
                                &StorageError::last(ErrorKind::Internal, "no"),
                                false,
                            );
                            patch.into_iter().for_each(|patch| apply(&mut world.claim, patch));
                            world.known.last = Some(Finality::Final);
                        }
                        _ => {
                            open = None;
                            real = real.max(asked);
                            let volume = ExpandedVolume { capacity: real, node_expansion: on_node };
                            world.grown =
                                Some(Grown { claim: claim.meta.uid.clone(), target: expand.target, volume });
                        }
                    }
                }
                Verdict::Enlarge(enlarge) => world = world.volume(&object::enlarged(&enlarge)),
                Verdict::HandOver => {
                    apply(&mut world.claim, object::handed_over(&claim, now));
                    world.known = Known { last: None, ..world.known };
                }
                Verdict::Finish(size) => {
                    apply(&mut world.claim, object::finished(&claim, now, size));
                    world.known = Known { last: None, ..world.known };
                }
            }
            let found = (
                size(&world.claim, "/status/capacity/storage"),
                size(&world.volume, "/spec/capacity/storage"),
            );
            assert!(found.0 >= sizes.0 && found.1 >= sizes.1, "seed {seed}: {sizes:?} became {found:?}");
            assert!(found.0 <= real, "seed {seed}: {} are promised, and {real} are there", found.0);
            sizes = found;
        }
        let wanted = size(&world.claim, "/spec/resources/requests/storage");
        assert!(sizes.0 >= wanted, "seed {seed}: {} of {wanted}", sizes.0);
        let claim: Claim = read(&world.claim);
        assert_eq!((claim.progress().resize, &*claim.progress().conditions), (None, &[][..]), "seed {seed}");
    }
}

fn size(object: &Value, pointer: &str) -> u64 {
    let text = object.pointer(pointer).and_then(Value::as_str).unwrap();
    Quantity::parse(text).unwrap().to_csi_bytes().unwrap()
}
