//! Scenarios of claims and their volumes: the roles provisioner, pv-controller and protection.

use std::time::Duration;

use cofferdam_domain::storage::ErrorKind;
use serde_json::{Value, json};

use crate::{
    ApiFault, DriverFault, EnvironmentKind, FaultKind,
    UserAction::{self, Backup, Compact, Create, Delete, Patch, Restore, Settle, Until},
    WaitFor::{CallsCompleted, Deleted, Event},
    WorkKind,
    objects::{CLAIM, claim, class, pod, volume, with},
    scenario::{Scenario, in_real_time},
};

pub(super) const CLASS: &str = "/apis/storage.k8s.io/v1/storageclasses/gold";
const RESTORE_MARKER: &str = "/api/v1/namespaces/default/configmaps/cofferdam-restored";

fn gold_claim() -> Vec<UserAction> {
    vec![Create(class("gold")), Create(claim("a", "gold"))]
}

fn after_gold_claim(actions: impl IntoIterator<Item = UserAction>) -> Vec<UserAction> {
    gold_claim().into_iter().chain(actions).collect()
}

/// Restores a backup that does not contain claim `b`, then deletes claim `a`.
fn restore_then_delete_claim(actions: impl IntoIterator<Item = UserAction>) -> Vec<UserAction> {
    // The processes list again after the restore.
    let first = [Settle, Backup, Create(claim("b", "gold")), Settle, Restore, Settle, Delete(CLAIM)];
    after_gold_claim(first.into_iter().chain(actions))
}

const LEAKED_BY_RESTORE: &[&str] = &["leaked: of-gone has neither a PersistentVolume nor a claim"];
const RESTORE_DETECTED_LATE: &[(EnvironmentKind, &str)] = &[(
    EnvironmentKind::Http,
    "the embedded API server stays up during a restore: its watches report it after a minute",
)];

/// Reason to skip the row in which two claims match one PersistentVolume. A separate test,
/// `two_claims_for_one_volume_are_both_bound`, covers this race over HTTP.
const VOLUME_RACE: &[(EnvironmentKind, &str)] =
    &in_real_time("in real time the second claim may be bound to the volume");

pub(super) const STUCK_EVENT: &str = "cofferdam-intents-sim.cofferdam.dev-0 Warning VolumeCreationStuck";

/// The class `gold` with another parameter.
fn slow_class() -> Value {
    with(class("gold"), &json!({"parameters": {"tier": "slow"}}))
}

pub(super) const REJECTED_CLAIM: &[(WorkKind, &str)] =
    &[(WorkKind::Retry, "the provisioner retries a claim that it rejects")];

pub(super) const BOUND: &[&str] = &["a Bound of-a"];
pub(super) const VOLUME: &[&str] = &["of-a Bound a"];
pub(super) const SUCCEEDED: &[&str] = &["a Normal ProvisioningSucceeded"];
const FAILED_THEN_SUCCEEDED: &[&str] = &["a Normal ProvisioningSucceeded", "a Warning ProvisioningFailed"];

/// A fault of the first write of a claim or PersistentVolume whose body contains this text.
fn write_fault(
    method: &'static str,
    path_prefix: &'static str,
    body_contains: &'static str,
    kind: FaultKind,
) -> ApiFault {
    ApiFault { method, path_prefix, body_contains, kind }
}

/// Rows with a fault of one of two writes that are sent at once.
fn faults_of_concurrent_writes() -> Vec<Scenario> {
    const VOLUMES: &str = "/api/v1/persistentvolumes/";
    const PHASE: (&str, &str) = (VOLUMES, "\"phase\":\"Bound\"");
    const BINDING: (&str, &str) = (CLAIM, "bind-completed");
    const FINALIZER: (&str, &str) = (VOLUMES, "external-provisioner");
    let bound = |name, (path, text), kind| Scenario {
        name,
        actions: gold_claim(),
        api_faults: vec![write_fault("PATCH", path, text, kind)],
        claims: BOUND,
        volumes: VOLUME,
        array_owners: &["a"],
        events: SUCCEEDED,
        calls: &["create a"],
        ..Scenario::default()
    };
    let deleted = |name, fault| Scenario {
        name,
        actions: after_gold_claim([Settle, Delete(CLAIM)]),
        api_faults: vec![fault],
        events: SUCCEEDED,
        calls: &["create gone", "delete gone", "delete gone"],
        ..Scenario::default()
    };
    vec![
        bound(
            "request of the PersistentVolume's phase lost while the claim is bound: it is written again",
            PHASE,
            FaultKind::LostRequest,
        ),
        bound(
            "response of the PersistentVolume's phase lost while the claim is bound: the claim becomes Bound",
            PHASE,
            FaultKind::LostResponse,
        ),
        bound(
            "conflict of the PersistentVolume's phase while the claim is bound: it is written again",
            PHASE,
            FaultKind::Conflict,
        ),
        bound(
            "request of the claim's volumeName lost while the phase is written: it is written again",
            BINDING,
            FaultKind::LostRequest,
        ),
        bound(
            "response of the claim's volumeName lost while the phase is written: the claim becomes Bound",
            BINDING,
            FaultKind::LostResponse,
        ),
        bound(
            "conflict of the claim's volumeName while the phase is written: it is written again",
            BINDING,
            FaultKind::Conflict,
        ),
        deleted(
            "PersistentVolume DELETE lost while its finalizers are removed: it is deleted later",
            write_fault("DELETE", VOLUMES, "", FaultKind::LostRequest),
        ),
        deleted(
            "removal of the PersistentVolume's finalizers lost while it is deleted: they are removed later",
            write_fault("PATCH", FINALIZER.0, FINALIZER.1, FaultKind::LostRequest),
        ),
    ]
}

/// The scenarios of this module.
pub(super) fn scenarios() -> Vec<Scenario> {
    let mut all = table();
    all.extend(faults_of_concurrent_writes());
    all
}

#[expect(clippy::too_many_lines, reason = "one table")]
fn table() -> Vec<Scenario> {
    let base = Scenario::default;
    let retain = || with(class("gold"), &json!({"reclaimPolicy": "Retain"}));
    vec![
        Scenario {
            name: "PersistentVolumeClaim created: it is provisioned and bound",
            actions: gold_claim(),
            claims: BOUND,
            volumes: VOLUME,
            array_owners: &["a"],
            events: SUCCEEDED,
            calls: &["create a"],
            ..base()
        },
        Scenario {
            name: "claim deleted, reclaim policy Delete: the volume and its PersistentVolume are deleted",
            actions: after_gold_claim([Settle, Delete(CLAIM)]),
            events: SUCCEEDED,
            calls: &["create gone", "delete gone"],
            ..base()
        },
        Scenario {
            name: "claim deleted, reclaim policy Retain: the PersistentVolume is Released",
            actions: vec![Create(retain()), Create(claim("a", "gold")), Settle, Delete(CLAIM)],
            volumes: &["of-gone Released a"],
            array_owners: &["gone"],
            events: SUCCEEDED,
            calls: &["create gone"],
            ..base()
        },
        Scenario {
            name: "claim without a class: the default StorageClass is used",
            actions: vec![
                Create(with(
                    class("gold"),
                    &json!({"metadata": {"annotations": {
                        "storageclass.kubernetes.io/is-default-class": "true",
                    }}}),
                )),
                Create(with(claim("a", "gold"), &json!({"spec": {"storageClassName": null}}))),
            ],
            claims: BOUND,
            volumes: VOLUME,
            array_owners: &["a"],
            events: SUCCEEDED,
            calls: &["create a"],
            ..base()
        },
        Scenario {
            name: "StorageClass created after its claim: the claim is provisioned",
            actions: vec![Create(claim("a", "gold")), Settle, Create(class("gold"))],
            claims: BOUND,
            volumes: VOLUME,
            array_owners: &["a"],
            events: &["a Normal ProvisioningSucceeded", "a Warning ProvisioningFailed"],
            calls: &["create a"],
            ..base()
        },
        Scenario {
            name: "WaitForFirstConsumer: provisioning starts when the selected-node annotation is set",
            actions: vec![
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
            array_owners: &["a"],
            events: &["a Normal ProvisioningSucceeded", "a Normal WaitForFirstConsumer"],
            calls: &["create a"],
            ..base()
        },
        Scenario {
            name: "static provisioning: the smallest matching PersistentVolume is bound",
            actions: vec![
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
            name: "static PersistentVolume created after its claim: they are bound",
            actions: vec![Create(claim("a", "none")), Settle, Create(volume("v", "none", "1Gi"))],
            claims: &["a Bound v"],
            volumes: &["v Bound a"],
            events: &["a Warning ProvisioningFailed"],
            ..base()
        },
        Scenario {
            name: "PersistentVolume reserved for a claim that it does not fit: \
                  it is Available after the claim is bound to another",
            actions: vec![
                Create(claim("a", "none")),
                Settle,
                Create(with(
                    volume("reserved", "none", "1Mi"),
                    &json!({"spec": {"claimRef": {"namespace": "default", "name": "a"}}}),
                )),
                Settle,
                Create(volume("v", "none", "1Gi")),
            ],
            claims: &["a Bound v"],
            volumes: &["reserved Available a", "v Bound a"],
            events: &["a Warning ProvisioningFailed"],
            ..base()
        },
        Scenario {
            name: "static PersistentVolume with Retain: it is Released when its claim is deleted",
            actions: vec![
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
            name: "CreateVolume response lost: the call is repeated",
            actions: gold_claim(),
            create_faults: vec![DriverFault::LostResponse],
            claims: BOUND,
            volumes: VOLUME,
            array_owners: &["a"],
            events: FAILED_THEN_SUCCEEDED,
            calls: &["create a", "create a"],
            ..base()
        },
        Scenario {
            name: "CreateVolume request lost twice: the call is repeated",
            actions: gold_claim(),
            create_faults: vec![DriverFault::LostRequest, DriverFault::LostRequest],
            claims: BOUND,
            volumes: VOLUME,
            array_owners: &["a"],
            events: FAILED_THEN_SUCCEEDED,
            calls: &["create a", "create a", "create a"],
            ..base()
        },
        Scenario {
            name: "CreateVolume fails once with ResourceExhausted: it is retried",
            actions: gold_claim(),
            create_faults: vec![DriverFault::Refuse(ErrorKind::ResourceExhausted)],
            claims: BOUND,
            volumes: VOLUME,
            array_owners: &["a"],
            events: FAILED_THEN_SUCCEEDED,
            calls: &["create a", "create a"],
            ..base()
        },
        Scenario {
            name: "created volume smaller than requested: it is deleted and created again",
            actions: gold_claim(),
            create_faults: vec![DriverFault::WrongSize(1 << 20)],
            claims: BOUND,
            volumes: VOLUME,
            array_owners: &["a"],
            events: FAILED_THEN_SUCCEEDED,
            calls: &["create a", "delete a", "create a"],
            ..base()
        },
        Scenario {
            name: "slow CreateVolume: a Provisioning event is emitted",
            actions: gold_claim(),
            create_faults: vec![DriverFault::Slow(Duration::from_secs(3))],
            claims: BOUND,
            volumes: VOLUME,
            array_owners: &["a"],
            events: &["a Normal Provisioning", "a Normal ProvisioningSucceeded"],
            calls: &["create a"],
            ..base()
        },
        Scenario {
            name: "claim deleted during CreateVolume: the volume is deleted",
            actions: gold_claim(),
            create_faults: vec![DriverFault::ConcurrentAction(Delete(CLAIM))],
            calls: &["create gone", "delete gone"],
            ..base()
        },
        Scenario {
            name: "claim deleted during CreateVolume, and DeleteVolume loses its response: the volume is deleted",
            actions: gold_claim(),
            create_faults: vec![DriverFault::ConcurrentAction(Delete(CLAIM))],
            delete_faults: vec![DriverFault::LostResponse],
            calls: &["create gone", "delete gone", "delete gone"],
            ..base()
        },
        Scenario {
            name: "claim deleted during CreateVolume, and the next process gets Internal first: \
                  the volume is deleted",
            actions: gold_claim(),
            // Only the process after a crash gets the second fault.
            create_faults: vec![
                DriverFault::ConcurrentAction(Delete(CLAIM)),
                DriverFault::Refuse(ErrorKind::Internal),
            ],
            calls: &["create gone", "delete gone"],
            ..base()
        },
        Scenario {
            name: "driver without CREATE_DELETE_VOLUME: \
                  ProvisioningFailed, and no intent remains after the claim is deleted",
            actions: after_gold_claim([Until(Event("a Warning ProvisioningFailed")), Delete(CLAIM)]),
            lacks_create_delete: true,
            events: &["a Warning ProvisioningFailed"],
            ..base()
        },
        Scenario {
            name: "claim deleted during CreateVolume, reclaim policy Retain: \
                  the PersistentVolume is Released",
            actions: vec![Create(retain()), Create(claim("a", "gold"))],
            create_faults: vec![DriverFault::ConcurrentAction(Delete(CLAIM))],
            volumes: &["of-gone Released a"],
            array_owners: &["gone"],
            calls: &["create gone"],
            ..base()
        },
        Scenario {
            name: "claim deleted and CreateVolume response lost: \
                  the call is repeated, then the volume is deleted",
            actions: gold_claim(),
            create_faults: vec![DriverFault::ConcurrentActionThen(
                Delete(CLAIM),
                Box::new(DriverFault::LostResponse),
            )],
            calls: &["create gone", "create gone", "delete gone"],
            ..base()
        },
        Scenario {
            name: "claim recreated under the same name: the old volume is deleted and a new one created",
            actions: after_gold_claim([
                Until(CallsCompleted(3)),
                Until(Deleted(CLAIM)),
                Create(claim("a", "gold")),
            ]),
            create_faults: vec![DriverFault::ConcurrentActionThen(
                Delete(CLAIM),
                Box::new(DriverFault::LostResponse),
            )],
            claims: BOUND,
            volumes: VOLUME,
            array_owners: &["a"],
            events: SUCCEEDED,
            calls: &["create gone", "create gone", "delete gone", "create a"],
            ..base()
        },
        Scenario {
            name: "StorageClass deleted while the CreateVolume result is unknown: \
                  the request of the intent is repeated",
            actions: after_gold_claim([Until(CallsCompleted(1)), Delete(CLASS)]),
            create_faults: vec![DriverFault::LostResponse],
            claims: BOUND,
            volumes: VOLUME,
            array_owners: &["a"],
            events: &["a Normal ProvisioningSucceeded", "a Warning ProvisioningFailed"],
            calls: &["create a", "create a"],
            ..base()
        },
        Scenario {
            name: "StorageClass replaced while the CreateVolume result is unknown, and the volume exists: \
                  the mended request returns AlreadyExists, and the first request is repeated",
            actions: after_gold_claim([Until(CallsCompleted(1)), Delete(CLASS), Create(slow_class())]),
            create_faults: vec![DriverFault::LostResponse],
            claims: BOUND,
            volumes: VOLUME,
            array_owners: &["a"],
            events: FAILED_THEN_SUCCEEDED,
            calls: &["create a", "create a tier=slow", "create a"],
            ..base()
        },
        Scenario {
            name: "CreateVolume times out, then returns Internal forever, and the StorageClass is replaced: \
                  the volume has the new parameters",
            actions: after_gold_claim([Until(CallsCompleted(3)), Delete(CLASS), Create(slow_class())]),
            create_faults: vec![DriverFault::LostRequest],
            failing_tiers: &["fast"],
            claims: BOUND,
            volumes: VOLUME,
            array_owners: &["a"],
            events: FAILED_THEN_SUCCEEDED,
            calls: &["create a", "create a", "create a", "create a tier=slow"],
            ..base()
        },
        Scenario {
            name: "StorageClass replaced twice while the CreateVolume result is unknown: \
                  the second replacement takes effect after a final error of the first",
            actions: after_gold_claim([
                Until(CallsCompleted(1)),
                Delete(CLASS),
                Create(slow_class()),
                Until(CallsCompleted(2)),
                Delete(CLASS),
                Create(with(class("gold"), &json!({"parameters": {"tier": "good"}}))),
            ]),
            create_faults: vec![DriverFault::LostRequest, DriverFault::Refuse(ErrorKind::InvalidArgument)],
            failing_tiers: &["fast"],
            claims: BOUND,
            volumes: VOLUME,
            array_owners: &["a"],
            events: FAILED_THEN_SUCCEEDED,
            calls: &["create a", "create a tier=slow", "create a tier=good"],
            ..base()
        },
        Scenario {
            name: "claim deleted while both requests are open, and the driver fails for 15 minutes: \
                  VolumeCreationStuck, and the volume is deleted once the driver returns it",
            actions: after_gold_claim([
                Until(CallsCompleted(1)),
                Delete(CLASS),
                Create(slow_class()),
                Until(CallsCompleted(4)),
                Delete(CLAIM),
                Until(Event(STUCK_EVENT)),
                UserAction::Repair,
            ]),
            create_faults: vec![DriverFault::LostResponse, DriverFault::LostRequest],
            failing_tiers: &["fast", "slow"],
            events: &["a Warning ProvisioningFailed", STUCK_EVENT],
            // After the deletion, the requests alternate at the longest back-off. The last mended request
            // returns AlreadyExists.
            calls: &[
                "create gone",
                "create gone tier=slow",
                "create gone",
                "create gone tier=slow",
                "create gone tier=slow",
                "create gone",
                "create gone tier=slow",
                "create gone",
                "create gone tier=slow",
                "create gone",
                "delete gone",
            ],
            repeats_calls: true,
            ..base()
        },
        Scenario {
            name: "claim deleted while the CreateVolume result is unknown, and an operator confirms that \
                  there is no volume: the intent is removed",
            actions: after_gold_claim([
                Until(CallsCompleted(2)),
                Delete(CLAIM),
                Until(Event(STUCK_EVENT)),
                UserAction::ConfirmNoVolume,
            ]),
            create_faults: vec![DriverFault::LostRequest],
            failing_tiers: &["fast"],
            events: &[
                "a Warning ProvisioningFailed",
                "cofferdam-intents-sim.cofferdam.dev-0 Warning NoVolumeConfirmed",
                STUCK_EVENT,
            ],
            calls: &["create gone"; 7],
            repeats_calls: true,
            ..base()
        },
        Scenario {
            name: "an operator confirms that there is no volume, but the driver lists it: \
                  NoVolumeNotConfirmed, and the volume is deleted once the driver returns it",
            actions: after_gold_claim([
                Until(CallsCompleted(2)),
                Delete(CLAIM),
                Until(Event(STUCK_EVENT)),
                UserAction::ConfirmNoVolume,
                Until(Event("cofferdam-intents-sim.cofferdam.dev-0 Warning NoVolumeNotConfirmed")),
                UserAction::Repair,
            ]),
            create_faults: vec![DriverFault::LostResponse],
            failing_tiers: &["fast"],
            lists_published_nodes: true,
            events: &[
                "a Warning ProvisioningFailed",
                "cofferdam-intents-sim.cofferdam.dev-0 Warning NoVolumeNotConfirmed",
                STUCK_EVENT,
            ],
            calls: &[
                "create gone",
                "create gone",
                "create gone",
                "create gone",
                "create gone",
                "create gone",
                "create gone",
                "create gone",
                "delete gone",
            ],
            repeats_calls: true,
            ..base()
        },
        Scenario {
            name: "an operator confirms that there is no volume, but the mended request returns \
                  AlreadyExists: NoVolumeNotConfirmed, and the claim gets the volume",
            actions: after_gold_claim([
                Until(CallsCompleted(1)),
                Delete(CLASS),
                Create(slow_class()),
                Until(Event("a Warning VolumeCreationStuck")),
                UserAction::ConfirmNoVolume,
                Until(Event("a Warning NoVolumeNotConfirmed")),
                UserAction::Repair,
            ]),
            create_faults: vec![DriverFault::LostResponse],
            failing_tiers: &["fast"],
            claims: BOUND,
            volumes: VOLUME,
            array_owners: &["a"],
            events: &[
                "a Normal ProvisioningSucceeded",
                "a Warning NoVolumeNotConfirmed",
                "a Warning ProvisioningFailed",
                "a Warning VolumeCreationStuck",
            ],
            calls: &[
                "create a",
                "create a tier=slow",
                "create a",
                "create a tier=slow",
                "create a",
                "create a tier=slow",
                "create a",
                "create a tier=slow",
                "create a",
                "create a tier=slow",
                "create a",
                "create a tier=slow",
                "create a",
                "create a tier=slow",
                "create a",
                "create a tier=slow",
                "create a",
                "create a tier=slow",
                "create a",
                "create a tier=slow",
                "create a",
                "create a tier=slow",
                "create a",
                "create a tier=slow",
                "create a",
                "create a tier=slow",
                "create a",
            ],
            repeats_calls: true,
            ..base()
        },
        Scenario {
            name: "an operator confirms that there is no volume for a claim that still exists: \
                  the claim is provisioned by a new request",
            actions: after_gold_claim([
                Until(Event("a Warning VolumeCreationStuck")),
                UserAction::ConfirmNoVolume,
                Until(Event("a Warning NoVolumeConfirmed")),
                UserAction::Repair,
            ]),
            create_faults: vec![DriverFault::LostRequest],
            failing_tiers: &["fast"],
            claims: BOUND,
            volumes: VOLUME,
            array_owners: &["a"],
            events: &[
                "a Normal ProvisioningSucceeded",
                "a Warning NoVolumeConfirmed",
                "a Warning ProvisioningFailed",
                "a Warning VolumeCreationStuck",
            ],
            calls: &["create a"; 14],
            repeats_calls: true,
            ..base()
        },
        Scenario {
            name: "CreateVolume fails with InvalidArgument: it is retried after the StorageClass is replaced",
            actions: after_gold_claim([
                Until(Event("a Warning ProvisioningFailed")),
                Delete(CLASS),
                Create(class("gold")),
            ]),
            create_faults: vec![DriverFault::Refuse(ErrorKind::InvalidArgument)],
            claims: BOUND,
            volumes: VOLUME,
            array_owners: &["a"],
            events: FAILED_THEN_SUCCEEDED,
            calls: &["create a", "create a"],
            ..base()
        },
        Scenario {
            name: "DeleteVolume fails once and loses one response: it is retried",
            actions: after_gold_claim([Settle, Delete(CLAIM)]),
            delete_faults: vec![DriverFault::Refuse(ErrorKind::Internal), DriverFault::LostResponse],
            events: &["a Normal ProvisioningSucceeded", "volume Warning VolumeFailedDelete"],
            calls: &["create gone", "delete gone", "delete gone", "delete gone"],
            ..base()
        },
        Scenario {
            name: "watches expire (410 Gone): the claim is still provisioned and deleted",
            actions: after_gold_claim([Settle, Compact, Delete(CLAIM), Compact]),
            events: SUCCEEDED,
            calls: &["create gone", "delete gone"],
            ..base()
        },
        Scenario {
            name: "claim deleted while a pod uses it: it keeps its pvc-protection finalizer",
            actions: after_gold_claim([Settle, Create(pod("p", "a")), Settle, Delete(CLAIM), Settle]),
            claims: BOUND,
            volumes: VOLUME,
            array_owners: &["a"],
            events: SUCCEEDED,
            calls: &["create a"],
            ..base()
        },
        Scenario {
            name: "pod of a terminating claim deleted: the claim and its volume are deleted",
            actions: after_gold_claim([
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
            name: "PersistentVolume of a bound claim deleted: the claim is Lost",
            actions: vec![
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
            name: "two claims, one matching PersistentVolume: \
                  one claim is bound to it, the other is provisioned",
            actions: vec![
                Create(class("gold")),
                Create(volume("v", "gold", "1Gi")),
                Settle,
                Create(claim("a", "gold")),
                Create(claim("b", "gold")),
            ],
            claims: &["a Bound v", "b Bound of-b"],
            volumes: &["of-b Bound b", "v Bound a"],
            array_owners: &["b"],
            events: &["b Normal ProvisioningSucceeded"],
            calls: &["create b"],
            skipped_on: VOLUME_RACE,
            ..base()
        },
        Scenario {
            name: "allowedTopologies with a driver without topology: the claim stays Pending",
            actions: vec![
                Create(with(
                    class("gold"),
                    &json!({"allowedTopologies": [
                        {"matchLabelExpressions": [{"key": "zone", "values": ["a"]}]},
                    ]}),
                )),
                Create(claim("a", "gold")),
            ],
            claims: &["a Pending"],
            events: &["a Warning ProvisioningFailed"],
            unsettled: REJECTED_CLAIM,
            ..base()
        },
        Scenario {
            name: "cluster restored from backup: deletions are frozen",
            actions: restore_then_delete_claim([]),
            volumes: &["of-gone Released a"],
            // A volume that is not in the backup must not be deleted.
            array_owners: &["gone", "gone"],
            events: &["a Normal ProvisioningSucceeded", "volume Warning DeletionFrozen"],
            calls: &["create gone", "create gone"],
            violations: LEAKED_BY_RESTORE,
            skipped_on: RESTORE_DETECTED_LATE,
            ..base()
        },
        Scenario {
            name: "restore marker deleted: frozen deletions continue",
            actions: restore_then_delete_claim([Settle, Delete(RESTORE_MARKER)]),
            array_owners: &["gone"],
            events: &["a Normal ProvisioningSucceeded", "volume Warning DeletionFrozen"],
            calls: &["create gone", "create gone", "delete gone"],
            violations: LEAKED_BY_RESTORE,
            skipped_on: RESTORE_DETECTED_LATE,
            ..base()
        },
        Scenario {
            name: "invalid size or StorageClass parameter: the claim stays Pending",
            actions: vec![
                Create(class("gold")),
                Create(with(
                    claim("a", "gold"),
                    &json!({"spec": {"resources": {"requests": {"storage": "1e99"}}}}),
                )),
                Create(with(class("odd"), &json!({"parameters": {"csi.storage.k8s.io/odd": "x"}}))),
                Create(claim("b", "odd")),
            ],
            claims: &["a Pending", "b Pending"],
            events: &["a Warning ProvisioningFailed", "b Warning ProvisioningFailed"],
            unsettled: REJECTED_CLAIM,
            ..base()
        },
    ]
}
