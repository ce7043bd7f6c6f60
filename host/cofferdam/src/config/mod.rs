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
use cofferdam_node::NodePolicy;
use figment::{Figment, value::Value};
use serde::Deserialize;

pub(crate) use backend::{BackendSection, SettingValue, carried_component};
use backend::{COMPONENT_KEYS, CsiSocketAddress, MEMORY_BACKEND};
pub(crate) use duration::GoDuration;
pub(crate) use error::ConfigError;
pub(crate) use source::{ValueOrigin, backend_name, check_backend_location};
pub(crate) use value::{CompilationCache, HttpEndpoint, LogFormat, Roles, ServerRole};

use keys::{KEYS, ValueKind};
use source::{ConfigSource, ConfigSourceKind};
use value::{LogFilter, MaxEntries, NamespaceName, ScanInterval, SocketGroup, SocketMode, WorkerCount};

use crate::cli::{ClusterFlags, NodeFlags, ProcessFlags};

/// Shortest pause between two looks at everything.
const MIN_RESYNC_PERIOD: Duration = Duration::from_secs(1);

/// The value of a driver's setting that stands for the name of the node.
const NODE_NAME_PLACEHOLDER: &str = "$(node-name)";
/// The variable that every program of this ecosystem reads for its log.
const RUST_LOG: &str = "RUST_LOG";
/// Name of the driver that `csi-address` gives.
const CSI_ADDRESS_BACKEND: &str = "csi";

/// Every setting, checked.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct Configuration {
    #[serde(default)]
    pub(crate) role: Roles,
    #[serde(default)]
    pub(crate) backend: BTreeMap<String, BackendSection>,
    pub(crate) csi_address: Option<CsiSocketAddress>,
    csi_socket: Option<CsiSocketAddress>,
    pub(crate) socket_mode: SocketMode,
    pub(crate) socket_group: Option<SocketGroup>,
    pub(crate) kubeconfig: Option<PathBuf>,
    pub(crate) context: Option<String>,
    pub(crate) namespace: Option<NamespaceName>,
    pub(crate) http_endpoint: Option<HttpEndpoint>,
    pub(crate) timeout: GoDuration,
    pub(crate) drain_timeout: GoDuration,
    pub(crate) volume_name_prefix: String,
    pub(crate) retry_interval_start: GoDuration,
    pub(crate) retry_interval_max: GoDuration,
    pub(crate) worker_threads: Option<WorkerCount>,
    pub(crate) workers: WorkerCount,
    pub(crate) resync_period: GoDuration,
    pub(crate) handle_volume_inuse_error: bool,
    pub(crate) extra_modify_metadata: bool,
    pub(crate) resync: GoDuration,
    pub(crate) reconcile_sync: GoDuration,
    pub(crate) max_entries: MaxEntries,
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
    pub(crate) csi_endpoint: Option<CsiSocketAddress>,
    pub(crate) node_name: Option<String>,
    pub(crate) node_records: Option<PathBuf>,
    pub(crate) kubelet_root: Vec<String>,
    pub(crate) kubelet_registration_path: Option<String>,
    pub(crate) plugin_registration_path: PathBuf,
    pub(crate) probe_timeout: GoDuration,
    pub(crate) health_port: Option<u16>,
    /// What the driver may have done on this node.
    #[serde(default)]
    pub(crate) node: NodePolicy,
    #[serde(default)]
    pub(crate) compilation_cache: CompilationCache,
    pub(crate) log: LogFilter,
    pub(crate) log_format: LogFormat,
}

/// A configuration and where its values come from.
#[derive(Debug)]
pub(crate) struct ResolvedConfig {
    /// The settings.
    pub(crate) configuration: Configuration,
    provenance: Provenance,
}

#[derive(Debug)]
struct Provenance {
    figment: Figment,
    layers: Vec<ConfigSourceKind>,
}

/// What the command line says of each setting.
type CliValues = Vec<(&'static str, Vec<String>)>;

impl ProcessFlags {
    fn cli_values(&self) -> CliValues {
        let single = |text: &Option<String>| text.iter().cloned().collect();
        vec![
            ("role", self.role.clone()),
            ("backend", self.backend.clone()),
            ("csi-address", single(&self.csi_address)),
            ("csi-socket", single(&self.csi_socket)),
            ("socket-mode", single(&self.socket_mode)),
            ("socket-group", single(&self.socket_group)),
            ("http-endpoint", single(&self.http_endpoint)),
            ("timeout", single(&self.timeout)),
            ("drain-timeout", single(&self.drain_timeout)),
            ("volume-name-prefix", single(&self.volume_name_prefix)),
            ("retry-interval-start", single(&self.retry_interval_start)),
            ("retry-interval-max", single(&self.retry_interval_max)),
            ("worker-threads", single(&self.worker_threads)),
            ("workers", single(&self.workers)),
            ("resync-period", single(&self.resync_period)),
            ("handle-volume-inuse-error", single(&self.handle_volume_inuse_error)),
            ("extra-modify-metadata", single(&self.extra_modify_metadata)),
            ("resync", single(&self.resync)),
            ("reconcile-sync", single(&self.reconcile_sync)),
            ("max-entries", single(&self.max_entries)),
            ("default-fstype", single(&self.default_fstype)),
            ("extra-create-metadata", single(&self.extra_create_metadata)),
            ("strict-topology", single(&self.strict_topology)),
            ("immediate-topology", single(&self.immediate_topology)),
            ("disable-force-detach-on-timeout", single(&self.disable_force_detach_on_timeout)),
            ("orphan-scan-interval", single(&self.orphan_scan_interval)),
            ("compilation-cache", single(&self.compilation_cache)),
            ("log", single(&self.log)),
            ("log-format", single(&self.log_format)),
        ]
    }
}

impl NodeFlags {
    fn cli_values(&self) -> CliValues {
        let single = |text: &Option<String>| text.iter().cloned().collect();
        vec![
            ("single-process", single(&self.single_process)),
            ("manifest", single(&self.manifest)),
            ("csi-endpoint", single(&self.csi_endpoint)),
            ("node-name", single(&self.node_name)),
            ("node-records", single(&self.node_records)),
            ("kubelet-root", self.kubelet_root.clone()),
            ("kubelet-registration-path", single(&self.kubelet_registration_path)),
            ("plugin-registration-path", single(&self.plugin_registration_path)),
            ("probe-timeout", single(&self.probe_timeout)),
            ("health-port", single(&self.health_port)),
            ("node-deployment", single(&self.node_deployment)),
            ("node-deployment-immediate-binding", single(&self.node_deployment_immediate_binding)),
            ("node-deployment-base-delay", single(&self.node_deployment_base_delay)),
            ("node-deployment-max-delay", single(&self.node_deployment_max_delay)),
        ]
    }
}

impl ResolvedConfig {
    /// The settings of `run` and `config`.
    ///
    /// # Errors
    /// [`ConfigError`], one line.
    pub(crate) fn for_cluster(
        flags: &ClusterFlags,
        environment: &HashMap<String, String>,
    ) -> Result<Self, ConfigError> {
        let mut cli_values = flags.process.cli_values();
        let cluster_values =
            [("kubeconfig", &flags.kubeconfig), ("context", &flags.context), ("namespace", &flags.namespace)];
        cli_values.extend(cluster_values.map(|(name, text)| (name, text.iter().cloned().collect())));
        cli_values.extend(flags.node.cli_values());
        let resolved = Self::load(&cli_values, environment, flags.process.config.as_deref(), &[])?;
        resolved.check_known_roles(Roles::names)?;
        let missing = |(_, section): &(&String, &BackendSection)| !section.has_location();
        match resolved.configuration.backend.iter().find(missing) {
            Some((name, _)) => Err(resolved.missing_file_error(name)),
            None => resolved.check_csi_sockets().map(|()| resolved),
        }
    }

    /// The settings of `dev`: every role unless told otherwise, the memory driver unless there are others, no
    /// topology for claims that ask for none, for its cluster has no nodes, and a quiet log, for the timeline
    /// tells what happens.
    ///
    /// # Errors
    /// [`ConfigError`], one line.
    pub(crate) fn for_dev(
        flags: &ProcessFlags,
        environment: &HashMap<String, String>,
    ) -> Result<Self, ConfigError> {
        let roles = Role::ALL.map(Role::as_str).join(",");
        let overrides = [("role", roles.as_str()), ("immediate-topology", "false"), ("log", "warn")];
        let mut resolved = Self::load(&flags.cli_values(), environment, flags.config.as_deref(), &overrides)?;
        let known = || Role::ALL.map(Role::as_str).join(", ");
        resolved.check_known_roles(known)?;
        if let Some(role) = resolved.configuration.role.first_role_without_cluster() {
            let problem =
                format!("{role} is for `cofferdam run`: expected roles that work on a cluster: {}", known());
            return Err(resolved.value_error("role", problem));
        }
        if resolved.configuration.backend.is_empty() {
            resolved.configuration.backend.insert(MEMORY_BACKEND.to_owned(), BackendSection::default());
        }
        let missing = |(name, section): &(&String, &BackendSection)| {
            !section.has_location() && carried_component(name).is_none()
        };
        match resolved.configuration.backend.iter().find(missing) {
            Some((name, _)) => Err(resolved.missing_file_error(name)),
            None => Ok(resolved),
        }
    }

    fn load(
        cli_values: &CliValues,
        environment: &HashMap<String, String>,
        file: Option<&Path>,
        overrides: &[(&'static str, &str)],
    ) -> Result<Self, ConfigError> {
        let mut sources = vec![source::from_defaults(overrides)?, source::from_rust_log(environment)];
        if let Some((path, named)) = source::config_file(file, environment) {
            sources.push(source::from_file(&path, &named)?);
        }
        sources.push(source::from_environment(environment)?);
        sources.push(source::from_flags(cli_values)?);
        let provenance = Provenance::from_sources(sources);
        let mut configuration: Configuration = provenance
            .figment
            .extract()
            .map_err(|error| ConfigError::from_figment(error, |key| provenance.origin_of(key)))?;
        // Roles of a node ask the driver there, and do not run it.
        let node_only = configuration.role.is_node_only();
        if let Some(socket) = configuration.csi_address.clone().filter(|_| !node_only) {
            let section = BackendSection { csi: Some(socket), ..BackendSection::default() };
            if configuration.backend.insert(CSI_ADDRESS_BACKEND.to_owned(), section).is_some() {
                return Err(ConfigError::Value {
                    origin: provenance.origin_of("csi-address"),
                    key: "csi-address".to_owned(),
                    problem: format!(
                        "is the driver {CSI_ADDRESS_BACKEND}, and so is backend.{CSI_ADDRESS_BACKEND}: expected one of the two, or another name"
                    ),
                });
            }
        }
        let mut resolved = Self { configuration, provenance };
        resolved.assign_csi_socket()?;
        resolved.expand_node_name()?;
        resolved.check_combinations()?;
        Ok(resolved)
    }

    /// Puts `node-name` where a driver's setting asks for it: a DaemonSet has one file for all its nodes.
    fn expand_node_name(&mut self) -> Result<(), ConfigError> {
        let is_placeholder = |setting: &SettingValue| setting.0 == NODE_NAME_PLACEHOLDER;
        let sections = self.configuration.backend.iter();
        let placeholder_keys = sections
            .flat_map(|(name, section)| {
                section.settings.iter().map(move |(key, setting)| (name, key, setting))
            })
            .find(|(.., setting)| is_placeholder(setting))
            .map(|(name, key, _)| format!("backend.{name}.settings.{key}"));
        let Some(key) = placeholder_keys else { return Ok(()) };
        let Some(node) = self.configuration.node_name.clone() else {
            return Err(self.value_error(
                &key,
                format!("is {NODE_NAME_PLACEHOLDER}, and no node is named: expected --node-name"),
            ));
        };
        let sections = self.configuration.backend.values_mut();
        for setting in sections
            .flat_map(|section| section.settings.values_mut())
            .filter(|candidate| is_placeholder(candidate))
        {
            setting.0.clone_from(&node);
        }
        Ok(())
    }

    /// Gives `csi-socket` to the one driver that there is.
    fn assign_csi_socket(&mut self) -> Result<(), ConfigError> {
        let Some(socket) = self.configuration.csi_socket.take() else { return Ok(()) };
        let mut sections = self.configuration.backend.values_mut();
        match (sections.next(), sections.next()) {
            (Some(backend), None) => {
                backend.socket = Some(socket);
                Ok(())
            }
            (None, _) => {
                Err(self
                    .value_error("csi-socket", "serves no driver: expected one, as in --backend".to_owned()))
            }
            (Some(_), Some(_)) => Err(self.value_error(
                "csi-socket",
                "is for one driver, and there are several: expected `socket` in the section of each"
                    .to_owned(),
            )),
        }
    }

    /// What the role `csi-server` needs.
    fn check_csi_sockets(&self) -> Result<(), ConfigError> {
        let Configuration { role, backend, .. } = &self.configuration;
        if !role.servers.contains(&ServerRole::CsiServer) {
            return Ok(());
        }
        let mut socket_owners = BTreeMap::new();
        for (name, section) in backend {
            let Some(CsiSocketAddress(address)) = &section.socket else { continue };
            if let Some(other) = socket_owners.insert(address.path(), name) {
                let problem = format!("is the socket of backend.{other} too: expected one of its own");
                return Err(self.value_error(&format!("backend.{name}.socket"), problem));
            }
        }
        match socket_owners.is_empty() {
            true => Err(ConfigError::Missing(
                "no socket for the role csi-server: expected --csi-socket, or `socket` in [backend.NAME]"
                    .to_owned(),
            )),
            false => Ok(()),
        }
    }

    /// What no single value can tell.
    fn check_combinations(&self) -> Result<(), ConfigError> {
        let Configuration { retry_interval_start, retry_interval_max, backend, .. } = &self.configuration;
        let Configuration { resync, resync_period, reconcile_sync, .. } = &self.configuration;
        let periods =
            [("resync", resync), ("resync-period", resync_period), ("reconcile-sync", reconcile_sync)];
        for (key, period) in periods {
            if period.get() < MIN_RESYNC_PERIOD {
                return Err(self.value_error(key, format!("found {period}, expected at least 1s")));
            }
        }
        self.check_log()?;
        if retry_interval_max < retry_interval_start {
            return Err(self.value_error(
                "retry-interval-max",
                format!("found {retry_interval_max}, expected at least retry-interval-start, {retry_interval_start}"),
            ));
        }
        let Configuration {
            node_deployment_base_delay: base_delay,
            node_deployment_max_delay: max_delay,
            ..
        } = &self.configuration;
        if max_delay < base_delay {
            return Err(self.value_error(
                "node-deployment-max-delay",
                format!("found {max_delay}, expected at least node-deployment-base-delay, {base_delay}"),
            ));
        }
        if self.configuration.node_deployment && self.configuration.node_name.is_none() {
            return Err(self.value_error(
                "node-deployment",
                "needs the name of the node: expected --node-name, or node-name in the configuration"
                    .to_owned(),
            ));
        }
        if self.configuration.node_name.as_deref() == Some("") {
            return Err(self.value_error("node-name", "is empty: expected the name of the Node".to_owned()));
        }
        for (name, section) in backend {
            if !source::is_backend_name(name) {
                let origin = self.origin(&format!("backend.{name}"));
                return Err(ConfigError::BackendName { origin, name: name.clone() });
            }
            self.check_backend_kind(name, section)?;
            if section.file.as_ref().is_some_and(|file| file.as_os_str().is_empty()) {
                return Err(
                    self.value_error(&format!("backend.{name}.file"), "is empty: expected a file".to_owned())
                );
            }
        }
        Ok(())
    }

    /// Refuses what has no meaning for the kind of driver that a section is.
    fn check_backend_kind(&self, name: &str, section: &BackendSection) -> Result<(), ConfigError> {
        let key = |key: &str| format!("backend.{name}.{key}");
        if section.csi.is_none() {
            return match section.driver_name {
                Some(_) => Err(self.value_error(
                    &key("driver-name"),
                    format!("is for CSI drivers: expected it beside {}", key("csi")),
                )),
                None => Ok(()),
            };
        }
        let is_set = |component_key: &&&str| self.provenance.figment.find_value(&key(component_key)).is_ok();
        match COMPONENT_KEYS.iter().find(is_set) {
            Some(component_key) => Err(self.value_error(
                &key(component_key),
                format!("is for components: expected none beside {}", key("csi")),
            )),
            None => Ok(()),
        }
    }

    /// Refuses a role that does not exist, with those that this command has.
    fn check_known_roles(&self, known: impl FnOnce() -> String) -> Result<(), ConfigError> {
        match &self.configuration.role.unknown {
            Some(name) => {
                Err(self.value_error("role", format!("unknown role {name:?}: expected one of {}", known())))
            }
            None => Ok(()),
        }
    }

    /// Refuses a level that is none, but where it may be meant for other programs.
    fn check_log(&self) -> Result<(), ConfigError> {
        let origin = self.origin("log");
        match self.configuration.log.unknown_level() {
            Some(directive) if origin != ValueOrigin::EnvVar(RUST_LOG.to_owned()) => Err(self.value_error(
                "log",
                format!(
                    "{directive:?} is no level: expected off, error, warn, info, debug or trace, or directives such as \
                     info,cofferdam_controllers=debug"
                ),
            )),
            Some(_) | None => Ok(()),
        }
    }

    fn missing_file_error(&self, name: &str) -> ConfigError {
        let key = format!("backend.{name}.file");
        let origin = self.origin(&key);
        ConfigError::Missing(format!("{key} is missing: expected it, or backend.{name}.csi, in {origin}"))
    }

    /// The error that a key's value is not as it has to be.
    pub(crate) fn value_error(&self, key: &str, problem: String) -> ConfigError {
        ConfigError::Value { origin: self.origin(key), key: key.to_owned(), problem }
    }

    /// Who said a key's value.
    pub(crate) fn origin(&self, key: &str) -> ValueOrigin {
        self.provenance.origin_of(key)
    }

    /// Every effective value with its origin, one a line, in columns.
    pub(crate) fn to_table(&self) -> String {
        let mut rows: Vec<[String; 3]> = vec![["KEY", "VALUE", "FROM"].map(str::to_owned)];
        for key in &KEYS {
            match self.provenance.figment.find_value(key.name) {
                Ok(value) if matches!(key.kind, ValueKind::Backends | ValueKind::Table) => {
                    self.push_leaf_rows(key.name, &value, &mut rows)
                }
                Ok(value) => self.push_row(key.name, &value, &mut rows),
                Err(_) => {
                    rows.push([key.name.to_owned(), "(not set)".to_owned(), ValueOrigin::Default.to_string()])
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

    fn push_leaf_rows(&self, key: &str, value: &Value, rows: &mut Vec<[String; 3]>) {
        match value.as_dict() {
            Some(table) if !table.is_empty() => {
                for (name, value) in table {
                    self.push_leaf_rows(&format!("{key}.{name}"), value, rows);
                }
            }
            Some(_) | None => self.push_row(key, value, rows),
        }
    }

    fn push_row(&self, key: &str, value: &Value, rows: &mut Vec<[String; 3]>) {
        rows.push([key.to_owned(), value::format_value(value), self.origin(key).to_string()]);
    }
}

impl Provenance {
    fn from_sources(sources: Vec<ConfigSource>) -> Self {
        let layers = sources.iter().map(|source| source.kind.clone()).collect();
        let figment = sources.into_iter().fold(Figment::new(), Figment::merge);
        Self { figment, layers }
    }

    /// Looks at the closest key that somebody said: an error may be about a key inside of a value, or a
    /// missing one.
    fn origin_of(&self, key: &str) -> ValueOrigin {
        let mut closest = key;
        loop {
            if let Some(metadata) = self.figment.find_metadata(closest) {
                let layer = self.layers.iter().find(|layer| layer.name() == metadata.name);
                return layer.map_or(ValueOrigin::Default, |layer| layer.origin(key));
            }
            match closest.rsplit_once('.') {
                Some((parent, _)) => closest = parent,
                None => return ValueOrigin::Default,
            }
        }
    }
}
