//! The origins that an operator allows, and the URLs that a guest requests.

use std::net::IpAddr;

use cofferdam_wasm::{
    HttpConfig, OriginConfig,
    fuzzing::{AllowedHost, AllowedUrl, Origins},
};

/// Any pin: the authorities of the system are not read.
const PIN: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// Lines of text: an origin of the configuration, its addresses, the URL of a request, and an address. The URL
/// may have line breaks.
///
/// - An allowed URL has the scheme, the host and the port of the origin, and no user.
/// - Its path is sent as the guest wrote it, without the fragment.
/// - An allowed address is in the list of the origin. A special one, such as loopback, is not allowed without a
///   list or by a wide network.
/// - An origin allows its own URLs.
pub fn origins(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Some((origin, rest)) = text.split_once('\n') else { return };
    let Some((addresses, rest)) = rest.split_once('\n') else { return };
    let (url, address) = rest.rsplit_once('\n').unwrap_or((rest, ""));
    let addresses: Vec<String> = addresses.split_ascii_whitespace().map(str::to_owned).collect();

    let has_tls = origin.get(..6).is_some_and(|scheme| scheme.eq_ignore_ascii_case("https:"));
    let config = OriginConfig {
        origin: origin.to_owned(),
        pin_sha256: has_tls.then(|| PIN.to_owned()),
        addresses: (!addresses.is_empty()).then(|| addresses.clone()),
        ..OriginConfig::default()
    };
    let origins = match Origins::new(&HttpConfig { origins: vec![config] }) {
        Ok(origins) => origins,
        Err(error) => {
            let message = error.to_string();
            assert!(!message.is_empty() && !message.contains('\n'), "{message:?}");
            return;
        }
    };
    let granted = Parts::of(origin);
    assert_eq!(granted.path, "/", "an origin with a path");

    for own in [origin.to_owned(), format!("{}/a?b#c", origin.trim_end_matches('/'))] {
        let allowed = origins.find(&own);
        assert!(allowed.is_some(), "{origin:?} does not allow {own:?}");
        check_allowed(&granted, &own, allowed);
    }
    check_allowed(&granted, url, origins.find(url));
    if let (Ok(address), Some(target)) = (address.parse::<IpAddr>(), origins.find(origin)) {
        check_address(&addresses, address, target.is_address_allowed(address));
        if let AllowedHost::Address(host) = target.host() {
            assert!(target.is_address_allowed(host), "the address {host} of the origin itself");
        }
    }
}

fn check_allowed(granted: &Parts<'_>, url: &str, allowed: Option<AllowedUrl>) {
    let Some(allowed) = allowed else { return };
    let requested = Parts::of(url);
    assert!(!requested.authority.contains(['@', '\\', '%']), "{url:?}");
    assert_eq!(requested.origin(), granted.origin(), "{url:?} is allowed");
    assert_eq!(
        (allowed.is_https(), allowed.host(), allowed.port()),
        granted.origin(),
        "the connection for {url:?}"
    );
    assert_eq!(allowed.path, requested.path, "the path of {url:?}");
    for sent in [allowed.authority(), allowed.path] {
        assert!(sent.bytes().all(|byte| byte > b' ' && byte != 0x7f), "{sent:?} breaks the head");
    }
}

fn check_address(networks: &[String], address: IpAddr, is_allowed: bool) {
    if !is_allowed {
        return;
    }
    let address = address.to_canonical();
    let is_special = match address {
        IpAddr::V4(address) => {
            address.is_loopback()
                || address.is_link_local()
                || address.is_multicast()
                || address.is_broadcast()
                || address.is_unspecified()
        }
        IpAddr::V6(address) => {
            address.is_loopback()
                || address.is_unicast_link_local()
                || address.is_multicast()
                || address.is_unspecified()
        }
    };
    if networks.is_empty() {
        assert!(!is_special, "{address} is allowed without a list");
        return;
    }
    let is_in =
        |network: Network| network.contains(address) && (!is_special || network.prefix >= MIN_SPECIAL_PREFIX);
    assert!(networks.iter().filter_map(|text| Network::parse(text)).any(is_in), "{address} in {networks:?}");
}

/// Length of the shortest prefix of a network with special addresses only: 224.0.0.0/3.
const MIN_SPECIAL_PREFIX: u32 = 3;

/// An address, or a network in the notation `ADDRESS/PREFIX`.
struct Network {
    start: IpAddr,
    prefix: u32,
}

impl Network {
    fn parse(text: &str) -> Option<Self> {
        let (start, prefix) = text.split_once('/').unwrap_or((text, ""));
        let notation: IpAddr = start.parse().ok()?;
        let start = notation.to_canonical();
        let max = if start.is_ipv4() { 32 } else { 128 };
        // The prefix of an IPv4 network in IPv6 notation counts the notation's 96 bits.
        let extra = if start.is_ipv4() && notation.is_ipv6() { 96 } else { 0 };
        let prefix = if prefix.is_empty() { max } else { prefix.parse::<u32>().ok()?.checked_sub(extra)? };
        Some(Self { start, prefix })
    }

    fn contains(&self, address: IpAddr) -> bool {
        let bits = |address: IpAddr| match address {
            IpAddr::V4(address) => u128::from(u32::from(address)) << 96,
            IpAddr::V6(address) => u128::from(address),
        };
        let suffix = 128_u32.saturating_sub(self.prefix);
        let shifted = |address| bits(address).checked_shr(suffix).unwrap_or_default();
        self.start.is_ipv4() == address.is_ipv4() && shifted(self.start) == shifted(address)
    }
}

/// A URL in its parts, split as RFC 3986 says. A backslash ends the authority, too, as browsers have it.
struct Parts<'a> {
    scheme: String,
    authority: &'a str,
    /// Path and query, at least `/`.
    path: String,
}

impl<'a> Parts<'a> {
    fn of(url: &'a str) -> Self {
        let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
        let (authority, path) = rest.split_at(rest.find(['/', '?', '#', '\\']).unwrap_or(rest.len()));
        let path = path.split('#').next().unwrap_or_default();
        let slash = if path.starts_with('/') { "" } else { "/" };
        Self { scheme: scheme.to_ascii_lowercase(), authority, path: format!("{slash}{path}") }
    }

    /// True for the scheme `https`; the host and the port.
    fn origin(&self) -> (bool, AllowedHost, u16) {
        let is_https = self.scheme == "https";
        assert!(is_https || self.scheme == "http", "the scheme {:?}", self.scheme);
        let default_port = if is_https { 443 } else { 80 };
        let (host, port) = match self.authority.rsplit_once(':') {
            Some((host, port)) if !port.contains(']') => (host, port.parse().unwrap_or_default()),
            Some(_) | None => (self.authority, default_port),
        };
        let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let host = match address.parse() {
            Ok(address) => AllowedHost::Address(address),
            Err(_) => AllowedHost::Name(host.to_ascii_lowercase()),
        };
        (is_https, host, port)
    }
}
