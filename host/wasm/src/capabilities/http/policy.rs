//! Allowed destinations of requests: the configured origins, and the addresses that their names may have.

use std::{
    collections::{BTreeSet, HashMap},
    net::IpAddr,
    sync::Arc,
};

use http::uri::PathAndQuery;
use ipnet::IpNet;

use super::{
    config::{HttpConfig, OriginConfig},
    origin::{Origin, UrlError, UrlHost},
    tls::{self, TlsError, TlsTarget},
};
use cofferdam_backend::checks::printable;

/// A configured origin that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OriginError {
    /// The origin is not a URL of an HTTP server.
    #[error(transparent)]
    Url(#[from] UrlError),
    /// The URL has a path, a query or a fragment.
    #[error("has a path; expected scheme, host and port only")]
    HasPath,
    /// The host ends with a dot, or some resolvers read it as a name and others as an address, such as
    /// `127.1`.
    #[error("its host is neither a DNS name without a final dot nor a whole address")]
    AmbiguousHost,
    /// The host is an address that `addresses` does not contain, or a special one, such as loopback, that
    /// `addresses` does not list as such.
    #[error(
        "{0} is not allowed as an address; name it in `addresses`, or by --origin-address, if it is meant"
    )]
    DeniedAddress(IpAddr),
    /// The list of addresses is empty.
    #[error("`addresses` is empty: nothing could be reached; expected at least one address or network")]
    NoAddresses,
    /// An entry of `addresses` is neither an address nor a network.
    #[error("{0:?} in `addresses`: expected an address or a network such as 10.0.0.0/8")]
    Network(String),
    /// An IPv4 network in IPv6 notation is wider than all of IPv4.
    #[error("{0:?} in `addresses`: expected an IPv4 network")]
    MappedNetwork(String),
    /// The TLS options cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// Another entry has the same origin.
    #[error("is named twice")]
    Duplicate,
    /// An entry of `secrets` is not a secret of the configuration, and `class-secrets` is not granted.
    #[error("{0:?} in `secrets`: expected a name in [backend.NAME.secrets], or `class-secrets = true`")]
    UnknownSecret(String),
}

/// An entry of the configuration that cannot be used.
#[derive(Debug)]
pub(crate) struct OriginConfigError {
    /// The origin from the configuration, made printable.
    pub(crate) origin: String,
    pub(crate) error: Box<OriginError>,
}

/// An allowed origin, with its TLS configuration and allowed networks.
#[derive(Debug)]
pub(crate) struct OriginTarget {
    pub(crate) origin: Origin,
    /// Absent for plain HTTP.
    pub(crate) tls: Option<TlsTarget>,
    addresses: Option<Vec<IpNet>>,
    secrets: PermittedSecrets,
}

/// The secrets that may be sent to an origin.
#[derive(Debug)]
enum PermittedSecrets {
    All,
    Named(BTreeSet<String>),
}

/// The allowed origins of one backend.
#[derive(Debug, Default)]
pub(crate) struct OriginPolicy {
    targets: HashMap<Origin, Arc<OriginTarget>>,
}

/// Reason for denying a URL.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum UrlRejection {
    Invalid(UrlError),
    Forbidden(Origin),
}

/// Rejects names in `secrets` of origins that no call can have.
pub(crate) fn check_secret_names(
    config: &HttpConfig,
    is_known: impl Fn(&str) -> bool,
) -> Result<(), OriginConfigError> {
    for config in &config.origins {
        if let Some(name) = config.secrets.iter().flatten().find(|name| !is_known(name)) {
            let error = Box::new(OriginError::UnknownSecret(printable(name)));
            return Err(OriginConfigError { origin: printable(&config.origin), error });
        }
    }
    Ok(())
}

impl OriginPolicy {
    /// Parses the configuration, and reads all files that it names.
    ///
    /// # Errors
    ///
    /// An origin is invalid or a duplicate, its address is denied, its list of addresses is invalid, or its
    /// TLS options are unreadable or inconsistent.
    pub(crate) fn new(config: &HttpConfig) -> Result<Self, OriginConfigError> {
        let mut policy = Self::default();
        let is_only_origin = config.origins.len() == 1;
        for config in &config.origins {
            let invalid =
                |error| OriginConfigError { origin: printable(&config.origin), error: Box::new(error) };
            let mut target = OriginTarget::new(config).map_err(invalid)?;
            target.secrets = target.permitted_secrets(config, is_only_origin);
            if policy.targets.insert(target.origin.clone(), Arc::new(target)).is_some() {
                return Err(invalid(OriginError::Duplicate));
            }
        }
        Ok(policy)
    }

    /// The target of a URL, if its origin is allowed, and the URL's path with the query.
    pub(crate) fn target(&self, url: &str) -> Result<(Arc<OriginTarget>, PathAndQuery), UrlRejection> {
        let (origin, path) = Origin::parse(url).map_err(UrlRejection::Invalid)?;
        match self.targets.get(&origin) {
            Some(target) => Ok((Arc::clone(target), path)),
            None => Err(UrlRejection::Forbidden(origin)),
        }
    }
}

impl OriginTarget {
    fn new(config: &OriginConfig) -> Result<Self, OriginError> {
        let (origin, path) = Origin::parse(&config.origin)?;
        if path != "/" || config.origin.contains(['?', '#']) {
            return Err(OriginError::HasPath);
        }
        if let UrlHost::Name(name) = &origin.host {
            // Resolvers read such names as addresses: 127.1, 0x7f000001.
            let last = name.rsplit('.').next().unwrap_or_default();
            if last.is_empty() || last.starts_with("0x") || last.bytes().all(|byte| byte.is_ascii_digit()) {
                return Err(OriginError::AmbiguousHost);
            }
        }
        let addresses = config.addresses.as_deref().map(parse_networks).transpose()?;
        let tls = if origin.is_https {
            Some(TlsTarget::new(config, &origin.host)?)
        } else {
            tls::reject_tls_options(config)?;
            None
        };
        let target = Self { origin, tls, addresses, secrets: PermittedSecrets::Named(BTreeSet::new()) };
        match &target.origin.host {
            UrlHost::Address(address) if !target.is_allowed(*address) => {
                Err(OriginError::DeniedAddress(*address))
            }
            UrlHost::Address(_) | UrlHost::Name(_) => Ok(target),
        }
    }

    /// Without a list, a secret goes to the backend's only origin, where no other could be meant, and only
    /// protected by TLS or within this machine.
    fn permitted_secrets(&self, config: &OriginConfig, is_only_origin: bool) -> PermittedSecrets {
        let is_loopback = matches!(self.origin.host, UrlHost::Address(address) if address.is_loopback());
        match &config.secrets {
            Some(names) => PermittedSecrets::Named(names.clone()),
            None if is_only_origin && (self.origin.is_https || is_loopback) => PermittedSecrets::All,
            None => PermittedSecrets::Named(BTreeSet::new()),
        }
    }

    /// True if the secret of this name may be sent to the origin.
    pub(crate) fn permits_secret(&self, name: &str) -> bool {
        match &self.secrets {
            PermittedSecrets::All => true,
            PermittedSecrets::Named(names) => names.contains(name),
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

/// Loopback, link-local, multicast, reserved, unspecified and cloud metadata networks, and IPv6 networks that
/// embed IPv4 addresses. Their addresses are denied unless the operator lists them: storage arrays do not
/// have such addresses.
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
    // Metadata and platform services of clouds that are not link-local: AWS, Azure, Alibaba, Oracle, Google.
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

fn parse_networks(texts: &[String]) -> Result<Vec<IpNet>, OriginError> {
    if texts.is_empty() {
        return Err(OriginError::NoAddresses);
    }
    texts.iter().map(|text| parse_network(text)).collect()
}

/// Parses an address or a network. IPv4 in IPv6 notation becomes IPv4.
fn parse_network(text: &str) -> Result<IpNet, OriginError> {
    let network = text.parse::<IpNet>().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
    // ipnet reads 010.0.0.0 as 10.0.0.0, and other programs read it as 8.0.0.0.
    let is_plain =
        |network: &IpNet| text.split('/').next().and_then(|start| start.parse().ok()) == Some(network.addr());
    let network = network.ok().filter(is_plain).ok_or_else(|| OriginError::Network(printable(text)))?;
    match network.addr().to_canonical() {
        IpAddr::V4(address) if network.addr().is_ipv6() => {
            let prefix = network.prefix_len().checked_sub(96).unwrap_or(u8::MAX);
            IpNet::new(address.into(), prefix).map_err(|_| OriginError::MappedNetwork(printable(text)))
        }
        IpAddr::V4(_) | IpAddr::V6(_) => Ok(network),
    }
}

#[cfg(test)]
#[path = "policy_tests.rs"]
mod tests;
