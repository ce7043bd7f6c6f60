//! The storage array, which records each call, and the driver of one process. A call that has reached the
//! array goes on if its process is stopped or dies.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, OnceLock},
    time::Duration,
};

use cofferdam_backend::{Backend, BackendFuture, Call, CallSpec};
use cofferdam_domain::{
    NodeId, VolumeHandle,
    storage::{
        Ability, ConnectionInfo, CreateVolume, CreatedVolume, Description, ErrorKind, ExpandVolume,
        ExpandedVolume, Feature, Placement, PublishVolume, Readiness, StorageError, ValidateVolume,
        Validation,
    },
    term::BootClock,
};
use cofferdam_sim::{array_port::ArrayPort, objects::DRIVER};
use serde_json::Value;
use tokio::{sync::oneshot, time::timeout_at};

use crate::world::{ProcessId, World};

/// Longest time of most calls.
const MAX_CALL_TIME: Duration = Duration::from_millis(200);
/// Longest time of a slow call, after which it may still change the publication of a volume: shorter than the
/// time between the end of a term and the begin of the next one.
const MAX_SLOW_CALL_TIME: Duration = Duration::from_secs(3);
/// Longest time of a slow CreateVolume, DeleteVolume or expansion, which the next leader repeats.
const MAX_SLOW_CREATE_TIME: Duration = Duration::from_secs(25);
/// The port's maximum duration of a call.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);
/// The port's maximum number of calls at a time.
const MAX_CALLS: usize = 100;

#[derive(Clone, Debug)]
enum Operation {
    Create(CreateVolume),
    Delete(VolumeHandle),
    Publish(PublishVolume),
    Unpublish(VolumeHandle, Option<NodeId>),
    Expand(ExpandVolume),
}

#[derive(Clone, Debug)]
enum Answer {
    Created(CreatedVolume),
    Published(ConnectionInfo),
    Expanded(ExpandedVolume),
    Done,
}

impl Operation {
    /// The name of the volume.
    fn volume(&self) -> &str {
        let handle = match self {
            Self::Create(request) => return &request.name,
            Self::Delete(handle) | Self::Unpublish(handle, _) => handle,
            Self::Publish(request) => &request.handle,
            Self::Expand(request) => &request.handle,
        };
        handle.as_str().strip_prefix("handle-").unwrap_or_default()
    }

    /// The call, as the trace shows it.
    fn text(&self) -> String {
        let volume = self.volume();
        match self {
            Self::Create(_) => format!("create {volume}"),
            Self::Delete(_) => format!("delete {volume}"),
            Self::Publish(request) => format!("publish {volume} {}", request.node_id),
            Self::Unpublish(_, node) => {
                format!("unpublish {volume} {}", node.as_ref().map_or("everywhere", NodeId::as_str))
            }
            Self::Expand(request) => {
                format!("expand {volume} {}", request.capacity.required.unwrap_or_default())
            }
        }
    }
}

/// A volume of the array.
#[derive(Clone, Debug)]
struct ArrayVolume {
    request: CreateVolume,
    size: u64,
}

/// A call in progress at the array.
#[derive(Debug)]
struct RunningCall {
    process: ProcessId,
    volume: String,
    text: String,
    began_at: Duration,
    /// Time at which the process has dropped the call, or has died.
    abandoned_at: Arc<OnceLock<Duration>>,
}

/// The state of the array.
#[derive(Debug, Default)]
pub(crate) struct Array {
    volumes: BTreeMap<String, ArrayVolume>,
    /// Handle and node ID of each publication.
    published: BTreeSet<(String, String)>,
    running: BTreeMap<u64, RunningCall>,
    next_call: u64,
}

impl Array {
    /// Names of the volumes.
    pub(crate) fn names(&self) -> BTreeSet<String> {
        self.volumes.keys().cloned().collect()
    }

    pub(crate) fn published(&self) -> Vec<(String, String)> {
        self.published.iter().cloned().collect()
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.running.is_empty()
    }

    /// Applies an operation. Returns a violation, if there is one.
    fn apply(&mut self, operation: Operation) -> (Result<Answer, StorageError>, Option<String>) {
        let name = operation.volume().to_owned();
        let handle = format!("handle-{name}");
        let refuse = |kind, text: &str| Err(StorageError::with_known_effect(kind, text));
        match operation {
            Operation::Create(request) => {
                let size = request.capacity.required.unwrap_or_default();
                if self.volumes.get(&name).is_some_and(|existing| existing.request != request) {
                    let violation = format!("{name} was requested with other arguments");
                    return (refuse(ErrorKind::AlreadyExists, &violation), Some(violation));
                }
                let volume = self.volumes.entry(name).or_insert(ArrayVolume { request, size });
                let created = CreatedVolume {
                    handle: handle.as_str().into(),
                    capacity: Some(volume.size),
                    context: BTreeMap::new(),
                    topology: Vec::new(),
                    connection_info: None,
                };
                (Ok(Answer::Created(created)), None)
            }
            Operation::Delete(_) => {
                let is_published = self.published.iter().any(|(published, _)| *published == handle);
                self.volumes.remove(&name);
                (Ok(Answer::Done), is_published.then(|| format!("{name} is deleted while it is published")))
            }
            Operation::Publish(request) => {
                let node = request.node_id.to_string();
                if !self.volumes.contains_key(&name) {
                    return (refuse(ErrorKind::NotFound, "no such volume"), None);
                }
                if self.published.iter().any(|(published, on)| *published == handle && *on != node) {
                    return (refuse(ErrorKind::FailedPrecondition, "on another node"), None);
                }
                self.published.insert((handle.clone(), node));
                let fields = [("path".to_owned(), handle)].into();
                let connection_info = ConnectionInfo { kind: "directory".to_owned(), version: 1, fields };
                (Ok(Answer::Published(connection_info)), None)
            }
            Operation::Unpublish(_, node) => {
                self.published.retain(|(published, on)| {
                    *published != handle || node.as_ref().is_some_and(|node| node.as_str() != on)
                });
                (Ok(Answer::Done), None)
            }
            Operation::Expand(request) => match self.volumes.get_mut(&name) {
                None => (refuse(ErrorKind::NotFound, "no such volume"), None),
                Some(volume) => {
                    volume.size = volume.size.max(request.capacity.required.unwrap_or_default());
                    let capacity = volume.size;
                    (Ok(Answer::Expanded(ExpandedVolume { capacity, node_expansion_required: false })), None)
                }
            },
        }
    }
}

/// Notes the time at which the process drops its call, or dies.
struct AbandonGuard {
    world: Arc<World>,
    abandoned_at: Arc<OnceLock<Duration>>,
}

impl Drop for AbandonGuard {
    fn drop(&mut self) {
        let _ = self.abandoned_at.set(self.world.now());
    }
}

/// The driver of one process.
pub(crate) struct Driver {
    world: Arc<World>,
    process: ProcessId,
    boot_clock: BootClock,
    description: Description,
    abilities: BTreeSet<Ability>,
    port: ArrayPort,
}

impl Driver {
    pub(crate) fn new(world: Arc<World>, process: ProcessId, boot_clock: BootClock) -> Self {
        let description = Description {
            name: DRIVER.into(),
            version: "1".to_owned(),
            topology_keys: Vec::new(),
            placement: Placement::Central,
            volumes_per_node: None,
            features: [Feature::PublishReadonly.to_string()].into(),
        };
        let port = ArrayPort::new(&description.name, CALL_TIMEOUT, MAX_CALLS);
        Self {
            world,
            process,
            boot_clock,
            description,
            abilities: [Ability::Publishing, Ability::Expansion].into(),
            port,
        }
    }

    fn run<'a, R: Send + 'static>(
        &'a self,
        call: Call,
        spec: CallSpec<R, R>,
        operation: Operation,
        convert: impl Fn(Answer) -> Option<R> + Send + 'a,
    ) -> BackendFuture<'a, R> {
        self.port.run(call, spec, move |context| async move {
            let answer = timeout_at(context.deadline, self.call(operation)).await;
            let exceeded = |_| StorageError::with_unknown_effect(ErrorKind::DeadlineExceeded, "no response");
            Ok(convert(answer.map_err(exceeded).flatten()?).unwrap())
        })
    }

    /// Sends a call to the array, and checks the invariants of calls at its begin.
    async fn call(&self, operation: Operation) -> Result<Answer, StorageError> {
        let (world, process) = (&self.world, self.process);
        let text = operation.text();
        world.begin_effect(process, (self.boot_clock)(), &text);
        if let Operation::Create(request) = &operation {
            self.check_journal(request);
        }
        let abandoned_at = Arc::new(OnceLock::new());
        let _guard = AbandonGuard { world: Arc::clone(world), abandoned_at: Arc::clone(&abandoned_at) };
        let (reply, response) = oneshot::channel();
        let (id, found, is_locked) = {
            let mut state = world.lock();
            let volume = operation.volume().to_owned();
            let others = state.array.running.values().filter(|other| other.volume == volume);
            let mut found = Vec::new();
            let mut is_locked = false;
            for other in others {
                let abandoned_at = other.abandoned_at.get();
                is_locked |= abandoned_at.is_some() || other.process != process;
                // The array may still work on a long call of a term that ended long ago.
                let is_long_over = abandoned_at.is_some_and(|at| world.now() >= *at + MAX_SLOW_CALL_TIME);
                let record = &state.processes[&other.process];
                let was_stopped = record.stopped_at.is_some_and(|stopped| stopped >= other.began_at);
                if other.process != process && !record.is_dead && !was_stopped && !is_long_over {
                    let (of, other) = (other.process, &other.text);
                    found.push(format!("two calls: process {process} begins {text} during {other} of {of}"));
                }
            }
            let id = state.array.next_call;
            state.array.next_call += 1;
            if !is_locked {
                let began_at = world.now();
                let call = RunningCall { process, volume, text, began_at, abandoned_at };
                state.array.running.insert(id, call);
            }
            (id, found, is_locked)
        };
        found.iter().for_each(|text| world.violate(text));
        if is_locked {
            // As a driver does that locks each volume.
            let message = "an operation on the volume is pending";
            return Err(StorageError::with_unknown_effect(ErrorKind::Aborted, message));
        }
        world.handle.spawn(carry_out(Arc::clone(world), id, operation, reply));
        response.await.unwrap()
    }

    /// The request is in the journal before the driver sees it.
    fn check_journal(&self, request: &CreateVolume) {
        let maps = self.world.list("/api/v1/namespaces/default/configmaps");
        let data = maps.iter().filter_map(|map| map["data"].as_object());
        let has_intent = data
            .flat_map(serde_json::Map::values)
            .filter_map(Value::as_str)
            .any(|json| json.contains(&request.name));
        if !has_intent {
            let text =
                format!("journal: process {} requests {} without an intent", self.process, request.name);
            self.world.violate(&text);
        }
    }
}

/// Carries a call out, in the runtime of the array.
async fn carry_out(
    world: Arc<World>,
    id: u64,
    operation: Operation,
    mut reply: oneshot::Sender<Result<Answer, StorageError>>,
) {
    let is_slow = world.is_fault(0.15);
    let max = match &operation {
        _ if !is_slow => MAX_CALL_TIME,
        Operation::Publish(_) | Operation::Unpublish(..) => MAX_SLOW_CALL_TIME,
        Operation::Create(_) | Operation::Delete(_) | Operation::Expand(_) => MAX_SLOW_CREATE_TIME,
    };
    let (before, after) = (world.random_time(max / 2), world.random_time(max / 2));
    let stops_when_dropped = world.is_fault(0.5);
    let fault = if world.is_fault(0.08) { Some(world.lock().rng.u8(0..3)) } else { None };
    let text = operation.text();
    let is_dropped = tokio::select! {
        biased;
        () = tokio::time::sleep(before) => false,
        () = reply.closed(), if stops_when_dropped => true,
    };
    let result = match fault {
        _ if is_dropped => Err(StorageError::with_unknown_effect(ErrorKind::Cancelled, "dropped")),
        Some(0) => Err(StorageError::with_known_effect(ErrorKind::Internal, "injected")),
        Some(1) => Err(StorageError::with_unknown_effect(ErrorKind::Unavailable, "the request was lost")),
        Some(_) | None => {
            world.trace(&format!("the array carries out {text}"));
            let (result, violation) = world.lock().array.apply(operation);
            if let Some(text) = violation {
                world.violate(&format!("array: {text}"));
            }
            result
        }
    };
    if !is_dropped {
        tokio::time::sleep(after).await;
    }
    world.lock().array.running.remove(&id);
    let lost = Err(StorageError::with_unknown_effect(ErrorKind::DeadlineExceeded, "the response was lost"));
    // The process may have dropped the call.
    let _ = reply.send(if fault == Some(2) { lost } else { result });
}

impl Backend for Driver {
    fn description(&self) -> &Description {
        &self.description
    }

    fn abilities(&self) -> &BTreeSet<Ability> {
        &self.abilities
    }

    fn probe(&self, _: Call) -> BackendFuture<'_, Readiness> {
        Box::pin(async { Ok(Readiness::Ready) })
    }

    fn create_volume(&self, call: Call, request: CreateVolume) -> BackendFuture<'_, CreatedVolume> {
        let spec = CallSpec::create_volume(&request, |created, _| Ok(created));
        self.run(call, spec, Operation::Create(request), |answer| match answer {
            Answer::Created(created) => Some(created),
            _ => None,
        })
    }

    fn delete_volume(&self, call: Call, handle: VolumeHandle) -> BackendFuture<'_, ()> {
        self.run(call, CallSpec::delete_volume(&handle), Operation::Delete(handle), |_| Some(()))
    }

    fn publish_volume(&self, call: Call, request: PublishVolume) -> BackendFuture<'_, ConnectionInfo> {
        let spec = CallSpec::publish_volume(&request, |connection_info, _| Ok(connection_info));
        self.run(call, spec, Operation::Publish(request), |answer| match answer {
            Answer::Published(connection_info) => Some(connection_info),
            _ => None,
        })
    }

    fn unpublish_volume(
        &self,
        call: Call,
        handle: VolumeHandle,
        node: Option<NodeId>,
    ) -> BackendFuture<'_, ()> {
        let spec = CallSpec::unpublish_volume(&handle, node.as_ref());
        self.run(call, spec, Operation::Unpublish(handle, node), |_| Some(()))
    }

    fn expand_volume(&self, call: Call, request: ExpandVolume) -> BackendFuture<'_, ExpandedVolume> {
        let spec = CallSpec::expand_volume(&request, |expanded, _| Ok(expanded));
        self.run(call, spec, Operation::Expand(request), |answer| match answer {
            Answer::Expanded(expanded) => Some(expanded),
            _ => None,
        })
    }

    fn validate_volume(&self, _: Call, _: ValidateVolume) -> BackendFuture<'_, Validation> {
        Box::pin(async { Ok(Validation::Confirmed) })
    }
}
