//! Tests over a real socket, with this program's own client and with a generated client: requests reach the
//! backend unchanged, failures in doubt stay in doubt, operations on one object exclude each other, the
//! content source's kind is returned, a shutdown finishes running calls, and only the backend's capabilities
//! are announced.

use std::{path::PathBuf, sync::Arc, time::Duration};

use cofferdam_backend::{
    Backend as _, BackendMetrics, Call,
    testing::{ScriptedBackend, directory_connection},
};
use cofferdam_domain::{
    names,
    storage::{
        Ability, AccessType, CapacityRange, ContentSource, CreateSnapshot, CreateVolume, CsiAccessMode,
        ErrorKind, ExpandVolume, Feature, Finality, PageRequest, Parameters, PublishVolume, Readiness,
        TopologyRequirement, ValidateVolume, Validation, VolumeCapability, connection_info,
    },
};
use tokio::{task::JoinHandle, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::{
    ConnectionMetrics, CsiBackend, CsiConfig,
    grpc::GrpcConnection,
    server::{BackendServer, Server, ServerMetrics, ServerOptions, ServerSocket, SocketOptions},
    v1,
};

struct SocketFixture {
    _directory: tempfile::TempDir,
    socket: PathBuf,
    backend: Arc<ScriptedBackend>,
    stop: CancellationToken,
    server_task: JoinHandle<()>,
}

async fn serve_fake_backend(backend: Arc<ScriptedBackend>) -> SocketFixture {
    let directory = tempfile::TempDir::new().unwrap();
    let path = directory.path().join("csi.sock");
    let socket =
        ServerSocket::bind(&SocketOptions::new(path.to_str().unwrap().parse().unwrap())).await.unwrap();
    let options =
        ServerOptions { driver: "fake.example".to_owned(), default_timeout: Duration::from_secs(60) };
    let server = Server::new(socket, options, &ServerMetrics::default());
    let server = BackendServer::new(Arc::clone(&backend) as _).register_on(server);
    let stop = CancellationToken::new();
    let server_task = tokio::spawn(server.serve(stop.clone()));
    SocketFixture { _directory: directory, socket: path, backend, stop, server_task }
}

impl SocketFixture {
    async fn client(&self) -> Arc<CsiBackend> {
        let config = CsiConfig::new(self.socket.to_str().unwrap().parse().unwrap());
        CsiBackend::connect(config, &BackendMetrics::default(), &ConnectionMetrics::default()).await.unwrap()
    }

    async fn raw_connection(&self) -> (GrpcConnection, tokio::task::JoinHandle<String>) {
        let (connection, closed_reason) =
            GrpcConnection::connect(&self.socket.to_str().unwrap().parse().unwrap()).await.unwrap();
        (connection, tokio::spawn(closed_reason))
    }

    /// Waits until the backend has received a request.
    async fn wait_for_request(&self) {
        wait_for_condition(|| !self.backend.requests().is_empty()).await;
    }
}

/// Polls until a condition is true, with a timeout.
async fn wait_for_condition(condition: impl Fn() -> bool) {
    let poll = async {
        while !condition() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), poll).await.unwrap();
}

fn call() -> Call {
    Call::with_deadline(Duration::from_secs(30))
}

fn capability() -> VolumeCapability {
    let access = AccessType::Filesystem {
        fs_type: Some("ext4".to_owned()),
        mount_flags: vec!["noatime".to_owned()],
        mount_group: Some("5".to_owned()),
    };
    VolumeCapability { access_mode: CsiAccessMode::SingleNodeMultiWriter, access_type: access }
}

fn parameters(pairs: &[(&str, &str)]) -> Parameters {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn create_request(name: &str) -> CreateVolume {
    let segments = parameters(&[("zone", "a")]);
    CreateVolume {
        name: name.to_owned(),
        capacity: CapacityRange { required: Some(5), limit: Some(1 << 40) },
        capabilities: vec![capability()],
        parameters: parameters(&[("tier", "gold")]),
        mutable_parameters: parameters(&[("iops", "5")]),
        topology: Some(TopologyRequirement { requisite: vec![segments.clone()], preferred: vec![segments] }),
        owner: None,
        source: None,
    }
}

#[tokio::test]
async fn requests_reach_the_backend_unchanged_over_a_socket() {
    let fixture = serve_fake_backend(ScriptedBackend::complete()).await;
    let client = fixture.client().await;
    assert_eq!(client.probe(call()).await, Ok(Readiness::Ready));
    assert_eq!(client.description().name, fixture.backend.description().name);
    assert_eq!(client.abilities(), fixture.backend.abilities());

    // The fake backend returns connection info for create and for publish, so it is in the volume context and
    // in the publish context.
    let assert_received =
        |request: &dyn std::fmt::Debug| assert_eq!(fixture.backend.last_request(), format!("{request:?}"));
    let mut controller_client = fixture.raw_connection().await.0.controller();
    let created = controller_client.create_volume(v1::CreateVolumeRequest {
        name: "n".to_owned(),
        volume_capabilities: vec![crate::request::volume_capability(capability(), true)],
        ..Default::default()
    });
    let created = created.await.unwrap().into_inner().volume.unwrap();
    assert_eq!(
        connection_info::from_contexts(&Parameters::new(), &created.volume_context, false),
        Ok(directory_connection())
    );
    assert_eq!(
        connection_info::driver_attributes(created.volume_context.clone()),
        parameters(&[("tier", "gold")])
    );

    let publication = PublishVolume {
        handle: "v".into(),
        node_id: "node-1".into(),
        node_identities: Parameters::new(),
        capability: capability(),
        read_only: true,
        context: created.volume_context,
    };
    let published = client.publish_volume(call(), publication.clone()).await.unwrap();
    assert_eq!(
        connection_info::from_contexts(&published.fields, &Parameters::new(), true),
        Ok(directory_connection())
    );
    assert_received(&PublishVolume { context: parameters(&[("tier", "gold")]), ..publication });

    let created = client.create_volume(call(), create_request("n")).await.unwrap();
    assert_eq!((created.connection_info, created.capacity), (Some(directory_connection()), Some(1 << 30)));
    assert_eq!(created.topology, [parameters(&[("zone", "a")])]);
    assert_received(&create_request("n"));
    client.delete_volume(call(), "../v".into()).await.unwrap();
    assert_received(&"../v");
    let expansion = ExpandVolume {
        handle: "v".into(),
        capacity: CapacityRange { required: Some(7), limit: None },
        capability: Some(capability()),
    };
    let expanded = client.expand_volume(call(), expansion.clone()).await.unwrap();
    assert_eq!((expanded.capacity, expanded.node_expansion_required), (1 << 40, true));
    assert_received(&expansion);
    let validation = ValidateVolume {
        handle: "v".into(),
        context: parameters(&[("tier", "gold")]),
        capabilities: vec![capability()],
        parameters: parameters(&[("a", "b")]),
        mutable_parameters: parameters(&[("iops", "5")]),
    };
    assert_eq!(client.validate_volume(call(), validation.clone()).await, Ok(Validation::Confirmed));
    assert_received(&validation);
    let create_snapshot = CreateSnapshot {
        name: "n".to_owned(),
        source: "v".into(),
        parameters: parameters(&[("a", "b")]),
        owner: None,
    };
    let snapshot = client.create_snapshot(call(), create_snapshot.clone()).await.unwrap();
    assert_eq!(
        (snapshot.created_at_ms, snapshot.size, snapshot.ready),
        (1_700_000_000_123, Some(1 << 30), true)
    );
    assert_received(&create_snapshot);
    let page = PageRequest { starting_token: Some("t".to_owned()), max_entries: Some(5) };
    assert_eq!(
        client.list_snapshots(call(), Some("v".into()), page.clone()).await.unwrap().next_token.as_deref(),
        Some("more")
    );
    assert_received(&(Some("v"), &page));
    let status = client.get_volume(call(), "v".into()).await.unwrap();
    assert_eq!(status.volume.connection_info, Some(directory_connection()));
    assert_eq!(status.volume.context, parameters(&[("tier", "gold")]));
    assert_eq!(status.published_node_ids, ["node-1".into()]);
    assert!(status.condition.is_some_and(|condition| condition.abnormal));
    let capacity = client.get_capacity(call(), Default::default()).await.unwrap();
    assert_eq!(
        (capacity.available, capacity.maximum_volume_size, capacity.minimum_volume_size),
        (5, Some(3), None)
    );
    let group = client.get_group_snapshot(call(), "g".into(), ["s".into()].into()).await.unwrap();
    assert_eq!(group.snapshots.len(), 1);
    client.modify_volume(call(), "v".into(), parameters(&[("iops", "9")])).await.unwrap();
    assert_received(&("v", parameters(&[("iops", "9")])));
}

#[tokio::test]
async fn failure_in_doubt_stays_in_doubt_over_a_socket() {
    let fixture = serve_fake_backend(ScriptedBackend::complete()).await;
    let client = fixture.client().await;
    let error = client.create_volume(call(), create_request("open")).await.unwrap_err();
    assert_eq!((error.kind, error.finality), (ErrorKind::Unavailable, Finality::Unknown));
    assert_eq!(error.message, "Internal: it trapped; it may still take effect: retry the call");
    let error = client.create_volume(call(), create_request("missing")).await.unwrap_err();
    assert_eq!((error.kind, error.finality), (ErrorKind::NotFound, Finality::Final));
    let error = client.create_volume(call(), create_request("panic")).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Internal);
    assert_eq!(client.probe(call()).await, Ok(Readiness::Ready), "the next call is served");
}

fn hanging_delete() -> v1::DeleteVolumeRequest {
    v1::DeleteVolumeRequest { volume_id: "hang".to_owned(), ..Default::default() }
}

#[tokio::test]
async fn concurrent_delete_is_aborted_until_the_first_is_cancelled() {
    let fixture = serve_fake_backend(ScriptedBackend::complete()).await;
    let (connection, closed) = fixture.raw_connection().await;
    let mut first = connection.controller();
    let first = tokio::spawn(async move { first.delete_volume(hanging_delete()).await });
    fixture.wait_for_request().await;
    let mut second = fixture.raw_connection().await.0.controller();
    let error = second.delete_volume(hanging_delete()).await.unwrap_err();
    assert_eq!(
        (error.code(), error.message()),
        (tonic::Code::Aborted, "another operation for this volume is running")
    );
    // A disconnected client's lock is released.
    first.abort();
    closed.abort();
    loop {
        let mut request = tonic::Request::new(hanging_delete());
        request.set_timeout(Duration::from_millis(1));
        match second.delete_volume(request).await.unwrap_err().code() {
            tonic::Code::Aborted => {}
            code => break assert_eq!(code, tonic::Code::DeadlineExceeded),
        }
    }
}

#[tokio::test]
async fn content_source_kind_is_returned_in_the_volume_context() {
    use v1::volume_content_source::{SnapshotSource, Type, VolumeSource};
    let fixture = serve_fake_backend(ScriptedBackend::complete()).await;
    let mut controller_client = fixture.raw_connection().await.0.controller();
    let table = [
        (None, None),
        (Some(Type::Volume(VolumeSource { volume_id: "x".to_owned() })), Some("volume")),
        (Some(Type::Snapshot(SnapshotSource { snapshot_id: "x".to_owned() })), Some("snapshot")),
    ];
    for (source, expected) in table {
        let request = v1::CreateVolumeRequest {
            name: "n".to_owned(),
            volume_capabilities: vec![crate::request::volume_capability(capability(), true)],
            volume_content_source: source
                .clone()
                .map(|source| v1::VolumeContentSource { r#type: Some(source) }),
            ..Default::default()
        };
        let created = controller_client.create_volume(request).await.unwrap().into_inner().volume.unwrap();
        let found = created.volume_context.get(names::CONTENT_SOURCE).map(String::as_str);
        assert_eq!(found, expected, "{source:?}");
    }
    // This program's client requested the source itself and drops the key from the response.
    let client = fixture.client().await;
    let cloned = client
        .create_volume(
            call(),
            CreateVolume { source: Some(ContentSource::Volume("x".into())), ..create_request("n") },
        )
        .await
        .unwrap();
    assert_eq!(cloned.context, parameters(&[("tier", "gold")]));
}

#[tokio::test]
async fn shutdown_finishes_running_calls_and_accepts_no_more() {
    let fixture = serve_fake_backend(ScriptedBackend::complete()).await;
    let mut running = fixture.raw_connection().await.0.controller();
    let mut request = tonic::Request::new(hanging_delete());
    request.set_timeout(Duration::from_secs(5));
    let running = tokio::spawn(async move { running.delete_volume(request).await });
    fixture.wait_for_request().await;
    let started = Instant::now();
    fixture.stop.cancel();
    wait_for_condition(|| !fixture.socket.exists()).await;
    assert!(!fixture.server_task.is_finished(), "a call is running");
    fixture.server_task.await.unwrap();
    assert_eq!(running.await.unwrap().unwrap_err().code(), tonic::Code::DeadlineExceeded);
    assert!(started.elapsed() < Duration::from_secs(30));
}

#[tokio::test]
async fn driver_announces_only_its_own_capabilities() {
    let fixture =
        serve_fake_backend(ScriptedBackend::new(&[Ability::Publishing], &[Feature::PublishReadonly], false))
            .await;
    let client = fixture.client().await;
    assert_eq!(client.abilities(), &[Ability::Publishing].into());
    let mut group = fixture.raw_connection().await.0.group_controller();
    let result = group.group_controller_get_capabilities(v1::GroupControllerGetCapabilitiesRequest {}).await;
    assert_eq!(result.unwrap_err().code(), tonic::Code::Unimplemented);
}
