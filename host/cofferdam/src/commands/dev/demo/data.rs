//! The file that the demo writes to its volume and reads from copies of the volume.

use std::{
    io,
    path::{Path, PathBuf},
};

use cofferdam_domain::{names, storage::connection_info};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::Api;
use tokio::io::AsyncWriteExt as _;

use super::{Demo, DemoPod, DemoVolume, error::DemoError, objects};

/// Name of the file.
const FILE_NAME: &str = "demo.txt";

/// The file on a volume that is mounted for a pod.
pub(super) struct VolumeFile(PathBuf);

impl VolumeFile {
    /// Writes the file, and returns when the text is on the volume: a snapshot of a mounted volume lacks what
    /// is only in the page cache of the node.
    pub(super) async fn write(&self, text: &str) -> Result<(), DemoError> {
        let written = write_synced(&self.0, text).await;
        written.map_err(|source| DemoError::File { action: "write", path: self.0.clone(), source })
    }

    pub(super) async fn read(&self) -> Result<String, DemoError> {
        let read = tokio::fs::read_to_string(&self.0).await;
        read.map_err(|source| DemoError::File { action: "read", path: self.0.clone(), source })
    }
}

async fn write_synced(path: &Path, text: &str) -> io::Result<()> {
    let mut file = tokio::fs::File::create(path).await?;
    file.write_all(text.as_bytes()).await?;
    file.sync_all().await
}

/// The reason why the demo cannot compare the data of volumes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoDataReason {
    #[error("no pod mounts the volume")]
    NoPod,
    #[error("mounts are only recorded")]
    RecordedMounts,
    #[error("the volume is {0} of the node, not of the driver")]
    NotStored(&'static str),
}

impl Demo<'_> {
    /// The file on the volume, or the reason why there is none.
    pub(super) async fn volume_file(
        &self,
        volume: &DemoVolume,
        pod: Option<&DemoPod>,
    ) -> Result<Result<VolumeFile, NoDataReason>, DemoError> {
        let (Some((view, _)), Some(pod)) = (self.nodes, pod) else { return Ok(Err(NoDataReason::NoPod)) };
        let Some(path) = view.published_path(&pod.uid, &volume.name) else {
            return Ok(Err(NoDataReason::RecordedMounts));
        };
        Ok(match self.connection_kind(volume, pod).await?.as_deref() {
            Some("tmpfs") => Err(NoDataReason::NotStored("a tmpfs")),
            Some("none") => Err(NoDataReason::NotStored("an empty directory")),
            Some(_) | None => Ok(VolumeFile(path.join(FILE_NAME))),
        })
    }

    /// The kind of the volume's connection info on the pod's node; `None` for an existing CSI driver, whose
    /// own Node service connects the volume.
    async fn connection_kind(&self, volume: &DemoVolume, pod: &DemoPod) -> Result<Option<String>, DemoError> {
        let attachments: Api<VolumeAttachment> = Api::all(self.client.clone());
        let attachments = objects::list(&attachments, "list VolumeAttachments").await?;
        let attachment = attachments.into_iter().find(|attachment| {
            attachment.spec.node_name == pod.node
                && attachment.spec.source.persistent_volume_name.as_deref() == Some(volume.name.as_str())
        });
        let published = attachment.and_then(|attachment| attachment.status?.attachment_metadata);
        let contexts = [published.as_ref(), Some(&volume.attributes)];
        let document = contexts.into_iter().flatten().find_map(|context| context.get(names::CONNECTION_INFO));
        // The node rejects connection info that cannot be decoded, so a volume that is mounted has none.
        Ok(document.and_then(|document| connection_info::decode(document).ok()).map(|info| info.kind))
    }
}
