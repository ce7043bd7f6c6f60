//! After the deletion of a claim's only pod, the node unstages the volume. The next pod of the claim then
//! reads the data of the previous pod from a directory or an image, and finds a memory volume empty.

use anyhow::{Result, ensure};

use super::fixture::{ContainerVolume, DIRECTORY, IMAGE, MEMORY, MOUNT_PATH, PodFixture, VolumeClass};

/// Classes, and `true` if their volumes keep their data after they were unstaged.
const PERSISTENCE_BY_CLASS: [(VolumeClass, bool); 3] = [(MEMORY, false), (DIRECTORY, true), (IMAGE, true)];

pub(super) async fn data_of_next_pod(fixture: &PodFixture<'_>) -> Result<()> {
    let namespace = &fixture.create_namespace("data").await?;
    let rows = PERSISTENCE_BY_CLASS.into_iter().map(async |(class, is_persistent)| {
        let name = class.name;
        namespace.create_claim(name, class).await?;
        let of = ContainerVolume::claim(name);
        let write = format!(
            "cd {MOUNT_PATH}; dd if=/dev/urandom of=data bs=64k count=16 2>/dev/null; sync; md5sum data"
        );
        let checksum = namespace.run_pod(&format!("{name}-writer"), &of, &write).await?;
        ensure!(checksum.ends_with("  data"), "{name}: the first pod says {checksum:?}");
        fixture.wait_unstaged(class, namespace, name).await?;
        let read = format!("cd {MOUNT_PATH}; if test -e data; then md5sum data; else echo nothing; fi");
        let read = namespace.run_pod(&format!("{name}-reader"), &of, &read).await?;
        let expected = if is_persistent { checksum.as_str() } else { "nothing" };
        ensure!(read == expected, "{name}: the second pod reads {read:?}: expected {expected:?}");
        anyhow::Ok(())
    });
    futures::future::try_join_all(rows).await?;
    namespace.delete_claims().await
}
