//! A StatefulSet: each of its pods has a volume of its own, and finds it again.

use anyhow::{Result, ensure};
use k8s_openapi::api::apps::v1::StatefulSet;
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use serde_json::json;

use super::ground::{AT, DIRECTORY, Ground, Room, SOON, STAYS, claim};
use crate::{image, wait::until};

const NAME: &str = "set";
const PODS: usize = 3;

pub(super) async fn three_pods(ground: &Ground<'_>) -> Result<()> {
    let room = &ground.room("sets").await?;
    let script = format!("cd {AT}; test -e owner || echo $HOSTNAME > owner; cat owner; {STAYS}");
    room.make::<StatefulSet>(json!({
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
                        "image": image::SHELL,
                        "imagePullPolicy": "Never",
                        "command": ["sh", "-ec", script],
                        "volumeMounts": [{ "name": "data", "mountPath": AT }],
                    }],
                },
            },
            "volumeClaimTemplates": [{
                "metadata": { "name": "data" },
                "spec": claim(DIRECTORY, "Filesystem", "ReadWriteOnce"),
            }],
        },
    }))
    .await?;
    let sets = room.sets();
    each_has_its_own(room).await?;
    let none = async || {
        scale(&sets, 0).await?;
        until("the set has no pods", SOON, async || {
            let pods = room.pods().list(&ListParams::default()).await?.items.len();
            ensure!(pods == 0, "{pods} are there");
            Ok(())
        })
        .await
    };
    none().await?;
    let claims = room.claims().list(&ListParams::default()).await?.items.len();
    ensure!(claims == PODS, "{claims} claims are left: expected {PODS}");
    scale(&sets, PODS).await?;
    each_has_its_own(room).await?;
    none().await?;
    sets.delete(NAME, &DeleteParams::default()).await?;
    room.empty().await
}

async fn each_has_its_own(room: &Room) -> Result<()> {
    for number in 0..PODS {
        let pod = format!("{NAME}-{number}");
        let said = room.done(&pod).await?;
        ensure!(said == pod, "{pod} finds the volume of {said:?}");
    }
    Ok(())
}

async fn scale(sets: &Api<StatefulSet>, pods: usize) -> Result<()> {
    let patch = Patch::Merge(json!({ "spec": { "replicas": pods } }));
    sets.patch(NAME, &PatchParams::default(), &patch).await?;
    Ok(())
}
