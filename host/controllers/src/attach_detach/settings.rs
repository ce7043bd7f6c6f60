//! Settings of the attach-detach controller.

use std::time::Duration;

use super::{rules::MAX_WAIT_FOR_UNMOUNT, state::REQUEST_MAY_APPLY};

/// Settings of the attach-detach controller, with the flags that set them.
#[derive(Clone, Copy, Debug)]
pub struct AttachDetachSettings {
    /// Time after which a volume is force-detached from a NotReady or deleted node that reports the volume in
    /// use. It starts when no pod on the node needs the volume any more. `None`, with
    /// `--disable-force-detach-on-timeout`: never.
    pub force_detach_after: Option<Duration>,
    /// Time for which an API request without a response may still take effect: kube-apiserver's request
    /// timeout. No flag sets it.
    pub request_may_apply: Duration,
}

impl Default for AttachDetachSettings {
    /// The defaults of kube-controller-manager and kube-apiserver.
    fn default() -> Self {
        Self { force_detach_after: Some(MAX_WAIT_FOR_UNMOUNT), request_may_apply: REQUEST_MAY_APPLY }
    }
}
