//! The volumes and snapshots of dev mode's cluster that remain in the storage at its end.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use cofferdam_backend::{Backend, Call};
use cofferdam_domain::{
    ClusterId, SnapshotHandle, VolumeHandle, names,
    storage::{Ability, ErrorKind, PageRequest, Snapshot, StorageError, VolumeStatus},
};
use cofferdam_wasm::Grant;
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::{
    Api, Client, ResourceExt as _,
    api::{ApiResource, DynamicObject, GroupVersionKind, ListParams},
};
use tokio::time::{Instant, sleep};

use super::cluster_id::DevClusterId;
use crate::{
    cli::AtExit,
    config::Configuration,
    drivers::{DriverKind, LoadedDriver},
};

/// Deadline of each call.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Time for the deletion of everything: a volume may wait for its snapshots, and storage for itself.
const DELETION_TIMEOUT: Duration = Duration::from_secs(120);
/// Pause between two attempts to delete, unless the driver asks for another one.
const PAUSE: Duration = Duration::from_secs(1);
/// Maximum pages of a listing.
const MAX_PAGES: usize = 10_000;

/// The volumes and snapshots that the drivers still store.
#[derive(Debug, Default)]
pub(super) struct LeftoverReport {
    /// The lines to print.
    pub(super) lines: Vec<String>,
    /// True if `--delete` was set, and something remains or is not known.
    pub(super) has_failed: bool,
}

/// The volumes and snapshots that a driver stores for the cluster.
#[derive(Debug, Default)]
struct Remains {
    /// Volumes, each with the nodes that it is published to.
    volumes: BTreeMap<VolumeHandle, Vec<String>>,
    snapshots: BTreeSet<SnapshotHandle>,
}

impl Remains {
    fn is_empty(&self) -> bool {
        self.volumes.is_empty() && self.snapshots.is_empty()
    }

    fn counts(&self) -> String {
        format!("{} and {}", count(self.volumes.len(), "volume"), count(self.snapshots.len(), "snapshot"))
    }

    /// One line for each volume and snapshot.
    fn lines(&self) -> impl Iterator<Item = String> {
        let volumes = self.volumes.iter().map(|(handle, nodes)| match nodes.as_slice() {
            [] => format!("  volume {handle}"),
            nodes => format!("  volume {handle}, published to {}", nodes.join(", ")),
        });
        volumes.chain(self.snapshots.iter().map(|handle| format!("  snapshot {handle}")))
    }
}

fn count(number: usize, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
}

/// Names what each driver still stores for the cluster, or deletes it. Drivers whose storage ends with this
/// process are not called.
pub(super) async fn report(
    drivers: &[LoadedDriver],
    configuration: &Configuration,
    cluster: &DevClusterId,
    client: &Client,
    at_exit: AtExit,
) -> LeftoverReport {
    let mut report = LeftoverReport::default();
    for driver in drivers.iter().filter(|driver| outlives_process(driver, configuration)) {
        let backend = driver.backend();
        let recorded = Recorded::read(client, backend.description().name.as_str()).await;
        report_driver(&*backend, recorded, cluster, at_exit, &mut report).await;
    }
    report
}

async fn report_driver(
    backend: &dyn Backend,
    recorded: kube::Result<Recorded>,
    cluster: &DevClusterId,
    at_exit: AtExit,
    report: &mut LeftoverReport,
) {
    let name = &backend.description().name;
    let is_recorded = recorded.is_ok();
    let recorded = recorded.unwrap_or_else(|error| {
        report.lines.push(format!("driver {name}: cannot read the cluster's volumes and snapshots: {error}"));
        Recorded::default()
    });
    let (mut remains, errors) = find(backend, &cluster.id, recorded).await;
    let is_known = is_recorded && errors.is_empty();
    report.lines.extend(errors.into_iter().map(|error| format!("driver {name}: {error}")));
    if at_exit == AtExit::Delete && !remains.is_empty() {
        let found = remains.counts();
        let errors = delete(backend, &mut remains).await;
        report.lines.extend(errors.into_iter().map(|error| format!("driver {name}: {error}")));
        if remains.is_empty() {
            report.lines.push(format!("driver {name}: deleted {found}"));
        }
    } else if remains.is_empty() && is_known {
        report.lines.push(match backend.abilities().contains(&Ability::Listing) {
            true => format!("driver {name} stores nothing of this cluster"),
            false => format!("driver {name} does not list its volumes; no PersistentVolume of it is left"),
        });
    }
    report.has_failed |= at_exit == AtExit::Delete && !(remains.is_empty() && is_known);
    if remains.is_empty() {
        return;
    }
    report.lines.push(format!("driver {name} still stores {} of this cluster:", remains.counts()));
    report.lines.extend(remains.lines());
    if at_exit == AtExit::Report && cluster.is_stored {
        let advice = "  the same command with --delete, run in this directory, deletes them at its end";
        report.lines.push(advice.to_owned());
    }
}

/// Reports if the storage of any driver remains when this process ends.
pub(super) fn has_lasting_storage(drivers: &[LoadedDriver], configuration: &Configuration) -> bool {
    drivers.iter().any(|driver| outlives_process(driver, configuration))
}

/// Reports if a driver's storage remains when this process ends: that of a CSI driver, and that of a component
/// with HTTP, a pool, or a file for its state.
fn outlives_process(driver: &LoadedDriver, configuration: &Configuration) -> bool {
    match &driver.kind {
        DriverKind::Csi(_) => true,
        DriverKind::Component(backend) => {
            let grants = &backend.interfaces().grants;
            let section = configuration.backend.get(&driver.name);
            let has_file = section.is_some_and(|section| section.state.file.is_some());
            grants.contains(&Grant::Http)
                || grants.contains(&Grant::Pool)
                || has_file && grants.contains(&Grant::State)
        }
    }
}

/// The volumes and snapshots of a driver that the cluster has created, as its objects name them. Objects of a
/// user for existing volumes and snapshots are not among them.
#[derive(Debug, Default)]
struct Recorded {
    volumes: BTreeSet<VolumeHandle>,
    snapshots: BTreeSet<SnapshotHandle>,
}

impl Recorded {
    /// Reads the PersistentVolumes and VolumeSnapshotContents.
    async fn read(client: &Client, driver: &str) -> kube::Result<Self> {
        let volumes: Api<PersistentVolume> = Api::all(client.clone());
        let volumes = volumes.list(&ListParams::default()).await?.items.into_iter();
        let provisioned = volumes
            .filter(|volume| volume.annotations().get(names::PROVISIONED_BY).is_some_and(|by| by == driver));
        let sources = provisioned.filter_map(|volume| volume.spec?.csi);
        let kind = GroupVersionKind::gvk("snapshot.storage.k8s.io", "v1", "VolumeSnapshotContent");
        let contents: Api<DynamicObject> = Api::all_with(client.clone(), &ApiResource::from_gvk(&kind));
        let contents = contents.list(&ListParams::default()).await?.items;
        let created = contents.iter().filter(|content| {
            text(content, "/spec/driver") == Some(driver)
                && text(content, "/spec/source/volumeHandle").is_some()
        });
        Ok(Self {
            volumes: sources
                .filter(|csi| csi.driver == driver)
                .map(|csi| VolumeHandle::new(csi.volume_handle))
                .collect(),
            snapshots: created
                .filter_map(|content| text(content, "/status/snapshotHandle"))
                .map(SnapshotHandle::new)
                .collect(),
        })
    }
}

/// The text at a JSON pointer of an object.
fn text<'a>(object: &'a DynamicObject, pointer: &str) -> Option<&'a str> {
    object.data.pointer(pointer)?.as_str()
}

/// The volumes and snapshots with an owner of the cluster, and the recorded ones whose owner the driver does
/// not tell. If the driver cannot list, the recorded ones. Also the errors of the listings.
async fn find(backend: &dyn Backend, cluster: &ClusterId, recorded: Recorded) -> (Remains, Vec<String>) {
    let mut remains = Remains::default();
    let mut errors = Vec::new();
    let is_own = |owner: Option<&ClusterId>, is_recorded: bool| match owner {
        Some(owner) => owner == cluster,
        None => is_recorded,
    };
    match listed(backend, Ability::Listing, list_volumes(backend)).await {
        Ok(Some(volumes)) => {
            for VolumeStatus { volume, owner, published_node_ids, .. } in volumes {
                let owner = owner.as_ref().map(|owner| &owner.cluster_id);
                if is_own(owner, recorded.volumes.contains(&volume.handle)) {
                    let nodes = published_node_ids.iter().map(ToString::to_string).collect();
                    remains.volumes.insert(volume.handle, nodes);
                }
            }
        }
        other => {
            errors.extend(other.err().map(|error| format!("cannot list its volumes: {error}")));
            remains.volumes = recorded.volumes.into_iter().map(|handle| (handle, Vec::new())).collect();
        }
    }
    match listed(backend, Ability::Snapshots, list_snapshots(backend)).await {
        Ok(Some(snapshots)) => {
            for Snapshot { handle, owner, .. } in snapshots {
                let owner = owner.as_ref().map(|owner| &owner.cluster_id);
                if is_own(owner, recorded.snapshots.contains(&handle)) {
                    remains.snapshots.insert(handle);
                }
            }
        }
        other => {
            errors.extend(other.err().map(|error| format!("cannot list its snapshots: {error}")));
            remains.snapshots = recorded.snapshots;
        }
    }
    (remains, errors)
}

/// A listing; `None` if the driver has none.
async fn listed<T>(
    backend: &dyn Backend,
    ability: Ability,
    listing: impl Future<Output = Result<Vec<T>, StorageError>>,
) -> Result<Option<Vec<T>>, StorageError> {
    if !backend.abilities().contains(&ability) {
        return Ok(None);
    }
    match listing.await {
        Err(error) if error.kind == ErrorKind::Unimplemented => Ok(None),
        listed => listed.map(Some),
    }
}

async fn list_volumes(backend: &dyn Backend) -> Result<Vec<VolumeStatus>, StorageError> {
    all_pages(async |page| {
        let listed = backend.list_volumes(Call::with_deadline(TIMEOUT), page).await?;
        Ok((listed.volumes, listed.next_token))
    })
    .await
}

async fn list_snapshots(backend: &dyn Backend) -> Result<Vec<Snapshot>, StorageError> {
    all_pages(async |page| {
        let listed = backend.list_snapshots(Call::with_deadline(TIMEOUT), None, page).await?;
        Ok((listed.snapshots, listed.next_token))
    })
    .await
}

/// The entries of all pages.
async fn all_pages<T>(
    list: impl AsyncFn(PageRequest) -> Result<(Vec<T>, Option<String>), StorageError>,
) -> Result<Vec<T>, StorageError> {
    let mut found = Vec::new();
    let mut page = PageRequest::default();
    for _ in 0..MAX_PAGES {
        let (entries, next_token) = list(page).await?;
        found.extend(entries);
        let Some(token) = next_token else { return Ok(found) };
        page = PageRequest { starting_token: Some(token), max_entries: None };
    }
    let message = format!("the listing has more than {MAX_PAGES} pages");
    Err(StorageError::with_known_effect(ErrorKind::Internal, message))
}

/// Unpublishes and deletes everything, until [`DELETION_TIMEOUT`]. What remains could not be deleted, for the
/// reasons that are returned.
async fn delete(backend: &dyn Backend, remains: &mut Remains) -> Vec<String> {
    let started = Instant::now();
    loop {
        let mut errors = Vec::new();
        let mut pause = PAUSE;
        let mut failed = |what: String, error: &StorageError| {
            errors.push(format!("cannot delete {what}: {error}"));
            pause = pause.max(Duration::from_millis(error.retry_after_ms.unwrap_or_default()));
        };
        for handle in remains.snapshots.clone() {
            match backend.delete_snapshot(Call::with_deadline(TIMEOUT), handle.clone()).await {
                Ok(()) => drop(remains.snapshots.remove(&handle)),
                Err(error) => failed(format!("snapshot {handle}"), &error),
            }
        }
        for handle in remains.volumes.keys().cloned().collect::<Vec<_>>() {
            match delete_volume(backend, &handle).await {
                Ok(()) => drop(remains.volumes.remove(&handle)),
                Err(error) => failed(format!("volume {handle}"), &error),
            }
        }
        if remains.is_empty() || started.elapsed() + pause >= DELETION_TIMEOUT {
            return errors;
        }
        sleep(pause).await;
    }
}

async fn delete_volume(backend: &dyn Backend, handle: &VolumeHandle) -> Result<(), StorageError> {
    if backend.abilities().contains(&Ability::Publishing) {
        backend.unpublish_volume(Call::with_deadline(TIMEOUT), handle.clone(), None).await?;
    }
    backend.delete_volume(Call::with_deadline(TIMEOUT), handle.clone()).await
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use cofferdam_domain::{
        ReclaimPolicy, Uid, VolumeName,
        storage::{
            AccessType, CapacityRange, CreateSnapshot, CreateVolume, CsiAccessMode, Parameters,
            SnapshotOwner, VolumeCapability, VolumeOwner,
        },
    };
    use cofferdam_wasm::{BackendConfig, CompiledCache, ComponentSource, Engine, EngineOptions, WasmBackend};

    use super::*;

    async fn memory() -> Arc<WasmBackend> {
        let options = EngineOptions { cache: CompiledCache::Off, ..EngineOptions::default() };
        let source = ComponentSource::Bytes { name: "memory".to_owned(), bytes: cofferdam_carried::MEMORY };
        Engine::new(options).unwrap().load(source, BackendConfig::default()).await.unwrap()
    }

    async fn create(backend: &WasmBackend, name: &str, cluster: Option<&str>) -> VolumeHandle {
        let owner = cluster.map(|cluster| VolumeOwner {
            cluster_id: ClusterId::new(cluster),
            claim_uid: Uid::new("claim"),
            pv_name: VolumeName::new(name),
            reclaim_policy: ReclaimPolicy::Delete,
        });
        let filesystem = AccessType::Filesystem { fs_type: None, mount_flags: Vec::new(), mount_group: None };
        let request = CreateVolume {
            name: name.to_owned(),
            owner,
            capacity: CapacityRange { required: Some(1 << 20), limit: None },
            capabilities: vec![VolumeCapability {
                access_mode: CsiAccessMode::SingleNodeWriter,
                access_type: filesystem,
            }],
            parameters: Parameters::new(),
            mutable_parameters: Parameters::new(),
            topology: None,
            source: None,
        };
        backend.create_volume(Call::with_deadline(TIMEOUT), request).await.unwrap().handle
    }

    #[tokio::test]
    async fn only_what_the_cluster_owns_is_found_and_deleted() {
        let backend = memory().await;
        let own = create(&backend, "own", Some("here")).await;
        let foreign = create(&backend, "foreign", Some("elsewhere")).await;
        let recorded = create(&backend, "recorded", None).await;
        let unrecorded = create(&backend, "unrecorded", None).await;
        let snapshot = CreateSnapshot {
            name: "s".to_owned(),
            source: own.clone(),
            parameters: Parameters::new(),
            owner: Some(SnapshotOwner {
                cluster_id: ClusterId::new("here"),
                snapshot_uid: Uid::new("snapshot"),
                content_name: "content".to_owned(),
                retain: false,
            }),
        };
        let snapshot = backend.create_snapshot(Call::with_deadline(TIMEOUT), snapshot).await.unwrap().handle;

        let objects =
            Recorded { volumes: [foreign.clone(), recorded.clone()].into(), snapshots: BTreeSet::new() };
        let (mut remains, errors) = find(&*backend, &ClusterId::new("here"), objects).await;
        assert_eq!(errors, [""; 0]);
        assert_eq!(remains.volumes.keys().cloned().collect::<BTreeSet<_>>(), [own, recorded].into());
        assert_eq!(remains.snapshots, [snapshot].into());
        assert_eq!(delete(&*backend, &mut remains).await, [""; 0]);
        assert!(remains.is_empty());
        let left: BTreeSet<_> =
            list_volumes(&*backend).await.unwrap().into_iter().map(|status| status.volume.handle).collect();
        assert_eq!(left, [foreign, unrecorded].into());
    }
}
