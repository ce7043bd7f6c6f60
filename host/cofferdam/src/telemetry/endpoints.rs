//! Addresses of a process' telemetry servers, and the pages of each. The rules are those of the Go sidecars,
//! which exclude `http-endpoint` beside `metrics-address`.

use std::fmt;

use crate::config::{Configuration, HttpEndpoint, MetricsPath};

/// Address of a telemetry server, with its pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TelemetryEndpoint {
    /// Address.
    pub(crate) address: HttpEndpoint,
    /// Pages.
    pub(crate) pages: Pages,
}

/// Pages of a telemetry server. Health is `/healthz`, `/healthz/leader-election` and `/readyz`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Pages {
    /// Health, and metrics at the path.
    All(MetricsPath),
    /// Health.
    Health,
    /// Metrics at the path.
    Metrics(MetricsPath),
}

impl Pages {
    /// Reports if the server serves health.
    pub(super) const fn has_health(&self) -> bool {
        matches!(self, Self::All(_) | Self::Health)
    }

    /// Reports if the server serves the metrics at a path.
    pub(super) fn has_metrics_at(&self, path: &str) -> bool {
        match self {
            Self::All(metrics) | Self::Metrics(metrics) => metrics.matches(path),
            Self::Health => false,
        }
    }
}

impl fmt::Display for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All(metrics) => write!(f, "/healthz, /readyz and {metrics}"),
            Self::Health => f.write_str("/healthz and /readyz"),
            Self::Metrics(metrics) => metrics.fmt(f),
        }
    }
}

/// The telemetry servers of a process.
///
/// - With `metrics-address`, a server of the metrics.
/// - With `http-endpoint`, or else with the roles `liveness` or `registrar` on `health-port` of every address
///   of the machine, a server of health; it has the metrics, too, if they have no server of their own.
pub(crate) fn endpoints(configuration: &Configuration) -> Vec<TelemetryEndpoint> {
    let metrics_path = || configuration.metrics_path.clone();
    let default_port = configuration.role.default_health_port();
    let health_port = default_port.map(|default| configuration.health_port.unwrap_or(default));
    let health_port = health_port.filter(|port| *port != 0).map(|port| HttpEndpoint { host: None, port });
    let health = configuration.http_endpoint.clone().or(health_port).map(|address| TelemetryEndpoint {
        address,
        pages: match configuration.metrics_address {
            Some(_) => Pages::Health,
            None => Pages::All(metrics_path()),
        },
    });
    let metrics = configuration.metrics_address.clone();
    let metrics = metrics.map(|address| TelemetryEndpoint { address, pages: Pages::Metrics(metrics_path()) });
    health.into_iter().chain(metrics).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::config::{CliValues, ResolvedConfig};

    /// The endpoints with these flags, as text.
    fn endpoints_with(flags: &[(&'static str, &str)]) -> Vec<String> {
        let flags = flags
            .iter()
            .fold(CliValues::default(), |values, (name, value)| values.with(name, [(*value).to_owned()]));
        let resolved = ResolvedConfig::for_cluster(&flags, &HashMap::new()).unwrap();
        let texts = endpoints(&resolved.configuration);
        texts.iter().map(|endpoint| format!("{} {}", endpoint.address, endpoint.pages)).collect()
    }

    #[test]
    fn endpoints_are_those_of_the_sidecars() {
        type Case = (&'static [(&'static str, &'static str)], &'static [&'static str]);
        #[rustfmt::skip] // one row a case
        let cases: [Case; 15] = [
            (&[("role", "provisioner")], &[]),
            (&[("role", "provisioner"), ("http-endpoint", ":1")], &[":1 /healthz, /readyz and /metrics"]),
            (&[("role", "provisioner"), ("http-endpoint", ":1"), ("metrics-path", "/m")],
                &[":1 /healthz, /readyz and /m"]),
            (&[("role", "provisioner"), ("metrics-address", ":1"), ("metrics-path", "/m")], &[":1 /m"]),
            (&[("role", "provisioner"), ("http-endpoint", ":1"), ("metrics-address", ":2")],
                &[":1 /healthz and /readyz", ":2 /metrics"]),
            (&[("role", "liveness"), ("http-endpoint", ":1"), ("metrics-address", ":2")],
                &[":1 /healthz and /readyz", ":2 /metrics"]),
            (&[("role", "provisioner"), ("health-port", "1")], &[]),
            (&[("role", "liveness")], &[":9808 /healthz, /readyz and /metrics"]),
            (&[("role", "liveness"), ("health-port", "1")], &[":1 /healthz, /readyz and /metrics"]),
            (&[("role", "liveness"), ("http-endpoint", ":1")], &[":1 /healthz, /readyz and /metrics"]),
            (&[("role", "liveness"), ("http-endpoint", ":1"), ("health-port", "9808")],
                &[":1 /healthz, /readyz and /metrics"]),
            (&[("role", "liveness"), ("metrics-address", ":1")],
                &[":9808 /healthz and /readyz", ":1 /metrics"]),
            (&[("role", "registrar")], &[]),
            (&[("role", "registrar"), ("health-port", "0"), ("http-endpoint", ":1")],
                &[":1 /healthz, /readyz and /metrics"]),
            (&[("role", "registrar"), ("health-port", "1")], &[":1 /healthz, /readyz and /metrics"]),
        ];
        for (flags, expected) in cases {
            assert_eq!(endpoints_with(flags), expected, "{flags:?}");
        }
    }
}
