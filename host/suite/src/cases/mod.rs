//! The table of cases, by interface.

mod content_sources;
mod expansion;
mod features;
mod group_snapshots;
mod identity;
mod listing;
mod publishing;
mod robustness;
mod snapshots;
mod topology;
mod volumes;

use crate::ConformanceCase;

/// A row of the table: id, rule, source, requirements, test function, and further arguments of the function.
macro_rules! case {
    ($id:literal, $rule:literal, $source:literal, [$($need:expr),*], $run:path $(, $argument:expr)*) => {
        $crate::ConformanceCase {
            id: $id,
            rule: $rule,
            source: $source,
            requirements: &[$($need),*],
            run: |bench| Box::pin($run(bench $(, $argument)*)),
        }
    };
}
use case;

/// The case that fails when a component cannot be loaded because of a defect of its own. All others are
/// skipped then.
pub(crate) const LOAD_CASE: &str = "identity/loads";

static CASES: &[&[ConformanceCase]] = &[
    identity::CASES,
    volumes::CASES,
    content_sources::CASES,
    publishing::CASES,
    expansion::CASES,
    snapshots::CASES,
    group_snapshots::CASES,
    listing::CASES,
    topology::CASES,
    features::CASES,
    robustness::CASES,
];

/// Every case, in the order of runs and reports.
pub fn cases() -> impl Iterator<Item = &'static ConformanceCase> {
    CASES.iter().copied().flatten()
}
