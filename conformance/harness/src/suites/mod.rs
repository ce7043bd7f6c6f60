//! The suites and where they are implemented: each in a module of its own, except `node-shutdown`, which is
//! in `pods`, and the benchmarks, which are in `crate::bench`.

mod aws_ebs;
mod ceph;
mod cleanup;
mod cluster;
mod control_plane;
mod crashes;
mod csi_sanity;
mod differential;
mod driver;
mod external_storage;
mod faults;
mod install;
mod interop;
mod kubectl;
mod network;
mod node;
mod pods;
mod provision;
mod reload;
mod replacement;
mod resize;
mod scenarios;
mod sidecars;
mod snapshots;
mod upgrade;

use std::time::Duration;

use anyhow::{Context as _, Result};
use futures::future::LocalBoxFuture;

use crate::{bench, run::SuiteRun};

/// A suite, or a benchmark or fixture that is started like one. It runs in a mount namespace and a PID
/// namespace of its own. It passes if `run` returns `Ok` within the time limit, the clean-up succeeds, and
/// the launcher finds no loop device, cgroup or mount of the suite afterwards.
#[derive(Debug)]
pub struct Suite {
    /// The name on the command line.
    pub name: &'static str,
    /// One line of help.
    pub description: &'static str,
    /// Time limit. Sufficient on a busy machine.
    pub limit: Duration,
    /// The lane that runs the suite.
    pub lane: SuiteLane,
    /// Runs the suite.
    pub run: for<'a> fn(&'a SuiteRun) -> LocalBoxFuture<'a, Result<()>>,
}

/// A group of suites that run one after the other. Suites of the lane [`Exclusive`](Self::Exclusive) run
/// first, then the other lanes at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SuiteLane {
    /// The suite needs the machine for itself: it measures, or removes leftovers of other runs.
    Exclusive,
    /// Suites with a kubelet: pods of two suites would have the same addresses, because suites share the
    /// machine's network. And others, so that the lanes take equally long.
    Main,
    /// Suites without a kubelet, of which `scenarios` mostly waits.
    Background,
}

impl SuiteLane {
    /// The lanes that run at the same time.
    pub const PARALLEL: [Self; 2] = [Self::Main, Self::Background];
}

const MINUTE: Duration = Duration::from_secs(60);

/// The suites that the program `conformance` runs if its command line names none, in the order in which each
/// lane runs them.
pub const SUITES: &[Suite] = &[
    Suite {
        name: "cleanup",
        description: "a run that panics, is interrupted or is killed leaves nothing on the machine",
        limit: MINUTE.saturating_mul(10),
        lane: SuiteLane::Exclusive,
        run: |run| Box::pin(cleanup::run(run)),
    },
    Suite {
        name: "peer-driver",
        description: "csi-sanity passes on the Go driver of the other suites",
        limit: MINUTE.saturating_mul(15),
        lane: SuiteLane::Main,
        run: |run| Box::pin(driver::run(run)),
    },
    Suite {
        name: "csi-sanity",
        description: "csi-sanity passes on memory and pool behind the roles csi-server and node",
        limit: MINUTE.saturating_mul(15),
        lane: SuiteLane::Main,
        run: |run| Box::pin(csi_sanity::run(run)),
    },
    Suite {
        name: "control-plane",
        description: "etcd, kube-apiserver and kube-controller-manager start, fail, recover and stop",
        limit: MINUTE.saturating_mul(10),
        lane: SuiteLane::Main,
        run: |run| Box::pin(control_plane::run(run)),
    },
    Suite {
        name: "differential",
        description: "kube-apiserver still answers the recorded requests as the embedded API does",
        limit: MINUTE.saturating_mul(10),
        lane: SuiteLane::Main,
        run: |run| Box::pin(differential::run(run)),
    },
    Suite {
        name: "kubectl",
        description: "kubectl prints the same on the embedded API as on kube-apiserver",
        limit: MINUTE.saturating_mul(25),
        lane: SuiteLane::Main,
        run: |run| Box::pin(kubectl::run(run)),
    },
    Suite {
        name: "provision",
        description: "provisioner and pv-controller bind 50 claims on kube-apiserver, and delete them",
        limit: MINUTE.saturating_mul(10),
        lane: SuiteLane::Background,
        run: |run| Box::pin(provision::run(run)),
    },
    Suite {
        name: "node",
        description: "a pod runs on a real kubelet and leaves nothing behind",
        limit: MINUTE.saturating_mul(10),
        lane: SuiteLane::Main,
        run: |run| Box::pin(node::run(run)),
    },
    Suite {
        name: "pods",
        description: "volumes of memory and pool in pods on a real kubelet: data, access modes, expansion, \
             crashes",
        limit: MINUTE.saturating_mul(25),
        lane: SuiteLane::Main,
        run: |run| Box::pin(pods::run(run)),
    },
    Suite {
        name: "install",
        description: "the chart and the images on a real kubelet: install, use, upgrade and roll back under \
             load, uninstall",
        limit: MINUTE.saturating_mul(20),
        lane: SuiteLane::Main,
        run: |run| Box::pin(install::run(run)),
    },
    Suite {
        name: "node-shutdown",
        description: "non-graceful node shutdown: pods of an out-of-service node run on another one with \
             their data",
        limit: MINUTE.saturating_mul(15),
        lane: SuiteLane::Main,
        run: |run| Box::pin(pods::node_shutdown::run(run)),
    },
    Suite {
        name: "resize",
        description: "resizer and csi-resizer replace each other during expansions and modifications",
        limit: MINUTE.saturating_mul(15),
        lane: SuiteLane::Main,
        run: |run| Box::pin(resize::run(run)),
    },
    Suite {
        name: "scenarios",
        description: "every scenario of the roles ends on kube-apiserver as on the embedded API, also after \
             a crash",
        limit: MINUTE.saturating_mul(60),
        lane: SuiteLane::Background,
        run: |run| Box::pin(scenarios::run(run)),
    },
    Suite {
        name: "faults",
        description: "kube-apiserver and etcd fail, etcd is restored, connections break, Cofferdam dies 50 \
             times: no claim is lost",
        limit: MINUTE.saturating_mul(100),
        lane: SuiteLane::Main,
        run: |run| Box::pin(faults::run(run)),
    },
    Suite {
        name: "replacement",
        description: "Cofferdam and the upstream controllers replace each other while 300 claims are bound",
        limit: MINUTE.saturating_mul(25),
        lane: SuiteLane::Background,
        run: |run| Box::pin(replacement::run(run)),
    },
    Suite {
        name: "snapshots",
        description: "Cofferdam and the upstream controllers of snapshots replace each other while 200 \
             snapshots are taken",
        limit: MINUTE.saturating_mul(15),
        lane: SuiteLane::Background,
        run: |run| Box::pin(snapshots::run(run)),
    },
    Suite {
        name: "sidecar-flags",
        description: "Cofferdam under the names of the sidecars has their flags, defaults and feature gates, \
             and rejects what they reject",
        limit: MINUTE.saturating_mul(15),
        lane: SuiteLane::Background,
        run: |run| Box::pin(sidecars::flags::run(run)),
    },
    Suite {
        name: "oddities",
        description: "the sidecars and Cofferdam under their names give the same results for drivers with \
             oddities",
        limit: MINUTE.saturating_mul(15),
        lane: SuiteLane::Background,
        run: |run| Box::pin(sidecars::oddities::run(run)),
    },
    Suite {
        name: "leases",
        description: "the leader of three replicas ends, stops or is cut off under load: another one takes \
             over, and one calls the driver at a time",
        limit: MINUTE.saturating_mul(180),
        lane: SuiteLane::Background,
        run: |run| Box::pin(sidecars::leases::run(run)),
    },
    Suite {
        name: "mixed",
        description: "two replicas of each sidecar and two of Cofferdam compete for the sidecar's Lease: one \
             writes at a time",
        limit: MINUTE.saturating_mul(25),
        lane: SuiteLane::Background,
        run: |run| Box::pin(sidecars::mixed::run(run)),
    },
    Suite {
        name: "crashes",
        description: "kill -9 of a process with all roles, 50 times, while 300 pods and their claims come \
             and go",
        limit: MINUTE.saturating_mul(25),
        lane: SuiteLane::Background,
        run: |run| Box::pin(crashes::run(run)),
    },
    Suite {
        name: "snapshot-crashes",
        description: "kill -9 of a process, 50 times, while 150 snapshots are taken, restored and deleted",
        limit: MINUTE.saturating_mul(15),
        lane: SuiteLane::Background,
        run: |run| Box::pin(crashes::snapshots::run(run)),
    },
    Suite {
        name: "aws-ebs",
        description: "the example driver for AWS EBS passes the driver suite on PyPI's moto, and a pod of dev mode \
             uses its volume",
        limit: MINUTE.saturating_mul(25),
        lane: SuiteLane::Background,
        run: |run| Box::pin(aws_ebs::run(run)),
    },
    Suite {
        name: "network",
        description: "volumes of a network on a machine with Debian's kernel: servers that lie, are away or restart, \
             and a node role that dies",
        limit: MINUTE.saturating_mul(90),
        lane: SuiteLane::Main,
        run: |run| Box::pin(network::run(run)),
    },
    Suite {
        name: "network-pods",
        description: "volumes of a network in pods of a kubelet in such a machine, and its events for wrong ones",
        limit: MINUTE.saturating_mul(20),
        lane: SuiteLane::Background,
        run: |run| Box::pin(network::pods::run(run)),
    },
    Suite {
        name: "ceph",
        description: "the driver for Ceph passes the driver suite on Debian's Ceph, and a machine with Debian's kernel uses \
             its volumes: an outage, restarts, and a node role that dies",
        limit: MINUTE.saturating_mul(90),
        lane: SuiteLane::Background,
        run: |run| Box::pin(ceph::run(run)),
    },
    Suite {
        name: "ceph-install",
        description: "the guide of the driver for Ceph, from a cluster to a pod's data, with a kubelet in a machine",
        limit: MINUTE.saturating_mul(20),
        lane: SuiteLane::Main,
        run: |run| Box::pin(ceph::guide::run(run)),
    },
    Suite {
        name: "interop",
        description: "sidecars on Cofferdam's csi-server, and Cofferdam's roles on a Go driver, each \
             replaced under load",
        limit: MINUTE.saturating_mul(25),
        lane: SuiteLane::Main,
        run: |run| Box::pin(interop::run(run)),
    },
    Suite {
        name: "strangers",
        description: "any CSI driver by path (STRANGER=description.json): Cofferdam and its Go sidecars \
             replace each other",
        limit: MINUTE.saturating_mul(25),
        lane: SuiteLane::Main,
        run: |run| Box::pin(sidecars::strangers::run(run)),
    },
];

/// Suites and benchmarks that run only if the command line names them.
pub const ON_REQUEST: &[Suite] = &[
    Suite {
        name: "upgrade",
        description: "the version before journal epochs and this one replace each other with open intents",
        limit: MINUTE.saturating_mul(15),
        lane: SuiteLane::Main,
        run: |run| Box::pin(upgrade::run(run)),
    },
    Suite {
        name: "reload",
        description: "a component is replaced ten times while claims are created: no call fails",
        limit: MINUTE.saturating_mul(15),
        lane: SuiteLane::Main,
        run: |run| Box::pin(reload::run(run)),
    },
    Suite {
        name: "cluster",
        description: "a cluster with one node and no storage, to follow the installation guide: until it is \
             interrupted",
        limit: MINUTE.saturating_mul(180),
        lane: SuiteLane::Exclusive,
        run: |run| Box::pin(cluster::run(run)),
    },
    Suite {
        name: "ceph-cluster",
        description: "Debian's Ceph with one OSD, which virtual machines reach, until it is interrupted",
        limit: MINUTE.saturating_mul(180),
        lane: SuiteLane::Background,
        run: |run| Box::pin(ceph::serve(run)),
    },
    Suite {
        name: "external-storage",
        description: "Kubernetes' end-to-end tests of snapshots, restores and clones have the same results on \
             Cofferdam as on upstream",
        limit: MINUTE.saturating_mul(130),
        lane: SuiteLane::Main,
        run: |run| Box::pin(external_storage::run(run)),
    },
    Suite {
        name: "bench-peers",
        description: "benchmark: the same claims on the upstream controllers, on Cofferdam, and on the API only",
        limit: MINUTE.saturating_mul(150),
        lane: SuiteLane::Exclusive,
        run: |run| Box::pin(bench::run(run)),
    },
];

/// Suites that leak resources on purpose, for the suite `cleanup`.
const CLEANUP_FIXTURES: &[Suite] = &[
    Suite {
        name: cleanup::PANIC_SUITE,
        description: "leaks resources and panics",
        limit: MINUTE.saturating_mul(3),
        lane: SuiteLane::Exclusive,
        run: |run| Box::pin(cleanup::leak_and_panic(run)),
    },
    Suite {
        name: cleanup::HANG_SUITE,
        description: "leaks resources and does not end",
        limit: MINUTE.saturating_mul(3),
        lane: SuiteLane::Exclusive,
        run: |run| Box::pin(cleanup::leak_and_hang(run)),
    },
];

/// The suite, benchmark or fixture of the suite `cleanup` with this name.
///
/// # Errors
/// If there is none. The error lists the names of [`SUITES`] only.
pub fn find(name: &str) -> Result<&'static Suite> {
    let names = || SUITES.iter().map(|suite| suite.name).collect::<Vec<_>>().join(", ");
    SUITES
        .iter()
        .chain(ON_REQUEST)
        .chain(CLEANUP_FIXTURES)
        .find(|suite| suite.name == name)
        .with_context(|| format!("no suite {name:?}: expected one of {}", names()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn find_returns_suites_by_exact_name() {
        for suite in SUITES.iter().chain(ON_REQUEST).chain(CLEANUP_FIXTURES) {
            assert_eq!(
                find(suite.name).unwrap().description,
                suite.description,
                "duplicate suite {}",
                suite.name
            );
        }
        let error = find("controlplane").unwrap_err().to_string();
        assert!(error.starts_with(r#"no suite "controlplane": expected one of cleanup, "#), "{error}");
        assert!(!error.contains(cleanup::HANG_SUITE), "{error}");
    }
}
