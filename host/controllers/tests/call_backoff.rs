//! Users cannot make the provisioner call a driver, or list PersistentVolumes, as often as they like.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use cofferdam_controllers::Role;
use cofferdam_domain::{names, storage::ErrorKind};
use cofferdam_sim::{
    ApiTransport, DriverFault, EnvironmentKind, InProcessCluster, ResizingBehavior, Simulation, TestCluster,
    TestUser, TopologyBehavior,
    UserAction::{self, Create, Delete, Patch, Settle, Wait},
    objects::{DRIVER, attributes_class, claim, class, csi_node, node, pod, with},
    test_cluster::{BoxError, Clock, ClusterFuture},
};
use http::{Method, Request};
use kube::client::Body;
use serde_json::{Value, json};
use tower::ServiceExt as _;

const CLASS: &str = "/apis/storage.k8s.io/v1/storageclasses/gold";
const CLAIM: &str = "/api/v1/namespaces/default/persistentvolumeclaims/a";

fn annotate(name: &str, value: &str) -> UserAction {
    Patch(CLAIM, json!({"metadata": {"annotations": {name: value}}}))
}

fn wait_for_first_consumer_class(tier: &str) -> Value {
    with(class("gold"), &json!({"volumeBindingMode": "WaitForFirstConsumer", "parameters": {"tier": tier}}))
}

/// Two nodes in zones of their own, and the claim `a` with the selected node `n1`.
fn setup() -> Vec<UserAction> {
    let drivers =
        |name: &str| json!({"drivers": [{"name": DRIVER, "nodeID": name, "topologyKeys": ["zone"]}]});
    let in_zone = |name: &str, zone: &str| {
        [
            Create(node(name, &json!({"zone": zone}))),
            Create(with(csi_node(name, name), &json!({"spec": drivers(name)}))),
        ]
    };
    let claim_on_n1 = [
        Create(wait_for_first_consumer_class("fast")),
        Create(claim("a", "gold")),
        annotate(names::SELECTED_NODE, "n1"),
    ];
    in_zone("n1", "a").into_iter().chain(in_zone("n2", "b")).chain(claim_on_n1).collect()
}

/// 100 actions in ten seconds.
fn repeat(action: impl Fn(usize) -> UserAction) -> Vec<UserAction> {
    (0..100).flat_map(|number| [action(number), Wait(Duration::from_millis(100))]).collect()
}

/// Selects the two nodes in turn, beginning with `n2`.
fn select_nodes_in_turn() -> Vec<UserAction> {
    repeat(|number| annotate(names::SELECTED_NODE, if number.is_multiple_of(2) { "n2" } else { "n1" }))
}

/// Runs the actions `after` the start. Returns the number of CreateVolume calls from then until eleven
/// seconds later. Every call has the fault.
async fn count_creates(
    after: Duration,
    fault: DriverFault,
    topology: TopologyBehavior,
    actions: Vec<UserAction>,
) -> usize {
    let simulation = Simulation::new(&Role::ALL, vec![fault; 400], Vec::new()).with_topology(topology);
    let all: Vec<UserAction> = setup().into_iter().chain([Wait(after)]).chain(actions).collect();
    let second = Duration::from_secs(1);
    count_calls(&simulation, &all, after.saturating_sub(second), after.min(second) + 11 * second).await
}

/// Runs the actions. Returns the number of driver calls in this period, which begins this time after the
/// start.
async fn count_calls(
    simulation: &Simulation,
    actions: &[UserAction],
    start: Duration,
    period: Duration,
) -> usize {
    let count = async {
        tokio::time::sleep(start).await;
        let before = simulation.driver().calls().len();
        tokio::time::sleep(period).await;
        simulation.driver().calls().len() - before
    };
    let ((outcome, _), calls) = tokio::join!(simulation.run(actions, None), count);
    assert_eq!(outcome.violations, [""; 0]);
    calls
}

/// Calls fail at 0, 1, 3, 7, 15 and 31 seconds. The next one is due after 63 seconds, and users act from 40
/// to 50 seconds.
#[tokio::test(start_paused = true)]
async fn changes_of_a_claim_do_not_end_its_backoff() {
    const ACT_AFTER: Duration = Duration::from_secs(40);
    let topology = TopologyBehavior { keys: &["zone"], ..TopologyBehavior::default() };
    let add_note = |number: usize| annotate("example.com/note", &number.to_string());
    let other_driver = |number: usize| {
        annotate(
            names::STORAGE_PROVISIONER,
            if number.is_multiple_of(2) { "other.example.com" } else { DRIVER },
        )
    };
    let replace_class = vec![Delete(CLASS), Create(wait_for_first_consumer_class("slow"))];
    // After `LostRequest`, the request stays in the journal; after `Refuse`, it does not.
    let (in_doubt, refused) = (DriverFault::LostRequest, DriverFault::Refuse(ErrorKind::Internal));
    let table = [
        ("any annotation", &in_doubt, repeat(add_note), 0),
        ("any annotation", &refused, repeat(add_note), 0),
        ("the selected node", &in_doubt, select_nodes_in_turn(), 0),
        ("the selected node", &refused, select_nodes_in_turn(), 1),
        ("the driver", &refused, repeat(other_driver), 0),
        // The mended request, once.
        ("the StorageClass", &in_doubt, replace_class.clone(), 1),
        ("the StorageClass", &refused, replace_class, 1),
        ("deletion", &in_doubt, vec![Delete(CLAIM)], 1),
        ("deletion", &refused, vec![Delete(CLAIM)], 0),
    ];
    for (changed, fault, actions, expected) in table {
        let creates = count_creates(ACT_AFTER, fault.clone(), topology, actions).await;
        assert_eq!(creates, expected, "{changed} changed, {fault:?}");
    }
}

/// After ResourceExhausted, the provisioner removes the selected node, and a new selection is a new request.
#[tokio::test(start_paused = true)]
async fn a_reselected_node_does_not_end_the_backoff() {
    let topology = TopologyBehavior {
        keys: &["zone"],
        full_segments: &["zone=a", "zone=b"],
        ..TopologyBehavior::default()
    };
    let fault = DriverFault::Slow(Duration::ZERO);
    let same_node = repeat(|_| annotate(names::SELECTED_NODE, "n1"));
    let creates = count_creates(Duration::ZERO, fault.clone(), topology, same_node).await;
    assert!((3..=5).contains(&creates), "{creates} calls in eleven seconds");
    // Each back-off ends once early.
    let creates = count_creates(Duration::ZERO, fault, topology, select_nodes_in_turn()).await;
    assert!((4..=7).contains(&creates), "{creates} calls in eleven seconds");
}

/// The embedded API server, which counts the lists of PersistentVolumes of processes. Each takes 100 ms.
struct SlowListCluster {
    inner: InProcessCluster,
    volume_lists: Arc<AtomicUsize>,
}

impl TestCluster for SlowListCluster {
    fn environment(&self) -> EnvironmentKind {
        self.inner.environment()
    }

    fn clock(&self) -> Clock {
        self.inner.clock()
    }

    fn connect(&self, who: TestUser) -> Result<ApiTransport, BoxError> {
        let api = self.inner.connect(who)?;
        let volume_lists = Arc::clone(&self.volume_lists);
        Ok(ApiTransport::new(tower::service_fn(move |request: Request<Body>| {
            let uri = request.uri();
            let is_list = request.method() == Method::GET
                && uri.path() == "/api/v1/persistentvolumes"
                && uri.query() == Some("limit=500")
                && matches!(who, TestUser::Process);
            let (response, volume_lists) = (api.clone().oneshot(request), Arc::clone(&volume_lists));
            async move {
                if is_list {
                    volume_lists.fetch_add(1, Ordering::SeqCst);
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                response.await
            }
        })))
    }

    fn compact(&self) -> ClusterFuture<'_> {
        self.inner.compact()
    }

    fn backup(&self) -> ClusterFuture<'_> {
        self.inner.backup()
    }

    fn restore(&self) -> ClusterFuture<'_> {
        self.inner.restore()
    }
}

#[tokio::test(start_paused = true)]
async fn claims_deleted_during_create_calls_share_lists_of_volumes() {
    const CLAIMS: usize = 50;
    let volume_lists = Arc::new(AtomicUsize::new(0));
    let cluster = SlowListCluster { inner: InProcessCluster::new(), volume_lists: Arc::clone(&volume_lists) };
    let calls = vec![DriverFault::Slow(Duration::from_secs(10)); CLAIMS];
    let simulation = Simulation::on_cluster(Arc::new(cluster), &Role::ALL, calls, Vec::new()).unwrap();
    let name = |number: usize| format!("c-{number:02}");
    let create = (0..CLAIMS).map(|number| Create(claim(&name(number), "gold")));
    let path = |number| format!("/api/v1/namespaces/default/persistentvolumeclaims/{}", name(number));
    let delete = (0..CLAIMS).map(|number| Delete(path(number).leak()));
    let wait = Wait(Duration::from_secs(5));
    let actions: Vec<UserAction> =
        [Create(class("gold"))].into_iter().chain(create).chain([wait]).chain(delete).collect();
    let lists_before = async {
        tokio::time::sleep(Duration::from_secs(9)).await;
        volume_lists.load(Ordering::SeqCst)
    };
    let ((outcome, _), before) = tokio::join!(simulation.run(&actions, None), lists_before);
    let lists = volume_lists.load(Ordering::SeqCst) - before;
    assert!((1..=2).contains(&lists), "{lists} lists of all PersistentVolumes for {CLAIMS} claims");
    assert_eq!((outcome.violations, outcome.intents), (Vec::new(), 0));
    let deletes = outcome.calls.iter().filter(|call| *call == "delete gone").count();
    assert_eq!((deletes, outcome.array_owners.len()), (CLAIMS, 0), "{:?}", outcome.calls);
}

/// Runs `change` 100 times from 40 to 50 seconds after the first failed call. Returns the number of expand or
/// modify calls from the first change until a second after the last one. Every such call fails.
async fn count_resizer_calls(first: Value, change: impl Fn(usize) -> Value) -> usize {
    let faults = || vec![DriverFault::Refuse(ErrorKind::Internal); 400];
    let resizing =
        ResizingBehavior { expand_faults: faults(), modify_faults: faults(), ..ResizingBehavior::default() };
    let simulation = Simulation::new(&Role::ALL, Vec::new(), Vec::new()).with_resizing(resizing);
    let setup = [
        Create(with(class("gold"), &json!({"allowVolumeExpansion": true}))),
        Create(attributes_class("fast", "9")),
        Create(attributes_class("slow", "1")),
        Create(claim("a", "gold")),
        Settle,
        Patch(CLAIM, first),
        Wait(Duration::from_secs(40)),
    ];
    let actions: Vec<UserAction> =
        setup.into_iter().chain(repeat(|number| Patch(CLAIM, change(number)))).collect();
    // `Settle` waits for an hour.
    count_calls(&simulation, &actions, Duration::from_secs(3600 + 39), Duration::from_secs(12)).await
}

/// Calls fail at 0, 1, 3, 7, 15 and 31 seconds. The next one is due after 63 seconds.
#[tokio::test(start_paused = true)]
async fn changes_of_a_claim_end_the_backoff_of_the_resizer_once() {
    let class = |name: &str| json!({"spec": {"volumeAttributesClassName": name}});
    let size = |mebibytes: usize| json!({"spec": {"resources": {"requests": {"storage": format!("{mebibytes}Mi")}}}});
    let calls = count_resizer_calls(size(2048), |number| size(2049 + number)).await;
    assert_eq!(calls, 1, "growing size");
    let flip = |number: usize| class(if number.is_multiple_of(2) { "slow" } else { "fast" });
    assert_eq!(count_resizer_calls(class("fast"), flip).await, 1, "class");
}

/// The driver does not expand a volume in use. Pods that use the claim come and go: one each second, from 40
/// to 140 seconds after the first failed call. The calls at 63 and 127 seconds are due anyway.
#[tokio::test(start_paused = true)]
async fn pods_of_a_claim_end_the_backoff_of_the_resizer_once() {
    const POD: &str = "/api/v1/namespaces/default/pods/p?gracePeriodSeconds=0";
    let resizing = ResizingBehavior {
        expand_faults: vec![DriverFault::Refuse(ErrorKind::FailedPrecondition); 400],
        ..ResizingBehavior::default()
    };
    let simulation = Simulation::new(&Role::ALL, Vec::new(), Vec::new()).with_resizing(resizing);
    let use_claim = || {
        let wait = || Wait(Duration::from_millis(500));
        [Create(pod("p", "a")), wait(), Delete(POD), wait()]
    };
    let setup = [
        Create(with(class("gold"), &json!({"allowVolumeExpansion": true}))),
        Create(claim("a", "gold")),
        Settle,
        Patch(CLAIM, json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}})),
        Wait(Duration::from_secs(40)),
    ];
    let actions: Vec<UserAction> = setup.into_iter().chain((0..100).flat_map(|_| use_claim())).collect();
    // `Settle` waits for an hour.
    let calls =
        count_calls(&simulation, &actions, Duration::from_secs(3600 + 39), Duration::from_secs(102)).await;
    assert_eq!(calls, 3);
}
