//! Orphan reports, which provisioners write into ConfigMaps in their namespace, one for each driver.

use cofferdam_cluster::{Kind as _, OrphanReport};
use cofferdam_controllers::orphans::report::{DELETE, DELETING, DeletionRequest};
use k8s_openapi::api::core::v1::ConfigMap;

use super::error::OrphansError;

/// The report of one driver in one namespace.
pub(super) struct DriverReport {
    pub(super) config_map: OrphanReport,
    pub(super) driver: String,
}

/// A deletion request in the ConfigMap of a report.
pub(super) enum PendingRequest {
    /// The request.
    Known(DeletionRequest),
    /// A request that this version cannot read.
    Unreadable,
}

impl DriverReport {
    pub(super) fn from_config_map(map: &ConfigMap) -> Result<Self, OrphansError> {
        let json = serde_json::to_string(map).map_err(|error| OrphansError::Read(error.to_string()))?;
        let map = OrphanReport::decode(&json).map_err(|error| OrphansError::Read(error.to_string()))?;
        let driver = map.data_value("driver").unwrap_or_default().to_owned();
        Ok(Self { config_map: map, driver })
    }

    /// The request that is waiting or in progress; `None` if there is neither.
    pub(super) fn pending_request(&self) -> Option<PendingRequest> {
        let text = self.config_map.data_value(DELETING).or(self.config_map.data_value(DELETE))?;
        Some(DeletionRequest::parse(text).map_or(PendingRequest::Unreadable, PendingRequest::Known))
    }

    /// The request that is waiting or in progress, if this version can read it.
    pub(super) fn readable_request(&self) -> Option<DeletionRequest> {
        match self.pending_request()? {
            PendingRequest::Known(request) => Some(request),
            PendingRequest::Unreadable => None,
        }
    }

    /// Reports if the request is in progress.
    pub(super) fn is_deleting(&self) -> bool {
        self.config_map.data_value(DELETING).is_some()
    }
}
