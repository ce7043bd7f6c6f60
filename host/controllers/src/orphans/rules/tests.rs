//! Tests of the classification and of decisions on deletion requests, branch by branch.

use cofferdam_cluster::decode;
use cofferdam_domain::{
    Claim, NodeId, Volume, VolumeSnapshot, VolumeSnapshotContent,
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
        let handle = ResourceHandle::from("h-1");
        let resource = Resource::Volume(status.clone());
        let input = ClassificationInput {
            cache: &cache,
            driver: &"drv".into(),
            cluster: &"here".into(),
            has_intent: &|listed| self.has_intent && *listed == resource,
            deleting: self.is_deleting.then_some(&handle),
            now: now(),
        };
        classify(&input, &resource, self.observed_age.map(|age| LastChange { since: ago(age), age }))
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
        (volumes(volume("any", "drv", json!("h-1"))), Reference::Volume("any".into())),
        (volumes(volume("pvc-1", "drv", json!(7))), Reference::UnreadableVolume("pvc-1".into())),
        (ClassificationFixture { has_intent: true, ..ClassificationFixture::default() }, Reference::Intent),
        (
            ClassificationFixture { is_deleting: true, ..ClassificationFixture::default() },
            Reference::Deletion,
        ),
        (claims(claim("uid-1", "")), Reference::Claim(ClaimKey::new("ns", "c"))),
        (claims(claim("uid-1", "pvc-1")), Reference::Claim(ClaimKey::new("ns", "c"))),
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
    assert_eq!(fixture.classify(&without_owner), Classification::Referenced(Reference::Volume("any".into())));
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
    let message = frozen_message(OrphanKind::Volume, "storage");
    for part in ["restored from a backup", "storage/cofferdam-restored", "delete that ConfigMap"] {
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn only_an_orphan_that_is_not_published_is_deleted() {
    let volume = Resource::Volume(orphaned_status());
    let input = |classification| DeletionInput {
        kind: OrphanKind::Volume,
        listed: Some((&volume, classification)),
        unreadable: None,
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
    let absent = DeletionInput { listed: None, ..input(ORPHAN(48 * HOUR)) };
    refused(&absent, "lists no such volume");
    assert_eq!(
        decide_deletion(&DeletionInput { is_started: true, ..absent.clone() }),
        DeletionVerdict::AlreadyDeleted
    );
    refused(&input(WITHIN_GRACE_PERIOD(HOUR)), "less than 24 hours ago");
    let referenced = || input(Classification::Referenced(Reference::Volume("pv".into())));
    refused(&referenced(), "PersistentVolume pv references it");
    refused(
        &DeletionInput { is_started: true, ..referenced() },
        "PersistentVolume pv references it; the driver was called before",
    );
    refused(&input(Classification::Referenced(Reference::Intent)), "the journal has an intent");
    refused(
        &input(Classification::Referenced(Reference::Claim(ClaimKey::new("ns", "c")))),
        "its PersistentVolumeClaim ns/c exists",
    );
    refused(&input(Classification::Unmanaged(Unmanaged::NoOwner)), "no owner");
    refused(&input(Classification::Unmanaged(Unmanaged::OtherCluster)), "another cluster");
    refused(
        &input(Classification::Unmanaged(Unmanaged::Retained(ReclaimPolicy::Retain))),
        "Retain; expected Delete",
    );
    for (unreadable, reason) in [
        (Reference::UnreadableVolume("odd".into()), "PersistentVolume odd cannot be decoded"),
        (
            Reference::UnreadableClaim(ClaimKey::new("ns", "odd")),
            "PersistentVolumeClaim ns/odd cannot be decoded",
        ),
        (Reference::UnreadableContent("odd".into()), "VolumeSnapshotContent odd cannot be decoded"),
    ] {
        refused(&DeletionInput { unreadable: Some(unreadable), ..input(ORPHAN(48 * HOUR)) }, reason);
    }
    let published = Resource::Volume(with(|s| {
        s.published_node_ids = vec![NodeId::from("n1")];
        s.condition = Some(VolumeCondition { abnormal: true, message: "odd".to_owned() });
    }));
    refused(
        &DeletionInput { listed: Some((&published, ORPHAN(48 * HOUR))), ..input(ORPHAN(48 * HOUR)) },
        "published to node n1",
    );
}

/// A snapshot of this cluster with the deletion policy Delete.
fn orphaned_snapshot() -> Snapshot {
    Snapshot {
        handle: "h-1".into(),
        source: "v-1".into(),
        size: Some(1 << 30),
        // Long ago, which is no reason to report it at once.
        created_at_ms: 1_000,
        ready: true,
        group: None,
        owner: Some(SnapshotOwner {
            cluster_id: "here".into(),
            snapshot_uid: "uid-1".into(),
            content_name: "snapcontent-uid-1".to_owned(),
            retain: false,
        }),
    }
}

fn content(name: &str, driver: &str, source: Value) -> Value {
    json!({
        "metadata": {"name": name, "uid": format!("uid-of-{name}"), "resourceVersion": "1"},
        "spec": {
            "driver": driver, "deletionPolicy": "Delete", "source": source,
            "volumeSnapshotRef": {"namespace": "ns", "name": "s", "uid": "uid-1"},
        },
    })
}

fn with_status(mut content: Value, handle: &str, is_in_creation: bool) -> Value {
    content["status"] = json!({"snapshotHandle": handle, "readyToUse": false});
    if is_in_creation {
        content["metadata"]["annotations"] = json!({names::SNAPSHOT_BEING_CREATED: "yes"});
    }
    content
}

fn volume_snapshot(uid: &str, bound_content: &str) -> Value {
    json!({
        "metadata": {"namespace": "ns", "name": "s", "uid": uid, "resourceVersion": "1"},
        "spec": {"source": {"persistentVolumeClaimName": "c"}},
        "status": {"boundVolumeSnapshotContentName": bound_content},
    })
}

#[derive(Default)]
struct SnapshotFixture {
    contents: Vec<Value>,
    snapshots: Vec<Value>,
    has_intent: bool,
    is_deleting: bool,
}

impl SnapshotFixture {
    fn classify(&self, snapshot: Snapshot, observed_age: Option<Duration>) -> Classification {
        let cache = Cache::default();
        for json in &self.contents {
            let content = decode::object::<VolumeSnapshotContent>(&json.to_string()).unwrap();
            cache.snapshot_contents.apply(content);
        }
        for json in &self.snapshots {
            cache.snapshots.apply(decode::object::<VolumeSnapshot>(&json.to_string()).unwrap());
        }
        let handle = ResourceHandle::from("h-1");
        let resource = Resource::Snapshot(snapshot);
        let input = ClassificationInput {
            cache: &cache,
            driver: &"drv".into(),
            cluster: &"here".into(),
            has_intent: &|listed| self.has_intent && *listed == resource,
            deleting: self.is_deleting.then_some(&handle),
            now: now(),
        };
        classify(&input, &resource, observed_age.map(|age| LastChange { since: ago(age), age }))
    }
}

#[test]
fn a_snapshot_is_an_orphan_after_it_was_seen_without_a_reference_for_24_hours() {
    let classify = |observed_age| SnapshotFixture::default().classify(orphaned_snapshot(), observed_age);
    assert_eq!(classify(None), WITHIN_GRACE_PERIOD(Duration::ZERO));
    assert_eq!(classify(Some(23 * HOUR)), WITHIN_GRACE_PERIOD(23 * HOUR));
    assert_eq!(classify(Some(24 * HOUR)), ORPHAN(24 * HOUR));
}

#[test]
fn only_a_single_snapshot_of_this_cluster_with_the_policy_delete_is_an_orphan() {
    let changed = |change: fn(&mut Snapshot)| {
        let mut snapshot = orphaned_snapshot();
        change(&mut snapshot);
        snapshot
    };
    for (snapshot, reason) in [
        (changed(|s| s.owner = None), Unmanaged::NoOwner),
        (changed(|s| s.owner.as_mut().unwrap().cluster_id = "there".into()), Unmanaged::OtherCluster),
        (changed(|s| s.owner.as_mut().unwrap().retain = true), Unmanaged::Retained(ReclaimPolicy::Retain)),
        (changed(|s| s.group = Some("g-1".into())), Unmanaged::GroupMember("g-1".into())),
    ] {
        assert_eq!(
            SnapshotFixture::default().classify(snapshot, Some(48 * HOUR)),
            Classification::Unmanaged(reason)
        );
    }
}

#[test]
fn contents_snapshots_intents_and_deletions_reference_a_snapshot() {
    const NAME: &str = "snapcontent-uid-1";
    let of_volume = json!({"volumeHandle": "v-1"});
    let contents = |content: Value| SnapshotFixture { contents: vec![content], ..SnapshotFixture::default() };
    let snapshots =
        |snapshot: Value| SnapshotFixture { snapshots: vec![snapshot], ..SnapshotFixture::default() };
    let key = || VolumeSnapshotKey::new("ns", "s");
    let mut undecodable = content("any", "drv", of_volume.clone());
    undecodable["spec"]["deletionPolicy"] = json!("Sometimes");
    let mut undecodable_snapshot = volume_snapshot("uid-2", "");
    undecodable_snapshot["spec"] = json!({"source": {"persistentVolumeClaimName": 7}});
    for (fixture, reference) in [
        (
            contents(with_status(content("any", "drv", of_volume.clone()), "h-1", false)),
            Reference::Content("any".into()),
        ),
        (contents(content("any", "drv", json!({"snapshotHandle": "h-1"}))), Reference::Content("any".into())),
        // CreateSnapshot may have been called, and its response may be lost.
        (contents(content(NAME, "drv", of_volume.clone())), Reference::ContentInCreation(NAME.into())),
        (
            contents(with_status(content(NAME, "drv", of_volume.clone()), "h-2", true)),
            Reference::ContentInCreation(NAME.into()),
        ),
        (contents(undecodable), Reference::UnreadableContent("any".into())),
        (snapshots(undecodable_snapshot), Reference::UnreadableSnapshot(key())),
        (snapshots(volume_snapshot("uid-1", "")), Reference::Snapshot(key())),
        (snapshots(volume_snapshot("uid-1", NAME)), Reference::Snapshot(key())),
        (SnapshotFixture { has_intent: true, ..SnapshotFixture::default() }, Reference::Intent),
        (SnapshotFixture { is_deleting: true, ..SnapshotFixture::default() }, Reference::Deletion),
    ] {
        assert_eq!(
            fixture.classify(orphaned_snapshot(), Some(48 * HOUR)),
            Classification::Referenced(reference)
        );
    }
    for fixture in [
        contents(with_status(content("any", "other", of_volume.clone()), "h-1", false)),
        contents(content("any", "drv", of_volume.clone())),
        contents(with_status(content(NAME, "drv", of_volume.clone()), "h-2", false)),
        SnapshotFixture {
            contents: vec![with_status(content(NAME, "drv", of_volume), "h-2", false)],
            snapshots: vec![volume_snapshot("uid-1", NAME)],
            ..SnapshotFixture::default()
        },
        snapshots(volume_snapshot("uid-2", "")),
        snapshots(volume_snapshot("uid-1", "another")),
    ] {
        assert_eq!(fixture.classify(orphaned_snapshot(), Some(48 * HOUR)), ORPHAN(48 * HOUR));
    }
}
