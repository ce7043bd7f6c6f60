//! Restarts of kubelet, and force-deleted pods.

use anyhow::{Context as _, Result, ensure};
use kube::api::DeleteParams;

use super::fixture::{
    ContainerVolume, DIRECTORY, IMAGE, MEMORY, MOUNT_PATH, PodFixture, TestNamespace, VolumeClass,
};

/// Name of the namespace, end of kubelet's process, and classes of the volumes.
const RESTART_CASES: [(&str, KubeletStop, &[VolumeClass]); 2] = [
    ("stopped", KubeletStop::Graceful, &[MEMORY, IMAGE]),
    ("killed", KubeletStop::Kill, &[MEMORY, DIRECTORY, IMAGE]),
];

#[derive(Clone, Copy)]
enum KubeletStop {
    Graceful,
    Kill,
}

/// A running pod keeps its container, and its volume can still be read, after a restart of kubelet. The
/// volume is unstaged after its three pods are deleted: one was force-deleted while kubelet was down, the
/// others are deleted afterwards.
pub(super) async fn restart_kubelet(fixture: &mut PodFixture<'_>) -> Result<()> {
    for (name, stop, classes) in RESTART_CASES {
        let namespace = fixture.create_namespace(name).await?;
        let mut before = Vec::new();
        for class in classes {
            namespace.create_claim(class.name, *class).await?;
            for pod in ["stays", "goes"] {
                let pod = format!("{}-{pod}", class.name);
                let output = namespace
                    .start_pod(
                        &pod,
                        &ContainerVolume::claim(class.name),
                        &format!("echo {pod} > {MOUNT_PATH}/{pod}; sync"),
                    )
                    .await?;
                ensure!(output.is_empty(), "{pod} says {output:?}");
            }
            before.push(container_id(&namespace, class).await?);
        }
        match stop {
            KubeletStop::Graceful => fixture.node.kubelet.stop().await?,
            KubeletStop::Kill => fixture.node.kubelet.kill().await?,
        }
        for class in classes {
            force_delete_pod(&namespace, &format!("{}-goes", class.name)).await?;
        }
        fixture.node.kubelet.restart()?;
        fixture.node.wait_ready(&fixture.plane).await?;
        for (class, before) in classes.iter().zip(before) {
            let class = *class;
            // The new pod uses the volume of the earlier pods.
            let of = ContainerVolume::claim(class.name);
            let script = format!("cd {MOUNT_PATH}; cat {0}-stays {0}-goes", class.name);
            let output = namespace.run_pod(&format!("{}-new", class.name), &of, &script).await?;
            let expected = format!("{0}-stays\n{0}-goes", class.name);
            ensure!(output == expected, "{name}, {}: the new pod says {output:?}", class.name);
            let after = container_id(&namespace, &class).await?;
            ensure!(after == before, "{name}, {}: the container was {before}, and is {after}", class.name);
            namespace.delete_pod(&format!("{}-stays", class.name)).await?;
            fixture.wait_unstaged(class, &namespace, class.name).await?;
        }
        namespace.delete_claims().await?;
    }
    Ok(())
}

/// The id of the container of the pod `CLASS-stays`. A restart of the container changes the id.
async fn container_id(namespace: &TestNamespace, class: &VolumeClass) -> Result<String> {
    let pod = namespace.pods().get(&format!("{}-stays", class.name)).await?;
    let containers = pod.status.and_then(|status| status.container_statuses).unwrap_or_default();
    containers.into_iter().find_map(|container| container.container_id).context("no container")
}

/// The volume of a force-deleted pod is unstaged, and can be used again.
pub(super) async fn force_delete(fixture: &PodFixture<'_>) -> Result<()> {
    let namespace = &fixture.create_namespace("forced").await?;
    let rows = [MEMORY, DIRECTORY, IMAGE].map(async |class| {
        let name = class.name;
        namespace.create_claim(name, class).await?;
        let of = ContainerVolume::claim(name);
        namespace
            .start_pod(&format!("{name}-first"), &of, &format!("echo first > {MOUNT_PATH}/f; sync"))
            .await?;
        force_delete_pod(namespace, &format!("{name}-first")).await?;
        ensure!(
            namespace.pods().get_opt(&format!("{name}-first")).await?.is_none(),
            "{name}: the pod is there"
        );
        fixture.wait_unstaged(class, namespace, name).await?;
        let output = namespace
            .run_pod(
                &format!("{name}-next"),
                &of,
                &format!("cd {MOUNT_PATH}; if test -e f; then cat f; else echo nothing; fi"),
            )
            .await?;
        let expected = if class == MEMORY { "nothing" } else { "first" };
        ensure!(output == expected, "{name}: the next pod says {output:?}");
        anyhow::Ok(())
    });
    futures::future::try_join_all(rows).await?;
    namespace.delete_claims().await
}

async fn force_delete_pod(namespace: &TestNamespace, pod: &str) -> Result<()> {
    namespace.pods().delete(pod, &DeleteParams::default().grace_period(0)).await?;
    Ok(())
}
