//! Starts the program `cofferdam` with the memory driver, with the socket of a CSI driver, or without a
//! driver.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::{
    account::Account,
    control_plane, namespaces,
    process::{self, CommandSpec, ManagedProcess},
    run::SuiteRun,
    sidecar::plain_client,
};

/// Default name of the process and its log.
const PROCESS_NAME: &str = "cofferdam";
const READY_TIMEOUT: Duration = Duration::from_secs(120);

/// The memory driver as a WebAssembly component, under a driver name of the suite. Its state is in a file,
/// except with [`in_memory`](Self::in_memory).
#[derive(Clone, Debug)]
pub struct MemoryDriver {
    component: PathBuf,
    state: PathBuf,
    configuration: PathBuf,
}

impl MemoryDriver {
    /// Writes the component and its configuration.
    ///
    /// # Errors
    /// If they cannot be written.
    pub fn new(run: &SuiteRun, driver_name: &str) -> Result<Self> {
        Self::with_durability(run, driver_name, true)
    }

    /// As [`new`](Self::new), with the state in memory, like that of the Go driver.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn in_memory(run: &SuiteRun, driver_name: &str) -> Result<Self> {
        Self::with_durability(run, driver_name, false)
    }

    fn with_durability(run: &SuiteRun, driver_name: &str, durable: bool) -> Result<Self> {
        let directory = run.scratch().join("memory-driver");
        fs::create_dir_all(&directory)?;
        let driver = Self {
            component: directory.join("memory.wasm"),
            state: directory.join("state.redb"),
            configuration: directory.join("cofferdam.toml"),
        };
        fs::write(&driver.component, cofferdam_carried::MEMORY)?;
        let mut text = format!(
            "[backend.memory]\nfile = {:?}\n\n[backend.memory.settings]\ndriver-name = {driver_name:?}\n",
            driver.component,
        );
        if durable {
            let _ = write!(text, "\n[backend.memory.state]\nfile = {:?}\n", driver.state);
        }
        fs::write(&driver.configuration, text)?;
        Ok(driver)
    }

    /// Replaces the component's file by one with another digest: the same component with a number in a custom
    /// section.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(crate) fn replace_component(&self, number: usize) -> Result<()> {
        /// Id of a custom section.
        const CUSTOM: u8 = 0;
        let (name, number) = (b"number", u8::try_from(number)?);
        let payload: Vec<u8> = [u8::try_from(name.len())?].into_iter().chain(*name).chain([number]).collect();
        let section = [CUSTOM, u8::try_from(payload.len())?].into_iter().chain(payload);
        let new = self.component.with_extension("new");
        fs::write(&new, cofferdam_carried::MEMORY.iter().copied().chain(section).collect::<Vec<u8>>())?;
        Ok(fs::rename(new, &self.component)?)
    }

    fn config_flag(&self) -> String {
        format!("--config={}", self.configuration.display())
    }

    /// The volumes in the driver's state file: name by handle. The name is the handle without the prefix
    /// `mem-`, because the driver derives handles from the names of the requested volumes. For a name that is
    /// too long or has characters that handles do not have, the handle contains a digest instead. Only one
    /// process can open the file, so `cofferdam run` must not run with the driver. The result is empty for a
    /// driver with its state in memory ([`in_memory`](Self::in_memory)).
    ///
    /// # Errors
    /// If the call fails.
    pub async fn volumes(&self, run: &SuiteRun) -> Result<BTreeMap<String, String>> {
        let mut volumes = BTreeMap::new();
        let mut token: Option<String> = None;
        loop {
            let (component, configuration) =
                (self.component.display().to_string(), self.configuration.display().to_string());
            let mut arguments = vec![
                "backend",
                "call",
                &component,
                "listing.list",
                "--config",
                &configuration,
                "--name",
                "memory",
            ];
            arguments.extend(["--compilation-cache", "off", "--output", "json"]);
            if let Some(token) = &token {
                arguments.extend(["--after", token]);
            }
            let answer: Value =
                serde_json::from_str(&process::run_to_completion(run.program(), &arguments).await?)?;
            let entries = answer
                .pointer("/response/volumes")
                .and_then(Value::as_array)
                .context("no volumes in the response")?;
            for entry in entries {
                let handle = entry.pointer("/volume/handle").and_then(Value::as_str).context("no handle")?;
                // The driver derives handles from names.
                let name = handle.strip_prefix("mem-").unwrap_or(handle);
                volumes.insert(handle.to_owned(), name.to_owned());
            }
            token = answer.pointer("/response/nextToken").and_then(Value::as_str).map(str::to_owned);
            if token.is_none() {
                return Ok(volumes);
            }
        }
    }
}

/// Starts `cofferdam run` with the memory driver and the roles and rights of an account, and waits until the
/// process is ready.
///
/// # Errors
/// If it does not become ready. The error contains the end of its log.
pub async fn start(run: &SuiteRun, account: &Account, driver: &MemoryDriver) -> Result<ManagedProcess> {
    start_with_flags(run, account, driver, &[]).await
}

/// As [`start`], without the memory driver, for roles that do not call a driver.
///
/// # Errors
/// As [`start`].
pub(crate) async fn start_without_driver(run: &SuiteRun, account: &Account) -> Result<ManagedProcess> {
    start_process(run, PROCESS_NAME, account, None, &[]).await
}

/// As [`start`], with the socket of a running CSI driver instead of the memory driver.
///
/// # Errors
/// As [`start`].
pub async fn start_with_csi_driver(
    run: &SuiteRun,
    account: &Account,
    socket: &Path,
) -> Result<ManagedProcess> {
    start_with_csi_driver_and_flags(run, account, socket, &[]).await
}

/// Starts the role `registrar`, which registers the node service of a running CSI driver with the kubelet of
/// this root directory, and waits until the process is healthy.
///
/// # Errors
/// If it does not become healthy. The error contains the end of its log.
pub(crate) async fn start_registrar(
    run: &SuiteRun,
    node: &str,
    socket: &Path,
    root: &Path,
) -> Result<ManagedProcess> {
    let (plugins, port) = (root.join("plugins_registry"), run.free_port()?);
    fs::create_dir_all(&plugins)?;
    let spec = CommandSpec::new(format!("registrar-{node}"), run.program())
        .args(["run", "--role=registrar"])
        .arg(format_args!("--csi-address={}", socket.display()))
        .arg(format_args!("--kubelet-registration-path={}", socket.display()))
        .arg(format_args!("--plugin-registration-path={}", plugins.display()))
        .arg(format_args!("--http-endpoint=127.0.0.1:{port}"));
    let mut process = ManagedProcess::start(run, spec)?;
    let client = plain_client(port)?;
    process.wait_ready(READY_TIMEOUT, async || control_plane::probe_path(&client, "/healthz").await).await?;
    Ok(process)
}

/// [`start`] with more flags.
///
/// # Errors
/// As [`start`].
pub(crate) async fn start_with_flags(
    run: &SuiteRun,
    account: &Account,
    driver: &MemoryDriver,
    extra_flags: &[&str],
) -> Result<ManagedProcess> {
    start_process(run, PROCESS_NAME, account, Some(&driver.config_flag()), extra_flags).await
}

/// [`start_with_csi_driver`] with more flags.
///
/// # Errors
/// As [`start`].
pub(crate) async fn start_with_csi_driver_and_flags(
    run: &SuiteRun,
    account: &Account,
    socket: &Path,
    extra_flags: &[&str],
) -> Result<ManagedProcess> {
    start_process(run, PROCESS_NAME, account, Some(&csi_address_flag(socket)), extra_flags).await
}

/// [`start_with_csi_driver`] with another name of the process and its log.
///
/// # Errors
/// As [`start`].
pub(crate) async fn start_named(
    run: &SuiteRun,
    name: &str,
    account: &Account,
    socket: &Path,
) -> Result<ManagedProcess> {
    start_process(run, name, account, Some(&csi_address_flag(socket)), &[]).await
}

fn csi_address_flag(socket: &Path) -> String {
    format!("--csi-address={}", socket.display())
}

async fn start_process(
    run: &SuiteRun,
    name: &str,
    account: &Account,
    driver: Option<&str>,
    extra_flags: &[&str],
) -> Result<ManagedProcess> {
    let port = run.free_port()?;
    let roles: Vec<&str> = account.roles().iter().map(String::as_str).collect();
    let spec = run_command(run, name, account.kubeconfig(), &roles, driver, port)
        .arg(format_args!("--namespace={}", namespaces::COFFERDAM))
        .args(extra_flags);
    let mut process = ManagedProcess::start(run, spec)?;
    let client = plain_client(port)?;
    process.wait_ready(READY_TIMEOUT, async || control_plane::probe_path(&client, "/readyz").await).await?;
    Ok(process.with_metrics(client))
}

/// The command `cofferdam run` with these roles and the memory driver. `port` is the port of the HTTP
/// endpoint. Does not start the command.
pub(crate) fn command_for(
    run: &SuiteRun,
    kubeconfig: &Path,
    roles: &[&str],
    driver: &MemoryDriver,
    port: u16,
) -> CommandSpec {
    run_command(run, PROCESS_NAME, kubeconfig, roles, Some(&driver.config_flag()), port)
}

/// As [`command_for`], with the socket of a running CSI driver instead of the memory driver.
pub(crate) fn command_with_csi_driver(
    run: &SuiteRun,
    kubeconfig: &Path,
    roles: &[&str],
    socket: &Path,
    port: u16,
) -> CommandSpec {
    run_command(run, PROCESS_NAME, kubeconfig, roles, Some(&csi_address_flag(socket)), port)
}

fn run_command(
    run: &SuiteRun,
    name: &str,
    kubeconfig: &Path,
    roles: &[&str],
    driver: Option<&str>,
    port: u16,
) -> CommandSpec {
    CommandSpec::new(name, run.program())
        .arg("run")
        .args(roles.iter().map(|role| format!("--role={role}")))
        .args(driver)
        .arg(format_args!("--kubeconfig={}", kubeconfig.display()))
        .arg(format_args!("--http-endpoint=127.0.0.1:{port}"))
        .arg(format_args!("--compilation-cache={}", run.scratch().join("compiled").display()))
        .env("RUST_BACKTRACE", "1")
}
