//! `cofferdam status`: claims, volumes and attachments of each driver by state, waiting and stuck operations,
//! and the last errors. It reads only the API, so it works with every controller and every CSI driver.

mod summary;
mod table;
#[cfg(test)]
mod tests;

use std::{collections::HashMap, io};

use cofferdam_cluster::{Kind as _, OrphanReport};
use cofferdam_controllers::orphans::report::ScanReport;
use jiff::Timestamp;
use k8s_openapi::api::{
    core::v1::{ConfigMap, Event, PersistentVolume, PersistentVolumeClaim},
    storage::v1::{CSIDriver, CSINode, StorageClass, VolumeAttachment},
};
use kube::{Api, Resource, api::ListParams};
use serde::de::DeserializeOwned;

use crate::{
    cli::{OutputFormat, StatusFlags},
    client::{self, ClientEnvironment, ClusterConnection, one_line},
    config::{GoDuration, ResolvedConfig},
    error::CommandError,
    logging,
    style::Style,
};
use summary::StatusObjects;

/// Objects per page of a list.
const LIST_PAGE_SIZE: u32 = 500;

/// An error of `status`.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StatusError {
    #[error("cannot list {resource} of the API at {api}: {problem}")]
    List { resource: &'static str, api: String, problem: String },
    #[error("flag --stuck-after: {0}")]
    StuckAfter(String),
    #[error(
        "driver {0} is not in the cluster: expected a CSIDriver, a class, a volume or a node that names it"
    )]
    UnknownDriver(String),
}

impl From<StatusError> for CommandError {
    fn from(error: StatusError) -> Self {
        Self::Other(Box::new(error))
    }
}

/// Reads the cluster and returns the text to print, and always `true`.
///
/// # Errors
/// [`CommandError`], one line.
pub(crate) async fn run(
    flags: StatusFlags,
    environment: &HashMap<String, String>,
) -> Result<(String, bool), CommandError> {
    let stuck_after: GoDuration =
        flags.stuck_after.parse().map_err(|error| StatusError::StuckAfter(format!("{error}")))?;
    let resolved = ResolvedConfig::for_cluster(&flags.connection.values, environment)?;
    let cluster = client::connect(&resolved.configuration, &ClientEnvironment::from_process()).await?;
    let objects = list_objects(&cluster).await?;
    let now = Timestamp::now();
    let mut status = summary::ClusterStatus::from_objects(&objects, now, stuck_after.get());
    if let Some(driver) = flags.driver {
        status.drivers.retain(|status| status.driver.as_ref() == Some(&driver));
        if status.drivers.is_empty() {
            return Err(StatusError::UnknownDriver(driver).into());
        }
    }
    let text = match flags.output {
        OutputFormat::Text => {
            table::format_status(&status, now, Style { colours: logging::is_colour_enabled(&io::stdout()) })
        }
        OutputFormat::Json => format!("{:#}\n", serde_json::json!(status)),
    };
    Ok((text, true))
}

/// Lists all objects. Kinds that the user may not list are skipped and recorded.
async fn list_objects(cluster: &ClusterConnection) -> Result<StatusObjects, StatusError> {
    let mut forbidden = Vec::new();
    let all = ListParams::default();
    let warnings = ListParams::default().fields("type=Warning");
    let reports = ListParams::default().labels(&format!(
        "{}={}",
        cofferdam_cluster::orphan_report::REPORT_LABEL,
        cofferdam_cluster::orphan_report::REPORT_LABEL_VALUE
    ));
    let mut objects = StatusObjects {
        drivers: list_kind::<CSIDriver>(cluster, "csidrivers", &all, &mut forbidden).await?,
        nodes: list_kind::<CSINode>(cluster, "csinodes", &all, &mut forbidden).await?,
        classes: list_kind::<StorageClass>(cluster, "storageclasses", &all, &mut forbidden).await?,
        claims: list_kind::<PersistentVolumeClaim>(cluster, "persistentvolumeclaims", &all, &mut forbidden)
            .await?,
        volumes: list_kind::<PersistentVolume>(cluster, "persistentvolumes", &all, &mut forbidden).await?,
        attachments: list_kind::<VolumeAttachment>(cluster, "volumeattachments", &all, &mut forbidden)
            .await?,
        events: list_kind::<Event>(cluster, "events", &warnings, &mut forbidden).await?,
        ..StatusObjects::default()
    };
    for map in list_kind::<ConfigMap>(cluster, "configmaps", &reports, &mut forbidden).await? {
        objects.orphans.extend(read_orphan_count(&map));
    }
    objects.forbidden = forbidden;
    Ok(objects)
}

/// Driver and number of orphans of a report; absent if this version cannot read it.
fn read_orphan_count(map: &ConfigMap) -> Option<(String, u64)> {
    let map = OrphanReport::decode(&serde_json::to_string(map).ok()?).ok()?;
    let report = ScanReport::read(&map)?;
    Some((report.driver.to_string(), report.counts.orphan))
}

/// Lists all objects of a kind, page by page. If the user may not list the kind, adds it to `forbidden` and
/// returns no objects.
async fn list_kind<K>(
    cluster: &ClusterConnection,
    resource: &'static str,
    parameters: &ListParams,
    forbidden: &mut Vec<&'static str>,
) -> Result<Vec<K>, StatusError>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    let api: Api<K> = Api::all(cluster.client.clone());
    let mut objects = Vec::new();
    let mut parameters = parameters.clone().limit(LIST_PAGE_SIZE);
    loop {
        let page = match api.list(&parameters).await {
            Ok(page) => page,
            Err(kube::Error::Api(status)) if status.code == 403 => {
                forbidden.push(resource);
                return Ok(Vec::new());
            }
            // The continue token expired: the list took longer than the API retains old versions. Start
            // again.
            Err(kube::Error::Api(status)) if status.code == 410 && parameters.continue_token.is_some() => {
                objects.clear();
                parameters.continue_token = None;
                continue;
            }
            Err(error) => {
                return Err(StatusError::List {
                    resource,
                    api: cluster.api_description(),
                    problem: one_line(&error),
                });
            }
        };
        objects.extend(page.items);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            None => return Ok(objects),
            Some(token) => parameters = parameters.continue_token(&token),
        }
    }
}
