//! Leadership of a process, as its controllers see it: a sequence of terms, in which they may work.

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// A time in which this process leads. Clones are the same term.
#[derive(Clone, Debug)]
pub struct Term {
    ended: CancellationToken,
}

impl Term {
    /// Waits until the term has ended. From then on the process must begin nothing.
    pub async fn wait_end(&self) {
        self.ended.cancelled().await;
    }

    /// Returns true once the term has ended.
    pub fn has_ended(&self) -> bool {
        self.ended.is_cancelled()
    }
}

/// Begins and ends the terms of [`Leadership`].
#[derive(Debug)]
pub struct TermSender(watch::Sender<Option<Term>>);

impl TermSender {
    /// Begins a term, after the former one has ended.
    pub fn begin(&self) {
        self.0.send_replace(Some(Term { ended: CancellationToken::new() }));
    }

    /// Ends the term, if there is one.
    pub fn end(&self) {
        if let Some(term) = self.0.send_replace(None) {
            term.ended.cancel();
        }
    }
}

impl Drop for TermSender {
    /// Without a sender nobody renews the Lease.
    fn drop(&mut self) {
        self.end();
    }
}

/// Receives the terms of a process.
#[derive(Clone, Debug)]
pub struct Leadership {
    terms: watch::Receiver<Option<Term>>,
    is_permanent: bool,
}

impl Leadership {
    /// The leadership of a process without leader election: one term without an end.
    pub fn permanent() -> Self {
        let term = Term { ended: CancellationToken::new() };
        Self { terms: watch::channel(Some(term)).1, is_permanent: true }
    }

    /// A leadership whose terms the sender begins and ends. There is none at first.
    pub fn elected() -> (TermSender, Self) {
        let (sender, terms) = watch::channel(None);
        (TermSender(sender), Self { terms, is_permanent: false })
    }

    /// True if the process leads without an election.
    pub const fn is_permanent(&self) -> bool {
        self.is_permanent
    }

    /// The current term. `None` if the process does not lead.
    pub fn term(&self) -> Option<Term> {
        self.terms.borrow().clone()
    }

    /// Waits for a term that has not ended, and returns it.
    pub async fn wait_term(&mut self) -> Term {
        match self.terms.wait_for(Option::is_some).await.map(|term| term.clone()) {
            Ok(Some(term)) => term,
            // No further term begins.
            Ok(None) | Err(_) => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn terms_begin_and_end_with_their_sender() {
        let (sender, mut leadership) = Leadership::elected();
        assert!(leadership.term().is_none());
        assert!(leadership.wait_term().now_or_never().is_none());
        sender.begin();
        let first = leadership.wait_term().await;
        sender.end();
        assert!(first.has_ended() && leadership.term().is_none());
        sender.begin();
        let second = leadership.wait_term().await;
        assert!(!second.has_ended(), "another term");
        drop(sender);
        second.wait_end().await;
        assert!(leadership.wait_term().now_or_never().is_none());
    }

    #[tokio::test]
    async fn a_process_without_election_leads() {
        let mut leadership = Leadership::permanent();
        assert!(leadership.is_permanent() && !leadership.wait_term().await.has_ended());
    }
}
