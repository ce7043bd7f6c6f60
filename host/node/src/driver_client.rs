//! Client of a driver's Identity service, for the registrar and the liveness probe. Every request uses a new
//! connection, as in livenessprobe.

use std::time::Duration;

use cofferdam_csi::{
    Address,
    one_shot::{Channel, OneShotConnection},
    v1::{GetPluginInfoRequest, ProbeRequest, identity_client::IdentityClient},
};
use tokio::{net::UnixStream, time::timeout};
use tonic::{Code, Response, Status};

/// A failed Identity request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProbeError {
    /// The client cannot connect to the socket.
    #[error("cannot connect to {address}: {reason}")]
    Connect {
        /// The socket's address.
        address: String,
        /// The cause.
        reason: String,
    },
    /// The driver returned an error status, or the connection failed after it was opened.
    #[error("the driver at {address} returned {code:?}: {message}")]
    Status {
        /// The socket's address.
        address: String,
        /// The gRPC status code.
        code: Code,
        /// The status message.
        message: String,
    },
    /// The Probe response has `ready: false`.
    #[error("the driver at {address} is not ready")]
    NotReady {
        /// The socket's address.
        address: String,
    },
    /// The request timed out.
    #[error("the driver at {address} did not respond within {timeout:?}")]
    Timeout {
        /// The socket's address.
        address: String,
        /// The timeout.
        timeout: Duration,
    },
}

/// An Identity client of one driver.
#[derive(Clone, Debug)]
pub struct DriverClient {
    address: Address,
    timeout: Duration,
}

impl DriverClient {
    /// Creates a client. `timeout` bounds connection and response together.
    pub const fn new(address: Address, timeout: Duration) -> Self {
        Self { address, timeout }
    }

    /// Returns the driver's name (GetPluginInfo).
    ///
    /// # Errors
    /// [`ProbeError`]
    pub async fn name(&self) -> Result<String, ProbeError> {
        let response = self.call(|stream| async move {
            call_identity(stream, async |client| client.get_plugin_info(GetPluginInfoRequest {}).await).await
        });
        Ok(response.await?.name)
    }

    /// Checks that the driver is ready (Probe). As CSI specifies, a response without `ready` means ready.
    ///
    /// # Errors
    /// [`ProbeError`], including [`ProbeError::NotReady`].
    pub async fn probe(&self) -> Result<(), ProbeError> {
        let response = self.call(|stream| async move {
            call_identity(stream, async |client| client.probe(ProbeRequest {}).await).await
        });
        if response.await?.ready.unwrap_or(true) {
            Ok(())
        } else {
            Err(ProbeError::NotReady { address: self.address.to_string() })
        }
    }

    async fn call<R, F>(&self, request: impl FnOnce(UnixStream) -> F) -> Result<R, ProbeError>
    where
        F: Future<Output = Result<R, Status>>,
    {
        let address = || self.address.to_string();
        let exchange = async {
            let stream = UnixStream::connect(self.address.path())
                .await
                .map_err(|error| ProbeError::Connect { address: address(), reason: error.to_string() })?;
            request(stream).await.map_err(|status| ProbeError::Status {
                address: address(),
                code: status.code(),
                message: status.message().to_owned(),
            })
        };
        let timed_out = |_| ProbeError::Timeout { address: address(), timeout: self.timeout };
        timeout(self.timeout, exchange).await.map_err(timed_out)?
    }
}

async fn call_identity<R>(
    stream: UnixStream,
    call: impl AsyncFnOnce(&mut IdentityClient<Channel>) -> Result<Response<R>, Status>,
) -> Result<R, Status> {
    let connection = OneShotConnection::handshake(stream).await?;
    call(&mut connection.client(IdentityClient::with_origin)).await.map(Response::into_inner)
}
