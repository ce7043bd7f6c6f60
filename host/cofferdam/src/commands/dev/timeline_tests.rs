use cofferdam_cluster::{Kind as _, observer::StepObject};
use cofferdam_controllers::provisioner;
use cofferdam_domain::{ClaimKey, VolumeSnapshotKey};

use super::*;

/// Captured output, shared with the printer.
#[derive(Clone, Default)]
struct SharedOutput(Arc<Mutex<Vec<u8>>>);

impl Write for SharedOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl SharedOutput {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().clone()).unwrap()
    }
}

fn step(kind: StepResult, text: &str, took: Option<Duration>) -> Step {
    Step {
        component: provisioner::ROLE.as_str(),
        object: StepObject::Claim(ClaimKey::new("default", "demo")),
        result: kind,
        text: text.to_owned(),
        duration: took,
    }
}

async fn print_timeline(style: Style, record: impl FnOnce(&Timeline)) -> String {
    let output = SharedOutput::default();
    let (timeline, printer) = Timeline::start(Instant::now(), style, output.clone());
    record(&timeline);
    timeline.close();
    printer.finish().await.unwrap();
    output.text()
}

#[tokio::test]
async fn lines_are_plain_and_aligned_without_a_terminal() {
    let text = print_timeline(Style { colours: false }, |timeline| {
        timeline.on_step(step(StepResult::Applied, "creates the volume", Some(Duration::from_micros(45))));
        timeline.line("demo", TimelineLineKind::User, "default/demo", "claim created: 1Gi, class a", None);
        timeline.on_step(step(StepResult::Failed, "writes the volume", Some(Duration::from_millis(1500))));
    })
    .await;
    let lines: Vec<_> = text.lines().map(|line| line.split_once("s  ").unwrap().1).collect();
    let what = format!("{:MESSAGE_WIDTH$}", "creates the volume");
    assert_eq!(lines[0], format!("default/demo          provisioner          {what}     45 µs"));
    assert_eq!(lines[1], "default/demo          demo                 claim created: 1Gi, class a");
    assert!(lines[2].ends_with(" 1.50 s"), "{}", lines[2]);
    assert!(!text.contains('\x1b'));
}

#[tokio::test]
async fn a_terminal_gets_colours() {
    let text = print_timeline(Style { colours: true }, |timeline| {
        timeline.on_step(step(StepResult::UpToDate, "bound", None))
    })
    .await;
    assert!(text.contains("\x1b[32mbound\x1b[0m"), "{text:?}");
}

#[tokio::test]
async fn a_message_has_no_escape_sequences_of_its_own() {
    let text = print_timeline(Style { colours: false }, |timeline| {
        timeline.on_step(step(StepResult::Failed, "Internal: a\u{1b}[2J\nb\u{202e}", None));
        timeline.line("demo", TimelineLineKind::User, "default/\u{9b}1m", "deleted", None);
    })
    .await;
    assert!(text.contains("Internal: a\\u{1b}[2J\\u{a}b\\u{202e}\n"), "{text}");
    assert!(text.contains("default/\\u{9b}1m  "), "{text}");
}

#[tokio::test]
async fn a_repeated_wait_is_printed_once_until_another_step() {
    let text = print_timeline(Style { colours: false }, |timeline| {
        timeline.on_step(step(StepResult::Waiting, "for a driver", None));
        timeline.on_step(step(StepResult::Waiting, "for a driver", None));
        timeline.on_step(step(StepResult::Applied, "acts", None));
        timeline.on_step(step(StepResult::Applied, "acts", None));
        timeline.on_step(step(StepResult::Waiting, "for a driver", None));
    })
    .await;
    assert_eq!((text.matches("for a driver").count(), text.matches("acts").count()), (2, 2), "{text}");
}

#[tokio::test]
async fn dropped_lines_are_counted() {
    let (sender, receiver) = mpsc::channel(1);
    let shared = TimelineState {
        start: Instant::now(),
        sender: Mutex::new(Some(sender)),
        dropped: AtomicU64::new(0),
        last_steps: Mutex::new(HashMap::new()),
    };
    for text in ["first", "second", "third"] {
        shared.send(TimelineMessage::Text(text.into()));
    }
    shared.sender.lock().take();
    let output = SharedOutput::default();
    let out = output.clone();
    tokio::task::spawn_blocking(move || run_printer(receiver, &shared, Style { colours: false }, out))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(output.text(), "first\n… 2 lines dropped\n");
}

#[test]
fn lines_are_sorted_by_start_time() {
    let mut writer =
        TimelineWriter { out: Vec::new(), style: Style { colours: false }, width: 1, buffered: Vec::new() };
    let line = |what: &str, at: u64, took: Option<u64>| {
        let (at, took) = (Duration::from_millis(at), took.map(Duration::from_millis));
        TimelineMessage::Line(TimelineLine {
            finished_at: at,
            object: String::new(),
            component: "x",
            kind: TimelineLineKind::Object,
            message: what.to_owned(),
            duration: took,
        })
    };
    for message in [
        line("a short step's effect", 1001, None),
        line("the short step", 1002, Some(3)),
        line("later", 1030, None),
        line("a long step, when it is done", 1031, Some(900)),
        TimelineMessage::Text("the end".into()),
    ] {
        writer.write_message(message).unwrap();
    }
    let text = String::from_utf8(writer.out).unwrap();
    let order =
        ["the short step", "a short step's effect", "later", "a long step, when it is done", "the end"];
    let matches_order: Vec<_> = text.lines().zip(order).map(|(line, what)| line.contains(what)).collect();
    assert_eq!(matches_order, [true; 5], "{text}");
    assert!(text.starts_with("   0.999s"), "{text}");
}

#[tokio::test]
async fn a_snapshot_is_shown_when_it_is_created_ready_and_deleted() {
    let snapshot = |json: &str| Some(Arc::new(VolumeSnapshot::decode(json).unwrap()));
    let created = snapshot(
        r#"{"metadata": {"namespace": "default", "name": "s"},
            "spec": {"source": {"persistentVolumeClaimName": "data"}}}"#,
    );
    let ready = snapshot(
        r#"{"metadata": {"namespace": "default", "name": "s"},
            "spec": {"source": {"persistentVolumeClaimName": "data"}}, "status": {"readyToUse": true}}"#,
    );
    let deleting = snapshot(
        r#"{"metadata": {"namespace": "default", "name": "s", "deletionTimestamp": "2026-06-03T11:00:00Z"},
            "spec": {"source": {"persistentVolumeClaimName": "data"}}, "status": {"readyToUse": true}}"#,
    );
    let changes = [
        (None, created.clone()),
        (created, ready.clone()),
        (ready.clone(), ready.clone()),
        (ready, deleting.clone()),
        (deleting, None),
    ];
    let text = print_timeline(Style { colours: false }, |timeline| {
        for (old, new) in changes {
            let key = VolumeSnapshotKey::new("default", "s");
            timeline.on_snapshot_change(&Change { key, old, new });
        }
    })
    .await;
    let messages: Vec<_> = text.lines().map(|line| line.split_once("api  ").unwrap().1.trim()).collect();
    let expected = [
        "snapshot created: of claim data",
        "snapshot is ready",
        "snapshot is being deleted",
        "snapshot deleted",
    ];
    assert_eq!(messages, expected);
}

#[test]
fn only_uids_are_shortened() {
    let uid = "72c5e63a-728c-4dbb-bb52-db41e03b37ae";
    assert_eq!(shorten(&format!("binds to pvc-{uid} now")), "binds to pvc-72c5e63a… now");
    assert_eq!(shorten(uid), "72c5e63a…");
    let other = "a-word-of-thirty-six-letters-it-is-éé";
    assert_eq!(shorten(other), other);
}
