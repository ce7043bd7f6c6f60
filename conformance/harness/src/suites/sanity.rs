//! csi-sanity finds nothing wrong with the memory driver behind our own CSI server.
//!
//! The controller's tests ask a node service for its name and no more: that of the peer's driver gives it. The tests of the node
//! service itself need one of ours.

use std::{fs, path::Path, time::Duration};

use anyhow::{Context as _, Result, ensure};
use http::Request;

use crate::{
    driver::Driver,
    process::{Process, Spec},
    run::Run,
};

const PEER: &str = "node.conformance.cofferdam.dev";
/// What the peer's driver calls its node.
const NODE: &str = "node-1";
const READY: Duration = Duration::from_secs(60);
const LONG: Duration = Duration::from_secs(240);
/// Tests of Identity and GroupController in csi-sanity 5.6: they ask the same socket for everything.
const IDENTITY: Expected = Expected { focus: r"Identity Service|\[GroupController", ran: 9 };
/// Tests of Controller: all but the four that are about CSI 1.13.
const CONTROLLER: Expected = Expected { focus: r"\[Controller", ran: 61 };

/// Tests that have to run, and so many of them.
struct Expected {
    focus: &'static str,
    ran: u32,
}

pub(super) async fn run(run: &Run) -> Result<()> {
    let volumes = run.scratch().join("volumes");
    let mut node = Driver::start(run, PEER, &[&format!("--directory={}", volumes.display())]).await?;
    let directory = run.scratch().join("csi-server");
    fs::create_dir_all(&directory)?;
    let (component, configuration, socket) =
        (directory.join("memory.wasm"), directory.join("cofferdam.toml"), directory.join("csi.sock"));
    fs::write(&component, cofferdam_guests::MEMORY)?;
    let text = format!(
        "role = [\"csi-server\"]\n\n[backend.memory]\nfile = {component:?}\nsocket = {socket:?}\n\n\
         [backend.memory.settings]\nnodes = {NODE:?}\n",
    );
    fs::write(&configuration, text)?;
    let port = run.port()?;
    let spec = Spec::new("cofferdam", run.program())
        .args(["run", "--log=cofferdam_csi=debug,info"])
        .arg(format_args!("--config={}", configuration.display()))
        .arg(format_args!("--http-endpoint=127.0.0.1:{port}"))
        .arg(format_args!("--compilation-cache={}", run.scratch().join("compiled").display()));
    let mut ours = Process::start(run, spec)?;
    let client = crate::sidecar::plain(port)?;
    ours.ready(READY, async || crate::control_plane::get(&client, "/readyz").await).await?;

    sanity(run, "identity", &socket, &socket, &IDENTITY).await?;
    sanity(run, "controller", node.socket(), &socket, &CONTROLLER).await?;
    let metrics = client.request_text(Request::get("/metrics").body(Vec::new())?).await?;
    for method in ["CreateVolume", "ControllerPublishVolume", "CreateSnapshot", "ControllerModifyVolume"] {
        ensure!(
            metrics.contains(&format!("/csi.v1.Controller/{method}\"")),
            "csi-sanity did not call {method}"
        );
    }
    ensure!(!metrics.contains("grpc_status_code=\"Internal\""), "a call ended in a defect: {metrics}");
    ours.stop().await?;
    ensure!(!socket.exists(), "{} is left", socket.display());
    node.process.stop().await
}

/// Runs a part of csi-sanity: all of it has to run, and nothing may be found.
async fn sanity(run: &Run, log: &str, node: &Path, controller: &Path, expected: &Expected) -> Result<()> {
    let directory = run.scratch().join(log);
    fs::create_dir_all(&directory)?;
    let spec = Spec::new(log, run.peers().program("csi-sanity")?)
        .arg(format_args!("--csi.endpoint=unix://{}", node.display()))
        .arg(format_args!("--csi.controllerendpoint=unix://{}", controller.display()))
        .arg(format_args!("--csi.mountdir={}", directory.join("target").display()))
        .arg(format_args!("--csi.stagingdir={}", directory.join("staging").display()))
        .arg(format_args!("--ginkgo.focus={}", expected.focus))
        .arg("--ginkgo.no-color");
    let status = Process::start(run, spec)?.ended(LONG).await?;
    let path = run.log(log);
    ensure!(status.success(), "csi-sanity finds something: its log is {}", path.display());
    let text = fs::read_to_string(&path)?;
    let ran = text.lines().find_map(|line| line.strip_prefix("Ran ")?.split(' ').next()?.parse::<u32>().ok());
    let ran =
        ran.with_context(|| format!("csi-sanity does not say what it ran: its log is {}", path.display()))?;
    ensure!(
        ran == expected.ran,
        "csi-sanity ran {ran} tests; expected {}: its log is {}",
        expected.ran,
        path.display()
    );
    Ok(())
}
