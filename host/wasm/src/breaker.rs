//! Circuit breaker of a backend: rejects calls while the backend only traps, hangs or exceeds its limits.
//!
//! Failures are counted by subject: the object that a call is about, or the method of a call without one. One
//! claim whose calls always fail does not open the driver's circuit.
//!
//! - The circuit of a subject opens after consecutive failures of its calls: they are rejected for a delay,
//!   which doubles with each further failure.
//! - The driver's circuit opens after failures of as many different subjects, if no call has succeeded
//!   between them. After a delay it is half-open: one trial call is admitted; its success closes the circuit,
//!   its failure opens it for twice the delay. A subject whose last call failed becomes the trial one delay
//!   later than others, which so go first.
//!
//! A delay is at most 60 times the first one. Errors that the guest itself returns count as successes.

use std::{
    collections::HashMap,
    hash::{BuildHasher as _, Hash, RandomState},
    time::Duration,
};

use tokio::time::Instant;

/// Maximum delay, as a multiple of the initial delay: one minute with the default of one second.
const MAX_PAUSE_FACTOR: u32 = 60;
/// Maximum subjects whose failures are remembered. If there are more, the subject whose failure is oldest is
/// forgotten.
const MAX_SUBJECTS: usize = 1_024;

/// State of one backend's breaker. The caller passes the current time to each method.
#[derive(Debug)]
pub(crate) struct Breaker {
    threshold: u32,
    initial_pause: Duration,
    state: BreakerState,
    /// Incremented by each transition and each new trial. Permits of earlier generations are outdated.
    generation: u64,
    /// Subjects whose last call failed.
    failing: HashMap<BreakerSubject, SubjectFailures>,
    /// Incremented by each success: a subject with an earlier epoch failed before the last success.
    epoch: u64,
    /// Creates subjects. Users choose names of objects, but not equal subjects.
    hasher: RandomState,
}

/// A hash of what a call is about: its size does not depend on the length of a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct BreakerSubject(u64);

/// Failures of a subject since its last success.
#[derive(Clone, Copy, Debug)]
struct SubjectFailures {
    count: u32,
    last: Instant,
    epoch: u64,
    /// Calls are rejected until then.
    until: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BreakerState {
    /// The number of different subjects that have failed since the last success.
    Closed {
        subjects: u32,
    },
    Open {
        until: Instant,
        pause: Duration,
    },
    HalfOpen {
        pause: Duration,
        trial_deadline: Instant,
    },
}

/// Admission of a call. The call's result counts for the driver only if the breaker's state has not changed
/// since: a call that started before the circuit opened says nothing about the trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BreakerPermit {
    generation: u64,
    subject: BreakerSubject,
}

/// An open circuit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OpenCircuit {
    /// True if calls for other objects are admitted.
    pub(crate) is_of_subject: bool,
    /// The longest time until the next call is admitted.
    pub(crate) pause: Duration,
}

/// State of the driver's circuit as a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BreakerStatus {
    /// Calls are admitted.
    Closed,
    /// One trial call is running; other calls are rejected.
    HalfOpen,
    /// Calls are rejected until the delay has passed; the next call then is the trial.
    Open,
}

impl Breaker {
    pub(crate) fn new(threshold: u32, first_pause: Duration) -> Self {
        Self {
            threshold: threshold.max(1),
            initial_pause: first_pause,
            state: BreakerState::Closed { subjects: 0 },
            generation: 0,
            failing: HashMap::new(),
            epoch: 0,
            hasher: RandomState::new(),
        }
    }

    /// The subject of calls about an object, or of a method.
    pub(crate) fn subject(&self, object: &impl Hash) -> BreakerSubject {
        BreakerSubject(self.hasher.hash_one(object))
    }

    /// Admits a call of at most `max_duration`. The error has the longest time until the next call is
    /// admitted: what is left of a delay, or of the running trial's maximum duration.
    pub(crate) fn admit(
        &mut self,
        subject: BreakerSubject,
        now: Instant,
        max_duration: Duration,
    ) -> Result<BreakerPermit, OpenCircuit> {
        let failures = self.failing.get(&subject).copied();
        if let Some(pause) = failures.and_then(|failures| time_left(failures.until, now)) {
            return Err(OpenCircuit { is_of_subject: true, pause });
        }
        let open = |pause| OpenCircuit { is_of_subject: false, pause };
        let pause = match self.state {
            BreakerState::Closed { .. } => return Ok(self.permit(subject)),
            BreakerState::Open { until, pause } => {
                // Other subjects become the trial first.
                let until = if failures.is_some() { until + pause } else { until };
                time_left(until, now).map_or(Ok(pause), |time_left| Err(open(time_left)))?
            }
            // A trial whose result was lost, with its task, blocks other calls only until its deadline.
            BreakerState::HalfOpen { pause, trial_deadline } => {
                time_left(trial_deadline, now).map_or(Ok(pause), |time_left| Err(open(time_left)))?
            }
        };
        self.set_state(BreakerState::HalfOpen { pause, trial_deadline: now + max_duration });
        Ok(self.permit(subject))
    }

    /// Admits a call again after it has waited for an instance slot, because a circuit may have opened
    /// meanwhile. Returns the same permit if neither the driver's circuit nor that of the subject has, else
    /// the result of `admit`.
    pub(crate) fn readmit(
        &mut self,
        permit: BreakerPermit,
        now: Instant,
        max_duration: Duration,
    ) -> Result<BreakerPermit, OpenCircuit> {
        let is_closed = matches!(self.state, BreakerState::Closed { .. });
        match permit.generation == self.generation && !is_closed {
            // The trial.
            true => Ok(permit),
            false => self.admit(permit.subject, now, max_duration),
        }
    }

    /// Records a call that ended with a result of the guest, also an error or a result that breaks a rule of
    /// the contract.
    pub(crate) fn record_success(&mut self, permit: BreakerPermit) {
        self.failing.remove(&permit.subject);
        if permit.generation != self.generation {
            return;
        }
        self.epoch = self.epoch.saturating_add(1);
        let closed = BreakerState::Closed { subjects: 0 };
        match self.state {
            BreakerState::Closed { .. } => self.state = closed,
            BreakerState::Open { .. } | BreakerState::HalfOpen { .. } => self.set_state(closed),
        }
    }

    /// Records a call that trapped, exited, hung or exceeded a limit, or during which the host panicked.
    pub(crate) fn record_failure(&mut self, permit: BreakerPermit, now: Instant) {
        let is_new = self.add_failure(permit.subject, now);
        if permit.generation != self.generation {
            return;
        }
        match self.state {
            BreakerState::Closed { .. } if !is_new => {}
            BreakerState::Closed { subjects } if subjects.saturating_add(1) < self.threshold => {
                self.state = BreakerState::Closed { subjects: subjects.saturating_add(1) };
            }
            BreakerState::Closed { .. } => self.open(now, self.initial_pause),
            BreakerState::HalfOpen { pause, .. } => self.open(now, pause.saturating_mul(2)),
            BreakerState::Open { .. } => {}
        }
    }

    /// Records a call that counts neither as success nor as failure, such as one that did not reach the
    /// guest. If it was the trial, the next call becomes the trial.
    pub(crate) fn record_ignored(&mut self, permit: BreakerPermit, now: Instant) {
        if permit.generation == self.generation
            && let BreakerState::HalfOpen { pause, .. } = self.state
        {
            self.set_state(BreakerState::Open { until: now, pause });
        }
    }

    /// Adds a failure of a subject. Returns true if it is the subject's first since the last success of any
    /// subject.
    fn add_failure(&mut self, subject: BreakerSubject, now: Instant) -> bool {
        let earlier = self.failing.remove(&subject);
        if self.failing.len() >= MAX_SUBJECTS
            && let Some(oldest) = self.failing.iter().min_by_key(|(_, failures)| failures.last)
        {
            let oldest = *oldest.0;
            self.failing.remove(&oldest);
        }
        let count = earlier.map_or(0, |failures| failures.count).saturating_add(1);
        let pause = count.checked_sub(self.threshold).map_or(Duration::ZERO, |excess| {
            self.bounded(self.initial_pause.saturating_mul(2_u32.saturating_pow(excess)))
        });
        let failures = SubjectFailures { count, last: now, epoch: self.epoch, until: now + pause };
        self.failing.insert(subject, failures);
        earlier.is_none_or(|failures| failures.epoch != self.epoch)
    }

    fn bounded(&self, pause: Duration) -> Duration {
        pause.min(self.initial_pause.saturating_mul(MAX_PAUSE_FACTOR))
    }

    fn permit(&self, subject: BreakerSubject) -> BreakerPermit {
        BreakerPermit { generation: self.generation, subject }
    }

    fn open(&mut self, now: Instant, pause: Duration) {
        let pause = self.bounded(pause);
        self.set_state(BreakerState::Open { until: now + pause, pause });
    }

    fn set_state(&mut self, state: BreakerState) {
        self.state = state;
        self.generation = self.generation.saturating_add(1);
    }

    pub(crate) fn status(&self) -> BreakerStatus {
        match self.state {
            BreakerState::Closed { .. } => BreakerStatus::Closed,
            BreakerState::Open { .. } => BreakerStatus::Open,
            BreakerState::HalfOpen { .. } => BreakerStatus::HalfOpen,
        }
    }
}

/// The time until `until`; `None` if it has passed.
fn time_left(until: Instant, now: Instant) -> Option<Duration> {
    Some(until.saturating_duration_since(now)).filter(|time_left| !time_left.is_zero())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const CALL_TIMEOUT: Duration = Duration::from_secs(10);

    fn breaker() -> (Breaker, Instant) {
        (Breaker::new(3, SECOND), Instant::now())
    }

    fn fail(breaker: &mut Breaker, object: &str, now: Instant) {
        let permit = admit(breaker, object, now).unwrap();
        breaker.record_failure(permit, now);
    }

    fn succeed(breaker: &mut Breaker, object: &str, now: Instant) {
        let permit = admit(breaker, object, now).unwrap();
        breaker.record_success(permit);
    }

    fn admit(breaker: &mut Breaker, object: &str, now: Instant) -> Result<BreakerPermit, OpenCircuit> {
        let subject = breaker.subject(&object);
        breaker.admit(subject, now, CALL_TIMEOUT)
    }

    fn open_breaker() -> (Breaker, Instant) {
        let (mut breaker, now) = breaker();
        for object in ["a", "b", "c"] {
            fail(&mut breaker, object, now);
        }
        assert_eq!(breaker.status(), BreakerStatus::Open);
        (breaker, now)
    }

    const fn of_driver(pause: Duration) -> Result<BreakerPermit, OpenCircuit> {
        Err(OpenCircuit { is_of_subject: false, pause })
    }

    const fn of_subject(pause: Duration) -> Result<BreakerPermit, OpenCircuit> {
        Err(OpenCircuit { is_of_subject: true, pause })
    }

    #[test]
    fn failures_of_different_subjects_without_a_success_open_the_circuit() {
        // A failure of the object, or a success if the object has an exclamation mark.
        for (calls, expected) in [
            ("a b c", BreakerStatus::Open),
            ("a b", BreakerStatus::Closed),
            ("a b a b a b", BreakerStatus::Closed),
            ("a b x! c d", BreakerStatus::Closed),
            ("a b x! c d e", BreakerStatus::Open),
            ("a b x! a b", BreakerStatus::Closed),
            ("a b x! a b c", BreakerStatus::Open),
            ("a b a! a b", BreakerStatus::Closed),
        ] {
            let (mut breaker, now) = breaker();
            for call in calls.split(' ') {
                match call.strip_suffix('!') {
                    Some(object) => succeed(&mut breaker, object, now),
                    None => fail(&mut breaker, call, now),
                }
            }
            assert_eq!(breaker.status(), expected, "{calls}");
        }
    }

    #[test]
    fn a_waiting_call_is_rejected_after_failures_of_its_subject() {
        let (mut breaker, now) = breaker();
        let (waiting, other) =
            (admit(&mut breaker, "a", now).unwrap(), admit(&mut breaker, "b", now).unwrap());
        for _ in 0..3 {
            fail(&mut breaker, "a", now);
        }
        assert_eq!(breaker.readmit(waiting, now, CALL_TIMEOUT), of_subject(SECOND));
        assert!(breaker.readmit(other, now, CALL_TIMEOUT).is_ok());
    }

    #[test]
    fn a_subject_that_always_fails_is_rejected_alone() {
        let (mut breaker, mut now) = breaker();
        for _ in 0..3 {
            fail(&mut breaker, "a", now);
        }
        let mut pause = SECOND;
        for _ in 0..10 {
            assert_eq!(admit(&mut breaker, "a", now), of_subject(pause));
            succeed(&mut breaker, "b", now);
            now += pause;
            fail(&mut breaker, "a", now);
            pause = (pause * 2).min(SECOND * 60);
        }
        assert_eq!(breaker.status(), BreakerStatus::Closed);
        now += pause;
        succeed(&mut breaker, "a", now);
        fail(&mut breaker, "a", now);
        assert!(admit(&mut breaker, "a", now).is_ok(), "a success resets the count");
    }

    #[test]
    fn the_trial_is_another_subject_first() {
        let (mut breaker, mut now) = open_breaker();
        now += SECOND;
        // Its own calls come first, each time.
        for pause in [1, 2, 4, 8] {
            assert_eq!(admit(&mut breaker, "a", now), of_driver(SECOND * pause));
            fail(&mut breaker, &format!("new-{pause}"), now);
            assert_eq!(admit(&mut breaker, "d", now), of_driver(SECOND * pause * 2));
            now += SECOND * pause * 2;
        }
        succeed(&mut breaker, "d", now);
        assert_eq!(breaker.status(), BreakerStatus::Closed);
        assert!(admit(&mut breaker, "a", now).is_ok());
    }

    #[test]
    fn a_subject_that_failed_becomes_the_trial_if_there_is_no_other() {
        let (mut breaker, now) = open_breaker();
        assert_eq!(admit(&mut breaker, "a", now), of_driver(SECOND * 2));
        fail(&mut breaker, "a", now + SECOND * 2);
        // Twice the delay, and the same again.
        assert_eq!(admit(&mut breaker, "b", now + SECOND * 2), of_driver(SECOND * 4));
        succeed(&mut breaker, "b", now + SECOND * 6);
        assert_eq!(breaker.status(), BreakerStatus::Closed);
    }

    #[test]
    fn half_open_breaker_admits_one_call_and_doubles_the_pause() {
        let (mut breaker, mut now) = open_breaker();
        assert_eq!(admit(&mut breaker, "x", now), of_driver(SECOND));
        let mut pause = SECOND;
        for number in 0..10 {
            now += pause;
            let trial = admit(&mut breaker, &number.to_string(), now).unwrap();
            assert_eq!(admit(&mut breaker, "x", now), of_driver(CALL_TIMEOUT));
            breaker.record_failure(trial, now);
            pause = (pause * 2).min(SECOND * 60);
            assert_eq!(admit(&mut breaker, "x", now), of_driver(pause));
        }
        now += pause;
        succeed(&mut breaker, "x", now);
        assert_eq!(breaker.status(), BreakerStatus::Closed);
        assert!(admit(&mut breaker, "y", now).is_ok());
    }

    #[test]
    fn lost_trial_call_is_replaced_after_its_deadline() {
        let (mut breaker, now) = open_breaker();
        assert!(admit(&mut breaker, "x", now + SECOND).is_ok());
        let trial = admit(&mut breaker, "y", now + SECOND + CALL_TIMEOUT).unwrap();
        breaker.record_ignored(trial, now + SECOND + CALL_TIMEOUT);
        assert!(admit(&mut breaker, "z", now + SECOND + CALL_TIMEOUT).is_ok());
    }

    #[test]
    fn calls_admitted_before_opening_do_not_affect_the_trial() {
        let (mut breaker, now) = breaker();
        let early = admit(&mut breaker, "early", now).unwrap();
        for object in ["a", "b", "c"] {
            fail(&mut breaker, object, now);
        }
        let readmission = breaker.readmit(early, now, CALL_TIMEOUT);
        assert_eq!(readmission, of_driver(SECOND), "a call that waited while it opened");
        let trial = admit(&mut breaker, "x", now + SECOND).unwrap();
        breaker.record_success(early);
        breaker.record_ignored(early, now + SECOND);
        breaker.record_failure(early, now + SECOND);
        assert_eq!(breaker.status(), BreakerStatus::HalfOpen);
        assert_eq!(admit(&mut breaker, "y", now + SECOND), of_driver(CALL_TIMEOUT), "one trial at a time");
        breaker.record_failure(trial, now + SECOND);
        assert_eq!(admit(&mut breaker, "y", now + SECOND), of_driver(SECOND * 2));
    }

    #[test]
    fn remembered_subjects_are_bounded() {
        let mut breaker = Breaker::new(u32::MAX, SECOND);
        let now = Instant::now();
        for number in 0..u32::try_from(MAX_SUBJECTS).unwrap() + 10 {
            fail(&mut breaker, &number.to_string(), now + SECOND * number);
        }
        assert_eq!(breaker.failing.len(), MAX_SUBJECTS);
        assert!(!breaker.failing.contains_key(&breaker.subject(&"9")), "the oldest is forgotten");
        assert_eq!(breaker.status(), BreakerStatus::Closed);
    }
}
