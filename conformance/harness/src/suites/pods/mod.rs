//! Volumes of Cofferdam's drivers in pods on a real kubelet and scheduler, without sidecars and without the
//! upstream controllers that Cofferdam's roles replace. The roles that call the API run under service
//! accounts with the rights that `cofferdam render rbac` prints. The module `node_shutdown` is a suite of its
//! own, with two nodes and the Go driver.

mod access;
mod audit;
mod block;
mod crash_tests;
mod data;
mod ephemeral;
mod expansion;
mod fixture;
mod forged_volumes;
mod inline;
pub(super) mod node_shutdown;
mod restarts;
mod scheduling;
mod snapshots;
mod stateful_sets;
mod volume_stats;

use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use futures::future::LocalBoxFuture;

use crate::run::SuiteRun;
use audit::NodeAudit;
use fixture::{PodFixture, TIMEOUT};

/// A test, which creates a Kubernetes namespace of its own. All tests of [`POD_TESTS`] run concurrently.
type PodTest = for<'a> fn(&'a PodFixture<'a>) -> LocalBoxFuture<'a, Result<()>>;
const POD_TESTS: [(&str, PodTest); 17] = [
    ("pods come and go", |ground| Box::pin(data::data_of_next_pod(ground))),
    ("a StatefulSet of three", |ground| Box::pin(stateful_sets::stateful_set_of_three(ground))),
    ("a group of pods that are not root", |ground| Box::pin(access::fs_group(ground))),
    ("reading only", |ground| Box::pin(access::read_only(ground))),
    ("a part of a volume", |ground| Box::pin(access::sub_path(ground))),
    ("two pods on one volume", |ground| Box::pin(access::shared_by_two_pods(ground))),
    ("one pod on one volume", |ground| Box::pin(access::read_write_once_pod(ground))),
    ("raw block devices", |ground| Box::pin(block::block_device(ground))),
    ("generic ephemeral volumes", |ground| Box::pin(ephemeral::ephemeral_volumes(ground))),
    ("inline volumes", |ground| Box::pin(inline::inline_volumes(ground))),
    ("forged volumes", |ground| Box::pin(forged_volumes::reject_forged_volumes(ground))),
    ("the first consumer", |ground| Box::pin(scheduling::wait_for_first_consumer(ground))),
    ("kubelet's summary", |ground| Box::pin(volume_stats::stats_summary(ground))),
    ("growth under a pod", |ground| Box::pin(expansion::expand_mounted_volume(ground))),
    ("growth of images", |ground| Box::pin(expansion::expand_images(ground))),
    ("snapshots, restores and clones", |ground| Box::pin(snapshots::node_local_bytes(ground))),
    ("deletion with force", |ground| Box::pin(restarts::force_delete(ground))),
];

pub(super) async fn run(run: &SuiteRun) -> Result<()> {
    let mut fixture = PodFixture::new(run).await?;
    let before = NodeAudit::read(&fixture).await?;
    let started = Instant::now();
    let tests = POD_TESTS.map(async |(name, test)| test(&fixture).await.context(name));
    let failed: Vec<String> = futures::future::join_all(tests)
        .await
        .into_iter()
        .filter_map(|shown| shown.err().map(|error| format!("{error:#}")))
        .collect();
    ensure!(failed.is_empty(), "{}", failed.join("\n"));
    run.add_note(&format!("{} concurrent tests: {:.0} s", POD_TESTS.len(), started.elapsed().as_secs_f64()))?;
    let started = Instant::now();
    restarts::restart_kubelet(&mut fixture).await.context("kubelet restarts")?;
    run.add_note(&format!("kubelet stopped and killed: {:.0} s", started.elapsed().as_secs_f64()))?;
    let started = Instant::now();
    crash_tests::crash_during_calls(&mut fixture).await.context("the role node is killed")?;
    run.add_note(&format!("the role node killed during calls: {:.0} s", started.elapsed().as_secs_f64()))?;
    fixture.node.wait_idle(run, TIMEOUT).await?;
    before.wait_unchanged(&fixture).await?;
    fixture.stop().await
}
