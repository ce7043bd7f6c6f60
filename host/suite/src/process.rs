//! Simulated processes that call the driver, and a record of their calls for the report of a failed case.

mod summary;

use std::{
    collections::BTreeSet,
    fmt::Debug,
    ops::Deref,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use cofferdam_backend::{Backend, BackendFuture, Call, REDACTED};
use cofferdam_domain::{
    GroupSnapshotHandle, NodeId, SnapshotHandle, VolumeHandle,
    storage::{
        Ability, Capacity, CapacityQuery, ConnectionInfo, ContentSource, CreateGroupSnapshot, CreateSnapshot,
        CreateVolume, CreatedVolume, Description, ExpandVolume, ExpandedVolume, GroupSnapshot, PageRequest,
        Parameters, PublishVolume, Readiness, Snapshot, SnapshotPage, ValidateVolume, Validation, VolumePage,
        VolumeStatus,
    },
};
use cofferdam_wasm::WasmBackend;
use summary::ArgumentSummary as _;

use crate::check::{answer_line, truncate};

/// Maximum recorded calls of a case; later ones are not recorded.
const MAX_CALLS: usize = 1_000;
/// Maximum length of the recorded arguments of a call, and of its recorded result, in characters.
const MAX_TEXT_CHARS: usize = 300;

/// Calls of a case, in order of their start.
#[derive(Clone, Debug, Default)]
pub(crate) struct CallRecorder {
    calls: Arc<Mutex<Vec<RecordedCall>>>,
    process_count: Arc<AtomicUsize>,
    redacted: Arc<Mutex<RedactedResponses>>,
}

/// Responses of the run in which the host redacted a secret.
#[derive(Debug, Default)]
struct RedactedResponses {
    count: usize,
    /// The first call with its response.
    first: Option<String>,
}

#[derive(Clone, Debug)]
struct RecordedCall {
    process: usize,
    call: String,
    answer: Option<String>,
}

impl CallRecorder {
    /// Clears the calls of the previous case. The numbers of that case's processes, except that of the first
    /// process, are used again.
    pub(crate) fn clear(&self) {
        self.lock().clear();
        self.process_count.store(1, Ordering::Relaxed);
    }

    /// The last calls, at most `limit`, each with its result. The text of a call by another process than the
    /// first names the process's number, counted from 1.
    pub(crate) fn last_calls(&self, limit: usize) -> Vec<String> {
        let calls = self.lock();
        let start = calls.len().saturating_sub(limit);
        calls
            .iter()
            .skip(start)
            .map(|RecordedCall { process, call, answer }| {
                let answer = answer.as_deref().unwrap_or("abandoned without a response");
                match process {
                    0 => format!("{call} → {answer}"),
                    process => format!("{call} at process {} → {answer}", process + 1),
                }
            })
            .collect()
    }

    /// The last call, with its response if it has returned.
    pub(crate) fn last_call(&self) -> Option<String> {
        let calls = self.lock();
        let last = calls.last()?;
        Some(match &last.answer {
            Some(answer) => format!("{} → {answer}", last.call),
            None => last.call.clone(),
        })
    }

    /// Number of responses of the run in which the host redacted a secret, and the first such call.
    pub(crate) fn redacted_responses(&self) -> (usize, Option<String>) {
        let redacted = self.redacted.lock().unwrap_or_else(PoisonError::into_inner);
        (redacted.count, redacted.first.clone())
    }

    fn record_redaction(&self, call: impl FnOnce() -> String) {
        let mut redacted = self.redacted.lock().unwrap_or_else(PoisonError::into_inner);
        redacted.count += 1;
        redacted.first.get_or_insert_with(call);
    }

    fn record_call(&self, process: usize, call: String) -> usize {
        let mut calls = self.lock();
        if calls.len() < MAX_CALLS {
            calls.push(RecordedCall { process, call, answer: None });
            calls.len() - 1
        } else {
            MAX_CALLS
        }
    }

    fn record_answer(&self, index: usize, answer: String) {
        if let Some(recorded) = self.lock().get_mut(index) {
            recorded.answer = Some(answer);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<RecordedCall>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One simulated process with the driver. Its calls are recorded.
#[derive(Debug)]
pub(crate) struct RecordingBackend {
    backend: Arc<WasmBackend>,
    recorder: CallRecorder,
    number: usize,
}

impl Deref for RecordingBackend {
    type Target = WasmBackend;

    fn deref(&self) -> &WasmBackend {
        &self.backend
    }
}

impl RecordingBackend {
    /// A process with the next free number. The first process has number 0.
    pub(crate) fn new(backend: Arc<WasmBackend>, recorder: CallRecorder) -> Self {
        Self { number: recorder.process_count.fetch_add(1, Ordering::Relaxed), backend, recorder }
    }

    /// Another simulated process with the same driver and storage.
    pub(crate) fn second_process(&self) -> Arc<Self> {
        Arc::new(Self::new(self.backend.second_process(), self.recorder.clone()))
    }

    /// As [`Self::second_process`], without the configured secrets.
    pub(crate) fn second_process_without_secrets(&self) -> Self {
        Self::new(self.backend.second_process_without_secrets(), self.recorder.clone())
    }

    /// Records a call when its future is first polled, and its result if the future is polled to the end.
    fn record<'a, T: Debug + Send + 'a>(
        &'a self,
        function: &'static str,
        arguments: String,
        answer: BackendFuture<'a, T>,
    ) -> BackendFuture<'a, T> {
        Box::pin(async move {
            let call = format!("{function}({})", truncate(arguments, MAX_TEXT_CHARS));
            let index = self.recorder.record_call(self.number, call.clone());
            let answer = answer.await;
            let line = answer_line(&answer);
            let is_redacted = line.contains(REDACTED);
            let line = truncate(line, MAX_TEXT_CHARS);
            if is_redacted {
                self.recorder.record_redaction(|| format!("{call} → {line}"));
            }
            self.recorder.record_answer(index, line);
            answer
        })
    }
}

impl Backend for RecordingBackend {
    fn description(&self) -> &Description {
        self.backend.description()
    }

    fn abilities(&self) -> &BTreeSet<Ability> {
        self.backend.abilities()
    }

    fn probe(&self, call: Call) -> BackendFuture<'_, Readiness> {
        self.record("identity.probe", String::new(), self.backend.probe(call))
    }

    fn create_volume(&self, call: Call, request: CreateVolume) -> BackendFuture<'_, CreatedVolume> {
        let (function, source) = match &request.source {
            None => ("volumes.create", None),
            Some(ContentSource::Volume(handle)) => ("cloning.create-from-volume", Some(handle.summary())),
            Some(ContentSource::Snapshot(handle)) => {
                ("restoring.create-from-snapshot", Some(handle.summary()))
            }
        };
        let source = source.map_or_else(String::new, |source| format!(", source {source}"));
        let summary = format!("{}{source}", request.summary());
        self.record(function, summary, self.backend.create_volume(call, request))
    }

    fn delete_volume(&self, call: Call, handle: VolumeHandle) -> BackendFuture<'_, ()> {
        self.record("volumes.delete", handle.summary(), self.backend.delete_volume(call, handle))
    }

    fn validate_volume(&self, call: Call, request: ValidateVolume) -> BackendFuture<'_, Validation> {
        self.record("volumes.validate", request.summary(), self.backend.validate_volume(call, request))
    }

    fn publish_volume(&self, call: Call, request: PublishVolume) -> BackendFuture<'_, ConnectionInfo> {
        self.record("publishing.publish", request.summary(), self.backend.publish_volume(call, request))
    }

    fn unpublish_volume(
        &self,
        call: Call,
        handle: VolumeHandle,
        node: Option<NodeId>,
    ) -> BackendFuture<'_, ()> {
        let from =
            node.as_ref().map_or_else(|| "all nodes".to_owned(), |node| format!("node {:?}", node.as_str()));
        let summary = format!("{}, {from}", handle.summary());
        self.record("publishing.unpublish", summary, self.backend.unpublish_volume(call, handle, node))
    }

    fn expand_volume(&self, call: Call, request: ExpandVolume) -> BackendFuture<'_, ExpandedVolume> {
        self.record("expansion.expand", request.summary(), self.backend.expand_volume(call, request))
    }

    fn modify_volume(
        &self,
        call: Call,
        handle: VolumeHandle,
        parameters: Parameters,
    ) -> BackendFuture<'_, ()> {
        let summary = format!("{}, parameters {parameters:?}", handle.summary());
        self.record("modification.modify", summary, self.backend.modify_volume(call, handle, parameters))
    }

    fn create_snapshot(&self, call: Call, request: CreateSnapshot) -> BackendFuture<'_, Snapshot> {
        self.record("snapshots.create", request.summary(), self.backend.create_snapshot(call, request))
    }

    fn delete_snapshot(&self, call: Call, handle: SnapshotHandle) -> BackendFuture<'_, ()> {
        self.record("snapshots.delete", handle.summary(), self.backend.delete_snapshot(call, handle))
    }

    fn get_snapshot(&self, call: Call, handle: SnapshotHandle) -> BackendFuture<'_, Snapshot> {
        self.record("snapshots.get", handle.summary(), self.backend.get_snapshot(call, handle))
    }

    fn list_snapshots(
        &self,
        call: Call,
        source: Option<VolumeHandle>,
        page: PageRequest,
    ) -> BackendFuture<'_, SnapshotPage> {
        let of = source
            .as_ref()
            .map_or_else(|| "of all volumes".to_owned(), |source| format!("of {}", source.summary()));
        let summary = format!("{of}, {}", page.summary());
        self.record("snapshots.list", summary, self.backend.list_snapshots(call, source, page))
    }

    fn create_group_snapshot(
        &self,
        call: Call,
        request: CreateGroupSnapshot,
    ) -> BackendFuture<'_, GroupSnapshot> {
        self.record(
            "group-snapshots.create",
            request.summary(),
            self.backend.create_group_snapshot(call, request),
        )
    }

    fn delete_group_snapshot(
        &self,
        call: Call,
        handle: GroupSnapshotHandle,
        snapshots: BTreeSet<SnapshotHandle>,
    ) -> BackendFuture<'_, ()> {
        let summary = format!("{}, members {}", handle.summary(), snapshots.summary());
        self.record(
            "group-snapshots.delete",
            summary,
            self.backend.delete_group_snapshot(call, handle, snapshots),
        )
    }

    fn get_group_snapshot(
        &self,
        call: Call,
        handle: GroupSnapshotHandle,
        snapshots: BTreeSet<SnapshotHandle>,
    ) -> BackendFuture<'_, GroupSnapshot> {
        let summary = format!("{}, members {}", handle.summary(), snapshots.summary());
        self.record("group-snapshots.get", summary, self.backend.get_group_snapshot(call, handle, snapshots))
    }

    fn list_volumes(&self, call: Call, page: PageRequest) -> BackendFuture<'_, VolumePage> {
        self.record("listing.list", page.summary(), self.backend.list_volumes(call, page))
    }

    fn get_volume(&self, call: Call, handle: VolumeHandle) -> BackendFuture<'_, VolumeStatus> {
        self.record("inspection.get", handle.summary(), self.backend.get_volume(call, handle))
    }

    fn get_capacity(&self, call: Call, query: CapacityQuery) -> BackendFuture<'_, Capacity> {
        self.record("capacity.available", query.summary(), self.backend.get_capacity(call, query))
    }
}
