//! Types of the values of settings. Deserializing a value validates it.

use std::{borrow::Cow, collections::BTreeMap, fmt, path::PathBuf, str::FromStr, time::Duration};

use cofferdam_cluster::SecretNamespaces;
use cofferdam_csi::server::{UnixSocketGroup, UnixSocketMode};
use cofferdam_domain::dns::is_dns_label;
use figment::value::Value;
use serde::{Deserialize, Deserializer, de};
use tracing_subscriber::{EnvFilter, filter::LevelFilter};

use super::duration::GoDuration;

/// Largest value of `workers` and `worker-threads`. More operations would only use memory: the API and the
/// driver are slower.
const MAX_WORKERS: u64 = 10_000;

/// Largest value of `max-entries`. A page of a volume listing with more entries would exceed the size limit
/// of a call's result.
const MAX_ENTRIES: u32 = 10_000;

/// Shortest interval of `orphan-scan-interval`, between two scans of a driver's volumes.
const MIN_SCAN_INTERVAL: Duration = Duration::from_secs(1);

/// Text that is not a valid value of a setting.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not {kind}: expected {expected}")]
pub(crate) struct InvalidValue {
    text: String,
    kind: Cow<'static, str>,
    expected: &'static str,
}

impl InvalidValue {
    fn new(text: &str, kind: impl Into<Cow<'static, str>>, expected: &'static str) -> Self {
        Self { text: text.to_owned(), kind: kind.into(), expected }
    }
}

/// Deserializes text with `FromStr`, whose error names the value and the expectation.
pub(super) fn deserialize_from_str<'de, T, D>(deserializer: D, expected: &'static str) -> Result<T, D::Error>
where
    T: FromStr<Err: fmt::Display>,
    D: Deserializer<'de>,
{
    struct Visitor<T>(&'static str, std::marker::PhantomData<T>);
    impl<T: FromStr<Err: fmt::Display>> de::Visitor<'_> for Visitor<T> {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
            text.parse().map_err(E::custom)
        }
    }
    deserializer.deserialize_str(Visitor(expected, std::marker::PhantomData))
}

/// Permission bits of the sockets that the role `csi-server` binds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SocketMode(pub(crate) UnixSocketMode);

impl<'de> Deserialize<'de> for SocketMode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserialize_from_str(deserializer, "a socket's mode as text, such as \"0660\"").map(Self)
    }
}

/// Group of the sockets that the role `csi-server` binds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SocketGroup(pub(crate) UnixSocketGroup);

impl<'de> Deserialize<'de> for SocketGroup {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserialize_from_str(deserializer, "a group's name or number as text").map(Self)
    }
}

/// An address to listen on. Without a host it means every address of the machine, as in Go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HttpEndpoint {
    /// Host; absent for every address.
    pub(crate) host: Option<String>,
    /// Port; 0 for a free one.
    pub(crate) port: u16,
}

impl FromStr for HttpEndpoint {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let bad = || InvalidValue::new(text, "an address", "[HOST]:PORT, such as :8080 or 127.0.0.1:8080");
        let (host, port) = text.rsplit_once(':').ok_or_else(bad)?;
        let port = port.parse().map_err(|_| bad())?;
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let is_host = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | ':' | '-' | '_');
        if !host.chars().all(is_host) {
            return Err(bad());
        }
        Ok(Self { host: (!host.is_empty()).then(|| host.to_owned()), port })
    }
}

impl fmt::Display for HttpEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host.as_deref().unwrap_or_default(), self.port)
    }
}

impl<'de> Deserialize<'de> for HttpEndpoint {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserialize_from_str(deserializer, "an address such as \":8080\" or \"127.0.0.1:8080\"")
    }
}

/// Pages of health, which are not a path of metrics.
const HEALTH_PATHS: [&str; 5] =
    ["/healthz", "/healthz/driver", "/healthz/leader-election", "/healthz/registration", "/readyz"];

/// Path of the metrics. A path that ends with a slash is a prefix, as in Go's `http.ServeMux`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MetricsPath(String);

impl MetricsPath {
    /// Reports if the path of a request is that of the metrics.
    pub(crate) fn matches(&self, path: &str) -> bool {
        path == self.0 || self.0.ends_with('/') && path.starts_with(&self.0)
    }
}

impl FromStr for MetricsPath {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let is_plain = |c: char| c.is_ascii_graphic() && !matches!(c, '?' | '#' | '%' | '{' | '}');
        if text.starts_with('/') && text.chars().all(is_plain) && !HEALTH_PATHS.contains(&text) {
            Ok(Self(text.to_owned()))
        } else {
            Err(InvalidValue::new(text, "a path for metrics", "a path such as /metrics, and none of health"))
        }
    }
}

impl fmt::Display for MetricsPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for MetricsPath {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserialize_from_str(deserializer, "a path such as \"/metrics\"")
    }
}

/// Name of a namespace: a DNS label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NamespaceName(pub(crate) String);

impl FromStr for NamespaceName {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        if is_dns_label(text) {
            Ok(Self(text.to_owned()))
        } else {
            Err(InvalidValue::new(
                text,
                "a namespace",
                "at most 63 lower-case letters, digits and dashes, with no dash at its ends",
            ))
        }
    }
}

impl<'de> Deserialize<'de> for NamespaceName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserialize_from_str(deserializer, "the name of a namespace")
    }
}

/// Value of `secret-namespaces` for every namespace.
const EVERY_NAMESPACE: &str = "*";

/// Namespaces of Secrets: names, or `*` for every namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SecretNamespaceList(pub(crate) SecretNamespaces);

impl SecretNamespaceList {
    /// Parses the items of a list.
    ///
    /// # Errors
    /// [`InvalidValue`] of an item that is no namespace, and of `*` beside other items.
    pub(crate) fn parse<'a>(items: impl IntoIterator<Item = &'a str>) -> Result<Self, InvalidValue> {
        let items: Vec<&str> = items.into_iter().collect();
        if items == [EVERY_NAMESPACE] {
            return Ok(Self(SecretNamespaces::All));
        }
        if items.contains(&EVERY_NAMESPACE) {
            let expected = "* alone, or the names of namespaces";
            return Err(InvalidValue::new(&items.join(","), "a list of namespaces", expected));
        }
        let names = items.into_iter().map(|item| item.parse::<NamespaceName>().map(|name| name.0));
        Ok(Self(SecretNamespaces::Listed(names.collect::<Result<_, _>>()?)))
    }
}

impl<'de> Deserialize<'de> for SecretNamespaceList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> de::Visitor<'de> for Visitor {
            type Value = SecretNamespaceList;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of namespaces, such as [\"storage\"], or \"*\"")
            }

            fn visit_seq<A: de::SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
                let mut names: Vec<String> = Vec::new();
                while let Some(name) = items.next_element()? {
                    names.push(name);
                }
                SecretNamespaceList::parse(names.iter().map(String::as_str)).map_err(de::Error::custom)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
                SecretNamespaceList::parse([text]).map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

/// Length of a UID without its dashes, in characters.
const UID_LENGTH: u8 = 32;

/// Number of characters of the claim's UID in the names of provisioned volumes. `None`, which is written -1,
/// is the whole UID with its dashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VolumeNameUuidLength(pub(crate) Option<u8>);

impl FromStr for VolumeNameUuidLength {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        if text == "-1" {
            return Ok(Self(None));
        }
        let length = text.parse().ok().filter(|length| (1..=UID_LENGTH).contains(length));
        length
            .map(|length| Self(Some(length)))
            .ok_or_else(|| InvalidValue::new(text, "a length of a uid", "a number from 1 to 32, or -1"))
    }
}

impl<'de> Deserialize<'de> for VolumeNameUuidLength {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserialize_from_str(deserializer, "a length as text, such as \"-1\" or \"16\"")
    }
}

/// Labels of Leases, as `KEY:VALUE`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LeaseLabels(pub(crate) BTreeMap<String, String>);

impl<'de> Deserialize<'de> for LeaseLabels {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut labels = BTreeMap::new();
        for text in Vec::<String>::deserialize(deserializer)? {
            match text.split_once(':') {
                Some((key, value)) if !key.is_empty() && !value.contains(':') => {
                    labels.insert(key.to_owned(), value.to_owned())
                }
                _ => {
                    let error = InvalidValue::new(&text, "a label", "KEY:VALUE, such as team:storage");
                    return Err(de::Error::custom(error));
                }
            };
        }
        Ok(Self(labels))
    }
}

/// URL of an API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ApiServerUrl(pub(crate) http::Uri);

impl FromStr for ApiServerUrl {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let url = text.parse::<http::Uri>().ok().filter(|url| {
            matches!(url.scheme_str(), Some("http" | "https"))
                && url.host().is_some_and(|host| !host.is_empty())
        });
        url.map(Self)
            .ok_or_else(|| InvalidValue::new(text, "the URL of an API server", "https://HOST[:PORT]"))
    }
}

impl<'de> Deserialize<'de> for ApiServerUrl {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserialize_from_str(deserializer, "a URL such as \"https://10.0.0.1:6443\"")
    }
}

/// Value of `workers` and `worker-threads`: maximum number of concurrent operations of one kind, such as the
/// expansions of a driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WorkerCount(pub(crate) usize);

impl<'de> Deserialize<'de> for WorkerCount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = WorkerCount;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a number from 1 to {MAX_WORKERS}")
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<WorkerCount, E> {
                let refused = || E::invalid_value(de::Unexpected::Unsigned(number), &self);
                let workers = usize::try_from(number).map_err(|_| refused())?;
                if (1..=MAX_WORKERS).contains(&number) { Ok(WorkerCount(workers)) } else { Err(refused()) }
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<WorkerCount, E> {
                let unsigned = u64::try_from(number)
                    .map_err(|_| E::invalid_value(de::Unexpected::Signed(number), &self))?;
                self.visit_u64(unsigned)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

/// Maximum entries per page of the driver's volume listing. `None`, which is written 0, lets the driver
/// choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MaxEntries(pub(crate) Option<u32>);

impl<'de> Deserialize<'de> for MaxEntries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = MaxEntries;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a number from 0 to {MAX_ENTRIES}")
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<MaxEntries, E> {
                let entries = u32::try_from(number).ok().filter(|entries| *entries <= MAX_ENTRIES);
                let refused = || E::invalid_value(de::Unexpected::Unsigned(number), &self);
                entries
                    .map(|entries| MaxEntries(Some(entries).filter(|entries| *entries > 0)))
                    .ok_or_else(refused)
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<MaxEntries, E> {
                let unsigned = u64::try_from(number)
                    .map_err(|_| E::invalid_value(de::Unexpected::Signed(number), &self))?;
                self.visit_u64(unsigned)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

/// Interval between two scans for orphans. `None`, which is written `off`, disables the scans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ScanInterval(pub(crate) Option<Duration>);

impl FromStr for ScanInterval {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        if text == "off" {
            return Ok(Self(None));
        }
        let interval =
            text.parse::<GoDuration>().ok().map(GoDuration::get).filter(|time| *time >= MIN_SCAN_INTERVAL);
        interval
            .map(|time| Self(Some(time)))
            .ok_or_else(|| InvalidValue::new(text, "a scan interval", "at least 1s, such as 1h, or off"))
    }
}

impl<'de> Deserialize<'de> for ScanInterval {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserialize_from_str(deserializer, "a duration such as \"1h\", or \"off\"")
    }
}

/// Storage of compiled components.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum CompilationCache {
    /// The user's cache directory.
    #[default]
    User,
    /// No storage: components are compiled at every start.
    Off,
    /// This directory.
    Directory(PathBuf),
}

impl<'de> Deserialize<'de> for CompilationCache {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let path: PathBuf = deserialize_from_str(deserializer, "a directory or \"off\"")?;
        Ok(if path.as_os_str() == "off" { Self::Off } else { Self::Directory(path) })
    }
}

/// Format of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum LogFormat {
    /// Human-readable text.
    Text,
    /// One JSON object per line.
    Json,
}

/// Valid directives for `tracing_subscriber::EnvFilter`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LogFilter(pub(crate) String);

impl FromStr for LogFilter {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        match EnvFilter::try_new(text) {
            Ok(_) => Ok(Self(text.to_owned())),
            Err(error) => Err(InvalidValue::new(
                text,
                format!("a log filter ({error})"),
                "a level, or directives such as info,cofferdam_controllers=debug",
            )),
        }
    }
}

impl LogFilter {
    /// Returns the first directive that is a single word and not a level. `EnvFilter` parses such a word as
    /// the name of a module; a misspelt level would select a module that does not exist.
    pub(crate) fn unknown_level(&self) -> Option<&str> {
        let is_level = |directive: &str| directive.parse::<LevelFilter>().is_ok();
        let mut directives =
            self.0.split(',').map(str::trim).filter(|directive| !directive.contains(['=', '[']));
        directives.find(|directive| !directive.is_empty() && !is_level(directive))
    }
}

impl<'de> Deserialize<'de> for LogFilter {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserialize_from_str(deserializer, "a log filter such as \"info\"")
    }
}

/// Formats a value for `cofferdam config`.
pub(crate) fn format_value(value: &Value) -> String {
    match value {
        Value::String(_, text) => text.clone(),
        Value::Char(_, c) => c.to_string(),
        Value::Bool(_, value) => value.to_string(),
        Value::Num(_, number) => number
            .to_u128()
            .map(|n| n.to_string())
            .or_else(|| number.to_i128().map(|n| n.to_string()))
            .or_else(|| number.to_f64().map(|n| n.to_string()))
            .unwrap_or_default(),
        Value::Empty(..) => "(empty)".to_owned(),
        Value::Dict(_, table) => {
            let entries = table.iter().map(|(name, value)| format!("{name} = {}", format_value(value)));
            format!("{{{}}}", entries.collect::<Vec<_>>().join(", "))
        }
        Value::Array(_, items) => items.iter().map(format_value).collect::<Vec<_>>().join(", "),
    }
}
