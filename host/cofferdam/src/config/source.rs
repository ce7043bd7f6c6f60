//! Where settings come from, as figment's providers: flags, environment, file, defaults.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
};

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
    keys::{ConfigKey, KEYS, ValueKind, env_var_name},
};

/// The largest configuration file that is read: far more than any has, far less than would hurt.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// The setting that names drivers.
const BACKEND_KEY: &str = "backend";

/// Who said a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ValueOrigin {
    /// A flag of this name.
    Flag(String),
    /// An environment variable of this name.
    EnvVar(String),
    /// A line of a file.
    File(PathBuf, Option<usize>),
    /// Nobody.
    Default,
}

impl ValueOrigin {
    /// The place and the key, which a flag says already.
    pub(crate) fn with_key(&self, key: &str) -> String {
        match self {
            Self::Flag(name) if name == key => self.to_string(),
            Self::Flag(_) | Self::EnvVar(_) | Self::File(..) | Self::Default => format!("{self}: {key}"),
        }
    }
}

impl fmt::Display for ValueOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(name) => write!(f, "flag --{name}"),
            Self::EnvVar(name) => write!(f, "environment variable {name}"),
            Self::File(path, Some(line)) => write!(f, "{}:{line}", path.display()),
            Self::File(path, None) => write!(f, "{}", path.display()),
            Self::Default => f.write_str("default"),
        }
    }
}

/// What kind of source a provider is.
#[derive(Clone, Debug)]
pub(crate) enum ConfigSourceKind {
    /// The command line.
    Flags,
    /// `COFFERDAM_…`
    Environment,
    /// The file, with the line of every key in it.
    File(Arc<KeyLines>),
    /// `RUST_LOG`, which every program of this ecosystem knows.
    RustLog,
    /// The table of settings.
    Defaults,
}

/// Lines of a file's keys.
#[derive(Debug)]
pub(crate) struct KeyLines {
    path: PathBuf,
    lines: BTreeMap<String, usize>,
}

/// Values of one source.
#[derive(Clone, Debug)]
pub(crate) struct ConfigSource {
    /// What it is.
    pub(crate) kind: ConfigSourceKind,
    /// What it says.
    pub(crate) values: Dict,
}

impl ConfigSourceKind {
    /// The name under which figment keeps it.
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::Flags => "flags",
            Self::Environment => "environment",
            Self::File(_) => "file",
            Self::RustLog => "RUST_LOG",
            Self::Defaults => "defaults",
        }
    }

    /// Who, within this source, said the value of a key.
    pub(crate) fn origin(&self, key: &str) -> ValueOrigin {
        let root = key.split_once('.').map_or(key, |(root, _)| root);
        match self {
            Self::Flags => ValueOrigin::Flag(root.to_owned()),
            Self::Environment => ValueOrigin::EnvVar(env_var_name(root)),
            Self::File(file) => ValueOrigin::File(file.path.clone(), file.line_of_key(key)),
            Self::RustLog => ValueOrigin::EnvVar("RUST_LOG".to_owned()),
            Self::Defaults => ValueOrigin::Default,
        }
    }
}

impl KeyLines {
    /// The line of a key, or of the closest table around it.
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

/// Says what `text` stands for; text that does not fit stays text, and the setting's type refuses it by name.
fn parse_value(key: &ConfigKey, text: &str) -> Result<Value, ConfigError> {
    Ok(match key.kind {
        ValueKind::Text | ValueKind::Table => Value::from(text),
        ValueKind::Number => text.parse::<u64>().map_or_else(|_| Value::from(text), Value::from),
        ValueKind::Bool => text.parse::<bool>().map_or_else(|_| Value::from(text), Value::from),
        ValueKind::List => parse_list(text.split(',')),
        ValueKind::Backends => {
            let entries = text.split(',').map(str::trim).filter(|entry| !entry.is_empty());
            parse_backends(entries, &ValueOrigin::EnvVar(key.env_var()))?
        }
    })
}

fn parse_list<'a>(items: impl Iterator<Item = &'a str>) -> Value {
    Value::from(items.map(str::trim).filter(|item| !item.is_empty()).map(Value::from).collect::<Vec<_>>())
}

/// Drivers as the table `backend`: `NAME=FILE`, or a file that is named as it is called. What begins with
/// `unix:` is the socket of a CSI driver instead.
fn parse_backends<'a>(
    entries: impl Iterator<Item = &'a str>,
    origin: &ValueOrigin,
) -> Result<Value, ConfigError> {
    let mut table: BTreeMap<String, &str> = BTreeMap::new();
    for backend in entries {
        let (name, location) = match backend.split_once('=') {
            Some((name, location)) if is_backend_name(name) => (name.to_owned(), location),
            _ => (backend_name(backend), backend),
        };
        check_backend_location(location).map_err(|problem| ConfigError::Value {
            origin: origin.clone(),
            key: BACKEND_KEY.to_owned(),
            problem,
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

/// Refuses what is neither a file nor the socket of a driver.
///
/// # Errors
/// What was expected instead.
pub(crate) fn check_backend_location(location: &str) -> Result<(), String> {
    if location.is_empty() {
        return Err("found no file: expected [NAME=]FILE, or [NAME=]unix:PATH".to_owned());
    }
    if Address::has_scheme(location) {
        return location.parse::<Address>().map(drop).map_err(|error| error.to_string());
    }
    match location.contains("://") {
        true => Err(format!("{location:?}: only unix: or a file: expected [NAME=]FILE, or [NAME=]unix:PATH")),
        false => Ok(()),
    }
}

/// Whether a name can stand in the configuration: no dots, which separate keys.
pub(crate) fn is_backend_name(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_')
}

/// The name of a driver that is given by its file alone.
pub(crate) fn backend_name(location: &str) -> String {
    let path = location
        .parse::<Address>()
        .map_or_else(|_| PathBuf::from(location), |address| address.path().to_owned());
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let name: String =
        stem.chars().map(|c| if c.is_ascii_alphanumeric() || c == '_' { c } else { '-' }).collect();
    if name.is_empty() { "backend".to_owned() } else { name }
}

/// The command line: what was given of each key.
pub(crate) fn from_flags(cli_values: &[(&'static str, Vec<String>)]) -> Result<ConfigSource, ConfigError> {
    let mut values = Dict::new();
    for key in &KEYS {
        let Some((_, texts)) = cli_values.iter().find(|(name, texts)| *name == key.name && !texts.is_empty())
        else {
            continue;
        };
        let value = match (key.kind, texts.last()) {
            (ValueKind::List, _) => parse_list(texts.iter().flat_map(|text| text.split(','))),
            (ValueKind::Backends, _) => {
                parse_backends(texts.iter().map(|text| text.trim()), &ValueOrigin::Flag(key.name.to_owned()))?
            }
            (ValueKind::Text | ValueKind::Number | ValueKind::Bool | ValueKind::Table, Some(text)) => {
                parse_value(key, text)?
            }
            (ValueKind::Text | ValueKind::Number | ValueKind::Bool | ValueKind::Table, None) => continue,
        };
        values.insert(key.name.to_owned(), value);
    }
    Ok(ConfigSource { kind: ConfigSourceKind::Flags, values })
}

/// The environment. Other variables with our prefix are none of ours: in a cluster, a Service that is called
/// `cofferdam` puts `COFFERDAM_SERVICE_HOST` and more into every pod of its namespace.
pub(crate) fn from_environment(variables: &HashMap<String, String>) -> Result<ConfigSource, ConfigError> {
    let mut values = Dict::new();
    for key in &KEYS {
        if let Some(text) = variables.get(&key.env_var()) {
            values.insert(key.name.to_owned(), parse_value(key, text)?);
        }
    }
    Ok(ConfigSource { kind: ConfigSourceKind::Environment, values })
}

/// `RUST_LOG`, where it is set.
pub(crate) fn from_rust_log(variables: &HashMap<String, String>) -> ConfigSource {
    let text = variables.get("RUST_LOG").filter(|text| !text.is_empty());
    let values = text.map(|text| ("log".to_owned(), Value::from(text.as_str()))).into_iter().collect();
    ConfigSource { kind: ConfigSourceKind::RustLog, values }
}

/// The table of settings, with what a command holds instead.
pub(crate) fn from_defaults(overrides: &[(&'static str, &str)]) -> Result<ConfigSource, ConfigError> {
    let mut values = Dict::new();
    for key in &KEYS {
        let overrides = overrides.iter().find(|(name, _)| *name == key.name).map(|(_, text)| *text);
        if let Some(text) = overrides.or(key.default) {
            values.insert(key.name.to_owned(), parse_value(key, text)?);
        }
    }
    Ok(ConfigSource { kind: ConfigSourceKind::Defaults, values })
}

/// The variable that names the file, where no flag does.
const CONFIG_VARIABLE: &str = "COFFERDAM_CONFIG";

/// The file with settings, if there is one, and who has named it.
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

/// A TOML file that somebody has named.
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
