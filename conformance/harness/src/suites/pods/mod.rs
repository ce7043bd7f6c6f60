//! Volumes of ours in pods, on a real kubelet: with Kubernetes' own scheduler and attach-detach controller, and our roles under
//! their accounts.

mod data;
mod ground;

use anyhow::{Context as _, Result};

use crate::run::Run;
use ground::Ground;

pub(super) async fn run(run: &Run) -> Result<()> {
    let ground = Ground::new(run).await?;
    data::pods_come_and_go(&ground).await.context("pods come and go")?;
    ground.node.idle(run, ground::SOON).await?;
    ground.end().await
}
