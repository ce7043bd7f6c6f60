//! A process that calls the driver, and what it has called: a report shows the calls of a case that failed.

mod words;

use std::{
    collections::BTreeSet,
    fmt::Debug,
    ops::Deref,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use cofferdam_backend::{Backend, BackendFuture, Call};
use cofferdam_domain::{
    GroupSnapshotHandle, NodeId, SnapshotHandle, VolumeHandle,
    storage::{
        Ability, Capacity, CapacityQuery, ConnectionInfo, CreateGroupSnapshot, CreateSnapshot, CreateVolume,
        CreatedVolume, Description, ExpandVolume, ExpandedVolume, GroupSnapshot, PageRequest, Parameters,
        PublishVolume, Readiness, Snapshot, SnapshotPage, ValidateVolume, Validation, VolumePage,
        VolumeStatus,
    },
};
use cofferdam_wasm::WasmBackend;
use words::Words as _;

use crate::check::{cut, shown};

/// Most calls of one case that are kept.
const MOST: usize = 1_000;
/// Longest text of an argument or an answer that is kept, in characters.
const LONGEST: usize = 300;

/// The calls of one case, in the order in which they began.
#[derive(Clone, Debug, Default)]
pub(crate) struct Journal {
    calls: Arc<Mutex<Vec<Written>>>,
    processes: Arc<AtomicUsize>,
}

#[derive(Clone, Debug)]
struct Written {
    process: usize,
    call: String,
    answer: Option<String>,
}

impl Journal {
    /// Forgets the calls of the last case, and its processes but the first.
    pub(crate) fn clear(&self) {
        self.lock().clear();
        self.processes.store(1, Ordering::Relaxed);
    }

    /// The last calls, each with its answer; the process is named when it is not the first.
    pub(crate) fn last(&self, most: usize) -> Vec<String> {
        let calls = self.lock();
        let begin = calls.len().saturating_sub(most);
        calls
            .iter()
            .skip(begin)
            .map(|Written { process, call, answer }| {
                let answer = answer.as_deref().unwrap_or("nobody waited for the answer");
                match process {
                    0 => format!("{call} → {answer}"),
                    process => format!("{call} at process {} → {answer}", process + 1),
                }
            })
            .collect()
    }

    fn begin(&self, process: usize, call: String) -> usize {
        let mut calls = self.lock();
        if calls.len() < MOST {
            calls.push(Written { process, call, answer: None });
            calls.len() - 1
        } else {
            MOST
        }
    }

    fn end(&self, place: usize, answer: String) {
        if let Some(written) = self.lock().get_mut(place) {
            written.answer = Some(answer);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Written>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A process with the driver, whose calls are written down.
#[derive(Debug)]
pub(crate) struct Process {
    backend: Arc<WasmBackend>,
    journal: Journal,
    number: usize,
}

impl Deref for Process {
    type Target = WasmBackend;

    fn deref(&self) -> &WasmBackend {
        &self.backend
    }
}

impl Process {
    /// The first process.
    pub(crate) fn new(backend: Arc<WasmBackend>, journal: Journal) -> Self {
        Self { number: journal.processes.fetch_add(1, Ordering::Relaxed), backend, journal }
    }

    /// Another process with the same driver and storage.
    pub(crate) fn twin(&self) -> Arc<Self> {
        Arc::new(Self::new(self.backend.second_process(), self.journal.clone()))
    }

    /// Writes a call down when it begins, and its answer when it comes.
    fn watch<'a, T: Debug + Send + 'a>(
        &'a self,
        function: &'static str,
        arguments: String,
        answer: BackendFuture<'a, T>,
    ) -> BackendFuture<'a, T> {
        Box::pin(async move {
            let place = self.journal.begin(self.number, format!("{function}({})", cut(arguments, LONGEST)));
            let answer = answer.await;
            self.journal.end(place, cut(shown(&answer), LONGEST));
            answer
        })
    }
}

impl Backend for Process {
    fn description(&self) -> &Description {
        self.backend.description()
    }

    fn abilities(&self) -> &BTreeSet<Ability> {
        self.backend.abilities()
    }

    fn probe(&self, call: Call) -> BackendFuture<'_, Readiness> {
        self.watch("identity.probe", String::new(), self.backend.probe(call))
    }

    fn create_volume(&self, call: Call, request: CreateVolume) -> BackendFuture<'_, CreatedVolume> {
        self.watch("volumes.create", request.words(), self.backend.create_volume(call, request))
    }

    fn delete_volume(&self, call: Call, handle: VolumeHandle) -> BackendFuture<'_, ()> {
        self.watch("volumes.delete", handle.words(), self.backend.delete_volume(call, handle))
    }

    fn validate_volume(&self, call: Call, request: ValidateVolume) -> BackendFuture<'_, Validation> {
        self.watch("volumes.validate", request.words(), self.backend.validate_volume(call, request))
    }

    fn clone_volume(
        &self,
        call: Call,
        request: CreateVolume,
        source: VolumeHandle,
    ) -> BackendFuture<'_, CreatedVolume> {
        let words = format!("{}, source {}", request.words(), source.words());
        self.watch("cloning.create-from-volume", words, self.backend.clone_volume(call, request, source))
    }

    fn restore_snapshot(
        &self,
        call: Call,
        request: CreateVolume,
        source: SnapshotHandle,
    ) -> BackendFuture<'_, CreatedVolume> {
        let words = format!("{}, source {}", request.words(), source.words());
        self.watch(
            "restoring.create-from-snapshot",
            words,
            self.backend.restore_snapshot(call, request, source),
        )
    }

    fn publish_volume(&self, call: Call, request: PublishVolume) -> BackendFuture<'_, ConnectionInfo> {
        self.watch("publishing.publish", request.words(), self.backend.publish_volume(call, request))
    }

    fn unpublish_volume(
        &self,
        call: Call,
        handle: VolumeHandle,
        node: Option<NodeId>,
    ) -> BackendFuture<'_, ()> {
        let from =
            node.as_ref().map_or_else(|| "all nodes".to_owned(), |node| format!("node {:?}", node.as_str()));
        let words = format!("{}, {from}", handle.words());
        self.watch("publishing.unpublish", words, self.backend.unpublish_volume(call, handle, node))
    }

    fn expand_volume(&self, call: Call, request: ExpandVolume) -> BackendFuture<'_, ExpandedVolume> {
        self.watch("expansion.expand", request.words(), self.backend.expand_volume(call, request))
    }

    fn modify_volume(
        &self,
        call: Call,
        handle: VolumeHandle,
        parameters: Parameters,
    ) -> BackendFuture<'_, ()> {
        let words = format!("{}, parameters {parameters:?}", handle.words());
        self.watch("modification.modify", words, self.backend.modify_volume(call, handle, parameters))
    }

    fn create_snapshot(&self, call: Call, request: CreateSnapshot) -> BackendFuture<'_, Snapshot> {
        self.watch("snapshots.create", request.words(), self.backend.create_snapshot(call, request))
    }

    fn delete_snapshot(&self, call: Call, handle: SnapshotHandle) -> BackendFuture<'_, ()> {
        self.watch("snapshots.delete", handle.words(), self.backend.delete_snapshot(call, handle))
    }

    fn get_snapshot(&self, call: Call, handle: SnapshotHandle) -> BackendFuture<'_, Snapshot> {
        self.watch("snapshots.get", handle.words(), self.backend.get_snapshot(call, handle))
    }

    fn list_snapshots(
        &self,
        call: Call,
        source: Option<VolumeHandle>,
        page: PageRequest,
    ) -> BackendFuture<'_, SnapshotPage> {
        let of = source
            .as_ref()
            .map_or_else(|| "of all volumes".to_owned(), |source| format!("of {}", source.words()));
        let words = format!("{of}, {}", page.words());
        self.watch("snapshots.list", words, self.backend.list_snapshots(call, source, page))
    }

    fn create_group_snapshot(
        &self,
        call: Call,
        request: CreateGroupSnapshot,
    ) -> BackendFuture<'_, GroupSnapshot> {
        self.watch(
            "group-snapshots.create",
            request.words(),
            self.backend.create_group_snapshot(call, request),
        )
    }

    fn delete_group_snapshot(
        &self,
        call: Call,
        handle: GroupSnapshotHandle,
        snapshots: BTreeSet<SnapshotHandle>,
    ) -> BackendFuture<'_, ()> {
        let words = format!("{}, members {}", handle.words(), snapshots.words());
        self.watch(
            "group-snapshots.delete",
            words,
            self.backend.delete_group_snapshot(call, handle, snapshots),
        )
    }

    fn get_group_snapshot(
        &self,
        call: Call,
        handle: GroupSnapshotHandle,
        snapshots: BTreeSet<SnapshotHandle>,
    ) -> BackendFuture<'_, GroupSnapshot> {
        let words = format!("{}, members {}", handle.words(), snapshots.words());
        self.watch("group-snapshots.get", words, self.backend.get_group_snapshot(call, handle, snapshots))
    }

    fn list_volumes(&self, call: Call, page: PageRequest) -> BackendFuture<'_, VolumePage> {
        self.watch("listing.list", page.words(), self.backend.list_volumes(call, page))
    }

    fn get_volume(&self, call: Call, handle: VolumeHandle) -> BackendFuture<'_, VolumeStatus> {
        self.watch("inspection.get", handle.words(), self.backend.get_volume(call, handle))
    }

    fn get_capacity(&self, call: Call, query: CapacityQuery) -> BackendFuture<'_, Capacity> {
        self.watch("capacity.available", query.words(), self.backend.get_capacity(call, query))
    }
}
