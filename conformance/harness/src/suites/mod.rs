//! What is shown, one module for each suite.

mod cleanup;
mod control_plane;
mod crashes;
mod csi_sanity;
mod differential;
mod driver;
mod faults;
mod interop;
mod kubectl;
mod node;
mod pods;
mod provision;
mod replacement;
mod resize;
mod scenarios;

use std::time::Duration;

use anyhow::{Context as _, Result};
use futures::future::LocalBoxFuture;

use crate::{bench, run::SuiteRun};

/// A suite: it is run in namespaces of its own, and passes when it returns.
#[derive(Debug)]
pub struct Suite {
    /// How it is chosen.
    pub name: &'static str,
    /// What it shows, in one line.
    pub description: &'static str,
    /// How long it may take, on a busy machine.
    pub limit: Duration,
    /// The suite itself.
    pub run: for<'a> fn(&'a SuiteRun) -> LocalBoxFuture<'a, Result<()>>,
}

/// All suites, the quickest first.
pub const SUITES: &[Suite] = &[
    Suite {
        name: "cleanup",
        description: "a run that panics, is interrupted, or is killed with -9 leaves nothing on the machine",
        limit: Duration::from_secs(600),
        run: |run| Box::pin(cleanup::run(run)),
    },
    Suite {
        name: "driver",
        description: "csi-sanity finds nothing wrong with the driver that controllers are compared on",
        limit: Duration::from_secs(900),
        run: |run| Box::pin(driver::run(run)),
    },
    Suite {
        name: "sanity",
        description: "csi-sanity finds nothing wrong with our drivers behind our CSI server and our node",
        limit: Duration::from_secs(900),
        run: |run| Box::pin(csi_sanity::run(run)),
    },
    Suite {
        name: "control-plane",
        description: "etcd, kube-apiserver and kube-controller-manager start, fail, come back and stop",
        limit: Duration::from_secs(600),
        run: |run| Box::pin(control_plane::run(run)),
    },
    Suite {
        name: "differential",
        description: "the requests that the embedded API is tested with, answered by the API server whose answers it is held to",
        limit: Duration::from_secs(600),
        run: |run| Box::pin(differential::run(run)),
    },
    Suite {
        name: "kubectl",
        description: "kubectl says the same on the embedded API as on a real one",
        limit: Duration::from_secs(1_500),
        run: |run| Box::pin(kubectl::run(run)),
    },
    Suite {
        name: "provision",
        description: "our provisioner and pv-controller, alone on a real API: 50 claims Bound, and gone",
        limit: Duration::from_secs(600),
        run: |run| Box::pin(provision::run(run)),
    },
    Suite {
        name: "node",
        description: "a pod with our image runs on a real kubelet, says something, and goes without a trace",
        limit: Duration::from_secs(600),
        run: |run| Box::pin(node::run(run)),
    },
    Suite {
        name: "pods",
        description: "volumes of our drivers in pods on a real kubelet: written, read, shared, killed in the middle, and gone without a trace",
        limit: Duration::from_secs(1_500),
        run: |run| Box::pin(pods::run(run)),
    },
    Suite {
        name: "shutdown",
        description: "a node loses its power: out of service, its pods run on another one with their data, on all of our roles and a driver in Go",
        limit: Duration::from_secs(900),
        run: |run| Box::pin(pods::node_shutdown::run(run)),
    },
    Suite {
        name: "resize",
        description: "claims grow before a driver in Go: what one resizer has begun or failed at, the other ends, ours and csi-resizer",
        limit: Duration::from_secs(900),
        run: |run| Box::pin(resize::run(run)),
    },
    Suite {
        name: "grounds",
        description: "every scenario of the roles ends on kube-apiserver as on the embedded API, also with a death in its middle",
        limit: Duration::from_secs(3_600),
        run: |run| Box::pin(scenarios::run(run)),
    },
    Suite {
        name: "faults",
        description: "kube-apiserver dies, etcd stands still and goes back in time, connections are cut, we die 50 times: no claim is lost",
        limit: Duration::from_secs(6_000),
        run: |run| Box::pin(faults::run(run)),
    },
    Suite {
        name: "swap",
        description: "ours and Kubernetes' controllers take each other's place in the middle of 300 claims",
        limit: Duration::from_secs(1_500),
        run: |run| Box::pin(replacement::run(run)),
    },
    Suite {
        name: "kills",
        description: "all roles in one process, killed with -9 50 times while 300 pods with growing claims come, move and go",
        limit: Duration::from_secs(1_500),
        run: |run| Box::pin(crashes::run(run)),
    },
    Suite {
        name: "mixed",
        description: "the Go sidecars before our csi-server, a driver in Go before our roles, and everybody replaced in the middle of claims with pods",
        limit: Duration::from_secs(1_500),
        run: |run| Box::pin(interop::run(run)),
    },
];

/// What takes its time and shows figures: run when it is named.
pub const BENCHMARKS: &[Suite] = &[Suite {
    name: "bench-peers",
    description: "the same claims, answered by Kubernetes' own controllers, by ours, and by nobody",
    limit: Duration::from_secs(3600),
    run: |run| Box::pin(bench::run(run)),
}];

/// Suites that make a mess, for the suite that looks what becomes of it.
const CLEANUP_FIXTURES: &[Suite] = &[
    Suite {
        name: cleanup::PANIC_SUITE,
        description: "makes a mess and panics",
        limit: Duration::from_secs(180),
        run: |run| Box::pin(cleanup::leak_and_panic(run)),
    },
    Suite {
        name: cleanup::HANG_SUITE,
        description: "makes a mess and waits for its end",
        limit: Duration::from_secs(180),
        run: |run| Box::pin(cleanup::leak_and_hang(run)),
    },
];

/// The suite of this name.
///
/// # Errors
/// When there is none; the error names those that there are.
pub fn find(name: &str) -> Result<&'static Suite> {
    let names = || SUITES.iter().map(|suite| suite.name).collect::<Vec<_>>().join(", ");
    SUITES
        .iter()
        .chain(BENCHMARKS)
        .chain(CLEANUP_FIXTURES)
        .find(|suite| suite.name == name)
        .with_context(|| format!("no suite {name:?}: expected one of {}", names()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn find_returns_suites_by_exact_name() {
        for suite in SUITES.iter().chain(BENCHMARKS).chain(CLEANUP_FIXTURES) {
            assert_eq!(
                find(suite.name).unwrap().description,
                suite.description,
                "{} is there twice",
                suite.name
            );
        }
        let error = find("controlplane").unwrap_err().to_string();
        assert!(error.starts_with(r#"no suite "controlplane": expected one of cleanup, "#), "{error}");
        assert!(!error.contains(cleanup::HANG_SUITE), "{error}");
    }
}
