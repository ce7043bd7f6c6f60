//! Cofferdam's registrar replaces one that behaves as node-driver-registrar and was killed, and the other way
//! round.

use std::{fs, path::Path, time::Duration};

use anyhow::{Result, ensure};
use kube::Client;

use crate::{
    cofferdam,
    driver::CsiDriverProcess,
    node::{self, KubeletNode},
    process::{CommandSpec, ManagedProcess},
    run::SuiteRun,
    wait::until,
};

/// Time within which kubelet registers a driver.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Text that the logs of both registrars contain once for each registration.
const REGISTERED: &str = "kubelet registered";

/// Registers the driver by a program that behaves as node-driver-registrar, replaces it by Cofferdam's
/// registrar and back, and by Cofferdam's again. Each of the first two is killed and leaves its socket
/// behind, for which kubelet keeps the registration. Returns the last registrar.
///
/// # Errors
/// If kubelet does not register the driver in time, or a registrar exits.
pub(super) async fn replace(
    run: &SuiteRun,
    client: &Client,
    node: &KubeletNode,
    driver: &CsiDriverProcess,
    name: &str,
) -> Result<ManagedProcess> {
    let registry = node.root().join("plugins_registry");
    fs::create_dir_all(&registry)?;
    let spec = CommandSpec::new("go-registrar", run.peers().program("csi-driver")?)
        .arg(format_args!("--name={name}"))
        .arg(format_args!("--socket={}", driver.socket().display()))
        .arg(format_args!("--register={}", registry.display()));
    let mut go = ManagedProcess::start(run, spec)?;
    wait_registered(client, node, name, &mut go, 1).await?;
    go.kill().await?;
    let go_socket = registry.join(format!("{name}-reg.sock"));
    ensure!(go_socket.exists(), "the killed registrar has removed its socket");

    let mut ours = cofferdam::start_registrar(run, node.name(), driver.socket(), node.root()).await?;
    wait_registered(client, node, name, &mut ours, 1).await?;
    ensure!(!go_socket.exists(), "{} is left", go_socket.display());
    ours.kill().await?;

    // As docs/node.md says.
    fs::remove_file(registry.join(format!("{name}@reg.sock")))?;
    go.restart()?;
    wait_registered(client, node, name, &mut go, 2).await?;
    go.stop().await?;

    ours.restart()?;
    wait_registered(client, node, name, &mut ours, 2).await?;
    run.add_note("the registrar replaced one that names its socket as node-driver-registrar does, and back")?;
    Ok(ours)
}

/// Waits until the registrar's log shows this number of registrations, and the CSINode has the driver.
async fn wait_registered(
    client: &Client,
    node: &KubeletNode,
    driver: &str,
    registrar: &mut ManagedProcess,
    times: usize,
) -> Result<()> {
    let log = registrar.log().to_owned();
    registrar
        .wait_ready(TIMEOUT, async || {
            let registrations = count(&log)?;
            ensure!(registrations == times, "{registrations} registrations: expected {times}");
            Ok(())
        })
        .await?;
    until("the CSINode has the driver", TIMEOUT, async || {
        node::ensure_registered(client, node.name(), driver).await
    })
    .await
}

fn count(log: &Path) -> Result<usize> {
    Ok(fs::read_to_string(log)?.matches(REGISTERED).count())
}
