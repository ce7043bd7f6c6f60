//! Responses that break CSI's rules. Most are rejected, with an error that is not final. Accepted are
//! responses that work with the sidecars: long ids and maps, malformed status details, and unknown or too
//! small sizes of new volumes.

use cofferdam_backend::Backend;
use cofferdam_csi::{CsiBackend, v1};
use cofferdam_domain::storage::{
    CapacityQuery, CapacityRange, CreateGroupSnapshot, CreateSnapshot, ErrorKind, ExpandVolume, Finality,
    PageRequest, StorageError,
};
use prost_types::Timestamp;

use crate::fake_driver::{
    CREATE, FakeCsiDriver, PROBE, ScriptedReply, TEST_TIMEOUT, call, create_request, created_reply,
    message_reply, volume,
};

fn assert_contract_violation<T: std::fmt::Debug>(result: Result<T, StorageError>, expected: &str) {
    let error = result.unwrap_err();
    assert_eq!((error.kind, error.finality), (ErrorKind::Internal, Finality::Unknown), "{error}");
    assert!(error.message.contains(expected), "{error}; expected {expected}");
    assert!(error.message.len() < 1_200 && !error.message.contains('\n'));
}

#[tokio::test]
async fn invalid_volumes_are_rejected() {
    let driver = FakeCsiDriver::start();
    let backend = driver.connect().await;
    let long = "x".repeat(5_000);
    let inline = format!("csi-{}", "0".repeat(64));
    let changed = |change: fn(&mut v1::Volume)| {
        let mut volume = volume("v");
        change(&mut volume);
        created_reply(volume)
    };
    let table = [
        (message_reply(&v1::CreateVolumeResponse { volume: None }), "the response has no volume"),
        (created_reply(volume("")), "the volume handle has 0 bytes"),
        (created_reply(volume(&long)), "the volume handle has 5000 bytes"),
        (created_reply(volume("a\nb")), "control characters"),
        (created_reply(volume(&inline)), "the form of an inline volume's handle"),
        (changed(|volume| volume.capacity_bytes = -1), "the volume's size is -1 bytes"),
        (changed(|volume| volume.capacity_bytes = i64::MIN), "expected 0 to"),
        (
            changed(|volume| {
                volume.volume_context.insert("k".to_owned(), "x".repeat(300_000));
            }),
            "the context has",
        ),
        (
            changed(|volume| {
                volume.volume_context.insert("cofferdam.dev/other".to_owned(), "{}".to_owned());
            }),
            "keys under cofferdam.dev/ are reserved",
        ),
        (
            changed(|volume| {
                volume.volume_context.insert("cofferdam.dev/connection-info".to_owned(), "{}".to_owned());
            }),
            "malformed connection info",
        ),
        (
            changed(|volume| {
                let segments = [("not a key!".to_owned(), "z".to_owned())].into();
                volume.accessible_topology = vec![v1::Topology { segments }];
            }),
            "expected a label key",
        ),
    ];
    for (n, (reply, expected)) in table.into_iter().enumerate() {
        driver.queue_reply(CREATE, reply);
        assert_contract_violation(
            backend.create_volume(call(), create_request(&n.to_string())).await,
            expected,
        );
    }
}

/// Azure's managed disk ids are as long as this one.
#[tokio::test]
async fn ids_longer_than_csi_allows_are_accepted_as_in_the_sidecars() {
    let driver = FakeCsiDriver::start();
    let backend = driver.connect().await;
    let long = "x".repeat(165);
    let mut response = volume(&long);
    response.volume_context.insert("k".to_owned(), "x".repeat(5_000));
    driver.queue_reply(CREATE, created_reply(response));
    let found = backend.create_volume(call(), create_request("a")).await.unwrap();
    assert_eq!(found.handle.as_str(), long);
}

#[tokio::test]
async fn invalid_base64_status_details_are_ignored() {
    let mut driver = FakeCsiDriver::start();
    let backend = driver.connect().await;
    for in_headers in [false, true] {
        driver.queue_reply(CREATE, ScriptedReply::InvalidStatusDetails { in_headers });
        let error = backend.create_volume(call(), create_request("a")).await.unwrap_err();
        assert_eq!((error.kind, error.finality), (ErrorKind::Internal, Finality::Final), "{error}");
        assert_eq!(error.message, "no");
    }
    // A reconnect continues after such a response to Probe.
    driver.stop();
    backend.wait_connected(false).await;
    for in_headers in [false, true] {
        driver.queue_reply(PROBE, ScriptedReply::InvalidStatusDetails { in_headers });
    }
    driver.listen();
    tokio::time::timeout(TEST_TIMEOUT, backend.wait_connected(true)).await.unwrap();
    driver.queue_reply(CREATE, created_reply(volume("v")));
    backend.create_volume(call(), create_request("a")).await.unwrap();
}

#[tokio::test]
async fn unknown_and_too_small_capacities_are_passed_on() {
    let driver = FakeCsiDriver::start();
    let backend = driver.connect().await;
    for (bytes, capacity) in [(0, None), (1, Some(1))] {
        driver.queue_reply(CREATE, created_reply(v1::Volume { capacity_bytes: bytes, ..volume("v") }));
        let found = backend.create_volume(call(), create_request(&bytes.to_string())).await.unwrap();
        assert_eq!(found.capacity, capacity);
    }
}

async fn expand_volume(backend: &CsiBackend, n: usize) -> Result<u64, StorageError> {
    let capacity = CapacityRange { required: Some(100), limit: None };
    let request = ExpandVolume { handle: n.to_string().into(), capacity, capability: None };
    backend.expand_volume(call(), request).await.map(|expanded| expanded.capacity)
}

#[tokio::test]
async fn expand_rejects_missing_negative_and_too_small_capacity() {
    let driver = FakeCsiDriver::start();
    let backend = driver.connect().await;
    for (n, (bytes, expected)) in
        [(0, "0 bytes"), (-5, "-5 bytes"), (99, "99 bytes; expected at least 100")].into_iter().enumerate()
    {
        let response =
            v1::ControllerExpandVolumeResponse { capacity_bytes: bytes, node_expansion_required: true };
        driver.queue_reply("/csi.v1.Controller/ControllerExpandVolume", message_reply(&response));
        assert_contract_violation(expand_volume(&backend, n).await, expected);
    }
    let response = v1::ControllerExpandVolumeResponse { capacity_bytes: 128, ..Default::default() };
    driver.queue_reply("/csi.v1.Controller/ControllerExpandVolume", message_reply(&response));
    assert_eq!(expand_volume(&backend, 9).await, Ok(128));
}

fn snapshot(handle: &str) -> v1::Snapshot {
    v1::Snapshot {
        size_bytes: 5,
        snapshot_id: handle.to_owned(),
        source_volume_id: "v".to_owned(),
        creation_time: Some(Timestamp { seconds: 1, nanos: 500_000_000 }),
        ready_to_use: true,
        group_snapshot_id: String::new(),
    }
}

#[tokio::test]
async fn invalid_snapshots_are_rejected() {
    let driver = FakeCsiDriver::start();
    let backend = driver.connect().await;
    let changed = |change: fn(&mut v1::Snapshot)| {
        let mut snapshot = snapshot("s");
        change(&mut snapshot);
        Some(snapshot)
    };
    let table = [
        (None, "the response has no snapshot"),
        (changed(|snapshot| snapshot.snapshot_id.clear()), "the snapshot handle has 0 bytes"),
        (changed(|snapshot| snapshot.size_bytes = -1), "the snapshot's size is -1 bytes"),
        (
            changed(|snapshot| snapshot.creation_time = Some(Timestamp { seconds: -1, nanos: 0 })),
            "the creation time is -1000 ms; expected 0 to",
        ),
        (
            changed(|snapshot| snapshot.creation_time = Some(Timestamp { seconds: i64::MAX, nanos: 0 })),
            "the creation time is",
        ),
    ];
    for (n, (snapshot, expected)) in table.into_iter().enumerate() {
        driver.queue_reply(
            "/csi.v1.Controller/CreateSnapshot",
            message_reply(&v1::CreateSnapshotResponse { snapshot }),
        );
        let request = CreateSnapshot {
            name: n.to_string(),
            source: "v".into(),
            parameters: Default::default(),
            owner: None,
        };
        assert_contract_violation(backend.create_snapshot(call(), request).await, expected);
    }
    let response = v1::GetSnapshotResponse { snapshot: Some(snapshot("other")) };
    driver.queue_reply("/csi.v1.Controller/GetSnapshot", message_reply(&response));
    assert_contract_violation(
        backend.get_snapshot(call(), "s".into()).await,
        "the response is about another snapshot than s",
    );
}

#[tokio::test]
async fn invalid_group_snapshots_are_rejected() {
    let driver = FakeCsiDriver::start();
    let backend = driver.connect().await;
    let group = |snapshots: Vec<v1::Snapshot>| v1::VolumeGroupSnapshot {
        group_snapshot_id: "g".to_owned(),
        snapshots,
        creation_time: Some(Timestamp { seconds: 1, nanos: 0 }),
        ready_to_use: true,
    };
    let snapshot_of = |handle: &str, volume: &str, group: &str| v1::Snapshot {
        source_volume_id: volume.to_owned(),
        group_snapshot_id: group.to_owned(),
        ..snapshot(handle)
    };
    let unready = v1::Snapshot { ready_to_use: false, ..snapshot_of("s", "v", "g") };
    let table = [
        (vec![snapshot_of("s", "v", "g")], "exactly one snapshot of each requested volume"),
        (
            vec![snapshot_of("s", "v", "g"), snapshot_of("t", "v", "g")],
            "exactly one snapshot of each requested volume",
        ),
        (
            vec![snapshot_of("s", "v", "g"), snapshot_of("t", "w", "other")],
            "does not name the group as its group",
        ),
        (vec![unready, snapshot_of("t", "w", "g")], "one of its members is not"),
    ];
    let path = "/csi.v1.GroupController/CreateVolumeGroupSnapshot";
    let request = |name: usize| CreateGroupSnapshot {
        name: name.to_string(),
        sources: ["v".into(), "w".into()].into(),
        parameters: Default::default(),
        owner: None,
    };
    for (n, (members, expected)) in table.into_iter().enumerate() {
        let group_snapshot = Some(group(members));
        driver.queue_reply(path, message_reply(&v1::CreateVolumeGroupSnapshotResponse { group_snapshot }));
        assert_contract_violation(backend.create_group_snapshot(call(), request(n)).await, expected);
    }
    // Members without a group id belong to the group too.
    let group_snapshot = Some(group(vec![snapshot_of("s", "v", ""), snapshot_of("t", "w", "g")]));
    driver.queue_reply(path, message_reply(&v1::CreateVolumeGroupSnapshotResponse { group_snapshot }));
    let found = backend.create_group_snapshot(call(), request(9)).await.unwrap();
    assert!(found.snapshots.iter().all(|member| member.group == Some("g".into())));
}

#[tokio::test]
async fn invalid_pages_are_rejected() {
    let driver = FakeCsiDriver::start();
    let backend = driver.connect().await;
    let entry = |volume| v1::list_volumes_response::Entry { volume, status: None };
    let page = |entries, next: &str| v1::ListVolumesResponse { entries, next_token: next.to_owned() };
    let two = || vec![entry(Some(volume("a"))), entry(Some(volume("b")))];
    let page_request = PageRequest { starting_token: Some("here".to_owned()), max_entries: Some(1) };
    for (response, expected) in [
        (page(vec![entry(None)], ""), "the response has no volume"),
        (page(two(), ""), "the page has 2 entries; expected 0 to 1"),
        (page(Vec::new(), "here"), "the page's next token is the token of the request"),
        (page(Vec::new(), &"x".repeat(5_000)), "the page's next token has 5000 bytes"),
    ] {
        driver.queue_reply("/csi.v1.Controller/ListVolumes", message_reply(&response));
        assert_contract_violation(backend.list_volumes(call(), page_request.clone()).await, expected);
    }
    let foreign_snapshot = v1::Snapshot { source_volume_id: "w".to_owned(), ..snapshot("s") };
    let entries = vec![v1::list_snapshots_response::Entry { snapshot: Some(foreign_snapshot) }];
    let response = v1::ListSnapshotsResponse { entries, next_token: String::new() };
    driver.queue_reply("/csi.v1.Controller/ListSnapshots", message_reply(&response));
    let found = backend.list_snapshots(call(), Some("v".into()), PageRequest::default()).await;
    assert_contract_violation(found, "is a snapshot of another volume");
}

#[tokio::test]
async fn invalid_capacities_are_rejected() {
    let driver = FakeCsiDriver::start();
    let backend = driver.connect().await;
    let response = |available_capacity, maximum_volume_size, minimum_volume_size| v1::GetCapacityResponse {
        available_capacity,
        maximum_volume_size,
        minimum_volume_size,
    };
    for (response, expected) in [
        (response(-1, None, None), "the available capacity is -1 bytes"),
        (response(1, Some(-1), None), "the maximum volume size is -1 bytes"),
        (
            response(1, Some(1), Some(2)),
            "the minimum volume size is 2 bytes; expected at most the maximum, 1",
        ),
    ] {
        driver.queue_reply("/csi.v1.Controller/GetCapacity", message_reply(&response));
        assert_contract_violation(backend.get_capacity(call(), CapacityQuery::default()).await, expected);
    }
}
