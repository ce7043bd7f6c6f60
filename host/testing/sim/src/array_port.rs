//! The port of a simulated process: the production code that its calls to the storage array pass.

use std::{marker::PhantomData, time::Duration};

use cofferdam_backend::{
    BackendFuture, BackendMetrics, Call, CallContext, CallRunner, CallSpec, ConcurrencyLimit,
    ContractViolation, Exchange, Overloaded, Redactor, in_flight::OperationConflict,
};
use cofferdam_domain::{
    DriverName,
    storage::{ErrorKind, Secrets, StorageError},
    term::TermEnded,
};
use futures::future::BoxFuture;
use tokio::time::Instant;

/// The error of a call, from the array or from the port.
struct CallFailure(StorageError);

impl From<OperationConflict> for CallFailure {
    fn from(conflict: OperationConflict) -> Self {
        Self(conflict.into_error())
    }
}

impl From<TermEnded> for CallFailure {
    fn from(ended: TermEnded) -> Self {
        Self(StorageError::with_unknown_effect(ErrorKind::Unavailable, ended.to_string()))
    }
}

impl From<Overloaded> for CallFailure {
    fn from(_: Overloaded) -> Self {
        Self(StorageError::with_unknown_effect(ErrorKind::Unavailable, "too many calls"))
    }
}

impl From<ContractViolation> for CallFailure {
    fn from(violation: ContractViolation) -> Self {
        Self(StorageError::with_unknown_effect(ErrorKind::Internal, violation.to_string()))
    }
}

/// A call to the array that has a permit.
type Request<'a, R> = Box<dyn FnOnce(CallContext) -> BoxFuture<'a, Result<R, StorageError>> + Send + 'a>;

struct ArrayExchange<'a, R>(PhantomData<fn() -> BoxFuture<'a, R>>);

impl<'a, R: Send> Exchange for ArrayExchange<'a, R> {
    type Request = Request<'a, R>;
    type Response = R;
    type Failure = CallFailure;

    async fn perform(&mut self, context: CallContext, request: Request<'a, R>) -> Result<R, CallFailure> {
        let _permit = context.begin()?;
        request(context).await.map_err(CallFailure)
    }

    fn outcome_label(_: &CallFailure) -> &'static str {
        "error"
    }

    fn storage_error(&self, CallFailure(error): CallFailure, redactor: &Redactor) -> StorageError {
        StorageError { message: redactor.redact(&error.message).into_owned(), ..error }
    }
}

/// The port of one process, with its operations in flight.
#[derive(Debug)]
pub struct ArrayPort {
    runner: CallRunner,
    limit: ConcurrencyLimit,
}

impl ArrayPort {
    /// A port of at most `max_calls` calls at a time that take at most `timeout`, as their context says. The
    /// port does not end a call that takes longer.
    pub fn new(driver: &DriverName, timeout: Duration, max_calls: usize) -> Self {
        let metrics = BackendMetrics::default().call_metrics(Some(driver));
        Self {
            runner: CallRunner::new(Secrets::default(), timeout, metrics),
            limit: ConcurrencyLimit::new(max_calls),
        }
    }

    /// Runs a call through the port, as the backends of a real process do. `request` sends it to the array.
    pub fn run<'a, R, F>(
        &'a self,
        call: Call,
        spec: CallSpec<R, R>,
        request: impl FnOnce(CallContext) -> F + Send + 'a,
    ) -> BackendFuture<'a, R>
    where
        R: Send + 'static,
        F: Future<Output = Result<R, StorageError>> + Send + 'a,
    {
        let request: Request<'a, R> = Box::new(move |context| Box::pin(request(context)));
        let exchange = ArrayExchange(PhantomData);
        Box::pin(self.runner.run(Instant::now(), call, spec, &self.limit, exchange, request))
    }
}
