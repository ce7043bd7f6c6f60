//! What is shown, one module for each suite.

mod cleanup;
mod control_plane;
mod differential;
mod driver;
mod faults;
mod grounds;
mod kills;
mod kubectl;
mod mixed;
mod node;
mod pods;
mod provision;
mod resize;
mod sanity;
mod swap;

use std::time::Duration;

use anyhow::{Context as _, Result};
use futures::future::LocalBoxFuture;

use crate::{bench, run::Run};

/// A suite: it is run in namespaces of its own, and passes when it returns.
#[derive(Debug)]
pub struct Suite {
    /// How it is chosen.
    pub name: &'static str,
    /// What it shows, in one line.
    pub about: &'static str,
    /// How long it may take, on a busy machine.
    pub limit: Duration,
    /// The suite itself.
    pub run: for<'a> fn(&'a Run) -> LocalBoxFuture<'a, Result<()>>,
}

/// All suites, the quickest first.
pub const ALL: &[Suite] = &[
    Suite {
        name: "cleanup",
        about: "a run that panics, is interrupted, or is killed with -9 leaves nothing on the machine",
        limit: Duration::from_secs(600),
        run: |run| Box::pin(cleanup::run(run)),
    },
    Suite {
        name: "driver",
        about: "csi-sanity finds nothing wrong with the driver that controllers are compared on",
        limit: Duration::from_secs(900),
        run: |run| Box::pin(driver::run(run)),
    },
    Suite {
        name: "sanity",
        about: "csi-sanity finds nothing wrong with our drivers behind our CSI server and our node",
        limit: Duration::from_secs(900),
        run: |run| Box::pin(sanity::run(run)),
    },
    Suite {
        name: "control-plane",
        about: "etcd, kube-apiserver and kube-controller-manager start, fail, come back and stop",
        limit: Duration::from_secs(600),
        run: |run| Box::pin(control_plane::run(run)),
    },
    Suite {
        name: "differential",
        about: "the requests that the embedded API is tested with, answered by the API server whose answers it is held to",
        limit: Duration::from_secs(600),
        run: |run| Box::pin(differential::run(run)),
    },
    Suite {
        name: "kubectl",
        about: "kubectl says the same on the embedded API as on a real one",
        limit: Duration::from_secs(1_500),
        run: |run| Box::pin(kubectl::run(run)),
    },
    Suite {
        name: "provision",
        about: "our provisioner and pv-controller, alone on a real API: 50 claims Bound, and gone",
        limit: Duration::from_secs(600),
        run: |run| Box::pin(provision::run(run)),
    },
    Suite {
        name: "node",
        about: "a pod with our image runs on a real kubelet, says something, and goes without a trace",
        limit: Duration::from_secs(600),
        run: |run| Box::pin(node::run(run)),
    },
    Suite {
        name: "pods",
        about: "volumes of our drivers in pods on a real kubelet: written, read, shared, killed in the middle, and gone without a trace",
        limit: Duration::from_secs(1_500),
        run: |run| Box::pin(pods::run(run)),
    },
    Suite {
        name: "shutdown",
        about: "a node loses its power: out of service, its pods run on another one with their data, on all of our roles and a driver in Go",
        limit: Duration::from_secs(900),
        run: |run| Box::pin(pods::shutdown::run(run)),
    },
    Suite {
        name: "resize",
        about: "claims grow before a driver in Go: what one resizer has begun or failed at, the other ends, ours and csi-resizer",
        limit: Duration::from_secs(900),
        run: |run| Box::pin(resize::run(run)),
    },
    Suite {
        name: "grounds",
        about: "every scenario of the roles ends on kube-apiserver as on the embedded API, also with a death in its middle",
        limit: Duration::from_secs(3_600),
        run: |run| Box::pin(grounds::run(run)),
    },
    Suite {
        name: "faults",
        about: "kube-apiserver dies, etcd stands still and goes back in time, connections are cut, we die 50 times: no claim is lost",
        limit: Duration::from_secs(6_000),
        run: |run| Box::pin(faults::run(run)),
    },
    Suite {
        name: "swap",
        about: "ours and Kubernetes' controllers take each other's place in the middle of 300 claims",
        limit: Duration::from_secs(1_500),
        run: |run| Box::pin(swap::run(run)),
    },
    Suite {
        name: "kills",
        about: "all roles in one process, killed with -9 50 times while 300 pods with growing claims come, move and go",
        limit: Duration::from_secs(1_500),
        run: |run| Box::pin(kills::run(run)),
    },
    Suite {
        name: "mixed",
        about: "the Go sidecars before our csi-server, a driver in Go before our roles, and everybody replaced in the middle of claims with pods",
        limit: Duration::from_secs(1_500),
        run: |run| Box::pin(mixed::run(run)),
    },
];

/// What takes its time and shows figures: run when it is named.
pub const BENCHES: &[Suite] = &[Suite {
    name: "bench-peers",
    about: "the same claims, answered by Kubernetes' own controllers, by ours, and by nobody",
    limit: Duration::from_secs(3600),
    run: |run| Box::pin(bench::run(run)),
}];

/// Suites that make a mess, for the suite that looks what becomes of it.
const HIDDEN: &[Suite] = &[
    Suite {
        name: cleanup::PANICS,
        about: "makes a mess and panics",
        limit: Duration::from_secs(180),
        run: |run| Box::pin(cleanup::panics(run)),
    },
    Suite {
        name: cleanup::STAYS,
        about: "makes a mess and waits for its end",
        limit: Duration::from_secs(180),
        run: |run| Box::pin(cleanup::stays(run)),
    },
];

/// The suite of this name.
///
/// # Errors
/// When there is none; the error names those that there are.
pub fn named(name: &str) -> Result<&'static Suite> {
    let names = || ALL.iter().map(|suite| suite.name).collect::<Vec<_>>().join(", ");
    ALL.iter()
        .chain(BENCHES)
        .chain(HIDDEN)
        .find(|suite| suite.name == name)
        .with_context(|| format!("no suite {name:?}: expected one of {}", names()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_suite_is_found_by_its_name_and_by_no_other() {
        for suite in ALL.iter().chain(BENCHES).chain(HIDDEN) {
            assert_eq!(named(suite.name).unwrap().about, suite.about, "{} is there twice", suite.name);
        }
        let error = named("controlplane").unwrap_err().to_string();
        assert!(error.starts_with(r#"no suite "controlplane": expected one of cleanup, "#), "{error}");
        assert!(!error.contains(cleanup::STAYS), "{error}");
    }
}
