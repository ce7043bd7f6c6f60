//! Settings of the resizer.

use std::time::Duration;

/// Settings of the resizer, with the flags that set them.
#[derive(Clone, Copy, Debug)]
pub struct ResizerSettings {
    /// Maximum concurrent expansions per driver; the same limit applies separately to modifications
    /// (`--workers`).
    pub workers: usize,
    /// Deadline of an expansion (`--resize-timeout`); `None`: that of every driver call.
    pub expand_timeout: Option<Duration>,
    /// Deadline of a modification (`--modify-timeout`); `None`: that of every driver call.
    pub modify_timeout: Option<Duration>,
    /// Interval at which all claims of this process's drivers are reconciled again without a change
    /// (`--resync-period`).
    pub resync_period: Duration,
    /// Watches Pods for drivers that cannot expand volumes in use. After the expansion of a claim has failed
    /// with FailedPrecondition, such a driver is not called again for the claim while a pod uses the claim
    /// (`--handle-volume-inuse-error`).
    pub handle_volume_inuse_error: bool,
    /// Adds the name and namespace of the claim and the name of the PersistentVolume to the parameters of a
    /// modification (`--extra-modify-metadata`).
    pub extra_modify_metadata: bool,
    /// The feature gate `VolumeAttributesClass`: without it, volumes are not modified.
    pub volume_attributes_class: bool,
    /// The feature gate `AnnotateFsResize`: without it, PersistentVolumes do not record the claim's size
    /// before an expansion.
    pub annotate_fs_resize: bool,
}

impl Default for ResizerSettings {
    /// The defaults of external-resizer's flags.
    fn default() -> Self {
        Self {
            workers: 10,
            expand_timeout: None,
            modify_timeout: None,
            resync_period: Duration::from_secs(600),
            handle_volume_inuse_error: true,
            extra_modify_metadata: false,
            volume_attributes_class: true,
            annotate_fs_resize: true,
        }
    }
}
