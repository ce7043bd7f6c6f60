use cofferdam_cluster::orphan_report::{OrphanKind, OrphanReportKey};
use cofferdam_controllers::orphans::report::{LeakDetection, ScanFailure};
use cofferdam_domain::text::is_control_or_format;
use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::{Value, json};

use super::*;

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn now() -> Timestamp {
    at("2026-06-03T12:00:00Z")
}

fn orphan(handle: &str, since: &str) -> Orphan {
    Orphan {
        handle: handle.into(),
        bytes: Some(3 << 29),
        created_for: CreatedFor::Claim { claim: "uid-1".into(), volume: "pvc-1".into() },
        since: at(since),
        state: None,
    }
}

fn report_in(namespace: &str, name: &str, data: Value) -> Option<DriverReport> {
    let map: ConfigMap = serde_json::from_value(json!({
        "apiVersion": "v1", "kind": "ConfigMap", "data": data,
        "metadata": {"name": name, "namespace": namespace, "uid": "u", "resourceVersion": "7"},
    }))
    .unwrap();
    DriverReport::from_config_map(&map).unwrap()
}

fn driver_report(data: Value) -> DriverReport {
    report_in("storage", "cofferdam-orphans-drv", data).unwrap()
}

fn show_all(reports: &[DriverReport]) -> String {
    format_reports(reports, &ReportScope::AllNamespaces, now()).as_str().to_owned()
}

fn report() -> ScanReport {
    let mut report = ScanReport::new("drv".into(), OrphanKind::Volume, LeakDetection::Owner);
    report.time = Some(at("2026-06-03T11:48:00.123Z"));
    report.counts = ListedCounts {
        referenced: 12,
        orphan: 2,
        within_grace_period: 1,
        no_owner: 1,
        other_cluster: 0,
        retained: 3,
        group_member: 0,
    };
    report.orphans = vec![orphan("h-1", "2026-06-01T09:00:00Z")];
    report.unlisted_orphans = 1;
    report.within_grace_period = vec![orphan("h-\u{1b}[2J", "2026-06-03T11:00:00Z")];
    report
}

#[test]
fn a_report_shows_orphans_and_why_other_volumes_are_unmanaged() {
    let shown = show_all(&[driver_report(json!({"driver": "drv", "report": json!(report()).to_string()}))]);
    let expected = "\
driver drv in namespace storage
  leak detection: by owner
  scanned: 2026-06-03T11:48:00Z (11m ago)
  volumes: 12 referenced, 2 orphan, 1 grace period, 4 unmanaged (1 without an owner, 3 not to be deleted)
  STATE         HANDLE       SIZE     UNCHANGED SINCE                  CREATED AS  FOR CLAIM
  orphan        h-1          1.5 GiB  2026-06-01T09:00:00Z (2d3h ago)  pvc-1       uid-1
  grace period  h-\\u{1b}[2J  1.5 GiB  2026-06-03T11:00:00Z (1h0m ago)  pvc-1       uid-1
  … and 1 more orphans: the report is full
";
    assert_eq!(shown, expected);
}

#[test]
fn a_report_about_snapshots_names_its_kind() {
    let created_for = CreatedFor::Snapshot { snapshot: "uid-1".into(), content: "snapcontent-uid-1".into() };
    let mut snapshots = ScanReport::new("drv".into(), OrphanKind::Snapshot, LeakDetection::Owner);
    snapshots.time = Some(at("2026-06-03T11:48:00Z"));
    snapshots.counts = ListedCounts { referenced: 3, orphan: 1, group_member: 2, ..ListedCounts::default() };
    snapshots.orphans = vec![Orphan { created_for, ..orphan("s-1", "2026-06-01T09:00:00Z") }];
    snapshots.unlisted_within_grace_period = 2;
    let data = json!({"driver": "drv", "kind": "snapshot", "report": json!(snapshots).to_string()});
    let name = "cofferdam-orphaned-snapshots-drv";
    let shown = show_all(&[report_in("storage", name, data.clone()).unwrap()]);
    let expected = "\
driver drv in namespace storage, snapshots
  leak detection: by owner
  scanned: 2026-06-03T11:48:00Z (12m ago)
  snapshots: 3 referenced, 1 orphan, 0 grace period, 2 unmanaged (2 in a group)
  STATE   HANDLE  SIZE     UNCHANGED SINCE                  CREATED AS         FOR SNAPSHOT
  orphan  s-1     1.5 GiB  2026-06-01T09:00:00Z (2d3h ago)  snapcontent-uid-1  uid-1
  … and 2 more snapshots within the grace period: the report is full
";
    assert_eq!(shown, expected);
    // The name is that of the kind, and a kind of a later version is no report.
    assert!(report_in("storage", "cofferdam-orphans-drv", data.clone()).is_none());
    assert!(report_in("storage", name, json!({"driver": "drv", "kind": "group"})).is_none());
    // A report of volumes is not shown as one of snapshots.
    let forged = json!({"driver": "drv", "kind": "snapshot", "report": json!(report()).to_string()});
    assert!(report_in("storage", name, forged).unwrap().scan_report().is_none());
}

#[test]
fn a_report_shows_frozen_deletions_scan_failures_and_requests() {
    let mut frozen_report = report();
    frozen_report.deletions_frozen = true;
    frozen_report.failure =
        Some(ScanFailure { time: at("2026-06-03T11:59:30Z"), message: "Unavailable: no array".to_owned() });
    let request = DeletionRequest {
        handle: "h-1".into(),
        requested_at: at("2026-06-03T11:58:00Z"),
        requested_by: "me@here".to_owned(),
    };
    let response = DeletionResponse {
        request: Some(request.clone()),
        result: DeletionResult::Refused,
        message: "PersistentVolume pv references it".to_owned(),
        answered_at: at("2026-06-03T11:59:00Z"),
    };
    let report = json!(frozen_report).to_string();
    let show = |data: Value| show_all(&[driver_report(data)]);
    let answered = show(json!({"driver": "drv", "report": report, "response": json!(response).to_string()}));
    for part in [
        "deletions frozen: the cluster was restored from a backup",
        "deletions are frozen while ConfigMap storage/cofferdam-restored exists",
        "the scan of 2026-06-03T11:59:30Z (30s ago) failed: Unavailable: no array",
        "last request, answered 2026-06-03T11:59:00Z (1m ago): volume h-1 of drv: refused: PersistentVolume \
         pv references",
    ] {
        assert!(answered.contains(part), "{part} in\n{answered}");
    }
    for (key, state) in [("delete", "to be deleted"), ("deleting", "being deleted")] {
        let shown = show(json!({"driver": "drv", "report": report, key: json!(request).to_string()}));
        let line = format!("  {state}: h-1, as me@here asked 2026-06-03T11:58:00Z (2m ago)\n");
        assert!(shown.contains(&line), "{shown}");
    }
    assert!(show(json!({"driver": "drv", "report": "{}"})).contains("cannot be read by this version"));
    for (scope, expected) in [
        (
            ReportScope::Namespace("shop".to_owned()),
            "no orphan reports in namespace shop: expected one from a process that runs the role \
             provisioner or snapshotter; --namespace selects another namespace\n",
        ),
        (
            ReportScope::AllNamespaces,
            "no orphan reports in any namespace: expected one from a process that runs the role \
             provisioner or snapshotter\n",
        ),
    ] {
        assert_eq!(format_reports(&[], &scope, now()).as_str(), expected);
    }
}

/// Text for a terminal that a tenant can write into a report: escape sequences that clear the screen and set
/// the clipboard (OSC 52), one with a C1 character, another line, and characters that are invisible or
/// reorder the text.
const HOSTILE: &str =
    concat!("x\u{1b}[2J\u{1b}]52;c;eA==\u{7}\u{9b}1m\r\n  volumes: 0", "\u{202e}y\u{2066}\u{200b}\u{2028}",);
/// The start of [`HOSTILE`] as it is shown.
const ESCAPED: &str = "x\\u{1b}[2J\\u{1b}]52;c;eA==\\u{7}\\u{9b}1m\\u{d}\\u{a}  volumes: 0";

#[test]
fn no_text_of_a_report_reaches_the_terminal_unescaped() {
    let name = OrphanReportKey::for_driver("storage", OrphanKind::Volume, &HOSTILE.into()).name;
    let mut report = ScanReport::new(
        HOSTILE.into(),
        OrphanKind::Volume,
        LeakDetection::None { message: HOSTILE.to_owned() },
    );
    let volume = Orphan {
        handle: HOSTILE.into(),
        bytes: None,
        created_for: CreatedFor::Claim { claim: HOSTILE.into(), volume: HOSTILE.into() },
        since: now(),
        state: Some(HOSTILE.to_owned()),
    };
    report.counts =
        ListedCounts { orphan: u64::MAX, no_owner: u64::MAX, retained: 1, ..ListedCounts::default() };
    report.orphans = vec![volume.clone()];
    report.within_grace_period = vec![volume];
    report.failure = Some(ScanFailure { time: now(), message: HOSTILE.to_owned() });
    let request =
        DeletionRequest { handle: HOSTILE.into(), requested_at: now(), requested_by: HOSTILE.to_owned() };
    let response = DeletionResponse {
        request: Some(request.clone()),
        result: DeletionResult::Deleted,
        message: HOSTILE.to_owned(),
        answered_at: now(),
    };
    let report = json!(report).to_string();
    for data in [
        json!({"driver": HOSTILE, "report": report, "response": json!(response).to_string()}),
        json!({"driver": HOSTILE, "report": report, "delete": json!(request).to_string()}),
        json!({"driver": HOSTILE, "report": "{}"}),
    ] {
        let driver_report = report_in("storage", &name, data).unwrap();
        let shown = show_all(&[driver_report]);
        assert!(!shown.chars().any(|c| c != '\n' && is_control_or_format(c)), "{shown:?}");
        assert!(shown.contains(ESCAPED), "{shown}");
        assert!(!shown.lines().any(|line| line == "  volumes: 0"), "a forged line:\n{shown}");
    }
    let driver_report = report_in("storage", &name, json!({"driver": HOSTILE, "report": report})).unwrap();
    let line = format_response(&driver_report, &request, &response);
    assert!(!line.as_str().chars().any(is_control_or_format), "{line:?}");
}

#[test]
fn a_namespace_has_one_report_for_a_driver() {
    let data = json!({"driver": "drv", "report": json!(report()).to_string()});
    assert!(report_in("storage", "cofferdam-orphans-drv", data.clone()).is_some());
    // The process that runs the driver writes only this name.
    assert!(report_in("storage", "mine", data.clone()).is_none());
    assert!(report_in("storage", "cofferdam-orphans-drv", json!({"report": "{}"})).is_none());
    let shown = show_all(&[driver_report(json!({
        "driver": "drv", "report": json!(ScanReport::new("other".into(), OrphanKind::Volume, LeakDetection::Owner)).to_string(),
    }))]);
    assert_eq!(
        shown,
        "drv: the report in ConfigMap storage/cofferdam-orphans-drv cannot be read by this version\n"
    );
    // Reports of two namespaces are sections of their own.
    let reports = ["storage", "shop"]
        .map(|namespace| report_in(namespace, "cofferdam-orphans-drv", data.clone()).unwrap());
    let shown = show_all(&reports);
    assert!(shown.starts_with("driver drv in namespace storage\n"), "{shown}");
    assert!(shown.contains("\n\ndriver drv in namespace shop\n"), "{shown}");
}

#[test]
fn sizes_are_printed_in_the_largest_unit() {
    for (bytes, shown) in
        [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (u64::MAX, "16777215.9 TiB"), (1 << 40, "1 TiB")]
    {
        assert_eq!(format_size(bytes), shown);
    }
}
