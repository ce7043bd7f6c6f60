//! The common part of every call, around the exchange with the driver.
//!
//! [`CallRunner::run`] applies deadlines, the [operation table](crate::in_flight), concurrency limits,
//! redaction, response checks and metrics. An [`Exchange`] sends one request and receives its response: by a
//! call into a component, or by gRPC.

use std::{collections::BTreeSet, fmt, future::Future, sync::Arc, time::Duration};

use cofferdam_domain::{
    GroupSnapshotHandle, NodeId, SnapshotHandle, VolumeHandle,
    storage::{
        ContentSource, CreateGroupSnapshot, CreateSnapshot, CreateVolume, CreatedVolume, ExpandVolume,
        GroupSnapshot, Parameters, PublishVolume, Secrets, Snapshot, StorageError,
    },
    term::{Permit, PermitSource as _, Term, TermEnded},
};
use parking_lot::Mutex;
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::{Instant, timeout_at},
};

use crate::{
    Call, CallMetrics, ContractViolation, InFlightGuard, Redactor,
    in_flight::{InFlightTable, OperationConflict, OperationKey, OperationPermit, OperationRequest},
};

/// State of one call, for the exchange and for work that outlives the call.
#[derive(Clone, Debug)]
pub struct CallContext {
    /// Time at which the call fails if it has not ended: with `DeadlineExceeded` if it has reached the
    /// driver, otherwise with `Unavailable`.
    pub deadline: Instant,
    /// The term in which the request, and HTTP exchanges of the driver, may begin. A component is stopped at
    /// its end.
    pub term: Term,
    /// Secrets of the call, with those configured for the driver.
    pub secrets: Secrets,
    /// Redactor of these secrets, and of texts derived from them during the call.
    pub redactor: Redactor,
    /// Permit of the operation; absent for calls that change nothing. Work that outlives the call, such as an
    /// HTTP exchange, keeps a clone: the operation is in flight until the last clone is dropped.
    pub operation_permit: Option<Arc<OperationPermit>>,
}

impl CallContext {
    /// The context of a call without an operation permit and without a term that ends: the call changes
    /// nothing, so a process that does not lead may make it.
    pub fn new(deadline: Instant, secrets: Secrets) -> Self {
        let redactor = Redactor::new(secrets.clone());
        Self { deadline, term: Term::permanent(), redactor, secrets, operation_permit: None }
    }

    /// Returns the permit to send the request, and records that the driver may have seen it: from now on, a
    /// call that ends without a result leaves its operation in doubt. An exchange calls this function
    /// immediately before it sends the request.
    ///
    /// # Errors
    /// [`TermEnded`]: the request must not be sent.
    pub fn begin(&self) -> Result<Permit, TermEnded> {
        let permit = self.term.permit()?;
        if let Some(operation) = &self.operation_permit {
            operation.reached();
        }
        Ok(permit)
    }
}

/// Too many calls: the queue is full, or the deadline passed before the call could start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overloaded;

/// One request and its response.
pub trait Exchange: Send {
    /// The request in the driver's protocol.
    type Request: Send;
    /// The response before conversion and checks.
    type Response: Send;
    /// Reasons for a call without a usable response.
    type Failure: From<OperationConflict>
        + From<Overloaded>
        + From<TermEnded>
        + From<ContractViolation>
        + Send;

    /// Admits a call before its operation is registered. By default, every call is admitted.
    ///
    /// # Errors
    /// The call must not start, e.g. because a circuit breaker is open.
    fn admit(&mut self, _started: Instant, _timeout: Duration) -> Result<(), Self::Failure> {
        Ok(())
    }

    /// Sends the request and waits for the response, until the context's deadline. Must call
    /// [`CallContext::begin`] immediately before the driver can see the request.
    fn perform(
        &mut self,
        context: CallContext,
        request: Self::Request,
    ) -> impl Future<Output = Result<Self::Response, Self::Failure>> + Send;

    /// Observes the result of the call, after the checks of the response. Also called for a call that was not
    /// admitted or not sent. For a call whose future was dropped, only [`CallRunner::record_lost_call`] calls
    /// it, on another exchange.
    fn conclude(&mut self, _result: Result<(), &Self::Failure>) {}

    /// The label `outcome` of a failure in metrics.
    fn outcome_label(failure: &Self::Failure) -> &'static str;

    /// The error that the caller receives.
    fn storage_error(&self, failure: Self::Failure, redactor: &Redactor) -> StorageError;
}

/// Limit of the concurrent calls of a driver, or of one kind of its calls.
#[derive(Debug)]
pub struct ConcurrencyLimit {
    running: Semaphore,
    /// Permits of running and waiting calls together; absent without a limit.
    admitted: Option<Semaphore>,
}

impl ConcurrencyLimit {
    /// A limit of running calls. Further calls wait until their deadline.
    pub fn new(running: usize) -> Self {
        Self { running: Semaphore::new(running), admitted: None }
    }

    /// Adds a limit of running and waiting calls together. Calls above it fail immediately.
    #[must_use]
    pub fn with_queue(self, admitted: usize) -> Self {
        Self { admitted: Some(Semaphore::new(admitted)), ..self }
    }

    async fn acquire(
        &self,
        deadline: Instant,
    ) -> Result<(Option<SemaphorePermit<'_>>, SemaphorePermit<'_>), Overloaded> {
        let admitted = self.admitted.as_ref().map(Semaphore::try_acquire).transpose();
        let admitted = admitted.map_err(|_| Overloaded)?;
        match timeout_at(deadline, self.running.acquire()).await {
            Ok(Ok(running)) => Ok((admitted, running)),
            Ok(Err(_)) | Err(_) => Err(Overloaded),
        }
    }
}

/// The response of a create call, which has the handle that the driver gave to the new object.
pub trait CreatedObject {
    /// The operation key of the handle, which becomes an alias of the name's key. `None` for a volume of an
    /// existing CSI driver that the host withholds from the caller, e.g. because an earlier deletion of the
    /// volume may still take effect: its handle must not become an alias.
    fn operation_key(&self) -> Option<OperationKey>;
}

impl CreatedObject for CreatedVolume {
    fn operation_key(&self) -> Option<OperationKey> {
        Some(OperationKey::Volume(self.handle.clone()))
    }
}

impl CreatedObject for Snapshot {
    fn operation_key(&self) -> Option<OperationKey> {
        Some(OperationKey::Snapshot(self.handle.clone()))
    }
}

impl CreatedObject for GroupSnapshot {
    fn operation_key(&self) -> Option<OperationKey> {
        Some(OperationKey::GroupSnapshot(self.handle.clone()))
    }
}

/// Effect of a successful call on the operation table's aliases between names and handles.
enum AliasUpdate<U> {
    None,
    Add(fn(&U) -> Option<OperationKey>),
    Remove,
}

/// Converts a response of type `R` to a `U` and checks it.
pub trait Convert<R, U>: FnOnce(R, &Redactor) -> Result<U, ContractViolation> + Send + 'static {}

impl<R, U, F: FnOnce(R, &Redactor) -> Result<U, ContractViolation> + Send + 'static> Convert<R, U> for F {}

type ResponseConverter<R, U> = Box<dyn FnOnce(R, &Redactor) -> Result<U, ContractViolation> + Send>;

/// The subject of a call. Failures of calls about one subject say little about calls about others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CallSubject<'a> {
    /// A volume, snapshot or group snapshot.
    Object(&'a OperationKey),
    /// The gRPC path of a method, for calls that are about no object, such as `Probe`.
    Method(&'static str),
}

/// One call: its method, its operation, and the conversion of its response of type `R` to a `U`.
pub struct CallSpec<R, U> {
    /// gRPC path of the CSI method, the sidecars' metric label `method_name`.
    method: &'static str,
    /// The operation of the call; `None` for a call that changes nothing.
    operation: Option<OperationRequest>,
    /// The object that a call without an operation reads; `None` if there is none, or more than one.
    read_object: Option<OperationKey>,
    convert: ResponseConverter<R, U>,
    alias_update: AliasUpdate<U>,
}

impl<R, U> fmt::Debug for CallSpec<R, U> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallSpec")
            .field("method", &self.method)
            .field("operation", &self.operation)
            .finish_non_exhaustive()
    }
}

/// Constructors of the calls to CSI methods whose responses have fields. `convert` converts and checks the
/// response.
impl<R, U> CallSpec<R, U> {
    fn new(method: &'static str, operation: Option<OperationRequest>, convert: impl Convert<R, U>) -> Self {
        let convert = Box::new(convert);
        Self { method, operation, read_object: None, convert, alias_update: AliasUpdate::None }
    }

    /// The same call with the object that it reads; `None` if it reads none, or more than one.
    #[must_use]
    pub fn reading(self, read_object: Option<OperationKey>) -> Self {
        Self { read_object, ..self }
    }

    /// The subject of the call.
    pub fn subject(&self) -> CallSubject<'_> {
        let object = self.operation.as_ref().map(OperationRequest::key).or(self.read_object.as_ref());
        object.map_or(CallSubject::Method(self.method), CallSubject::Object)
    }

    /// gRPC path of the CSI method, such as `/csi.v1.Controller/CreateVolume`.
    pub const fn method(&self) -> &'static str {
        self.method
    }

    /// A call of the CSI method `Probe`.
    pub fn probe(convert: impl Convert<R, U>) -> Self {
        Self::new("/csi.v1.Identity/Probe", None, convert)
    }

    /// A call of the CSI method `CreateVolume`.
    pub fn create_volume(request: &CreateVolume, convert: impl Convert<R, U>) -> Self
    where
        U: CreatedObject,
    {
        let (method, source) = match &request.source {
            None => ("create", None),
            Some(ContentSource::Volume(handle)) => {
                ("create-from-volume", Some(OperationKey::Volume(handle.clone())))
            }
            Some(ContentSource::Snapshot(handle)) => {
                ("create-from-snapshot", Some(OperationKey::Snapshot(handle.clone())))
            }
        };
        let key = OperationKey::VolumeName(request.name.as_str().into());
        let operation = OperationRequest::creation(key, method, request).with_sources(source);
        Self::new("/csi.v1.Controller/CreateVolume", Some(operation), convert).adding_alias()
    }

    /// A call of the CSI method `ValidateVolumeCapabilities`.
    pub fn validate_volume(convert: impl Convert<R, U>) -> Self {
        Self::new("/csi.v1.Controller/ValidateVolumeCapabilities", None, convert)
    }

    /// A call of the CSI method `ControllerPublishVolume`. The capability does not identify its operation:
    /// users may change `mountOptions` and `accessModes` of a PersistentVolume between two attempts. Neither do
    /// the node's identities: `spec.providerID` may be set between two attempts.
    pub fn publish_volume(request: &PublishVolume, convert: impl Convert<R, U>) -> Self {
        let PublishVolume { handle, node_id, node_identities: _, capability: _, read_only, context } =
            request;
        let arguments = (read_only, context);
        let operation = OperationRequest::publish(handle.clone(), node_id.clone(), &arguments);
        Self::new("/csi.v1.Controller/ControllerPublishVolume", Some(operation), convert)
    }

    /// A call of the CSI method `ControllerExpandVolume`. The capability does not identify its operation, as
    /// for `ControllerPublishVolume`. The size does: the caller repeats the size that is in doubt first.
    pub fn expand_volume(request: &ExpandVolume, convert: impl Convert<R, U>) -> Self {
        let ExpandVolume { handle, capacity, capability: _ } = request;
        let operation = OperationRequest::change(handle.clone(), "expand", capacity);
        Self::new("/csi.v1.Controller/ControllerExpandVolume", Some(operation), convert)
    }

    /// A call of the CSI method `CreateSnapshot`.
    pub fn create_snapshot(request: &CreateSnapshot, convert: impl Convert<R, U>) -> Self
    where
        U: CreatedObject,
    {
        let key = OperationKey::SnapshotName(request.name.as_str().into());
        let operation = OperationRequest::creation(key, "create-snapshot", request)
            .with_sources([OperationKey::Volume(request.source.clone())]);
        Self::new("/csi.v1.Controller/CreateSnapshot", Some(operation), convert).adding_alias()
    }

    /// A call of the CSI method `GetSnapshot`.
    pub fn get_snapshot(convert: impl Convert<R, U>) -> Self {
        Self::new("/csi.v1.Controller/GetSnapshot", None, convert)
    }

    /// A call of the CSI method `ListSnapshots`.
    pub fn list_snapshots(convert: impl Convert<R, U>) -> Self {
        Self::new("/csi.v1.Controller/ListSnapshots", None, convert)
    }

    /// A call of the CSI method `CreateVolumeGroupSnapshot`.
    pub fn create_group_snapshot(request: &CreateGroupSnapshot, convert: impl Convert<R, U>) -> Self
    where
        U: CreatedObject,
    {
        let key = OperationKey::GroupSnapshotName(request.name.as_str().into());
        let operation = OperationRequest::creation(key, "create-group-snapshot", request)
            .with_sources(request.sources.iter().cloned().map(OperationKey::Volume));
        Self::new("/csi.v1.GroupController/CreateVolumeGroupSnapshot", Some(operation), convert)
            .adding_alias()
    }

    /// A call of the CSI method `GetVolumeGroupSnapshot`.
    pub fn get_group_snapshot(convert: impl Convert<R, U>) -> Self {
        Self::new("/csi.v1.GroupController/GetVolumeGroupSnapshot", None, convert)
    }

    /// A call of the CSI method `ListVolumes`.
    pub fn list_volumes(convert: impl Convert<R, U>) -> Self {
        Self::new("/csi.v1.Controller/ListVolumes", None, convert)
    }

    /// A call of the CSI method `ControllerGetVolume`.
    pub fn get_volume(convert: impl Convert<R, U>) -> Self {
        Self::new("/csi.v1.Controller/ControllerGetVolume", None, convert)
    }

    /// A call of the CSI method `GetCapacity`.
    pub fn get_capacity(convert: impl Convert<R, U>) -> Self {
        Self::new("/csi.v1.Controller/GetCapacity", None, convert)
    }

    fn adding_alias(self) -> Self
    where
        U: CreatedObject,
    {
        Self { alias_update: AliasUpdate::Add(U::operation_key), ..self }
    }
}

/// Constructors of the calls to CSI methods whose responses are empty.
impl<R> CallSpec<R, ()> {
    fn without_response(method: &'static str, operation: OperationRequest) -> Self {
        Self::new(method, Some(operation), |_, _| Ok(()))
    }

    fn deletion(method: &'static str, operation: OperationRequest) -> Self {
        Self { alias_update: AliasUpdate::Remove, ..Self::without_response(method, operation) }
    }

    /// A call of the CSI method `DeleteVolume`.
    pub fn delete_volume(handle: &VolumeHandle) -> Self {
        let key = OperationKey::Volume(handle.clone());
        let operation = OperationRequest::deletion(key, DELETE_VOLUME, &());
        Self::deletion("/csi.v1.Controller/DeleteVolume", operation)
    }

    /// A call of the CSI method `ControllerUnpublishVolume`.
    pub fn unpublish_volume(handle: &VolumeHandle, node: Option<&NodeId>) -> Self {
        let operation = OperationRequest::unpublish(handle.clone(), node.cloned());
        Self::without_response("/csi.v1.Controller/ControllerUnpublishVolume", operation)
    }

    /// A call of the CSI method `ControllerModifyVolume`.
    pub fn modify_volume(handle: &VolumeHandle, parameters: &Parameters) -> Self {
        let operation = OperationRequest::change(handle.clone(), "modify", parameters);
        Self::without_response("/csi.v1.Controller/ControllerModifyVolume", operation)
    }

    /// A call of the CSI method `DeleteSnapshot`.
    pub fn delete_snapshot(handle: &SnapshotHandle) -> Self {
        let key = OperationKey::Snapshot(handle.clone());
        let operation = OperationRequest::deletion(key, "delete-snapshot", &());
        Self::deletion("/csi.v1.Controller/DeleteSnapshot", operation)
    }

    /// A call of the CSI method `DeleteVolumeGroupSnapshot`.
    pub fn delete_group_snapshot(handle: &GroupSnapshotHandle, snapshots: &BTreeSet<SnapshotHandle>) -> Self {
        let key = OperationKey::GroupSnapshot(handle.clone());
        let operation = OperationRequest::deletion(key, "delete-group-snapshot", snapshots);
        Self::deletion("/csi.v1.GroupController/DeleteVolumeGroupSnapshot", operation)
    }
}

/// Name of the operation that deletes a volume.
const DELETE_VOLUME: &str = "delete";

/// Returns `true` if an earlier DeleteVolume of this handle is in doubt: it may still delete the volume that
/// a CreateVolume call now returns. The result may be `false` if another operation on the volume is in doubt,
/// too. It is `false` while an operation on the handle is running.
pub fn is_deletion_in_doubt(in_flight: &InFlightTable, handle: &VolumeHandle) -> bool {
    in_flight.acquire(OperationRequest::change(handle.clone(), "hand-out", &())).err()
        == Some(OperationConflict::PendingOperation(DELETE_VOLUME))
}

/// A call that is admitted and whose operation is registered.
pub struct RegisteredCall<X: Exchange, U> {
    started: Instant,
    method: &'static str,
    exchange: X,
    context: CallContext,
    convert: ResponseConverter<X::Response, U>,
    alias_update: AliasUpdate<U>,
    _in_flight: InFlightGuard,
}

impl<X: Exchange, U> fmt::Debug for RegisteredCall<X, U> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegisteredCall").field("method", &self.method).finish_non_exhaustive()
    }
}

/// Runs the calls of one driver.
#[derive(Debug)]
pub struct CallRunner {
    /// Secrets that the operator configured for every call.
    secrets: Mutex<Secrets>,
    /// Maximum duration of a call; a caller's deadline may be shorter.
    timeout: Duration,
    in_flight: InFlightTable,
    metrics: CallMetrics,
}

impl CallRunner {
    /// A runner with an empty operation table.
    pub fn new(secrets: Secrets, timeout: Duration, metrics: CallMetrics) -> Self {
        Self { secrets: Mutex::new(secrets), timeout, in_flight: InFlightTable::default(), metrics }
    }

    /// The table of the driver's operations that are running or in doubt.
    pub const fn in_flight(&self) -> &InFlightTable {
        &self.in_flight
    }

    /// Secrets of a call, with those configured for the driver.
    pub fn secrets(&self, call: &Call) -> Secrets {
        self.secrets.lock().merged_with(&call.secrets)
    }

    /// Replaces the secrets that the operator configured. Calls that have started keep theirs.
    pub fn replace_secrets(&self, secrets: Secrets) {
        *self.secrets.lock() = secrets;
    }

    /// Runs one call that started at `started`: [`register`](Self::register) and [`finish`](Self::finish).
    ///
    /// # Errors
    /// Those of `register` and `finish`.
    pub async fn run<X: Exchange, U>(
        &self,
        started: Instant,
        call: Call,
        spec: CallSpec<X::Response, U>,
        limit: &ConcurrencyLimit,
        exchange: X,
        request: X::Request,
    ) -> Result<U, StorageError> {
        let call = self.register(started, call, spec, exchange)?;
        self.finish(call, limit, request).await
    }

    /// Registers a call that started at `started`:
    ///
    /// 1. Ask the exchange for admission.
    /// 2. Register the operation. It stays registered until the returned call is finished or dropped.
    ///
    /// # Errors
    /// The call is not admitted, or conflicts with an operation. It has no effect.
    pub fn register<X: Exchange, U>(
        &self,
        started: Instant,
        call: Call,
        spec: CallSpec<X::Response, U>,
        mut exchange: X,
    ) -> Result<RegisteredCall<X, U>, StorageError> {
        let in_flight = self.metrics.start();
        let CallSpec { method, operation, read_object: _, convert, alias_update } = spec;
        let secrets = self.secrets(&call);
        let redactor = Redactor::new(secrets.clone());
        let timeout = call.deadline.min(self.timeout);
        let admitted = exchange.admit(started, timeout).and_then(|()| {
            let permit = operation.map(|operation| self.in_flight.acquire(operation)).transpose();
            permit.map_err(X::Failure::from)
        });
        let permit = match admitted {
            Ok(permit) => permit,
            Err(failure) => return self.conclude(started, method, exchange, &redactor, Err(failure)),
        };
        let deadline = started + timeout;
        let context = CallContext { deadline, term: call.term, secrets, redactor, operation_permit: permit };
        Ok(RegisteredCall {
            started,
            method,
            exchange,
            context,
            convert,
            alias_update,
            _in_flight: in_flight,
        })
    }

    /// Finishes a call:
    ///
    /// 1. Acquire a permit of `limit`.
    /// 2. Perform the exchange.
    /// 3. Convert and check the response.
    /// 4. Record metrics and the operation's result.
    ///
    /// A dropped future leaves the operation in doubt if the driver was reached.
    ///
    /// # Errors
    /// The driver's error, or the reason for a call without a usable response. Only an error that the driver
    /// reported can be final.
    pub async fn finish<X: Exchange, U>(
        &self,
        call: RegisteredCall<X, U>,
        limit: &ConcurrencyLimit,
        request: X::Request,
    ) -> Result<U, StorageError> {
        let RegisteredCall { started, method, mut exchange, context, convert, alias_update, _in_flight } =
            call;
        let (redactor, permit) = (context.redactor.clone(), context.operation_permit.clone());
        let response = match limit.acquire(context.deadline).await {
            Ok(_concurrency_permit) => exchange.perform(context, request).await,
            Err(overloaded) => Err(overloaded.into()),
        };
        let converted = response.and_then(|response| convert(response, &redactor).map_err(X::Failure::from));
        let result = self.conclude(started, method, exchange, &redactor, converted);
        let result = match permit {
            Some(permit) => finish_operation(&permit, result, &alias_update),
            None => result,
        };
        self.metrics.set_in_doubt(self.in_flight.in_doubt_count());
        result
    }

    /// Records metrics of a call whose task ended without a result, e.g. by a panic of the host, and returns
    /// its error.
    pub fn record_lost_call<X: Exchange>(
        &self,
        started: Instant,
        method: &'static str,
        exchange: X,
        failure: X::Failure,
    ) -> StorageError {
        let result: Result<std::convert::Infallible, _> =
            self.conclude(started, method, exchange, &Redactor::default(), Err(failure));
        match result {
            Ok(never) => match never {},
            Err(error) => error,
        }
    }

    fn conclude<X: Exchange, U>(
        &self,
        started: Instant,
        method: &'static str,
        mut exchange: X,
        redactor: &Redactor,
        result: Result<U, X::Failure>,
    ) -> Result<U, StorageError> {
        exchange.conclude(result.as_ref().map(|_| ()));
        let outcome = result.as_ref().map_or_else(X::outcome_label, |_| "ok");
        let result = result.map_err(|failure| exchange.storage_error(failure, redactor));
        let code = result.as_ref().map_or_else(|error| error.kind.as_str(), |_| "OK");
        self.metrics.observe(method, code, outcome, started.elapsed());
        result
    }
}

/// Records the result of an operation and updates its alias. A final error becomes unknown if
/// [`OperationPermit::keep_in_doubt`] says so.
fn finish_operation<U>(
    permit: &OperationPermit,
    result: Result<U, StorageError>,
    alias_update: &AliasUpdate<U>,
) -> Result<U, StorageError> {
    let result = result.map_err(|error| permit.keep_in_doubt(error));
    permit.finish(result.as_ref().err());
    if let Ok(value) = &result {
        match alias_update {
            AliasUpdate::None => {}
            AliasUpdate::Add(key) => {
                if let Some(key) = key(value) {
                    permit.add_alias(key);
                }
            }
            AliasUpdate::Remove => permit.remove_alias(),
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use cofferdam_domain::storage::{AccessType, CapacityRange, CsiAccessMode, ErrorKind, VolumeCapability};
    use parking_lot::Mutex;

    use super::*;
    use crate::BackendMetrics;

    fn capability(mount_flags: &[&str]) -> VolumeCapability {
        let mount_flags = mount_flags.iter().map(|flag| (*flag).to_owned()).collect();
        let access_type = AccessType::Filesystem { fs_type: None, mount_flags, mount_group: None };
        VolumeCapability { access_mode: CsiAccessMode::SingleNodeWriter, access_type }
    }

    #[test]
    fn the_subject_of_a_call_is_its_object_or_its_method() {
        let volume = || OperationKey::Volume("h".into());
        let subject_of = |spec: &CallSpec<(), ()>, expected: CallSubject<'_>| {
            assert_eq!(spec.subject(), expected, "{}", spec.method());
        };
        let key = volume();
        subject_of(&CallSpec::delete_volume(&"h".into()), CallSubject::Object(&key));
        subject_of(&CallSpec::unpublish_volume(&"h".into(), Some(&"a".into())), CallSubject::Object(&key));
        let get = || CallSpec::get_volume(|(), _| Ok(()));
        subject_of(&get().reading(Some(volume())), CallSubject::Object(&key));
        subject_of(&get().reading(None), CallSubject::Method("/csi.v1.Controller/ControllerGetVolume"));
        subject_of(&CallSpec::probe(|(), _| Ok(())), CallSubject::Method("/csi.v1.Identity/Probe"));
    }

    /// A driver that notes each request that it sees, and responds when `release` has a permit.
    struct NotingDriver<'a> {
        requests: &'a Mutex<Vec<&'static str>>,
        release: &'a Semaphore,
    }

    #[derive(Debug, PartialEq)]
    enum Failed {
        TermEnded,
        Other,
    }

    impl From<TermEnded> for Failed {
        fn from(_: TermEnded) -> Self {
            Self::TermEnded
        }
    }

    impl From<OperationConflict> for Failed {
        fn from(_: OperationConflict) -> Self {
            Self::Other
        }
    }

    impl From<Overloaded> for Failed {
        fn from(_: Overloaded) -> Self {
            Self::Other
        }
    }

    impl From<ContractViolation> for Failed {
        fn from(_: ContractViolation) -> Self {
            Self::Other
        }
    }

    impl Exchange for NotingDriver<'_> {
        type Request = &'static str;
        type Response = ();
        type Failure = Failed;

        async fn perform(&mut self, context: CallContext, request: &'static str) -> Result<(), Failed> {
            let _permit = context.begin()?;
            self.requests.lock().push(request);
            self.release.acquire().await.map(drop).map_err(|_| Failed::Other)
        }

        fn outcome_label(_: &Failed) -> &'static str {
            "error"
        }

        fn storage_error(&self, failure: Failed, _: &Redactor) -> StorageError {
            StorageError::with_unknown_effect(ErrorKind::Unavailable, format!("{failure:?}"))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_waits_at_the_end_of_its_term_does_not_begin() {
        let metrics = BackendMetrics::default().call_metrics(None);
        let runner = CallRunner::new(Secrets::default(), Duration::from_secs(60), metrics);
        let (limit, requests, release) = (ConcurrencyLimit::new(1), Mutex::default(), Semaphore::new(0));
        let term = Term::until(Duration::from_secs(1), Arc::new(|| Duration::ZERO));
        let run = async |name: &'static str| {
            let call = Call { term: term.clone(), ..Call::with_deadline(Duration::from_secs(30)) };
            let exchange = NotingDriver { requests: &requests, release: &release };
            let spec = CallSpec::delete_volume(&name.into());
            runner.run(Instant::now(), call, spec, &limit, exchange, name).await
        };
        let end_term = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            term.end();
            release.add_permits(1);
        };
        let (first, second, ()) = tokio::join!(run("first"), run("second"), end_term);
        first.unwrap();
        assert_eq!(second.unwrap_err().message, "TermEnded");
        assert_eq!(*requests.lock(), ["first"]);
        assert_eq!(runner.in_flight().in_doubt_count(), 0, "the driver has not seen it");
    }

    #[test]
    fn an_operation_is_the_same_after_a_change_of_the_capability() {
        let publish = |node: &str, mount_flags: &[&str], read_only| {
            let request = PublishVolume {
                handle: "h".into(),
                node_id: node.into(),
                node_identities: Parameters::new(),
                capability: capability(mount_flags),
                read_only,
                context: Parameters::new(),
            };
            CallSpec::<(), ()>::publish_volume(&request, |(), _| Ok(())).operation
        };
        assert_eq!(publish("a", &[], false), publish("a", &["noatime"], false));
        assert_ne!(publish("a", &[], false), publish("a", &[], true));
        assert_ne!(publish("a", &[], false), publish("b", &[], false));
        let expand = |bytes, capability| {
            let capacity = CapacityRange { required: Some(bytes), limit: None };
            let request = ExpandVolume { handle: "h".into(), capacity, capability };
            CallSpec::<(), ()>::expand_volume(&request, |(), _| Ok(())).operation
        };
        assert_eq!(expand(1, Some(capability(&[]))), expand(1, Some(capability(&["noatime"]))));
        assert_eq!(expand(1, Some(capability(&[]))), expand(1, None));
        assert_ne!(expand(1, None), expand(2, None));
    }
}
