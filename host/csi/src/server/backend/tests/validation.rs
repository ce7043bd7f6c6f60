//! The rules of the CSI specification, one row each: a method, a change of a valid request, and the status
//! code. Another test sends calls and fields whose capability the driver does not announce.
//!
//! Requests are encoded and sent through the dispatcher, as from a client.

use std::sync::Arc;

use cofferdam_backend::testing::ScriptedBackend;
use cofferdam_domain::storage::{Ability, Feature};
use prost::Message;
use protox::prost_reflect::{DescriptorPool, DynamicMessage, MapKey, ReflectMessage as _, Value};
use tonic::{Code, Status, body::Body};

use crate::{
    server::{BackendServer, ServerMetrics, dispatch::Dispatcher},
    v1::{
        self, controller_server::ControllerServer, group_controller_server::GroupControllerServer,
        identity_server::IdentityServer,
    },
};

pub(super) struct ValidationFixture {
    pub(super) backend: Arc<ScriptedBackend>,
    dispatcher: Dispatcher<Body>,
}

impl ValidationFixture {
    pub(super) fn new(backend: Arc<ScriptedBackend>) -> Self {
        let server = BackendServer::new(Arc::clone(&backend) as _);
        let metrics = ServerMetrics::default().driver_metrics("fake.example");
        let mut dispatcher =
            Dispatcher::new("fake.example".to_owned(), std::time::Duration::from_secs(60), metrics);
        dispatcher.add_service(IdentityServer::new(server.clone()));
        dispatcher.add_service(ControllerServer::new(server.clone()));
        dispatcher.add_service(GroupControllerServer::new(server));
        Self { backend, dispatcher }
    }

    /// Sends an encoded message.
    pub(super) async fn send(&self, method: &str, message: &[u8]) -> Result<(), Status> {
        let mut frame = vec![0];
        frame.extend(u32::try_from(message.len()).unwrap().to_be_bytes());
        frame.extend(message);
        let service = if method.contains("Group") { "GroupController" } else { "Controller" };
        let request = http::Request::post(format!("/csi.v1.{service}/{method}"))
            .header("content-type", "application/grpc")
            .body(Body::new(http_body_util::Full::new(bytes::Bytes::from(frame))))
            .unwrap();
        let response = self.dispatcher.handle(request).await;
        match Status::from_header_map(response.headers()) {
            Some(status) if status.code() != Code::Ok => Err(status),
            Some(_) | None => Ok(()),
        }
    }
}

pub(super) fn descriptor_pool() -> DescriptorPool {
    let proto = concat!(env!("CARGO_MANIFEST_DIR"), "/proto");
    let mut compiler = protox::Compiler::new([proto]).unwrap();
    compiler.include_imports(true).open_file("csi.proto").unwrap();
    compiler.descriptor_pool()
}

fn map(pairs: &[(&str, &str)]) -> std::collections::BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn capability() -> v1::VolumeCapability {
    use v1::volume_capability::{AccessMode, AccessType, MountVolume};
    let mount = MountVolume {
        fs_type: "ext4".to_owned(),
        mount_flags: vec!["noatime".to_owned()],
        volume_mount_group: "5".to_owned(),
    };
    v1::VolumeCapability {
        access_mode: Some(AccessMode { mode: 7 }),
        access_type: Some(AccessType::Mount(mount)),
    }
}

fn clone_source(id: &str) -> Option<v1::VolumeContentSource> {
    use v1::volume_content_source::{Type, VolumeSource};
    Some(v1::VolumeContentSource { r#type: Some(Type::Volume(VolumeSource { volume_id: id.to_owned() })) })
}

/// Valid requests of all methods of the Controller and GroupController services, with all fields set. Only
/// ListSnapshots has no `snapshot_id`, because that excludes a starting token.
pub(super) fn valid_requests() -> Vec<(&'static str, Vec<u8>)> {
    let topology = || v1::Topology { segments: map(&[("zone", "a")]) };
    let capacity_range = || Some(v1::CapacityRange { required_bytes: 5, limit_bytes: 1 << 40 });
    let (secrets, parameters) = (map(&[("password", "hunter2")]), map(&[("tier", "gold")]));
    let id = || "v".to_owned();
    vec![
        (
            "CreateVolume",
            v1::CreateVolumeRequest {
                name: "n".to_owned(),
                capacity_range: capacity_range(),
                volume_capabilities: vec![capability()],
                parameters: parameters.clone(),
                secrets: secrets.clone(),
                volume_content_source: clone_source("source"),
                accessibility_requirements: Some(v1::TopologyRequirement {
                    requisite: vec![topology()],
                    preferred: vec![topology()],
                }),
                mutable_parameters: parameters.clone(),
            }
            .encode_to_vec(),
        ),
        (
            "DeleteVolume",
            v1::DeleteVolumeRequest { volume_id: id(), secrets: secrets.clone() }.encode_to_vec(),
        ),
        (
            "ControllerPublishVolume",
            v1::ControllerPublishVolumeRequest {
                volume_id: id(),
                node_id: "node-1".to_owned(),
                volume_capability: Some(capability()),
                readonly: true,
                secrets: secrets.clone(),
                volume_context: parameters.clone(),
            }
            .encode_to_vec(),
        ),
        (
            "ControllerUnpublishVolume",
            v1::ControllerUnpublishVolumeRequest {
                volume_id: id(),
                node_id: "node-1".to_owned(),
                secrets: secrets.clone(),
            }
            .encode_to_vec(),
        ),
        (
            "ValidateVolumeCapabilities",
            v1::ValidateVolumeCapabilitiesRequest {
                volume_id: id(),
                volume_context: parameters.clone(),
                volume_capabilities: vec![capability()],
                parameters: parameters.clone(),
                secrets: secrets.clone(),
                mutable_parameters: parameters.clone(),
            }
            .encode_to_vec(),
        ),
        (
            "ListVolumes",
            v1::ListVolumesRequest { max_entries: 5, starting_token: "t".to_owned() }.encode_to_vec(),
        ),
        (
            "GetCapacity",
            v1::GetCapacityRequest {
                volume_capabilities: vec![capability()],
                parameters: parameters.clone(),
                accessible_topology: Some(topology()),
            }
            .encode_to_vec(),
        ),
        ("ControllerGetCapabilities", Vec::new()),
        (
            "CreateSnapshot",
            v1::CreateSnapshotRequest {
                source_volume_id: id(),
                name: "n".to_owned(),
                secrets: secrets.clone(),
                parameters: parameters.clone(),
            }
            .encode_to_vec(),
        ),
        (
            "DeleteSnapshot",
            v1::DeleteSnapshotRequest { snapshot_id: "s".to_owned(), secrets: secrets.clone() }
                .encode_to_vec(),
        ),
        (
            "ListSnapshots",
            v1::ListSnapshotsRequest {
                max_entries: 5,
                starting_token: "t".to_owned(),
                source_volume_id: id(),
                snapshot_id: String::new(),
                secrets: secrets.clone(),
            }
            .encode_to_vec(),
        ),
        (
            "GetSnapshot",
            v1::GetSnapshotRequest { snapshot_id: "s".to_owned(), secrets: secrets.clone() }.encode_to_vec(),
        ),
        (
            "ControllerExpandVolume",
            v1::ControllerExpandVolumeRequest {
                volume_id: id(),
                capacity_range: capacity_range(),
                secrets: secrets.clone(),
                volume_capability: Some(capability()),
            }
            .encode_to_vec(),
        ),
        ("ControllerGetVolume", v1::ControllerGetVolumeRequest { volume_id: id() }.encode_to_vec()),
        (
            "ControllerModifyVolume",
            v1::ControllerModifyVolumeRequest {
                volume_id: id(),
                secrets: secrets.clone(),
                mutable_parameters: parameters.clone(),
            }
            .encode_to_vec(),
        ),
        ("GroupControllerGetCapabilities", Vec::new()),
        (
            "CreateVolumeGroupSnapshot",
            v1::CreateVolumeGroupSnapshotRequest {
                name: "n".to_owned(),
                source_volume_ids: vec![id(), "w".to_owned()],
                secrets: secrets.clone(),
                parameters,
            }
            .encode_to_vec(),
        ),
        (
            "DeleteVolumeGroupSnapshot",
            v1::DeleteVolumeGroupSnapshotRequest {
                group_snapshot_id: "g".to_owned(),
                snapshot_ids: vec!["s".to_owned()],
                secrets: secrets.clone(),
            }
            .encode_to_vec(),
        ),
        (
            "GetVolumeGroupSnapshot",
            v1::GetVolumeGroupSnapshotRequest {
                group_snapshot_id: "g".to_owned(),
                snapshot_ids: vec!["s".to_owned()],
                secrets,
            }
            .encode_to_vec(),
        ),
    ]
}

/// Returns the valid request of a method.
pub(super) fn valid_request(pool: &DescriptorPool, method: &str) -> DynamicMessage {
    let (_, bytes) = valid_requests().into_iter().find(|(name, _)| *name == method).unwrap();
    let message = pool.get_message_by_name(&format!("csi.v1.{method}Request")).unwrap();
    DynamicMessage::decode(message, bytes.as_slice()).unwrap()
}

/// Sets the field at a path such as `a.b`; `a.0.b` selects the first list item. `None` clears it.
fn set_field(message: &mut DynamicMessage, path: &str, value: Option<Value>) {
    let (field, remaining_path) =
        path.split_once('.').map_or((path, None), |(field, remaining_path)| (field, Some(remaining_path)));
    let Some(remaining_path) = remaining_path else {
        match value {
            Some(value) => message.set_field_by_name(field, value),
            None => message.clear_field_by_name(field),
        }
        return;
    };
    let descriptor = message.descriptor().get_field_by_name(field).unwrap();
    match message.get_field_mut(&descriptor) {
        Value::Message(inner) => set_field(inner, remaining_path, value),
        Value::List(list) => {
            let (_, remaining_path) = remaining_path.split_once('.').unwrap();
            set_field(list.first_mut().unwrap().as_message_mut().unwrap(), remaining_path, value);
        }
        other => panic!("{path}: {other:?}"),
    }
}

fn text_value(text: &str) -> Option<Value> {
    Some(Value::String(text.to_owned()))
}

fn long_text(bytes: usize) -> Option<Value> {
    Some(Value::String("x".repeat(bytes)))
}

fn map_value(key: &str, bytes: usize) -> Option<Value> {
    Some(Value::Map([(MapKey::String(key.to_owned()), Value::String("x".repeat(bytes)))].into()))
}

fn list_value(items: &[&str]) -> Option<Value> {
    Some(Value::List(items.iter().map(|item| Value::String((*item).to_owned())).collect()))
}

#[tokio::test]
async fn invalid_fields_yield_the_codes_of_the_csi_spec() {
    use Code::{Aborted, InvalidArgument as Invalid, NotFound, Ok, Unavailable};
    let inline = format!("csi-{}", "0af9".repeat(16));
    let (pool, fixture) = (descriptor_pool(), ValidationFixture::new(ScriptedBackend::complete()));
    let empty = || Some(Value::List(Vec::new()));
    let empty_map = || Some(Value::Map(Default::default()));
    let flags = "x".repeat(4 << 10);
    let preferred = "accessibility_requirements.preferred.0.segments";
    #[rustfmt::skip] // one row a rule: method, field, value, code
    let table: Vec<(&str, &str, Option<Value>, Code)> = vec![
        // Names: required, up to 128 bytes, no control characters except white space.
        ("CreateVolume", "name", None, Invalid),
        ("CreateVolume", "name", long_text(128), Ok),
        ("CreateVolume", "name", long_text(129), Invalid),
        ("CreateVolume", "name", text_value("a/b c\t\r\nÄ"), Ok),
        ("CreateVolume", "name", text_value("a\0"), Invalid),
        ("CreateVolume", "name", text_value("a\u{1b}"), Invalid),
        ("CreateVolume", "name", text_value("a\u{85}"), Invalid),
        ("CreateSnapshot", "name", None, Invalid),
        ("CreateSnapshot", "name", long_text(128), Ok),
        ("CreateSnapshot", "name", long_text(129), Invalid),
        ("CreateSnapshot", "name", text_value("\u{7}"), Invalid),
        ("CreateVolumeGroupSnapshot", "name", None, Invalid),
        ("CreateVolumeGroupSnapshot", "name", long_text(129), Invalid),
        // Sizes.
        ("CreateVolume", "capacity_range", None, Ok),
        ("CreateVolume", "capacity_range.required_bytes", Some(Value::I64(-1)), Invalid),
        ("CreateVolume", "capacity_range.required_bytes", None, Ok),
        ("CreateVolume", "capacity_range.required_bytes", Some(Value::I64(i64::MAX)), Invalid),
        ("CreateVolume", "capacity_range.limit_bytes", Some(Value::I64(i64::MIN)), Invalid),
        ("CreateVolume", "capacity_range.limit_bytes", Some(Value::I64(4)), Invalid),
        ("CreateVolume", "capacity_range.limit_bytes", Some(Value::I64(5)), Ok),
        ("ControllerExpandVolume", "capacity_range", None, Invalid),
        ("ControllerExpandVolume", "capacity_range.required_bytes", Some(Value::I64(-5)), Invalid),
        ("ControllerExpandVolume", "capacity_range.limit_bytes", Some(Value::I64(1)), Invalid),
        // Capabilities.
        ("CreateVolume", "volume_capabilities", empty(), Invalid),
        ("CreateVolume", "volume_capabilities.0.access_mode", None, Invalid),
        ("CreateVolume", "volume_capabilities.0.access_mode.mode", Some(Value::EnumNumber(0)), Invalid),
        ("CreateVolume", "volume_capabilities.0.access_mode.mode", Some(Value::EnumNumber(8)), Invalid),
        ("CreateVolume", "volume_capabilities.0.mount", None, Invalid),
        ("CreateVolume", "volume_capabilities.0.mount.fs_type", long_text(129), Invalid),
        ("CreateVolume", "volume_capabilities.0.mount.mount_flags", list_value(&[&flags]), Ok),
        ("CreateVolume", "volume_capabilities.0.mount.mount_flags", list_value(&[&flags, "y"]), Invalid),
        ("CreateVolume", "volume_capabilities.0.mount.volume_mount_group", long_text(129), Invalid),
        ("ControllerPublishVolume", "volume_capability", None, Invalid),
        ("ControllerPublishVolume", "volume_capability.mount", None, Invalid),
        ("ValidateVolumeCapabilities", "volume_capabilities", empty(), Invalid),
        ("ValidateVolumeCapabilities", "volume_capabilities.0.access_mode", None, Invalid),
        ("GetCapacity", "volume_capabilities", empty(), Ok),
        ("GetCapacity", "volume_capabilities.0.mount", None, Invalid),
        ("ControllerExpandVolume", "volume_capability", None, Ok),
        ("ControllerExpandVolume", "volume_capability.access_mode", None, Invalid),
        // Maps, up to 4 KiB; secrets with plain keys.
        ("CreateVolume", "parameters", map_value("k", (4 << 10) - 1), Ok),
        ("CreateVolume", "parameters", map_value("k", 4 << 10), Invalid),
        ("CreateVolume", "mutable_parameters", map_value("k", 4 << 10), Invalid),
        ("CreateVolume", "secrets", map_value("tls.key_1-a", 64 << 10), Ok),
        ("CreateVolume", "secrets", map_value("k", 1 << 20), Invalid),
        ("CreateVolume", "secrets", map_value("a/b", 1), Invalid),
        ("CreateVolume", "secrets", map_value("", 1), Invalid),
        ("DeleteVolume", "secrets", map_value("ä", 1), Invalid),
        ("ListSnapshots", "secrets", map_value(" ", 1), Invalid),
        ("ControllerPublishVolume", "volume_context", map_value("k", 60 << 10), Ok),
        ("ControllerPublishVolume", "volume_context", map_value("k", 300 << 10), Invalid),
        ("ValidateVolumeCapabilities", "volume_context", map_value("k", 300 << 10), Invalid),
        ("ValidateVolumeCapabilities", "parameters", map_value("k", 4 << 10), Invalid),
        ("CreateSnapshot", "parameters", map_value("k", 4 << 10), Invalid),
        ("CreateVolumeGroupSnapshot", "parameters", map_value("k", 4 << 10), Invalid),
        ("GetCapacity", "parameters", map_value("k", 4 << 10), Invalid),
        ("ControllerModifyVolume", "mutable_parameters", empty_map(), Ok),
        ("ControllerModifyVolume", "mutable_parameters", map_value("k", 4 << 10), Invalid),
        // Content sources.
        ("CreateVolume", "volume_content_source", None, Ok),
        ("CreateVolume", "volume_content_source.volume", None, Invalid),
        ("CreateVolume", "volume_content_source.volume.volume_id", None, Invalid),
        ("CreateVolume", "volume_content_source.volume.volume_id", long_text(129), Invalid),
        ("CreateVolume", "volume_content_source.volume.volume_id", text_value("missing"), NotFound),
        ("CreateVolume", "volume_content_source.volume.volume_id", text_value("a\n"), NotFound),
        ("CreateVolume", "volume_content_source.volume.volume_id", text_value(&inline), NotFound),
        ("CreateVolume", "volume_content_source.volume.volume_id", text_value("open"), Unavailable),
        ("CreateSnapshot", "source_volume_id", None, Invalid),
        ("CreateSnapshot", "source_volume_id", text_value("missing"), NotFound),
        ("CreateSnapshot", "source_volume_id", text_value("\0"), NotFound),
        ("CreateVolumeGroupSnapshot", "source_volume_ids", empty(), Invalid),
        ("CreateVolumeGroupSnapshot", "source_volume_ids", list_value(&["v", ""]), Invalid),
        ("CreateVolumeGroupSnapshot", "source_volume_ids", list_value(&["v", "missing"]), NotFound),
        ("CreateVolumeGroupSnapshot", "source_volume_ids", list_value(&["v", "a\n"]), NotFound),
        ("CreateVolumeGroupSnapshot", "source_volume_ids", list_value(&["v", "v"]), Ok),
        // Topologies.
        ("CreateVolume", "accessibility_requirements", None, Ok),
        ("CreateVolume", "accessibility_requirements.requisite", empty(), Ok),
        ("CreateVolume", "accessibility_requirements.requisite.0.segments", empty_map(), Invalid),
        ("CreateVolume", "accessibility_requirements.requisite.0.segments", map_value("", 1), Invalid),
        ("CreateVolume", "accessibility_requirements.requisite.0.segments", map_value("zone", 0), Invalid),
        ("CreateVolume", preferred, map_value("zone", 4 << 10), Invalid),
        ("GetCapacity", "accessible_topology", None, Ok),
        ("GetCapacity", "accessible_topology.segments", empty_map(), Ok),
        ("GetCapacity", "accessible_topology.segments", map_value("zone", 0), Invalid),
        // Volume ids of the other methods.
        ("DeleteVolume", "volume_id", None, Invalid),
        ("DeleteVolume", "volume_id", long_text(128), Ok),
        ("DeleteVolume", "volume_id", long_text(129), Invalid),
        ("DeleteVolume", "volume_id", long_text(4 << 10), Invalid),
        ("DeleteVolume", "volume_id", text_value("../../a/b"), Ok),
        ("DeleteVolume", "volume_id", text_value("a\nb"), Ok),
        ("DeleteVolume", "volume_id", text_value(&inline), Ok),
        ("DeleteVolume", "volume_id", text_value("open"), Unavailable),
        ("ControllerPublishVolume", "volume_id", None, Invalid),
        ("ControllerPublishVolume", "volume_id", text_value("missing"), NotFound),
        ("ControllerPublishVolume", "volume_id", text_value("a\n"), NotFound),
        ("ControllerPublishVolume", "node_id", None, Invalid),
        ("ControllerPublishVolume", "node_id", long_text(256), Ok),
        ("ControllerPublishVolume", "node_id", long_text(257), Invalid),
        ("ControllerPublishVolume", "node_id", text_value("missing"), NotFound),
        ("ControllerPublishVolume", "node_id", text_value("\0"), NotFound),
        ("ControllerPublishVolume", "readonly", None, Ok),
        ("ControllerUnpublishVolume", "volume_id", None, Invalid),
        ("ControllerUnpublishVolume", "volume_id", text_value("a\n"), Ok),
        ("ControllerUnpublishVolume", "node_id", None, Ok),
        ("ControllerUnpublishVolume", "node_id", text_value("\0"), Ok),
        ("ControllerUnpublishVolume", "node_id", long_text(257), Invalid),
        ("ValidateVolumeCapabilities", "volume_id", None, Invalid),
        ("ValidateVolumeCapabilities", "volume_id", text_value("missing"), NotFound),
        ("ValidateVolumeCapabilities", "volume_id", text_value("a\n"), NotFound),
        ("ControllerGetVolume", "volume_id", None, Invalid),
        ("ControllerGetVolume", "volume_id", text_value("missing"), NotFound),
        ("ControllerGetVolume", "volume_id", text_value(&inline), NotFound),
        ("ControllerGetVolume", "volume_id", text_value("open"), Code::Internal),
        ("ControllerExpandVolume", "volume_id", None, Invalid),
        ("ControllerExpandVolume", "volume_id", text_value("missing"), NotFound),
        ("ControllerModifyVolume", "volume_id", None, Invalid),
        ("ControllerModifyVolume", "volume_id", text_value("missing"), NotFound),
        // Snapshots.
        ("DeleteSnapshot", "snapshot_id", None, Invalid),
        ("DeleteSnapshot", "snapshot_id", long_text(129), Invalid),
        ("DeleteSnapshot", "snapshot_id", text_value("a\n"), Ok),
        ("DeleteSnapshot", "snapshot_id", text_value("open"), Unavailable),
        ("GetSnapshot", "snapshot_id", None, Invalid),
        ("GetSnapshot", "snapshot_id", text_value("missing"), NotFound),
        ("GetSnapshot", "snapshot_id", text_value("a\n"), NotFound),
        ("DeleteVolumeGroupSnapshot", "group_snapshot_id", None, Invalid),
        ("DeleteVolumeGroupSnapshot", "group_snapshot_id", text_value("a\n"), Ok),
        ("DeleteVolumeGroupSnapshot", "snapshot_ids", empty(), Ok),
        ("DeleteVolumeGroupSnapshot", "snapshot_ids", list_value(&["s", ""]), Invalid),
        ("DeleteVolumeGroupSnapshot", "snapshot_ids", list_value(&["a\n"]), Invalid),
        ("GetVolumeGroupSnapshot", "group_snapshot_id", None, Invalid),
        ("GetVolumeGroupSnapshot", "group_snapshot_id", text_value("missing"), NotFound),
        ("GetVolumeGroupSnapshot", "group_snapshot_id", text_value("a\n"), NotFound),
        ("GetVolumeGroupSnapshot", "snapshot_ids", list_value(&["a\n"]), Invalid),
        // Listings.
        ("ListVolumes", "max_entries", Some(Value::I32(-1)), Invalid),
        ("ListVolumes", "max_entries", Some(Value::I32(0)), Ok),
        ("ListVolumes", "starting_token", None, Ok),
        ("ListVolumes", "starting_token", long_text((4 << 10) + 1), Aborted),
        ("ListSnapshots", "max_entries", Some(Value::I32(i32::MIN)), Invalid),
        ("ListSnapshots", "source_volume_id", None, Ok),
        ("ListSnapshots", "source_volume_id", text_value("a\n"), Ok),
        ("ListSnapshots", "source_volume_id", long_text(129), Invalid),
        ("ListSnapshots", "snapshot_id", text_value("s"), Aborted),
    ];
    for (method, field, value, expected) in table {
        let mut message = valid_request(&pool, method);
        let row_text = format!(
            "{method} {field} {}",
            value
                .as_ref()
                .map_or("absent".to_owned(), |value| { format!("{value:?}").chars().take(60).collect() })
        );
        set_field(&mut message, field, value);
        let code =
            fixture.send(method, &message.encode_to_vec()).await.map_or_else(|status| status.code(), |()| Ok);
        assert_eq!(code, expected, "{row_text}");
    }
}

#[tokio::test]
async fn unannounced_capabilities_are_rejected() {
    let pool = descriptor_pool();
    let minimal = ValidationFixture::new(ScriptedBackend::new(&[], &[], false));
    let always_served =
        ["CreateVolume", "DeleteVolume", "ValidateVolumeCapabilities", "ControllerGetCapabilities"];
    for (method, message) in valid_requests() {
        let is_group_method = method.contains("Group");
        if always_served.contains(&method) || is_group_method {
            continue;
        }
        let code = minimal.send(method, &message).await.map_err(|status| status.code());
        assert_eq!(code, Err(Code::Unimplemented), "{method}");
    }
    // Everything in a valid request that a minimal driver does not announce.
    for field in
        ["volume_capabilities", "volume_content_source", "accessibility_requirements", "mutable_parameters"]
    {
        let mut message = valid_request(&pool, "CreateVolume");
        for other in ["volume_content_source", "accessibility_requirements", "mutable_parameters"] {
            if other != field {
                message.clear_field_by_name(other);
            }
        }
        if field != "volume_capabilities" {
            set_field(&mut message, "volume_capabilities.0.access_mode.mode", Some(Value::EnumNumber(1)));
            set_field(&mut message, "volume_capabilities.0.mount.volume_mount_group", None);
        }
        let code =
            minimal.send("CreateVolume", &message.encode_to_vec()).await.map_err(|status| status.code());
        assert_eq!(code, Err(Code::InvalidArgument), "{field}");
    }
    let publishing = ValidationFixture::new(ScriptedBackend::new(
        &[Ability::Publishing],
        &[Feature::SingleNodeMultiWriter, Feature::VolumeMountGroup],
        false,
    ));
    let message = valid_request(&pool, "ControllerPublishVolume").encode_to_vec();
    let error = publishing.send("ControllerPublishVolume", &message).await.unwrap_err();
    assert!(error.message().contains("PUBLISH_READONLY"), "{}", error.message());
}
