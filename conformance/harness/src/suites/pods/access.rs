//! Access to volumes: `fsGroup`, `readOnly`, `subPath`, two pods with one volume, and ReadWriteOncePod.

use anyhow::{Result, ensure};
use serde_json::json;

use super::fixture::{
    ContainerVolume, DIRECTORY, IMAGE, MEMORY, MOUNT_PATH, PodFixture, TIMEOUT, VolumeClass,
};
use crate::wait::until;

const FILESYSTEM_CLASSES: [VolumeClass; 3] = [MEMORY, DIRECTORY, IMAGE];
const PERSISTENT_CLASSES: [VolumeClass; 2] = [DIRECTORY, IMAGE];
const USER: u32 = 1000;
const GROUP: u32 = 2000;

/// A pod with a user other than root can write to its volume: the `fsGroup` of the pod is the group of the
/// volume's root directory and of the files that the pod creates.
pub(super) async fn fs_group(fixture: &PodFixture<'_>) -> Result<()> {
    let namespace = &fixture.create_namespace("groups").await?;
    let tests = FILESYSTEM_CLASSES.map(async |class| {
        namespace.create_claim(class.name, class).await?;
        let of = ContainerVolume::claim(class.name).with_user(USER, GROUP);
        let output = namespace
            .run_pod(class.name, &of, &format!("cd {MOUNT_PATH}; touch f; stat -c '%u %g' f; stat -c %g ."))
            .await?;
        let expected = format!("{USER} {GROUP}\n{GROUP}");
        ensure!(output == expected, "{}: the pod says {output:?}: expected {expected:?}", class.name);
        anyhow::Ok(())
    });
    futures::future::try_join_all(tests).await?;
    namespace.delete_claims().await
}

/// A pod reads its volume and cannot write to it, if `readOnly` is set at the container's `volumeMounts` or
/// at the pod's volume source `persistentVolumeClaim`.
pub(super) async fn read_only(fixture: &PodFixture<'_>) -> Result<()> {
    let namespace = &fixture.create_namespace("reading").await?;
    let rows = PERSISTENT_CLASSES.map(async |class| {
        let name = class.name;
        namespace.create_claim(name, class).await?;
        namespace
            .run_pod(
                &format!("{name}-writer"),
                &ContainerVolume::claim(name),
                &format!("echo first > {MOUNT_PATH}/f; sync"),
            )
            .await?;
        let uses = [
            ("mount", ContainerVolume::claim(name).with_mount_field("readOnly", json!(true))),
            ("claim", ContainerVolume::claim(name).read_only()),
        ];
        for (level, of) in uses {
            let script = format!("cd {MOUNT_PATH}; cat f; touch g 2>&1 || echo refused");
            let output = namespace.run_pod(&format!("{name}-{level}"), &of, &script).await?;
            let is_rejected =
                output.starts_with("first\n") && output.contains("Read-only") && output.ends_with("refused");
            ensure!(is_rejected, "{name}, read only by the {level}: the pod says {output:?}");
        }
        anyhow::Ok(())
    });
    futures::future::try_join_all(rows).await?;
    namespace.delete_claims().await
}

/// A mount with `subPath` shows only that directory of the volume, which kubelet creates for the first pod.
pub(super) async fn sub_path(fixture: &PodFixture<'_>) -> Result<()> {
    let namespace = &fixture.create_namespace("parts").await?;
    let rows = PERSISTENT_CLASSES.map(async |class| {
        let name = class.name;
        namespace.create_claim(name, class).await?;
        let part = ContainerVolume::claim(name).with_mount_field("subPath", json!("a/b"));
        namespace
            .run_pod(&format!("{name}-part"), &part, &format!("echo inside > {MOUNT_PATH}/f; sync"))
            .await?;
        let root_output = namespace
            .run_pod(
                &format!("{name}-whole"),
                &ContainerVolume::claim(name),
                &format!("cd {MOUNT_PATH}; echo outside > f; cat a/b/f"),
            )
            .await?;
        ensure!(root_output == "inside", "{name}: the whole has {root_output:?}");
        let again = namespace
            .run_pod(&format!("{name}-again"), &part, &format!("cd {MOUNT_PATH}; ls; cat f"))
            .await?;
        ensure!(again == "f\ninside", "{name}: the part has {again:?}");
        anyhow::Ok(())
    });
    futures::future::try_join_all(rows).await?;
    namespace.delete_claims().await
}

/// Two pods of the node share the volume of a ReadWriteOnce claim, and each sees the writes of the other.
pub(super) async fn shared_by_two_pods(fixture: &PodFixture<'_>) -> Result<()> {
    let namespace = &fixture.create_namespace("together").await?;
    let rows = FILESYSTEM_CLASSES.map(async |class| {
        let name = class.name;
        namespace.create_claim(name, class).await?;
        let of = ContainerVolume::claim(name);
        let pods = [("one", "two"), ("two", "one")].map(|(own_file, other_file)| {
            let script = format!(
                "cd {MOUNT_PATH}; echo {own_file} > {own_file}; until test -s {other_file}; do sleep 0.1; \
                 done; cat {other_file}"
            );
            (format!("{name}-{own_file}"), script, other_file)
        });
        for (pod, script, _) in &pods {
            namespace.create_pod(pod, &of, script).await?;
        }
        for (pod, _, other_file) in &pods {
            let output = namespace.wait_output(pod).await?;
            ensure!(output == *other_file, "{pod} says {output:?}: expected {other_file:?}");
        }
        for (pod, _, _) in &pods {
            namespace.delete_pod(pod).await?;
        }
        anyhow::Ok(())
    });
    futures::future::try_join_all(rows).await?;
    namespace.delete_claims().await
}

/// The second pod of a ReadWriteOncePod claim waits until the first is deleted, and then runs.
pub(super) async fn read_write_once_pod(fixture: &PodFixture<'_>) -> Result<()> {
    let namespace = &fixture.create_namespace("alone").await?;
    let rows = FILESYSTEM_CLASSES.map(async |class| {
        let name = class.name;
        namespace.create_claim_with_modes(name, class, "Filesystem", "ReadWriteOncePod").await?;
        let (of, first, next) =
            (ContainerVolume::claim(name), format!("{name}-first"), format!("{name}-next"));
        namespace.start_pod(&first, &of, &format!("touch {MOUNT_PATH}/f")).await?;
        namespace.create_pod(&next, &of, "echo mine").await?;
        until(&format!("pod {next} has to wait"), TIMEOUT, async || {
            let events = namespace.event_text(&next).await?;
            ensure!(events.contains("ReadWriteOncePod"), "it was told {events:?}");
            Ok(())
        })
        .await?;
        namespace.delete_pod(&first).await?;
        let output = namespace.wait_output(&next).await?;
        ensure!(output == "mine", "{name}: the next pod says {output:?}");
        namespace.delete_pod(&next).await
    });
    futures::future::try_join_all(rows).await?;
    namespace.delete_claims().await
}
