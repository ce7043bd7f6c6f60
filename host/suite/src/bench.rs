//! What a case works at: a loaded driver, fresh names, calls that are repeated while their outcome is open, and a list of
//! everything that was made.

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
        CapacityRange, CreateGroupSnapshot, CreateSnapshot, CreateVolume, CreatedVolume, ErrorKind, Finality,
        GroupSnapshot, Snapshot, StorageError, TopologyRequirement, VolumeOwner, VolumeStatus,
    },
};
use cofferdam_wasm::{ComponentSource, Engine, WasmBackend, fault_injection::FaultPlan};
use tokio::time::{Instant, sleep};

use crate::{
    Options,
    check::{Checked, done},
    process::{Journal, Process},
};

/// First pause before an open call is repeated, when the driver does not say how long.
const PAUSE: Duration = Duration::from_millis(20);
/// Longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// Most errors that are remembered for the cases about errors.
const NOTICED: usize = 10_000;

/// After so many calls that did not come to an end, no other is waited for.
pub(crate) const ENDLESS: u32 = 5;

/// Whether a failed call is worth repeating: it says that it goes on, or may do so and will be clearer later.
fn is_open(error: &StorageError) -> bool {
    match error.finality {
        Finality::Final => false,
        Finality::InProgress => true,
        Finality::Unknown => {
            matches!(error.kind, ErrorKind::Aborted | ErrorKind::Unavailable | ErrorKind::DeadlineExceeded)
        }
    }
}

/// How long to wait before an open call is repeated for the nth time.
pub(crate) fn pause_after(round: u32) -> Duration {
    PAUSE.saturating_mul(2_u32.saturating_pow(round)).min(LONGEST_PAUSE)
}

/// What the content of a volume comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Nothing.
    Empty,
    /// A volume.
    Volume(VolumeHandle),
    /// A snapshot.
    Snapshot(SnapshotHandle),
}

/// Everything that was made and is not known to be gone.
#[derive(Debug, Default)]
pub(crate) struct Made {
    volumes: BTreeSet<VolumeHandle>,
    snapshots: BTreeSet<SnapshotHandle>,
    groups: BTreeMap<GroupSnapshotHandle, BTreeSet<SnapshotHandle>>,
    published: BTreeSet<VolumeHandle>,
    /// Creations with an open outcome: only they themselves can tell what they made.
    open_volumes: Vec<(CreateVolume, Origin)>,
    open_snapshots: Vec<CreateSnapshot>,
    open_groups: Vec<CreateGroupSnapshot>,
}

/// What a case works at.
pub(crate) struct Bench {
    pub(crate) engine: Engine,
    pub(crate) source: ComponentSource,
    pub(crate) options: Options,
    pub(crate) backend: Arc<Process>,
    pub(crate) journal: Journal,
    pub(crate) faults: FaultPlan,
    /// What the storage held before the first case, as far as the host sees it.
    pub(crate) at_first: BTreeSet<String>,
    prefix: String,
    names: AtomicU32,
    /// Calls that were repeated until patience was at its end.
    endless: AtomicU32,
    made: Mutex<Made>,
    /// Every volume and snapshot of the run, also those that are gone.
    ever: Mutex<(BTreeSet<VolumeHandle>, BTreeSet<SnapshotHandle>)>,
    noticed: Mutex<Vec<(&'static str, StorageError)>>,
    keeps_owners: Mutex<Option<bool>>,
}

impl Bench {
    pub(crate) fn new(
        engine: Engine,
        source: ComponentSource,
        options: Options,
        backend: Arc<WasmBackend>,
        faults: FaultPlan,
    ) -> Self {
        let journal = Journal::default();
        let backend = Arc::new(Process::new(backend, journal.clone()));
        Self {
            journal,
            prefix: format!("cofferdam-test-{:08x}", options.seed & 0xffff_ffff),
            at_first: storage(&backend, &options),
            engine,
            source,
            options,
            backend,
            faults,
            names: AtomicU32::new(0),
            endless: AtomicU32::new(0),
            made: Mutex::default(),
            ever: Mutex::default(),
            noticed: Mutex::default(),
            keeps_owners: Mutex::default(),
        }
    }

    /// What the storage holds, as far as the host sees it.
    pub(crate) fn storage(&self) -> BTreeSet<String> {
        storage(&self.backend, &self.options)
    }

    /// Whether the driver returned the owner of a volume, when a case has looked.
    pub(crate) fn keeps_owners(&self) -> Option<bool> {
        *lock(&self.keeps_owners)
    }

    /// Remembers whether the driver returned the owner of a volume.
    pub(crate) fn saw_owner(&self, kept: bool) {
        *lock(&self.keeps_owners) = Some(kept);
    }

    /// A call with the run's deadline and secrets.
    pub(crate) fn call(&self) -> Call {
        Call { deadline: self.options.deadline, secrets: self.options.secrets.clone() }
    }

    /// A name that nothing has had before; the label tells people what left it.
    pub(crate) fn name(&self, label: &str) -> String {
        format!("{}-{label}-{}", self.prefix, self.names.fetch_add(1, Ordering::Relaxed))
    }

    /// Who owns the volumes of this run.
    pub(crate) fn owner(&self, name: &str) -> VolumeOwner {
        VolumeOwner {
            cluster_id: ClusterId::new(self.prefix.as_str()),
            claim_uid: Uid::new(format!("claim-of-{name}").chars().take(128).collect::<String>()),
            pv_name: VolumeName::new(name.chars().take(63).collect::<String>()),
            reclaim_policy: ReclaimPolicy::Delete,
        }
    }

    /// A request for a volume of the run's size.
    pub(crate) fn request(&self, label: &str) -> CreateVolume {
        self.named(self.name(label))
    }

    /// A request for a volume of this name.
    pub(crate) fn named(&self, name: String) -> CreateVolume {
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
        }
    }

    /// Repeats a call as long as it may still have an effect, and notices how it failed.
    pub(crate) async fn settled<'a, T>(
        &self,
        method: &'static str,
        call: impl Fn() -> BackendFuture<'a, T>,
    ) -> Result<T, StorageError> {
        let begun = Instant::now();
        let mut round = 0;
        loop {
            let answer = call().await;
            let Err(error) = &answer else { return answer };
            self.notice(method, error);
            if !is_open(error) || self.gives_up() {
                return answer;
            }
            if begun.elapsed() >= self.options.patience {
                self.endless.fetch_add(1, Ordering::Relaxed);
                return answer;
            }
            let pause = error.retry_after_ms.map_or_else(|| pause_after(round), Duration::from_millis);
            sleep(pause.min(LONGEST_PAUSE)).await;
            round += 1;
        }
    }

    /// Whether so many calls did not come to an end that no other is waited for.
    pub(crate) fn gives_up(&self) -> bool {
        self.endless.load(Ordering::Relaxed) >= ENDLESS
    }

    fn notice(&self, method: &'static str, error: &StorageError) {
        let mut noticed = lock(&self.noticed);
        if noticed.len() < NOTICED {
            noticed.push((method, error.clone()));
        }
    }

    /// Every error that a call of the run ended with, and which call that was.
    pub(crate) fn noticed(&self) -> Vec<(&'static str, StorageError)> {
        lock(&self.noticed).clone()
    }

    /// Begins to create a volume, at one of several processes; what comes of it is the caller's to [`keep`](Self::keep).
    pub(crate) fn begin_create<'a>(
        &self,
        backend: &'a Process,
        call: Call,
        request: &CreateVolume,
        origin: &Origin,
    ) -> BackendFuture<'a, CreatedVolume> {
        let request = request.clone();
        match origin {
            Origin::Empty => backend.create_volume(call, request),
            Origin::Volume(source) => backend.clone_volume(call, request, source.clone()),
            Origin::Snapshot(source) => backend.restore_snapshot(call, request, source.clone()),
        }
    }

    /// Notes a volume of the run that no call has returned.
    pub(crate) fn found(&self, handle: &VolumeHandle) {
        lock(&self.made).volumes.insert(handle.clone());
    }

    /// Remembers what a creation came to.
    pub(crate) fn keep(
        &self,
        request: &CreateVolume,
        origin: &Origin,
        answer: &Result<CreatedVolume, StorageError>,
    ) {
        let mut made = lock(&self.made);
        match answer {
            Ok(volume) => {
                made.volumes.insert(volume.handle.clone());
                made.open_volumes.retain(|(open, _)| open.name != request.name);
                lock(&self.ever).0.insert(volume.handle.clone());
            }
            Err(error) if error.finality != Finality::Final => {
                made.open_volumes.retain(|(open, _)| open.name != request.name);
                made.open_volumes.push((request.clone(), origin.clone()));
            }
            Err(_) => {}
        }
    }

    /// Creates an empty volume.
    pub(crate) async fn create(&self, request: &CreateVolume) -> Result<CreatedVolume, StorageError> {
        self.create_from(&self.backend, request, &Origin::Empty).await
    }

    /// Creates a volume from something, at one of several processes.
    pub(crate) async fn create_from(
        &self,
        backend: &Process,
        request: &CreateVolume,
        origin: &Origin,
    ) -> Result<CreatedVolume, StorageError> {
        let begin = || self.begin_create(backend, self.call(), request, origin);
        let answer = self.settled("create", begin).await;
        self.keep(request, origin, &answer);
        answer
    }

    /// A new volume, for cases that are about something else.
    pub(crate) async fn volume(&self, label: &str) -> Checked<(CreateVolume, CreatedVolume)> {
        let request = self.request(label);
        let volume = done("a new volume", self.create(&request).await)?;
        Ok((request, volume))
    }

    /// Deletes a volume.
    pub(crate) async fn delete(&self, handle: &VolumeHandle) -> Result<(), StorageError> {
        self.delete_at(&self.backend, handle).await
    }

    /// Deletes a volume, at one of several processes.
    pub(crate) async fn delete_at(
        &self,
        backend: &Process,
        handle: &VolumeHandle,
    ) -> Result<(), StorageError> {
        let answer = self.settled("delete", || backend.delete_volume(self.call(), handle.clone())).await;
        if answer.is_ok() {
            lock(&self.made).volumes.remove(handle);
        }
        answer
    }

    /// Notes that a volume is, or may be, published.
    pub(crate) fn published(&self, handle: &VolumeHandle) {
        lock(&self.made).published.insert(handle.clone());
    }

    /// Cuts a snapshot, at one of several processes.
    pub(crate) async fn cut(
        &self,
        backend: &Process,
        request: &CreateSnapshot,
    ) -> Result<Snapshot, StorageError> {
        let begin = || backend.create_snapshot(self.call(), request.clone());
        let answer = self.settled("create-snapshot", begin).await;
        let mut made = lock(&self.made);
        match &answer {
            Ok(snapshot) => {
                made.snapshots.insert(snapshot.handle.clone());
                made.open_snapshots.retain(|open| open.name != request.name);
                lock(&self.ever).1.insert(snapshot.handle.clone());
            }
            Err(error) if error.finality != Finality::Final => made.open_snapshots.push(request.clone()),
            Err(_) => {}
        }
        answer
    }

    /// Deletes a snapshot.
    pub(crate) async fn delete_snapshot(&self, handle: &SnapshotHandle) -> Result<(), StorageError> {
        let begin = || self.backend.delete_snapshot(self.call(), handle.clone());
        let answer = self.settled("delete-snapshot", begin).await;
        if answer.is_ok() {
            lock(&self.made).snapshots.remove(handle);
        }
        answer
    }

    /// Cuts a group of snapshots.
    pub(crate) async fn cut_group(
        &self,
        request: &CreateGroupSnapshot,
    ) -> Result<GroupSnapshot, StorageError> {
        let begin = || self.backend.create_group_snapshot(self.call(), request.clone());
        let answer = self.settled("create-group-snapshot", begin).await;
        let mut made = lock(&self.made);
        match &answer {
            Ok(group) => {
                let members: BTreeSet<_> =
                    group.snapshots.iter().map(|member| member.handle.clone()).collect();
                lock(&self.ever).1.extend(members.iter().cloned());
                made.groups.insert(group.handle.clone(), members);
                made.open_groups.retain(|open| open.name != request.name);
            }
            Err(error) if error.finality != Finality::Final => made.open_groups.push(request.clone()),
            Err(_) => {}
        }
        answer
    }

    /// Deletes a group of snapshots.
    pub(crate) async fn delete_group(
        &self,
        handle: &GroupSnapshotHandle,
        members: &BTreeSet<SnapshotHandle>,
    ) -> Result<(), StorageError> {
        let begin = || self.backend.delete_group_snapshot(self.call(), handle.clone(), members.clone());
        let answer = self.settled("delete-group-snapshot", begin).await;
        if answer.is_ok() {
            lock(&self.made).groups.remove(handle);
        }
        answer
    }

    /// Whether the run has made this volume.
    pub(crate) fn is_ours(&self, status: &VolumeStatus) -> bool {
        let of_run = |owner: &VolumeOwner| owner.cluster_id.as_str() == self.prefix;
        lock(&self.ever).0.contains(&status.volume.handle) || status.owner.as_ref().is_some_and(of_run)
    }

    /// Whether a call of the run has returned this volume as its own.
    pub(crate) fn has_made(&self, handle: &VolumeHandle) -> bool {
        lock(&self.ever).0.contains(handle)
    }

    /// Whether the run has made this snapshot.
    pub(crate) fn is_our_snapshot(&self, handle: &SnapshotHandle) -> bool {
        lock(&self.ever).1.contains(handle)
    }

    /// What is not known to be gone, for people.
    pub(crate) fn left(&self) -> Vec<String> {
        let made = lock(&self.made);
        let all = |what: &str, handles: &mut dyn Iterator<Item = String>| -> Vec<String> {
            handles.map(|handle| format!("{what} {handle}")).collect()
        };
        [
            all("volume", &mut made.volumes.iter().map(ToString::to_string)),
            all("snapshot", &mut made.snapshots.iter().map(ToString::to_string)),
            all("group snapshot", &mut made.groups.keys().map(ToString::to_string)),
            all(
                "an unknown volume of the name",
                &mut made.open_volumes.iter().map(|(open, _)| open.name.clone()),
            ),
            all(
                "an unknown snapshot of the name",
                &mut made.open_snapshots.iter().map(|open| open.name.clone()),
            ),
            all("an unknown group of the name", &mut made.open_groups.iter().map(|open| open.name.clone())),
        ]
        .concat()
    }

    /// Deletes everything that cases have made; what cannot be deleted stays noted.
    pub(crate) async fn tidy(&self) {
        self.close().await;
        let published = std::mem::take(&mut lock(&self.made).published);
        for handle in published {
            let begin = || self.backend.unpublish_volume(self.call(), handle.clone(), None);
            if self.settled("unpublish", begin).await.is_err() {
                self.published(&handle);
            }
        }
        let groups = lock(&self.made).groups.clone();
        for (handle, members) in groups {
            drop(self.delete_group(&handle, &members).await);
        }
        let snapshots = lock(&self.made).snapshots.clone();
        for handle in snapshots {
            drop(self.delete_snapshot(&handle).await);
        }
        let volumes = lock(&self.made).volumes.clone();
        for handle in volumes {
            drop(self.delete(&handle).await);
        }
    }

    /// Repeats what has an open outcome, to learn what is there.
    async fn close(&self) {
        let (volumes, snapshots, groups) = {
            let mut made = lock(&self.made);
            (
                std::mem::take(&mut made.open_volumes),
                std::mem::take(&mut made.open_snapshots),
                std::mem::take(&mut made.open_groups),
            )
        };
        for (request, origin) in volumes {
            drop(self.create_from(&self.backend, &request, &origin).await);
        }
        for request in snapshots {
            drop(self.cut(&self.backend, &request).await);
        }
        for request in groups {
            drop(self.cut_group(&request).await);
        }
    }
}

/// The keys of a driver's state and the items of its pool.
fn storage(backend: &WasmBackend, options: &Options) -> BTreeSet<String> {
    let keys = backend.state_keys().into_iter().map(|key| format!("key {key}"));
    let pool = options.config.pool.as_ref().map(|pool| std::fs::read_dir(&pool.directory));
    let entries = pool.and_then(Result::ok).into_iter().flatten().flatten();
    // What begins otherwise is the host's own.
    let items = entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.starts_with(|first: char| first.is_ascii_alphanumeric()))
        .map(|name| format!("item {name}"));
    keys.chain(items).collect()
}

impl Debug for Bench {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bench").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
