//! Volumes with real mounts, which need CAP_SYS_ADMIN. Without it the test checks nothing.

use std::collections::BTreeSet;

use cofferdam_dev_cluster::Mounts;
use cofferdam_domain::Uid;
use cofferdam_node::{ConnectionKind, NodePolicy};
use serde_json::json;

use crate::harness::{Cluster, claim_volume, wait_until};

/// Mount points beneath a directory.
fn mounts(directory: &std::path::Path) -> Vec<String> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let mount_points = table.lines().filter_map(|line| line.split(' ').nth(4));
    mount_points.filter(|path| path.starts_with(directory.to_str().unwrap())).map(str::to_owned).collect()
}

/// Returns true if this process has CAP_SYS_ADMIN, which root in a container may lack.
fn can_mount() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
    let capabilities = u64::from_str_radix(line.trim(), 16).unwrap();
    // CAP_SYS_ADMIN
    capabilities & (1 << 21) != 0
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recorded_mount_has_no_path_on_this_machine() {
    let cluster = Cluster::start(1, &[]).await;
    cluster.create_class("c", "Immediate", json!({})).await;
    cluster.create_claim("data", "c").await;
    cluster.create_pod("p", claim_volume("data"), json!({})).await;
    cluster.wait_until_running("p").await;
    let (pod, volume) = cluster.pod_and_volume("p", "data").await;
    assert_eq!(cluster.view.published_path(&pod, &volume), None);
    assert_eq!(cluster.stop().await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn volume_of_a_running_pod_is_mounted_by_the_kernel() {
    if !can_mount() {
        return;
    }
    let connection_kinds: BTreeSet<ConnectionKind> = [ConnectionKind::Tmpfs].into();
    let policy = NodePolicy { connection_kinds, tmpfs_max_bytes: Some(8 << 30), ..NodePolicy::default() };
    let cluster = Cluster::start_with(1, &[], None, Mounts::Real(Box::new(policy))).await;
    cluster.create_class("c", "Immediate", json!({})).await;
    cluster.create_claim("data", "c").await;
    cluster.create_pod("p", claim_volume("data"), json!({})).await;
    cluster.wait_until_running("p").await;
    let directory = cluster.directory.path().to_owned();
    let mounted = mounts(&directory);
    assert_eq!(mounted.len(), 2, "a staged and a published volume: {mounted:?}");
    let target = mounted.iter().find(|path| path.ends_with("/mount")).unwrap();
    std::fs::write(format!("{target}/file"), "content").unwrap();
    let (pod, volume) = cluster.pod_and_volume("p", "data").await;
    assert_eq!(cluster.view.published_path(&pod, &volume), Some(target.into()));
    assert_eq!(cluster.view.published_path(&Uid::from("other"), &volume), None);

    // A second pod of the node sees what the first one wrote.
    cluster.create_pod("q", claim_volume("data"), json!({})).await;
    cluster.wait_until_running("q").await;
    let targets = mounts(&directory).into_iter().filter(|path| path.ends_with("/mount"));
    for target in targets {
        assert_eq!(std::fs::read_to_string(format!("{target}/file")).unwrap(), "content", "{target}");
    }
    cluster.delete(&cluster.pods(), "p").await;
    wait_until(&cluster.pods(), "p", |pod| pod.is_none()).await;
    assert_eq!(mounts(&directory).len(), 2);
    // The second pod still runs when the cluster stops.
    assert_eq!(cluster.stop().await, Vec::<String>::new());
    assert_eq!(mounts(&directory), Vec::<String>::new());
}
