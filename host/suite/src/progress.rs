//! Output of a run while it runs.

use std::time::Duration;

use tokio::sync::mpsc;

use crate::{CaseReport, ConformanceCase, SuiteReport};

/// Interval of [`Progress::CaseRunning`].
pub(crate) const RUNNING_INTERVAL: Duration = Duration::from_secs(30);

/// An event of a run.
#[derive(Debug)]
#[expect(clippy::exhaustive_enums, reason = "an output has to handle every event")]
pub enum Progress<'a> {
    /// The run starts to load the component. The report has the source, the seed and the command.
    Started(&'a SuiteReport),
    /// The component was loaded, and the report has its description; or it cannot be loaded because of a
    /// defect of its own.
    Loaded(&'a SuiteReport),
    /// A case is running, every 30 seconds.
    CaseRunning {
        /// The case.
        case: &'static ConformanceCase,
        /// Time since the start of the case.
        elapsed: Duration,
        /// The last call, with its response if it has returned: the case then waits to repeat a call. `None`
        /// without a call.
        call: Option<String>,
    },
    /// A case has ended and its objects were deleted.
    CaseEnded(&'a CaseReport),
    /// The run was interrupted. The run now deletes the objects of the current case.
    Interrupted,
}

/// Connects a run with its user.
pub struct RunControl<'a> {
    /// Receives the events of the run.
    pub observer: &'a (dyn Fn(Progress<'_>) + Send + Sync),
    /// The first message ends the current case and skips the others; the objects of the run are deleted. The
    /// second message ends the deletion.
    pub interrupts: mpsc::Receiver<()>,
}

impl RunControl<'_> {
    /// A run without output, which is never interrupted.
    pub fn none() -> Self {
        Self { observer: &|_| {}, interrupts: mpsc::channel(1).1 }
    }

    /// Waits for the next interrupt; forever if none can come.
    pub(crate) async fn interrupted(&mut self) {
        if self.interrupts.recv().await.is_none() {
            std::future::pending().await
        }
    }
}

impl std::fmt::Debug for RunControl<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RunControl").finish_non_exhaustive()
    }
}
