//! Cleanup: the suite deletes what a failed case left. The report lists the objects that cannot be deleted.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, also in what its functions share")]

mod common;

use cofferdam_suite::CaseOutcome;

const BROKEN_GROUP_DELETE: (&str, &str) = ("broken-rule", "group-snapshots/delete-members");

/// The broken driver deletes the group snapshot and keeps both members.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_that_outlive_their_group_are_deleted() {
    let cases = ["group-snapshots/delete-members", "cleanup/nothing-is-left"];
    let report = common::run_broken(&common::engine(), &[BROKEN_GROUP_DELETE], &cases).await;
    assert_eq!(report.failures(), ["group-snapshots/delete-members"], "{}", report.to_text(false));
    assert_eq!(report.leftovers, [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_that_cannot_be_deleted_are_leftovers() {
    let settings = [BROKEN_GROUP_DELETE, ("undeletable", "-group-")];
    let report = common::run_broken(&common::engine(), &settings, &["group-snapshots/delete-members"]).await;
    assert_eq!(report.failures(), ["group-snapshots/delete-members"], "{}", report.to_text(false));
    let are_snapshots = report.leftovers.iter().all(|leftover| leftover.starts_with("snapshot s-"));
    assert!(are_snapshots && report.leftovers.len() == 2, "{:?}", report.leftovers);
}

/// The case creates four volumes and deletes the two of the first page. In each of the four runs the driver
/// rejects the delete of another volume, and the case fails only if that volume is on the first page.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_delete_during_a_listing_names_its_volume() {
    let engine = common::engine();
    let mut failed_deletes = 0;
    for number in 0..4 {
        let undeletable = format!("-listed-{number}");
        let settings = [("undeletable", undeletable.as_str())];
        let report = common::run_broken(&engine, &settings, &["listing/while-changing"]).await;
        let [leftover] = report.leftovers.as_slice() else { panic!("{:?}", report.leftovers) };
        let handle = leftover.strip_prefix("volume ").unwrap();
        match &report.entries.first().unwrap().outcome {
            CaseOutcome::Failed { expected, found, .. } => {
                failed_deletes += 1;
                assert_eq!(*expected, format!("delete {handle}: success"), "{found}");
            }
            CaseOutcome::Passed => {}
            CaseOutcome::Skipped(reason) => panic!("{reason}"),
        }
    }
    assert_eq!(failed_deletes, 2, "each volume of the first page");
}
