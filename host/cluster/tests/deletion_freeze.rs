//! Detection of a restored cluster before the list of a reflector.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod common;

use cofferdam_cluster::{Kind as _, Writer, deletion_freeze, reflector::Scope, writer::PatchTarget};
use cofferdam_domain::{Claim, Volume};
use common::{FaultyApi, api, call};
use http::Method;
use serde_json::{Value, json};

const CLAIMS: &str = "/api/v1/namespaces/default/persistentvolumeclaims";

fn claim(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    })
}

fn volume(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"},
            "csi": {"driver": "d.example.com", "volumeHandle": name},
        },
    })
}

async fn create_volume(writer: &Writer, name: &str) -> Volume {
    writer.create::<Volume>(None, &volume(name)).await.unwrap()
}

async fn label(writer: &Writer, volume: &Volume, value: &str) -> Volume {
    let patch = json!({"metadata": {"labels": {"a": value}}});
    writer
        .merge_patch::<Volume>(&volume.name, PatchTarget::Object, volume.resource_version(), patch)
        .await
        .unwrap()
}

#[tokio::test(start_paused = true)]
async fn no_restore_is_detected_in_normal_operation() {
    let api = api();
    let writer = FaultyApi::new(&api).writer();
    let first = label(&writer, &create_volume(&writer, "first").await, "b").await;
    let second = create_volume(&writer, "second").await;
    // A patch without a change returns an object with an older version.
    assert_eq!(label(&writer, &first, "b").await.resource_version(), first.resource_version());
    assert!(first.resource_version() < second.resource_version());
    label(&writer, &first, "c").await;
    deletion_freeze::detect_restore_live(&writer).await.unwrap();
    assert!(!deletion_freeze::is_frozen(writer.cache()));
}

#[tokio::test(start_paused = true)]
async fn a_write_response_detects_a_restore() {
    let api = api();
    for creates in [true, false] {
        let writer = FaultyApi::new(&api).writer();
        let name = format!("before-{creates}");
        let before = create_volume(&writer, &name).await;
        let backup = api.snapshot();
        for lost in ["a", "b", "c"] {
            create_volume(&writer, &format!("{lost}-{creates}")).await;
        }
        api.restore(&backup);
        let written =
            if creates { create_volume(&writer, "after").await } else { label(&writer, &before, "x").await };
        let detected = writer.cache().restore_detector.reported().unwrap();
        assert_eq!((detected.kind, detected.found), ("PersistentVolume", written.resource_version()));
        assert!(detected.found < detected.highest_seen, "{detected}");
        assert!(deletion_freeze::is_frozen(writer.cache()));
        assert_eq!(writer.cache().restore_detector.wait_reported().await, detected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_live_check_detects_a_restore_and_the_first_report_is_kept() {
    let api = api();
    let writer = FaultyApi::new(&api).writer();
    let backup = api.snapshot();
    create_volume(&writer, "lost").await;
    create_volume(&writer, "lost-too").await;
    deletion_freeze::detect_restore_live(&writer).await.unwrap();
    assert!(!deletion_freeze::is_frozen(writer.cache()));
    api.restore(&backup);
    let reported = writer.cache().restore_detector.wait_reported();
    let (detected, checked) = tokio::join!(reported, deletion_freeze::detect_restore_live(&writer));
    checked.unwrap();
    assert!(deletion_freeze::is_frozen(writer.cache()));
    create_volume(&writer, "later").await;
    assert_eq!(writer.cache().restore_detector.reported(), Some(detected));
}

#[tokio::test(start_paused = true)]
async fn a_list_response_detects_a_restore() {
    let api = api();
    let writer = FaultyApi::new(&api).writer();
    let backup = api.snapshot();
    create_volume(&writer, "lost").await;
    writer.list_scope::<Volume>(&Scope::default()).await.unwrap();
    assert!(!deletion_freeze::is_frozen(writer.cache()));
    api.restore(&backup);
    writer.list_scope::<Volume>(&Scope::default()).await.unwrap();
    assert!(deletion_freeze::is_frozen(writer.cache()));
}

/// The restore loses a claim. The highest observed version of PersistentVolumes is older than the backup, so
/// only the comparison of claims reveals the restore.
#[tokio::test(start_paused = true)]
async fn a_live_check_detects_a_restore_by_claims_alone() {
    let api = api();
    let writer = FaultyApi::new(&api).writer();
    create_volume(&writer, "old").await;
    call(&api, Method::POST, CLAIMS, claim("known")).await;
    let backup = api.snapshot();
    let lost = writer.create::<Claim>(Some("default"), &claim("lost")).await.unwrap();
    api.restore(&backup);
    deletion_freeze::detect_restore_live(&writer).await.unwrap();
    let detected = writer.cache().restore_detector.reported().unwrap();
    assert_eq!((detected.kind, detected.highest_seen), ("PersistentVolumeClaim", lost.resource_version()));
}

/// Without a watch of claims, only the first live check records their version; the second one then detects
/// that the restored cluster has a lower one.
#[tokio::test(start_paused = true)]
async fn a_live_check_records_the_version_of_an_unwatched_kind() {
    let api = api();
    let writer = FaultyApi::new(&api).writer();
    let backup = api.snapshot();
    call(&api, Method::POST, CLAIMS, claim("lost")).await;
    deletion_freeze::detect_restore_live(&writer).await.unwrap();
    assert!(!deletion_freeze::is_frozen(writer.cache()));
    api.restore(&backup);
    deletion_freeze::detect_restore_live(&writer).await.unwrap();
    assert!(deletion_freeze::is_frozen(writer.cache()));
}
