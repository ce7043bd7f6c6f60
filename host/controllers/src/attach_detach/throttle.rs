//! Limits the rate of `volumesAttached` updates of each node. The delay after an update is proportional to
//! the duration of that update, up to a maximum, so it is short on an idle cluster. If updates are slow
//! because of load, one update reports all volumes that were attached meanwhile.

use std::{collections::HashMap, time::Duration};

use cofferdam_domain::NodeName;
use parking_lot::Mutex;
use tokio::time::Instant;

/// Delay as a multiple of the duration of the last update.
const DELAY_FACTOR: u32 = 2;
/// Maximum delay: a pod starts only after `volumesAttached` has its volumes.
const MAX_DELAY: Duration = Duration::from_secs(1);

/// Earliest time of the next `volumesAttached` update, by node.
#[derive(Debug, Default)]
pub(super) struct NodeStatusThrottle(Mutex<HashMap<NodeName, Instant>>);

impl NodeStatusThrottle {
    /// Returns the delay until the next update of a node; `None` if the update may be sent now.
    pub(super) fn remaining(&self, node: &NodeName) -> Option<Duration> {
        let mut next_updates = self.0.lock();
        let left = next_updates.get(node)?.saturating_duration_since(Instant::now());
        if left.is_zero() {
            next_updates.remove(node);
            return None;
        }
        Some(left)
    }

    /// Records the duration of an update, successful or not. The caller omits updates that end with a
    /// conflict.
    pub(super) fn record_write(&self, node: &NodeName, took: Duration) {
        self.delay(node, took.saturating_mul(DELAY_FACTOR).min(MAX_DELAY));
    }

    /// Records an update that the API server refused, or that this process must not send.
    pub(super) fn record_refusal(&self, node: &NodeName) {
        self.delay(node, MAX_DELAY);
    }

    fn delay(&self, node: &NodeName, delay: Duration) {
        self.0.lock().insert(node.clone(), Instant::now() + delay);
    }

    /// Removes a deleted node.
    pub(super) fn remove(&self, node: &NodeName) {
        self.0.lock().remove(node);
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
        for (took, delay) in [(3, Some(6)), (400, Some(800)), (60_000, Some(1000)), (0, None)] {
            throttle.record_write(&node, Duration::from_millis(took));
            assert_eq!(throttle.remaining(&node), delay.map(Duration::from_millis), "{took} ms");
            assert_eq!(throttle.remaining(&other), None);
        }
        throttle.record_write(&node, Duration::from_millis(10));
        tokio::time::advance(Duration::from_millis(5)).await;
        assert_eq!(throttle.remaining(&node), Some(Duration::from_millis(15)));
        tokio::time::advance(Duration::from_millis(15)).await;
        assert_eq!(throttle.remaining(&node), None);
        assert!(throttle.0.lock().is_empty());
        throttle.record_refusal(&node);
        assert_eq!(throttle.remaining(&node), Some(MAX_DELAY));
        throttle.remove(&node);
        assert_eq!(throttle.remaining(&node), None);
    }
}
