//! Leader election of a process: its roles run only while it holds all of their Leases.

use std::{collections::HashMap, path::Path, sync::Arc};

use cofferdam_cluster::{
    api::ApiClient,
    leader_election::{
        LeaderElector, LeaderHealth, LeaseCandidate, LeaseLost, sanitize_name, with_random_part,
    },
    metrics::Metrics,
    system_clock,
};
use cofferdam_controllers::table;
use cofferdam_domain::DriverName;
use tokio::{sync::watch, task::JoinSet};
use tokio_util::sync::CancellationToken;

use crate::{
    config::{Configuration, ResolvedConfig},
    error::CommandError,
    host_name::host_name,
    telemetry::{LeaderElectionHealth, Unhealthy},
};

/// Environment variable with the namespace of the pod, as in the sidecars.
const POD_NAMESPACE: &str = "POD_NAMESPACE";
/// File with the namespace of the pod's service account.
const NAMESPACE_FILE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";

/// The Leases of a process.
pub(crate) struct LeaderElection {
    electors: Vec<LeaderElector>,
    /// Readiness: true while this process waits for its Leases, so that a rolling update continues; then that
    /// of the controllers.
    ready: watch::Sender<bool>,
}

impl LeaderElection {
    /// The Leases of the configured roles and of the drivers; `None` without `leader-election`. `client`
    /// should have a connection of its own.
    pub(crate) fn new(
        configuration: &Configuration,
        environment: &HashMap<String, String>,
        client: kube::Client,
        drivers: &[DriverName],
        metrics: &Metrics,
    ) -> Option<Self> {
        if !configuration.leader_election {
            return None;
        }
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
        let electors = table::lease_names(&configuration.role.cluster, drivers)
            .into_iter()
            .map(|name| LeaderElector::new(api.clone(), system_clock(), metrics.clone(), candidate(name)))
            .collect();
        Some(Self { electors, ready: watch::Sender::new(true) })
    }

    /// The check of `/healthz/leader-election`: of all Leases.
    pub(crate) fn health(&self) -> LeaderElectionHealth {
        let leases: Vec<_> = self.electors.iter().map(LeaderElector::health).collect();
        Arc::new(move || {
            let checked = leases.iter().try_for_each(LeaderHealth::check);
            checked.map_err(|unhealthy| Unhealthy(unhealthy.to_string()))
        })
    }

    /// Readiness of the process.
    pub(crate) fn ready(&self) -> watch::Receiver<bool> {
        self.ready.subscribe()
    }

    /// Acquires the Leases one after the other, then runs `work` while it holds all of them, and releases
    /// them when `work` has ended. `ready` is the readiness of `work`. Ends early if `stop` is cancelled
    /// before it has acquired all Leases.
    ///
    /// # Errors
    /// [`CommandError::LeaseLost`]; `work` is then cancelled. Also the error of `work`.
    pub(crate) async fn lead(
        self,
        stop: &CancellationToken,
        mut ready: watch::Receiver<bool>,
        work: impl Future<Output = Result<(), CommandError>>,
    ) -> Result<(), CommandError> {
        let Self { electors, ready: process_ready } = self;
        let release = CancellationToken::new();
        let mut renewals: JoinSet<Result<(), LeaseLost>> = JoinSet::new();
        let result = async {
            for mut elector in electors {
                tokio::select! {
                    biased;
                    () = stop.cancelled() => return Ok(()),
                    Some(ended) = renewals.join_next() => return Err(lease_error(ended)),
                    () = elector.acquire() => {}
                }
                let release = release.clone();
                renewals.spawn(async move {
                    tokio::select! {
                        biased;
                        () = release.cancelled() => {
                            elector.release().await;
                            Ok(())
                        }
                        lost = elector.renew() => Err(lost),
                    }
                });
            }
            let forward_readiness = async {
                loop {
                    process_ready.send_replace(*ready.borrow_and_update());
                    if ready.changed().await.is_err() {
                        std::future::pending::<()>().await;
                    }
                }
            };
            tokio::select! {
                biased;
                Some(ended) = renewals.join_next() => Err(lease_error(ended)),
                result = work => result,
                () = forward_readiness => Err(CommandError::RolesStopped),
            }
        }
        .await;
        release.cancel();
        while renewals.join_next().await.is_some() {}
        result
    }
}

/// The error of a renewal that ended before the process released its Lease.
fn lease_error(ended: Result<Result<(), LeaseLost>, tokio::task::JoinError>) -> CommandError {
    match ended {
        Ok(Err(lost)) => CommandError::LeaseLost(lost),
        Ok(Ok(())) => CommandError::RolesStopped,
        Err(panicked) => {
            tracing::error!(%panicked, "the task of a lease panicked");
            CommandError::RolesStopped
        }
    }
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
    fn identities_of_one_host_differ() {
        let (first, second) = (identity(), identity());
        assert_ne!(first, second);
        let host = sanitize_name(&host_name());
        assert!(first.starts_with(&host) && second.starts_with(&host), "{first} {second}");
    }
}
