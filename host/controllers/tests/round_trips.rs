//! The chains of requests between a user's write and its result, with an API server at a distance, in paused
//! time.
//!
//! A table has a line for each time at which requests arrive at the API server, in round trips after the
//! user's write. The first half of a round trip is the watch event. A request waits for the requests of the
//! line before it.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use cofferdam_controllers::Role;
use cofferdam_sim::{
    PublishingBehavior, ResizingBehavior, Simulation,
    UserAction::{self, Create, Delete, Patch, Settle},
    objects::{claim, class, csi_node, volume, volume_attachment, with},
    test_cluster::{Arrival, DistantCluster},
};
use http::Method;
use serde_json::json;

/// Time of a request, a response or a watch event.
const ONE_WAY: Duration = Duration::from_millis(10);
/// Requests that arrive later belong to no chain. Nothing in a chain waits for a timer.
const CHAIN_LIMIT: Duration = Duration::from_millis(150);

const CLAIMS: &str = "/api/v1/namespaces/default/persistentvolumeclaims";
const CLAIM: &str = "/api/v1/namespaces/default/persistentvolumeclaims/a";
const ATTACHMENTS: &str = "/apis/storage.k8s.io/v1/volumeattachments";
const ATTACHMENT: &str = "/apis/storage.k8s.io/v1/volumeattachments/va";

/// The pods that may use the claim; the finalizer of the claim; the phase Released with the check for a restore; the
/// PersistentVolume with its finalizers.
const DELETION: [&str; 4] = [
    "1 GET pods",
    "2 PATCH persistentvolumeclaims",
    "3 GET persistentvolumeclaims, GET persistentvolumes, PATCH persistentvolumes/status",
    "4 DELETE persistentvolumes, PATCH persistentvolumes",
];

/// A request in a table: the method, and the resource with its subresource.
fn describe(arrival: &Arrival) -> String {
    let resources = [
        "configmaps",
        "events",
        "nodes",
        "persistentvolumeclaims",
        "persistentvolumes",
        "pods",
        "volumeattachments",
    ];
    let resource =
        arrival.path.split('/').find(|segment| resources.contains(segment)).unwrap_or(&arrival.path);
    let status = if arrival.path.ends_with("/status") { "/status" } else { "" };
    format!("{} {resource}{status}", arrival.method)
}

/// Method and path of the user's request; `None` if the action makes none.
fn request_of(action: &UserAction) -> Option<(Method, &str)> {
    if let Create(object) = action {
        let is_attachment = object.get("kind").is_some_and(|kind| kind == "VolumeAttachment");
        return Some((Method::POST, if is_attachment { ATTACHMENTS } else { CLAIMS }));
    }
    if let Delete(path) = action {
        return Some((Method::DELETE, path));
    }
    if let Patch(path, _) = action { Some((Method::PATCH, path)) } else { None }
}

/// Runs the actions, and returns the requests of the processes after the last one, except those for events.
async fn chain(simulated: impl FnOnce(Simulation) -> Simulation, actions: &[UserAction]) -> String {
    let (method, path) = actions.last().and_then(request_of).unwrap();
    let cluster = Arc::new(DistantCluster::new(ONE_WAY));
    let simulation = Simulation::on_cluster(Arc::clone(&cluster) as _, &Role::ALL, Vec::new(), Vec::new());
    let (outcome, _) = simulated(simulation.unwrap()).run(actions, None).await;
    assert_eq!(outcome.violations, [""; 0]);
    let arrivals = cluster.arrivals();
    let is_start = |arrival: &Arrival| arrival.is_user && arrival.method == method && arrival.path == path;
    let start = arrivals.iter().rposition(is_start).unwrap();
    let (_, arrivals) = arrivals.split_at(start);
    let begun_at = arrivals.first().unwrap().at;
    let mut lines: BTreeMap<Duration, Vec<String>> = BTreeMap::new();
    let of_processes = arrivals.iter().filter(|arrival| !arrival.is_user);
    for arrival in of_processes.filter(|arrival| !arrival.path.ends_with("/events")) {
        let after = arrival.at - begun_at;
        if after <= CHAIN_LIMIT {
            lines.entry(after).or_default().push(describe(arrival));
        }
    }
    let line = |(after, mut requests): (Duration, Vec<String>)| {
        requests.sort();
        format!("{} {}\n", after.as_secs_f64() / (ONE_WAY * 2).as_secs_f64(), requests.join(", "))
    };
    lines.into_iter().map(line).collect()
}

/// A claim that is bound. The first claim of the process takes the journal.
fn bound_claim() -> Vec<UserAction> {
    vec![Create(class("gold")), Create(claim("first", "gold")), Settle, Create(claim("a", "gold"))]
}

fn after_settling(mut actions: Vec<UserAction>, action: UserAction) -> Vec<UserAction> {
    actions.extend([Settle, action]);
    actions
}

fn attached_static_volume() -> Vec<UserAction> {
    let volume = volume("v", "gold", "1Gi");
    vec![
        Create(csi_node("n1", "node-id-1")),
        Create(volume),
        Settle,
        Create(volume_attachment("va", "v", "n1")),
    ]
}

fn publishing(simulation: Simulation) -> Simulation {
    simulation.with_publishing(
        PublishingBehavior { takes_node_identities: true, ..PublishingBehavior::default() },
        false,
    )
}

fn check(found: &str, expected: &[&str]) {
    let found: Vec<&str> = found.lines().collect();
    assert_eq!(found, expected);
}

#[tokio::test(start_paused = true)]
async fn a_claim_is_bound_after_four_round_trips() {
    // The intent, the PersistentVolume, the phase of the volume with the claim, the phase of the claim.
    let found = chain(|simulation| simulation, &bound_claim()).await;
    check(
        &found,
        &[
            "1 PATCH configmaps",
            "2 POST persistentvolumes",
            "3 PATCH persistentvolumeclaims, PATCH persistentvolumes/status",
            "4 PATCH persistentvolumeclaims/status",
        ],
    );
}

#[tokio::test(start_paused = true)]
async fn a_volume_is_deleted_after_four_round_trips() {
    let found = chain(|simulation| simulation, &after_settling(bound_claim(), Delete(CLAIM))).await;
    check(&found, &DELETION);
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_was_attached_is_deleted_after_as_many_round_trips() {
    // The PersistentVolume has the finalizers of provisioner, attacher and protection.
    let policy = json!({"spec": {"persistentVolumeReclaimPolicy": "Delete"}});
    let actions = [
        Create(csi_node("n1", "node-id-1")),
        Create(with(volume("v", "gold", "1Gi"), &policy)),
        Create(with(claim("a", "gold"), &json!({"spec": {"volumeName": "v"}}))),
        Settle,
        Create(volume_attachment("va", "v", "n1")),
        Settle,
        Delete(ATTACHMENT),
        Settle,
        Delete(CLAIM),
    ];
    let found = chain(publishing, &actions).await;
    check(&found, &DELETION);
}

#[tokio::test(start_paused = true)]
async fn a_volume_is_attached_after_three_round_trips() {
    // The finalizer of the PersistentVolume with the read of the Node, the finalizer and the node ID of the
    // VolumeAttachment, its status.
    let found = chain(publishing, &attached_static_volume()).await;
    check(
        &found,
        &[
            "1 GET nodes, PATCH persistentvolumes",
            "2 PATCH volumeattachments",
            "3 PATCH volumeattachments/status",
        ],
    );
    // The driver unpublishes the volume before the finalizer is removed.
    let found = chain(publishing, &after_settling(attached_static_volume(), Delete(ATTACHMENT))).await;
    check(&found, &["1 PATCH volumeattachments"]);
}

#[tokio::test(start_paused = true)]
async fn a_volume_is_expanded_after_three_round_trips() {
    let expandable = with(class("gold"), &json!({"allowVolumeExpansion": true}));
    let block = with(claim("a", "gold"), &json!({"spec": {"volumeMode": "Block"}}));
    let grow = Patch(CLAIM, json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}}));
    let found = chain(
        |simulation| simulation.with_resizing(ResizingBehavior::default()),
        &[Create(expandable), Create(block), Settle, grow],
    )
    .await;
    check(
        &found,
        &[
            "1 PATCH persistentvolumeclaims/status",
            "2 PATCH persistentvolumes",
            "3 PATCH persistentvolumeclaims/status",
        ],
    );
}
