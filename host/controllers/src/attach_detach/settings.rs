//! Settings of the attach-detach controller.

/// Settings of the attach-detach controller, with the flags that set them.
#[derive(Clone, Copy, Debug)]
pub struct AttachDetachSettings {
    /// Force-detaches volumes from a NotReady or deleted node 6 minutes after no pod on it uses them. False
    /// with `--disable-force-detach-on-timeout`.
    pub force_detach_on_timeout: bool,
}

impl Default for AttachDetachSettings {
    /// The default of kube-controller-manager's flag.
    fn default() -> Self {
        Self { force_detach_on_timeout: true }
    }
}
