//! Configuration: flags over environment over file over defaults, and for every value who said it.

mod backend;
mod duration;
mod error;
mod keys;
mod source;
mod value;

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, HashMap},
    fmt::Write as _,
    path::{Path, PathBuf},
    time::Duration,
};

use cofferdam_controllers::Role;
use cofferdam_node::Policy;
use figment::{Figment, value::Value};
use serde::Deserialize;

pub(crate) use backend::{BackendSection, Setting, carried};
use backend::{MEMORY, OF_COMPONENTS, Socket};
pub(crate) use duration::GoDuration;
pub(crate) use error::ConfigError;
pub(crate) use source::{Origin, backend_name, check_place};
pub(crate) use value::{CompilationCache, Endpoint, LogFormat, Roles, ServerRole};

use keys::{KEYS, Shape};
use source::{Layer, Source};
use value::{Entries, Filter, Label, ScanInterval, SocketGroup, SocketMode, Workers};

use crate::cli::{ClusterFlags, NodeFlags, ProcessFlags};

/// Shortest pause between two looks at everything.
const MIN_PAUSE: Duration = Duration::from_secs(1);

/// The value of a driver's setting that stands for the name of the node.
const NODE_NAME: &str = "$(node-name)";
/// The variable that every program of this ecosystem reads for its log.
const RUST_LOG: &str = "RUST_LOG";
/// Name of the driver that `csi-address` gives.
const CSI: &str = "csi";

/// Every setting, checked.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct Configuration {
    #[serde(default)]
    pub(crate) role: Roles,
    #[serde(default)]
    pub(crate) backend: BTreeMap<String, BackendSection>,
    pub(crate) csi_address: Option<Socket>,
    csi_socket: Option<Socket>,
    pub(crate) socket_mode: SocketMode,
    pub(crate) socket_group: Option<SocketGroup>,
    pub(crate) kubeconfig: Option<PathBuf>,
    pub(crate) context: Option<String>,
    pub(crate) namespace: Option<Label>,
    pub(crate) http_endpoint: Option<Endpoint>,
    pub(crate) timeout: GoDuration,
    pub(crate) drain_timeout: GoDuration,
    pub(crate) volume_name_prefix: String,
    pub(crate) retry_interval_start: GoDuration,
    pub(crate) retry_interval_max: GoDuration,
    pub(crate) worker_threads: Option<Workers>,
    pub(crate) workers: Workers,
    pub(crate) resync_period: GoDuration,
    pub(crate) handle_volume_inuse_error: bool,
    pub(crate) extra_modify_metadata: bool,
    pub(crate) resync: GoDuration,
    pub(crate) reconcile_sync: GoDuration,
    pub(crate) max_entries: Entries,
    pub(crate) default_fstype: Option<String>,
    pub(crate) extra_create_metadata: bool,
    pub(crate) strict_topology: bool,
    pub(crate) immediate_topology: bool,
    pub(crate) node_deployment: bool,
    pub(crate) node_deployment_immediate_binding: bool,
    pub(crate) node_deployment_base_delay: GoDuration,
    pub(crate) node_deployment_max_delay: GoDuration,
    pub(crate) disable_force_detach_on_timeout: bool,
    pub(crate) orphan_scan_interval: ScanInterval,
    pub(crate) single_process: bool,
    pub(crate) manifest: Option<PathBuf>,
    pub(crate) csi_endpoint: Option<Socket>,
    pub(crate) node_name: Option<String>,
    pub(crate) node_records: Option<PathBuf>,
    pub(crate) kubelet_root: Vec<String>,
    pub(crate) kubelet_registration_path: Option<String>,
    pub(crate) plugin_registration_path: PathBuf,
    pub(crate) probe_timeout: GoDuration,
    pub(crate) health_port: Option<u16>,
    /// What the driver may have done on this node.
    #[serde(default)]
    pub(crate) node: Policy,
    #[serde(default)]
    pub(crate) compilation_cache: CompilationCache,
    pub(crate) log: Filter,
    pub(crate) log_format: LogFormat,
}

/// A configuration and where its values come from.
#[derive(Debug)]
pub(crate) struct Loaded {
    /// The settings.
    pub(crate) configuration: Configuration,
    origins: Origins,
}

#[derive(Debug)]
struct Origins {
    figment: Figment,
    layers: Vec<Layer>,
}

/// What the command line says of each setting.
type Given = Vec<(&'static str, Vec<String>)>;

impl ProcessFlags {
    fn given(&self) -> Given {
        let one = |text: &Option<String>| text.iter().cloned().collect();
        vec![
            ("role", self.role.clone()),
            ("backend", self.backend.clone()),
            ("csi-address", one(&self.csi_address)),
            ("csi-socket", one(&self.csi_socket)),
            ("socket-mode", one(&self.socket_mode)),
            ("socket-group", one(&self.socket_group)),
            ("http-endpoint", one(&self.http_endpoint)),
            ("timeout", one(&self.timeout)),
            ("drain-timeout", one(&self.drain_timeout)),
            ("volume-name-prefix", one(&self.volume_name_prefix)),
            ("retry-interval-start", one(&self.retry_interval_start)),
            ("retry-interval-max", one(&self.retry_interval_max)),
            ("worker-threads", one(&self.worker_threads)),
            ("workers", one(&self.workers)),
            ("resync-period", one(&self.resync_period)),
            ("handle-volume-inuse-error", one(&self.handle_volume_inuse_error)),
            ("extra-modify-metadata", one(&self.extra_modify_metadata)),
            ("resync", one(&self.resync)),
            ("reconcile-sync", one(&self.reconcile_sync)),
            ("max-entries", one(&self.max_entries)),
            ("default-fstype", one(&self.default_fstype)),
            ("extra-create-metadata", one(&self.extra_create_metadata)),
            ("strict-topology", one(&self.strict_topology)),
            ("immediate-topology", one(&self.immediate_topology)),
            ("disable-force-detach-on-timeout", one(&self.disable_force_detach_on_timeout)),
            ("orphan-scan-interval", one(&self.orphan_scan_interval)),
            ("compilation-cache", one(&self.compilation_cache)),
            ("log", one(&self.log)),
            ("log-format", one(&self.log_format)),
        ]
    }
}

impl NodeFlags {
    fn given(&self) -> Given {
        let one = |text: &Option<String>| text.iter().cloned().collect();
        vec![
            ("single-process", one(&self.single_process)),
            ("manifest", one(&self.manifest)),
            ("csi-endpoint", one(&self.csi_endpoint)),
            ("node-name", one(&self.node_name)),
            ("node-records", one(&self.node_records)),
            ("kubelet-root", self.kubelet_root.clone()),
            ("kubelet-registration-path", one(&self.kubelet_registration_path)),
            ("plugin-registration-path", one(&self.plugin_registration_path)),
            ("probe-timeout", one(&self.probe_timeout)),
            ("health-port", one(&self.health_port)),
            ("node-deployment", one(&self.node_deployment)),
            ("node-deployment-immediate-binding", one(&self.node_deployment_immediate_binding)),
            ("node-deployment-base-delay", one(&self.node_deployment_base_delay)),
            ("node-deployment-max-delay", one(&self.node_deployment_max_delay)),
        ]
    }
}

impl Loaded {
    /// The settings of `run` and `config`.
    ///
    /// # Errors
    /// [`ConfigError`], one line.
    pub(crate) fn for_cluster(
        flags: &ClusterFlags,
        environment: &HashMap<String, String>,
    ) -> Result<Self, ConfigError> {
        let mut given = flags.process.given();
        let own =
            [("kubeconfig", &flags.kubeconfig), ("context", &flags.context), ("namespace", &flags.namespace)];
        given.extend(own.map(|(name, text)| (name, text.iter().cloned().collect())));
        given.extend(flags.node.given());
        let loaded = Self::load(&given, environment, flags.process.config.as_deref(), &[])?;
        loaded.only_known_roles(Roles::names)?;
        let missing = |(_, section): &(&String, &BackendSection)| !section.is_somewhere();
        match loaded.configuration.backend.iter().find(missing) {
            Some((name, _)) => Err(loaded.without_file(name)),
            None => loaded.check_servers().map(|()| loaded),
        }
    }

    /// The settings of `dev`: every role unless told otherwise, the memory driver unless there are others,
    /// no topology for claims that ask for none, for its cluster has no nodes, and a quiet log, for the timeline tells what happens.
    ///
    /// # Errors
    /// [`ConfigError`], one line.
    pub(crate) fn for_dev(
        flags: &ProcessFlags,
        environment: &HashMap<String, String>,
    ) -> Result<Self, ConfigError> {
        let roles = Role::ALL.map(Role::as_str).join(",");
        let instead = [("role", roles.as_str()), ("immediate-topology", "false"), ("log", "warn")];
        let mut loaded = Self::load(&flags.given(), environment, flags.config.as_deref(), &instead)?;
        let known = || Role::ALL.map(Role::as_str).join(", ");
        loaded.only_known_roles(known)?;
        if let Some(role) = loaded.configuration.role.beside_cluster() {
            let problem =
                format!("{role} is for `cofferdam run`: expected roles that work on a cluster: {}", known());
            return Err(loaded.refuse("role", problem));
        }
        if loaded.configuration.backend.is_empty() {
            loaded.configuration.backend.insert(MEMORY.to_owned(), BackendSection::default());
        }
        let missing =
            |(name, section): &(&String, &BackendSection)| !section.is_somewhere() && carried(name).is_none();
        match loaded.configuration.backend.iter().find(missing) {
            Some((name, _)) => Err(loaded.without_file(name)),
            None => Ok(loaded),
        }
    }

    fn load(
        given: &Given,
        environment: &HashMap<String, String>,
        file: Option<&Path>,
        instead: &[(&'static str, &str)],
    ) -> Result<Self, ConfigError> {
        let mut sources = vec![source::defaults(instead)?, source::rust_log(environment)];
        if let Some((path, named)) = source::named(file, environment) {
            sources.push(source::file(&path, &named)?);
        }
        sources.push(source::environment(environment)?);
        sources.push(source::flags(given)?);
        let origins = Origins::of(sources);
        let mut configuration: Configuration = origins
            .figment
            .extract()
            .map_err(|error| ConfigError::from_figment(error, |key| origins.of_key(key)))?;
        // Roles of a node ask the driver there, and do not run it.
        let of_node = configuration.role.only_of_node();
        if let Some(socket) = configuration.csi_address.clone().filter(|_| !of_node) {
            let section = BackendSection { csi: Some(socket), ..BackendSection::default() };
            if configuration.backend.insert(CSI.to_owned(), section).is_some() {
                return Err(ConfigError::Value {
                    origin: origins.of_key("csi-address"),
                    key: "csi-address".to_owned(),
                    problem: format!(
                        "is the driver {CSI}, and so is backend.{CSI}: expected one of the two, or another name"
                    ),
                });
            }
        }
        let mut loaded = Self { configuration, origins };
        loaded.take_csi_socket()?;
        loaded.name_node()?;
        loaded.check()?;
        Ok(loaded)
    }

    /// Puts `node-name` where a driver's setting asks for it: a DaemonSet has one file for all its nodes.
    fn name_node(&mut self) -> Result<(), ConfigError> {
        let asks = |setting: &Setting| setting.0 == NODE_NAME;
        let sections = self.configuration.backend.iter();
        let asking = sections
            .flat_map(|(name, section)| {
                section.settings.iter().map(move |(key, setting)| (name, key, setting))
            })
            .find(|(.., setting)| asks(setting))
            .map(|(name, key, _)| format!("backend.{name}.settings.{key}"));
        let Some(key) = asking else { return Ok(()) };
        let Some(node) = self.configuration.node_name.clone() else {
            return Err(
                self.refuse(&key, format!("is {NODE_NAME}, and no node is named: expected --node-name"))
            );
        };
        let sections = self.configuration.backend.values_mut();
        for setting in sections.flat_map(|section| section.settings.values_mut()).filter(|it| asks(it)) {
            setting.0.clone_from(&node);
        }
        Ok(())
    }

    /// Gives `csi-socket` to the one driver that there is.
    fn take_csi_socket(&mut self) -> Result<(), ConfigError> {
        let Some(socket) = self.configuration.csi_socket.take() else { return Ok(()) };
        let mut sections = self.configuration.backend.values_mut();
        match (sections.next(), sections.next()) {
            (Some(only), None) => {
                only.socket = Some(socket);
                Ok(())
            }
            (None, _) => {
                Err(self.refuse("csi-socket", "serves no driver: expected one, as in --backend".to_owned()))
            }
            (Some(_), Some(_)) => Err(self.refuse(
                "csi-socket",
                "is for one driver, and there are several: expected `socket` in the section of each"
                    .to_owned(),
            )),
        }
    }

    /// What the role `csi-server` needs.
    fn check_servers(&self) -> Result<(), ConfigError> {
        let Configuration { role, backend, .. } = &self.configuration;
        if !role.servers.contains(&ServerRole::CsiServer) {
            return Ok(());
        }
        let mut served = BTreeMap::new();
        for (name, section) in backend {
            let Some(Socket(address)) = &section.socket else { continue };
            if let Some(other) = served.insert(address.path(), name) {
                let problem = format!("is the socket of backend.{other} too: expected one of its own");
                return Err(self.refuse(&format!("backend.{name}.socket"), problem));
            }
        }
        match served.is_empty() {
            true => Err(ConfigError::Missing(
                "no socket for the role csi-server: expected --csi-socket, or `socket` in [backend.NAME]"
                    .to_owned(),
            )),
            false => Ok(()),
        }
    }

    /// What no single value can tell.
    fn check(&self) -> Result<(), ConfigError> {
        let Configuration { retry_interval_start, retry_interval_max, backend, .. } = &self.configuration;
        let Configuration { resync, resync_period, reconcile_sync, .. } = &self.configuration;
        let pauses =
            [("resync", resync), ("resync-period", resync_period), ("reconcile-sync", reconcile_sync)];
        for (key, pause) in pauses {
            if pause.get() < MIN_PAUSE {
                return Err(self.refuse(key, format!("found {pause}, expected at least 1s")));
            }
        }
        self.check_log()?;
        if retry_interval_max < retry_interval_start {
            return Err(self.refuse(
                "retry-interval-max",
                format!("found {retry_interval_max}, expected at least retry-interval-start, {retry_interval_start}"),
            ));
        }
        let Configuration { node_deployment_base_delay: base, node_deployment_max_delay: most, .. } =
            &self.configuration;
        if most < base {
            return Err(self.refuse(
                "node-deployment-max-delay",
                format!("found {most}, expected at least node-deployment-base-delay, {base}"),
            ));
        }
        if self.configuration.node_deployment && self.configuration.node_name.is_none() {
            return Err(self.refuse(
                "node-deployment",
                "needs the name of the node: expected --node-name, or node-name in the configuration"
                    .to_owned(),
            ));
        }
        if self.configuration.node_name.as_deref() == Some("") {
            return Err(self.refuse("node-name", "is empty: expected the name of the Node".to_owned()));
        }
        for (name, section) in backend {
            if !source::is_backend_name(name) {
                let origin = self.origin(&format!("backend.{name}"));
                return Err(ConfigError::BackendName { origin, name: name.clone() });
            }
            self.check_csi(name, section)?;
            if section.file.as_ref().is_some_and(|file| file.as_os_str().is_empty()) {
                return Err(
                    self.refuse(&format!("backend.{name}.file"), "is empty: expected a file".to_owned())
                );
            }
        }
        Ok(())
    }

    /// Refuses what has no meaning for the kind of driver that a section is.
    fn check_csi(&self, name: &str, section: &BackendSection) -> Result<(), ConfigError> {
        let key = |key: &str| format!("backend.{name}.{key}");
        if section.csi.is_none() {
            return match section.driver_name {
                Some(_) => Err(self.refuse(
                    &key("driver-name"),
                    format!("is for CSI drivers: expected it beside {}", key("csi")),
                )),
                None => Ok(()),
            };
        }
        let given = |of: &&&str| self.origins.figment.find_value(&key(of)).is_ok();
        match OF_COMPONENTS.iter().find(given) {
            Some(of) => {
                Err(self.refuse(&key(of), format!("is for components: expected none beside {}", key("csi"))))
            }
            None => Ok(()),
        }
    }

    /// Refuses a role that does not exist, with those that this command has.
    fn only_known_roles(&self, known: impl FnOnce() -> String) -> Result<(), ConfigError> {
        match &self.configuration.role.unknown {
            Some(name) => {
                Err(self.refuse("role", format!("unknown role {name:?}: expected one of {}", known())))
            }
            None => Ok(()),
        }
    }

    /// Refuses a level that is none, but where it may be meant for other programs.
    fn check_log(&self) -> Result<(), ConfigError> {
        let origin = self.origin("log");
        match self.configuration.log.misspelt() {
            Some(word) if origin != Origin::Variable(RUST_LOG.to_owned()) => Err(self.refuse(
                "log",
                format!(
                    "{word:?} is no level: expected off, error, warn, info, debug or trace, or directives such as \
                     info,cofferdam_controllers=debug"
                ),
            )),
            Some(_) | None => Ok(()),
        }
    }

    fn without_file(&self, name: &str) -> ConfigError {
        let key = format!("backend.{name}.file");
        let origin = self.origin(&key);
        ConfigError::Missing(format!("{key} is missing: expected it, or backend.{name}.csi, in {origin}"))
    }

    /// The error that a key's value is not as it has to be.
    pub(crate) fn refuse(&self, key: &str, problem: String) -> ConfigError {
        ConfigError::Value { origin: self.origin(key), key: key.to_owned(), problem }
    }

    /// Who said a key's value.
    pub(crate) fn origin(&self, key: &str) -> Origin {
        self.origins.of_key(key)
    }

    /// Every effective value with its origin, one a line, in columns.
    pub(crate) fn table(&self) -> String {
        let mut rows: Vec<[String; 3]> = vec![["KEY", "VALUE", "FROM"].map(str::to_owned)];
        for key in &KEYS {
            match self.origins.figment.find_value(key.name) {
                Ok(value) if matches!(key.shape, Shape::Backends | Shape::Table) => {
                    self.leaves(key.name, &value, &mut rows)
                }
                Ok(value) => self.row(key.name, &value, &mut rows),
                Err(_) => {
                    rows.push([key.name.to_owned(), "(not set)".to_owned(), Origin::Default.to_string()])
                }
            }
        }
        let width = |column: usize| {
            rows.iter()
                .filter_map(|row| row.get(column))
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or_default()
        };
        let (keys, values) = (width(0), width(1));
        let mut table = String::new();
        for [key, value, origin] in &rows {
            // Writing to a string cannot fail.
            let _ = writeln!(table, "{key:keys$}  {value:values$}  {origin}");
        }
        table
    }

    fn leaves(&self, key: &str, value: &Value, rows: &mut Vec<[String; 3]>) {
        match value.as_dict() {
            Some(table) if !table.is_empty() => {
                for (name, value) in table {
                    self.leaves(&format!("{key}.{name}"), value, rows);
                }
            }
            Some(_) | None => self.row(key, value, rows),
        }
    }

    fn row(&self, key: &str, value: &Value, rows: &mut Vec<[String; 3]>) {
        rows.push([key.to_owned(), value::show(value), self.origin(key).to_string()]);
    }
}

impl Origins {
    fn of(sources: Vec<Source>) -> Self {
        let layers = sources.iter().map(|source| source.layer.clone()).collect();
        let figment = sources.into_iter().fold(Figment::new(), Figment::merge);
        Self { figment, layers }
    }

    /// Looks at the closest key that somebody said: an error may be about a key inside of a value, or a missing one.
    fn of_key(&self, key: &str) -> Origin {
        let mut closest = key;
        loop {
            if let Some(metadata) = self.figment.find_metadata(closest) {
                let layer = self.layers.iter().find(|layer| layer.name() == metadata.name);
                return layer.map_or(Origin::Default, |layer| layer.origin(key));
            }
            match closest.rsplit_once('.') {
                Some((parent, _)) => closest = parent,
                None => return Origin::Default,
            }
        }
    }
}
