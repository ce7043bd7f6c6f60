//! attach-detach in worlds that nobody thought of: whatever pods, nodes and drivers do, in whatever order, with a process that dies
//! somewhere, no volume for one node is ever asked for on two, none is taken from a node that is told of it or uses it (but by
//! force), and in the end there is what pods want, and nothing else. What must never happen is looked at with every write, by the
//! simulation.
//!
//! proptest makes the worlds, for it finds the smallest one that fails; its sequence begins at a fixed seed, so that every run is the
//! same.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test's helper fails with its test")]

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use cofferdam_controllers::Role;
use cofferdam_domain::storage::ErrorKind;
use cofferdam_sim::{
    ApiFault, Effect, Fault, Mishap, Outcome, Publishing, Simulation,
    UserAction::{self, Create, Delete, Patch, Settle, Wait},
    objects::{claim, csi_node, machine, pod, ready, unique, volume, with},
};
use proptest::{
    collection::vec,
    prelude::*,
    test_runner::{Config, RngSeed, TestRunner},
};
use serde_json::json;

/// Of one node, and of many.
const VOLUMES: [(&str, &str); 2] = [("v", "ReadWriteOnce"), ("w", "ReadWriteMany")];
const NODES: [&str; 3] = ["node-0", "node-1", "node-2"];
const ATTACHMENTS: &str = "/apis/storage.k8s.io/v1/volumeattachments";
/// How many worlds are tried.
const CASES: u32 = 48;

/// Something that happens; what cannot happen in a world as it is does not.
#[derive(Clone, Debug)]
enum Happening {
    /// A pod appears on a node, with a volume.
    Comes { node: usize, volume: usize },
    /// The pod of this number goes, of those that are there.
    Goes(usize),
    /// A node says that it uses a volume, or no longer.
    Uses { node: usize, volume: usize, uses: bool },
    /// A node is heard, or no longer.
    Heard { node: usize, heard: bool },
    /// A node is down for good, or not.
    Down { node: usize, down: bool },
    /// A node is deleted, or comes again.
    There { node: usize, there: bool },
    /// A driver is no longer registered on a node, or is.
    Registered { node: usize, registered: bool },
    /// Somebody deletes an attachment.
    Detached { node: usize, volume: usize },
    /// Time passes.
    Time(u64),
}

fn happening() -> impl Strategy<Value = Happening> {
    let (node, volume) = (0..NODES.len(), 0..VOLUMES.len());
    prop_oneof![
        6 => (node.clone(), volume.clone()).prop_map(|(node, volume)| Happening::Comes { node, volume }),
        5 => any::<usize>().prop_map(Happening::Goes),
        5 => (node.clone(), volume.clone(), any::<bool>())
            .prop_map(|(node, volume, uses)| Happening::Uses { node, volume, uses }),
        2 => (node.clone(), any::<bool>()).prop_map(|(node, heard)| Happening::Heard { node, heard }),
        1 => (node.clone(), any::<bool>()).prop_map(|(node, down)| Happening::Down { node, down }),
        2 => (node.clone(), any::<bool>()).prop_map(|(node, there)| Happening::There { node, there }),
        1 => (node.clone(), any::<bool>())
            .prop_map(|(node, registered)| Happening::Registered { node, registered }),
        1 => (node, volume).prop_map(|(node, volume)| Happening::Detached { node, volume }),
        4 => prop_oneof![Just(0), Just(1), Just(50), Just(3_000), Just(400_000)].prop_map(Happening::Time),
    ]
}

fn fault() -> impl Strategy<Value = Fault> {
    prop_oneof![
        Just(Fault::LostAnswer),
        Just(Fault::LostRequest),
        Just(Fault::Refuse(ErrorKind::Internal)),
        Just(Fault::Slow(Duration::from_secs(2))),
    ]
}

fn mishap() -> impl Strategy<Value = ApiFault> {
    let how = prop_oneof![
        Just(Mishap::LostAnswer),
        Just(Mishap::LostRequest),
        Just(Mishap::Conflict),
        (1..59_u64).prop_map(|seconds| Mishap::Late(Duration::from_secs(seconds))),
    ];
    let what = prop_oneof![
        Just(("PATCH", "/api/v1/nodes/node-0")),
        Just(("PATCH", "/api/v1/nodes/")),
        Just(("POST", ATTACHMENTS)),
        Just(("DELETE", ATTACHMENTS)),
    ];
    (what, how).prop_map(|((method, path), how)| ApiFault { method, path, saying: "", how })
}

/// The world as its user sees it.
#[derive(Default)]
struct Model {
    pods: BTreeMap<String, (usize, usize)>,
    made: usize,
    uses: [[bool; VOLUMES.len()]; NODES.len()],
    gone: [bool; NODES.len()],
    actions: Vec<UserAction>,
}

fn path(text: String) -> &'static str {
    // A user's path lives as long as the test.
    Box::leak(text.into_boxed_str())
}

fn status_of(node: usize) -> &'static str {
    path(format!("/api/v1/nodes/{}/status", NODES[node]))
}

impl Model {
    fn new() -> Self {
        let mut model = Self::default();
        for node in NODES {
            model.actions.extend([Create(csi_node(node, &format!("id-{node}"))), Create(machine(node))]);
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

    /// Writes down which volumes a node uses.
    fn tell(&mut self, node: usize) {
        let used = VOLUMES.iter().zip(self.uses[node]).filter(|(_, uses)| *uses);
        let used: Vec<_> = used.map(|((name, _), _)| unique(&format!("static-{name}"))).collect();
        self.actions.push(Patch(status_of(node), json!({"status": {"volumesInUse": used}})));
    }

    fn happens(&mut self, happening: &Happening) {
        match happening {
            Happening::Comes { node, volume } => {
                let name = format!("p{}", self.made);
                self.made += 1;
                self.pods.insert(name.clone(), (*node, *volume));
                let place = json!({"spec": {"nodeName": NODES[*node]}});
                self.actions.push(Create(with(pod(&name, VOLUMES[*volume].0), &place)));
            }
            Happening::Goes(number) => {
                let Some(name) = self.pods.keys().nth(number % self.pods.len().max(1)).cloned() else {
                    return;
                };
                self.pods.remove(&name);
                let of = format!("/api/v1/namespaces/default/pods/{name}?gracePeriodSeconds=0");
                self.actions.push(Delete(path(of)));
            }
            Happening::Uses { node, volume, uses } => {
                self.uses[*node][*volume] = *uses;
                self.tell(*node);
            }
            Happening::Heard { node, heard } => {
                let conditions = json!({"status": {"conditions": [ready(*heard)]}});
                self.actions.push(Patch(status_of(*node), conditions));
            }
            Happening::Down { node, down } => {
                let taint = json!({"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"});
                let taints = if *down { json!([taint]) } else { json!([]) };
                let of = format!("/api/v1/nodes/{}", NODES[*node]);
                self.actions.push(Patch(path(of), json!({"spec": {"taints": taints}})));
            }
            Happening::There { node, there } if self.gone[*node] == *there => {
                self.gone[*node] = !there;
                self.uses[*node] = Default::default();
                self.actions.push(match there {
                    true => Create(machine(NODES[*node])),
                    false => Delete(path(format!("/api/v1/nodes/{}", NODES[*node]))),
                });
            }
            Happening::There { .. } => {}
            Happening::Registered { node, registered } => {
                let of = format!("/apis/storage.k8s.io/v1/csinodes/{}", NODES[*node]);
                let known = csi_node(NODES[*node], &format!("id-{}", NODES[*node]));
                let spec =
                    if *registered { known.get("spec").cloned() } else { Some(json!({"drivers": []})) };
                self.actions.push(Patch(path(of), json!({"spec": spec})));
            }
            Happening::Detached { node, volume } => {
                let handle = format!("static-{}", VOLUMES[*volume].0);
                let driver = cofferdam_sim::objects::DRIVER;
                let name = cofferdam_domain::names::attachment(
                    &driver.into(),
                    &handle.as_str().into(),
                    &NODES[*node].into(),
                );
                self.actions.push(Delete(path(format!("/apis/storage.k8s.io/v1/volumeattachments/{name}"))));
            }
            Happening::Time(ms) => self.actions.push(Wait(Duration::from_millis(*ms))),
        }
    }

    /// Everything comes to rest: nodes are heard and use nothing any more, drivers are there.
    fn ends(&mut self) {
        for node in 0..NODES.len() {
            self.happens(&Happening::Registered { node, registered: true });
            self.happens(&Happening::Down { node, down: false });
            self.happens(&Happening::Heard { node, heard: true });
            self.uses[node] = Default::default();
            self.tell(node);
        }
        self.actions.push(Settle);
    }

    /// What is otherwise than pods want it in the end.
    fn differences(&self, outcome: &Outcome) -> Vec<String> {
        let mut differences = outcome.faults.clone();
        let mut there: BTreeMap<(usize, usize), bool> = BTreeMap::new();
        for line in &outcome.attachments {
            let place = VOLUMES.iter().enumerate().flat_map(|(v, (name, _))| {
                NODES.iter().enumerate().map(move |(n, node)| (v, n, format!("{name} on {node} ")))
            });
            let place = place.into_iter().find(|(.., start)| line.starts_with(start));
            match place {
                Some((volume, node, _)) => there.insert((volume, node), line.contains(" attached ")),
                None => {
                    differences.push(format!("unknown: {line}"));
                    None
                }
            };
        }
        for (number, (name, mode)) in VOLUMES.iter().enumerate() {
            let wanted: BTreeSet<usize> =
                self.pods.values().filter(|(_, of)| *of == number).map(|(node, _)| *node).collect();
            let reachable: BTreeSet<usize> =
                wanted.iter().copied().filter(|node| !self.gone[*node]).collect();
            let found: BTreeSet<usize> =
                there.keys().filter(|(of, _)| *of == number).map(|(_, node)| *node).collect();
            let right = match *mode {
                "ReadWriteOnce" => {
                    found.is_subset(&wanted)
                        && found.len() <= 1
                        && (!found.is_empty() || reachable.is_empty())
                }
                _ => found.is_superset(&reachable) && found.is_subset(&wanted),
            };
            if !right {
                differences
                    .push(format!("{name}: wanted on {wanted:?}, reachable {reachable:?}, found {found:?}"));
            }
            for node in found.iter().filter(|node| !self.gone[**node]) {
                let told = outcome.told.iter().any(|line| {
                    line.strip_suffix(&format!(" on {}", NODES[*node]))
                        .is_some_and(|handles| handles.split(", ").any(|one| one == format!("static-{name}")))
                });
                if !told || there.get(&(number, *node)) != Some(&true) {
                    differences.push(format!("{name} on {node}: told {told}, {there:?}"));
                }
            }
        }
        differences
    }
}

fn played(
    happenings: &[Happening],
    publishing: Publishing,
    mishaps: Vec<ApiFault>,
    die_after: Option<usize>,
) -> (Model, Outcome, Vec<Effect>) {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let simulation = Simulation::new(&Role::ALL, Vec::new(), Vec::new())
            .publishing(publishing, false)
            .misfortune(mishaps);
        let mut model = Model::new();
        happenings.iter().for_each(|happening| model.happens(happening));
        model.ends();
        let (outcome, effects) = simulation.play(&model.actions, die_after).await;
        (model, outcome, effects)
    })
}

#[test]
fn whatever_happens_volumes_end_where_pods_want_them() {
    let config =
        Config { cases: CASES, failure_persistence: None, rng_seed: RngSeed::Fixed(1), ..Config::default() };
    let faults = (vec(fault(), 0..3), vec(fault(), 0..3), vec(mishap(), 0..4));
    let worlds = (vec(happening(), 1..40), faults, proptest::option::of(1..60_usize));
    TestRunner::new(config)
        .run(&worlds, |(happenings, (faults, undo_faults, mishaps), die_after)| {
            let publishing = Publishing { faults, undo_faults, ..Publishing::default() };
            let (model, outcome, _) = played(&happenings, publishing, mishaps, die_after);
            let differences = model.differences(&outcome);
            prop_assert!(differences.is_empty(), "{}", differences.join("\n"));
            Ok(())
        })
        .unwrap();
}

/// Reads, and events, are no effects of this kind.
fn writes(effects: &[Effect], of: &str) -> usize {
    effects.iter().filter(|effect| matches!(effect, Effect::Write(text) if text.contains(of))).count()
}

#[tokio::test(start_paused = true)]
async fn a_pod_with_hundreds_of_volumes_gets_them_with_few_writes_to_its_node() {
    const MANY: usize = 400;
    let simulation = Simulation::new(&Role::ALL, Vec::new(), Vec::new());
    let mut user = vec![Create(csi_node("node-1", "id")), Create(machine("node-1"))];
    for number in 0..MANY {
        let name = format!("v{number}");
        let class = json!({"spec": {"storageClassName": name}});
        user.push(Create(with(volume(&name, "none", "1Gi"), &class)));
        user.push(Create(with(claim(&name, "none"), &class)));
    }
    let volumes: Vec<_> = (0..MANY)
        .map(|number| json!({"name": format!("d{number}"), "persistentVolumeClaim": {"claimName": format!("v{number}")}}))
        .collect();
    user.extend([Settle, Create(with(pod("p", "v0"), &json!({"spec": {"volumes": volumes}})))]);
    let (outcome, effects) = simulation.play(&user, None).await;
    assert_eq!(outcome.faults, [""; 0]);
    let attached = outcome.attachments.iter().filter(|line| line.ends_with(" attached directory"));
    assert_eq!((attached.count(), outcome.told[0].split(", ").count()), (MANY, MANY));
    let told = writes(&effects, "/api/v1/nodes/node-1/status");
    assert!(told < MANY / 2, "{told} writes of the node's status");
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_attached_makes_no_noise() {
    let simulation = Simulation::new(&[Role::AttachDetach, Role::PvController], Vec::new(), Vec::new());
    // A claim that is not there, a volume that nobody attaches, and one that is attached elsewhere.
    let user = vec![
        Create(machine("node-1")),
        Create(machine("node-2")),
        Create(volume("v", "none", "1Gi")),
        Settle,
        Create(claim("a", "none")),
        Create(pod("without", "b")),
        Create(pod("p", "a")),
        Settle,
        Create(with(pod("q", "a"), &json!({"spec": {"nodeName": "node-2"}}))),
    ];
    let (outcome, effects) = simulation.play(&user, None).await;
    assert_eq!(outcome.faults, [""; 0]);
    assert_eq!(outcome.attachments, ["v on node-1 detached"]);
    let failed = [
        "p Warning FailedAttachVolume",
        "q Warning FailedAttachVolume",
        "without Warning FailedAttachVolume",
    ];
    assert_eq!(outcome.events, failed);
    // Two hours pass.
    assert_eq!(writes(&effects, "volumeattachments"), 1, "{effects:?}");
    // Each of the three once, and again every half an hour: events are kept for an hour.
    let said = writes(&effects, "/events");
    assert!((6..=12).contains(&said), "{said} events");
}

#[tokio::test(start_paused = true)]
async fn a_generic_ephemeral_volume_is_attached_for_the_pod_that_owns_it() {
    let simulation = Simulation::new(&Role::ALL, Vec::new(), Vec::new());
    let template = json!({"spec": {
        "storageClassName": "none", "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}},
    }});
    let ephemeral = json!([{"name": "data", "ephemeral": {"volumeClaimTemplate": template}}]);
    let user = [
        Create(csi_node("node-1", "id")),
        Create(machine("node-1")),
        Create(volume("v", "none", "1Gi")),
        Create(with(pod("p", "a"), &json!({"spec": {"volumes": ephemeral}}))),
    ];
    let (outcome, _) = simulation.play(&user, None).await;
    assert_eq!(outcome.events, ["p Warning FailedAttachVolume"], "its claim is not there");
    let uid =
        simulation.object("/api/v1/namespaces/default/pods/p").await.unwrap()["metadata"]["uid"].clone();
    let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": uid, "controller": true});
    let owned = with(claim("p-data", "none"), &json!({"metadata": {"ownerReferences": [owner]}}));
    let (outcome, _) = simulation.play(&[Create(owned)], None).await;
    assert_eq!(outcome.faults, [""; 0]);
    assert_eq!(outcome.attachments, ["v on node-1 attached directory"]);
    assert_eq!(outcome.told, ["static-v on node-1"]);
}

/// What kubelet was told of volumes that are not ours stays: pods run with them.
#[tokio::test(start_paused = true)]
async fn entries_of_others_stay_in_a_nodes_list() {
    let simulation = Simulation::new(&[Role::AttachDetach, Role::PvController], Vec::new(), Vec::new());
    let driver = cofferdam_sim::objects::DRIVER;
    let made = |handle: &str, source: serde_json::Value| {
        let name = cofferdam_domain::names::attachment(&driver.into(), &handle.into(), &"node-1".into());
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
    let told = ["inline", "migrated", "nobody"].map(|handle| entry(&unique(handle)));
    let told: Vec<_> = told.into_iter().chain([entry("kubernetes.io/iscsi/x")]).collect();
    let user = [
        Create(machine("node-1")),
        Create(with(volume("m", "none", "1Gi"), &in_tree)),
        made("inline", inline),
        made("migrated", json!({"persistentVolumeName": "m"})),
        Patch("/api/v1/nodes/node-1/status", json!({"status": {"volumesAttached": told}})),
        Create(volume("v", "none", "1Gi")),
        Create(claim("a", "none")),
        Create(pod("p", "a")),
        Settle,
        Patch(
            path(format!(
                "{ATTACHMENTS}/{}/status",
                cofferdam_domain::names::attachment(&driver.into(), &"static-v".into(), &"node-1".into())
            )),
            json!({"status": {"attached": true}}),
        ),
    ];
    let (outcome, _) = simulation.play(&user, None).await;
    assert_eq!(outcome.told, ["inline, kubernetes.io/iscsi/x, migrated, static-v on node-1"]);
}

#[tokio::test(start_paused = true)]
async fn metrics_have_kubernetes_names() {
    let simulation = Simulation::new(&Role::ALL, Vec::new(), Vec::new());
    let taint = json!([{"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}]);
    let user = [
        Create(csi_node("node-1", "id")),
        Create(machine("node-1")),
        Create(machine("node-2")),
        Create(csi_node("node-2", "id-2")),
        Create(volume("v", "none", "1Gi")),
        Settle,
        Create(claim("a", "none")),
        Create(pod("p", "a")),
        Settle,
        Patch("/api/v1/nodes/node-1/status", json!({"status": {"volumesInUse": [unique("static-v")]}})),
        Delete("/api/v1/namespaces/default/pods/p?gracePeriodSeconds=0"),
        Patch("/api/v1/nodes/node-1", json!({"spec": {"taints": taint}})),
        Settle,
        Create(with(pod("q", "a"), &json!({"spec": {"nodeName": "node-2"}}))),
    ];
    let look = async {
        let there = "/api/v1/namespaces/default/pods/q";
        while simulation.object(there).await.is_none() {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        tokio::time::sleep(Duration::from_secs(60)).await;
        simulation.metrics()
    };
    let ((outcome, _), scraped) = tokio::join!(simulation.play(&user, None), look);
    assert_eq!(outcome.faults, [""; 0]);
    let plugin = "kubernetes.io/csi:sim.cofferdam.dev";
    let duration = |operation: &str, count: u32| {
        format!(
            "storage_operation_duration_seconds_count{{volume_plugin=\"{plugin}\",operation_name=\"{operation}\",status=\"success\",migrated=\"false\"}} {count}"
        )
    };
    for line in [
        format!("storage_count_attachable_volumes_in_use{{node=\"node-2\",volume_plugin=\"{plugin}\"}} 1"),
        format!(
            "attachdetach_controller_total_volumes{{plugin_name=\"{plugin}\",state=\"desired_state_of_world\"}} 1"
        ),
        format!(
            "attachdetach_controller_total_volumes{{plugin_name=\"{plugin}\",state=\"actual_state_of_world\"}} 1"
        ),
        "attach_detach_controller_attachdetach_controller_forced_detaches{reason=\"out-of-service\"} 1"
            .to_owned(),
        duration("volume_attach", 2),
        duration("volume_detach", 1),
    ] {
        assert!(scraped.lines().any(|found| found == line), "{line} in\n{scraped}");
    }
}
