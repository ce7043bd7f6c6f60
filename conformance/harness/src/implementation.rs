//! The two implementations of a controller that suites and benchmarks compare.

use serde::{Deserialize, Serialize};

/// Implementation of a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Implementation {
    /// kube-controller-manager and the CSI sidecars: the reference.
    Upstream,
    /// Cofferdam.
    Cofferdam,
}

impl Implementation {
    /// The other implementation.
    pub(crate) const fn other(self) -> Self {
        match self {
            Self::Cofferdam => Self::Upstream,
            Self::Upstream => Self::Cofferdam,
        }
    }

    /// The name in notes of the results.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Cofferdam => "Cofferdam",
            Self::Upstream => "upstream",
        }
    }
}
