use cofferdam_controllers::orphans::report::LeakDetection;
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
        claim: "uid-1".into(),
        volume: "pvc-1".into(),
        since: at(since),
        state: None,
    }
}

fn driver_report(data: Value) -> DriverReport {
    let map: ConfigMap = serde_json::from_value(json!({
        "apiVersion": "v1", "kind": "ConfigMap", "data": data,
        "metadata": {
            "name": "cofferdam-orphans-drv", "namespace": "storage", "uid": "u", "resourceVersion": "7",
        },
    }))
    .unwrap();
    DriverReport::from_config_map(&map).unwrap()
}

fn report() -> ScanReport {
    let mut report = ScanReport::new("drv".into(), LeakDetection::Owner);
    report.time = Some(at("2026-06-03T11:48:00.123Z"));
    report.counts = VolumeCounts {
        referenced: 12,
        orphan: 2,
        within_grace_period: 1,
        no_owner: 1,
        other_cluster: 0,
        retained: 3,
    };
    report.orphans = vec![orphan("h-1", "2026-06-01T09:00:00Z")];
    report.unlisted_orphans = 1;
    report.within_grace_period = vec![orphan("h-\u{1b}[2J", "2026-06-03T11:00:00Z")];
    report
}

#[test]
fn a_report_shows_orphans_and_why_other_volumes_are_unmanaged() {
    let shown = format_reports(
        &[driver_report(json!({"driver": "drv", "report": json!(report()).to_string()}))],
        now(),
    );
    let expected = "\
driver drv
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
fn a_report_shows_frozen_deletions_scan_failures_and_requests() {
    let mut frozen_report = report();
    frozen_report.deletions_frozen = true;
    frozen_report.failure = Some(cofferdam_controllers::orphans::report::ScanFailure {
        time: at("2026-06-03T11:59:30Z"),
        message: "Unavailable: no array".to_owned(),
    });
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
    let show = |data: Value| format_reports(&[driver_report(data)], now());
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
    assert!(format_reports(&[], now()).starts_with("no process reports"));
}

#[test]
fn sizes_are_printed_in_the_largest_unit() {
    for (bytes, shown) in
        [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (u64::MAX, "16777215.9 TiB"), (1 << 40, "1 TiB")]
    {
        assert_eq!(format_size(bytes), shown);
    }
}
