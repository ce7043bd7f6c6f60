//! How a call to the node fails.

use cofferdam_domain::storage::ErrorKind;

/// What the machine did not do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MounterError {
    /// What was to be used is not there.
    #[error("{0}")]
    NotFound(String),
    /// What is there must not be used: a link on the way, another kind of file, a device that something else
    /// holds.
    #[error("{0}")]
    FailedPrecondition(String),
    /// The system or a tool failed.
    #[error("{0}")]
    Failed(String),
}

/// A call that the node did not serve, one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NodeError {
    /// The request can never succeed.
    #[error("{0}")]
    Invalid(String),
    /// The node's policy does not allow it.
    #[error("{0}")]
    Denied(String),
    /// The volume, or what a path names, is not there.
    #[error("{0}")]
    NotFound(String),
    /// It is there already, with other arguments.
    #[error("{0}")]
    AlreadyExists(String),
    /// The state forbids the call.
    #[error("{0}")]
    FailedPrecondition(String),
    /// A size that the volume does not have.
    #[error("{0}")]
    OutOfRange(String),
    /// A step failed on the machine.
    #[error("cannot {step}: {source}")]
    Mounter {
        /// What was done, as in "cannot …".
        step: &'static str,
        /// Why not.
        source: MounterError,
    },
}

impl NodeError {
    /// The code that the caller hears. A failed step is `Internal`: kubelet takes it for final and tries
    /// again.
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

/// Names the step of a failure.
pub(crate) trait StepContext<T> {
    /// The failure of `step`, as in "cannot …".
    fn step(self, step: &'static str) -> Result<T, NodeError>;
}

impl<T> StepContext<T> for Result<T, MounterError> {
    fn step(self, step: &'static str) -> Result<T, NodeError> {
        self.map_err(|source| NodeError::Mounter { step, source })
    }
}
