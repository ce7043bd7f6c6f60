//! `cofferdam backend`: commands for developers of driver components. They need no cluster.

mod arguments;
mod call;
pub(crate) mod component;
mod csi;
pub(crate) mod error;
mod inspect;
mod new;
mod test;

use std::collections::HashMap;

use crate::{cli::backend::BackendCommand, error::CommandError, style::TerminalText};

/// Runs a command; returns the text to print, and `false` if a driver's call or a case of the suite failed,
/// or if no case passed.
///
/// # Errors
/// [`CommandError`], one line.
pub(crate) async fn run(
    command: BackendCommand,
    environment: &HashMap<String, String>,
) -> Result<(TerminalText, bool), CommandError> {
    match command {
        BackendCommand::New(flags) => Ok((TerminalText::from_lines(&new::new(&flags)?), true)),
        BackendCommand::Inspect(flags) => Ok((inspect::inspect(*flags, environment).await?, true)),
        BackendCommand::Call(flags) => call::call(*flags, environment).await,
        BackendCommand::Test(flags) => test::test(*flags, environment).await,
    }
}
