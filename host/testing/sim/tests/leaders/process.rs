//! One process: the production code in a runtime of its own, whose clock the simulation moves. A stopped
//! process is a runtime that does not run.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use cofferdam_backend::Backend;
use cofferdam_cluster::{
    Clock,
    api::ApiClient,
    campaign::Campaign,
    leader_election::{LeaderElector, LeaseCandidate, LeaseDurations},
    leadership::Leadership,
    observer::{Step, StepObserver},
};
use cofferdam_controllers::{
    AttacherSettings, CallSettings, ControllerManager, Dependencies, ResizerSettings, Role, Settings, table,
};
use cofferdam_domain::term::BootClock;
use cofferdam_sim::objects::DRIVER;
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use tokio::{
    runtime::{Builder, Runtime},
    task::{JoinHandle, yield_now},
    time::{Instant, advance, sleep_until},
};
use tokio_util::sync::CancellationToken;

use crate::{
    array::Driver,
    plan::Variant,
    transport::Connection,
    world::{ProcessId, START_UNIX_MS, World, identity},
};

/// Longest back-off, so that a run does not wait five minutes.
const MAX_RETRY_INTERVAL: Duration = Duration::from_secs(20);
/// No run takes as long: a resync would make up for a change that a process has missed.
const RESYNC: Duration = Duration::from_secs(1_000 * 3600);
/// Number of times that every ready task runs before the runtime stops, so that a request with a permit
/// reaches the API server through the client's buffer.
const TICKS: usize = 16;
/// Steps of the controllers of a process without a change of its clock, after which it panics: more than any
/// run has.
const MAX_STEPS: usize = 1_000;

/// The state of a process: running or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Running,
    /// Stopped until this time: no instruction runs, and every clock goes on.
    Stopped(Duration),
    /// Suspended until this time, with its machine: only the boot clock and the wall clock go on.
    Suspended(Duration),
}

/// The clocks of a process.
#[derive(Clone)]
struct Clocks {
    started: Instant,
    /// Time in which the machine was suspended, in milliseconds.
    suspended_ms: Arc<AtomicU64>,
    /// Time of the wall clock at the start of the process, in milliseconds since the Unix epoch.
    wall_at_start: i64,
    /// Jumps of the wall clock, in seconds.
    wall_offset: Arc<AtomicI64>,
}

impl Clocks {
    fn boot(&self) -> Duration {
        self.started.elapsed() + Duration::from_millis(self.suspended_ms.load(Ordering::SeqCst))
    }

    fn boot_clock(&self) -> BootClock {
        let clocks = self.clone();
        Arc::new(move || clocks.boot())
    }

    fn wall_clock(&self) -> Clock {
        let clocks = self.clone();
        Arc::new(move || {
            let elapsed = i64::try_from(clocks.boot().as_millis()).unwrap();
            let offset = clocks.wall_offset.load(Ordering::SeqCst) * 1_000;
            jiff::Timestamp::from_millisecond(clocks.wall_at_start + elapsed + offset).unwrap()
        })
    }
}

pub(crate) struct Process {
    pub(crate) id: ProcessId,
    pub(crate) mode: Mode,
    world: Arc<World>,
    runtime: Runtime,
    clocks: Clocks,
    rate: f64,
    /// Time of the monotonic clock, and the part of it in which the process has run, in seconds.
    elapsed: f64,
    ran: f64,
    /// Asks the process to end, as SIGTERM does.
    pub(crate) stop: CancellationToken,
    main: JoinHandle<()>,
}

pub(crate) fn runtime() -> Runtime {
    Builder::new_current_thread().enable_time().start_paused(true).build().unwrap()
}

/// The roles of each process.
pub(crate) fn roles() -> [Role; Role::ALL.len()] {
    Role::ALL
}

impl Process {
    /// Starts a process.
    pub(crate) fn start(
        world: &Arc<World>,
        id: ProcessId,
        rate: f64,
        wall_offset: Arc<AtomicI64>,
        variant: Variant,
    ) -> Self {
        world.lock().processes.entry(id).or_default();
        let runtime = runtime();
        let entered = runtime.enter();
        let clocks = Clocks {
            started: Instant::now(),
            suspended_ms: Arc::default(),
            wall_at_start: START_UNIX_MS + i64::try_from(world.now().as_millis()).unwrap(),
            wall_offset,
        };
        let stop = CancellationToken::new();
        let main = runtime.spawn(main(Arc::clone(world), id, clocks.clone(), stop.clone(), variant));
        drop(entered);
        world.trace(&format!("process {id} starts"));
        Self {
            id,
            mode: Mode::Running,
            world: Arc::clone(world),
            runtime,
            clocks,
            rate,
            elapsed: 0.0,
            ran: 0.0,
            stop,
            main,
        }
    }

    /// Moves the clocks by this time of the world, and lets the process run, if it does.
    pub(crate) fn step(&mut self, now: Duration, time: Duration) {
        let time = time.as_secs_f64() * self.rate;
        match self.mode {
            Mode::Stopped(until) if now < until => {
                self.elapsed += time;
                return;
            }
            Mode::Suspended(until) if now < until => {
                let suspended_ms = Duration::from_secs_f64(time).as_millis();
                self.clocks.suspended_ms.fetch_add(u64::try_from(suspended_ms).unwrap(), Ordering::SeqCst);
                return;
            }
            Mode::Stopped(_) | Mode::Suspended(_) => {
                self.world.trace(&format!("process {} continues", self.id));
                self.mode = Mode::Running;
            }
            Mode::Running => {}
        }
        let missed = self.elapsed - self.ran;
        self.elapsed += time;
        let end = self.clocks.started + Duration::from_secs_f64(self.elapsed);
        self.runtime.block_on(async {
            if missed > 0.0 {
                // Ready tasks run before a timer does.
                advance(Duration::from_secs_f64(missed)).await;
            }
            sleep_until(end).await;
            for _ in 0..TICKS {
                yield_now().await;
            }
        });
        self.ran = self.elapsed;
    }

    /// Returns true if the process has ended by itself.
    pub(crate) fn has_ended(&self) -> bool {
        self.main.is_finished()
    }

    /// Kills the process.
    pub(crate) fn kill(self) {
        self.world.trace(&format!("process {} ends", self.id));
        self.world.lock().processes.get_mut(&self.id).unwrap().is_dead = true;
        drop(self.runtime);
    }
}

/// Reports a process that works without a pause: its clock would never reach the end of a step.
struct SpinCheck {
    world: Arc<World>,
    process: ProcessId,
    /// Time of the last step, and the number of steps at this time.
    last: Mutex<Option<(Instant, usize)>>,
}

impl StepObserver for SpinCheck {
    fn on_step(&self, step: Step) {
        let now = Instant::now();
        let count = {
            let mut last = self.last.lock();
            let count = last.filter(|(at, _)| *at == now).map_or(1, |(_, count)| count + 1);
            *last = Some((now, count));
            count
        };
        if count == MAX_STEPS {
            self.world.violate(&format!("spin: process {} works without a pause: {step:?}", self.process));
        }
        assert!(count < MAX_STEPS, "process {} works without a pause", self.process);
    }
}

/// The production code of a process, as `cofferdam run` puts it together.
async fn main(world: Arc<World>, id: ProcessId, clocks: Clocks, stop: CancellationToken, variant: Variant) {
    let connection = |is_for_leases| Connection {
        world: Arc::clone(&world),
        process: id,
        boot_clock: clocks.boot_clock(),
        is_for_leases,
    };
    let defaults = Settings::default();
    let settings = Settings {
        calls: CallSettings { retry_interval_max: MAX_RETRY_INTERVAL, ..defaults.calls },
        roles: roles().into(),
        identity: identity(id),
        attacher: AttacherSettings { resync: RESYNC, ..defaults.attacher },
        resizer: ResizerSettings { resync_period: RESYNC, ..defaults.resizer },
        ..defaults
    };
    let driver: Arc<dyn Backend> = Arc::new(Driver::new(Arc::clone(&world), id, clocks.boot_clock()));
    let dependencies = Dependencies {
        client: kube::Client::new(connection(false), "default"),
        backends: vec![driver],
        clock: clocks.wall_clock(),
        observer: Arc::new(SpinCheck { world: Arc::clone(&world), process: id, last: Mutex::default() }),
    };
    let controllers = ControllerManager::new(settings, dependencies, &mut Registry::default()).unwrap();
    let api = ApiClient::new(kube::Client::new(connection(true), "default"), controllers.metrics().clone());
    let elector = |name| {
        let candidate = LeaseCandidate {
            namespace: "default".to_owned(),
            name,
            identity: identity(id),
            labels: [].into(),
            durations: LeaseDurations::default(),
        };
        let metrics = controllers.metrics().clone();
        let boot_clock: BootClock = match variant {
            Variant::ClockWithoutSuspension => {
                let started = clocks.started;
                Arc::new(move || started.elapsed())
            }
            _ => clocks.boot_clock(),
        };
        LeaderElector::new(api.clone(), clocks.wall_clock(), metrics, candidate).with_boot_clock(boot_clock)
    };
    let election = table::elections(&roles().into(), &[DRIVER.into()]).remove(0);
    let campaign = Campaign::new(election.drivers, election.leases.into_iter().map(elector).collect());
    let leadership = match variant {
        Variant::WithoutPermits => Leadership::permanent(),
        _ => campaign.leadership(),
    };
    // The manager resigns from the leadership that it has, which is another one without permits.
    let resigns = campaign.leadership();
    // A process that cannot read the cluster at its start ends, and kubelet starts another one.
    let lost_journals = controllers.lost_journals();
    let work = async {
        let _ = controllers.run_while_leading(stop, leadership).await;
        resigns.resign();
    };
    let ((), elected) = tokio::join!(work, campaign.run(lost_journals));
    assert_eq!(elected, Ok(()));
}
