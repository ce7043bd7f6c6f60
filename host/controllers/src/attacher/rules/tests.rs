//! What attaching decides, case by case.
#![allow(clippy::type_complexity, reason = "a row of a table is spelled where the table is")]

use cofferdam_cluster::{Cache, Kind, decode, writer::Cached};
use cofferdam_domain::{
    Attachment, CsiNode, DriverName, NodeId, Volume,
    storage::{AccessType, CapabilityMode},
};
use cofferdam_sim::objects::with;
use serde_json::{Value, json};

use super::{Able, Listed, Unpublish, Verdict, View, attachment, contradicts, matters, mode, volume};

const FINALIZER: &str = "external-attacher/drv";

fn read<K: Kind>(json: &Value) -> K {
    decode::object(&json.to_string()).unwrap().unwrap()
}

fn meta(name: &str, change: Value) -> Value {
    with(json!({"name": name, "uid": format!("{name}-uid"), "resourceVersion": "5"}), &change)
}

/// An attachment of volume `v` to node `n`.
fn attachment_json() -> Value {
    json!({
        "metadata": meta("a", json!({})),
        "spec": {"attacher": "drv", "nodeName": "n", "source": {"persistentVolumeName": "v"}},
    })
}

/// The same as our process leaves it before it asks the driver.
fn claimed() -> Value {
    with(
        attachment_json(),
        &json!({"metadata": {
            "finalizers": ["example.com/x", FINALIZER], "annotations": {"csi.alpha.kubernetes.io/node-id": "id"},
        }}),
    )
}

fn volume_json() -> Value {
    json!({
        "metadata": meta("v", json!({"finalizers": [FINALIZER]})),
        "spec": {
            "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "mountOptions": ["noatime"],
            "csi": {
                "driver": "drv", "volumeHandle": "h", "fsType": "xfs",
                "volumeAttributes": {"k": "v", "cofferdam.dev/attachment": "{}"},
            },
        },
    })
}

fn node_json() -> Value {
    json!({"metadata": meta("n", json!({})), "spec": {"drivers": [{"name": "drv", "nodeID": "id"}]}})
}

fn deleting() -> Value {
    json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})
}

fn attached() -> Value {
    json!({"status": {"attached": true}})
}

struct World {
    cache: Cache,
    able: Able,
    forced: bool,
    gone_from: Vec<NodeId>,
}

impl World {
    fn new() -> Self {
        let able = Able { publishes: true, read_only: false, tells_writers: false };
        let world = Self { cache: Cache::default(), able, forced: false, gone_from: Vec::new() };
        world.put::<Volume>(&volume_json());
        world.put::<CsiNode>(&node_json());
        world
    }

    fn put<K: Cached>(&self, json: &Value) {
        K::table(&self.cache).apply(decode::object(&json.to_string()).unwrap());
    }

    fn without<K: Cached>(self, name: &str) -> Self {
        K::table(&self.cache).delete(&K::key_of("", name), &format!("{name}-uid").as_str().into(), u64max());
        self
    }

    fn with<K: Cached>(self, json: &Value) -> Self {
        self.put::<K>(json);
        self
    }

    fn decide(&self, json: &Value) -> Verdict {
        let view = View {
            cache: &self.cache,
            able: self.able,
            default_fs_type: Some("ext4"),
            forced: self.forced,
            gone_from: &self.gone_from,
        };
        attachment(view, &read(json))
    }

    fn says(&self, json: &Value) -> String {
        match self.decide(json) {
            Verdict::Settled(_) => "settled".to_owned(),
            Verdict::ProtectVolume(volume) => format!("protect {}", volume.name),
            Verdict::Claim(node) => format!("claim {node}"),
            Verdict::Publish(request) => format!("publish {} {}", request.handle, request.node),
            Verdict::MarkAttached => "mark attached".to_owned(),
            Verdict::Unpublish(Unpublish { handle, node, former }) => {
                format!("unpublish {handle} {node}{}", if former { " former" } else { "" })
            }
            Verdict::Release(at) => format!("release {at}"),
            Verdict::MarkDetached => "mark detached".to_owned(),
            Verdict::Refuse(message) => message,
        }
    }
}

const fn u64max() -> cofferdam_domain::ResourceVersion {
    cofferdam_domain::ResourceVersion(u64::MAX)
}

fn volume_with(change: Value) -> Value {
    with(volume_json(), &change)
}

fn node_with_id(id: &str) -> Value {
    with(node_json(), &json!({"spec": {"drivers": [{"name": "drv", "nodeID": id}]}}))
}

#[test]
fn attaching_goes_step_by_step() {
    let bare = volume_with(json!({"metadata": {"finalizers": []}}));
    assert_eq!(World::new().with::<Volume>(&bare).says(&attachment_json()), "protect v");
    assert_eq!(World::new().says(&attachment_json()), "claim id");
    let without_id = with(claimed(), &json!({"metadata": {"annotations": null}}));
    assert_eq!(World::new().says(&without_id), "claim id");
    assert_eq!(World::new().says(&claimed()), "publish h id");
    assert_eq!(World::new().says(&with(claimed(), &attached())), "settled");
    let contradicted = World { forced: true, ..World::new() };
    assert_eq!(contradicted.says(&with(claimed(), &attached())), "publish h id");
    // Also where somebody has taken our finalizer off meanwhile.
    assert_eq!(contradicted.says(&with(attachment_json(), &attached())), "claim id");
}

#[test]
fn what_the_driver_is_asked() {
    let request = |world: World| {
        let verdict = world.decide(&claimed());
        let Verdict::Publish(request) = verdict else { panic!("{verdict:?}") };
        *request
    };
    let asked = request(World::new());
    assert_eq!(asked.context, [("k".to_owned(), "v".to_owned())].into(), "what is ours stays with us");
    assert!(!asked.read_only);
    let AccessType::Filesystem { fs_type, mount_flags, .. } = asked.capability.access else { panic!() };
    assert_eq!((fs_type.as_deref(), mount_flags), (Some("xfs"), vec!["noatime".to_owned()]));
    let plain = volume_with(json!({"spec": {"csi": {"fsType": ""}}}));
    let asked = request(World::new().with::<Volume>(&plain));
    let AccessType::Filesystem { fs_type, .. } = asked.capability.access else { panic!() };
    assert_eq!(fs_type.as_deref(), Some("ext4"), "--default-fstype");
    let block = volume_with(json!({"spec": {"volumeMode": "Block"}}));
    assert_eq!(request(World::new().with::<Volume>(&block)).capability.access, AccessType::Block);
    let read_only = volume_with(json!({"spec": {"csi": {"readOnly": true}}}));
    let mut world = World::new().with::<Volume>(&read_only);
    assert!(!request(World::new().with::<Volume>(&read_only)).read_only, "the driver does not know it");
    world.able.read_only = true;
    assert!(request(world).read_only);
}

#[test]
fn access_modes_are_folded_into_one() {
    use CapabilityMode::{
        MultiNodeMultiWriter, MultiNodeReaderOnly, SingleNodeMultiWriter, SingleNodeSingleWriter,
        SingleNodeWriter,
    };
    #[rustfmt::skip] // one row a set of modes
    let table: [(&[&str], Option<(CapabilityMode, CapabilityMode)>); 9] = [
        (&["ReadWriteOnce"],                     Some((SingleNodeWriter, SingleNodeMultiWriter))),
        (&["ReadWriteOncePod"],                  Some((SingleNodeWriter, SingleNodeSingleWriter))),
        (&["ReadOnlyMany"],                      Some((MultiNodeReaderOnly, MultiNodeReaderOnly))),
        (&["ReadWriteMany"],                     Some((MultiNodeMultiWriter, MultiNodeMultiWriter))),
        (&["ReadWriteOnce", "ReadWriteMany"],    Some((MultiNodeMultiWriter, MultiNodeMultiWriter))),
        (&["ReadOnlyMany", "ReadWriteOnce", "ReadWriteMany"], Some((MultiNodeMultiWriter, MultiNodeMultiWriter))),
        (&["ReadOnlyMany", "ReadWriteOnce"],     None),
        (&["ReadWriteOncePod", "ReadWriteMany"], None),
        (&[],                                    None),
    ];
    for (modes, expected) in table {
        let volume: Volume = read(&volume_with(json!({"spec": {"accessModes": modes}})));
        let found = (mode(&volume, false).ok(), mode(&volume, true).ok());
        assert_eq!(found, expected.unzip(), "{modes:?}");
    }
}

#[test]
fn what_cannot_be_attached_says_why() {
    let source = |source: Value| with(attachment_json(), &json!({"spec": {"source": source}}));
    let inline = json!({"persistentVolumeName": null, "inlineVolumeSpec": {}});
    let here = |world: World| (world, attachment_json());
    #[rustfmt::skip] // one row a case
    let table = [
        ((World::new(), source(inline)), "spec.source is an inlineVolumeSpec: this version attaches no volumes of in-tree plugins; expected persistentVolumeName"),
        ((World::new(), source(json!({"persistentVolumeName": null}))), "spec.source has 0 members: expected one, persistentVolumeName"),
        ((World::new(), source(json!({"inlineVolumeSpec": {}}))), "spec.source has 2 members: expected one, persistentVolumeName"),
        (here(World::new().without::<Volume>("v")), "PersistentVolume v does not exist"),
        (here(World::new().with::<Volume>(&volume_with(json!({"spec": {"volumeMode": "Odd"}, "metadata": {"resourceVersion": "6"}})))), "PersistentVolume v cannot be read"),
        (here(World::new().with::<Volume>(&volume_with(json!({"spec": {"csi": null}})))), "PersistentVolume v has no spec.csi: expected one of driver drv"),
        (here(World::new().with::<Volume>(&volume_with(json!({"spec": {"csi": {"driver": "other"}}})))), "PersistentVolume v is of driver other: expected drv"),
        (here(World::new().with::<Volume>(&volume_with(deleting()))), "PersistentVolume v is marked for deletion"),
        (here(World::new().with::<Volume>(&volume_with(json!({"spec": {"accessModes": []}})))), "PersistentVolume v: spec.accessModes is empty: expected at least one"),
        (here(World::new().without::<CsiNode>("n")), "CSINode n does not exist"),
        (here(World::new().with::<CsiNode>(&with(node_json(), &json!({"spec": {"drivers": []}})))), "CSINode n does not name driver drv: expected it registered there"),
        (here(World::new().with::<CsiNode>(&node_with_id(""))), "CSINode n does not name driver drv: expected it registered there"),
    ];
    for ((world, attachment), expected) in table {
        assert_eq!(world.says(&attachment), expected);
        // It has nothing of ours on it, and can be deleted.
        assert_eq!(world.says(&with(attachment, &deleting())), "settled", "{expected}");
    }
    // The annotation is for detaching only.
    assert_eq!(World::new().without::<CsiNode>("n").says(&claimed()), "CSINode n does not exist");
}

#[test]
fn detaching_goes_step_by_step() {
    let leaving = with(with(claimed(), &attached()), &deleting());
    assert_eq!(World::new().says(&leaving), "unpublish h id");
    // What was begun and has not ended may have happened.
    assert_eq!(World::new().says(&with(claimed(), &deleting())), "unpublish h id");
    let unpublished = World { gone_from: vec!["id".into()], ..World::new() };
    assert_eq!(unpublished.says(&leaving), "release 1");
    let released = with(leaving.clone(), &json!({"metadata": {"finalizers": ["example.com/x"]}}));
    assert_eq!(unpublished.says(&released), "mark detached");
    // A process died in between: the next one makes sure.
    assert_eq!(World::new().says(&released), "unpublish h id");
    let told = with(released, &json!({"status": {"attached": false}}));
    assert_eq!(World::new().says(&told), "settled");
    assert_eq!(World { forced: true, ..World::new() }.says(&told), "unpublish h id");
    assert_eq!(World { forced: true, ..unpublished }.says(&told), "settled");
}

#[test]
fn the_node_of_a_detach_is_told_by_the_registration_and_else_by_the_annotation() {
    let leaving = with(claimed(), &deleting());
    let gone = || World::new().without::<CsiNode>("n");
    assert_eq!(gone().says(&leaving), "unpublish h id");
    let nameless = with(leaving.clone(), &json!({"metadata": {"annotations": null}}));
    assert_eq!(World::new().says(&nameless), "unpublish h id");
    assert_eq!(
        gone().says(&nameless),
        "neither CSINode n nor the annotation csi.alpha.kubernetes.io/node-id says how driver drv calls the node"
    );
    assert_eq!(
        World::new().without::<Volume>("v").says(&leaving),
        "PersistentVolume v does not exist: nobody can tell what to detach; once it is known to be detached, take the \
         finalizer external-attacher/drv off"
    );
    // Two names: the volume leaves both.
    let mut renamed = World::new().with::<CsiNode>(&node_with_id("new"));
    assert_eq!(renamed.says(&leaving), "unpublish h id former");
    renamed.gone_from.push("id".into());
    assert_eq!(renamed.says(&leaving), "unpublish h new");
    renamed.gone_from.push("new".into());
    assert_eq!(renamed.says(&leaving), "release 1");
}

#[test]
fn a_node_with_a_new_name_first_gives_back_what_it_has_under_the_former() {
    let mut renamed = World::new().with::<CsiNode>(&node_with_id("new"));
    assert_eq!(renamed.says(&claimed()), "unpublish h id former");
    renamed.gone_from.push("id".into());
    assert_eq!(renamed.says(&claimed()), "claim new");
    let reclaimed =
        with(claimed(), &json!({"metadata": {"annotations": {"csi.alpha.kubernetes.io/node-id": "new"}}}));
    assert_eq!(renamed.says(&reclaimed), "publish h new");
    // Without our finalizer nothing was asked for.
    let free = with(claimed(), &json!({"metadata": {"finalizers": null}}));
    assert_eq!(World::new().with::<CsiNode>(&node_with_id("new")).says(&free), "claim new");
}

#[test]
fn a_volume_stays_where_another_attachment_wants_it() {
    let leaving = with(claimed(), &deleting());
    let other = |change: Value| {
        let other = with(claimed(), &json!({"metadata": {"name": "b", "uid": "b-uid"}}));
        World::new().with::<Attachment>(&leaving).with::<Attachment>(&with(other, &change)).says(&leaving)
    };
    assert_eq!(other(json!({})), "release 1");
    assert_eq!(other(attached()), "release 1");
    assert_eq!(other(deleting()), "unpublish h id", "it leaves, too");
    assert_eq!(other(json!({"metadata": {"finalizers": null}})), "unpublish h id", "it is not there yet");
    assert_eq!(other(json!({"spec": {"nodeName": "m"}})), "unpublish h id");
    assert_eq!(other(json!({"spec": {"source": {"persistentVolumeName": "w"}}})), "unpublish h id");
}

#[test]
fn drivers_without_publishing_are_attached_at_once() {
    let world = World { able: Able::default(), ..World::new().without::<Volume>("v") };
    assert_eq!(world.says(&attachment_json()), "mark attached");
    assert_eq!(world.says(&with(attachment_json(), &attached())), "settled");
    assert_eq!(world.says(&with(attachment_json(), &deleting())), "settled");
    // It could publish once.
    assert_eq!(world.says(&with(claimed(), &deleting())), "release 1");
}

#[test]
fn a_volumes_object_is_let_go_when_nobody_names_it() {
    let at = |world: World, json: &Value| {
        volume(&world.cache, &|driver: &DriverName| driver.as_str() == "drv", &read(json))
    };
    let leaving = volume_with(deleting());
    assert_eq!(at(World::new(), &leaving), Some(0));
    assert_eq!(at(World::new(), &volume_json()), None);
    assert_eq!(at(World::new(), &with(leaving.clone(), &json!({"metadata": {"finalizers": null}}))), None);
    assert_eq!(at(World::new(), &with(leaving.clone(), &json!({"spec": {"csi": {"driver": "x"}}}))), None);
    let strange = with(attachment_json(), &json!({"spec": {"attacher": "other"}}));
    assert_eq!(at(World::new().with::<Attachment>(&strange), &leaving), None, "whoever's it is");
}

#[test]
fn own_writes_are_no_reason_to_look_again() {
    let is = |old: &Value, new: &Value| matters(Some(&read(old)), &read(new));
    assert!(matters(None, &read(&attachment_json())));
    assert!(!is(&attachment_json(), &claimed()));
    assert!(!is(&claimed(), &with(claimed(), &attached())));
    assert!(!is(&claimed(), &with(claimed(), &json!({"status": {"attachError": {"message": "m"}}}))));
    assert!(is(&claimed(), &with(claimed(), &deleting())));
    assert!(is(&claimed(), &with(claimed(), &json!({"metadata": {"uid": "other"}}))));
    assert!(is(&with(claimed(), &attached()), &claimed()), "somebody says that it is not attached");
    let leaving = with(claimed(), &deleting());
    assert!(!is(&with(leaving.clone(), &attached()), &leaving));
}

#[test]
fn a_listing_contradicts_what_it_shows_otherwise() {
    let listed = |handle: &str, nodes: &[&str]| -> Listed {
        [(handle.into(), nodes.iter().map(|node| NodeId::from(*node)).collect())].into()
    };
    let is = |world: World, listed: &Listed, json: &Value| contradicts(&world.cache, listed, &read(json));
    let there = with(claimed(), &attached());
    assert!(is(World::new(), &listed("h", &["elsewhere"]), &there));
    assert!(!is(World::new(), &listed("h", &["id"]), &there));
    assert!(!is(World::new(), &listed("other", &[]), &there), "what is not listed proves nothing");
    assert!(!is(World::new().without::<CsiNode>("n"), &listed("h", &[]), &there));
    assert!(!is(World::new(), &listed("h", &["id"]), &claimed()), "it is on its way");
    let stripped =
        with(with(claimed(), &deleting()), &json!({"metadata": {"finalizers": ["example.com/x"]}}));
    assert!(is(World::new(), &listed("h", &["id"]), &stripped));
    assert!(!is(World::new(), &listed("h", &[]), &stripped));
    assert!(!is(World::new(), &listed("h", &["id"]), &with(claimed(), &deleting())), "it is in the lane");
}
