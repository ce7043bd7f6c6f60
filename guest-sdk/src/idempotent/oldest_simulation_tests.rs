//! Three processes create an item of one name at the same time, with random delays, lost responses and failed
//! listings. Each repeats its call until it has a result. All must have the same item, and no other one remains.
//!
//! Each process is a thread with a mock host, whose clock is the process's time. A request waits until all other
//! processes have reached a later time, so a seed determines the run.

use std::{
    collections::BTreeMap,
    sync::{Condvar, Mutex},
};

use super::*;
use crate::mock::MockHost;

const PROCESSES: usize = 3;
const SEEDS: u64 = 300;
/// The resolution of creation times and the longest delay of the listing together.
const SETTLE: Duration = Duration::from_secs(2);

/// An item of the cloud.
struct Item {
    id: String,
    created_at: Duration,
    listed_at: Duration,
}

/// The cloud, and the processes that wait to send a request.
struct Cloud {
    random: u64,
    items: Vec<Item>,
    waiting: BTreeMap<usize, Duration>,
    running: usize,
}

impl Cloud {
    /// A pseudo-random number below `limit`.
    fn random(&mut self, limit: u64) -> u64 {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % limit
    }

    fn is_next(&self, process: usize) -> bool {
        let next = self.waiting.iter().min_by_key(|(process, at)| (**at, **process));
        self.waiting.len() == self.running && next.is_some_and(|(next, _)| *next == process)
    }
}

struct Simulation {
    cloud: Mutex<Cloud>,
    changed: Condvar,
}

impl Simulation {
    fn new(seed: u64) -> Self {
        let cloud = Cloud { random: seed, items: Vec::new(), waiting: BTreeMap::new(), running: PROCESSES };
        let simulation = Self { cloud: Mutex::new(cloud), changed: Condvar::new() };
        simulation.cloud.lock().unwrap().random(1);
        simulation
    }

    /// Sends a request of a process: executed when all other processes are later, and answered after a delay.
    fn request<T>(
        &self,
        host: &MockHost,
        process: usize,
        execute: impl FnOnce(&mut Cloud, Duration) -> T,
    ) -> T {
        let now = ambient::now();
        let mut cloud = self.cloud.lock().unwrap();
        cloud.waiting.insert(process, now);
        self.changed.notify_all();
        let mut cloud = self.changed.wait_while(cloud, |cloud| !cloud.is_next(process)).unwrap();
        cloud.waiting.remove(&process);
        let result = execute(&mut cloud, now);
        host.advance(Duration::from_millis(cloud.random(700)));
        result
    }

    fn run_process(&self, process: usize, settle: Duration) -> String {
        let host = MockHost::new().install();
        let lost = || StorageError::unavailable("no response");
        let list = || {
            self.request(&host, process, |cloud, now| {
                if cloud.random(8) == 0 {
                    return Err(lost());
                }
                let listed = cloud.items.iter().filter(|item| item.listed_at <= now);
                let seconds = |item: &Item| Duration::from_secs(item.created_at.as_secs());
                Ok(listed.map(|item| Candidate::new(&*item.id, seconds(item), item.id.clone())).collect())
            })
        };
        let create = || {
            self.request(&host, process, |cloud, now| {
                let id = format!("vol-{:06}", cloud.random(1_000_000));
                let listed_at = now + Duration::from_millis(cloud.random(1000));
                cloud.items.push(Item { id: id.clone(), created_at: now, listed_at });
                if cloud.random(4) == 0 { Err(lost()) } else { Ok(id) }
            })
        };
        let delete = |candidate: &Candidate<String>| {
            self.request(&host, process, |cloud, _| {
                cloud.items.retain(|item| item.id != candidate.id);
                if cloud.random(8) == 0 { Err(lost()) } else { Ok(()) }
            })
        };
        let id = loop {
            match oldest_wins(settle, list, |_| Ok(()), create, delete) {
                Ok(id) => break id,
                // A panic would leave the other processes waiting.
                Err(error) if error.finality == Finality::Final => break error.message,
                Err(_) => host.advance(Duration::from_secs(1)),
            }
        };
        self.cloud.lock().unwrap().running -= 1;
        self.changed.notify_all();
        id
    }
}

/// Returns true if all processes have the only item.
fn agrees(seed: u64, settle: Duration) -> bool {
    let simulation = Simulation::new(seed);
    let results: Vec<_> = std::thread::scope(|scope| {
        let simulation = &simulation;
        let start = |process| scope.spawn(move || simulation.run_process(process, settle));
        let processes: Vec<_> = (0..PROCESSES).map(start).collect();
        processes.into_iter().map(|process| process.join().unwrap()).collect()
    });
    let cloud = simulation.cloud.into_inner().unwrap();
    cloud.items.len() == 1 && results.iter().all(|id| *id == cloud.items[0].id)
}

#[test]
fn all_processes_have_the_only_item() {
    for seed in 0..SEEDS {
        assert!(agrees(seed, SETTLE), "seed {seed}");
    }
}

#[test]
fn a_settle_time_that_is_too_short_is_noticed() {
    assert!((0..SEEDS).any(|seed| !agrees(seed, Duration::ZERO)));
    assert!((0..SEEDS).any(|seed| !agrees(seed, SETTLE / 4)));
}
