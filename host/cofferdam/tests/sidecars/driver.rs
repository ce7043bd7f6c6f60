//! A CSI driver that records its calls.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use cofferdam_csi::v1::{
    self,
    controller_server::{Controller, ControllerServer},
    identity_server::{Identity, IdentityServer},
    volume_capability::AccessType,
};
use tokio::{net::UnixListener, sync::Semaphore, task::JoinHandle};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status, transport::Server};

/// Name of the driver.
pub(crate) const NAME: &str = "existing.example";

type Answer<T> = Result<Response<T>, Status>;

/// A call that the driver has received.
#[derive(Clone, Debug)]
pub(crate) struct RecordedCall {
    pub(crate) at: Instant,
    /// Name of the method, such as `CreateVolume`.
    pub(crate) method: &'static str,
    /// Deadline of the caller.
    pub(crate) timeout: Option<Duration>,
    pub(crate) parameters: BTreeMap<String, String>,
    pub(crate) mutable_parameters: BTreeMap<String, String>,
    pub(crate) password: Option<String>,
    pub(crate) fs_type: String,
    /// Number of requisite topologies.
    pub(crate) topologies: usize,
    pub(crate) max_entries: i32,
    /// Name of the snapshot.
    pub(crate) name: String,
}

impl RecordedCall {
    fn new(method: &'static str) -> Self {
        Self {
            at: Instant::now(),
            method,
            timeout: None,
            parameters: BTreeMap::new(),
            mutable_parameters: BTreeMap::new(),
            password: None,
            fs_type: String::new(),
            topologies: 0,
            max_entries: 0,
            name: String::new(),
        }
    }
}

/// Behavior of the driver.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Behavior {
    /// CreateVolume fails with `Unavailable`.
    pub(crate) fails_creates: bool,
    /// ControllerExpandVolume fails with `FailedPrecondition`.
    pub(crate) fails_expansions: bool,
    /// Probe does not return.
    pub(crate) hangs_in_probes: bool,
    /// GetPluginInfo does not return.
    pub(crate) hangs_in_plugin_info: bool,
    /// ControllerPublishVolume fails with `ResourceExhausted`.
    pub(crate) fails_publications: bool,
    /// ControllerExpandVolume succeeds, and the filesystem remains to be expanded on the node.
    pub(crate) expands_on_nodes: bool,
    /// The driver has the capability GET_CAPACITY, and no capacity.
    pub(crate) has_no_capacity: bool,
    /// Calls of this method wait for [`RecordingDriver::release`].
    pub(crate) held_method: &'static str,
}

#[derive(Debug, Default)]
struct State {
    behavior: Behavior,
    calls: Vec<RecordedCall>,
    /// Calls of the held method that run, and their maximum.
    running_calls: usize,
    max_running_calls: usize,
}

/// The driver. Clones have the same state.
#[derive(Clone, Debug)]
pub(crate) struct RecordingDriver {
    state: Arc<Mutex<State>>,
    /// Has a permit for each held call that may return.
    gate: Arc<Semaphore>,
}

impl RecordingDriver {
    /// Serves the driver on a socket.
    pub(crate) fn serve(socket: &Path, behavior: Behavior) -> (Self, JoinHandle<()>) {
        let state = Arc::new(Mutex::new(State { behavior, ..State::default() }));
        let driver = Self { state, gate: Arc::new(Semaphore::new(0)) };
        let listener = UnixListener::bind(socket).unwrap();
        let services = Server::builder()
            .add_service(IdentityServer::new(driver.clone()))
            .add_service(ControllerServer::new(driver.clone()));
        let server = tokio::spawn(async move {
            services.serve_with_incoming(UnixListenerStream::new(listener)).await.unwrap();
        });
        (driver, server)
    }

    /// The calls of a method, in order.
    pub(crate) fn calls(&self, method: &str) -> Vec<RecordedCall> {
        let state = self.state.lock().unwrap();
        state.calls.iter().filter(|call| call.method == method).cloned().collect()
    }

    /// Lets one held call return, or the next one if none is held.
    pub(crate) fn release(&self) {
        self.gate.add_permits(1);
    }

    /// Largest number of calls of the held method at the same time.
    pub(crate) fn max_running_calls(&self) -> usize {
        self.state.lock().unwrap().max_running_calls
    }

    /// Waits for [`RecordingDriver::release`] if calls of the method are held.
    async fn hold(&self, method: &'static str) {
        {
            let mut state = self.state.lock().unwrap();
            if state.behavior.held_method != method {
                return;
            }
            state.running_calls += 1;
            state.max_running_calls = state.max_running_calls.max(state.running_calls);
        }
        self.gate.acquire().await.unwrap().forget();
        self.state.lock().unwrap().running_calls -= 1;
    }

    fn record<T>(&self, request: &Request<T>, call: RecordedCall) -> Behavior {
        let timeout =
            request.metadata().get("grpc-timeout").map(|value| parse_timeout(value.to_str().unwrap()));
        let mut state = self.state.lock().unwrap();
        state.calls.push(RecordedCall { timeout, ..call });
        state.behavior
    }
}

/// Parses a `grpc-timeout`: a number and a unit.
fn parse_timeout(text: &str) -> Duration {
    let (number, unit) = text.split_at(text.len() - 1);
    let number = number.parse().unwrap();
    match unit {
        "n" => Duration::from_nanos(number),
        "u" => Duration::from_micros(number),
        "m" => Duration::from_millis(number),
        "S" => Duration::from_secs(number),
        "M" => Duration::from_secs(number * 60),
        "H" => Duration::from_secs(number * 3600),
        _ => panic!("{text}"),
    }
}

fn fs_type(capability: Option<&v1::VolumeCapability>) -> String {
    match capability.and_then(|capability| capability.access_type.as_ref()) {
        Some(AccessType::Mount(mount)) => mount.fs_type.clone(),
        _ => String::new(),
    }
}

#[tonic::async_trait]
impl Identity for RecordingDriver {
    async fn get_plugin_info(
        &self,
        request: Request<v1::GetPluginInfoRequest>,
    ) -> Answer<v1::GetPluginInfoResponse> {
        if self.record(&request, RecordedCall::new("GetPluginInfo")).hangs_in_plugin_info {
            std::future::pending::<()>().await;
        }
        let (name, vendor_version) = (NAME.to_owned(), "1".to_owned());
        Ok(Response::new(v1::GetPluginInfoResponse { name, vendor_version, manifest: BTreeMap::new() }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<v1::GetPluginCapabilitiesRequest>,
    ) -> Answer<v1::GetPluginCapabilitiesResponse> {
        use v1::plugin_capability::{Service, Type, VolumeExpansion, service, volume_expansion};
        let service = |kind: service::Type| Type::Service(Service { r#type: kind.into() });
        let expansion =
            Type::VolumeExpansion(VolumeExpansion { r#type: volume_expansion::Type::Offline.into() });
        let types = [
            service(service::Type::ControllerService),
            service(service::Type::VolumeAccessibilityConstraints),
            expansion,
        ];
        let capabilities = types.map(|kind| v1::PluginCapability { r#type: Some(kind) }).to_vec();
        Ok(Response::new(v1::GetPluginCapabilitiesResponse { capabilities }))
    }

    async fn probe(&self, request: Request<v1::ProbeRequest>) -> Answer<v1::ProbeResponse> {
        if self.record(&request, RecordedCall::new("Probe")).hangs_in_probes {
            std::future::pending::<()>().await;
        }
        Ok(Response::new(v1::ProbeResponse { ready: Some(true) }))
    }
}

#[tonic::async_trait]
impl Controller for RecordingDriver {
    async fn controller_get_capabilities(
        &self,
        _: Request<v1::ControllerGetCapabilitiesRequest>,
    ) -> Answer<v1::ControllerGetCapabilitiesResponse> {
        use v1::controller_service_capability::{Rpc, Type, rpc};
        let mut types = vec![
            rpc::Type::CreateDeleteVolume,
            rpc::Type::PublishUnpublishVolume,
            rpc::Type::ListVolumes,
            rpc::Type::ListVolumesPublishedNodes,
            rpc::Type::ExpandVolume,
            rpc::Type::ModifyVolume,
            rpc::Type::CreateDeleteSnapshot,
            rpc::Type::ListSnapshots,
        ];
        if self.state.lock().unwrap().behavior.has_no_capacity {
            types.push(rpc::Type::GetCapacity);
        }
        let capability = |kind: rpc::Type| v1::ControllerServiceCapability {
            r#type: Some(Type::Rpc(Rpc { r#type: kind.into() })),
        };
        let capabilities = types.into_iter().map(capability).collect();
        Ok(Response::new(v1::ControllerGetCapabilitiesResponse { capabilities }))
    }

    async fn create_volume(
        &self,
        request: Request<v1::CreateVolumeRequest>,
    ) -> Answer<v1::CreateVolumeResponse> {
        let message = request.get_ref();
        let call = RecordedCall {
            parameters: message.parameters.clone(),
            mutable_parameters: message.mutable_parameters.clone(),
            password: message.secrets.get("password").cloned(),
            fs_type: fs_type(message.volume_capabilities.first()),
            topologies: message.accessibility_requirements.as_ref().map_or(0, |all| all.requisite.len()),
            ..RecordedCall::new("CreateVolume")
        };
        let behavior = self.record(&request, call);
        if behavior.fails_creates {
            return Err(Status::unavailable("no"));
        }
        self.hold("CreateVolume").await;
        let request = request.into_inner();
        let volume = v1::Volume {
            capacity_bytes: request.capacity_range.map(|range| range.required_bytes).unwrap_or_default(),
            volume_id: request.name,
            accessible_topology: request.accessibility_requirements.unwrap_or_default().requisite,
            ..v1::Volume::default()
        };
        Ok(Response::new(v1::CreateVolumeResponse { volume: Some(volume) }))
    }

    async fn controller_publish_volume(
        &self,
        request: Request<v1::ControllerPublishVolumeRequest>,
    ) -> Answer<v1::ControllerPublishVolumeResponse> {
        let message = request.get_ref();
        let call = RecordedCall {
            fs_type: fs_type(message.volume_capability.as_ref()),
            password: message.secrets.get("password").cloned(),
            ..RecordedCall::new("ControllerPublishVolume")
        };
        if self.record(&request, call).fails_publications {
            return Err(Status::resource_exhausted("no free port"));
        }
        self.hold("ControllerPublishVolume").await;
        Ok(Response::new(v1::ControllerPublishVolumeResponse { publish_context: BTreeMap::new() }))
    }

    async fn create_snapshot(
        &self,
        request: Request<v1::CreateSnapshotRequest>,
    ) -> Answer<v1::CreateSnapshotResponse> {
        let message = request.get_ref();
        let call = RecordedCall {
            parameters: message.parameters.clone(),
            password: message.secrets.get("password").cloned(),
            name: message.name.clone(),
            ..RecordedCall::new("CreateSnapshot")
        };
        self.record(&request, call);
        let request = request.into_inner();
        let snapshot = v1::Snapshot {
            size_bytes: 1 << 30,
            snapshot_id: request.name,
            source_volume_id: request.source_volume_id,
            creation_time: Some(Default::default()),
            ready_to_use: true,
            ..v1::Snapshot::default()
        };
        Ok(Response::new(v1::CreateSnapshotResponse { snapshot: Some(snapshot) }))
    }

    async fn list_snapshots(
        &self,
        request: Request<v1::ListSnapshotsRequest>,
    ) -> Answer<v1::ListSnapshotsResponse> {
        let password = request.get_ref().secrets.get("password").cloned();
        self.record(&request, RecordedCall { password, ..RecordedCall::new("ListSnapshots") });
        let snapshot = v1::Snapshot {
            size_bytes: 2 << 30,
            snapshot_id: request.into_inner().snapshot_id,
            source_volume_id: "static".to_owned(),
            creation_time: Some(Default::default()),
            ready_to_use: true,
            ..v1::Snapshot::default()
        };
        let entries = vec![v1::list_snapshots_response::Entry { snapshot: Some(snapshot) }];
        Ok(Response::new(v1::ListSnapshotsResponse { entries, next_token: String::new() }))
    }

    async fn list_volumes(
        &self,
        request: Request<v1::ListVolumesRequest>,
    ) -> Answer<v1::ListVolumesResponse> {
        let max_entries = request.get_ref().max_entries;
        self.record(&request, RecordedCall { max_entries, ..RecordedCall::new("ListVolumes") });
        Ok(Response::new(v1::ListVolumesResponse { entries: Vec::new(), next_token: String::new() }))
    }

    async fn get_capacity(
        &self,
        request: Request<v1::GetCapacityRequest>,
    ) -> Answer<v1::GetCapacityResponse> {
        self.record(&request, RecordedCall::new("GetCapacity"));
        Ok(Response::new(v1::GetCapacityResponse::default()))
    }

    async fn controller_expand_volume(
        &self,
        request: Request<v1::ControllerExpandVolumeRequest>,
    ) -> Answer<v1::ControllerExpandVolumeResponse> {
        let password = request.get_ref().secrets.get("password").cloned();
        let call = RecordedCall { password, ..RecordedCall::new("ControllerExpandVolume") };
        let behavior = self.record(&request, call);
        if behavior.fails_expansions {
            return Err(Status::failed_precondition("the volume is in use"));
        }
        self.hold("ControllerExpandVolume").await;
        let capacity_bytes = request.get_ref().capacity_range.map(|range| range.required_bytes).unwrap();
        let response = v1::ControllerExpandVolumeResponse {
            capacity_bytes,
            node_expansion_required: behavior.expands_on_nodes,
        };
        Ok(Response::new(response))
    }

    async fn controller_modify_volume(
        &self,
        request: Request<v1::ControllerModifyVolumeRequest>,
    ) -> Answer<v1::ControllerModifyVolumeResponse> {
        let mutable_parameters = request.get_ref().mutable_parameters.clone();
        let call = RecordedCall { mutable_parameters, ..RecordedCall::new("ControllerModifyVolume") };
        self.record(&request, call);
        Ok(Response::new(v1::ControllerModifyVolumeResponse {}))
    }
}
