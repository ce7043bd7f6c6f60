//! Two concurrent creates or deletes of one volume, with every interleaving of their steps. A step is one
//! call of the state or the pool. Afterwards a volume in phase `ready` has its item, and repeated calls
//! succeed.

use std::{
    sync::{Condvar, Mutex},
    thread,
};

use super::*;

/// Schedules the steps of the two concurrent calls.
struct StepScheduler {
    order: Mutex<StepOrder>,
    changed: Condvar,
}

#[derive(Default)]
struct StepOrder {
    /// Index of the call that runs each step, while both are running. After the end of the plan the first
    /// call runs.
    planned: Vec<usize>,
    executed: Vec<usize>,
    finished: [bool; 2],
}

impl StepOrder {
    fn next(&self) -> usize {
        self.planned.get(self.executed.len()).copied().unwrap_or_default()
    }

    /// The next interleaving, if there is one.
    fn next_order(mut self) -> Option<Vec<usize>> {
        while self.executed.pop()? == 1 {}
        self.executed.push(1);
        Some(self.executed)
    }
}

/// A store and a pool shared by two calls. Each call uses them when it is scheduled.
struct ScheduledStorage<'a> {
    fake: &'a Mutex<FakeStorage>,
    scheduler: &'a StepScheduler,
    index: usize,
}

impl ScheduledStorage<'_> {
    fn step<T>(&self, access: impl FnOnce(&FakeStorage) -> T) -> T {
        let mut order = self.scheduler.order.lock().unwrap();
        while !order.finished[1 - self.index] && order.next() != self.index {
            order = self.scheduler.changed.wait(order).unwrap();
        }
        if !order.finished[1 - self.index] {
            order.executed.push(self.index);
        }
        let answer = access(&self.fake.lock().unwrap());
        drop(order);
        self.scheduler.changed.notify_all();
        answer
    }
}

impl Store for ScheduledStorage<'_> {
    fn get(&self, key: &str) -> std::result::Result<Option<Entry>, StateError> {
        self.step(|fake| fake.get(key))
    }

    fn commit(&self, changes: &[Change]) -> std::result::Result<Version, StateError> {
        self.step(|fake| fake.commit(changes))
    }

    fn scan(&self, prefix: &str, after: Option<&str>, limit: u32) -> std::result::Result<Page, StateError> {
        self.step(|fake| Store::scan(fake, prefix, after, limit))
    }
}

impl pool::Pool for ScheduledStorage<'_> {
    fn create_directory(&self, name: &str) -> std::result::Result<(), PoolError> {
        self.step(|fake| fake.create_directory(name))
    }

    fn create_image(&self, name: &str, size: u64) -> std::result::Result<(), PoolError> {
        self.step(|fake| fake.create_image(name, size))
    }

    fn remove(&self, name: &str) -> std::result::Result<(), PoolError> {
        self.step(|fake| fake.remove(name))
    }

    fn grow(&self, name: &str, size: u64) -> std::result::Result<(), PoolError> {
        self.step(|fake| fake.grow(name, size))
    }

    fn copy(
        &self,
        source: &str,
        name: &str,
        size: Option<u64>,
        mode: CopyMode,
    ) -> std::result::Result<(), PoolError> {
        self.step(|fake| fake.copy(source, name, size, mode))
    }

    fn measure(&self, name: &str) -> std::result::Result<Item, PoolError> {
        self.step(|fake| fake.measure(name))
    }

    fn scan(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: u32,
    ) -> std::result::Result<PoolPage, PoolError> {
        self.step(|fake| pool::Pool::scan(fake, prefix, after, limit))
    }

    fn usage(&self) -> std::result::Result<Space, PoolError> {
        self.step(pool::Pool::usage)
    }
}

#[derive(Clone, Copy, Debug)]
enum ScheduledCall {
    Create,
    Clone,
    Delete,
}

impl ScheduledCall {
    fn run<S: Store, P: pool::Pool>(self, storage: &NodeStorage<'_, S, P>) -> Result<()> {
        let create_request = request("v", 8_192, block());
        match self {
            Self::Create => volumes::create(storage, &settings(), &create_request, None).map(drop),
            Self::Clone => {
                volumes::create(storage, &settings(), &create_request, Some((RecordKind::Volume, "vol-o")))
                    .map(drop)
            }
            Self::Delete => volumes::delete(storage, "vol-v"),
        }
    }
}

/// Runs two calls with one interleaving of their steps.
fn run_scheduled(
    fake: FakeStorage,
    calls: [ScheduledCall; 2],
    planned: Vec<usize>,
) -> (FakeStorage, Vec<Result<()>>, StepOrder) {
    let fake = Mutex::new(fake);
    let order = StepOrder { planned, ..StepOrder::default() };
    let scheduler = StepScheduler { order: Mutex::new(order), changed: Condvar::new() };
    let run = |index: usize| {
        let storage = ScheduledStorage { fake: &fake, scheduler: &scheduler, index };
        let random = 1_000 + u64::try_from(index).unwrap();
        let answer = calls[index].run(&NodeStorage { store: &storage, pool: &storage, now_ms: 9, random });
        scheduler.order.lock().unwrap().finished[index] = true;
        scheduler.changed.notify_all();
        answer
    };
    let answers = thread::scope(|scope| {
        let second = scope.spawn(|| run(1));
        vec![run(0), second.join().unwrap()]
    });
    (fake.into_inner().unwrap(), answers, scheduler.order.into_inner().unwrap())
}

/// Retries a call until it succeeds. A call that lost a race may need several attempts.
fn retry_until_success(fake: &FakeStorage, call: ScheduledCall, when: &str) {
    let tries = (0..3).map(|_| call.run(&fake.storage()));
    let tries: Vec<_> = tries.take_while(Result::is_err).collect();
    assert!(tries.len() < 3, "{when}: {tries:?}");
}

#[test]
fn two_overlapping_calls_converge_in_every_interleaving() {
    // State left by earlier calls: nothing, a record, a record and its item, a volume, a started delete.
    let preparations: [fn(&FakeStorage); 5] = [
        |_| {},
        |fake| crash_after(fake, ScheduledCall::Create, 3),
        |fake| crash_after(fake, ScheduledCall::Create, 4),
        |fake| ScheduledCall::Create.run(&fake.storage()).unwrap(),
        |fake| {
            ScheduledCall::Create.run(&fake.storage()).unwrap();
            crash_after(fake, ScheduledCall::Delete, 2);
        },
    ];
    let pairs = [
        ([ScheduledCall::Create, ScheduledCall::Delete], 0..5),
        ([ScheduledCall::Clone, ScheduledCall::Delete], 0..1),
        ([ScheduledCall::Create, ScheduledCall::Create], 0..5),
        ([ScheduledCall::Delete, ScheduledCall::Delete], 1..5),
    ];
    let mut orders = 0;
    for (calls, preparations) in pairs
        .into_iter()
        .flat_map(|(calls, some)| preparations[some].iter().map(move |preparations| (calls, preparations)))
    {
        let mut planned = Some(Vec::new());
        while let Some(order) = planned {
            orders += 1;
            let fake = FakeStorage::new();
            create_volume(&fake, &request("o", 8_192, block()), None).unwrap();
            preparations(&fake);
            let when = format!("{calls:?} in the order {order:?}");
            let (fake, answers, order) = run_scheduled(fake, calls, order);
            check_result(&fake, calls, orders % 2 == 0, &format!("{when}: {answers:?}"));
            planned = order.next_order();
        }
    }
    assert!(orders > 1_000, "{orders}");
}

/// Checks the invariants after two calls, and that later calls succeed. With `deletes`, a delete comes first.
fn check_result(fake: &FakeStorage, calls: [ScheduledCall; 2], deletes: bool, when: &str) {
    if fake.entries.borrow().contains_key("volume/vol-v") {
        let record = fake.record("volume/vol-v");
        let is_there = fake.items.borrow().contains_key(&record.item);
        assert!(record.phase != RecordPhase::Ready || is_there, "{when}: a volume without its item");
    }
    if deletes {
        retry_until_success(fake, ScheduledCall::Delete, when);
        assert_eq!(fake.record_names(), ["vol-o"], "{when}");
    }
    retry_until_success(fake, calls[0], when);
    let expected =
        if matches!(calls[0], ScheduledCall::Delete) { vec!["vol-o"] } else { vec!["vol-o", "vol-v"] };
    assert_eq!(fake.record_names(), expected, "{when}");
    retry_until_success(fake, ScheduledCall::Delete, when);
    assert_eq!(fake.record_names(), ["vol-o"], "{when}");
}

/// Lets a call die after a number of steps.
fn crash_after(fake: &FakeStorage, call: ScheduledCall, steps: u32) {
    fake.calls_left.set(Some(steps));
    let died = call.run(&fake.storage());
    fake.calls_left.set(None);
    assert!(died.is_err());
}
