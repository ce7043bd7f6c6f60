//! Errors of the node plugin.

use cofferdam_domain::storage::ErrorKind;

/// An error of [`Mounter`](crate::Mounter).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MounterError {
    /// A file, mount or device does not exist.
    #[error("{0}")]
    NotFound(String),
    /// The object exists but must not be used or changed: a symbolic link or a mount in the path, an
    /// unexpected file type, a file or device node that was replaced during the call, content that must not
    /// be removed or overwritten. Also a record to save that exceeds the size limit.
    #[error("{0}")]
    FailedPrecondition(String),
    /// A system call or a tool failed or returned an invalid result, a tool was not located at start, a loop
    /// device is still in use after its detach, or a record, a path or the kernel's mount table is invalid.
    #[error("{0}")]
    Failed(String),
}

/// A failed Node service call. The text is one line, unless a path in it contains a line break.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NodeError {
    /// The request is invalid. Also a record with a path that is below no kubelet root, or with connection
    /// info that this node does not accept.
    #[error("{0}")]
    Invalid(String),
    /// The node's policy denies the request, or a mount option is not one of those that every node allows.
    #[error("{0}")]
    Denied(String),
    /// Statistics and expansion: the volume has no record on this node, or its record does not have the path
    /// of the request. Statistics: nothing is mounted there. Unstage and unpublish: the path belongs to
    /// another volume. Unpublish: the path is the volume's staging path.
    #[error("{0}")]
    NotFound(String),
    /// The volume is staged or published with other arguments.
    #[error("{0}")]
    AlreadyExists(String),
    /// The state of the volume or the node forbids the call, or volumes with this connection info do not
    /// support the access mode, raw block access, or expansion.
    #[error("{0}")]
    FailedPrecondition(String),
    /// NodeExpandVolume: the required size is larger than the device, the image or the policy's maximum for
    /// a tmpfs, or the volume is larger than the request's limit.
    #[error("{0}")]
    OutOfRange(String),
    /// A [`Mounter`](crate::Mounter) call failed.
    #[error("cannot {step}: {source}")]
    Mounter {
        /// The failed step: completes "cannot …".
        step: &'static str,
        /// The cause.
        source: MounterError,
    },
}

impl NodeError {
    /// Returns the only one of `errors`, or an error with the texts of all; `step` completes "cannot …".
    pub(crate) fn ensure_none(mut errors: Vec<Self>, step: &'static str) -> Result<(), Self> {
        match errors.as_slice() {
            [] => Ok(()),
            [_] => errors.pop().map_or(Ok(()), Err),
            several => {
                let texts = several.iter().map(ToString::to_string).collect::<Vec<_>>();
                Err(Self::Mounter { step, source: MounterError::Failed(texts.join("; ")) })
            }
        }
    }

    /// The code of the response. [`MounterError::Failed`] is `Internal`. After each of these codes kubelet
    /// assumes that a stage or publish call had no effect, and retries it.
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::Invalid(_) => ErrorKind::InvalidArgument,
            Self::Denied(_) => ErrorKind::PermissionDenied,
            Self::NotFound(_) | Self::Mounter { source: MounterError::NotFound(_), .. } => {
                ErrorKind::NotFound
            }
            Self::AlreadyExists(_) => ErrorKind::AlreadyExists,
            Self::FailedPrecondition(_)
            | Self::Mounter { source: MounterError::FailedPrecondition(_), .. } => {
                ErrorKind::FailedPrecondition
            }
            Self::OutOfRange(_) => ErrorKind::OutOfRange,
            Self::Mounter { source: MounterError::Failed(_), .. } => ErrorKind::Internal,
        }
    }
}

/// Adds the failed step to an error.
pub(crate) trait StepContext<T> {
    /// Wraps an error; `step` completes "cannot …".
    fn step(self, step: &'static str) -> Result<T, NodeError>;
}

impl<T> StepContext<T> for Result<T, MounterError> {
    fn step(self, step: &'static str) -> Result<T, NodeError> {
        self.map_err(|source| NodeError::Mounter { step, source })
    }
}
