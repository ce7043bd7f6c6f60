//! Sources of settings, as figment providers: flags, environment, file, `RUST_LOG` and defaults.

use std::{
    collections::{BTreeMap, HashMap},
    ops::Range,
    path::{Path, PathBuf},
    str::FromStr,
    sync::Arc,
};

use cofferdam_controllers::Role;
use cofferdam_csi::Address;
use figment::{
    Metadata, Profile, Provider,
    value::{Dict, Map, Value},
};
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::{
    error::ConfigError,
    flags::CliValues,
    origin::ValueOrigin,
    settings::{SETTINGS, Setting, SettingDefault, ValueKind, env_var_name},
};

/// Size limit of the configuration file.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// The setting with the drivers.
const BACKEND_KEY: &str = "backend";

/// Kind of a source.
#[derive(Clone, Debug)]
pub(crate) enum ConfigSourceKind {
    /// The command line, with the names of flags that are not those of their settings, by setting.
    Flags(BTreeMap<&'static str, &'static str>),
    /// Variables with the prefix `COFFERDAM_`.
    Environment,
    /// The file, with the line of each key.
    File(Arc<KeyLines>),
    /// `RUST_LOG`, as in other Rust programs.
    RustLog,
    /// The defaults in the declarations of the settings, and those of `dev` and `backend`.
    Defaults,
}

/// Line numbers of the keys in a file.
#[derive(Debug)]
pub(crate) struct KeyLines {
    path: PathBuf,
    lines: BTreeMap<String, usize>,
}

/// The commands whose default values apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Defaults {
    /// `run`, `config`, `status` and `orphans`.
    Run,
    /// `dev`, which runs all roles that reconcile a cluster, and `backend`.
    Dev,
    /// The command line of a sidecar, with the settings whose default differs from that of `run`.
    Sidecar(&'static [(&'static str, &'static str)]),
}

/// Values of one source.
#[derive(Clone, Debug)]
pub(crate) struct ConfigSource {
    /// Kind of the source.
    pub(crate) kind: ConfigSourceKind,
    /// Values by key.
    pub(crate) values: Dict,
}

impl ConfigSourceKind {
    /// Name in figment's metadata.
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::Flags(_) => "flags",
            Self::Environment => "environment",
            Self::File(_) => "file",
            Self::RustLog => "RUST_LOG",
            Self::Defaults => "defaults",
        }
    }

    /// Origin of a key's value within this source.
    pub(crate) fn origin(&self, key: &str) -> ValueOrigin {
        let root = key.split_once('.').map_or(key, |(root, _)| root);
        match self {
            Self::Flags(names) => ValueOrigin::Flag(names.get(root).map_or(root, |name| *name).to_owned()),
            Self::Environment => ValueOrigin::EnvVar(env_var_name(root)),
            Self::File(file) => ValueOrigin::File(file.path.clone(), file.line_of_key(key)),
            Self::RustLog => ValueOrigin::EnvVar("RUST_LOG".to_owned()),
            Self::Defaults => ValueOrigin::Default,
        }
    }
}

impl KeyLines {
    /// Line of a key, or of the closest enclosing table; `None` if the file has neither.
    fn line_of_key(&self, key: &str) -> Option<usize> {
        let mut key = key;
        loop {
            if let Some(line) = self.lines.get(key) {
                return Some(*line);
            }
            key = key.rsplit_once('.')?.0;
        }
    }
}

impl Provider for ConfigSource {
    fn metadata(&self) -> Metadata {
        Metadata::named(self.kind.name())
    }

    fn data(&self) -> Result<Map<Profile, Dict>, figment::Error> {
        Ok(Profile::Default.collect(self.values.clone()))
    }
}

/// Converts text to a value of the setting's kind. If a number or a boolean cannot be parsed, the text stays
/// text, and the type of the setting rejects it with an error that names the key. An invalid entry of
/// `backend` is an error of this function.
fn parse_value(setting: &Setting, text: &str) -> Result<Value, ConfigError> {
    Ok(match setting.kind {
        ValueKind::Text(_) | ValueKind::Table => Value::from(text),
        ValueKind::Number(_) => text.parse::<u64>().map_or_else(|_| Value::from(text), Value::from),
        ValueKind::Bool => text.parse::<bool>().map_or_else(|_| Value::from(text), Value::from),
        ValueKind::List(_) => parse_list(text.split(',')),
        ValueKind::Backends(_) => {
            let entries = text.split(',').map(str::trim).filter(|entry| !entry.is_empty());
            parse_backends(entries, &ValueOrigin::EnvVar(setting.env_var()))?
        }
    })
}

fn parse_list<'a>(items: impl Iterator<Item = &'a str>) -> Value {
    Value::from(items.map(str::trim).filter(|item| !item.is_empty()).map(Value::from).collect::<Vec<_>>())
}

/// Converts drivers to the table `backend`. An entry is `[NAME=]FILE` or `[NAME=]unix:PATH`, the socket of a
/// CSI driver. For the default name see [`backend_name`].
fn parse_backends<'a>(
    entries: impl Iterator<Item = &'a str>,
    origin: &ValueOrigin,
) -> Result<Value, ConfigError> {
    let mut table: BTreeMap<String, &str> = BTreeMap::new();
    for backend in entries {
        let (name, (_, location)) = (name_of_backend(backend), split_backend(backend));
        check_backend_location(location).map_err(|error| ConfigError::Value {
            origin: origin.clone(),
            key: BACKEND_KEY.to_owned(),
            problem: error.to_string(),
        })?;
        if let Some(first) = table.insert(name.clone(), location) {
            return Err(ConfigError::DuplicateBackend {
                name,
                first: first.to_owned(),
                second: location.to_owned(),
            });
        }
    }
    let backend = |(name, location): (String, &str)| {
        let key = if Address::has_scheme(location) { "csi" } else { "file" };
        (name, Value::from(Dict::from([(key.to_owned(), Value::from(location))])))
    };
    Ok(Value::from(table.into_iter().map(backend).collect::<Dict>()))
}

/// Text that cannot be the location of a driver: it is empty, an invalid address of a socket, or a URL.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BackendLocationError {
    #[error("found no file: expected [NAME=]FILE, or [NAME=]unix:PATH")]
    Empty,
    #[error("{0}")]
    Socket(<Address as FromStr>::Err),
    #[error("{0:?}: only unix: or a file: expected [NAME=]FILE, or [NAME=]unix:PATH")]
    Scheme(String),
}

/// Checks the syntax of a driver's location: the path of a component, or `unix:PATH` for the socket of a CSI
/// driver. Does not check that the path exists.
///
/// # Errors
/// [`BackendLocationError`]
pub(crate) fn check_backend_location(location: &str) -> Result<(), BackendLocationError> {
    if location.is_empty() {
        return Err(BackendLocationError::Empty);
    }
    if Address::has_scheme(location) {
        return location.parse::<Address>().map(drop).map_err(BackendLocationError::Socket);
    }
    match location.contains("://") {
        true => Err(BackendLocationError::Scheme(location.to_owned())),
        false => Ok(()),
    }
}

/// Reports if a driver can have the name in the configuration: ASCII letters, digits, dashes and underscores.
/// Dots separate keys.
pub(crate) fn is_backend_name(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_')
}

/// Default name of a driver: that of its file or socket without the extension, with `-` in place of
/// characters that a name cannot have. `backend` if that is empty.
pub(crate) fn backend_name(location: &str) -> String {
    let path = location
        .parse::<Address>()
        .map_or_else(|_| PathBuf::from(location), |address| address.path().to_owned());
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let name: String =
        stem.chars().map(|c| if c.is_ascii_alphanumeric() || c == '_' { c } else { '-' }).collect();
    if name.is_empty() { "backend".to_owned() } else { name }
}

/// The explicit name of a driver in a value of `--backend`, if it has one, and the location.
pub(crate) fn split_backend(backend: &str) -> (Option<&str>, &str) {
    match backend.split_once('=') {
        Some((name, location)) if is_backend_name(name) => (Some(name), location),
        _ => (None, backend),
    }
}

/// The name of a driver in a value of `--backend`, which is `[NAME=]FILE` or `[NAME=]unix:PATH`.
pub(crate) fn name_of_backend(backend: &str) -> String {
    let (name, location) = split_backend(backend);
    name.map_or_else(|| backend_name(location), str::to_owned)
}

/// The values of the flags.
pub(crate) fn from_flags(flags: &CliValues) -> Result<ConfigSource, ConfigError> {
    let mut values = Dict::new();
    for setting in SETTINGS.iter() {
        let texts = flags.get(&setting.name);
        let Some(last) = texts.last() else { continue };
        let value = match setting.kind {
            ValueKind::List(_) => parse_list(texts.iter().flat_map(|text| text.split(','))),
            ValueKind::Backends(_) => {
                let origin = ValueOrigin::Flag(setting.name.clone());
                parse_backends(texts.iter().map(|text| text.trim()), &origin)?
            }
            ValueKind::Text(_) | ValueKind::Number(_) | ValueKind::Bool | ValueKind::Table => {
                parse_value(setting, last)?
            }
        };
        values.insert(setting.name.clone(), value);
    }
    Ok(ConfigSource { kind: ConfigSourceKind::Flags(flags.flag_names().clone()), values })
}

/// The values of environment variables. Unknown variables with the prefix are ignored: a Service named
/// `cofferdam` adds `COFFERDAM_SERVICE_HOST` and others to every pod of its namespace.
pub(crate) fn from_environment(variables: &HashMap<String, String>) -> Result<ConfigSource, ConfigError> {
    let mut values = Dict::new();
    for setting in SETTINGS.iter() {
        if let Some(text) = variables.get(&setting.env_var()) {
            values.insert(setting.name.clone(), parse_value(setting, text)?);
        }
    }
    Ok(ConfigSource { kind: ConfigSourceKind::Environment, values })
}

/// The log filter in `RUST_LOG`; no value if the variable is unset or empty.
pub(crate) fn from_rust_log(variables: &HashMap<String, String>) -> ConfigSource {
    let text = variables.get("RUST_LOG").filter(|text| !text.is_empty());
    let values = text.map(|text| ("log".to_owned(), Value::from(text.as_str()))).into_iter().collect();
    ConfigSource { kind: ConfigSourceKind::RustLog, values }
}

/// The default values of the settings.
pub(crate) fn from_defaults(defaults: Defaults) -> Result<ConfigSource, ConfigError> {
    let mut values = Dict::new();
    for setting in SETTINGS.iter() {
        let text = match (setting.default, defaults) {
            (SettingDefault::Value(text), _)
            | (SettingDefault::InDev(text, _), Defaults::Run | Defaults::Sidecar(_))
            | (SettingDefault::InDev(_, text), Defaults::Dev) => text,
            (SettingDefault::Unset | SettingDefault::Computed(_), _) => continue,
        };
        values.insert(setting.name.clone(), parse_value(setting, text)?);
    }
    match defaults {
        Defaults::Run => {}
        Defaults::Dev => {
            values.insert("role".to_owned(), parse_list(Role::ALL.map(Role::as_str).into_iter()));
            // The simulated cluster has one user.
            values.insert("secret-namespaces".to_owned(), parse_list(std::iter::once("*")));
        }
        Defaults::Sidecar(defaults) => {
            for setting in SETTINGS.iter() {
                let default = defaults.iter().find(|(name, _)| *name == setting.name);
                if let Some((_, text)) = default {
                    values.insert(setting.name.clone(), parse_value(setting, text)?);
                }
            }
        }
    }
    Ok(ConfigSource { kind: ConfigSourceKind::Defaults, values })
}

/// The environment variable with the path of the configuration file. The flag `--config` takes precedence.
const CONFIG_VARIABLE: &str = "COFFERDAM_CONFIG";

/// Path of the file with settings, if configured, and the origin of the path.
pub(crate) fn config_file(
    flag: Option<&Path>,
    variables: &HashMap<String, String>,
) -> Option<(PathBuf, ValueOrigin)> {
    let variable = variables.get(CONFIG_VARIABLE).filter(|path| !path.is_empty());
    match (flag, variable) {
        (Some(path), _) => Some((path.to_owned(), ValueOrigin::Flag("config".to_owned()))),
        (None, Some(path)) => Some((PathBuf::from(path), ValueOrigin::EnvVar(CONFIG_VARIABLE.to_owned()))),
        (None, None) => None,
    }
}

/// Reads a TOML file; `named_by` is the origin of its path.
pub(crate) fn from_file(path: &Path, named_by: &ValueOrigin) -> Result<ConfigSource, ConfigError> {
    let unreadable = |source| ConfigError::Read { named_by: named_by.clone(), path: path.to_owned(), source };
    let size = std::fs::metadata(path).map_err(unreadable)?.len();
    if size > MAX_FILE_BYTES {
        return Err(ConfigError::TooLarge {
            named_by: named_by.clone(),
            path: path.to_owned(),
            size,
            limit: MAX_FILE_BYTES,
        });
    }
    let text = std::fs::read_to_string(path).map_err(unreadable)?;
    let broken = |error: &toml::de::Error| ConfigError::Syntax {
        named_by: named_by.clone(),
        path: path.to_owned(),
        line: line_of(&text, error.span()),
        problem: error.message().replace('\n', ", "),
    };
    let values: Dict = toml::from_str(&text).map_err(|error| broken(&error))?;
    let table = DeTable::parse(&text).map_err(|error| broken(&error))?;
    let mut lines = BTreeMap::new();
    collect_lines(&text, "", table.get_ref(), &mut lines);
    Ok(ConfigSource {
        kind: ConfigSourceKind::File(Arc::new(KeyLines { path: path.to_owned(), lines })),
        values,
    })
}

fn collect_lines(text: &str, prefix: &str, table: &DeTable<'_>, lines: &mut BTreeMap<String, usize>) {
    for (name, value) in table {
        let key = if prefix.is_empty() {
            name.get_ref().to_string()
        } else {
            format!("{prefix}.{}", name.get_ref())
        };
        lines.insert(key.clone(), line_of(text, Some(span(name))));
        if let DeValue::Table(inner) = value.get_ref() {
            collect_lines(text, &key, inner, lines);
        }
    }
}

fn span<T>(spanned: &Spanned<T>) -> Range<usize> {
    spanned.span()
}

fn line_of(text: &str, span: Option<Range<usize>>) -> usize {
    let start = span.map_or(0, |span| span.start);
    1 + text.bytes().take(start).filter(|byte| *byte == b'\n').count()
}
