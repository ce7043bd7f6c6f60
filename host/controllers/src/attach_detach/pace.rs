//! When a node's list is written again. On an idle cluster at once; where a write takes long because everybody writes, one tells of
//! all volumes that came meanwhile.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use cofferdam_domain::NodeName;
use tokio::time::Instant;

/// The pause, by what the last write took.
const TIMES: u32 = 2;
/// No pause is longer: a pod waits for the list that its volume is in.
const LONGEST: Duration = Duration::from_secs(1);

/// Nodes whose lists rest, until when.
#[derive(Debug, Default)]
pub(super) struct Pace(Mutex<HashMap<NodeName, Instant>>);

impl Pace {
    /// For how long a node's list rests still.
    pub(super) fn left(&self, node: &NodeName) -> Option<Duration> {
        let mut resting = self.lock();
        let left = resting.get(node)?.saturating_duration_since(Instant::now());
        if left.is_zero() {
            resting.remove(node);
            return None;
        }
        Some(left)
    }

    /// A node's list was written, or not, and it took so long to know.
    pub(super) fn wrote(&self, node: &NodeName, took: Duration) {
        let pause = took.saturating_mul(TIMES).min(LONGEST);
        self.lock().insert(node.clone(), Instant::now() + pause);
    }

    /// There is no such node any more.
    pub(super) fn forget(&self, node: &NodeName) {
        self.lock().remove(node);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<NodeName, Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_list_rests_by_what_its_write_took() {
        let (pace, node, other) = (Pace::default(), NodeName::from("a"), NodeName::from("b"));
        assert_eq!(pace.left(&node), None);
        for (took, pause) in [(3, Some(6)), (400, Some(800)), (60_000, Some(1000)), (0, None)] {
            pace.wrote(&node, Duration::from_millis(took));
            assert_eq!(pace.left(&node), pause.map(Duration::from_millis), "{took} ms");
            assert_eq!(pace.left(&other), None);
        }
        pace.wrote(&node, Duration::from_millis(10));
        tokio::time::advance(Duration::from_millis(5)).await;
        assert_eq!(pace.left(&node), Some(Duration::from_millis(15)));
        tokio::time::advance(Duration::from_millis(15)).await;
        assert_eq!(pace.left(&node), None);
        assert!(pace.lock().is_empty());
        pace.wrote(&node, LONGEST);
        pace.forget(&node);
        assert_eq!(pace.left(&node), None);
    }
}
