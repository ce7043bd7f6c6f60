//! The body of a write, which is given to the connection in a term only.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use cofferdam_domain::term::{Permit, PermitSource};
use http::Request;
use http_body::{Frame, SizeHint};
use kube::client::Body;
use tower::BoxError;

/// The permits of a write, as an extension of the request.
#[derive(Clone)]
pub(super) struct WritePermits(pub(super) Arc<dyn PermitSource>);

/// The body of a request. A write may wait for credentials and for a connection after its permit was given;
/// the connection reads the body when it sends the request. After the end of the term it gets an error
/// instead, and the API server gets no complete request.
pub struct RequestBody {
    body: Body,
    /// `None` for reads.
    permits: Option<Arc<dyn PermitSource>>,
}

impl RequestBody {
    /// The request with the body for the connection. The service next to the connection calls it.
    pub fn of_request(request: Request<Body>) -> Request<Self> {
        let permits = request.extensions().get::<WritePermits>().map(|permits| Arc::clone(&permits.0));
        request.map(|body| Self { body, permits })
    }

    fn begin_send(frame: Frame<Bytes>, _: Option<Permit>) -> Frame<Bytes> {
        frame
    }
}

impl http_body::Body for RequestBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = match Pin::new(&mut self.body).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => frame,
            Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(Err(error.into()))),
            Poll::Ready(None) => return Poll::Ready(None),
            Poll::Pending => return Poll::Pending,
        };
        let permit = self.permits.as_ref().map(|permits| permits.permit()).transpose();
        Poll::Ready(Some(permit.map(|permit| Self::begin_send(frame, permit)).map_err(BoxError::from)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
