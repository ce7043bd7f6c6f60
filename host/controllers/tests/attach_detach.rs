//! Tests of attach-detach: a property test, and single cases of batching, events, generic ephemeral volumes,
//! entries of unmanaged volumes in `volumesAttached`, and metrics.
//!
//! The property test makes random changes of pods, nodes and drivers, with faults of driver calls and API
//! writes, and with or without a crash at a random effect. The simulation checks the invariants when the
//! controller creates or deletes a VolumeAttachment: a single-node volume never has VolumeAttachments for two
//! nodes, a volume that is in `volumesAttached` or that a pod on the node uses is never detached, and a
//! volume in `volumesInUse` is detached only from a node with the taint `out-of-service`, or by force-detach
//! from a node that is not ready or is deleted. At the end, a shared volume is attached to every existing
//! node with a pod that uses the volume. A single-node volume is attached to at most one node, and to one
//! node if an existing node has a pod that uses the volume. No volume is attached to a node without a pod
//! that uses the volume; pods of a deleted node count if they still exist. Processes that start anew write
//! nothing but Events and do not call the driver.
//!
//! proptest generates the cases, because it shrinks failing ones. Its seed is fixed, so that all runs are the
//! same.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a missing value fails the test")]

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use cofferdam_controllers::{Role, attach_detach, pv_controller};
use cofferdam_domain::storage::ErrorKind;
use cofferdam_sim::{
    ApiFault, DriverFault, Effect, FaultKind, FinalState, PublishingBehavior, Simulation,
    UserAction::{self, Create, Delete, Patch, Settle, Wait},
    WorkKind,
    objects::{claim, csi_node, pod, ready_condition, ready_node, unique_volume_name, volume, with},
};
use proptest::{
    collection::vec,
    prelude::*,
    test_runner::{Config, RngSeed, TestRunner},
};
use serde_json::json;

/// Names and access modes of the volumes: a single-node volume, and a shared one.
const VOLUMES: [(&str, &str); 2] = [("v", "ReadWriteOnce"), ("w", "ReadWriteMany")];
const NODES: [&str; 3] = ["node-0", "node-1", "node-2"];
const ATTACHMENTS: &str = "/apis/storage.k8s.io/v1/volumeattachments";
/// Number of cases of the property test.
const CASES: u32 = 48;

/// A change of the cluster. It is skipped if its object does not exist. `node` is an index of [`NODES`], and
/// `volume` an index of [`VOLUMES`].
#[derive(Clone, Debug)]
enum ClusterChange {
    /// A pod with a volume is created on a node.
    PodCreated { node: usize, volume: usize },
    /// The pod with this index, modulo the number of existing pods, is deleted.
    PodDeleted(usize),
    /// A node reports a volume in use, or not in use.
    VolumeInUse { node: usize, volume: usize, in_use: bool },
    /// The condition `Ready` of a node is set to true or false.
    NodeReady { node: usize, ready: bool },
    /// The taint `out-of-service` is added to a node, or removed.
    NodeOutOfService { node: usize, out_of_service: bool },
    /// A node is deleted, or created again.
    NodePresent { node: usize, present: bool },
    /// The driver is removed from a CSINode, or added.
    DriverRegistered { node: usize, registered: bool },
    /// Another client deletes a VolumeAttachment.
    AttachmentDeleted { node: usize, volume: usize },
    /// This many milliseconds pass.
    AdvanceTime(u64),
}

fn cluster_change() -> impl Strategy<Value = ClusterChange> {
    let (node, volume) = (0..NODES.len(), 0..VOLUMES.len());
    prop_oneof![
        6 => (node.clone(), volume.clone())
            .prop_map(|(node, volume)| ClusterChange::PodCreated { node, volume }),
        5 => any::<usize>().prop_map(ClusterChange::PodDeleted),
        5 => (node.clone(), volume.clone(), any::<bool>())
            .prop_map(|(node, volume, in_use)| ClusterChange::VolumeInUse { node, volume, in_use }),
        2 => (node.clone(), any::<bool>()).prop_map(|(node, ready)| ClusterChange::NodeReady { node, ready }),
        1 => (node.clone(), any::<bool>())
            .prop_map(|(node, out_of_service)| ClusterChange::NodeOutOfService { node, out_of_service }),
        2 => (node.clone(), any::<bool>())
            .prop_map(|(node, present)| ClusterChange::NodePresent { node, present }),
        1 => (node.clone(), any::<bool>())
            .prop_map(|(node, registered)| ClusterChange::DriverRegistered { node, registered }),
        1 => (node, volume).prop_map(|(node, volume)| ClusterChange::AttachmentDeleted { node, volume }),
        4 => prop_oneof![Just(0), Just(1), Just(50), Just(3_000), Just(400_000)]
            .prop_map(ClusterChange::AdvanceTime),
    ]
}

fn fault() -> impl Strategy<Value = DriverFault> {
    prop_oneof![
        Just(DriverFault::LostResponse),
        Just(DriverFault::LostRequest),
        Just(DriverFault::Refuse(ErrorKind::Internal)),
        Just(DriverFault::Slow(Duration::from_secs(2))),
    ]
}

fn api_fault() -> impl Strategy<Value = ApiFault> {
    let how = prop_oneof![
        Just(FaultKind::LostResponse),
        Just(FaultKind::LostRequest),
        Just(FaultKind::Conflict),
        (1..59_u64).prop_map(|seconds| FaultKind::Delayed(Duration::from_secs(seconds))),
    ];
    let what = prop_oneof![
        Just(("PATCH", "/api/v1/nodes/node-0")),
        Just(("PATCH", "/api/v1/nodes/")),
        Just(("POST", ATTACHMENTS)),
        Just(("DELETE", ATTACHMENTS)),
    ];
    (what, how).prop_map(|((method, path), how)| ApiFault {
        method,
        path_prefix: path,
        body_contains: "",
        kind: how,
    })
}

/// The objects of the cluster after the changes so far, and the user actions of these changes.
#[derive(Default)]
struct ClusterModel {
    pods: BTreeMap<String, (usize, usize)>,
    pods_created: usize,
    in_use: [[bool; VOLUMES.len()]; NODES.len()],
    is_node_deleted: [bool; NODES.len()],
    actions: Vec<UserAction>,
}

fn leak_path(text: String) -> &'static str {
    // The path of a user action is valid until the end of the test.
    Box::leak(text.into_boxed_str())
}

fn node_status_path(node: usize) -> &'static str {
    leak_path(format!("/api/v1/nodes/{}/status", NODES[node]))
}

impl ClusterModel {
    fn new() -> Self {
        let mut model = Self::default();
        for node in NODES {
            model.actions.extend([Create(csi_node(node, &format!("id-{node}"))), Create(ready_node(node))]);
        }
        for (name, mode) in VOLUMES {
            let modes = json!({"spec": {"accessModes": [mode], "storageClassName": name}});
            model.actions.extend([
                Create(with(volume(name, "none", "1Gi"), &modes)),
                Create(with(claim(name, "none"), &modes)),
            ]);
        }
        model.actions.push(Settle);
        model
    }

    /// Writes the node's `volumesInUse`.
    fn update_volumes_in_use(&mut self, node: usize) {
        let volumes_in_use = VOLUMES.iter().zip(self.in_use[node]).filter(|(_, uses)| *uses);
        let volumes_in_use: Vec<_> =
            volumes_in_use.map(|((name, _), _)| unique_volume_name(&format!("static-{name}"))).collect();
        self.actions.push(Patch(node_status_path(node), json!({"status": {"volumesInUse": volumes_in_use}})));
    }

    fn apply(&mut self, change: &ClusterChange) {
        match change {
            ClusterChange::PodCreated { node, volume } => {
                let name = format!("p{}", self.pods_created);
                self.pods_created += 1;
                self.pods.insert(name.clone(), (*node, *volume));
                let node_name = json!({"spec": {"nodeName": NODES[*node]}});
                self.actions.push(Create(with(pod(&name, VOLUMES[*volume].0), &node_name)));
            }
            ClusterChange::PodDeleted(number) => {
                let Some(name) = self.pods.keys().nth(number % self.pods.len().max(1)).cloned() else {
                    return;
                };
                self.pods.remove(&name);
                let of = format!("/api/v1/namespaces/default/pods/{name}?gracePeriodSeconds=0");
                self.actions.push(Delete(leak_path(of)));
            }
            ClusterChange::VolumeInUse { node, volume, in_use } => {
                self.in_use[*node][*volume] = *in_use;
                self.update_volumes_in_use(*node);
            }
            ClusterChange::NodeReady { node, ready: ready_status } => {
                let conditions = json!({"status": {"conditions": [ready_condition(*ready_status)]}});
                self.actions.push(Patch(node_status_path(*node), conditions));
            }
            ClusterChange::NodeOutOfService { node, out_of_service } => {
                let taint = json!({"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"});
                let taints = if *out_of_service { json!([taint]) } else { json!([]) };
                let of = format!("/api/v1/nodes/{}", NODES[*node]);
                self.actions.push(Patch(leak_path(of), json!({"spec": {"taints": taints}})));
            }
            ClusterChange::NodePresent { node, present } if self.is_node_deleted[*node] == *present => {
                self.is_node_deleted[*node] = !present;
                self.in_use[*node] = Default::default();
                self.actions.push(match present {
                    true => Create(ready_node(NODES[*node])),
                    false => Delete(leak_path(format!("/api/v1/nodes/{}", NODES[*node]))),
                });
            }
            ClusterChange::NodePresent { .. } => {}
            ClusterChange::DriverRegistered { node, registered } => {
                let of = format!("/apis/storage.k8s.io/v1/csinodes/{}", NODES[*node]);
                let registered_node = csi_node(NODES[*node], &format!("id-{}", NODES[*node]));
                let spec = if *registered {
                    registered_node.get("spec").cloned()
                } else {
                    Some(json!({"drivers": []}))
                };
                self.actions.push(Patch(leak_path(of), json!({"spec": spec})));
            }
            ClusterChange::AttachmentDeleted { node, volume } => {
                let handle = format!("static-{}", VOLUMES[*volume].0);
                let driver = cofferdam_sim::objects::DRIVER;
                let name = cofferdam_domain::names::volume_attachment_name(
                    &driver.into(),
                    &handle.as_str().into(),
                    &NODES[*node].into(),
                );
                self.actions
                    .push(Delete(leak_path(format!("/apis/storage.k8s.io/v1/volumeattachments/{name}"))));
            }
            ClusterChange::AdvanceTime(ms) => self.actions.push(Wait(Duration::from_millis(*ms))),
        }
    }

    /// Ends the case: all nodes that exist are ready, without the taint `out-of-service` and without volumes
    /// in use, and the driver is registered on them.
    fn finish(&mut self) {
        for node in 0..NODES.len() {
            self.apply(&ClusterChange::DriverRegistered { node, registered: true });
            self.apply(&ClusterChange::NodeOutOfService { node, out_of_service: false });
            self.apply(&ClusterChange::NodeReady { node, ready: true });
            self.in_use[node] = Default::default();
            self.update_volumes_in_use(node);
        }
        self.actions.push(Settle);
    }

    /// Returns the differences between the final state and the state that the pods require, and the writes
    /// and calls of processes that start anew. Their failed runs are not differences: a pod whose volume is
    /// on another node is retried.
    fn differences(&self, outcome: &FinalState) -> Vec<String> {
        let mut differences = outcome.violations.clone();
        let work = outcome.remaining_work.iter().filter(|work| work.kind != WorkKind::Retry);
        differences.extend(work.map(ToString::to_string));
        let mut attached: BTreeMap<(usize, usize), bool> = BTreeMap::new();
        for line in &outcome.attachments {
            let attachment = VOLUMES.iter().enumerate().flat_map(|(v, (name, _))| {
                NODES.iter().enumerate().map(move |(n, node)| (v, n, format!("{name} on {node} ")))
            });
            let attachment = attachment.into_iter().find(|(.., start)| line.starts_with(start));
            match attachment {
                Some((volume, node, _)) => attached.insert((volume, node), line.contains(" attached ")),
                None => {
                    differences.push(format!("unexpected VolumeAttachment: {line}"));
                    None
                }
            };
        }
        for (number, (name, mode)) in VOLUMES.iter().enumerate() {
            let desired: BTreeSet<usize> =
                self.pods.values().filter(|(_, of)| *of == number).map(|(node, _)| *node).collect();
            let reachable: BTreeSet<usize> =
                desired.iter().copied().filter(|node| !self.is_node_deleted[*node]).collect();
            let found: BTreeSet<usize> =
                attached.keys().filter(|(of, _)| *of == number).map(|(_, node)| *node).collect();
            let right = match *mode {
                "ReadWriteOnce" => {
                    found.is_subset(&desired)
                        && found.len() <= 1
                        && (!found.is_empty() || reachable.is_empty())
                }
                _ => found.is_superset(&reachable) && found.is_subset(&desired),
            };
            if !right {
                differences.push(format!(
                    "{name}: desired on {desired:?}, reachable {reachable:?}, found {found:?}"
                ));
            }
            for node in found.iter().filter(|node| !self.is_node_deleted[**node]) {
                let is_reported = outcome.volumes_attached.iter().any(|line| {
                    line.strip_suffix(&format!(" on {}", NODES[*node])).is_some_and(|handles| {
                        handles.split(", ").any(|handle| handle == format!("static-{name}"))
                    })
                });
                if !is_reported || attached.get(&(number, *node)) != Some(&true) {
                    differences.push(format!("{name} on {node}: reported {is_reported}, {attached:?}"));
                }
            }
        }
        differences
    }
}

fn run_case(
    changes: &[ClusterChange],
    publishing: PublishingBehavior,
    api_faults: Vec<ApiFault>,
    crash_after: Option<usize>,
) -> (ClusterModel, FinalState, Vec<Effect>) {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let simulation = Simulation::new(&Role::ALL, Vec::new(), Vec::new())
            .with_publishing(publishing, false)
            .with_api_faults(api_faults)
            .with_rest_check();
        let mut model = ClusterModel::new();
        changes.iter().for_each(|change| model.apply(change));
        model.finish();
        let (outcome, effects) = simulation.run(&model.actions, crash_after).await;
        (model, outcome, effects)
    })
}

#[test]
fn random_changes_end_with_volumes_attached_where_pods_run() {
    let config =
        Config { cases: CASES, failure_persistence: None, rng_seed: RngSeed::Fixed(1), ..Config::default() };
    let faults = (vec(fault(), 0..3), vec(fault(), 0..3), vec(api_fault(), 0..4));
    let cases = (vec(cluster_change(), 1..40), faults, proptest::option::of(1..60_usize));
    TestRunner::new(config)
        .run(&cases, |(changes, (faults, undo_faults, api_faults), crash_after)| {
            let publishing = PublishingBehavior {
                publish_faults: faults,
                unpublish_faults: undo_faults,
                ..PublishingBehavior::default()
            };
            let (model, outcome, _) = run_case(&changes, publishing, api_faults, crash_after);
            let differences = model.differences(&outcome);
            prop_assert!(differences.is_empty(), "{}", differences.join("\n"));
            Ok(())
        })
        .unwrap();
}

/// Number of accepted API writes, Events included, whose method and path contain this text. Driver calls are
/// not counted.
fn count_writes(effects: &[Effect], of: &str) -> usize {
    effects.iter().filter(|effect| matches!(effect, Effect::Write(text) if text.contains(of))).count()
}

#[tokio::test(start_paused = true)]
async fn node_status_updates_of_a_pod_with_many_volumes_are_batched() {
    const MANY: usize = 400;
    let simulation = Simulation::new(&Role::ALL, Vec::new(), Vec::new());
    let mut actions = vec![Create(csi_node("node-1", "id")), Create(ready_node("node-1"))];
    for number in 0..MANY {
        let name = format!("v{number}");
        let class = json!({"spec": {"storageClassName": name}});
        actions.push(Create(with(volume(&name, "none", "1Gi"), &class)));
        actions.push(Create(with(claim(&name, "none"), &class)));
    }
    let volumes: Vec<_> = (0..MANY)
        .map(|number| {
            let claim = json!({"claimName": format!("v{number}")});
            json!({"name": format!("d{number}"), "persistentVolumeClaim": claim})
        })
        .collect();
    actions.extend([Settle, Create(with(pod("p", "v0"), &json!({"spec": {"volumes": volumes}})))]);
    let (outcome, effects) = simulation.run(&actions, None).await;
    assert_eq!(outcome.violations, [""; 0]);
    let attached = outcome.attachments.iter().filter(|line| line.ends_with(" attached directory"));
    assert_eq!((attached.count(), outcome.volumes_attached[0].split(", ").count()), (MANY, MANY));
    let status_updates = count_writes(&effects, "/api/v1/nodes/node-1/status");
    assert!(status_updates < MANY / 2, "{status_updates} writes of the node's status");
}

#[tokio::test(start_paused = true)]
async fn unattachable_volumes_cause_few_writes_and_events() {
    let simulation = Simulation::new(&[attach_detach::ROLE, pv_controller::ROLE], Vec::new(), Vec::new());
    // A missing claim, a volume without a driver, and a volume that is attached elsewhere.
    let actions = vec![
        Create(ready_node("node-1")),
        Create(ready_node("node-2")),
        Create(volume("v", "none", "1Gi")),
        Settle,
        Create(claim("a", "none")),
        Create(pod("without", "b")),
        Create(pod("p", "a")),
        Settle,
        Create(with(pod("q", "a"), &json!({"spec": {"nodeName": "node-2"}}))),
    ];
    let (outcome, effects) = simulation.run(&actions, None).await;
    assert_eq!(outcome.violations, [""; 0]);
    assert_eq!(outcome.attachments, ["v on node-1 detached"]);
    let failed = [
        "p Warning FailedAttachVolume",
        "q Warning FailedAttachVolume",
        "without Warning FailedAttachVolume",
    ];
    assert_eq!(outcome.events, failed);
    // Two hours pass.
    assert_eq!(count_writes(&effects, "volumeattachments"), 1, "{effects:?}");
    // One event each, repeated every half hour: the API server keeps events for an hour.
    let event_writes = count_writes(&effects, "/events");
    assert!((6..=12).contains(&event_writes), "{event_writes} events");
}

#[tokio::test(start_paused = true)]
async fn a_generic_ephemeral_volume_is_attached_for_the_pod_that_owns_it() {
    let simulation = Simulation::new(&Role::ALL, Vec::new(), Vec::new());
    let template = json!({"spec": {
        "storageClassName": "none", "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}},
    }});
    let ephemeral = json!([{"name": "data", "ephemeral": {"volumeClaimTemplate": template}}]);
    let actions = [
        Create(csi_node("node-1", "id")),
        Create(ready_node("node-1")),
        Create(volume("v", "none", "1Gi")),
        Create(with(pod("p", "a"), &json!({"spec": {"volumes": ephemeral}}))),
    ];
    let (outcome, _) = simulation.run(&actions, None).await;
    assert_eq!(outcome.events, ["p Warning FailedAttachVolume"], "the claim does not exist");
    let uid =
        simulation.object("/api/v1/namespaces/default/pods/p").await.unwrap()["metadata"]["uid"].clone();
    let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": uid, "controller": true});
    let owned = with(claim("p-data", "none"), &json!({"metadata": {"ownerReferences": [owner]}}));
    let (outcome, _) = simulation.run(&[Create(owned)], None).await;
    assert_eq!(outcome.violations, [""; 0]);
    assert_eq!(outcome.attachments, ["v on node-1 attached directory"]);
    assert_eq!(outcome.volumes_attached, ["static-v on node-1"]);
}

/// Entries of `volumesAttached` remain if another plugin wrote them, or if the VolumeAttachment is for an
/// inline or an in-tree volume: pods may use these volumes. An entry without a VolumeAttachment is removed.
#[tokio::test(start_paused = true)]
async fn unmanaged_entries_of_volumes_attached_are_kept() {
    let simulation = Simulation::new(&[attach_detach::ROLE, pv_controller::ROLE], Vec::new(), Vec::new());
    let driver = cofferdam_sim::objects::DRIVER;
    let attachment = |handle: &str, source: serde_json::Value| {
        let name =
            cofferdam_domain::names::volume_attachment_name(&driver.into(), &handle.into(), &"node-1".into());
        Create(json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment", "metadata": {"name": name},
            "spec": {"attacher": driver, "nodeName": "node-1", "source": source},
        }))
    };
    let inline = json!({"inlineVolumeSpec": {
        "accessModes": ["ReadWriteOnce"], "csi": {"driver": driver, "volumeHandle": "inline"},
    }});
    let in_tree = json!({"spec": {
        "storageClassName": "other", "csi": null,
        "iscsi": {"targetPortal": "10.0.0.1:3260", "iqn": "iqn.2026-01.dev.cofferdam:a", "lun": 0},
    }});
    let entry = |name: &str| json!({"name": name, "devicePath": "/dev/x"});
    let volumes_attached = ["inline", "migrated", "nobody"].map(|handle| entry(&unique_volume_name(handle)));
    let volumes_attached: Vec<_> =
        volumes_attached.into_iter().chain([entry("kubernetes.io/iscsi/x")]).collect();
    let actions = [
        Create(ready_node("node-1")),
        Create(with(volume("m", "none", "1Gi"), &in_tree)),
        attachment("inline", inline),
        attachment("migrated", json!({"persistentVolumeName": "m"})),
        Patch("/api/v1/nodes/node-1/status", json!({"status": {"volumesAttached": volumes_attached}})),
        Create(volume("v", "none", "1Gi")),
        Create(claim("a", "none")),
        Create(pod("p", "a")),
        Settle,
        Patch(
            leak_path(format!(
                "{ATTACHMENTS}/{}/status",
                cofferdam_domain::names::volume_attachment_name(
                    &driver.into(),
                    &"static-v".into(),
                    &"node-1".into()
                )
            )),
            json!({"status": {"attached": true}}),
        ),
    ];
    let (outcome, _) = simulation.run(&actions, None).await;
    assert_eq!(outcome.volumes_attached, ["inline, kubernetes.io/iscsi/x, migrated, static-v on node-1"]);
}

#[tokio::test(start_paused = true)]
async fn metrics_have_kubernetes_names() {
    let simulation = Simulation::new(&Role::ALL, Vec::new(), Vec::new());
    let taint = json!([{"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}]);
    let actions = [
        Create(csi_node("node-1", "id")),
        Create(ready_node("node-1")),
        Create(ready_node("node-2")),
        Create(csi_node("node-2", "id-2")),
        Create(volume("v", "none", "1Gi")),
        Settle,
        Create(claim("a", "none")),
        Create(pod("p", "a")),
        Settle,
        Patch(
            "/api/v1/nodes/node-1/status",
            json!({"status": {"volumesInUse": [unique_volume_name("static-v")]}}),
        ),
        Delete("/api/v1/namespaces/default/pods/p?gracePeriodSeconds=0"),
        Patch("/api/v1/nodes/node-1", json!({"spec": {"taints": taint}})),
        Settle,
        Create(with(pod("q", "a"), &json!({"spec": {"nodeName": "node-2"}}))),
    ];
    let scrape = async {
        let pod_path = "/api/v1/namespaces/default/pods/q";
        while simulation.object(pod_path).await.is_none() {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        tokio::time::sleep(Duration::from_secs(60)).await;
        simulation.metrics()
    };
    let ((outcome, _), scraped) = tokio::join!(simulation.run(&actions, None), scrape);
    assert_eq!(outcome.violations, [""; 0]);
    let plugin = "kubernetes.io/csi:sim.cofferdam.dev";
    let duration = |operation: &str, count: u32| {
        format!(
            "storage_operation_duration_seconds_count{{volume_plugin=\"{plugin}\",\
             operation_name=\"{operation}\",status=\"success\",migrated=\"false\"}} {count}"
        )
    };
    for line in [
        format!("storage_count_attachable_volumes_in_use{{node=\"node-2\",volume_plugin=\"{plugin}\"}} 1"),
        format!(
            "attachdetach_controller_total_volumes{{plugin_name=\"{plugin}\",\
             state=\"desired_state_of_world\"}} 1"
        ),
        format!(
            "attachdetach_controller_total_volumes{{plugin_name=\"{plugin}\",\
             state=\"actual_state_of_world\"}} 1"
        ),
        "attach_detach_controller_attachdetach_controller_forced_detaches{reason=\"out-of-service\"} 1"
            .to_owned(),
        duration("volume_attach", 2),
        duration("volume_detach", 1),
    ] {
        assert!(scraped.lines().any(|found| found == line), "{line} in\n{scraped}");
    }
}
