//! A case: a rule, and the calls that test it.

use std::fmt;

use cofferdam_domain::storage::{Ability, Feature};
use futures::future::BoxFuture;

use crate::{check::CaseResult, context::SuiteContext};

/// Requirement of a case on the driver or the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaseRequirement {
    /// The driver exports an interface.
    Exports(Ability),
    /// The driver has a feature.
    HasFeature(Feature),
    /// The driver does not have a feature.
    LacksFeature(Feature),
    /// The driver exports `listing` or `inspection`.
    ListingOrInspection,
    /// The driver imports `state`, `pool` or `http`, so that its calls can be killed at a call to the host.
    HostCalls,
    /// The driver has topology keys, and the run has a topology segment.
    Topology,
    /// The driver has no topology keys.
    NoTopology,
    /// The driver imports `http`, so that a response can be lost.
    Http,
    /// The run has secrets.
    Secrets,
    /// The run has further values of StorageClass parameters.
    OtherParameters,
    /// The run has parameters that `modification` accepts.
    MutableParameters,
}

impl fmt::Display for CaseRequirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exports(ability) => write!(f, "`{ability}`"),
            Self::HasFeature(feature) => write!(f, "feature `{feature}`"),
            Self::LacksFeature(feature) => write!(f, "no feature `{feature}`"),
            Self::ListingOrInspection => f.write_str("`listing` or `inspection`"),
            Self::HostCalls => f.write_str("import of `state`, `pool` or `http`"),
            Self::Topology => f.write_str("topology keys and a topology segment"),
            Self::NoTopology => f.write_str("no topology keys"),
            Self::Http => f.write_str("import of `http`"),
            Self::Secrets => f.write_str("secrets"),
            Self::OtherParameters => f.write_str("other parameters"),
            Self::MutableParameters => f.write_str("mutable parameters"),
        }
    }
}

/// One rule of the driver contract or of CSI, with its test.
#[derive(Clone, Copy)]
pub struct ConformanceCase {
    /// Interface or topic, and rule, such as `volumes/create-is-idempotent` or `concurrency/different-names`.
    pub id: &'static str,
    /// The rule in one sentence.
    pub rule: &'static str,
    /// Source of the rule: parts of the contract's WIT, such as `wit volumes.create`, parts of the CSI 1.12
    /// specification, such as `CSI CreateVolume`, or both.
    pub source: &'static str,
    /// Requirements; the case is skipped if one is not met.
    pub requirements: &'static [CaseRequirement],
    pub(crate) run: for<'a> fn(&'a SuiteContext) -> BoxFuture<'a, CaseResult>,
}

impl ConformanceCase {
    /// The id up to `/`: the interface that the case tests, or a topic such as `concurrency`.
    pub fn interface(&self) -> &'static str {
        self.id.split_once('/').map_or(self.id, |(interface, _)| interface)
    }
}

impl fmt::Debug for ConformanceCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Case").field("id", &self.id).finish_non_exhaustive()
    }
}
