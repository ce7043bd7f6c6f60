//! The timeline: prints the steps of roles, users and simulated components as they happen.

use std::{
    collections::HashMap,
    io::{self, Write},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use cofferdam_cluster::{
    Cache, Change,
    observer::{Step, StepObject, StepObserver, StepResult},
};
use cofferdam_domain::{Claim, Volume, VolumeSnapshot, volume_snapshot::VolumeSnapshotSource};
use parking_lot::Mutex;
use tokio::{
    sync::mpsc::{self, error::TrySendError},
    task::JoinHandle,
    time::Instant,
};

use crate::style::{Colour, Style, TerminalText};

/// Maximum number of lines that wait for the terminal. Lines beyond it are dropped and counted, so that a
/// slow terminal does not block the roles.
const CHANNEL_CAPACITY: usize = 4096;
/// Time for which the printer holds lines back to sort them by the start of their steps: steps are reported
/// when they end. A step that takes longer than this is sorted by its end.
const REORDER_DELAY: Duration = Duration::from_millis(20);
/// Maximum number of lines that the printer holds back. If there are more, it writes all of them.
const MAX_BUFFERED_LINES: usize = 1024;
/// Maximum number of pairs of object and component whose last step is remembered, to print a repeated wait
/// once. Beyond it all are forgotten.
const MAX_REMEMBERED_OBJECTS: usize = 1024;
/// Initial and largest width of the column OBJECT, in characters.
const OBJECT_WIDTH: (usize, usize) = (20, 40);
const COMPONENT_WIDTH: usize = 19;
const MESSAGE_WIDTH: usize = 52;

/// A line of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TimelineLine {
    /// Time from the start of dev mode to the end of the step.
    pub(crate) finished_at: Duration,
    /// The object of the step, such as a claim, a volume, a pod or a node.
    pub(crate) object: String,
    /// Originator of the line: the name of a role or of a simulated component such as `scheduler`; `demo`; or
    /// `api` for the creation or deletion of an object.
    pub(crate) component: &'static str,
    /// Kind of the line.
    pub(crate) kind: TimelineLineKind,
    /// Description of the step.
    pub(crate) message: String,
    /// Duration of the step, if it was measured.
    pub(crate) duration: Option<Duration>,
}

/// Kind of a line, which determines its colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TimelineLineKind {
    /// Step of a role or of a simulated component.
    Step(StepResult),
    /// Action or observation of the demo, which acts as a user.
    User,
    /// Creation or deletion of a claim or volume.
    Object,
}

enum TimelineMessage {
    Line(TimelineLine),
    Text(TerminalText),
}

/// Collects lines; clones share the output.
#[derive(Clone)]
pub(crate) struct Timeline {
    shared: Arc<TimelineState>,
}

/// The last waiting or up-to-date step, by object and component.
type LastSteps = HashMap<(String, &'static str), (TimelineLineKind, String)>;

struct TimelineState {
    start: Instant,
    sender: Mutex<Option<mpsc::Sender<TimelineMessage>>>,
    dropped: AtomicU64,
    last_steps: Mutex<LastSteps>,
}

/// Prints the lines; ends after the timeline is closed.
pub(crate) struct TimelinePrinter {
    task: JoinHandle<io::Result<()>>,
}

impl Timeline {
    /// Starts the printer.
    pub(crate) fn start<W: Write + Send + 'static>(
        start: Instant,
        style: Style,
        out: W,
    ) -> (Self, TimelinePrinter) {
        let (sender, receiver) = mpsc::channel(CHANNEL_CAPACITY);
        let shared = Arc::new(TimelineState {
            start,
            sender: Mutex::new(Some(sender)),
            dropped: AtomicU64::new(0),
            last_steps: Mutex::new(HashMap::new()),
        });
        let printing = Arc::clone(&shared);
        // A terminal can block indefinitely (Ctrl-S).
        let task = tokio::task::spawn_blocking(move || run_printer(receiver, &printing, style, out));
        (Self { shared }, TimelinePrinter { task })
    }

    /// Adds a line for a step that ends now. A line that repeats the component's last waiting or up-to-date
    /// step of the object is dropped.
    pub(crate) fn line(
        &self,
        component: &'static str,
        kind: TimelineLineKind,
        object: impl Into<String>,
        message: impl Into<String>,
        duration: Option<Duration>,
    ) {
        let (object, message) = (object.into(), message.into());
        if self.shared.is_repetition(&object, component, kind, &message) {
            return;
        }
        let finished_at = self.shared.start.elapsed();
        self.shared.send(TimelineMessage::Line(TimelineLine {
            finished_at,
            object,
            component,
            kind,
            message,
            duration,
        }));
    }

    /// Adds text outside of the table.
    pub(crate) fn text(&self, text: impl Into<TerminalText>) {
        self.shared.send(TimelineMessage::Text(text.into()));
    }

    /// Adds lines for the creation and deletion of claims, volumes and snapshots.
    pub(crate) fn subscribe(&self, cache: &Cache) {
        let timeline = self.clone();
        cache.claims.subscribe(move |change| timeline.on_claim_change(change));
        let timeline = self.clone();
        cache.volumes.subscribe(move |change| timeline.on_volume_change(change));
        let timeline = self.clone();
        cache.snapshots.subscribe(move |change| timeline.on_snapshot_change(change));
    }

    fn on_claim_change(&self, change: &Change<Claim>) {
        let message = match (&change.old, &change.new) {
            (None, Some(new)) => claim_text(new),
            (Some(old), Some(new)) if !old.meta.deleting && new.meta.deleting => {
                "claim is being deleted".to_owned()
            }
            (Some(_), None) => "claim deleted".to_owned(),
            (Some(_), Some(_)) | (None, None) => return,
        };
        self.line("api", TimelineLineKind::Object, change.key.to_string(), message, None);
    }

    /// Adds a line if a user creates a volume, if its deletion is requested, and if it is deleted. The
    /// creation of a provisioned volume and changes of a volume's phase add no line: the role that makes them
    /// reports its step.
    fn on_volume_change(&self, change: &Change<Volume>) {
        let (state, volume) = match (&change.old, &change.new) {
            (Some(old), None) => ("deleted", old),
            (Some(old), Some(new)) if !old.meta.deleting && new.meta.deleting => ("is being deleted", new),
            (None, Some(new)) if new.provisioned_by().is_none() => ("created", new),
            (Some(_) | None, Some(_)) | (None, None) => return,
        };
        let object = match &volume.claim_ref {
            Some(claim) => claim.key.to_string(),
            None => format!("pv/{}", volume.name),
        };
        self.line("api", TimelineLineKind::Object, object, format!("volume {} {state}", volume.name), None);
    }

    fn on_snapshot_change(&self, change: &Change<VolumeSnapshot>) {
        let message = match (&change.old, &change.new) {
            (None, Some(new)) => snapshot_text(new),
            (Some(old), Some(new)) if !old.is_ready() && new.is_ready() => "snapshot is ready".to_owned(),
            (Some(old), Some(new)) if !old.meta.deleting && new.meta.deleting => {
                "snapshot is being deleted".to_owned()
            }
            (Some(_), None) => "snapshot deleted".to_owned(),
            (Some(_), Some(_)) | (None, None) => return,
        };
        let object = StepObject::Snapshot(change.key.clone()).to_string();
        self.line("api", TimelineLineKind::Object, object, message, None);
    }

    /// Closes the timeline; further lines are ignored.
    pub(crate) fn close(&self) {
        self.shared.sender.lock().take();
    }
}

fn claim_text(claim: &Claim) -> String {
    let class = match claim.class_name() {
        "" => "no class".to_owned(),
        class => format!("class {class}"),
    };
    match &claim.request {
        Ok(size) => format!("claim created: {size}, {class}"),
        Err(error) => format!("claim created: {error}, {class}"),
    }
}

fn snapshot_text(snapshot: &VolumeSnapshot) -> String {
    match &snapshot.source {
        VolumeSnapshotSource::Claim(claim) => format!("snapshot created: of claim {claim}"),
        VolumeSnapshotSource::Content(content) => format!("snapshot created: of content {content}"),
        VolumeSnapshotSource::Invalid(_) => "snapshot created: without a valid source".to_owned(),
    }
}

impl TimelinePrinter {
    /// Waits until all lines are printed.
    ///
    /// # Errors
    /// The error of writing; a closed pipe is no error.
    pub(crate) async fn finish(self) -> io::Result<()> {
        match self.task.await {
            Ok(Err(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            Ok(result) => result,
            Err(error) => Err(io::Error::other(error)),
        }
    }
}

impl StepObserver for Timeline {
    fn on_step(&self, step: Step) {
        let object = step.object.to_string();
        self.line(step.component, TimelineLineKind::Step(step.result), object, step.text, step.duration);
    }
}

impl TimelineState {
    fn send(&self, message: TimelineMessage) {
        let sender = self.sender.lock();
        if let Some(sender) = sender.as_ref()
            && let Err(TrySendError::Full(_)) = sender.try_send(message)
        {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Reports if a component repeats its last waiting or up-to-date step, which happens after unrelated
    /// changes of the object. Also updates the remembered steps.
    fn is_repetition(
        &self,
        object: &str,
        component: &'static str,
        kind: TimelineLineKind,
        message: &str,
    ) -> bool {
        let mut last_steps = self.last_steps.lock();
        let key = (object.to_owned(), component);
        match kind {
            TimelineLineKind::Step(StepResult::Waiting | StepResult::UpToDate) => {
                if last_steps.get(&key).is_some_and(|(_, last_message)| last_message == message) {
                    return true;
                }
                if last_steps.len() >= MAX_REMEMBERED_OBJECTS {
                    last_steps.clear();
                }
                last_steps.insert(key, (kind, message.to_owned()));
                false
            }
            TimelineLineKind::Step(StepResult::Applied | StepResult::Failed)
            | TimelineLineKind::User
            | TimelineLineKind::Object => {
                // Print a repeated wait again after an effect, but not a repeated UpToDate.
                if last_steps.get(&key).is_some_and(|(last_message, _)| {
                    *last_message == TimelineLineKind::Step(StepResult::Waiting)
                }) {
                    last_steps.remove(&key);
                }
                false
            }
        }
    }
}

/// Sorts lines and writes them.
struct TimelineWriter<W> {
    out: W,
    style: Style,
    width: usize,
    buffered: Vec<TimelineLine>,
}

impl<W: Write> TimelineWriter<W> {
    fn write_message(&mut self, message: TimelineMessage) -> io::Result<()> {
        match message {
            TimelineMessage::Text(text) => {
                self.write_buffered(None)?;
                writeln!(self.out, "{}", text.as_str())
            }
            TimelineMessage::Line(line) => {
                let due = line.finished_at.checked_sub(REORDER_DELAY);
                self.buffered.push(line);
                if self.buffered.len() > MAX_BUFFERED_LINES {
                    self.write_buffered(None)
                } else {
                    due.map_or(Ok(()), |at| self.write_buffered(Some(at)))
                }
            }
        }
    }

    /// Writes the lines that started at or before `until`; without it, all lines.
    fn write_buffered(&mut self, until: Option<Duration>) -> io::Result<()> {
        self.buffered.sort_by_key(TimelineLine::started_at);
        let count = until
            .map_or(self.buffered.len(), |at| self.buffered.partition_point(|line| line.started_at() <= at));
        for line in self.buffered.drain(..count) {
            self.width = self.width.max(line.object.chars().count()).min(OBJECT_WIDTH.1);
            writeln!(self.out, "{}", render(&line, self.width, self.style).as_str())?;
        }
        Ok(())
    }
}

impl TimelineLine {
    /// The sort key: the start of the step, or its end if it took longer than [`REORDER_DELAY`].
    fn started_at(&self) -> Duration {
        let took = self.duration.filter(|took| *took <= REORDER_DELAY).unwrap_or_default();
        self.finished_at.saturating_sub(took)
    }
}

fn run_printer<W: Write>(
    mut receiver: mpsc::Receiver<TimelineMessage>,
    shared: &TimelineState,
    style: Style,
    out: W,
) -> io::Result<()> {
    let runtime = tokio::runtime::Handle::current();
    let mut writer = TimelineWriter { out, style, width: OBJECT_WIDTH.0, buffered: Vec::new() };
    loop {
        let message = if writer.buffered.is_empty() {
            receiver.blocking_recv()
        } else {
            match runtime.block_on(tokio::time::timeout(REORDER_DELAY, receiver.recv())) {
                Ok(message) => message,
                Err(_) => {
                    writer.write_buffered(None)?;
                    writer.out.flush()?;
                    continue;
                }
            }
        };
        let Some(message) = message else { break };
        writer.write_message(message)?;
        let dropped = shared.dropped.swap(0, Ordering::Relaxed);
        if dropped > 0 {
            writer.write_buffered(None)?;
            let line = style.paint(Colour::Dim, format!("… {dropped} lines dropped"));
            writeln!(writer.out, "{}", line.as_str())?;
        }
        if receiver.is_empty() {
            writer.out.flush()?;
        }
    }
    writer.write_buffered(None)?;
    writer.out.flush()
}

/// The header of the table.
pub(crate) fn table_header(style: Style) -> TerminalText {
    let width = OBJECT_WIDTH.0;
    let text = format!(
        "{:>9}  {:width$}  {:COMPONENT_WIDTH$}  {:MESSAGE_WIDTH$}  DURATION",
        "TIME", "OBJECT", "COMPONENT", "MESSAGE"
    );
    style.paint(Colour::Dim, text)
}

fn render(line: &TimelineLine, width: usize, style: Style) -> TerminalText {
    let time = format!("{:>8.3}s", line.started_at().as_secs_f64());
    let duration = line.duration.map(format_duration).unwrap_or_default();
    let message = match line.kind {
        TimelineLineKind::User => line.message.clone(),
        TimelineLineKind::Step(_) | TimelineLineKind::Object => shorten(&line.message),
    };
    let message = if duration.is_empty() { message } else { format!("{message:MESSAGE_WIDTH$}") };
    let colour = match line.kind {
        TimelineLineKind::Step(StepResult::Applied) => Colour::Default,
        TimelineLineKind::Step(StepResult::UpToDate) => Colour::Green,
        TimelineLineKind::Step(StepResult::Waiting) => Colour::Yellow,
        TimelineLineKind::Step(StepResult::Failed) => Colour::Red,
        TimelineLineKind::User => Colour::Bold,
        TimelineLineKind::Object => Colour::Cyan,
    };
    let mut object = TerminalText::from(&line.object);
    object.pad_to(width);
    let cells = [
        style.paint(Colour::Dim, time),
        object,
        style.paint(Colour::Dim, format!("{:COMPONENT_WIDTH$}", line.component)),
        style.paint(colour, message),
        style.paint(Colour::Dim, duration),
    ];
    let mut row = TerminalText::join(cells, "  ");
    row.trim_end();
    row
}

/// Shortens uids to their first part.
fn shorten(text: &str) -> String {
    let mut parts: Vec<String> = Vec::new();
    for part in text.split(' ') {
        let split = part.len().checked_sub(UID_LENGTH).and_then(|start| part.split_at_checked(start));
        parts.push(match split {
            Some((prefix, uid)) if is_uid(uid) => {
                format!("{prefix}{}…", uid.split('-').next().unwrap_or_default())
            }
            Some(_) | None => part.to_owned(),
        });
    }
    parts.join(" ")
}

/// Length of a uid: 32 hexadecimal digits and 4 dashes.
const UID_LENGTH: usize = 36;

fn is_uid(text: &str) -> bool {
    let groups: Vec<&str> = text.split('-').collect();
    groups.iter().map(|group| group.len()).eq([8, 4, 4, 4, 12])
        && groups.iter().all(|group| group.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// Formats a duration with about three digits.
fn format_duration(duration: Duration) -> String {
    let micros = duration.as_secs_f64() * 1e6;
    if micros < 1_000.0 {
        format!("{micros:>5.0} µs")
    } else if micros < 1_000_000.0 {
        format!("{:>5.1} ms", micros / 1e3)
    } else {
        format!("{:>5.2} s", micros / 1e6)
    }
}

#[cfg(test)]
#[path = "timeline_tests.rs"]
mod tests;
