//! Settings of snapshots.

/// Settings of the roles `snapshotter` and `snapshot-controller`, and of restored volumes, with the flags
/// that set them.
#[derive(Clone, Debug)]
pub struct SnapshotSettings {
    /// Prefix of the names of snapshots (`--snapshot-name-prefix`).
    pub name_prefix: String,
    /// Number of characters of the VolumeSnapshot's UID in the names of snapshots, after its dashes are
    /// removed (`--snapshot-name-uuid-length`). `None` is the whole UID with its dashes.
    pub name_uuid_length: Option<u8>,
    /// Adds the names of VolumeSnapshot and content to the parameters of CreateSnapshot
    /// (`--extra-create-metadata`).
    pub extra_create_metadata: bool,
    /// Maximum number of contents of one driver that are reconciled concurrently, and of objects of each kind
    /// in the snapshot controller (`--worker-threads`).
    pub workers: usize,
    /// Writes the volumeMode of the source to new contents, and rejects a claim whose volumeMode is not that
    /// of its snapshot's source (`--prevent-volume-mode-conversion`).
    pub prevent_volume_mode_conversion: bool,
    /// Reads the Nodes that match the node affinity of a source volume, and writes the name of the only one
    /// to the label `snapshot.storage.kubernetes.io/managed-by` of new contents
    /// (`--enable-distributed-snapshotting`).
    pub distributed: bool,
}

impl Default for SnapshotSettings {
    /// The defaults of csi-snapshotter's flags, but for the concurrency: requests to the API are not limited
    /// by a rate.
    fn default() -> Self {
        Self {
            name_prefix: "snapshot".to_owned(),
            name_uuid_length: None,
            extra_create_metadata: false,
            workers: 100,
            prevent_volume_mode_conversion: true,
            distributed: false,
        }
    }
}
