//! One run of a scenario: a cluster, an array, a user, and a process that may be killed.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use cofferdam_backend::Backend;
use cofferdam_controllers::{
    NodeDeployment, Parts, Process, ProcessError, Role, Settings, Silent,
    rbac::{self, Drivers, Whereabouts},
};
use futures::future::BoxFuture;
use http::Method;
use prometheus_client::registry::Registry;
use serde_json::Value;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tower::BoxError;

use crate::{
    driver::{Clock, Fault, Listing, Places, Publishing, Resizing, ScriptedDriver},
    effects::{ApiFault, Effect, Effects, MortalApi, Rbac},
    ground::{Ground, InProcess, Who},
    judge,
    objects::DRIVER,
    world::{ATTACHMENTS, NODES, World, call, text},
};

/// Pause between two scans for orphans, where the driver lists its volumes.
const SCAN: Duration = Duration::from_secs(3600);
/// On real time: pause before a process that could not begin is started again.
const AGAIN: Duration = Duration::from_millis(200);
/// How often; a process that does not begin then never does, and the scenario says why.
const STARTS: usize = 100;
/// How long a process has to end when it is told to.
const STOP: Duration = Duration::from_secs(60);

/// Something that a user or an operator does.
#[derive(Clone, Debug, PartialEq)]
pub enum UserAction {
    /// Creates an object.
    Create(Value),
    /// Deletes the object at this path.
    Delete(&'static str),
    /// Merge-patches the object at this path.
    Patch(&'static str, Value),
    /// Remembers the state of the cluster.
    Backup,
    /// Puts the cluster back to the remembered state.
    Restore,
    /// Makes every watch fall behind: its version is too old.
    Compact,
    /// Waits until nothing happens any more.
    Settle,
    /// Waits this long.
    Wait(Duration),
    /// Waits until there is this sign, or until nothing happens any more without it.
    Until(Sign),
}

/// Something to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    /// The driver was called so often, and has answered.
    Called(usize),
    /// There is this event, as [`Outcome::events`] shows it.
    Event(&'static str),
    /// The object at this path is gone.
    Gone(&'static str),
}

/// What is there at the end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// `name phase volume` of every claim, sorted; one that is Pending with the node that was chosen, `name Pending on node`.
    pub claims: Vec<String>,
    /// `name phase claim` of every volume, sorted; provisioned ones by the name of their claim, and what is not reachable from
    /// everywhere with its places, `name phase claim key=value`.
    pub volumes: Vec<String>,
    /// What claims and their volumes say of growing and modifying, of those that say anything; sorted. `name 1Gi/2Gi` are their sizes;
    /// then come `allocated=2Gi`, the state, the conditions, `no-node`, `was=1Gi`, `class=a/b` and `target=b` with its state.
    pub resizes: Vec<String>,
    /// `name attached kind` or `name detached` of every attachment, with `attachError CODE` and `detachError` where there are such;
    /// sorted.
    pub attachments: Vec<String>,
    /// `handles on node` of every node that is told of attached volumes, sorted.
    pub told: Vec<String>,
    /// `handle node` of what the array has published, sorted.
    pub published: Vec<String>,
    /// Names of the array's volumes' owners: claims by name, sorted.
    pub array: Vec<String>,
    /// Intents that are still written down.
    pub intents: usize,
    /// `object type reason` of every event, sorted, each once.
    pub events: Vec<String>,
    /// Calls that reached the driver, with claims' names.
    pub calls: Vec<String>,
    /// What was to go wrong with writes, and did not, for nobody has asked for them.
    pub unused: Vec<String>,
    /// What must never be: leaks, losses, breaches of the contract with drivers.
    pub faults: Vec<String>,
}

/// The world of a scenario.
pub struct Simulation {
    world: Arc<World>,
    driver: ScriptedDriver,
    clock: Clock,
    /// Of the process that started last.
    metrics: Mutex<Registry>,
    teams: Vec<Team>,
    scans: bool,
    starts: AtomicU64,
}

/// The roles of one process, and what they may do.
struct Team {
    roles: BTreeSet<Role>,
    drivers: Drivers,
    rbac: Arc<Rbac>,
    /// The node that it is on, where the driver's storage is in nodes.
    node: Option<&'static str>,
    /// Whether it has the driver.
    drives: bool,
}

impl Team {
    fn new(roles: BTreeSet<Role>, drivers: Drivers) -> Self {
        let rbac = Rbac::new(rbac::rules(&roles, drivers), Settings::default().namespace);
        Self { roles, drivers, rbac, node: None, drives: true }
    }

    /// The provisioner and the resizer of one node.
    fn on_node(node: &'static str, whereabouts: Whereabouts) -> Self {
        let drivers = Drivers::OfNode(whereabouts);
        Self { node: Some(node), ..Self::new([Role::Provisioner, Role::Resizer].into(), drivers) }
    }

    /// A process for each role.
    fn split(self) -> Vec<Self> {
        let Self { roles, drivers, node, drives, .. } = self;
        roles.into_iter().map(|role| Self { node, drives, ..Self::new([role].into(), drivers) }).collect()
    }
}

/// What one process used of its rules.
#[derive(Clone, Debug)]
pub struct UsedRules {
    /// Its roles.
    pub roles: BTreeSet<Role>,
    /// Where its drivers' storage is.
    pub drivers: Drivers,
    /// What it used, as `verb group/resource`.
    pub used: BTreeSet<String>,
}

struct Running {
    effects: Arc<Effects>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Simulation {
    /// A fresh cluster in this process, on paused time, and an array. Create and delete calls meet these faults, one each, in this
    /// order.
    pub fn new(roles: &[Role], create_faults: Vec<Fault>, delete_faults: Vec<Fault>) -> Self {
        let ground = InProcess::new();
        let user = ground.api();
        Self::with(World::new(Arc::new(ground), user), roles, create_faults, delete_faults)
    }

    /// The same on another ground, which has to be as fresh.
    ///
    /// # Errors
    /// When the ground lets nobody in.
    pub fn on(
        ground: Arc<dyn Ground>,
        roles: &[Role],
        create_faults: Vec<Fault>,
        delete_faults: Vec<Fault>,
    ) -> Result<Self, BoxError> {
        let user = ground.connect(Who::User)?;
        Ok(Self::with(World::new(ground, user), roles, create_faults, delete_faults))
    }

    fn with(world: Arc<World>, roles: &[Role], create_faults: Vec<Fault>, delete_faults: Vec<Fault>) -> Self {
        let clock = world.ground.clock();
        let user = Arc::clone(&world);
        let users = Arc::new(move |action: UserAction| -> BoxFuture<'static, ()> {
            let world = Arc::clone(&user);
            Box::pin(async move {
                world.act(&action).await;
                world.told().await;
            })
        });
        Self {
            driver: ScriptedDriver::new(create_faults, delete_faults, users, Arc::clone(&clock)),
            clock,
            metrics: Mutex::default(),
            world,
            teams: vec![Team::new(roles.iter().copied().collect(), Drivers::Anywhere)],
            scans: false,
            starts: AtomicU64::new(0),
        }
    }

    /// Makes the driver list its volumes, and the processes look for orphans among them.
    #[must_use]
    pub fn listing(self, listing: Listing, faults: Vec<Fault>) -> Self {
        self.driver.lists(listing, faults);
        self.scanning()
    }

    /// Says what the driver does when it publishes; `told`: it lists where its volumes are published.
    #[must_use]
    pub fn publishing(self, publishing: Publishing, told: bool) -> Self {
        self.driver.publishes(publishing);
        if told {
            self.driver.lists(Listing { nodes: true, ..Listing::default() }, Vec::new());
        }
        self
    }

    /// Says what the driver does when it grows and modifies volumes.
    #[must_use]
    pub fn resizing(self, resizing: Resizing) -> Self {
        self.driver.resizes(resizing);
        self
    }

    /// Says where the driver's volumes can be.
    #[must_use]
    pub fn places(self, places: Places) -> Self {
        self.driver.places(places);
        self
    }

    /// Says what goes wrong with writes of the processes, one each.
    #[must_use]
    pub fn misfortune(self, faults: Vec<ApiFault>) -> Self {
        self.world.misfortune(faults);
        self
    }

    /// Makes the processes look for orphans, also where the driver lists nothing.
    #[must_use]
    pub fn scanning(self) -> Self {
        Self { scans: true, ..self }
    }

    /// Gives each role a process of its own, as a cluster does that runs them in several pods. The first one is who may die.
    #[must_use]
    pub fn apart(self) -> Self {
        Self { teams: self.teams.into_iter().flat_map(Team::split).collect(), ..self }
    }

    /// Puts the driver's storage into nodes: each has a process that provisions and grows for it, and one more process has the roles that need no
    /// driver. The first node's is who may die.
    #[must_use]
    pub fn on_nodes(self, nodes: &[&'static str]) -> Self {
        if nodes.is_empty() {
            return self;
        }
        let rest = Team::new([Role::PvController, Role::Protection].into(), Drivers::Anywhere);
        let teams = nodes.iter().map(|node| Team::on_node(node, self.driver.whereabouts()));
        Self { teams: teams.chain([Team { drives: false, ..rest }]).collect(), ..self }
    }

    /// Lets another process be who may die: the one that comes so many after the first.
    #[must_use]
    pub fn mortal(mut self, number: usize) -> Self {
        let teams = self.teams.len().max(1);
        self.teams.rotate_left(number % teams);
        self
    }

    /// The array.
    pub fn array(&self) -> &ScriptedDriver {
        &self.driver
    }

    /// What each process used of the rules of its roles.
    pub fn used_rules(&self) -> Vec<UsedRules> {
        let used = |team: &Team| UsedRules {
            roles: team.roles.clone(),
            drivers: team.drivers,
            used: team.rbac.used(),
        };
        self.teams.iter().map(used).collect()
    }

    /// Now, in the world of the simulation.
    pub fn now(&self) -> jiff::Timestamp {
        (self.clock)()
    }

    /// The object at a path; absent where there is none.
    pub async fn object(&self, path: &str) -> Option<Value> {
        let (status, object) = call(&self.world.user, Method::GET, path, "", &Value::Null).await.ok()?;
        status.is_success().then_some(object)
    }

    /// What a scrape of the process that started last shows.
    pub fn metrics(&self) -> String {
        let mut text = String::new();
        let registry = self.metrics.lock().unwrap_or_else(PoisonError::into_inner);
        // Writing to a string cannot fail.
        let _ = prometheus_client::encoding::text::encode(&mut text, &registry);
        text
    }

    /// Plays a scenario. A process that is to die after its `n`-th effect does, and another takes its place.
    pub async fn play(&self, actions: &[UserAction], die_after: Option<usize>) -> (Outcome, Vec<Effect>) {
        let (Some(mortal), others) = (self.teams.first(), self.teams.get(1..).unwrap_or_default()) else {
            return (Outcome::default(), Vec::new());
        };
        let others: Vec<Running> = others.iter().map(|team| self.start(team, None)).collect();
        let first = self.start(mortal, die_after);
        let effects = Arc::clone(&first.effects);
        let running = Arc::new(tokio::sync::Mutex::new(first));
        let undertaker = async {
            effects.death().await;
            let mut running = running.lock().await;
            running.task.abort();
            let next = self.start(mortal, None);
            self.world.bury(&running.effects);
            *running = next;
            // One death is enough: the next process lives to the end.
            std::future::pending::<()>().await;
        };
        let script = async {
            for action in actions {
                self.user(action).await;
            }
            self.world.settle().await;
        };
        tokio::select! {
            () = script => {}
            () = undertaker => {}
        }
        let mut all: Vec<Running> =
            others.into_iter().chain(Arc::into_inner(running).map(tokio::sync::Mutex::into_inner)).collect();
        all.iter().for_each(|running| running.stop.cancel());
        let ended = futures::future::join_all(all.iter_mut().map(|running| &mut running.task));
        if tokio::time::timeout(STOP, ended).await.is_err() {
            self.world.fault(format!("a process has not ended within {STOP:?}"));
        }
        for running in all {
            running.effects.kill();
            running.task.abort();
            self.world.bury(&running.effects);
        }
        (self.outcome().await, effects.log())
    }

    fn start(&self, team: &Team, die_after: Option<usize>) -> Running {
        let effects = Effects::new(die_after);
        let api = self.world.ground.connect(Who::Process).unwrap_or_else(|error| {
            self.world.fault(format!("a process has no client: {error}"));
            self.world.user.clone()
        });
        let (world, rbac) = (Arc::clone(&self.world), Arc::clone(&team.rbac));
        let api = MortalApi { api, effects: Arc::clone(&effects), rbac, world };
        let client = kube::Client::new(api, "default");
        let backend = || self.driver.for_process(DRIVER, team.node, Arc::clone(&effects));
        let backends: Vec<Arc<dyn Backend>> = team.drives.then(backend).into_iter().collect();
        let start = self.starts.fetch_add(1, Ordering::Relaxed);
        let defaults = Settings::default();
        let settings = Settings {
            retry_interval_max: self.world.longest_retry().unwrap_or(defaults.retry_interval_max),
            roles: team.roles.clone(),
            identity: format!("process-{start}"),
            orphan_scan_interval: self.scans.then_some(SCAN),
            node: team.node.map(|node| NodeDeployment {
                every_driver: team.drivers == Drivers::OfNode(Whereabouts::CsiNode),
                ..self.world.hurried(NodeDeployment::of(node.into()))
            }),
            ..defaults
        };
        let clock = Arc::clone(&self.clock);
        let parts = Parts { client, backends, clock, observer: Arc::new(Silent) };
        let stop = CancellationToken::new();
        let token = stop.clone();
        let mut registry = Registry::default();
        let process = Process::new(settings, parts, &mut registry).map(Arc::new);
        self.world.born(&effects, process.as_ref().ok(), team.node);
        *self.metrics.lock().unwrap_or_else(PoisonError::into_inner) = registry;
        let world = Arc::clone(&self.world);
        let task = tokio::spawn(async move {
            let run = async |process: Arc<Process>| {
                let mut left = STARTS;
                loop {
                    match process.run(token.clone()).await {
                        // The API is not there, as when a watch's versions are compacted on Kubernetes: kubelet starts it again.
                        Err(ProcessError::Start(_))
                            if world.is_real() && left > 0 && !token.is_cancelled() =>
                        {
                            left -= 1;
                            tokio::time::sleep(AGAIN).await;
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
                world.fault(format!("a process ended: {error}"));
            }
        });
        Running { effects, stop, task }
    }

    async fn user(&self, action: &UserAction) {
        match action {
            UserAction::Settle => self.world.settle().await,
            UserAction::Wait(time) => tokio::time::sleep(*time).await,
            UserAction::Until(sign) => self.world.until(|| self.is_there(*sign)).await,
            UserAction::Create(_)
            | UserAction::Delete(_)
            | UserAction::Patch(..)
            | UserAction::Backup
            | UserAction::Restore
            | UserAction::Compact => self.world.act(action).await,
        }
    }

    async fn is_there(&self, sign: Sign) -> bool {
        match sign {
            Sign::Called(times) => self.driver.answered() >= times,
            Sign::Event(event) => self.events().await.iter().any(|line| line == event),
            Sign::Gone(path) => self.object(path).await.is_none(),
        }
    }

    /// Looks at everything.
    pub async fn outcome(&self) -> Outcome {
        let claims = self.world.list("/api/v1/persistentvolumeclaims").await;
        let volumes = self.world.list("/api/v1/persistentvolumes").await;
        let array = self.driver.volumes();
        let held: BTreeSet<(String, String)> = array
            .iter()
            .filter_map(|(key, volume)| Some((key, volume.request.owner.as_ref()?)))
            .map(|(key, owner)| {
                let node = key.split_once('/').map(|(node, _)| format!(" on {node}"));
                (owner.claim.to_string(), node.unwrap_or_default())
            })
            .collect();
        let mut faults = self.world.faults();
        faults.extend(self.driver.violations());
        faults.extend(
            self.teams
                .iter()
                .flat_map(|team| team.rbac.refused())
                .map(|request| format!("forbidden: {request}")),
        );
        let claim_of = |uid: &str| {
            let claim = claims.iter().find(|claim| text(claim, "/metadata/uid") == uid);
            claim.map_or_else(|| "gone".to_owned(), |claim| text(claim, "/metadata/name").to_owned())
        };
        let alias = |name: &str| match name.strip_prefix("pvc-") {
            Some(uid) => format!("of-{}", claim_of(uid)),
            None => name.to_owned(),
        };
        faults.extend(leaks(&claims, &volumes, &array.keys().cloned().collect(), &alias));
        let attachments = self.world.list(ATTACHMENTS).await;
        let published = self.driver.published();
        faults.extend(astray(&attachments, &volumes, &published));
        let nodes = self.world.list(NODES).await;
        faults.extend(judge::told_too_much(&nodes, &attachments));
        let shown = |object: &Value, of: &str| {
            let line =
                format!("{} {} {of}", alias(text(object, "/metadata/name")), text(object, "/status/phase"));
            line.trim_end().to_owned()
        };
        Outcome {
            claims: sorted(claims.iter().map(|claim| {
                let node = text(claim, "/metadata/annotations/volume.kubernetes.io~1selected-node");
                if text(claim, "/status/phase") == "Pending" && !node.is_empty() {
                    return shown(claim, &format!("on {node}"));
                }
                shown(claim, &alias(text(claim, "/spec/volumeName")))
            })),
            volumes: sorted(volumes.iter().map(|volume| {
                shown(volume, &format!("{}{}", text(volume, "/spec/claimRef/name"), places(volume)))
            })),
            resizes: sorted(claims.iter().filter_map(|claim| resize_line(claim, &volumes))),
            attachments: sorted(attachments.iter().map(attachment_line)),
            told: sorted(nodes.iter().filter_map(judge::told_line)),
            published: sorted(published.iter().map(|(handle, node)| format!("{handle} {node}"))),
            array: sorted(held.iter().map(|(uid, node)| format!("{}{node}", claim_of(uid)))),
            intents: self.intents().await,
            events: self.events().await,
            calls: self.driver.calls().iter().map(|call| rename(call, &claim_of)).collect(),
            unused: self.world.mishaps_left().iter().map(|fault| format!("{fault:?}")).collect(),
            faults,
        }
    }

    async fn intents(&self) -> usize {
        let maps = self.world.list("/api/v1/namespaces/default/configmaps").await;
        let pages = maps.iter().filter(|map| text(map, "/metadata/name").starts_with("cofferdam-intents-"));
        pages.filter_map(|map| map.get("data")?.as_object()).map(serde_json::Map::len).sum()
    }

    async fn events(&self) -> Vec<String> {
        let events = self.world.list("/api/v1/events").await;
        let line = |event: &Value| {
            let name = text(event, "/involvedObject/name");
            let name = if name.starts_with("pvc-") { "volume" } else { name };
            format!("{name} {} {}", text(event, "/type"), text(event, "/reason"))
        };
        let lines: BTreeSet<String> = events.iter().map(line).collect();
        lines.into_iter().collect()
    }
}

/// Whether a volume's affinity names this node.
fn is_on(volume: &Value, node: &str) -> bool {
    places(volume).split([' ', ',']).any(|pair| pair.split_once('=').is_some_and(|(_, value)| value == node))
}

/// Where a volume is reachable from, as its affinity says.
fn places(volume: &Value) -> String {
    let list = |object: &Value, pointer: &str| -> Vec<Value> {
        object.pointer(pointer).and_then(Value::as_array).cloned().unwrap_or_default()
    };
    let terms = list(volume, "/spec/nodeAffinity/required/nodeSelectorTerms");
    let place = |term: &Value| {
        let pair = |one: &Value| format!("{}={}", text(one, "/key"), text(one, "/values/0"));
        format!(" {}", list(term, "/matchExpressions").iter().map(pair).collect::<Vec<_>>().join(","))
    };
    terms.iter().map(place).collect()
}

fn rename(call: &str, claim_of: &dyn Fn(&str) -> String) -> String {
    match call.split_once("pvc-") {
        Some((verb, rest)) => {
            let (uid, places) = rest.split_at(rest.find(' ').unwrap_or(rest.len()));
            format!("{} {}{places}", verb.trim_end_matches("handle-").trim(), claim_of(uid))
        }
        None => call.to_owned(),
    }
}

fn sorted(lines: impl Iterator<Item = String>) -> Vec<String> {
    let mut lines: Vec<String> = lines.collect();
    lines.sort();
    lines
}

/// What a claim and its volume say of growing and modifying.
fn resize_line(claim: &Value, volumes: &[Value]) -> Option<String> {
    let name = text(claim, "/spec/volumeName");
    let volume = volumes.iter().find(|volume| text(volume, "/metadata/name") == name).unwrap_or(&Value::Null);
    let mut said = String::new();
    let mut say = |what: &str, text: &str| {
        if !text.is_empty() {
            said.push_str(&format!(" {what}{text}"));
        }
    };
    say("allocated=", text(claim, "/status/allocatedResources/storage"));
    say("", text(claim, "/status/allocatedResourceStatuses/storage"));
    let conditions = claim.pointer("/status/conditions").and_then(Value::as_array);
    let kinds = sorted(conditions.into_iter().flatten().map(|condition| text(condition, "/type").to_owned()));
    say("", &kinds.join(" "));
    let required = text(claim, "/metadata/annotations/volume.kubernetes.io~1node-expansion-not-required");
    say("", if required == "true" { "no-node" } else { "" });
    say("was=", text(volume, "/metadata/annotations/volume.alpha.kubernetes.io~1pre-resize-capacity"));
    let class = text(claim, "/status/currentVolumeAttributesClassName");
    let of_volume = text(volume, "/spec/volumeAttributesClassName");
    let classes = format!("{class}/{of_volume}");
    say("class=", if classes == "/" { "" } else { &classes });
    let target = text(claim, "/status/modifyVolumeStatus/targetVolumeAttributesClassName");
    say("target=", target);
    say("", text(claim, "/status/modifyVolumeStatus/status"));
    let sizes =
        format!("{}/{}", text(claim, "/status/capacity/storage"), text(volume, "/spec/capacity/storage"));
    (!said.is_empty()).then(|| format!("{} {sizes}{said}", text(claim, "/metadata/name")))
}

fn attachment_line(attachment: &Value) -> String {
    let attached = attachment.pointer("/status/attached").and_then(Value::as_bool) == Some(true);
    let mut line = judge::alias(attachment);
    line.push_str(if attached { " attached" } else { " detached" });
    let how = text(attachment, "/status/attachmentMetadata/cofferdam.dev~1attachment");
    if let Ok(how) = serde_json::from_str::<Value>(how) {
        line.push_str(&format!(" {}", text(&how, "/kind")));
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

/// What is published and nobody asks for, and what is said to be attached and is not.
fn astray(attachments: &[Value], volumes: &[Value], published: &[(String, String)]) -> Vec<String> {
    let place = |attachment: &Value| {
        let name = text(attachment, "/spec/source/persistentVolumeName");
        let volume = volumes.iter().find(|volume| text(volume, "/metadata/name") == name);
        let handle = volume.map_or("", |volume| text(volume, "/spec/csi/volumeHandle"));
        let node = text(attachment, "/metadata/annotations/csi.alpha.kubernetes.io~1node-id");
        (handle.to_owned(), node.to_owned())
    };
    let asked: BTreeSet<_> = attachments.iter().map(place).collect();
    let stray = published.iter().filter(|place| !asked.contains(*place));
    let mut faults: Vec<String> =
        stray.map(|(handle, node)| format!("astray: nobody asks for {handle} on {node}")).collect();
    for attachment in attachments {
        // Without metadata the driver had nothing to do for it.
        let attached = !text(attachment, "/status/attachmentMetadata/cofferdam.dev~1attachment").is_empty();
        if attached && !published.contains(&place(attachment)) {
            faults.push(format!("astray: {} is not attached", text(attachment, "/metadata/name")));
        }
    }
    faults
}

/// What must never be left over once everything has settled.
fn leaks(
    claims: &[Value],
    volumes: &[Value],
    array: &BTreeSet<String>,
    alias: &dyn Fn(&str) -> String,
) -> Vec<String> {
    let mut faults = Vec::new();
    for key in array {
        let (node, name) =
            key.split_once('/').map_or((None, key.as_str()), |(node, name)| (Some(node), name));
        let has_object = volumes.iter().any(|volume| {
            text(volume, "/spec/csi/volumeHandle") == format!("handle-{name}")
                && node.is_none_or(|node| is_on(volume, node))
        });
        // On a node, what has no object is one too many: the claim may have its volume elsewhere.
        let has_claim =
            node.is_none() && claims.iter().any(|claim| name.ends_with(text(claim, "/metadata/uid")));
        if !has_object && !has_claim {
            let on = node.map(|node| format!(" on {node}")).unwrap_or_default();
            faults.push(format!("leaked: {}{on} has neither a PersistentVolume nor a claim", alias(name)));
        }
    }
    for volume in volumes {
        if let Some(name) = text(volume, "/spec/csi/volumeHandle").strip_prefix("handle-")
            && !array.contains(name)
            && !array
                .iter()
                .any(|key| key.split_once('/').is_some_and(|(node, of)| of == name && is_on(volume, node)))
        {
            faults.push(format!(
                "lost: PersistentVolume {} has no volume",
                alias(text(volume, "/metadata/name"))
            ));
        }
    }
    for claim in claims.iter().filter(|claim| text(claim, "/status/phase") == "Bound") {
        let name = text(claim, "/spec/volumeName");
        let volume = volumes.iter().find(|volume| text(volume, "/metadata/name") == name);
        if volume.map(|volume| text(volume, "/spec/claimRef/uid")) != Some(text(claim, "/metadata/uid")) {
            faults.push(format!("broken: claim {} is Bound to {name}", text(claim, "/metadata/name")));
        }
    }
    faults
}
