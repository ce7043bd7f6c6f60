//! Networks and ports in the policy, and addresses with ports in connection info.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

/// An invalid `PortalRule`, or a rule that has one and lacks another setting.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PortalRuleError {
    /// A network is neither an address nor a network.
    #[error("{text:?} is neither an IP address nor a network such as 10.0.0.0/8")]
    Network {
        /// The value.
        text: String,
    },
    /// A rule lacks a setting.
    #[error("a rule has no {setting}: expected at least one value")]
    Empty {
        /// The setting.
        setting: &'static str,
    },
    /// A port is 0.
    #[error("a port is 0: expected 1 to 65535")]
    Port,
}

/// The networks and ports of the servers that a rule of the policy allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PortalRule {
    networks: Vec<IpNet>,
    ports: Vec<u16>,
}

impl PortalRule {
    /// Parses the settings `networks` and `ports` of a rule. `others` are the names and numbers of values of its
    /// other settings, which must not be empty either.
    pub(crate) fn new(
        networks: &[String],
        ports: &[u16],
        others: &[(&'static str, usize)],
    ) -> Result<Self, PortalRuleError> {
        let settings = [("networks", networks.len()), ("ports", ports.len())];
        if let Some((setting, _)) = settings.iter().chain(others).find(|(_, count)| *count == 0) {
            return Err(PortalRuleError::Empty { setting });
        }
        if ports.contains(&0) {
            return Err(PortalRuleError::Port);
        }
        let network = |text: &String| {
            parse_network(text).ok_or_else(|| PortalRuleError::Network { text: text.clone() })
        };
        let networks = networks.iter().map(network).collect::<Result<_, _>>()?;
        Ok(Self { networks, ports: ports.to_vec() })
    }

    pub(crate) fn allows(&self, portal: SocketAddr) -> bool {
        self.ports.contains(&portal.port())
            && self.networks.iter().any(|network| network.contains(&portal.ip()))
    }
}

/// Parses an address or a network in the form that has one meaning. IPv4 in IPv6 notation is none.
pub(crate) fn parse_network(text: &str) -> Option<IpNet> {
    let (start, _) = text.split_once('/').unwrap_or((text, ""));
    let address = start.parse::<IpAddr>().ok()?;
    let network = if start == text { IpNet::from(address) } else { text.parse().ok()? };
    let is_mapped = matches!(address, IpAddr::V6(address) if address.to_ipv4_mapped().is_some());
    (!is_mapped && network.network() == address).then_some(network)
}

/// Parses a list of 1 to `most` addresses, separated by commas; `None` if one is invalid or repeated. IPv4 in
/// IPv6 notation becomes IPv4.
pub(crate) fn parse_endpoints(text: &str, default_port: u16, most: usize) -> Option<Vec<SocketAddr>> {
    let mut endpoints = Vec::new();
    for part in text.split(',') {
        let endpoint = parse_endpoint(part, default_port)?;
        if endpoints.len() == most || endpoints.contains(&endpoint) {
            return None;
        }
        endpoints.push(endpoint);
    }
    Some(endpoints)
}

/// Parses an address with an optional port. IPv6 needs brackets and has no zone.
fn parse_endpoint(text: &str, default_port: u16) -> Option<SocketAddr> {
    if let Ok(endpoint) = text.parse::<SocketAddr>() {
        let is_valid = !text.contains('%') && endpoint.port() != 0;
        return is_valid.then(|| SocketAddr::new(endpoint.ip().to_canonical(), endpoint.port()));
    }
    let address = match text.strip_prefix('[').and_then(|text| text.strip_suffix(']')) {
        Some(address) => IpAddr::V6(address.parse().ok()?),
        None => IpAddr::V4(text.parse().ok()?),
    };
    Some(SocketAddr::new(address.to_canonical(), default_port))
}
