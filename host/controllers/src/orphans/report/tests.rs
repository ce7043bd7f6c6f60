//! Tests of the report's limits, of the conditions for writing it, of new and removed orphans, and of the
//! decoding of requests.

use super::*;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).unwrap()
}

fn orphan(handle: &str) -> Orphan {
    Orphan {
        handle: handle.into(),
        bytes: Some(10),
        created_for: CreatedFor::Claim { claim: "uid".into(), volume: "pvc".into() },
        since: at(0),
        state: None,
    }
}

fn report(handles: &[&str]) -> ScanReport {
    let mut report = ScanReport::new("drv".into(), OrphanKind::Volume, LeakDetection::Owner);
    report.time = Some(at(0));
    report.counts.orphan = u64::try_from(handles.len()).unwrap();
    report.orphaned_bytes = 10 * report.counts.orphan;
    report.set_listed(listed(handles), BTreeMap::new());
    report
}

fn listed(handles: &[&str]) -> BTreeMap<ResourceHandle, Orphan> {
    handles.iter().map(|handle| ((*handle).into(), orphan(handle))).collect()
}

#[test]
fn a_report_is_bounded_in_number_and_in_bytes() {
    let names: Vec<String> = (0..700).map(|n| format!("h-{n:04}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let many = report(&names);
    assert_eq!((many.orphans.len(), many.unlisted_orphans), (MAX_LISTED, 200));

    let mut both = report(&["a"]);
    both.counts.within_grace_period = 700;
    both.set_listed(listed(&["a"]), listed(&names));
    assert_eq!(
        (
            both.orphans.len(),
            both.unlisted_orphans,
            both.within_grace_period.len(),
            both.unlisted_within_grace_period
        ),
        (1, 0, MAX_LISTED, 200)
    );

    // JSON escapes a quote with two bytes, and with four inside the ConfigMap's JSON.
    let long: Vec<String> = (0..500).map(|n| format!("{n:04}{}", "\"".repeat(1_000))).collect();
    let long: Vec<&str> = long.iter().map(String::as_str).collect();
    let long = report(&long);
    let bytes = json!(long).to_string().len();
    assert!(bytes < 512 << 10, "{bytes} bytes");
    assert!(!long.orphans.is_empty() && long.unlisted_orphans > 0);
    assert_eq!(u64::try_from(long.orphans.len()).unwrap() + long.unlisted_orphans, 500);
    assert_eq!(long.within_grace_period, []);
}

#[test]
fn a_report_is_written_on_change_and_every_hour() {
    let before = report(&["a"]);
    let later = |seconds: i64, report: &ScanReport| ScanReport { time: Some(at(seconds)), ..report.clone() };
    assert!(!later(3_599, &before).is_update_of(&before));
    assert!(later(3_600, &before).is_update_of(&before));
    assert!(later(1, &report(&["a", "b"])).is_update_of(&before));
    assert!(later(1, &ScanReport { deletions_frozen: true, ..before.clone() }).is_update_of(&before));
    let failed = |seconds: i64, message: &str| ScanReport {
        failure: Some(ScanFailure { time: at(seconds), message: message.to_owned() }),
        ..before.clone()
    };
    assert!(failed(1, "x").is_update_of(&before));
    assert!(!failed(2, "x").is_update_of(&failed(1, "x")));
    assert!(failed(2, "y").is_update_of(&failed(1, "x")));
    assert!(failed(3_601, "x").is_update_of(&failed(1, "x")));
    assert!(later(2, &before).is_update_of(&failed(1, "x")));
}

#[test]
fn new_orphans_are_those_missing_from_the_previous_report() {
    let new = |now: &ScanReport, before: Option<&ScanReport>| {
        now.new_orphans(before).iter().map(|handle| handle.to_string()).collect::<Vec<_>>()
    };
    let report_of_one = report(&["a"]);
    assert_eq!(new(&report_of_one, None), ["a"]);
    assert_eq!(new(&report_of_one, Some(&report_of_one)), [""; 0]);
    assert_eq!(new(&report(&["a", "b"]), Some(&report_of_one)), ["b"]);
    assert_eq!(new(&report(&["b"]), Some(&report_of_one)), ["b"], "an orphan that replaces another is new");
    let truncated = ScanReport {
        unlisted_orphans: 3,
        counts: ListedCounts { orphan: 4, ..ListedCounts::default() },
        ..report_of_one.clone()
    };
    assert_eq!(
        new(&report(&["a", "b"]), Some(&truncated)),
        [""; 0],
        "the orphan may have been among the unlisted ones"
    );
    let report_of_five = report(&["a", "b", "c", "d", "e"]);
    assert_eq!(new(&report_of_five, Some(&truncated)), ["b", "c", "d", "e"]);
}

#[test]
fn remove_subtracts_the_orphan_and_its_bytes() {
    let mut two = report(&["a", "b"]);
    two.remove(&"c".into());
    assert_eq!(two, report(&["a", "b"]));
    two.remove(&"b".into());
    assert_eq!(two, report(&["a"]));
}

#[test]
fn malformed_and_oversized_requests_are_rejected() {
    let request =
        DeletionRequest { handle: "a\"b".into(), requested_at: at(0), requested_by: "me".to_owned() };
    let patch = request.patch();
    assert_eq!(DeletionRequest::parse(patch["data"][DELETE].as_str().unwrap()).unwrap(), request);
    for (text, message) in
        [("", "cannot be decoded"), ("h-1", "cannot be decoded"), (&"x".repeat(5_000), "5000 bytes")]
    {
        let error = DeletionRequest::parse(text).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
}

#[test]
fn a_report_without_a_kind_is_about_volumes() {
    let orphan = json!({
        "handle": "h", "bytes": 10, "claim": "uid", "volume": "pvc", "since": at(0).to_string(),
    });
    let mut old = json!(report(&["h"]));
    assert_eq!(old["orphans"][0], orphan, "the format of versions that scanned only volumes");
    old.as_object_mut().unwrap().remove("kind");
    old["counts"].as_object_mut().unwrap().remove("groupMember");
    assert_eq!(serde_json::from_value::<ScanReport>(old).unwrap(), report(&["h"]));

    let created_for = CreatedFor::Snapshot { snapshot: "uid".into(), content: "snapcontent-uid".into() };
    let of_snapshot = Orphan { created_for, ..self::orphan("h") };
    assert_eq!(json!(of_snapshot)["content"], "snapcontent-uid");
    assert_eq!(serde_json::from_value::<Orphan>(json!(of_snapshot)).unwrap(), of_snapshot);
}
