//! A fake [`Backend`] for tests: fixed responses, chosen by keywords in the requests.
#![expect(clippy::panic, reason = "a backend that panics is one of the scripted responses")]

use std::{collections::BTreeSet, fmt::Debug, sync::Arc};

use cofferdam_domain::{
    GroupSnapshotHandle, NodeId, SnapshotHandle, VolumeHandle,
    storage::{
        Ability, Capacity, CapacityQuery, ConnectionInfo, ContentSource, CreateGroupSnapshot, CreateSnapshot,
        CreateVolume, CreatedVolume, Description, ErrorKind, ExpandVolume, ExpandedVolume, Feature,
        GroupSnapshot, PageRequest, Parameters, Placement, PublishVolume, Readiness, Snapshot, SnapshotPage,
        StorageError, ValidateVolume, Validation, VolumeCondition, VolumePage, VolumeStatus,
    },
};
use parking_lot::Mutex;

use crate::{Backend, BackendFuture, Call};

/// A driver without storage. It accepts every request, whatever its abilities are. A keyword in an id of the
/// request selects the result:
///
/// | keyword | result |
/// |---|---|
/// | `missing` | `NotFound`, final |
/// | `open` | `Internal`, outcome unknown |
/// | `panic` | a panic |
/// | `hang` | the call never ends |
/// | none of them | success, with fixed fields; if made with `unresponsive`, the call never ends |
///
/// The ids are the handle, or the handle and the node of a publish. For a new volume, the id is its name or
/// the handle of its content source; for a new snapshot or group snapshot, the handles of the source volumes.
/// Probe, listings and GetCapacity have no id.
#[derive(Debug)]
pub struct ScriptedBackend {
    description: Description,
    abilities: BTreeSet<Ability>,
    has_topology: bool,
    is_unresponsive: bool,
    requests: Mutex<Vec<String>>,
}

impl ScriptedBackend {
    /// A driver with these abilities and features. With `topology` it has the topology key `zone`.
    pub fn new(abilities: &[Ability], features: &[Feature], topology: bool) -> Arc<Self> {
        let description = Description {
            name: "fake.example".into(),
            version: "1".to_owned(),
            topology_keys: topology.then(|| "zone".to_owned()).into_iter().collect(),
            placement: Placement::Central,
            volumes_per_node: None,
            features: features.iter().map(ToString::to_string).collect(),
        };
        Arc::new(Self::with_description(description, abilities.iter().copied().collect(), topology))
    }

    /// A driver with all abilities and features, and with the topology key `zone`.
    pub fn complete() -> Arc<Self> {
        Self::new(&Ability::ALL, &Feature::ALL, true)
    }

    /// A driver whose calls never end, except those with the keyword `missing`, `open` or `panic`.
    pub fn unresponsive(
        description: Description,
        abilities: BTreeSet<Ability>,
        has_topology: bool,
    ) -> Arc<Self> {
        let backend = Self::with_description(description, abilities, has_topology);
        Arc::new(Self { is_unresponsive: true, ..backend })
    }

    fn with_description(description: Description, abilities: BTreeSet<Ability>, has_topology: bool) -> Self {
        Self { description, abilities, has_topology, is_unresponsive: false, requests: Mutex::default() }
    }

    /// The received requests, formatted with `Debug`.
    pub fn requests(&self) -> Vec<String> {
        self.requests.lock().clone()
    }

    /// The last received request; empty without one.
    pub fn last_request(&self) -> String {
        self.requests().pop().unwrap_or_default()
    }

    /// Responds according to the keyword in `id`.
    fn respond<T: Send + 'static>(
        &self,
        id: String,
        request: &impl Debug,
        response: T,
    ) -> BackendFuture<'_, T> {
        self.requests.lock().push(format!("{request:?}"));
        Box::pin(async move {
            assert!(!id.chars().any(|c| c == '\0'), "invalid ids do not reach a backend");
            match () {
                () if id.contains("missing") => {
                    Err(StorageError::with_known_effect(ErrorKind::NotFound, "no such thing"))
                }
                () if id.contains("open") => {
                    Err(StorageError::with_unknown_effect(ErrorKind::Internal, "it trapped"))
                }
                () if id.contains("panic") => panic!("on purpose"),
                () if id.contains("hang") || self.is_unresponsive => std::future::pending().await,
                () => Ok(response),
            }
        })
    }
}

fn id_text(id: &impl ToString) -> String {
    id.to_string()
}

/// The connection info in every response that describes or publishes a volume.
pub fn directory_connection() -> ConnectionInfo {
    let fields = [("path".to_owned(), "a".to_owned())].into();
    ConnectionInfo { kind: "directory".to_owned(), version: 1, fields }
}

fn volume(handle: &str) -> CreatedVolume {
    CreatedVolume {
        handle: handle.into(),
        capacity: Some(1 << 30),
        context: [("tier".to_owned(), "gold".to_owned())].into(),
        topology: vec![[("zone".to_owned(), "a".to_owned())].into()],
        connection_info: Some(directory_connection()),
    }
}

fn status(handle: &str) -> VolumeStatus {
    VolumeStatus {
        volume: volume(handle),
        owner: None,
        published_node_ids: vec!["node-1".into()],
        condition: Some(VolumeCondition { abnormal: true, message: "slow".to_owned() }),
        changed_at_ms: None,
    }
}

fn snapshot(handle: &str, group: Option<&str>) -> Snapshot {
    Snapshot {
        handle: handle.into(),
        source: "v".into(),
        size: Some(1 << 30),
        created_at_ms: 1_700_000_000_123,
        ready: true,
        group: group.map(Into::into),
        owner: None,
    }
}

fn group_snapshot(handle: &str) -> GroupSnapshot {
    GroupSnapshot {
        handle: handle.into(),
        snapshots: vec![snapshot("s", Some(handle))],
        created_at_ms: 1_700_000_000_123,
        ready: true,
    }
}

impl Backend for ScriptedBackend {
    fn description(&self) -> &Description {
        &self.description
    }

    fn abilities(&self) -> &BTreeSet<Ability> {
        &self.abilities
    }

    fn has_topology(&self) -> bool {
        self.has_topology
    }

    fn probe(&self, call: Call) -> BackendFuture<'_, Readiness> {
        self.respond(String::new(), &call, Readiness::Ready)
    }

    fn create_volume(&self, _: Call, request: CreateVolume) -> BackendFuture<'_, CreatedVolume> {
        let id = match &request.source {
            None => request.name.replace('\0', ""),
            Some(ContentSource::Volume(handle)) => id_text(handle),
            Some(ContentSource::Snapshot(handle)) => id_text(handle),
        };
        self.respond(id, &request, volume("v"))
    }

    fn delete_volume(&self, _: Call, handle: VolumeHandle) -> BackendFuture<'_, ()> {
        self.respond(id_text(&handle), &handle, ())
    }

    fn validate_volume(&self, _: Call, request: ValidateVolume) -> BackendFuture<'_, Validation> {
        self.respond(id_text(&request.handle), &request, Validation::Confirmed)
    }

    fn publish_volume(&self, _: Call, request: PublishVolume) -> BackendFuture<'_, ConnectionInfo> {
        self.respond(format!("{} {}", request.handle, request.node_id), &request, directory_connection())
    }

    fn unpublish_volume(&self, _: Call, handle: VolumeHandle, node: Option<NodeId>) -> BackendFuture<'_, ()> {
        self.respond(id_text(&handle), &(&handle, node), ())
    }

    fn expand_volume(&self, _: Call, request: ExpandVolume) -> BackendFuture<'_, ExpandedVolume> {
        self.respond(
            id_text(&request.handle),
            &request,
            ExpandedVolume { capacity: 1 << 40, node_expansion_required: true },
        )
    }

    fn modify_volume(&self, _: Call, handle: VolumeHandle, parameters: Parameters) -> BackendFuture<'_, ()> {
        self.respond(id_text(&handle), &(&handle, parameters), ())
    }

    fn create_snapshot(&self, _: Call, request: CreateSnapshot) -> BackendFuture<'_, Snapshot> {
        self.respond(id_text(&request.source), &request, snapshot("s", None))
    }

    fn delete_snapshot(&self, _: Call, handle: SnapshotHandle) -> BackendFuture<'_, ()> {
        self.respond(id_text(&handle), &handle, ())
    }

    fn get_snapshot(&self, _: Call, handle: SnapshotHandle) -> BackendFuture<'_, Snapshot> {
        self.respond(id_text(&handle), &handle, snapshot(handle.as_str(), None))
    }

    fn list_snapshots(
        &self,
        _: Call,
        source: Option<VolumeHandle>,
        page: PageRequest,
    ) -> BackendFuture<'_, SnapshotPage> {
        let snapshots = vec![snapshot("s", None)];
        self.respond(
            String::new(),
            &(source, page),
            SnapshotPage { snapshots, next_token: Some("more".to_owned()) },
        )
    }

    fn create_group_snapshot(
        &self,
        _: Call,
        request: CreateGroupSnapshot,
    ) -> BackendFuture<'_, GroupSnapshot> {
        self.respond(format!("{:?}", request.sources), &request, group_snapshot("g"))
    }

    fn delete_group_snapshot(
        &self,
        _: Call,
        handle: GroupSnapshotHandle,
        snapshots: BTreeSet<SnapshotHandle>,
    ) -> BackendFuture<'_, ()> {
        self.respond(id_text(&handle), &(&handle, snapshots), ())
    }

    fn get_group_snapshot(
        &self,
        _: Call,
        handle: GroupSnapshotHandle,
        snapshots: BTreeSet<SnapshotHandle>,
    ) -> BackendFuture<'_, GroupSnapshot> {
        self.respond(id_text(&handle), &(&handle, snapshots), group_snapshot(handle.as_str()))
    }

    fn list_volumes(&self, _: Call, page: PageRequest) -> BackendFuture<'_, VolumePage> {
        self.respond(
            String::new(),
            &page,
            VolumePage { volumes: vec![status("v")], next_token: Some("more".to_owned()) },
        )
    }

    fn get_volume(&self, _: Call, handle: VolumeHandle) -> BackendFuture<'_, VolumeStatus> {
        self.respond(id_text(&handle), &handle, status(handle.as_str()))
    }

    fn get_capacity(&self, _: Call, query: CapacityQuery) -> BackendFuture<'_, Capacity> {
        let capacity = Capacity { available: 5, maximum_volume_size: Some(3), minimum_volume_size: None };
        self.respond(String::new(), &query, capacity)
    }
}
