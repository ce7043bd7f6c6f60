//! WaitForFirstConsumer with the real scheduler, and what a volume says of where it is.

use anyhow::{Context as _, Result, ensure};
use kube::ResourceExt as _;
use serde_json::json;

use super::ground::{AT, DIRECTORY, Ground, NODE, SOON, Use};
use crate::wait::until;

const SELECTED: &str = "volume.kubernetes.io/selected-node";

pub(super) async fn first_consumer(ground: &Ground<'_>) -> Result<()> {
    let room = &ground.room("placing").await?;
    room.claim("waits", DIRECTORY).await?;
    until("the claim is told to wait", SOON, async || {
        let events = room.events("waits").await?;
        ensure!(events.contains("WaitForFirstConsumer"), "it was told {events:?}");
        Ok(())
    })
    .await?;
    let claim = room.claims().get("waits").await?;
    let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default();
    ensure!(phase == "Pending" && claim.annotations().get(SELECTED).is_none(), "the claim is {claim:?}");
    let said = room.says("consumer", &Use::claim("waits"), &format!("touch {AT}/f; ls {AT}")).await?;
    ensure!(said == "f", "the pod says {said:?}");
    let claim = room.claims().get("waits").await?;
    ensure!(claim.annotations().get(SELECTED).is_some_and(|node| node == NODE), "the claim is {claim:?}");
    let volume = room.bound("waits").await?.spec.context("a volume without a spec")?;
    let affinity = serde_json::to_value(volume.node_affinity.and_then(|affinity| affinity.required))?;
    let expected = json!({
        "nodeSelectorTerms": [{
            "matchExpressions": [{ "key": "topology.cofferdam.dev/node", "operator": "In", "values": [NODE] }],
        }],
    });
    ensure!(affinity == expected, "the volume is for {affinity}: expected {expected}");
    room.empty().await
}
