//! Generic ephemeral volumes: a claim of the pod's own, which comes and goes with it.

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::{Api, ResourceExt as _, api::ListParams};

use super::ground::{AT, Ground, IMAGE, MEMORY, SOON, Use};
use crate::wait::until;

pub(super) async fn volumes(ground: &Ground<'_>) -> Result<()> {
    let room = &ground.room("ephemeral").await?;
    let rows = [MEMORY, IMAGE].map(async |class| {
        let (pod, of) = (class.name, Use::ephemeral(class));
        let said = room.stays(pod, &of, &format!("cd {AT}; echo {pod} > f; cat f")).await?;
        ensure!(said == pod, "{pod} says {said:?}");
        let volume = room.bound(&format!("{pod}-volume")).await?;
        let owner = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref()?.name.clone());
        ensure!(owner == Some(format!("{pod}-volume")), "the volume of {pod} belongs to {owner:?}");
        room.gone(pod).await?;
        until(&format!("claim and volume of {pod} are gone"), SOON, async || {
            let claims = room.claims().list(&ListParams::default()).await?.items;
            let claim = claims.iter().find(|claim| claim.name_any().starts_with(pod));
            let volumes: Api<PersistentVolume> = Api::all(ground.plane.client().clone());
            let left = volumes.get_opt(&volume.name_any()).await?;
            ensure!(
                claim.is_none() && left.is_none(),
                "claim {:?}, volume {left:?}",
                claim.map(|one| one.name_any())
            );
            Ok(())
        })
        .await
        .context("nobody deletes them but Kubernetes, with the pod")
    });
    futures::future::try_join_all(rows).await?;
    room.empty().await
}
