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
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Closed { failures: u32 },
    Open { until: Instant, pause: Duration },
    HalfOpen { pause: Duration, trial_until: Instant },
}

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
        Self { threshold: threshold.max(1), first_pause, state: State::Closed { failures: 0 } }
    }

    /// Asks for a call that takes at most `longest`; refused calls learn when to come back.
    pub(crate) fn admit(&mut self, now: Instant, longest: Duration) -> Result<(), Duration> {
        match self.state {
            State::Closed { .. } => Ok(()),
            State::Open { until, .. } if now < until => Err(until - now),
            // A trial whose end was never told, because its task was lost, does not close the door for ever.
            State::HalfOpen { trial_until, .. } if now < trial_until => Err(trial_until - now),
            State::Open { pause, .. } | State::HalfOpen { pause, .. } => {
                self.state = State::HalfOpen { pause, trial_until: now + longest };
                Ok(())
            }
        }
    }

    /// A call ended with an answer of the guest.
    pub(crate) fn succeeded(&mut self) {
        self.state = State::Closed { failures: 0 };
    }

    /// A call trapped, hung or broke the host's rules.
    pub(crate) fn failed(&mut self, now: Instant) {
        self.state = match self.state {
            State::Closed { failures } if failures + 1 < self.threshold => {
                State::Closed { failures: failures + 1 }
            }
            State::Closed { .. } => self.open(now, self.first_pause),
            State::HalfOpen { pause, .. } => self.open(now, pause.saturating_mul(2)),
            // Calls that were admitted before it opened.
            open @ State::Open { .. } => open,
        };
    }

    /// A trial ended before the guest was reached: the next call may try.
    pub(crate) fn undecided(&mut self, now: Instant) {
        if let State::HalfOpen { pause, .. } = self.state {
            self.state = State::Open { until: now, pause };
        }
    }

    fn open(&self, now: Instant, pause: Duration) -> State {
        let pause = pause.min(self.first_pause.saturating_mul(LONGEST));
        State::Open { until: now + pause, pause }
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
            breaker.failed(now);
        }
        (breaker, now)
    }

    #[test]
    fn it_opens_after_consecutive_failures_only() {
        let (mut breaker, now) = (Breaker::new(3, SECOND), Instant::now());
        for _ in 0..5 {
            breaker.failed(now);
            breaker.failed(now);
            breaker.succeeded();
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
            assert_eq!(breaker.admit(now, LONG), Ok(()));
            assert_eq!(breaker.admit(now, LONG), Err(LONG));
            breaker.failed(now);
            pause = (pause * 2).min(SECOND * 60);
            assert_eq!(breaker.admit(now, LONG), Err(pause));
        }
        now += pause;
        assert_eq!(breaker.admit(now, LONG), Ok(()));
        breaker.succeeded();
        assert_eq!(breaker.admit(now, LONG), Ok(()));
        assert_eq!(breaker.position(), Position::Closed);
    }

    #[test]
    fn a_lost_trial_is_tried_again() {
        let (mut breaker, now) = opened();
        assert_eq!(breaker.admit(now + SECOND, LONG), Ok(()));
        assert_eq!(breaker.admit(now + SECOND + LONG, LONG), Ok(()));
        breaker.undecided(now + SECOND + LONG);
        assert_eq!(breaker.admit(now + SECOND + LONG, LONG), Ok(()));
    }

    #[test]
    fn late_failures_do_not_prolong_the_pause() {
        let (mut breaker, now) = opened();
        breaker.failed(now + SECOND / 2);
        assert_eq!(breaker.admit(now + SECOND, LONG), Ok(()));
    }
}
