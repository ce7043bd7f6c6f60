//! Kubelet ends, and starts again; and pods go that nobody waits for.

use anyhow::{Context as _, Result, ensure};
use kube::api::DeleteParams;

use super::ground::{AT, Class, DIRECTORY, Ground, IMAGE, MEMORY, Room, Use};

/// What becomes of kubelet, and of which volumes.
const ROWS: [(&str, End, &[Class]); 2] =
    [("stopped", End::Order, &[MEMORY, IMAGE]), ("killed", End::Kill, &[MEMORY, DIRECTORY, IMAGE])];

#[derive(Clone, Copy)]
enum End {
    Order,
    Kill,
}

/// Pods that run keep their volumes while kubelet is gone, and lose them afterwards as ever: one that is deleted when kubelet is
/// back, and one that was deleted, with force, when there was none.
pub(super) async fn kubelet(ground: &mut Ground<'_>) -> Result<()> {
    for (name, end, classes) in ROWS {
        let room = ground.room(name).await?;
        let mut before = Vec::new();
        for class in classes {
            room.claim(class.name, *class).await?;
            for pod in ["stays", "goes"] {
                let pod = format!("{}-{pod}", class.name);
                let said = room
                    .stays(&pod, &Use::claim(class.name), &format!("echo {pod} > {AT}/{pod}; sync"))
                    .await?;
                ensure!(said.is_empty(), "{pod} says {said:?}");
            }
            before.push(container(&room, class).await?);
        }
        match end {
            End::Order => ground.node.kubelet.stop().await?,
            End::Kill => ground.node.kubelet.kill().await?,
        }
        for class in classes {
            force(&room, &format!("{}-goes", class.name)).await?;
        }
        ground.node.kubelet.again()?;
        ground.node.ready(&ground.plane).await?;
        for (class, before) in classes.iter().zip(before) {
            let class = *class;
            // Its volume is that of the pods before.
            let of = Use::claim(class.name);
            let script = format!("cd {AT}; cat {0}-stays {0}-goes", class.name);
            let said = room.says(&format!("{}-new", class.name), &of, &script).await?;
            let expected = format!("{0}-stays\n{0}-goes", class.name);
            ensure!(said == expected, "{name}, {}: the new pod says {said:?}", class.name);
            let after = container(&room, &class).await?;
            ensure!(after == before, "{name}, {}: the container was {before}, and is {after}", class.name);
            room.gone(&format!("{}-stays", class.name)).await?;
            ground.unstaged(class, &room, class.name).await?;
        }
        room.empty().await?;
    }
    Ok(())
}

/// The id of a pod's container, which another start would change.
async fn container(room: &Room, class: &Class) -> Result<String> {
    let pod = room.pods().get(&format!("{}-stays", class.name)).await?;
    let containers = pod.status.and_then(|status| status.container_statuses).unwrap_or_default();
    containers.into_iter().find_map(|container| container.container_id).context("no container")
}

/// A pod is deleted with force: for the API it is gone at once, and its volume can be had again.
pub(super) async fn forced(ground: &Ground<'_>) -> Result<()> {
    let room = &ground.room("forced").await?;
    let rows = [MEMORY, DIRECTORY, IMAGE].map(async |class| {
        let name = class.name;
        room.claim(name, class).await?;
        let of = Use::claim(name);
        room.stays(&format!("{name}-first"), &of, &format!("echo first > {AT}/f; sync")).await?;
        force(room, &format!("{name}-first")).await?;
        ensure!(room.pods().get_opt(&format!("{name}-first")).await?.is_none(), "{name}: the pod is there");
        ground.unstaged(class, room, name).await?;
        let said = room
            .says(
                &format!("{name}-next"),
                &of,
                &format!("cd {AT}; if test -e f; then cat f; else echo nothing; fi"),
            )
            .await?;
        let expected = if class == MEMORY { "nothing" } else { "first" };
        ensure!(said == expected, "{name}: the next pod says {said:?}");
        anyhow::Ok(())
    });
    futures::future::try_join_all(rows).await?;
    room.empty().await
}

async fn force(room: &Room, pod: &str) -> Result<()> {
    room.pods().delete(pod, &DeleteParams::default().grace_period(0)).await?;
    Ok(())
}
