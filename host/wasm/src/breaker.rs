//! Circuit breaker of a backend: rejects calls while the backend only traps, hangs or exceeds its limits.
//!
//! Closed: calls are admitted. Open, after consecutive failures: calls are rejected for a delay. Half-open:
//! one trial call is admitted; its success closes the circuit, its failure opens it for twice the delay, up
//! to 60 times the first delay. Errors that the guest itself returns count as successes.

use std::time::Duration;

use tokio::time::Instant;

/// Maximum delay, as a multiple of the initial delay: one minute with the default of one second.
const MAX_PAUSE_FACTOR: u32 = 60;

/// State of one backend's breaker. The caller passes the current time to each method.
#[derive(Debug)]
pub(crate) struct Breaker {
    threshold: u32,
    initial_pause: Duration,
    state: BreakerState,
    /// Incremented by each transition and each new trial. Permits of earlier generations are outdated.
    generation: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BreakerState {
    Closed { failures: u32 },
    Open { until: Instant, pause: Duration },
    HalfOpen { pause: Duration, trial_deadline: Instant },
}

/// Admission of a call. The call's result counts only if the breaker's state has not changed since: a call
/// that started before the circuit opened says nothing about the trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BreakerPermit(u64);

/// State of the breaker as a metric.
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
            state: BreakerState::Closed { failures: 0 },
            generation: 0,
        }
    }

    /// Admits a call of at most `max_duration`. The error is the longest time until the next call is
    /// admitted: the rest of the delay, or of the running trial's maximum duration.
    pub(crate) fn admit(&mut self, now: Instant, max_duration: Duration) -> Result<BreakerPermit, Duration> {
        match self.state {
            BreakerState::Closed { .. } => Ok(BreakerPermit(self.generation)),
            BreakerState::Open { until, .. } if now < until => Err(until - now),
            // A trial whose result was lost, with its task, blocks other calls only until its deadline.
            BreakerState::HalfOpen { trial_deadline: trial_until, .. } if now < trial_until => {
                Err(trial_until - now)
            }
            BreakerState::Open { pause, .. } | BreakerState::HalfOpen { pause, .. } => {
                self.set_state(BreakerState::HalfOpen { pause, trial_deadline: now + max_duration });
                Ok(BreakerPermit(self.generation))
            }
        }
    }

    /// Admits a call again after it has waited for an instance slot, because the circuit may have opened
    /// meanwhile. Returns the same permit if the state has not changed, else the result of `admit`.
    pub(crate) fn readmit(
        &mut self,
        permit: BreakerPermit,
        now: Instant,
        max_duration: Duration,
    ) -> Result<BreakerPermit, Duration> {
        if permit.0 == self.generation { Ok(permit) } else { self.admit(now, max_duration) }
    }

    /// Records a call that ended with a result of the guest, also an error or a result that breaks a rule of
    /// the contract.
    pub(crate) fn record_success(&mut self, permit: BreakerPermit) {
        if permit.0 != self.generation {
            return;
        }
        match self.state {
            BreakerState::Closed { .. } => self.state = BreakerState::Closed { failures: 0 },
            BreakerState::Open { .. } | BreakerState::HalfOpen { .. } => {
                self.set_state(BreakerState::Closed { failures: 0 })
            }
        }
    }

    /// Records a call that trapped, exited, hung or exceeded a limit, or during which the host panicked.
    pub(crate) fn record_failure(&mut self, permit: BreakerPermit, now: Instant) {
        if permit.0 != self.generation {
            return;
        }
        match self.state {
            BreakerState::Closed { failures } if failures + 1 < self.threshold => {
                self.state = BreakerState::Closed { failures: failures + 1 };
            }
            BreakerState::Closed { .. } => self.open(now, self.initial_pause),
            BreakerState::HalfOpen { pause, .. } => self.open(now, pause.saturating_mul(2)),
            BreakerState::Open { .. } => {}
        }
    }

    /// Records a call that counts neither as success nor as failure, such as one that did not reach the
    /// guest. If it was the trial, the next call becomes the trial.
    pub(crate) fn record_ignored(&mut self, permit: BreakerPermit, now: Instant) {
        if permit.0 == self.generation
            && let BreakerState::HalfOpen { pause, .. } = self.state
        {
            self.set_state(BreakerState::Open { until: now, pause });
        }
    }

    fn open(&mut self, now: Instant, pause: Duration) {
        let pause = pause.min(self.initial_pause.saturating_mul(MAX_PAUSE_FACTOR));
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

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const CALL_TIMEOUT: Duration = Duration::from_secs(10);

    fn open_breaker() -> (Breaker, Instant) {
        let (mut breaker, now) = (Breaker::new(3, SECOND), Instant::now());
        for _ in 0..3 {
            let pass = breaker.admit(now, CALL_TIMEOUT).unwrap();
            breaker.record_failure(pass, now);
        }
        (breaker, now)
    }

    #[test]
    fn breaker_opens_after_consecutive_failures_only() {
        let (mut breaker, now) = (Breaker::new(3, SECOND), Instant::now());
        let pass = breaker.admit(now, CALL_TIMEOUT).unwrap();
        for _ in 0..5 {
            breaker.record_failure(pass, now);
            breaker.record_failure(pass, now);
            breaker.record_success(pass);
        }
        assert_eq!(breaker.status(), BreakerStatus::Closed);
        assert_eq!(open_breaker().0.status(), BreakerStatus::Open);
    }

    #[test]
    fn half_open_breaker_admits_one_call_and_doubles_the_pause() {
        let (mut breaker, mut now) = open_breaker();
        assert_eq!(breaker.admit(now, CALL_TIMEOUT), Err(SECOND));
        let mut pause = SECOND;
        for _ in 0..10 {
            now += pause;
            let trial = breaker.admit(now, CALL_TIMEOUT).unwrap();
            assert_eq!(breaker.admit(now, CALL_TIMEOUT), Err(CALL_TIMEOUT));
            breaker.record_failure(trial, now);
            pause = (pause * 2).min(SECOND * 60);
            assert_eq!(breaker.admit(now, CALL_TIMEOUT), Err(pause));
        }
        now += pause;
        let trial = breaker.admit(now, CALL_TIMEOUT).unwrap();
        breaker.record_success(trial);
        assert_eq!(breaker.status(), BreakerStatus::Closed);
        assert!(breaker.admit(now, CALL_TIMEOUT).is_ok());
    }

    #[test]
    fn lost_trial_call_is_replaced_after_its_deadline() {
        let (mut breaker, now) = open_breaker();
        assert!(breaker.admit(now + SECOND, CALL_TIMEOUT).is_ok());
        let trial = breaker.admit(now + SECOND + CALL_TIMEOUT, CALL_TIMEOUT).unwrap();
        breaker.record_ignored(trial, now + SECOND + CALL_TIMEOUT);
        assert!(breaker.admit(now + SECOND + CALL_TIMEOUT, CALL_TIMEOUT).is_ok());
    }

    #[test]
    fn calls_admitted_before_opening_do_not_affect_the_trial() {
        let (mut breaker, now) = (Breaker::new(3, SECOND), Instant::now());
        let early = breaker.admit(now, CALL_TIMEOUT).unwrap();
        for _ in 0..3 {
            breaker.record_failure(early, now);
        }
        breaker.record_failure(early, now + SECOND / 2);
        assert_eq!(
            breaker.readmit(early, now, CALL_TIMEOUT),
            Err(SECOND),
            "a call that waited while it opened"
        );
        let trial = breaker.admit(now + SECOND, CALL_TIMEOUT).unwrap();
        breaker.record_success(early);
        breaker.record_ignored(early, now + SECOND);
        breaker.record_failure(early, now + SECOND);
        assert_eq!(breaker.status(), BreakerStatus::HalfOpen);
        assert_eq!(breaker.admit(now + SECOND, CALL_TIMEOUT), Err(CALL_TIMEOUT), "one trial at a time");
        breaker.record_failure(trial, now + SECOND);
        assert_eq!(breaker.admit(now + SECOND, CALL_TIMEOUT), Err(SECOND * 2));
    }
}
