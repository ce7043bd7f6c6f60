//! The fields of the kinds, as far as bodies are checked: unknown fields and wrong types are refused as a typed
//! decoder would refuse them. Pods and nodes are taken as they come.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use serde_json::Value;

use crate::descriptors::{Kind, PerKind, Resource};
use crate::quantity;
use crate::status::Status;
use crate::write::FieldValidation;

/// What a field holds.
#[derive(Debug)]
enum Shape {
    Any,
    Text,
    Integer,
    Bool,
    Texts,
    TextMap,
    Quantity,
    Quantities,
    Object(BTreeMap<&'static str, Shape>),
    Objects(BTreeMap<&'static str, Shape>),
}

/// The grammar: `name:type` or `name{…}` (an object) or `name[…]` (a list of objects). Types: `s` text, `i` integer,
/// `b` flag, `l` list of texts, `m` map of texts, `q` quantity, `Q` map of quantities, `*` anything.
const META: &str = "metadata{ name:s generateName:s namespace:s uid:s resourceVersion:s generation:i selfLink:s \
    creationTimestamp:s deletionTimestamp:s deletionGracePeriodSeconds:i labels:m annotations:m finalizers:l managedFields:* \
    ownerReferences[ apiVersion:s kind:s name:s uid:s controller:b blockOwnerDeletion:b ] } ";

const REFERENCE: &str = "kind:s namespace:s name:s uid:s apiVersion:s resourceVersion:s fieldPath:s";

fn fields(kind: Kind) -> String {
    let secret = "name:s namespace:s";
    match kind {
        Kind::PersistentVolumeClaim => "spec{ accessModes:l selector:* resources{ limits:Q requests:Q } volumeName:s \
             storageClassName:s volumeMode:s dataSource{ apiGroup:s kind:s name:s } \
             dataSourceRef{ apiGroup:s kind:s name:s namespace:s } volumeAttributesClassName:s } \
             status{ phase:s accessModes:l capacity:Q conditions:* allocatedResources:Q allocatedResourceStatuses:m \
             currentVolumeAttributesClassName:s modifyVolumeStatus{ targetVolumeAttributesClassName:s status:s } }"
            .to_owned(),
        Kind::PersistentVolume => format!(
            "spec{{ capacity:Q accessModes:l claimRef{{ {REFERENCE} }} persistentVolumeReclaimPolicy:s storageClassName:s \
             mountOptions:l volumeMode:s nodeAffinity:* volumeAttributesClassName:s \
             csi{{ driver:s volumeHandle:s readOnly:b fsType:s volumeAttributes:m controllerPublishSecretRef{{ {secret} }} \
             nodeStageSecretRef{{ {secret} }} nodePublishSecretRef{{ {secret} }} controllerExpandSecretRef{{ {secret} }} \
             nodeExpandSecretRef{{ {secret} }} }} hostPath{{ path:s type:s }} local{{ path:s fsType:s }} \
             nfs{{ server:s path:s readOnly:b }} awsElasticBlockStore:* azureDisk:* azureFile:* cephfs:* cinder:* fc:* \
             flexVolume:* flocker:* gcePersistentDisk:* glusterfs:* iscsi:* photonPersistentDisk:* portworxVolume:* \
             quobyte:* rbd:* scaleIO:* storageos:* vsphereVolume:* }} \
             status{{ phase:s message:s reason:s lastPhaseTransitionTime:s }}"
        ),
        Kind::StorageClass => "provisioner:s parameters:m reclaimPolicy:s mountOptions:l allowVolumeExpansion:b \
             volumeBindingMode:s allowedTopologies:*"
            .to_owned(),
        Kind::CsiDriver => "spec{ attachRequired:b podInfoOnMount:b volumeLifecycleModes:l storageCapacity:b \
             fsGroupPolicy:s tokenRequests[ audience:s expirationSeconds:i ] requiresRepublish:b seLinuxMount:b \
             nodeAllocatableUpdatePeriodSeconds:i serviceAccountTokenInSecrets:b preventPodSchedulingIfMissing:b }"
            .to_owned(),
        Kind::CsiNode => {
            "spec{ drivers[ name:s nodeID:s topologyKeys:l allocatable{ count:i } ] }".to_owned()
        }
        Kind::CsiStorageCapacity => {
            "nodeTopology:* storageClassName:s capacity:q maximumVolumeSize:q".to_owned()
        }
        Kind::VolumeAttachment => {
            "spec{ attacher:s source{ persistentVolumeName:s inlineVolumeSpec:* } nodeName:s } \
             status{ attached:b attachmentMetadata:m attachError{ time:s message:s errorCode:i } \
             detachError{ time:s message:s errorCode:i } }"
                .to_owned()
        }
        Kind::VolumeAttributesClass => "driverName:s parameters:m".to_owned(),
        Kind::Lease => "spec{ holderIdentity:s leaseDurationSeconds:i acquireTime:s renewTime:s leaseTransitions:i \
             strategy:s preferredHolder:s }"
            .to_owned(),
        Kind::ConfigMap => "data:m binaryData:m immutable:b".to_owned(),
        Kind::Secret => "data:m stringData:m type:s immutable:b".to_owned(),
        Kind::ServiceAccount => {
            "secrets:* imagePullSecrets:* automountServiceAccountToken:b".to_owned()
        }
        Kind::Event => format!(
            "involvedObject{{ {REFERENCE} }} reason:s message:s source{{ component:s host:s }} firstTimestamp:s \
             lastTimestamp:s count:i type:s eventTime:s series{{ count:i lastObservedTime:s }} action:s \
             related{{ {REFERENCE} }} reportingComponent:s reportingInstance:s"
        ),
        Kind::Namespace => "spec{ finalizers:l } status{ phase:s conditions:* }".to_owned(),
        Kind::Pod | Kind::Node => "spec:* status:*".to_owned(),
    }
}

fn schema(kind: Kind) -> &'static BTreeMap<&'static str, Shape> {
    static SCHEMAS: OnceLock<PerKind<OnceLock<BTreeMap<&'static str, Shape>>>> = OnceLock::new();
    SCHEMAS.get_or_init(|| PerKind::new(OnceLock::new)).of(kind).get_or_init(|| {
        // Once per kind and process, so the names can live as long as the process.
        let text: &'static str = Box::leak(format!("{META} {}", fields(kind)).into_boxed_str());
        parse(&mut text.split_whitespace())
    })
}

fn parse(words: &mut std::str::SplitWhitespace<'static>) -> BTreeMap<&'static str, Shape> {
    let mut shapes = BTreeMap::new();
    while let Some(word) = words.next() {
        if word == "}" || word == "]" {
            break;
        }
        if let Some(name) = word.strip_suffix('{') {
            shapes.insert(name, Shape::Object(parse(words)));
        } else if let Some(name) = word.strip_suffix('[') {
            shapes.insert(name, Shape::Objects(parse(words)));
        } else if let Some((name, shape)) = word.split_once(':') {
            let shape = match shape {
                "s" => Shape::Text,
                "i" => Shape::Integer,
                "b" => Shape::Bool,
                "l" => Shape::Texts,
                "m" => Shape::TextMap,
                "q" => Shape::Quantity,
                "Q" => Shape::Quantities,
                _ => Shape::Any,
            };
            shapes.insert(name, shape);
        }
    }
    shapes
}

/// Checks a body. Unknown fields are dropped, or refused all at once when the client asked for that.
pub(crate) fn check(resource: &Resource, body: &mut Value, fields: FieldValidation) -> Result<(), Status> {
    let mut check = Check { resource, unknown: Vec::new() };
    if let Value::Object(map) = body {
        check.object(schema(resource.id), map, "")?;
    }
    if check.unknown.is_empty() || fields == FieldValidation::Lenient {
        return Ok(());
    }
    // What a client sent wrong is named, but the answer stays short.
    let list: Vec<String> =
        check.unknown.iter().take(16).map(|field| format!("unknown field \"{field}\"")).collect();
    Err(check.refuse(&format!("strict decoding error: {}", list.join(", "))))
}

struct Check<'a> {
    resource: &'a Resource,
    unknown: Vec<String>,
}

const QUANTITY: &str =
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";

impl Check<'_> {
    fn refuse(&self, why: &str) -> Status {
        let kind = self.resource.kind;
        Status::bad_request(format!(
            "{kind} in version \"{}\" cannot be handled as a {kind}: {why}",
            crate::descriptors::VERSION
        ))
    }

    fn object(
        &mut self,
        shapes: &BTreeMap<&'static str, Shape>,
        map: &mut serde_json::Map<String, Value>,
        path: &str,
    ) -> Result<(), Status> {
        let unknown = &mut self.unknown;
        map.retain(|name, _| {
            let known = shapes.contains_key(name.as_str());
            if !known {
                unknown.push(join(path, name));
            }
            known
        });
        for (name, value) in map.iter_mut() {
            if let Some(shape) = shapes.get(name.as_str()) {
                self.value(shape, value, &join(path, name))?;
            }
        }
        Ok(())
    }

    fn value(&mut self, shape: &Shape, value: &mut Value, path: &str) -> Result<(), Status> {
        let fits = match (shape, &mut *value) {
            // A typed decoder takes null as absent.
            (Shape::Any, _) | (_, Value::Null) => true,
            (Shape::Text, value) => value.is_string(),
            (Shape::Integer, value) => value.is_i64(),
            (Shape::Bool, value) => value.is_boolean(),
            (Shape::Texts, Value::Array(members)) => members.iter().all(Value::is_string),
            (Shape::TextMap, Value::Object(map)) => {
                map.values().all(|member| member.is_string() || member.is_null())
            }
            (Shape::Quantity, value) => return self.quantity(value, path),
            (Shape::Quantities, Value::Object(map)) => {
                return map.iter_mut().try_for_each(|(name, value)| self.quantity(value, &join(path, name)));
            }
            (Shape::Object(shapes), Value::Object(map)) => return self.object(shapes, map, path),
            (Shape::Objects(shapes), Value::Array(members)) => {
                for (index, member) in members.iter_mut().enumerate() {
                    let path = format!("{path}[{index}]");
                    match member {
                        Value::Object(map) => self.object(shapes, map, &path)?,
                        Value::Null
                        | Value::Bool(_)
                        | Value::Number(_)
                        | Value::String(_)
                        | Value::Array(_) => return Err(self.mismatch(shape, member, &path)),
                    }
                }
                true
            }
            (Shape::Texts | Shape::TextMap | Shape::Quantities | Shape::Object(_) | Shape::Objects(_), _) => {
                false
            }
        };
        if fits { Ok(()) } else { Err(self.mismatch(shape, value, path)) }
    }

    /// A number is as good as its text.
    fn quantity(&self, value: &mut Value, path: &str) -> Result<(), Status> {
        if let Value::Number(number) = value {
            *value = Value::String(number.to_string());
        }
        match value.as_str().map(quantity::parse) {
            Some(Some(_)) => Ok(()),
            Some(None) => Err(self.refuse(&format!("{QUANTITY}, found {value} in {path}"))),
            None => Err(self.mismatch(&Shape::Quantity, value, path)),
        }
    }

    fn mismatch(&self, shape: &Shape, found: &Value, path: &str) -> Status {
        let wanted = match shape {
            Shape::Any => "anything",
            Shape::Text => "string",
            Shape::Integer => "int64",
            Shape::Bool => "bool",
            Shape::Texts => "[]string",
            Shape::TextMap => "map[string]string",
            Shape::Quantity => "resource.Quantity",
            Shape::Quantities => "map[string]resource.Quantity",
            Shape::Object(_) => "object",
            Shape::Objects(_) => "[]object",
        };
        let found = match found {
            Value::Null => "null",
            Value::Bool(_) => "bool",
            Value::Number(_) => "number",
            Value::String(_) => "string",
            Value::Array(_) => "array",
            Value::Object(_) => "object",
        };
        self.refuse(&format!("json: cannot unmarshal {found} into field {path} of type {wanted}"))
    }
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}
