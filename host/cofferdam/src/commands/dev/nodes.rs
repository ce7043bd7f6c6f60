//! The simulated nodes of dev mode, with the drivers of the configuration.

use std::{
    fs::{self, DirBuilder},
    io,
    os::unix::{ffi::OsStrExt as _, fs::DirBuilderExt as _},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use cofferdam_dev_cluster::{
    DevCluster, DevClusterOptions, DevError, Mounts, NodeDriver, NodeOptions, NodePlugin, NodesView,
    has_node_service,
};
use cofferdam_domain::storage::{Ability, Placement};
use cofferdam_node::{ConnectionKind, DriverManifest, NodePolicy};
use k8s_openapi::api::storage::v1::CSIDriver;
use kube::{Api, Client, api::PostParams};
use serde_json::json;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::timeline::Timeline;
use crate::{
    cli::{DevFlags, MAX_NODES},
    commands::backend::error::BackendCommandError,
    config::{Configuration, SettingValue},
    drivers::{DriverKind, LoadedDriver},
    error::CommandError,
};

/// Time to wait for drivers to register; then dev mode continues without them.
const REGISTRATION_TIMEOUT: Duration = Duration::from_secs(10);
/// Default limit of a tmpfs volume with real mounts: 16 GiB.
const MAX_TMPFS_BYTES: u64 = 16 << 30;

/// Default name of the first node.
const FIRST_NODE: &str = "node-1";
/// Setting of a node-local driver with the name of the driver's node.
const NODE_SETTING: &str = "node";
/// Section of the built-in pool driver, which is node-local and has the setting `node`.
const POOL_BACKEND: &str = "pool";

/// The simulated nodes of this process. One task runs all of them.
pub(crate) struct RunningNodes {
    /// View of the drivers' registrations, and of the mounts and files that remain on the nodes.
    pub(crate) view: NodesView,
    /// Names of the nodes.
    pub(crate) names: Vec<String>,
    /// Drivers whose Node service is missing or did not respond at the start; pods cannot mount their
    /// volumes.
    pub(crate) without_node_service: Vec<String>,
    /// Drivers with their own Node service, which mounts on this machine.
    pub(crate) with_own_node_service: Vec<String>,
    real_mounts: bool,
    /// Set if the nodes serve at least one driver, and each served driver has its own Node service. Drivers
    /// in `without_node_service` are not served.
    all_with_own_node_service: bool,
    stop: CancellationToken,
    task: JoinHandle<Result<(), DevError>>,
    /// Cancelled when the task has ended, for any reason.
    exited: CancellationToken,
    directory: NodesDirectory,
}

impl RunningNodes {
    /// Creates the CSIDriver objects and starts the nodes; returns `None` for 0 nodes. Dropping the result
    /// leaves mounts behind; [`Self::stop`] unmounts.
    ///
    /// # Errors
    /// [`CommandError`], one line.
    pub(crate) async fn start(
        flags: &DevFlags,
        configuration: &Configuration,
        (client, base): (Client, &Path),
        (drivers, nodes): (&[LoadedDriver], Vec<NodeOptions>),
        timeline: &Timeline,
    ) -> Result<Option<Self>, CommandError> {
        create_csi_drivers(&client, drivers).await.map_err(CommandError::PrepareApi)?;
        if nodes.is_empty() {
            return Ok(None);
        }
        let names = nodes.iter().map(|node| node.name.clone()).collect();
        let mut directory = NodesDirectory::new(base)?;
        let mut served = Vec::with_capacity(drivers.len());
        let (mut without_node_service, mut with_own_node_service) = (Vec::new(), Vec::new());
        for driver in drivers {
            match node_driver(driver, configuration).await? {
                Some(node) => {
                    if matches!(node.plugin, NodePlugin::External(_)) {
                        with_own_node_service.push(node.name.clone());
                    }
                    served.push(node);
                }
                None => without_node_service.push(driver.backend().description().name.to_string()),
            }
        }
        let mounts = match flags.real_mounts {
            false => Mounts::Recorded,
            true => Mounts::Real(Box::new(mount_policy(configuration))),
        };
        let all_with_own_node_service =
            !with_own_node_service.is_empty() && with_own_node_service.len() == served.len();
        let cluster = DevCluster::new(DevClusterOptions {
            client,
            clock: cofferdam_cluster::system_clock(),
            observer: Arc::new(timeline.clone()),
            nodes,
            directory: directory.path.clone(),
            drivers: served,
            mounts,
        })
        .await?;
        let (view, stop) = (cluster.view(), CancellationToken::new());
        let real_mounts = flags.real_mounts;
        if real_mounts || !with_own_node_service.is_empty() {
            directory.keep();
        }
        let (exited, running) = (CancellationToken::new(), cluster.run(stop.clone()));
        let guard = exited.clone().drop_guard();
        let task = tokio::spawn(async move {
            let _over = guard;
            running.await
        });
        Ok(Some(Self {
            view,
            names,
            without_node_service,
            with_own_node_service,
            real_mounts,
            all_with_own_node_service,
            stop,
            task,
            exited,
            directory,
        }))
    }

    /// Waits until the nodes' task ends. Before [`Self::stop`] this is a failure; `stop` logs the reason.
    pub(crate) async fn wait_for_exit(&self) {
        self.exited.cancelled().await;
    }

    /// Waits until the drivers are registered, or for [`REGISTRATION_TIMEOUT`].
    pub(crate) async fn wait_for_registration(&self) {
        if tokio::time::timeout(REGISTRATION_TIMEOUT, self.view.wait_until_registered()).await.is_err() {
            tracing::warn!(
                "drivers are not registered after {REGISTRATION_TIMEOUT:?}; --log info shows the reason"
            );
        }
    }

    /// Describes the nodes for output.
    pub(crate) fn describe(&self) -> String {
        let names = self.names.join(", ");
        let mounts = match (self.real_mounts, self.all_with_own_node_service) {
            (_, true) => "",
            (true, false) => "mounts are real, ",
            (false, false) => "mounts are only recorded, ",
        };
        format!("{names}, simulated: {mounts}no containers run")
    }

    /// Notes on single drivers for output, one line each.
    pub(crate) fn driver_notes(&self) -> impl Iterator<Item = String> {
        let first = self.names.first().map_or(FIRST_NODE, String::as_str);
        let with_own = self.with_own_node_service.iter().map(move |driver| {
            format!("{driver} has its own Node service, which mounts on this machine, for {first} only")
        });
        let without = self.without_node_service.iter();
        with_own.chain(
            without.map(|driver| format!("{driver} has no Node service: pods with its volumes do not start")),
        )
    }

    /// Stops the nodes and unmounts volumes, until the timeout or a second signal.
    pub(crate) async fn stop(mut self, timeout: Duration, second_signal: impl Future<Output = &'static str>) {
        self.stop.cancel();
        let task = self.task.abort_handle();
        let has_ended = wait_for_task(self.task, timeout, second_signal).await;
        if !has_ended {
            task.abort();
        }
        let remaining = self.view.leftovers();
        for remaining in &remaining {
            tracing::warn!("{remaining}");
        }
        if has_ended && remaining.is_empty() {
            self.directory.release();
        }
    }
}

/// Waits for the nodes' task; returns `true` if it ended in time and without a panic, even if with an error.
async fn wait_for_task(
    task: JoinHandle<Result<(), DevError>>,
    timeout: Duration,
    second_signal: impl Future<Output = &'static str>,
) -> bool {
    tokio::select! {
        // Log the reason of a task that has ended even if there is a second signal.
        biased;
        ended = tokio::time::timeout(timeout, task) => match ended {
            Ok(Ok(Ok(()))) => true,
            Ok(Ok(Err(error))) => {
                tracing::error!(%error, "the nodes failed");
                true
            }
            Ok(Err(panicked)) => {
                tracing::error!(%panicked, "the task of the nodes panicked");
                false
            }
            Err(_) => {
                tracing::warn!("the nodes did not stop within {timeout:?}");
                false
            }
        },
        name = second_signal => {
            tracing::warn!("{name} again: the nodes are left as they are");
            false
        }
    }
}

/// Policy of real mounts: the configured one, else one that allows only tmpfs and volumes without storage.
fn mount_policy(configuration: &Configuration) -> NodePolicy {
    if configuration.node != NodePolicy::default() {
        return configuration.node.clone();
    }
    NodePolicy {
        connection_kinds: [ConnectionKind::Tmpfs, ConnectionKind::None].into(),
        tmpfs_max_bytes: Some(MAX_TMPFS_BYTES),
        ..NodePolicy::default()
    }
}

/// A driver as the nodes serve it: a component with the built-in Node service, a CSI driver with its own.
/// `None` for a CSI driver whose Node service is missing or does not respond.
async fn node_driver(
    driver: &LoadedDriver,
    configuration: &Configuration,
) -> Result<Option<NodeDriver>, CommandError> {
    let backend = driver.backend();
    let description = backend.description();
    let name = description.name.to_string();
    let node = match &driver.kind {
        DriverKind::Csi(backend) => match has_node_service(backend.address().path()).await {
            Ok(true) => NodePlugin::External(backend.address().clone()),
            Ok(false) => return Ok(None),
            Err(problem) => {
                tracing::warn!(driver = name, "the Node service does not respond: {problem}");
                return Ok(None);
            }
        },
        DriverKind::Component(_) => {
            let manifest = DriverManifest::from_description(description.clone(), backend.abilities().clone());
            let manifest = manifest.map_err(|problem| {
                DevError::Setup(format!("backend {}: its manifest {problem}", driver.name))
            })?;
            let section = configuration.backend.get(&driver.name);
            let root = section.and_then(|section| section.pool.as_ref()).map(|pool| pool.directory.clone());
            NodePlugin::BuiltIn { manifest: Box::new(manifest), root }
        }
    };
    let on_every_node = is_on_every_node(driver);
    Ok(Some(NodeDriver { name, plugin: node, on_every_node }))
}

/// Reports if a driver is on every node. A CSI driver and a node-local component are on the first node only.
pub(crate) fn is_on_every_node(driver: &LoadedDriver) -> bool {
    match driver.kind {
        DriverKind::Component(_) => driver.backend().description().placement == Placement::Central,
        DriverKind::Csi(_) => false,
    }
}

/// Name of a node-local driver's section, and of its node, if the section's settings have it.
fn node_local_node<'a>(
    configuration: &'a Configuration,
    drivers: &'a [LoadedDriver],
) -> Option<(&'a str, &'a str)> {
    let mut node_local =
        drivers.iter().filter(|driver| driver.backend().description().placement == Placement::Node);
    node_local.find_map(|driver| {
        let named = configuration.backend.get(&driver.name)?.settings.get(NODE_SETTING)?;
        Some((driver.name.as_str(), named.0.as_str()))
    })
}

/// Sets the node of the built-in pool driver to the first node, unless the configuration sets it. A pool
/// driver with `file` or `csi` in its section is not the built-in one.
pub(crate) fn set_pool_node(configuration: &mut Configuration, flags: &DevFlags) {
    let first = flags.named_nodes.first().map_or(FIRST_NODE, |node| node.name.as_str());
    if let Some(section) =
        configuration.backend.get_mut(POOL_BACKEND).filter(|section| !section.has_location())
    {
        section.settings.entry(NODE_SETTING.to_owned()).or_insert_with(|| SettingValue(first.to_owned()));
    }
}

/// The nodes of the flags. Without `--node`, the first one has the name in the setting of a node-local driver.
///
/// # Errors
/// [`CommandError::Usage`] if the node of a node-local driver is not the first `--node`.
pub(crate) fn node_options(
    flags: &DevFlags,
    configuration: &Configuration,
    drivers: &[LoadedDriver],
) -> Result<Vec<NodeOptions>, CommandError> {
    let local = node_local_node(configuration, drivers);
    let Some(first) = flags.named_nodes.first() else {
        let first = local.map_or(FIRST_NODE, |(_, node)| node).to_owned();
        let others = (2..=flags.nodes).map(|number| format!("node-{number}"));
        let names = std::iter::once(first).chain(others).take(flags.nodes);
        return Ok(names.map(NodeOptions::new).collect());
    };
    if flags.named_nodes.len() > MAX_NODES {
        let count = flags.named_nodes.len();
        return Err(BackendCommandError::Argument(format!(
            "--node: {count} nodes; expected at most {MAX_NODES}"
        ))
        .into());
    }
    match local.filter(|(_, node)| *node != first.name) {
        Some((driver, node)) => Err(BackendCommandError::Argument(format!(
            "--node {}: backend {driver} is on the node {node:?}, by its setting `node`; expected that node \
             first",
            first.name
        ))
        .into()),
        None => Ok(flags.named_nodes.clone()),
    }
}

/// Creates the CSIDriver objects. In a real cluster, whoever installs the driver creates them.
async fn create_csi_drivers(client: &Client, drivers: &[LoadedDriver]) -> Result<(), kube::Error> {
    let api: Api<CSIDriver> = Api::all(client.clone());
    for driver in drivers {
        let backend = driver.backend();
        let modes = match driver.kind {
            DriverKind::Component(_) => &["Persistent", "Ephemeral"][..],
            DriverKind::Csi(_) => &["Persistent"],
        };
        let object = serde_json::from_value(json!({
            "metadata": {"name": backend.description().name},
            "spec": {
                "attachRequired": backend.abilities().contains(&Ability::Publishing),
                "podInfoOnMount": true,
                "volumeLifecycleModes": modes,
            },
        }))
        .map_err(kube::Error::SerdeError)?;
        api.create(&PostParams::default(), &object).await?;
    }
    Ok(())
}

/// A directory for sockets and mounts. Dropping this value removes the directory, unless something is or may
/// be mounted there.
#[derive(Debug)]
struct NodesDirectory {
    path: PathBuf,
    is_kept: bool,
}

impl NodesDirectory {
    fn new(base: &Path) -> Result<Self, DevError> {
        // Paths in the mount table have no links.
        let base = fs::canonicalize(base)
            .map_err(|error| DevError::Setup(format!("cannot find {}: {error}", base.display())))?;
        let path = base.join(format!("cofferdam-{}-nodes", std::process::id()));
        let failed = |error: io::Error| DevError::Setup(format!("cannot create {}: {error}", path.display()));
        let make = || DirBuilder::new().mode(0o700).create(&path);
        match make() {
            // A killed process with the same id left it behind.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                drop(Self { path: path.clone(), is_kept: false });
                make().map_err(failed)?;
            }
            made => made.map_err(failed)?,
        }
        Ok(Self { path, is_kept: false })
    }

    /// Keeps the directory from now on, because something may be mounted there.
    fn keep(&mut self) {
        self.is_kept = true;
    }

    /// Removes the directory on drop, because nothing is mounted there any more.
    fn release(&mut self) {
        self.is_kept = false;
    }

    /// Returns a mount point in the directory, or the error if the mount table cannot be read: data of a
    /// volume must never be deleted with the directory. `None` if nothing is mounted there.
    fn find_mount(&self) -> Option<String> {
        // Bytes: another mount of this machine may have a path that is not UTF-8.
        let table = match fs::read("/proc/self/mountinfo") {
            Ok(table) => table,
            // Other systems have no real mounts.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => return Some(error.to_string()),
        };
        let prefix = self.path.as_os_str().as_bytes();
        let lines = table.split(|byte| *byte == b'\n');
        let mut mount_points = lines.filter_map(|line| line.split(|byte| *byte == b' ').nth(4));
        let mount_point = mount_points.find(|mount_point| mount_point.starts_with(prefix))?;
        Some(String::from_utf8_lossy(mount_point).into_owned())
    }
}

impl Drop for NodesDirectory {
    fn drop(&mut self) {
        if self.is_kept {
            let directory = self.path.display();
            tracing::warn!(%directory, "not removed, because something may be mounted there");
            return;
        }
        let plain = self.path.display().to_string().chars().all(|c| !c.is_whitespace() && c != '\\');
        if let Some(mount_point) =
            self.find_mount().or_else(|| (!plain).then(|| "a path with special characters".to_owned()))
        {
            let directory = self.path.display();
            tracing::warn!(%directory, mount_point, "not removed, because something may be mounted there");
            return;
        }
        if let Err(error) = fs::remove_dir_all(&self.path) {
            tracing::warn!(directory = %self.path.display(), %error, "cannot remove the nodes' directory");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    #[test]
    fn the_nodes_directory_is_removed_when_nothing_is_mounted() {
        let base = tempfile::TempDir::new().unwrap();
        let (real, link) = (base.path().join("real"), base.path().join("link"));
        fs::create_dir(&real).unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        let mut directory = NodesDirectory::new(&link).unwrap();
        let path = directory.path.clone();
        assert!(
            path.starts_with(fs::canonicalize(&real).unwrap()),
            "{path:?} is not what the kernel calls it"
        );
        fs::write(path.join("data"), "of a volume").unwrap();
        directory.keep();
        drop(directory);
        assert!(path.join("data").exists());
        // The next process with this id replaces it.
        let mut directory = NodesDirectory::new(&link).unwrap();
        directory.keep();
        directory.release();
        drop(directory);
        assert!(!path.exists());
        let missing = NodesDirectory::new(&base.path().join("missing")).unwrap_err().to_string();
        assert!(missing.contains("missing"), "{missing}");
    }

    #[tokio::test(start_paused = true)]
    async fn stopping_the_nodes_waits_until_the_timeout_or_a_second_signal() {
        let (limit, stuck) = (Duration::from_secs(30), || tokio::spawn(pending()));
        assert!(wait_for_task(tokio::spawn(ready(Ok(()))), limit, pending()).await);
        let start = tokio::time::Instant::now();
        assert!(!wait_for_task(stuck(), limit, pending()).await);
        assert!(start.elapsed() >= limit);
        let start = tokio::time::Instant::now();
        assert!(!wait_for_task(stuck(), limit, ready("SIGINT")).await);
        assert!(start.elapsed() < limit, "a second signal ends the wait");
    }
}
