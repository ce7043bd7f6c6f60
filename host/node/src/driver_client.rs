//! A driver on a socket, asked who it is and how it is: what the registrar and liveness want of it, in a
//! connection of its own for every question, as livenessprobe does it.

use std::time::Duration;

use cofferdam_csi::{
    Address,
    one_shot::{Channel, OneShotConnection},
    v1::{GetPluginInfoRequest, ProbeRequest, identity_client::IdentityClient},
};
use tokio::{net::UnixStream, time::timeout};
use tonic::{Response, Status};

/// Why a driver did not answer as it should.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProbeError {
    /// Nobody listens.
    #[error("cannot connect to {address}: {reason}")]
    Connect {
        /// The socket.
        address: String,
        /// Why not.
        reason: String,
    },
    /// It answered with a failure.
    #[error("the driver at {address} answered {code}: {message}")]
    Status {
        /// The socket.
        address: String,
        /// gRPC's code.
        code: String,
        /// The driver's words.
        message: String,
    },
    /// It says that it is not ready.
    #[error("the driver at {address} is not ready")]
    NotReady {
        /// The socket.
        address: String,
    },
    /// It did not answer in time.
    #[error("the driver at {address} did not answer within {timeout:?}")]
    Timeout {
        /// The socket.
        address: String,
        /// How long was waited.
        timeout: Duration,
    },
}

/// A driver's socket.
#[derive(Clone, Debug)]
pub struct DriverClient {
    address: Address,
    timeout: Duration,
}

impl DriverClient {
    /// A driver that may take so long for an answer.
    pub const fn new(address: Address, timeout: Duration) -> Self {
        Self { address, timeout }
    }

    /// The driver's name.
    ///
    /// # Errors
    /// [`ProbeError`]
    pub async fn name(&self) -> Result<String, ProbeError> {
        let response = self.call(|stream| async move {
            call_identity(stream, async |client| client.get_plugin_info(GetPluginInfoRequest {}).await).await
        });
        Ok(response.await?.name)
    }

    /// Whether it can be used.
    ///
    /// # Errors
    /// [`ProbeError`], also for a driver that is not ready.
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
                code: format!("{:?}", status.code()),
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
