//! Limits, repeated reads, concurrency, deadlines, crashes, errors and cleanup.

mod concurrency;
mod crashes;
mod determinism;
mod final_checks;

use std::time::Duration;

use cofferdam_domain::storage::{Ability, CreateVolume, ErrorKind, Parameters};

use super::case;
use crate::{
    CaseRequirement::{Exports, HostCalls, Http, MutableParameters, Secrets},
    ConformanceCase,
    check::{CaseResult, expect_success_or_final_error},
    context::SuiteContext,
};

pub(super) const CASES: &[ConformanceCase] = &[
    case!(
        "limits/large-parameters",
        "Parameters of 4 KiB with keys of 128 bytes get a final response.",
        "CSI size limits",
        [],
        large_parameters
    ),
    case!(
        "limits/many-parameters",
        "Hundreds of parameters get a final response.",
        "CSI size limits",
        [],
        many_parameters
    ),
    case!(
        "concurrency/different-names",
        "Concurrent creates and deletes of different volumes do not interfere.",
        "wit package; CSI concurrency",
        [],
        concurrency::different_names
    ),
    case!(
        "concurrency/same-name",
        "Concurrent creates of one name from several processes create one volume; some may fail with \
         aborted.",
        "wit volumes.create; CSI concurrency",
        [],
        concurrency::same_name
    ),
    case!(
        "concurrency/create-and-delete",
        "After a concurrent create and delete, the volume can be created and deleted.",
        "wit volumes; CSI concurrency",
        [],
        concurrency::create_and_delete
    ),
    case!(
        "concurrency/same-snapshot",
        "Concurrent creates of one snapshot from several processes create one snapshot.",
        "wit snapshots.create; CSI concurrency",
        [Exports(Ability::Snapshots)],
        concurrency::same_snapshot
    ),
    case!(
        "concurrency/two-nodes",
        "Of two concurrent publishes of a single-node volume to two nodes, one succeeds.",
        "wit publishing.publish; CSI ControllerPublishVolume",
        [Exports(Ability::Publishing)],
        concurrency::two_nodes
    ),
    case!(
        "concurrency/expand",
        "After two concurrent expansions the volume has the larger size.",
        "wit expansion.expand; CSI concurrency",
        [Exports(Ability::Expansion)],
        concurrency::expand
    ),
    case!("determinism/reads", "Repeated reads return the same.", "wit package", [], determinism::reads),
    case!(
        "deadlines/create",
        "A create that exceeded its deadline is completed by repeating it.",
        "wit types.finality; CSI timeouts",
        [],
        concurrency::create_past_deadline
    ),
    case!(
        "deadlines/delete",
        "A delete that exceeded its deadline is completed by repeating it.",
        "wit types.finality; CSI timeouts",
        [],
        concurrency::delete_past_deadline
    ),
    case!(
        "deadlines/abandoned-create",
        "A create that its caller abandoned and another process repeats creates one volume.",
        "wit types.finality; CSI timeouts",
        [],
        concurrency::abandoned_create
    ),
    case!(
        "crashes/create",
        "A create that was killed after any of its host calls is completed by repeating it; deleting leaves \
         nothing.",
        "wit package; CSI timeouts",
        [HostCalls],
        crashes::create
    ),
    case!(
        "crashes/delete",
        "A delete that was killed after any of its host calls is completed by repeating it.",
        "wit package; CSI timeouts",
        [HostCalls],
        crashes::delete
    ),
    case!(
        "crashes/clone",
        "A clone that was killed after any of its host calls is completed by repeating it.",
        "wit package; CSI timeouts",
        [HostCalls, Exports(Ability::Cloning)],
        crashes::clone
    ),
    case!(
        "crashes/restore",
        "A restore that was killed after any of its host calls is completed by repeating it.",
        "wit package; CSI timeouts",
        [HostCalls, Exports(Ability::Restoring), Exports(Ability::Snapshots)],
        crashes::restore
    ),
    case!(
        "crashes/publish",
        "A publish that was killed after any of its host calls is completed by repeating it.",
        "wit package; CSI timeouts",
        [HostCalls, Exports(Ability::Publishing)],
        crashes::publish
    ),
    case!(
        "crashes/unpublish",
        "An unpublish that was killed after any of its host calls is completed by repeating it.",
        "wit package; CSI timeouts",
        [HostCalls, Exports(Ability::Publishing)],
        crashes::unpublish
    ),
    case!(
        "crashes/modify",
        "A modification that was killed after any of its host calls is completed by repeating it.",
        "wit package; CSI timeouts",
        [HostCalls, Exports(Ability::Modification), MutableParameters],
        crashes::modify
    ),
    case!(
        "crashes/snapshot",
        "A snapshot create that was killed after any of its host calls is completed by repeating it; \
         deleting leaves nothing.",
        "wit package; CSI timeouts",
        [HostCalls, Exports(Ability::Snapshots)],
        crashes::snapshot
    ),
    case!(
        "crashes/expand",
        "An expansion that was killed after any of its host calls is completed by repeating it.",
        "wit package; CSI timeouts",
        [HostCalls, Exports(Ability::Expansion)],
        crashes::expand
    ),
    case!(
        "crashes/delete-snapshot",
        "A snapshot delete that was killed after any of its host calls is completed by repeating it.",
        "wit package; CSI timeouts",
        [HostCalls, Exports(Ability::Snapshots)],
        crashes::delete_snapshot
    ),
    case!(
        "crashes/group-snapshot",
        "A group snapshot create that was killed after any of its host calls is completed by repeating it; \
         deleting leaves nothing.",
        "wit package; CSI timeouts",
        [HostCalls, Exports(Ability::GroupSnapshots)],
        crashes::group
    ),
    case!(
        "crashes/lost-answers",
        "A create whose HTTP response was lost does not fail with a final error, and creates one volume.",
        "wit http.http-error, types.finality",
        [Http, Exports(Ability::Listing)],
        crashes::lost_answers
    ),
    case!(
        "errors/without-secrets",
        "A call without its secrets fails: a StorageClass may lack them.",
        "wit secrets, types.error-kind",
        [Secrets],
        final_checks::without_secrets
    ),
    case!(
        "errors/have-a-message",
        "Every error has a message.",
        "wit types.storage-error; CSI error scheme",
        [],
        final_checks::have_a_message
    ),
    case!(
        "errors/final-kinds-are-final",
        "The kinds invalid-argument, not-found, already-exists, out-of-range, failed-precondition and \
         unimplemented are final.",
        "wit types.finality",
        [],
        final_checks::final_kinds_are_final
    ),
    case!(
        "errors/no-defects",
        "No call of the run trapped, exceeded a limit or violated the contract.",
        "wit package; CSI error scheme",
        [],
        final_checks::no_defects
    ),
    case!(
        "errors/no-secrets",
        "No response of the run contained a secret. The host has redacted it, but a driver must not return it.",
        "wit secrets, reveal",
        [Secrets],
        final_checks::no_secrets
    ),
    case!(
        "cleanup/nothing-is-left",
        "Deleted volumes are not listed, and nothing of them remains in the driver's state and pool.",
        "wit volumes.delete",
        [],
        final_checks::nothing_is_left
    ),
];

/// Creates a volume with unusual parameters. It must succeed or fail with a final InvalidArgument.
async fn check_odd_parameters(context: &SuiteContext, what: &str, parameters: Parameters) -> CaseResult {
    let request = CreateVolume { parameters, ..context.volume_request("odd") };
    expect_success_or_final_error(what, &context.create(&request).await, &[ErrorKind::InvalidArgument])
        .map(drop)
}

async fn large_parameters(context: &SuiteContext) -> CaseResult {
    let parameters = [("k".repeat(128), "v".repeat(4096 - 128))].into();
    check_odd_parameters(context, "a parameter of 4 KiB", parameters).await
}

async fn many_parameters(context: &SuiteContext) -> CaseResult {
    let parameters = (0..500).map(|number| (format!("k{number:03}"), "v".to_owned())).collect();
    check_odd_parameters(context, "500 parameters", parameters).await
}

/// Deadlines that are likely to pass before, during and after the work of a driver.
const SHORT_DEADLINES: [Duration; 5] = [
    Duration::ZERO,
    Duration::from_millis(1),
    Duration::from_millis(5),
    Duration::from_millis(20),
    Duration::from_millis(50),
];
