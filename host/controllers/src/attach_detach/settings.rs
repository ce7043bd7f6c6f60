//! Settings of the attach-detach controller.

/// Settings of the attach-detach controller, with the flags that set them.
#[derive(Clone, Copy, Debug)]
pub struct AttachDetachSettings {
    /// Force-detaches a volume from a NotReady or deleted node that reports the volume in use, once no pod on
    /// the node has needed it for 6 minutes. False with `--disable-force-detach-on-timeout`.
    pub force_detach_on_timeout: bool,
}

impl Default for AttachDetachSettings {
    /// The default of kube-controller-manager's flag.
    fn default() -> Self {
        Self { force_detach_on_timeout: true }
    }
}
