//! Tests of the attach and detach rules, case by case.
#![allow(clippy::type_complexity, reason = "the type of a table's rows is written once, at the table")]

use cofferdam_cluster::{Cache, Kind, decode, writer::CachedKind};
use cofferdam_domain::{
    CsiNode, DriverName, Node, NodeId, Volume, VolumeAttachment,
    storage::{AccessType, CsiAccessMode},
};
use cofferdam_sim::objects::with;
use serde_json::{Value, json};

use super::{
    AttacherInput, AttachmentVerdict, PublishAbilities, PublishedNodesByVolume, Unpublish, capability_mode,
    check_confirmation, decide_attachment, is_listed_as_detached, is_out_of_sync, is_relevant_change,
    removable_volume_finalizer,
};

const FINALIZER: &str = "external-attacher/drv";

fn read<K: Kind>(json: &Value) -> K {
    decode::object(&json.to_string()).unwrap().unwrap()
}

fn meta(name: &str, change: Value) -> Value {
    with(json!({"name": name, "uid": format!("{name}-uid"), "resourceVersion": "5"}), &change)
}

/// A VolumeAttachment of volume `v` and node `n`.
fn attachment_json() -> Value {
    json!({
        "metadata": meta("a", json!({})),
        "spec": {"attacher": "drv", "nodeName": "n", "source": {"persistentVolumeName": "v"}},
    })
}

/// The VolumeAttachment of [`attachment_json`] with finalizer and node ID, ready for the publish call.
fn prepared() -> Value {
    with(
        attachment_json(),
        &json!({"metadata": {
            "finalizers": ["example.com/x", FINALIZER],
            "annotations": {"csi.alpha.kubernetes.io/node-id": "id"},
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
                "volumeAttributes": {"k": "v", "cofferdam.dev/connection-info": "{}"},
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

struct AttacherFixture {
    cache: Cache,
    abilities: PublishAbilities,
    force_sync: bool,
    unpublished_from: Vec<NodeId>,
    is_detach_proven: bool,
}

impl AttacherFixture {
    fn new() -> Self {
        let abilities =
            PublishAbilities { publishes: true, read_only: false, single_node_multi_writer: false };
        let fixture = Self {
            cache: Cache::default(),
            abilities,
            force_sync: false,
            unpublished_from: Vec::new(),
            is_detach_proven: false,
        };
        fixture.put::<Volume>(&volume_json());
        fixture.put::<CsiNode>(&node_json());
        fixture
    }

    fn put<K: CachedKind>(&self, json: &Value) {
        K::store(&self.cache).apply(decode::object(&json.to_string()).unwrap());
    }

    fn without<K: CachedKind>(self, name: &str) -> Self {
        K::store(&self.cache).delete(
            &K::key_from_parts("", name),
            &format!("{name}-uid").as_str().into(),
            u64max(),
        );
        self
    }

    fn with<K: CachedKind>(self, json: &Value) -> Self {
        self.put::<K>(json);
        self
    }

    fn decide(&self, json: &Value) -> AttachmentVerdict {
        let input = AttacherInput {
            cache: &self.cache,
            abilities: self.abilities,
            default_fs_type: Some("ext4"),
            force_sync: self.force_sync,
            unpublished_from: &self.unpublished_from,
            is_detach_proven: self.is_detach_proven,
        };
        decide_attachment(input, &read(json))
    }

    fn describe(&self, json: &Value) -> String {
        match self.decide(json) {
            AttachmentVerdict::NoAction(_) => "no action".to_owned(),
            AttachmentVerdict::AddVolumeFinalizer(volume) => format!("protect {}", volume.name),
            AttachmentVerdict::RecordNodeId(node) => format!("record {node}"),
            AttachmentVerdict::Publish(request) => format!("publish {} {}", request.handle, request.node_id),
            AttachmentVerdict::MarkAttached => "mark attached".to_owned(),
            AttachmentVerdict::Unpublish(Unpublish { handle, node, former }) => {
                format!("unpublish {handle} {node}{}", if former { " former" } else { "" })
            }
            AttachmentVerdict::RemoveFinalizer(at) => format!("release {at}"),
            AttachmentVerdict::MarkDetached => "mark detached".to_owned(),
            AttachmentVerdict::Fail(message) => message,
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
fn attach_performs_one_effect_at_a_time() {
    let bare = volume_with(json!({"metadata": {"finalizers": []}}));
    assert_eq!(AttacherFixture::new().with::<Volume>(&bare).describe(&attachment_json()), "protect v");
    assert_eq!(AttacherFixture::new().describe(&attachment_json()), "record id");
    let without_id = with(prepared(), &json!({"metadata": {"annotations": null}}));
    assert_eq!(AttacherFixture::new().describe(&without_id), "record id");
    assert_eq!(AttacherFixture::new().describe(&prepared()), "publish h id");
    assert_eq!(AttacherFixture::new().describe(&with(prepared(), &attached())), "no action");
    let contradicted = AttacherFixture { force_sync: true, ..AttacherFixture::new() };
    assert_eq!(contradicted.describe(&with(prepared(), &attached())), "publish h id");
    // An attachment without the finalizer first gets it again.
    assert_eq!(contradicted.describe(&with(attachment_json(), &attached())), "record id");
}

#[test]
fn the_publish_request_has_fs_type_context_and_read_only() {
    let request = |fixture: AttacherFixture| {
        let verdict = fixture.decide(&prepared());
        let AttachmentVerdict::Publish(request) = verdict else { panic!("{verdict:?}") };
        *request
    };
    let publish = request(AttacherFixture::new());
    assert_eq!(
        publish.context,
        [("k".to_owned(), "v".to_owned())].into(),
        "Cofferdam's own attributes are not sent"
    );
    assert!(!publish.read_only);
    let AccessType::Filesystem { fs_type, mount_flags, .. } = publish.capability.access_type else {
        panic!()
    };
    assert_eq!((fs_type.as_deref(), mount_flags), (Some("xfs"), vec!["noatime".to_owned()]));
    let plain = volume_with(json!({"spec": {"csi": {"fsType": ""}}}));
    let publish = request(AttacherFixture::new().with::<Volume>(&plain));
    let AccessType::Filesystem { fs_type, .. } = publish.capability.access_type else { panic!() };
    assert_eq!(fs_type.as_deref(), Some("ext4"), "--default-fstype");
    let block = volume_with(json!({"spec": {"volumeMode": "Block"}}));
    assert_eq!(
        request(AttacherFixture::new().with::<Volume>(&block)).capability.access_type,
        AccessType::Block
    );
    let read_only = volume_with(json!({"spec": {"csi": {"readOnly": true}}}));
    let mut fixture = AttacherFixture::new().with::<Volume>(&read_only);
    assert!(
        !request(AttacherFixture::new().with::<Volume>(&read_only)).read_only,
        "without PUBLISH_READONLY"
    );
    fixture.abilities.read_only = true;
    assert!(request(fixture).read_only);
}

#[test]
fn access_modes_are_folded_into_one() {
    use CsiAccessMode::{
        MultiNodeMultiWriter, MultiNodeReaderOnly, SingleNodeMultiWriter, SingleNodeSingleWriter,
        SingleNodeWriter,
    };
    #[rustfmt::skip] // one row per set of modes
    let table: [(&[&str], Option<(CsiAccessMode, CsiAccessMode)>); 9] = [
        (&["ReadWriteOnce"],                     Some((SingleNodeWriter, SingleNodeMultiWriter))),
        (&["ReadWriteOncePod"],                  Some((SingleNodeWriter, SingleNodeSingleWriter))),
        (&["ReadOnlyMany"],                      Some((MultiNodeReaderOnly, MultiNodeReaderOnly))),
        (&["ReadWriteMany"],                     Some((MultiNodeMultiWriter, MultiNodeMultiWriter))),
        (&["ReadWriteOnce", "ReadWriteMany"],    Some((MultiNodeMultiWriter, MultiNodeMultiWriter))),
        (
            &["ReadOnlyMany", "ReadWriteOnce", "ReadWriteMany"],
            Some((MultiNodeMultiWriter, MultiNodeMultiWriter)),
        ),
        (&["ReadOnlyMany", "ReadWriteOnce"],     None),
        (&["ReadWriteOncePod", "ReadWriteMany"], None),
        (&[],                                    None),
    ];
    for (modes, expected) in table {
        let volume: Volume = read(&volume_with(json!({"spec": {"accessModes": modes}})));
        let found = (capability_mode(&volume, false).ok(), capability_mode(&volume, true).ok());
        assert_eq!(found, expected.unzip(), "{modes:?}");
    }
}

#[test]
fn an_impossible_attach_reports_its_reason() {
    let source = |source: Value| with(attachment_json(), &json!({"spec": {"source": source}}));
    let inline = json!({"persistentVolumeName": null, "inlineVolumeSpec": {}});
    let with_attachment = |fixture: AttacherFixture| (fixture, attachment_json());
    let with_volume = |change| with_attachment(AttacherFixture::new().with::<Volume>(&volume_with(change)));
    let undecodable = json!({"spec": {"volumeMode": "Odd"}, "metadata": {"resourceVersion": "6"}});
    let other_driver = json!({"spec": {"csi": {"driver": "other"}}});
    let no_drivers = with(node_json(), &json!({"spec": {"drivers": []}}));
    #[rustfmt::skip] // one row per case
    let table = [
        (
            (AttacherFixture::new(), source(inline)),
            "spec.source is an inlineVolumeSpec: volumes of in-tree plugins are not supported; \
             expected persistentVolumeName",
        ),
        (
            (AttacherFixture::new(), source(json!({"persistentVolumeName": null}))),
            "spec.source has 0 members; expected one, persistentVolumeName",
        ),
        (
            (AttacherFixture::new(), source(json!({"inlineVolumeSpec": {}}))),
            "spec.source has 2 members; expected one, persistentVolumeName",
        ),
        (with_attachment(AttacherFixture::new().without::<Volume>("v")), "PersistentVolume v does not exist"),
        (with_volume(undecodable), "PersistentVolume v cannot be decoded"),
        (
            with_volume(json!({"spec": {"csi": null}})),
            "PersistentVolume v has no spec.csi; expected a volume of driver drv",
        ),
        (with_volume(other_driver), "PersistentVolume v has driver other; expected drv"),
        (with_volume(deleting()), "PersistentVolume v is marked for deletion"),
        (
            with_volume(json!({"spec": {"accessModes": []}})),
            "PersistentVolume v: spec.accessModes is empty; expected at least one mode",
        ),
        (with_attachment(AttacherFixture::new().without::<CsiNode>("n")), "CSINode n does not exist"),
        (
            with_attachment(AttacherFixture::new().with::<CsiNode>(&no_drivers)),
            "driver drv is not registered in CSINode n",
        ),
        (
            with_attachment(AttacherFixture::new().with::<CsiNode>(&node_with_id(""))),
            "driver drv is not registered in CSINode n",
        ),
    ];
    for ((fixture, attachment), expected) in table {
        assert_eq!(fixture.describe(&attachment), expected);
        // It has no finalizer of the attacher and can be deleted.
        assert_eq!(fixture.describe(&with(attachment, &deleting())), "no action", "{expected}");
    }
    // The node-id annotation replaces the CSINode for detach only.
    assert_eq!(
        AttacherFixture::new().without::<CsiNode>("n").describe(&prepared()),
        "CSINode n does not exist"
    );
}

#[test]
fn detach_performs_one_effect_at_a_time() {
    let deleted = with(with(prepared(), &attached()), &deleting());
    assert_eq!(AttacherFixture::new().describe(&deleted), "unpublish h id");
    // A publish call without a result may have taken effect.
    assert_eq!(AttacherFixture::new().describe(&with(prepared(), &deleting())), "unpublish h id");
    let unpublished = AttacherFixture { unpublished_from: vec!["id".into()], ..AttacherFixture::new() };
    assert_eq!(unpublished.describe(&deleted), "release 1");
    let released = with(deleted.clone(), &json!({"metadata": {"finalizers": ["example.com/x"]}}));
    assert_eq!(unpublished.describe(&released), "mark detached");
    // After a crash between the two writes, the next process unpublishes again.
    assert_eq!(AttacherFixture::new().describe(&released), "unpublish h id");
    let detached = with(released, &json!({"status": {"attached": false}}));
    assert_eq!(AttacherFixture::new().describe(&detached), "no action");
    assert_eq!(
        AttacherFixture { force_sync: true, ..AttacherFixture::new() }.describe(&detached),
        "unpublish h id"
    );
    assert_eq!(AttacherFixture { force_sync: true, ..unpublished }.describe(&detached), "no action");
}

#[test]
fn detach_takes_the_node_id_from_csinode_then_from_the_annotation() {
    let deleted = with(prepared(), &deleting());
    let without_csi_node = || AttacherFixture::new().without::<CsiNode>("n");
    assert_eq!(without_csi_node().describe(&deleted), "unpublish h id");
    let without_annotation = with(deleted.clone(), &json!({"metadata": {"annotations": null}}));
    assert_eq!(AttacherFixture::new().describe(&without_annotation), "unpublish h id");
    assert_eq!(
        without_csi_node().describe(&without_annotation),
        "neither CSINode n nor the annotation csi.alpha.kubernetes.io/node-id has the node ID of driver drv"
    );
    assert_eq!(
        AttacherFixture::new().without::<Volume>("v").describe(&deleted),
        "PersistentVolume v does not exist: the volume to detach is unknown; \
         verify that it is detached, then remove the finalizer external-attacher/drv"
    );
    // Two node IDs: the volume is unpublished from both.
    let mut renamed = AttacherFixture::new().with::<CsiNode>(&node_with_id("new"));
    assert_eq!(renamed.describe(&deleted), "unpublish h id former");
    renamed.unpublished_from.push("id".into());
    assert_eq!(renamed.describe(&deleted), "unpublish h new");
    renamed.unpublished_from.push("new".into());
    assert_eq!(renamed.describe(&deleted), "release 1");
}

#[test]
fn a_changed_node_id_unpublishes_the_former_id_first() {
    let mut renamed = AttacherFixture::new().with::<CsiNode>(&node_with_id("new"));
    assert_eq!(renamed.describe(&prepared()), "unpublish h id former");
    renamed.unpublished_from.push("id".into());
    assert_eq!(renamed.describe(&prepared()), "record new");
    let updated =
        with(prepared(), &json!({"metadata": {"annotations": {"csi.alpha.kubernetes.io/node-id": "new"}}}));
    assert_eq!(renamed.describe(&updated), "publish h new");
    // Without the finalizer no publish call was sent.
    let free = with(prepared(), &json!({"metadata": {"finalizers": null}}));
    assert_eq!(AttacherFixture::new().with::<CsiNode>(&node_with_id("new")).describe(&free), "record new");
}

#[test]
fn a_volume_used_by_another_attachment_stays_published() {
    let deleted = with(prepared(), &deleting());
    let other = |change: Value| {
        let other = with(prepared(), &json!({"metadata": {"name": "b", "uid": "b-uid"}}));
        AttacherFixture::new()
            .with::<VolumeAttachment>(&deleted)
            .with::<VolumeAttachment>(&with(other, &change))
            .describe(&deleted)
    };
    assert_eq!(other(json!({})), "release 1");
    assert_eq!(other(attached()), "release 1");
    assert_eq!(other(deleting()), "unpublish h id", "the other VolumeAttachment is being deleted, too");
    assert_eq!(
        other(json!({"metadata": {"finalizers": null}})),
        "unpublish h id",
        "the other VolumeAttachment is not prepared"
    );
    assert_eq!(other(json!({"spec": {"nodeName": "m"}})), "unpublish h id");
    assert_eq!(other(json!({"spec": {"source": {"persistentVolumeName": "w"}}})), "unpublish h id");
}

/// The VolumeAttachment of [`prepared`] that is being deleted, with an operator's confirmation.
fn confirmed(reason: &str) -> Value {
    let annotation = json!({"metadata": {"annotations": {"cofferdam.dev/confirm-detached": reason}}});
    with(with(prepared(), &deleting()), &annotation)
}

#[test]
fn a_proven_detach_ends_without_the_driver() {
    let proven = || AttacherFixture { is_detach_proven: true, ..AttacherFixture::new() };
    let first = AttacherFixture::new().describe(&confirmed("unplugged"));
    assert_eq!(first, "unpublish h id", "the driver is called first");
    assert_eq!(proven().describe(&confirmed("unplugged")), "release 1");
    assert_eq!(proven().without::<Volume>("v").describe(&confirmed("unplugged")), "release 1");
    let stripped = with(confirmed("unplugged"), &json!({"metadata": {"finalizers": ["example.com/x"]}}));
    assert_eq!(proven().describe(&with(stripped.clone(), &attached())), "mark detached");
    assert_eq!(proven().describe(&stripped), "no action");
}

#[test]
fn an_operators_confirmation_needs_a_deletion_a_reason_and_a_node_out_of_service() {
    let node = |taints: Value| -> Node {
        read(&json!({"metadata": meta("n", json!({})), "spec": {"taints": taints}}))
    };
    let out_of_service = json!([{"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}]);
    let in_service = json!([{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}]);
    let not_deleted = with(confirmed("unplugged"), &json!({"metadata": {"deletionTimestamp": null}}));
    let no_effect = "the annotation cofferdam.dev/confirm-detached has no effect: ";
    let not_deleting =
        format!("{no_effect}the VolumeAttachment is not being deleted; set it after the deletion");
    let no_reason =
        format!("{no_effect}it is empty; expected the reason why the volume is certainly detached");
    let node_in_service = format!(
        "{no_effect}Node n exists without the taint node.kubernetes.io/out-of-service; \
         expected the taint, or that the Node is deleted"
    );
    #[rustfmt::skip] // one row per case
    let table = [
        ("no annotation", with(prepared(), &deleting()), None, Ok(None)),
        ("no Node", confirmed("unplugged"), None, Ok(Some("unplugged"))),
        ("taint", confirmed("unplugged"), Some(node(out_of_service.clone())), Ok(Some("unplugged"))),
        ("no taint", confirmed("unplugged"), Some(node(json!([]))), Err(node_in_service.clone())),
        ("another taint", confirmed("unplugged"), Some(node(in_service)), Err(node_in_service)),
        ("no reason", confirmed(" "), Some(node(out_of_service.clone())), Err(no_reason)),
        ("not being deleted", not_deleted, Some(node(out_of_service)), Err(not_deleting)),
    ];
    for (name, attachment, node, expected) in table {
        let attachment: VolumeAttachment = read(&attachment);
        let checked = check_confirmation(&attachment, node.as_ref()).map_err(|error| error.to_string());
        assert_eq!(checked, expected, "{name}");
    }
}

#[test]
fn list_volumes_proves_a_detach_that_has_failed() {
    let failed = with(
        with(prepared(), &deleting()),
        &json!({"status": {"attached": true, "detachError": {"message": "no such instance"}}}),
    );
    let listed = |nodes: &[&str]| -> PublishedNodesByVolume {
        [("h".into(), nodes.iter().map(|node| NodeId::from(*node)).collect())].into()
    };
    let is = |fixture: AttacherFixture, published: &PublishedNodesByVolume, json: &Value| {
        is_listed_as_detached(&fixture.cache, published, &read(json))
    };
    assert!(is(AttacherFixture::new(), &listed(&[]), &failed));
    assert!(is(AttacherFixture::new(), &listed(&["elsewhere"]), &failed));
    let without_csi_node = || AttacherFixture::new().without::<CsiNode>("n");
    assert!(is(without_csi_node(), &listed(&[]), &failed), "the recorded node ID");
    assert!(!is(AttacherFixture::new(), &listed(&["id"]), &failed));
    let renamed = || AttacherFixture::new().with::<CsiNode>(&node_with_id("new"));
    assert!(is(renamed(), &listed(&[]), &failed));
    assert!(!is(renamed(), &listed(&["id"]), &failed), "the former node ID");
    assert!(!is(AttacherFixture::new(), &PublishedNodesByVolume::new(), &failed), "the volume is not listed");
    let without_ids = with(failed.clone(), &json!({"metadata": {"annotations": null}}));
    assert!(!is(without_csi_node(), &listed(&[]), &without_ids));
    let not_failed = with(failed.clone(), &json!({"status": {"detachError": null}}));
    assert!(!is(AttacherFixture::new(), &listed(&[]), &not_failed), "the driver may still detach it");
    let kept = with(failed, &json!({"metadata": {"deletionTimestamp": null}}));
    assert!(!is(AttacherFixture::new(), &listed(&[]), &kept));
}

#[test]
fn drivers_without_publishing_are_attached_without_a_call() {
    let fixture = AttacherFixture {
        abilities: PublishAbilities::default(),
        ..AttacherFixture::new().without::<Volume>("v")
    };
    assert_eq!(fixture.describe(&attachment_json()), "mark attached");
    assert_eq!(fixture.describe(&with(attachment_json(), &attached())), "no action");
    assert_eq!(fixture.describe(&with(attachment_json(), &deleting())), "no action");
    // An earlier version of the driver published volumes.
    assert_eq!(fixture.describe(&with(prepared(), &deleting())), "release 1");
}

#[test]
fn volume_finalizer_is_removed_once_no_attachment_names_the_volume() {
    let finalizer_index = |fixture: AttacherFixture, json: &Value| {
        removable_volume_finalizer(
            &fixture.cache,
            &|driver: &DriverName| driver.as_str() == "drv",
            &read(json),
            false,
        )
    };
    let deleted = volume_with(deleting());
    assert_eq!(finalizer_index(AttacherFixture::new(), &deleted), Some(0));
    assert_eq!(finalizer_index(AttacherFixture::new(), &volume_json()), None);
    assert_eq!(
        finalizer_index(
            AttacherFixture::new(),
            &with(deleted.clone(), &json!({"metadata": {"finalizers": null}}))
        ),
        None
    );
    assert_eq!(
        finalizer_index(
            AttacherFixture::new(),
            &with(deleted.clone(), &json!({"spec": {"csi": {"driver": "x"}}}))
        ),
        None
    );
    let of_other_driver = with(attachment_json(), &json!({"spec": {"attacher": "other"}}));
    assert_eq!(
        finalizer_index(AttacherFixture::new().with::<VolumeAttachment>(&of_other_driver), &deleted),
        None,
        "a VolumeAttachment of another driver"
    );
}

#[test]
fn own_writes_are_not_relevant_changes() {
    let is = |old: &Value, new: &Value| is_relevant_change(Some(&read(old)), &read(new));
    assert!(is_relevant_change(None, &read(&attachment_json())));
    assert!(!is(&attachment_json(), &prepared()));
    assert!(!is(&prepared(), &with(prepared(), &attached())));
    assert!(!is(&prepared(), &with(prepared(), &json!({"status": {"attachError": {"message": "m"}}}))));
    assert!(is(&prepared(), &with(prepared(), &deleting())));
    assert!(is(&prepared(), &with(prepared(), &json!({"metadata": {"uid": "other"}}))));
    assert!(is(&with(prepared(), &attached()), &prepared()), "another client has cleared `attached`");
    let deleted = with(prepared(), &deleting());
    assert!(!is(&with(deleted.clone(), &attached()), &deleted));
    assert!(is(&deleted, &confirmed("unplugged")), "an operator confirms the detach");
    assert!(is(&confirmed("unplugged"), &confirmed("unplugged again")));
    assert!(!is(&confirmed("unplugged"), &with(confirmed("unplugged"), &attached())));
}

#[test]
fn an_attachment_that_differs_from_list_volumes_is_out_of_sync() {
    let published = |handle: &str, nodes: &[&str]| -> PublishedNodesByVolume {
        [(handle.into(), nodes.iter().map(|node| NodeId::from(*node)).collect())].into()
    };
    let is = |fixture: AttacherFixture, published: &PublishedNodesByVolume, json: &Value| {
        is_out_of_sync(&fixture.cache, published, &read(json))
    };
    let attached_attachment = with(prepared(), &attached());
    assert!(is(AttacherFixture::new(), &published("h", &["elsewhere"]), &attached_attachment));
    assert!(!is(AttacherFixture::new(), &published("h", &["id"]), &attached_attachment));
    assert!(
        !is(AttacherFixture::new(), &published("other", &[]), &attached_attachment),
        "a missing volume is no contradiction"
    );
    assert!(!is(AttacherFixture::new().without::<CsiNode>("n"), &published("h", &[]), &attached_attachment));
    assert!(!is(AttacherFixture::new(), &published("h", &["id"]), &prepared()), "it is not attached yet");
    let stripped =
        with(with(prepared(), &deleting()), &json!({"metadata": {"finalizers": ["example.com/x"]}}));
    assert!(is(AttacherFixture::new(), &published("h", &["id"]), &stripped));
    assert!(!is(AttacherFixture::new(), &published("h", &[]), &stripped));
    assert!(
        !is(AttacherFixture::new(), &published("h", &["id"]), &with(prepared(), &deleting())),
        "it is in the detach queue"
    );
}

#[test]
fn the_local_provisioner_removes_the_volume_finalizer_with_its_own() {
    let finalizers = json!({"metadata": {"finalizers": [
        "external-attacher/drv", "external-provisioner.volume.kubernetes.io/finalizer",
    ]}});
    let deleted = with(volume_with(deleting()), &finalizers);
    let released = json!({"status": {"phase": "Released"}});
    let policy = |policy: &str| json!({"spec": {"persistentVolumeReclaimPolicy": policy}});
    let fixture = AttacherFixture::new();
    for (name, json, is_provisioned_here, expected) in [
        ("released", with(with(deleted.clone(), &released), &policy("Delete")), true, None),
        ("no provisioner", with(with(deleted.clone(), &released), &policy("Delete")), false, Some(0)),
        ("retained", with(with(deleted.clone(), &released), &policy("Retain")), true, Some(0)),
        ("not released", with(deleted.clone(), &policy("Delete")), true, Some(0)),
        (
            "without the provisioner's finalizer",
            with(
                with(with(deleted, &released), &policy("Delete")),
                &json!({"metadata": {"finalizers": ["external-attacher/drv"]}}),
            ),
            true,
            Some(0),
        ),
    ] {
        let found = removable_volume_finalizer(
            &fixture.cache,
            &|_: &DriverName| true,
            &read(&json),
            is_provisioned_here,
        );
        assert_eq!(found, expected, "{name}");
    }
}
