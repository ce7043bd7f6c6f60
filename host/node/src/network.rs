//! Networks in the policy.

use std::net::IpAddr;

use ipnet::IpNet;

/// Parses an address or a network in the form that has one meaning. IPv4 in IPv6 notation is none.
pub(crate) fn parse_network(text: &str) -> Option<IpNet> {
    let (start, _) = text.split_once('/').unwrap_or((text, ""));
    let address = start.parse::<IpAddr>().ok()?;
    let network = if start == text { IpNet::from(address) } else { text.parse().ok()? };
    let is_mapped = matches!(address, IpAddr::V6(address) if address.to_ipv4_mapped().is_some());
    (!is_mapped && network.network() == address).then_some(network)
}
