//! Calls as kubelet makes them: a connection of its own for each, two minutes for an answer.

use std::{path::Path, time::Duration};

use cofferdam_csi::{
    one_shot::{self, Channel, OneShotConnection},
    registration::registration_client::RegistrationClient,
    v1::node_client::NodeClient,
};
use tokio::net::UnixStream;
use tonic::{Code, Response, Status};

/// How long kubelet waits for an answer.
const RPC_TIMEOUT: Duration = Duration::from_secs(120);

/// Whether a call may have done what it was asked for although it has failed.
pub(super) fn is_uncertain(status: &Status) -> bool {
    one_shot::is_connection_lost(status)
        || matches!(
            status.code(),
            Code::Cancelled
                | Code::DeadlineExceeded
                | Code::Unavailable
                | Code::ResourceExhausted
                | Code::Aborted
        )
}

/// A failure in kubelet's words.
pub(super) fn format_status(status: &Status) -> String {
    format!("rpc error: code = {:?} desc = {}", status.code(), status.message())
}

async fn connect(socket: &Path) -> Result<OneShotConnection, Status> {
    let unreachable = |reason: &str| Status::unavailable(format!("{}: {reason}", socket.display()));
    let stream = UnixStream::connect(socket).await.map_err(|error| unreachable(&error.to_string()))?;
    OneShotConnection::handshake(stream).await.map_err(|status| unreachable(status.message()))
}

async fn with_timeout<R>(call: impl Future<Output = Result<R, Status>>) -> Result<R, Status> {
    let timed_out = |_| Status::deadline_exceeded(format!("no answer within {RPC_TIMEOUT:?}"));
    tokio::time::timeout(RPC_TIMEOUT, call).await.map_err(timed_out)?
}

/// One call of a driver's Node service.
pub(super) async fn call_node_service<R>(
    socket: &Path,
    call: impl AsyncFnOnce(&mut NodeClient<Channel>) -> Result<Response<R>, Status>,
) -> Result<R, Status> {
    with_timeout(async {
        let connection = connect(socket).await?;
        call(&mut connection.client(NodeClient::with_origin)).await.map(Response::into_inner)
    })
    .await
}

/// Calls of the socket on which a driver registers.
pub(super) async fn call_registration<R>(
    socket: &Path,
    call: impl AsyncFnOnce(&mut RegistrationClient<Channel>) -> Result<R, Status>,
) -> Result<R, Status> {
    with_timeout(async {
        let connection = connect(socket).await?;
        call(&mut connection.client(RegistrationClient::with_origin)).await
    })
    .await
}
