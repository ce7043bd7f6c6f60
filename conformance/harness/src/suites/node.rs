//! A pod with an emptyDir runs on a real kubelet. After its deletion no mount, container or network of it is
//! left.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{DeleteParams, LogParams, PostParams},
};
use serde_json::json;

use crate::{
    control_plane::{ControlPlane, ControlPlaneOptions},
    image,
    node::KubeletNode,
    run::SuiteRun,
    wait::until,
};

const TIMEOUT: Duration = Duration::from_secs(240);
const NODE: &str = "node-1";
const EXPECTED_OUTPUT: &str = "there is a shell in here";

pub(super) async fn run(run: &SuiteRun) -> Result<()> {
    // The node lifecycle controller removes the taint of new nodes.
    let options = ControlPlaneOptions {
        controllers: Some("node-lifecycle-controller,namespace-controller".to_owned()),
        has_scheduler: true,
        ..ControlPlaneOptions::default()
    };
    let plane = ControlPlane::start(run, options).await?;
    let node = KubeletNode::start(run, &plane, NODE).await?;

    let pods: Api<Pod> = Api::namespaced(plane.client().clone(), "default");
    let pod = json!({
        "metadata": { "name": "shell" },
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "shell",
                "image": image::SHELL_IMAGE,
                "imagePullPolicy": "Never",
                "command": ["sh", "-c", format!("echo {EXPECTED_OUTPUT} > /room/said; cat /room/said; sleep \
                 3600")],
                "volumeMounts": [{ "name": "room", "mountPath": "/room" }],
            }],
            "volumes": [{ "name": "room", "emptyDir": { "medium": "Memory" } }],
        },
    });
    pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
    until("the pod runs", TIMEOUT, async || {
        let pod = pods.get("shell").await?;
        let status = pod.status.context("no status")?;
        let phase = status.phase.as_deref().unwrap_or_default();
        ensure!(phase == "Running", "it is {phase}: {:?} {:?}", status.conditions, status.container_statuses);
        Ok(())
    })
    .await?;
    until("the pod says something", TIMEOUT, async || {
        let log = pods.logs("shell", &LogParams::default()).await?;
        ensure!(log.trim() == EXPECTED_OUTPUT, "it said {log:?}");
        Ok(())
    })
    .await?;

    pods.delete("shell", &DeleteParams::default()).await?;
    until("the pod is gone", TIMEOUT, async || {
        ensure!(pods.get_opt("shell").await?.is_none(), "it is there");
        Ok(())
    })
    .await?;
    node.wait_idle(run, TIMEOUT).await?;
    drop(pods);
    node.stop().await?;
    plane.stop().await
}
