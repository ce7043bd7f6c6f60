//! Starts the upstream CSI sidecars, and Cofferdam under their names.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Result;
use cofferdam_cluster::connect;
use http::Uri;
use kube::{Client, Config};

use crate::{
    control_plane, namespaces,
    process::{CommandSpec, ManagedProcess},
    run::SuiteRun,
};

const READY_TIMEOUT: Duration = Duration::from_secs(120);

/// Arguments with which a sidecar and a role of Cofferdam compete for one Lease, which a killed process keeps
/// for some seconds only. The namespace of the Lease is [`namespaces::COFFERDAM`].
pub(crate) fn leader_election() -> [String; 5] {
    [
        "--leader-election".to_owned(),
        format!("--leader-election-namespace={}", namespaces::COFFERDAM),
        "--leader-election-lease-duration=3s".to_owned(),
        "--leader-election-renew-deadline=2s".to_owned(),
        "--leader-election-retry-period=500ms".to_owned(),
    ]
}

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
    start_program(run, upstream_command(run, name)?, kubeconfig, Some(socket), arguments).await
}

/// Starts `cofferdam` under the name of a sidecar and with its command line, as [`start`] starts the sidecar.
/// The log is `cofferdam-` and the name.
///
/// # Errors
/// As [`start`], or if the symbolic link with the name cannot be created.
pub(crate) async fn start_cofferdam(
    run: &SuiteRun,
    name: &str,
    kubeconfig: &Path,
    socket: &Path,
    arguments: &[&str],
) -> Result<ManagedProcess> {
    start_program(run, cofferdam_command(run, name)?, kubeconfig, Some(socket), arguments).await
}

/// The program `cofferdam` under the name of a sidecar, without arguments. Its log is [`cofferdam_name`].
///
/// # Errors
/// If the symbolic link with the name cannot be created.
pub(crate) fn cofferdam_command(run: &SuiteRun, name: &str) -> Result<CommandSpec> {
    Ok(CommandSpec::new(cofferdam_name(name), cofferdam_program(run, name)?).env("RUST_BACKTRACE", "1"))
}

/// A symbolic link to the program `cofferdam` with the name of a sidecar.
///
/// # Errors
/// If it cannot be created.
pub(crate) fn cofferdam_program(run: &SuiteRun, name: &str) -> Result<PathBuf> {
    let directory = run.scratch().join("sidecars");
    fs::create_dir_all(&directory)?;
    let link = directory.join(name);
    if !link.exists() {
        symlink(run.program(), &link)?;
    }
    Ok(link)
}

/// Name of the process of `cofferdam` that replaces a sidecar, and of its log.
pub(crate) fn cofferdam_name(sidecar: &str) -> String {
    format!("cofferdam-{sidecar}")
}

/// An upstream sidecar, without arguments.
///
/// # Errors
/// If the program is missing.
pub(crate) fn upstream_command(run: &SuiteRun, name: &str) -> Result<CommandSpec> {
    Ok(CommandSpec::new(name, run.peers().program(name)?))
}

/// Starts a sidecar, upstream or Cofferdam, and waits until it serves its metrics. `socket` is that of the
/// driver; snapshot-controller has none.
///
/// # Errors
/// As [`start`].
pub(crate) async fn start_program(
    run: &SuiteRun,
    spec: CommandSpec,
    kubeconfig: &Path,
    socket: Option<&Path>,
    arguments: &[&str],
) -> Result<ManagedProcess> {
    let unlimited = ["--kube-api-qps=100000", "--kube-api-burst=100000"];
    let arguments = [&unlimited, arguments].concat();
    start_with_default_rates(run, spec, kubeconfig, socket, &arguments).await
}

/// As [`start_program`], with the program's default client rates.
///
/// # Errors
/// As [`start`].
pub(crate) async fn start_with_default_rates(
    run: &SuiteRun,
    spec: CommandSpec,
    kubeconfig: &Path,
    socket: Option<&Path>,
    arguments: &[&str],
) -> Result<ManagedProcess> {
    let port = run.free_port()?;
    let spec = spec
        // Only Cofferdam reads it: the namespace of the intent journal.
        .env("COFFERDAM_NAMESPACE", namespaces::COFFERDAM)
        .arg(format_args!("--kubeconfig={}", kubeconfig.display()))
        .args(socket.map(|socket| format!("--csi-address={}", socket.display())))
        .arg(format_args!("--http-endpoint=127.0.0.1:{port}"))
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
