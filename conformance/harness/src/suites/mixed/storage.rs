//! What is behind the socket that provisioner, attacher and resizer call, whoever they are.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};
use http::Request;
use kube::Client;
use serde_json::Value;

use crate::{
    chain::{Backend, NodeRoles},
    cofferdam,
    driver::Driver,
    node::Node,
    process::{self, Process},
    run::Run,
};

const GO: &str = "go.conformance.cofferdam.dev";

/// A driver, and its part on the node.
pub(super) enum Storage {
    /// The driver `memory` behind our `csi-server`, and our `node`.
    Ours(Box<Ours>),
    /// A driver in Go with a node service of its own, of which our `registrar` tells kubelet.
    Go(Box<Go>),
}

pub(super) struct Ours {
    driver: String,
    server: Process,
    socket: PathBuf,
    page: Client,
    roles: NodeRoles,
}

pub(super) struct Go {
    driver: Driver,
    registrar: Process,
}

impl Storage {
    pub(super) async fn ours(run: &Run, node: &Node) -> Result<Self> {
        let backend = Backend::memory(run, node.name())?;
        let (server, socket, page) = backend.serve(run).await?;
        let roles = backend.node(run, node.name(), node.root()).await?;
        Ok(Self::Ours(Box::new(Ours { driver: backend.driver().to_owned(), server, socket, page, roles })))
    }

    pub(super) async fn go(run: &Run, node: &Node) -> Result<Self> {
        let volumes = format!("--directory={}", run.scratch().join("volumes").display());
        let driver = Driver::start(run, GO, &[&volumes, &format!("--node={}", node.name())]).await?;
        let registrar = cofferdam::registrar(run, node.name(), driver.socket(), node.root()).await?;
        Ok(Self::Go(Box::new(Go { driver, registrar })))
    }

    /// The driver's name.
    pub(super) fn driver(&self) -> &str {
        match self {
            Self::Ours(ours) => &ours.driver,
            Self::Go(_) => GO,
        }
    }

    /// What serves CSI's controller.
    pub(super) fn socket(&self) -> &Path {
        match self {
            Self::Ours(ours) => &ours.socket,
            Self::Go(go) => go.driver.socket(),
        }
    }

    /// Whether a pod sees the size of its volume. The driver in Go gives directories of the node, which have none.
    pub(super) const fn has_sizes(&self) -> bool {
        matches!(self, Self::Ours(_))
    }

    /// How often each method of the controller was answered, by our server with OK.
    pub(super) async fn calls(&self) -> Result<BTreeMap<String, u64>> {
        match self {
            Self::Ours(ours) => answered(&ours.page).await,
            Self::Go(go) => go.driver.calls().await,
        }
    }

    /// Looks that neither the driver nor its part on the node knows of a volume.
    pub(super) async fn is_empty(&self, run: &Run) -> Result<()> {
        match self {
            Self::Ours(ours) => {
                let (stored, records) = (listed(run, &ours.socket).await?, ours.roles.records()?);
                ensure!(
                    stored.is_empty() && records.is_empty(),
                    "at the storage {stored:?}, on the node {records:?}"
                );
            }
            Self::Go(go) => {
                let stored: BTreeSet<String> = go.driver.volumes().await?.into_keys().collect();
                ensure!(stored.is_empty(), "at the storage {stored:?}");
            }
        }
        Ok(())
    }

    pub(super) async fn stop(self) -> Result<()> {
        match self {
            Self::Ours(mut ours) => {
                ours.roles.process.stop().await?;
                ours.server.stop().await
            }
            Self::Go(mut go) => {
                go.registrar.stop().await?;
                go.driver.process.stop().await
            }
        }
    }
}

/// The volumes that the driver has, as our server lists them.
async fn listed(run: &Run, socket: &Path) -> Result<Vec<Value>> {
    let driver = format!("unix://{}", socket.display());
    let arguments = ["backend", "call", &driver, "listing.list", "--output", "json"];
    let answer: Value = serde_json::from_str(&process::output(run.program(), &arguments).await?)?;
    let volumes = answer.pointer("/answer/volumes").and_then(Value::as_array);
    Ok(volumes.context("no volumes in the answer")?.clone())
}

/// How often our server has answered a method of its controller with OK.
async fn answered(page: &Client) -> Result<BTreeMap<String, u64>> {
    let text = page.request_text(Request::get("/metrics").body(Vec::new())?).await?;
    let mut calls = BTreeMap::new();
    for line in text.lines().filter(|line| line.starts_with("cofferdam_csi_server_operations_seconds_count{"))
    {
        let (labels, times) =
            line.rsplit_once("} ").with_context(|| format!("a line without a value: {line}"))?;
        let method = labels.split_once("/csi.v1.Controller/").and_then(|(_, rest)| rest.split('"').next());
        let Some(method) = method.filter(|_| labels.contains("grpc_status_code=\"OK\"")) else { continue };
        calls.insert(method.to_owned(), times.trim().parse()?);
    }
    Ok(calls)
}
