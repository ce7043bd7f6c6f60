//! Errors of `cofferdam backend`.

use std::{io, path::PathBuf};

use crate::error::CommandError;

/// An error of a `backend` command.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BackendCommandError {
    /// An invalid value on the command line, a flag that does not apply, or input that the command cannot
    /// use, such as a directory that is not empty. Also `backend new` in a program that was built without the
    /// versions of the SDK, of its dependencies or of the compiler.
    #[error("{0}")]
    Argument(String),
    /// A file or its directory cannot be created or written.
    #[error("cannot write {}: {source}", path.display())]
    Write { path: PathBuf, source: io::Error },
    /// The call of the component's `identity.describe` failed, or its result is invalid.
    #[error("the component cannot describe itself: {0}")]
    Describe(String),
}

impl From<BackendCommandError> for CommandError {
    fn from(error: BackendCommandError) -> Self {
        match error {
            BackendCommandError::Argument(_) => Self::Usage(Box::new(error)),
            BackendCommandError::Write { .. } | BackendCommandError::Describe(_) => {
                Self::Other(Box::new(error))
            }
        }
    }
}
