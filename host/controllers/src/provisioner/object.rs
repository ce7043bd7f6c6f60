//! The PersistentVolume of a provisioned volume, in external-provisioner's format.

use cofferdam_cluster::Intent;
use cofferdam_domain::{
    AccessModes, Quantity, VolumeMode, names,
    storage::{AccessType, CreatedVolume, connection_info},
    volume::SecretRef,
};
use serde_json::{Map, Value, json};

/// Fields of the PersistentVolume that depend on the claim, or on the request if the cache lacks the claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimFields {
    /// `spec.accessModes`
    pub access_modes: AccessModes,
    /// `metadata.resourceVersion` of the claim, for the claimRef. `None` if the cache lacks the claim: the
    /// claim is deleted, or cannot be decoded.
    pub version: Option<String>,
    /// `spec.csi.readOnly`, which is written only if it is true.
    pub read_only: bool,
}

/// Returns the PersistentVolume of a created volume with `capacity` bytes. `identity` becomes the volume
/// attribute `storage.kubernetes.io/csiProvisionerIdentity`.
pub fn persistent_volume(
    intent: &Intent,
    created: &CreatedVolume,
    capacity: u64,
    identity: &str,
    claim_fields: &ClaimFields,
) -> Value {
    let mut attributes = Map::new();
    attributes.insert(names::PROVISIONER_IDENTITY.to_owned(), json!(identity));
    // The driver's attributes replace the identity, as in external-provisioner. Claims with a data source are
    // rejected, or left to a volume populator, before: every volume is created empty.
    let context =
        connection_info::into_volume_context(created.context.clone(), created.connection_info.as_ref(), None);
    attributes.extend(context.into_iter().map(|(key, value)| (key, Value::from(value))));
    let access = intent.request.capabilities.first().map(|capability| &capability.access_type);
    let (mode, fs_type) = match access {
        Some(AccessType::Block) => (VolumeMode::Block, None),
        Some(AccessType::Filesystem { fs_type, .. }) => (VolumeMode::Filesystem, fs_type.clone()),
        None => (VolumeMode::Filesystem, None),
    };
    let mut csi = json!({
        "driver": intent.driver,
        "volumeHandle": created.handle,
        "volumeAttributes": attributes,
    });
    // With the claim's uid, this is the first of the four writes of binding: `pv_controller` continues with
    // the volume's phase.
    let mut claim = json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "namespace": &*intent.claim.namespace,
        "name": &*intent.claim.name,
        "uid": intent.claim_uid,
    });
    let secrets = &intent.secrets;
    for (field, secret) in [
        ("controllerPublishSecretRef", &secrets.controller_publish),
        ("nodeStageSecretRef", &secrets.node_stage),
        ("nodePublishSecretRef", &secrets.node_publish),
        ("controllerExpandSecretRef", &secrets.controller_expand),
        ("nodeExpandSecretRef", &secrets.node_expand),
    ] {
        insert(&mut csi, field, secret.as_ref().map(|secret| json!(secret)));
    }
    insert(&mut csi, "fsType", fs_type.map(Value::from));
    insert(&mut csi, "readOnly", claim_fields.read_only.then_some(Value::Bool(true)));
    insert(&mut claim, "resourceVersion", claim_fields.version.clone().map(Value::from));
    let mut spec = json!({
        "capacity": {"storage": Quantity::from_bytes(capacity).to_string()},
        "accessModes": claim_fields.access_modes.iter().map(|mode| mode.as_str()).collect::<Vec<_>>(),
        "persistentVolumeReclaimPolicy": intent.class.reclaim_policy.as_str(),
        "storageClassName": intent.class.name,
        "volumeMode": match mode {
            VolumeMode::Filesystem => "Filesystem",
            VolumeMode::Block => "Block",
        },
        "claimRef": claim,
        "csi": csi,
    });
    let mount_options = Some(&intent.class.mount_options).filter(|options| !options.is_empty());
    insert(&mut spec, "mountOptions", mount_options.map(|options| json!(options)));
    insert(&mut spec, "nodeAffinity", node_affinity(created));
    let attributes_class = Some(&intent.attributes_class).filter(|name| !name.is_empty());
    insert(&mut spec, "volumeAttributesClassName", attributes_class.map(|name| json!(name)));
    json!({
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {
            "name": intent.request.name,
            "finalizers": [names::PROVISIONER_FINALIZER],
            "annotations": annotations(intent),
        },
        "spec": spec,
    })
}

/// Returns the annotations: the driver, and the Secrets of DeleteVolume and ControllerModifyVolume.
fn annotations(intent: &Intent) -> Value {
    let mut annotations = json!({names::PROVISIONED_BY: intent.driver});
    let mut insert_secret = |keys: [&str; 2], values: [&str; 2]| {
        for (key, value) in keys.into_iter().zip(values) {
            insert(&mut annotations, key, Some(Value::from(value)));
        }
    };
    let parts = |secret: &SecretRef| [secret.name.clone(), secret.namespace.clone()];
    // Empty without a Secret: without the annotations, the class would be read for one.
    let [name, namespace] = intent.secrets.provisioner.as_ref().map(parts).unwrap_or_default();
    insert_secret([names::DELETION_SECRET_NAME, names::DELETION_SECRET_NAMESPACE], [&name, &namespace]);
    if let Some(SecretRef { namespace, name }) = &intent.secrets.controller_modify {
        insert_secret([names::MODIFY_SECRET_NAME, names::MODIFY_SECRET_NAMESPACE], [name, namespace]);
    }
    annotations
}

/// Returns the node affinity: one term per topology of the volume. `None` if the volume has no topology.
fn node_affinity(created: &CreatedVolume) -> Option<Value> {
    let terms: Vec<Value> = created
        .topology
        .iter()
        .filter(|segments| !segments.is_empty())
        .map(|segments| {
            let expressions: Vec<Value> = segments
                .iter()
                .map(|(key, value)| json!({"key": key, "operator": "In", "values": [value]}))
                .collect();
            json!({"matchExpressions": expressions})
        })
        .collect();
    (!terms.is_empty()).then(|| json!({"required": {"nodeSelectorTerms": terms}}))
}

fn insert(object: &mut Value, key: &str, value: Option<Value>) {
    if let (Some(object), Some(value)) = (object.as_object_mut(), value) {
        object.insert(key.to_owned(), value);
    }
}
