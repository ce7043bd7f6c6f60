//! Where requests may go: origins that the operator names, and addresses behind them.

use std::{collections::HashMap, fmt, net::IpAddr, path::PathBuf, sync::Arc};

use http::{Uri, uri::PathAndQuery};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::tls::{self, TlsTarget};
use crate::error::LoadError;
use cofferdam_backend::checks::printable;

/// Where a backend's HTTP requests may go: `[backend.NAME.http]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct HttpConfig {
    /// The allowed origins; requests to other origins are denied.
    pub origins: Vec<OriginConfig>,
}

/// One origin, with its TLS options and addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct OriginConfig {
    /// Scheme, host and port, such as `https://array.example:8443`.
    pub origin: String,
    /// PEM file of the authorities that may sign the server's certificate, instead of the system's.
    #[serde(default)]
    pub ca_file: Option<PathBuf>,
    /// SHA-256 of the server's own certificate in DER, in hexadecimal digits. Without `ca_file` only the pin
    /// is checked: neither the certificate's name nor its dates.
    #[serde(default)]
    pub pin_sha256: Option<String>,
    /// PEM file of the client's certificate and those that lead to its authority.
    #[serde(default)]
    pub certificate_file: Option<PathBuf>,
    /// PEM file of the client's private key.
    #[serde(default)]
    pub key_file: Option<PathBuf>,
    /// The only allowed addresses and networks of the host. Loopback, link-local, multicast and unspecified
    /// addresses are denied unless they, or a part of their network, are listed.
    #[serde(default)]
    pub addresses: Option<Vec<String>>,
}

/// Scheme, host and port in their one spelling.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Origin {
    is_https: bool,
    pub(crate) host: UrlHost,
    pub(crate) port: u16,
}

/// The server of a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum UrlHost {
    /// A name, in lower case.
    Name(String),
    /// An address.
    Address(IpAddr),
}

impl fmt::Display for UrlHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Address(IpAddr::V4(address)) => write!(f, "{address}"),
            Self::Address(IpAddr::V6(address)) => write!(f, "[{address}]"),
        }
    }
}

impl Origin {
    const fn default_port(secure: bool) -> u16 {
        if secure { 443 } else { 80 }
    }

    /// The value of the header `Host`.
    pub(crate) fn authority(&self) -> String {
        if self.port == Self::default_port(self.is_https) {
            self.host.to_string()
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    /// Parses an absolute URL. The error does not repeat the URL: it may contain a token.
    fn parse(url: &str) -> Result<(Self, PathAndQuery), &'static str> {
        let uri: Uri = url.parse().map_err(|_| "it is not an absolute URL")?;
        let secure = match uri.scheme_str().map(str::to_ascii_lowercase).as_deref() {
            Some("https") => true,
            Some("http") => false,
            Some(_) | None => return Err("its scheme is neither https nor http"),
        };
        let authority = uri.authority().map(http::uri::Authority::as_str).unwrap_or_default();
        if authority.contains('@') {
            return Err("it has a user");
        }
        let (host, port) = match authority.rsplit_once(':') {
            // The colons inside of an address in brackets are not the port's.
            Some((host, port)) if !port.ends_with(']') => {
                let digits = port.bytes().all(|byte| byte.is_ascii_digit());
                let port = port.parse().ok().filter(|port| digits && *port > 0).ok_or("its port is wrong")?;
                (host, port)
            }
            Some(_) | None => (authority, Self::default_port(secure)),
        };
        let path = match uri.path_and_query() {
            Some(path) if path.as_str().starts_with('/') => path.clone(),
            Some(path) => format!("/{}", path.as_str()).parse().map_err(|_| "its path is wrong")?,
            None => PathAndQuery::from_static("/"),
        };
        Ok((Self { is_https: secure, host: UrlHost::parse(host)?, port }, path))
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", if self.is_https { "https" } else { "http" }, self.authority())
    }
}

impl UrlHost {
    fn parse(host: &str) -> Result<Self, &'static str> {
        if let Some(address) = host.strip_prefix('[') {
            let address = address.strip_suffix(']').and_then(|address| address.parse().ok());
            return address.map(|address| Self::Address(IpAddr::V6(address))).ok_or("its address is wrong");
        }
        if let Ok(address) = host.parse() {
            return Ok(Self::Address(IpAddr::V4(address)));
        }
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
        if host.is_empty() || host.len() > 253 || !host.bytes().all(plain) {
            return Err("its host is not a DNS name");
        }
        Ok(Self::Name(host.to_ascii_lowercase()))
    }
}

/// One origin, ready to be used.
#[derive(Debug)]
pub(crate) struct OriginTarget {
    pub(crate) origin: Origin,
    /// Absent for plain HTTP.
    pub(crate) tls: Option<TlsTarget>,
    addresses: Option<Vec<IpNet>>,
}

/// The origins of one backend.
#[derive(Debug, Default)]
pub(crate) struct OriginPolicy {
    targets: HashMap<Origin, Arc<OriginTarget>>,
}

/// Reason for denying a URL.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum UrlRejection {
    Invalid(&'static str),
    Forbidden(Origin),
}

impl OriginPolicy {
    /// Parses the configuration, and reads all files that it names.
    ///
    /// # Errors
    ///
    /// An origin is invalid or a duplicate, or its TLS options are unreadable or inconsistent. The message
    /// names the component and the origin.
    pub(crate) fn new(component: &str, config: &HttpConfig) -> Result<Self, LoadError> {
        let mut policy = Self::default();
        for config in &config.origins {
            let refused = |reason| LoadError::Http {
                name: component.to_owned(),
                origin: printable(&config.origin),
                reason,
            };
            let target = OriginTarget::new(config).map_err(refused)?;
            if policy.targets.insert(target.origin.clone(), Arc::new(target)).is_some() {
                return Err(refused("is named twice".to_owned()));
            }
        }
        Ok(policy)
    }

    /// The target of a URL, if its origin is allowed, and the path.
    pub(crate) fn target(&self, url: &str) -> Result<(Arc<OriginTarget>, PathAndQuery), UrlRejection> {
        let (origin, path) = Origin::parse(url).map_err(UrlRejection::Invalid)?;
        match self.targets.get(&origin) {
            Some(target) => Ok((Arc::clone(target), path)),
            None => Err(UrlRejection::Forbidden(origin)),
        }
    }
}

impl OriginTarget {
    fn new(config: &OriginConfig) -> Result<Self, String> {
        let (origin, path) = Origin::parse(&config.origin).map_err(str::to_owned)?;
        if path != "/" || config.origin.contains(['?', '#']) {
            return Err("has a path; expected scheme, host and port only".to_owned());
        }
        if let UrlHost::Name(name) = &origin.host {
            // Resolvers read such names as addresses: 127.1, 0x7f000001.
            let last = name.rsplit('.').next().unwrap_or_default();
            if last.is_empty() || last.starts_with("0x") || last.bytes().all(|byte| byte.is_ascii_digit()) {
                return Err(
                    "its host is neither a DNS name without a final dot nor a whole address".to_owned()
                );
            }
        }
        let addresses = config.addresses.as_deref().map(parse_networks).transpose()?;
        let tls = if origin.is_https {
            Some(TlsTarget::new(config, &origin.host)?)
        } else {
            tls::reject_tls_options(config)?;
            None
        };
        let target = Self { origin, tls, addresses };
        match &target.origin.host {
            UrlHost::Address(address) if !target.is_allowed(*address) => {
                Err(format!("{address} is not allowed as an address; name it in `addresses` if it is meant"))
            }
            UrlHost::Address(_) | UrlHost::Name(_) => Ok(target),
        }
    }

    /// True if connections to an address are allowed.
    pub(crate) fn is_allowed(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        let mut listed = self.addresses.iter().flatten().filter(|network| network.contains(&address));
        match special_network(address) {
            // A wide network does not allow special addresses within it.
            Some(special) => listed.any(|network| special.contains(network)),
            None => self.addresses.is_none() || listed.next().is_some(),
        }
    }
}

/// Networks of this machine, its neighbours, cloud metadata and multicast: never those of a storage array.
const SPECIAL_NETWORKS: [&str; 17] = [
    "0.0.0.0/8",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "224.0.0.0/3",
    "::1/128",
    "::/128",
    "::/96",
    "fe80::/10",
    "ff00::/8",
    // IPv4 addresses embedded in IPv6, by translation (RFC 6052, 8215) and by 6to4 (RFC 3056): they would
    // bypass the other entries.
    "64:ff9b::/96",
    "64:ff9b:1::/48",
    "2002::/16",
    // Metadata and platform services of clouds that are not link-local: AWS, Azure, Alibaba, Oracle, Google,
    // and AWS's time.
    "fd00:ec2::/32",
    "168.63.129.16/32",
    "100.100.100.200/32",
    "192.0.0.192/32",
    "fd20:ce::254/128",
];

fn special_network(address: IpAddr) -> Option<IpNet> {
    SPECIAL_NETWORKS
        .into_iter()
        .filter_map(|network| network.parse::<IpNet>().ok())
        .find(|network| network.contains(&address))
}

fn parse_networks(texts: &[String]) -> Result<Vec<IpNet>, String> {
    if texts.is_empty() {
        return Err("`addresses` is empty: nothing could be reached".to_owned());
    }
    let network = |text: &String| {
        let network = text.parse::<IpNet>().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
        let network = network.map_err(|_| {
            format!(
                "{:?} in `addresses`: expected an address or a network such as 10.0.0.0/8",
                printable(text)
            )
        })?;
        Ok(match network.addr().to_canonical() {
            IpAddr::V4(address) if network.addr().is_ipv6() => {
                let prefix = network.prefix_len().checked_sub(96);
                IpNet::new(address.into(), prefix.unwrap_or(u8::MAX))
                    .map_err(|_| format!("{text:?} in `addresses`: expected an IPv4 network"))?
            }
            IpAddr::V4(_) | IpAddr::V6(_) => network,
        })
    };
    texts.iter().map(network).collect()
}

#[cfg(test)]
#[path = "policy_tests.rs"]
mod tests;
