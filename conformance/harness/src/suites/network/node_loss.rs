//! The node loses its power while volumes are staged, and starts again.

use anyhow::{Context as _, Result, ensure};

use super::node::{MachineNode, NetworkVolume};

/// A volume that a pod uses again after the restart of the node, and one whose pod was deleted meanwhile.
pub(in crate::suites) struct LostVolumes {
    pub(in crate::suites) kept: NetworkVolume,
    pub(in crate::suites) removed: NetworkVolume,
}

/// Publishes the volumes, and writes to one of each kind.
pub(in crate::suites) async fn prepare(node: &MachineNode<'_>, volumes: &[LostVolumes]) -> Result<()> {
    for LostVolumes { kept, removed } in volumes {
        node.attach(kept).await?;
        node.attach(removed).await?;
        let target = kept.target_path();
        node.machine.shell(&format!("echo {0} > {target}/kept; sync {target}/kept", kept.name)).await?;
    }
    Ok(())
}

/// Makes kubelet's calls after the restart of the node: stage and publish for the pods that run again, unpublish
/// and unstage for the others.
pub(in crate::suites) async fn recover(node: &MachineNode<'_>, volumes: &[LostVolumes]) -> Result<()> {
    for LostVolumes { kept, removed } in volumes {
        node.detach(removed).await.context("after the restart of the node")?;
        node.ensure_nothing_left(&removed.name).await?;
        node.attach(kept).await.context("after the restart of the node")?;
        let data = node.machine.shell(&format!("cat {}/kept", kept.target_path())).await?;
        ensure!(data == kept.name, "{} has other data: {data:?}", kept.name);
        node.detach(kept).await?;
        node.ensure_nothing_left(&kept.name).await?;
    }
    Ok(())
}
