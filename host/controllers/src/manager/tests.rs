use std::{collections::BTreeSet, sync::Arc};

use cofferdam_apiserver::{ApiServer, Options};
use cofferdam_backend::testing::ScriptedBackend;
use cofferdam_cluster::{
    Change,
    api::ApiResource,
    observer::NoopStepObserver,
    queue::{Action, Queue},
};
use cofferdam_domain::{
    Claim, ClaimKey, Pod, names,
    storage::{Ability, Description, Feature, Placement},
    term::Term,
};
use http::{Request, StatusCode};
use kube::client::Body;
use prometheus_client::metrics::counter::Counter;
use serde_json::json;
use tower::ServiceExt as _;

use super::*;
use crate::{
    attacher,
    controller::{Controller, DeclaredController},
    provisioner::settings::ProvisionerSettings,
    rbac::{CORE, DriverPlacement, NodeTopologySource, ResourceAttributes, Rule, RuleSet, WATCH},
    reconcile::subscribe,
    resizer::settings::ResizerSettings,
    role::Role,
    snapshotter, startup_taint, table,
    watches::WatchSpec,
};

const NAMESPACE: &str = "storage";

/// Drivers of a placement: with and without topology, with every combination of the abilities and features
/// that watches depend on.
fn drivers(placement: DriverPlacement) -> Vec<Arc<dyn Backend>> {
    let topologies: &[(&[&str], bool)] = match placement {
        DriverPlacement::ClusterWide => &[(&[], false), (&["zone"], true), (&[], true)],
        DriverPlacement::NodeLocal(NodeTopologySource::Name) => &[(&[names::NODE_TOPOLOGY_KEY], true)],
        DriverPlacement::NodeLocal(NodeTopologySource::Labels) => &[(&["zone"], true)],
        DriverPlacement::NodeLocal(NodeTopologySource::CsiNode) => &[(&[], true)],
    };
    let mut drivers: Vec<Arc<dyn Backend>> = Vec::new();
    for (topology_keys, has_topology) in topologies {
        for bits in 0..16_u8 {
            let has = |bit: u8| bits & (1 << bit) != 0;
            let abilities = [Ability::Publishing, Ability::Modification, Ability::Expansion];
            let enabled = abilities.into_iter().zip(0..).filter(|(_, bit)| has(*bit));
            let description = Description {
                name: "driver.example.com".into(),
                version: String::new(),
                topology_keys: topology_keys.iter().map(|key| (*key).to_owned()).collect(),
                placement: Placement::default(),
                volumes_per_node: None,
                features: has(3).then(|| Feature::OnlineExpansion.as_str().to_owned()).into_iter().collect(),
            };
            let abilities = enabled.map(|(ability, _)| ability).collect();
            drivers.push(ScriptedBackend::unresponsive(description, abilities, *has_topology));
        }
    }
    drivers
}

/// Settings of a process with these roles: with every combination of the settings that watches depend on.
fn settings(roles: &BTreeSet<Role>, placement: DriverPlacement) -> impl Iterator<Item = Settings> {
    let node = (placement != DriverPlacement::ClusterWide)
        .then(|| NodeDeployment { every_driver: true, ..NodeDeployment::new("node-1".into()) });
    [(false, false), (false, true), (true, false), (true, true)].into_iter().map(move |(pods, orphans)| {
        let defaults = Settings::default();
        Settings {
            roles: roles.clone(),
            namespace: NAMESPACE.to_owned(),
            resizer: ResizerSettings { handle_volume_inuse_error: pods, ..defaults.resizer },
            provisioner: ProvisionerSettings {
                orphan_scan_interval: defaults.provisioner.orphan_scan_interval.filter(|_| orphans),
                ..defaults.provisioner
            },
            node: node.clone(),
            ..defaults
        }
    })
}

fn watch_set(table: &[Declaration], settings: &Settings, backends: &[Arc<dyn Backend>]) -> WatchSet {
    let enabled = table.iter().filter(|controller| settings.roles.contains(&controller.role));
    let declared = enabled.flat_map(|controller| (controller.watches)(settings, backends));
    WatchSet::union(watches::common().into_iter().chain(declared))
}

#[test]
fn every_watch_is_within_the_declared_rules() {
    let single = Role::ALL.map(|role| BTreeSet::from([role]));
    let all: BTreeSet<Role> = Role::ALL.into();
    let is_central = |role: &Role| [attacher::ROLE, snapshotter::ROLE, startup_taint::ROLE].contains(role);
    let node_local: BTreeSet<Role> = Role::ALL.into_iter().filter(|role| !is_central(role)).collect();
    let mut watched = 0;
    for placement in DriverPlacement::ALL {
        for roles in single.iter().chain([&all, &node_local]) {
            let rules = table::rbac_rules(roles, placement);
            let processes = settings(roles, placement).flat_map(|settings| {
                drivers(placement).into_iter().map(move |driver| (settings.clone(), driver))
            });
            for (settings, driver) in processes {
                let backends = [driver];
                if validate(CONTROLLERS, &settings, &backends).is_err() {
                    continue;
                }
                for spec in watch_set(CONTROLLERS, &settings, &backends).specs() {
                    let ApiResource { group, plural: resource, .. } = spec.resource();
                    let namespace = spec.scope.namespace.as_deref().unwrap_or_default();
                    for verb in ["list", "watch"] {
                        let request = ResourceAttributes { verb, group, resource, namespace, name: "" };
                        let is_allowed = rules
                            .iter()
                            .any(|rule| rule.allows(&request, NAMESPACE, &settings.secret_namespaces));
                        assert!(is_allowed, "{roles:?}, drivers {placement:?}: {request:?}");
                        watched += 1;
                    }
                }
            }
        }
    }
    assert!(watched > 10_000, "only {watched} requests");
}

#[test]
fn only_orphan_reports_do_not_hold_readiness_back() {
    let roles: BTreeSet<Role> = Role::ALL.into();
    for settings in settings(&roles, DriverPlacement::ClusterWide) {
        for driver in drivers(DriverPlacement::ClusterWide) {
            let set = watch_set(CONTROLLERS, &settings, &[driver]);
            let optional: Vec<_> = set.specs().iter().filter(|spec| !spec.required).collect();
            assert_eq!(optional.len(), usize::from(settings.provisioner.orphan_scan_interval.is_some()));
            assert!(optional.iter().all(|spec| spec.scope.label_selector.is_some()), "{optional:?}");
        }
    }
}

/// Dependencies of [`ClaimRecorder`].
struct ClaimRecorderContext {
    cache: Arc<Cache>,
    backoff: ExponentialBackoff,
    queue_metrics: Metrics,
    drivers: BTreeSet<DriverName>,
    reconciled: Counter,
}

/// A controller that records the claims of the cluster. With drivers, it calls [`CALL`] for the claims that
/// are named as one of them. It is declared in this test only.
struct ClaimRecorder {
    context: ClaimRecorderContext,
    queue: Queue<ClaimKey>,
    claims: Mutex<BTreeSet<ClaimKey>>,
}

/// Duration of a driver call.
const CALL: Duration = Duration::from_secs(5);

const CLAIM_RECORDER: Role = Role::new("claim-recorder");

impl DeclaredController for ClaimRecorder {
    const ROLE: Role = CLAIM_RECORDER;
    const HELP: &'static str = "Records claims";
    const REPLACES: &'static str = "nothing";
    type Metrics = Counter;

    fn watches(_: &Settings, _: &[Arc<dyn Backend>]) -> Vec<WatchSpec> {
        vec![WatchSpec::all::<Pod>()]
    }

    fn rbac_rules(_: DriverPlacement) -> RuleSet {
        const RULES: &[Rule] = &[Rule::cluster(CORE, "pods", WATCH)];
        &[RULES]
    }

    fn register_metrics(registry: &mut Registry) -> Counter {
        let reconciled = Counter::default();
        registry.register("recorded_claims", "Recorded claims", reconciled.clone());
        reconciled
    }

    fn context(process: &ProcessContext, reconciled: Counter) -> ClaimRecorderContext {
        ClaimRecorderContext {
            cache: Arc::clone(&process.cache),
            backoff: process.settings.calls.api_backoff(),
            queue_metrics: process.queue_metrics.clone(),
            drivers: process.drivers.keys().cloned().collect(),
            reconciled,
        }
    }
}

impl Controller for ClaimRecorder {
    type Context = ClaimRecorderContext;

    fn new(context: ClaimRecorderContext) -> Arc<Self> {
        let queue = Queue::new("claim_recorder", context.backoff, &context.queue_metrics);
        Arc::new(Self { context, queue, claims: Mutex::default() })
    }

    fn subscribe(self: &Arc<Self>) {
        subscribe(self, &self.context.cache.claims, |controller: &Self, change: &Change<Claim>| {
            controller.queue.add(change.key.clone());
        });
    }

    async fn run(self: Arc<Self>, stop: CancellationToken) {
        let controller = Arc::clone(&self);
        let reconcile = move |claim: ClaimKey| {
            let is_called = controller.context.drivers.contains(&DriverName::from(&*claim.name));
            let is_new = controller.claims.lock().insert(claim);
            let reconciled = controller.context.reconciled.clone();
            async move {
                if is_called {
                    tokio::time::sleep(CALL).await;
                }
                reconciled.inc_by(u64::from(is_new));
                Action::Done
            }
        };
        self.queue.run(1, stop, reconcile).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_new_role_is_one_controller_and_one_line_of_the_table() {
    let table = [Declaration::of::<ClaimRecorder>()];
    let roles = BTreeSet::from([CLAIM_RECORDER]);
    let rules = table::rbac_rules_of(&table, &roles, DriverPlacement::ClusterWide);
    let pods = rules.iter().find(|rule| rule.resource == "pods").unwrap();
    assert_eq!(pods.verbs, BTreeSet::from(["list", "watch"]));

    let recorder = RunningRecorder::start(Leadership::permanent()).await;
    recorder.api.create_claim("a").await;
    assert_eq!(recorder.recorded().await, 1);
    recorder.stop().await;
}

/// An embedded API.
#[derive(Clone)]
struct TestApi(ApiServer);

impl TestApi {
    async fn create_claim(&self, name: &str) {
        let claim = json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
        });
        let path = "/api/v1/namespaces/default/persistentvolumeclaims";
        let request = Request::post(path).header("content-type", "application/json");
        let request = request.body(Body::from(claim.to_string().into_bytes())).unwrap();
        assert_eq!(self.0.service().oneshot(request).await.unwrap().status(), StatusCode::CREATED);
    }
}

/// A process with a [`ClaimRecorder`].
struct RunningRecorder {
    api: TestApi,
    manager: Arc<ControllerManager>,
    registry: Registry,
    stop: CancellationToken,
    running: tokio::task::JoinHandle<Result<(), ControllerManagerError>>,
}

impl RunningRecorder {
    /// Starts the process, and waits until it is ready.
    async fn start(leadership: Leadership) -> Self {
        Self::start_groups(vec![DriverGroup {
            drivers: BTreeSet::new(),
            leadership,
            is_ready_as_standby: true,
        }])
        .await
    }

    /// Starts a process with these groups of drivers, and waits until it is ready.
    async fn start_groups(groups: Vec<DriverGroup>) -> Self {
        let backend = |name: &DriverName| -> Arc<dyn Backend> {
            let description = Description {
                name: name.clone(),
                version: String::new(),
                topology_keys: Vec::new(),
                placement: Placement::default(),
                volumes_per_node: None,
                features: Vec::new(),
            };
            ScriptedBackend::unresponsive(description, BTreeSet::new(), false)
        };
        let table: Vec<_> = CONTROLLERS.iter().copied().chain([Declaration::of::<ClaimRecorder>()]).collect();
        let api = ApiServer::new(Options { uid_seed: Some(7), ..Options::default() });
        let dependencies = Dependencies {
            client: kube::Client::new(api.service(), "default"),
            backends: groups.iter().flat_map(|group| group.drivers.iter().map(backend)).collect(),
            clock: Arc::new(|| jiff::Timestamp::from_second(1_767_225_600).unwrap()),
            observer: Arc::new(NoopStepObserver),
        };
        let mut registry = Registry::default();
        let settings = Settings { roles: BTreeSet::from([CLAIM_RECORDER]), ..Settings::default() };
        let manager = ControllerManager::with_table(&table, settings, dependencies, &mut registry).unwrap();
        let (manager, stop) = (Arc::new(manager), CancellationToken::new());
        let running = tokio::spawn({
            let (manager, stop) = (Arc::clone(&manager), stop.clone());
            async move { manager.run_groups(stop, &groups).await }
        });
        manager.ready().wait_for(|ready| *ready).await.unwrap();
        Self { api: TestApi(api), manager, registry, stop, running }
    }

    /// Number of claims that controllers of the process have recorded, a second later. Each term has a
    /// controller of its own.
    async fn recorded(&self) -> u64 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let mut metrics = String::new();
        prometheus_client::encoding::text::encode(&mut metrics, &self.registry).unwrap();
        let value = metrics.lines().find_map(|line| line.strip_prefix("recorded_claims_total "));
        value.unwrap().parse().unwrap()
    }

    async fn stop(self) {
        self.stop.cancel();
        self.running.await.unwrap().unwrap();
        assert!(!*self.manager.ready().borrow(), "a stopped process is not ready");
    }
}

#[tokio::test(start_paused = true)]
async fn controllers_work_in_terms_only_and_the_cache_stays() {
    let (terms, leadership) = Leadership::elected();
    // Ready as soon as the cache is synced: a rolling update waits for it.
    let recorder = RunningRecorder::start(leadership).await;
    let cache = recorder.manager.cache();
    recorder.api.create_claim("a").await;
    assert_eq!((recorder.recorded().await, cache.claims.len()), (0, 1), "a standby watches");

    terms.begin(Term::permanent());
    assert_eq!(recorder.recorded().await, 1, "the cached claim is enqueued");
    recorder.api.create_claim("b").await;
    assert_eq!(recorder.recorded().await, 2);

    terms.end();
    recorder.api.create_claim("c").await;
    assert_eq!((recorder.recorded().await, cache.claims.len()), (2, 3), "no work after the end");
    assert!(*recorder.manager.ready().borrow(), "a standby is ready");

    // A new controller records the three claims.
    terms.begin(Term::permanent());
    assert_eq!(recorder.recorded().await, 5);
    assert!(Arc::ptr_eq(&cache, &recorder.manager.cache()), "the cache is the same");

    drop(terms);
    recorder.api.create_claim("d").await;
    assert_eq!(recorder.recorded().await, 5, "no work when nobody renews the Lease");
    recorder.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_group_without_a_standby_is_ready_while_it_leads() {
    const WAIT: Duration = Duration::from_secs(60);
    let (terms, leadership) = Leadership::elected();
    let group = DriverGroup { drivers: BTreeSet::new(), leadership, is_ready_as_standby: false };
    let started = Instant::now();
    let begin = async {
        tokio::time::sleep(WAIT).await;
        terms.begin(Term::permanent());
    };
    let (recorder, ()) = tokio::join!(RunningRecorder::start_groups(vec![group]), begin);
    assert!(started.elapsed() >= WAIT, "ready after {:?}", started.elapsed());
    recorder.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_group_resigns_as_soon_as_its_own_work_has_ended() {
    let (busy, busy_leadership) = Leadership::elected();
    let (idle, idle_leadership) = Leadership::elected();
    let group = |driver: &str, leadership| DriverGroup {
        drivers: BTreeSet::from([driver.into()]),
        leadership,
        is_ready_as_standby: true,
    };
    let groups = vec![group("busy", busy_leadership), group("idle", idle_leadership)];
    let recorder = RunningRecorder::start_groups(groups).await;
    busy.begin(Term::permanent());
    recorder.api.create_claim("other").await;
    assert_eq!(recorder.recorded().await, 1, "a group that does not lead has no controller");
    idle.begin(Term::permanent());
    assert_eq!(recorder.recorded().await, 2, "each group has a controller of its own");

    recorder.api.create_claim("busy").await;
    assert_eq!(recorder.recorded().await, 3, "the call of the busy group runs");
    let stopped = Instant::now();
    recorder.stop.cancel();
    idle.wait_resigned().await;
    assert_eq!(stopped.elapsed(), Duration::ZERO);
    assert!(!busy.is_resigned());
    busy.wait_resigned().await;
    assert_eq!(stopped.elapsed(), CALL - Duration::from_secs(1));
    recorder.stop().await;
}
