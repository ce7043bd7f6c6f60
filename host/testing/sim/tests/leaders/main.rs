//! Two or three processes that compete for the Leases of their roles, over one embedded API server and one
//! storage array, in paused time: processes are killed, terminated, stopped, suspended and cut off, their
//! clocks drift and jump, requests and responses are lost or arrive late.
//!
//! A seed determines a run. Each runtime of tokio is one process, and the simulation decides when it runs and
//! how fast its clock goes, so a stopped process continues with what it had begun before its timers run.
//!
//! Invariants:
//! - *one actor for each epoch*: a process begins an effect (a write to the API server, a driver call) only
//!   while it holds all Leases at the API server, and between two changes of a holder only one process does;
//!   no process begins a driver call for a volume while one of another process is under way, unless that
//!   process was killed, stopped or suspended meanwhile, or has dropped the call, at the end of its term,
//!   longer ago than a slow change of a publication takes;
//! - *nothing begins after the end*: no effect begins later than the renew deadline, counted on the boot clock
//!   of the process from the begin of its last successful attempt to renew;
//! - *no volume without an owner*: a CreateVolume request is in the journal before the array sees it. At the
//!   end, each volume of the array has a PersistentVolume, each PersistentVolume a volume and a claim, each
//!   publication a VolumeAttachment, and no intent remains.
//!
//! Environment variables: `LEADERS_SEEDS` is the number of seeds, `LEADERS_SEED` the only seed to run, whose
//! trace is printed.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests fail by panicking")]
#![allow(clippy::wildcard_enum_match_arm, reason = "a variant changes one place each")]

mod array;
mod plan;
mod process;
mod run;
mod transport;
mod watches;
mod world;

use std::{
    env,
    num::NonZeroUsize,
    sync::atomic::{AtomicU64, Ordering},
    thread,
};

use parking_lot::Mutex;
use plan::Variant;
use run::{Outcome, run};

/// Environment variable with the number of seeds.
const SEEDS_VARIABLE: &str = "LEADERS_SEEDS";
/// Environment variable with the only seed to run.
const SEED_VARIABLE: &str = "LEADERS_SEED";
/// Number of seeds without [`SEEDS_VARIABLE`].
const DEFAULT_SEEDS: u64 = 200;
/// Failed seeds that are printed.
const MAX_PRINTED: usize = 5;

fn number(variable: &str) -> Option<u64> {
    env::var(variable).ok().map(|text| text.parse().unwrap())
}

/// Runs the seeds below `count`, one per processor at a time, until `stops` returns true for an outcome.
/// Returns the seeds with violations in order, and the numbers of effects and handovers of all runs.
fn run_all(
    count: u64,
    variant: Variant,
    stops: impl Fn(&Outcome) -> bool + Sync,
) -> (Vec<(u64, Outcome)>, usize, usize) {
    let (next, found) = (AtomicU64::new(0), Mutex::new((Vec::new(), 0, 0)));
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= count {
                return;
            }
            let outcome = run(seed, variant);
            if stops(&outcome) {
                next.store(count, Ordering::Relaxed);
            }
            let mut found = found.lock();
            found.1 += outcome.effects;
            found.2 += outcome.handovers;
            if !outcome.violations.is_empty() {
                found.0.push((seed, outcome));
            }
        }
    };
    let processors = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    thread::scope(|scope| (0..processors).for_each(|_| drop(scope.spawn(work))));
    let (mut failed, effects, handovers) = found.into_inner();
    failed.sort_by_key(|(seed, _)| *seed);
    (failed, effects, handovers)
}

#[test]
fn invariants_hold_for_every_seed() {
    if let Some(seed) = number(SEED_VARIABLE) {
        let Outcome { violations, trace, .. } = run(seed, Variant::Product);
        println!("{}", trace.join("\n"));
        assert!(violations.is_empty(), "seed {seed}:\n{}", violations.join("\n"));
        return;
    }
    let count = number(SEEDS_VARIABLE).unwrap_or(DEFAULT_SEEDS);
    let (failed, effects, handovers) = run_all(count, Variant::Product, |_| false);
    println!("{count} seeds, {effects} effects, {handovers} handovers");
    for (seed, outcome) in failed.iter().take(MAX_PRINTED) {
        println!(
            "again with {SEED_VARIABLE}={seed}:\n{}",
            outcome.violations[..outcome.violations.len().min(5)].join("\n")
        );
    }
    let seeds: Vec<u64> = failed.iter().map(|(seed, _)| *seed).collect();
    assert!(failed.is_empty(), "{} of {count} seeds violate an invariant: {seeds:?}", failed.len());
    // A small number of seeds may have few of them by chance.
    assert!(effects as u64 > 20 * count, "only {effects} effects in {count} seeds");
    assert!(count < 20 || handovers as u64 > count, "only {handovers} handovers in {count} seeds");
}

#[test]
fn a_seed_replays_step_by_step() {
    for seed in 0..5 {
        let (first, second) = (run(seed, Variant::Product), run(seed, Variant::Product));
        let difference = first.trace.iter().zip(&second.trace).find(|(one, other)| one != other);
        assert_eq!(difference, None, "seed {seed}");
        assert_eq!(first, second, "seed {seed}");
    }
}

/// A variant of the product violates an invariant, in one of so many seeds.
fn assert_noticed(variant: Variant, invariant: &str, seeds: u64) {
    let has_violation =
        |outcome: &Outcome| outcome.violations.iter().any(|violation| violation.contains(invariant));
    let (found, ..) = run_all(seeds, variant, has_violation);
    assert!(found.iter().any(|(_, outcome)| has_violation(outcome)), "{variant:?}: no {invariant:?}");
}

#[test]
fn processes_without_permits_violate_the_invariants() {
    assert_noticed(Variant::WithoutPermits, ": one actor: ", 10);
    assert_noticed(Variant::WithoutPermits, ": after the end: ", 10);
    assert_noticed(Variant::WithoutPermits, ": two calls: ", 50);
}

#[test]
fn a_clock_that_stands_still_while_suspended_violates_the_end_of_the_term() {
    assert_noticed(Variant::ClockWithoutSuspension, ": after the end: ", 50);
}

#[test]
fn clocks_beyond_the_bound_make_two_actors() {
    assert_noticed(Variant::ClocksOutOfBounds, ": one actor: ", 50);
}

#[test]
fn a_lost_journal_leaks_a_volume() {
    assert_noticed(Variant::LostIntents, ": leaked: ", 200);
}
