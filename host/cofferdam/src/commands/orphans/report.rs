//! Orphan reports, which provisioners write into ConfigMaps in their namespace, one for each driver.

use cofferdam_cluster::{
    Kind as _, OrphanReport,
    orphan_report::{self, OrphanReportKey},
};
use cofferdam_controllers::orphans::report::{DELETE, DELETING, DeletionRequest, ScanReport};
use cofferdam_domain::DriverName;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::ListParams;

use super::error::OrphansError;

/// Selects the ConfigMaps with reports.
pub(crate) fn list_parameters() -> ListParams {
    ListParams::default().labels(&format!(
        "{}={}",
        orphan_report::REPORT_LABEL,
        orphan_report::REPORT_LABEL_VALUE
    ))
}

/// The report of one driver in one namespace.
pub(crate) struct DriverReport {
    pub(crate) config_map: OrphanReport,
    pub(crate) driver: DriverName,
}

/// A deletion request in the ConfigMap of a report.
pub(super) enum PendingRequest {
    /// The request.
    Known(DeletionRequest),
    /// A request that this version cannot read.
    Unreadable,
}

impl DriverReport {
    /// Reads a ConfigMap with the label of reports. `None` if its name is not that of its driver's report, so
    /// that a namespace has at most one report of a driver.
    ///
    /// # Errors
    /// [`OrphansError::Read`]
    pub(crate) fn from_config_map(map: &ConfigMap) -> Result<Option<Self>, OrphansError> {
        let json = serde_json::to_string(map).map_err(|error| OrphansError::Read(error.to_string()))?;
        let map = OrphanReport::decode(&json).map_err(|error| OrphansError::Read(error.to_string()))?;
        let driver = DriverName::from(map.data_value("driver").unwrap_or_default());
        let is_named_for_driver = map.key == OrphanReportKey::for_driver(&map.key.namespace, &driver);
        Ok(is_named_for_driver.then_some(Self { config_map: map, driver }))
    }

    /// The last scan; `None` if this version cannot read it, or if it is of another driver.
    pub(crate) fn scan_report(&self) -> Option<ScanReport> {
        ScanReport::read(&self.config_map).filter(|report| report.driver == self.driver)
    }

    /// The namespace of the ConfigMap.
    pub(crate) fn namespace(&self) -> &str {
        &self.config_map.key.namespace
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
