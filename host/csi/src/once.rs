//! A connection for one question or two, as kubelet and livenessprobe open them.

use http::{Request, Response, Uri};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::UnixStream;
use tokio_util::task::AbortOnDropHandle;
use tonic::{Status, body::Body};

use crate::wire::{Broken, Heard, ORIGIN, Word};

/// What carries the calls of one connection.
pub type Channel = tower::util::BoxCloneSyncService<Request<Body>, Response<Heard>, Broken>;

/// A connection that ends with its owner. Errors of calls are what tonic makes of them: nobody asks here
/// whether a failure is final.
#[derive(Debug)]
pub struct Once {
    channel: Channel,
    _connection: AbortOnDropHandle<()>,
}

impl Once {
    /// Greets whoever listens at the other end.
    ///
    /// # Errors
    /// `Unavailable`, if they do not speak HTTP/2.
    pub async fn over(stream: UnixStream) -> Result<Self, Status> {
        let handshake = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
        let (sender, connection) = handshake.map_err(|error| Status::unavailable(error.to_string()))?;
        let connection = tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection to a driver ended");
            }
        });
        let channel = tower::service_fn(move |request| {
            let mut sender = sender.clone();
            async move { Ok(Heard::of(sender.send_request(request).await?, Word::none())) }
        });
        Ok(Self { channel: Channel::new(channel), _connection: AbortOnDropHandle::new(connection) })
    }

    /// A client of one of the services, by its `with_origin`.
    pub fn client<C>(&self, with_origin: impl FnOnce(Channel, Uri) -> C) -> C {
        with_origin(self.channel.clone(), Uri::from_static(ORIGIN))
    }
}

/// Whether a call has failed because its connection did: nobody knows what came of it.
pub fn is_broken(status: &Status) -> bool {
    std::error::Error::source(status).is_some_and(|source| source.is::<Broken>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v1::{ProbeRequest, identity_client::IdentityClient};

    #[tokio::test]
    async fn a_connection_that_breaks_is_told_from_an_answer() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let once = Once::over(ours).await.unwrap();
        drop(theirs);
        let status = once.client(IdentityClient::with_origin).probe(ProbeRequest {}).await.unwrap_err();
        assert!(is_broken(&status), "{status:?}");
        assert!(!is_broken(&Status::unknown("the driver's own word")));
    }
}
