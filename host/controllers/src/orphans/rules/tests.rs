//! What a volume is, and what becomes of a request, branch by branch.

use cofferdam_cluster::decode;
use cofferdam_domain::{
    Claim, NodeId, Volume,
    storage::{Condition, CreatedVolume},
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

fn owner() -> Owner {
    Owner {
        cluster: "here".into(),
        claim: "uid-1".into(),
        volume: "pvc-1".into(),
        reclaim_policy: ReclaimPolicy::Delete,
    }
}

/// Ours, to be deleted, unchanged for two days.
fn leaked() -> VolumeStatus {
    VolumeStatus {
        volume: CreatedVolume {
            handle: "h-1".into(),
            capacity: Some(1 << 30),
            context: Default::default(),
            topology: Vec::new(),
            attachment: None,
        },
        owner: Some(owner()),
        published_nodes: Vec::new(),
        condition: None,
        changed_at_ms: Some(u64::try_from(ago(48 * HOUR).as_millisecond()).unwrap()),
    }
}

fn with(change: impl FnOnce(&mut VolumeStatus)) -> VolumeStatus {
    let mut status = leaked();
    change(&mut status);
    status
}

fn owned_by(change: impl FnOnce(&mut Owner)) -> VolumeStatus {
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
struct World {
    volumes: Vec<Value>,
    claims: Vec<Value>,
    intent: bool,
    deleting: bool,
    observed: Option<Duration>,
}

impl World {
    fn judge(self, status: &VolumeStatus) -> Verdict {
        let cache = Cache::default();
        for json in &self.volumes {
            cache.volumes.apply(decode::object::<Volume>(&json.to_string()).unwrap());
        }
        for json in &self.claims {
            cache.claims.apply(decode::object::<Claim>(&json.to_string()).unwrap());
        }
        let handle = VolumeHandle::from("h-1");
        let view = View {
            cache: &cache,
            driver: &"drv".into(),
            cluster: &"here".into(),
            intent: &|asked| self.intent && *asked == owner(),
            deleting: self.deleting.then_some(&handle),
            now: now(),
        };
        judge(&view, status, self.observed.map(|age| Observed { since: ago(age), age }))
    }
}

fn alone(status: &VolumeStatus) -> Verdict {
    World::default().judge(status)
}

const ORPHAN: fn(Duration) -> Verdict = |age| Verdict::Orphan { since: ago(age) };
const YOUNG: fn(Duration) -> Verdict = |age| Verdict::Young { since: ago(age) };

#[test]
fn only_the_own_volume_that_nothing_speaks_for_is_an_orphan() {
    assert_eq!(alone(&leaked()), ORPHAN(48 * HOUR));

    let unknown = [
        (with(|s| s.owner = None), Stranger::NoOwner),
        (owned_by(|o| o.cluster = "there".into()), Stranger::OtherCluster),
        (owned_by(|o| o.reclaim_policy = ReclaimPolicy::Retain), Stranger::Kept(ReclaimPolicy::Retain)),
        (owned_by(|o| o.reclaim_policy = ReclaimPolicy::Recycle), Stranger::Kept(ReclaimPolicy::Recycle)),
        (
            owned_by(|o| o.reclaim_policy = ReclaimPolicy::Other("delete".to_owned())),
            Stranger::Kept(ReclaimPolicy::Other("delete".to_owned())),
        ),
    ];
    for (status, stranger) in unknown {
        assert_eq!(alone(&status), Verdict::Unknown(stranger));
    }
}

#[test]
fn a_day_must_pass_without_a_change() {
    let at = |time: Timestamp| {
        let ms = u64::try_from(time.as_millisecond()).unwrap();
        alone(&with(|s| s.changed_at_ms = Some(ms)))
    };
    assert_eq!(at(ago(24 * HOUR)), ORPHAN(24 * HOUR));
    assert_eq!(at(ago(24 * HOUR - Duration::from_millis(1))), YOUNG(24 * HOUR - Duration::from_millis(1)));
    assert_eq!(at(now() + 100.hours()), YOUNG(Duration::ZERO), "what will change is young");
    assert_eq!(alone(&with(|s| s.changed_at_ms = Some(u64::MAX))), YOUNG(Duration::ZERO));

    let silent = with(|s| s.changed_at_ms = None);
    assert_eq!(alone(&silent), YOUNG(Duration::ZERO), "seen for the first time");
    let seen = |age| World { observed: Some(age), ..World::default() }.judge(&silent);
    assert_eq!(seen(23 * HOUR), YOUNG(23 * HOUR));
    assert_eq!(seen(24 * HOUR), ORPHAN(24 * HOUR));
    let told = World { observed: Some(100 * HOUR), ..World::default() };
    let fresh = with(|s| s.changed_at_ms = Some(u64::try_from(ago(HOUR).as_millisecond()).unwrap()));
    assert_eq!(told.judge(&fresh), YOUNG(HOUR), "the driver's word counts, where it gives one");
}

#[test]
fn objects_claims_and_intents_speak_for_a_volume() {
    let volumes = |volume: Value| World { volumes: vec![volume], ..World::default() };
    let claims = |claim: Value| World { claims: vec![claim], ..World::default() };
    let known = [
        (volumes(volume("any", "drv", json!("h-1"))), Known::Volume("any".into())),
        (volumes(volume("pvc-1", "drv", json!(7))), Known::Unreadable("pvc-1".into())),
        (World { intent: true, ..World::default() }, Known::Intent),
        (World { deleting: true, ..World::default() }, Known::Deletion),
        (claims(claim("uid-1", "")), Known::Claim(ClaimKey::new("ns", "c"))),
        (claims(claim("uid-1", "pvc-1")), Known::Claim(ClaimKey::new("ns", "c"))),
    ];
    for (world, known) in known {
        assert_eq!(world.judge(&leaked()), Verdict::Known(known));
    }
    let silent = [
        volumes(volume("pvc-1", "other", json!("h-1"))),
        volumes(volume("pvc-1", "drv", json!("h-2"))),
        volumes(volume("any", "drv", json!(7))),
        claims(claim("uid-2", "")),
        claims(claim("uid-1", "pvc-another")),
    ];
    for world in silent {
        assert_eq!(world.judge(&leaked()), ORPHAN(48 * HOUR));
    }
    // An object speaks for every volume, whoever made it.
    let stranger = with(|s| s.owner = None);
    let world = volumes(volume("any", "drv", json!("h-1")));
    assert_eq!(world.judge(&stranger), Verdict::Known(Known::Volume("any".into())));
}

fn request(age: Duration) -> Request {
    Request { handle: "h-1".into(), requested_at: ago(age), by: "me".to_owned() }
}

#[test]
fn a_request_is_not_begun_long_after_it_was_made() {
    assert_eq!(expired(&request(HOUR), now()), None);
    assert_eq!(expired(&Request { requested_at: now() + 1.hours(), ..request(HOUR) }, now()), None);
    let old = expired(&request(HOUR + Duration::from_secs(1)), now()).unwrap();
    assert!(old.contains("older than an hour"), "{old}");
}

#[test]
fn the_lock_says_what_opens_it() {
    let locked = locked("storage");
    for part in ["restored from a backup", "storage/cofferdam-restored", "delete that ConfigMap"] {
        assert!(locked.contains(part), "{locked}");
    }
}

#[test]
fn only_an_orphan_that_is_nowhere_in_use_is_deleted() {
    let status = leaked();
    let live = |verdict| Live { volume: Some((&status, verdict)), unreadable: None, begun: false };
    let refused = |live: &Live<'_>, why: &str| match decide(live) {
        Decision::Refuse(text) => assert!(text.contains(why), "{text}"),
        other @ (Decision::Delete | Decision::Gone) => panic!("{other:?}: expected a refusal because {why}"),
    };
    for begun in [false, true] {
        assert_eq!(decide(&Live { begun, ..live(ORPHAN(48 * HOUR)) }), Decision::Delete);
    }
    let absent = Live { volume: None, unreadable: None, begun: false };
    refused(&absent, "lists no such volume");
    assert_eq!(decide(&Live { begun: true, ..absent.clone() }), Decision::Gone);
    refused(&live(YOUNG(HOUR)), "less than 24 hours ago");
    let known = || live(Verdict::Known(Known::Volume("pv".into())));
    refused(&known(), "PersistentVolume pv stands for it");
    refused(
        &Live { begun: true, ..known() },
        "PersistentVolume pv stands for it; the driver was asked before",
    );
    refused(&live(Verdict::Known(Known::Intent)), "intent journal");
    refused(&live(Verdict::Known(Known::Claim(ClaimKey::new("ns", "c")))), "its claim ns/c exists");
    refused(&live(Verdict::Unknown(Stranger::NoOwner)), "no owner");
    refused(&live(Verdict::Unknown(Stranger::OtherCluster)), "another cluster");
    refused(&live(Verdict::Unknown(Stranger::Kept(ReclaimPolicy::Retain))), "Retain: expected Delete");
    let blind = Live { unreadable: Some("odd".into()), ..live(ORPHAN(48 * HOUR)) };
    refused(&blind, "PersistentVolume odd cannot be read");
    let used = with(|s| {
        s.published_nodes = vec![NodeId::from("n1")];
        s.condition = Some(Condition { abnormal: true, message: "odd".to_owned() });
    });
    refused(
        &Live { volume: Some((&used, ORPHAN(48 * HOUR))), unreadable: None, begun: false },
        "published to node n1",
    );
}
