//! The competition of the nodes of a node-local driver for claims without a selected node: each process
//! attempts to select its own node after a delay.

use std::{collections::HashMap, time::Duration};

use cofferdam_domain::Uid;
use tokio::time::Instant;

use crate::node_local::NodeDeployment;

/// Returns the delay before an attempt to select this node for a claim.
///
/// The delay starts with the base delay and doubles with each attempt, up to the maximum delay. A random part
/// of the base delay is then subtracted, so that the nodes do not compete at the same time. The random part
/// is a digest of claim, node and attempt, which makes tests reproducible. `attempt` is 0 for the first
/// attempt.
pub(super) fn attempt_delay(deployment: &NodeDeployment, claim: &Uid, attempt: u32) -> Duration {
    let longest = deployment
        .base_delay
        .saturating_mul(2_u32.saturating_pow(attempt))
        .min(deployment.max_delay.max(deployment.base_delay));
    let text = format!("{claim}/{}/{attempt}", deployment.node);
    let digest = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    // The low bits of FNV-1a hardly differ between names that differ in their last characters.
    let parts = u32::try_from((digest ^ (digest >> 32)) % 1000).unwrap_or_default();
    longest.saturating_sub(deployment.base_delay.saturating_mul(parts) / 1000)
}

/// The state of this process' competition for one claim.
#[derive(Clone, Debug)]
struct ImmediateBindingContest {
    attempt: u32,
    due: Instant,
    warned: bool,
}

/// Claims for which this process competes with the processes of other nodes. An entry is removed when its
/// claim has a volume or is deleted.
#[derive(Debug, Default)]
pub(super) struct ImmediateBindingContests(HashMap<Uid, ImmediateBindingContest>);

impl ImmediateBindingContests {
    /// Returns the time until the next attempt, or `None` if an attempt is due. The caller performs the
    /// attempt that is due, and this call schedules the attempt after that.
    pub(super) fn next_attempt(&mut self, deployment: &NodeDeployment, claim: &Uid) -> Option<Duration> {
        let now = Instant::now();
        let contest = self.0.entry(claim.clone()).or_insert_with(|| ImmediateBindingContest {
            attempt: 0,
            due: now + attempt_delay(deployment, claim, 0),
            warned: false,
        });
        let time_left = contest.due.saturating_duration_since(now);
        if !time_left.is_zero() {
            return Some(time_left);
        }
        contest.attempt = contest.attempt.saturating_add(1);
        contest.due = now + attempt_delay(deployment, claim, contest.attempt);
        None
    }

    /// Makes the next attempt due, after a Conflict: if the other client's write selected no node, this
    /// process tries again without a delay.
    pub(super) fn retry_now(&mut self, claim: &Uid) {
        if let Some(contest) = self.0.get_mut(claim) {
            contest.due = Instant::now();
        }
    }

    /// Returns the time until the next attempt; zero if it is due, or if this process does not compete.
    pub(super) fn time_left(&self, claim: &Uid) -> Duration {
        self.0
            .get(claim)
            .map(|contest| contest.due.saturating_duration_since(Instant::now()))
            .unwrap_or_default()
    }

    /// Returns true at the first call for a claim, and false at later calls: the warning that the node has
    /// too little capacity is emitted once per claim. Also returns false if this process does not compete for
    /// the claim.
    pub(super) fn warn_once(&mut self, claim: &Uid) -> bool {
        self.0.get_mut(claim).is_some_and(|contest| !std::mem::replace(&mut contest.warned, true))
    }

    /// Removes a claim that has a volume or is deleted.
    pub(super) fn remove(&mut self, claim: &Uid) {
        self.0.remove(claim);
    }
}

#[cfg(test)]
mod tests;
