//! Two calls for one name at the same time, with their steps in every order.

use std::{
    sync::{Condvar, Mutex},
    thread,
};

use super::*;

/// Whose turn each step is.
struct Turns {
    order: Mutex<Order>,
    changed: Condvar,
}

#[derive(Default)]
struct Order {
    /// Who is next, as long as both calls go on; after the last of these it is the first call.
    planned: Vec<usize>,
    taken: Vec<usize>,
    ended: [bool; 2],
}

impl Order {
    fn next(&self) -> usize {
        self.planned.get(self.taken.len()).copied().unwrap_or_default()
    }

    /// The order after this one, if there is another.
    fn following(mut self) -> Option<Vec<usize>> {
        while self.taken.pop()? == 1 {}
        self.taken.push(1);
        Some(self.taken)
    }
}

/// A store and a pool that a call shares with another, and uses when it is its turn.
struct Half<'a> {
    fake: &'a Mutex<Fake>,
    turns: &'a Turns,
    me: usize,
}

impl Half<'_> {
    fn step<T>(&self, act: impl FnOnce(&Fake) -> T) -> T {
        let mut order = self.turns.order.lock().unwrap();
        while !order.ended[1 - self.me] && order.next() != self.me {
            order = self.turns.changed.wait(order).unwrap();
        }
        if !order.ended[1 - self.me] {
            order.taken.push(self.me);
        }
        let answer = act(&self.fake.lock().unwrap());
        drop(order);
        self.turns.changed.notify_all();
        answer
    }
}

impl Store for Half<'_> {
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

impl pool::Pool for Half<'_> {
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

    fn usage(&self) -> std::result::Result<Room, PoolError> {
        self.step(pool::Pool::usage)
    }
}

#[derive(Clone, Copy, Debug)]
enum Call {
    Create,
    Clone,
    Delete,
}

impl Call {
    fn play<S: Store, P: pool::Pool>(self, place: &Place<'_, S, P>) -> Result<()> {
        let asked = request("v", 8_192, block());
        match self {
            Self::Create => volumes::create(place, &settings(), &asked, None).map(drop),
            Self::Clone => {
                volumes::create(place, &settings(), &asked, Some((Sort::Volume, "vol-o"))).map(drop)
            }
            Self::Delete => volumes::delete(place, "vol-v"),
        }
    }
}

/// Plays two calls in one order of their steps.
fn play(fake: Fake, calls: [Call; 2], planned: Vec<usize>) -> (Fake, Vec<Result<()>>, Order) {
    let fake = Mutex::new(fake);
    let order = Order { planned, ..Order::default() };
    let turns = Turns { order: Mutex::new(order), changed: Condvar::new() };
    let run = |me: usize| {
        let half = Half { fake: &fake, turns: &turns, me };
        let chance = 1_000 + u64::try_from(me).unwrap();
        let answer = calls[me].play(&Place { store: &half, pool: &half, now_ms: 9, chance });
        turns.order.lock().unwrap().ended[me] = true;
        turns.changed.notify_all();
        answer
    };
    let answers = thread::scope(|scope| {
        let second = scope.spawn(|| run(1));
        vec![run(0), second.join().unwrap()]
    });
    (fake.into_inner().unwrap(), answers, turns.order.into_inner().unwrap())
}

/// Plays a call until it succeeds; a call that others have overtaken may have to be repeated.
fn repeat(fake: &Fake, call: Call, when: &str) {
    let tries = (0..3).map(|_| call.play(&fake.place()));
    let tries: Vec<_> = tries.take_while(Result::is_err).collect();
    assert!(tries.len() < 3, "{when}: {tries:?}");
}

#[test]
fn whatever_the_order_of_their_steps_two_calls_leave_nothing_behind() {
    // What earlier calls have left: nothing, a record, an item under it, a volume, a removal that has begun.
    let left: [fn(&Fake); 5] = [
        |_| {},
        |fake| leave(fake, Call::Create, 3),
        |fake| leave(fake, Call::Create, 4),
        |fake| Call::Create.play(&fake.place()).unwrap(),
        |fake| {
            Call::Create.play(&fake.place()).unwrap();
            leave(fake, Call::Delete, 2);
        },
    ];
    let pairs = [
        ([Call::Create, Call::Delete], 0..5),
        ([Call::Clone, Call::Delete], 0..1),
        ([Call::Create, Call::Create], 0..5),
        ([Call::Delete, Call::Delete], 1..5),
    ];
    let mut orders = 0;
    for (calls, left) in
        pairs.into_iter().flat_map(|(calls, some)| left[some].iter().map(move |left| (calls, left)))
    {
        let mut planned = Some(Vec::new());
        while let Some(order) = planned {
            orders += 1;
            let fake = Fake::new();
            make(&fake, &request("o", 8_192, block()), None).unwrap();
            left(&fake);
            let when = format!("{calls:?} in the order {order:?}");
            let (fake, answers, order) = play(fake, calls, order);
            check(&fake, calls, orders % 2 == 0, &format!("{when}: {answers:?}"));
            planned = order.following();
        }
    }
    assert!(orders > 1_000, "{orders}");
}

/// Nothing is wrong after two calls, and the ones that follow find nothing in their way.
fn check(fake: &Fake, calls: [Call; 2], deletes: bool, when: &str) {
    if fake.entries.borrow().contains_key("volume/vol-v") {
        let record = fake.record("volume/vol-v");
        let is_there = fake.items.borrow().contains_key(&record.item);
        assert!(record.phase != Phase::Ready || is_there, "{when}: a volume without its item");
    }
    if deletes {
        repeat(fake, Call::Delete, when);
        assert_eq!(fake.names(), ["vol-o"], "{when}");
    }
    repeat(fake, calls[0], when);
    let expected = if matches!(calls[0], Call::Delete) { vec!["vol-o"] } else { vec!["vol-o", "vol-v"] };
    assert_eq!(fake.names(), expected, "{when}");
    repeat(fake, Call::Delete, when);
    assert_eq!(fake.names(), ["vol-o"], "{when}");
}

/// Lets a call die after so many steps.
fn leave(fake: &Fake, call: Call, steps: u32) {
    fake.calls_left.set(Some(steps));
    let died = call.play(&fake.place());
    fake.calls_left.set(None);
    assert!(died.is_err());
}
