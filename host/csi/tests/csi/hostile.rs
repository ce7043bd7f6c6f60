//! Drivers that answer what cannot be true. Nothing of it reaches a role; nothing of it is final.

use cofferdam_backend::Backend;
use cofferdam_csi::{CsiBackend, v1};
use cofferdam_domain::storage::{
    CapacityQuery, CapacityRange, CreateGroupSnapshot, CreateSnapshot, ErrorKind, ExpandVolume, Finality,
    PageRequest, StorageError,
};
use prost_types::Timestamp;

use crate::fake::{CREATE, Fake, LONG, PROBE, Reply, call, created, creation, message, volume};

fn untrue<T: std::fmt::Debug>(answer: Result<T, StorageError>, expected: &str) {
    let error = answer.unwrap_err();
    assert_eq!((error.kind, error.finality), (ErrorKind::Internal, Finality::Unknown), "{error}");
    assert!(error.message.contains(expected), "{error}; expected {expected}");
    assert!(error.message.len() < 1_200 && !error.message.contains('\n'));
}

#[tokio::test]
async fn volumes_that_cannot_be() {
    let fake = Fake::start();
    let backend = fake.connect().await;
    let long = "x".repeat(5_000);
    let inline = format!("csi-{}", "0".repeat(64));
    let with = |change: fn(&mut v1::Volume)| {
        let mut volume = volume("v");
        change(&mut volume);
        created(volume)
    };
    let table = [
        (message(&v1::CreateVolumeResponse { volume: None }), "it has no volume"),
        (created(volume("")), "the volume handle has 0 bytes"),
        (created(volume(&long)), "the volume handle has 5000 bytes"),
        (created(volume("a\nb")), "control characters"),
        (created(volume(&inline)), "the shape of an inline volume's"),
        (with(|volume| volume.capacity_bytes = -1), "the volume's capacity is -1 bytes"),
        (with(|volume| volume.capacity_bytes = i64::MIN), "expected 0 or more"),
        (
            with(|volume| {
                volume.volume_context.insert("k".to_owned(), "x".repeat(300_000));
            }),
            "the context has",
        ),
        (
            with(|volume| {
                volume.volume_context.insert("cofferdam.dev/other".to_owned(), "{}".to_owned());
            }),
            "keys under cofferdam.dev/ are the host's",
        ),
        (
            with(|volume| {
                volume.volume_context.insert("cofferdam.dev/attachment".to_owned(), "{}".to_owned());
            }),
            "the attachment is not a document that this program wrote",
        ),
        (
            with(|volume| {
                let segments = [("not a key!".to_owned(), "z".to_owned())].into();
                volume.accessible_topology = vec![v1::Topology { segments }];
            }),
            "is not a label's key",
        ),
    ];
    for (n, (reply, expected)) in table.into_iter().enumerate() {
        fake.once(CREATE, reply);
        untrue(backend.create_volume(call(), creation(&n.to_string())).await, expected);
    }
}

/// Ids of managed disks on Azure are as long as this one.
#[tokio::test]
async fn ids_longer_than_csi_allows_are_taken_as_the_sidecars_take_them() {
    let fake = Fake::start();
    let backend = fake.connect().await;
    let long = "x".repeat(165);
    let mut answer = volume(&long);
    answer.volume_context.insert("k".to_owned(), "x".repeat(5_000));
    fake.once(CREATE, created(answer));
    let found = backend.create_volume(call(), creation("a")).await.unwrap();
    assert_eq!(found.handle.as_str(), long);
}

#[tokio::test]
async fn details_of_a_failure_that_are_no_base64() {
    let mut fake = Fake::start();
    let backend = fake.connect().await;
    for in_headers in [false, true] {
        fake.once(CREATE, Reply::Details { in_headers });
        let error = backend.create_volume(call(), creation("a")).await.unwrap_err();
        assert_eq!((error.kind, error.finality), (ErrorKind::Internal, Finality::Final), "{error}");
        assert_eq!(error.message, "no");
    }
    // Also while the connection is made anew: it goes on trying.
    fake.stop();
    backend.until_connected(false).await;
    for in_headers in [false, true] {
        fake.once(PROBE, Reply::Details { in_headers });
    }
    fake.listen();
    tokio::time::timeout(LONG, backend.until_connected(true)).await.unwrap();
    fake.once(CREATE, created(volume("v")));
    backend.create_volume(call(), creation("a")).await.unwrap();
}

#[tokio::test]
async fn a_size_may_be_unknown_and_too_small_is_the_callers_to_see() {
    let fake = Fake::start();
    let backend = fake.connect().await;
    for (bytes, capacity) in [(0, None), (1, Some(1))] {
        fake.once(CREATE, created(v1::Volume { capacity_bytes: bytes, ..volume("v") }));
        let found = backend.create_volume(call(), creation(&bytes.to_string())).await.unwrap();
        assert_eq!(found.capacity, capacity);
    }
}

async fn expand(backend: &CsiBackend, n: usize) -> Result<u64, StorageError> {
    let capacity = CapacityRange { required: Some(100), limit: None };
    let request = ExpandVolume { handle: n.to_string().into(), capacity, capability: None };
    backend.expand_volume(call(), request).await.map(|expanded| expanded.capacity)
}

#[tokio::test]
async fn sizes_of_grown_volumes() {
    let fake = Fake::start();
    let backend = fake.connect().await;
    for (n, (bytes, expected)) in
        [(0, "0 bytes"), (-5, "-5 bytes"), (99, "99 bytes; 100 were asked for")].into_iter().enumerate()
    {
        let answer =
            v1::ControllerExpandVolumeResponse { capacity_bytes: bytes, node_expansion_required: true };
        fake.once("/csi.v1.Controller/ControllerExpandVolume", message(&answer));
        untrue(expand(&backend, n).await, expected);
    }
    let answer = v1::ControllerExpandVolumeResponse { capacity_bytes: 128, ..Default::default() };
    fake.once("/csi.v1.Controller/ControllerExpandVolume", message(&answer));
    assert_eq!(expand(&backend, 9).await, Ok(128));
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
async fn snapshots_that_cannot_be() {
    let fake = Fake::start();
    let backend = fake.connect().await;
    let with = |change: fn(&mut v1::Snapshot)| {
        let mut snapshot = snapshot("s");
        change(&mut snapshot);
        Some(snapshot)
    };
    let table = [
        (None, "it has no snapshot"),
        (with(|one| one.snapshot_id.clear()), "the snapshot handle has 0 bytes"),
        (with(|one| one.size_bytes = -1), "the snapshot's size is -1 bytes"),
        (with(|one| one.creation_time = None), "has no creation time"),
        (
            with(|one| one.creation_time = Some(Timestamp { seconds: -1, nanos: 0 })),
            "expected a time since then",
        ),
        (with(|one| one.creation_time = Some(Timestamp { seconds: i64::MAX, nanos: 0 })), "was cut"),
        (with(|one| one.source_volume_id = "w".to_owned()), "it describes another source than v"),
    ];
    for (n, (snapshot, expected)) in table.into_iter().enumerate() {
        fake.once("/csi.v1.Controller/CreateSnapshot", message(&v1::CreateSnapshotResponse { snapshot }));
        let request = CreateSnapshot {
            name: n.to_string(),
            source: "v".into(),
            parameters: Default::default(),
            owner: None,
        };
        untrue(backend.create_snapshot(call(), request).await, expected);
    }
    let answer = v1::GetSnapshotResponse { snapshot: Some(snapshot("other")) };
    fake.once("/csi.v1.Controller/GetSnapshot", message(&answer));
    untrue(backend.get_snapshot(call(), "s".into()).await, "it describes another snapshot than s");
}

#[tokio::test]
async fn groups_that_cannot_be() {
    let fake = Fake::start();
    let backend = fake.connect().await;
    let group = |snapshots: Vec<v1::Snapshot>| v1::VolumeGroupSnapshot {
        group_snapshot_id: "g".to_owned(),
        snapshots,
        creation_time: Some(Timestamp { seconds: 1, nanos: 0 }),
        ready_to_use: true,
    };
    let of = |handle: &str, volume: &str, group: &str| v1::Snapshot {
        source_volume_id: volume.to_owned(),
        group_snapshot_id: group.to_owned(),
        ..snapshot(handle)
    };
    let unready = v1::Snapshot { ready_to_use: false, ..of("s", "v", "g") };
    let table = [
        (vec![of("s", "v", "g")], "not one snapshot of each volume"),
        (vec![of("s", "v", "g"), of("t", "v", "g")], "not one snapshot of each volume"),
        (vec![of("s", "v", "g"), of("t", "w", "other")], "does not say that it is the group's"),
        (vec![unready, of("t", "w", "g")], "one of its members is not"),
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
        fake.once(path, message(&v1::CreateVolumeGroupSnapshotResponse { group_snapshot }));
        untrue(backend.create_group_snapshot(call(), request(n)).await, expected);
    }
    // Members that leave it out are the group's all the same.
    let group_snapshot = Some(group(vec![of("s", "v", ""), of("t", "w", "g")]));
    fake.once(path, message(&v1::CreateVolumeGroupSnapshotResponse { group_snapshot }));
    let found = backend.create_group_snapshot(call(), request(9)).await.unwrap();
    assert!(found.snapshots.iter().all(|member| member.group == Some("g".into())));
}

#[tokio::test]
async fn listings_that_cannot_be() {
    let fake = Fake::start();
    let backend = fake.connect().await;
    let entry = |volume| v1::list_volumes_response::Entry { volume, status: None };
    let page = |entries, next: &str| v1::ListVolumesResponse { entries, next_token: next.to_owned() };
    let two = || vec![entry(Some(volume("a"))), entry(Some(volume("b")))];
    let asked = PageRequest { starting_token: Some("here".to_owned()), max_entries: Some(1) };
    for (answer, expected) in [
        (page(vec![entry(None)], ""), "it has no volume"),
        (page(two(), ""), "a page has 2 entries; at most 1 were asked for"),
        (page(Vec::new(), "here"), "a page ends where it began"),
        (page(Vec::new(), &"x".repeat(5_000)), "a page's end has 5000 bytes"),
    ] {
        fake.once("/csi.v1.Controller/ListVolumes", message(&answer));
        untrue(backend.list_volumes(call(), asked.clone()).await, expected);
    }
    let stranger = v1::Snapshot { source_volume_id: "w".to_owned(), ..snapshot("s") };
    let entries = vec![v1::list_snapshots_response::Entry { snapshot: Some(stranger) }];
    let answer = v1::ListSnapshotsResponse { entries, next_token: String::new() };
    fake.once("/csi.v1.Controller/ListSnapshots", message(&answer));
    let found = backend.list_snapshots(call(), Some("v".into()), PageRequest::default()).await;
    untrue(found, "which is another volume's");
}

#[tokio::test]
async fn capacities_that_cannot_be() {
    let fake = Fake::start();
    let backend = fake.connect().await;
    let answer = |available_capacity, maximum_volume_size, minimum_volume_size| v1::GetCapacityResponse {
        available_capacity,
        maximum_volume_size,
        minimum_volume_size,
    };
    for (answer, expected) in [
        (answer(-1, None, None), "the available capacity is -1 bytes"),
        (answer(1, Some(-1), None), "the largest volume is -1 bytes"),
        (answer(1, Some(1), Some(2)), "the smallest volume has 2 bytes and the largest 1"),
    ] {
        fake.once("/csi.v1.Controller/GetCapacity", message(&answer));
        untrue(backend.get_capacity(call(), CapacityQuery::default()).await, expected);
    }
}
