//! Over a real socket, with this program's own client at the other end: what a caller says is what the
//! backend hears.

use std::{path::PathBuf, sync::Arc, time::Duration};

use cofferdam_backend::{Backend as _, BackendMetrics, Call};
use cofferdam_domain::{
    names,
    storage::{
        Ability, AccessType, CapacityRange, CreateSnapshot, CreateVolume, CsiAccessMode, ErrorKind,
        ExpandVolume, Feature, Finality, PageRequest, Parameters, PublishVolume, Readiness,
        TopologyRequirement, ValidateVolume, Validation, VolumeCapability, connection_info,
    },
};
use tokio::{task::JoinHandle, time::Instant};
use tokio_util::sync::CancellationToken;

use super::fake::{Fake, directory};
use crate::{
    ConnectionMetrics, CsiBackend, CsiConfig,
    server::{BackendServer, Options, Server, ServerMetrics, Socket, SocketOptions},
    v1,
    wire::Wire,
};

struct Rig {
    _directory: tempfile::TempDir,
    socket: PathBuf,
    fake: Arc<Fake>,
    stop: CancellationToken,
    served: JoinHandle<()>,
}

async fn serve(fake: Arc<Fake>) -> Rig {
    let directory = tempfile::TempDir::new().unwrap();
    let path = directory.path().join("csi.sock");
    let socket = Socket::bind(&SocketOptions::new(path.to_str().unwrap().parse().unwrap())).await.unwrap();
    let options = Options { driver: "fake.example".to_owned(), patience: Duration::from_secs(60) };
    let server = Server::new(socket, options, &ServerMetrics::default());
    let server = BackendServer::new(Arc::clone(&fake) as _).on(server);
    let stop = CancellationToken::new();
    let served = tokio::spawn(server.serve(stop.clone()));
    Rig { _directory: directory, socket: path, fake, stop, served }
}

impl Rig {
    async fn client(&self) -> Arc<CsiBackend> {
        let config = CsiConfig::new(self.socket.to_str().unwrap().parse().unwrap());
        CsiBackend::connect(config, &BackendMetrics::default(), &ConnectionMetrics::default()).await.unwrap()
    }

    async fn wire(&self) -> (Wire, tokio::task::JoinHandle<String>) {
        let (wire, closed) = Wire::connect(&self.socket.to_str().unwrap().parse().unwrap()).await.unwrap();
        (wire, tokio::spawn(closed))
    }

    /// Waits until the driver has heard a call.
    async fn heard(&self) {
        until(|| !self.fake.heard.lock().unwrap().is_empty()).await;
    }
}

/// Waits for what has to come, and not for ever.
async fn until(there: impl Fn() -> bool) {
    let looks = async {
        while !there() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), looks).await.unwrap();
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

fn creation(name: &str) -> CreateVolume {
    let place = parameters(&[("zone", "a")]);
    CreateVolume {
        name: name.to_owned(),
        capacity: CapacityRange { required: Some(5), limit: Some(1 << 40) },
        capabilities: vec![capability()],
        parameters: parameters(&[("tier", "gold")]),
        mutable_parameters: parameters(&[("iops", "5")]),
        topology: Some(TopologyRequirement { requisite: vec![place.clone()], preferred: vec![place] }),
        owner: None,
    }
}

#[tokio::test]
async fn what_is_said_is_what_is_heard() {
    let rig = serve(Fake::complete()).await;
    let client = rig.client().await;
    assert_eq!(client.probe(call()).await, Ok(Readiness::Ready));
    assert_eq!(client.description().name, rig.fake.description().name);
    assert_eq!(client.abilities(), rig.fake.abilities());

    // The attachment of a driver with a publish step travels with the publication, and here also with the
    // volume.
    let heard = |request: &dyn std::fmt::Debug| assert_eq!(rig.fake.last(), format!("{request:?}"));
    let mut wire = rig.wire().await.0.controller();
    let made = wire.create_volume(v1::CreateVolumeRequest {
        name: "n".to_owned(),
        volume_capabilities: vec![crate::request::capability(capability(), true)],
        ..Default::default()
    });
    let made = made.await.unwrap().into_inner().volume.unwrap();
    assert_eq!(
        connection_info::from_contexts(&Parameters::new(), &made.volume_context, false),
        Ok(directory())
    );
    assert_eq!(
        connection_info::driver_attributes(made.volume_context.clone()),
        parameters(&[("tier", "gold")])
    );

    let publication = PublishVolume {
        handle: "v".into(),
        node_id: "node-1".into(),
        node_identities: Parameters::new(),
        capability: capability(),
        read_only: true,
        context: made.volume_context,
    };
    let published = client.publish_volume(call(), publication.clone()).await.unwrap();
    assert_eq!(connection_info::from_contexts(&published.fields, &Parameters::new(), true), Ok(directory()));
    heard(&PublishVolume { context: parameters(&[("tier", "gold")]), ..publication });

    let made = client.create_volume(call(), creation("n")).await.unwrap();
    assert_eq!((made.connection_info, made.capacity), (Some(directory()), Some(1 << 30)));
    assert_eq!(made.topology, [parameters(&[("zone", "a")])]);
    heard(&creation("n"));
    client.delete_volume(call(), "../v".into()).await.unwrap();
    heard(&"../v");
    let expansion = ExpandVolume {
        handle: "v".into(),
        capacity: CapacityRange { required: Some(7), limit: None },
        capability: Some(capability()),
    };
    let expanded = client.expand_volume(call(), expansion.clone()).await.unwrap();
    assert_eq!((expanded.capacity, expanded.node_expansion_required), (1 << 40, true));
    heard(&expansion);
    let validation = ValidateVolume {
        handle: "v".into(),
        context: parameters(&[("tier", "gold")]),
        capabilities: vec![capability()],
        parameters: parameters(&[("a", "b")]),
        mutable_parameters: parameters(&[("iops", "5")]),
    };
    assert_eq!(client.validate_volume(call(), validation.clone()).await, Ok(Validation::Confirmed));
    heard(&validation);
    let cut = CreateSnapshot {
        name: "n".to_owned(),
        source: "v".into(),
        parameters: parameters(&[("a", "b")]),
        owner: None,
    };
    let snapshot = client.create_snapshot(call(), cut.clone()).await.unwrap();
    assert_eq!(
        (snapshot.created_at_ms, snapshot.size, snapshot.ready),
        (1_700_000_000_123, Some(1 << 30), true)
    );
    heard(&cut);
    let page = PageRequest { starting_token: Some("t".to_owned()), max_entries: Some(5) };
    assert_eq!(
        client.list_snapshots(call(), Some("v".into()), page.clone()).await.unwrap().next_token.as_deref(),
        Some("more")
    );
    heard(&(Some("v"), &page));
    let status = client.get_volume(call(), "v".into()).await.unwrap();
    assert_eq!(status.volume.connection_info, Some(directory()));
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
    heard(&("v", parameters(&[("iops", "9")])));
}

#[tokio::test]
async fn an_open_outcome_stays_open_across_the_socket() {
    let rig = serve(Fake::complete()).await;
    let client = rig.client().await;
    let error = client.create_volume(call(), creation("open")).await.unwrap_err();
    assert_eq!((error.kind, error.finality), (ErrorKind::Unavailable, Finality::Unknown));
    assert_eq!(error.message, "Internal: it trapped; it may still have an effect: repeat the call");
    let error = client.create_volume(call(), creation("missing")).await.unwrap_err();
    assert_eq!((error.kind, error.finality), (ErrorKind::NotFound, Finality::Final));
    let error = client.create_volume(call(), creation("panic")).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Internal);
    assert_eq!(client.probe(call()).await, Ok(Readiness::Ready), "the next call is served");
}

fn hanging() -> v1::DeleteVolumeRequest {
    v1::DeleteVolumeRequest { volume_id: "hang".to_owned(), ..Default::default() }
}

#[tokio::test]
async fn a_second_operation_is_aborted_until_the_first_has_gone() {
    let rig = serve(Fake::complete()).await;
    let (wire, closed) = rig.wire().await;
    let mut first = wire.controller();
    let first = tokio::spawn(async move { first.delete_volume(hanging()).await });
    rig.heard().await;
    let mut second = rig.wire().await.0.controller();
    let refused = second.delete_volume(hanging()).await.unwrap_err();
    assert_eq!(
        (refused.code(), refused.message()),
        (tonic::Code::Aborted, "another operation for this volume is running")
    );
    // Whoever goes away lets go.
    first.abort();
    closed.abort();
    loop {
        let mut request = tonic::Request::new(hanging());
        request.set_timeout(Duration::from_millis(1));
        match second.delete_volume(request).await.unwrap_err().code() {
            tonic::Code::Aborted => {}
            code => break assert_eq!(code, tonic::Code::DeadlineExceeded),
        }
    }
}

#[tokio::test]
async fn what_a_volume_was_made_of_travels_with_it() {
    use v1::volume_content_source::{SnapshotSource, Type, VolumeSource};
    let rig = serve(Fake::complete()).await;
    let mut wire = rig.wire().await.0.controller();
    let table = [
        (None, None),
        (Some(Type::Volume(VolumeSource { volume_id: "x".to_owned() })), Some("volume")),
        (Some(Type::Snapshot(SnapshotSource { snapshot_id: "x".to_owned() })), Some("snapshot")),
    ];
    for (source, expected) in table {
        let request = v1::CreateVolumeRequest {
            name: "n".to_owned(),
            volume_capabilities: vec![crate::request::capability(capability(), true)],
            volume_content_source: source
                .clone()
                .map(|source| v1::VolumeContentSource { r#type: Some(source) }),
            ..Default::default()
        };
        let made = wire.create_volume(request).await.unwrap().into_inner().volume.unwrap();
        let found = made.volume_context.get(names::CONTENT_SOURCE).map(String::as_str);
        assert_eq!(found, expected, "{source:?}");
    }
    // This program's own client asked for it, and takes it from nobody.
    let client = rig.client().await;
    let cloned = client.clone_volume(call(), creation("n"), "x".into()).await.unwrap();
    assert_eq!(cloned.context, parameters(&[("tier", "gold")]));
}

#[tokio::test]
async fn an_end_waits_for_what_runs_and_lets_nobody_in() {
    let rig = serve(Fake::complete()).await;
    let mut running = rig.wire().await.0.controller();
    let mut request = tonic::Request::new(hanging());
    request.set_timeout(Duration::from_secs(5));
    let running = tokio::spawn(async move { running.delete_volume(request).await });
    rig.heard().await;
    let begun = Instant::now();
    rig.stop.cancel();
    until(|| !rig.socket.exists()).await;
    assert!(!rig.served.is_finished(), "a call runs");
    rig.served.await.unwrap();
    assert_eq!(running.await.unwrap().unwrap_err().code(), tonic::Code::DeadlineExceeded);
    assert!(begun.elapsed() < Duration::from_secs(30));
}

#[tokio::test]
async fn a_plain_driver_announces_what_it_has() {
    let rig = serve(Fake::new(&[Ability::Publishing], &[Feature::PublishReadonly], false)).await;
    let client = rig.client().await;
    assert_eq!(client.abilities(), &[Ability::Publishing].into());
    let mut group = rig.wire().await.0.group_controller();
    let refused = group.group_controller_get_capabilities(v1::GroupControllerGetCapabilitiesRequest {}).await;
    assert_eq!(refused.unwrap_err().code(), tonic::Code::Unimplemented);
}
