//! Origins: scheme, host and port of a URL.

use std::{fmt, net::IpAddr};

use http::{Uri, uri::PathAndQuery};

/// A URL that names no HTTP server. The messages do not repeat the URL: it may contain a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// The URL is empty, too long, malformed, or has characters that no URL has.
    #[error("it is not an absolute URL")]
    NotAbsolute,
    /// The scheme is absent, or neither `https` nor `http`.
    #[error("its scheme is neither https nor http")]
    Scheme,
    /// A user or a password precedes the host.
    #[error("it has a user; expected scheme, host, port and path only")]
    HasUser,
    /// The host is empty, too long, or has characters that DNS names do not have.
    #[error("its host is not a DNS name")]
    HostName,
    /// The text in brackets is not an IPv6 address.
    #[error("its address is not an IPv6 address")]
    Address,
    /// The port is not a number, or out of range.
    #[error("its port is not a number from 1 to 65535")]
    Port,
    /// The path is invalid.
    #[error("its path is not a path of a URL")]
    Path,
}

/// Scheme, host and port, normalized: spellings of the same origin are equal.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Origin {
    pub(crate) is_https: bool,
    pub(crate) host: UrlHost,
    pub(crate) port: u16,
}

/// Host of an origin.
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

    /// Parses an absolute URL into its origin, and its path with the query. The error does not repeat the
    /// URL: it may contain a token.
    pub(super) fn parse(url: &str) -> Result<(Self, PathAndQuery), UrlError> {
        let uri: Uri = url.parse().map_err(|_| UrlError::NotAbsolute)?;
        let secure = match uri.scheme_str().map(str::to_ascii_lowercase).as_deref() {
            Some("https") => true,
            Some("http") => false,
            Some(_) | None => return Err(UrlError::Scheme),
        };
        let authority = uri.authority().map(http::uri::Authority::as_str).unwrap_or_default();
        if authority.contains('@') {
            return Err(UrlError::HasUser);
        }
        let (host, port) = match authority.rsplit_once(':') {
            // The colons inside of an address in brackets are not the port's.
            Some((host, port)) if !port.ends_with(']') => {
                let digits = port.bytes().all(|byte| byte.is_ascii_digit());
                let port = port.parse().ok().filter(|port| digits && *port > 0).ok_or(UrlError::Port)?;
                (host, port)
            }
            Some(_) | None => (authority, Self::default_port(secure)),
        };
        let path = match uri.path_and_query() {
            Some(path) if path.as_str().starts_with('/') => path.clone(),
            Some(path) => format!("/{}", path.as_str()).parse().map_err(|_| UrlError::Path)?,
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
    fn parse(host: &str) -> Result<Self, UrlError> {
        if let Some(address) = host.strip_prefix('[') {
            let address = address.strip_suffix(']').and_then(|address| address.parse().ok());
            return address.map(|address| Self::Address(IpAddr::V6(address))).ok_or(UrlError::Address);
        }
        if let Ok(address) = host.parse() {
            return Ok(Self::Address(IpAddr::V4(address)));
        }
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
        if host.is_empty() || host.len() > 253 || !host.bytes().all(plain) {
            return Err(UrlError::HostName);
        }
        Ok(Self::Name(host.to_ascii_lowercase()))
    }
}
