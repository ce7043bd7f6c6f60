//! Tests of the optional interfaces of the contract, of the errors and the latency that settings of the
//! memory backend inject, and of invalid strings, with the memory backend in the sandbox.

#![expect(clippy::unwrap_used, reason = "a helper of tests fails as a test does")]

mod common;

use std::collections::BTreeSet;

use cofferdam_backend::Backend as _;
use cofferdam_domain::{
    NodeId, SnapshotHandle, VolumeHandle,
    storage::{
        Ability, AccessType, CapacityQuery, CapacityRange, ContentSource, CreateGroupSnapshot,
        CreateSnapshot, CreateVolume, CsiAccessMode, ErrorKind, ExpandVolume, Finality, PageRequest,
        Parameters, PublishVolume, Readiness, StorageError, ValidateVolume, Validation, VolumeCapability,
    },
};
use cofferdam_wasm::WasmBackend;
use common::{call, create, engine, load_memory_backend, request};
use futures::FutureExt as _;

const GIB: u64 = 1 << 30;

fn pairs(key: &str, value: &str) -> Parameters {
    Parameters::from([(key.to_owned(), value.to_owned())])
}

fn final_error_kind<T: std::fmt::Debug>(answer: Result<T, StorageError>) -> ErrorKind {
    let error = answer.unwrap_err();
    assert_eq!(error.finality, Finality::Final, "{error}");
    error.kind
}

fn filesystem_capability(mode: CsiAccessMode) -> VolumeCapability {
    VolumeCapability {
        access_mode: mode,
        access_type: AccessType::Filesystem { fs_type: None, mount_flags: Vec::new(), mount_group: None },
    }
}

fn publish_request(handle: &str, node: &str, mode: CsiAccessMode) -> PublishVolume {
    PublishVolume {
        handle: VolumeHandle::new(handle),
        node_identities: Parameters::new(),
        node_id: NodeId::new(node),
        capability: filesystem_capability(mode),
        read_only: false,
        context: Parameters::new(),
    }
}

fn snapshot_request(name: &str, source: &str) -> CreateSnapshot {
    CreateSnapshot {
        name: name.to_owned(),
        source: VolumeHandle::new(source),
        parameters: Parameters::new(),
        owner: None,
    }
}

fn expand_request(handle: &str, required: Option<u64>, limit: Option<u64>) -> ExpandVolume {
    let capacity = CapacityRange { required, limit };
    ExpandVolume { handle: VolumeHandle::new(handle), capacity, capability: None }
}

fn multi_writer_request(name: &str) -> CreateVolume {
    CreateVolume {
        capabilities: vec![filesystem_capability(CsiAccessMode::MultiNodeMultiWriter)],
        ..request(name, GIB)
    }
}

#[tokio::test]
async fn memory_backend_has_every_ability() {
    let backend =
        load_memory_backend(&engine(), &[("topology", "zone=a,b"), ("volumes-per-node", "9")]).await;
    assert_eq!(*backend.abilities(), BTreeSet::from(Ability::ALL));
    let description = backend.description();
    assert_eq!(
        (description.topology_keys.as_slice(), description.volumes_per_node),
        (&["zone".to_owned()][..], Some(9))
    );
    assert_eq!(description.features.len(), 5);
    let off = load_memory_backend(&engine(), &[("features", "")]).await;
    assert_eq!(off.description().features, [""; 0]);
    let fine = vec![filesystem_capability(CsiAccessMode::SingleNodeSingleWriter)];
    let refused = CreateVolume { capabilities: fine.clone(), ..request("fine", GIB) };
    assert_eq!(final_error_kind(off.create_volume(call(), refused).await), ErrorKind::InvalidArgument);
    let volume = create(&off, "v", GIB).await.unwrap();
    let none = Parameters::new;
    let ask = |parameters, capabilities| ValidateVolume {
        handle: volume.handle.clone(),
        context: none(),
        capabilities,
        parameters,
        mutable_parameters: none(),
    };
    let plain = vec![filesystem_capability(CsiAccessMode::SingleNodeWriter)];
    for (parameters, capabilities) in [(none(), fine), (pairs("label", "gold"), plain.clone())] {
        let validation = off.validate_volume(call(), ask(parameters, capabilities)).await;
        assert!(matches!(validation, Ok(Validation::Refused(_))), "{validation:?}");
    }
    assert_eq!(off.validate_volume(call(), ask(none(), plain)).await, Ok(Validation::Confirmed));
}

#[tokio::test]
async fn publish_obeys_the_access_mode() {
    use CsiAccessMode::{MultiNodeMultiWriter, SingleNodeWriter};
    let backend = load_memory_backend(&engine(), &[("volumes-per-node", "1"), ("nodes", "n1,n2")]).await;
    create(&backend, "one", GIB).await.unwrap();
    backend.create_volume(call(), multi_writer_request("many")).await.unwrap();
    let publish = |request| backend.publish_volume(call(), request);
    let attachment = publish(publish_request("mem-one", "n1", SingleNodeWriter)).await.unwrap();
    assert_eq!((attachment.kind.as_str(), attachment.fields), ("tmpfs", pairs("size", &GIB.to_string())));
    assert!(publish(publish_request("mem-one", "n1", SingleNodeWriter)).await.is_ok(), "alike");
    let read_only = PublishVolume { read_only: true, ..publish_request("mem-one", "n1", SingleNodeWriter) };
    assert_eq!(final_error_kind(publish(read_only).await), ErrorKind::AlreadyExists);
    assert_eq!(
        final_error_kind(publish(publish_request("mem-one", "n2", SingleNodeWriter)).await),
        ErrorKind::FailedPrecondition
    );
    assert_eq!(
        final_error_kind(publish(publish_request("mem-one", "n2", MultiNodeMultiWriter)).await),
        ErrorKind::InvalidArgument
    );
    assert_eq!(
        final_error_kind(publish(publish_request("mem-many", "n1", MultiNodeMultiWriter)).await),
        ErrorKind::ResourceExhausted
    );
    assert_eq!(
        final_error_kind(publish(publish_request("mem-many", "n3", MultiNodeMultiWriter)).await),
        ErrorKind::NotFound
    );
    assert_eq!(
        final_error_kind(publish(publish_request("mem-none", "n1", MultiNodeMultiWriter)).await),
        ErrorKind::NotFound
    );
    assert_eq!(
        final_error_kind(publish(publish_request("", "n1", SingleNodeWriter)).await),
        ErrorKind::InvalidArgument
    );
    assert_eq!(
        final_error_kind(publish(publish_request("mem-many", "", SingleNodeWriter)).await),
        ErrorKind::InvalidArgument
    );
    let status = backend.get_volume(call(), VolumeHandle::new("mem-one")).await.unwrap();
    assert_eq!(status.published_node_ids, [NodeId::new("n1")]);
    assert_eq!(
        final_error_kind(backend.delete_volume(call(), VolumeHandle::new("mem-one")).await),
        ErrorKind::FailedPrecondition
    );
    for node in [Some(NodeId::new("n1")), None, Some(NodeId::new("n9"))] {
        backend.unpublish_volume(call(), VolumeHandle::new("mem-one"), node).await.unwrap();
    }
    backend.unpublish_volume(call(), VolumeHandle::new("mem-none"), None).await.unwrap();
    publish(publish_request("mem-many", "n1", MultiNodeMultiWriter)).await.unwrap();
    publish(publish_request("mem-many", "n2", MultiNodeMultiWriter)).await.unwrap();
    backend.unpublish_volume(call(), VolumeHandle::new("mem-many"), None).await.unwrap();
    for handle in ["mem-one", "mem-many"] {
        backend.delete_volume(call(), VolumeHandle::new(handle)).await.unwrap();
    }
    assert_eq!(backend.state_keys(), [""; 0]);
}

#[tokio::test]
async fn volumes_are_expanded_and_modified() {
    let engine = engine();
    for (features, online) in [("online-expansion", true), ("", false)] {
        let backend = load_memory_backend(&engine, &[("capacity", "4Gi"), ("features", features)]).await;
        create(&backend, "v", GIB).await.unwrap();
        let expand = |request| backend.expand_volume(call(), request);
        let expanded = expand(expand_request("mem-v", Some(2 * GIB), None)).await.unwrap();
        assert_eq!((expanded.capacity, expanded.node_expansion_required), (2 * GIB, true));
        assert_eq!(
            expand(expand_request("mem-v", Some(GIB), None)).await.unwrap().capacity,
            2 * GIB,
            "large enough"
        );
        assert_eq!(
            final_error_kind(expand(expand_request("mem-v", Some(3 * GIB), Some(GIB))).await),
            ErrorKind::OutOfRange
        );
        assert_eq!(
            final_error_kind(expand(expand_request("mem-v", Some((1 << 50) + 1), None)).await),
            ErrorKind::OutOfRange
        );
        assert_eq!(
            final_error_kind(expand(expand_request("mem-v", Some(5 * GIB), None)).await),
            ErrorKind::ResourceExhausted
        );
        assert_eq!(
            final_error_kind(expand(expand_request("mem-v", None, None)).await),
            ErrorKind::InvalidArgument
        );
        assert_eq!(
            final_error_kind(expand(expand_request("mem-x", Some(GIB), None)).await),
            ErrorKind::NotFound
        );
        backend
            .publish_volume(call(), publish_request("mem-v", "n", CsiAccessMode::SingleNodeWriter))
            .await
            .unwrap();
        let published = expand(expand_request("mem-v", Some(3 * GIB), None)).await;
        assert_eq!(
            published.as_ref().map_err(|error| error.kind).err(),
            (!online).then_some(ErrorKind::FailedPrecondition)
        );
    }
    let backend = load_memory_backend(&engine, &[]).await;
    let volume = backend
        .create_volume(call(), CreateVolume { mutable_parameters: pairs("iops", "5"), ..request("v", GIB) });
    let handle = volume.await.unwrap().handle;
    let modify = |parameters| backend.modify_volume(call(), handle.clone(), parameters);
    let mutable = |key, value| {
        let capabilities = vec![filesystem_capability(CsiAccessMode::SingleNodeWriter)];
        let (context, parameters) = (Parameters::new(), Parameters::new());
        let ask = ValidateVolume {
            handle: handle.clone(),
            context,
            capabilities,
            parameters,
            mutable_parameters: pairs(key, value),
        };
        backend.validate_volume(call(), ask)
    };
    for _ in 0..2 {
        modify(pairs("label", "gold")).await.unwrap();
    }
    for bad in [pairs("iops", "0"), pairs("iops", "fast"), pairs("label", &"x".repeat(64))] {
        assert_eq!(final_error_kind(modify(bad).await), ErrorKind::InvalidArgument);
    }
    let mixed = pairs("iops", "7").into_iter().chain(pairs("tier", "1")).collect();
    assert_eq!(final_error_kind(modify(mixed).await), ErrorKind::InvalidArgument);
    assert_eq!(mutable("iops", "5").await, Ok(Validation::Confirmed), "nothing was applied");
    assert_eq!(mutable("label", "gold").await, Ok(Validation::Confirmed));
    assert!(matches!(mutable("iops", "7").await, Ok(Validation::Refused(_))));
    assert_eq!(
        final_error_kind(backend.modify_volume(call(), VolumeHandle::new("x"), Parameters::new()).await),
        ErrorKind::NotFound
    );
}

#[tokio::test]
async fn snapshots_are_created_listed_and_restored() {
    let backend =
        load_memory_backend(&engine(), &[("snapshot-ready-after", "2"), ("max-snapshots", "5")]).await;
    for name in ["a", "b"] {
        create(&backend, name, 2 * GIB).await.unwrap();
    }
    let cut = |name: &str, source: &str| backend.create_snapshot(call(), snapshot_request(name, source));
    let first = cut("s", "mem-a").await.unwrap();
    assert_eq!(
        (first.handle.as_str(), first.size, first.ready, &first.group),
        ("snap-s", Some(2 * GIB), false, &None)
    );
    let restore = |name: &str, bytes| {
        backend.create_volume(
            call(),
            CreateVolume {
                source: Some(ContentSource::Snapshot(SnapshotHandle::new("snap-s"))),
                ..request(name, bytes)
            },
        )
    };
    assert_eq!(final_error_kind(restore("r", 2 * GIB).await), ErrorKind::FailedPrecondition, "not ready yet");
    assert!(!cut("s", "mem-a").await.unwrap().ready);
    let ready = backend.get_snapshot(call(), first.handle.clone()).await.unwrap();
    assert_eq!((ready.ready, ready.created_at_ms), (true, first.created_at_ms));
    assert_eq!(final_error_kind(cut("s", "mem-b").await), ErrorKind::AlreadyExists);
    assert_eq!(final_error_kind(cut("t", "mem-x").await), ErrorKind::NotFound);
    assert_eq!(final_error_kind(cut("", "mem-a").await), ErrorKind::InvalidArgument);
    assert_eq!(final_error_kind(restore("r", GIB).await), ErrorKind::OutOfRange);
    let restored = restore("r", 2 * GIB).await.unwrap();
    assert_eq!(restored.context, pairs("source-snapshot", "snap-s"));
    assert_eq!(restore("r", 2 * GIB).await, Ok(restored));
    assert_eq!(
        final_error_kind(create(&backend, "r", 2 * GIB).await),
        ErrorKind::AlreadyExists,
        "it has content"
    );
    let clone = |bytes| {
        backend.create_volume(
            call(),
            CreateVolume {
                source: Some(ContentSource::Volume(VolumeHandle::new("mem-a"))),
                ..request("c", bytes)
            },
        )
    };
    assert_eq!(final_error_kind(clone(GIB).await), ErrorKind::OutOfRange);
    assert_eq!(clone(3 * GIB).await.unwrap().context, pairs("source-volume", "mem-a"));
    let absent = backend.create_volume(
        call(),
        CreateVolume { source: Some(ContentSource::Volume(VolumeHandle::new("mem-x"))), ..request("d", GIB) },
    );
    assert_eq!(final_error_kind(absent.await), ErrorKind::NotFound);
    for name in ["1", "2", "3", "4"] {
        cut(name, "mem-b").await.unwrap();
    }
    assert_eq!(final_error_kind(cut("5", "mem-b").await), ErrorKind::ResourceExhausted);
    let list = |source: Option<&str>, after, limit| {
        backend.list_snapshots(
            call(),
            source.map(VolumeHandle::new),
            PageRequest { starting_token: after, max_entries: limit },
        )
    };
    let page = list(Some("mem-b"), None, Some(3)).await.unwrap();
    assert_eq!(page.snapshots.len(), 3);
    let rest = list(Some("mem-b"), page.next_token.clone(), None).await.unwrap();
    assert_eq!((rest.snapshots.len(), rest.next_token), (1, None));
    assert_eq!(list(Some("mem-x"), None, None).await.unwrap().snapshots, []);
    assert_eq!(
        final_error_kind(list(Some("mem-a"), page.next_token, None).await),
        ErrorKind::Aborted,
        "of another listing"
    );
    assert_eq!(list(None, None, None).await.unwrap().snapshots.len(), 5);
    for _ in 0..2 {
        backend.delete_snapshot(call(), first.handle.clone()).await.unwrap();
    }
    assert_eq!(final_error_kind(backend.get_snapshot(call(), first.handle).await), ErrorKind::NotFound);
}

#[tokio::test]
async fn group_snapshot_is_created_and_deleted_as_a_whole() {
    let backend = load_memory_backend(&engine(), &[("max-snapshots", "14")]).await;
    for number in 0..15 {
        create(&backend, &number.to_string(), GIB).await.unwrap();
    }
    let cut = |name: &str, numbers: std::ops::Range<u32>| {
        let sources = numbers.map(|number| VolumeHandle::new(format!("mem-{number}"))).collect();
        let request = CreateGroupSnapshot {
            name: name.to_owned(),
            sources,
            parameters: Parameters::new(),
            owner: None,
        };
        backend.create_group_snapshot(call(), request)
    };
    let before = backend.state_keys();
    assert_eq!(
        final_error_kind(cut("g", 0..15).await),
        ErrorKind::InvalidArgument,
        "more than one commit holds"
    );
    assert_eq!(final_error_kind(cut("g", 0..0).await), ErrorKind::InvalidArgument);
    assert_eq!(final_error_kind(cut("g", 14..16).await), ErrorKind::NotFound);
    assert_eq!(backend.state_keys(), before, "nothing of it was cut");
    let group = cut("g", 0..14).await.unwrap();
    assert_eq!((group.snapshots.len(), group.ready), (14, true));
    assert_eq!(cut("g", 0..14).await, Ok(group.clone()));
    assert_eq!(final_error_kind(cut("g", 0..13).await), ErrorKind::AlreadyExists);
    assert_eq!(final_error_kind(cut("h", 14..15).await), ErrorKind::ResourceExhausted);
    let members: BTreeSet<_> = group.snapshots.iter().map(|member| member.handle.clone()).collect();
    let member = group.snapshots[0].handle.clone();
    assert_eq!(
        final_error_kind(backend.delete_snapshot(call(), member.clone()).await),
        ErrorKind::InvalidArgument
    );
    let get = |handle: &str, members| backend.get_group_snapshot(call(), handle.into(), members);
    assert_eq!(get("group-g", members.clone()).await, Ok(group.clone()));
    assert_eq!(final_error_kind(get("group-g", [member].into()).await), ErrorKind::InvalidArgument);
    assert_eq!(final_error_kind(get("group-x", BTreeSet::new()).await), ErrorKind::NotFound);
    let delete = |members| backend.delete_group_snapshot(call(), group.handle.clone(), members);
    assert_eq!(final_error_kind(delete([SnapshotHandle::new("x")].into()).await), ErrorKind::InvalidArgument);
    for _ in 0..2 {
        delete(members.clone()).await.unwrap();
    }
    assert_eq!(backend.state_keys(), before);
}

#[tokio::test]
async fn list_volumes_returns_status_and_published_nodes() {
    let backend = load_memory_backend(&engine(), &[("condition", "abnormal:the array is on fire")]).await;
    for name in ["a", "b", "c"] {
        create(&backend, name, GIB).await.unwrap();
    }
    let well = CreateVolume { parameters: pairs("condition", "normal:fine"), ..request("d", GIB) };
    backend.create_volume(call(), well).await.unwrap();
    let list = |after, limit| {
        backend.list_volumes(call(), PageRequest { starting_token: after, max_entries: limit })
    };
    let first = list(None, Some(2)).await.unwrap();
    let names = |page: &cofferdam_domain::storage::VolumePage| -> Vec<_> {
        page.volumes.iter().map(|status| status.volume.handle.as_str().to_owned()).collect()
    };
    assert_eq!(names(&first), ["mem-a", "mem-b"]);
    backend.delete_volume(call(), VolumeHandle::new("mem-b")).await.unwrap();
    let rest = list(first.next_token, Some(2)).await.unwrap();
    assert_eq!((names(&rest), rest.next_token), (vec!["mem-c".to_owned(), "mem-d".to_owned()], None));
    let conditions: Vec<_> = rest
        .volumes
        .into_iter()
        .filter_map(|status| status.condition)
        .map(|c| (c.abnormal, c.message))
        .collect();
    assert_eq!(conditions, [(true, "the array is on fire".to_owned()), (false, "fine".to_owned())]);
    for bad in ["invalid-token", "0123456789abcdef.mem-a", &"x".repeat(9999)] {
        assert_eq!(final_error_kind(list(Some(bad.to_owned()), None).await), ErrorKind::Aborted);
    }
    assert_eq!(
        final_error_kind(backend.get_volume(call(), VolumeHandle::new("x".repeat(9999))).await),
        ErrorKind::NotFound
    );
}

async fn available_capacity(
    backend: &WasmBackend,
    topology: Option<Parameters>,
) -> Result<(u64, Option<u64>), StorageError> {
    let query = CapacityQuery { capabilities: Vec::new(), parameters: Parameters::new(), topology };
    backend
        .get_capacity(call(), query)
        .await
        .map(|capacity| (capacity.available, capacity.maximum_volume_size))
}

#[tokio::test]
async fn capacity_is_reported_in_total_and_per_segment() {
    let engine = engine();
    let backend =
        load_memory_backend(&engine, &[("topology", "zone=a,b"), ("capacity", "a=1Gi,b=3Gi")]).await;
    create(&backend, "v", 2 * GIB).await.unwrap();
    assert_eq!(available_capacity(&backend, None).await, Ok((2 * GIB, Some(GIB))));
    assert_eq!(available_capacity(&backend, Some(pairs("zone", "b"))).await, Ok((GIB, Some(GIB))));
    assert_eq!(
        final_error_kind(available_capacity(&backend, Some(pairs("rack", "b"))).await),
        ErrorKind::InvalidArgument
    );
    let endless = load_memory_backend(&engine, &[]).await;
    assert_eq!(available_capacity(&endless, None).await, Ok((1 << 62, Some(1 << 50))), "all that it counts");
    create(&endless, "v", GIB).await.unwrap();
    assert_eq!(available_capacity(&endless, None).await, Ok(((1 << 62) - GIB, Some(1 << 50))));
}

#[tokio::test]
async fn configured_errors_and_latency_are_injected() {
    let errors = "create:unavailable:2, delete:deadline-exceeded:1:after, expand:aborted:1, \
                  create-snapshot:data-loss:always";
    let backend = load_memory_backend(&engine(), &[("errors", errors), ("latency-ms", "1,create=2")]).await;
    for _ in 0..2 {
        let error = create(&backend, "v", GIB).await.unwrap_err();
        assert_eq!((error.kind, error.finality), (ErrorKind::Unavailable, Finality::Unknown), "{error}");
    }
    let handle = create(&backend, "v", GIB).await.unwrap().handle;
    let error = backend.expand_volume(call(), expand_request("mem-v", Some(GIB), None)).await.unwrap_err();
    assert_eq!((error.kind, error.finality), (ErrorKind::Aborted, Finality::InProgress), "{error}");
    backend.expand_volume(call(), expand_request("mem-v", Some(GIB), None)).await.unwrap();
    for _ in 0..2 {
        assert_eq!(
            final_error_kind(backend.create_snapshot(call(), snapshot_request("s", "mem-v")).await),
            ErrorKind::DataLoss
        );
    }
    let error = backend.delete_volume(call(), handle.clone()).await.unwrap_err();
    assert_eq!((error.kind, error.finality), (ErrorKind::DeadlineExceeded, Finality::Unknown), "{error}");
    assert_eq!(
        final_error_kind(backend.get_volume(call(), handle.clone()).await),
        ErrorKind::NotFound,
        "it is gone all the same"
    );
    backend.delete_volume(call(), handle).await.unwrap();
}

#[tokio::test]
async fn invalid_strings_never_trap_the_driver() {
    let backend = load_memory_backend(&engine(), &[]).await;
    let long = "x".repeat(10_000);
    for text in ["", "\0\n\u{7f}", long.as_str(), "ü/../\u{202e}"] {
        let volume = VolumeHandle::new(text);
        let snap = SnapshotHandle::new(text);
        let errors = [
            backend.create_snapshot(call(), snapshot_request(text, text)).await.err(),
            backend
                .create_volume(
                    call(),
                    CreateVolume { source: Some(ContentSource::Volume(volume.clone())), ..request("v", GIB) },
                )
                .await
                .err(),
            backend
                .create_volume(
                    call(),
                    CreateVolume { source: Some(ContentSource::Snapshot(snap.clone())), ..request("v", GIB) },
                )
                .await
                .err(),
            backend
                .publish_volume(call(), publish_request(text, text, CsiAccessMode::SingleNodeWriter))
                .await
                .err(),
            backend.expand_volume(call(), expand_request(text, Some(GIB), None)).await.err(),
            backend.modify_volume(call(), volume.clone(), pairs(text, text)).await.err(),
            backend.get_snapshot(call(), snap.clone()).await.err(),
            backend.get_volume(call(), volume.clone()).await.err(),
            backend
                .list_volumes(
                    call(),
                    PageRequest { starting_token: Some(text.to_owned()), max_entries: Some(0) },
                )
                .await
                .err(),
            backend.get_group_snapshot(call(), text.into(), [snap.clone()].into()).await.err(),
        ];
        for error in errors {
            assert_eq!(error.map(|error| error.finality), Some(Finality::Final), "{text:?}");
        }
        let gone = [
            backend.delete_volume(call(), volume.clone()).await,
            backend.unpublish_volume(call(), volume, None).await,
            backend.delete_snapshot(call(), snap.clone()).await,
            backend.delete_group_snapshot(call(), text.into(), [snap].into()).await,
        ];
        assert!(gone.iter().all(|answer| answer.is_ok() != text.is_empty()), "{gone:?}");
    }
    assert_eq!(backend.probe(call()).await, Ok(Readiness::Ready));
    assert_eq!(backend.state_keys(), [""; 0]);
}

#[tokio::test]
async fn an_abandoned_call_is_in_flight_from_its_first_poll() {
    let backend = load_memory_backend(&engine(), &[("latency-ms", "create=60000")]).await;
    for round in 0..20 {
        let name = format!("v-{round}");
        let abandoned = create(&backend, &name, GIB).now_or_never();
        let repeated = create(&backend, &name, GIB).now_or_never();
        let Some(Err(error)) = repeated else { panic!("{name}: {abandoned:?}, then {repeated:?}") };
        assert_eq!(error.kind, ErrorKind::Aborted, "{error}");
    }
}
