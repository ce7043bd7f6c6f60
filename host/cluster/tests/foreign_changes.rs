//! Changes of other processes that a live read reveals before the watch does.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod common;

use std::sync::{Arc, Mutex};

use cofferdam_cluster::{
    ApiError, Change, Writer, decode,
    writer::{CachedKind as _, PatchTarget},
};
use cofferdam_domain::{Volume, VolumeName};
use common::{FaultyApi, api, call};
use http::Method;
use serde_json::{Value, json};

const VOLUMES: &str = "/api/v1/persistentvolumes";
const VOLUME: &str = "/api/v1/persistentvolumes/v";
const STATUS: &str = "/api/v1/persistentvolumes/v/status";

fn volume() -> Value {
    json!({
        "metadata": {"name": "v"},
        "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
            "csi": {"driver": "d", "volumeHandle": "h"},
        },
    })
}

fn phase(phase: &str) -> Value {
    json!({"status": {"phase": phase}})
}

/// The phases of foreign changes of PersistentVolumes.
fn foreign_phases(writer: &Writer) -> Arc<Mutex<Vec<String>>> {
    let found = Arc::<Mutex<Vec<String>>>::default();
    let phases = Arc::clone(&found);
    Volume::store(writer.cache()).subscribe_foreign(move |change: &Change<Volume>, json| {
        let new = change.new.as_ref().unwrap();
        assert!(json.contains(&format!("\"{}\"", new.meta.resource_version)), "{json}");
        phases.lock().unwrap().push(new.phase.as_str().to_owned());
    });
    found
}

#[tokio::test(start_paused = true)]
async fn a_live_read_after_a_rejected_write_shows_the_foreign_change_once() {
    let api = api();
    call(&api, Method::POST, VOLUMES, volume()).await;
    let writer = FaultyApi::new(&api).writer();
    let name = VolumeName::new("v");
    let before = writer.get::<Volume>(&name).await.unwrap().unwrap();
    let found = foreign_phases(&writer);

    // Another process writes first, and the watch has not delivered its change.
    call(&api, Method::PATCH, STATUS, phase("Released")).await;
    let version = before.meta.resource_version;
    let write = writer.merge_patch::<Volume>(&name, PatchTarget::Status, version, phase("Available"));
    assert!(matches!(write.await, Err(ApiError::Conflict(_))));
    writer.refresh::<Volume>(&name).await.unwrap();
    assert_eq!(*found.lock().unwrap(), ["Released"]);

    let (_, now) = call(&api, Method::GET, VOLUME, Value::Null).await;
    let json = now.to_string();
    Volume::store(writer.cache()).apply_watch_event(decode::object(&json).unwrap(), &json);
    assert_eq!(*found.lock().unwrap(), ["Released"], "the watch delivers the same version");
}

#[tokio::test(start_paused = true)]
async fn a_live_read_during_a_request_of_this_process_shows_no_foreign_change() {
    let api = api();
    call(&api, Method::POST, VOLUMES, volume()).await;
    let writer = FaultyApi::new(&api).writer();
    let name = VolumeName::new("v");
    writer.refresh::<Volume>(&name).await.unwrap();
    let found = foreign_phases(&writer);
    let request = Volume::store(writer.cache()).begin_write(name.clone());
    call(&api, Method::PATCH, STATUS, phase("Released")).await;
    writer.refresh::<Volume>(&name).await.unwrap();
    request.rejected();
    assert_eq!(*found.lock().unwrap(), [""; 0], "the request could have made the change");
}
