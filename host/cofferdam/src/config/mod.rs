//! Configuration from flags, environment, file and defaults, in this order of precedence, with the origin of
//! every value. For the setting `log`, `RUST_LOG` precedes the default.

mod backend;
mod duration;
mod error;
mod feature_gates;
mod flags;
mod origin;
mod role;
mod settings;
mod source;
mod value;

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use cofferdam_cluster::leader_election::LeaseDurations;
use cofferdam_controllers::Role;
use figment::{Figment, value::Value};

pub(crate) use backend::{BackendSection, SettingValue, carried_component};
use backend::{COMPONENT_KEYS, CsiSocketAddress, MEMORY_BACKEND};
pub(crate) use duration::GoDuration;
pub(crate) use error::ConfigError;
pub(crate) use feature_gates::{FeatureGate, FeatureGateError, parse_gate};
pub(crate) use flags::{CliValues, ConnectionSelection, DevSelection, RunSelection, SettingFlags};
pub(crate) use origin::ValueOrigin;
pub(crate) use role::{NodeRole, Roles, ServerRole};
pub(crate) use settings::{Configuration, SETTINGS};
#[cfg(test)]
pub(crate) use settings::{Setting, SettingDefault};
pub(crate) use source::{
    backend_name, check_backend_location, is_backend_name, name_of_backend, split_backend,
};
pub(crate) use value::{CompilationCache, HttpEndpoint, LogFormat, MetricsPath, SecretNamespaceList};

pub(crate) use settings::ValueKind;
use source::{ConfigSource, ConfigSourceKind, Defaults};

use crate::{style::TerminalText, table::TextTable};

/// Shortest value of `resync`, `resync-period` and `reconcile-sync`.
const MIN_RESYNC_PERIOD: Duration = Duration::from_secs(1);

/// Value of a driver's setting that is replaced by the value of `node-name`.
const NODE_NAME_PLACEHOLDER: &str = "$(node-name)";
/// Environment variable of the log filter, as in other Rust programs.
const RUST_LOG: &str = "RUST_LOG";
/// Name of the section that `csi-address` adds.
const CSI_ADDRESS_BACKEND: &str = "csi";

/// A configuration with the origins of its values.
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

impl ResolvedConfig {
    /// Resolves the settings of `run`, `config`, `status` and `orphans`.
    ///
    /// # Errors
    /// [`ConfigError`], one line.
    pub(crate) fn for_cluster(
        flags: &CliValues,
        environment: &HashMap<String, String>,
    ) -> Result<Self, ConfigError> {
        let resolved = Self::load(flags, environment, Defaults::Run)?;
        resolved.check_known_roles(Roles::names)?;
        let missing = |(_, section): &(&String, &BackendSection)| !section.has_location();
        match resolved.configuration.backend.iter().find(missing) {
            Some((name, _)) => Err(resolved.missing_file_error(name)),
            None => resolved.check_csi_sockets().map(|()| resolved),
        }
    }

    /// Resolves the settings of a process that has the command line of a sidecar. `defaults` has the settings
    /// whose default is the sidecar's.
    ///
    /// # Errors
    /// [`ConfigError`], one line.
    pub(crate) fn for_sidecar(
        flags: &CliValues,
        environment: &HashMap<String, String>,
        defaults: &'static [(&'static str, &'static str)],
    ) -> Result<Self, ConfigError> {
        let resolved = Self::load(flags, environment, Defaults::Sidecar(defaults))?;
        resolved.check_known_roles(Roles::names)?;
        Ok(resolved)
    }

    /// Resolves the settings of `dev` and of `backend`. Their defaults are all roles that reconcile a
    /// cluster, the memory driver, `immediate-topology` off, and the log level warn, because the timeline of
    /// `dev` prints the steps.
    ///
    /// # Errors
    /// [`ConfigError`], one line.
    pub(crate) fn for_dev(
        flags: &CliValues,
        environment: &HashMap<String, String>,
    ) -> Result<Self, ConfigError> {
        let mut resolved = Self::load(flags, environment, Defaults::Dev)?;
        let known = || Role::ALL.map(Role::as_str).join(", ");
        resolved.check_known_roles(known)?;
        if let Some(role) = resolved.configuration.role.first_role_without_cluster() {
            let problem = format!(
                "{role} is for `cofferdam run`: expected roles that reconcile a cluster: {}",
                known()
            );
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
        flags: &CliValues,
        environment: &HashMap<String, String>,
        defaults: Defaults,
    ) -> Result<Self, ConfigError> {
        let mut sources = vec![source::from_defaults(defaults)?, source::from_rust_log(environment)];
        if let Some((path, named)) = source::config_file(flags.config_file.as_deref(), environment) {
            sources.push(source::from_file(&path, &named)?);
        }
        sources.push(source::from_environment(environment)?);
        sources.push(source::from_flags(flags)?);
        let provenance = Provenance::from_sources(sources);
        let mut configuration: Configuration = provenance
            .figment
            .extract()
            .map_err(|error| ConfigError::from_figment(error, |key| provenance.origin_of(key)))?;
        // Node roles connect to the socket as a client; they do not load the driver.
        let node_only = configuration.role.is_node_only();
        if let Some(socket) = configuration.csi_address.clone().filter(|_| !node_only) {
            let section = BackendSection { csi: Some(socket), ..BackendSection::default() };
            if configuration.backend.insert(CSI_ADDRESS_BACKEND.to_owned(), section).is_some() {
                return Err(ConfigError::Value {
                    origin: provenance.origin_of("csi-address"),
                    key: "csi-address".to_owned(),
                    problem: format!(
                        "is the driver {CSI_ADDRESS_BACKEND}, and so is backend.{CSI_ADDRESS_BACKEND}: \
                         expected one of the two, or another name"
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

    /// Sets every driver setting whose whole value is `$(node-name)` to the value of `node-name`, so that all
    /// nodes of a DaemonSet can share one configuration file. Fails if the placeholder is used and
    /// `node-name` is not set.
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
                format!("is {NODE_NAME_PLACEHOLDER}, and node-name is not set: expected --node-name"),
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

    /// Moves the value of `csi-socket` to `socket` in the section of the only driver. Fails if `csi-socket`
    /// is set and the configuration has no driver or several.
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

    /// Rejects the role `csi-server` without a socket, and with two drivers on one socket.
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

    /// Checks ranges of values, and combinations of them.
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
                format!(
                    "found {retry_interval_max}, expected at least retry-interval-start, \
                 {retry_interval_start}"
                ),
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
        self.check_leader_election()?;
        self.check_endpoints()?;
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

    /// Durations of leader election.
    pub(crate) fn lease_durations(configuration: &Configuration) -> LeaseDurations {
        LeaseDurations {
            lease_duration: configuration.leader_election_lease_duration.get(),
            renew_deadline: configuration.leader_election_renew_deadline.get(),
            retry_period: configuration.leader_election_retry_period.get(),
        }
    }

    fn check_leader_election(&self) -> Result<(), ConfigError> {
        let configuration = &self.configuration;
        if configuration.leader_election == Some(false) {
            return Ok(());
        }
        if configuration.node_deployment && configuration.leader_election == Some(true) {
            let problem = "is for one process per driver, and node-deployment for one per node: expected one of \
                           the two";
            return Err(self.value_error("leader-election", problem.to_owned()));
        }
        Self::lease_durations(configuration)
            .validate()
            .map_err(|error| self.value_error("leader-election", error.to_string()))
    }

    /// Rejects two addresses for health. The Go sidecars accept the default of `health-port` beside
    /// `http-endpoint`.
    fn check_endpoints(&self) -> Result<(), ConfigError> {
        let Configuration { role, http_endpoint, health_port, .. } = &self.configuration;
        if http_endpoint.is_none() {
            return Ok(());
        }
        let has_other_port = |default: u16| health_port.is_some_and(|port| port != default);
        if !role.default_health_port().is_some_and(has_other_port) {
            return Ok(());
        }
        let problem = "cannot be set with http-endpoint, which has the same pages: expected one of the two";
        Err(self.value_error("health-port", problem.to_owned()))
    }

    /// Rejects keys of a section that do not apply to its kind of driver.
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

    /// Rejects an unknown role; the error lists the roles of the command.
    fn check_known_roles(&self, known: impl FnOnce() -> String) -> Result<(), ConfigError> {
        match &self.configuration.role.unknown {
            Some(name) => {
                Err(self.value_error("role", format!("unknown role {name:?}: expected one of {}", known())))
            }
            None => Ok(()),
        }
    }

    /// Rejects a misspelt log level, except in `RUST_LOG`, which may be meant for other programs.
    fn check_log(&self) -> Result<(), ConfigError> {
        let origin = self.origin("log");
        match self.configuration.log.unknown_level() {
            Some(directive) if origin != ValueOrigin::EnvVar(RUST_LOG.to_owned()) => Err(self.value_error(
                "log",
                format!(
                    "{directive:?} is not a level: expected off, error, warn, info, debug or trace, or \
                     directives such as \
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

    /// Creates the error of an invalid value.
    pub(crate) fn value_error(&self, key: &str, problem: String) -> ConfigError {
        ConfigError::Value { origin: self.origin(key), key: key.to_owned(), problem }
    }

    /// Origin of a key's value.
    pub(crate) fn origin(&self, key: &str) -> ValueOrigin {
        self.provenance.origin_of(key)
    }

    /// Formats every setting with its value and origin, one per line, in columns. The values are those of the
    /// sources: defaults that the program derives are `(not set)`, and `$(node-name)` is not replaced.
    pub(crate) fn to_table(&self) -> TerminalText {
        let mut table = TextTable::new(["KEY", "VALUE", "FROM"]);
        for setting in SETTINGS.iter() {
            match self.provenance.figment.find_value(&setting.name) {
                Ok(value) if matches!(setting.kind, ValueKind::Backends(_) | ValueKind::Table) => {
                    self.push_leaf_rows(&setting.name, &value, &mut table)
                }
                Ok(value) => self.push_row(&setting.name, &value, &mut table),
                Err(_) => table.push([
                    setting.name.clone(),
                    "(not set)".to_owned(),
                    ValueOrigin::Default.to_string(),
                ]),
            }
        }
        table.to_text()
    }

    /// The values of the settings that the sources set, as text. Those of the drivers' sections are left out.
    pub(crate) fn setting_values(&self) -> BTreeMap<&'static str, String> {
        let settings = SETTINGS.iter().filter(|setting| !matches!(setting.kind, ValueKind::Backends(_)));
        let value = |name: &str| self.provenance.figment.find_value(name).ok();
        settings
            .filter_map(|setting| Some((&*setting.name, value::format_value(&value(&setting.name)?))))
            .collect()
    }

    fn push_leaf_rows(&self, key: &str, value: &Value, rows: &mut TextTable<3>) {
        match value.as_dict() {
            Some(table) if !table.is_empty() => {
                for (name, value) in table {
                    self.push_leaf_rows(&format!("{key}.{name}"), value, rows);
                }
            }
            Some(_) | None => self.push_row(key, value, rows),
        }
    }

    fn push_row(&self, key: &str, value: &Value, rows: &mut TextTable<3>) {
        rows.push([key.to_owned(), value::format_value(value), self.origin(key).to_string()]);
    }
}

impl Provenance {
    fn from_sources(sources: Vec<ConfigSource>) -> Self {
        let layers = sources.iter().map(|source| source.kind.clone()).collect();
        let figment = sources.into_iter().fold(Figment::new(), Figment::merge);
        Self { figment, layers }
    }

    /// Origin of a key, or of the closest enclosing key that is set: an error may be about a missing key.
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
