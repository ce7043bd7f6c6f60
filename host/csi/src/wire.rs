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
    status::Fault,
    v1::{
        controller_client::ControllerClient, group_controller_client::GroupControllerClient,
        identity_client::IdentityClient, node_client::NodeClient,
    },
};

/// Largest answer that is read, in bytes: gRPC's own default, which drivers are used to.
const MAX_ANSWER: usize = 4 << 20;
/// Largest headers and trailers that are read, in bytes: a status' message is for people.
const MAX_HEADERS: u32 = 64 << 10;
/// What gRPC calls the other end of a unix socket.
pub(crate) const ORIGIN: &str = "http://localhost";
/// Where the driver's word stands.
const STATUS: &str = "grpc-status";
/// What more a driver may say of a failure. Nobody here reads it, and tonic 0.14 panics when it is not
/// base64.
const DETAILS: &str = "grpc-status-details-bin";

/// The connection broke, or the other side does not speak gRPC.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct Broken(String);

impl From<hyper::Error> for Broken {
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
pub(crate) struct Word(Arc<AtomicI32>);

impl Word {
    const NONE: i32 = -1;

    pub(crate) fn none() -> Self {
        Self(Arc::new(AtomicI32::new(Self::NONE)))
    }

    /// Listens to headers or trailers, and takes out what tonic must not see.
    fn hear(&self, headers: &mut HeaderMap) {
        headers.remove(DETAILS);
        let code = headers.get(STATUS).and_then(|value| value.to_str().ok()?.parse().ok());
        if let Some(code) = code.filter(|code| (0..=16).contains(code)) {
            self.0.store(code, Ordering::Release);
        }
    }

    fn is(&self, code: Code) -> bool {
        self.0.load(Ordering::Acquire) == code as i32
    }
}

/// The sending half of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Wire(http2::SendRequest<tonic::body::Body>);

/// What ends when the connection does, with the reason.
pub(crate) type Closed = BoxFuture<'static, String>;

impl Wire {
    /// Connects. What is returned beside the wire carries the connection: it must be polled.
    pub(crate) async fn connect(address: &Address) -> Result<(Self, Closed), String> {
        let stream = UnixStream::connect(address.path()).await.map_err(|error| error.to_string())?;
        let (wire, connection) = http2::Builder::new(TokioExecutor::new())
            .max_header_list_size(MAX_HEADERS)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|error| Broken::from(error).to_string())?;
        let closed = async move {
            match connection.await {
                Ok(()) => "the driver closed it".to_owned(),
                Err(error) => Broken::from(error).to_string(),
            }
        };
        Ok((Self(wire), Box::pin(closed)))
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
        method: Method<Q, R>,
    ) -> Result<R, Fault> {
        let left = deadline.saturating_duration_since(Instant::now());
        let word = Word::none();
        let mut request = tonic::Request::new(request);
        // In whole milliseconds, not to end at the driver before it ends here.
        let rounded = u64::try_from(left.as_millis()).unwrap_or(u64::MAX).saturating_add(1);
        request.set_timeout(Duration::from_millis(rounded));
        request.extensions_mut().insert(word.clone());
        // A driver's bytes can make a library panic. That must not end more than this call, least of all the
        // task that keeps the connection.
        let exchange = AssertUnwindSafe(method(self, request)).catch_unwind();
        let Ok(ended) = tokio::time::timeout_at(deadline, exchange).await else {
            return Err(Fault::Deadline(left));
        };
        let Ok(answer) = ended else {
            return Err(Fault::Unreadable("reading it failed in this program".to_owned()));
        };
        match answer {
            Ok(answer) if word.is(Code::Ok) => Ok(answer.into_inner()),
            Ok(_) => Err(Fault::Broken("the answer ended without a status".to_owned())),
            Err(status) if word.is(status.code()) => {
                Err(Fault::Said(status.code(), status.message().to_owned()))
            }
            Err(status) => Err(unsaid(&status)),
        }
    }

    pub(crate) fn identity(self) -> IdentityClient<Self> {
        IdentityClient::with_origin(self, Uri::from_static(ORIGIN)).max_decoding_message_size(MAX_ANSWER)
    }

    pub(crate) fn controller(self) -> ControllerClient<Self> {
        ControllerClient::with_origin(self, Uri::from_static(ORIGIN)).max_decoding_message_size(MAX_ANSWER)
    }

    pub(crate) fn node(self) -> NodeClient<Self> {
        NodeClient::with_origin(self, Uri::from_static(ORIGIN)).max_decoding_message_size(MAX_ANSWER)
    }

    pub(crate) fn group_controller(self) -> GroupControllerClient<Self> {
        GroupControllerClient::with_origin(self, Uri::from_static(ORIGIN))
            .max_decoding_message_size(MAX_ANSWER)
    }
}

/// One method of CSI as a generated client calls it.
pub(crate) type Method<Q, R> =
    fn(Wire, tonic::Request<Q>) -> BoxFuture<'static, Result<tonic::Response<R>, tonic::Status>>;

/// What a status is that tonic made by itself.
fn unsaid(status: &tonic::Status) -> Fault {
    let broken = std::error::Error::source(status).and_then(|source| source.downcast_ref::<Broken>());
    match broken {
        Some(Broken(reason)) => Fault::Broken(reason.clone()),
        None => Fault::Unreadable(status.message().to_owned()),
    }
}

impl tower::Service<http::Request<tonic::body::Body>> for Wire {
    type Response = http::Response<Heard>;
    type Error = Broken;
    type Future = BoxFuture<'static, Result<Self::Response, Broken>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        self.0.poll_ready(cx).map_err(Broken::from)
    }

    fn call(&mut self, request: http::Request<tonic::body::Body>) -> Self::Future {
        let word = request.extensions().get::<Word>().cloned().unwrap_or_else(Word::none);
        let sent = self.0.send_request(request);
        Box::pin(async move { Ok(Heard::of(sent.await?, word)) })
    }
}

/// A body whose trailers are listened to, and rid of what tonic must not see.
#[derive(Debug)]
pub struct Heard {
    body: Incoming,
    word: Word,
}

impl Heard {
    /// Listens to an answer.
    pub(crate) fn of(mut answer: http::Response<Incoming>, word: Word) -> http::Response<Self> {
        word.hear(answer.headers_mut());
        answer.map(|body| Self { body, word })
    }
}

impl Body for Heard {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        let mut frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if let Some(Ok(frame)) = &mut frame
            && let Some(trailers) = frame.trailers_mut()
        {
            self.word.hear(trailers);
        }
        Poll::Ready(frame.map(|frame| frame.map_err(Broken::from)))
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
    async fn what_panics_at_an_answer_ends_that_call_only() {
        let directory = tempfile::TempDir::new().unwrap();
        let socket = directory.path().join("csi.sock");
        let _listener = tokio::net::UnixListener::bind(&socket).unwrap();
        let address = socket.to_str().unwrap().parse().unwrap();
        let (wire, _closed) = Wire::connect(&address).await.unwrap();
        let method: Method<(), ()> = |_, _| Box::pin(async { panic!("on purpose") });
        let fault = wire.call((), Instant::now() + Duration::from_secs(30), method).await.unwrap_err();
        assert!(matches!(fault, Fault::Unreadable(_)), "{fault:?}");
    }
}
