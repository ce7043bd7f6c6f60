//! When a node's list is written again. On an idle cluster at once; where a write takes long because
//! everybody writes, one tells of all volumes that came meanwhile.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use cofferdam_domain::NodeName;
use tokio::time::Instant;

/// The pause, by what the last write took.
const DELAY_FACTOR: u32 = 2;
/// No pause is longer: a pod waits for the list that its volume is in.
const MAX_DELAY: Duration = Duration::from_secs(1);

/// Nodes whose lists rest, until when.
#[derive(Debug, Default)]
pub(super) struct NodeStatusThrottle(Mutex<HashMap<NodeName, Instant>>);

impl NodeStatusThrottle {
    /// For how long a node's list rests still.
    pub(super) fn remaining(&self, node: &NodeName) -> Option<Duration> {
        let mut resting = self.lock();
        let left = resting.get(node)?.saturating_duration_since(Instant::now());
        if left.is_zero() {
            resting.remove(node);
            return None;
        }
        Some(left)
    }

    /// A node's list was written, or not, and it took so long to know.
    pub(super) fn record_write(&self, node: &NodeName, took: Duration) {
        let pause = took.saturating_mul(DELAY_FACTOR).min(MAX_DELAY);
        self.lock().insert(node.clone(), Instant::now() + pause);
    }

    /// There is no such node any more.
    pub(super) fn remove(&self, node: &NodeName) {
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
    async fn the_delay_follows_the_duration_of_the_last_write() {
        let (throttle, node, other) =
            (NodeStatusThrottle::default(), NodeName::from("a"), NodeName::from("b"));
        assert_eq!(throttle.remaining(&node), None);
        for (took, pause) in [(3, Some(6)), (400, Some(800)), (60_000, Some(1000)), (0, None)] {
            throttle.record_write(&node, Duration::from_millis(took));
            assert_eq!(throttle.remaining(&node), pause.map(Duration::from_millis), "{took} ms");
            assert_eq!(throttle.remaining(&other), None);
        }
        throttle.record_write(&node, Duration::from_millis(10));
        tokio::time::advance(Duration::from_millis(5)).await;
        assert_eq!(throttle.remaining(&node), Some(Duration::from_millis(15)));
        tokio::time::advance(Duration::from_millis(15)).await;
        assert_eq!(throttle.remaining(&node), None);
        assert!(throttle.lock().is_empty());
        throttle.record_write(&node, MAX_DELAY);
        throttle.remove(&node);
        assert_eq!(throttle.remaining(&node), None);
    }
}
