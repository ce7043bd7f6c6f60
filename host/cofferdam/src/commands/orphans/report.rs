//! Orphan reports, which provisioners and snapshotters write into ConfigMaps in their namespace: one for the
//! volumes of each driver, and one for its snapshots.

use cofferdam_cluster::{
    Kind as _, OrphanReport,
    orphan_report::{self, OrphanKind, OrphanReportKey},
};
use cofferdam_controllers::orphans::report::{DELETE, DELETING, DRIVER, DeletionRequest, KIND, ScanReport};
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

/// The report about the volumes or the snapshots of one driver in one namespace.
pub(crate) struct DriverReport {
    pub(crate) config_map: OrphanReport,
    pub(crate) driver: DriverName,
    pub(crate) kind: OrphanKind,
}

/// A deletion request in the ConfigMap of a report.
pub(super) enum PendingRequest {
    /// The request.
    Known(DeletionRequest),
    /// A request that this version cannot read.
    Unreadable,
}

impl DriverReport {
    /// Reads a ConfigMap with the label of reports. `None` if its name is not that of its driver's report of
    /// its kind, so that a namespace has at most one of each kind. Without a kind, it is about volumes. A
    /// kind that this version does not know is no report either.
    ///
    /// # Errors
    /// [`OrphansError::Read`]
    pub(crate) fn from_config_map(map: &ConfigMap) -> Result<Option<Self>, OrphansError> {
        let json = serde_json::to_string(map).map_err(|error| OrphansError::Read(error.to_string()))?;
        let map = OrphanReport::decode(&json).map_err(|error| OrphansError::Read(error.to_string()))?;
        let driver = DriverName::from(map.data_value(DRIVER).unwrap_or_default());
        let kind = match map.data_value(KIND) {
            None => Some(OrphanKind::default()),
            Some(name) => OrphanKind::ALL.into_iter().find(|kind| kind.as_str() == name),
        };
        let Some(kind) = kind else { return Ok(None) };
        let is_named_for_driver = map.key == OrphanReportKey::for_driver(&map.key.namespace, kind, &driver);
        Ok(is_named_for_driver.then_some(Self { config_map: map, driver, kind }))
    }

    /// The last scan; `None` if this version cannot read it, or if it is of another driver or kind.
    pub(crate) fn scan_report(&self) -> Option<ScanReport> {
        ScanReport::read(&self.config_map)
            .filter(|report| report.driver == self.driver && report.kind == self.kind)
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
