//! `cofferdam dev`: a simulated cluster in this process: Kubernetes API, driver, roles and nodes.

mod cluster_id;
mod component;
mod demo;
mod kubeconfig;
mod leftovers;
mod nodes;
mod timeline;

use std::{
    collections::{BTreeSet, HashMap},
    io,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use cofferdam_apiserver::{ApiServer, Options, ServeOptions, ServerHandle};
use cofferdam_backend::Backend;
use cofferdam_controllers::{ControllerManager, Dependencies, Role, snapshot_controller, snapshotter};
use cofferdam_domain::{
    names::{self, NODE_TOPOLOGY_KEY},
    storage::{Ability, Placement},
};
use cofferdam_wasm::Grant;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::{
    Api, Client, ResourceExt as _,
    api::{ApiResource, DynamicObject, PostParams},
};
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tokio::time::Instant;

use cluster_id::DevClusterId;
use component::DevConfiguration;
use demo::Demo;
use kubeconfig::KubeconfigFile;
use nodes::RunningNodes;
use timeline::Timeline;

use crate::{
    cli::{AtExit, DevFlags},
    client,
    commands::run::controller_settings,
    config::Configuration,
    drivers::{DriverKind, DriverLoader, LoadedDriver},
    error::CommandError,
    logging, process_metrics,
    signals::{ProcessOutcome, Signals},
    snapshot_kinds::{self, VolumeSnapshotClass},
    style::{Colour, Style, TerminalText},
    supervisor::{self, SupervisedProcess, Workload},
    telemetry,
};

/// Namespace of the intent journal, the restore marker and the orphan reports.
const NAMESPACE: &str = "kube-system";
/// Kubernetes' annotation of the default StorageClass.
const IS_DEFAULT_CLASS_ANNOTATION: &str = "storageclass.kubernetes.io/is-default-class";

/// Runs until a signal or an error, or until the end of a demo without `--keep-running`.
///
/// # Errors
/// [`CommandError`], one line.
pub(crate) async fn run(
    flags: &DevFlags,
    environment: &HashMap<String, String>,
) -> Result<ProcessOutcome, CommandError> {
    let start = Instant::now();
    let mut configured = DevConfiguration::read(flags, environment)?;
    if flags.demo {
        demo::check_roles(&configured.resolved, flags.node_count())?;
    }
    nodes::set_pool_node(&mut configured.resolved.configuration, flags);
    logging::start(&configured.resolved.configuration);
    let style = Style { colours: logging::is_colour_enabled(&io::stdout()) };
    let (timeline, printer) = Timeline::start(start, style, io::stdout());
    let result = run_session(flags, configured, &timeline, style, start).await;
    if let Ok(ProcessOutcome::Drained | ProcessOutcome::Failed) = &result {
        timeline.text(style.paint(Colour::Dim, "stopped"));
    }
    // Print the whole timeline before the error.
    timeline.close();
    // A blocked terminal or pipe can delay this; another signal ends the process.
    let mut signals = Signals::install()?;
    let written = tokio::select! {
        written = printer.finish() => written,
        _ = signals.next() => return result.map(|_| ProcessOutcome::Forced),
    };
    let end = result?;
    written.map_err(CommandError::Output)?;
    Ok(end)
}

async fn run_session(
    flags: &DevFlags,
    configured: DevConfiguration,
    timeline: &Timeline,
    style: Style,
    start: Instant,
) -> Result<ProcessOutcome, CommandError> {
    let configuration = &configured.resolved.configuration;
    let mut registry = Registry::default();
    process_metrics::register(&mut registry);
    let mut loader = DriverLoader::new(configuration, &mut registry)?;
    if let Some((name, secrets)) = configured.secrets {
        loader = loader.with_secrets(&name, secrets);
    }
    let drivers = loader
        .load_all(configuration)
        .await
        .map_err(|error| component::with_section_advice(error, &flags.settings.values, configuration))?;
    // Until here a signal ends the process without cleanup; from here on there are files to remove.
    let signals = &mut Signals::install()?;
    let (mut session, running) = tokio::select! {
        built = DevSession::build(flags, configuration, timeline, drivers, registry) => built?,
        name = signals.next() => {
            tracing::info!("{name} during startup");
            return Ok(ProcessOutcome::Drained);
        }
    };
    let drain = configuration.drain_timeout.get();
    let end = session.run(flags, running, (signals, drain), timeline, (style, start)).await;
    // After a second signal do not wait for unmounts either.
    let is_forced = matches!(end, Ok(ProcessOutcome::Forced));
    session.stop_nodes(signals, if is_forced { Duration::ZERO } else { drain }).await;
    // A call that has not ended may still create or use a volume.
    let may_have_calls = is_forced || matches!(end, Err(CommandError::DrainTimeout(_)));
    let is_complete = if !leftovers::has_lasting_storage(&session.drivers, configuration) {
        true
    } else if may_have_calls {
        timeline.text("calls have not ended: the drivers were not asked what they still store");
        false
    } else {
        tokio::select! {
            has_failed = session.report_leftovers(flags.at_exit(), configuration, timeline) => !has_failed,
            name = signals.next() => {
                timeline.text(format!("{name}: the drivers may store more than this output names"));
                false
            }
        }
    };
    let has_failed = flags.at_exit() == AtExit::Delete && !is_complete;
    session.serving.shutdown().await;
    match end {
        Ok(ProcessOutcome::Drained) if has_failed => Ok(ProcessOutcome::Failed),
        end => end,
    }
}

/// Waits until the nodes' task ends, which is a failure unless it was stopped; without nodes it never
/// returns.
async fn wait_for_nodes_exit(nodes: Option<&RunningNodes>) {
    match nodes {
        Some(nodes) => nodes.wait_for_exit().await,
        None => std::future::pending().await,
    }
}

/// The parts of a running dev mode: the API server and its kubeconfig, the cluster's id, the drivers, the names
/// of their StorageClasses for output, and the nodes.
struct DevSession {
    api: ApiServer,
    cluster_id: DevClusterId,
    serving: ServerHandle,
    kubeconfig: KubeconfigFile,
    drivers: Vec<LoadedDriver>,
    classes: Vec<String>,
    nodes: Option<RunningNodes>,
    /// The roles of this process that reconcile the cluster.
    cluster_roles: BTreeSet<Role>,
    /// Name of the first simulated node, on which the node-local drivers are; `None` without nodes.
    node_local_node: Option<String>,
}

impl DevSession {
    /// Starts the API server, the roles and the nodes, and waits until the roles run. Dropping the future
    /// removes the files; nothing is mounted yet.
    async fn build(
        flags: &DevFlags,
        configuration: &Configuration,
        timeline: &Timeline,
        drivers: Vec<LoadedDriver>,
        mut registry: Registry,
    ) -> Result<(Self, SupervisedProcess), CommandError> {
        let cluster_id = DevClusterId::of_current_directory();
        let api =
            ApiServer::new(Options { cluster_id: Some(cluster_id.id.to_string()), ..Options::default() });
        let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, flags.port));
        let serving = api.serve(ServeOptions { addr }).await.map_err(CommandError::ApiServer)?;
        let text = serving.kubeconfig();
        let kubeconfig = KubeconfigFile::write(flags.kubeconfig_out.as_deref(), &runtime_directory(), &text)?;

        // The roles call the API in this process, without a socket.
        let client = Client::new(api.service(), "default");
        let nodes = nodes::node_options(flags, configuration, &drivers)?;
        let node_local_node = nodes.first().map(|node| node.name.clone());
        let classes = create_classes(&client, &drivers, node_local_node.as_deref())
            .await
            .map_err(CommandError::PrepareApi)?;
        create_snapshot_classes(&client, &drivers).await.map_err(CommandError::PrepareApi)?;
        let parts = Dependencies {
            client: client.clone(),
            backends: drivers.iter().map(LoadedDriver::backend).collect(),
            clock: cofferdam_cluster::system_clock(),
            observer: Arc::new(timeline.clone()),
        };
        let process = ControllerManager::new(
            controller_settings(configuration, NAMESPACE.to_owned()),
            parts,
            &mut registry,
        )?;
        let process = Arc::new(process);
        let workload = Workload { controllers: Some(Arc::clone(&process)), ..Workload::default() };
        let mut running = supervisor::start(workload, registry, &telemetry::endpoints(configuration)).await?;
        let mut ready = process.ready();
        tokio::select! {
            failure = running.wait_for_failure() => return Err(failure),
            _ = ready.wait_for(|ready| *ready) => {}
        }
        timeline.subscribe(&process.cache());
        let base = runtime_directory();
        let nodes =
            RunningNodes::start(flags, configuration, (client, &base), (&drivers, nodes), timeline).await?;
        let cluster_roles = configuration.role.cluster.clone();
        let session = Self {
            api,
            cluster_id,
            serving,
            kubeconfig,
            drivers,
            classes,
            nodes,
            cluster_roles,
            node_local_node,
        };
        Ok((session, running))
    }

    /// Runs the demo, if it is enabled, and then until a signal or a failure. The roles have ended afterwards,
    /// and the nodes may still run.
    async fn run(
        &mut self,
        flags: &DevFlags,
        mut running: SupervisedProcess,
        (signals, drain): (&mut Signals, Duration),
        timeline: &Timeline,
        (style, start): (Style, Instant),
    ) -> Result<ProcessOutcome, CommandError> {
        let demo_result = tokio::select! {
            failure = running.wait_for_failure() => {
                return Err(failure);
            }
            () = wait_for_nodes_exit(self.nodes.as_ref()) => {
                running.drain_after_failure(drain).await;
                return Err(CommandError::NodesStopped);
            }
            name = signals.next() => {
                tracing::info!("{name} during the demo");
                None
            }
            demo_result = async {
                self.wait_for_registration().await;
                timeline.text(self.startup_text(start, style));
                if !flags.demo {
                    timeline.text(self.usage_text(style));
                }
                timeline.text(timeline::table_header(style));
                self.run_demo(flags.demo, timeline).await
            } => Some(demo_result),
        };
        if let Some(Ok(true)) = demo_result {
            timeline.text(style.paint(Colour::Green, "demo: succeeded"));
        }
        match demo_result {
            Some(Ok(demo)) if flags.keep_running || !demo => {
                if demo {
                    timeline.text(self.usage_text(style));
                }
                let nodes_failure = async {
                    wait_for_nodes_exit(self.nodes.as_ref()).await;
                    CommandError::NodesStopped
                };
                running.run_until_signal(signals, drain, nodes_failure).await
            }
            Some(Ok(_)) | None => {
                self.stop_nodes(signals, drain).await;
                running.drain(drain).await
            }
            Some(Err(failure)) => {
                running.drain_after_failure(drain).await;
                Err(failure)
            }
        }
    }

    /// Prints what the drivers still store for the cluster, or deletes it. Returns true if something could not
    /// be deleted.
    async fn report_leftovers(
        &self,
        at_exit: AtExit,
        configuration: &Configuration,
        timeline: &Timeline,
    ) -> bool {
        let client = Client::new(self.api.service(), "default");
        let report =
            leftovers::report(&self.drivers, configuration, &self.cluster_id, &client, at_exit).await;
        for line in report.lines {
            timeline.text(line);
        }
        report.has_failed
    }

    /// Waits until the drivers are registered on the nodes, or until a timeout. Without nodes it returns
    /// immediately.
    async fn wait_for_registration(&self) {
        if let Some(nodes) = &self.nodes {
            nodes.wait_for_registration().await;
        }
    }

    /// Stops the nodes, and waits for them until `limit` or another signal. Without nodes it does nothing.
    async fn stop_nodes(&mut self, signals: &mut Signals, limit: Duration) {
        if let Some(nodes) = self.nodes.take() {
            nodes.stop(limit, signals.next()).await;
        }
    }

    /// Runs the demo with the first driver if enabled; returns `true` if it ran.
    async fn run_demo(&self, enabled: bool, timeline: &Timeline) -> Result<bool, CommandError> {
        let Some(driver) = self.drivers.first().filter(|_| enabled) else { return Ok(false) };
        // Connect as a user does: through the socket, with the kubeconfig.
        let user_connection =
            client::connect_with_kubeconfig(&self.serving.kubeconfig(), "of dev mode").await?;
        let state = || match &driver.kind {
            DriverKind::Component(backend) => {
                // The volumes of a driver with requests are at its array, and its state may lack them.
                let grants = &backend.interfaces().grants;
                let has_volumes = grants.contains(&Grant::State) && !grants.contains(&Grant::Http);
                has_volumes.then(|| backend.state_keys())
            }
            DriverKind::Csi(_) => None,
        };
        let name = driver.backend().description().name.to_string();
        let nodes = self.nodes.as_ref().filter(|nodes| !nodes.without_node_service.contains(&name));
        let runs = |role: &Role| self.cluster_roles.contains(role);
        let demo = Demo {
            client: user_connection.client,
            driver: &name,
            backend: &*driver.backend(),
            class: class_manifest(demo::NAME, driver, self.node_local_node.as_deref()),
            snapshot_class: snapshot_class_manifest(demo::NAME, driver),
            state_keys: &state,
            nodes: nodes.map(|nodes| (&nodes.view, nodes.names.len())),
            on_every_node: nodes::is_on_every_node(driver),
            has_snapshot_roles: runs(&snapshotter::ROLE) && runs(&snapshot_controller::ROLE),
            timeline,
        };
        demo.run().await?;
        Ok(true)
    }

    fn startup_text(&self, start: Instant, style: Style) -> TerminalText {
        let head =
            format!("cofferdam {}, ready in {} ms", env!("CARGO_PKG_VERSION"), start.elapsed().as_millis());
        let mut text = TerminalText::default();
        text.push_line(style.paint(Colour::Bold, head));
        let mut row = |name: &str, value: TerminalText| {
            text.push("  ");
            text.push(style.paint(Colour::Dim, format!("{name:<8}")));
            text.push("  ");
            text.push_line(value);
        };
        row("api", format!("https://{}", self.serving.local_addr()).into());
        for (driver, class) in self.drivers.iter().zip(&self.classes) {
            let backend = driver.backend();
            let description = backend.description();
            row(
                "driver",
                format!("{} {}, {}", description.name, description.version, driver.location_text()).into(),
            );
            row("class", class.into());
        }
        match &self.nodes {
            Some(nodes) => {
                row("nodes", nodes.describe().into());
                nodes.driver_notes().for_each(|exception| row("", exception.into()));
            }
            None => row("nodes", "none: pods do not start".into()),
        }
        row("kubectl", style.paint(Colour::Bold, export_command(self.kubeconfig.path())));
        text
    }

    fn usage_text(&self, style: Style) -> TerminalText {
        let text = format!(
            "Press Ctrl-C to stop; to use kubectl in another terminal: {}",
            export_command(self.kubeconfig.path())
        );
        style.paint(Colour::Dim, text)
    }
}

/// The command that sets KUBECONFIG in another shell.
fn export_command(path: &Path) -> String {
    let path = path.display().to_string();
    let needs_no_quotes =
        path.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '/' | '.' | '-' | '_'));
    if needs_no_quotes {
        format!("export KUBECONFIG={path}")
    } else {
        format!("export KUBECONFIG='{}'", path.replace('\'', r"'\''"))
    }
}

/// The user's runtime directory, which is private, else the temporary directory.
fn runtime_directory() -> PathBuf {
    std::env::var_os("XDG_RUNTIME_DIR")
        .map(PathBuf::from)
        .filter(|path| path.is_absolute() && path.is_dir())
        .unwrap_or_else(std::env::temp_dir)
}

/// Creates a StorageClass for each driver; that of the first driver is the default class. Returns the names
/// of the classes for output, the first with ` (default)` at its end.
async fn create_classes(
    client: &Client,
    drivers: &[LoadedDriver],
    node: Option<&str>,
) -> Result<Vec<String>, kube::Error> {
    let api: Api<StorageClass> = Api::all(client.clone());
    let mut names = Vec::with_capacity(drivers.len());
    for (index, driver) in drivers.iter().enumerate() {
        let is_default = index == 0;
        let name = class_name(driver);
        let mut class: StorageClass =
            serde_json::from_value(class_manifest(&name, driver, node)).map_err(kube::Error::SerdeError)?;
        class.annotations_mut().insert(IS_DEFAULT_CLASS_ANNOTATION.to_owned(), is_default.to_string());
        api.create(&PostParams::default(), &class).await?;
        names.push(if is_default { format!("{name} (default)") } else { name });
    }
    Ok(names)
}

/// Creates a VolumeSnapshotClass for each driver that takes snapshots: the default class of this driver, of
/// the name of its StorageClass.
async fn create_snapshot_classes(client: &Client, drivers: &[LoadedDriver]) -> Result<(), kube::Error> {
    let kind = ApiResource::erase::<VolumeSnapshotClass>(&());
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &kind);
    for driver in drivers.iter().filter(|driver| driver.backend().abilities().contains(&Ability::Snapshots)) {
        let manifest = snapshot_class_manifest(&class_name(driver), driver);
        let mut class: DynamicObject = serde_json::from_value(manifest).map_err(kube::Error::SerdeError)?;
        class.annotations_mut().insert(names::DEFAULT_SNAPSHOT_CLASS.to_owned(), true.to_string());
        api.create(&PostParams::default(), &class).await?;
    }
    Ok(())
}

/// Name of the classes of a driver.
fn class_name(driver: &LoadedDriver) -> String {
    format!("cofferdam-{}", driver.name.replace('_', "-").to_ascii_lowercase())
}

/// Binding mode and allowed topology of a StorageClass. With a simulated node, the class of a node-local
/// driver is WaitForFirstConsumer and restricted to `node`, and that of a driver with topology keys is
/// WaitForFirstConsumer; every other class is Immediate.
fn topology_of_class(backend: &dyn Backend, node: Option<&str>) -> Value {
    match (backend.description().placement, node) {
        (Placement::Node, Some(node)) => json!({
            "volumeBindingMode": "WaitForFirstConsumer",
            "allowedTopologies": [{"matchLabelExpressions": [{"key": NODE_TOPOLOGY_KEY, "values": [node]}]}],
        }),
        // The scheduler chooses the zone.
        (Placement::Central, Some(_)) if !backend.description().topology_keys.is_empty() => {
            json!({"volumeBindingMode": "WaitForFirstConsumer"})
        }
        (Placement::Node, None) | (Placement::Central, _) => json!({"volumeBindingMode": "Immediate"}),
    }
}

/// The manifest of a StorageClass.
fn class_manifest(name: &str, driver: &LoadedDriver, node: Option<&str>) -> Value {
    let backend = driver.backend();
    let mut class = json!({
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": name},
        "provisioner": backend.description().name,
        "reclaimPolicy": "Delete",
        "allowVolumeExpansion": backend.abilities().contains(&Ability::Expansion),
    });
    if let (Value::Object(class), Value::Object(topology)) = (&mut class, topology_of_class(&*backend, node))
    {
        class.extend(topology);
    }
    class
}

/// The manifest of a VolumeSnapshotClass.
fn snapshot_class_manifest(name: &str, driver: &LoadedDriver) -> Value {
    json!({
        "apiVersion": snapshot_kinds::API_VERSION,
        "kind": "VolumeSnapshotClass",
        "metadata": {"name": name},
        "driver": driver.backend().description().name,
        "deletionPolicy": "Delete",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_export_command_is_quoted_for_a_shell() {
        assert_eq!(export_command(Path::new("/run/user/1/k")), "export KUBECONFIG=/run/user/1/k");
        assert_eq!(export_command(Path::new("/tmp/it's mine/k")), r"export KUBECONFIG='/tmp/it'\''s mine/k'");
    }
}
