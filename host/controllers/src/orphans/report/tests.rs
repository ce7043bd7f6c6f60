//! What a report lists, and when it is written.

use super::*;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).unwrap()
}

fn orphan(handle: &str) -> Orphan {
    Orphan {
        handle: handle.into(),
        bytes: Some(10),
        claim: "uid".into(),
        volume: "pvc".into(),
        since: at(0),
        state: None,
    }
}

fn report(handles: &[&str]) -> Report {
    let mut report = Report::new("drv".into(), LeakDetection::Owner);
    report.time = Some(at(0));
    report.counts.orphan = u64::try_from(handles.len()).unwrap();
    report.orphaned_bytes = 10 * report.counts.orphan;
    report.list(listed(handles), BTreeMap::new());
    report
}

fn listed(handles: &[&str]) -> BTreeMap<VolumeHandle, Orphan> {
    handles.iter().map(|handle| ((*handle).into(), orphan(handle))).collect()
}

#[test]
fn a_report_is_bounded_in_number_and_in_bytes() {
    let names: Vec<String> = (0..700).map(|n| format!("h-{n:04}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let many = report(&names);
    assert_eq!((many.orphans.len(), many.more), (MAX_LISTED, 200));

    let mut both = report(&["a"]);
    both.counts.young = 700;
    both.list(listed(&["a"]), listed(&names));
    assert_eq!((both.orphans.len(), both.more, both.young.len(), both.more_young), (1, 0, MAX_LISTED, 200));

    // Quotes take two bytes each, and four within the ConfigMap's own JSON.
    let long: Vec<String> = (0..500).map(|n| format!("{n:04}{}", "\"".repeat(1_000))).collect();
    let long: Vec<&str> = long.iter().map(String::as_str).collect();
    let long = report(&long);
    let bytes = json!(long).to_string().len();
    assert!(bytes < 512 << 10, "{bytes} bytes");
    assert!(!long.orphans.is_empty() && long.more > 0);
    assert_eq!(u64::try_from(long.orphans.len()).unwrap() + long.more, 500);
    assert_eq!(long.young, []);
}

#[test]
fn it_is_written_when_it_says_something_new_and_every_hour() {
    let before = report(&["a"]);
    let later = |seconds: i64, report: &Report| Report { time: Some(at(seconds)), ..report.clone() };
    assert!(!later(3_599, &before).replaces(&before));
    assert!(later(3_600, &before).replaces(&before));
    assert!(later(1, &report(&["a", "b"])).replaces(&before));
    assert!(later(1, &Report { held: true, ..before.clone() }).replaces(&before));
    let failed = |seconds: i64, message: &str| Report {
        failure: Some(Failure { time: at(seconds), message: message.to_owned() }),
        ..before.clone()
    };
    assert!(failed(1, "x").replaces(&before));
    assert!(!failed(2, "x").replaces(&failed(1, "x")));
    assert!(failed(2, "y").replaces(&failed(1, "x")));
    assert!(failed(3_601, "x").replaces(&failed(1, "x")));
    assert!(later(2, &before).replaces(&failed(1, "x")));
}

#[test]
fn it_tells_what_is_new() {
    let new = |now: &Report, before: Option<&Report>| {
        now.grown(before).iter().map(|handle| handle.to_string()).collect::<Vec<_>>()
    };
    let one = report(&["a"]);
    assert_eq!(new(&one, None), ["a"]);
    assert_eq!(new(&one, Some(&one)), [""; 0]);
    assert_eq!(new(&report(&["a", "b"]), Some(&one)), ["b"]);
    assert_eq!(new(&report(&["b"]), Some(&one)), ["b"], "another one in its place is new");
    let cut = Report { more: 3, counts: Counts { orphan: 4, ..Counts::default() }, ..one.clone() };
    assert_eq!(new(&report(&["a", "b"]), Some(&cut)), [""; 0], "it may have been among those not listed");
    let five = report(&["a", "b", "c", "d", "e"]);
    assert_eq!(new(&five, Some(&cut)), ["b", "c", "d", "e"]);
}

#[test]
fn what_is_gone_is_taken_out() {
    let mut two = report(&["a", "b"]);
    two.remove(&"c".into());
    assert_eq!(two, report(&["a", "b"]));
    two.remove(&"b".into());
    assert_eq!(two, report(&["a"]));
}

#[test]
fn requests_are_read_with_care() {
    let request = Request { handle: "a\"b".into(), requested_at: at(0), by: "me".to_owned() };
    let patch = request.patch();
    assert_eq!(Request::parse(patch["data"][DELETE].as_str().unwrap()), Ok(request));
    for (text, says) in
        [("", "cannot be read"), ("h-1", "cannot be read"), (&"x".repeat(5_000), "5000 bytes")]
    {
        let error = Request::parse(text).unwrap_err();
        assert!(error.contains(says), "{error}");
    }
}
