//! The timeline: who does what for which claim, as it happens.

use std::{
    collections::HashMap,
    io::{self, Write},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use cofferdam_cluster::{Cache, Change};
use cofferdam_controllers::{ReconcileStep, StepObserver, StepResult};
use cofferdam_domain::{Claim, Volume};
use tokio::{
    sync::mpsc::{self, error::TrySendError},
    task::JoinHandle,
    time::Instant,
};

use crate::style::{Colour, Style};

/// Lines that wait for the terminal. A burst beyond it is counted and told in one line: the terminal must not slow the roles.
const BACKLOG: usize = 4096;
/// How long a line waits for others that began before it: lines come when something is done, and are shown in the order in
/// which it began. What takes longer than this is shown when it is done.
const HOLD: Duration = Duration::from_millis(20);
/// Lines that wait at once.
const MAX_HELD: usize = 1024;
/// Objects whose last line is remembered, so that the same wait is told once.
const REMEMBERED: usize = 1024;
/// Columns start this wide, and grow with what they hold up to the limits.
const OBJECT_WIDTH: (usize, usize) = (18, 40);
const WHO_WIDTH: usize = 13;
const WHAT_WIDTH: usize = 52;

/// One line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    /// When it was done, since the start.
    pub(crate) at: Duration,
    /// Claim, volume or pod.
    pub(crate) object: String,
    /// A role, `demo` or `api`.
    pub(crate) who: &'static str,
    /// How it ended.
    pub(crate) kind: LineKind,
    /// What happened.
    pub(crate) what: String,
    /// How long it took.
    pub(crate) took: Option<Duration>,
}

/// What colours a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LineKind {
    /// A role's step.
    Step(StepResult),
    /// What a user did.
    User,
    /// What became of an object.
    Object,
}

enum Message {
    Line(Line),
    Text(String),
}

/// Takes lines in from anywhere; clones share it.
#[derive(Clone)]
pub(crate) struct Timeline {
    shared: Arc<Shared>,
}

/// What was last told of an object by whom.
type Told = HashMap<(String, &'static str), (LineKind, String)>;

struct Shared {
    start: Instant,
    sender: Mutex<Option<mpsc::Sender<Message>>>,
    skipped: AtomicU64,
    told: Mutex<Told>,
}

/// Writes the lines; ends once the timeline is closed and everything is written.
pub(crate) struct Printer {
    task: JoinHandle<io::Result<()>>,
}

impl Timeline {
    /// Starts the printer.
    pub(crate) fn start<W: Write + Send + 'static>(start: Instant, style: Style, out: W) -> (Self, Printer) {
        let (sender, receiver) = mpsc::channel(BACKLOG);
        let shared = Arc::new(Shared {
            start,
            sender: Mutex::new(Some(sender)),
            skipped: AtomicU64::new(0),
            told: Mutex::new(HashMap::new()),
        });
        let printing = Arc::clone(&shared);
        // A terminal can block for as long as it likes (Ctrl-S).
        let task = tokio::task::spawn_blocking(move || print(receiver, &printing, style, out));
        (Self { shared }, Printer { task })
    }

    /// Adds a line.
    pub(crate) fn line(
        &self,
        who: &'static str,
        kind: LineKind,
        object: impl Into<String>,
        what: impl Into<String>,
        took: Option<Duration>,
    ) {
        let (object, what) = (object.into(), what.into());
        if self.shared.is_repetition(&object, who, kind, &what) {
            return;
        }
        let at = self.shared.start.elapsed();
        self.shared.send(Message::Line(Line { at, object, who, kind, what, took }));
    }

    /// Adds text that is no line of the table.
    pub(crate) fn text(&self, text: impl Into<String>) {
        self.shared.send(Message::Text(text.into()));
    }

    /// Tells what becomes of claims and volumes.
    pub(crate) fn follow(&self, cache: &Cache) {
        let timeline = self.clone();
        cache.claims.subscribe(move |change| timeline.claim(change));
        let timeline = self.clone();
        cache.volumes.subscribe(move |change| timeline.volume(change));
    }

    fn claim(&self, change: &Change<Claim>) {
        let what = match (&change.old, &change.new) {
            (None, Some(new)) => claim_text(new),
            (Some(old), Some(new)) if !old.meta.deleting && new.meta.deleting => {
                "claim is to be deleted".to_owned()
            }
            (Some(_), None) => "claim is gone".to_owned(),
            (Some(_), Some(_)) | (None, None) => return,
        };
        self.line("api", LineKind::Object, change.key.to_string(), what, None);
    }

    /// Phases are not told: the role that changes one does.
    fn volume(&self, change: &Change<Volume>) {
        let (what, volume) = match (&change.old, &change.new) {
            (Some(old), None) => ("is gone", old),
            (Some(old), Some(new)) if !old.meta.deleting && new.meta.deleting => ("is to be deleted", new),
            (None, Some(new)) if new.provisioned_by().is_none() => ("is there", new),
            (Some(_) | None, Some(_)) | (None, None) => return,
        };
        let object = match &volume.claim_ref {
            Some(claim) => claim.key.to_string(),
            None => format!("pv/{}", volume.name),
        };
        self.line("api", LineKind::Object, object, format!("volume {} {what}", volume.name), None);
    }

    /// Takes no more lines.
    pub(crate) fn close(&self) {
        self.shared.sender.lock().unwrap_or_else(PoisonError::into_inner).take();
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

impl Printer {
    /// Waits until everything is written.
    ///
    /// # Errors
    /// What writing failed with; a pipe whose reader is gone is no failure.
    pub(crate) async fn finish(self) -> io::Result<()> {
        match self.task.await {
            Ok(Err(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            Ok(result) => result,
            Err(error) => Err(io::Error::other(error)),
        }
    }
}

impl StepObserver for Timeline {
    fn on_step(&self, step: ReconcileStep) {
        let object = match (step.claim, step.volume) {
            (Some(claim), _) => claim.to_string(),
            (None, Some(volume)) => format!("pv/{volume}"),
            (None, None) => String::new(),
        };
        self.line(step.role.as_str(), LineKind::Step(step.result), object, step.text, step.duration);
    }
}

/// What is simulated tells its steps as roles do.
impl cofferdam_dev_cluster::ClusterStepObserver for Timeline {
    fn on_step(&self, step: cofferdam_dev_cluster::ClusterStep) {
        let kind = match step.result {
            cofferdam_dev_cluster::ClusterStepResult::Waiting => StepResult::Waiting,
            cofferdam_dev_cluster::ClusterStepResult::Applied => StepResult::Applied,
            cofferdam_dev_cluster::ClusterStepResult::UpToDate => StepResult::UpToDate,
            cofferdam_dev_cluster::ClusterStepResult::Failed => StepResult::Failed,
        };
        self.line(step.component, LineKind::Step(kind), step.object, step.text, step.duration);
    }
}

impl Shared {
    fn send(&self, message: Message) {
        let sender = self.sender.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sender) = sender.as_ref()
            && let Err(TrySendError::Full(_)) = sender.try_send(message)
        {
            self.skipped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A role says again what it found before, because something else about the object changed.
    fn is_repetition(&self, object: &str, who: &'static str, kind: LineKind, what: &str) -> bool {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (object.to_owned(), who);
        match kind {
            LineKind::Step(StepResult::Waiting | StepResult::UpToDate) => {
                if told.get(&key).is_some_and(|(_, last)| last == what) {
                    return true;
                }
                if told.len() >= REMEMBERED {
                    told.clear();
                }
                told.insert(key, (kind, what.to_owned()));
                false
            }
            LineKind::Step(StepResult::Applied | StepResult::Failed) | LineKind::User | LineKind::Object => {
                // After an effect the same wait is news; the same rest is not.
                if told.get(&key).is_some_and(|(last, _)| *last == LineKind::Step(StepResult::Waiting)) {
                    told.remove(&key);
                }
                false
            }
        }
    }
}

/// Puts lines in order and writes them.
struct Writer<W> {
    out: W,
    style: Style,
    width: usize,
    held: Vec<Line>,
}

impl<W: Write> Writer<W> {
    fn take(&mut self, message: Message) -> io::Result<()> {
        match message {
            Message::Text(text) => {
                self.release(None)?;
                writeln!(self.out, "{text}")
            }
            Message::Line(line) => {
                let ripe = line.at.checked_sub(HOLD);
                self.held.push(line);
                if self.held.len() > MAX_HELD {
                    self.release(None)
                } else {
                    ripe.map_or(Ok(()), |at| self.release(Some(at)))
                }
            }
        }
    }

    /// Writes the lines that began until then, or all.
    fn release(&mut self, until: Option<Duration>) -> io::Result<()> {
        self.held.sort_by_key(Line::began);
        let ripe = until.map_or(self.held.len(), |at| self.held.partition_point(|line| line.began() <= at));
        for line in self.held.drain(..ripe) {
            self.width = self.width.max(line.object.chars().count()).min(OBJECT_WIDTH.1);
            writeln!(self.out, "{}", render(&line, self.width, self.style))?;
        }
        Ok(())
    }
}

impl Line {
    /// Where it stands in the order.
    fn began(&self) -> Duration {
        let took = self.took.filter(|took| *took <= HOLD).unwrap_or_default();
        self.at.saturating_sub(took)
    }
}

fn print<W: Write>(
    mut receiver: mpsc::Receiver<Message>,
    shared: &Shared,
    style: Style,
    out: W,
) -> io::Result<()> {
    let runtime = tokio::runtime::Handle::current();
    let mut writer = Writer { out, style, width: OBJECT_WIDTH.0, held: Vec::new() };
    loop {
        let message = if writer.held.is_empty() {
            receiver.blocking_recv()
        } else {
            match runtime.block_on(tokio::time::timeout(HOLD, receiver.recv())) {
                Ok(message) => message,
                Err(_) => {
                    writer.release(None)?;
                    writer.out.flush()?;
                    continue;
                }
            }
        };
        let Some(message) = message else { break };
        writer.take(message)?;
        let skipped = shared.skipped.swap(0, Ordering::Relaxed);
        if skipped > 0 {
            writer.release(None)?;
            writeln!(
                writer.out,
                "{}",
                style.paint(Colour::Dim, &format!("… {skipped} lines that came too fast"))
            )?;
        }
        if receiver.is_empty() {
            writer.out.flush()?;
        }
    }
    writer.release(None)?;
    writer.out.flush()
}

/// The head of the table.
pub(crate) fn heading(style: Style) -> String {
    let width = OBJECT_WIDTH.0;
    let text =
        format!("{:>9}  {:width$}  {:WHO_WIDTH$}  {:WHAT_WIDTH$}  TOOK", "TIME", "OBJECT", "WHO", "WHAT");
    style.paint(Colour::Dim, &text)
}

fn render(line: &Line, width: usize, style: Style) -> String {
    let time = format!("{:>8.3}s", line.began().as_secs_f64());
    let took = line.took.map(took).unwrap_or_default();
    let what = match line.kind {
        LineKind::User => line.what.clone(),
        LineKind::Step(_) | LineKind::Object => shorten(&line.what),
    };
    let what = if took.is_empty() { what } else { format!("{what:WHAT_WIDTH$}") };
    let colour = match line.kind {
        LineKind::Step(StepResult::Applied) => Colour::Plain,
        LineKind::Step(StepResult::UpToDate) => Colour::Green,
        LineKind::Step(StepResult::Waiting) => Colour::Yellow,
        LineKind::Step(StepResult::Failed) => Colour::Red,
        LineKind::User => Colour::Bold,
        LineKind::Object => Colour::Cyan,
    };
    let row = format!(
        "{}  {:width$}  {}  {}  {}",
        style.paint(Colour::Dim, &time),
        line.object,
        style.paint(Colour::Dim, &format!("{:WHO_WIDTH$}", line.who)),
        style.paint(colour, &what),
        style.paint(Colour::Dim, &took),
    );
    row.trim_end().to_owned()
}

/// Cuts uids, which fill a line without telling more than their first part.
fn shorten(text: &str) -> String {
    let mut words: Vec<String> = Vec::new();
    for word in text.split(' ') {
        let cut = word.len().checked_sub(UID_LENGTH).and_then(|start| word.split_at_checked(start));
        words.push(match cut {
            Some((prefix, uid)) if is_uid(uid) => {
                format!("{prefix}{}…", uid.split('-').next().unwrap_or_default())
            }
            Some(_) | None => word.to_owned(),
        });
    }
    words.join(" ")
}

/// Length of a uid: 32 hexadecimal digits and 4 dashes.
const UID_LENGTH: usize = 36;

fn is_uid(text: &str) -> bool {
    let groups: Vec<&str> = text.split('-').collect();
    groups.iter().map(|group| group.len()).eq([8, 4, 4, 4, 12])
        && groups.iter().all(|group| group.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// Three digits are what people compare.
fn took(duration: Duration) -> String {
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
