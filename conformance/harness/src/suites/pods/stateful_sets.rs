//! A StatefulSet: each pod has its own volume, also after the set was scaled to zero and back.

use anyhow::{Result, ensure};
use k8s_openapi::api::apps::v1::StatefulSet;
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use serde_json::json;

use super::fixture::{
    DIRECTORY, MOUNT_PATH, PodFixture, RUN_UNTIL_TERMINATED, TIMEOUT, TestNamespace, claim_spec,
};
use crate::{image, wait::until};

const NAME: &str = "set";
const PODS: usize = 3;

pub(super) async fn stateful_set_of_three(fixture: &PodFixture<'_>) -> Result<()> {
    let namespace = &fixture.create_namespace("sets").await?;
    let script = format!(
        "cd {MOUNT_PATH}; test -e owner || echo $HOSTNAME > owner; cat owner; {RUN_UNTIL_TERMINATED}"
    );
    namespace
        .create::<StatefulSet>(json!({
            "metadata": { "name": NAME },
            "spec": {
                "serviceName": NAME,
                "replicas": PODS,
                "podManagementPolicy": "Parallel",
                "selector": { "matchLabels": { "app": NAME } },
                "template": {
                    "metadata": { "labels": { "app": NAME } },
                    "spec": {
                        "terminationGracePeriodSeconds": 1,
                        "containers": [{
                            "name": "shell",
                            "image": image::SHELL_IMAGE,
                            "imagePullPolicy": "Never",
                            "command": ["sh", "-ec", script],
                            "volumeMounts": [{ "name": "data", "mountPath": MOUNT_PATH }],
                        }],
                    },
                },
                "volumeClaimTemplates": [{
                    "metadata": { "name": "data" },
                    "spec": claim_spec(DIRECTORY, "Filesystem", "ReadWriteOnce"),
                }],
            },
        }))
        .await?;
    let sets = namespace.stateful_sets();
    check_own_volumes(namespace).await?;
    let scale_to_zero = async || {
        scale(&sets, 0).await?;
        until("the set has no pods", TIMEOUT, async || {
            let pods = namespace.pods().list(&ListParams::default()).await?.items.len();
            ensure!(pods == 0, "{pods} are there");
            Ok(())
        })
        .await
    };
    scale_to_zero().await?;
    let claims = namespace.claims().list(&ListParams::default()).await?.items.len();
    ensure!(claims == PODS, "{claims} claims are left: expected {PODS}");
    scale(&sets, PODS).await?;
    check_own_volumes(namespace).await?;
    scale_to_zero().await?;
    sets.delete(NAME, &DeleteParams::default()).await?;
    namespace.delete_claims().await
}

async fn check_own_volumes(namespace: &TestNamespace) -> Result<()> {
    for number in 0..PODS {
        let pod = format!("{NAME}-{number}");
        let output = namespace.wait_script_done(&pod).await?;
        ensure!(output == pod, "{pod} finds the volume of {output:?}");
    }
    Ok(())
}

async fn scale(sets: &Api<StatefulSet>, pods: usize) -> Result<()> {
    let patch = Patch::Merge(json!({ "spec": { "replicas": pods } }));
    sets.patch(NAME, &PatchParams::default(), &patch).await?;
    Ok(())
}
