//! Generic ephemeral volumes: a claim that is created and deleted with its pod.

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::{Api, ResourceExt as _, api::ListParams};

use super::fixture::{ContainerVolume, IMAGE, MEMORY, MOUNT_PATH, PodFixture, TIMEOUT};
use crate::wait::until;

pub(super) async fn ephemeral_volumes(fixture: &PodFixture<'_>) -> Result<()> {
    let namespace = &fixture.create_namespace("ephemeral").await?;
    let rows = [MEMORY, IMAGE].map(async |class| {
        let (pod, of) = (class.name, ContainerVolume::ephemeral(class));
        let output =
            namespace.start_pod(pod, &of, &format!("cd {MOUNT_PATH}; echo {pod} > f; cat f")).await?;
        ensure!(output == pod, "{pod} says {output:?}");
        let volume = namespace.wait_bound(&format!("{pod}-volume")).await?;
        let owner = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref()?.name.clone());
        ensure!(owner == Some(format!("{pod}-volume")), "the volume of {pod} belongs to {owner:?}");
        namespace.delete_pod(pod).await?;
        until(&format!("claim and volume of {pod} are gone"), TIMEOUT, async || {
            let claims = namespace.claims().list(&ListParams::default()).await?.items;
            let claim = claims.iter().find(|claim| claim.name_any().starts_with(pod));
            let volumes: Api<PersistentVolume> = Api::all(fixture.plane.client().clone());
            let remaining = volumes.get_opt(&volume.name_any()).await?;
            ensure!(
                claim.is_none() && remaining.is_none(),
                "claim {:?}, volume {remaining:?}",
                claim.map(|one| one.name_any())
            );
            Ok(())
        })
        .await
        .context("nobody deletes them but Kubernetes, with the pod")
    });
    futures::future::try_join_all(rows).await?;
    namespace.delete_claims().await
}
