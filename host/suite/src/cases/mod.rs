//! The table: every rule that a run tries, interface by interface.

mod changes;
mod features;
mod groups;
mod identity;
mod listing;
mod publishing;
mod robustness;
mod snapshots;
mod sources;
mod topology;
mod volumes;

use crate::Case;

/// A row of the table.
macro_rules! case {
    ($id:literal, $rule:literal, $source:literal, [$($need:expr),*], $run:path $(, $argument:expr)*) => {
        $crate::Case {
            id: $id,
            rule: $rule,
            source: $source,
            needs: &[$($need),*],
            run: |bench| Box::pin($run(bench $(, $argument)*)),
        }
    };
}
use case;

/// The case that fails when a component cannot be loaded.
pub(crate) const LOADS: &str = "identity/loads";

static TABLE: &[&[Case]] = &[
    identity::CASES,
    volumes::CASES,
    sources::CASES,
    publishing::CASES,
    changes::CASES,
    snapshots::CASES,
    groups::CASES,
    listing::CASES,
    topology::CASES,
    features::CASES,
    robustness::CASES,
];

/// Every case, in the order in which they are run and reported.
pub fn cases() -> impl Iterator<Item = &'static Case> {
    TABLE.iter().copied().flatten()
}
