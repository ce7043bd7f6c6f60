//! The volumes and snapshots of dev mode's cluster that remain in the storage at its end.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use cofferdam_backend::{Backend, Call};
use cofferdam_domain::{
    ClusterId, SnapshotHandle, VolumeHandle,
    storage::{Ability, PageRequest, Snapshot, StorageError, VolumeStatus},
};
use cofferdam_wasm::Grant;
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, GroupVersionKind, ListParams},
};

use crate::{
    cli::AtExit,
    config::Configuration,
    drivers::{DriverKind, LoadedDriver},
};

/// Deadline of each call.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Attempts to delete everything: a volume may have to wait for its snapshots, and a snapshot for its volume.
const ATTEMPTS: usize = 3;
/// Maximum pages of a listing.
const MAX_PAGES: usize = 10_000;

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
/// process are not called. Returns the lines to print.
pub(super) async fn report(
    drivers: &[LoadedDriver],
    configuration: &Configuration,
    cluster: &ClusterId,
    client: &Client,
    at_exit: AtExit,
) -> Vec<String> {
    let mut lines = Vec::new();
    for driver in drivers.iter().filter(|driver| outlives_process(driver, configuration)) {
        let backend = driver.backend();
        let name = backend.description().name.clone();
        let recorded = Recorded::read(client, name.as_str()).await;
        let mut remains = match find(&*backend, cluster, &recorded).await {
            Ok(remains) if remains.is_empty() => {
                lines.push(format!("driver {name} stores nothing of this cluster"));
                continue;
            }
            Ok(remains) => remains,
            Err(error) => {
                lines.push(format!("driver {name}: cannot list what it stores: {error}"));
                recorded.into_remains()
            }
        };
        if remains.is_empty() {
            continue;
        }
        if at_exit == AtExit::Delete {
            let found = remains.counts();
            let errors = delete(&*backend, &mut remains).await;
            lines.extend(errors.into_iter().map(|error| format!("driver {name}: {error}")));
            if remains.is_empty() {
                lines.push(format!("driver {name}: deleted {found}"));
                continue;
            }
        }
        lines.push(format!("driver {name} still stores {} of this cluster:", remains.counts()));
        lines.extend(remains.lines());
        if at_exit == AtExit::Report {
            lines.push(
                "  `cofferdam dev --delete`, run in this directory, deletes them at its end".to_owned(),
            );
        }
    }
    lines
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
            let has_file =
                configuration.backend.get(&driver.name).is_some_and(|section| section.state.file.is_some());
            grants.contains(&Grant::Http)
                || grants.contains(&Grant::Pool)
                || has_file && grants.contains(&Grant::State)
        }
    }
}

/// The volumes and snapshots of a driver that objects of the cluster name.
#[derive(Debug, Default)]
struct Recorded {
    volumes: BTreeSet<VolumeHandle>,
    snapshots: BTreeSet<SnapshotHandle>,
}

impl Recorded {
    /// Reads the PersistentVolumes and VolumeSnapshotContents. Objects that cannot be read count as none.
    async fn read(client: &Client, driver: &str) -> Self {
        let volumes: Api<PersistentVolume> = Api::all(client.clone());
        let volumes = volumes.list(&ListParams::default()).await.map(|list| list.items).unwrap_or_default();
        let sources = volumes.into_iter().filter_map(|volume| volume.spec?.csi);
        let kind = GroupVersionKind::gvk("snapshot.storage.k8s.io", "v1", "VolumeSnapshotContent");
        let contents: Api<DynamicObject> = Api::all_with(client.clone(), &ApiResource::from_gvk(&kind));
        let contents = contents.list(&ListParams::default()).await.map(|list| list.items).unwrap_or_default();
        let contents = contents.iter().filter(|content| text(content, "/spec/driver") == Some(driver));
        let handles = contents.filter_map(|content| text(content, "/status/snapshotHandle"));
        Self {
            volumes: sources
                .filter(|csi| csi.driver == driver)
                .map(|csi| VolumeHandle::new(csi.volume_handle))
                .collect(),
            snapshots: handles.map(SnapshotHandle::new).collect(),
        }
    }

    fn into_remains(self) -> Remains {
        Remains {
            volumes: self.volumes.into_iter().map(|handle| (handle, Vec::new())).collect(),
            snapshots: self.snapshots,
        }
    }
}

/// The text at a JSON pointer of an object.
fn text<'a>(object: &'a DynamicObject, pointer: &str) -> Option<&'a str> {
    object.data.pointer(pointer)?.as_str()
}

/// The volumes and snapshots with an owner of the cluster, and the recorded volumes that still exist, as far as
/// the driver lists them.
async fn find(
    backend: &dyn Backend,
    cluster: &ClusterId,
    recorded: &Recorded,
) -> Result<Remains, StorageError> {
    let mut remains = Remains::default();
    if backend.abilities().contains(&Ability::Listing) {
        let is_of_cluster = |status: &VolumeStatus| {
            status.owner.as_ref().is_some_and(|owner| owner.cluster_id == *cluster)
                || recorded.volumes.contains(&status.volume.handle)
        };
        for status in list_volumes(backend).await?.into_iter().filter(is_of_cluster) {
            let nodes = status.published_node_ids.iter().map(ToString::to_string).collect();
            remains.volumes.insert(status.volume.handle, nodes);
        }
    } else {
        remains.volumes = recorded.volumes.iter().map(|handle| (handle.clone(), Vec::new())).collect();
    }
    if backend.abilities().contains(&Ability::Snapshots) {
        let is_of_cluster = |snapshot: &Snapshot| {
            snapshot.owner.as_ref().is_some_and(|owner| owner.cluster_id == *cluster)
                || recorded.snapshots.contains(&snapshot.handle)
        };
        let snapshots = list_snapshots(backend).await?.into_iter().filter(is_of_cluster);
        remains.snapshots = snapshots.map(|snapshot| snapshot.handle).collect();
    }
    Ok(remains)
}

async fn list_volumes(backend: &dyn Backend) -> Result<Vec<VolumeStatus>, StorageError> {
    let mut found = Vec::new();
    let mut page = PageRequest::default();
    for _ in 0..MAX_PAGES {
        let listed = backend.list_volumes(Call::with_deadline(TIMEOUT), page).await?;
        found.extend(listed.volumes);
        let Some(token) = listed.next_token else { break };
        page = PageRequest { starting_token: Some(token), max_entries: None };
    }
    Ok(found)
}

async fn list_snapshots(backend: &dyn Backend) -> Result<Vec<Snapshot>, StorageError> {
    let mut found = Vec::new();
    let mut page = PageRequest::default();
    for _ in 0..MAX_PAGES {
        let listed = backend.list_snapshots(Call::with_deadline(TIMEOUT), None, page).await?;
        found.extend(listed.snapshots);
        let Some(token) = listed.next_token else { break };
        page = PageRequest { starting_token: Some(token), max_entries: None };
    }
    Ok(found)
}

/// Unpublishes and deletes everything. What remains could not be deleted, for the reasons that are returned.
async fn delete(backend: &dyn Backend, remains: &mut Remains) -> Vec<String> {
    let mut errors = Vec::new();
    for _ in 0..ATTEMPTS {
        errors.clear();
        for handle in remains.snapshots.clone() {
            match backend.delete_snapshot(Call::with_deadline(TIMEOUT), handle.clone()).await {
                Ok(()) => drop(remains.snapshots.remove(&handle)),
                Err(error) => errors.push(format!("cannot delete snapshot {handle}: {error}")),
            }
        }
        for handle in remains.volumes.keys().cloned().collect::<Vec<_>>() {
            match delete_volume(backend, &handle).await {
                Ok(()) => drop(remains.volumes.remove(&handle)),
                Err(error) => errors.push(format!("cannot delete volume {handle}: {error}")),
            }
        }
        if remains.is_empty() {
            break;
        }
    }
    errors
}

async fn delete_volume(backend: &dyn Backend, handle: &VolumeHandle) -> Result<(), StorageError> {
    if backend.abilities().contains(&Ability::Publishing) {
        backend.unpublish_volume(Call::with_deadline(TIMEOUT), handle.clone(), None).await?;
    }
    backend.delete_volume(Call::with_deadline(TIMEOUT), handle.clone()).await
}
