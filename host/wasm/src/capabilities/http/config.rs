//! Configuration of the `http` import.

use std::{collections::BTreeSet, path::PathBuf};

use serde::{Deserialize, Serialize};

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
    /// PEM file of the client's certificate and its intermediate certificates.
    #[serde(default)]
    pub certificate_file: Option<PathBuf>,
    /// PEM file of the client's private key.
    #[serde(default)]
    pub key_file: Option<PathBuf>,
    /// The only addresses and networks at which requests may reach this origin; `None` for all except special
    /// ones. Special are loopback, link-local, multicast, reserved, unspecified and cloud metadata addresses,
    /// and IPv6 addresses that embed an IPv4 address. They are denied unless listed as such: a wide network
    /// such as `0.0.0.0/0` does not allow them.
    #[serde(default)]
    pub addresses: Option<Vec<String>>,
    /// Names of the secrets that the host may write into requests to this origin. `None` permits all secrets
    /// if this is the backend's only origin, and its scheme is `https` or its host is a loopback address;
    /// otherwise it permits none.
    #[serde(default)]
    pub secrets: Option<BTreeSet<String>>,
}
