//! The plan of a run: everything that differs between seeds and is known before the run.

use std::time::Duration;

use cofferdam_sim::objects::{claim, pod, with};
use fastrand::Rng;
use serde_json::{Value, json};

/// Time from the start in which faults begin.
const FAULTS_FROM: u64 = 8_000;
/// Time at which every fault ends, in milliseconds.
const FAULTS_UNTIL: u64 = 110_000;

/// A change of the options of every run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Variant {
    /// The product as it is.
    Product,
    /// Processes act without a Lease: the invariants have to notice it.
    WithoutPermits,
    /// Terms end by a clock that stands still while the machine is suspended.
    ClockWithoutSuspension,
    /// The clocks of two machines run at rates whose ratio is larger than the one that the durations allow.
    ClocksOutOfBounds,
    /// An intent is lost with the process that wrote it.
    LostIntents,
}

/// A fault of one process, or of the API server.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// The process is killed, and another one starts on its machine after this time.
    Kill(Duration),
    /// The process gets SIGTERM, and another one starts after it has ended.
    Terminate,
    /// SIGSTOP, and SIGCONT after this time.
    Stop(Duration),
    /// The machine is suspended for this time: `CLOCK_MONOTONIC` stands still, `CLOCK_BOOTTIME` does not.
    Suspend(Duration),
    /// The process cannot reach the API server for this time.
    Cut(Duration),
    /// No process can reach the API server for this time.
    ApiDown(Duration),
    /// The wall clock of the machine jumps by this number of seconds.
    WallClock(i64),
}

/// The process that a fault hits.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target {
    /// The process that leads.
    Leader,
    /// The process of this machine.
    Machine(usize),
}

/// A step of the user.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Create(Value),
    Delete(String),
    Patch(String, Value),
}

/// The plan of a run.
#[derive(Debug)]
pub(crate) struct Plan {
    /// The rate of the clock of each machine.
    pub(crate) rates: Vec<f64>,
    pub(crate) faults: Vec<(Duration, Target, Fault)>,
    /// At this time, every fault ends.
    pub(crate) end_of_faults: Duration,
    /// The steps of the user, ordered by time.
    pub(crate) steps: Vec<(Duration, Step)>,
}

impl Plan {
    pub(crate) fn new(rng: &mut Rng, variant: Variant) -> Self {
        let machines = rng.usize(2..=3);
        let rates = (0..machines).map(|machine| match variant {
            Variant::ClocksOutOfBounds => [0.5, 1.6, 1.0][machine],
            // The Lease's duration is 1.5 times the renew deadline: the ratio of two rates stays below.
            _ => f64::from(rng.u32(900..=1_100)) / 1_000.0,
        });
        let rates = rates.collect();
        let mut faults: Vec<_> = (0..rng.usize(2..=6)).map(|_| fault(rng, machines, variant)).collect();
        faults.sort_by_key(|(at, ..)| *at);
        let mut steps: Vec<_> = (0..rng.usize(3..=6)).flat_map(|index| steps_of_claim(rng, index)).collect();
        steps.sort_by_key(|(at, _)| *at);
        Self { rates, faults, end_of_faults: milliseconds(FAULTS_UNTIL), steps }
    }
}

fn fault(rng: &mut Rng, machines: usize, variant: Variant) -> (Duration, Target, Fault) {
    let at = milliseconds(rng.u64(FAULTS_FROM..FAULTS_UNTIL));
    let target = if rng.f32() < 0.7 { Target::Leader } else { Target::Machine(rng.usize(0..machines)) };
    let short_or_long =
        |rng: &mut Rng| milliseconds(if rng.bool() { rng.u64(500..12_000) } else { rng.u64(12_000..60_000) });
    let kind = match variant {
        Variant::ClockWithoutSuspension => 3,
        Variant::ClocksOutOfBounds => 4,
        Variant::LostIntents => 0,
        Variant::Product | Variant::WithoutPermits => rng.u8(0..7),
    };
    let fault = match kind {
        0 => Fault::Kill(milliseconds(rng.u64(100..20_000))),
        1 => Fault::Terminate,
        2 => Fault::Stop(short_or_long(rng)),
        3 => Fault::Suspend(short_or_long(rng)),
        4 => Fault::Cut(short_or_long(rng)),
        5 => Fault::ApiDown(milliseconds(rng.u64(500..25_000))),
        _ => Fault::WallClock(rng.i64(-259_200..=259_200)),
    };
    (at, target, fault)
}

/// The steps with one claim: it is created, may be used by a pod that moves to another node, may be expanded,
/// and may be deleted.
fn steps_of_claim(rng: &mut Rng, index: usize) -> Vec<(Duration, Step)> {
    let name = format!("c{index}");
    let claim_path = format!("/api/v1/namespaces/default/persistentvolumeclaims/{name}");
    let mut at = rng.u64(0..90_000);
    let mut steps = vec![(milliseconds(at), Step::Create(claim(&name, "gold")))];
    if rng.f32() < 0.3 {
        let size = json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}});
        steps.push((milliseconds(at + rng.u64(1_000..40_000)), Step::Patch(claim_path.clone(), size)));
    }
    let pods = if rng.f32() < 0.6 { rng.usize(1..=3) } else { 0 };
    let deletes_claim = rng.f32() < 0.5;
    for number in 0..pods {
        at += rng.u64(100..15_000);
        let name_of_pod = format!("{name}-{number}");
        let node = format!("node-{}", rng.u8(1..=2));
        let object = with(pod(&name_of_pod, &name), &json!({"spec": {"nodeName": node}}));
        steps.push((milliseconds(at), Step::Create(object)));
        if number + 1 < pods || deletes_claim {
            at += rng.u64(100..25_000);
            let path = format!("/api/v1/namespaces/default/pods/{name_of_pod}?gracePeriodSeconds=0");
            steps.push((milliseconds(at), Step::Delete(path)));
        }
    }
    if deletes_claim {
        at += rng.u64(1..20_000);
        steps.push((milliseconds(at), Step::Delete(claim_path)));
    }
    steps
}

fn milliseconds(count: u64) -> Duration {
    Duration::from_millis(count)
}
