//! WaitForFirstConsumer with kube-scheduler, and the node affinity of volumes.

use anyhow::{Context as _, Result, ensure};
use kube::ResourceExt as _;
use serde_json::json;

use super::fixture::{ContainerVolume, DIRECTORY, MOUNT_PATH, NODE, PodFixture, TIMEOUT};
use crate::wait::until;

const SELECTED_NODE_ANNOTATION: &str = "volume.kubernetes.io/selected-node";

pub(super) async fn wait_for_first_consumer(fixture: &PodFixture<'_>) -> Result<()> {
    let namespace = &fixture.create_namespace("placing").await?;
    namespace.create_claim("waits", DIRECTORY).await?;
    until("the claim is told to wait", TIMEOUT, async || {
        let events = namespace.event_text("waits").await?;
        ensure!(events.contains("WaitForFirstConsumer"), "it was told {events:?}");
        Ok(())
    })
    .await?;
    let claim = namespace.claims().get("waits").await?;
    let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default();
    ensure!(
        phase == "Pending" && claim.annotations().get(SELECTED_NODE_ANNOTATION).is_none(),
        "the claim is {claim:?}"
    );
    let output = namespace
        .run_pod(
            "consumer",
            &ContainerVolume::claim("waits"),
            &format!("touch {MOUNT_PATH}/f; ls {MOUNT_PATH}"),
        )
        .await?;
    ensure!(output == "f", "the pod says {output:?}");
    let claim = namespace.claims().get("waits").await?;
    ensure!(
        claim.annotations().get(SELECTED_NODE_ANNOTATION).is_some_and(|node| node == NODE),
        "the claim is {claim:?}"
    );
    let volume = namespace.wait_bound("waits").await?.spec.context("a volume without a spec")?;
    let affinity = serde_json::to_value(volume.node_affinity.and_then(|affinity| affinity.required))?;
    let expected = json!({
        "nodeSelectorTerms": [{
            "matchExpressions": [{
                "key": "topology.cofferdam.dev/node", "operator": "In", "values": [NODE],
            }],
        }],
    });
    ensure!(affinity == expected, "the volume is for {affinity}: expected {expected}");
    namespace.delete_claims().await
}
