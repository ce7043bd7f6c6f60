//! Leaves a backend alone that only traps or hangs.
//!
//! Closed → open after some consecutive failures → half-open after a pause: one call goes through; a success closes, a
//! failure opens again for twice as long. Errors that the guest itself returns are answers and count as successes.

use std::time::Duration;

use tokio::time::Instant;

/// The longest pause, in first pauses: one minute when the first is a second, so that a repaired backend is not waited for
/// longer than people are patient.
const LONGEST: u32 = 60;

/// State of one backend's breaker; the caller gives the time.
#[derive(Debug)]
pub(crate) struct Breaker {
    threshold: u32,
    first_pause: Duration,
    state: State,
    /// Counts the changes of the state.
    era: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Closed { failures: u32 },
    Open { until: Instant, pause: Duration },
    HalfOpen { pause: Duration, trial_until: Instant },
}

/// That a call was let through. How it ends counts as long as nothing has changed since: the end of a call that began before
/// the breaker opened says nothing about the trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pass(u64);

/// What the metric shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Position {
    /// Calls go through.
    Closed,
    /// One call is tried.
    HalfOpen,
    /// Calls are refused.
    Open,
}

impl Breaker {
    pub(crate) fn new(threshold: u32, first_pause: Duration) -> Self {
        Self { threshold: threshold.max(1), first_pause, state: State::Closed { failures: 0 }, era: 0 }
    }

    /// Asks for a call that takes at most `longest`; refused calls learn when to come back.
    pub(crate) fn admit(&mut self, now: Instant, longest: Duration) -> Result<Pass, Duration> {
        match self.state {
            State::Closed { .. } => Ok(Pass(self.era)),
            State::Open { until, .. } if now < until => Err(until - now),
            // A trial whose end was never told, because its task was lost, does not close the door for ever.
            State::HalfOpen { trial_until, .. } if now < trial_until => Err(trial_until - now),
            State::Open { pause, .. } | State::HalfOpen { pause, .. } => {
                self.enter(State::HalfOpen { pause, trial_until: now + longest });
                Ok(Pass(self.era))
            }
        }
    }

    /// Asks again for a call that has waited since it was let through.
    pub(crate) fn admit_again(
        &mut self,
        pass: Pass,
        now: Instant,
        longest: Duration,
    ) -> Result<Pass, Duration> {
        if pass.0 == self.era { Ok(pass) } else { self.admit(now, longest) }
    }

    /// A call ended with an answer of the guest.
    pub(crate) fn succeeded(&mut self, pass: Pass) {
        if pass.0 != self.era {
            return;
        }
        match self.state {
            State::Closed { .. } => self.state = State::Closed { failures: 0 },
            State::Open { .. } | State::HalfOpen { .. } => self.enter(State::Closed { failures: 0 }),
        }
    }

    /// A call trapped, hung or broke the host's rules.
    pub(crate) fn failed(&mut self, pass: Pass, now: Instant) {
        if pass.0 != self.era {
            return;
        }
        match self.state {
            State::Closed { failures } if failures + 1 < self.threshold => {
                self.state = State::Closed { failures: failures + 1 };
            }
            State::Closed { .. } => self.open(now, self.first_pause),
            State::HalfOpen { pause, .. } => self.open(now, pause.saturating_mul(2)),
            State::Open { .. } => {}
        }
    }

    /// A call ended before the guest was reached: if it was the trial, the next call may try.
    pub(crate) fn undecided(&mut self, pass: Pass, now: Instant) {
        if pass.0 == self.era
            && let State::HalfOpen { pause, .. } = self.state
        {
            self.enter(State::Open { until: now, pause });
        }
    }

    fn open(&mut self, now: Instant, pause: Duration) {
        let pause = pause.min(self.first_pause.saturating_mul(LONGEST));
        self.enter(State::Open { until: now + pause, pause });
    }

    fn enter(&mut self, state: State) {
        self.state = state;
        self.era = self.era.saturating_add(1);
    }

    pub(crate) fn position(&self) -> Position {
        match self.state {
            State::Closed { .. } => Position::Closed,
            State::Open { .. } => Position::Open,
            State::HalfOpen { .. } => Position::HalfOpen,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const LONG: Duration = Duration::from_secs(10);

    fn opened() -> (Breaker, Instant) {
        let (mut breaker, now) = (Breaker::new(3, SECOND), Instant::now());
        for _ in 0..3 {
            let pass = breaker.admit(now, LONG).unwrap();
            breaker.failed(pass, now);
        }
        (breaker, now)
    }

    #[test]
    fn it_opens_after_consecutive_failures_only() {
        let (mut breaker, now) = (Breaker::new(3, SECOND), Instant::now());
        let pass = breaker.admit(now, LONG).unwrap();
        for _ in 0..5 {
            breaker.failed(pass, now);
            breaker.failed(pass, now);
            breaker.succeeded(pass);
        }
        assert_eq!(breaker.position(), Position::Closed);
        assert_eq!(opened().0.position(), Position::Open);
    }

    #[test]
    fn it_lets_one_call_try_and_pauses_twice_as_long() {
        let (mut breaker, mut now) = opened();
        assert_eq!(breaker.admit(now, LONG), Err(SECOND));
        let mut pause = SECOND;
        for _ in 0..10 {
            now += pause;
            let trial = breaker.admit(now, LONG).unwrap();
            assert_eq!(breaker.admit(now, LONG), Err(LONG));
            breaker.failed(trial, now);
            pause = (pause * 2).min(SECOND * 60);
            assert_eq!(breaker.admit(now, LONG), Err(pause));
        }
        now += pause;
        let trial = breaker.admit(now, LONG).unwrap();
        breaker.succeeded(trial);
        assert_eq!(breaker.position(), Position::Closed);
        assert!(breaker.admit(now, LONG).is_ok());
    }

    #[test]
    fn a_lost_trial_is_tried_again() {
        let (mut breaker, now) = opened();
        assert!(breaker.admit(now + SECOND, LONG).is_ok());
        let trial = breaker.admit(now + SECOND + LONG, LONG).unwrap();
        breaker.undecided(trial, now + SECOND + LONG);
        assert!(breaker.admit(now + SECOND + LONG, LONG).is_ok());
    }

    #[test]
    fn what_began_before_says_nothing_about_the_trial() {
        let (mut breaker, now) = (Breaker::new(3, SECOND), Instant::now());
        let early = breaker.admit(now, LONG).unwrap();
        for _ in 0..3 {
            breaker.failed(early, now);
        }
        breaker.failed(early, now + SECOND / 2);
        assert_eq!(breaker.admit_again(early, now, LONG), Err(SECOND), "a call that waited while it opened");
        let trial = breaker.admit(now + SECOND, LONG).unwrap();
        breaker.succeeded(early);
        breaker.undecided(early, now + SECOND);
        breaker.failed(early, now + SECOND);
        assert_eq!(breaker.position(), Position::HalfOpen);
        assert_eq!(breaker.admit(now + SECOND, LONG), Err(LONG), "one trial at a time");
        breaker.failed(trial, now + SECOND);
        assert_eq!(breaker.admit(now + SECOND, LONG), Err(SECOND * 2));
    }
}
