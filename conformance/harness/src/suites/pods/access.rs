//! Who may do what with a volume: groups, reading only, parts of it, and several pods at once.

use anyhow::{Result, ensure};
use serde_json::json;

use super::ground::{AT, Class, DIRECTORY, Ground, IMAGE, MEMORY, SOON, Use};
use crate::wait::until;

const FILESYSTEMS: [Class; 3] = [MEMORY, DIRECTORY, IMAGE];
const KEPT: [Class; 2] = [DIRECTORY, IMAGE];
const USER: u32 = 1000;
const GROUP: u32 = 2000;

/// A pod that is not root writes, because the volume is for its group.
pub(super) async fn groups(ground: &Ground<'_>) -> Result<()> {
    let room = &ground.room("groups").await?;
    let rows = FILESYSTEMS.map(async |class| {
        room.claim(class.name, class).await?;
        let of = Use::claim(class.name).user(USER, GROUP);
        let said =
            room.says(class.name, &of, &format!("cd {AT}; touch f; stat -c '%u %g' f; stat -c %g .")).await?;
        let expected = format!("{USER} {GROUP}\n{GROUP}");
        ensure!(said == expected, "{}: the pod says {said:?}: expected {expected:?}", class.name);
        anyhow::Ok(())
    });
    futures::future::try_join_all(rows).await?;
    room.empty().await
}

/// What is to be read only cannot be written, by the container's mount and by the pod's claim alike.
pub(super) async fn reading(ground: &Ground<'_>) -> Result<()> {
    let room = &ground.room("reading").await?;
    let rows = KEPT.map(async |class| {
        let name = class.name;
        room.claim(name, class).await?;
        room.says(&format!("{name}-writer"), &Use::claim(name), &format!("echo first > {AT}/f; sync"))
            .await?;
        let uses = [
            ("mount", Use::claim(name).with("readOnly", json!(true))),
            ("claim", Use::claim(name).read_only()),
        ];
        for (way, of) in uses {
            let script = format!("cd {AT}; cat f; touch g 2>&1 || echo refused");
            let said = room.says(&format!("{name}-{way}"), &of, &script).await?;
            let refused =
                said.starts_with("first\n") && said.contains("Read-only") && said.ends_with("refused");
            ensure!(refused, "{name}, read only by the {way}: the pod says {said:?}");
        }
        anyhow::Ok(())
    });
    futures::future::try_join_all(rows).await?;
    room.empty().await
}

/// A pod that has a part of a volume has that part, and no more.
pub(super) async fn parts(ground: &Ground<'_>) -> Result<()> {
    let room = &ground.room("parts").await?;
    let rows = KEPT.map(async |class| {
        let name = class.name;
        room.claim(name, class).await?;
        let part = Use::claim(name).with("subPath", json!("a/b"));
        room.says(&format!("{name}-part"), &part, &format!("echo inside > {AT}/f; sync")).await?;
        let whole = room
            .says(
                &format!("{name}-whole"),
                &Use::claim(name),
                &format!("cd {AT}; echo outside > f; cat a/b/f"),
            )
            .await?;
        ensure!(whole == "inside", "{name}: the whole has {whole:?}");
        let again = room.says(&format!("{name}-again"), &part, &format!("cd {AT}; ls; cat f")).await?;
        ensure!(again == "f\ninside", "{name}: the part has {again:?}");
        anyhow::Ok(())
    });
    futures::future::try_join_all(rows).await?;
    room.empty().await
}

/// Two pods have one volume at once, and each sees what the other writes.
pub(super) async fn together(ground: &Ground<'_>) -> Result<()> {
    let room = &ground.room("together").await?;
    let rows = FILESYSTEMS.map(async |class| {
        let name = class.name;
        room.claim(name, class).await?;
        let of = Use::claim(name);
        let pods = [("one", "two"), ("two", "one")].map(|(own, other)| {
            let script = format!(
                "cd {AT}; echo {own} > {own}; until test -s {other}; do sleep 0.1; done; cat {other}"
            );
            (format!("{name}-{own}"), script, other)
        });
        for (pod, script, _) in &pods {
            room.pod(pod, &of, script).await?;
        }
        for (pod, _, other) in &pods {
            let said = room.said(pod).await?;
            ensure!(said == *other, "{pod} says {said:?}: expected {other:?}");
        }
        for (pod, _, _) in &pods {
            room.gone(pod).await?;
        }
        anyhow::Ok(())
    });
    futures::future::try_join_all(rows).await?;
    room.empty().await
}

/// A volume for one pod is had by one pod, and then by the next.
pub(super) async fn alone(ground: &Ground<'_>) -> Result<()> {
    let room = &ground.room("alone").await?;
    let rows = FILESYSTEMS.map(async |class| {
        let name = class.name;
        room.claim_as(name, class, "Filesystem", "ReadWriteOncePod").await?;
        let (of, first, next) = (Use::claim(name), format!("{name}-first"), format!("{name}-next"));
        room.stays(&first, &of, &format!("touch {AT}/f")).await?;
        room.pod(&next, &of, "echo mine").await?;
        until(&format!("pod {next} has to wait"), SOON, async || {
            let events = room.events(&next).await?;
            ensure!(events.contains("ReadWriteOncePod"), "it was told {events:?}");
            Ok(())
        })
        .await?;
        room.gone(&first).await?;
        let said = room.said(&next).await?;
        ensure!(said == "mine", "{name}: the next pod says {said:?}");
        room.gone(&next).await
    });
    futures::future::try_join_all(rows).await?;
    room.empty().await
}
