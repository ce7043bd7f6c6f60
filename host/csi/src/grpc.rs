//! One gRPC connection, and what the other side really said on it.
//!
//! tonic's client makes a status of everything that goes wrong, also of a broken connection and of an answer
//! that cannot be read. Whether a failure is final depends on who said it: a status is the driver's word only
//! when it was seen in the driver's own headers or trailers.

use std::{
    panic::AssertUnwindSafe,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicI32, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use futures::{FutureExt as _, future::BoxFuture};
use http::{HeaderMap, Uri};
use http_body::{Body, Frame, SizeHint};
use hyper::{body::Incoming, client::conn::http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{net::UnixStream, time::Instant};
use tonic::Code;

use crate::{
    address::Address,
    status::RpcError,
    v1::{
        controller_client::ControllerClient, group_controller_client::GroupControllerClient,
        identity_client::IdentityClient, node_client::NodeClient,
    },
};

/// Largest answer that is read, in bytes: gRPC's own default, which drivers are used to.
const MAX_RESPONSE_BYTES: usize = 4 << 20;
/// Largest headers and trailers that are read, in bytes: a status' message is for people.
const MAX_HEADER_BYTES: u32 = 64 << 10;
/// What gRPC calls the other end of a unix socket.
pub(crate) const ORIGIN: &str = "http://localhost";
/// Where the driver's word stands.
const GRPC_STATUS: &str = "grpc-status";
/// What more a driver may say of a failure. Nobody here reads it, and tonic 0.14 panics when it is not
/// base64.
const GRPC_STATUS_DETAILS: &str = "grpc-status-details-bin";

/// The connection broke, or the other side does not speak gRPC.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct ConnectionLost(String);

impl From<hyper::Error> for ConnectionLost {
    /// Without the source: tonic would look into it and make a status of what it finds.
    fn from(error: hyper::Error) -> Self {
        let mut text = error.to_string();
        let mut cause = std::error::Error::source(&error);
        while let Some(error) = cause {
            text = format!("{text}: {error}");
            cause = error.source();
        }
        Self(text)
    }
}

/// The gRPC code that the driver sent for one call.
#[derive(Clone, Debug)]
pub(crate) struct DriverStatusCell(Arc<AtomicI32>);

impl DriverStatusCell {
    const UNSET: i32 = -1;

    pub(crate) fn new() -> Self {
        Self(Arc::new(AtomicI32::new(Self::UNSET)))
    }

    /// Listens to headers or trailers, and takes out what tonic must not see.
    fn record(&self, headers: &mut HeaderMap) {
        headers.remove(GRPC_STATUS_DETAILS);
        let code = headers.get(GRPC_STATUS).and_then(|value| value.to_str().ok()?.parse().ok());
        if let Some(code) = code.filter(|code| (0..=16).contains(code)) {
            self.0.store(code, Ordering::Release);
        }
    }

    fn has_code(&self, code: Code) -> bool {
        self.0.load(Ordering::Acquire) == code as i32
    }
}

/// The sending half of a connection.
#[derive(Clone, Debug)]
pub(crate) struct GrpcConnection(http2::SendRequest<tonic::body::Body>);

/// What ends when the connection does, with the reason.
pub(crate) type ClosedFuture = BoxFuture<'static, String>;

impl GrpcConnection {
    /// Connects. What is returned beside the wire carries the connection: it must be polled.
    pub(crate) async fn connect(address: &Address) -> Result<(Self, ClosedFuture), String> {
        let stream = UnixStream::connect(address.path()).await.map_err(|error| error.to_string())?;
        let (sender, connection) = http2::Builder::new(TokioExecutor::new())
            .max_header_list_size(MAX_HEADER_BYTES)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|error| ConnectionLost::from(error).to_string())?;
        let closed_reason = async move {
            match connection.await {
                Ok(()) => "the driver closed it".to_owned(),
                Err(error) => ConnectionLost::from(error).to_string(),
            }
        };
        Ok((Self(sender), Box::pin(closed_reason)))
    }

    /// Whether nothing can be sent any more.
    pub(crate) fn is_closed(&self) -> bool {
        self.0.is_closed()
    }

    /// Makes one call: sends its deadline along, holds it here, and tells the driver's word from everything
    /// else.
    pub(crate) async fn call<Q, R>(
        self,
        request: Q,
        deadline: Instant,
        method: GrpcMethod<Q, R>,
    ) -> Result<R, RpcError> {
        let remaining = deadline.saturating_duration_since(Instant::now());
        let driver_status = DriverStatusCell::new();
        let mut request = tonic::Request::new(request);
        // In whole milliseconds, not to end at the driver before it ends here.
        let timeout_millis = u64::try_from(remaining.as_millis()).unwrap_or(u64::MAX).saturating_add(1);
        request.set_timeout(Duration::from_millis(timeout_millis));
        request.extensions_mut().insert(driver_status.clone());
        // A driver's bytes can make a library panic. That must not end more than this call, least of all the
        // task that keeps the connection.
        let call = AssertUnwindSafe(method(self, request)).catch_unwind();
        let Ok(result) = tokio::time::timeout_at(deadline, call).await else {
            return Err(RpcError::DeadlineExceeded(remaining));
        };
        let Ok(response) = result else {
            return Err(RpcError::MalformedResponse("reading it failed in this program".to_owned()));
        };
        match response {
            Ok(response) if driver_status.has_code(Code::Ok) => Ok(response.into_inner()),
            Ok(_) => Err(RpcError::ConnectionLost("the answer ended without a status".to_owned())),
            Err(status) if driver_status.has_code(status.code()) => {
                Err(RpcError::Status(status.code(), status.message().to_owned()))
            }
            Err(status) => Err(transport_error(&status)),
        }
    }

    pub(crate) fn identity(self) -> IdentityClient<Self> {
        IdentityClient::with_origin(self, Uri::from_static(ORIGIN))
            .max_decoding_message_size(MAX_RESPONSE_BYTES)
    }

    pub(crate) fn controller(self) -> ControllerClient<Self> {
        ControllerClient::with_origin(self, Uri::from_static(ORIGIN))
            .max_decoding_message_size(MAX_RESPONSE_BYTES)
    }

    pub(crate) fn node(self) -> NodeClient<Self> {
        NodeClient::with_origin(self, Uri::from_static(ORIGIN)).max_decoding_message_size(MAX_RESPONSE_BYTES)
    }

    pub(crate) fn group_controller(self) -> GroupControllerClient<Self> {
        GroupControllerClient::with_origin(self, Uri::from_static(ORIGIN))
            .max_decoding_message_size(MAX_RESPONSE_BYTES)
    }
}

/// One method of CSI as a generated client calls it.
pub(crate) type GrpcMethod<Q, R> =
    fn(GrpcConnection, tonic::Request<Q>) -> BoxFuture<'static, Result<tonic::Response<R>, tonic::Status>>;

/// What a status is that tonic made by itself.
fn transport_error(status: &tonic::Status) -> RpcError {
    let connection_lost =
        std::error::Error::source(status).and_then(|source| source.downcast_ref::<ConnectionLost>());
    match connection_lost {
        Some(ConnectionLost(reason)) => RpcError::ConnectionLost(reason.clone()),
        None => RpcError::MalformedResponse(status.message().to_owned()),
    }
}

impl tower::Service<http::Request<tonic::body::Body>> for GrpcConnection {
    type Response = http::Response<StatusRecordingBody>;
    type Error = ConnectionLost;
    type Future = BoxFuture<'static, Result<Self::Response, ConnectionLost>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ConnectionLost>> {
        self.0.poll_ready(cx).map_err(ConnectionLost::from)
    }

    fn call(&mut self, request: http::Request<tonic::body::Body>) -> Self::Future {
        let driver_status =
            request.extensions().get::<DriverStatusCell>().cloned().unwrap_or_else(DriverStatusCell::new);
        let sent = self.0.send_request(request);
        Box::pin(async move { Ok(StatusRecordingBody::wrap(sent.await?, driver_status)) })
    }
}

/// A body whose trailers are listened to, and rid of what tonic must not see.
#[derive(Debug)]
pub struct StatusRecordingBody {
    body: Incoming,
    status: DriverStatusCell,
}

impl StatusRecordingBody {
    /// Listens to an answer.
    pub(crate) fn wrap(
        mut response: http::Response<Incoming>,
        status: DriverStatusCell,
    ) -> http::Response<Self> {
        status.record(response.headers_mut());
        response.map(|body| Self { body, status })
    }
}

impl Body for StatusRecordingBody {
    type Data = Bytes;
    type Error = ConnectionLost;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ConnectionLost>>> {
        let mut frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if let Some(Ok(frame)) = &mut frame
            && let Some(trailers) = frame.trailers_mut()
        {
            self.status.record(trailers);
        }
        Poll::Ready(frame.map(|frame| frame.map_err(ConnectionLost::from)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn panic_while_decoding_fails_only_that_call() {
        let directory = tempfile::TempDir::new().unwrap();
        let socket = directory.path().join("csi.sock");
        let _listener = tokio::net::UnixListener::bind(&socket).unwrap();
        let address = socket.to_str().unwrap().parse().unwrap();
        let (wire, _closed) = GrpcConnection::connect(&address).await.unwrap();
        let method: GrpcMethod<(), ()> = |_, _| Box::pin(async { panic!("on purpose") });
        let fault = wire.call((), Instant::now() + Duration::from_secs(30), method).await.unwrap_err();
        assert!(matches!(fault, RpcError::MalformedResponse(_)), "{fault:?}");
    }
}
