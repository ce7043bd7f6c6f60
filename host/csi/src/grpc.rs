//! A gRPC connection that distinguishes the driver's statuses from transport errors.
//!
//! tonic converts every failure to a status, including lost connections and malformed responses. Whether a
//! failure is final depends on its origin: a status is the driver's only if it was received in headers or
//! trailers.

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

/// Maximum size of a response in bytes: gRPC's default.
const MAX_RESPONSE_BYTES: usize = 4 << 20;
/// Maximum size of headers and trailers in bytes.
const MAX_HEADER_BYTES: u32 = 64 << 10;
/// The authority that gRPC uses for unix sockets.
pub(crate) const ORIGIN: &str = "http://localhost";
/// Header and trailer of the driver's status code.
const GRPC_STATUS: &str = "grpc-status";
/// Header or trailer with status details. They are not used, and tonic 0.14 panics if they are not base64.
const GRPC_STATUS_DETAILS: &str = "grpc-status-details-bin";

/// The connection could not be established, was lost, or has a server that does not speak HTTP/2.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct ConnectionLost(String);

impl From<hyper::Error> for ConnectionLost {
    /// Without the source: tonic would convert it to a status.
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

/// The status code that the driver itself sent for one call; unset before the response, and if it has no code
/// of gRPC. Other codes come from tonic.
#[derive(Clone, Debug)]
pub(crate) struct DriverStatusCell(Arc<AtomicI32>);

impl DriverStatusCell {
    const UNSET: i32 = -1;

    pub(crate) fn new() -> Self {
        Self(Arc::new(AtomicI32::new(Self::UNSET)))
    }

    /// Records the code in headers or trailers and removes the status details.
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

/// A handle that sends calls on one connection. Clones share the connection.
#[derive(Clone, Debug)]
pub(crate) struct GrpcConnection(http2::SendRequest<tonic::body::Body>);

/// Resolves to the reason when the connection ends.
pub(crate) type ClosedFuture = BoxFuture<'static, String>;

impl GrpcConnection {
    /// Connects. The returned future drives the connection and must be polled. It ends with the connection.
    pub(crate) async fn connect(address: &Address) -> Result<(Self, ClosedFuture), ConnectionLost> {
        let stream =
            UnixStream::connect(address.path()).await.map_err(|error| ConnectionLost(error.to_string()))?;
        let (sender, connection) = http2::Builder::new(TokioExecutor::new())
            .max_header_list_size(MAX_HEADER_BYTES)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(ConnectionLost::from)?;
        let closed_reason = async move {
            match connection.await {
                Ok(()) => "the driver closed it".to_owned(),
                Err(error) => ConnectionLost::from(error).to_string(),
            }
        };
        Ok((Self(sender), Box::pin(closed_reason)))
    }

    /// Returns true if the connection is closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.0.is_closed()
    }

    /// Sends one call with its deadline and enforces it. Distinguishes the driver's status from transport
    /// errors.
    pub(crate) async fn call<Q, R>(
        self,
        request: Q,
        deadline: Instant,
        method: GrpcMethod<Q, R>,
    ) -> Result<R, RpcError> {
        let remaining = deadline.saturating_duration_since(Instant::now());
        let driver_status = DriverStatusCell::new();
        let mut request = tonic::Request::new(request);
        // Rounded up, so that the driver does not time out before this client.
        let timeout_millis = u64::try_from(remaining.as_millis()).unwrap_or(u64::MAX).saturating_add(1);
        request.set_timeout(Duration::from_millis(timeout_millis));
        request.extensions_mut().insert(driver_status.clone());
        // Malformed bytes may cause a panic in a library. It must only fail this call, not the connection's
        // task.
        let call = AssertUnwindSafe(method(self, request)).catch_unwind();
        let Ok(result) = tokio::time::timeout_at(deadline, call).await else {
            return Err(RpcError::DeadlineExceeded(remaining));
        };
        let Ok(response) = result else {
            return Err(RpcError::MalformedResponse("decoding it panicked".to_owned()));
        };
        match response {
            Ok(response) if driver_status.has_code(Code::Ok) => Ok(response.into_inner()),
            Ok(_) => Err(RpcError::ConnectionLost("the response ended without a status".to_owned())),
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

/// A method of a generated client.
pub(crate) type GrpcMethod<Q, R> =
    fn(GrpcConnection, tonic::Request<Q>) -> BoxFuture<'static, Result<tonic::Response<R>, tonic::Status>>;

/// Converts a status that tonic generated.
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

/// A response body that records the status in its trailers and removes the status details.
#[derive(Debug)]
pub struct StatusRecordingBody {
    body: Incoming,
    status: DriverStatusCell,
}

impl StatusRecordingBody {
    /// Wraps a response.
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
        let (connection, _closed) = GrpcConnection::connect(&address).await.unwrap();
        let method: GrpcMethod<(), ()> = |_, _| Box::pin(async { panic!("on purpose") });
        let error = connection.call((), Instant::now() + Duration::from_secs(30), method).await.unwrap_err();
        assert!(matches!(error, RpcError::MalformedResponse(_)), "{error:?}");
    }
}
