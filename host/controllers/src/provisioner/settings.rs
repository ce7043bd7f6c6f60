//! Settings of the provisioner.

use std::time::Duration;

/// Maximum length of a prefix of names.
const MAX_NAME_PREFIX: usize = 63;

/// Settings of the provisioner, with the flags that set them.
#[derive(Clone, Debug)]
pub struct ProvisionerSettings {
    /// Prefix of provisioned volumes' names (`--volume-name-prefix`).
    pub volume_name_prefix: String,
    /// Number of characters of the claim's UID in the names of provisioned volumes, after its dashes are
    /// removed (`--volume-name-uuid-length`). `None` is the whole UID with its dashes.
    pub volume_name_uuid_length: Option<u8>,
    /// Maximum number of claims that are reconciled concurrently; the same limit applies separately to
    /// PersistentVolumes (`--worker-threads`).
    pub worker_threads: usize,
    /// Filesystem type if the parameters of the StorageClass set none (`--default-fstype`).
    pub default_fs_type: Option<String>,
    /// Adds the claim's name and namespace and the PersistentVolume's name to the parameters of CreateVolume
    /// (`--extra-create-metadata`).
    pub extra_create_metadata: bool,
    /// Sets `spec.csi.readOnly` of the PersistentVolume of a claim whose only access mode is ReadOnlyMany
    /// (`--controller-publish-readonly`).
    pub controller_publish_read_only: bool,
    /// The feature gate `Topology`: without it, drivers with topology are treated as drivers without.
    pub topology: bool,
    /// The feature gate `VolumeAttributesClass`: without it, the class of a claim is ignored.
    pub volume_attributes_class: bool,
    /// Passes only the topology of the selected node to CreateVolume (`--strict-topology`).
    pub strict_topology: bool,
    /// Passes the topology of all nodes to CreateVolume if no node is selected and the class has no
    /// `allowedTopologies` (`--immediate-topology`).
    pub immediate_topology: bool,
    /// Interval between scans for orphaned volumes (`--orphan-scan-interval`). `None` disables the scans.
    pub orphan_scan_interval: Option<Duration>,
    /// An intent of this age is stuck. No flag sets it. After the default of 15 minutes the driver has been
    /// called ten times or more, with calls that fail at once, and the calls have reached the longest
    /// back-off of 5 minutes, which they do after 8.5 minutes; or nine times, with calls that end after 60
    /// seconds.
    pub stuck_after: Duration,
}

impl ProvisionerSettings {
    /// Returns true if `volume_name_prefix` is allowed.
    pub(crate) fn has_valid_prefix(&self) -> bool {
        is_valid_prefix(&self.volume_name_prefix)
    }
}

/// Returns true if a prefix of volumes' or snapshots' names is allowed: 1 to 63 lower-case letters, digits
/// and dashes, without a dash at the start.
pub(crate) fn is_valid_prefix(prefix: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    (1..=MAX_NAME_PREFIX).contains(&prefix.len())
        && prefix.chars().all(is_allowed)
        && !prefix.starts_with('-')
}

impl Default for ProvisionerSettings {
    /// The defaults of external-provisioner's flags, and a scan for orphaned volumes each hour.
    fn default() -> Self {
        Self {
            volume_name_prefix: "pvc".to_owned(),
            volume_name_uuid_length: None,
            worker_threads: 100,
            default_fs_type: None,
            extra_create_metadata: false,
            controller_publish_read_only: false,
            topology: true,
            volume_attributes_class: true,
            strict_topology: false,
            immediate_topology: true,
            orphan_scan_interval: Some(Duration::from_secs(3600)),
            stuck_after: Duration::from_mins(15),
        }
    }
}
