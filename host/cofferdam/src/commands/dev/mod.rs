//! `cofferdam dev`: a Kubernetes API, a driver, every role and simulated nodes in this process, for kubectl on this machine.

mod demo;
mod kubeconfig;
mod nodes;
mod timeline;
pub(crate) mod wait;

use std::{
    collections::HashMap,
    fmt::Write as _,
    io,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use cofferdam_apiserver::{ApiServer, Options, ServeOptions, ServerHandle};
use cofferdam_backend::Backend;
use cofferdam_controllers::{ControllerManager, Dependencies};
use cofferdam_domain::{
    names::NODE_TOPOLOGY_KEY,
    storage::{Ability, Placement},
};
use cofferdam_wasm::Grant;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::{Api, Client, ResourceExt as _, api::PostParams};
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tokio::time::Instant;

pub(crate) use demo::DemoError;
pub(crate) use kubeconfig::KubeconfigError;

use demo::Demo;
use kubeconfig::KubeconfigFile;
use nodes::RunningNodes;
use timeline::Timeline;

use crate::{
    cli::DevFlags,
    client,
    commands::run::settings,
    config::{Configuration, Loaded},
    drivers::{Driver, Kind, Loader},
    failure::Failure,
    logging, process_metrics,
    style::{Colour, Style},
    supervisor::{self, End, Running, Signals, Work},
};

/// Namespace of the intent journal: that of a cluster's own components.
const NAMESPACE: &str = "kube-system";
/// How Kubernetes marks the class of claims that name none.
const DEFAULT_CLASS: &str = "storageclass.kubernetes.io/is-default-class";

/// Runs until a signal, or until the end of the demo.
///
/// # Errors
/// [`Failure`], one line.
pub(crate) async fn run(flags: &DevFlags, environment: &HashMap<String, String>) -> Result<End, Failure> {
    let start = Instant::now();
    let mut loaded = Loaded::for_dev(&flags.process, environment)?;
    if flags.demo {
        demo::all_roles(&loaded, flags.nodes)?;
    }
    nodes::name_pool(&mut loaded.configuration);
    logging::start(&loaded.configuration);
    let style = Style { colours: logging::wants_colour(&io::stdout()) };
    let (timeline, printer) = Timeline::start(start, style, io::stdout());
    let result = show(flags, &loaded.configuration, &timeline, style, start).await;
    if let Ok(End::Drained) = &result {
        timeline.text(style.paint(Colour::Dim, "stopped"));
    }
    // Everything is written before the error, if there is one, is.
    timeline.close();
    // Whoever reads it may stand still: then another signal ends that, too.
    let mut signals = Signals::take()?;
    let written = tokio::select! {
        written = printer.finish() => written,
        _ = signals.next() => return result.map(|_| End::Forced),
    };
    let end = result?;
    written.map_err(Failure::Output)?;
    Ok(end)
}

async fn show(
    flags: &DevFlags,
    configuration: &Configuration,
    timeline: &Timeline,
    style: Style,
    start: Instant,
) -> Result<End, Failure> {
    let mut registry = Registry::default();
    process_metrics::register(&mut registry);
    let drivers = Loader::new(configuration, &mut registry)?.load_all(configuration).await?;
    // Until here a signal ends the process by itself; from here on there are files to remove.
    let signals = &mut Signals::take()?;
    let (mut stage, mut running) = tokio::select! {
        built = Stage::build(flags, configuration, timeline, drivers, registry) => built?,
        name = signals.next() => {
            tracing::info!("{name} before everything was up");
            return Ok(End::Drained);
        }
    };
    let drain = configuration.drain_timeout.get();
    let shown = tokio::select! {
        failure = running.failed() => {
            stage.leave(signals, drain).await;
            stage.serving.shutdown().await;
            return Err(failure);
        }
        () = over(stage.nodes.as_ref()) => {
            stage.leave(signals, drain).await;
            running.abandon(drain).await;
            stage.serving.shutdown().await;
            return Err(Failure::Nodes);
        }
        name = signals.next() => {
            tracing::info!("{name} before everything was shown");
            None
        }
        shown = async {
            stage.registered().await;
            timeline.text(stage.banner(start, style));
            if !flags.demo {
                timeline.text(stage.hint(style));
            }
            timeline.text(timeline::heading(style));
            stage.demonstrate(flags.demo, timeline).await
        } => Some(shown),
    };
    if let Some(Ok(true)) = shown {
        timeline.text(style.paint(Colour::Green, "demo: everything held"));
    }
    let end = match shown {
        Some(Ok(demo)) if flags.stay || !demo => {
            if demo {
                timeline.text(stage.hint(style));
            }
            let broken = async {
                over(stage.nodes.as_ref()).await;
                Failure::Nodes
            };
            running.until_signal(signals, drain, broken).await
        }
        Some(Ok(_)) | None => {
            stage.leave(signals, drain).await;
            running.drain(drain).await
        }
        Some(Err(failure)) => {
            running.abandon(drain).await;
            Err(failure)
        }
    };
    // Who insists does not wait for what is mounted either.
    let limit = if matches!(end, Ok(End::Forced)) { Duration::ZERO } else { drain };
    stage.leave(signals, limit).await;
    stage.serving.shutdown().await;
    end
}

/// Waits until the nodes are over by themselves, where there are any.
async fn over(nodes: Option<&RunningNodes>) {
    match nodes {
        Some(nodes) => nodes.over().await,
        None => std::future::pending().await,
    }
}

/// What stands while dev mode runs.
struct Stage {
    serving: ServerHandle,
    kubeconfig: KubeconfigFile,
    drivers: Vec<Driver>,
    classes: Vec<String>,
    nodes: Option<RunningNodes>,
    /// The node of drivers whose storage is in one.
    place: Option<String>,
}

impl Stage {
    /// Builds everything and waits until the roles run. Who stops waiting drops it, and with it its files; nothing is mounted yet.
    async fn build(
        flags: &DevFlags,
        configuration: &Configuration,
        timeline: &Timeline,
        drivers: Vec<Driver>,
        mut registry: Registry,
    ) -> Result<(Self, Running), Failure> {
        let api = ApiServer::new(Options::default());
        let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, flags.port));
        let serving = api.serve(ServeOptions { addr }).await.map_err(Failure::Serve)?;
        let text = serving.kubeconfig();
        let kubeconfig = KubeconfigFile::write(flags.kubeconfig_out.as_deref(), &runtime_directory(), &text)?;

        // The roles need no socket to reach an API of the same process.
        let inside = Client::new(api.service(), "default");
        let place = (flags.nodes > 0).then(|| nodes::first_name(configuration, &drivers));
        let classes = create_classes(&inside, &drivers, place.as_deref()).await.map_err(Failure::Prepare)?;
        let parts = Dependencies {
            client: inside.clone(),
            backends: drivers.iter().map(Driver::backend).collect(),
            clock: cofferdam_cluster::system_clock(),
            observer: Arc::new(timeline.clone()),
        };
        let process =
            ControllerManager::new(settings(configuration, NAMESPACE.to_owned()), parts, &mut registry)?;
        let process = Arc::new(process);
        let work = Work { process: Some(Arc::clone(&process)), ..Work::default() };
        let mut running = supervisor::start(work, registry, configuration.http_endpoint.as_ref()).await?;
        let mut ready = process.ready();
        tokio::select! {
            failure = running.failed() => return Err(failure),
            _ = ready.wait_for(|ready| *ready) => {}
        }
        timeline.follow(&process.cache());
        let base = runtime_directory();
        let nodes = RunningNodes::start(flags, configuration, (inside, &base), &drivers, timeline).await?;
        Ok((Self { serving, kubeconfig, drivers, classes, nodes, place }, running))
    }

    /// Waits until the nodes' drivers are registered.
    async fn registered(&self) {
        if let Some(nodes) = &self.nodes {
            nodes.registered().await;
        }
    }

    /// Ends the nodes, within a time and until another signal.
    async fn leave(&mut self, signals: &mut Signals, limit: Duration) {
        if let Some(nodes) = self.nodes.take() {
            nodes.stop(limit, signals.next()).await;
        }
    }

    /// Shows the demo where it is wanted; whether it was.
    async fn demonstrate(&self, wanted: bool, timeline: &Timeline) -> Result<bool, Failure> {
        let Some(driver) = self.drivers.first().filter(|_| wanted) else { return Ok(false) };
        // As a user does: through the socket, with the kubeconfig.
        let user = client::from_text(&self.serving.kubeconfig(), "of dev mode").await?;
        let state = || match &driver.kind {
            Kind::Component(backend) => {
                backend.interfaces().grants.contains(&Grant::State).then(|| backend.state_keys())
            }
            Kind::Csi(_) => None,
        };
        let name = driver.backend().description().name.to_string();
        let nodes = self.nodes.as_ref().filter(|nodes| !nodes.without.contains(&name));
        let demo = Demo {
            client: user.client,
            driver: &name,
            backend: &*driver.backend(),
            class: class(demo::NAME, driver, self.place.as_deref()),
            state: &state,
            nodes: nodes.map(|nodes| (&nodes.view, nodes.names.len())),
            everywhere: nodes::is_everywhere(driver),
            timeline,
        };
        demo.run().await?;
        Ok(true)
    }

    fn banner(&self, start: Instant, style: Style) -> String {
        let mut text = String::new();
        let mut row = |name: &str, value: &str| {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "  {}  {value}", style.paint(Colour::Dim, &format!("{name:<8}")));
        };
        row("api", &format!("https://{}", self.serving.local_addr()));
        for (driver, class) in self.drivers.iter().zip(&self.classes) {
            let backend = driver.backend();
            let description = backend.description();
            row("driver", &format!("{} {}, {}", description.name, description.version, driver.place()));
            row("class", class);
        }
        match &self.nodes {
            Some(nodes) => {
                row("nodes", &nodes.describe());
                nodes.exceptions().for_each(|exception| row("", &exception));
            }
            None => row("nodes", "none: pods do not start"),
        }
        row("kubectl", &style.paint(Colour::Bold, &export(self.kubeconfig.path())));
        let head =
            format!("cofferdam {}, ready in {} ms", env!("CARGO_PKG_VERSION"), start.elapsed().as_millis());
        format!("{}\n{text}", style.paint(Colour::Bold, &head))
    }

    fn hint(&self, style: Style) -> String {
        let text = format!(
            "Ctrl-C ends this; kubectl works in another terminal after: {}",
            export(self.kubeconfig.path())
        );
        style.paint(Colour::Dim, &text)
    }
}

/// The line for another shell.
fn export(path: &Path) -> String {
    let path = path.display().to_string();
    let plain = path.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '/' | '.' | '-' | '_'));
    if plain {
        format!("export KUBECONFIG={path}")
    } else {
        format!("export KUBECONFIG='{}'", path.replace('\'', r"'\''"))
    }
}

/// The user's runtime directory, which other users cannot enter, else the temporary one.
fn runtime_directory() -> PathBuf {
    std::env::var_os("XDG_RUNTIME_DIR")
        .map(PathBuf::from)
        .filter(|path| path.is_absolute() && path.is_dir())
        .unwrap_or_else(std::env::temp_dir)
}

/// A class for each driver; that of the first is for claims that name none.
async fn create_classes(
    client: &Client,
    drivers: &[Driver],
    node: Option<&str>,
) -> Result<Vec<String>, kube::Error> {
    let api: Api<StorageClass> = Api::all(client.clone());
    let mut names = Vec::with_capacity(drivers.len());
    for (index, driver) in drivers.iter().enumerate() {
        let is_default = index == 0;
        let name = format!("cofferdam-{}", driver.name.replace('_', "-").to_ascii_lowercase());
        let mut class: StorageClass =
            serde_json::from_value(class(&name, driver, node)).map_err(kube::Error::SerdeError)?;
        class.annotations_mut().insert(DEFAULT_CLASS.to_owned(), is_default.to_string());
        api.create(&PostParams::default(), &class).await?;
        names.push(if is_default { format!("{name} (default)") } else { name });
    }
    Ok(names)
}

/// How a class says where volumes may be: those of a driver whose storage is in one node come after their pod, which goes there.
fn place_of_class(backend: &dyn Backend, node: Option<&str>) -> Value {
    match (backend.description().placement, node) {
        (Placement::Node, Some(node)) => json!({
            "volumeBindingMode": "WaitForFirstConsumer",
            "allowedTopologies": [{"matchLabelExpressions": [{"key": NODE_TOPOLOGY_KEY, "values": [node]}]}],
        }),
        (Placement::Node, None) | (Placement::Central, _) => json!({"volumeBindingMode": "Immediate"}),
    }
}

/// A class, as it is applied.
fn class(name: &str, driver: &Driver, node: Option<&str>) -> Value {
    let backend = driver.backend();
    let mut class = json!({
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": name},
        "provisioner": backend.description().name,
        "reclaimPolicy": "Delete",
        "allowVolumeExpansion": backend.abilities().contains(&Ability::Expansion),
    });
    if let (Value::Object(class), Value::Object(place)) = (&mut class, place_of_class(&*backend, node)) {
        class.extend(place);
    }
    class
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_export_line_survives_a_shell() {
        assert_eq!(export(Path::new("/run/user/1/k")), "export KUBECONFIG=/run/user/1/k");
        assert_eq!(export(Path::new("/tmp/it's mine/k")), r"export KUBECONFIG='/tmp/it'\''s mine/k'");
    }
}
