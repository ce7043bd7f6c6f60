//! Networks in the policy, and addresses with ports in connection info.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

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
