//! Types of settings that check themselves.

use std::{collections::BTreeSet, fmt, path::PathBuf, str::FromStr, time::Duration};

use cofferdam_controllers::Role;
use cofferdam_csi::server::{UnixSocketGroup, UnixSocketMode};
use figment::value::Value;
use serde::{Deserialize, Deserializer, de};
use tracing_subscriber::{EnvFilter, filter::LevelFilter};

use super::GoDuration;
use crate::commands::run::node::NodeRole;

/// Work that runs at once; more only adds memory, for the API and the driver are the limit long before.
const MAX_WORKERS: u64 = 10_000;

/// Entries per page; more do not fit what one call may return.
const MAX_ENTRIES: u32 = 10_000;

/// Shortest pause between two listings of everything that a driver holds.
const MIN_SCAN_INTERVAL: Duration = Duration::from_secs(1);

/// Longest name of a namespace (RFC 1123 label).
const MAX_NAMESPACE_LENGTH: usize = 63;

/// Reads text with `FromStr`; its error names the value and what was expected.
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

/// A role that answers others and reconciles nothing: it needs no cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ServerRole {
    /// Backends as CSI drivers, on sockets.
    CsiServer,
}

impl ServerRole {
    /// Every one.
    pub(crate) const ALL: [Self; 1] = [Self::CsiServer];

    /// The name, as `--role` has it.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::CsiServer => "csi-server",
        }
    }
}

/// The roles to run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Roles {
    /// Those that work on a cluster.
    pub(crate) cluster: BTreeSet<Role>,
    /// Those of a node.
    pub(crate) node: BTreeSet<NodeRole>,
    /// Those that answer others.
    pub(crate) servers: BTreeSet<ServerRole>,
    /// The first name that is no role: each command says which it has.
    pub(crate) unknown: Option<String>,
}

impl Roles {
    /// Every role, for people.
    pub(crate) fn names() -> String {
        let names = Role::ALL.map(Role::as_str).into_iter().chain(NodeRole::ALL.map(NodeRole::as_str));
        names.chain(ServerRole::ALL.map(ServerRole::as_str)).collect::<Vec<_>>().join(", ")
    }

    /// Takes one in, by its name.
    ///
    /// # Errors
    /// That there is no such role.
    pub(crate) fn insert(&mut self, name: &str) -> Result<(), String> {
        if let Some(role) = NodeRole::from_name(name) {
            self.node.insert(role);
            return Ok(());
        }
        if let Some(role) = ServerRole::ALL.into_iter().find(|role| role.as_str() == name) {
            self.servers.insert(role);
            return Ok(());
        }
        let unknown = |_| format!("unknown role {name:?}: expected one of {}", Self::names());
        self.cluster.insert(name.parse().map_err(unknown)?);
        Ok(())
    }

    /// Takes one in, also a name that is none.
    fn insert_or_record_unknown(&mut self, name: String) {
        if self.insert(&name).is_err() {
            self.unknown.get_or_insert(name);
        }
    }

    /// Whether a driver runs in this process: every role but those of a node calls one.
    pub(crate) fn has_driver_roles(&self) -> bool {
        !self.cluster.is_empty() || !self.servers.is_empty()
    }

    /// Whether all are of a node.
    pub(crate) fn is_node_only(&self) -> bool {
        !self.has_driver_roles() && !self.node.is_empty()
    }

    /// The first, by name, of those that work on no cluster.
    pub(crate) fn first_role_without_cluster(&self) -> Option<&'static str> {
        let mut names = self.node.iter().map(|role| role.as_str());
        names.next().or_else(|| self.servers.first().map(|role| role.as_str()))
    }
}

impl<'de> Deserialize<'de> for Roles {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> de::Visitor<'de> for Visitor {
            type Value = Roles;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of roles, such as [\"provisioner\"]")
            }

            fn visit_seq<A: de::SeqAccess<'de>>(self, mut items: A) -> Result<Roles, A::Error> {
                let mut roles = Roles::default();
                while let Some(name) = items.next_element::<String>()? {
                    roles.insert_or_record_unknown(name);
                }
                Ok(roles)
            }

            fn visit_str<E: de::Error>(self, name: &str) -> Result<Roles, E> {
                let mut roles = Roles::default();
                roles.insert_or_record_unknown(name.to_owned());
                Ok(roles)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

/// Permission bits of the sockets that are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SocketMode(pub(crate) UnixSocketMode);

impl<'de> Deserialize<'de> for SocketMode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserialize_from_str(deserializer, "a socket's mode as text, such as \"0660\"").map(Self)
    }
}

/// The group of the sockets that are served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SocketGroup(pub(crate) UnixSocketGroup);

impl<'de> Deserialize<'de> for SocketGroup {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserialize_from_str(deserializer, "a group's name or number as text").map(Self)
    }
}

/// An address to listen on; without a host it is every address of the machine, as Go reads `:8080`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HttpEndpoint {
    /// Host, or nothing for every address.
    pub(crate) host: Option<String>,
    /// Port; 0 takes a free one.
    pub(crate) port: u16,
}

impl FromStr for HttpEndpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad =
            || format!("{text:?} is not an address: expected [HOST]:PORT, such as :8080 or 127.0.0.1:8080");
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

impl<'de> Deserialize<'de> for HttpEndpoint {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserialize_from_str(deserializer, "an address such as \":8080\" or \"127.0.0.1:8080\"")
    }
}

/// A DNS label: the name of a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NamespaceName(pub(crate) String);

impl FromStr for NamespaceName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let inner = text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
        if inner
            && !text.is_empty()
            && text.len() <= MAX_NAMESPACE_LENGTH
            && !text.starts_with('-')
            && !text.ends_with('-')
        {
            Ok(Self(text.to_owned()))
        } else {
            Err(format!(
                "{text:?} is not a namespace: expected at most {MAX_NAMESPACE_LENGTH} lower-case letters, digits and dashes, with \
                 no dash at its ends"
            ))
        }
    }
}

impl<'de> Deserialize<'de> for NamespaceName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserialize_from_str(deserializer, "the name of a namespace")
    }
}

/// Work that runs at once.
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

/// Entries per page of a listing; absent leaves it to the driver, which is written 0.
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

/// Pause between two scans for orphans; absent for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ScanInterval(pub(crate) Option<Duration>);

impl FromStr for ScanInterval {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "off" {
            return Ok(Self(None));
        }
        let interval =
            text.parse::<GoDuration>().ok().map(GoDuration::get).filter(|time| *time >= MIN_SCAN_INTERVAL);
        interval.map(|time| Self(Some(time))).ok_or_else(|| {
            format!("{text:?} is no pause between scans: expected one from 1s, such as 1h, or off")
        })
    }
}

impl<'de> Deserialize<'de> for ScanInterval {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserialize_from_str(deserializer, "a duration such as \"1h\", or \"off\"")
    }
}

/// Where compiled components are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum CompilationCache {
    /// Where the user's caches are.
    #[default]
    User,
    /// Nowhere.
    Off,
    /// In this directory.
    Directory(PathBuf),
}

impl<'de> Deserialize<'de> for CompilationCache {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let path: PathBuf = deserialize_from_str(deserializer, "a directory or \"off\"")?;
        Ok(if path.as_os_str() == "off" { Self::Off } else { Self::Directory(path) })
    }
}

/// How the log is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// What is logged: directives that the subscriber can read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LogFilter(pub(crate) String);

impl FromStr for LogFilter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match EnvFilter::try_new(text) {
            Ok(_) => Ok(Self(text.to_owned())),
            Err(error) => Err(format!(
                "{text:?} is not a log filter ({error}): expected a level, or directives such as \
                 info,cofferdam_controllers=debug"
            )),
        }
    }
}

impl LogFilter {
    /// A word that stands alone and is no level. The subscriber takes it for a part of a program, all of
    /// which is to be logged, and a level that is misspelt for a part that nobody has.
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

/// A value as `config` prints it.
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
