//! Tests of the two requests of an intent, case by case.
#![allow(clippy::type_complexity, reason = "the type of a table's rows is written once, at the table")]

use cofferdam_cluster::IntentSecrets;
use cofferdam_domain::{
    ClaimKey, ReclaimPolicy,
    storage::{CapacityRange, CreateVolume, TopologyRequirement},
};

use super::*;

/// An intent of the class `gold` with the parameter `tier`. The class has the uid `uid-TIER`.
pub(in super::super) fn intent(tier: &str) -> Intent {
    Intent {
        claim: ClaimKey::new("ns", "c"),
        claim_uid: "1234".into(),
        driver: "drv".into(),
        node: None,
        class: IntentClass {
            name: "gold".into(),
            uid: format!("uid-{tier}").into(),
            reclaim_policy: ReclaimPolicy::Delete,
            mount_options: Vec::new(),
        },
        attributes_class: "".into(),
        secrets: IntentSecrets::default(),
        request: CreateVolume {
            name: "pvc-1234".to_owned(),
            capacity: CapacityRange { required: Some(1), limit: None },
            capabilities: Vec::new(),
            parameters: [("tier".to_owned(), tier.to_owned())].into(),
            mutable_parameters: Default::default(),
            topology: None,
            owner: None,
            source: None,
        },
        recorded_at: Some("2026-06-03T12:00:00Z".parse().unwrap()),
        unneeded: None,
        mended: None,
    }
}

fn mended(tier: &str) -> Intent {
    Intent { mended: Some(Box::new(intent(tier))), ..intent("fast") }
}

fn tier(intent: &Intent) -> &str {
    &intent.request.parameters["tier"]
}

#[test]
fn a_class_with_other_content_mends_a_request() {
    let fast = || intent("fast");
    let with_request = |change: fn(&mut CreateVolume)| {
        let mut intent = intent("fast");
        change(&mut intent.request);
        intent
    };
    let with_class = |change: fn(&mut IntentClass)| {
        let mut intent = intent("fast");
        change(&mut intent.class);
        intent
    };
    let rows: Vec<(&str, Intent, bool)> = vec![
        ("nothing", Intent { recorded_at: None, ..fast() }, false),
        ("parameters of the class", intent("slow"), true),
        (
            "the class, created again with the same content",
            with_class(|class| class.uid = "new".into()),
            false,
        ),
        ("mount options", with_class(|class| class.mount_options = vec!["ro".to_owned()]), true),
        ("reclaim policy", with_class(|class| class.reclaim_policy = ReclaimPolicy::Retain), true),
        (
            "only the name of the VolumeAttributesClass",
            Intent { attributes_class: "b".into(), ..fast() },
            false,
        ),
        (
            "parameters of the VolumeAttributesClass",
            with_request(|request| request.mutable_parameters = [("iops".into(), "9".into())].into()),
            true,
        ),
        ("selected node", Intent { node: Some("n".into()), ..fast() }, false),
        (
            "topology only",
            with_request(|request| {
                request.topology = Some(TopologyRequirement { requisite: Vec::new(), preferred: Vec::new() });
            }),
            false,
        ),
        ("flags of the process only", with_request(|request| request.parameters.clear()), false),
        ("driver", Intent { driver: "other".into(), ..intent("slow") }, false),
        (
            "name of the volume",
            Intent {
                request: CreateVolume { name: "x-1234".to_owned(), ..fast().request },
                ..intent("slow")
            },
            false,
        ),
    ];
    for (change, desired, expected) in rows {
        let found = with_mended(&fast(), &desired);
        assert_eq!(found.is_some(), expected, "{change}");
        if let Some(found) = found {
            assert_eq!(Intent { mended: None, ..found.clone() }, fast(), "{change}: the first request stays");
            assert_eq!(found.mended.as_deref(), Some(&desired), "{change}");
        }
    }
    assert_eq!(with_mended(&mended("slow"), &intent("third")), None, "the second request has no result yet");
}

#[test]
fn both_requests_alternate_beginning_with_the_mended_one() {
    let (first, slow) = (request_digest(&intent("fast")), request_digest(&intent("slow")));
    for (intent, last, expected) in [
        (intent("fast"), None, (RequestKind::First, "fast")),
        (intent("fast"), Some(&first), (RequestKind::First, "fast")),
        (mended("slow"), None, (RequestKind::Mended, "slow")),
        (mended("slow"), Some(&first), (RequestKind::Mended, "slow")),
        (mended("slow"), Some(&slow), (RequestKind::First, "fast")),
    ] {
        let (kind, request) = next_request(&Arc::new(intent), last.map(String::as_str));
        assert_eq!((kind, tier(&request)), expected, "{last:?}");
        assert_eq!(request.mended, None);
    }
}

#[test]
fn a_final_error_leaves_the_other_request() {
    assert_eq!(remaining(&intent("fast"), RequestKind::First), None);
    assert_eq!(remaining(&mended("slow"), RequestKind::First), Some(intent("slow")));
    assert_eq!(remaining(&mended("slow"), RequestKind::Mended), Some(intent("fast")));
}

#[test]
fn only_a_final_already_exists_proves_that_the_name_is_taken() {
    for (kind, finality, expected) in [
        (ErrorKind::AlreadyExists, Finality::Final, true),
        (ErrorKind::AlreadyExists, Finality::Unknown, false),
        (ErrorKind::Internal, Finality::Final, false),
    ] {
        let error = StorageError { finality, ..StorageError::with_known_effect(kind, "") };
        assert_eq!(is_already_exists(&error), expected, "{kind} {finality:?}");
    }
}
