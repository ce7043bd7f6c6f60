//! Tests of the provisioning rules, case by case.
#![allow(clippy::type_complexity, reason = "the type of a table's rows is written once, at the table")]

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use cofferdam_cluster::{Cache, Intent, Kind, decode};
use cofferdam_domain::{
    Claim, DriverName, StorageClass, StorageClassName, Uid, Volume, names,
    storage::{
        AccessType, ContentSource, CreatedVolume, CsiAccessMode, ErrorKind, Finality, Segments, StorageError,
        TopologyRequirement,
    },
};
use cofferdam_sim::objects::with;
use serde_json::{Value, json};

use super::{
    CreateVerdict, ProvisionVerdict, ProvisionerInput, ProvisionerOptions, ReclaimVerdict, capability_modes,
    decide_after_create, decide_provisioning, decide_reclaim, is_relevant_change,
};
use crate::{
    node_local::LocalNode,
    provisioner::{
        mending::request_digest,
        source::{SourceObject, snapshot::LiveSnapshot},
    },
};

const UID: &str = "1234";

fn options() -> ProvisionerOptions {
    ProvisionerOptions {
        prefix: "pvc".to_owned(),
        uuid_length: None,
        controller_publish_read_only: false,
        volume_attributes_class: true,
        default_fs_type: None,
        extra_create_metadata: false,
        cluster: "cluster".into(),
        runs_pv_controller: true,
        single_node_multi_writer_drivers: BTreeSet::new(),
        create_drivers: ["drv".into()].into(),
        cloning_drivers: ["drv".into()].into(),
        restoring_drivers: ["drv".into()].into(),
        prevent_volume_mode_conversion: true,
        modification_drivers: BTreeSet::new(),
        topology_drivers: BTreeSet::new(),
        strict_topology: false,
        immediate_topology: true,
        local_node: None,
    }
}

/// Applies a merge patch.
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
            "finalizers": [
                "kubernetes.io/pv-protection", "external-provisioner.volume.kubernetes.io/finalizer",
            ],
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

struct ProvisionerFixture {
    cache: Cache,
    options: ProvisionerOptions,
    intent: Option<Arc<Intent>>,
    infeasible: Option<Uid>,
    last_request: Option<String>,
    annotations: Option<BTreeMap<String, String>>,
    live_snapshot: Option<LiveSnapshot>,
}

impl ProvisionerFixture {
    fn new(claim: Option<Value>, class: Option<Value>, volume: Option<Value>) -> Self {
        let cache = Cache::default();
        claim.iter().for_each(|json| assert!(cache.claims.apply(Ok(read(json)))));
        class.iter().for_each(|json| assert!(cache.classes.apply(Ok(read(json)))));
        volume.iter().for_each(|json| assert!(cache.volumes.apply(Ok(read(json)))));
        Self {
            cache,
            options: options(),
            intent: None,
            infeasible: None,
            last_request: None,
            annotations: None,
            live_snapshot: None,
        }
    }

    fn decide(&self) -> ProvisionVerdict {
        let input = ProvisionerInput {
            cache: &self.cache,
            intent: self.intent.as_ref(),
            is_managed_driver: &|driver: &DriverName| matches!(driver.as_str(), "drv" | "ebs.csi.aws.com"),
            infeasible: self.infeasible.as_ref(),
            last_request: self.last_request.as_deref(),
            annotations: self.annotations.as_ref(),
            live_snapshot: self.live_snapshot.as_ref(),
            options: &self.options,
        };
        decide_provisioning(input, &UID.into())
    }
}

fn intent() -> Arc<Intent> {
    let verdict = ProvisionerFixture::new(Some(claim_json()), Some(class_json()), None).decide();
    let ProvisionVerdict::WriteIntent(intent) = verdict else { panic!("{verdict:?}") };
    Arc::new(*intent)
}

fn describe(verdict: &ProvisionVerdict) -> String {
    match verdict {
        ProvisionVerdict::NoAction(_) => "no action".to_owned(),
        ProvisionVerdict::ReadAnnotations(claim) => format!("read annotations of {claim}"),
        ProvisionVerdict::WriteIntent(_) => "write intent".to_owned(),
        ProvisionVerdict::WriteMended(_) => "write mended request".to_owned(),
        ProvisionVerdict::Create(_) => "create".to_owned(),
        ProvisionVerdict::DeleteUnneeded(handle) => format!("delete {handle}"),
        ProvisionVerdict::RemoveIntent => "remove intent".to_owned(),
        ProvisionVerdict::Reject { message, permanent } => {
            format!("{} {message}", if *permanent { "reject" } else { "retry" })
        }
        ProvisionVerdict::SelectNode { node, request, .. } => {
            format!("select {node}{}", if request.is_some() { "" } else { " without a request" })
        }
        ProvisionVerdict::WaitForTopology(message) => format!("wait: {message}"),
        ProvisionVerdict::Reschedule { node, message } => format!("reschedule {node}: {message}"),
        ProvisionVerdict::LeaveToPopulator => "populator".to_owned(),
        ProvisionVerdict::WaitForSource { source, message } => format!("wait for {source}: {message}"),
        ProvisionVerdict::ProtectSource(SourceObject::Claim(claim)) => format!("protect claim {}", claim.key),
        ProvisionVerdict::ProtectSource(SourceObject::Snapshot(snapshot)) => {
            format!("protect VolumeSnapshot {}", snapshot.key)
        }
        ProvisionVerdict::ReadSnapshot(key) => format!("read VolumeSnapshot {key}"),
        ProvisionVerdict::LeaveNode { node, message } => format!("leave {node}: {message}"),
    }
}

#[test]
fn the_secrets_of_the_class_are_part_of_the_intent() {
    let parameters = |name: &str| {
        json!({"parameters": {
            "csi.storage.k8s.io/secret-name": name, "csi.storage.k8s.io/secret-namespace": "${pvc.namespace}",
        }})
    };
    let decide = |name: &str, annotations: Option<&[(&str, &str)]>| {
        let class = merged(class_json(), parameters(name));
        let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        ProvisionerFixture {
            annotations: annotations.map(|annotations| annotations.iter().map(owned).collect()),
            ..ProvisionerFixture::new(Some(claim_json()), Some(class), None)
        }
        .decide()
    };
    let annotated = "${pvc.annotations['team']}";
    let ProvisionVerdict::WriteIntent(intent) = decide("${pvc.name}", None) else { panic!("no intent") };
    assert_eq!(intent.secrets.node_expand.clone().unwrap().to_string(), "ns/c");
    assert_eq!(intent.request.parameters, [("tier".to_owned(), "fast".to_owned())].into());
    assert_eq!(describe(&decide(annotated, None)), "read annotations of ns/c");
    let verdict = decide(annotated, Some(&[("team", "red"), ("other", "x")]));
    let ProvisionVerdict::WriteIntent(intent) = verdict else { panic!("{verdict:?}") };
    assert_eq!(intent.secrets.provisioner.clone().unwrap().to_string(), "ns/red");
    let missing = describe(&decide(annotated, Some(&[])));
    let expected = "retry failed to provision volume with StorageClass \"gold\": StorageClass gold has \
                    invalid tokens in csi.storage.k8s.io/secret-name: \"pvc.annotations['team']\"";
    assert!(missing.starts_with(expected), "{missing}");
}

#[test]
fn volume_attributes_class_parameters_are_part_of_the_request() {
    let fast = json!({
        "metadata": {"name": "fast", "uid": "fast-uid", "resourceVersion": "2"},
        "driverName": "drv", "parameters": {"iops": "9"},
    });
    let table = [
        ("class exists", Some(json!({})), "write intent"),
        ("class missing", None, "retry volumeattributesclass.storage.k8s.io \"fast\" not found"),
        (
            "class of another driver",
            Some(json!({"driverName": "other"})),
            "reject VolumeAttributesClass \"fast\" has driver other; expected drv",
        ),
    ];
    for (name, change, expected) in table {
        let claim = merged(claim_json(), json!({"spec": {"volumeAttributesClassName": "fast"}}));
        let mut fixture = ProvisionerFixture::new(Some(claim), Some(class_json()), None);
        fixture.options.modification_drivers.insert("drv".into());
        if let Some(change) = change {
            assert!(fixture.cache.attributes_classes.apply(Ok(read(&merged(fast.clone(), change)))));
        }
        let verdict = fixture.decide();
        assert_eq!(describe(&verdict), expected, "{name}");
        if let ProvisionVerdict::WriteIntent(intent) = verdict {
            assert_eq!(&*intent.attributes_class, "fast");
            assert_eq!(intent.request.mutable_parameters, [("iops".to_owned(), "9".to_owned())].into());
        }
    }
}

#[test]
fn single_node_multi_writer_drivers_get_distinct_access_modes() {
    use CsiAccessMode as Mode;
    #[rustfmt::skip] // one row per list of modes
    let table: [(&[&str], &[Mode], &[Mode]); 5] = [
        (&["ReadWriteOnce"],                  &[Mode::SingleNodeWriter],     &[Mode::SingleNodeMultiWriter]),
        (&["ReadWriteOncePod"],               &[Mode::SingleNodeWriter],     &[Mode::SingleNodeSingleWriter]),
        (&["ReadWriteMany"],                  &[Mode::MultiNodeMultiWriter], &[Mode::MultiNodeMultiWriter]),
        (&["ReadOnlyMany"],                   &[Mode::MultiNodeReaderOnly],  &[Mode::MultiNodeReaderOnly]),
        (&["ReadWriteOnce", "ReadWriteMany"], &[Mode::SingleNodeWriter, Mode::MultiNodeMultiWriter],
            &[Mode::SingleNodeMultiWriter, Mode::MultiNodeMultiWriter]),
    ];
    for (modes, without_capability, with_capability) in table {
        let claim = merged(claim_json(), json!({"spec": {"accessModes": modes}}));
        let claim = decode::object::<Claim>(&claim.to_string()).unwrap().unwrap();
        assert_eq!(capability_modes(&claim, false).unwrap(), without_capability, "{modes:?}");
        assert_eq!(capability_modes(&claim, true).unwrap(), with_capability, "{modes:?}");
    }
}

#[test]
fn the_request_is_built_from_claim_and_class() {
    let intent = intent();
    assert_eq!(intent.request.name, "pvc-1234");
    assert_eq!(intent.request.capacity.required, Some(1 << 30));
    assert_eq!(intent.request.capacity.limit, None);
    assert_eq!(intent.request.parameters, [("tier".to_owned(), "fast".to_owned())].into());
    let capability = &intent.request.capabilities[0];
    assert_eq!(capability.access_mode, CsiAccessMode::SingleNodeWriter);
    let expected =
        AccessType::Filesystem { fs_type: None, mount_flags: vec!["noatime".to_owned()], mount_group: None };
    assert_eq!(capability.access_type, expected);
    let owner = intent.request.owner.as_ref().unwrap();
    assert_eq!(
        (owner.cluster_id.as_str(), &owner.claim_uid, owner.pv_name.as_str()),
        ("cluster", &UID.into(), "pvc-1234")
    );
    assert_eq!((intent.class.name.as_str(), &intent.class.uid), ("gold", &"class-uid".into()));
    let json = serde_json::to_string(&*intent).unwrap();
    assert_eq!(
        serde_json::from_str::<Intent>(&json).unwrap(),
        *intent,
        "the request is the same after a restart"
    );
}

#[test]
fn claims_are_provisioned_according_to_annotations_and_class() {
    let storage_provisioner = |driver: &str| {
        let annotations = json!({"volume.kubernetes.io/storage-provisioner": driver});
        json!({"metadata": {"annotations": annotations}})
    };
    let cases: [(&str, Value, Value, &str); 19] = [
        ("unchanged", json!({}), json!({}), "write intent"),
        ("annotation of this driver", storage_provisioner("drv"), json!({}), "write intent"),
        ("annotation of another driver", storage_provisioner("other"), json!({}), "no action"),
        ("class of another driver", json!({}), json!({"provisioner": "other"}), "no action"),
        ("volumeName is set", json!({"spec": {"volumeName": "v"}}), json!({}), "no action"),
        (
            "being deleted",
            json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}),
            json!({}),
            "no action",
        ),
        ("no class", json!({"spec": {"storageClassName": null}}), json!({}), "no action"),
        (
            "WaitForFirstConsumer",
            json!({}),
            json!({"volumeBindingMode": "WaitForFirstConsumer"}),
            "no action",
        ),
        (
            "WaitForFirstConsumer, node selected",
            json!({"metadata": {"annotations": {"volume.kubernetes.io/selected-node": "n"}}}),
            json!({"volumeBindingMode": "WaitForFirstConsumer"}),
            "write intent",
        ),
        (
            "selector",
            json!({"spec": {"selector": {"matchLabels": {"a": "b"}}}}),
            json!({}),
            "reject claim Selector is not supported",
        ),
        (
            "zero bytes",
            json!({"spec": {"resources": {"requests": {"storage": "0"}}}}),
            json!({}),
            "reject spec.resources.requests.storage is 0; expected more than zero bytes",
        ),
        (
            "beyond all quantities",
            json!({"spec": {"resources": {"requests": {"storage": "1e99"}}}}),
            json!({}),
            "reject spec.resources.requests.storage: \
             quantity \"1e99\" is too large: expected at most 2^127 bytes",
        ),
        (
            "beyond the range of CSI",
            json!({"spec": {"resources": {"requests": {"storage": "8Ei"}}}}),
            json!({}),
            "reject spec.resources.requests.storage is 8Ei; expected at most 9223372036854775807 bytes",
        ),
        (
            "ReadWriteOncePod with another mode",
            json!({"spec": {"accessModes": ["ReadWriteOncePod", "ReadWriteMany"]}}),
            json!({}),
            "reject spec.accessModes combines ReadWriteOncePod with other modes; \
             expected ReadWriteOncePod alone",
        ),
        (
            "clone",
            json!({"spec": {"dataSource": {"kind": "PersistentVolumeClaim", "name": "x"}}}),
            json!({}),
            "wait for claim ns/x: failed to provision volume with StorageClass \"gold\": \
             cannot use claim ns/x as the source: it does not exist",
        ),
        (
            "restore",
            json!({"spec": {"dataSource": {
                "apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "x",
            }}}),
            json!({}),
            "read VolumeSnapshot ns/x",
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
            "reject driver drv does not support modification",
        ),
        (
            "unknown parameter",
            json!({}),
            json!({"parameters": {"csi.storage.k8s.io/nope": "x"}}),
            "reject StorageClass gold has the unknown parameter \"csi.storage.k8s.io/nope\"; expected \
             csi.storage.k8s.io/fstype, a key of a Secret such as \
             csi.storage.k8s.io/provisioner-secret-name, or a key without the prefix csi.storage.k8s.io/",
        ),
    ];
    for (name, claim, class, expected) in cases {
        let fixture = ProvisionerFixture::new(
            Some(merged(claim_json(), claim)),
            Some(merged(class_json(), class)),
            None,
        );
        assert_eq!(describe(&fixture.decide()), expected, "{name}");
    }
}

#[test]
fn no_volume_is_provisioned_if_an_available_one_matches() {
    let available = merged(
        volume_json(),
        json!({"metadata": {"name": "free"}, "spec": {"claimRef": null}, "status": {"phase": "Available"}}),
    );
    let fixture = ProvisionerFixture::new(Some(claim_json()), Some(class_json()), Some(available));
    assert_eq!(describe(&fixture.decide()), "no action");
}

#[test]
fn without_pv_controller_the_provisioner_annotation_is_required() {
    let mut fixture = ProvisionerFixture::new(Some(claim_json()), Some(class_json()), None);
    fixture.options.runs_pv_controller = false;
    assert_eq!(describe(&fixture.decide()), "no action");
    let storage_provisioner =
        json!({"metadata": {"annotations": {"volume.beta.kubernetes.io/storage-provisioner": "drv"}}});
    let mut fixture = ProvisionerFixture::new(
        Some(merged(claim_json(), storage_provisioner.clone())),
        Some(class_json()),
        None,
    );
    fixture.options.runs_pv_controller = false;
    assert_eq!(describe(&fixture.decide()), "write intent");
    let mut fixture = ProvisionerFixture::new(Some(merged(claim_json(), storage_provisioner)), None, None);
    fixture.options.runs_pv_controller = false;
    assert_eq!(describe(&fixture.decide()), "retry storageclass.storage.k8s.io \"gold\" not found");
}

#[test]
fn a_written_intent_is_replayed_until_its_volume_exists() {
    let deleting = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
    let cases: [(&str, Option<Value>, Option<Value>, Option<Value>, &str); 8] = [
        ("unchanged", Some(claim_json()), Some(class_json()), None, "create"),
        ("class deleted", Some(claim_json()), None, None, "create"),
        (
            "class changed",
            Some(claim_json()),
            Some(merged(class_json(), json!({"parameters": {"tier": "slow"}}))),
            None,
            "create",
        ),
        ("claim deleted", None, Some(class_json()), None, "create"),
        ("claim being deleted", Some(merged(claim_json(), deleting)), Some(class_json()), None, "create"),
        (
            "claim has another volume",
            Some(merged(claim_json(), json!({"spec": {"volumeName": "v"}}))),
            None,
            None,
            "create",
        ),
        (
            "the PersistentVolume exists",
            Some(claim_json()),
            Some(class_json()),
            Some(volume_json()),
            "remove intent",
        ),
        (
            "the PersistentVolume belongs to another claim",
            Some(claim_json()),
            Some(class_json()),
            Some(merged(volume_json(), json!({"spec": {"claimRef": null}}))),
            "create",
        ),
    ];
    let intent = intent();
    for (name, claim, class, volume, expected) in cases {
        let mut fixture = ProvisionerFixture::new(claim, class, volume);
        fixture.intent = Some(Arc::clone(&intent));
        let verdict = fixture.decide();
        assert_eq!(describe(&verdict), expected, "{name}");
        if let ProvisionVerdict::Create(replayed) = verdict {
            assert_eq!(replayed, intent, "{name}: the intent is unchanged");
        }
    }
}

#[test]
fn a_volume_whose_deletion_was_recorded_is_deleted_whatever_the_claim_needs() {
    let recorded = Intent { unneeded: Some("h".into()), ..(*intent()).clone() };
    for (claim, volume) in
        [(Some(claim_json()), None), (Some(claim_json()), Some(volume_json())), (None, None)]
    {
        let mut fixture = ProvisionerFixture::new(claim, Some(class_json()), volume);
        fixture.intent = Some(Arc::new(recorded.clone()));
        assert_eq!(describe(&fixture.decide()), "delete h");
    }
}

#[test]
fn an_infeasible_claim_is_retried_with_another_class() {
    let mut fixture = ProvisionerFixture::new(Some(claim_json()), Some(class_json()), None);
    fixture.infeasible = Some("class-uid".into());
    assert_eq!(describe(&fixture.decide()), "no action");
    fixture.infeasible = Some("class-uid-before".into());
    assert_eq!(describe(&fixture.decide()), "write intent");
}

#[test]
fn a_pv_of_the_same_name_for_another_claim_is_rejected() {
    let other_volume = merged(volume_json(), json!({"spec": {"claimRef": {"uid": "other"}}}));
    let fixture = ProvisionerFixture::new(Some(claim_json()), Some(class_json()), Some(other_volume));
    assert_eq!(
        describe(&fixture.decide()),
        "reject PersistentVolume pvc-1234 exists and belongs to another claim"
    );
}

fn created_volume(capacity: Option<u64>) -> Result<CreatedVolume, StorageError> {
    Ok(CreatedVolume {
        handle: "h".into(),
        capacity,
        context: Default::default(),
        topology: Vec::new(),
        connection_info: None,
    })
}

#[test]
fn decisions_after_create_volume() {
    let failed =
        |kind, finality| Err(StorageError { kind, message: "no".to_owned(), retry_after_ms: None, finality });
    let gib = 1 << 30;
    let present = Some(claim_json());
    let deleting =
        Some(merged(claim_json(), json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})));
    let recreated = Some(merged(claim_json(), json!({"metadata": {"uid": "9"}})));
    let bound_to_other = Some(merged(claim_json(), json!({"spec": {"volumeName": "v"}})));
    let cases = [
        ("requested size", present.clone(), "Delete", created_volume(Some(gib)), "save 1073741824"),
        ("size unknown", present.clone(), "Delete", created_volume(None), "save 1073741824"),
        ("size zero", present.clone(), "Delete", created_volume(Some(0)), "save 1073741824"),
        ("larger", present.clone(), "Delete", created_volume(Some(gib * 2)), "save 2147483648"),
        ("smaller", present.clone(), "Delete", created_volume(Some(gib - 1)), "delete with event"),
        ("claim deleted", None, "Delete", created_volume(None), "delete"),
        ("claim being deleted", deleting, "Delete", created_volume(None), "delete"),
        ("claim re-created", recreated, "Delete", created_volume(None), "delete"),
        ("claim bound to another volume", bound_to_other, "Delete", created_volume(None), "delete"),
        ("claim deleted, Retain", None, "Retain", created_volume(None), "save 1073741824"),
        ("final", present.clone(), "Delete", failed(ErrorKind::ResourceExhausted, Finality::Final), "failed"),
        (
            "final, driver unavailable",
            present.clone(),
            "Delete",
            failed(ErrorKind::Unavailable, Finality::Final),
            "repeat",
        ),
        ("final, call in progress", None, "Delete", failed(ErrorKind::Aborted, Finality::Final), "repeat"),
        (
            "invalid",
            present.clone(),
            "Delete",
            failed(ErrorKind::InvalidArgument, Finality::Final),
            "failed permanently",
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
            "unknown, claim deleted",
            None,
            "Delete",
            failed(ErrorKind::DeadlineExceeded, Finality::Unknown),
            "repeat",
        ),
    ];
    for (name, claim, policy, response, expected) in cases {
        let fixture = ProvisionerFixture::new(claim, None, None);
        let mut intent = (*intent()).clone();
        intent.class.reclaim_policy = cofferdam_domain::ReclaimPolicy::parse(policy);
        let shown = match decide_after_create(&fixture.cache, None, &intent, false, response) {
            CreateVerdict::Save(_, capacity) => format!("save {capacity}"),
            CreateVerdict::DeleteUnneeded(_, None) => "delete".to_owned(),
            CreateVerdict::DeleteUnneeded(_, Some(_)) => "delete with event".to_owned(),
            CreateVerdict::Failed { permanent: false, .. } => "failed".to_owned(),
            CreateVerdict::Failed { permanent: true, .. } => "failed permanently".to_owned(),
            CreateVerdict::Reschedule { node, .. } => format!("reschedule {node}"),
            CreateVerdict::Retry(_) => "repeat".to_owned(),
        };
        assert_eq!(shown, expected, "{name}");
    }
}

#[test]
fn inconclusive_errors_do_not_settle_a_request_that_another_process_may_have_sent() {
    let fixture = ProvisionerFixture::new(None, None, None);
    let intent = intent();
    #[rustfmt::skip] // kind of a final error, result for an own intent, result for a recovered intent
    let table = [
        (ErrorKind::Internal,           "failed",             "repeat"),
        (ErrorKind::Unknown,            "failed",             "repeat"),
        (ErrorKind::Unauthenticated,    "failed",             "repeat"),
        (ErrorKind::PermissionDenied,   "failed",             "repeat"),
        (ErrorKind::Unavailable,        "repeat",             "repeat"),
        (ErrorKind::InvalidArgument,    "failed permanently", "failed permanently"),
        (ErrorKind::OutOfRange,         "failed",             "failed"),
        (ErrorKind::ResourceExhausted,  "failed",             "failed"),
        (ErrorKind::FailedPrecondition, "failed",             "failed"),
    ];
    for (kind, own, recovered) in table {
        for (is_recovered, expected) in [(false, own), (true, recovered)] {
            let response = Err(StorageError::with_known_effect(kind, "no"));
            let shown = match decide_after_create(&fixture.cache, None, &intent, is_recovered, response) {
                CreateVerdict::Failed { permanent: false, .. } => "failed",
                CreateVerdict::Failed { permanent: true, .. } => "failed permanently",
                CreateVerdict::Retry(_) => "repeat",
                other @ (CreateVerdict::Save(..)
                | CreateVerdict::DeleteUnneeded(..)
                | CreateVerdict::Reschedule { .. }) => panic!("{other:?}"),
            };
            assert_eq!(shown, expected, "{kind:?}, recovered: {is_recovered}");
        }
    }
}

#[test]
fn a_driver_without_create_delete_gets_no_intent() {
    let mut fixture = ProvisionerFixture::new(Some(claim_json()), Some(class_json()), None);
    fixture.options.create_drivers.clear();
    let expected = "reject driver drv does not create volumes: it has no CREATE_DELETE_VOLUME";
    assert_eq!(describe(&fixture.decide()), expected);
    // An earlier process wrote this intent, and the driver had the capability then.
    fixture.intent = Some(intent());
    assert_eq!(describe(&fixture.decide()), "create");
}

/// A fixture whose driver has topology, with node `n` in zone `a`.
fn fixture_with_topology(selected: Option<&str>, class: Value) -> ProvisionerFixture {
    let node = |node| json!({"metadata": {"annotations": {"volume.kubernetes.io/selected-node": node}}});
    let claim = selected.map_or_else(claim_json, |selected| merged(claim_json(), node(selected)));
    let mut fixture = ProvisionerFixture::new(Some(claim), Some(merged(class_json(), class)), None);
    fixture.options.topology_drivers.insert("drv".into());
    let meta = json!({"name": "n", "uid": "u", "resourceVersion": "1", "labels": {"zone": "a"}});
    let keys = json!([{"name": "drv", "nodeID": "n", "topologyKeys": ["zone"]}]);
    fixture.cache.nodes.apply(Ok(read(&json!({"metadata": meta}))));
    fixture.cache.csi_nodes.apply(Ok(read(&json!({"metadata": meta, "spec": {"drivers": keys}}))));
    fixture
}

#[test]
fn accessibility_requirements_follow_node_and_class() {
    let wait_for_first_consumer = || json!({"volumeBindingMode": "WaitForFirstConsumer"});
    let allowed = |zone: &str| {
        let expressions = json!([{"key": "zone", "values": [zone]}]);
        json!({"allowedTopologies": [{"matchLabelExpressions": expressions}]})
    };
    let decided_topology = |fixture: &ProvisionerFixture| {
        let verdict = fixture.decide();
        let ProvisionVerdict::WriteIntent(intent) = verdict else { return describe(&verdict) };
        let node = intent.node.as_ref().map_or("-", |node| node.as_str());
        let zones = intent.request.topology.iter().flat_map(|topology| &topology.requisite);
        let zones: Vec<_> = zones.map(|decided_topology| decided_topology["zone"].as_str()).collect();
        format!("{node} {}", zones.join(" "))
    };
    let message_prefix = "failed to provision volume with StorageClass \"gold\": \
                          error generating accessibility requirements: ";
    assert_eq!(decided_topology(&fixture_with_topology(None, json!({}))), "- a");
    assert_eq!(decided_topology(&fixture_with_topology(None, allowed("b"))), "- b");
    assert_eq!(decided_topology(&fixture_with_topology(None, wait_for_first_consumer())), "no action");
    assert_eq!(decided_topology(&fixture_with_topology(Some("n"), wait_for_first_consumer())), "n a");
    let missing_node =
        format!("reschedule m: {message_prefix}error getting CSINode for selected node \"m\": not found");
    assert_eq!(decided_topology(&fixture_with_topology(Some("m"), wait_for_first_consumer())), missing_node);
    let not_allowed = fixture_with_topology(Some("n"), merged(wait_for_first_consumer(), allowed("b")));
    let expected = format!(
        "wait: {message_prefix}topology {{zone=a}} of node n is not in allowed topologies: {{zone=b}}"
    );
    assert_eq!(decided_topology(&not_allowed), expected);
    let mut without_immediate_topology = fixture_with_topology(None, json!({}));
    without_immediate_topology.options.immediate_topology = false;
    assert_eq!(decided_topology(&without_immediate_topology), "- ");
    let ProvisionVerdict::WriteIntent(intent) = without_immediate_topology.decide() else {
        panic!("expected WriteIntent")
    };
    assert_eq!(intent.request.topology, None);
    let mut strict = fixture_with_topology(Some("n"), merged(wait_for_first_consumer(), allowed("a")));
    strict.options.strict_topology = true;
    assert_eq!(decided_topology(&strict), "n a");
    // A driver without topology gets no requirement, and cannot satisfy allowedTopologies.
    let mut without_topology = fixture_with_topology(Some("n"), wait_for_first_consumer());
    without_topology.options.topology_drivers.clear();
    assert_eq!(decided_topology(&without_topology), "- ");
    let mut without_topology = fixture_with_topology(None, allowed("a"));
    without_topology.options.topology_drivers.clear();
    assert_eq!(
        decided_topology(&without_topology),
        "reject StorageClass gold has allowedTopologies, but driver drv does not support topology; \
         expected none"
    );
}

#[test]
fn resource_exhausted_on_the_selected_node_is_rescheduled() {
    use ErrorKind::{FailedPrecondition, ResourceExhausted};
    let verdict = fixture_with_topology(Some("n"), json!({})).decide();
    let ProvisionVerdict::WriteIntent(intent) = verdict else { panic!("{verdict:?}") };
    let response =
        |kind, finality| Err(StorageError { kind, message: "no".to_owned(), retry_after_ms: None, finality });
    #[rustfmt::skip] // one row per response
    let table = [
        (Some("n"), ResourceExhausted,  Finality::Final,   "reschedule n"),
        (Some("n"), ResourceExhausted,  Finality::Unknown, "repeat"),
        (Some("n"), FailedPrecondition, Finality::Final,   "failed"),
        // The scheduler has selected another node.
        (Some("m"), ResourceExhausted,  Finality::Final,   "failed"),
        (None,      ResourceExhausted,  Finality::Final,   "failed"),
    ];
    for (selected, kind, finality, expected) in table {
        let fixture = fixture_with_topology(selected, json!({}));
        let response = response(kind, finality);
        let shown = match decide_after_create(&fixture.cache, None, &intent, false, response) {
            CreateVerdict::Reschedule { node, .. } => format!("reschedule {node}"),
            CreateVerdict::Failed { permanent: false, .. } => "failed".to_owned(),
            CreateVerdict::Retry(_) => "repeat".to_owned(),
            other @ (CreateVerdict::Save(..)
            | CreateVerdict::DeleteUnneeded(..)
            | CreateVerdict::Failed { .. }) => format!("{other:?}"),
        };
        assert_eq!(shown, expected, "{selected:?} {kind:?} {finality:?}");
    }
}

#[test]
fn released_volumes_are_deleted_and_finalizers_removed() {
    use ReclaimVerdict::{
        AddFinalizer, DeleteObject, DeleteObjectAndFinalizer, DeleteVolume, DeletionFrozen, InTreeSource,
        RemoveFinalizer,
    };
    let migrated = json!({"metadata": {"annotations": {
        "pv.kubernetes.io/provisioned-by": "kubernetes.io/aws-ebs", "pv.kubernetes.io/migrated-to": "drv",
    }}});
    let in_tree = merged(
        migrated.clone(),
        json!({"spec": {"csi": null, "awsElasticBlockStore": {"volumeID": "vol-1"}}}),
    );
    let released = json!({"status": {"phase": "Released"}});
    let deleting = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
    let without_finalizer = json!({"metadata": {"finalizers": ["kubernetes.io/pv-protection"]}});
    let policy = |policy: &str| json!({"spec": {"persistentVolumeReclaimPolicy": policy}});
    let both = |a: &Value, b: &Value| merged(a.clone(), b.clone());
    // Change, deleted, is_frozen → verdict; `None` is `NoAction`.
    let cases = [
        ("bound", json!({}), false, false, None),
        ("bound, static", without_finalizer.clone(), false, false, Some(AddFinalizer)),
        ("bound, static, being deleted", both(&without_finalizer, &deleting), false, false, None),
        ("bound, now Retain", policy("Retain"), false, false, Some(RemoveFinalizer(1))),
        ("released", released.clone(), false, false, Some(DeleteVolume)),
        ("released, frozen", released.clone(), false, true, Some(DeletionFrozen)),
        ("released, Retain", both(&released, &policy("Retain")), false, false, Some(RemoveFinalizer(1))),
        (
            "released, Retain, without finalizer",
            both(&both(&released, &policy("Retain")), &without_finalizer),
            false,
            false,
            None,
        ),
        ("released, volume deleted", released.clone(), true, false, Some(DeleteObjectAndFinalizer(1))),
        (
            "released, volume deleted, frozen since",
            released.clone(),
            true,
            true,
            Some(DeleteObjectAndFinalizer(1)),
        ),
        // The finalizer was removed, and the deletion of the object failed.
        (
            "released, without finalizer",
            both(&released, &without_finalizer),
            false,
            false,
            Some(DeleteVolume),
        ),
        (
            "released, without finalizer, volume deleted",
            both(&released, &without_finalizer),
            true,
            false,
            Some(DeleteObject),
        ),
        ("released, being deleted", both(&released, &deleting), false, false, Some(DeleteVolume)),
        (
            "released, being deleted, volume deleted",
            both(&released, &deleting),
            true,
            false,
            Some(RemoveFinalizer(1)),
        ),
        (
            "released, being deleted, without finalizer",
            both(&both(&released, &deleting), &without_finalizer),
            false,
            false,
            None,
        ),
        ("failed", json!({"status": {"phase": "Failed"}}), false, false, None),
        (
            "available",
            json!({"status": {"phase": "Available"}, "spec": {"claimRef": null}}),
            false,
            false,
            None,
        ),
        (
            "another provisioner",
            both(&released, &json!({"metadata": {"annotations": {"pv.kubernetes.io/provisioned-by": "x"}}})),
            false,
            false,
            None,
        ),
        (
            "static, of a managed driver",
            both(&released, &json!({"metadata": {"annotations": null}})),
            false,
            false,
            Some(DeleteVolume),
        ),
        ("in-tree", both(&released, &json!({"spec": {"csi": null}})), false, false, None),
        ("in-tree, migrated", both(&released, &in_tree), false, false, Some(InTreeSource)),
        ("in-tree, migrated, bound", in_tree.clone(), false, false, None),
        (
            "in-tree, migrated, Retain",
            both(&in_tree, &policy("Retain")),
            false,
            false,
            Some(RemoveFinalizer(1)),
        ),
        (
            "in-tree, migrated to a driver of another process",
            both(
                &both(&released, &in_tree),
                &json!({"metadata": {"annotations": {"pv.kubernetes.io/migrated-to": "x"}}}),
            ),
            false,
            false,
            None,
        ),
        (
            "CSI source, in-tree provisioner, migrated",
            both(&released, &migrated),
            false,
            false,
            Some(DeleteVolume),
        ),
        (
            "CSI source, in-tree provisioner, migration not recorded",
            both(
                &both(&released, &migrated),
                &json!({"metadata": {"annotations": {"pv.kubernetes.io/migrated-to": null}}}),
            ),
            false,
            false,
            None,
        ),
    ];
    for (name, change, deleted, is_frozen, expected) in cases {
        let json = merged(volume_json(), change);
        let verdict =
            decide_reclaim(&|driver| driver.as_str() == "drv", &read::<Volume>(&json), deleted, is_frozen);
        match (verdict, expected) {
            (ReclaimVerdict::NoAction(_), None) => {}
            (verdict, expected) => assert_eq!(Some(verdict), expected, "{name}"),
        }
    }
}

#[test]
fn claims_of_in_tree_classes_are_rejected_by_the_provisioner_of_the_csi_driver() {
    let rejected = "reject StorageClass gold has the in-tree provisioner kubernetes.io/aws-ebs, whose \
                    parameters this version of Cofferdam does not translate; expected a StorageClass with \
                    the provisioner ebs.csi.aws.com";
    let annotated = |provisioner: &str| {
        let key = "volume.kubernetes.io/storage-provisioner";
        json!({"metadata": {"annotations": {key: provisioner}}})
    };
    let migrated = merged(
        annotated("kubernetes.io/aws-ebs"),
        json!({"metadata": {"annotations": {"pv.kubernetes.io/migrated-to": "ebs.csi.aws.com"}}}),
    );
    let delayed = json!({"volumeBindingMode": "WaitForFirstConsumer"});
    #[rustfmt::skip] // one row per claim
    let table = [
        ("annotated by pv-controller", annotated("ebs.csi.aws.com"), json!({}), false, rejected),
        ("annotated by this process", annotated("ebs.csi.aws.com"), json!({}), true, rejected),
        ("not annotated", json!({}), json!({}), true, "no action"),
        ("annotated with the plugin", migrated, json!({}), false, rejected),
        ("plugin without the migration", annotated("kubernetes.io/aws-ebs"), json!({}), false, "no action"),
        ("driver of another process", annotated("pd.csi.storage.gke.io"), json!({}), false, "no action"),
        ("no node selected", annotated("ebs.csi.aws.com"), delayed, false, "no action"),
    ];
    for (name, claim, class, runs_pv_controller, expected) in table {
        let class = merged(merged(class_json(), json!({"provisioner": "kubernetes.io/aws-ebs"})), class);
        let mut fixture = ProvisionerFixture::new(Some(merged(claim_json(), claim)), Some(class), None);
        fixture.options.runs_pv_controller = runs_pv_controller;
        assert_eq!(describe(&fixture.decide()), expected, "{name}");
    }
}

#[test]
fn names_and_keys_are_decoded_from_api_objects() {
    let class: StorageClass = read(&class_json());
    assert_eq!(class.name, StorageClassName::from("gold"));
    let claim: Claim = read(&claim_json());
    assert_eq!(claim.key.to_string(), "ns/c");
}

#[test]
fn claims_of_node_local_drivers_are_provisioned_on_their_node() {
    let annotated = |pairs: Value| json!({"metadata": {"annotations": pairs}});
    let (storage_provisioner, selected_node) =
        ("volume.kubernetes.io/storage-provisioner", "volume.kubernetes.io/selected-node");
    let wait_for_first_consumer = json!({"volumeBindingMode": "WaitForFirstConsumer"});
    let only = |node: &str| {
        let expressions = json!([{"key": KEY, "values": [node]}]);
        json!({"allowedTopologies": [{"matchLabelExpressions": expressions}]})
    };
    const KEY: &str = "topology.cofferdam.dev/node";
    #[rustfmt::skip] // one row per claim
    let table = [
        ("no annotation", json!({}), json!({}), true, "no action"),
        ("node selected, no annotation", annotated(json!({selected_node: "n1"})),
            wait_for_first_consumer.clone(), true, "no action"),
        ("this node selected", annotated(json!({storage_provisioner: "drv", selected_node: "n1"})),
            wait_for_first_consumer.clone(), true, "write intent"),
        ("another node selected", annotated(json!({storage_provisioner: "drv", selected_node: "n2"})),
            wait_for_first_consumer.clone(), true, "no action"),
        ("no node selected", annotated(json!({storage_provisioner: "drv"})), wait_for_first_consumer, true,
            "no action"),
        ("immediate binding", annotated(json!({storage_provisioner: "drv"})), json!({}), true, "select n1"),
        ("immediate binding off", annotated(json!({storage_provisioner: "drv"})), json!({}), false,
            "no action"),
        ("immediate binding, this node selected",
            annotated(json!({storage_provisioner: "drv", selected_node: "n1"})), json!({}), false,
            "write intent"),
        ("immediate binding, another node selected",
            annotated(json!({storage_provisioner: "drv", selected_node: "n2"})), json!({}), true,
            "no action"),
        ("this node allowed", annotated(json!({storage_provisioner: "drv"})), only("n1"), true, "select n1"),
        ("another node allowed", annotated(json!({storage_provisioner: "drv"})), only("n2"), true,
            "no action"),
        ("selected node not allowed", annotated(json!({storage_provisioner: "drv", selected_node: "n1"})),
            only("n2"), true,
            "wait: failed to provision volume with StorageClass \"gold\": \
             error generating accessibility requirements: \
             topology {topology.cofferdam.dev/node=n1} of node n1 is not in allowed topologies: \
             {topology.cofferdam.dev/node=n2}"),
        ("invalid request", annotated(json!({storage_provisioner: "drv"})),
            json!({"parameters": {"csi.storage.k8s.io/x": "y"}}), true, "select n1 without a request"),
        ("populator", merged(
            annotated(json!({storage_provisioner: "drv"})),
            json!({"spec": {"dataSourceRef": {"apiGroup": "x.example", "kind": "Image", "name": "x"}}}),
        ), json!({}), true, "populator"),
    ];
    for (name, claim, class, immediate, expected) in table {
        let mut fixture = ProvisionerFixture::new(
            Some(merged(claim_json(), claim)),
            Some(merged(class_json(), class)),
            None,
        );
        let drivers = [("drv".into(), vec![KEY.to_owned()])].into();
        fixture.options.local_node =
            Some(LocalNode { node: "n1".into(), drivers, immediate_binding: immediate });
        fixture.options.topology_drivers = ["drv".into()].into();
        let verdict = fixture.decide();
        assert_eq!(describe(&verdict), expected, "{name}");
        if let ProvisionVerdict::WriteIntent(intent) = verdict {
            assert_eq!(intent.node, Some("n1".into()), "{name}");
            let segments: Segments = [(KEY.to_owned(), "n1".to_owned())].into();
            let topology =
                TopologyRequirement { requisite: vec![segments.clone()], preferred: vec![segments] };
            assert_eq!(intent.request.topology, Some(topology), "{name}");
        }
    }
}

#[test]
fn only_changes_that_provisioning_depends_on_are_relevant() {
    let old: Claim = read(&claim_json());
    let is_relevant = |change: Value| is_relevant_change(Some(&old), &read(&merged(claim_json(), change)));
    let annotation = |name: &str| json!({"metadata": {"annotations": {name: "x"}}});
    assert!(is_relevant_change(None, &old), "a new claim");
    for change in [
        json!({"metadata": {"resourceVersion": "6"}}),
        json!({"metadata": {"labels": {"a": "b"}, "finalizers": ["example.com/mine"]}}),
        json!({"status": {"conditions": [{"type": "Resizing", "status": "True"}]}}),
        annotation("example.com/note"),
    ] {
        assert!(!is_relevant(change.clone()), "{change}");
    }
    for change in [
        json!({"metadata": {"uid": "another"}}),
        json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}),
        json!({"spec": {"storageClassName": "silver"}}),
        json!({"spec": {"volumeName": "v"}}),
        json!({"spec": {"accessModes": ["ReadWriteMany"]}}),
        json!({"spec": {"volumeMode": "Block"}}),
        json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}}),
        json!({"spec": {"selector": {"matchLabels": {"a": "b"}}}}),
        json!({"spec": {"volumeAttributesClassName": "fast"}}),
        json!({"spec": {"dataSource": {"kind": "PersistentVolumeClaim", "name": "d"}}}),
        annotation("volume.kubernetes.io/selected-node"),
        annotation("volume.kubernetes.io/storage-provisioner"),
        annotation("volume.beta.kubernetes.io/storage-provisioner"),
        annotation("volume.beta.kubernetes.io/storage-class"),
        annotation("pv.kubernetes.io/migrated-to"),
        annotation("pv.kubernetes.io/bind-completed"),
    ] {
        assert!(is_relevant(change.clone()), "{change}");
    }
}

#[test]
fn a_mended_class_adds_a_request_to_an_open_intent() {
    let class = |uid: &str, tier: &str| {
        merged(class_json(), json!({"metadata": {"uid": uid}, "parameters": {"tier": tier}}))
    };
    let mended = || class("new", "slow");
    let waiting = json!({"volumeBindingMode": "WaitForFirstConsumer"});
    let claim = |change: Value| Some(merged(claim_json(), change));
    let other_volume = merged(volume_json(), json!({"spec": {"claimRef": {"uid": "other"}}}));
    let rows: Vec<(&str, Option<Value>, Option<Value>, Option<Value>, &str)> = vec![
        ("unchanged", claim(json!({})), Some(class_json()), None, "create"),
        ("other parameters", claim(json!({})), Some(mended()), None, "write mended request"),
        ("created again", claim(json!({})), Some(class("new", "fast")), None, "create"),
        ("class deleted", claim(json!({})), None, None, "create"),
        (
            "class of another driver",
            claim(json!({})),
            Some(merged(mended(), json!({"provisioner": "other"}))),
            None,
            "create",
        ),
        (
            "invalid class",
            claim(json!({})),
            Some(merged(mended(), json!({"parameters": {"csi.storage.k8s.io/odd": "x"}}))),
            None,
            "create",
        ),
        ("waits for a node", claim(json!({})), Some(merged(mended(), waiting)), None, "create"),
        ("claim deleted", None, Some(mended()), None, "create"),
        (
            "claim is being deleted",
            claim(json!({"metadata": {"deletionTimestamp": "2026-06-03T12:00:00Z"}})),
            Some(mended()),
            None,
            "create",
        ),
        ("claim has a volume", claim(json!({"spec": {"volumeName": "v"}})), Some(mended()), None, "create"),
        ("volume exists", claim(json!({})), Some(mended()), Some(volume_json()), "remove intent"),
        ("name is taken", claim(json!({})), Some(mended()), Some(other_volume), "create"),
    ];
    for (row, claim, class, volume, expected) in rows {
        let mut fixture = ProvisionerFixture::new(claim, class, volume);
        fixture.intent = Some(intent());
        assert_eq!(describe(&fixture.decide()), expected, "{row}");
    }

    let mut fixture = ProvisionerFixture::new(claim(json!({})), Some(mended()), None);
    fixture.intent = Some(intent());
    let ProvisionVerdict::WriteMended(both) = fixture.decide() else { panic!("no mended request") };
    let request = both.mended.clone().unwrap();
    assert_eq!(
        (&request.class.uid, &request.request.parameters["tier"]),
        (&"new".into(), &"slow".to_owned())
    );
    assert_eq!(Intent { mended: None, ..(*both).clone() }, *intent());
    // After a final error of the mended request, the first one is repeated before the mended one.
    fixture.last_request = Some(request_digest(&request));
    assert_eq!(describe(&fixture.decide()), "create");
    fixture.last_request = Some(request_digest(&intent()));
    assert_eq!(describe(&fixture.decide()), "write mended request");
    // A request that the driver has rejected as invalid waits for the slow retry.
    fixture.infeasible = Some("new".into());
    assert_eq!(describe(&fixture.decide()), "create");
    // A third request waits for the result of the second.
    let mut fixture = ProvisionerFixture::new(claim(json!({})), Some(class("third", "good")), None);
    fixture.intent = Some(Arc::new(*both));
    assert_eq!(describe(&fixture.decide()), "create");
}

/// The source claim `s` of a clone, which is bound, and its PersistentVolume.
fn with_source(fixture: ProvisionerFixture, source: Value, volume: Value) -> ProvisionerFixture {
    let bound = json!({
        "metadata": {"name": "s", "uid": "s-uid", "finalizers": [names::CLONING_PROTECTION]},
        "spec": {"volumeName": "source-volume"}, "status": {"phase": "Bound"},
    });
    let claim_ref = json!({"name": "s", "uid": "s-uid"});
    let named = json!({
        "metadata": {"name": "source-volume", "uid": "v"},
        "spec": {"claimRef": claim_ref, "csi": {"volumeHandle": "source-handle"}},
    });
    let claim = merged(merged(claim_json(), bound), source);
    assert!(fixture.cache.claims.apply(Ok(read(&claim))));
    assert!(fixture.cache.volumes.apply(Ok(read(&merged(merged(volume_json(), named), volume)))));
    fixture
}

fn clone_json() -> Value {
    merged(claim_json(), json!({"spec": {"dataSource": {"kind": "PersistentVolumeClaim", "name": "s"}}}))
}

#[test]
fn a_clone_names_its_source_in_the_intent_once_the_source_is_protected() {
    let unprotected = json!({"metadata": {"finalizers": null}});
    let foreign = json!({"spec": {"dataSource": null, "dataSourceRef": {
        "kind": "PersistentVolumeClaim", "name": "s", "namespace": "other",
    }}});
    let cannot_clone = "cannot use claim ns/s as the source";
    let table = [
        ("protected", json!({}), json!({}), true, "write intent".to_owned()),
        ("not protected", json!({}), unprotected, true, "protect claim ns/s".to_owned()),
        (
            "driver without CLONE_VOLUME",
            json!({}),
            json!({}),
            false,
            "reject driver drv does not clone volumes: it has no CLONE_VOLUME".to_owned(),
        ),
        (
            "source of another namespace",
            foreign,
            json!({}),
            true,
            "reject spec.dataSourceRef.namespace is \"other\"; \
             expected none, or the namespace of the claim"
                .to_owned(),
        ),
        (
            "source Pending",
            json!({}),
            json!({"status": null}),
            true,
            format!(
                "wait for claim ns/s: failed to provision volume with StorageClass \"gold\": {cannot_clone}: \
                     its phase is Pending; expected Bound"
            ),
        ),
    ];
    for (name, claim, source, clones, expected) in table {
        let claim = merged(clone_json(), claim);
        let fixture = ProvisionerFixture::new(Some(claim), Some(class_json()), None);
        let mut fixture = with_source(fixture, source, json!({}));
        if !clones {
            fixture.options.cloning_drivers.clear();
        }
        let verdict = fixture.decide();
        assert_eq!(describe(&verdict), expected, "{name}");
        if let ProvisionVerdict::WriteIntent(intent) = verdict {
            let source = ContentSource::Volume("source-handle".into());
            assert_eq!(intent.request.source, Some(source), "{name}");
        }
    }
}

#[test]
fn a_node_local_clone_is_created_on_the_node_of_its_source() {
    const KEY: &str = "topology.cofferdam.dev/node";
    let annotations = |node: Option<&str>| {
        json!({"metadata": {"annotations": {
            "volume.kubernetes.io/storage-provisioner": "drv", "volume.kubernetes.io/selected-node": node.unwrap_or_default(),
        }}})
    };
    let on = |node: &str| {
        let expressions = json!([{"key": KEY, "operator": "In", "values": [node]}]);
        let terms = json!([{"matchExpressions": expressions}]);
        json!({"spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": terms}}}})
    };
    let unprotected = json!({"metadata": {"finalizers": null}});
    let pending = json!({"status": null});
    let failed = "failed to provision volume with StorageClass \"gold\": cannot use claim ns/s as the source";
    let table = [
        (
            "no node selected, source on this node",
            None,
            unprotected.clone(),
            on("n1"),
            "select n1".to_owned(),
        ),
        ("no node selected, source on another", None, unprotected.clone(), on("n2"), "no action".to_owned()),
        (
            "no node selected, source Pending",
            None,
            pending,
            on("n1"),
            format!("wait for claim ns/s: {failed}: its phase is Pending; expected Bound"),
        ),
        (
            "this node selected, source on it",
            Some("n1"),
            unprotected.clone(),
            on("n1"),
            "write intent".to_owned(),
        ),
        (
            "this node selected, source on another",
            Some("n1"),
            unprotected,
            on("n2"),
            format!("leave n1: {failed}: its volume is not on the selected node n1"),
        ),
    ];
    for (name, node, source, volume, expected) in table {
        let claim = merged(clone_json(), annotations(node));
        let fixture = ProvisionerFixture::new(Some(claim), Some(class_json()), None);
        let mut fixture = with_source(fixture, source, volume);
        let drivers = [("drv".into(), vec![KEY.to_owned()])].into();
        fixture.options.local_node = Some(LocalNode { node: "n1".into(), drivers, immediate_binding: true });
        fixture.options.topology_drivers = ["drv".into()].into();
        assert_eq!(describe(&fixture.decide()), expected, "{name}");
    }
}
