//! Scenarios of intents that are stuck although CreateVolume does not fail: its Secret is missing, or the
//! created volume gets no PersistentVolume and is not deleted.

use cofferdam_domain::storage::ErrorKind;
use serde_json::json;

use super::{
    provisioning::{BOUND, STUCK_EVENT, VOLUME},
    secrets::{SECRET, with_secret},
};
use crate::{
    ApiFault, DriverFault, FaultKind,
    UserAction::{ConfirmCreatedVolume, ConfirmNoVolume, Create, Delete, Until},
    WaitFor::Event,
    objects::{CLAIM, claim, class, with},
    scenario::Scenario,
};

const FAILED: &str = "a Warning ProvisioningFailed";
const CONFIRMED: &str = "cofferdam-intents-sim.cofferdam.dev-0 Warning NoVolumeConfirmed";
const NOT_CONFIRMED: &str = "cofferdam-intents-sim.cofferdam.dev-0 Warning NoVolumeNotConfirmed";
/// The operator has confirmed that the volume may be forgotten.
const FORGOTTEN: &[&str] = &["leaked: of-gone has neither a PersistentVolume nor a claim"];

/// Rejects the creation of a PersistentVolume, as an admission webhook does.
const fn no_persistent_volume(kind: FaultKind) -> ApiFault {
    ApiFault { method: "POST", path_prefix: "/api/v1/persistentvolumes", body_contains: "", kind }
}

/// The scenarios of this module.
pub(super) fn scenarios() -> Vec<Scenario> {
    let stuck = || Scenario { repeats_calls: true, ..Scenario::default() };
    let retain = || with(class("gold"), &json!({"reclaimPolicy": "Retain"}));
    let namespace_deleted = DriverFault::ConcurrentActionThen(
        Delete(SECRET),
        Box::new(DriverFault::ConcurrentActionThen(Delete(CLAIM), Box::new(DriverFault::LostRequest))),
    );
    vec![
        Scenario {
            name: "claim and Secret deleted while the CreateVolume result is unknown: \
                   VolumeCreationStuck, and the intent is removed after an operator confirms that there is no \
                   volume",
            actions: with_secret([Create(claim("a", "gold")), Until(Event(STUCK_EVENT)), ConfirmNoVolume]),
            create_faults: vec![namespace_deleted],
            events: &[CONFIRMED, STUCK_EVENT],
            calls: &["create gone with password=one"],
            ..stuck()
        },
        Scenario {
            name: "claim deleted and DeleteVolume always fails: VolumeCreationStuck, and the intent is removed \
                   after an operator confirms with the handle that the volume may be forgotten",
            actions: vec![
                Create(class("gold")),
                Create(claim("a", "gold")),
                Until(Event(STUCK_EVENT)),
                ConfirmNoVolume,
                Until(Event(NOT_CONFIRMED)),
                ConfirmCreatedVolume,
            ],
            create_faults: vec![DriverFault::ConcurrentAction(Delete(CLAIM))],
            delete_faults: vec![DriverFault::Refuse(ErrorKind::Internal); 100],
            array_owners: &["gone"],
            events: &[CONFIRMED, NOT_CONFIRMED, STUCK_EVENT],
            // The intent has the handle: CreateVolume is not called again.
            calls: &[
                "create gone",
                "delete gone",
                "delete gone",
                "delete gone",
                "delete gone",
                "delete gone",
                "delete gone",
            ],
            violations: FORGOTTEN,
            ..stuck()
        },
        Scenario {
            name: "claim deleted, reclaim policy Retain, PersistentVolume always rejected: \
                   VolumeCreationStuck, and the intent is removed after an operator confirms with the handle \
                   that the volume may be forgotten",
            actions: vec![
                Create(retain()),
                Create(claim("a", "gold")),
                Until(Event(FAILED)),
                Delete(CLAIM),
                Until(Event(STUCK_EVENT)),
                ConfirmNoVolume,
                Until(Event(NOT_CONFIRMED)),
                ConfirmCreatedVolume,
            ],
            api_faults: vec![no_persistent_volume(FaultKind::ForbiddenAlways)],
            array_owners: &["gone"],
            events: &[FAILED, CONFIRMED, NOT_CONFIRMED, STUCK_EVENT],
            calls: &["create gone"; 7],
            violations: FORGOTTEN,
            ..stuck()
        },
        Scenario {
            name: "PersistentVolume rejected for 20 minutes: VolumeCreationStuck, then the claim is bound",
            actions: vec![Create(retain()), Create(claim("a", "gold"))],
            api_faults: vec![no_persistent_volume(FaultKind::Forbidden); 12],
            claims: BOUND,
            volumes: VOLUME,
            array_owners: &["a"],
            events: &["a Normal ProvisioningSucceeded", FAILED, "a Warning VolumeCreationStuck"],
            calls: &["create a"; 13],
            ..stuck()
        },
    ]
}
