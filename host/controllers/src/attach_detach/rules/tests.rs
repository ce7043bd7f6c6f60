//! What attaching and detaching decide, case by case.

use std::{sync::Arc, time::Duration};

use cofferdam_cluster::{Cache, Kind, decode};
use cofferdam_domain::{Attachment, Claim, Node, ResourceVersion, names};
use cofferdam_sim::objects::with;
use serde_json::{Value, json};

use super::*;
use crate::attach_detach::{
    facts::{Run, Sources},
    marks::{Key, Marks},
    wants,
};

fn read<K: Kind>(json: &Value) -> K {
    decode::object(&json.to_string()).unwrap().unwrap()
}

/// A volume `v`, read and written by one node, with its claim, and pods on nodes that are there.
struct World {
    cache: Cache,
    marks: Marks,
    version: u64,
}

impl World {
    fn new(modes: &[&str]) -> Self {
        let world = Self { cache: Cache::default(), marks: Marks::default(), version: 1 };
        let meta = json!({"name": "v", "uid": "v-uid", "resourceVersion": "1"});
        let claim = json!({"namespace": "ns", "name": "c", "uid": "c-uid"});
        let spec =
            json!({"accessModes": modes, "claimRef": claim, "csi": {"driver": "d", "volumeHandle": "h"}});
        world.cache.volumes.apply(Ok(read::<Volume>(&json!({"metadata": meta, "spec": spec}))));
        let meta = with(claim, &json!({"resourceVersion": "1"}));
        let claim = json!({"metadata": meta, "spec": {"volumeName": "v"}, "status": {"phase": "Bound"}});
        world.cache.claims.apply(Ok(read::<Claim>(&claim)));
        world
    }

    fn next_version(&mut self) -> String {
        self.version += 1;
        self.version.to_string()
    }

    fn node(&mut self, name: &str, change: Value) {
        let node = json!({
            "metadata": {
                "name": name, "uid": name, "resourceVersion": self.next_version(),
                "annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": "true"},
            },
            "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        });
        self.cache.nodes.apply(Ok(read::<Node>(&with(node, &change))));
    }

    fn pod(&mut self, namespace: &str, name: &str, node: &str) {
        let meta = json!({
            "namespace": namespace, "name": name, "uid": name, "resourceVersion": self.next_version(),
            "creationTimestamp": "2026-01-01T00:00:00Z",
        });
        let volumes = json!([{"name": "data", "persistentVolumeClaim": {"claimName": "c"}}]);
        let pod = json!({"metadata": meta, "spec": {"nodeName": node, "volumes": volumes}});
        self.cache.pods.apply(Ok(read::<Pod>(&pod)));
    }

    fn attachment(&mut self, node: &str, change: Value) {
        let name = names::attachment(&"d".into(), &"h".into(), &node.into());
        let meta = json!({"name": name, "uid": "a", "resourceVersion": self.next_version()});
        let spec = json!({"attacher": "d", "nodeName": node, "source": {"persistentVolumeName": "v"}});
        let attachment = with(json!({"metadata": meta, "spec": spec, "status": {"attached": true}}), &change);
        self.cache.attachments.apply(Ok(read::<Attachment>(&attachment)));
    }

    fn facts(&self) -> Facts {
        let sources = Sources { cache: &self.cache, marks: &self.marks, force_on_timeout: true };
        let key = Key::Volume("kubernetes.io/csi/d^h".into());
        sources.facts(&key, &Run::default()).unwrap()
    }

    /// The next effect and its node.
    fn next(&self) -> String {
        match self.facts().next() {
            Step::Rest => "rest".to_owned(),
            Step::Begin(held) => format!("begin {}", held.node),
            Step::CallOff(held) => format!("call off {}", held.node),
            Step::Look(held) => format!("look {}", held.node),
            Step::Detach(held, force) => format!("detach {} {force:?}", held.node),
            Step::Attach(wants) => {
                format!(
                    "attach {}",
                    wants.iter().map(|want| want.node.as_str()).collect::<Vec<_>>().join(" ")
                )
            }
        }
    }

    fn complaints(&self) -> Vec<String> {
        let complaints = self.facts().complaints();
        complaints.into_iter().map(|(pod, note)| format!("{}: {}", pod.key.name, note.text)).collect()
    }
}

fn held() -> Held {
    Held {
        name: "a".into(),
        uid: "a".into(),
        node: "n".into(),
        machine: Machine::There { ready: true, out_of_service: false },
        made_for: MadeFor::It,
        attached: true,
        deleting: false,
        attach_error: None,
        detach_error: None,
        wanted: false,
        unwanted_for: Duration::ZERO,
        attaching_for: Duration::ZERO,
        listed: false,
        in_use: false,
        leaving: None,
        looked: false,
    }
}

#[test]
fn volumes_leave_when_they_may() {
    use Leave::{Goes, Stays, Waits};
    let down = |out_of_service| Machine::There { ready: false, out_of_service };
    let used = Held { in_use: true, ..held() };
    let gone =
        |seconds| Held { unwanted_for: Duration::from_secs(seconds), machine: Machine::Gone, ..used.clone() };
    let late =
        |seconds| Held { unwanted_for: Duration::from_secs(seconds), machine: down(false), ..used.clone() };
    #[rustfmt::skip] // one row a case
    let table = [
        ("nobody wants it",                  held(),                                               true,  Goes(None)),
        ("a pod does",                       Held { wanted: true, ..held() },                      true,  Stays),
        ("it goes already",                  Held { deleting: true, ..held() },                    true,  Stays),
        ("it is somebody's",                 Held { made_for: MadeFor::Others, ..held() },         true,  Stays),
        ("kubelet attaches",                 Held { machine: Machine::Unmanaged, ..held() },       true,  Stays),
        ("the node cannot be read",          Held { machine: Machine::Unreadable, ..held() },      true,  Stays),
        ("the node is gone, and used it not", Held { machine: Machine::Gone, ..held() },           true,  Goes(None)),
        ("and may use it",                   gone(0),                                              true,  Waits(Some(FORCE_AFTER))),
        ("for nearly six minutes",           gone(359),                                            true,  Waits(Some(Duration::from_secs(1)))),
        ("for six minutes",                  gone(360),                                            true,  Goes(Some(Force::NodeGone))),
        ("and no force",                     gone(360),                                            false, Waits(None)),
        ("gone, and a pod is not",           Held { wanted: true, ..gone(360) },                   true,  Stays),
        ("in use",                           used.clone(),                                         true,  Waits(None)),
        ("in use for long, and ready",       Held { unwanted_for: FORCE_AFTER * 9, ..used.clone() }, true, Waits(None)),
        ("in use, and not ready",            late(0),                                              true,  Waits(Some(FORCE_AFTER))),
        ("nearly six minutes",               late(359),                                            true,  Waits(Some(Duration::from_secs(1)))),
        ("six minutes",                      late(360),                                            true,  Goes(Some(Force::Timeout))),
        ("six minutes, and no force",        late(360),                                            false, Waits(None)),
        ("not in use, and not ready",        Held { machine: down(false), ..held() },              true,  Goes(None)),
        ("out of service",                   Held { machine: down(true), ..used.clone() },         false, Goes(Some(Force::OutOfService))),
        ("out of service, and wanted",       Held { machine: down(true), wanted: true, ..used.clone() }, true, Stays),
        ("nobody's, and a pod may use it",   Held { made_for: MadeFor::Nobody, wanted: true, ..late(360) }, true, Waits(None)),
        ("nobody's, and out of service",     Held { machine: down(true), made_for: MadeFor::Nobody, wanted: true, ..used.clone() }, true, Waits(None)),
        ("nobody's, gone, with a pod",       Held { made_for: MadeFor::Nobody, wanted: true, ..gone(360) }, true, Waits(None)),
        ("nobody's, and not in use",         Held { made_for: MadeFor::Nobody, wanted: true, ..held() }, true, Goes(None)),
        ("nobody's, without a pod",          Held { made_for: MadeFor::Nobody, ..late(360) },      true,  Goes(Some(Force::Timeout))),
        ("asked for, and wanted again",      Held { leaving: Some(Leaving::Asked), wanted: true, ..held() }, true, Goes(None)),
    ];
    for (name, held, force, expected) in table {
        assert_eq!(leave(&held, force), expected, "{name}");
        let reported = is_reported(&held, force);
        let stays = !matches!(expected, Goes(_)) && held.made_for.is_ours() && !held.deleting;
        assert_eq!(reported, stays, "{name}");
    }
    assert!(!is_reported(&Held { wanted: true, attached: false, ..held() }, true));
    assert!(!is_reported(&Held { wanted: true, leaving: Some(Leaving::Begun), ..held() }, true));
}

#[test]
fn modes_say_whether_a_volume_is_for_one_node() {
    for (modes, expected) in [
        (&["ReadWriteOnce"][..], true),
        (&["ReadWriteOncePod"], true),
        (&["ReadWriteMany"], false),
        (&["ReadOnlyMany"], false),
        (&["ReadWriteOnce", "ReadWriteMany"], false),
        (&[], false),
    ] {
        let volume = World::new(modes).cache.volumes.get(&"v".into()).known().unwrap();
        assert_eq!(is_exclusive(&volume), expected, "{modes:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_volume_is_attached_where_it_is_wanted() {
    let mut world = World::new(&["ReadWriteOnce"]);
    assert_eq!(world.next(), "rest", "nobody wants it");
    world.pod("ns", "p", "n");
    assert_eq!(world.next(), "rest", "the node is not there");
    world.node("n", json!({"metadata": {"annotations": null}}));
    assert_eq!(world.next(), "rest", "its kubelet attaches");
    world.node("n", json!({}));
    assert_eq!(world.next(), "attach n");
    world.attachment("n", json!({"status": {"attached": false}}));
    assert_eq!(world.next(), "rest", "the driver is at it");
    assert_eq!(world.facts().patience(), Some(ATTACH_PATIENCE));
    world.attachment("n", json!({}));
    assert_eq!((world.next().as_str(), world.facts().patience()), ("rest", None));
    let facts = world.facts();
    assert_eq!(facts.to_be_told().collect::<Vec<_>>(), [&"n".into()]);
}

#[test]
fn the_oldest_pod_comes_first_and_the_other_is_told() {
    let mut world = World::new(&["ReadWriteOnce"]);
    for node in ["m", "n"] {
        world.node(node, json!({}));
    }
    world.pod("ns", "p", "n");
    world.pod("ns", "q", "m");
    let young = json!({
        "metadata": {"namespace": "ns", "name": "q", "uid": "q", "resourceVersion": "90", "creationTimestamp": "2026-01-01T00:00:09Z"},
        "spec": {"nodeName": "m", "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "c"}}]},
    });
    world.cache.pods.apply(Ok(read::<Pod>(&young)));
    assert_eq!(world.next(), "attach n");
    let refused = Facts { refused: ["n".into()].into(), ..world.facts() };
    assert!(matches!(refused.next(), Step::Rest), "the first of a volume for one node is tried again");
    world.attachment("n", json!({"status": {"attached": false}}));
    assert_eq!(world.next(), "rest", "also as long as it is not known what comes of the first");
    let text = "Multi-Attach error for volume \"v\" Volume is already used by pod(s) p";
    assert_eq!(world.complaints(), [format!("q: {text}")]);
    let shared = World { cache: world.cache, ..World::new(&[]) };
    let meta = json!({"name": "v", "uid": "v-uid", "resourceVersion": "9"});
    let claim = json!({"namespace": "ns", "name": "c", "uid": "c-uid"});
    let spec = json!({"accessModes": ["ReadWriteMany"], "claimRef": claim, "csi": {"driver": "d", "volumeHandle": "h"}});
    shared.cache.volumes.apply(Ok(read::<Volume>(&json!({"metadata": meta, "spec": spec}))));
    assert_eq!((shared.next().as_str(), shared.complaints().len()), ("attach m", 0));
}

#[test]
fn a_volume_for_many_nodes_is_attached_to_all_of_them_after_one_look() {
    const MANY: usize = 1000;
    let mut world = World::new(&["ReadWriteMany"]);
    for number in 0..MANY {
        let node = format!("n{number:03}");
        world.node(&node, json!({}));
        world.pod("ns", &node, &node);
    }
    world.attachment("n500", json!({}));
    let Step::Attach(wants) = world.facts().next() else { panic!("{}", world.next()) };
    assert_eq!((wants.len(), wants[0].node.as_str()), (MANY - 1, "n000"));
    let refused = Facts { refused: ["n000".into()].into(), ..world.facts() };
    let Step::Attach(wants) = refused.next() else { panic!("{}", world.next()) };
    assert_eq!(
        (wants.len(), wants[0].node.as_str()),
        (MANY - 2, "n001"),
        "one that is refused hinders no other"
    );
    assert_eq!(world.complaints().len(), 0);
}

#[test]
fn who_has_the_volume_is_told_and_names_of_other_namespaces_are_not() {
    let other = |namespace: &str, name: &str| Arc::new(pod_of(namespace, name));
    let want = |node: &str, pods: Vec<Arc<Pod>>, volume: &Arc<Volume>| Want {
        node: node.into(),
        machine: Machine::There { ready: true, out_of_service: false },
        volume: Arc::clone(volume),
        pods,
    };
    let volume = World::new(&["ReadWriteOnce"]).cache.volumes.get(&"v".into()).known().unwrap();
    #[rustfmt::skip]
    let table = [
        (vec![], "Volume is already exclusively attached to one node and can't be attached to another"),
        (vec![other("ns", "a"), other("ns", "b")], "Volume is already used by pod(s) a, b"),
        (vec![other("x", "a")], "Volume is already used by 1 pod(s) in different namespaces"),
        (vec![other("ns", "a"), other("x", "b")], "Volume is already used by pod(s) a and 1 pod(s) in different namespaces"),
    ];
    for (pods, expected) in table {
        let mut wants = vec![want("m", vec![other("ns", "q")], &volume)];
        if !pods.is_empty() {
            wants.push(want("n", pods, &volume));
        }
        let facts = Facts {
            driver: "d".into(),
            handle: Some("h".into()),
            doubt: None,
            wants,
            held: vec![held()],
            unregistered: Vec::new(),
            refused: BTreeSet::new(),
            force_on_timeout: true,
        };
        let complaints = facts.complaints();
        let texts: Vec<&str> = complaints
            .iter()
            .filter(|(pod, _)| &*pod.key.name == "q")
            .map(|(_, note)| note.text.as_str())
            .collect();
        assert_eq!(texts, [format!("Multi-Attach error for volume \"v\" {expected}")]);
    }
}

fn pod_of(namespace: &str, name: &str) -> Pod {
    let meta = json!({"namespace": namespace, "name": name, "uid": name, "resourceVersion": "1"});
    read(&json!({"metadata": meta, "spec": {"nodeName": "n"}}))
}

#[test]
fn a_volume_leaves_once_its_node_is_not_told_of_it_any_more() {
    let mut world = World::new(&["ReadWriteOnce"]);
    let told = json!({"status": {"volumesAttached": [{"name": "kubernetes.io/csi/d^h", "devicePath": ""}]}});
    world.node("n", told.clone());
    world.attachment("n", json!({}));
    assert_eq!(world.next(), "rest", "the node first");
    assert_eq!(world.facts().to_be_told().count(), 1);
    world.node("n", json!({}));
    assert_eq!(world.next(), "begin n");
    let name = names::attachment(&"d".into(), &"h".into(), &"n".into());
    assert!(world.marks.begin(&"n".into(), &name, || (ResourceVersion(9), false)));
    assert_eq!(world.next(), "look n");
    world.node("n", json!({"status": {"volumesInUse": ["kubernetes.io/csi/d^h"]}}));
    assert_eq!(world.next(), "call off n", "the look has shown that it is in use");
    world.node("n", told);
    assert_eq!(world.next(), "call off n", "somebody else has told it");
    world.node("n", json!({}));
    world.pod("ns", "p", "n");
    assert_eq!(world.next(), "call off n", "it is wanted again");
    world.marks.ask(&name, &"d".into());
    let sources = Sources { cache: &world.cache, marks: &world.marks, force_on_timeout: true };
    let run = Run { looked: [name].into(), ..Run::default() };
    let facts = sources.facts(&Key::Volume("kubernetes.io/csi/d^h".into()), &run).unwrap();
    assert!(matches!(facts.next(), Step::Detach(..)), "what was asked for is carried through");
}

#[test]
fn a_volume_is_held_by_way_of_an_object_that_is_no_more() {
    let mut world = World::new(&["ReadWriteOnce"]);
    let name = names::attachment(&"d".into(), &"h".into(), &"m".into());
    world.node("m", json!({"status": {"volumesInUse": ["kubernetes.io/csi/d^h"]}}));
    world.node("n", json!({}));
    world.pod("ns", "p", "n");
    world.attachment("m", json!({"spec": {"source": {"persistentVolumeName": "former"}}}));
    world.marks.orphan(&world.cache.attachments.get(&name).known().unwrap(), true);
    assert_eq!(world.next(), "rest");
    assert_eq!(world.complaints().len(), 1);
    world.node("m", json!({}));
    assert_eq!(world.next(), "begin m");
}

#[test]
fn an_attachment_that_is_not_there_says_why() {
    let mut world = World::new(&["ReadWriteOnce"]);
    world.node("n", json!({}));
    world.pod("ns", "p", "n");
    world.attachment("n", json!({"status": {"attached": false, "attachError": {"message": "no room"}}}));
    let failed = |why: &str| vec![format!("p: AttachVolume.Attach failed for volume \"v\" : {why}")];
    assert_eq!(world.complaints(), failed("no room"));
    let deleting = json!({"deletionTimestamp": "2026-01-01T00:00:00Z"});
    world.attachment("n", json!({"metadata": deleting}));
    assert_eq!(world.complaints(), [""; 0], "it takes its time");
    world.attachment("n", json!({"metadata": deleting, "status": {"detachError": {"message": "busy"}}}));
    assert_eq!(world.complaints(), failed("volume attachment is being deleted: busy"));
    world.attachment("n", json!({"status": {"attached": false}}));
    let mut facts = world.facts();
    assert!(facts.complaints().is_empty());
    facts.held[0].attaching_for = ATTACH_PATIENCE;
    let timed_out = "AttachVolume.Attach failed for volume \"v\" : timed out waiting for external-attacher of d CSI driver to \
                     attach volume h; CSINode n does not name the driver";
    assert_eq!(facts.complaints()[0].1.text, timed_out);
}

#[test]
fn claims_that_lead_to_no_volume_say_why() {
    let world = World::new(&[]);
    let key = cofferdam_domain::ClaimKey::new("ns", "c");
    assert!(wants::bound(&world.cache, &key).is_ok());
    let volume = |change: &Value| {
        let claim = json!({"namespace": "ns", "name": "c", "uid": "c-uid"});
        let volume = json!({
            "metadata": {"name": "v", "uid": "v-uid", "resourceVersion": "2"},
            "spec": {"claimRef": claim, "csi": {"driver": "d", "volumeHandle": "h"}},
        });
        world.cache.volumes.apply(Ok(read::<Volume>(&with(volume, change))));
        wants::bound(&world.cache, &key).err()
    };
    let says = |text: &str| Some(text.to_owned());
    assert_eq!(
        volume(&json!({"spec": {"claimRef": {"uid": "other"}}})),
        says("PersistentVolume v is not bound to claim ns/c: expected spec.claimRef.uid \"c-uid\"")
    );
    assert_eq!(
        volume(&json!({"spec": {"csi": null, "iscsi": {}}})),
        says(
            "PersistentVolume v has the in-tree source iscsi: expected spec.csi, for attach-detach attaches CSI volumes only"
        )
    );
    assert_eq!(volume(&json!({"spec": {"csi": null, "nfs": {}}})), None, "it needs no attaching");
    world.cache.volumes.delete(&"v".into(), &"v-uid".into(), ResourceVersion(9));
    assert_eq!(
        wants::bound(&world.cache, &key).err(),
        says("PersistentVolume v of claim ns/c does not exist")
    );
    let pending =
        json!({"metadata": {"namespace": "ns", "name": "c", "uid": "c-uid", "resourceVersion": "2"}});
    world.cache.claims.apply(Ok(read::<Claim>(&pending)));
    assert_eq!(
        wants::bound(&world.cache, &key).err(),
        says("PersistentVolumeClaim ns/c is Pending: expected Bound")
    );
    world.cache.claims.delete(&key, &"c-uid".into(), ResourceVersion(9));
    assert_eq!(wants::bound(&world.cache, &key).err(), says("PersistentVolumeClaim ns/c does not exist"));
}

#[test]
fn a_generic_ephemeral_volume_is_the_claim_that_its_pod_owns() {
    let pod = |change: Value| -> Pod {
        let pod = json!({
            "metadata": {"namespace": "ns", "name": "p", "uid": "p-uid", "resourceVersion": "1"},
            "spec": {"nodeName": "n", "volumes": [{"name": "data", "ephemeral": {}}]},
        });
        read(&with(pod, &change))
    };
    let claim = |owner: &str| -> Claim {
        let owners = json!([{"uid": "x"}, {"uid": owner, "controller": true}]);
        read(
            &json!({"metadata": {"namespace": "ns", "name": "p-data", "resourceVersion": "1", "ownerReferences": owners}}),
        )
    };
    assert_eq!(wants::uses(&pod(json!({})), &claim("p-uid")), Ok(true));
    assert!(wants::uses(&pod(json!({})), &claim("other")).is_err());
    assert_eq!(wants::uses(&pod(json!({"status": {"phase": "Failed"}})), &claim("p-uid")), Ok(false));
    assert_eq!(wants::uses(&pod(json!({"spec": {"nodeName": null}})), &claim("p-uid")), Ok(false));
}
