//! Options of a run.

use std::time::Duration;

use cofferdam_domain::{
    NodeId,
    storage::{AccessType, CsiAccessMode, Parameters, Secrets, Segments, VolumeCapability},
};
use cofferdam_wasm::BackendConfig;

/// Options of a run. The default fits a driver that needs no parameters, secrets or topology.
#[derive(Clone, Debug)]
pub struct SuiteOptions {
    /// Settings, grants and limits of the driver. The circuit breaker is disabled, because the suite kills
    /// calls on purpose.
    pub config: BackendConfig,
    /// Secrets of every call, except in the case `errors/without-secrets`. The secrets of `config` are sent
    /// with every call.
    pub secrets: Secrets,
    /// Parameters of the StorageClass.
    pub parameters: Parameters,
    /// Other valid values of parameters of the StorageClass, which `parameters` may lack. Without them, the
    /// case `volumes/create-other-value` is skipped.
    pub other_parameters: Parameters,
    /// Parameters that `modification` accepts. Without them, cases that modify volumes are skipped.
    pub mutable_parameters: Parameters,
    /// Parameters of the VolumeSnapshotClass.
    pub snapshot_parameters: Parameters,
    /// Capability of the volumes, except in cases that test other capabilities or access modes.
    pub capability: VolumeCapability,
    /// Topology segment of the volumes, for drivers with topology. With `None`, requests have no topology,
    /// and cases that need a segment are skipped.
    pub topology: Option<Segments>,
    /// Two nodes to which the driver can publish.
    pub nodes: [TestNode; 2],
    /// Size in bytes that volumes require. Cases also create volumes of twice this size, and expand volumes
    /// to up to four times their actual size. They require more only where they expect an error.
    pub size: u64,
    /// Seed of the names: the same seed generates the same names.
    pub seed: u64,
    /// The command that repeats the run, without seed and case selection. Reports show it.
    pub command: String,
    /// Selected cases: prefixes of their ids, or patterns with `*`. Empty: all.
    pub only: Vec<String>,
    /// Timeout of a call. Cases of `deadlines` also use shorter ones.
    pub deadline: Duration,
    /// Time for which a call is repeated whose error says that it is in progress, or that its outcome is
    /// unknown with the kind Aborted, Unavailable or DeadlineExceeded. Also the time that a snapshot may take
    /// to become ready.
    pub retry_timeout: Duration,
    /// Concurrent creates of the case `concurrency/different-names`, at least 2. Other cases make at most 4
    /// concurrent calls.
    pub concurrency: usize,
}

/// A node to which cases publish volumes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestNode {
    /// CSI node ID.
    pub id: NodeId,
    /// Other names of the node: [`node_identities`](cofferdam_domain::storage::PublishVolume::node_identities).
    pub identities: Parameters,
}

impl TestNode {
    /// A node without identities.
    pub fn new(id: impl Into<NodeId>) -> Self {
        Self { id: id.into(), identities: Parameters::new() }
    }
}

impl Default for SuiteOptions {
    fn default() -> Self {
        Self {
            config: BackendConfig::default(),
            secrets: Secrets::default(),
            parameters: Parameters::new(),
            other_parameters: Parameters::new(),
            mutable_parameters: Parameters::new(),
            snapshot_parameters: Parameters::new(),
            capability: VolumeCapability {
                access_mode: CsiAccessMode::SingleNodeWriter,
                access_type: AccessType::Filesystem {
                    fs_type: None,
                    mount_flags: Vec::new(),
                    mount_group: None,
                },
            },
            topology: None,
            nodes: ["cofferdam-test-1", "cofferdam-test-2"].map(TestNode::new),
            size: 1 << 20,
            seed: 0,
            command: "cofferdam backend test".to_owned(),
            only: Vec::new(),
            deadline: Duration::from_secs(30),
            retry_timeout: Duration::from_secs(60),
            concurrency: 8,
        }
    }
}

impl SuiteOptions {
    /// Returns true if the case with this id is selected by `only`.
    pub fn is_selected(&self, id: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|pattern| matches(pattern, id))
    }
}

/// Returns true if an id matches a pattern. A `*` is any text. A pattern with `*` matches the whole id, a
/// pattern without `*` its beginning.
fn matches(pattern: &str, id: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(rest) = parts.next().and_then(|first| id.strip_prefix(first)) else { return false };
    let Some(last) = parts.next_back() else { return true };
    let middle = parts.try_fold(rest, |rest, part| rest.split_once(part).map(|(_, rest)| rest));
    middle.is_some_and(|rest| rest.ends_with(last))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_patterns_match_prefixes_and_wildcards() {
        for (pattern, id, expected) in [
            ("volumes/", "volumes/one-byte", true),
            ("volumes/one", "volumes/one-byte", true),
            ("one", "volumes/one-byte", false),
            ("*one", "volumes/one-byte", false),
            ("*one*", "volumes/one-byte", true),
            ("*/is-idempotent", "cloning/is-idempotent", true),
            ("*/is-idempotent", "cloning/is-idempotent-too", false),
            ("c*/*-*", "cloning/is-idempotent", true),
            ("a*a", "a", false),
            ("*", "anything", true),
            ("", "anything", true),
        ] {
            assert_eq!(matches(pattern, id), expected, "{pattern} {id}");
        }
    }
}
