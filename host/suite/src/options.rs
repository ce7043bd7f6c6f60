//! What a run is told.

use std::time::Duration;

use cofferdam_domain::{
    NodeId,
    storage::{AccessType, CsiAccessMode, Parameters, Secrets, Segments, VolumeCapability},
};
use cofferdam_wasm::BackendConfig;

/// What a run is told. The default fits a driver that needs no parameters, secrets or topology.
#[derive(Clone, Debug)]
pub struct SuiteOptions {
    /// Settings, grants and limits of the driver. The breaker is set aside: the suite makes calls die on
    /// purpose.
    pub config: BackendConfig,
    /// Secrets that every call carries.
    pub secrets: Secrets,
    /// The parameters of the class.
    pub parameters: Parameters,
    /// Parameters that `modification` accepts; without them, cases that change something are skipped.
    pub mutable_parameters: Parameters,
    /// The parameters of the class of snapshots.
    pub snapshot_parameters: Parameters,
    /// How a volume is used.
    pub capability: VolumeCapability,
    /// Where volumes must be reachable, for drivers with topology.
    pub topology: Option<Segments>,
    /// Two nodes that the driver can publish to.
    pub nodes: [NodeId; 2],
    /// Size of a volume, in bytes. A case may ask for up to four times this.
    pub size: u64,
    /// Makes the names of the run; the same seed makes the same names.
    pub seed: u64,
    /// The command that repeats the run, without the seed and without a choice of cases; reports show it.
    pub command: String,
    /// Only cases whose id begins with one of these, or matches one that has a `*`; all when empty.
    pub only: Vec<String>,
    /// How long one call may take.
    pub deadline: Duration,
    /// How long a call is repeated whose outcome is open, and how long a snapshot may take to become ready.
    pub retry_timeout: Duration,
    /// How many calls run at once in the cases about concurrency, and so how many volumes exist at least.
    pub concurrency: usize,
}

impl Default for SuiteOptions {
    fn default() -> Self {
        Self {
            config: BackendConfig::default(),
            secrets: Secrets::default(),
            parameters: Parameters::new(),
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
            nodes: [NodeId::new("cofferdam-test-1"), NodeId::new("cofferdam-test-2")],
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
    /// Whether a case is to be run.
    pub fn is_selected(&self, id: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|pattern| matches(pattern, id))
    }
}

/// Whether an id is what a pattern means: `*` is any text, and a pattern without it is how the id begins.
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
