//! One run of a scenario: a cluster, a storage array, a user, and processes, one of which may be killed.

use std::{
    collections::{BTreeMap, BTreeSet},
    panic,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use cofferdam_backend::Backend;
use cofferdam_cluster::{
    Intent,
    leadership::{Leadership, TermSender},
    observer::StepObserver,
};
use cofferdam_controllers::{
    AttachDetachSettings, AttacherSettings, CallSettings, ControllerManager, ControllerManagerError,
    Dependencies, NodeDeployment, ProvisionerSettings, ResizerSettings, Role, Settings, SnapshotSettings,
    protection, provisioner, pv_controller,
    rbac::{DriverPlacement, NodeTopologySource},
    resizer, snapshot_controller, snapshotter, table,
};
use cofferdam_domain::{names::startup_taint, term::Term};
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use serde_json::Value;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tower::BoxError;

use crate::{
    action::{UserAction, WaitFor},
    api::{NODES_PATH, VOLUME_ATTACHMENTS_PATH, get, list_at, text},
    driver::{
        ArraySnapshot, Clock, DriverFault, JournalReader, ListingBehavior, PublishingBehavior,
        ResizingBehavior, ScriptedDriver, SnapshotBehavior, TopologyBehavior, UserActionHandler,
        snapshot_name,
    },
    effects::{ApiFault, Effect, Effects, Interruption},
    fixture::{
        SETTLE_TIME, SimulationFixture, VOLUME_SNAPSHOT_CONTENTS_PATH, VOLUME_SNAPSHOTS_PATH,
        managing_node_pointer,
    },
    invariants,
    objects::DRIVER,
    process_api::CrashingApi,
    rbac::Rbac,
    remaining_work::{QueueMetrics, RemainingWork, WorkLog},
    secret_values::{self, has_secret_value},
    test_cluster::{InProcessCluster, TestCluster, TestUser, reversed_writes},
};

/// Duration of a watch of [`Simulation::with_long_watches`]: the longest that the embedded API server allows.
const LONG_WATCH: Duration = Duration::from_secs(3600);
/// Resync period of attacher and resizer. No run takes as long: a resync would make up for a change that a
/// process has missed, before new processes are asked for remaining work.
const RESYNC: Duration = Duration::from_secs(1_000 * 3600);
/// Real time: age after which an intent is stuck, in scenarios with such an intent. A few calls fail before.
const REAL_TIME_STUCK_AFTER: Duration = Duration::from_secs(4);
/// Real time: timeouts of the attach-detach controller in scenarios in which they elapse. They are shorter
/// than the time without a request after which a process counts as idle.
const REAL_TIME_TIMEOUT: Duration = Duration::from_secs(1);
/// Real time: interval of the attacher's ListVolumes calls. It is longer than the time without a request
/// after which a process counts as idle.
const REAL_TIME_RECONCILE_SYNC: Duration = Duration::from_secs(5);
/// Interval of orphan scans, if the simulation enables them.
const ORPHAN_SCAN_INTERVAL: Duration = Duration::from_secs(3600);
/// Number of times that the runtime polls all ready tasks until a request has passed the buffer of its
/// client.
const CLIENT_TICKS: usize = 4;
/// Time of the clock at which a term has ended, in seconds.
const AFTER_TERM: u64 = 1;
/// Time between the end of a term and its notification.
const TERM_END_DELAY: Duration = Duration::from_secs(30);
/// Time between the notification and the next term.
const TERM_GAP: Duration = Duration::from_millis(1);
/// Real time: delay before a process that failed to start is started again.
const RESTART_DELAY: Duration = Duration::from_millis(200);
/// Maximum restarts of a process that failed to start; after them the error is reported as a violation.
const MAX_STARTS: usize = 100;
/// Maximum time for a process to stop after its cancellation; after it, a violation is reported.
const STOP_TIMEOUT: Duration = Duration::from_secs(60);

/// The terms of a process, with the clock that ends them.
struct ProcessTerms {
    sender: TermSender,
    /// Seconds.
    clock: Arc<AtomicU64>,
}

impl ProcessTerms {
    /// Begins a term, which ends when the clock reaches [`AFTER_TERM`].
    fn begin(&self) {
        let clock = Arc::clone(&self.clock);
        let clock = Arc::new(move || Duration::from_secs(clock.load(Ordering::SeqCst)));
        self.sender.begin(Term::until(Duration::from_secs(AFTER_TERM), clock));
    }
}

/// The state of cluster and array at the end of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FinalState {
    /// `name phase volume` of every claim, sorted; `name Pending on node` for a Pending claim with a selected
    /// node.
    pub claims: Vec<String>,
    /// `name phase claim` of every PersistentVolume, sorted. A provisioned one has the name `of-a` if it was
    /// created for claim `a`, and `of-gone` if that claim does not exist. One with node affinity also has its
    /// topology: `name phase claim key=value`.
    pub volumes: Vec<String>,
    /// One line for each claim that has a resize or modify status, or whose PersistentVolume has one; sorted.
    /// The line begins with `name 1Gi/2Gi`, where the sizes are the capacities of claim and PersistentVolume.
    /// Then follow, if they are set, `allocated=2Gi`, the resize status, the claim's conditions, `no-node` if
    /// node expansion is not required, `was=1Gi` for the capacity before the resize, `class=a/b` for the
    /// current classes of claim and volume, and `target=b` with its status.
    pub resizes: Vec<String>,
    /// `name attached kind` or `name detached` of every VolumeAttachment, with the kind of its connection
    /// info if it has one, and with `attachError` and `detachError` where they are set; sorted. `attachError`
    /// is followed by its error code if it has one. A VolumeAttachment that the attach-detach controller
    /// created has the name `volume on node`.
    pub attachments: Vec<String>,
    /// `handles on node` of every node with a non-empty `volumesAttached`, sorted.
    pub volumes_attached: Vec<String>,
    /// Names of the nodes with the start-up taint of the scenarios' driver, sorted.
    pub startup_taints: Vec<String>,
    /// `handle node` of every published volume, sorted.
    pub published: Vec<String>,
    /// Owners of the array's volumes: `a` or `a on node` for claim `a`, with `gone` as the name of a claim
    /// that does not exist; sorted. Each claim is listed once per node.
    pub array_owners: Vec<String>,
    /// `name content` of every VolumeSnapshot, sorted, with `ready` if it is ready. The content is `of-s` if
    /// it was created for VolumeSnapshot `s`.
    pub snapshots: Vec<String>,
    /// `name snapshot` of every VolumeSnapshotContent, sorted, with `ready` if it is ready.
    pub snapshot_contents: Vec<String>,
    /// VolumeSnapshots for which the array's snapshots were created, with `gone` as the name of one that does
    /// not exist; sorted.
    pub array_snapshots: Vec<String>,
    /// Number of intents that remain. An intent is the provisioner's record, in a ConfigMap
    /// `cofferdam-intents-…`, of a create request that may not have led to a PersistentVolume yet.
    pub intents: usize,
    /// `object type reason` of every event, sorted, each once. The object is `volume` for a provisioned
    /// PersistentVolume.
    pub events: Vec<String>,
    /// A message of every event, by its line in `events`.
    pub event_messages: BTreeMap<String, String>,
    /// [`ScriptedDriver::calls`], with the claim's name in place of a provisioned volume's name or handle, or
    /// `gone` if the claim does not exist.
    pub calls: Vec<String>,
    /// API faults whose request was never sent.
    pub unused_faults: Vec<String>,
    /// Violated invariants: leaked, lost and wrongly bound, attached or detached volumes,
    /// [`ScriptedDriver::violations`], and requests that RBAC forbids. Also failures of the simulation
    /// itself, such as processes that do not become idle.
    pub violations: Vec<String>,
    /// Work that processes find which start anew after the run. Empty without
    /// [`Simulation::with_rest_check`].
    pub remaining_work: Vec<RemainingWork>,
}

/// A cluster, a scripted driver and the processes of a scenario.
pub struct Simulation {
    fixture: Arc<SimulationFixture>,
    driver: ScriptedDriver,
    driver_name: &'static str,
    clock: Clock,
    /// Metrics of the process that was started last.
    metrics: Mutex<Arc<Registry>>,
    process_specs: Vec<ProcessSpec>,
    scans_for_orphans: bool,
    has_stuck_intents: bool,
    elapses_timeouts: bool,
    retries_slowly: bool,
    checks_rest: bool,
    reverses_writes: bool,
    watch_timeout: Duration,
    interruption: Interruption,
    start_count: AtomicU64,
}

/// The roles of one process, and their permissions.
struct ProcessSpec {
    roles: BTreeSet<Role>,
    drivers: DriverPlacement,
    rbac: Arc<Rbac>,
    /// The node of a process with a node-local driver; `None` for other processes.
    node: Option<&'static str>,
    /// True if the process runs the driver.
    has_driver: bool,
}

impl ProcessSpec {
    fn new(roles: BTreeSet<Role>, drivers: DriverPlacement) -> Self {
        let Settings { namespace, secret_namespaces, .. } = Settings::default();
        let rbac = Rbac::new(table::rbac_rules(&roles, drivers), namespace, secret_namespaces);
        Self { roles, drivers, rbac, node: None, has_driver: true }
    }

    /// The roles of one node that call the driver.
    fn on_node(node: &'static str, topology_source: NodeTopologySource) -> Self {
        let drivers = DriverPlacement::NodeLocal(topology_source);
        let roles = [provisioner::ROLE, resizer::ROLE, snapshotter::ROLE];
        Self { node: Some(node), ..Self::new(roles.into(), drivers) }
    }

    /// Splits the specification into one process per role.
    fn into_single_roles(self) -> Vec<Self> {
        let Self { roles, drivers, node, has_driver: drives, .. } = self;
        roles
            .into_iter()
            .map(|role| Self { node, has_driver: drives, ..Self::new([role].into(), drivers) })
            .collect()
    }
}

/// The RBAC rules that one process used.
#[derive(Clone, Debug)]
pub struct UsedRules {
    /// The roles of the process.
    pub roles: BTreeSet<Role>,
    /// The placement of the process's drivers: for the whole cluster, or for the storage of one node.
    pub drivers: DriverPlacement,
    /// The used rules, as `verb group/resource`.
    pub used: BTreeSet<String>,
}

struct RunningProcess {
    effects: Arc<Effects>,
    log: Arc<WorkLog>,
    metrics: Arc<Registry>,
    stop: CancellationToken,
    task: JoinHandle<()>,
    /// The terms of a process that can lose its Lease.
    terms: Option<ProcessTerms>,
}

impl Simulation {
    /// Creates an empty cluster in this process, in paused time, and an array. Each create call has the next
    /// fault of `create_faults`, and each delete call the next of `delete_faults`; further calls have no
    /// fault.
    pub fn new(roles: &[Role], create_faults: Vec<DriverFault>, delete_faults: Vec<DriverFault>) -> Self {
        Self::in_process(InProcessCluster::new(), roles, create_faults, delete_faults)
    }

    /// Like [`Self::new`], but a watch lasts for an hour, and only one bookmark precedes its end. Most time
    /// of a run is idle, and with the watches of a cluster most requests are those of idle watches.
    pub fn with_long_watches(
        roles: &[Role],
        create_faults: Vec<DriverFault>,
        delete_faults: Vec<DriverFault>,
    ) -> Self {
        let cluster = InProcessCluster::with_bookmark_interval(LONG_WATCH);
        let simulation = Self::in_process(cluster, roles, create_faults, delete_faults);
        Self { watch_timeout: LONG_WATCH, ..simulation }
    }

    fn in_process(
        cluster: InProcessCluster,
        roles: &[Role],
        create_faults: Vec<DriverFault>,
        delete_faults: Vec<DriverFault>,
    ) -> Self {
        let user = cluster.api();
        let fixture = SimulationFixture::new(Arc::new(cluster), user);
        Self::with_fixture(fixture, roles, create_faults, delete_faults)
    }

    /// Like [`Self::new`], but on an existing cluster, which has to be empty, and in the time of that
    /// cluster.
    ///
    /// # Errors
    /// When the cluster cannot create a client for the administrator.
    pub fn on_cluster(
        cluster: Arc<dyn TestCluster>,
        roles: &[Role],
        create_faults: Vec<DriverFault>,
        delete_faults: Vec<DriverFault>,
    ) -> Result<Self, BoxError> {
        let user = cluster.connect(TestUser::Admin)?;
        Ok(Self::with_fixture(SimulationFixture::new(cluster, user), roles, create_faults, delete_faults))
    }

    fn with_fixture(
        fixture: Arc<SimulationFixture>,
        roles: &[Role],
        create_faults: Vec<DriverFault>,
        delete_faults: Vec<DriverFault>,
    ) -> Self {
        let clock = fixture.cluster.clock();
        let on_user_action = user_action_handler(Arc::clone(&fixture));
        let journal = journal_reader(Arc::clone(&fixture));
        let driver =
            ScriptedDriver::new(create_faults, delete_faults, on_user_action, journal, Arc::clone(&clock));
        secret_values::check_log_lines();
        Self {
            driver,
            driver_name: DRIVER,
            clock,
            metrics: Mutex::default(),
            fixture,
            process_specs: vec![ProcessSpec::new(
                roles.iter().copied().collect(),
                DriverPlacement::ClusterWide,
            )],
            scans_for_orphans: false,
            has_stuck_intents: false,
            elapses_timeouts: false,
            retries_slowly: false,
            checks_rest: false,
            reverses_writes: false,
            watch_timeout: Settings::default().watch_timeout,
            interruption: Interruption::Crash,
            start_count: AtomicU64::new(0),
        }
    }

    /// Enables ListVolumes of the driver, and orphan scans of the processes. Each ListVolumes call has the
    /// next of `faults`; further calls have no fault.
    #[must_use]
    pub fn with_listing(self, listing: ListingBehavior, faults: Vec<DriverFault>) -> Self {
        self.driver.set_listing(listing, faults);
        self.with_orphan_scan()
    }

    /// Sets whether the driver has CREATE_DELETE_VOLUME. By default it does.
    #[must_use]
    pub fn with_create_delete(self, has_create_delete: bool) -> Self {
        self.driver.set_create_delete(has_create_delete);
        self
    }

    /// Sets the values of the parameter `tier` for which create calls fail, until [`UserAction::Repair`].
    #[must_use]
    pub fn with_failing_tiers(self, tiers: &'static [&'static str]) -> Self {
        self.driver.set_failing_tiers(tiers);
        self
    }

    /// Sets the key that the secrets of create calls need. By default, calls need no secrets.
    #[must_use]
    pub fn with_required_secret_key(self, key: Option<&'static str>) -> Self {
        self.driver.set_required_secret_key(key);
        self
    }

    /// Sets the name of the driver. By default it is that of [`objects`](crate::objects).
    #[must_use]
    pub fn with_driver_name(self, driver_name: &'static str) -> Self {
        Self { driver_name, ..self }
    }

    /// Sets the publish behavior of the driver. `lists_published_nodes` enables ListVolumes with the
    /// LIST_VOLUMES_PUBLISHED_NODES capability, in place of an earlier [`with_listing`](Self::with_listing).
    #[must_use]
    pub fn with_publishing(self, publishing: PublishingBehavior, lists_published_nodes: bool) -> Self {
        self.driver.set_publishing(publishing);
        if lists_published_nodes {
            self.driver.set_listing(
                ListingBehavior { published_nodes: true, ..ListingBehavior::default() },
                Vec::new(),
            );
        }
        self
    }

    /// Sets the expand and modify behavior of the driver.
    #[must_use]
    pub fn with_resizing(self, resizing: ResizingBehavior) -> Self {
        self.driver.set_resizing(resizing);
        self
    }

    /// Sets the snapshot behavior of the driver.
    #[must_use]
    pub fn with_snapshots(self, snapshots: SnapshotBehavior) -> Self {
        self.driver.set_snapshots(snapshots);
        self
    }

    /// Sets the topology behavior of the driver.
    #[must_use]
    pub fn with_topology(self, topology: TopologyBehavior) -> Self {
        self.driver.set_topology(topology);
        self
    }

    /// Sets the faults of the API writes of the processes. Each fault applies to the first write that it
    /// matches.
    #[must_use]
    pub fn with_api_faults(self, api_faults: Vec<ApiFault>) -> Self {
        self.fixture.set_api_faults(api_faults);
        self
    }

    /// Enables orphan scans, even if the driver does not support ListVolumes.
    #[must_use]
    pub fn with_orphan_scan(self) -> Self {
        Self { scans_for_orphans: true, ..self }
    }

    /// In real time, intents are stuck after `REAL_TIME_STUCK_AFTER`.
    #[must_use]
    pub fn with_stuck_intents(self, has_stuck_intents: bool) -> Self {
        Self { has_stuck_intents, ..self }
    }

    /// In real time, the timeouts of the attach-detach controller are `REAL_TIME_TIMEOUT`.
    #[must_use]
    pub fn with_elapsing_timeouts(self, elapses_timeouts: bool) -> Self {
        Self { elapses_timeouts, ..self }
    }

    /// In real time, `--retry-interval-max` has its default.
    #[must_use]
    pub fn with_slow_retries(self, retries_slowly: bool) -> Self {
        Self { retries_slowly, ..self }
    }

    /// After each run, starts processes with the same roles over the same objects, and records the work that
    /// they find as [`FinalState::remaining_work`]. Do not combine this with orphan scans, which write
    /// reports and read ListVolumes periodically.
    #[must_use]
    pub fn with_rest_check(self) -> Self {
        Self { checks_rest: true, ..self }
    }

    /// Makes writes that a process sends at the same time reach the API server in reverse order: a crash
    /// after the first of them leaves another one than without.
    #[must_use]
    pub fn with_reversed_writes(self) -> Self {
        Self { reverses_writes: true, ..self }
    }

    /// Runs each role in a process of its own, as a cluster with several Deployments does. The first process
    /// may be killed.
    #[must_use]
    pub fn with_process_per_role(self) -> Self {
        Self {
            process_specs: self.process_specs.into_iter().flat_map(ProcessSpec::into_single_roles).collect(),
            ..self
        }
    }

    /// Adds a replica: one more process with these roles beside the processes that have them already, as
    /// without leader election. The first process may still be killed.
    #[must_use]
    pub fn with_replica(mut self, roles: &[Role]) -> Self {
        let roles = roles.iter().copied().collect();
        self.process_specs.push(ProcessSpec::new(roles, DriverPlacement::ClusterWide));
        self
    }

    /// Makes the driver node-local: each node has a process with its provisioner, resizer and snapshotter,
    /// and one more process has pv-controller, protection and snapshot-controller. These processes replace
    /// all former processes and their roles. The process of the first node may be killed. Call
    /// [`with_topology`](Self::with_topology) before. Without nodes, nothing changes.
    #[must_use]
    pub fn with_node_local_driver(self, nodes: &[&'static str]) -> Self {
        if nodes.is_empty() {
            return self;
        }
        let topology_source = self.driver.topology_source();
        let central = [pv_controller::ROLE, protection::ROLE, snapshot_controller::ROLE];
        let without_driver = ProcessSpec::new(central.into(), DriverPlacement::NodeLocal(topology_source));
        let node_processes = nodes.iter().map(|node| ProcessSpec::on_node(node, topology_source));
        Self {
            process_specs: node_processes
                .chain([ProcessSpec { has_driver: false, ..without_driver }])
                .collect(),
            ..self
        }
    }

    /// Selects the process that may be killed: that with this index, modulo the number of processes.
    #[must_use]
    pub fn with_crashing_process(mut self, index: usize) -> Self {
        let count = self.process_specs.len().max(1);
        self.process_specs.rotate_left(index % count);
        self
    }

    /// Lets the process that would crash lose its Lease instead, and hold it again a moment later.
    #[must_use]
    pub fn with_term_loss(self) -> Self {
        Self { interruption: Interruption::TermLoss, ..self }
    }

    /// The scripted driver of the simulation.
    pub fn driver(&self) -> &ScriptedDriver {
        &self.driver
    }

    /// The RBAC rules that each process used.
    pub fn used_rules(&self) -> Vec<UsedRules> {
        let rules_of = |spec: &ProcessSpec| UsedRules {
            roles: spec.roles.clone(),
            drivers: spec.drivers,
            used: spec.rbac.used(),
        };
        self.process_specs.iter().map(rules_of).collect()
    }

    /// The current time of the simulation.
    pub fn now(&self) -> jiff::Timestamp {
        (self.clock)()
    }

    /// Reads the object at a path. `None` if it does not exist or the request fails.
    pub async fn object(&self, path: &str) -> Option<Value> {
        get(&self.fixture.user_api, path).await
    }

    /// The metrics of the process that was started last, in the Prometheus text format.
    pub fn metrics(&self) -> String {
        encode_metrics(&self.metrics.lock())
    }

    /// Runs a scenario. With `crash_after`, the first process is killed after its effect of this number,
    /// counted from 1, and replaced, or loses its Lease ([`with_term_loss`](Self::with_term_loss)). Returns
    /// the final state, and the effects of the first process without those of its replacement.
    pub async fn run(&self, actions: &[UserAction], crash_after: Option<usize>) -> (FinalState, Vec<Effect>) {
        let (Some(crashing), others) =
            (self.process_specs.first(), self.process_specs.get(1..).unwrap_or_default())
        else {
            return (FinalState::default(), Vec::new());
        };
        let others: Vec<RunningProcess> = others.iter().map(|spec| self.start(spec, None)).collect();
        let first = self.start(crashing, crash_after);
        let effects = Arc::clone(&first.effects);
        let running = Arc::new(tokio::sync::Mutex::new(first));
        let restart_after_crash = async {
            effects.wait_for_crash().await;
            let mut running = running.lock().await;
            if let Some(terms) = &running.terms {
                terms.clock.store(AFTER_TERM, Ordering::SeqCst);
                // A request that had its permit before reaches the API server through the client's buffer.
                for _ in 0..CLIENT_TICKS {
                    tokio::task::yield_now().await;
                }
                effects.end_term();
                // The controllers run until the leader election notices the end, late.
                tokio::time::sleep(TERM_END_DELAY).await;
                terms.sender.end();
                tokio::time::sleep(TERM_GAP).await;
                effects.begin_term();
                terms.clock.store(0, Ordering::SeqCst);
                terms.begin();
                std::future::pending::<()>().await;
            }
            running.task.abort();
            self.check_metrics(&running);
            let next = self.start(crashing, None);
            self.fixture.remove_process(&running.effects);
            *running = next;
            // The replacement is never killed.
            std::future::pending::<()>().await;
        };
        let user_script = async {
            for action in actions {
                self.perform(action).await;
            }
            self.fixture.settle().await;
        };
        tokio::select! {
            () = user_script => {}
            () = restart_after_crash => {}
        }
        let first = Arc::into_inner(running).map(tokio::sync::Mutex::into_inner);
        self.stop(others.into_iter().chain(first).collect()).await;
        let mut outcome = self.final_state().await;
        if self.checks_rest {
            let before = self.recorded_violations();
            outcome.remaining_work = self.remaining_work().await;
            let is_new = |violation: &String| !before.contains(violation);
            outcome.violations.extend(self.recorded_violations().into_iter().filter(is_new));
        }
        (outcome, effects.log())
    }

    async fn stop(&self, mut all: Vec<RunningProcess>) {
        all.iter().for_each(|running| running.stop.cancel());
        let ended = futures::future::join_all(all.iter_mut().map(|running| &mut running.task));
        if tokio::time::timeout(STOP_TIMEOUT, ended).await.is_err() {
            self.fixture.report_violation(format!("a process has not stopped within {STOP_TIMEOUT:?}"));
        }
        for running in all {
            self.check_metrics(&running);
            running.effects.kill();
            running.task.abort();
            self.fixture.remove_process(&running.effects);
        }
        for line in secret_values::take_log_lines() {
            self.fixture.report_violation(format!("a log line has the value of a Secret: {line}"));
        }
    }

    /// Reports a violation if the metrics of a process have the value of a Secret.
    fn check_metrics(&self, running: &RunningProcess) {
        if has_secret_value(&encode_metrics(&running.metrics)) {
            self.fixture.report_violation("the metrics have the value of a Secret".to_owned());
        }
    }

    /// Starts every process anew, and returns the work that they find. In paused time, this takes an hour.
    async fn remaining_work(&self) -> Vec<RemainingWork> {
        let calls_before = self.driver.calls().len();
        let processes: Vec<(&ProcessSpec, RunningProcess)> =
            self.process_specs.iter().map(|spec| (spec, self.start(spec, None))).collect();
        let mut found = Vec::new();
        if self.fixture.is_real_time() {
            self.fixture.settle().await;
            for (spec, running) in &processes {
                found.extend(RemainingWork::of_process(&spec.roles, &running.log, None));
            }
        } else {
            let encode = |(_, running): &(&ProcessSpec, RunningProcess)| encode_metrics(&running.metrics);
            self.fixture.wait(SETTLE_TIME / 2).await;
            let halfway: Vec<String> = processes.iter().map(encode).collect();
            self.fixture.wait(SETTLE_TIME / 2).await;
            let objects = self.count_objects().await;
            for ((spec, running), halfway) in processes.iter().zip(halfway) {
                let metrics = QueueMetrics { halfway, end: encode_metrics(&running.metrics), objects };
                found.extend(RemainingWork::of_process(&spec.roles, &running.log, Some(&metrics)));
            }
        }
        self.stop(processes.into_iter().map(|(_, running)| running).collect()).await;
        let calls = self.driver.calls();
        found.extend(RemainingWork::of_calls(calls.get(calls_before..).unwrap_or_default()));
        found
    }

    /// The number of objects that are keys of work queues.
    async fn count_objects(&self) -> usize {
        let paths = [
            "/api/v1/persistentvolumeclaims",
            "/api/v1/persistentvolumes",
            VOLUME_ATTACHMENTS_PATH,
            NODES_PATH,
        ];
        let mut count = 0;
        for path in paths {
            count += self.fixture.list(path).await.len();
        }
        count
    }

    fn start(&self, spec: &ProcessSpec, crash_after: Option<usize>) -> RunningProcess {
        let effects = Effects::with_interruption(crash_after, self.interruption);
        let (terms, leadership) = match crash_after.map(|_| self.interruption) {
            Some(Interruption::TermLoss) => {
                let (terms, leadership) = Leadership::elected();
                let terms = ProcessTerms { sender: terms, clock: Arc::default() };
                terms.begin();
                (Some(terms), leadership)
            }
            Some(Interruption::Crash) | None => (None, Leadership::permanent()),
        };
        let api = self.fixture.cluster.connect(TestUser::Process).unwrap_or_else(|error| {
            self.fixture.report_violation(format!("a process has no client: {error}"));
            self.fixture.user_api.clone()
        });
        let api = if self.reverses_writes { reversed_writes(api) } else { api };
        let (fixture, rbac) = (Arc::clone(&self.fixture), Arc::clone(&spec.rbac));
        let log = Arc::new(WorkLog::default());
        let api = CrashingApi { api, effects: Arc::clone(&effects), rbac, fixture, log: Arc::clone(&log) };
        let client = kube::Client::new(api, "default");
        let backend = || self.driver.for_process(self.driver_name, spec.node, Arc::clone(&effects));
        let backends: Vec<Arc<dyn Backend>> = spec.has_driver.then(backend).into_iter().collect();
        let start = self.start_count.fetch_add(1, Ordering::Relaxed);
        let defaults = Settings::default();
        let settings = Settings {
            calls: CallSettings {
                retry_interval_max: self
                    .fixture
                    .max_retry_interval()
                    .filter(|_| !self.retries_slowly)
                    .unwrap_or(defaults.calls.retry_interval_max),
                ..defaults.calls
            },
            watch_timeout: self.watch_timeout,
            roles: spec.roles.clone(),
            identity: format!("process-{start}"),
            provisioner: ProvisionerSettings {
                orphan_scan_interval: self.scans_for_orphans.then_some(ORPHAN_SCAN_INTERVAL),
                stuck_after: match self.has_stuck_intents && self.fixture.is_real_time() {
                    true => REAL_TIME_STUCK_AFTER,
                    false => defaults.provisioner.stuck_after,
                },
                ..defaults.provisioner
            },
            node: spec.node.map(|node| NodeDeployment {
                every_driver: spec.drivers == DriverPlacement::NodeLocal(NodeTopologySource::CsiNode),
                ..self.fixture.with_short_delays(NodeDeployment::new(node.into()))
            }),
            attacher: AttacherSettings {
                resync: RESYNC,
                reconcile_sync: match self.fixture.is_real_time() {
                    true => REAL_TIME_RECONCILE_SYNC,
                    false => defaults.attacher.reconcile_sync,
                },
                ..defaults.attacher
            },
            attach_detach: match self.elapses_timeouts && self.fixture.is_real_time() {
                true => AttachDetachSettings {
                    force_detach_after: Some(REAL_TIME_TIMEOUT),
                    request_may_apply: REAL_TIME_TIMEOUT,
                },
                false => defaults.attach_detach,
            },
            resizer: ResizerSettings { resync_period: RESYNC, ..defaults.resizer },
            // As the documents say for node-local drivers.
            snapshots: SnapshotSettings {
                distributed: matches!(spec.drivers, DriverPlacement::NodeLocal(_)),
                ..defaults.snapshots
            },
            ..defaults
        };
        let clock = Arc::clone(&self.clock);
        let observer = Arc::clone(&log) as Arc<dyn StepObserver>;
        let parts = Dependencies { client, backends, clock, observer };
        let stop = CancellationToken::new();
        let token = stop.clone();
        let mut registry = Registry::default();
        let process = ControllerManager::new(settings, parts, &mut registry).map(Arc::new);
        self.fixture.add_process(&effects, process.as_ref().ok(), spec.node);
        let metrics = Arc::new(registry);
        *self.metrics.lock() = Arc::clone(&metrics);
        let fixture = Arc::clone(&self.fixture);
        let task = tokio::spawn(async move {
            let run = async |process: Arc<ControllerManager>| {
                let mut left = MAX_STARTS;
                loop {
                    match process.run_while_leading(token.clone(), leadership.clone()).await {
                        // The API server is unavailable, as when Kubernetes compacts the versions of a watch:
                        // kubelet restarts the process.
                        Err(ControllerManagerError::Start(_))
                            if fixture.is_real_time() && left > 0 && !token.is_cancelled() =>
                        {
                            left -= 1;
                            tokio::time::sleep(RESTART_DELAY).await;
                        }
                        ended => break ended,
                    }
                }
            };
            let ended = match process {
                Ok(process) => run(process).await,
                Err(error) => Err(error),
            };
            if let Err(error) = ended {
                fixture.report_violation(format!("a process ended: {error}"));
            }
        });
        RunningProcess { effects, log, metrics, stop, task, terms }
    }

    async fn perform(&self, action: &UserAction) {
        match action {
            UserAction::Settle => self.fixture.settle().await,
            UserAction::Wait(time) => self.fixture.wait(*time).await,
            UserAction::Until(condition) => self.fixture.wait_until(|| self.is_met(*condition)).await,
            UserAction::AwaitPublished(line) => {
                let is_published = || {
                    self.driver.published().iter().any(|(handle, node)| format!("{handle} {node}") == *line)
                };
                self.fixture.await_condition(&format!("{line} is published"), is_published).await;
            }
            UserAction::Repair => self.driver.repair(),
            UserAction::RemoveSnapshots => self.driver.remove_snapshots(),
            UserAction::Create(_)
            | UserAction::CreateAs(..)
            | UserAction::Delete(_)
            | UserAction::Remove(_)
            | UserAction::Patch(..)
            | UserAction::PatchContents(_)
            | UserAction::RepointVolume(..)
            | UserAction::ConfirmNoVolume
            | UserAction::ConfirmCreatedVolume
            | UserAction::Backup
            | UserAction::Restore
            | UserAction::Compact => self.fixture.perform(action).await,
        }
    }

    async fn is_met(&self, condition: WaitFor) -> bool {
        match condition {
            WaitFor::CallsCompleted(times) => self.driver.completed_calls() >= times,
            WaitFor::FaultsApplied(times) => self.fixture.fault_count() >= times,
            WaitFor::Event(event) => self.event_messages(&|name| name.to_owned()).await.contains_key(event),
            WaitFor::Deleted(path) => self.object(path).await.is_none(),
        }
    }

    /// Reads the state of cluster and array, and checks the invariants.
    pub async fn final_state(&self) -> FinalState {
        let claims = self.fixture.list("/api/v1/persistentvolumeclaims").await;
        let volumes = self.fixture.list("/api/v1/persistentvolumes").await;
        let array = self.driver.volumes();
        let owners: BTreeSet<(String, String)> = array
            .iter()
            .filter_map(|(key, volume)| Some((key, volume.request.owner.as_ref()?)))
            .map(|(key, owner)| {
                let node = key.split_once('/').map(|(node, _)| format!(" on {node}"));
                (owner.claim_uid.to_string(), node.unwrap_or_default())
            })
            .collect();
        let mut violations = self.recorded_violations();
        let claim_of = |uid: &str| {
            let claim = claims.iter().find(|claim| text(claim, "/metadata/uid") == uid);
            claim.map_or_else(|| "gone".to_owned(), |claim| text(claim, "/metadata/name").to_owned())
        };
        let alias = |name: &str| match name.strip_prefix("pvc-") {
            Some(uid) => format!("of-{}", claim_of(uid)),
            None => name.to_owned(),
        };
        let snapshots = self.fixture.list(VOLUME_SNAPSHOTS_PATH).await;
        let contents = self.fixture.list(VOLUME_SNAPSHOT_CONTENTS_PATH).await;
        let snapshot_of = |uid: &str| {
            let snapshot = snapshots.iter().find(|snapshot| text(snapshot, "/metadata/uid") == uid);
            snapshot.map_or_else(|| "gone".to_owned(), |found| text(found, "/metadata/name").to_owned())
        };
        let content_alias = |name: &str| match name.strip_prefix("snapcontent-") {
            Some(uid) => format!("of-{}", snapshot_of(uid)),
            None => name.to_owned(),
        };
        violations.extend(snapshot_violations(
            &contents,
            &self.driver.snapshots(),
            &self.driver.pending_snapshots(),
        ));
        violations.extend(volume_violations(&claims, &volumes, &array.keys().cloned().collect(), &alias));
        let attachments = self.fixture.list(VOLUME_ATTACHMENTS_PATH).await;
        let published = self.driver.published();
        violations.extend(attachment_violations(&attachments, &volumes, &published));
        let nodes = self.fixture.list(NODES_PATH).await;
        violations.extend(invariants::stale_volumes_attached(&nodes, &attachments));
        let shown = |object: &Value, of: &str| {
            let line =
                format!("{} {} {of}", alias(text(object, "/metadata/name")), text(object, "/status/phase"));
            line.trim_end().to_owned()
        };
        let event_messages = self.event_messages(&content_alias).await;
        FinalState {
            claims: sorted(claims.iter().map(|claim| {
                let node = text(claim, "/metadata/annotations/volume.kubernetes.io~1selected-node");
                if text(claim, "/status/phase") == "Pending" && !node.is_empty() {
                    return shown(claim, &format!("on {node}"));
                }
                shown(claim, &alias(text(claim, "/spec/volumeName")))
            })),
            volumes: sorted(volumes.iter().map(|volume| {
                shown(
                    volume,
                    &format!("{}{}", text(volume, "/spec/claimRef/name"), affinity_segments(volume)),
                )
            })),
            resizes: sorted(claims.iter().filter_map(|claim| resize_line(claim, &volumes))),
            attachments: sorted(attachments.iter().map(attachment_line)),
            volumes_attached: sorted(nodes.iter().filter_map(invariants::volumes_attached_line)),
            startup_taints: sorted(
                nodes
                    .iter()
                    .filter(|node| has_startup_taint(node))
                    .map(|node| text(node, "/metadata/name").to_owned()),
            ),
            published: sorted(published.iter().map(|(handle, node)| format!("{handle} {node}"))),
            array_owners: sorted(owners.iter().map(|(uid, node)| format!("{}{node}", claim_of(uid)))),
            snapshots: sorted(snapshots.iter().map(|snapshot| {
                let content = text(snapshot, "/status/boundVolumeSnapshotContentName");
                let ready = if is_ready(snapshot) { " ready" } else { "" };
                let line = format!("{} {}{ready}", text(snapshot, "/metadata/name"), content_alias(content));
                line.trim_end().to_owned()
            })),
            snapshot_contents: sorted(contents.iter().map(|content| {
                let ready = if is_ready(content) { " ready" } else { "" };
                let name = content_alias(text(content, "/metadata/name"));
                let node = text(content, &managing_node_pointer());
                let node = if node.is_empty() { String::new() } else { format!(" on {node}") };
                format!("{name} {}{ready}{node}", text(content, "/spec/volumeSnapshotRef/name"))
            })),
            array_snapshots: sorted(self.driver.snapshots().keys().map(|key| {
                let (node, name) = split_key(key);
                let snapshot = snapshot_of(name.strip_prefix("snapshot-").unwrap_or_default());
                format!("{snapshot}{}", node.map(|node| format!(" on {node}")).unwrap_or_default())
            })),
            intents: self.intents().await,
            events: event_messages.keys().cloned().collect(),
            event_messages,
            calls: self
                .driver
                .calls()
                .iter()
                .map(|call| replace_uid(call, &claim_of, &snapshot_of))
                .collect(),
            unused_faults: self
                .fixture
                .unused_api_faults()
                .iter()
                .map(|fault| format!("{fault:?}"))
                .collect(),
            violations,
            remaining_work: Vec::new(),
        }
    }

    /// Violations so far of invariants that are checked during a run.
    fn recorded_violations(&self) -> Vec<String> {
        let denied = self.process_specs.iter().flat_map(|spec| spec.rbac.denied());
        let denied = denied.map(|request| format!("forbidden: {request}"));
        self.fixture.violations().into_iter().chain(self.driver.violations()).chain(denied).collect()
    }

    async fn intents(&self) -> usize {
        let shards = self.fixture.journal_shards().await;
        shards.iter().filter_map(|map| map.get("data")?.as_object()).map(serde_json::Map::len).sum()
    }

    /// A message of every event, by `object type reason`.
    async fn event_messages(
        &self,
        content_alias: &(dyn Fn(&str) -> String + Sync),
    ) -> BTreeMap<String, String> {
        let events = self.fixture.list("/api/v1/events").await;
        let line = |event: &Value| {
            let name = content_alias(text(event, "/involvedObject/name"));
            let name = if name.starts_with("pvc-") { "volume".to_owned() } else { name };
            format!("{name} {} {}", text(event, "/type"), text(event, "/reason"))
        };
        events.iter().map(|event| (line(event), text(event, "/message").to_owned())).collect()
    }
}

/// Metrics in the Prometheus text format.
fn encode_metrics(registry: &Registry) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = prometheus_client::encoding::text::encode(&mut text, registry);
    text
}

/// Returns true if a requirement of a volume's node affinity has this node as its first value, whatever its
/// key.
fn is_reachable_from(volume: &Value, node: &str) -> bool {
    affinity_segments(volume)
        .split([' ', ','])
        .any(|pair| pair.split_once('=').is_some_and(|(_, value)| value == node))
}

/// The topology in a volume's node affinity: ` key=value,…` for each term, with the first value of each
/// requirement. Empty without node affinity.
fn affinity_segments(volume: &Value) -> String {
    let list = |object: &Value, pointer: &str| -> Vec<Value> {
        object.pointer(pointer).and_then(Value::as_array).cloned().unwrap_or_default()
    };
    let terms = list(volume, "/spec/nodeAffinity/required/nodeSelectorTerms");
    let term_text = |term: &Value| {
        let pair = |one: &Value| format!("{}={}", text(one, "/key"), text(one, "/values/0"));
        format!(" {}", list(term, "/matchExpressions").iter().map(pair).collect::<Vec<_>>().join(","))
    };
    terms.iter().map(term_text).collect()
}

/// A call with the names of claims and VolumeSnapshots in place of the names that contain their uids.
fn replace_uid(
    call: &str,
    claim_of: &dyn Fn(&str) -> String,
    snapshot_of: &dyn Fn(&str) -> String,
) -> String {
    let words = call.split(' ').map(|word| {
        let name = word.strip_prefix("handle-").unwrap_or(word);
        match (name.strip_prefix("pvc-"), name.strip_prefix("snapshot-")) {
            (Some(uid), _) => claim_of(uid),
            (None, Some(uid)) => format!("snapshot-{}", snapshot_of(uid)),
            (None, None) => word.to_owned(),
        }
    });
    words.collect::<Vec<_>>().join(" ")
}

fn sorted(lines: impl Iterator<Item = String>) -> Vec<String> {
    let mut lines: Vec<String> = lines.collect();
    lines.sort();
    lines
}

/// Returns true if `status.readyToUse` is true.
fn is_ready(object: &Value) -> bool {
    object.pointer("/status/readyToUse").and_then(Value::as_bool) == Some(true)
}

/// Splits a key of the array into the node, if the driver is node-local, and the name.
fn split_key(key: &str) -> (Option<&str>, &str) {
    key.split_once('/').map_or((None, key), |(node, name)| (Some(node), name))
}

/// Snapshots of the array that no VolumeSnapshotContent refers to, or that may still be created, and contents
/// whose snapshot is lost. A snapshot with the deletion policy Retain outlives its content.
fn snapshot_violations(
    contents: &[Value],
    array: &BTreeMap<String, ArraySnapshot>,
    pending: &BTreeSet<String>,
) -> Vec<String> {
    let handles: BTreeSet<&str> =
        contents.iter().map(|content| text(content, "/status/snapshotHandle")).collect();
    let is_retained = |name: &String| {
        let owner = array.get(name).and_then(|snapshot| snapshot.request.owner.as_ref());
        owner.is_some_and(|owner| owner.retain)
    };
    let possible: BTreeSet<&String> = array.keys().chain(pending).filter(|name| !is_retained(name)).collect();
    let names: BTreeSet<&str> = handles.iter().map(|handle| snapshot_name(handle)).collect();
    let has_content = |key: &String| match array.get(key) {
        Some(snapshot) => handles.contains(snapshot.handle.as_str()),
        None => names.contains(split_key(key).1),
    };
    let leaked = possible.into_iter().filter(|key| !has_content(key));
    let leaked = leaked.map(|key| format!("leaked: {key} has no VolumeSnapshotContent"));
    let stored: BTreeSet<&str> = array.values().map(|snapshot| snapshot.handle.as_str()).collect();
    let is_lost = |handle: &&&str| handle.starts_with("handle-") && !stored.contains(**handle);
    let lost = handles.iter().filter(is_lost).map(|handle| format!("lost: {handle} does not exist"));
    leaked.chain(lost).collect()
}

/// Returns true if a node has the start-up taint of the scenarios' driver.
fn has_startup_taint(node: &Value) -> bool {
    let key = startup_taint(&DRIVER.into());
    list_at(node, "/spec/taints").iter().any(|taint| text(taint, "/key") == key)
}

/// The line of [`FinalState::resizes`] for one claim.
fn resize_line(claim: &Value, volumes: &[Value]) -> Option<String> {
    let name = text(claim, "/spec/volumeName");
    let volume = volumes.iter().find(|volume| text(volume, "/metadata/name") == name).unwrap_or(&Value::Null);
    let mut line = String::new();
    let mut append = |what: &str, text: &str| {
        if !text.is_empty() {
            line.push_str(&format!(" {what}{text}"));
        }
    };
    append("allocated=", text(claim, "/status/allocatedResources/storage"));
    append("", text(claim, "/status/allocatedResourceStatuses/storage"));
    let conditions = claim.pointer("/status/conditions").and_then(Value::as_array);
    let kinds = sorted(conditions.into_iter().flatten().map(|condition| text(condition, "/type").to_owned()));
    append("", &kinds.join(" "));
    let required = text(claim, "/metadata/annotations/volume.kubernetes.io~1node-expansion-not-required");
    append("", if required == "true" { "no-node" } else { "" });
    append("was=", text(volume, "/metadata/annotations/volume.alpha.kubernetes.io~1pre-resize-capacity"));
    let class = text(claim, "/status/currentVolumeAttributesClassName");
    let of_volume = text(volume, "/spec/volumeAttributesClassName");
    let classes = format!("{class}/{of_volume}");
    append("class=", if classes == "/" { "" } else { &classes });
    let target = text(claim, "/status/modifyVolumeStatus/targetVolumeAttributesClassName");
    append("target=", target);
    append("", text(claim, "/status/modifyVolumeStatus/status"));
    let sizes =
        format!("{}/{}", text(claim, "/status/capacity/storage"), text(volume, "/spec/capacity/storage"));
    (!line.is_empty()).then(|| format!("{} {sizes}{line}", text(claim, "/metadata/name")))
}

fn attachment_line(attachment: &Value) -> String {
    let attached = attachment.pointer("/status/attached").and_then(Value::as_bool) == Some(true);
    let mut line = invariants::display_name(attachment);
    line.push_str(if attached { " attached" } else { " detached" });
    let connection = text(attachment, "/status/attachmentMetadata/cofferdam.dev~1connection-info");
    if let Ok(connection) = serde_json::from_str::<Value>(connection) {
        line.push_str(&format!(" {}", text(&connection, "/kind")));
    }
    if let Some(error) = attachment.pointer("/status/attachError") {
        let code = error.get("errorCode").map(|code| format!(" {code}")).unwrap_or_default();
        line.push_str(&format!(" attachError{code}"));
    }
    if attachment.pointer("/status/detachError").is_some() {
        line.push_str(" detachError");
    }
    line
}

/// A violation for each publication without a VolumeAttachment, and for each VolumeAttachment with connection
/// info whose volume is not published to its node.
pub fn attachment_violations(
    attachments: &[Value],
    volumes: &[Value],
    published: &[(String, String)],
) -> Vec<String> {
    let publication = |attachment: &Value| {
        let name = text(attachment, "/spec/source/persistentVolumeName");
        let volume = volumes.iter().find(|volume| text(volume, "/metadata/name") == name);
        let handle = volume.map_or("", |volume| text(volume, "/spec/csi/volumeHandle"));
        let node = text(attachment, "/metadata/annotations/csi.alpha.kubernetes.io~1node-id");
        (handle.to_owned(), node.to_owned())
    };
    let requested: BTreeSet<_> = attachments.iter().map(publication).collect();
    let unrequested = published.iter().filter(|publication| !requested.contains(*publication));
    let mut violations: Vec<String> = unrequested
        .map(|(handle, node)| {
            format!("unrequested: {handle} is published to {node} without a VolumeAttachment")
        })
        .collect();
    for attachment in attachments {
        // A driver without ControllerPublishVolume sets no attachment metadata.
        let attached =
            !text(attachment, "/status/attachmentMetadata/cofferdam.dev~1connection-info").is_empty();
        if attached && !published.contains(&publication(attachment)) {
            violations.push(format!("not published: {} says attached", text(attachment, "/metadata/name")));
        }
    }
    violations
}

/// Violations once all processes are idle:
/// - volumes of the array without a PersistentVolume, and without a claim if the driver is not node-local;
/// - PersistentVolumes of the driver's create calls whose volume is not in the array;
/// - Bound claims whose PersistentVolume does not exist or is not bound to them.
pub fn volume_violations(
    claims: &[Value],
    volumes: &[Value],
    array: &BTreeSet<String>,
    alias: &dyn Fn(&str) -> String,
) -> Vec<String> {
    let mut violations = Vec::new();
    for key in array {
        let (node, name) =
            key.split_once('/').map_or((None, key.as_str()), |(node, name)| (Some(node), name));
        let has_object = volumes.iter().any(|volume| {
            text(volume, "/spec/csi/volumeHandle") == format!("handle-{name}")
                && node.is_none_or(|node| is_reachable_from(volume, node))
        });
        // A node-local volume without a PersistentVolume is a leak: its claim may have a volume on another
        // node.
        let has_claim =
            node.is_none() && claims.iter().any(|claim| name.ends_with(text(claim, "/metadata/uid")));
        if !has_object && !has_claim {
            let on = node.map(|node| format!(" on {node}")).unwrap_or_default();
            violations
                .push(format!("leaked: {}{on} has neither a PersistentVolume nor a claim", alias(name)));
        }
    }
    for volume in volumes {
        if let Some(name) = text(volume, "/spec/csi/volumeHandle").strip_prefix("handle-")
            && !array.contains(name)
            && !array.iter().any(|key| {
                key.split_once('/').is_some_and(|(node, of)| of == name && is_reachable_from(volume, node))
            })
        {
            violations.push(format!(
                "lost: PersistentVolume {} has no volume",
                alias(text(volume, "/metadata/name"))
            ));
        }
    }
    for claim in claims.iter().filter(|claim| text(claim, "/status/phase") == "Bound") {
        let name = text(claim, "/spec/volumeName");
        let volume = volumes.iter().find(|volume| text(volume, "/metadata/name") == name);
        if volume.map(|volume| text(volume, "/spec/claimRef/uid")) != Some(text(claim, "/metadata/uid")) {
            violations.push(format!("broken: claim {} is Bound to {name}", text(claim, "/metadata/name")));
        }
    }
    violations
}

/// Returns a reader of the requests that the intent journals contain now.
fn journal_reader(fixture: Arc<SimulationFixture>) -> JournalReader {
    Arc::new(move || {
        let fixture = Arc::clone(&fixture);
        Box::pin(async move {
            let shards = fixture.journal_shards().await;
            let data = shards.iter().filter_map(|map| map.get("data")?.as_object());
            let intents = data.flat_map(serde_json::Map::values).filter_map(Value::as_str);
            let intents = intents.filter_map(|json| serde_json::from_str::<Intent>(json).ok());
            intents
                .flat_map(|intent| [Some(intent.request), intent.mended.map(|mended| mended.request)])
                .flatten()
                .collect()
        })
    })
}

/// Returns the handler of user actions during a driver call. The user is not a part of the process that makes
/// the call: the action is a task of its own, which completes even if the process crashes. The returned
/// future waits until the processes have seen the action.
fn user_action_handler(fixture: Arc<SimulationFixture>) -> UserActionHandler {
    Arc::new(move |action| {
        let fixture = Arc::clone(&fixture);
        let user = Arc::clone(&fixture);
        let task = tokio::spawn(async move { user.perform(&action).await });
        Box::pin(async move {
            if let Err(error) = task.await {
                panic::resume_unwind(error.into_panic());
            }
            fixture.wait_for_watches().await;
        })
    })
}

#[cfg(test)]
mod tests {
    use cofferdam_domain::storage::ErrorKind;

    use super::*;
    use crate::{
        objects::{claim, class},
        remaining_work::WorkKind,
    };

    /// The kinds of the work that new processes find, each once, in the order of [`WorkKind`].
    async fn kinds_of_remaining_work(simulation: &Simulation) -> Vec<WorkKind> {
        let found = simulation.remaining_work().await;
        found.iter().map(|work| work.kind).collect::<BTreeSet<_>>().into_iter().collect()
    }

    #[tokio::test(start_paused = true)]
    async fn new_processes_find_missed_work_once() {
        let simulation = Simulation::new(&Role::ALL, Vec::new(), Vec::new());
        for object in [class("gold"), claim("a", "gold")] {
            simulation.fixture.perform(&UserAction::Create(object)).await;
        }
        let found = simulation.remaining_work().await;
        let has = |kind, text: &str| {
            found.iter().any(|work| work.kind == kind && work.description.starts_with(text))
        };
        assert!(has(WorkKind::Call, "create pvc-"), "{found:#?}");
        assert!(has(WorkKind::Write, "create /persistentvolumes /pvc-"), "{found:#?}");
        assert!(has(WorkKind::Write, "patch /persistentvolumeclaims default/a "), "{found:#?}");
        assert_eq!(simulation.remaining_work().await, Vec::new());
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_always_fails_remains() {
        let faults = vec![DriverFault::Refuse(ErrorKind::Internal); 1000];
        let simulation = Simulation::new(&Role::ALL, faults, Vec::new());
        for object in [class("gold"), claim("a", "gold")] {
            simulation.fixture.perform(&UserAction::Create(object)).await;
        }
        simulation.remaining_work().await;
        assert_eq!(
            kinds_of_remaining_work(&simulation).await,
            [WorkKind::Write, WorkKind::Call, WorkKind::Retry]
        );
    }

    /// The process that makes the call may crash before the user's request is sent.
    #[tokio::test(start_paused = true)]
    async fn a_user_action_outlives_the_call_during_which_it_starts() {
        let simulation = Simulation::new(&[], Vec::new(), Vec::new());
        drop(user_action_handler(Arc::clone(&simulation.fixture))(UserAction::Create(class("c"))));
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(simulation.fixture.list("/apis/storage.k8s.io/v1/storageclasses").await.len(), 1);
    }
}
