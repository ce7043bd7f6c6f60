//! `cofferdam status`: claims, volumes, attachments and snapshots of each driver by state, waiting and stuck
//! operations, and the last errors. It reads only the API, so it works with every controller and every CSI
//! driver.

mod metadata;
mod snapshots;
mod summary;
mod table;
#[cfg(test)]
mod tests;

use std::{collections::HashMap, io};

use cofferdam_cluster::{Intent, journal};
use jiff::Timestamp;
use k8s_openapi::api::{
    core::v1::{ConfigMap, Event, PersistentVolume, PersistentVolumeClaim},
    storage::v1::{CSIDriver, CSINode, StorageClass, VolumeAttachment},
};
use kube::{Api, Resource, api::ListParams};
use serde::de::DeserializeOwned;

use crate::{
    cli::{OutputFormat, StatusFlags},
    client::{ClusterConnection, one_line},
    commands::orphans::{
        self,
        report::{self, DriverReport},
        scope::ReportScope,
    },
    config::GoDuration,
    error::CommandError,
    logging, snapshot_kinds,
    style::{Style, TerminalText},
};
use snapshots::SnapshotObjects;
use summary::{IntentState, JournalShard, OrphanCount, StatusObjects};

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
    #[error(
        "the driver {driver} is in use: {users}; expected none of them. Delete the claims and the \
         VolumeSnapshots, and wait until their volumes and snapshots are deleted, or keep the driver installed; \
         delete PersistentVolumes and VolumeSnapshotContents with the policy Retain by hand"
    )]
    InUse { driver: String, users: String },
    #[error("cannot find out if the driver {driver} is in use: this account may not list {resources}")]
    UseUnknown { driver: String, resources: String },
}

impl From<StatusError> for CommandError {
    fn from(error: StatusError) -> Self {
        match error {
            StatusError::StuckAfter(_) => Self::Usage(Box::new(error)),
            StatusError::List { .. }
            | StatusError::UnknownDriver(_)
            | StatusError::InUse { .. }
            | StatusError::UseUnknown { .. } => Self::Other(Box::new(error)),
        }
    }
}

/// Reads the cluster and returns the text to print, and always `true`.
///
/// # Errors
/// [`CommandError`], one line.
pub(crate) async fn run(
    flags: StatusFlags,
    environment: &HashMap<String, String>,
) -> Result<(TerminalText, bool), CommandError> {
    let stuck_after: GoDuration =
        flags.stuck_after.parse().map_err(|error| StatusError::StuckAfter(format!("{error}")))?;
    let cluster = orphans::connect(&flags.reports.reports, environment).await?;
    let objects = list_objects(&cluster, &ReportScope::from_flags(&flags.reports, &cluster)).await?;
    let now = Timestamp::now();
    let mut status = summary::ClusterStatus::from_objects(&objects, now, stuck_after.get());
    if let Some(driver) = flags.driver.as_ref().filter(|_| flags.require_unused) {
        return Ok((TerminalText::from_lines(&ensure_unused(&status, driver)?), true));
    }
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
        OutputFormat::Json => TerminalText::from_json(&serde_json::json!(status)),
    };
    Ok((text, true))
}

/// Resources whose objects need their driver.
const USERS_OF_DRIVERS: [&str; 4] =
    ["persistentvolumes", "volumeattachments", "volumesnapshotcontents", "configmaps"];

/// Checks that nothing needs a driver: no PersistentVolume, no VolumeAttachment, no VolumeSnapshotContent,
/// and no intent of its journal.
fn ensure_unused(status: &summary::ClusterStatus, driver: &str) -> Result<String, StatusError> {
    let is_known = status.drivers.iter().any(|status| status.driver.as_deref() == Some(driver));
    // Without the right to list CSIDrivers, a driver that nothing uses is not known.
    if !is_known && !status.forbidden.contains(&"csidrivers") {
        return Err(StatusError::UnknownDriver(driver.to_owned()));
    }
    let unknown: Vec<&str> =
        status.forbidden.iter().copied().filter(|resource| USERS_OF_DRIVERS.contains(resource)).collect();
    let users: Vec<String> = status
        .drivers
        .iter()
        .filter(|status| status.driver.as_deref() == Some(driver))
        .flat_map(summary::DriverStatus::users)
        .collect();
    let driver = driver.to_owned();
    match (users.is_empty(), unknown.is_empty()) {
        (false, _) => Err(StatusError::InUse { driver, users: users.join(", ") }),
        (true, false) => Err(StatusError::UseUnknown { driver, resources: unknown.join(", ") }),
        (true, true) => Ok(format!("the driver {driver} is not in use\n")),
    }
}

/// Lists all objects, and the orphan reports of a scope. Kinds that the user may not list are skipped and
/// recorded.
async fn list_objects(
    cluster: &ClusterConnection,
    report_scope: &ReportScope,
) -> Result<StatusObjects, StatusError> {
    let mut forbidden = Vec::new();
    let all = ListParams::default();
    let warnings = ListParams::default().fields("type=Warning");
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
    let served = serves_snapshots(&cluster.client).await;
    if served.map_err(|error| list_error(cluster, snapshot_kinds::API_VERSION, &error))? {
        objects.snapshots = SnapshotObjects {
            snapshots: list_kind(cluster, "volumesnapshots", &all, &mut forbidden).await?,
            contents: list_kind(cluster, "volumesnapshotcontents", &all, &mut forbidden).await?,
            classes: list_kind(cluster, "volumesnapshotclasses", &all, &mut forbidden).await?,
        };
    }
    let reports = report_scope.api(cluster.client.clone());
    for map in list_pages(cluster, &reports, "configmaps", &report::list_parameters(), &mut forbidden).await?
    {
        objects.orphans.extend(read_orphan_count(&map));
    }
    let is_config_maps_forbidden = forbidden.contains(&"configmaps");
    if !is_config_maps_forbidden {
        let label = format!("{}={}", journal::JOURNAL_LABEL, journal::JOURNAL_LABEL_VALUE);
        let shards = ListParams::default().labels(&label);
        let shards = list_pages(cluster, &reports, "configmaps", &shards, &mut forbidden).await?;
        objects.journals = shards.iter().filter_map(read_journal_shard).collect();
    }
    objects.forbidden = forbidden;
    Ok(objects)
}

/// Returns `true` if the API server serves the kinds of snapshots, which are custom resources. A list does
/// not tell: to a user with few permissions, kube-apiserver responds with 403 also if the kind does not
/// exist.
async fn serves_snapshots(client: &kube::Client) -> Result<bool, kube::Error> {
    match client.list_api_group_resources(snapshot_kinds::API_VERSION).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
        // A user without the role system:discovery.
        Err(kube::Error::Api(status)) if status.code == 403 => Ok(true),
        result => result.map(|_| true),
    }
}

/// Driver and number of orphans of a report; absent if this version cannot read it.
fn read_orphan_count(map: &ConfigMap) -> Option<(String, OrphanCount)> {
    let report = DriverReport::from_config_map(map).ok()??;
    let count = report.scan_report()?.counts.orphan;
    let (namespace, kind) = (report.namespace().to_owned(), report.kind);
    Some((report.driver.to_string(), OrphanCount { namespace, kind, count }))
}

/// The intents of a ConfigMap of the journal; `None` if its name is not that of such a ConfigMap.
fn read_journal_shard(map: &ConfigMap) -> Option<JournalShard> {
    let name = map.metadata.name.as_deref()?;
    let annotations = map.metadata.annotations.clone().unwrap_or_default();
    let driver = journal::driver_of_config_map(name, &annotations)?;
    let mut shard = JournalShard {
        driver: driver.to_string(),
        namespace: map.metadata.namespace.clone().unwrap_or_default(),
        intents: Vec::new(),
        undecodable: 0,
    };
    for json in map.data.iter().flat_map(|data| data.values()) {
        match serde_json::from_str::<Intent>(json) {
            Ok(intent) => shard.intents.push(IntentState {
                claim_namespace: intent.claim.namespace.to_string(),
                claim_name: intent.claim.name.to_string(),
                claim_uid: intent.claim_uid.to_string(),
                volume: intent.request.name,
                recorded_at: intent.recorded_at,
            }),
            Err(_) => shard.undecodable += 1,
        }
    }
    Some(shard)
}

fn list_error(cluster: &ClusterConnection, resource: &'static str, error: &kube::Error) -> StatusError {
    StatusError::List { resource, api: cluster.api_description(), problem: one_line(error) }
}

/// Lists all objects of a kind; see [`list_pages`].
async fn list_kind<K>(
    cluster: &ClusterConnection,
    resource: &'static str,
    parameters: &ListParams,
    forbidden: &mut Vec<&'static str>,
) -> Result<Vec<K>, StatusError>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    list_pages(cluster, &Api::all(cluster.client.clone()), resource, parameters, forbidden).await
}

/// Lists objects of a kind, page by page. If the user may not list the kind, adds it to `forbidden` and
/// returns no objects.
async fn list_pages<K>(
    cluster: &ClusterConnection,
    api: &Api<K>,
    resource: &'static str,
    parameters: &ListParams,
    forbidden: &mut Vec<&'static str>,
) -> Result<Vec<K>, StatusError>
where
    K: Clone + DeserializeOwned + std::fmt::Debug,
{
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
            Err(error) => return Err(list_error(cluster, resource, &error)),
        };
        objects.extend(page.items);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            None => return Ok(objects),
            Some(token) => parameters = parameters.continue_token(&token),
        }
    }
}
