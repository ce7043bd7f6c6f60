//! `spec` of a Lease.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// `spec` of a Lease. Fields that a person removed have no value.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct LeaseSpec {
    pub(super) holder_identity: Option<String>,
    pub(super) lease_duration_seconds: Option<i64>,
    pub(super) acquire_time: Option<String>,
    pub(super) renew_time: Option<String>,
    pub(super) lease_transitions: Option<i64>,
}

impl LeaseSpec {
    pub(super) fn holder(&self) -> Option<&str> {
        self.holder_identity.as_deref().filter(|holder| !holder.is_empty())
    }

    pub(super) fn duration(&self) -> Duration {
        let seconds = self.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
        Duration::from_secs(seconds.unwrap_or_default())
    }
}
