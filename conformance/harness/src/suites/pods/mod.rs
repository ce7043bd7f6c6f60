//! Volumes of ours in pods, on a real kubelet: no sidecar, and of kube-controller-manager what is no role of ours; the scheduler
//! is Kubernetes' own. Our roles run under their accounts.

mod access;
mod block;
mod data;
mod deaths;
mod ephemeral;
mod forged;
mod ground;
mod growth;
mod inline;
mod placing;
mod restarts;
mod sets;
pub(super) mod shutdown;
mod stats;
mod traces;

use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use futures::future::LocalBoxFuture;

use crate::run::Run;
use ground::{Ground, SOON};
use traces::Traces;

/// What is shown at the same time, each in a namespace of its own.
type Theme = for<'a> fn(&'a Ground<'a>) -> LocalBoxFuture<'a, Result<()>>;
const THEMES: [(&str, Theme); 16] = [
    ("pods come and go", |ground| Box::pin(data::pods_come_and_go(ground))),
    ("a StatefulSet of three", |ground| Box::pin(sets::three_pods(ground))),
    ("a group of pods that are not root", |ground| Box::pin(access::groups(ground))),
    ("reading only", |ground| Box::pin(access::reading(ground))),
    ("a part of a volume", |ground| Box::pin(access::parts(ground))),
    ("two pods on one volume", |ground| Box::pin(access::together(ground))),
    ("one pod on one volume", |ground| Box::pin(access::alone(ground))),
    ("raw block devices", |ground| Box::pin(block::devices(ground))),
    ("generic ephemeral volumes", |ground| Box::pin(ephemeral::volumes(ground))),
    ("inline volumes", |ground| Box::pin(inline::volumes(ground))),
    ("forged volumes", |ground| Box::pin(forged::volumes(ground))),
    ("the first consumer", |ground| Box::pin(placing::first_consumer(ground))),
    ("kubelet's summary", |ground| Box::pin(stats::summary(ground))),
    ("growth under a pod", |ground| Box::pin(growth::under_a_pod(ground))),
    ("growth of images", |ground| Box::pin(growth::of_images(ground))),
    ("deletion with force", |ground| Box::pin(restarts::forced(ground))),
];

pub(super) async fn run(run: &Run) -> Result<()> {
    let mut ground = Ground::new(run).await?;
    let before = Traces::of(&ground).await?;
    let started = Instant::now();
    let themes = THEMES.map(async |(name, theme)| theme(&ground).await.context(name));
    let failed: Vec<String> = futures::future::join_all(themes)
        .await
        .into_iter()
        .filter_map(|shown| shown.err().map(|error| format!("{error:#}")))
        .collect();
    ensure!(failed.is_empty(), "{}", failed.join("\n"));
    run.tell(&format!("{} themes at once: {:.0} s", THEMES.len(), started.elapsed().as_secs_f64()))?;
    let started = Instant::now();
    restarts::kubelet(&mut ground).await.context("kubelet starts again")?;
    run.tell(&format!("kubelet stopped and killed: {:.0} s", started.elapsed().as_secs_f64()))?;
    let started = Instant::now();
    deaths::in_the_middle(&mut ground).await.context("the role node dies")?;
    run.tell(&format!(
        "the role node killed in the middle of calls: {:.0} s",
        started.elapsed().as_secs_f64()
    ))?;
    ground.node.idle(run, SOON).await?;
    before.same(&ground).await?;
    ground.end().await
}
