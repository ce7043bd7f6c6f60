//! Bad days, and what is left after them.

mod crashes;
mod endings;
mod races;
mod repeats;

use std::time::Duration;

use cofferdam_domain::storage::{Ability, CreateVolume, ErrorKind, Parameters};

use super::case;
use crate::{
    Case,
    Need::{Can, HostCalls, Http, MutableParameters, Secrets},
    bench::Bench,
    check::{Checked, done_or_refused},
};

pub(super) const CASES: &[Case] = &[
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
        races::different_names
    ),
    case!(
        "concurrency/same-name",
        "The same create at several processes at once makes one volume; who is too early is aborted.",
        "wit volumes.create; CSI concurrency",
        [],
        races::same_name
    ),
    case!(
        "concurrency/create-and-delete",
        "A volume that is created and deleted at once can be created and deleted after that.",
        "wit volumes; CSI concurrency",
        [],
        races::create_and_delete
    ),
    case!(
        "concurrency/same-snapshot",
        "The same snapshot at several processes at once makes one snapshot.",
        "wit snapshots.create; CSI concurrency",
        [Can(Ability::Snapshots)],
        races::same_snapshot
    ),
    case!(
        "concurrency/two-nodes",
        "A volume for one node that two nodes want at once goes to one of them.",
        "wit publishing.publish; CSI ControllerPublishVolume",
        [Can(Ability::Publishing)],
        races::two_nodes
    ),
    case!(
        "concurrency/expand",
        "Two expansions at once make a volume as large as the larger one.",
        "wit expansion.expand; CSI concurrency",
        [Can(Ability::Expansion)],
        races::expand
    ),
    case!(
        "determinism/reads",
        "What changes nothing answers the same twice.",
        "wit package",
        [],
        repeats::reads
    ),
    case!(
        "deadlines/hurried-create",
        "A create that is stopped by its deadline is healed by the same create.",
        "wit types.finality; CSI timeouts",
        [],
        races::hurried_create
    ),
    case!(
        "deadlines/hurried-delete",
        "A delete that is stopped by its deadline is healed by the same delete.",
        "wit types.finality; CSI timeouts",
        [],
        races::hurried_delete
    ),
    case!(
        "deadlines/abandoned-create",
        "A create whose caller went away, and that is repeated elsewhere at once, makes one volume.",
        "wit types.finality; CSI timeouts",
        [],
        races::abandoned_create
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
        [HostCalls, Can(Ability::Cloning)],
        crashes::clone
    ),
    case!(
        "crashes/restore",
        "A restore that died after any of its host calls is healed by the same call.",
        "wit package; CSI timeouts",
        [HostCalls, Can(Ability::Restoring), Can(Ability::Snapshots)],
        crashes::restore
    ),
    case!(
        "crashes/publish",
        "A publish that died after any of its host calls is healed by the same call.",
        "wit package; CSI timeouts",
        [HostCalls, Can(Ability::Publishing)],
        crashes::publish
    ),
    case!(
        "crashes/unpublish",
        "An unpublish that died after any of its host calls is healed by the same call: the volume is free.",
        "wit package; CSI timeouts",
        [HostCalls, Can(Ability::Publishing)],
        crashes::unpublish
    ),
    case!(
        "crashes/modify",
        "A modification that died after any of its host calls is healed by the same call.",
        "wit package; CSI timeouts",
        [HostCalls, Can(Ability::Modification), MutableParameters],
        crashes::modify
    ),
    case!(
        "crashes/snapshot",
        "A snapshot that died after any of its host calls is healed by the same call; deleting leaves nothing.",
        "wit package; CSI timeouts",
        [HostCalls, Can(Ability::Snapshots)],
        crashes::snapshot
    ),
    case!(
        "crashes/expand",
        "An expansion that died after any of its host calls is healed by the same call.",
        "wit package; CSI timeouts",
        [HostCalls, Can(Ability::Expansion)],
        crashes::expand
    ),
    case!(
        "crashes/delete-snapshot",
        "A delete of a snapshot that died after any of its host calls is healed by the same delete.",
        "wit package; CSI timeouts",
        [HostCalls, Can(Ability::Snapshots)],
        crashes::delete_snapshot
    ),
    case!(
        "crashes/group-snapshot",
        "A group that died after any of its host calls is healed by the same call; deleting leaves nothing.",
        "wit package; CSI timeouts",
        [HostCalls, Can(Ability::GroupSnapshots)],
        crashes::group
    ),
    case!(
        "crashes/lost-answers",
        "A create whose request was carried out and whose answer was lost does not fail finally, and makes one volume.",
        "wit http.http-error, types.finality",
        [Http, Can(Ability::Listing)],
        crashes::lost_answers
    ),
    case!(
        "errors/without-secrets",
        "A call without its secrets is refused: the class may lack them.",
        "wit secrets, types.error-kind",
        [Secrets],
        endings::without_secrets
    ),
    case!(
        "errors/have-a-message",
        "Every error says what happened.",
        "wit types.storage-error; CSI error scheme",
        [],
        endings::have_a_message
    ),
    case!(
        "errors/final-kinds-are-final",
        "What can never succeed is final: invalid-argument, not-found, already-exists, out-of-range, failed-precondition, unimplemented.",
        "wit types.finality",
        [],
        endings::final_kinds_are_final
    ),
    case!(
        "errors/no-defects",
        "No call of the run trapped, ran out of its limits or broke the contract.",
        "wit package; CSI error scheme",
        [],
        endings::no_defects
    ),
    case!(
        "cleanup/nothing-is-left",
        "What was deleted is not listed any more, and leaves nothing in the driver's state and pool.",
        "wit volumes.delete",
        [],
        endings::nothing_is_left
    ),
];

/// Creates a volume with odd parameters: that may succeed or be refused, but never be a defect.
async fn answered(bench: &Bench, what: &str, parameters: Parameters) -> Checked {
    let request = CreateVolume { parameters, ..bench.request("odd") };
    done_or_refused(what, &bench.create(&request).await, &[ErrorKind::InvalidArgument]).map(drop)
}

async fn large_parameters(bench: &Bench) -> Checked {
    let one = [("k".repeat(128), "v".repeat(4096 - 128))].into();
    answered(bench, "a parameter of 4 KiB", one).await
}

async fn many_parameters(bench: &Bench) -> Checked {
    let many = (0..500).map(|number| (format!("k{number:03}"), "v".to_owned())).collect();
    answered(bench, "500 parameters", many).await
}

/// Deadlines that end before, while and after a driver does its work.
const HURRIES: [Duration; 5] = [
    Duration::ZERO,
    Duration::from_millis(1),
    Duration::from_millis(5),
    Duration::from_millis(20),
    Duration::from_millis(50),
];
