//! Terms of leadership: the times in which a process may begin effects.
//!
//! An effect is a driver call, an HTTP exchange of a driver, or a write to the API server. A process begins
//! one only with a [`Permit`], and only a [`Term`] that has not ended gives permits. The end of a term does
//! not depend on a timer or a task that runs late: each permit compares the clock with the end.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// A clock that goes on while the process is stopped or the machine is suspended (`CLOCK_BOOTTIME`). Returns
/// the time since an arbitrary point in the past.
pub type BootClock = Arc<dyn Fn() -> Duration + Send + Sync>;

/// Value of [`Limit::end`] for a term that has ended for good.
const ENDED: u64 = 0;

/// A time in which this process may begin effects. It ends with the first of its limits, one for each Lease;
/// a term without limits is permanent. Clones are the same term.
#[derive(Clone)]
pub struct Term(Arc<[Arc<Limit>]>);

struct Limit {
    clock: BootClock,
    /// Time of the clock at which the term ends, in nanoseconds; [`ENDED`] after [`Term::end`].
    end: AtomicU64,
}

/// The permission to begin one effect. It is not kept: the term may end meanwhile. Functions that begin an
/// effect take it by value.
#[derive(Debug)]
pub struct Permit(());

/// A source of permits: a [`Term`], or the leadership of a process, whose terms follow each other.
pub trait PermitSource: Send + Sync {
    /// The permission to begin one effect now.
    ///
    /// # Errors
    /// [`TermEnded`]
    fn permit(&self) -> Result<Permit, TermEnded>;
}

/// The term has ended: another process may lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this process does not lead: its term has ended")]
pub struct TermEnded;

impl Term {
    /// The term of a process without leader election, which does not end.
    pub fn permanent() -> Self {
        Self(Arc::default())
    }

    /// The term that ends with the first of these.
    pub fn first_to_end<'a>(terms: impl IntoIterator<Item = &'a Self>) -> Self {
        Self(terms.into_iter().flat_map(|term| term.0.iter().cloned()).collect())
    }

    /// A term that ends when `clock` reaches `end`, unless it is [extended](Self::extend).
    pub fn until(end: Duration, clock: BootClock) -> Self {
        Self(Arc::new([Arc::new(Limit { clock, end: AtomicU64::new(nanoseconds(end)) })]))
    }

    /// Moves the end, after the Lease was renewed. Has no effect on a term that has [ended](Self::end) or is
    /// permanent, or if the term has ended by its clock: then another process may lead.
    pub fn extend(&self, end: Duration) {
        for limit in &*self.0 {
            let extend = |current| (limit.now() < current).then(|| nanoseconds(end).max(current));
            let _ = limit.end.fetch_update(Ordering::SeqCst, Ordering::SeqCst, extend);
        }
    }

    /// Ends the term. A permanent term does not end.
    pub fn end(&self) {
        for limit in &*self.0 {
            limit.end.store(ENDED, Ordering::SeqCst);
        }
    }
}

impl PermitSource for Term {
    fn permit(&self) -> Result<Permit, TermEnded> {
        match self.0.iter().all(|limit| limit.now() < limit.end.load(Ordering::SeqCst)) {
            true => Ok(Permit(())),
            false => Err(TermEnded),
        }
    }
}

impl Limit {
    fn now(&self) -> u64 {
        nanoseconds((self.clock)())
    }
}

impl PartialEq for Term {
    /// Terms with the same limits are equal.
    fn eq(&self, other: &Self) -> bool {
        let (one, other) = (&self.0, &other.0);
        one.len() == other.len() && one.iter().zip(&**other).all(|(one, other)| Arc::ptr_eq(one, other))
    }
}

impl Eq for Term {}

impl fmt::Debug for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Term").field("permit", &self.permit()).finish_non_exhaustive()
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn term(end: u64) -> (Arc<AtomicU64>, Term) {
        let seconds = Arc::new(AtomicU64::new(1));
        let clock = Arc::clone(&seconds);
        let clock: BootClock = Arc::new(move || Duration::from_secs(clock.load(Ordering::SeqCst)));
        (seconds, Term::until(Duration::from_secs(end), clock))
    }

    #[test]
    fn a_term_gives_permits_until_its_end_by_the_clock() {
        let (seconds, term) = term(10);
        for (now, expected) in [(1, true), (9, true), (10, false), (86_400, false)] {
            seconds.store(now, Ordering::SeqCst);
            assert_eq!(term.permit().is_ok(), expected, "at {now}");
        }
        term.extend(Duration::from_secs(100_000));
        assert_eq!(term.permit().unwrap_err(), TermEnded, "an ended term is not extended");
    }

    #[test]
    fn a_renewal_extends_the_term_and_never_shortens_it() {
        let (seconds, term) = term(10);
        term.extend(Duration::from_secs(20));
        term.extend(Duration::from_secs(15));
        seconds.store(19, Ordering::SeqCst);
        assert!(term.permit().is_ok());
        term.clone().end();
        assert!(term.permit().is_err(), "clones are one term");
        term.extend(Duration::from_secs(30));
        assert!(term.permit().is_err());
    }

    #[test]
    fn a_term_ends_with_the_first_of_its_limits() {
        let ((_, one), (_, other)) = (term(10), term(20));
        let both = Term::first_to_end([&one, &other]);
        assert!(both.permit().is_ok());
        other.end();
        assert!(both.permit().is_err() && one.permit().is_ok());
        assert_eq!(Term::first_to_end([]), Term::permanent());
    }

    #[test]
    fn a_permanent_term_does_not_end() {
        let term = Term::permanent();
        term.end();
        assert!(term.permit().is_ok());
    }
}
