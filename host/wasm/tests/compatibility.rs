//! Compatibility with released versions of the contract: for each version, its interfaces and components that
//! were compiled against them. See `compatibility/README.md`.
#![expect(clippy::unwrap_used, reason = "a helper of tests fails as a test does")]

mod common;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use cofferdam_backend::{Backend as _, Call};
use cofferdam_domain::{
    NodeId,
    storage::{
        Ability, CapacityQuery, CapacityRange, ContentSource, CreateGroupSnapshot, CreateSnapshot,
        CreateVolume, ExpandVolume, PageRequest, Parameters, PublishVolume, Readiness, Secret,
        ValidateVolume, Validation,
    },
};
use cofferdam_wasm::{
    BackendConfig, ComponentSource, Grant, HttpConfig, OriginConfig, PoolConfig, WasmBackend,
};
use common::{call, engine, request, settings};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};

/// The versions that were released, or are about to be.
const VERSIONS: [&str; 1] = ["0.1.0"];

fn fixture_path(version: &str, file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/compatibility").join(version).join(file)
}

/// The bodies of a package's interfaces by name, without comments and blank lines.
fn interfaces(folder: &Path) -> BTreeMap<String, String> {
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let mut found = BTreeMap::new();
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        let lines = text.lines().map(|line| line.split("//").next().unwrap().trim());
        let text = lines.filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ");
        for part in text.split("interface ").skip(1) {
            let (name, rest) = part.split_once(" {").unwrap();
            let mut depth = 1_usize;
            let end = rest.find(|letter| {
                depth = match letter {
                    '{' => depth + 1,
                    '}' => depth - 1,
                    _ => depth,
                };
                depth == 0
            });
            found.insert(name.to_owned(), rest[..end.unwrap()].trim().to_owned());
        }
    }
    found
}

#[test]
fn released_wit_interfaces_do_not_change() {
    let today = interfaces(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../wit"));
    for version in VERSIONS {
        let then = interfaces(&fixture_path(version, "wit"));
        assert!(then.len() >= 22, "{version}: {:?}", then.keys());
        for (name, body) in then {
            assert_eq!(
                today.get(&name),
                Some(&body),
                "the interface {name} of {version} has changed or gone"
            );
        }
    }
}

async fn load(version: &str, file: &str, config: BackendConfig) -> Arc<WasmBackend> {
    let source = ComponentSource::File(fixture_path(version, file));
    engine().load(source, config).await.unwrap()
}

#[tokio::test]
async fn released_components_cover_every_interface() {
    for version in VERSIONS {
        let mut abilities = BTreeSet::new();
        let mut grants = BTreeSet::new();
        for file in ["memory.wasm", "pool.wasm", "net.wasm"] {
            let inspection = engine()
                .inspect(ComponentSource::File(fixture_path(version, file)), &Default::default())
                .await
                .unwrap();
            abilities.extend(inspection.interfaces.abilities);
            grants.extend(inspection.interfaces.grants);
        }
        // Later versions of the contract may have more than these.
        assert_eq!(abilities, Ability::ALL.into(), "{version}");
        assert_eq!(grants, Grant::ALL.into(), "{version}");
    }
}

#[tokio::test]
async fn released_components_answer_every_export() {
    for version in VERSIONS {
        let backend = load(version, "memory.wasm", BackendConfig::default()).await;
        assert_eq!(backend.probe(call()).await, Ok(Readiness::Ready));
        let volume = backend.create_volume(call(), request("v", 4_096)).await.unwrap();
        let cut = CreateSnapshot {
            name: "s".to_owned(),
            source: volume.handle.clone(),
            parameters: Parameters::new(),
            owner: None,
        };
        let snapshot = backend.create_snapshot(call(), cut).await.unwrap();
        backend
            .create_volume(
                call(),
                CreateVolume {
                    source: Some(ContentSource::Volume(volume.handle.clone())),
                    ..request("c", 4_096)
                },
            )
            .await
            .unwrap();
        backend
            .create_volume(
                call(),
                CreateVolume {
                    source: Some(ContentSource::Snapshot(snapshot.handle.clone())),
                    ..request("r", 4_096)
                },
            )
            .await
            .unwrap();
        let larger = ExpandVolume {
            handle: volume.handle.clone(),
            capacity: CapacityRange { required: Some(8_192), limit: None },
            capability: None,
        };
        assert_eq!(backend.expand_volume(call(), larger).await.unwrap().capacity, 8_192);
        let publish = PublishVolume {
            handle: volume.handle.clone(),
            node_id: NodeId::new("n"),
            node_identities: Parameters::new(),
            capability: request("v", 1).capabilities.remove(0),
            read_only: false,
            context: volume.context.clone(),
        };
        backend.publish_volume(call(), publish).await.unwrap();
        backend.unpublish_volume(call(), volume.handle.clone(), None).await.unwrap();
        backend.modify_volume(call(), volume.handle.clone(), Parameters::new()).await.unwrap();
        let group = CreateGroupSnapshot {
            name: "g".to_owned(),
            sources: [volume.handle.clone()].into(),
            parameters: Parameters::new(),
            owner: None,
        };
        let group = backend.create_group_snapshot(call(), group).await.unwrap();
        let members: BTreeSet<_> = group.snapshots.iter().map(|member| member.handle.clone()).collect();
        backend.get_group_snapshot(call(), group.handle.clone(), members.clone()).await.unwrap();
        backend.delete_group_snapshot(call(), group.handle, members).await.unwrap();
        assert_eq!(backend.list_volumes(call(), PageRequest::default()).await.unwrap().volumes.len(), 3);
        assert_eq!(
            backend.get_volume(call(), volume.handle.clone()).await.unwrap().volume.capacity,
            Some(8_192)
        );
        backend.get_snapshot(call(), snapshot.handle.clone()).await.unwrap();
        let listed = backend.list_snapshots(call(), None, PageRequest::default()).await.unwrap();
        assert_eq!(listed.snapshots.len(), 1);
        assert!(backend.get_capacity(call(), CapacityQuery::default()).await.unwrap().available > 0);
        let asked = ValidateVolume {
            handle: volume.handle.clone(),
            context: volume.context,
            capabilities: request("v", 1).capabilities,
            parameters: Parameters::new(),
            mutable_parameters: Parameters::new(),
        };
        assert_eq!(backend.validate_volume(call(), asked).await, Ok(Validation::Confirmed));
        backend.delete_snapshot(call(), snapshot.handle).await.unwrap();
        backend.delete_volume(call(), volume.handle).await.unwrap();
    }
}

#[tokio::test]
async fn released_components_can_use_every_import() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let origin = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut connection, _)) = listener.accept().await {
            let mut request = [0; 4_096];
            let length = connection.read(&mut request).await.unwrap();
            let seen = String::from_utf8_lossy(&request[..length]).contains("Bearer open sesame");
            let response = format!(
                "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{seen}",
                seen.to_string().len()
            );
            connection.write_all(response.as_bytes()).await.unwrap();
        }
    });
    for version in VERSIONS {
        let http = HttpConfig {
            origins: vec![OriginConfig {
                origin: origin.clone(),
                addresses: Some(vec!["127.0.0.1".to_owned()]),
                ..OriginConfig::default()
            }],
        };
        let grants = Grant::ALL.into();
        let config = BackendConfig { http, grants, class_secrets: true, ..BackendConfig::default() };
        let backend = load(version, "net.wasm", config).await;
        let script = format!(
            r#"[{{"acquire":"k"}},{{"put":["k","login",60000]}},{{"acquire":"k"}},{{"reveal":"password"}},
                {{"sign":["password","m"]}},"remaining-time",
                {{"send":{{"method":"GET","url":"{origin}/","authorization":{{"bearer":"password"}}}}}}]"#
        );
        let parameters = Parameters::from([("script".to_owned(), script)]);
        let secrets = [("password".to_owned(), Secret::new("open sesame"))].into_iter().collect();
        let asked = CreateVolume { parameters, ..request("v", 1) };
        let answer = backend.create_volume(Call { secrets, ..call() }, asked).await.unwrap().context;
        let step = |step: &str| answer.get(step).unwrap().as_str();
        assert_eq!([step("0"), step("2"), step("3")], ["locked", "found login", "11 bytes"], "{version}");
        assert_eq!(step("4").len(), 2 * 64 + 1, "{version}: {}", step("4"));
        assert_ne!(step("5"), "0", "{version}");
        assert!(step("6").ends_with(" true"), "{version}: {}", step("6"));

        let directory = tempfile::tempdir().unwrap();
        let pool =
            PoolConfig { directory: directory.path().to_owned(), capacity: None, image_bytes_max: None };
        let config = BackendConfig {
            pool: Some(pool),
            settings: settings(&[("node", "n")]),
            ..BackendConfig::default()
        };
        let backend = load(version, "pool.wasm", config).await;
        let volume = backend.create_volume(call(), request("v", 4_096)).await.unwrap();
        let items = || {
            fs::read_dir(directory.path())
                .unwrap()
                .filter(|item| item.as_ref().unwrap().path().is_dir())
                .count()
        };
        assert_eq!(items(), 1, "{version}");
        backend.delete_volume(call(), volume.handle).await.unwrap();
        assert_eq!(items(), 0, "{version}");
    }
}
