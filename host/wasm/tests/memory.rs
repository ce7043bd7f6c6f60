//! Tests of the mandatory interfaces of the contract, with the memory backend in the sandbox: volumes,
//! capacity, and invalid requests and settings.

mod common;

use cofferdam_backend::Backend as _;
use cofferdam_domain::{
    ClusterId, ReclaimPolicy, Uid, VolumeHandle, VolumeName,
    storage::{
        AccessType, CapacityRange, CreateVolume, CsiAccessMode, ErrorKind, Finality, Parameters, Readiness,
        ValidateVolume, Validation, VolumeCapability, VolumeOwner,
    },
};
use cofferdam_wasm::Limits;
use common::{call, create, engine, load, load_memory_backend, request};

const GIB: u64 = 1 << 30;

#[tokio::test]
async fn volume_is_created_and_deleted_idempotently() {
    let backend = load_memory_backend(&engine(), &[]).await;
    assert_eq!(backend.driver().as_str(), "memory.cofferdam.dev");
    assert_eq!(backend.probe(call()).await, Ok(Readiness::Ready));
    let owner = VolumeOwner {
        cluster_id: ClusterId::new("c"),
        claim_uid: Uid::new("u"),
        pv_name: VolumeName::new("pvc-u"),
        reclaim_policy: ReclaimPolicy::Delete,
    };
    let request = CreateVolume { owner: Some(owner), ..request("pvc-u", GIB) };
    let created = backend.create_volume(call(), request.clone()).await.unwrap();
    assert_eq!((created.handle.as_str(), created.capacity), ("mem-pvc-u", Some(GIB)));
    assert_eq!(created.connection_info, None, "how a node reaches it is said when it is published");
    assert_eq!(backend.create_volume(call(), request).await, Ok(created.clone()), "create is idempotent");
    assert_eq!(backend.state_keys(), ["ledger", "volume/mem-pvc-u"]);
    for _ in 0..2 {
        assert_eq!(
            backend.delete_volume(call(), created.handle.clone()).await,
            Ok(()),
            "delete is idempotent"
        );
    }
    assert_eq!(backend.state_keys(), [""; 0]);
}

#[tokio::test]
async fn same_name_with_other_arguments_already_exists() {
    let backend = load_memory_backend(&engine(), &[]).await;
    create(&backend, "v", GIB).await.unwrap();
    let base = request("v", GIB);
    let label = |label: &str| Parameters::from([("label".to_owned(), label.to_owned())]);
    let block =
        VolumeCapability { access_mode: CsiAccessMode::SingleNodeWriter, access_type: AccessType::Block };
    for other in [
        request("v", 2 * GIB),
        CreateVolume { capacity: CapacityRange { required: None, limit: Some(GIB / 2) }, ..base.clone() },
        CreateVolume { parameters: label("a"), ..base.clone() },
        CreateVolume { capabilities: vec![block], ..base.clone() },
    ] {
        let error = backend.create_volume(call(), other).await.unwrap_err();
        assert_eq!((error.kind, error.finality), (ErrorKind::AlreadyExists, Finality::Final), "{error}");
    }
    let within = CapacityRange { required: Some(GIB / 2), limit: Some(2 * GIB) };
    assert!(backend.create_volume(call(), CreateVolume { capacity: within, ..base }).await.is_ok());
}

#[tokio::test]
async fn invalid_requests_name_the_field() {
    let backend = load_memory_backend(&engine(), &[]).await;
    let base = request("v", GIB);
    let parameters = |key: &str| Parameters::from([(key.to_owned(), "x".repeat(64))]);
    let range =
        |required, limit| CreateVolume { capacity: CapacityRange { required, limit }, ..base.clone() };
    let invalid = ErrorKind::InvalidArgument;
    for (request, kind, expected) in [
        (
            CreateVolume { parameters: parameters("tier"), ..base.clone() },
            invalid,
            "unknown parameter \"tier\"; known: \"label\", \"condition\"",
        ),
        (
            CreateVolume { parameters: parameters("label"), ..base.clone() },
            invalid,
            "\"label\" has 64 bytes; at most 63",
        ),
        (CreateVolume { capabilities: Vec::new(), ..base.clone() }, invalid, "expected at least one"),
        (request("", GIB), invalid, "has 0 bytes"),
        (request(&"n".repeat(129), GIB), invalid, "has 129 bytes"),
        (request("a\nb", GIB), invalid, "without control characters"),
        (range(Some(0), None), ErrorKind::OutOfRange, "at least 1 byte"),
        (range(Some(2), Some(1)), ErrorKind::OutOfRange, "no size is in this range"),
        (range(Some((1 << 50) + 1), None), ErrorKind::OutOfRange, "at most 1125899906842624 bytes"),
    ] {
        let error = backend.create_volume(call(), request).await.unwrap_err();
        assert_eq!((error.kind, error.finality), (kind, Finality::Final), "{error}");
        assert!(error.message.contains(expected), "{error}");
    }
    assert_eq!(backend.state_usage().0, 0);
}

#[tokio::test]
async fn volume_names_of_any_length_get_unique_handles() {
    let backend = load_memory_backend(&engine(), &[]).await;
    let mut handles = std::collections::BTreeSet::new();
    for length in 120..=128 {
        for last in ["a", "b"] {
            let name = format!("{}{last}", "n".repeat(length - 1));
            let volume = create(&backend, &name, 1).await.unwrap();
            assert_eq!(create(&backend, &name, 1).await.unwrap().handle, volume.handle);
            handles.insert(volume.handle);
        }
    }
    assert_eq!(handles.len(), 18);
    for handle in handles {
        backend.delete_volume(call(), handle).await.unwrap();
    }
    assert_eq!(backend.state_keys(), [""; 0]);
}

#[tokio::test]
async fn configured_capacity_is_enforced_exactly() {
    let backend = load_memory_backend(&engine(), &[("capacity", "10Gi")]).await;
    let first = create(&backend, "a", 6 * GIB).await.unwrap();
    let error = create(&backend, "b", 5 * GIB).await.unwrap_err();
    assert_eq!((error.kind, error.finality), (ErrorKind::ResourceExhausted, Finality::Final));
    assert!(error.message.contains("6442450944 of 10737418240 bytes are in use"), "{error}");
    create(&backend, "c", 4 * GIB).await.unwrap();
    backend.delete_volume(call(), first.handle.clone()).await.unwrap();
    backend.delete_volume(call(), first.handle).await.unwrap();
    create(&backend, "d", 6 * GIB).await.unwrap();
    assert_eq!(create(&backend, "e", 1).await.unwrap_err().kind, ErrorKind::ResourceExhausted);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_calls_neither_leak_nor_double_count_capacity() {
    let backend = load_memory_backend(&engine(), &[("capacity", "100")]).await;
    for round in 0..3 {
        let names: Vec<_> = (0..150).map(|number| format!("v-{round}-{number}")).collect();
        let calls = names.iter().map(|name| create(&backend, name, 1));
        let created: Vec<_> = futures::future::join_all(calls).await;
        let (fit, full): (Vec<_>, Vec<_>) = created.into_iter().partition(Result::is_ok);
        assert_eq!(fit.len(), 100);
        assert!(
            full.iter()
                .all(|error| matches!(error, Err(error) if error.kind == ErrorKind::ResourceExhausted))
        );
        let gone = fit.into_iter().flatten().map(|volume| backend.delete_volume(call(), volume.handle));
        assert!(futures::future::join_all(gone).await.into_iter().all(|deleted| deleted.is_ok()));
        assert_eq!(backend.state_keys(), [""; 0]);
    }
}

#[tokio::test]
async fn full_state_returns_resource_exhausted() {
    let limits = Limits { state_bytes: 2_000, ..Limits::default() };
    let backend = load(&engine(), cofferdam_carried::MEMORY, &[], limits).await.unwrap();
    let mut handles = Vec::new();
    let error = loop {
        match create(&backend, &format!("v{}", handles.len()), 1).await {
            Ok(volume) => handles.push(volume.handle),
            Err(error) => break error,
        }
    };
    assert_eq!((error.kind, error.finality), (ErrorKind::ResourceExhausted, Finality::Final), "{error}");
    for handle in handles {
        backend.delete_volume(call(), handle).await.unwrap();
    }
    assert_eq!(backend.state_usage(), (0, 0));
}

#[tokio::test]
async fn validate_names_the_unsupported_capability() {
    let backend = load_memory_backend(&engine(), &[]).await;
    let base = request("v", GIB);
    let volume = backend.create_volume(call(), base.clone()).await.unwrap();
    let ask = |handle: VolumeHandle, capabilities| ValidateVolume {
        handle,
        context: volume.context.clone(),
        capabilities,
        parameters: Parameters::new(),
        mutable_parameters: Parameters::new(),
    };
    let confirmed =
        backend.validate_volume(call(), ask(volume.handle.clone(), base.capabilities.clone())).await;
    assert_eq!(confirmed, Ok(Validation::Confirmed));
    let block =
        VolumeCapability { access_mode: CsiAccessMode::MultiNodeMultiWriter, access_type: AccessType::Block };
    let refused = backend.validate_volume(call(), ask(volume.handle.clone(), vec![block])).await.unwrap();
    assert!(
        matches!(refused, Validation::Refused(why) if why.starts_with("multi-node-multi-writer block is not"))
    );
    let absent =
        backend.validate_volume(call(), ask(VolumeHandle::new("x".repeat(9999)), base.capabilities)).await;
    assert_eq!(absent.unwrap_err().kind, ErrorKind::NotFound);
    assert_eq!(backend.delete_volume(call(), VolumeHandle::new("x".repeat(9999))).await, Ok(()));
}

#[tokio::test]
async fn invalid_settings_are_reported() {
    let engine = engine();
    let backend =
        load_memory_backend(&engine, &[("driver-name", "other.example.com"), ("capacity", "lots")]).await;
    assert_eq!(backend.driver().as_str(), "other.example.com");
    let expected = "the setting \"capacity\" is \"lots\"; expected bytes such as 1073741824 or 500Gi";
    assert_eq!(backend.probe(call()).await, Ok(Readiness::NotReady(expected.to_owned())));
    let error = create(&backend, "v", 1).await.unwrap_err();
    assert_eq!((error.kind, error.finality), (ErrorKind::FailedPrecondition, Finality::Final));
}
