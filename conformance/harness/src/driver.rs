//! The Go driver of `conformance/driver`, and its admin interface.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixStream,
};

use crate::{
    process::{CommandSpec, ManagedProcess},
    run::SuiteRun,
};

const READY_TIMEOUT: Duration = Duration::from_secs(120);

/// A running driver.
#[derive(Debug)]
pub struct CsiDriverProcess {
    /// The process.
    pub process: ManagedProcess,
    socket: PathBuf,
    admin_socket: PathBuf,
}

impl CsiDriverProcess {
    /// Starts a driver with this name, and waits until its admin interface responds. Its CSI socket listens
    /// earlier.
    ///
    /// # Errors
    /// If it does not respond in time. The error contains the end of its log.
    pub async fn start(run: &SuiteRun, name: &str, arguments: &[&str]) -> Result<Self> {
        let directory = run.scratch().join("driver").join(name);
        let (socket, admin_socket) = (directory.join("csi.sock"), directory.join("admin.sock"));
        let spec = CommandSpec::new("csi-driver", run.peers().program("csi-driver")?)
            .arg(format_args!("--name={name}"))
            .arg(format_args!("--socket={}", socket.display()))
            .arg(format_args!("--admin={}", admin_socket.display()))
            .args(arguments);
        let mut driver = Self { process: ManagedProcess::start(run, spec)?, socket, admin_socket };
        let admin_socket = &driver.admin_socket;
        driver
            .process
            .wait_ready(READY_TIMEOUT, async || {
                admin_request(admin_socket, "GET", "/calls").await.map(|_| ())
            })
            .await?;
        Ok(driver)
    }

    /// The CSI socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The driver's volumes: name by id.
    ///
    /// # Errors
    /// If the driver does not respond.
    pub async fn volumes(&self) -> Result<BTreeMap<String, String>> {
        let volumes: BTreeMap<String, Value> =
            serde_json::from_str(&admin_request(&self.admin_socket, "GET", "/volumes").await?)?;
        let name = |volume: Value| volume.get("name").and_then(Value::as_str).map(str::to_owned);
        volumes
            .into_iter()
            .map(|(id, volume)| Ok((id, name(volume).context("a volume without a name")?)))
            .collect()
    }

    /// Ids of the driver's snapshots.
    ///
    /// # Errors
    /// If the driver does not respond.
    pub(crate) async fn snapshots(&self) -> Result<BTreeSet<String>> {
        let snapshots: BTreeMap<String, Value> =
            serde_json::from_str(&admin_request(&self.admin_socket, "GET", "/snapshots").await?)?;
        Ok(snapshots.into_keys().collect())
    }

    /// Sizes of the volumes in bytes, by id.
    ///
    /// # Errors
    /// If the driver does not respond.
    pub async fn sizes(&self) -> Result<BTreeMap<String, u64>> {
        let volumes: BTreeMap<String, Value> =
            serde_json::from_str(&admin_request(&self.admin_socket, "GET", "/volumes").await?)?;
        let size =
            |volume: Value| volume.get("size").and_then(Value::as_u64).context("a volume without a size");
        volumes.into_iter().map(|(id, volume)| Ok((id, size(volume)?))).collect()
    }

    /// The mutable parameter `tier` of the volumes, by id; empty if it was never set.
    ///
    /// # Errors
    /// If the driver does not respond.
    pub async fn tiers(&self) -> Result<BTreeMap<String, String>> {
        let volumes: BTreeMap<String, Value> =
            serde_json::from_str(&admin_request(&self.admin_socket, "GET", "/volumes").await?)?;
        let tier = |volume: Value| {
            volume.pointer("/mutable/tier").and_then(Value::as_str).unwrap_or_default().to_owned()
        };
        Ok(volumes.into_iter().map(|(id, volume)| (id, tier(volume))).collect())
    }

    /// Node of each publication by ControllerPublishVolume: for a volume that is published to two nodes, the
    /// list contains both.
    ///
    /// # Errors
    /// If the driver does not respond.
    pub async fn published_nodes(&self) -> Result<Vec<String>> {
        let volumes: BTreeMap<String, Value> =
            serde_json::from_str(&admin_request(&self.admin_socket, "GET", "/volumes").await?)?;
        let nodes = volumes.values().filter_map(|volume| volume.get("published")?.as_object());
        Ok(nodes.flat_map(|nodes| nodes.keys().cloned()).collect())
    }

    /// Number of calls since the start of the driver, by method, including those that failed.
    ///
    /// # Errors
    /// If the driver does not respond.
    pub async fn call_counts(&self) -> Result<BTreeMap<String, u64>> {
        // Go encodes a nil map as null.
        let calls: Option<_> =
            serde_json::from_str(&admin_request(&self.admin_socket, "GET", "/calls").await?)?;
        Ok(calls.unwrap_or_default())
    }

    /// Makes the next `times` calls of a method fail with a gRPC code, such as `UNAVAILABLE`. Replaces the
    /// remaining injected failures of the method; 0 ends them.
    ///
    /// # Errors
    /// If the driver rejects the request.
    pub async fn inject_failures(&self, method: &str, code: &str, times: u32) -> Result<()> {
        admin_request(&self.admin_socket, "POST", &format!("/fail?next={method}%3D{code}:{times}"))
            .await
            .map(|_| ())
    }

    /// Makes a method stuck: its next call has no response until the caller's deadline, and later calls fail
    /// with `INTERNAL`. With `is_stuck` false, mends the method.
    ///
    /// # Errors
    /// If the driver rejects the request.
    pub(crate) async fn set_stuck(&self, method: &str, is_stuck: bool) -> Result<()> {
        let mended = if is_stuck { "" } else { "&mended=true" };
        admin_request(&self.admin_socket, "POST", &format!("/stuck?method={method}{mended}")).await.map(drop)
    }

    /// Sets the latency of every controller call except ControllerGetCapabilities. Injected failures have no
    /// latency.
    ///
    /// # Errors
    /// If the driver rejects the request.
    pub async fn set_latency(&self, time: Duration) -> Result<()> {
        admin_request(&self.admin_socket, "POST", &format!("/latency?time={}ms", time.as_millis()))
            .await
            .map(|_| ())
    }
}

/// Sends a request with HTTP/1.0: the response ends with the connection.
async fn admin_request(socket: &Path, method: &str, path: &str) -> Result<String> {
    let mut stream =
        UnixStream::connect(socket).await.with_context(|| format!("cannot reach {}", socket.display()))?;
    stream.write_all(format!("{method} {path} HTTP/1.0\r\n\r\n").as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let (head, body) = answer.split_once("\r\n\r\n").context("an answer without a body")?;
    let status = head.lines().next().unwrap_or_default();
    ensure!(status.contains(" 200 "), "{method} {path}: {status}: {}", body.trim());
    Ok(body.to_owned())
}
