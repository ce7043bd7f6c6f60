//! The settings of a process's leader election: whether it has one, and for which Leases.

use std::{
    collections::{BTreeSet, HashMap},
    path::Path,
    sync::Arc,
};

use cofferdam_cluster::{
    api::ApiClient,
    campaign::Campaign,
    leader_election::{LeaderElector, LeaderHealth, LeaseCandidate, sanitize_name, with_random_part},
    metrics::Metrics,
    system_clock,
};
use cofferdam_controllers::table;
use cofferdam_domain::DriverName;

use crate::{
    config::{Configuration, ResolvedConfig},
    host_name::host_name,
    telemetry::{LeaderElectionHealth, Unhealthy},
};

/// Environment variable that kubelet sets in every container.
const SERVICE_HOST: &str = "KUBERNETES_SERVICE_HOST";
/// Environment variable with the namespace of the pod, as in the sidecars.
const POD_NAMESPACE: &str = "POD_NAMESPACE";
/// File with the namespace of the pod's service account.
const NAMESPACE_FILE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";

/// Returns true if the roles run only while the process holds their Leases: by the setting
/// `leader-election`, and by default in a pod. Without it, two replicas of a Deployment, such as those of a
/// rolling update, would both call the driver. The processes of a node-local driver, one on each node, share
/// no work.
pub(crate) fn is_enabled(configuration: &Configuration, environment: &HashMap<String, String>) -> bool {
    let by_default = is_in_pod(environment) && configuration.node_name.is_none();
    configuration.leader_election.unwrap_or(by_default)
}

/// Logs if the node name alone turns leader election off: `COFFERDAM_NODE_NAME` may be set for another
/// purpose.
pub(crate) fn log_if_off_by_node_name(configuration: &Configuration, environment: &HashMap<String, String>) {
    if is_off_by_node_name(configuration, environment) {
        tracing::info!(
            "leader election is off because node-name is set (--node-name or COFFERDAM_NODE_NAME): one process \
             runs on each node; for a driver that is not node-local, set --leader-election"
        );
    }
}

fn is_off_by_node_name(configuration: &Configuration, environment: &HashMap<String, String>) -> bool {
    configuration.leader_election.is_none() && is_in_pod(environment) && configuration.node_name.is_some()
}

fn is_in_pod(environment: &HashMap<String, String>) -> bool {
    environment.get(SERVICE_HOST).is_some_and(|host| !host.is_empty())
}

/// The campaigns for the Leases of the configured roles and of the drivers. `client` should have a connection
/// of its own. A process does not wait for the Leases of the drivers in `only_owner` while another one works
/// with them.
pub(crate) fn campaigns(
    configuration: &Configuration,
    environment: &HashMap<String, String>,
    client: kube::Client,
    drivers: &[DriverName],
    only_owner: &BTreeSet<DriverName>,
    metrics: &Metrics,
) -> Vec<Campaign> {
    let identity = identity();
    let namespace = lease_namespace(configuration, environment);
    let candidate = |name: String| LeaseCandidate {
        namespace: namespace.clone(),
        name,
        identity: identity.clone(),
        labels: configuration.leader_election_labels.0.clone(),
        durations: ResolvedConfig::lease_durations(configuration),
    };
    let api = ApiClient::new(client, metrics.clone());
    let elector = |name| LeaderElector::new(api.clone(), system_clock(), metrics.clone(), candidate(name));
    table::elections(&configuration.role.cluster, drivers)
        .into_iter()
        .map(|election| {
            let is_only_owner = !election.drivers.is_disjoint(only_owner);
            let campaign =
                Campaign::new(election.drivers, election.leases.into_iter().map(elector).collect());
            if is_only_owner { campaign.as_only_owner() } else { campaign }
        })
        .collect()
}

/// The check of `/healthz/leader-election`: of all Leases.
pub(crate) fn health_check(campaigns: &[Campaign]) -> LeaderElectionHealth {
    let leases: Vec<LeaderHealth> = campaigns.iter().flat_map(Campaign::health).collect();
    Arc::new(move || {
        let checked = leases.iter().try_for_each(LeaderHealth::check);
        checked.map_err(|unhealthy| Unhealthy(unhealthy.to_string()))
    })
}

/// Identity of this process in Leases: the host name and a random part. The sidecars' identity is the bare
/// host name; a client takes a Lease with its own identity as its own.
fn identity() -> String {
    sanitize_name(&with_random_part(&host_name()))
}

/// Namespace of the Leases. Source: csi-lib-utils' `inClusterNamespace`.
pub(crate) fn lease_namespace(
    configuration: &Configuration,
    environment: &HashMap<String, String>,
) -> String {
    lease_namespace_with(configuration, environment, Path::new(NAMESPACE_FILE))
}

/// Namespace of the Leases that the process acquires; `None` without leader election.
pub(crate) fn own_lease_namespace(
    configuration: &Configuration,
    environment: &HashMap<String, String>,
) -> Option<String> {
    is_enabled(configuration, environment).then(|| lease_namespace(configuration, environment))
}

fn lease_namespace_with(
    configuration: &Configuration,
    environment: &HashMap<String, String>,
    file: &Path,
) -> String {
    let configured = configuration.leader_election_namespace.as_ref().map(|label| label.0.clone());
    let from_variable = || environment.get(POD_NAMESPACE).filter(|text| !text.is_empty()).cloned();
    configured.or_else(from_variable).unwrap_or_else(|| namespace_of_pod(file))
}

fn namespace_of_pod(file: &Path) -> String {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let namespace = text.trim();
    if namespace.is_empty() { "default".to_owned() } else { namespace.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::CliValues;

    #[test]
    fn the_namespace_of_leases_is_that_of_the_flag_the_variable_or_the_file() {
        let directory = tempfile::TempDir::new().unwrap();
        let file = directory.path().join("namespace");
        for (flag, variable, text, expected) in [
            (Some("flag"), Some("variable"), Some("file"), "flag"),
            (None, Some("variable"), Some("file"), "variable"),
            (None, Some(""), Some("file\n"), "file"),
            (None, None, Some(" \n"), "default"),
            (None, None, None, "default"),
        ] {
            let values = flag.map_or_else(CliValues::default, |flag| {
                CliValues::default().with("leader-election-namespace", [flag.to_owned()])
            });
            let environment: HashMap<_, _> = variable
                .map(|variable| (POD_NAMESPACE.to_owned(), variable.to_owned()))
                .into_iter()
                .collect();
            match text {
                Some(text) => std::fs::write(&file, text).unwrap(),
                None => std::fs::remove_file(&file).unwrap(),
            }
            let resolved = ResolvedConfig::for_cluster(&values, &environment).unwrap();
            let found = lease_namespace_with(&resolved.configuration, &environment, &file);
            assert_eq!(found, expected, "{flag:?} {variable:?} {text:?}");
        }
    }

    #[test]
    fn leases_are_the_default_in_a_pod_of_no_node() {
        for (host, flag, node, expected, off_by_node_name) in [
            (None, None, None, false, false),
            (Some(""), None, None, false, false),
            (Some("10.0.0.1"), None, None, true, false),
            (Some("10.0.0.1"), None, Some("n1"), false, true),
            (None, None, Some("n1"), false, false),
            (Some("10.0.0.1"), Some("false"), Some("n1"), false, false),
            (Some("10.0.0.1"), Some("false"), None, false, false),
            (None, Some("true"), None, true, false),
            (Some("10.0.0.1"), Some("true"), Some("n1"), true, false),
        ] {
            let given = [("leader-election", flag), ("node-name", node)];
            let values = given.into_iter().fold(CliValues::default(), |values, (name, value)| match value {
                Some(value) => values.with(name, [value.to_owned()]),
                None => values,
            });
            let environment: HashMap<_, _> =
                host.map(|host| (SERVICE_HOST.to_owned(), host.to_owned())).into_iter().collect();
            let resolved = ResolvedConfig::for_cluster(&values, &environment).unwrap();
            let found = is_enabled(&resolved.configuration, &environment);
            assert_eq!(found, expected, "{host:?} {flag:?} {node:?}");
            let found = is_off_by_node_name(&resolved.configuration, &environment);
            assert_eq!(found, off_by_node_name, "{host:?} {flag:?} {node:?}");
        }
    }

    #[test]
    fn identities_of_one_host_differ() {
        let (first, second) = (identity(), identity());
        assert_ne!(first, second);
        let host = sanitize_name(&host_name());
        assert!(first.starts_with(&host) && second.starts_with(&host), "{first} {second}");
    }
}
