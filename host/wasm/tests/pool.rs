//! The import `pool` through guests: one that tries to get out of its directory, and the pool driver.
#![expect(clippy::unwrap_used, reason = "a helper of tests fails as a test does")]

mod common;

use std::{collections::BTreeMap, fs, path::Path, sync::Arc};

use cofferdam_backend::Backend as _;
use cofferdam_domain::{
    NodeId, VolumeHandle,
    storage::{
        AccessType, CapacityQuery, CapacityRange, ConnectionInfo, ContentSource, CreateSnapshot,
        CreateVolume, CsiAccessMode, ErrorKind, ExpandVolume, PageRequest, Placement, PublishVolume,
        VolumeCapability,
    },
};
use cofferdam_wasm::{BackendConfig, ComponentSource, LoadError, PoolConfig, StateConfig, WasmBackend};
use common::{call, engine, request, settings};

const MIB: u64 = 1 << 20;

/// A directory for the pool, beside a directory that must stay untouched.
struct PoolFixture(tempfile::TempDir);

impl PoolFixture {
    fn new() -> Self {
        let disk = Self(tempfile::tempdir().unwrap());
        fs::create_dir(disk.pool()).unwrap();
        fs::create_dir(disk.0.path().join("neighbour")).unwrap();
        fs::write(disk.0.path().join("neighbour/file"), "untouched").unwrap();
        disk
    }

    fn pool(&self) -> std::path::PathBuf {
        self.0.path().join("pool")
    }

    /// Sorted names of the pool's items, without the host's hidden files.
    fn items(&self) -> Vec<String> {
        let entries = fs::read_dir(self.pool()).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names.filter(|name| !name.starts_with('.')).collect();
        names.sort();
        names
    }

    fn config(&self, capacity: Option<u64>) -> BackendConfig {
        BackendConfig {
            pool: Some(PoolConfig { directory: self.pool(), capacity, image_bytes_max: None }),
            ..BackendConfig::default()
        }
    }
}

async fn load_pool_tricks(config: BackendConfig) -> Result<Arc<WasmBackend>, LoadError> {
    let source =
        ComponentSource::Bytes { name: "tricks".to_owned(), bytes: cofferdam_test_guests::POOL_TRICKS };
    engine().load(source, config).await
}

/// Loads the pool driver, with its state file beside the pool.
async fn load_pool_driver(disk: &PoolFixture) -> Arc<WasmBackend> {
    let config = BackendConfig {
        settings: settings(&[("node", "n1")]),
        state: StateConfig { file: Some(disk.0.path().join("records.db")) },
        ..disk.config(Some(64 * MIB))
    };
    let source = ComponentSource::Bytes { name: "pool".to_owned(), bytes: cofferdam_carried::POOL };
    engine().load(source, config).await.unwrap()
}

async fn run_operation(
    backend: &WasmBackend,
    action: &str,
    name: &str,
    more: &[(&str, &str)],
    bytes: u64,
) -> String {
    let mut parameters =
        BTreeMap::from([("do".to_owned(), action.to_owned()), ("name".to_owned(), name.to_owned())]);
    parameters.extend(more.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())));
    let unique = format!(
        "{action} {}",
        name.chars().take(20).filter(|letter| !letter.is_control()).collect::<String>()
    );
    let asked = CreateVolume { parameters, ..request(&format!("{unique} {bytes} {more:?}"), bytes) };
    backend.create_volume(call(), asked).await.unwrap().handle.as_str().to_owned()
}

#[tokio::test]
async fn invalid_names_do_not_escape_the_pool() {
    let disk = PoolFixture::new();
    let outside = disk.0.path().join("neighbour");
    std::os::unix::fs::symlink(&outside, disk.pool().join("link")).unwrap();
    let backend = load_pool_tricks(disk.config(None)).await.unwrap();
    assert_eq!(run_operation(&backend, "create-directory", "fine", &[], 1).await, "ok");
    let absolute = outside.display().to_string();
    for name in [
        "..",
        ".",
        "",
        "../neighbour",
        "a/b",
        "/etc",
        absolute.as_str(),
        "a\\b",
        ".hidden",
        "NUL",
        "LONG",
        "ä",
        "-rf",
        "a b",
        "a\n",
    ] {
        for action in ["create-directory", "create-image", "remove", "grow", "measure"] {
            let outcome = run_operation(&backend, action, name, &[], 4_096).await;
            assert_eq!(outcome, "invalid-name", "{action} {name:?}");
        }
        assert_eq!(
            run_operation(&backend, "copy", name, &[("source", "fine")], 1).await,
            "invalid-name",
            "{name:?}"
        );
        assert_eq!(
            run_operation(&backend, "copy", "copy", &[("source", name)], 1).await,
            "invalid-name",
            "{name:?}"
        );
    }
    // A symbolic link that another process created is not followed: it is not an item of the pool.
    for action in ["measure", "grow"] {
        assert_eq!(run_operation(&backend, action, "link", &[], 4_096).await, "wrong-kind", "{action}");
    }
    let copied = run_operation(&backend, "copy", "stolen", &[("source", "link")], 1).await;
    assert_eq!(copied, "wrong-kind");
    assert!(!disk.items().contains(&"stolen".to_owned()));
    assert_eq!(fs::read_to_string(outside.join("file")).unwrap(), "untouched");
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
}

#[tokio::test]
async fn image_sizes_and_pool_capacity_are_enforced() {
    let disk = PoolFixture::new();
    let backend = load_pool_tricks(disk.config(Some(8 * MIB))).await.unwrap();
    for (action, name, bytes, expected) in [
        ("create-image", "a", 4_095, "invalid-size"),
        ("create-image", "a", u64::MAX >> 1, "invalid-size"),
        ("create-image", "a", 6 * MIB, "ok"),
        ("create-image", "a", 6 * MIB, "exists"),
        ("create-image", "b", 4 * MIB, "no-space"),
        ("grow", "a", 9 * MIB, "no-space"),
        ("grow", "a", MIB, "ok"),
        ("grow", "nothing", MIB, "missing"),
        ("measure", "nothing", 1, "missing"),
        ("remove", "a", 1, "ok"),
        ("remove", "a", 2, "missing"),
    ] {
        assert_eq!(
            run_operation(&backend, action, name, &[], bytes).await,
            expected,
            "{action} {name} {bytes}"
        );
    }
    assert_eq!(disk.items(), [] as [&str; 0]);
}

#[tokio::test]
async fn pool_must_be_configured_and_has_one_owner() {
    let error = load_pool_tricks(BackendConfig::default()).await.unwrap_err().to_string();
    assert_eq!(
        error,
        "tricks: imports `cofferdam:storage/pool@0.1.0`, which is not granted to it; \
         name its directory in a section [backend.NAME.pool], or by --pool where the command has it"
    );
    let disk = PoolFixture::new();
    let first = load_pool_tricks(disk.config(None)).await.unwrap();
    let error = load_pool_tricks(disk.config(None)).await.unwrap_err().to_string();
    assert!(error.contains("is in use by another backend of this process"), "{error}");
    drop(first);
    let missing = PoolConfig { directory: "/nowhere/at/all".into(), capacity: None, image_bytes_max: None };
    let error = load_pool_tricks(BackendConfig { pool: Some(missing), ..BackendConfig::default() })
        .await
        .unwrap_err();
    assert!(error.to_string().starts_with("tricks: the pool /nowhere/at/all "), "{error}");
}

fn connection_path(
    disk: &PoolFixture,
    connection_info: Option<&ConnectionInfo>,
    kind: &str,
) -> std::path::PathBuf {
    let connection_info = connection_info.unwrap();
    assert_eq!((connection_info.kind.as_str(), connection_info.version), (kind, 1));
    let path = connection_info.fields.get("path").unwrap();
    assert!(Path::new(path).is_relative(), "{path}: a driver does not know where its pool is");
    disk.pool().join(path)
}

fn block_volume_request(name: &str, bytes: u64) -> CreateVolume {
    CreateVolume {
        capabilities: vec![VolumeCapability {
            access_mode: CsiAccessMode::SingleNodeWriter,
            access_type: AccessType::Block,
        }],
        ..request(name, bytes)
    }
}

#[tokio::test]
async fn pool_driver_keeps_data_across_snapshot_clone_and_restart() {
    let disk = PoolFixture::new();
    let backend = load_pool_driver(&disk).await;
    assert_eq!(backend.description().placement, Placement::Node);
    let directory = backend.create_volume(call(), request("files", 10 * MIB)).await.unwrap();
    let image = backend.create_volume(call(), block_volume_request("disk", 10 * MIB)).await.unwrap();
    assert_eq!(image.capacity, Some(10 * MIB));
    assert!(directory.topology.iter().any(|segments| segments.values().any(|node| node.as_str() == "n1")));
    let files = connection_path(&disk, directory.connection_info.as_ref(), "directory");
    let bytes = connection_path(&disk, image.connection_info.as_ref(), "image");
    fs::write(files.join("note"), "of the first day").unwrap();
    assert_eq!(fs::metadata(&bytes).unwrap().len(), 10 * MIB);
    // Methods that are not exported fail without a call of the guest.
    let publish = PublishVolume {
        handle: image.handle.clone(),
        node_identities: BTreeMap::new(),
        node_id: NodeId::new("n1"),
        capability: block_volume_request("disk", 1).capabilities.remove(0),
        read_only: false,
        context: BTreeMap::new(),
    };
    assert_eq!(backend.publish_volume(call(), publish).await.unwrap_err().kind, ErrorKind::Unimplemented);

    let snapshot = CreateSnapshot {
        name: "s".to_owned(),
        source: directory.handle.clone(),
        parameters: BTreeMap::new(),
        owner: None,
    };
    let snapshot = backend.create_snapshot(call(), snapshot).await.unwrap();
    fs::write(files.join("note"), "of the second day").unwrap();
    // A newly loaded backend continues with the stored state.
    drop(backend);
    let backend = load_pool_driver(&disk).await;
    let restored = backend
        .create_volume(
            call(),
            CreateVolume {
                source: Some(ContentSource::Snapshot(snapshot.handle.clone())),
                ..request("restored", 10 * MIB)
            },
        )
        .await
        .unwrap();
    let cloned = backend
        .create_volume(
            call(),
            CreateVolume {
                source: Some(ContentSource::Volume(directory.handle.clone())),
                ..request("cloned", 10 * MIB)
            },
        )
        .await
        .unwrap();
    let note = |attachment: Option<&ConnectionInfo>| {
        fs::read_to_string(connection_path(&disk, attachment, "directory").join("note")).unwrap()
    };
    assert_eq!(note(restored.connection_info.as_ref()), "of the first day");
    assert_eq!(note(cloned.connection_info.as_ref()), "of the second day");

    let larger = ExpandVolume {
        handle: image.handle.clone(),
        capacity: CapacityRange { required: Some(20 * MIB), limit: None },
        capability: None,
    };
    let expanded = backend.expand_volume(call(), larger).await.unwrap();
    assert_eq!((expanded.capacity, expanded.node_expansion_required), (20 * MIB, true));
    assert_eq!(fs::metadata(&bytes).unwrap().len(), 20 * MIB);
    let error = backend.create_volume(call(), block_volume_request("too-large", 60 * MIB)).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::ResourceExhausted, "{error}");
    let room = backend.get_capacity(call(), CapacityQuery::default()).await.unwrap();
    assert!(room.available <= 44 * MIB, "{room:?}");

    let listed = backend.list_volumes(call(), PageRequest::default()).await.unwrap().volumes;
    assert_eq!(listed.len(), 4);
    backend.delete_snapshot(call(), snapshot.handle).await.unwrap();
    for status in listed {
        for _ in 0..2 {
            backend.delete_volume(call(), status.volume.handle.clone()).await.unwrap();
        }
    }
    backend.delete_volume(call(), VolumeHandle::new("../neighbour")).await.unwrap();
    assert_eq!(disk.items(), [] as [&str; 0]);
    assert_eq!(fs::read_to_string(disk.0.path().join("neighbour/file")).unwrap(), "untouched");
}

#[tokio::test]
async fn image_snapshot_is_point_in_time_or_rejected() {
    let disk = PoolFixture::new();
    let backend = load_pool_driver(&disk).await;
    let image = backend.create_volume(call(), block_volume_request("disk", MIB)).await.unwrap();
    let bytes = connection_path(&disk, image.connection_info.as_ref(), "image");
    let cut = |name: &str, parameters: &[(&str, &str)]| {
        let parameters = parameters.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        let cut = CreateSnapshot {
            name: name.to_owned(),
            source: image.handle.clone(),
            parameters: parameters.collect(),
            owner: None,
        };
        backend.create_snapshot(call(), cut)
    };
    let shares = std::process::Command::new("cp")
        .arg("--reflink=always")
        .args([&bytes, &disk.0.path().join("probe")])
        .stderr(std::process::Stdio::null())
        .status()
        .unwrap()
        .success();
    match cut("strict", &[]).await {
        Ok(snapshot) => {
            assert!(shares);
            backend.delete_snapshot(call(), snapshot.handle).await.unwrap();
        }
        Err(error) => {
            assert!(!shares);
            assert_eq!(error.kind, ErrorKind::FailedPrecondition, "{error}");
            assert!(error.to_string().contains("\"consistency\" set to \"none\""), "{error}");
        }
    }
    assert_eq!(disk.items().len(), 1, "what was refused leaves nothing");
    fs::write(&bytes, "first").unwrap();
    fs::File::options().write(true).open(&bytes).unwrap().set_len(MIB).unwrap();
    let snapshot = cut("lax", &[("consistency", "none")]).await.unwrap();
    let restored = backend
        .create_volume(
            call(),
            CreateVolume {
                source: Some(ContentSource::Snapshot(snapshot.handle)),
                ..block_volume_request("restored", MIB)
            },
        )
        .await
        .unwrap();
    let restored = fs::read(connection_path(&disk, restored.connection_info.as_ref(), "image")).unwrap();
    assert_eq!((&restored[..5], restored.len()), (&b"first"[..], 1 << 20));
}
