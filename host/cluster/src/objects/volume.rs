//! PersistentVolume.

use cofferdam_domain::{
    ClaimKey, ClaimRef, DriverName, ObjectMeta, ReclaimPolicy, StringMap, Uid, Volume, VolumeHandle,
    VolumePhase, names,
    volume::{CsiVolumeSource, SecretRef},
};
use serde::{Deserialize, de::IgnoredAny};

use super::{
    DecodeError, Kind,
    error::parse_json,
    fields::{ResourceList, access_modes, volume_mode},
    meta::Meta,
    strings::{DriverDataPolicy, InternedMap, InternedStr, OwnedStr},
};
use crate::api::ApiResource;

impl Kind for Volume {
    type Key = cofferdam_domain::VolumeName;
    const RESOURCE: ApiResource = ApiResource {
        group: "",
        version: "v1",
        kind: "PersistentVolume",
        plural: "persistentvolumes",
        namespaced: false,
    };

    fn decode(json: &str) -> Result<Self, DecodeError> {
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
            capacity: Option<ResourceList>,
            access_modes: Option<Vec<Box<str>>>,
            volume_mode: Option<Box<str>>,
            storage_class_name: Option<InternedStr>,
            volume_attributes_class_name: Option<Box<str>>,
            persistent_volume_reclaim_policy: Option<Box<str>>,
            claim_ref: Option<Reference>,
            mount_options: Option<Vec<String>>,
            node_affinity: Option<NodeAffinity>,
            csi: Option<Csi>,
            aws_elastic_block_store: Option<IgnoredAny>,
            azure_disk: Option<IgnoredAny>,
            cinder: Option<IgnoredAny>,
            fc: Option<IgnoredAny>,
            gce_persistent_disk: Option<IgnoredAny>,
            iscsi: Option<IgnoredAny>,
            portworx_volume: Option<IgnoredAny>,
            vsphere_volume: Option<IgnoredAny>,
        }
        impl Spec {
            fn in_tree(&self) -> Option<&'static str> {
                let sources = [
                    ("awsElasticBlockStore", &self.aws_elastic_block_store),
                    ("azureDisk", &self.azure_disk),
                    ("cinder", &self.cinder),
                    ("fc", &self.fc),
                    ("gcePersistentDisk", &self.gce_persistent_disk),
                    ("iscsi", &self.iscsi),
                    ("portworxVolume", &self.portworx_volume),
                    ("vsphereVolume", &self.vsphere_volume),
                ];
                sources.into_iter().find(|(_, source)| source.is_some()).map(|(name, _)| name)
            }
        }
        #[derive(Deserialize, Default)]
        #[serde(default)]
        struct NodeAffinity {
            required: Option<NodeSelector>,
        }
        #[derive(Deserialize, Default)]
        #[serde(rename_all = "camelCase", default)]
        struct NodeSelector {
            node_selector_terms: Option<Vec<Term>>,
        }
        #[derive(Deserialize, Default)]
        #[serde(rename_all = "camelCase", default)]
        struct Term {
            match_expressions: Option<Vec<TermExpression>>,
        }
        #[derive(Deserialize)]
        struct TermExpression {
            key: InternedStr,
            operator: Box<str>,
            values: Option<Vec<InternedStr>>,
        }
        impl Term {
            fn single_value_labels(self) -> StringMap {
                let single_value = |expression: TermExpression| {
                    let mut values = expression.values.unwrap_or_default().into_iter();
                    let pair = (expression.key.0, values.next()?.0);
                    (&*expression.operator == "In" && values.next().is_none()).then_some(pair)
                };
                self.match_expressions.unwrap_or_default().into_iter().filter_map(single_value).collect()
            }
        }
        #[derive(Deserialize, Default)]
        #[serde(default)]
        struct Reference {
            namespace: InternedStr,
            name: OwnedStr,
            uid: Option<OwnedStr>,
        }
        impl Reference {
            fn into_secret(self) -> Box<SecretRef> {
                Box::new(SecretRef { namespace: (*self.namespace.0).into(), name: (*self.name.0).into() })
            }
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Csi {
            driver: InternedStr,
            volume_handle: OwnedStr,
            volume_attributes: Option<InternedMap<DriverDataPolicy>>,
            fs_type: Option<InternedStr>,
            #[serde(default)]
            read_only: bool,
            controller_publish_secret_ref: Option<Reference>,
            controller_expand_secret_ref: Option<Reference>,
        }
        #[derive(Deserialize, Default)]
        #[serde(default)]
        struct Status {
            phase: Option<Box<str>>,
        }
        let Wire { metadata, spec, status } = parse_json(json)?;
        let name = metadata.name();
        let meta = metadata.into_domain()?;
        let in_tree = spec.in_tree();
        let capacity = spec
            .capacity
            .and_then(|capacity| capacity.storage)
            .map(|amount| {
                amount
                    .parse()
                    .map_err(|source| DecodeError::Quantity { path: "spec.capacity.storage", source })
            })
            .transpose()?;
        let class = meta.annotation(names::CLASS_BETA).map(Into::into);
        let class = class.or(spec.storage_class_name.map(|class| class.0));
        Ok(Self {
            in_tree_source: in_tree,
            name: cofferdam_domain::VolumeName::new(name),
            capacity,
            access_modes: access_modes("spec.accessModes", spec.access_modes)?,
            mode: volume_mode(spec.volume_mode.as_deref())?,
            class: class.unwrap_or_default(),
            attributes_class: spec.volume_attributes_class_name.unwrap_or_default(),
            reclaim_policy: ReclaimPolicy::parse(
                spec.persistent_volume_reclaim_policy.as_deref().unwrap_or("Retain"),
            ),
            claim_ref: spec.claim_ref.map(|r| ClaimRef {
                key: ClaimKey::new(r.namespace.0, r.name.0),
                uid: r.uid.filter(|uid| !uid.0.is_empty()).map(|uid| Uid::new(uid.0)),
            }),
            mount_options: spec.mount_options.unwrap_or_default(),
            node_affinity_terms: spec
                .node_affinity
                .and_then(|affinity| affinity.required)
                .and_then(|required| required.node_selector_terms)
                .unwrap_or_default()
                .into_iter()
                .map(Term::single_value_labels)
                .collect(),
            csi: spec.csi.map(|csi| CsiVolumeSource {
                driver: DriverName::new(csi.driver.0),
                handle: VolumeHandle::new(csi.volume_handle.0),
                attributes: csi.volume_attributes.unwrap_or_default().map,
                fs_type: csi.fs_type.map(|fs_type| fs_type.0).filter(|fs_type| !fs_type.is_empty()),
                read_only: csi.read_only,
                publish_secret: csi.controller_publish_secret_ref.map(Reference::into_secret),
                expand_secret: csi.controller_expand_secret_ref.map(Reference::into_secret),
            }),
            phase: match status.phase.as_deref() {
                Some("Available") => VolumePhase::Available,
                Some("Bound") => VolumePhase::Bound,
                Some("Released") => VolumePhase::Released,
                Some("Failed") => VolumePhase::Failed,
                None | Some(_) => VolumePhase::Pending,
            },
            meta,
        })
    }

    fn key(&self) -> Self::Key {
        self.name.clone()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.meta
    }
}
