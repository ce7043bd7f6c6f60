//! The processes csi-snapshotter and snapshot-controller take a snapshot together.

use serde_json::json;

use crate::{
    driver::{Behavior, NAME},
    fixture::{Fixture, PASSWORD, lease_holder},
    process::Process,
};

const SNAPSHOTS: &str = "/apis/snapshot.storage.k8s.io/v1/namespaces/default/volumesnapshots";
const CLASSES: &str = "/apis/snapshot.storage.k8s.io/v1/volumesnapshotclasses";
const CONTENTS: &str = "/apis/snapshot.storage.k8s.io/v1/volumesnapshotcontents";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/storage/leases";
const LEADER_ELECTION: [&str; 2] = ["--leader-election", "--leader-election-namespace=storage"];

/// Starts snapshot-controller, which has no flag for a driver.
fn start_snapshot_controller(fixture: &Fixture, flags: &[&str]) -> Process {
    let mut arguments = vec![format!("--kubeconfig={}", fixture.path().join("kubeconfig").display())];
    arguments.extend(flags.iter().map(|flag| (*flag).to_owned()));
    fixture.spawn(&mut fixture.command("snapshot-controller", &arguments))
}

/// Creates a class with the Secret `login` for CreateSnapshot and ListSnapshots.
async fn create_class(fixture: &Fixture) {
    let class = json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotClass",
        "metadata": {"name": "fast"}, "driver": NAME, "deletionPolicy": "Delete",
        "parameters": {
            "kind": "incremental",
            "csi.storage.k8s.io/snapshotter-secret-name": "login",
            "csi.storage.k8s.io/snapshotter-secret-namespace": "storage",
            "csi.storage.k8s.io/snapshotter-list-secret-name": "login",
            "csi.storage.k8s.io/snapshotter-list-secret-namespace": "storage",
        },
    });
    fixture.create(CLASSES, class).await;
}

#[tokio::test]
async fn the_flags_of_csi_snapshotter_and_snapshot_controller_have_their_effect() {
    let fixture = Fixture::start(Behavior::default()).await;
    let mut flags = vec![
        "--timeout=150s",
        "--extra-create-metadata",
        "--snapshot-name-prefix=nightly",
        "--snapshot-name-uuid-length=8",
    ];
    flags.extend(LEADER_ELECTION);
    let _snapshotter = fixture.start_sidecar("csi-snapshotter", &flags);
    let mut flags = vec!["--prevent-volume-mode-conversion=false"];
    flags.extend(LEADER_ELECTION);
    let _controller = start_snapshot_controller(&fixture, &flags);
    fixture.create_claim_to_resize("source").await;
    create_class(&fixture).await;
    let snapshot = json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot", "metadata": {"name": "s"},
        "spec": {
            "volumeSnapshotClassName": "fast", "source": {"persistentVolumeClaimName": "source"},
        },
    });
    fixture.create(SNAPSHOTS, snapshot).await;
    let snapshot = fixture
        .wait_for(&format!("{SNAPSHOTS}/s"), |snapshot| snapshot["status"]["readyToUse"] == true)
        .await;

    let call = fixture.wait_for_calls("CreateSnapshot", 1).await;
    let uid = snapshot["metadata"]["uid"].as_str().unwrap().replace('-', "");
    assert_eq!(call.name, format!("nightly-{}", &uid[..8]));
    assert_eq!(call.parameters["kind"], "incremental");
    assert_eq!(call.parameters["csi.storage.k8s.io/volumesnapshot/name"], "s");
    assert_eq!(call.password.as_deref(), Some(PASSWORD));
    assert!(call.timeout.is_some_and(|timeout| timeout.as_secs() > 140), "{:?}", call.timeout);
    assert_eq!(snapshot["status"]["restoreSize"], "1Gi");
    let name = snapshot["status"]["boundVolumeSnapshotContentName"].as_str().unwrap();
    let content = fixture.get(&format!("{CONTENTS}/{name}")).await;
    assert_eq!(content["spec"].get("sourceVolumeMode"), None, "{content}");
    for lease in ["external-snapshotter-leader-existing-example", "snapshot-controller-leader"] {
        let lease = fixture.get(&format!("{LEASES}/{lease}")).await;
        assert_ne!(lease_holder(&lease), "", "{lease}");
    }
}

#[tokio::test]
async fn the_list_secret_of_the_class_is_for_an_existing_snapshot() {
    let fixture = Fixture::start(Behavior::default()).await;
    let _snapshotter = fixture.start_sidecar("csi-snapshotter", &[]);
    let _controller = start_snapshot_controller(&fixture, &[]);
    create_class(&fixture).await;
    let content = json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent",
        "metadata": {"name": "existing"},
        "spec": {
            "deletionPolicy": "Retain", "driver": NAME, "source": {"snapshotHandle": "snap-1"},
            "volumeSnapshotClassName": "fast", "volumeSnapshotRef": {"namespace": "default", "name": "s"},
        },
    });
    fixture.create(CONTENTS, content).await;
    let snapshot = json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot", "metadata": {"name": "s"},
        "spec": {
            "volumeSnapshotClassName": "fast", "source": {"volumeSnapshotContentName": "existing"},
        },
    });
    fixture.create(SNAPSHOTS, snapshot).await;
    let snapshot = fixture
        .wait_for(&format!("{SNAPSHOTS}/s"), |snapshot| snapshot["status"]["readyToUse"] == true)
        .await;
    assert_eq!(snapshot["status"]["restoreSize"], "2Gi");
    let call = fixture.wait_for_calls("ListSnapshots", 1).await;
    assert_eq!(call.password.as_deref(), Some(PASSWORD));
}
