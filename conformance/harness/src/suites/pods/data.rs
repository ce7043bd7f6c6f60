//! What a pod writes, the next one reads.

use anyhow::{Result, ensure};

use super::ground::{AT, Class, DIRECTORY, Ground, IMAGE, MEMORY, Use};

/// Whether a class keeps what was written when no pod has the volume.
const ROWS: [(Class, bool); 3] = [(MEMORY, false), (DIRECTORY, true), (IMAGE, true)];

pub(super) async fn pods_come_and_go(ground: &Ground<'_>) -> Result<()> {
    let room = &ground.room("data").await?;
    let rows = ROWS.into_iter().map(async |(class, kept)| {
        let name = class.name;
        room.claim(name, class).await?;
        let of = Use::claim(name);
        let write =
            format!("cd {AT}; dd if=/dev/urandom of=data bs=64k count=16 2>/dev/null; sync; md5sum data");
        let wrote = room.says(&format!("{name}-writer"), &of, &write).await?;
        ensure!(wrote.ends_with("  data"), "{name}: the first pod says {wrote:?}");
        ground.unstaged(class, room, name).await?;
        let read = format!("cd {AT}; if test -e data; then md5sum data; else echo nothing; fi");
        let read = room.says(&format!("{name}-reader"), &of, &read).await?;
        let expected = if kept { wrote.as_str() } else { "nothing" };
        ensure!(read == expected, "{name}: the second pod reads {read:?}: expected {expected:?}");
        anyhow::Ok(())
    });
    futures::future::try_join_all(rows).await?;
    room.empty().await
}
