//! The drivers `memory` and `pool`, which are WebAssembly components, with Cofferdam's roles: those that call
//! the driver, and the roles `node`, `registrar` and `liveness`, which run in another process and do not load
//! the driver.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Result;
use kube::Client;

use crate::{
    account::Account,
    control_plane, namespaces,
    process::{self, CommandSpec, ManagedProcess},
    run::SuiteRun,
    sidecar::plain_client,
};

const READY_TIMEOUT: Duration = Duration::from_secs(120);
/// The name of the driver's section in the configuration.
const CONFIG_SECTION: &str = "driver";
/// Maximum size in bytes of one volume of the driver `memory`, which is a tmpfs on the node. No test requests
/// that much. Inline volumes have the limit [`MAX_INLINE_BYTES`].
const MAX_TMPFS_BYTES: u64 = 16 << 30;
/// Maximum number of memory volumes published to a node at a time.
const MAX_VOLUMES: u32 = 20;
/// Total capacity of all memory volumes.
const CAPACITY: &str = "1Ti";
/// Maximum size of an inline volume, in bytes.
pub const MAX_INLINE_BYTES: u64 = 16 << 20;

/// A driver with its section in the configuration of `cofferdam run`, and the section `[node]` for the
/// process with the driver's node roles.
#[derive(Clone, Debug)]
pub struct BackendFixture {
    name: &'static str,
    driver: String,
    component: PathBuf,
    directory: PathBuf,
    /// TOML of the driver's configuration section.
    section: String,
    /// TOML of the section `[node]`: what the role `node` may mount for the driver.
    policy: String,
}

impl BackendFixture {
    /// The driver `memory` on one node: tmpfs volumes, attached by ControllerPublishVolume; also ephemeral
    /// inline volumes of pods.
    ///
    /// # Errors
    /// If its files cannot be written.
    pub fn memory(run: &SuiteRun, node: &str) -> Result<Self> {
        let settings =
            format!("nodes = {node:?}\nvolumes-per-node = \"{MAX_VOLUMES}\"\ncapacity = \"{CAPACITY}\"\n");
        let policy = format!(
            "connection-kinds = [\"tmpfs\", \"none\"]\ntmpfs-max-bytes = \
             {MAX_TMPFS_BYTES}\n\n[node.inline]\ntmpfs-max-bytes = {MAX_INLINE_BYTES}\n"
        );
        Self::new(run, "memory", cofferdam_carried::MEMORY, &settings, "", &policy)
    }

    /// The driver `pool` on one node: its volumes are directories, and files used as block devices (images),
    /// in a directory of the node.
    ///
    /// # Errors
    /// If its files cannot be written.
    pub fn pool(run: &SuiteRun, node: &str) -> Result<Self> {
        let pool = run.scratch().join("pool/volumes");
        fs::create_dir_all(&pool)?;
        let settings = format!("node = {node:?}\n");
        let extra_section = format!("\n[backend.{CONFIG_SECTION}.pool]\ndirectory = {pool:?}\n");
        let policy = format!(
            "connection-kinds = [\"directory\", \"image\"]\ndirectory-root = {pool:?}\n\
             image-root = {pool:?}\nfilesystems = [\"ext4\", \"xfs\"]\n"
        );
        Self::new(run, "pool", cofferdam_carried::POOL, &settings, &extra_section, &policy)
    }

    /// A driver with every ability on one node, all of whose volumes have this connection info. Fields are `key=value`,
    /// separated by blanks.
    ///
    /// # Errors
    /// If its files cannot be written.
    pub(crate) fn with_connection_info(run: &SuiteRun, node: &str, kind: &str, fields: &str) -> Result<Self> {
        let settings =
            format!("nodes = {node:?}\nconnection-kind = {kind:?}\nconnection-fields = {fields:?}\n");
        // The driver imports `http`, and calls nothing without the setting `url`.
        let origins = format!(
            "\n[[backend.{CONFIG_SECTION}.http.origins]]\norigin = \"http://127.0.0.1:9\"\naddresses = [\"127.0.0.1\"]\n"
        );
        Self::new(run, "complete", cofferdam_test_guests::BROKEN, &settings, &origins, "")
    }

    fn new(
        run: &SuiteRun,
        name: &'static str,
        component: &[u8],
        settings: &str,
        extra_section: &str,
        policy: &str,
    ) -> Result<Self> {
        let directory = run.scratch().join(name);
        fs::create_dir_all(&directory)?;
        let driver = format!("{name}.conformance.cofferdam.dev");
        let state = directory.join("state.redb");
        let file = directory.join("component.wasm");
        fs::write(&file, component)?;
        let section = format!(
            "[backend.{CONFIG_SECTION}]\nfile = {file:?}\n\n[backend.{CONFIG_SECTION}.settings]\ndriver-name \
             = {driver:?}\n{settings}\n\
             [backend.{CONFIG_SECTION}.state]\nfile = {state:?}\n{extra_section}"
        );
        Ok(Self { name, driver, component: file, directory, section, policy: format!("[node]\n{policy}") })
    }

    /// The driver's name.
    #[must_use]
    pub fn driver(&self) -> &str {
        &self.driver
    }

    /// Starts a process with the role `csi-server` and the driver, and waits until it is ready. Returns the
    /// process, the path of its CSI socket, and a client for its HTTP endpoint.
    ///
    /// # Errors
    /// If it does not become ready. The error contains the end of its log.
    pub async fn start_csi_server(&self, run: &SuiteRun) -> Result<(ManagedProcess, PathBuf, Client)> {
        let socket = self.directory.join("controller.sock");
        let spec = self
            .run_command(run, &format!("csi-server-{}", self.name))?
            .args(["--role=csi-server", "--log=cofferdam_csi=debug,info"])
            .arg(format_args!("--csi-socket={}", socket.display()));
        let (process, client) = start_and_wait(run, spec, "/readyz").await?;
        Ok((process, socket, client))
    }

    /// Starts one process with the roles of an account and the driver, and waits until it is ready.
    ///
    /// # Errors
    /// If the process does not become ready. The error contains the end of its log.
    pub async fn start_roles(
        &self,
        run: &SuiteRun,
        account: &Account,
        extra_flags: &[String],
    ) -> Result<ManagedProcess> {
        let spec = self
            .run_command(run, &format!("roles-{}", self.name))?
            .args(account.roles().iter().map(|role| format!("--role={role}")))
            .arg(format_args!("--kubeconfig={}", account.kubeconfig().display()))
            .arg(format_args!("--namespace={}", namespaces::COFFERDAM))
            .args(extra_flags);
        Ok(start_and_wait(run, spec, "/readyz").await?.0)
    }

    fn run_command(&self, run: &SuiteRun, log: &str) -> Result<CommandSpec> {
        let configuration = self.directory.join(format!("{log}.toml"));
        fs::write(&configuration, &self.section)?;
        Ok(CommandSpec::new(log, run.program())
            .arg("run")
            .arg(format_args!("--config={}", configuration.display()))
            .arg(format_args!("--compilation-cache={}", run.scratch().join("compiled").display()))
            .env("RUST_BACKTRACE", "1"))
    }

    /// Writes the driver's description, which the role `node` reads instead of loading the driver.
    ///
    /// # Errors
    /// If `cofferdam backend inspect --output manifest`, which prints it, fails.
    pub async fn write_manifest(&self, run: &SuiteRun) -> Result<PathBuf> {
        let file = |name: &str| self.directory.join(name);
        let (inspected, manifest) = (file("inspected.toml"), file("manifest.json"));
        fs::write(&inspected, &self.section)?;
        let text = inspect_component(run, &self.component, &inspected, CONFIG_SECTION).await?;
        fs::write(&manifest, text)?;
        Ok(manifest)
    }

    /// Starts `node`, `registrar` and `liveness` below a kubelet root, and waits until they are healthy. They
    /// read the driver's [manifest](Self::write_manifest), and do not load the driver.
    ///
    /// # Errors
    /// If the manifest cannot be written, or the roles do not become healthy. In the second case, the error
    /// contains the end of their log.
    pub async fn start_node_roles(&self, run: &SuiteRun, node: &str, root: &Path) -> Result<NodeRoles> {
        let manifest = self.write_manifest(run).await?;
        let configuration = self.directory.join("node.toml");
        fs::write(&configuration, &self.policy)?;
        let plugins = root.join("plugins_registry");
        let socket = root.join("plugins").join(&self.driver).join("csi.sock");
        for directory in [Some(plugins.as_path()), socket.parent()].into_iter().flatten() {
            fs::create_dir_all(directory)?;
        }
        let spec = CommandSpec::new(format!("node-{}", self.name), run.program())
            .args(["run", "--role=node", "--role=registrar", "--role=liveness", "--log=cofferdam=debug,info"])
            .arg(format_args!("--config={}", configuration.display()))
            .arg(format_args!("--manifest={}", manifest.display()))
            .arg(format_args!("--csi-endpoint={}", socket.display()))
            .arg(format_args!("--node-name={node}"))
            .arg(format_args!("--kubelet-root={}", root.display()))
            .arg(format_args!("--plugin-registration-path={}", plugins.display()))
            .env("RUST_BACKTRACE", "1");
        let (process, client) = start_and_wait(run, spec, "/healthz").await?;
        Ok(NodeRoles {
            driver: self.driver.clone(),
            process,
            client,
            socket,
            registration: plugins.join(format!("{}@reg.sock", self.driver)),
        })
    }
}

/// A process with the roles `node`, `registrar` and `liveness` of one driver.
pub struct NodeRoles {
    /// The driver's name.
    pub driver: String,
    /// The process.
    pub process: ManagedProcess,
    /// The socket of the CSI Node service.
    pub socket: PathBuf,
    /// The socket in kubelet's `plugins_registry`, by which kubelet registers the driver.
    pub registration: PathBuf,
    client: Client,
}

impl NodeRoles {
    /// Restarts the roles after a kill, and waits until they are healthy.
    ///
    /// # Errors
    /// If they do not become healthy. The error contains the end of their log.
    pub async fn restart(&mut self) -> Result<()> {
        self.process.restart()?;
        let client = &self.client;
        self.process
            .wait_ready(READY_TIMEOUT, async || control_plane::probe_path(client, "/healthz").await)
            .await
    }

    /// The text of each record that the role `node` keeps: a file per volume, which also exists while the
    /// volume is being staged or unstaged.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn volume_records(&self) -> Result<Vec<String>> {
        let mut records = Vec::new();
        for entry in fs::read_dir(self.socket.with_file_name("volumes"))? {
            match fs::read_to_string(entry?.path()) {
                // The node role removed the record meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                record => records.push(record?),
            }
        }
        Ok(records)
    }
}

/// The manifest of a component: what `cofferdam backend inspect` prints with the configuration's section `name`.
///
/// # Errors
/// If the command fails.
pub(crate) async fn inspect_component(
    run: &SuiteRun,
    component: &Path,
    config: &Path,
    name: &str,
) -> Result<String> {
    let text = |path: &Path| path.display().to_string();
    // The state file has one owner, a process that may be running.
    let (component, state, config) = (text(component), text(&config.with_extension("redb")), text(config));
    #[rustfmt::skip] // flags with their values
    let arguments = [
        "backend", "inspect", &component, "--config", &config, "--name", name,
        "--state", &state, "--output", "manifest", "--compilation-cache", "off",
    ];
    process::run_to_completion(run.program(), &arguments).await
}

/// Starts a process of Cofferdam with an HTTP endpoint, and waits until this page of it responds.
///
/// # Errors
/// If it does not respond. The error contains the end of its log.
pub(crate) async fn start_and_wait(
    run: &SuiteRun,
    spec: CommandSpec,
    page: &str,
) -> Result<(ManagedProcess, Client)> {
    let port = run.free_port()?;
    let mut process = ManagedProcess::start(run, spec.arg(format_args!("--http-endpoint=127.0.0.1:{port}")))?;
    let client = plain_client(port)?;
    process.wait_ready(READY_TIMEOUT, async || control_plane::probe_path(&client, page).await).await?;
    Ok((process, client))
}
