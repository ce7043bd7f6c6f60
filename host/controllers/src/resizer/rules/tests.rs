//! Tests of the expansion rules, case by case and against a model.

use cofferdam_cluster::{Kind, decode, writer::CachedKind};
use cofferdam_domain::{Pod, storage::CsiAccessMode};
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

fn spec_request(size: &str) -> Value {
    json!({"spec": {"resources": {"requests": {"storage": size}}}})
}

/// The claim's status before the driver is called.
fn in_progress(size: &str, state: &str) -> Value {
    json!({"status": {
        "allocatedResources": {"storage": size}, "allocatedResourceStatuses": {"storage": state},
        "conditions": [{"type": "Resizing", "status": "True"}],
    }})
}

fn spec_capacity(size: &str) -> Value {
    json!({"spec": {"capacity": {"storage": size}}})
}

#[derive(Clone)]
struct ExpansionFixture {
    claim: Value,
    volume: Value,
    pod: Option<Value>,
    abilities: ResizerAbilities,
    annotates_size: bool,
    last_expansion: LastExpansion,
    result: Option<ExpansionResult>,
}

impl ExpansionFixture {
    fn new() -> Self {
        let abilities = ResizerAbilities { expands: true, ..ResizerAbilities::default() };
        Self {
            claim: claim_json(),
            volume: volume_json(),
            pod: None,
            abilities,
            annotates_size: true,
            last_expansion: LastExpansion::default(),
            result: None,
        }
    }

    fn claim(self, change: &Value) -> Self {
        Self { claim: with(self.claim, change), ..self }
    }

    fn volume(self, change: &Value) -> Self {
        Self { volume: with(self.volume, change), ..self }
    }

    fn last_expansion(self, last_expansion: LastExpansion) -> Self {
        Self { last_expansion, ..self }
    }

    fn decide(&self) -> ExpansionVerdict {
        let cache = Cache::default();
        put::<Volume>(&cache, &self.volume);
        self.pod.iter().for_each(|pod| put::<Pod>(&cache, pod));
        let input = ExpansionInput {
            annotates_size: self.annotates_size,
            cache: &cache,
            abilities: self.abilities,
            last_expansion: self.last_expansion,
            result: self.result.as_ref(),
        };
        decide_expansion(input, &read(&self.claim))
    }

    fn describe(&self) -> String {
        match self.decide() {
            ExpansionVerdict::NoAction(reason) => format!("no action: {reason}"),
            ExpansionVerdict::RemovePreResizeCapacity(volume) => {
                format!("remove pre-resize capacity of {}", volume.name)
            }
            ExpansionVerdict::WaitForRetry => "wait for retry".to_owned(),
            ExpansionVerdict::Retry(problem) => format!("retry: {problem}"),
            ExpansionVerdict::Reject(problem) => format!("reject: {problem}"),
            ExpansionVerdict::MarkInProgress(InProgressUpdate { target, is_new }) => {
                format!("mark {target}{}", if is_new { "" } else { " again" })
            }
            ExpansionVerdict::Expand(expand) => format!("expand {}", expand.target),
            ExpansionVerdict::UpdateVolumeCapacity(CapacityUpdate { size, pre_resize_capacity, .. }) => {
                let text = |size: Option<Quantity>| size.map_or("-".to_owned(), |size| size.to_string());
                format!("resize to {} from {}", text(size), text(pre_resize_capacity))
            }
            ExpansionVerdict::MarkNodePending => "node pending".to_owned(),
            ExpansionVerdict::MarkFinished(size) => format!("finish {size}"),
        }
    }
}

fn put<K: CachedKind>(cache: &Cache, json: &Value) {
    K::store(cache).apply(decode::object(&json.to_string()).unwrap());
}

#[test]
fn the_target_size_matches_external_resizer() {
    let last = |finality| LastExpansion { finality: Some(finality), ..LastExpansion::default() };
    let (unknown, final_result, in_doubt) =
        (LastExpansion::default(), last(Finality::Final), last(Finality::Unknown));
    let waits_for_node = "no action: waiting for the node to expand the volume";
    #[rustfmt::skip] // one row per case: state, allocated and volume size; the claim requests 3Gi
    let table = [
        ("",                           "",    "1Gi", unknown,  "mark 3Gi"),
        ("",                           "2Gi", "1Gi", unknown,  "mark 3Gi"),
        ("NodeResizeInfeasible",       "2Gi", "2Gi", unknown,  "expand 2Gi"),
        ("NodeResizeInfeasible",       "",    "2Gi", unknown,  "mark 3Gi"),
        ("NodeResizePending",          "2Gi", "2Gi", unknown,  waits_for_node),
        ("NodeResizePending",          "2Gi", "1Gi", unknown,  "expand 2Gi"),
        ("NodeResizeInProgress",       "2Gi", "2Gi", unknown,  waits_for_node),
        ("ControllerResizeInProgress", "2Gi", "1Gi", unknown,  "expand 2Gi"),
        ("ControllerResizeInProgress", "2Gi", "1Gi", in_doubt,   "expand 2Gi"),
        ("ControllerResizeInProgress", "2Gi", "1Gi", final_result, "mark 3Gi"),
        ("ControllerResizeInfeasible", "2Gi", "1Gi", unknown,  "mark 3Gi"),
        ("ControllerResizeInfeasible", "2Gi", "1Gi", final_result, "mark 3Gi"),
        // A retry of an infeasible size may have taken effect.
        ("ControllerResizeInfeasible", "2Gi", "1Gi", in_doubt,   "expand 2Gi"),
        // The PersistentVolume is large enough.
        ("NodeResizeInProgress",       "3Gi", "3Gi", unknown,  waits_for_node),
        ("NodeResizePending",          "3Gi", "4Gi", unknown,  waits_for_node),
        ("NodeResizeInfeasible",       "3Gi", "3Gi", unknown,  "expand 3Gi"),
        ("ControllerResizeInProgress", "3Gi", "3Gi", unknown,  "expand 3Gi"),
        ("ControllerResizeInProgress", "4Gi", "4Gi", final_result, "expand 4Gi"),
        ("ControllerResizeInfeasible", "4Gi", "4Gi", unknown,  "expand 4Gi"),
        ("",                           "2Gi", "4Gi", unknown,  "mark 2Gi"),
        ("",                           "",    "4Gi", unknown,  "mark 3Gi"),
        // An allocated size that the claim has belongs to an earlier expansion.
        ("",                           "1Gi", "4Gi", unknown,  "mark 3Gi"),
        ("ControllerResizeInProgress", "1Gi", "1Gi", unknown,  "mark 3Gi"),
    ];
    for (state, allocated, size, last_expansion, expected) in table {
        let storage = |text: &str| if text.is_empty() { json!(null) } else { json!({"storage": text}) };
        let status = json!({"status": {
            "allocatedResources": storage(allocated), "allocatedResourceStatuses": storage(state),
            "conditions": [{"type": "Resizing", "status": "True"}],
        }});
        let fixture = ExpansionFixture::new()
            .claim(&spec_request("3Gi"))
            .claim(&status)
            .volume(&spec_capacity(size))
            .last_expansion(last_expansion);
        assert_eq!(fixture.describe(), expected, "{state} {allocated} {size} {last_expansion:?}");
    }
    let pending = json!({"status": {"conditions": [{"type": "FileSystemResizePending", "status": "True"}]}});
    let fixture =
        ExpansionFixture::new().claim(&spec_request("3Gi")).claim(&pending).volume(&spec_capacity("3Gi"));
    assert_eq!(fixture.describe(), waits_for_node, "handed to the node by a resizer without resize states");
}

#[test]
fn claims_that_need_no_expansion_or_cannot_expand() {
    let expanding = || ExpansionFixture::new().claim(&spec_request("2Gi"));
    let has_size = "no action: the claim has the requested size";
    let not_bound = "no action: the PersistentVolume is not bound to the claim";
    let in_tree = json!({"spec": {"csi": null, "awsElasticBlockStore": {"volumeID": "vol-1"}}});
    let unable = ExpansionFixture { abilities: ResizerAbilities::default(), ..expanding() };
    let completed = json!({"metadata": {"annotations": {names::PRE_RESIZE_CAPACITY: "512Mi"}}});
    #[rustfmt::skip] // one row per case
    let table: [(ExpansionFixture, &str); 18] = [
        (ExpansionFixture::new(), has_size),
        (ExpansionFixture::new().claim(&spec_request("512Mi")), has_size),
        (expanding().claim(&json!({"status": {"phase": "Lost"}})), "no action: the claim is not bound"),
        (expanding().claim(&json!({"spec": {"volumeName": null}})), "no action: the claim is not bound"),
        (expanding().claim(&json!({"spec": {"volumeName": "w"}})),
            "no action: the PersistentVolume does not exist"),
        (expanding().volume(&json!({"spec": {"claimRef": {"uid": "other"}}})), not_bound),
        (expanding().volume(&json!({"spec": {"claimRef": {"uid": null}}})), not_bound),
        (expanding().volume(&json!({"spec": {"csi": null}})),
            "no action: the PersistentVolume has no spec.csi"),
        (expanding().volume(&json!({"spec": {"csi": null, "nfs": {"server": "x"}}})),
            "no action: the PersistentVolume has no spec.csi"),
        (expanding().volume(&in_tree),
            "reject: PersistentVolume v belongs to an in-tree plugin that is migrated to ebs.csi.aws.com: \
             this version of Cofferdam does not expand such volumes"),
        (ExpansionFixture::new().volume(&in_tree), "no action: the PersistentVolume has no spec.csi"),
        (unable, "reject: driver drv does not support expansion"),
        (expanding().claim(&spec_request("9Ei")),
            "reject: spec.resources.requests.storage is 9Ei; expected at most 9223372036854775807 bytes"),
        (expanding().claim(&spec_request("1e99")),
            "reject: spec.resources.requests.storage: \
             quantity \"1e99\" is too large: expected at most 2^127 bytes"),
        (expanding().volume(&json!({"spec": {"accessModes": ["ReadWriteOnce", "ReadOnlyMany"]}})),
            "retry: PersistentVolume v: spec.accessModes has ReadOnlyMany and ReadWriteOnce; \
             expected one of them, or ReadWriteMany"),
        (expanding(), "mark 2Gi"),
        (ExpansionFixture::new().volume(&completed), "remove pre-resize capacity of v"),
        (expanding().volume(&json!({
            "metadata": {"annotations": {names::PRE_RESIZE_CAPACITY: "1Gi"}},
            "spec": {"capacity": {"storage": "2Gi"}},
        })), "mark 2Gi"),
    ];
    for (fixture, expected) in table {
        assert_eq!(fixture.describe(), expected);
    }
}

#[test]
fn expansion_steps_before_and_after_the_driver_call() {
    let fixture = ExpansionFixture::new()
        .claim(&spec_request("2Gi"))
        .claim(&in_progress("2Gi", "ControllerResizeInProgress"));
    let ExpansionVerdict::Expand(expand) = fixture.decide() else { panic!("{}", fixture.describe()) };
    assert_eq!(expand.request.handle.as_str(), "h");
    assert_eq!(expand.request.capacity, CapacityRange { required: Some(2 * GIB), limit: None });
    assert_eq!(expand.request.capability.unwrap().access_mode, CsiAccessMode::SingleNodeWriter);
    let not_required = json!({"metadata": {"annotations": {names::NODE_EXPANSION_NOT_REQUIRED: "true"}}});
    assert_eq!(
        fixture.clone().claim(&not_required).describe(),
        "mark 2Gi again",
        "the node may have to expand the volume"
    );
    let unmarked = json!({"status": {"conditions": []}});
    assert_eq!(fixture.clone().claim(&unmarked).describe(), "mark 2Gi again");

    let response = |capacity, node_expansion| ExpansionResult {
        claim: "a-uid".into(),
        target: Quantity::from_bytes(2 * GIB),
        volume: ExpandedVolume { capacity, node_expansion_required: node_expansion },
    };
    let with_response =
        |capacity, node| ExpansionFixture { result: Some(response(capacity, node)), ..fixture.clone() };
    let with_pre_resize_capacity = json!({"metadata": {"annotations": {names::PRE_RESIZE_CAPACITY: "1Gi"}}});
    let final_error = LastExpansion { finality: Some(Finality::Final), ..LastExpansion::default() };
    let large = |fixture: ExpansionFixture, size: &str| fixture.volume(&spec_capacity(size));
    #[rustfmt::skip] // one row per case
    let table = [
        (with_response(2 * GIB, false),                             "resize to 2Gi from -"),
        (large(with_response(2 * GIB, false), "2Gi"),               "finish 2Gi"),
        (with_response(2 * GIB, true),                              "resize to 2Gi from 1Gi"),
        (large(with_response(2 * GIB, true), "2Gi"),                "resize to - from 1Gi"),
        (large(with_response(2 * GIB, true), "2Gi").volume(&with_pre_resize_capacity), "node pending"),
        (with_response(4 * GIB, false),                             "resize to 4Gi from -"),
        // The PersistentVolume never shrinks.
        (large(with_response(2 * GIB, false), "8Gi"),               "finish 2Gi"),
        // A response to an obsolete request is ignored.
        (with_response(2 * GIB, false).claim(&spec_request("3Gi")).last_expansion(final_error),
                                                                  "mark 3Gi"),
    ];
    for (fixture, expected) in table {
        assert_eq!(fixture.describe(), expected);
    }
    let without_annotation = ExpansionFixture { annotates_size: false, ..with_response(2 * GIB, true) };
    assert_eq!(without_annotation.clone().describe(), "resize to 2Gi from -", "AnnotateFsResize=false");
    assert_eq!(large(without_annotation, "2Gi").describe(), "node pending", "AnnotateFsResize=false");
    let of_other_claim = ExpansionFixture {
        result: Some(ExpansionResult { claim: "another".into(), ..response(2 * GIB, false) }),
        ..fixture
    };
    assert_eq!(
        of_other_claim.describe(),
        "expand 2Gi",
        "the response belongs to an earlier claim of the same name"
    );
}

#[test]
fn infeasible_sizes_and_running_pods_delay_the_call() {
    let fixture = || {
        ExpansionFixture::new()
            .claim(&spec_request("2Gi"))
            .claim(&in_progress("2Gi", "ControllerResizeInfeasible"))
    };
    let infeasible = LastExpansion { infeasible: true, ..LastExpansion::default() };
    assert_eq!(fixture().last_expansion(infeasible).describe(), "wait for retry");
    assert_eq!(
        fixture().last_expansion(infeasible).claim(&spec_request("3Gi")).describe(),
        "mark 3Gi",
        "another size is tried immediately"
    );
    let in_use = LastExpansion { in_use: true, ..LastExpansion::default() };
    let pod = |phase: &str| {
        json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": "p-uid", "resourceVersion": "5"},
            "spec": {"volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "a"}}]},
            "status": {"phase": phase},
        })
    };
    let used = |phase| ExpansionFixture { pod: Some(pod(phase)), ..fixture().last_expansion(in_use) };
    assert_eq!(
        used("Running").describe(),
        "retry: driver drv does not expand a volume in use: pod ns/p uses it"
    );
    assert_eq!(used("Succeeded").describe(), "expand 2Gi");
    assert_eq!(
        ExpansionFixture { last_expansion: LastExpansion::default(), ..used("Running") }.describe(),
        "expand 2Gi",
        "the driver was not called yet"
    );
}

#[test]
fn storage_errors_are_classified() {
    use ErrorKind as E;
    for kind in [E::InvalidArgument, E::OutOfRange, E::NotFound] {
        assert_eq!(
            classify_failure(&StorageError::with_known_effect(kind, "")),
            ResizeFailure::Infeasible,
            "{kind}"
        );
        assert_eq!(
            classify_failure(&StorageError::with_unknown_effect(kind, "")),
            ResizeFailure::InDoubt,
            "{kind}"
        );
    }
    for kind in [E::FailedPrecondition, E::Internal, E::ResourceExhausted, E::PermissionDenied] {
        assert_eq!(
            classify_failure(&StorageError::with_known_effect(kind, "")),
            ResizeFailure::Final,
            "{kind}"
        );
    }
    let response = |capacity| ExpandedVolume { capacity, node_expansion_required: false };
    let target = Quantity::from_bytes(2 * GIB);
    assert_eq!(check_capacity(target, response(2 * GIB)), Ok(()));
    let message = "the driver expanded the volume to 1Gi; expected at least 2Gi";
    assert_eq!(check_capacity(target, response(GIB)).unwrap_err().to_string(), message);
}

#[test]
fn own_status_updates_do_not_reset_the_backoff() {
    let claim = |change: &Value| read::<Claim>(&with(with(claim_json(), &spec_request("2Gi")), change));
    let old = claim(&json!({}));
    let is_relevant = |change: &Value| is_relevant_change(Some(&old), &claim(change));
    assert!(is_relevant_change(None, &old) && !is_relevant(&json!({})));
    for state in ["ControllerResizeInProgress", "ControllerResizeInfeasible", "NodeResizePending"] {
        assert!(!is_relevant(&in_progress("2Gi", state)), "{state}");
    }
    assert!(is_relevant(&in_progress("2Gi", "NodeResizeInfeasible")));
    assert!(is_relevant(&spec_request("3Gi")) && is_relevant(&spec_request("1Gi")));
    assert!(is_relevant(&json!({"status": {"capacity": {"storage": "2Gi"}}})));
    assert!(is_relevant(&json!({"status": {"phase": "Lost"}})));
    assert!(is_relevant(&json!({"metadata": {"uid": "another"}})));
}

/// A seeded generator. A failure is reproduced by its seed.
struct SeededRng(u64);

impl SeededRng {
    fn below(&mut self, bound: u64) -> u64 {
        // Knuth's constants of a linear congruential generator.
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// Applies a merge patch of the object and a strategic merge patch of its conditions, as the API server does.
fn apply(claim: &mut Value, mut patch: Value) {
    let conditions = patch.pointer_mut("/status").and_then(|s| s.as_object_mut()?.remove("conditions"));
    *claim = with(claim.take(), &patch);
    remove_nulls(claim);
    let existing = claim.pointer("/status/conditions").and_then(Value::as_array).cloned().unwrap_or_default();
    let mut existing: Vec<Value> = existing;
    for change in conditions.and_then(|c| c.as_array().cloned()).unwrap_or_default() {
        existing.retain(|condition| condition["type"] != change["type"]);
        if change["$patch"] != "delete" {
            existing.push(change);
        }
    }
    claim["status"]["conditions"] = json!(existing);
}

/// Removes null members.
fn remove_nulls(value: &mut Value) {
    if let Some(map) = value.as_object_mut() {
        map.retain(|_, member| !member.is_null());
        map.values_mut().for_each(remove_nulls);
    }
}

/// Model: an array with one volume that only grows. Random faults: failed calls, also with unknown results,
/// changes of the requested size, restarts of the process, an enlarged PersistentVolume, and failed
/// expansions on the node.
#[test]
fn random_faults_never_shrink_a_volume_and_always_converge() {
    for seed in 1..=3000 {
        let mut rng = SeededRng(seed);
        let mut fixture = ExpansionFixture::new();
        let mut array_size = GIB;
        // The size that may still take effect at the array.
        let mut in_doubt: Option<u64> = None;
        let on_node = rng.below(2) == 0;
        let (mut sizes, mut steps) = ((GIB, GIB), 0);
        let mut faults_left: u32 = 6;
        loop {
            steps += 1;
            assert!(steps < 400, "seed {seed} does not converge: {}", fixture.describe());
            if faults_left > 0 && rng.below(4) == 0 {
                faults_left -= 1;
                match rng.below(4) {
                    // A user changes the requested size, within the limits of the API.
                    0 | 1 => {
                        let least = size(&fixture.claim, "/status/capacity/storage") / GIB;
                        let requested = least + 1 + rng.below(5);
                        fixture = fixture.claim(&spec_request(&format!("{requested}Gi")));
                    }
                    // The process restarts.
                    2 => (fixture.last_expansion, fixture.result) = (LastExpansion::default(), None),
                    // An operator enlarges the PersistentVolume.
                    _ => {
                        let larger = size(&fixture.volume, "/spec/capacity/storage") + GIB;
                        array_size = array_size.max(larger);
                        fixture = fixture.volume(&spec_capacity(&Quantity::from_bytes(larger).to_string()));
                    }
                }
            }
            let claim: Claim = read(&fixture.claim);
            let now = jiff::Timestamp::UNIX_EPOCH;
            match fixture.decide() {
                ExpansionVerdict::NoAction(_) => {
                    let state = claim.progress().resize;
                    if state == Some(ResizeState::NodePending) {
                        let infeasible = faults_left > 0 && rng.below(3) == 0;
                        let patch = match infeasible {
                            true => json!({"status": {
                                "allocatedResourceStatuses": {"storage": "NodeResizeInfeasible"},
                            }}),
                            // kubelet removes all resize conditions.
                            false => json!({"status": {
                                "capacity": {
                                    "storage": claim.progress().allocated_resources.unwrap().to_string(),
                                },
                                "allocatedResourceStatuses": {"storage": null},
                                "conditions": ClaimConditionType::RESIZE_TYPES
                                    .map(|kind| json!({"type": kind.as_str(), "$patch": "delete"})),
                            }}),
                        };
                        apply(&mut fixture.claim, patch);
                    } else if faults_left == 0 {
                        break;
                    } else {
                        faults_left -= 1;
                    }
                }
                ExpansionVerdict::RemovePreResizeCapacity(_) => {
                    fixture = fixture.volume(&json!({"metadata": {"annotations": null}}));
                }
                ExpansionVerdict::WaitForRetry => fixture.last_expansion.infeasible = false,
                ExpansionVerdict::Retry(problem) | ExpansionVerdict::Reject(problem) => {
                    panic!("seed {seed}: {problem}")
                }
                ExpansionVerdict::MarkInProgress(update) => {
                    apply(&mut fixture.claim, object::in_progress_patch(&claim, now, update))
                }
                ExpansionVerdict::Expand(expand) => {
                    let required = expand.request.capacity.required.unwrap();
                    assert!(
                        in_doubt.is_none_or(|in_doubt| in_doubt == required),
                        "seed {seed}: {required} while {in_doubt:?} is in doubt"
                    );
                    let kind = if faults_left > 0 { rng.below(5) } else { 9 };
                    faults_left = faults_left.saturating_sub(u32::from(kind < 4));
                    match kind {
                        0 => {
                            (in_doubt, fixture.last_expansion.finality) =
                                (Some(required), Some(Finality::Unknown))
                        }
                        1 => {
                            array_size = array_size.max(required);
                            (in_doubt, fixture.last_expansion.finality) =
                                (Some(required), Some(Finality::Unknown));
                        }
                        2 if in_doubt.is_none() => {
                            let patch = object::failed_patch(
                                &claim,
                                now,
                                &StorageError::with_known_effect(ErrorKind::OutOfRange, "no"),
                                true,
                            );
                            patch.into_iter().for_each(|patch| apply(&mut fixture.claim, patch));
                            fixture.last_expansion = LastExpansion {
                                finality: Some(Finality::Final),
                                infeasible: true,
                                ..fixture.last_expansion
                            };
                        }
                        3 if in_doubt.is_none() => {
                            let patch = object::failed_patch(
                                &claim,
                                now,
                                &StorageError::with_known_effect(ErrorKind::Internal, "no"),
                                false,
                            );
                            patch.into_iter().for_each(|patch| apply(&mut fixture.claim, patch));
                            fixture.last_expansion.finality = Some(Finality::Final);
                        }
                        _ => {
                            in_doubt = None;
                            array_size = array_size.max(required);
                            let volume =
                                ExpandedVolume { capacity: array_size, node_expansion_required: on_node };
                            fixture.result = Some(ExpansionResult {
                                claim: claim.meta.uid.clone(),
                                target: expand.target,
                                volume,
                            });
                        }
                    }
                }
                ExpansionVerdict::UpdateVolumeCapacity(update) => {
                    fixture = fixture.volume(&object::capacity_patch(&update))
                }
                ExpansionVerdict::MarkNodePending => {
                    apply(&mut fixture.claim, object::node_pending_patch(&claim, now));
                    fixture.last_expansion = LastExpansion { finality: None, ..fixture.last_expansion };
                }
                ExpansionVerdict::MarkFinished(size) => {
                    apply(&mut fixture.claim, object::finished_patch(&claim, now, size));
                    fixture.last_expansion = LastExpansion { finality: None, ..fixture.last_expansion };
                }
            }
            let found = (
                size(&fixture.claim, "/status/capacity/storage"),
                size(&fixture.volume, "/spec/capacity/storage"),
            );
            assert!(found.0 >= sizes.0 && found.1 >= sizes.1, "seed {seed}: {sizes:?} became {found:?}");
            assert!(
                found.0 <= array_size,
                "seed {seed}: status.capacity is {}, and the array has {array_size}",
                found.0
            );
            sizes = found;
        }
        let requested = size(&fixture.claim, "/spec/resources/requests/storage");
        assert!(sizes.0 >= requested, "seed {seed}: {} of {requested}", sizes.0);
        let claim: Claim = read(&fixture.claim);
        assert_eq!((claim.progress().resize, &*claim.progress().conditions), (None, &[][..]), "seed {seed}");
    }
}

fn size(object: &Value, pointer: &str) -> u64 {
    let text = object.pointer(pointer).and_then(Value::as_str).unwrap();
    Quantity::parse(text).unwrap().bytes_within_int64().unwrap()
}
