//! NFS exports: the fields of kind `nfs`, and the rules of the policy that allow them.

use std::{fmt, net::IpAddr};

use ipnet::IpNet;
use serde::{Deserialize, Deserializer, de};

use crate::{network::parse_network, path::RelativePath};

/// Maximum length of a mount's source in bytes: the kernel's limit for a value of fsconfig(2), with a null byte.
const MAX_SOURCE_BYTES: usize = 255;
/// Maximum length of a host name in bytes (RFC 1035).
const MAX_NAME_BYTES: usize = 253;
/// Maximum length of a label of a host name in bytes (RFC 1035).
const MAX_LABEL_BYTES: usize = 63;

/// A version of the NFS protocol. NFS 4.0 is not supported: its callbacks need a connection from the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NfsVersion {
    /// NFS 3. File locks are local to the node, because the node does not run `rpc.statd`.
    V3,
    /// NFS 4.1
    V4_1,
    /// NFS 4.2
    V4_2,
}

impl NfsVersion {
    /// All versions.
    pub const ALL: [Self; 3] = [Self::V3, Self::V4_1, Self::V4_2];

    /// Returns the name used in connection info, which is that of the mount option `vers`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::V3 => "3",
            Self::V4_1 => "4.1",
            Self::V4_2 => "4.2",
        }
    }

    /// Returns the version of the RPC program.
    pub(crate) const fn major(self) -> u32 {
        match self {
            Self::V3 => 3,
            Self::V4_1 | Self::V4_2 => 4,
        }
    }
}

/// The server of an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NfsServer {
    /// An address. IPv4 in IPv6 notation has become IPv4.
    Address(IpAddr),
    /// A host name in lower case, which the node resolves.
    Name(String),
}

impl NfsServer {
    /// Parses an address or a host name; `None` if the text is neither.
    fn parse(text: &str) -> Option<Self> {
        match text.parse::<IpAddr>() {
            Ok(address) => Some(Self::Address(address.to_canonical())),
            Err(_) => is_host_name(text).then(|| Self::Name(text.to_ascii_lowercase())),
        }
    }
}

impl fmt::Display for NfsServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Name(name) => name.fmt(f),
        }
    }
}

/// Checks the syntax of RFC 1123. The last label has a letter: other programs read `127.1` and `0x7f.1` as
/// addresses.
fn is_host_name(text: &str) -> bool {
    let is_label = |label: &str| {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        (1..=MAX_LABEL_BYTES).contains(&label.len())
            && label.bytes().all(is_allowed)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let is_number = |label: &str| {
        label.bytes().all(|byte| byte.is_ascii_digit()) || label.starts_with("0x") || label.starts_with("0X")
    };
    text.len() <= MAX_NAME_BYTES
        && text.split('.').all(is_label)
        && !text.rsplit('.').next().is_none_or(is_number)
}

/// An invalid field of kind `nfs`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidExport {
    /// The server is neither an address nor a host name.
    #[error("the NFS server {server:?} is neither an IP address nor a host name")]
    Server {
        /// The value.
        server: String,
    },
    /// The path is invalid.
    #[error("the NFS export {path:?} {problem}")]
    Path {
        /// The value.
        path: String,
        /// Its problem.
        problem: String,
    },
    /// Server and path together are too long.
    #[error("the NFS server and its export have {bytes} bytes: expected at most {MAX_SOURCE_BYTES}")]
    TooLong {
        /// Length of the source `SERVER:/PATH`.
        bytes: usize,
    },
    /// The version is not supported.
    #[error("the NFS version is {version:?}: expected {}", NfsVersion::ALL.map(NfsVersion::as_str).join(", "))]
    Version {
        /// The value.
        version: String,
    },
}

/// An exported directory of an NFS server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NfsExport {
    /// The server.
    pub server: NfsServer,
    /// The path at the server, without its leading slash.
    path: RelativePath,
    /// The version of the protocol.
    pub version: NfsVersion,
}

impl NfsExport {
    /// Parses the fields.
    ///
    /// # Errors
    /// [`InvalidExport`]
    pub fn parse(server: &str, path: &str, version: &str) -> Result<Self, InvalidExport> {
        let parsed_server = NfsServer::parse(server);
        let parsed_version = NfsVersion::ALL.into_iter().find(|known| known.as_str() == version);
        let export = Self {
            server: parsed_server.ok_or_else(|| InvalidExport::Server { server: server.to_owned() })?,
            path: parse_path(path)?,
            version: parsed_version.ok_or_else(|| InvalidExport::Version { version: version.to_owned() })?,
        };
        match export.source().len() {
            ..=MAX_SOURCE_BYTES => Ok(export),
            bytes => Err(InvalidExport::TooLong { bytes }),
        }
    }

    /// Returns the absolute path at the server.
    pub fn path(&self) -> String {
        format!("/{}", self.path.as_str())
    }

    /// Returns the source of the mount, as mountinfo shows it.
    pub fn source(&self) -> String {
        match self.server {
            NfsServer::Address(IpAddr::V6(address)) => format!("[{address}]:{}", self.path()),
            NfsServer::Address(IpAddr::V4(_)) | NfsServer::Name(_) => {
                format!("{}:{}", self.server, self.path())
            }
        }
    }

    /// Returns true if both are the same directory of a server, or one is below the other, by their texts. A name
    /// and its address are different servers.
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        self.server == other.server && self.path.overlaps(&other.path)
    }
}

fn parse_path(path: &str) -> Result<RelativePath, InvalidExport> {
    let invalid = |problem: String| InvalidExport::Path { path: path.to_owned(), problem };
    if path.chars().any(char::is_control) {
        return Err(invalid("has a control character".to_owned()));
    }
    let names = path.strip_prefix('/').ok_or_else(|| invalid("is not an absolute path".to_owned()))?;
    RelativePath::parse(names).map_err(|error| invalid(format!("is invalid below /: {error}")))
}

/// An invalid [`NfsRule`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NfsRuleError {
    /// An address is neither an address nor a network.
    #[error("{text:?} is neither an IP address nor a network such as 10.0.0.0/8")]
    Network {
        /// The value.
        text: String,
    },
    /// The server is neither an address, a network nor a host name.
    #[error("the server {server:?} is neither an IP address, a network nor a host name")]
    Server {
        /// The value.
        server: String,
    },
    /// An export is not an absolute path, or has `*` in another place than as its last name.
    #[error(
        "the export {export:?} is invalid: expected an absolute path other than /, which may end with /*"
    )]
    Export {
        /// The value.
        export: String,
    },
    /// A rule with a host name lacks the networks of its addresses.
    #[error("the server {server} is a host name: expected addresses, the networks that it may resolve to")]
    NoAddresses {
        /// The name.
        server: String,
    },
    /// A rule with an address or a network has addresses, too.
    #[error("the server {server} is an address or a network: expected no addresses beside it")]
    UnusedAddresses {
        /// The server.
        server: String,
    },
    /// A rule has no exports.
    #[error("the server {server} has no exports: expected paths, such as /srv/volumes/*")]
    NoExports {
        /// The server.
        server: String,
    },
}

/// The servers that a rule allows.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ServerPattern {
    Network(IpNet),
    Name(String),
}

impl fmt::Display for ServerPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Network(network) => network.fmt(f),
            Self::Name(name) => name.fmt(f),
        }
    }
}

/// An allowed path, or with [`Self::is_below`] all paths below it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ExportPattern {
    path: RelativePath,
    is_below: bool,
}

impl ExportPattern {
    fn parse(text: &str) -> Result<Self, NfsRuleError> {
        let (path, is_below) = text.strip_suffix("/*").map_or((text, false), |path| (path, true));
        match parse_path(path) {
            Ok(path) if !path.as_str().contains('*') => Ok(Self { path, is_below }),
            Ok(_) | Err(_) => Err(NfsRuleError::Export { export: text.to_owned() }),
        }
    }

    fn matches(&self, path: &RelativePath) -> bool {
        if self.is_below { path.is_below(&self.path) } else { *path == self.path }
    }
}

/// A rule of the policy: exports of servers that volumes may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NfsRule {
    server: ServerPattern,
    /// Networks of the addresses of a host name; for a network, the network itself.
    addresses: Vec<IpNet>,
    exports: Vec<ExportPattern>,
}

impl NfsRule {
    /// Creates a rule. `server` is an address, a network or a host name; `addresses` are the networks to which
    /// a host name may resolve. An export is an absolute path, and stands for all paths below it if it ends
    /// with `/*`.
    ///
    /// # Errors
    /// [`NfsRuleError`]
    pub fn new(server: &str, addresses: &[String], exports: &[String]) -> Result<Self, NfsRuleError> {
        let pattern = match parse_network(server) {
            Some(network) => ServerPattern::Network(network),
            None if is_host_name(server) => ServerPattern::Name(server.to_ascii_lowercase()),
            None => return Err(NfsRuleError::Server { server: server.to_owned() }),
        };
        let server = pattern.to_string();
        if exports.is_empty() {
            return Err(NfsRuleError::NoExports { server });
        }
        let network =
            |text: &String| parse_network(text).ok_or_else(|| NfsRuleError::Network { text: text.clone() });
        let addresses = match &pattern {
            ServerPattern::Network(_) if !addresses.is_empty() => {
                return Err(NfsRuleError::UnusedAddresses { server });
            }
            ServerPattern::Network(network) => vec![*network],
            ServerPattern::Name(_) if addresses.is_empty() => {
                return Err(NfsRuleError::NoAddresses { server });
            }
            ServerPattern::Name(_) => addresses.iter().map(network).collect::<Result<_, _>>()?,
        };
        let exports = exports.iter().map(|text| ExportPattern::parse(text)).collect::<Result<_, _>>()?;
        Ok(Self { server: pattern, addresses, exports })
    }

    /// Returns the networks in which the server's address must be; empty if the rule does not allow the export.
    pub(crate) fn addresses_of(&self, export: &NfsExport) -> &[IpNet] {
        let is_server = match (&self.server, &export.server) {
            (ServerPattern::Network(network), NfsServer::Address(address)) => network.contains(address),
            (ServerPattern::Name(pattern), NfsServer::Name(name)) => pattern == name,
            (ServerPattern::Network(_), NfsServer::Name(_))
            | (ServerPattern::Name(_), NfsServer::Address(_)) => false,
        };
        let is_allowed = is_server && self.exports.iter().any(|pattern| pattern.matches(&export.path));
        if is_allowed { &self.addresses } else { &[] }
    }
}

impl<'de> Deserialize<'de> for NfsRule {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "kebab-case", deny_unknown_fields)]
        struct Fields {
            server: String,
            #[serde(default)]
            addresses: Vec<String>,
            exports: Vec<String>,
        }
        let Fields { server, addresses, exports } = Fields::deserialize(deserializer)?;
        Self::new(&server, &addresses, &exports).map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_export_has_one_spelling() {
        #[rustfmt::skip] // one row a case
        let table = [
            ("10.0.0.5",            "10.0.0.5:/srv/a"),
            ("::1",                 "[::1]:/srv/a"),
            ("0:0:0:0:0:0:0:1",     "[::1]:/srv/a"),
            ("2001:DB8::0:5",       "[2001:db8::5]:/srv/a"),
            ("::ffff:10.0.0.5",     "10.0.0.5:/srv/a"),
            ("NAS.example.com",     "nas.example.com:/srv/a"),
        ];
        for (server, source) in table {
            assert_eq!(NfsExport::parse(server, "/srv/a", "4.2").unwrap().source(), source);
        }
        for server in [
            "",
            " ",
            "10.0.0",
            "010.0.0.1",
            "127.1",
            "0x7f.1",
            "2130706433",
            "10.0.0.5:2049",
            "[::1]",
            "fe80::1%eth0",
            "nas.",
            ".nas",
            "-nas",
            "nas_1",
            "nas example",
            "nas:/etc",
            "nas,addr=10.0.0.1",
            "n\u{e4}s",
        ] {
            let error = NfsExport::parse(server, "/srv/a", "4.2").unwrap_err();
            assert!(matches!(error, InvalidExport::Server { .. }), "{server:?}: {error}");
        }
        for path in ["", "/", "srv", "//", "/srv/", "/srv//a", "/srv/../etc", "/./srv", "/srv/a\n", "/srv/\0"]
        {
            let error = NfsExport::parse("nas", path, "3").unwrap_err();
            assert!(matches!(error, InvalidExport::Path { .. }), "{path:?}: {error}");
        }
        assert!(NfsExport::parse("nas", &format!("/{}", "a".repeat(250)), "3").is_ok());
        let error = NfsExport::parse("nas", &format!("/{}", "a".repeat(251)), "3").unwrap_err();
        assert_eq!(error, InvalidExport::TooLong { bytes: 256 });
        for version in ["", "2", "4", "4.0", "4.3", "v3", "3 "] {
            let error = NfsExport::parse("nas", "/a", version).unwrap_err();
            assert!(matches!(error, InvalidExport::Version { .. }), "{version:?}: {error}");
        }
    }

    fn rule(server: &str, addresses: &[&str], exports: &[&str]) -> Result<NfsRule, NfsRuleError> {
        let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        NfsRule::new(server, &texts(addresses), &texts(exports))
    }

    #[test]
    fn a_rule_allows_its_servers_and_exports() {
        let network = rule("10.0.0.0/24", &[], &["/srv/volumes/*", "/srv/one"]).unwrap();
        let six = rule("2001:db8::/32", &[], &["/srv/volumes/*"]).unwrap();
        let name = rule("nas.example.com", &["10.0.0.0/8"], &["/srv/volumes/*"]).unwrap();
        #[rustfmt::skip] // one row a case
        let table = [
            (&network, "10.0.0.5",        "/srv/volumes/a",    true),
            (&network, "10.0.0.5",        "/srv/volumes/a/b",  true),
            (&network, "10.0.0.5",        "/srv/one",          true),
            (&network, "::ffff:10.0.0.5", "/srv/one",          true),
            (&network, "10.0.0.5",        "/srv/volumes",      false),
            (&network, "10.0.0.5",        "/srv/volumes-2/a",  false),
            (&network, "10.0.0.5",        "/srv/one/a",        false),
            (&network, "10.0.1.5",        "/srv/one",          false),
            (&network, "nas.example.com", "/srv/one",          false),
            (&six,     "2001:DB8:0::5",   "/srv/volumes/a",    true),
            (&six,     "2001:db9::5",     "/srv/volumes/a",    false),
            (&name,    "NAS.example.com", "/srv/volumes/a",    true),
            (&name,    "10.0.0.5",        "/srv/volumes/a",    false),
            (&name,    "a.example.com",   "/srv/volumes/a",    false),
        ];
        for (rule, server, path, expected) in table {
            let export = NfsExport::parse(server, path, "4.1").unwrap();
            assert_eq!(!rule.addresses_of(&export).is_empty(), expected, "{rule:?} {server} {path}");
        }
    }

    #[test]
    fn invalid_rules_are_rejected() {
        #[rustfmt::skip] // one row a case
        let table = [
            (rule("10.0.0.5/8", &[], &["/a"]),         r#"the server "10.0.0.5/8" is neither"#),
            (rule("010.0.0.5", &[], &["/a"]),          r#"the server "010.0.0.5" is neither"#),
            (rule("::ffff:10.0.0.0/104", &[], &["/a"]), "is neither an IP address, a network"),
            (rule("*", &[], &["/a"]),                  "is neither an IP address, a network"),
            (rule("10.0.0.5", &["10.0.0.0/8"], &["/a"]), "expected no addresses beside it"),
            (rule("nas", &[], &["/a"]),                "expected addresses"),
            (rule("nas", &["all"], &["/a"]),           r#""all" is neither an IP address nor a network"#),
            (rule("10.0.0.5", &[], &[]),               "has no exports"),
            (rule("10.0.0.5", &[], &["/"]),            "expected an absolute path"),
            (rule("10.0.0.5", &[], &["/*"]),           "expected an absolute path"),
            (rule("10.0.0.5", &[], &["/a*"]),          "expected an absolute path"),
            (rule("10.0.0.5", &[], &["/a/*/b"]),       "expected an absolute path"),
            (rule("10.0.0.5", &[], &["srv"]),          "expected an absolute path"),
        ];
        for (rule, expected) in table {
            let error = rule.unwrap_err().to_string();
            assert!(error.contains(expected), "{error}: expected {expected}");
        }
    }
}
