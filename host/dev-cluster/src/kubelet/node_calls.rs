//! Calls of kubelet to drivers. Each call has a new connection. Connection and call together have a timeout
//! of two minutes.

use std::{path::Path, time::Duration};

use cofferdam_csi::{
    one_shot::{self, Channel, OneShotConnection},
    registration::registration_client::RegistrationClient,
    v1::node_client::NodeClient,
};
use tokio::net::UnixStream;
use tonic::{Code, Response, Status};

use super::error::RpcError;

/// Kubelet's timeout of CSI calls; here also that of registration calls. The time to connect counts.
const RPC_TIMEOUT: Duration = Duration::from_secs(120);

/// Returns true if a failed call may have taken effect.
pub(super) fn is_uncertain(error: &RpcError) -> bool {
    one_shot::is_connection_lost(error.status())
        || matches!(
            error.code(),
            Code::Cancelled
                | Code::DeadlineExceeded
                | Code::Unavailable
                | Code::ResourceExhausted
                | Code::Aborted
        )
}

async fn connect(socket: &Path) -> Result<OneShotConnection, Status> {
    let unreachable = |reason: &str| Status::unavailable(format!("{}: {reason}", socket.display()));
    let stream = UnixStream::connect(socket).await.map_err(|error| unreachable(&error.to_string()))?;
    OneShotConnection::handshake(stream).await.map_err(|status| unreachable(status.message()))
}

async fn with_timeout<R>(call: impl Future<Output = Result<R, Status>>) -> Result<R, Status> {
    let timed_out = |_| Status::deadline_exceeded(format!("no response within {RPC_TIMEOUT:?}"));
    tokio::time::timeout(RPC_TIMEOUT, call).await.map_err(timed_out)?
}

/// Calls a driver's Node service.
pub(super) async fn call_node_service<R>(
    socket: &Path,
    call: impl AsyncFnOnce(&mut NodeClient<Channel>) -> Result<Response<R>, Status>,
) -> Result<R, RpcError> {
    let response = with_timeout(async {
        let connection = connect(socket).await?;
        call(&mut connection.client(NodeClient::with_origin)).await.map(Response::into_inner)
    });
    Ok(response.await?)
}

/// Calls a driver's registration socket.
pub(super) async fn call_registration<R>(
    socket: &Path,
    call: impl AsyncFnOnce(&mut RegistrationClient<Channel>) -> Result<R, Status>,
) -> Result<R, RpcError> {
    let response = with_timeout(async {
        let connection = connect(socket).await?;
        call(&mut connection.client(RegistrationClient::with_origin)).await
    });
    Ok(response.await?)
}
