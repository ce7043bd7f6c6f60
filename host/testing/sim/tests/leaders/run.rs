//! One run: processes on machines, faults, a user, and the checks at the end.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use cofferdam_cluster::leader_election::LeaseDurations;
use cofferdam_controllers::table;
use cofferdam_sim::{
    objects::{DRIVER, class, collection_path, csi_driver, csi_node, ready_node, with},
    simulation::{attachment_violations, volume_violations},
};
use fastrand::Rng;
use http::Method;
use serde_json::{Value, json};
use tokio::{runtime::Runtime, task::yield_now, time::Instant};

use crate::{
    plan::{Fault, Plan, Step, Target, Variant},
    process::{Mode, Process, roles, runtime},
    world::World,
};

/// Time of a step of the simulation, in milliseconds: during the faults, and after them.
const STEP_MS: (u64, u64) = (5, 75);
const LATE_STEP_MS: (u64, u64) = (50, 350);
/// Time after the end of the faults in which the objects have to converge.
const CONVERGENCE_TIMEOUT: Duration = Duration::from_secs(900);
/// Interval of checks for convergence.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// Time after convergence in which nothing may change.
const REST: Duration = Duration::from_secs(40);
/// Time for a process to end after SIGTERM; after it, it is killed.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);
/// Time after which another process starts in the place of one that has ended by itself.
const RESTART_DELAY: Duration = Duration::from_secs(1);
/// Violations after which a run ends.
const MAX_VIOLATIONS: usize = 200;

/// The result of a run.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) violations: Vec<String>,
    pub(crate) trace: Vec<String>,
    /// Number of writes and driver calls.
    pub(crate) effects: usize,
    /// Number of times that another process acted.
    pub(crate) handovers: usize,
}

/// A place for one process at a time.
struct Machine {
    rate: f64,
    wall_offset: Arc<AtomicI64>,
    process: Option<Process>,
    /// Time at which the next process starts.
    starts_at: Duration,
    /// Time at which a process that was asked to end is killed.
    killed_at: Option<Duration>,
}

struct Run {
    world: Arc<World>,
    runtime: Runtime,
    started: Instant,
    machines: Vec<Machine>,
    variant: Variant,
    next_process: usize,
    rng: Rng,
}

/// Runs one seed.
pub(crate) fn run(seed: u64, variant: Variant) -> Outcome {
    let mut rng = Rng::with_seed(seed);
    let plan = Plan::new(&mut rng, variant);
    let mut run = Run::new(seed, rng, &plan, variant);
    run.play(&plan);
    run.converge();
    for machine in &mut run.machines {
        machine.process.take().into_iter().for_each(Process::kill);
    }
    let mut state = run.world.lock();
    Outcome {
        violations: std::mem::take(&mut state.violations),
        trace: std::mem::take(&mut state.trace),
        effects: state.effects,
        handovers: state.handovers,
    }
}

impl Run {
    fn new(seed: u64, mut rng: Rng, plan: &Plan, variant: Variant) -> Self {
        let runtime = runtime();
        let started = {
            let _entered = runtime.enter();
            Instant::now()
        };
        let names = table::lease_names(&roles().into(), &[DRIVER.into()]);
        let deadline = LeaseDurations::default().renew_deadline;
        let world = World::new(seed, rng.fork(), runtime.handle().clone(), names, deadline);
        let setup = [
            with(class("gold"), &json!({"allowVolumeExpansion": true})),
            csi_driver(true),
            ready_node("node-1"),
            ready_node("node-2"),
            csi_node("node-1", "id-1"),
            csi_node("node-2", "id-2"),
        ];
        for object in setup {
            let (status, answer) = world.request(Method::POST, &collection_path(&object), &object);
            assert!(status.is_success(), "{answer}");
        }
        world.trace(&format!("{variant:?}, clocks {:?}, faults {:?}", plan.rates, plan.faults));
        let machine = |rate: &f64| Machine {
            rate: *rate,
            wall_offset: Arc::default(),
            process: None,
            starts_at: Duration::ZERO,
            killed_at: None,
        };
        let machines = plan.rates.iter().map(machine).collect();
        Self { world, runtime, started, machines, variant, next_process: 0, rng }
    }

    /// Plays the steps of the user and the faults.
    fn play(&mut self, plan: &Plan) {
        let (mut steps, mut faults) = (plan.steps.iter().peekable(), plan.faults.iter().peekable());
        let end = plan.end_of_faults;
        while self.world.now() < end || steps.peek().is_some() {
            if self.world.lock().violations.len() >= MAX_VIOLATIONS {
                return;
            }
            let now = self.world.now();
            while let Some((_, step)) = steps.next_if(|(at, _)| *at <= now) {
                self.perform(step);
            }
            while let Some((_, target, fault)) = faults.next_if(|(at, ..)| *at <= now) {
                self.inject(*target, *fault);
            }
            self.step(STEP_MS);
        }
        // Every fault ends.
        self.world.trace("the faults end");
        let mut state = self.world.lock();
        (state.has_faults, state.api_down_until) = (false, Duration::ZERO);
        state.processes.values_mut().for_each(|record| record.cut_until = Duration::ZERO);
        drop(state);
        let now = self.world.now();
        for machine in &mut self.machines {
            machine.starts_at = machine.starts_at.min(now);
            if let Some(process) = &mut machine.process {
                process.mode = match process.mode {
                    Mode::Running => Mode::Running,
                    Mode::Stopped(_) => Mode::Stopped(now),
                    Mode::Suspended(_) => Mode::Suspended(now),
                };
            }
        }
    }

    fn perform(&self, step: &Step) {
        let (method, path, body) = match step {
            Step::Create(object) => (Method::POST, collection_path(object), object.clone()),
            Step::Delete(path) => (Method::DELETE, path.clone(), Value::Null),
            Step::Patch(path, patch) => (Method::PATCH, path.clone(), patch.clone()),
        };
        let (status, _) = self.world.request(method.clone(), &path, &body);
        let name = body["metadata"]["name"].as_str().unwrap_or_default();
        self.world.trace(&format!("user: {method} {path} {name}: {}", status.as_u16()));
    }

    fn inject(&mut self, target: Target, fault: Fault) {
        let now = self.world.now();
        let leader = self.world.leader();
        let is_leader =
            |machine: &Machine| machine.process.as_ref().is_some_and(|process| Some(process.id) == leader);
        let index = match target {
            Target::Leader => self.machines.iter().position(is_leader).unwrap_or_default(),
            Target::Machine(index) => index,
        };
        let machine = &mut self.machines[index];
        if let Fault::WallClock(seconds) = fault {
            machine.wall_offset.fetch_add(seconds, Ordering::SeqCst);
        }
        if let Fault::ApiDown(time) = fault {
            self.world.lock().api_down_until = now + time;
        }
        let Some(process) = &mut machine.process else { return };
        self.world.trace(&format!("process {}: {fault:?}", process.id));
        match fault {
            Fault::Kill(pause) => {
                machine.process.take().into_iter().for_each(Process::kill);
                (machine.starts_at, machine.killed_at) = (now + pause, None);
                if self.variant == Variant::LostIntents {
                    lose_intents(&self.world);
                }
            }
            Fault::Terminate => {
                process.stop.cancel();
                machine.killed_at = Some(now + DRAIN_TIMEOUT);
            }
            Fault::Stop(time) | Fault::Suspend(time) => {
                process.mode = match fault {
                    Fault::Stop(_) => Mode::Stopped(now + time),
                    _ => Mode::Suspended(now + time),
                };
            }
            Fault::Cut(time) => {
                self.world.lock().processes.get_mut(&process.id).unwrap().cut_until = now + time;
            }
            Fault::ApiDown(_) | Fault::WallClock(_) => {}
        }
    }

    /// Moves the time on: first each process runs, then the API server and the array.
    fn step(&mut self, (shortest, longest): (u64, u64)) {
        let time = Duration::from_millis(self.rng.u64(shortest..=longest));
        let now = self.world.now() + time;
        self.world.set_now(now);
        for machine in &mut self.machines {
            let has_ended = machine.process.as_ref().is_some_and(Process::has_ended);
            let is_late = machine.killed_at.is_some_and(|at| at <= now);
            if has_ended || is_late {
                machine.process.take().into_iter().for_each(Process::kill);
                (machine.starts_at, machine.killed_at) = (now + RESTART_DELAY, None);
            }
            if machine.process.is_none() && machine.starts_at <= now {
                let id = self.next_process;
                self.next_process += 1;
                let wall_offset = Arc::clone(&machine.wall_offset);
                machine.process =
                    Some(Process::start(&self.world, id, machine.rate, wall_offset, self.variant));
            }
            if let Some(process) = &mut machine.process {
                process.step(now, time);
                if process.mode != Mode::Running {
                    self.world.lock().processes.get_mut(&process.id).unwrap().stopped_at = Some(now);
                }
            }
        }
        self.runtime.block_on(async {
            tokio::time::sleep_until(self.started + now).await;
            for _ in 0..4 {
                yield_now().await;
            }
            self.world.watches.deliver(&self.world);
        });
    }

    /// Runs until nothing is left to do, and a while longer. Reports what remains.
    fn converge(&mut self) {
        let end = self.world.now() + CONVERGENCE_TIMEOUT;
        let mut converged_at = None;
        let mut next_check = self.world.now();
        while self.world.lock().violations.len() < MAX_VIOLATIONS {
            self.step(LATE_STEP_MS);
            let now = self.world.now();
            if now < next_check {
                continue;
            }
            next_check = now + CHECK_INTERVAL;
            let remaining = remaining(&self.world);
            converged_at = remaining.is_empty().then(|| converged_at.unwrap_or(now));
            if converged_at.is_some_and(|at| at + REST <= now) {
                return;
            }
            if now >= end {
                return remaining.iter().for_each(|text| self.world.violate(text));
            }
        }
    }
}

/// Removes all intents from the journal, as if the writes had been lost.
fn lose_intents(world: &World) {
    for map in world.list("/api/v1/namespaces/default/configmaps") {
        let name = map["metadata"]["name"].as_str().unwrap_or_default();
        let path = format!("/api/v1/namespaces/default/configmaps/{name}");
        world.request(Method::PATCH, &path, &json!({"data": null}));
    }
}

/// The work that is left: objects that have not converged, and volumes without an owner.
fn remaining(world: &World) -> Vec<String> {
    let text = |object: &Value, pointer: &str| {
        object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    let claims = world.list("/api/v1/persistentvolumeclaims");
    let volumes = world.list("/api/v1/persistentvolumes");
    let attachments = world.list("/apis/storage.k8s.io/v1/volumeattachments");
    let pods = world.list("/api/v1/pods");
    let (array, published, is_idle) = {
        let state = world.lock();
        (state.array.names(), state.array.published(), state.array.is_idle())
    };
    let mut found = volume_violations(&claims, &volumes, &array, &str::to_owned);
    found.extend(attachment_violations(&attachments, &volumes, &published));
    if !is_idle {
        found.push("not converged: a driver call is running".to_owned());
    }
    for object in claims.iter().chain(&volumes).chain(&attachments) {
        if object.pointer("/metadata/deletionTimestamp").is_some() {
            found.push(format!("not converged: {} is being deleted", text(object, "/metadata/name")));
        }
    }
    for claim in &claims {
        let (phase, size) = (text(claim, "/status/phase"), text(claim, "/status/capacity/storage"));
        if phase != "Bound" || size != text(claim, "/spec/resources/requests/storage") {
            let name = text(claim, "/metadata/name");
            found.push(format!("not converged: claim {name} is {phase} with {size:?}"));
        }
    }
    for volume in &volumes {
        if text(volume, "/status/phase") != "Bound" {
            let name = text(volume, "/metadata/name");
            found.push(format!("not converged: {name} is {}", text(volume, "/status/phase")));
        }
    }
    let wanted: BTreeSet<_> = pods
        .iter()
        .map(|pod| {
            let name = text(pod, "/spec/volumes/0/persistentVolumeClaim/claimName");
            let claim = claims.iter().find(|claim| text(claim, "/metadata/name") == name);
            (
                claim.map(|claim| text(claim, "/spec/volumeName")).unwrap_or_default(),
                text(pod, "/spec/nodeName"),
            )
        })
        .collect();
    let attached: BTreeSet<_> = attachments
        .iter()
        .filter(|one| one.pointer("/status/attached") == Some(&Value::Bool(true)))
        .map(|one| (text(one, "/spec/source/persistentVolumeName"), text(one, "/spec/nodeName")))
        .collect();
    if wanted != attached {
        found.push(format!("not converged: {attached:?} are attached, expected {wanted:?}"));
    }
    for map in world.list("/api/v1/namespaces/default/configmaps") {
        let name = text(&map, "/metadata/name");
        let has_data = map["data"].as_object().is_some_and(|data| !data.is_empty());
        if name.starts_with("cofferdam-intents-") && has_data {
            found.push(format!("not converged: {name} has intents"));
        }
    }
    found
}
