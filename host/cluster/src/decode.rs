//! From the API's JSON to domain values: only the fields that the roles use, everything else is skipped while
//! reading.
//!
//! Kubernetes validates its own kinds, so an object that does not decode means a newer API, an aggregated one
//! or a bug. It never fails a list: what is left of it (key, uid, version, reason) stays in the cache as
//! opaque.

mod class;
mod progress;
mod strings;
mod volume;
mod volume_attachment;

use std::{collections::BTreeMap, sync::Arc};

use cofferdam_domain::{
    AccessMode, AccessModes, BindingMode, Claim, ClaimKey, ClaimPhase, LabelSelector,
    LabelSelectorRequirement, NodeName, ObjectMeta, Pod, PodKey, Quantity, ReclaimPolicy, StorageClass,
    StringMap, Uid, VolumeMode, VolumeName,
    claim::DataSource,
    ids::{InvalidResourceVersion, ResourceVersion},
};
use serde::Deserialize;

use self::strings::{AnnotationPolicy, InternedMap, InternedStr, LabelPolicy, OwnedStr};
use crate::{
    cache::{ClaimIndex, PodIndex},
    kind::{ApiResource, Kind},
    store::{DecodeResult, UndecodableObject},
};

type Map = BTreeMap<Box<str>, Box<str>>;

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Meta {
    name: OwnedStr,
    namespace: InternedStr,
    uid: Option<OwnedStr>,
    resource_version: Option<Box<str>>,
    deletion_timestamp: Option<Box<str>>,
    deletion_grace_period_seconds: Option<i64>,
    creation_timestamp: Option<Box<str>>,
    finalizers: Option<Vec<InternedStr>>,
    annotations: Option<InternedMap<AnnotationPolicy>>,
    labels: Option<InternedMap<LabelPolicy>>,
    owner_references: Option<Vec<OwnerReference>>,
}

#[derive(Deserialize)]
struct OwnerReference {
    uid: OwnedStr,
    controller: Option<bool>,
}

impl Meta {
    /// The name, counted.
    pub(crate) fn name(&self) -> Arc<str> {
        Arc::clone(&self.name.0)
    }

    /// The namespace, counted; empty where there is none.
    pub(crate) fn namespace(&self) -> Arc<str> {
        Arc::clone(&self.namespace.0)
    }

    /// Uid of the owner that controls the object.
    fn controller(&self) -> Option<Uid> {
        let mut owners = self.owner_references.iter().flatten();
        owners.find(|owner| owner.controller == Some(true)).map(|owner| Uid::new(Arc::clone(&owner.uid.0)))
    }

    fn resource_version(&self) -> Result<ResourceVersion, String> {
        match self.resource_version.as_deref() {
            None | Some("") => Ok(ResourceVersion::default()),
            Some(text) => text.parse().map_err(|error: InvalidResourceVersion| error.to_string()),
        }
    }

    pub(crate) fn into_domain(self) -> Result<ObjectMeta, String> {
        let version = self.resource_version()?;
        let created_ms = match self.creation_timestamp.as_deref() {
            None => 0,
            Some(text) => text
                .parse::<jiff::Timestamp>()
                .map_err(|_| format!("metadata.creationTimestamp is {text:?}: expected an RFC 3339 time"))?
                .as_millisecond(),
        };
        Ok(ObjectMeta {
            uid: Uid::new(self.uid.unwrap_or_default().0),
            resource_version: version,
            deleting: self.deletion_timestamp.is_some(),
            created_ms,
            finalizers: self.finalizers.into_iter().flatten().map(|finalizer| finalizer.0).collect(),
            annotations: self.annotations.unwrap_or_default().map,
            labels: self.labels.unwrap_or_default().map,
        })
    }
}

/// Decodes one object, or says what is left of it.
///
/// # Errors
/// The inner error keeps the key of an object whose metadata can be read; the outer one means that not even
/// that can.
pub fn object<K: Kind>(json: &str) -> Result<DecodeResult<K>, String> {
    #[derive(Deserialize)]
    struct Head {
        metadata: Meta,
    }
    let reason = match K::decode(json) {
        Ok(object) if object.resource_version() != ResourceVersion::default() => return Ok(Ok(object)),
        Ok(_) => "metadata.resourceVersion is absent".to_owned(),
        Err(reason) => reason,
    };
    let kind = K::RESOURCE.kind;
    let head: Head = serde_json::from_str(json).map_err(|_| format!("a {kind} cannot be read: {reason}"))?;
    let version = head.metadata.resource_version()?;
    Ok(Err(UndecodableObject {
        key: K::key_from_parts(&head.metadata.namespace.0, &head.metadata.name.0),
        uid: Uid::new(head.metadata.uid.unwrap_or_default().0),
        resource_version: version,
        reason,
    }))
}

fn parse_json<'a, T: Deserialize<'a>>(json: &'a str) -> Result<T, String> {
    serde_json::from_str(json).map_err(|error| error.to_string())
}

fn access_modes(field: &str, modes: Option<Vec<Box<str>>>) -> Result<AccessModes, String> {
    modes
        .unwrap_or_default()
        .iter()
        .map(|mode| {
            AccessMode::parse(mode).ok_or_else(|| {
                format!(
                    "{field} has {mode:?}: expected one of {}",
                    AccessMode::ALL.map(AccessMode::as_str).join(", ")
                )
            })
        })
        .collect()
}

fn volume_mode(mode: Option<&str>) -> Result<VolumeMode, String> {
    match mode {
        None | Some("Filesystem") => Ok(VolumeMode::Filesystem),
        Some("Block") => Ok(VolumeMode::Block),
        Some(other) => Err(format!("spec.volumeMode is {other:?}: expected Filesystem or Block")),
    }
}

/// A selector as the API serves it; the reason why it cannot be used is kept for the claim's event.
fn selector(selector: WireLabelSelector) -> Result<LabelSelector, String> {
    let mut requirements: Vec<LabelSelectorRequirement> = selector
        .match_labels
        .unwrap_or_default()
        .into_iter()
        .map(|(key, value)| LabelSelectorRequirement::In(key, vec![value]))
        .collect();
    for WireRequirement { key, operator, values } in selector.match_expressions.unwrap_or_default() {
        let values = values.unwrap_or_default();
        requirements.push(match (&*operator, values.is_empty()) {
            ("In", false) => LabelSelectorRequirement::In(key, values),
            ("NotIn", false) => LabelSelectorRequirement::NotIn(key, values),
            ("Exists", true) => LabelSelectorRequirement::Exists(key),
            ("DoesNotExist", true) => LabelSelectorRequirement::DoesNotExist(key),
            _ => {
                return Err(format!(
                    "selector on {key:?} has operator {operator:?} with {} values: expected In or NotIn with values, \
                     Exists or DoesNotExist without",
                    values.len()
                ));
            }
        });
    }
    Ok(LabelSelector { requirements })
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireLabelSelector {
    match_labels: Option<Map>,
    match_expressions: Option<Vec<WireRequirement>>,
}

#[derive(Deserialize)]
struct WireRequirement {
    key: Box<str>,
    operator: Box<str>,
    values: Option<Vec<Box<str>>>,
}

/// Amounts arrive as text, or as a number where a client wrote one.
#[derive(Deserialize)]
#[serde(untagged)]
enum WireQuantity {
    Text(Box<str>),
    Number(serde_json::Number),
}

impl WireQuantity {
    fn parse(&self) -> Result<Quantity, cofferdam_domain::QuantityError> {
        match self {
            Self::Text(text) => Quantity::parse(text),
            Self::Number(number) => Quantity::parse(&number.to_string()),
        }
    }
}

#[derive(Deserialize, Default)]
struct ResourceList {
    storage: Option<WireQuantity>,
}

impl Kind for Claim {
    type Key = ClaimKey;
    type Index = ClaimIndex;
    const RESOURCE: ApiResource = ApiResource {
        group: "",
        version: "v1",
        kind: "PersistentVolumeClaim",
        plural: "persistentvolumeclaims",
        namespaced: true,
    };

    fn decode(json: &str) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Wire {
            metadata: Meta,
            #[serde(default)]
            spec: Spec,
            #[serde(default)]
            status: Status,
        }
        #[derive(Deserialize, Default)]
        #[serde(rename_all = "camelCase", default)]
        struct Spec {
            volume_name: Option<OwnedStr>,
            storage_class_name: Option<InternedStr>,
            access_modes: Option<Vec<Box<str>>>,
            volume_mode: Option<Box<str>>,
            resources: Resources,
            selector: Option<WireLabelSelector>,
            volume_attributes_class_name: Option<Box<str>>,
            data_source: Option<Source>,
            data_source_ref: Option<Source>,
        }
        #[derive(Deserialize, Default)]
        struct Resources {
            requests: Option<ResourceList>,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Source {
            api_group: Option<Box<str>>,
            kind: Box<str>,
            name: Box<str>,
        }
        #[derive(Deserialize, Default)]
        #[serde(rename_all = "camelCase", default)]
        struct Status {
            phase: Option<Box<str>>,
            access_modes: Option<Vec<Box<str>>>,
            capacity: Option<ResourceList>,
            current_volume_attributes_class_name: Option<Box<str>>,
            allocated_resources: Option<ResourceList>,
            allocated_resource_statuses: Option<progress::ResourceStatuses>,
            modify_volume_status: Option<progress::WireModifyVolumeStatus>,
            conditions: Option<Vec<progress::WireCondition>>,
        }
        let Wire { metadata, spec, status } = parse_json(json)?;
        let key = ClaimKey::new(metadata.namespace(), metadata.name());
        let source = spec.data_source.or(spec.data_source_ref);
        Ok(Self {
            key,
            controller_uid: metadata.controller(),
            meta: metadata.into_domain()?,
            volume: spec.volume_name.filter(|name| !name.0.is_empty()).map(|name| VolumeName::new(name.0)),
            class: spec.storage_class_name.map(|name| name.0),
            access_modes: access_modes("spec.accessModes", spec.access_modes)?,
            mode: volume_mode(spec.volume_mode.as_deref())?,
            request: spec
                .resources
                .requests
                .and_then(|requests| requests.storage)
                .map_or_else(|| Quantity::parse(""), |amount| amount.parse())
                .map_err(Box::new),
            selector: spec.selector.map(|labels| Box::new(selector(labels))),
            attributes_class: spec.volume_attributes_class_name.unwrap_or_default(),
            source: source.map(|s| {
                Box::new(DataSource { group: s.api_group.unwrap_or_default(), kind: s.kind, name: s.name })
            }),
            phase: match status.phase.as_deref() {
                Some("Bound") => ClaimPhase::Bound,
                Some("Lost") => ClaimPhase::Lost,
                None | Some(_) => ClaimPhase::Pending,
            },
            status_access_modes: access_modes("status.accessModes", status.access_modes)?,
            status_capacity: status
                .capacity
                .and_then(|capacity| capacity.storage)
                .and_then(|amount| amount.parse().ok()),
            status_attributes_class: status.current_volume_attributes_class_name,
            progress: progress::progress(
                status.allocated_resources,
                status.allocated_resource_statuses,
                status.modify_volume_status,
                status.conditions,
            ),
        })
    }

    fn key(&self) -> ClaimKey {
        self.key.clone()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.meta
    }
}

impl Kind for StorageClass {
    type Key = cofferdam_domain::StorageClassName;
    type Index = ();
    const RESOURCE: ApiResource = ApiResource {
        group: "storage.k8s.io",
        version: "v1",
        kind: "StorageClass",
        plural: "storageclasses",
        namespaced: false,
    };

    fn decode(json: &str) -> Result<Self, String> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Wire {
            metadata: Meta,
            provisioner: String,
            parameters: Option<BTreeMap<String, String>>,
            reclaim_policy: Option<Box<str>>,
            mount_options: Option<Vec<String>>,
            volume_binding_mode: Option<Box<str>>,
            allowed_topologies: Option<Vec<Term>>,
        }
        #[derive(Deserialize, Default)]
        #[serde(rename_all = "camelCase", default)]
        struct Term {
            match_label_expressions: Option<Vec<TermExpression>>,
        }
        #[derive(Deserialize)]
        struct TermExpression {
            key: String,
            values: Vec<String>,
        }
        let wire: Wire = parse_json(json)?;
        let name = wire.metadata.name();
        let binding_mode = match wire.volume_binding_mode.as_deref() {
            None => None,
            Some("Immediate") => Some(BindingMode::Immediate),
            Some("WaitForFirstConsumer") => Some(BindingMode::WaitForFirstConsumer),
            Some(other) => {
                return Err(format!(
                    "volumeBindingMode is {other:?}: expected Immediate or WaitForFirstConsumer"
                ));
            }
        };
        Ok(Self {
            name: cofferdam_domain::StorageClassName::new(name),
            meta: wire.metadata.into_domain()?,
            provisioner: wire.provisioner.into(),
            parameters: wire.parameters.unwrap_or_default(),
            reclaim_policy: ReclaimPolicy::parse(wire.reclaim_policy.as_deref().unwrap_or("Delete")),
            mount_options: wire.mount_options.unwrap_or_default(),
            binding_mode,
            allowed_topologies: wire
                .allowed_topologies
                .unwrap_or_default()
                .into_iter()
                .map(|term| {
                    let expressions = term.match_label_expressions.unwrap_or_default();
                    expressions.into_iter().map(|e| (e.key, e.values)).collect()
                })
                .collect(),
        })
    }

    fn key(&self) -> Self::Key {
        self.name.clone()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.meta
    }
}

impl Kind for Pod {
    type Key = PodKey;
    type Index = PodIndex;
    const RESOURCE: ApiResource =
        ApiResource { group: "", version: "v1", kind: "Pod", plural: "pods", namespaced: true };

    fn decode(json: &str) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Wire {
            metadata: Meta,
            #[serde(default)]
            spec: Spec,
            #[serde(default)]
            status: Status,
        }
        #[derive(Deserialize, Default)]
        #[serde(rename_all = "camelCase", default)]
        struct Spec {
            node_name: Option<InternedStr>,
            volumes: Option<Vec<PodVolume>>,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct PodVolume {
            name: Box<str>,
            persistent_volume_claim: Option<ClaimSource>,
            ephemeral: Option<serde::de::IgnoredAny>,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct ClaimSource {
            claim_name: OwnedStr,
        }
        #[derive(Deserialize, Default)]
        #[serde(rename_all = "camelCase", default)]
        struct Status {
            phase: Option<Box<str>>,
            container_statuses: Option<Vec<ContainerStatus>>,
            init_container_statuses: Option<Vec<ContainerStatus>>,
            ephemeral_container_statuses: Option<Vec<ContainerStatus>>,
        }
        #[derive(Deserialize, Default)]
        #[serde(default)]
        struct ContainerStatus {
            state: ContainerState,
        }
        #[derive(Deserialize, Default)]
        #[serde(default)]
        struct ContainerState {
            waiting: Option<serde::de::IgnoredAny>,
            terminated: Option<serde::de::IgnoredAny>,
        }
        let Wire { metadata, spec, status } = parse_json(json)?;
        let running = [
            &status.container_statuses,
            &status.init_container_statuses,
            &status.ephemeral_container_statuses,
        ]
        .into_iter()
        .flatten()
        .flatten()
        // What says nothing may run: so does Kubernetes read it.
        .any(|status| status.state.waiting.is_none() && status.state.terminated.is_none());
        let deleting = metadata.deletion_timestamp.is_some();
        let shut_down = deleting && metadata.deletion_grace_period_seconds == Some(0);
        let mut claims = Vec::new();
        let mut ephemeral_claims = Vec::new();
        for volume in spec.volumes.unwrap_or_default() {
            if let Some(source) = volume.persistent_volume_claim {
                claims.push(source.claim_name.0);
            } else if volume.ephemeral.is_some() {
                ephemeral_claims.push(format!("{}-{}", metadata.name.0, volume.name).into());
            }
        }
        Ok(Self {
            key: PodKey::new(metadata.namespace(), metadata.name()),
            meta: ObjectMeta {
                annotations: StringMap::default(),
                labels: StringMap::default(),
                ..metadata.into_domain()?
            },
            node: spec.node_name.filter(|node| !node.0.is_empty()).map(|node| NodeName::new(node.0)),
            terminated: matches!(status.phase.as_deref(), Some("Failed" | "Succeeded"))
                || (deleting && !running),
            zero_grace_period: shut_down,
            claims: claims.into(),
            ephemeral_claims: ephemeral_claims.into(),
        })
    }

    fn key(&self) -> PodKey {
        self.key.clone()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.meta
    }
}
