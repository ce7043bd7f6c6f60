//! Environment of the cases: the loaded driver, unique names, calls that are repeated after a temporary
//! error, and a record of the created objects for the cleanup.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use cofferdam_backend::{Backend as _, BackendFuture, Call};
use cofferdam_domain::{
    ClusterId, GroupSnapshotHandle, ReclaimPolicy, SnapshotHandle, Uid, VolumeHandle, VolumeName,
    storage::{
        CapacityRange, ContentSource, CreateGroupSnapshot, CreateSnapshot, CreateVolume, CreatedVolume,
        ErrorKind, Finality, GroupSnapshot, Snapshot, StorageError, TopologyRequirement, VolumeOwner,
        VolumeStatus,
    },
};
use cofferdam_wasm::{ComponentSource, Engine, WasmBackend, fault_injection::FaultPlan};
use tokio::time::{Instant, sleep};

use crate::{
    SuiteOptions,
    check::{CaseResult, expect_success},
    process::{CallRecorder, RecordingBackend},
};

/// Beginning of the names of all runs.
pub(crate) const NAME_PREFIX: &str = "cofferdam-test-";
/// Initial delay before a call is repeated, unless the driver requests a delay. It doubles with each attempt.
const INITIAL_RETRY_PAUSE: Duration = Duration::from_millis(20);
/// Maximum delay before a call is repeated, also if the driver requests a longer one.
const MAX_RETRY_PAUSE: Duration = Duration::from_secs(2);
/// Maximum errors of a run that are recorded; later ones are not. The cases `errors/have-a-message`,
/// `errors/final-kinds-are-final` and `errors/no-defects` check them.
const MAX_ERRORS: usize = 10_000;

/// When `SuiteContext::unfinished_calls` reaches this number, failed calls are no longer repeated, and the
/// remaining cases are skipped.
pub(crate) const MAX_UNFINISHED_CALLS: u32 = 5;

/// Returns true if a failed call has to be repeated: its error says that the call is in progress, or that its
/// outcome is unknown, with the kind Aborted, Unavailable or DeadlineExceeded.
fn is_retryable(error: &StorageError) -> bool {
    match error.finality {
        Finality::Final => false,
        Finality::InProgress => true,
        Finality::Unknown => {
            matches!(error.kind, ErrorKind::Aborted | ErrorKind::Unavailable | ErrorKind::DeadlineExceeded)
        }
    }
}

/// Delay before a call is repeated. The first repetition has attempt 0.
pub(crate) fn retry_pause(attempt: u32) -> Duration {
    INITIAL_RETRY_PAUSE.saturating_mul(2_u32.saturating_pow(attempt)).min(MAX_RETRY_PAUSE)
}

/// Content source of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum VolumeOrigin {
    /// No source: an empty volume.
    Empty,
    /// A clone of another volume.
    Volume(VolumeHandle),
    /// A restored snapshot.
    Snapshot(SnapshotHandle),
}

/// The objects that the cleanup after each case deletes or unpublishes, and the creates that it repeats.
#[derive(Debug, Default)]
pub(crate) struct CreatedResources {
    volumes: BTreeSet<VolumeHandle>,
    snapshots: BTreeSet<SnapshotHandle>,
    groups: BTreeMap<GroupSnapshotHandle, BTreeSet<SnapshotHandle>>,
    published_volumes: BTreeSet<VolumeHandle>,
    /// Creates of volumes without a final result, to be repeated: only a repetition returns the handle.
    open_volumes: Vec<(CreateVolume, VolumeOrigin)>,
    open_snapshots: Vec<CreateSnapshot>,
    open_groups: Vec<CreateGroupSnapshot>,
}

impl CreatedResources {
    fn add_open(&mut self, create: OpenCreate) {
        match create {
            OpenCreate::Volume(request, origin) => {
                self.open_volumes.retain(|(open, _)| open.name != request.name);
                self.open_volumes.push((request, origin));
            }
            OpenCreate::Snapshot(request) => {
                self.open_snapshots.retain(|open| open.name != request.name);
                self.open_snapshots.push(request);
            }
            OpenCreate::Group(request) => {
                self.open_groups.retain(|open| open.name != request.name);
                self.open_groups.push(request);
            }
        }
    }
}

/// A create without a final result.
enum OpenCreate {
    Volume(CreateVolume, VolumeOrigin),
    Snapshot(CreateSnapshot),
    Group(CreateGroupSnapshot),
}

/// A create whose result is not recorded yet: a call, or its repetitions with their pauses. If its future is
/// dropped, such as by an interrupt of the run, the create is recorded for the cleanup.
pub(crate) struct CreateInFlight {
    created: Arc<Mutex<CreatedResources>>,
    create: Option<OpenCreate>,
}

impl CreateInFlight {
    /// The caller has recorded the result, or does so without a pause.
    pub(crate) fn recorded(mut self) {
        self.create = None;
    }
}

impl Drop for CreateInFlight {
    fn drop(&mut self) {
        if let Some(create) = self.create.take() {
            lock(&self.created).add_open(create);
        }
    }
}

/// Environment of all cases of a run.
pub(crate) struct SuiteContext {
    pub(crate) engine: Engine,
    pub(crate) source: ComponentSource,
    pub(crate) options: SuiteOptions,
    pub(crate) backend: Arc<RecordingBackend>,
    pub(crate) call_recorder: CallRecorder,
    pub(crate) faults: FaultPlan,
    /// Keys of the driver's state and items of its pool before the first case.
    pub(crate) initial_storage: BTreeSet<String>,
    name_prefix: String,
    name_counter: AtomicU32,
    /// Number of calls that still returned a retryable error, see [`is_retryable`], when
    /// `SuiteOptions::retry_timeout` had passed.
    unfinished_calls: AtomicU32,
    created: Arc<Mutex<CreatedResources>>,
    /// Every volume and snapshot that a create call of the run returned, members of group snapshots and
    /// deleted objects included.
    all_created: Mutex<(BTreeSet<VolumeHandle>, BTreeSet<SnapshotHandle>)>,
    errors: Mutex<Vec<(&'static str, StorageError)>>,
    keeps_owners: Mutex<Option<bool>>,
}

impl SuiteContext {
    pub(crate) fn new(
        engine: Engine,
        source: ComponentSource,
        options: SuiteOptions,
        backend: Arc<WasmBackend>,
        faults: FaultPlan,
    ) -> Self {
        let journal = CallRecorder::default();
        let backend = Arc::new(RecordingBackend::new(backend, journal.clone()));
        Self {
            call_recorder: journal,
            name_prefix: format!("{NAME_PREFIX}{:08x}", options.seed & 0xffff_ffff),
            initial_storage: stored_entries(&backend, &options),
            engine,
            source,
            options,
            backend,
            faults,
            name_counter: AtomicU32::new(0),
            unfinished_calls: AtomicU32::new(0),
            created: Arc::default(),
            all_created: Mutex::default(),
            errors: Mutex::default(),
            keeps_owners: Mutex::default(),
        }
    }

    /// Keys of the driver's state and items of its pool.
    pub(crate) fn stored_entries(&self) -> BTreeSet<String> {
        stored_entries(&self.backend, &self.options)
    }

    /// True if the driver returns the owner of a volume; `None` if no case has checked.
    pub(crate) fn keeps_owners(&self) -> Option<bool> {
        *lock(&self.keeps_owners)
    }

    /// Records that the driver returns, or does not return, the owner of a volume.
    pub(crate) fn set_keeps_owners(&self, keeps_owner: bool) {
        *lock(&self.keeps_owners) = Some(keeps_owner);
    }

    /// Options of a call: the run's deadline and secrets.
    pub(crate) fn call(&self) -> Call {
        Call { secrets: self.options.secrets.clone(), ..Call::with_deadline(self.options.deadline) }
    }

    /// A name that is unique in the run: the run's prefix, the label and a number. The label shows the
    /// purpose of the object.
    pub(crate) fn unique_name(&self, label: &str) -> String {
        format!("{}-{label}-{}", self.name_prefix, self.name_counter.fetch_add(1, Ordering::Relaxed))
    }

    /// Owner of a volume with this name. The cluster id is the run's prefix; the claim's UID and the
    /// PersistentVolume's name derive from the name.
    pub(crate) fn owner(&self, name: &str) -> VolumeOwner {
        VolumeOwner {
            cluster_id: ClusterId::new(self.name_prefix.as_str()),
            claim_uid: Uid::new(format!("claim-of-{name}").chars().take(128).collect::<String>()),
            pv_name: VolumeName::new(name.chars().take(63).collect::<String>()),
            reclaim_policy: ReclaimPolicy::Delete,
        }
    }

    /// A request for an empty volume with a unique name, and with the run's size, capability, parameters and
    /// topology.
    pub(crate) fn volume_request(&self, label: &str) -> CreateVolume {
        self.volume_request_named(self.unique_name(label))
    }

    /// As [`Self::volume_request`], with this name in place of a generated one.
    pub(crate) fn volume_request_named(&self, name: String) -> CreateVolume {
        CreateVolume {
            owner: Some(self.owner(&name)),
            name,
            capacity: CapacityRange { required: Some(self.options.size), limit: None },
            capabilities: vec![self.options.capability.clone()],
            parameters: self.options.parameters.clone(),
            mutable_parameters: cofferdam_domain::storage::Parameters::new(),
            topology: self.options.topology.clone().map(|segments| TopologyRequirement {
                requisite: vec![segments.clone()],
                preferred: vec![segments],
            }),
            source: None,
        }
    }

    /// Makes a call, and repeats it while its error is retryable, see [`is_retryable`], until
    /// `SuiteOptions::retry_timeout` or until [`Self::has_given_up`]. Records every error.
    pub(crate) async fn retry_until_final<'a, T>(
        &self,
        method: &'static str,
        call: impl Fn() -> BackendFuture<'a, T>,
    ) -> Result<T, StorageError> {
        let started = Instant::now();
        let mut attempt = 0;
        loop {
            let result = call().await;
            let Err(error) = &result else { return result };
            self.record_error(method, error);
            if !is_retryable(error) || self.has_given_up() {
                return result;
            }
            if started.elapsed() >= self.options.retry_timeout {
                self.unfinished_calls.fetch_add(1, Ordering::Relaxed);
                return result;
            }
            let pause = error.retry_after_ms.map_or_else(|| retry_pause(attempt), Duration::from_millis);
            sleep(pause.min(MAX_RETRY_PAUSE)).await;
            attempt += 1;
        }
    }

    /// Returns true if [`MAX_UNFINISHED_CALLS`] calls still failed after `SuiteOptions::retry_timeout`.
    pub(crate) fn has_given_up(&self) -> bool {
        self.unfinished_calls.load(Ordering::Relaxed) >= MAX_UNFINISHED_CALLS
    }

    fn record_error(&self, method: &'static str, error: &StorageError) {
        let mut errors = lock(&self.errors);
        if errors.len() < MAX_ERRORS {
            errors.push((method, error.clone()));
        }
    }

    /// Errors of the calls that [`Self::retry_until_final`] made in this run, at most [`MAX_ERRORS`], with
    /// the methods' names. Errors of calls that a case makes in another way are not recorded.
    pub(crate) fn errors(&self) -> Vec<(&'static str, StorageError)> {
        lock(&self.errors).clone()
    }

    /// Returns the future of one create call by a simulated process. The call starts when the future is first
    /// polled. The caller records the create for the cleanup, see [`Self::record_create`].
    pub(crate) fn start_create<'a>(
        &self,
        backend: &'a RecordingBackend,
        call: Call,
        request: &CreateVolume,
        origin: &VolumeOrigin,
    ) -> BackendFuture<'a, CreatedVolume> {
        let source = match origin {
            VolumeOrigin::Empty => None,
            VolumeOrigin::Volume(handle) => Some(ContentSource::Volume(handle.clone())),
            VolumeOrigin::Snapshot(handle) => Some(ContentSource::Snapshot(handle.clone())),
        };
        let create = OpenCreate::Volume(request.clone(), origin.clone());
        let (created, request) = (Arc::clone(&self.created), CreateVolume { source, ..request.clone() });
        Box::pin(async move {
            // A future that was never polled has no effect, and its create is not recorded.
            let in_flight = CreateInFlight { created, create: Some(create) };
            let answer = backend.create_volume(call, request).await;
            in_flight.recorded();
            answer
        })
    }

    /// A create of a volume whose result is not recorded yet.
    pub(crate) fn volume_in_flight(&self, request: &CreateVolume, origin: &VolumeOrigin) -> CreateInFlight {
        self.in_flight(OpenCreate::Volume(request.clone(), origin.clone()))
    }

    fn in_flight(&self, create: OpenCreate) -> CreateInFlight {
        CreateInFlight { created: Arc::clone(&self.created), create: Some(create) }
    }

    /// Records a volume of the run that was found in a listing, for the cleanup.
    pub(crate) fn record_volume(&self, handle: &VolumeHandle) {
        lock(&self.created).volumes.insert(handle.clone());
    }

    /// Records the result of a create for the cleanup, which deletes the volume, or repeats a create without
    /// a final result. A final error is not recorded.
    pub(crate) fn record_create(
        &self,
        request: &CreateVolume,
        origin: &VolumeOrigin,
        result: &Result<CreatedVolume, StorageError>,
    ) {
        let mut created = lock(&self.created);
        match result {
            Ok(volume) => {
                created.volumes.insert(volume.handle.clone());
                created.open_volumes.retain(|(open, _)| open.name != request.name);
                lock(&self.all_created).0.insert(volume.handle.clone());
            }
            Err(error) if error.finality != Finality::Final => {
                created.add_open(OpenCreate::Volume(request.clone(), origin.clone()));
            }
            Err(_) => {}
        }
    }

    /// Creates an empty volume. Records it for the cleanup.
    pub(crate) async fn create(&self, request: &CreateVolume) -> Result<CreatedVolume, StorageError> {
        self.create_from(&self.backend, request, &VolumeOrigin::Empty).await
    }

    /// Creates a volume, empty or with a content source, through the simulated process `backend`. Records the
    /// volume for the cleanup.
    pub(crate) async fn create_from(
        &self,
        backend: &RecordingBackend,
        request: &CreateVolume,
        origin: &VolumeOrigin,
    ) -> Result<CreatedVolume, StorageError> {
        let in_flight = self.volume_in_flight(request, origin);
        let call = || self.start_create(backend, self.call(), request, origin);
        let result = self.retry_until_final("create", call).await;
        in_flight.recorded();
        self.record_create(request, origin, &result);
        result
    }

    /// Creates an empty volume with a unique name. Fails the case if the create fails.
    pub(crate) async fn new_volume(&self, label: &str) -> CaseResult<(CreateVolume, CreatedVolume)> {
        let request = self.volume_request(label);
        let volume = expect_success("a new volume", self.create(&request).await)?;
        Ok((request, volume))
    }

    /// Deletes a volume.
    pub(crate) async fn delete(&self, handle: &VolumeHandle) -> Result<(), StorageError> {
        self.delete_with(&self.backend, handle).await
    }

    /// Deletes a volume through the simulated process `backend`.
    pub(crate) async fn delete_with(
        &self,
        backend: &RecordingBackend,
        handle: &VolumeHandle,
    ) -> Result<(), StorageError> {
        let answer =
            self.retry_until_final("delete", || backend.delete_volume(self.call(), handle.clone())).await;
        if answer.is_ok() {
            lock(&self.created).volumes.remove(handle);
        }
        answer
    }

    /// Records that a volume is, or may be, published. The cleanup unpublishes it.
    pub(crate) fn record_published(&self, handle: &VolumeHandle) {
        lock(&self.created).published_volumes.insert(handle.clone());
    }

    /// Creates a snapshot through the simulated process `backend`. Records the snapshot for the cleanup.
    pub(crate) async fn create_snapshot(
        &self,
        backend: &RecordingBackend,
        request: &CreateSnapshot,
    ) -> Result<Snapshot, StorageError> {
        let in_flight = self.in_flight(OpenCreate::Snapshot(request.clone()));
        let call = || backend.create_snapshot(self.call(), request.clone());
        let result = self.retry_until_final("create-snapshot", call).await;
        in_flight.recorded();
        let mut created = lock(&self.created);
        match &result {
            Ok(snapshot) => {
                created.snapshots.insert(snapshot.handle.clone());
                created.open_snapshots.retain(|open| open.name != request.name);
                lock(&self.all_created).1.insert(snapshot.handle.clone());
            }
            Err(error) if error.finality != Finality::Final => {
                created.add_open(OpenCreate::Snapshot(request.clone()));
            }
            Err(_) => {}
        }
        result
    }

    /// Records a snapshot of the run that may have outlived its group, for the cleanup.
    pub(crate) fn record_snapshot(&self, handle: &SnapshotHandle) {
        lock(&self.created).snapshots.insert(handle.clone());
    }

    /// Deletes a snapshot.
    pub(crate) async fn delete_snapshot(&self, handle: &SnapshotHandle) -> Result<(), StorageError> {
        let call = || self.backend.delete_snapshot(self.call(), handle.clone());
        let answer = self.retry_until_final("delete-snapshot", call).await;
        if answer.is_ok() {
            lock(&self.created).snapshots.remove(handle);
        }
        answer
    }

    /// Creates a group snapshot. Records it for the cleanup.
    pub(crate) async fn create_group_snapshot(
        &self,
        request: &CreateGroupSnapshot,
    ) -> Result<GroupSnapshot, StorageError> {
        let in_flight = self.in_flight(OpenCreate::Group(request.clone()));
        let call = || self.backend.create_group_snapshot(self.call(), request.clone());
        let answer = self.retry_until_final("create-group-snapshot", call).await;
        in_flight.recorded();
        let mut created = lock(&self.created);
        match &answer {
            Ok(group) => {
                let members: BTreeSet<_> =
                    group.snapshots.iter().map(|member| member.handle.clone()).collect();
                lock(&self.all_created).1.extend(members.iter().cloned());
                created.groups.insert(group.handle.clone(), members);
                created.open_groups.retain(|open| open.name != request.name);
            }
            Err(error) if error.finality != Finality::Final => {
                created.add_open(OpenCreate::Group(request.clone()));
            }
            Err(_) => {}
        }
        answer
    }

    /// Deletes a group snapshot.
    pub(crate) async fn delete_group_snapshot(
        &self,
        handle: &GroupSnapshotHandle,
        members: &BTreeSet<SnapshotHandle>,
    ) -> Result<(), StorageError> {
        let call = || self.backend.delete_group_snapshot(self.call(), handle.clone(), members.clone());
        let answer = self.retry_until_final("delete-group-snapshot", call).await;
        if answer.is_ok() {
            lock(&self.created).groups.remove(handle);
        }
        answer
    }

    /// Returns true if the run created this volume: a create call returned its handle, or its owner has the
    /// cluster id of this run.
    pub(crate) fn is_own_volume(&self, status: &VolumeStatus) -> bool {
        let is_of_run = |owner: &VolumeOwner| owner.cluster_id.as_str() == self.name_prefix;
        lock(&self.all_created).0.contains(&status.volume.handle)
            || status.owner.as_ref().is_some_and(is_of_run)
    }

    /// Returns true if a create call of the run returned this volume.
    pub(crate) fn has_created(&self, handle: &VolumeHandle) -> bool {
        lock(&self.all_created).0.contains(handle)
    }

    /// Returns true if a create call of the run returned this snapshot.
    pub(crate) fn is_own_snapshot(&self, handle: &SnapshotHandle) -> bool {
        lock(&self.all_created).1.contains(handle)
    }

    /// Descriptions of the volumes, snapshots and group snapshots that are not known to be deleted, and of
    /// the creates without a final result.
    pub(crate) fn leftovers(&self) -> Vec<String> {
        let created = lock(&self.created);
        let describe = |what: &str, handles: &mut dyn Iterator<Item = String>| -> Vec<String> {
            handles.map(|handle| format!("{what} {handle}")).collect()
        };
        [
            describe("volume", &mut created.volumes.iter().map(ToString::to_string)),
            describe("snapshot", &mut created.snapshots.iter().map(ToString::to_string)),
            describe("group snapshot", &mut created.groups.keys().map(ToString::to_string)),
            describe(
                "an unknown volume of the name",
                &mut created.open_volumes.iter().map(|(open, _)| open.name.clone()),
            ),
            describe(
                "an unknown snapshot of the name",
                &mut created.open_snapshots.iter().map(|open| open.name.clone()),
            ),
            describe(
                "an unknown group of the name",
                &mut created.open_groups.iter().map(|open| open.name.clone()),
            ),
        ]
        .concat()
    }

    /// Repeats creates without a final result. Then unpublishes recorded volumes that may be published, and
    /// deletes every recorded object. Objects that cannot be unpublished or deleted stay recorded.
    pub(crate) async fn delete_all(&self) {
        self.retry_open_creates().await;
        let published = lock(&self.created).published_volumes.clone();
        for handle in published {
            let call = || self.backend.unpublish_volume(self.call(), handle.clone(), None);
            if self.retry_until_final("unpublish", call).await.is_ok() {
                lock(&self.created).published_volumes.remove(&handle);
            }
        }
        let groups = lock(&self.created).groups.clone();
        for (handle, members) in groups {
            drop(self.delete_group_snapshot(&handle, &members).await);
        }
        let snapshots = lock(&self.created).snapshots.clone();
        for handle in snapshots {
            drop(self.delete_snapshot(&handle).await);
        }
        let volumes = lock(&self.created).volumes.clone();
        for handle in volumes {
            drop(self.delete(&handle).await);
        }
    }

    /// Repeats creates without a final result, to get the handles of their objects. A create that fails again
    /// without a final result stays recorded.
    async fn retry_open_creates(&self) {
        // An interrupt may drop this future, so each create stays recorded until its call starts.
        let [volumes, snapshots, groups] = {
            let created = lock(&self.created);
            [created.open_volumes.len(), created.open_snapshots.len(), created.open_groups.len()]
        };
        for _ in 0..volumes {
            let Some((request, origin)) = take_first(&mut lock(&self.created).open_volumes) else { break };
            drop(self.create_from(&self.backend, &request, &origin).await);
        }
        for _ in 0..snapshots {
            let Some(request) = take_first(&mut lock(&self.created).open_snapshots) else { break };
            drop(self.create_snapshot(&self.backend, &request).await);
        }
        for _ in 0..groups {
            let Some(request) = take_first(&mut lock(&self.created).open_groups) else { break };
            drop(self.create_group_snapshot(&request).await);
        }
    }
}

fn take_first<T>(items: &mut Vec<T>) -> Option<T> {
    (!items.is_empty()).then(|| items.remove(0))
}

/// The keys of a driver's state and the items of its pool.
fn stored_entries(backend: &WasmBackend, options: &SuiteOptions) -> BTreeSet<String> {
    let keys = backend.state_keys().into_iter().map(|key| format!("key {key}"));
    let pool = options.config.pool.as_ref().map(|pool| std::fs::read_dir(&pool.directory));
    let entries = pool.and_then(Result::ok).into_iter().flatten().flatten();
    // The host's own files in the pool have other names.
    let items = entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.starts_with(|first: char| first.is_ascii_alphanumeric()))
        .map(|name| format!("item {name}"));
    keys.chain(items).collect()
}

impl Debug for SuiteContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bench").field("prefix", &self.name_prefix).finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
