//! The upstream CSI sidecars.

use std::{path::Path, time::Duration};

use anyhow::Result;
use cofferdam_cluster::connect;
use http::Uri;
use kube::{Client, Config};

use crate::{
    control_plane,
    process::{CommandSpec, ManagedProcess},
    run::SuiteRun,
};

const READY_TIMEOUT: Duration = Duration::from_secs(120);

/// Starts a sidecar such as `csi-provisioner` with unlimited client rates, and waits until it serves its
/// metrics.
///
/// # Errors
/// If it does not serve them in time. The error contains the end of its log.
pub async fn start(
    run: &SuiteRun,
    name: &str,
    kubeconfig: &Path,
    socket: &Path,
    arguments: &[&str],
) -> Result<ManagedProcess> {
    let port = run.free_port()?;
    let spec = CommandSpec::new(name, run.peers().program(name)?)
        .arg(format_args!("--kubeconfig={}", kubeconfig.display()))
        .arg(format_args!("--csi-address={}", socket.display()))
        .arg(format_args!("--http-endpoint=127.0.0.1:{port}"))
        .arg("--kube-api-qps=100000")
        .arg("--kube-api-burst=100000")
        .args(arguments);
    let mut process = ManagedProcess::start(run, spec)?;
    let client = plain_client(port)?;
    process.wait_ready(READY_TIMEOUT, async || control_plane::probe_path(&client, "/metrics").await).await?;
    Ok(process.with_metrics(client))
}

/// A client for a server on loopback without TLS.
pub(crate) fn plain_client(port: u16) -> Result<Client> {
    let mut config = Config::new(Uri::try_from(format!("http://127.0.0.1:{port}"))?);
    config.default_retry = false;
    Ok(connect::client(config)?)
}
