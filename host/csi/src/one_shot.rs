//! Short-lived connections for a few calls, as in kubelet and livenessprobe.

use http::{Request, Response, Uri};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::UnixStream;
use tokio_util::task::AbortOnDropHandle;
use tonic::{Status, body::Body};

use crate::grpc::{ConnectionLost, DriverStatusCell, ORIGIN, StatusRecordingBody};

/// The transport of one connection.
pub type Channel =
    tower::util::BoxCloneSyncService<Request<Body>, Response<StatusRecordingBody>, ConnectionLost>;

/// A connection that is closed when dropped. Errors are tonic's; they do not say whether a failure is final.
#[derive(Debug)]
pub struct OneShotConnection {
    channel: Channel,
    _connection: AbortOnDropHandle<()>,
}

impl OneShotConnection {
    /// Performs the HTTP/2 handshake.
    ///
    /// # Errors
    /// `Unavailable` if the connection is lost during the handshake.
    pub async fn handshake(stream: UnixStream) -> Result<Self, Status> {
        let handshake = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
        let (sender, connection) = handshake.map_err(|error| Status::unavailable(error.to_string()))?;
        let connection = tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection to a driver ended");
            }
        });
        let channel = tower::service_fn(move |request| {
            let mut sender = sender.clone();
            async move {
                Ok(StatusRecordingBody::wrap(sender.send_request(request).await?, DriverStatusCell::new()))
            }
        });
        Ok(Self { channel: Channel::new(channel), _connection: AbortOnDropHandle::new(connection) })
    }

    /// Creates a service client from its `with_origin` constructor.
    pub fn client<C>(&self, with_origin: impl FnOnce(Channel, Uri) -> C) -> C {
        with_origin(self.channel.clone(), Uri::from_static(ORIGIN))
    }
}

/// Returns true if a call failed because the connection was lost. The result of the call is then unknown.
pub fn is_connection_lost(status: &Status) -> bool {
    std::error::Error::source(status).is_some_and(|source| source.is::<ConnectionLost>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v1::{ProbeRequest, identity_client::IdentityClient};

    #[tokio::test]
    async fn lost_connection_is_distinguished_from_driver_status() {
        let (client_end, server_end) = UnixStream::pair().unwrap();
        let connection = OneShotConnection::handshake(client_end).await.unwrap();
        drop(server_end);
        let status = connection.client(IdentityClient::with_origin).probe(ProbeRequest {}).await.unwrap_err();
        assert!(is_connection_lost(&status), "{status:?}");
        assert!(!is_connection_lost(&Status::unknown("a status of the driver")));
    }
}
