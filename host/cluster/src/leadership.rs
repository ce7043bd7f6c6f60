//! Leadership of a process, as its controllers see it: a sequence of terms, in which they may work.

use cofferdam_domain::term::{Permit, PermitSource, Term, TermEnded};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// A [`Term`], and a notification of its end. Clones are the same term.
#[derive(Clone, Debug)]
pub struct LeaderTerm {
    term: Term,
    ended: CancellationToken,
}

impl LeaderTerm {
    fn new(term: Term) -> Self {
        Self { term, ended: CancellationToken::new() }
    }

    /// The term, which gives permits. It may end before [`LeaderTerm::wait_end`] returns.
    pub const fn term(&self) -> &Term {
        &self.term
    }

    /// Waits until the leader election has ended the term.
    pub async fn wait_end(&self) {
        self.ended.cancelled().await;
    }
}

/// Begins and ends the terms of [`Leadership`].
#[derive(Debug)]
pub struct TermSender {
    terms: watch::Sender<Option<LeaderTerm>>,
    resigned: CancellationToken,
}

impl TermSender {
    /// Announces a term, after the former one has ended.
    pub fn begin(&self, term: Term) {
        self.terms.send_replace(Some(LeaderTerm::new(term)));
    }

    /// Ends the term, if there is one.
    pub fn end(&self) {
        if let Some(LeaderTerm { term, ended }) = self.terms.send_replace(None) {
            term.end();
            ended.cancel();
        }
    }

    /// Waits for [`Leadership::resign`].
    pub async fn wait_resigned(&self) {
        self.resigned.cancelled().await;
    }

    /// True after [`Leadership::resign`].
    pub fn is_resigned(&self) -> bool {
        self.resigned.is_cancelled()
    }
}

impl Drop for TermSender {
    /// Without a sender no process renews the Lease.
    fn drop(&mut self) {
        self.end();
    }
}

/// Receives the terms of a process.
#[derive(Clone, Debug)]
pub struct Leadership {
    terms: watch::Receiver<Option<LeaderTerm>>,
    resigned: CancellationToken,
    is_permanent: bool,
}

impl Leadership {
    /// The leadership of a process without leader election: one term without an end.
    pub fn permanent() -> Self {
        let term = LeaderTerm::new(Term::permanent());
        Self { terms: watch::channel(Some(term)).1, resigned: CancellationToken::new(), is_permanent: true }
    }

    /// A leadership whose terms the sender begins and ends. There is none at first.
    pub fn elected() -> (TermSender, Self) {
        let (sender, terms) = watch::channel(None);
        let resigned = CancellationToken::new();
        (
            TermSender { terms: sender, resigned: resigned.clone() },
            Self { terms, resigned, is_permanent: false },
        )
    }

    /// True if the process leads without an election.
    pub const fn is_permanent(&self) -> bool {
        self.is_permanent
    }

    /// The current term. `None` if the process does not lead.
    pub fn term(&self) -> Option<LeaderTerm> {
        self.terms.borrow().clone()
    }

    /// Ends the candidacy after all work has ended: the sender ends the term and begins no further one.
    pub fn resign(&self) {
        self.resigned.cancel();
    }

    /// Waits for a term, and returns it.
    pub async fn wait_term(&mut self) -> LeaderTerm {
        match self.terms.wait_for(Option::is_some).await.map(|term| term.clone()) {
            Ok(Some(term)) => term,
            // No further term begins.
            Ok(None) | Err(_) => std::future::pending().await,
        }
    }
}

impl PermitSource for Leadership {
    /// A permit of the current term.
    fn permit(&self) -> Result<Permit, TermEnded> {
        self.terms.borrow().as_ref().ok_or(TermEnded)?.term.permit()
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use futures::FutureExt as _;

    use super::*;

    fn term() -> Term {
        Term::until(Duration::from_secs(1), Arc::new(|| Duration::ZERO))
    }

    #[tokio::test]
    async fn terms_begin_and_end_with_their_sender() {
        let (sender, mut leadership) = Leadership::elected();
        assert!(leadership.term().is_none());
        assert!(leadership.wait_term().now_or_never().is_none());
        sender.begin(term());
        let first = leadership.wait_term().await;
        assert!(first.term().permit().is_ok());
        sender.end();
        first.wait_end().await;
        assert!(first.term().permit().is_err() && leadership.term().is_none());
        sender.begin(term());
        let second = leadership.wait_term().await;
        assert!(second.term().permit().is_ok(), "another term");
        drop(sender);
        second.wait_end().await;
        assert!(second.term().permit().is_err() && leadership.wait_term().now_or_never().is_none());
    }

    #[tokio::test]
    async fn a_process_without_election_leads() {
        let mut leadership = Leadership::permanent();
        assert!(leadership.is_permanent() && leadership.wait_term().await.term().permit().is_ok());
    }
}
