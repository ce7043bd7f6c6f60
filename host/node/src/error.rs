//! How a call to the node fails.

use cofferdam_domain::storage::ErrorKind;

/// What the machine did not do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MachineError {
    /// What was to be used is not there.
    #[error("{0}")]
    Missing(String),
    /// What is there must not be used: a link on the way, another kind of file, a device that something else
    /// holds.
    #[error("{0}")]
    Refused(String),
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
    Missing(String),
    /// It is there already, with other arguments.
    #[error("{0}")]
    Exists(String),
    /// The state forbids the call.
    #[error("{0}")]
    Precondition(String),
    /// A size that the volume does not have.
    #[error("{0}")]
    Range(String),
    /// A step failed on the machine.
    #[error("cannot {step}: {source}")]
    Machine {
        /// What was done, as in "cannot …".
        step: &'static str,
        /// Why not.
        source: MachineError,
    },
}

impl NodeError {
    /// The code that the caller hears. A failed step is `Internal`: kubelet takes it for final and tries
    /// again.
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::Invalid(_) => ErrorKind::InvalidArgument,
            Self::Denied(_) => ErrorKind::PermissionDenied,
            Self::Missing(_) | Self::Machine { source: MachineError::Missing(_), .. } => ErrorKind::NotFound,
            Self::Exists(_) => ErrorKind::AlreadyExists,
            Self::Precondition(_) | Self::Machine { source: MachineError::Refused(_), .. } => {
                ErrorKind::FailedPrecondition
            }
            Self::Range(_) => ErrorKind::OutOfRange,
            Self::Machine { source: MachineError::Failed(_), .. } => ErrorKind::Internal,
        }
    }
}

/// Names the step of a failure.
pub(crate) trait Step<T> {
    /// The failure of `step`, as in "cannot …".
    fn step(self, step: &'static str) -> Result<T, NodeError>;
}

impl<T> Step<T> for Result<T, MachineError> {
    fn step(self, step: &'static str) -> Result<T, NodeError> {
        self.map_err(|source| NodeError::Machine { step, source })
    }
}
