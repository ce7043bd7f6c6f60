//! What tells of a restored cluster before a list does.
#![allow(clippy::unwrap_used, reason = "what cannot be is a failed test")]

mod common;

use cofferdam_cluster::{Kind as _, Writer, hold, watch::Scope, writer::Part};
use cofferdam_domain::{Claim, Volume};
use common::{Wire, api, call};
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

async fn make(writer: &Writer, name: &str) -> Volume {
    writer.create::<Volume>(None, &volume(name)).await.unwrap()
}

async fn label(writer: &Writer, volume: &Volume, value: &str) -> Volume {
    let patch = json!({"metadata": {"labels": {"a": value}}});
    writer.merge::<Volume>(&volume.name, Part::Object, volume.version(), patch).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn nothing_is_told_of_a_cluster_that_goes_on() {
    let api = api();
    let writer = Wire::new(&api).writer();
    let first = label(&writer, &make(&writer, "first").await, "b").await;
    let second = make(&writer, "second").await;
    // What changes nothing is answered with an object that is older than others.
    assert_eq!(label(&writer, &first, "b").await.version(), first.version());
    assert!(first.version() < second.version());
    label(&writer, &first, "c").await;
    hold::look(&writer).await.unwrap();
    assert!(!hold::is_held(writer.cache()));
}

#[tokio::test(start_paused = true)]
async fn a_write_tells() {
    let api = api();
    for creates in [true, false] {
        let writer = Wire::new(&api).writer();
        let name = format!("before-{creates}");
        let before = make(&writer, &name).await;
        let backup = api.snapshot();
        for lost in ["a", "b", "c"] {
            make(&writer, &format!("{lost}-{creates}")).await;
        }
        api.restore(&backup);
        let written = if creates { make(&writer, "after").await } else { label(&writer, &before, "x").await };
        let told = writer.cache().restoration.told().unwrap();
        assert_eq!((told.kind, told.found), ("PersistentVolume", written.version()));
        assert!(told.found < told.seen, "{told}");
        assert!(hold::is_held(writer.cache()));
        assert_eq!(writer.cache().restoration.wait().await, told);
    }
}

#[tokio::test(start_paused = true)]
async fn a_look_tells_and_the_first_word_counts() {
    let api = api();
    let writer = Wire::new(&api).writer();
    let backup = api.snapshot();
    make(&writer, "lost").await;
    make(&writer, "lost-too").await;
    hold::look(&writer).await.unwrap();
    assert!(!hold::is_held(writer.cache()));
    api.restore(&backup);
    let waits = writer.cache().restoration.wait();
    let (told, looked) = tokio::join!(waits, hold::look(&writer));
    looked.unwrap();
    assert!(hold::is_held(writer.cache()));
    make(&writer, "later").await;
    assert_eq!(writer.cache().restoration.told(), Some(told));
}

#[tokio::test(start_paused = true)]
async fn a_list_tells() {
    let api = api();
    let writer = Wire::new(&api).writer();
    let backup = api.snapshot();
    make(&writer, "lost").await;
    writer.list_in::<Volume>(&Scope::default()).await.unwrap();
    assert!(!hold::is_held(writer.cache()));
    api.restore(&backup);
    writer.list_in::<Volume>(&Scope::default()).await.unwrap();
    assert!(hold::is_held(writer.cache()));
}

/// What is lost is a claim; of volumes nothing was heard since long before the backup.
#[tokio::test(start_paused = true)]
async fn a_look_tells_by_the_kind_that_knows() {
    let api = api();
    let writer = Wire::new(&api).writer();
    make(&writer, "old").await;
    call(&api, Method::POST, CLAIMS, claim("known")).await;
    let backup = api.snapshot();
    let lost = writer.create::<Claim>(Some("default"), &claim("lost")).await.unwrap();
    api.restore(&backup);
    hold::look(&writer).await.unwrap();
    let told = writer.cache().restoration.told().unwrap();
    assert_eq!((told.kind, told.seen), ("PersistentVolumeClaim", lost.version()));
}

/// And a look lets the quiet kind know where the cluster was.
#[tokio::test(start_paused = true)]
async fn a_look_remembers_what_it_found() {
    let api = api();
    let writer = Wire::new(&api).writer();
    let backup = api.snapshot();
    call(&api, Method::POST, CLAIMS, claim("lost")).await;
    hold::look(&writer).await.unwrap();
    api.restore(&backup);
    hold::look(&writer).await.unwrap();
    assert!(hold::is_held(writer.cache()));
}
