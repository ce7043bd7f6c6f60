//! The driver behind the socket of provisioner, attacher and resizer.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};
use kube::Client;
use serde_json::Value;

use crate::{
    backend::{BackendFixture, NodeRoles},
    class_secret::{self, ClassSecret},
    driver::CsiDriverProcess,
    node::KubeletNode,
    process::{self, ManagedProcess},
    run::SuiteRun,
};

use super::registrar;

const GO_DRIVER_NAME: &str = "go.conformance.cofferdam.dev";

/// A driver and its node service.
pub(super) enum DriverUnderTest {
    /// The driver `memory` behind the role `csi-server`, and a process with the roles `node`, `registrar` and
    /// `liveness`.
    Cofferdam(Box<CofferdamDriver>),
    /// The Go driver with its node service, registered by `registrar`.
    Go(Box<GoDriver>),
}

pub(super) struct CofferdamDriver {
    driver: String,
    server: ManagedProcess,
    socket: PathBuf,
    client: Client,
    roles: NodeRoles,
}

pub(super) struct GoDriver {
    /// The Secret that all calls of the controller and the node service require.
    secret: ClassSecret,
    driver: CsiDriverProcess,
    registrar: ManagedProcess,
}

impl DriverUnderTest {
    pub(super) async fn start_cofferdam(run: &SuiteRun, node: &KubeletNode) -> Result<Self> {
        let backend = BackendFixture::memory(run, node.name())?;
        let (server, socket, page) = backend.start_csi_server(run).await?;
        let roles = backend.start_node_roles(run, node.name(), node.root()).await?;
        Ok(Self::Cofferdam(Box::new(CofferdamDriver {
            driver: backend.driver().to_owned(),
            server,
            socket,
            client: page,
            roles,
        })))
    }

    /// Starts the Go driver. `namespace` is that of the claims and of their Secret.
    pub(super) async fn start_go(
        run: &SuiteRun,
        client: &Client,
        node: &KubeletNode,
        namespace: &str,
    ) -> Result<Self> {
        let secret = ClassSecret::random(namespace)?;
        let mut flags = secret
            .driver_flags(&[&class_secret::CONTROLLER_METHODS[..], &class_secret::NODE_METHODS].concat());
        flags.push(format!("--directory={}", run.scratch().join("volumes").display()));
        flags.push(format!("--node={}", node.name()));
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let driver = CsiDriverProcess::start(run, GO_DRIVER_NAME, &flags).await?;
        let registrar = registrar::replace(run, client, node, &driver, GO_DRIVER_NAME).await?;
        Ok(Self::Go(Box::new(GoDriver { secret, driver, registrar })))
    }

    /// The driver's name.
    pub(super) fn driver(&self) -> &str {
        match self {
            Self::Cofferdam(cofferdam) => &cofferdam.driver,
            Self::Go(_) => GO_DRIVER_NAME,
        }
    }

    /// The Secret that the driver requires.
    pub(super) const fn class_secret(&self) -> Option<&ClassSecret> {
        match self {
            Self::Cofferdam(_) => None,
            Self::Go(go) => Some(&go.secret),
        }
    }

    /// The processes of the driver and of its registrar.
    pub(super) fn processes(&self) -> Vec<&ManagedProcess> {
        match self {
            Self::Cofferdam(cofferdam) => vec![&cofferdam.server, &cofferdam.roles.process],
            Self::Go(go) => vec![&go.driver.process, &go.registrar],
        }
    }

    /// Socket of the controller service. The Go driver's node service has the same one.
    pub(super) fn socket(&self) -> &Path {
        match self {
            Self::Cofferdam(cofferdam) => &cofferdam.socket,
            Self::Go(go) => go.driver.socket(),
        }
    }

    /// Returns true if a pod sees the size of its volume. Volumes of the Go driver are directories without a
    /// size.
    pub(super) const fn has_volume_sizes(&self) -> bool {
        matches!(self, Self::Cofferdam(_))
    }

    /// Number of calls of each method; for `csi-server` only controller methods and calls with the result OK.
    pub(super) async fn call_counts(&self) -> Result<BTreeMap<String, u64>> {
        match self {
            Self::Cofferdam(cofferdam) => ok_call_counts(&cofferdam.client).await,
            Self::Go(go) => go.driver.call_counts().await,
        }
    }

    /// Checks that the driver has no volume, and for Cofferdam that the role `node` has no record of one.
    pub(super) async fn ensure_empty(&self, run: &SuiteRun) -> Result<()> {
        match self {
            Self::Cofferdam(cofferdam) => {
                let (stored, records) =
                    (list_volumes(run, &cofferdam.socket).await?, cofferdam.roles.volume_records()?);
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
            Self::Cofferdam(mut cofferdam) => {
                cofferdam.roles.process.stop().await?;
                cofferdam.server.stop().await
            }
            Self::Go(mut go) => {
                go.registrar.stop().await?;
                go.driver.process.stop().await
            }
        }
    }
}

/// Volumes of the driver, listed by `csi-server`.
async fn list_volumes(run: &SuiteRun, socket: &Path) -> Result<Vec<Value>> {
    let driver = format!("unix://{}", socket.display());
    let arguments = ["backend", "call", &driver, "listing.list", "--output", "json"];
    let answer: Value = serde_json::from_str(&process::run_to_completion(run.program(), &arguments).await?)?;
    let volumes = answer.pointer("/response/volumes").and_then(Value::as_array);
    Ok(volumes.context("no volumes in the response")?.clone())
}

/// Calls of each controller method of `csi-server` with the result OK.
async fn ok_call_counts(client: &Client) -> Result<BTreeMap<String, u64>> {
    let text = process::metrics_page(client).await?;
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
