//! Tests of the classification and of decisions on deletion requests, branch by branch.

use cofferdam_cluster::decode;
use cofferdam_domain::{
    Claim, NodeId, Volume,
    storage::{CreatedVolume, VolumeCondition},
};
use jiff::ToSpan as _;
use serde_json::{Value, json};

use super::*;

const HOUR: Duration = Duration::from_secs(3600);

fn now() -> Timestamp {
    "2026-06-01T12:00:00Z".parse().unwrap()
}

fn ago(time: Duration) -> Timestamp {
    now() - SignedDuration::try_from(time).unwrap()
}

fn owner() -> VolumeOwner {
    VolumeOwner {
        cluster_id: "here".into(),
        claim_uid: "uid-1".into(),
        pv_name: "pvc-1".into(),
        reclaim_policy: ReclaimPolicy::Delete,
    }
}

/// An orphan: owned by this cluster, with the policy Delete, unchanged for two days.
fn orphaned_status() -> VolumeStatus {
    VolumeStatus {
        volume: CreatedVolume {
            handle: "h-1".into(),
            capacity: Some(1 << 30),
            context: Default::default(),
            topology: Vec::new(),
            connection_info: None,
        },
        owner: Some(owner()),
        published_node_ids: Vec::new(),
        condition: None,
        changed_at_ms: Some(u64::try_from(ago(48 * HOUR).as_millisecond()).unwrap()),
    }
}

fn with(change: impl FnOnce(&mut VolumeStatus)) -> VolumeStatus {
    let mut status = orphaned_status();
    change(&mut status);
    status
}

fn owned_by(change: impl FnOnce(&mut VolumeOwner)) -> VolumeStatus {
    with(|status| change(status.owner.as_mut().unwrap()))
}

fn volume(name: &str, driver: &str, handle: Value) -> Value {
    json!({
        "metadata": {"name": name, "uid": format!("uid-{name}"), "resourceVersion": "1"},
        "spec": {"csi": {"driver": driver, "volumeHandle": handle}, "capacity": {"storage": "1Gi"}},
    })
}

fn claim(uid: &str, volume: &str) -> Value {
    json!({
        "metadata": {"namespace": "ns", "name": "c", "uid": uid, "resourceVersion": "1"},
        "spec": {"volumeName": volume, "resources": {"requests": {"storage": "1Gi"}}},
    })
}

#[derive(Default)]
struct ClassificationFixture {
    volumes: Vec<Value>,
    claims: Vec<Value>,
    has_intent: bool,
    is_deleting: bool,
    observed_age: Option<Duration>,
}

impl ClassificationFixture {
    fn classify(self, status: &VolumeStatus) -> Classification {
        let cache = Cache::default();
        for json in &self.volumes {
            cache.volumes.apply(decode::object::<Volume>(&json.to_string()).unwrap());
        }
        for json in &self.claims {
            cache.claims.apply(decode::object::<Claim>(&json.to_string()).unwrap());
        }
        let handle = VolumeHandle::from("h-1");
        let input = ClassificationInput {
            cache: &cache,
            driver: &"drv".into(),
            cluster: &"here".into(),
            has_intent: &|requested| self.has_intent && *requested == owner(),
            deleting: self.is_deleting.then_some(&handle),
            now: now(),
        };
        classify(&input, status, self.observed_age.map(|age| LastChange { since: ago(age), age }))
    }
}

fn classify_without_objects(status: &VolumeStatus) -> Classification {
    ClassificationFixture::default().classify(status)
}

const ORPHAN: fn(Duration) -> Classification = |age| Classification::Orphan { since: ago(age) };
const WITHIN_GRACE_PERIOD: fn(Duration) -> Classification =
    |age| Classification::WithinGracePeriod { since: ago(age) };

#[test]
fn only_an_unreferenced_volume_of_this_cluster_is_an_orphan() {
    assert_eq!(classify_without_objects(&orphaned_status()), ORPHAN(48 * HOUR));

    let unmanaged = [
        (with(|s| s.owner = None), Unmanaged::NoOwner),
        (owned_by(|o| o.cluster_id = "there".into()), Unmanaged::OtherCluster),
        (owned_by(|o| o.reclaim_policy = ReclaimPolicy::Retain), Unmanaged::Retained(ReclaimPolicy::Retain)),
        (
            owned_by(|o| o.reclaim_policy = ReclaimPolicy::Recycle),
            Unmanaged::Retained(ReclaimPolicy::Recycle),
        ),
        (
            owned_by(|o| o.reclaim_policy = ReclaimPolicy::Other("delete".to_owned())),
            Unmanaged::Retained(ReclaimPolicy::Other("delete".to_owned())),
        ),
    ];
    for (status, reason) in unmanaged {
        assert_eq!(classify_without_objects(&status), Classification::Unmanaged(reason));
    }
}

#[test]
fn an_orphan_is_unchanged_for_24_hours() {
    let at = |time: Timestamp| {
        let ms = u64::try_from(time.as_millisecond()).unwrap();
        classify_without_objects(&with(|s| s.changed_at_ms = Some(ms)))
    };
    assert_eq!(at(ago(24 * HOUR)), ORPHAN(24 * HOUR));
    assert_eq!(
        at(ago(24 * HOUR - Duration::from_millis(1))),
        WITHIN_GRACE_PERIOD(24 * HOUR - Duration::from_millis(1))
    );
    assert_eq!(
        at(now() + 100.hours()),
        WITHIN_GRACE_PERIOD(Duration::ZERO),
        "a change time in the future counts as now"
    );
    assert_eq!(
        classify_without_objects(&with(|s| s.changed_at_ms = Some(u64::MAX))),
        WITHIN_GRACE_PERIOD(Duration::ZERO)
    );

    let without_change_time = with(|s| s.changed_at_ms = None);
    assert_eq!(
        classify_without_objects(&without_change_time),
        WITHIN_GRACE_PERIOD(Duration::ZERO),
        "the first observation"
    );
    let classify_observed = |age| {
        ClassificationFixture { observed_age: Some(age), ..ClassificationFixture::default() }
            .classify(&without_change_time)
    };
    assert_eq!(classify_observed(23 * HOUR), WITHIN_GRACE_PERIOD(23 * HOUR));
    assert_eq!(classify_observed(24 * HOUR), ORPHAN(24 * HOUR));
    let observed =
        ClassificationFixture { observed_age: Some(100 * HOUR), ..ClassificationFixture::default() };
    let fresh = with(|s| s.changed_at_ms = Some(u64::try_from(ago(HOUR).as_millisecond()).unwrap()));
    assert_eq!(
        observed.classify(&fresh),
        WITHIN_GRACE_PERIOD(HOUR),
        "the driver's change time has precedence over observations"
    );
}

#[test]
fn pvs_claims_intents_and_deletions_reference_a_volume() {
    let volumes =
        |volume: Value| ClassificationFixture { volumes: vec![volume], ..ClassificationFixture::default() };
    let claims =
        |claim: Value| ClassificationFixture { claims: vec![claim], ..ClassificationFixture::default() };
    let referenced = [
        (volumes(volume("any", "drv", json!("h-1"))), VolumeReference::Volume("any".into())),
        (volumes(volume("pvc-1", "drv", json!(7))), VolumeReference::UnreadableVolume("pvc-1".into())),
        (
            ClassificationFixture { has_intent: true, ..ClassificationFixture::default() },
            VolumeReference::Intent,
        ),
        (
            ClassificationFixture { is_deleting: true, ..ClassificationFixture::default() },
            VolumeReference::Deletion,
        ),
        (claims(claim("uid-1", "")), VolumeReference::Claim(ClaimKey::new("ns", "c"))),
        (claims(claim("uid-1", "pvc-1")), VolumeReference::Claim(ClaimKey::new("ns", "c"))),
    ];
    for (fixture, referenced) in referenced {
        assert_eq!(fixture.classify(&orphaned_status()), Classification::Referenced(referenced));
    }
    let unreferenced = [
        volumes(volume("pvc-1", "other", json!("h-1"))),
        volumes(volume("pvc-1", "drv", json!("h-2"))),
        volumes(volume("any", "drv", json!(7))),
        claims(claim("uid-2", "")),
        claims(claim("uid-1", "pvc-another")),
    ];
    for fixture in unreferenced {
        assert_eq!(fixture.classify(&orphaned_status()), ORPHAN(48 * HOUR));
    }
    // A PersistentVolume references a volume with or without an owner.
    let without_owner = with(|s| s.owner = None);
    let fixture = volumes(volume("any", "drv", json!("h-1")));
    assert_eq!(
        fixture.classify(&without_owner),
        Classification::Referenced(VolumeReference::Volume("any".into()))
    );
}

fn request(age: Duration) -> DeletionRequest {
    DeletionRequest { handle: "h-1".into(), requested_at: ago(age), requested_by: "me".to_owned() }
}

#[test]
fn a_request_expires_after_an_hour() {
    assert_eq!(expired_message(&request(HOUR), now()), None);
    assert_eq!(
        expired_message(&DeletionRequest { requested_at: now() + 1.hours(), ..request(HOUR) }, now()),
        None
    );
    let old = expired_message(&request(HOUR + Duration::from_secs(1)), now()).unwrap();
    assert!(old.contains("older than 1 hour"), "{old}");
}

#[test]
fn the_freeze_message_names_the_configmap_to_delete() {
    let message = frozen_message("storage");
    for part in ["restored from a backup", "storage/cofferdam-restored", "delete that ConfigMap"] {
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn only_an_orphan_that_is_not_published_is_deleted() {
    let status = orphaned_status();
    let input = |classification| DeletionInput {
        volume: Some((&status, classification)),
        unreadable: None,
        unreadable_claim: None,
        is_started: false,
    };
    let refused = |input: &DeletionInput<'_>, reason: &str| match decide_deletion(input) {
        DeletionVerdict::Refuse(text) => assert!(text.contains(reason), "{text}"),
        other @ (DeletionVerdict::Delete | DeletionVerdict::AlreadyDeleted) => {
            panic!("{other:?}: expected a refusal: {reason}")
        }
    };
    for is_started in [false, true] {
        assert_eq!(
            decide_deletion(&DeletionInput { is_started, ..input(ORPHAN(48 * HOUR)) }),
            DeletionVerdict::Delete
        );
    }
    let absent = DeletionInput { volume: None, ..input(ORPHAN(48 * HOUR)) };
    refused(&absent, "lists no such volume");
    assert_eq!(
        decide_deletion(&DeletionInput { is_started: true, ..absent.clone() }),
        DeletionVerdict::AlreadyDeleted
    );
    refused(&input(WITHIN_GRACE_PERIOD(HOUR)), "less than 24 hours ago");
    let referenced = || input(Classification::Referenced(VolumeReference::Volume("pv".into())));
    refused(&referenced(), "PersistentVolume pv references it");
    refused(
        &DeletionInput { is_started: true, ..referenced() },
        "PersistentVolume pv references it; the driver was called before",
    );
    refused(&input(Classification::Referenced(VolumeReference::Intent)), "the journal has an intent");
    refused(
        &input(Classification::Referenced(VolumeReference::Claim(ClaimKey::new("ns", "c")))),
        "its PersistentVolumeClaim ns/c exists",
    );
    refused(&input(Classification::Unmanaged(Unmanaged::NoOwner)), "no owner");
    refused(&input(Classification::Unmanaged(Unmanaged::OtherCluster)), "another cluster");
    refused(
        &input(Classification::Unmanaged(Unmanaged::Retained(ReclaimPolicy::Retain))),
        "Retain; expected Delete",
    );
    let with_unreadable_volume = DeletionInput { unreadable: Some("odd".into()), ..input(ORPHAN(48 * HOUR)) };
    refused(&with_unreadable_volume, "PersistentVolume odd cannot be decoded");
    let with_unreadable_claim =
        DeletionInput { unreadable_claim: Some(ClaimKey::new("ns", "odd")), ..input(ORPHAN(48 * HOUR)) };
    refused(&with_unreadable_claim, "PersistentVolumeClaim ns/odd cannot be decoded");
    let published = with(|s| {
        s.published_node_ids = vec![NodeId::from("n1")];
        s.condition = Some(VolumeCondition { abnormal: true, message: "odd".to_owned() });
    });
    refused(
        &DeletionInput { volume: Some((&published, ORPHAN(48 * HOUR))), ..input(ORPHAN(48 * HOUR)) },
        "published to node n1",
    );
}
