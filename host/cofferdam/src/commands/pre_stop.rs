//! `cofferdam pre-stop`: the preStop hook of the pods with the role `node`.
//!
//! kubelet ends the pods of a DaemonSet on a node that is drained. Without the driver, volumes of other pods
//! are not unmounted, and the attach-detach controller waits six minutes before it detaches them by force.

use std::{
    collections::HashMap,
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use k8s_openapi::api::core::v1::Node;
use kube::Api;
use tokio::time::{Instant, sleep, timeout_at};

use crate::{
    cli::PreStopFlags,
    client::{self, ClientEnvironment, one_line},
    config::{GoDuration, ResolvedConfig},
    error::CommandError,
    style::TerminalText,
};

/// Interval between two readings of the records.
const INTERVAL: Duration = Duration::from_secs(1);
/// Extension of the records' files.
const RECORD_EXTENSION: &str = "json";
/// Taints of a node that is about to be removed: by cluster-autoscaler and by Karpenter.
const REMOVAL_TAINTS: [&str; 2] = ["ToBeDeletedByClusterAutoscaler", "karpenter.sh/disrupted"];

/// An error of `pre-stop`.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PreStopError {
    #[error("flag --timeout: {0}")]
    Timeout(String),
    #[error("the name of the Node is missing: expected --node-name or COFFERDAM_NODE_NAME")]
    NoNodeName,
    #[error("cannot read the Node {node}: {problem}")]
    Node { node: String, problem: String },
    #[error("cannot list the records in {}: {source}", path.display())]
    Records { path: PathBuf, source: io::Error },
    #[error("{count} volumes of this node are mounted after {timeout:?}: expected none on a drained node")]
    Mounted { count: usize, timeout: Duration },
}

impl From<PreStopError> for CommandError {
    fn from(error: PreStopError) -> Self {
        match error {
            PreStopError::Timeout(_) | PreStopError::NoNodeName => Self::Usage(Box::new(error)),
            PreStopError::Node { .. } | PreStopError::Records { .. } | PreStopError::Mounted { .. } => {
                Self::Other(Box::new(error))
            }
        }
    }
}

/// Waits until the node has no records if it is drained. Returns a text, and always `true`.
///
/// # Errors
/// [`CommandError`]: the Node or the records cannot be read, or volumes are mounted after the timeout.
pub(crate) async fn run(
    flags: PreStopFlags,
    environment: &HashMap<String, String>,
) -> Result<(TerminalText, bool), CommandError> {
    let timeout: GoDuration =
        flags.timeout.parse().map_err(|error| PreStopError::Timeout(format!("{error}")))?;
    // kubelet expands no variables in the command of a hook.
    let values = flags.connection.values.clone().with("node-name", flags.node_name.clone());
    let resolved = ResolvedConfig::for_cluster(&values, environment)?;
    let name = resolved.configuration.node_name.as_ref().ok_or(PreStopError::NoNodeName)?;
    let cluster = client::connect(&resolved.configuration, &ClientEnvironment::from_process()).await?;
    let started = Instant::now();
    let deadline = started + timeout.get();
    let nodes = Api::<Node>::all(cluster.client);
    let node = read_until(deadline, || nodes.get_opt(name))
        .await
        .map_err(|error| PreStopError::Node { node: name.clone(), problem: one_line(&error) })?;
    if !node.as_ref().is_some_and(is_drained) {
        return Ok((TerminalText::from_lines("the node is not drained\n"), true));
    }
    wait_without_records(&flags.node_records, started, timeout.get()).await?;
    Ok((TerminalText::from_lines("the node is drained, and has no volumes\n"), true))
}

/// Repeats a read until it succeeds or the deadline has passed. A node is also drained while the control plane
/// is upgraded. A rejection is final: the account lacks a permission.
async fn read_until<T, F: Future<Output = kube::Result<T>>>(
    deadline: Instant,
    read: impl Fn() -> F,
) -> kube::Result<T> {
    loop {
        let Ok(result) = timeout_at(deadline, read()).await else {
            return Err(kube::Error::Service("the API server has not answered within the timeout".into()));
        };
        match result {
            Err(error) if !is_rejection(&error) && Instant::now() + INTERVAL < deadline => {
                sleep(INTERVAL).await
            }
            result => return result,
        }
    }
}

/// Reports if the API server rejects a request, and would reject it again.
fn is_rejection(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if matches!(status.code, 400 | 401 | 403 | 404 | 422))
}

/// Returns true if pods are moved away from a node: it is cordoned, or about to be removed.
fn is_drained(node: &Node) -> bool {
    node.spec.as_ref().is_some_and(|spec| {
        let taints = spec.taints.iter().flatten();
        spec.unschedulable == Some(true)
            || taints.into_iter().any(|taint| REMOVAL_TAINTS.contains(&taint.key.as_str()))
    })
}

/// Waits until there is no record, or until `timeout` has passed since `started`.
async fn wait_without_records(
    directory: &Path,
    started: Instant,
    timeout: Duration,
) -> Result<(), PreStopError> {
    loop {
        let count = count_records(directory)
            .map_err(|source| PreStopError::Records { path: directory.to_owned(), source })?;
        if count == 0 {
            return Ok(());
        }
        if started.elapsed() >= timeout {
            return Err(PreStopError::Mounted { count, timeout });
        }
        sleep(INTERVAL).await;
    }
}

/// Number of volumes with a record. A directory that does not exist has none: the role `node` creates it.
fn count_records(directory: &Path) -> io::Result<usize> {
    let entries = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        entries => entries?,
    };
    let paths: Result<Vec<PathBuf>, _> = entries.map(|entry| entry.map(|entry| entry.path())).collect();
    let is_record = |path: &PathBuf| path.extension().is_some_and(|extension| extension == RECORD_EXTENSION);
    Ok(paths?.iter().filter(|path| is_record(path)).count())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_node_is_drained_if_it_is_cordoned_or_about_to_be_removed() {
        let drained = |spec: Value| {
            is_drained(&serde_json::from_value(json!({"metadata": {"name": "n"}, "spec": spec})).unwrap())
        };
        let taint = |key: &str| json!({"taints": [{"key": key, "effect": "NoSchedule"}]});
        for (spec, expected) in [
            (json!({}), false),
            (json!({"unschedulable": true}), true),
            (json!({"unschedulable": false}), false),
            (taint("karpenter.sh/disrupted"), true),
            (taint("ToBeDeletedByClusterAutoscaler"), true),
            (taint("node.kubernetes.io/disk-pressure"), false),
        ] {
            assert_eq!(drained(spec.clone()), expected, "{spec}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_read_is_repeated_until_the_deadline_unless_it_is_rejected() {
        let status = |code| kube::Error::Api(Box::new(kube::core::Status { code, ..Default::default() }));
        for (failures, code, expected) in [(3, 429, true), (3, 503, true), (100, 503, false), (1, 403, false)]
        {
            let attempts = std::cell::Cell::new(0);
            let read = || {
                attempts.set(attempts.get() + 1);
                std::future::ready(if attempts.get() > failures { Ok(()) } else { Err(status(code)) })
            };
            let deadline = Instant::now() + Duration::from_secs(30);
            assert_eq!(read_until(deadline, read).await.is_ok(), expected, "{code}");
            let expected = match (expected, code) {
                (true, _) => failures + 1,
                (false, 403) => 1,
                (false, _) => 30,
            };
            assert_eq!(attempts.get(), expected, "{code}");
        }
        let deadline = Instant::now() + Duration::from_secs(30);
        let hanging = read_until(deadline, std::future::pending::<kube::Result<()>>).await;
        assert!(hanging.is_err() && Instant::now() == deadline, "a read that gets no response ends");
    }

    #[tokio::test(start_paused = true)]
    async fn it_waits_until_the_last_record_is_removed_or_the_timeout() {
        const TIMEOUT: Duration = Duration::from_secs(240);
        let directory = tempfile::TempDir::new().unwrap();
        let missing = directory.path().join("missing");
        wait_without_records(&missing, Instant::now(), TIMEOUT).await.unwrap();
        let record = directory.path().join("volume.json");
        std::fs::write(&record, "{}").unwrap();
        std::fs::write(directory.path().join("volume.new"), "{}").unwrap();
        let error = wait_without_records(directory.path(), Instant::now(), TIMEOUT).await.unwrap_err();
        assert!(error.to_string().starts_with("1 volumes of this node are mounted after 240s"), "{error}");
        let removal = async {
            sleep(Duration::from_millis(99_500)).await;
            std::fs::remove_file(&record).unwrap();
        };
        let started = Instant::now();
        let (waited, ()) = tokio::join!(wait_without_records(directory.path(), started, TIMEOUT), removal);
        waited.unwrap();
        assert_eq!(started.elapsed().as_secs(), 100);
        let file = directory.path().join("volume.new");
        let error = wait_without_records(&file, Instant::now(), TIMEOUT).await.unwrap_err();
        assert!(error.to_string().starts_with("cannot list the records in "), "{error}");
    }
}
