//! `cofferdam backend`: what a vendor does with a driver component, without a cluster.

mod arguments;
mod call;
mod component;
mod csi;
mod flags;
mod inspect;
mod new;
mod test;

use std::{collections::HashMap, path::PathBuf};

pub(crate) use flags::BackendCommand;

use crate::error::CommandError;

/// Why a command of a vendor was not carried out.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BackendCommandError {
    /// A flag makes no sense.
    #[error("{0}")]
    Argument(String),
    /// A file cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

/// Carries a command out; the text is what is printed, and the boolean whether it held.
///
/// # Errors
/// [`Failure`], one line.
pub(crate) async fn run(
    command: BackendCommand,
    environment: &HashMap<String, String>,
) -> Result<(String, bool), CommandError> {
    match command {
        BackendCommand::New(flags) => Ok((new::new(&flags)?, true)),
        BackendCommand::Inspect(flags) => Ok((inspect::inspect(*flags, environment).await?, true)),
        BackendCommand::Call(flags) => call::call(*flags, environment).await,
        BackendCommand::Test(flags) => test::test(*flags, environment).await,
    }
}
