//! Bad days, and what is left after them.

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
        "Parameters of 4 KiB, with keys of 128 bytes, are answered.",
        "CSI size limits",
        [],
        large_parameters
    ),
    case!(
        "limits/many-parameters",
        "Hundreds of parameters are answered.",
        "CSI size limits",
        [],
        many_parameters
    ),
    case!(
        "concurrency/different-names",
        "Volumes that are created and deleted at once do not get in each other's way.",
        "wit package; CSI concurrency",
        [],
        concurrency::different_names
    ),
    case!(
        "concurrency/same-name",
        "The same create at several processes at once makes one volume; who is too early is aborted.",
        "wit volumes.create; CSI concurrency",
        [],
        concurrency::same_name
    ),
    case!(
        "concurrency/create-and-delete",
        "A volume that is created and deleted at once can be created and deleted after that.",
        "wit volumes; CSI concurrency",
        [],
        concurrency::create_and_delete
    ),
    case!(
        "concurrency/same-snapshot",
        "The same snapshot at several processes at once makes one snapshot.",
        "wit snapshots.create; CSI concurrency",
        [Exports(Ability::Snapshots)],
        concurrency::same_snapshot
    ),
    case!(
        "concurrency/two-nodes",
        "A volume for one node that two nodes want at once goes to one of them.",
        "wit publishing.publish; CSI ControllerPublishVolume",
        [Exports(Ability::Publishing)],
        concurrency::two_nodes
    ),
    case!(
        "concurrency/expand",
        "Two expansions at once make a volume as large as the larger one.",
        "wit expansion.expand; CSI concurrency",
        [Exports(Ability::Expansion)],
        concurrency::expand
    ),
    case!(
        "determinism/reads",
        "What changes nothing answers the same twice.",
        "wit package",
        [],
        determinism::reads
    ),
    case!(
        "deadlines/create",
        "A create that is stopped by its deadline is healed by the same create.",
        "wit types.finality; CSI timeouts",
        [],
        concurrency::create_past_deadline
    ),
    case!(
        "deadlines/delete",
        "A delete that is stopped by its deadline is healed by the same delete.",
        "wit types.finality; CSI timeouts",
        [],
        concurrency::delete_past_deadline
    ),
    case!(
        "deadlines/abandoned-create",
        "A create whose caller went away, and that is repeated elsewhere at once, makes one volume.",
        "wit types.finality; CSI timeouts",
        [],
        concurrency::abandoned_create
    ),
    case!(
        "crashes/create",
        "A create that died after any of its host calls is healed by the same create; deleting leaves nothing.",
        "wit package; CSI timeouts",
        [HostCalls],
        crashes::create
    ),
    case!(
        "crashes/delete",
        "A delete that died after any of its host calls is healed by the same delete.",
        "wit package; CSI timeouts",
        [HostCalls],
        crashes::delete
    ),
    case!(
        "crashes/clone",
        "A clone that died after any of its host calls is healed by the same call.",
        "wit package; CSI timeouts",
        [HostCalls, Exports(Ability::Cloning)],
        crashes::clone
    ),
    case!(
        "crashes/restore",
        "A restore that died after any of its host calls is healed by the same call.",
        "wit package; CSI timeouts",
        [HostCalls, Exports(Ability::Restoring), Exports(Ability::Snapshots)],
        crashes::restore
    ),
    case!(
        "crashes/publish",
        "A publish that died after any of its host calls is healed by the same call.",
        "wit package; CSI timeouts",
        [HostCalls, Exports(Ability::Publishing)],
        crashes::publish
    ),
    case!(
        "crashes/unpublish",
        "An unpublish that died after any of its host calls is healed by the same call: the volume is free.",
        "wit package; CSI timeouts",
        [HostCalls, Exports(Ability::Publishing)],
        crashes::unpublish
    ),
    case!(
        "crashes/modify",
        "A modification that died after any of its host calls is healed by the same call.",
        "wit package; CSI timeouts",
        [HostCalls, Exports(Ability::Modification), MutableParameters],
        crashes::modify
    ),
    case!(
        "crashes/snapshot",
        "A snapshot that died after any of its host calls is healed by the same call; deleting leaves nothing.",
        "wit package; CSI timeouts",
        [HostCalls, Exports(Ability::Snapshots)],
        crashes::snapshot
    ),
    case!(
        "crashes/expand",
        "An expansion that died after any of its host calls is healed by the same call.",
        "wit package; CSI timeouts",
        [HostCalls, Exports(Ability::Expansion)],
        crashes::expand
    ),
    case!(
        "crashes/delete-snapshot",
        "A delete of a snapshot that died after any of its host calls is healed by the same delete.",
        "wit package; CSI timeouts",
        [HostCalls, Exports(Ability::Snapshots)],
        crashes::delete_snapshot
    ),
    case!(
        "crashes/group-snapshot",
        "A group that died after any of its host calls is healed by the same call; deleting leaves nothing.",
        "wit package; CSI timeouts",
        [HostCalls, Exports(Ability::GroupSnapshots)],
        crashes::group
    ),
    case!(
        "crashes/lost-answers",
        "A create whose request was carried out and whose answer was lost does not fail finally, and makes one volume.",
        "wit http.http-error, types.finality",
        [Http, Exports(Ability::Listing)],
        crashes::lost_answers
    ),
    case!(
        "errors/without-secrets",
        "A call without its secrets is refused: the class may lack them.",
        "wit secrets, types.error-kind",
        [Secrets],
        final_checks::without_secrets
    ),
    case!(
        "errors/have-a-message",
        "Every error says what happened.",
        "wit types.storage-error; CSI error scheme",
        [],
        final_checks::have_a_message
    ),
    case!(
        "errors/final-kinds-are-final",
        "What can never succeed is final: invalid-argument, not-found, already-exists, out-of-range, failed-precondition, unimplemented.",
        "wit types.finality",
        [],
        final_checks::final_kinds_are_final
    ),
    case!(
        "errors/no-defects",
        "No call of the run trapped, ran out of its limits or broke the contract.",
        "wit package; CSI error scheme",
        [],
        final_checks::no_defects
    ),
    case!(
        "cleanup/nothing-is-left",
        "What was deleted is not listed any more, and leaves nothing in the driver's state and pool.",
        "wit volumes.delete",
        [],
        final_checks::nothing_is_left
    ),
];

/// Creates a volume with odd parameters: that may succeed or be refused, but never be a defect.
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

/// Deadlines that end before, while and after a driver does its work.
const SHORT_DEADLINES: [Duration; 5] = [
    Duration::ZERO,
    Duration::from_millis(1),
    Duration::from_millis(5),
    Duration::from_millis(20),
    Duration::from_millis(50),
];
