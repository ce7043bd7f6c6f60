//! PersistentVolume.

use std::collections::BTreeMap;

use cofferdam_domain::{
    ClaimKey, ClaimRef, ObjectMeta, ReclaimPolicy, Uid, Volume, VolumePhase, names,
    volume::{CsiSource, SecretRef},
};
use serde::Deserialize;

use super::{Amounts, Meta, access_modes, read, volume_mode};
use crate::{
    cache::VolumeIndex,
    kind::{Kind, Resource},
};

impl Kind for Volume {
    type Key = cofferdam_domain::VolumeName;
    type Index = VolumeIndex;
    const RESOURCE: Resource = Resource {
        group: "",
        version: "v1",
        kind: "PersistentVolume",
        plural: "persistentvolumes",
        namespaced: false,
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
            capacity: Option<Amounts>,
            access_modes: Option<Vec<Box<str>>>,
            volume_mode: Option<Box<str>>,
            storage_class_name: Option<Box<str>>,
            volume_attributes_class_name: Option<Box<str>>,
            persistent_volume_reclaim_policy: Option<Box<str>>,
            claim_ref: Option<Reference>,
            mount_options: Option<Vec<String>>,
            node_affinity: Option<NodeAffinity>,
            csi: Option<Csi>,
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
            key: String,
            operator: Box<str>,
            values: Option<Vec<String>>,
        }
        impl Term {
            fn pinned(self) -> BTreeMap<String, String> {
                let one = |expression: TermExpression| {
                    let mut values = expression.values.unwrap_or_default().into_iter();
                    let pair = (expression.key, values.next()?);
                    (&*expression.operator == "In" && values.next().is_none()).then_some(pair)
                };
                self.match_expressions.unwrap_or_default().into_iter().filter_map(one).collect()
            }
        }
        #[derive(Deserialize, Default)]
        #[serde(default)]
        struct Reference {
            namespace: Box<str>,
            name: Box<str>,
            uid: Option<Box<str>>,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Csi {
            driver: String,
            volume_handle: String,
            volume_attributes: Option<BTreeMap<String, String>>,
            fs_type: Option<String>,
            #[serde(default)]
            read_only: bool,
            controller_publish_secret_ref: Option<Reference>,
        }
        #[derive(Deserialize, Default)]
        #[serde(default)]
        struct Status {
            phase: Option<Box<str>>,
        }
        let Wire { metadata, spec, status } = read(json)?;
        let name = metadata.name.clone();
        let meta = metadata.into_domain()?;
        let capacity = spec
            .capacity
            .and_then(|capacity| capacity.storage)
            .map(|amount| amount.parse().map_err(|e| format!("spec.capacity.storage: {e}")))
            .transpose()?;
        let class = meta.annotation(names::CLASS_BETA).map(Into::into).or(spec.storage_class_name);
        Ok(Self {
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
                key: ClaimKey::new(r.namespace, r.name),
                uid: r.uid.filter(|uid| !uid.is_empty()).map(Uid::new),
            }),
            mount_options: spec.mount_options.unwrap_or_default(),
            places: spec
                .node_affinity
                .and_then(|affinity| affinity.required)
                .and_then(|required| required.node_selector_terms)
                .unwrap_or_default()
                .into_iter()
                .map(Term::pinned)
                .collect(),
            csi: spec.csi.map(|csi| CsiSource {
                driver: csi.driver.into(),
                handle: csi.volume_handle.into(),
                attributes: csi.volume_attributes.unwrap_or_default(),
                fs_type: csi.fs_type.filter(|fs_type| !fs_type.is_empty()),
                read_only: csi.read_only,
                publish_secret: csi
                    .controller_publish_secret_ref
                    .map(|r| SecretRef { namespace: r.namespace, name: r.name }),
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

    fn key_of(_: &str, name: &str) -> Self::Key {
        name.into()
    }

    fn locate(key: &Self::Key) -> (Option<&str>, &str) {
        (None, key.as_str())
    }

    fn key(&self) -> Self::Key {
        self.name.clone()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.meta
    }
}
