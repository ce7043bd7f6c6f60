//! A driver built on the generated servers, called through [`CsiBackend`](cofferdam_csi::CsiBackend).

use cofferdam_backend::Backend;
use cofferdam_csi::{
    CsiConfig,
    v1::{
        self,
        group_controller_server::{GroupController, GroupControllerServer},
        identity_server::{Identity, IdentityServer},
    },
};
use cofferdam_domain::storage::{Ability, ErrorKind, Finality};
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status, transport::Server};

use crate::fake_driver::{call, connect};

struct GeneratedServerDriver;

type TonicResult<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl Identity for GeneratedServerDriver {
    async fn get_plugin_info(
        &self,
        _: Request<v1::GetPluginInfoRequest>,
    ) -> TonicResult<v1::GetPluginInfoResponse> {
        let name = "tonic.example".to_owned();
        Ok(Response::new(v1::GetPluginInfoResponse { name, ..Default::default() }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<v1::GetPluginCapabilitiesRequest>,
    ) -> TonicResult<v1::GetPluginCapabilitiesResponse> {
        use v1::plugin_capability::{Service, Type, service};
        let service = Service { r#type: service::Type::GroupControllerService.into() };
        let capabilities = vec![v1::PluginCapability { r#type: Some(Type::Service(service)) }];
        Ok(Response::new(v1::GetPluginCapabilitiesResponse { capabilities }))
    }

    async fn probe(&self, _: Request<v1::ProbeRequest>) -> TonicResult<v1::ProbeResponse> {
        Ok(Response::new(v1::ProbeResponse { ready: Some(true) }))
    }
}

#[tonic::async_trait]
impl GroupController for GeneratedServerDriver {
    async fn group_controller_get_capabilities(
        &self,
        _: Request<v1::GroupControllerGetCapabilitiesRequest>,
    ) -> TonicResult<v1::GroupControllerGetCapabilitiesResponse> {
        use v1::group_controller_service_capability::{Rpc, Type, rpc};
        let rpc = Rpc { r#type: rpc::Type::CreateDeleteGetVolumeGroupSnapshot.into() };
        let capabilities = vec![v1::GroupControllerServiceCapability { r#type: Some(Type::Rpc(rpc)) }];
        Ok(Response::new(v1::GroupControllerGetCapabilitiesResponse { capabilities }))
    }

    async fn create_volume_group_snapshot(
        &self,
        _: Request<v1::CreateVolumeGroupSnapshotRequest>,
    ) -> TonicResult<v1::CreateVolumeGroupSnapshotResponse> {
        Err(Status::resource_exhausted("full"))
    }

    async fn delete_volume_group_snapshot(
        &self,
        request: Request<v1::DeleteVolumeGroupSnapshotRequest>,
    ) -> TonicResult<v1::DeleteVolumeGroupSnapshotResponse> {
        match request.into_inner().group_snapshot_id.as_str() {
            "g" => Ok(Response::new(v1::DeleteVolumeGroupSnapshotResponse {})),
            _ => Err(Status::failed_precondition("in use")),
        }
    }

    async fn get_volume_group_snapshot(
        &self,
        _: Request<v1::GetVolumeGroupSnapshotRequest>,
    ) -> TonicResult<v1::GetVolumeGroupSnapshotResponse> {
        Err(Status::not_found("no such group"))
    }
}

#[tokio::test]
async fn driver_built_on_the_generated_servers_works_as_a_backend() {
    let directory = tempfile::TempDir::new().unwrap();
    let socket = directory.path().join("csi.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let server = Server::builder()
        .add_service(IdentityServer::new(GeneratedServerDriver))
        .add_service(GroupControllerServer::new(GeneratedServerDriver));
    tokio::spawn(server.serve_with_incoming(UnixListenerStream::new(listener)));
    let config = CsiConfig::new(socket.to_str().unwrap().parse().unwrap());
    let backend = connect(config).await.unwrap();
    assert_eq!(backend.driver().as_str(), "tonic.example");
    assert_eq!(backend.description().version, "unknown");
    assert_eq!(backend.abilities(), &[Ability::GroupSnapshots].into());
    backend.delete_group_snapshot(call(), "g".into(), ["s".into()].into()).await.unwrap();
    let error = backend.delete_group_snapshot(call(), "h".into(), [].into()).await.unwrap_err();
    assert_eq!((error.kind, error.finality), (ErrorKind::FailedPrecondition, Finality::Final));
    let error = backend.get_group_snapshot(call(), "g".into(), [].into()).await.unwrap_err();
    assert_eq!((error.kind, error.message.as_str()), (ErrorKind::NotFound, "no such group"));
}
