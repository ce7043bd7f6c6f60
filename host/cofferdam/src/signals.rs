//! Signals that end a process, and the results of ending it.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::error::CommandError;

/// SIGTERM and SIGINT.
#[derive(Debug)]
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Installs handlers. From now on the signals do not end the process by themselves.
    ///
    /// # Errors
    /// [`CommandError::Signals`]
    pub(crate) fn install() -> Result<Self, CommandError> {
        let install = |kind| signal(kind).map_err(CommandError::Signals);
        Ok(Self {
            terminate: install(SignalKind::terminate())?,
            interrupt: install(SignalKind::interrupt())?,
        })
    }

    /// Waits for the next signal and returns its name.
    pub(crate) async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

/// The end of a process that reported no error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProcessOutcome {
    /// All work finished, or the first signal ended the process in order.
    Drained,
    /// The command finished with a negative result, such as a refused deletion or a failed case of
    /// `backend test`. The output has the reason.
    Failed,
    /// A second signal ended the process before the work, or the output of `dev`, had finished.
    Forced,
}
