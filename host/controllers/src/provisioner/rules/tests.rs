//! What provisioning decides, case by case.
#![allow(clippy::type_complexity, reason = "a row of a table is spelled where the table is")]

use std::{collections::BTreeSet, sync::Arc};

use cofferdam_cluster::{Cache, Intent, Kind, decode};
use cofferdam_domain::{
    Claim, ClassName, DriverName, StorageClass, Uid, Volume,
    storage::{
        AccessType, CapabilityMode, CreatedVolume, ErrorKind, Finality, Segments, StorageError,
        TopologyRequirement,
    },
};
use cofferdam_sim::objects::with;
use serde_json::{Value, json};

use super::super::placement::Here;
use super::{ClaimVerdict, Created, Options, View, VolumeVerdict, capability_modes, claim, created, volume};

const UID: &str = "1234";

fn options() -> Options {
    Options {
        prefix: "pvc".to_owned(),
        default_fs_type: None,
        extra_create_metadata: false,
        cluster: "cluster".into(),
        binder_here: true,
        tell_writers: BTreeSet::new(),
        modifying: BTreeSet::new(),
        topology: BTreeSet::new(),
        strict_topology: false,
        immediate_topology: true,
        here: None,
    }
}

/// `base` with `change` merged over it, as a merge patch would.
fn merged(base: Value, change: Value) -> Value {
    with(base, &change)
}

fn claim_json() -> Value {
    json!({
        "metadata": {"namespace": "ns", "name": "c", "uid": UID, "resourceVersion": "5"},
        "spec": {
            "storageClassName": "gold",
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
        },
        "status": {"phase": "Pending"},
    })
}

fn class_json() -> Value {
    json!({
        "metadata": {"name": "gold", "uid": "class-uid", "resourceVersion": "3"},
        "provisioner": "drv",
        "parameters": {"tier": "fast"},
        "reclaimPolicy": "Delete",
        "volumeBindingMode": "Immediate",
        "mountOptions": ["noatime"],
    })
}

fn volume_json() -> Value {
    json!({
        "metadata": {
            "name": "pvc-1234", "uid": "volume-uid", "resourceVersion": "7",
            "finalizers": ["kubernetes.io/pv-protection", "external-provisioner.volume.kubernetes.io/finalizer"],
            "annotations": {"pv.kubernetes.io/provisioned-by": "drv"},
        },
        "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Delete", "storageClassName": "gold",
            "claimRef": {"namespace": "ns", "name": "c", "uid": UID},
            "csi": {"driver": "drv", "volumeHandle": "h"},
        },
        "status": {"phase": "Bound"},
    })
}

fn read<K: Kind>(json: &Value) -> K {
    decode::object(&json.to_string()).unwrap().unwrap()
}

struct World {
    cache: Cache,
    options: Options,
    intent: Option<Arc<Intent>>,
    infeasible: Option<Uid>,
}

impl World {
    fn new(claim: Option<Value>, class: Option<Value>, volume: Option<Value>) -> Self {
        let cache = Cache::default();
        claim.iter().for_each(|json| assert!(cache.claims.apply(Ok(read(json)))));
        class.iter().for_each(|json| assert!(cache.classes.apply(Ok(read(json)))));
        volume.iter().for_each(|json| assert!(cache.volumes.apply(Ok(read(json)))));
        Self { cache, options: options(), intent: None, infeasible: None }
    }

    fn decide(&self) -> ClaimVerdict {
        let view = View {
            cache: &self.cache,
            intent: self.intent.as_ref(),
            ours: &|driver: &DriverName| driver.as_str() == "drv",
            infeasible: self.infeasible.as_ref(),
            options: &self.options,
        };
        claim(view, &UID.into())
    }
}

fn intent() -> Arc<Intent> {
    let verdict = World::new(Some(claim_json()), Some(class_json()), None).decide();
    let ClaimVerdict::Record(intent) = verdict else { panic!("{verdict:?}") };
    Arc::new(*intent)
}

fn show(verdict: &ClaimVerdict) -> String {
    match verdict {
        ClaimVerdict::Ignore(_) => "ignore".to_owned(),
        ClaimVerdict::Record(_) => "record".to_owned(),
        ClaimVerdict::Create(_) => "create".to_owned(),
        ClaimVerdict::Forget => "forget".to_owned(),
        ClaimVerdict::Refuse { message, lasting } => {
            format!("{} {message}", if *lasting { "refuse" } else { "retry" })
        }
        ClaimVerdict::Take { node, request, .. } => {
            format!("take for {node}{}", if request.is_some() { "" } else { " blindly" })
        }
        ClaimVerdict::AwaitNodes(message) => format!("nodes {message}"),
        ClaimVerdict::Reschedule { node, message } => format!("not on {node}: {message}"),
        ClaimVerdict::LeaveToPopulator => "populator".to_owned(),
    }
}

#[test]
fn a_class_of_attributes_is_part_of_the_request() {
    let fast = json!({
        "metadata": {"name": "fast", "uid": "fast-uid", "resourceVersion": "2"},
        "driverName": "drv", "parameters": {"iops": "9"},
    });
    let table = [
        ("there", Some(json!({})), "record"),
        ("not yet", None, "retry volumeattributesclass.storage.k8s.io \"fast\" not found"),
        (
            "another driver's",
            Some(json!({"driverName": "other"})),
            "refuse VolumeAttributesClass \"fast\" is of driver other: expected one of drv",
        ),
    ];
    for (name, change, expected) in table {
        let claim = merged(claim_json(), json!({"spec": {"volumeAttributesClassName": "fast"}}));
        let mut world = World::new(Some(claim), Some(class_json()), None);
        world.options.modifying.insert("drv".into());
        if let Some(change) = change {
            assert!(world.cache.attributes_classes.apply(Ok(read(&merged(fast.clone(), change)))));
        }
        let verdict = world.decide();
        assert_eq!(show(&verdict), expected, "{name}");
        if let ClaimVerdict::Record(intent) = verdict {
            assert_eq!(&*intent.attributes_class, "fast");
            assert_eq!(intent.request.mutable_parameters, [("iops".to_owned(), "9".to_owned())].into());
        }
    }
}

#[test]
fn a_driver_that_tells_one_writer_from_many_is_asked_finely() {
    use CapabilityMode as Mode;
    #[rustfmt::skip] // one row a list of modes
    let table: [(&[&str], &[Mode], &[Mode]); 5] = [
        (&["ReadWriteOnce"],                  &[Mode::SingleNodeWriter],     &[Mode::SingleNodeMultiWriter]),
        (&["ReadWriteOncePod"],               &[Mode::SingleNodeWriter],     &[Mode::SingleNodeSingleWriter]),
        (&["ReadWriteMany"],                  &[Mode::MultiNodeMultiWriter], &[Mode::MultiNodeMultiWriter]),
        (&["ReadOnlyMany"],                   &[Mode::MultiNodeReaderOnly],  &[Mode::MultiNodeReaderOnly]),
        (&["ReadWriteOnce", "ReadWriteMany"], &[Mode::SingleNodeWriter, Mode::MultiNodeMultiWriter], &[Mode::SingleNodeMultiWriter, Mode::MultiNodeMultiWriter]),
    ];
    for (modes, coarse, fine) in table {
        let claim = merged(claim_json(), json!({"spec": {"accessModes": modes}}));
        let claim = decode::object::<Claim>(&claim.to_string()).unwrap().unwrap();
        assert_eq!(capability_modes(&claim, false).unwrap(), coarse, "{modes:?}");
        assert_eq!(capability_modes(&claim, true).unwrap(), fine, "{modes:?}");
    }
}

#[test]
fn the_request_is_what_claim_and_class_say() {
    let intent = intent();
    assert_eq!(intent.request.name, "pvc-1234");
    assert_eq!(intent.request.capacity.required, Some(1 << 30));
    assert_eq!(intent.request.capacity.limit, None);
    assert_eq!(intent.request.parameters, [("tier".to_owned(), "fast".to_owned())].into());
    let capability = &intent.request.capabilities[0];
    assert_eq!(capability.mode, CapabilityMode::SingleNodeWriter);
    let expected =
        AccessType::Filesystem { fs_type: None, mount_flags: vec!["noatime".to_owned()], mount_group: None };
    assert_eq!(capability.access, expected);
    let owner = intent.request.owner.as_ref().unwrap();
    assert_eq!(
        (owner.cluster.as_str(), owner.claim.as_str(), owner.volume.as_str()),
        ("cluster", UID, "pvc-1234")
    );
    assert_eq!((intent.class.name.as_str(), intent.class.uid.as_str()), ("gold", "class-uid"));
    let json = serde_json::to_string(&*intent).unwrap();
    assert_eq!(
        serde_json::from_str::<Intent>(&json).unwrap(),
        *intent,
        "a restart finds the very same request"
    );
}

#[test]
fn which_claims_are_provisioned() {
    let asked = |driver: &str| json!({"metadata": {"annotations": {"volume.kubernetes.io/storage-provisioner": driver}}});
    let cases: [(&str, Value, Value, &str); 19] = [
        ("as it stands", json!({}), json!({}), "record"),
        ("asked of us", asked("drv"), json!({}), "record"),
        ("asked of another", asked("other"), json!({}), "ignore"),
        ("another's class", json!({}), json!({"provisioner": "other"}), "ignore"),
        ("names a volume", json!({"spec": {"volumeName": "v"}}), json!({}), "ignore"),
        (
            "being deleted",
            json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}),
            json!({}),
            "ignore",
        ),
        ("no class", json!({"spec": {"storageClassName": null}}), json!({}), "ignore"),
        ("late binding", json!({}), json!({"volumeBindingMode": "WaitForFirstConsumer"}), "ignore"),
        (
            "late binding, node chosen",
            json!({"metadata": {"annotations": {"volume.kubernetes.io/selected-node": "n"}}}),
            json!({"volumeBindingMode": "WaitForFirstConsumer"}),
            "record",
        ),
        (
            "selector",
            json!({"spec": {"selector": {"matchLabels": {"a": "b"}}}}),
            json!({}),
            "refuse claim Selector is not supported",
        ),
        (
            "zero bytes",
            json!({"spec": {"resources": {"requests": {"storage": "0"}}}}),
            json!({}),
            "refuse spec.resources.requests.storage is 0: expected more than zero bytes",
        ),
        (
            "more than there is",
            json!({"spec": {"resources": {"requests": {"storage": "1e99"}}}}),
            json!({}),
            "refuse spec.resources.requests.storage: quantity \"1e99\" is too large: expected at most 2^127 bytes",
        ),
        (
            "more than CSI can say",
            json!({"spec": {"resources": {"requests": {"storage": "8Ei"}}}}),
            json!({}),
            "refuse spec.resources.requests.storage is 8Ei: expected at most 9223372036854775807 bytes",
        ),
        (
            "once and once only",
            json!({"spec": {"accessModes": ["ReadWriteOncePod", "ReadWriteMany"]}}),
            json!({}),
            "refuse spec.accessModes has ReadWriteOncePod beside others: expected it alone",
        ),
        (
            "clone",
            json!({"spec": {"dataSource": {"kind": "PersistentVolumeClaim", "name": "x"}}}),
            json!({}),
            "refuse driver drv does not clone volumes",
        ),
        (
            "restore",
            json!({"spec": {"dataSource": {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "x"}}}),
            json!({}),
            "refuse driver drv does not restore snapshots",
        ),
        (
            "populator",
            json!({"spec": {"dataSourceRef": {"apiGroup": "x.example", "kind": "Image", "name": "x"}}}),
            json!({}),
            "populator",
        ),
        (
            "modification",
            json!({"spec": {"volumeAttributesClassName": "fast"}}),
            json!({}),
            "refuse driver drv does not modify volumes",
        ),
        (
            "unknown parameter",
            json!({}),
            json!({"parameters": {"csi.storage.k8s.io/nope": "x"}}),
            "refuse StorageClass gold has the unknown parameter \"csi.storage.k8s.io/nope\": expected \
             csi.storage.k8s.io/fstype, or a key without the prefix csi.storage.k8s.io/",
        ),
    ];
    for (name, claim, class, expected) in cases {
        let world = World::new(Some(merged(claim_json(), claim)), Some(merged(class_json(), class)), None);
        assert_eq!(show(&world.decide()), expected, "{name}");
    }
}

#[test]
fn a_volume_that_could_be_bound_is_not_made_anew() {
    let free = merged(
        volume_json(),
        json!({"metadata": {"name": "free"}, "spec": {"claimRef": null}, "status": {"phase": "Available"}}),
    );
    let world = World::new(Some(claim_json()), Some(class_json()), Some(free));
    assert_eq!(show(&world.decide()), "ignore");
}

#[test]
fn without_our_binder_the_request_annotation_is_waited_for() {
    let mut world = World::new(Some(claim_json()), Some(class_json()), None);
    world.options.binder_here = false;
    assert_eq!(show(&world.decide()), "ignore");
    let asked =
        json!({"metadata": {"annotations": {"volume.beta.kubernetes.io/storage-provisioner": "drv"}}});
    let mut world = World::new(Some(merged(claim_json(), asked.clone())), Some(class_json()), None);
    world.options.binder_here = false;
    assert_eq!(show(&world.decide()), "record");
    let mut world = World::new(Some(merged(claim_json(), asked)), None, None);
    world.options.binder_here = false;
    assert_eq!(show(&world.decide()), "retry storageclass.storage.k8s.io \"gold\" not found");
}

#[test]
fn what_was_written_down_is_carried_through() {
    let deleting = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
    let cases: [(&str, Option<Value>, Option<Value>, Option<Value>, &str); 8] = [
        ("as it was", Some(claim_json()), Some(class_json()), None, "create"),
        ("class gone", Some(claim_json()), None, None, "create"),
        (
            "class another",
            Some(claim_json()),
            Some(merged(class_json(), json!({"parameters": {"tier": "slow"}}))),
            None,
            "create",
        ),
        ("claim gone", None, Some(class_json()), None, "create"),
        ("claim going", Some(merged(claim_json(), deleting)), Some(class_json()), None, "create"),
        (
            "claim has another volume",
            Some(merged(claim_json(), json!({"spec": {"volumeName": "v"}}))),
            None,
            None,
            "create",
        ),
        ("its object exists", Some(claim_json()), Some(class_json()), Some(volume_json()), "forget"),
        (
            "a stranger's object of the name",
            Some(claim_json()),
            Some(class_json()),
            Some(merged(volume_json(), json!({"spec": {"claimRef": null}}))),
            "create",
        ),
    ];
    let intent = intent();
    for (name, claim, class, volume, expected) in cases {
        let mut world = World::new(claim, class, volume);
        world.intent = Some(Arc::clone(&intent));
        let verdict = world.decide();
        assert_eq!(show(&verdict), expected, "{name}");
        if let ClaimVerdict::Create(replayed) = verdict {
            assert_eq!(replayed, intent, "{name}: word for word");
        }
    }
}

#[test]
fn an_invalid_request_waits_for_another_class() {
    let mut world = World::new(Some(claim_json()), Some(class_json()), None);
    world.infeasible = Some("class-uid".into());
    assert_eq!(show(&world.decide()), "ignore");
    world.infeasible = Some("class-uid-before".into());
    assert_eq!(show(&world.decide()), "record");
}

#[test]
fn a_strangers_object_of_the_name_stops_it() {
    let stranger = merged(volume_json(), json!({"spec": {"claimRef": {"uid": "other"}}}));
    let world = World::new(Some(claim_json()), Some(class_json()), Some(stranger));
    assert_eq!(
        show(&world.decide()),
        "refuse a PersistentVolume pvc-1234 exists already and is not of this claim"
    );
}

fn made(capacity: Option<u64>) -> Result<CreatedVolume, StorageError> {
    Ok(CreatedVolume {
        handle: "h".into(),
        capacity,
        context: Default::default(),
        topology: Vec::new(),
        attachment: None,
    })
}

#[test]
fn what_follows_an_answer() {
    let failed =
        |kind, finality| Err(StorageError { kind, message: "no".to_owned(), retry_after_ms: None, finality });
    let gib = 1 << 30;
    let present = Some(claim_json());
    let going =
        Some(merged(claim_json(), json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})));
    let successor = Some(merged(claim_json(), json!({"metadata": {"uid": "9"}})));
    let elsewhere = Some(merged(claim_json(), json!({"spec": {"volumeName": "v"}})));
    let cases = [
        ("as asked", present.clone(), "Delete", made(Some(gib)), "save 1073741824"),
        ("size not told", present.clone(), "Delete", made(None), "save 1073741824"),
        ("size zero", present.clone(), "Delete", made(Some(0)), "save 1073741824"),
        ("larger", present.clone(), "Delete", made(Some(gib * 2)), "save 2147483648"),
        ("smaller", present.clone(), "Delete", made(Some(gib - 1)), "undo told"),
        ("claim gone", None, "Delete", made(None), "undo"),
        ("claim going", going, "Delete", made(None), "undo"),
        ("claim re-created", successor, "Delete", made(None), "undo"),
        ("claim bound elsewhere", elsewhere, "Delete", made(None), "undo"),
        ("claim gone, kept", None, "Retain", made(None), "save 1073741824"),
        ("final", present.clone(), "Delete", failed(ErrorKind::ResourceExhausted, Finality::Final), "failed"),
        (
            "final, and nobody was asked",
            present.clone(),
            "Delete",
            failed(ErrorKind::Unavailable, Finality::Final),
            "repeat",
        ),
        (
            "final, and another is at work",
            None,
            "Delete",
            failed(ErrorKind::Aborted, Finality::Final),
            "repeat",
        ),
        (
            "invalid",
            present.clone(),
            "Delete",
            failed(ErrorKind::InvalidArgument, Finality::Final),
            "failed for good",
        ),
        (
            "in progress",
            present.clone(),
            "Delete",
            failed(ErrorKind::Aborted, Finality::InProgress),
            "repeat",
        ),
        ("unknown", present, "Delete", failed(ErrorKind::Unavailable, Finality::Unknown), "repeat"),
        (
            "unknown, claim gone",
            None,
            "Delete",
            failed(ErrorKind::DeadlineExceeded, Finality::Unknown),
            "repeat",
        ),
    ];
    for (name, claim, policy, answer, expected) in cases {
        let world = World::new(claim, None, None);
        let mut intent = (*intent()).clone();
        intent.class.reclaim_policy = cofferdam_domain::ReclaimPolicy::parse(policy);
        let shown = match created(&world.cache, None, &intent, answer) {
            Created::Save(_, capacity) => format!("save {capacity}"),
            Created::Undo(_, None) => "undo".to_owned(),
            Created::Undo(_, Some(_)) => "undo told".to_owned(),
            Created::Failed { lasting: false, .. } => "failed".to_owned(),
            Created::Failed { lasting: true, .. } => "failed for good".to_owned(),
            Created::Reschedule { node, .. } => format!("not on {node}"),
            Created::Repeat(_) => "repeat".to_owned(),
        };
        assert_eq!(shown, expected, "{name}");
    }
}

/// A world whose driver has topology, with node `n` in zone `a`; the class waits for a node.
fn placed(selected: Option<&str>, class: Value) -> World {
    let node = |node| json!({"metadata": {"annotations": {"volume.kubernetes.io/selected-node": node}}});
    let claim = selected.map_or_else(claim_json, |selected| merged(claim_json(), node(selected)));
    let mut world = World::new(Some(claim), Some(merged(class_json(), class)), None);
    world.options.topology.insert("drv".into());
    let meta = json!({"name": "n", "uid": "u", "resourceVersion": "1", "labels": {"zone": "a"}});
    let keys = json!([{"name": "drv", "nodeID": "n", "topologyKeys": ["zone"]}]);
    world.cache.nodes.apply(Ok(read(&json!({"metadata": meta}))));
    world.cache.csi_nodes.apply(Ok(read(&json!({"metadata": meta, "spec": {"drivers": keys}}))));
    world
}

#[test]
fn where_a_volume_must_be_reachable() {
    let late = || json!({"volumeBindingMode": "WaitForFirstConsumer"});
    let allowed = |zone: &str| json!({"allowedTopologies": [{"matchLabelExpressions": [{"key": "zone", "values": [zone]}]}]});
    let place = |world: &World| {
        let verdict = world.decide();
        let ClaimVerdict::Record(intent) = verdict else { return show(&verdict) };
        let node = intent.node.as_ref().map_or("-", |node| node.as_str());
        let zones = intent.request.topology.iter().flat_map(|topology| &topology.requisite);
        let zones: Vec<_> = zones.map(|place| place["zone"].as_str()).collect();
        format!("{node} {}", zones.join(" "))
    };
    let why = "failed to provision volume with StorageClass \"gold\": error generating accessibility requirements: ";
    assert_eq!(place(&placed(None, json!({}))), "- a");
    assert_eq!(place(&placed(None, allowed("b"))), "- b");
    assert_eq!(place(&placed(None, late())), "ignore");
    assert_eq!(place(&placed(Some("n"), late())), "n a");
    let gone = format!("not on m: {why}error getting CSINode for selected node \"m\": it does not exist");
    assert_eq!(place(&placed(Some("m"), late())), gone);
    let elsewhere = placed(Some("n"), merged(late(), allowed("b")));
    let expected =
        format!("nodes {why}topology {{zone=a}} of node n is not in allowed topologies: {{zone=b}}");
    assert_eq!(place(&elsewhere), expected);
    let mut quiet = placed(None, json!({}));
    quiet.options.immediate_topology = false;
    assert_eq!(place(&quiet), "- ");
    let ClaimVerdict::Record(intent) = quiet.decide() else { panic!("it is asked for") };
    assert_eq!(intent.request.topology, None);
    let mut strict = placed(Some("n"), merged(late(), allowed("a")));
    strict.options.strict_topology = true;
    assert_eq!(place(&strict), "n a");
    // A driver without topology is told nothing, and keeps no promise of the class.
    let mut without = placed(Some("n"), late());
    without.options.topology.clear();
    assert_eq!(place(&without), "- ");
    let mut without = placed(None, allowed("a"));
    without.options.topology.clear();
    assert_eq!(
        place(&without),
        "refuse StorageClass gold has allowedTopologies: driver drv has no topology; expected none"
    );
}

#[test]
fn without_room_the_scheduler_chooses_again() {
    use ErrorKind::{FailedPrecondition, ResourceExhausted};
    let verdict = placed(Some("n"), json!({})).decide();
    let ClaimVerdict::Record(intent) = verdict else { panic!("{verdict:?}") };
    let answer =
        |kind, finality| Err(StorageError { kind, message: "no".to_owned(), retry_after_ms: None, finality });
    #[rustfmt::skip] // one row an answer
    let table = [
        (Some("n"), ResourceExhausted,  Finality::Final,   "not on n"),
        (Some("n"), ResourceExhausted,  Finality::Unknown, "repeat"),
        (Some("n"), FailedPrecondition, Finality::Final,   "failed"),
        // The scheduler has chosen again already.
        (Some("m"), ResourceExhausted,  Finality::Final,   "failed"),
        (None,      ResourceExhausted,  Finality::Final,   "failed"),
    ];
    for (selected, kind, finality, expected) in table {
        let world = placed(selected, json!({}));
        let shown = match created(&world.cache, None, &intent, answer(kind, finality)) {
            Created::Reschedule { node, .. } => format!("not on {node}"),
            Created::Failed { lasting: false, .. } => "failed".to_owned(),
            Created::Repeat(_) => "repeat".to_owned(),
            other @ (Created::Save(..) | Created::Undo(..) | Created::Failed { .. }) => format!("{other:?}"),
        };
        assert_eq!(shown, expected, "{selected:?} {kind:?} {finality:?}");
    }
}

#[test]
fn how_a_volume_goes() {
    use VolumeVerdict::{AddFinalizer, DeleteObject, DeleteVolume, Hold, RemoveFinalizer};
    let released = json!({"status": {"phase": "Released"}});
    let going = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
    let bare = json!({"metadata": {"finalizers": ["kubernetes.io/pv-protection"]}});
    let policy = |policy: &str| json!({"spec": {"persistentVolumeReclaimPolicy": policy}});
    let both = |a: &Value, b: &Value| merged(a.clone(), b.clone());
    // Change, deleted at the driver, held → verdict; none means "left alone".
    let cases = [
        ("bound", json!({}), false, false, None),
        ("bound, static", bare.clone(), false, false, Some(AddFinalizer)),
        ("bound, static, going", both(&bare, &going), false, false, None),
        ("bound, now Retain", policy("Retain"), false, false, Some(RemoveFinalizer(1))),
        ("released", released.clone(), false, false, Some(DeleteVolume)),
        ("released, held", released.clone(), false, true, Some(Hold)),
        ("released, Retain", both(&released, &policy("Retain")), false, false, Some(RemoveFinalizer(1))),
        (
            "released, Retain, finalizer off",
            both(&both(&released, &policy("Retain")), &bare),
            false,
            false,
            None,
        ),
        ("released, volume gone", released.clone(), true, false, Some(DeleteObject)),
        ("released, volume gone, held since", released.clone(), true, true, Some(DeleteObject)),
        ("released, going", both(&released, &going), false, false, Some(DeleteVolume)),
        ("released, going, volume gone", both(&released, &going), true, false, Some(RemoveFinalizer(1))),
        ("released, going, finalizer off", both(&both(&released, &going), &bare), false, false, None),
        ("failed", json!({"status": {"phase": "Failed"}}), false, false, None),
        (
            "available",
            json!({"status": {"phase": "Available"}, "spec": {"claimRef": null}}),
            false,
            false,
            None,
        ),
        (
            "another's",
            both(&released, &json!({"metadata": {"annotations": {"pv.kubernetes.io/provisioned-by": "x"}}})),
            false,
            false,
            None,
        ),
        (
            "static, ours by its driver",
            both(&released, &json!({"metadata": {"annotations": null}})),
            false,
            false,
            Some(DeleteVolume),
        ),
        ("in-tree", both(&released, &json!({"spec": {"csi": null}})), false, false, None),
    ];
    for (name, change, deleted, held, expected) in cases {
        let json = merged(volume_json(), change);
        let verdict = volume(&|driver| driver.as_str() == "drv", &read::<Volume>(&json), deleted, held);
        match (verdict, expected) {
            (VolumeVerdict::Ignore(_), None) => {}
            (verdict, expected) => assert_eq!(Some(verdict), expected, "{name}"),
        }
    }
}

#[test]
fn names_are_newtypes_over_what_the_api_has() {
    let class: StorageClass = read(&class_json());
    assert_eq!(class.name, ClassName::from("gold"));
    let claim: Claim = read(&claim_json());
    assert_eq!(claim.key.to_string(), "ns/c");
}

#[test]
fn whose_a_claim_is_where_storage_is_in_nodes() {
    let annotated = |pairs: Value| json!({"metadata": {"annotations": pairs}});
    let (asked, node) = ("volume.kubernetes.io/storage-provisioner", "volume.kubernetes.io/selected-node");
    let late = json!({"volumeBindingMode": "WaitForFirstConsumer"});
    let only = |node: &str| json!({"allowedTopologies": [{"matchLabelExpressions": [{"key": KEY, "values": [node]}]}]});
    const KEY: &str = "topology.cofferdam.dev/node";
    #[rustfmt::skip] // one row a claim
    let table = [
        ("nobody has asked",           json!({}),                                   json!({}),      true,  "ignore"),
        ("chosen, and nobody asked",   annotated(json!({node: "n1"})),              late.clone(),   true,  "ignore"),
        ("ours",                       annotated(json!({asked: "drv", node: "n1"})), late.clone(),  true,  "record"),
        ("another node's",             annotated(json!({asked: "drv", node: "n2"})), late.clone(),  true,  "ignore"),
        ("not chosen yet",             annotated(json!({asked: "drv"})),            late,           true,  "ignore"),
        ("a race",                     annotated(json!({asked: "drv"})),            json!({}),      true,  "take for n1"),
        ("no race here",               annotated(json!({asked: "drv"})),            json!({}),      false, "ignore"),
        ("a race that was won",        annotated(json!({asked: "drv", node: "n1"})), json!({}),     false, "record"),
        ("a race that was lost",       annotated(json!({asked: "drv", node: "n2"})), json!({}),     true,  "ignore"),
        ("allowed here",               annotated(json!({asked: "drv"})),            only("n1"),     true,  "take for n1"),
        ("allowed elsewhere",          annotated(json!({asked: "drv"})),            only("n2"),     true,  "ignore"),
        ("chosen where not allowed",   annotated(json!({asked: "drv", node: "n1"})), only("n2"),    true,
            "nodes failed to provision volume with StorageClass \"gold\": error generating accessibility requirements: topology \
             {topology.cofferdam.dev/node=n1} of node n1 is not in allowed topologies: {topology.cofferdam.dev/node=n2}"),
        ("what cannot be asked for",   annotated(json!({asked: "drv"})),            json!({"parameters": {"csi.storage.k8s.io/x": "y"}}), true, "take for n1 blindly"),
    ];
    for (name, claim, class, immediate, expected) in table {
        let mut world =
            World::new(Some(merged(claim_json(), claim)), Some(merged(class_json(), class)), None);
        let drivers = [("drv".into(), vec![KEY.to_owned()])].into();
        world.options.here = Some(Here { node: "n1".into(), drivers, immediate });
        world.options.topology = ["drv".into()].into();
        let verdict = world.decide();
        assert_eq!(show(&verdict), expected, "{name}");
        if let ClaimVerdict::Record(intent) = verdict {
            assert_eq!(intent.node, Some("n1".into()), "{name}");
            let place: Segments = [(KEY.to_owned(), "n1".to_owned())].into();
            let topology = TopologyRequirement { requisite: vec![place.clone()], preferred: vec![place] };
            assert_eq!(intent.request.topology, Some(topology), "{name}");
        }
    }
}
