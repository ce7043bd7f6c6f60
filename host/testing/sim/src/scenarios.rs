//! The scenario table of provisioner, attacher, resizer, pv-controller, protection, attach-detach,
//! snapshot-controller, snapshotter and startup-taint: given objects and faults, the expected objects, events
//! and driver calls.
//!
//! The rows run on every [`TestCluster`](crate::TestCluster); [`Scenario::skipped_on`] lists exceptions with
//! their reasons.

mod attach_detach;
mod changed_secrets;
mod cloning;
mod detach;
mod in_tree;
mod node_local;
mod node_local_snapshots;
mod populators;
mod provisioning;
mod resizing;
mod secrets;
mod snapshot_errors;
mod snapshots;
mod startup_taint;
mod stuck_intents;
mod topology;
mod volume_attachment;

use std::collections::BTreeSet;

use crate::{EnvironmentKind, Scenario};

/// Number of rows that an environment cannot run. Each has its reason in the table; a change of the number
/// has to be deliberate.
pub const fn skipped_count(environment: EnvironmentKind) -> usize {
    match environment {
        EnvironmentKind::InProcess => 0,
        EnvironmentKind::Http => 13,
        EnvironmentKind::Kubernetes => 11,
    }
}

/// Names of the rows of Secrets, stuck intents, detaches and in-tree plugins. They run with a crash in each
/// run of the tests over HTTP; of the other rows, the test chooses some.
pub fn always_crashed() -> BTreeSet<&'static str> {
    let tables = [
        detach::scenarios(),
        in_tree::scenarios(),
        secrets::scenarios(),
        changed_secrets::scenarios(),
        stuck_intents::scenarios(),
    ];
    tables.into_iter().flatten().map(|row| row.name).collect()
}

/// A snapshot, its content, its source claim and the PersistentVolume, deleted in every order, with each
/// deletion policy, before and after the snapshot is ready; and existing snapshots. They take too long for
/// real time, where a table of rows has some of the orders.
pub fn deletion_orders() -> Vec<Scenario> {
    snapshots::deletion_orders()
}

/// The rows of snapshots with a driver whose snapshots are ready at the third call. Calls and events differ
/// from those of the rows, and are not compared.
pub fn polled_snapshots() -> Vec<Scenario> {
    let mut rows = snapshots::scenarios();
    rows.extend(snapshot_errors::scenarios().into_iter().filter(|row| !row.snapshotting.is_never_ready()));
    for row in &mut rows {
        row.snapshotting.polls_until_ready = 2;
        row.compares_objects_only = true;
    }
    rows
}

/// Every second row of [`polled_snapshots`] that runs in an environment in real time, where waits take time.
pub fn polled_snapshots_in_real_time(environment: EnvironmentKind) -> Vec<Scenario> {
    let rows = polled_snapshots().into_iter().filter(|row| row.skip_reason(environment).is_none());
    rows.step_by(2).collect()
}

/// The scenario table.
pub fn scenarios() -> Vec<Scenario> {
    let mut all = provisioning::scenarios();
    all.extend(volume_attachment::scenarios());
    all.extend(attach_detach::scenarios());
    all.extend(detach::scenarios());
    all.extend(in_tree::scenarios());
    all.extend(topology::scenarios());
    all.extend(node_local::scenarios());
    all.extend(node_local_snapshots::scenarios());
    all.extend(populators::scenarios());
    all.extend(resizing::scenarios());
    all.extend(secrets::scenarios());
    all.extend(changed_secrets::scenarios());
    all.extend(stuck_intents::scenarios());
    all.extend(cloning::scenarios());
    all.extend(snapshots::scenarios());
    all.extend(snapshot_errors::scenarios());
    all.extend(startup_taint::scenarios());
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skipped_scenarios_are_counted_per_environment() {
        for environment in [EnvironmentKind::InProcess, EnvironmentKind::Http, EnvironmentKind::Kubernetes] {
            let skipped = scenarios().into_iter().filter(|row| row.skip_reason(environment).is_some());
            assert_eq!(skipped.count(), skipped_count(environment), "{environment}");
        }
    }
}
