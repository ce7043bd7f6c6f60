//! Values that a guest returns: their conversion to the host's types, and the checks of the contract.

mod contract_rules;
mod source;

use std::fmt::Debug;

use arbitrary::{Result, Unstructured};
use cofferdam_backend::{ContractViolation, Redactor};
use cofferdam_domain::{
    ReclaimPolicy, VolumeHandle,
    storage::{
        Capacity, ConnectionInfo, CreatedVolume, Description, ExpandedVolume, GroupSnapshot, PageRequest,
        Readiness, Secret, Snapshot, SnapshotOwner, Validation, VolumeOwner, VolumeStatus,
    },
};
use cofferdam_wasm::fuzzing::{self, contract};

use self::source::{SECRET, Source};
use crate::message::assert_printable;

/// Most bytes of a message: a text of 1,000 bytes, of which `Debug` escapes each character, and the words
/// around it.
const MAX_MESSAGE_BYTES: usize = 3_500;
/// Most bytes of a guest's message: a printable text and its ellipsis.
const MAX_TEXT_BYTES: usize = 1_003;

/// The first byte selects the value that a guest returns; the others are its content.
///
/// - The host accepts a value if and only if it follows the rules in `wit/`, except for secrets.
/// - An accepted value is the guest's, with no field lost or changed.
/// - No accepted value and no message has the secret of the call.
/// - A violation has a printable message.
pub fn values(data: &[u8]) {
    // An input that is too short for a value is none.
    let _ = check(&mut Source::new(Unstructured::new(data)));
}

fn check(source: &mut Source<'_>) -> Result<()> {
    let redactor = Redactor::new([("password".to_owned(), Secret::new(SECRET))].into_iter().collect());
    match source.choice(13)? {
        0 => check_volume(source.volume()?, &redactor),
        1 => check_status(source.status()?, &redactor),
        2 => check_volume_page(source.volume_page()?, &source.page_request()?, &redactor),
        3 => check_connection_info(source.connection_info()?, &redactor),
        4 => check_snapshot(source.snapshot()?, &redactor),
        5 => {
            check_snapshot_page(source.snapshot_page()?, &source.page_request()?, source.handle()?, &redactor)
        }
        6 => check_group(source.group()?, &redactor),
        7 => check_expanded(source.expanded()?, &redactor),
        8 => check_capacity(source.capacity()?, &redactor),
        9 => check_description(source.description()?, &redactor),
        10 => check_readiness(source.readiness()?, &redactor),
        11 => check_validation(source.validation()?, &redactor),
        _ => check_error(source.error()?, &redactor),
    }
    Ok(())
}

/// Asserts that a value is accepted exactly if it is valid, and is the expected one.
fn check_result<T: Debug + PartialEq>(
    found: &std::result::Result<T, ContractViolation>,
    is_valid: bool,
    redactor: &Redactor,
    expected: impl FnOnce() -> T,
) {
    match found {
        Ok(found) => {
            assert!(is_valid, "accepted: {found:?}");
            assert_eq!(*found, expected());
        }
        Err(violation) => {
            let message = violation.to_string();
            let shown = redactor.printable(&message);
            assert_printable(&shown, MAX_MESSAGE_BYTES);
            check_no_secret(&shown);
            let is_secret = matches!(
                violation,
                ContractViolation::SecretInMap { .. } | ContractViolation::SecretInId { .. }
            );
            assert!(is_secret || !is_valid, "rejected: {violation}");
            assert!(!is_secret || !message.contains(SECRET), "{violation}");
        }
    }
}

/// Asserts that the stored form of a value does not have the secret.
fn check_no_secret<T: Debug>(value: &T) {
    assert!(!format!("{value:?}").contains(SECRET), "{value:?}");
}

fn check_volume(volume: contract::Volume, redactor: &Redactor) {
    let found = fuzzing::created_volume(volume.clone(), redactor);
    check_result(&found, contract_rules::volume(&volume), redactor, || expected_volume(volume));
    found.iter().for_each(check_no_secret);
}

fn check_status(status: contract::VolumeStatus, redactor: &Redactor) {
    let found = fuzzing::volume_status(status.clone(), redactor);
    let message = found.as_ref().ok().and_then(|status| status.condition.as_ref());
    let message = message.map(|condition| condition.message.clone());
    check_result(&found, contract_rules::status(&status), redactor, || expected_status(status, message));
    found.iter().for_each(check_no_secret);
}

fn check_volume_page(page: contract::VolumePage, request: &PageRequest, redactor: &Redactor) {
    let found = fuzzing::volume_page(page.clone(), request, redactor);
    let is_valid = contract_rules::page(page.volumes.len(), page.next.as_deref(), request)
        && page.volumes.iter().all(contract_rules::status);
    let handles = |page: &cofferdam_domain::storage::VolumePage| {
        page.volumes.iter().map(|status| status.volume.handle.to_string()).collect::<Vec<_>>()
    };
    let expected = page.volumes.into_iter().map(|status| status.volume.handle).collect();
    let kept = found.as_ref().map(|page| (handles(page), page.next_token.clone())).map_err(Clone::clone);
    check_result(&kept, is_valid, redactor, || (expected, page.next));
    if let Ok(found) = &found {
        check_no_secret(&found.volumes);
    }
}

fn check_connection_info(info: contract::ConnectionInfo, redactor: &Redactor) {
    let found = fuzzing::connection_info(info.clone(), redactor);
    check_result(&found, contract_rules::connection_info(&info), redactor, || expected_connection_info(info));
    found.iter().for_each(check_no_secret);
}

fn check_snapshot(snapshot: contract::Snapshot, redactor: &Redactor) {
    let found = fuzzing::snapshot(snapshot.clone(), redactor);
    check_result(&found, contract_rules::snapshot(&snapshot), redactor, || expected_snapshot(snapshot));
    found.iter().for_each(check_no_secret);
}

fn check_snapshot_page(
    page: contract::SnapshotPage,
    request: &PageRequest,
    handle: String,
    redactor: &Redactor,
) {
    let volume = (!handle.is_empty()).then(|| VolumeHandle::new(handle));
    let found = fuzzing::snapshot_page(page.clone(), request, volume.as_ref(), redactor);
    let is_of_volume = |snapshot: &contract::Snapshot| {
        volume.as_ref().is_none_or(|volume| volume.as_str() == snapshot.source)
    };
    let is_valid = contract_rules::page(page.snapshots.len(), page.next.as_deref(), request)
        && page.snapshots.iter().all(|found| contract_rules::snapshot(found) && is_of_volume(found));
    check_result(&found, is_valid, redactor, || cofferdam_domain::storage::SnapshotPage {
        snapshots: page.snapshots.into_iter().map(expected_snapshot).collect(),
        next_token: page.next,
    });
    if let Ok(found) = &found {
        check_no_secret(&found.snapshots);
    }
}

fn check_group(group: contract::GroupSnapshot, redactor: &Redactor) {
    let found = fuzzing::group_snapshot(group.clone(), redactor);
    check_result(&found, contract_rules::group(&group), redactor, || GroupSnapshot {
        handle: group.handle.into(),
        snapshots: group.snapshots.into_iter().map(expected_snapshot).collect(),
        created_at_ms: group.created_at_ms,
        ready: group.ready,
    });
    found.iter().for_each(check_no_secret);
}

fn check_expanded(expanded: contract::ExpandResponse, redactor: &Redactor) {
    let found = fuzzing::expanded_volume(expanded, redactor);
    check_result(&found, contract_rules::is_size(expanded.capacity_bytes), redactor, || ExpandedVolume {
        capacity: expanded.capacity_bytes,
        node_expansion_required: expanded.node_expansion,
    });
}

fn check_capacity(report: contract::CapacityReport, redactor: &Redactor) {
    let found = fuzzing::capacity(report, redactor);
    check_result(&found, contract_rules::capacity(&report), redactor, || Capacity {
        available: report.available_bytes,
        maximum_volume_size: report.maximum_volume_bytes,
        minimum_volume_size: report.minimum_volume_bytes,
    });
}

fn check_description(description: contract::Description, redactor: &Redactor) {
    let found = fuzzing::description(description.clone(), redactor);
    check_result(&found, contract_rules::description(&description), redactor, || Description {
        name: description.name.into(),
        version: description.version,
        topology_keys: description.topology_keys,
        placement: match description.placement {
            contract::Placement::Central => cofferdam_domain::storage::Placement::Central,
            contract::Placement::Node => cofferdam_domain::storage::Placement::Node,
        },
        volumes_per_node: description.volumes_per_node,
        features: description.features,
    });
    found.iter().for_each(check_no_secret);
}

/// A message of a guest is one line without the secret.
fn check_text(text: &str) {
    check_no_secret(&text);
    if !text.is_empty() {
        assert_printable(text, MAX_TEXT_BYTES);
    }
}

fn check_readiness(readiness: contract::Readiness, redactor: &Redactor) {
    let is_ready = matches!(readiness, contract::Readiness::Ready);
    match fuzzing::readiness(readiness, redactor) {
        Readiness::Ready => assert!(is_ready),
        Readiness::NotReady(message) => {
            assert!(!is_ready);
            check_text(&message);
        }
    }
}

fn check_validation(validation: contract::Validation, redactor: &Redactor) {
    let is_confirmed = matches!(validation, contract::Validation::Confirmed);
    match fuzzing::validation(validation, redactor) {
        Validation::Confirmed => assert!(is_confirmed),
        Validation::Refused(message) => {
            assert!(!is_confirmed);
            check_text(&message);
        }
    }
}

fn check_error(error: contract::StorageError, redactor: &Redactor) {
    let found = fuzzing::storage_error(error.clone(), redactor);
    check_text(&found.message);
    assert_eq!(found.retry_after_ms, error.retry_after_ms);
    // The two types name their cases alike.
    let same = |guest: String, host: String| assert_eq!(guest.rsplit("::").next(), Some(host.as_str()));
    same(format!("{:?}", error.kind), format!("{:?}", found.kind));
    same(format!("{:?}", error.finality), format!("{:?}", found.finality));
}

fn expected_volume(volume: contract::Volume) -> CreatedVolume {
    CreatedVolume {
        handle: volume.handle.into(),
        capacity: volume.capacity_bytes,
        context: volume.context.into_iter().collect(),
        topology: volume.topology.into_iter().map(|segments| segments.into_iter().collect()).collect(),
        connection_info: volume.connection_info.map(expected_connection_info),
    }
}

fn expected_connection_info(info: contract::ConnectionInfo) -> ConnectionInfo {
    ConnectionInfo { kind: info.kind, version: info.version, fields: info.fields.into_iter().collect() }
}

/// The expected status, with the message of the condition that was found.
fn expected_status(status: contract::VolumeStatus, message: Option<String>) -> VolumeStatus {
    VolumeStatus {
        volume: expected_volume(status.volume),
        owner: status.owner.map(|owner| VolumeOwner {
            cluster_id: owner.cluster_id.into(),
            claim_uid: owner.claim_uid.into(),
            pv_name: owner.pv_name.into(),
            reclaim_policy: match owner.reclaim_policy {
                contract::ReclaimPolicy::Delete => ReclaimPolicy::Delete,
                contract::ReclaimPolicy::Retain => ReclaimPolicy::Retain,
            },
        }),
        published_node_ids: status.published_nodes.into_iter().map(Into::into).collect(),
        condition: status.condition.map(|condition| {
            let message = message.unwrap_or_default();
            check_text(&message);
            cofferdam_domain::storage::VolumeCondition { abnormal: condition.abnormal, message }
        }),
        changed_at_ms: status.changed_at_ms,
    }
}

fn expected_snapshot(snapshot: contract::Snapshot) -> Snapshot {
    Snapshot {
        handle: snapshot.handle.into(),
        source: snapshot.source.into(),
        size: snapshot.size_bytes,
        created_at_ms: snapshot.created_at_ms,
        ready: snapshot.ready,
        group: snapshot.group.map(Into::into),
        owner: snapshot.owner.map(|owner| SnapshotOwner {
            cluster_id: owner.cluster_id.into(),
            snapshot_uid: owner.snapshot_uid.into(),
            content_name: owner.content_name,
            retain: matches!(owner.reclaim_policy, contract::ReclaimPolicy::Retain),
        }),
    }
}
