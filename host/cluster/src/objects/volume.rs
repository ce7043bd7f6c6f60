//! PersistentVolume.

use cofferdam_domain::{
    ClaimKey, ClaimRef, DriverName, ObjectMeta, ReclaimPolicy, StringMap, Uid, Volume, VolumeHandle,
    VolumePhase, names,
    volume::{CsiVolumeSource, SecretRef, VolumeNotation},
};
use serde::{Deserialize, de::IgnoredAny};

use super::{
    DecodeError, Kind,
    error::parse_json,
    fields::{ResourceList, access_mode_list, volume_mode},
    meta::LabelledMeta,
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
            // A claim's selector may name any label.
            metadata: LabelledMeta,
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
            azure_file: Option<IgnoredAny>,
            cephfs: Option<IgnoredAny>,
            cinder: Option<IgnoredAny>,
            fc: Option<IgnoredAny>,
            flex_volume: Option<IgnoredAny>,
            flocker: Option<IgnoredAny>,
            gce_persistent_disk: Option<IgnoredAny>,
            glusterfs: Option<IgnoredAny>,
            host_path: Option<IgnoredAny>,
            iscsi: Option<IgnoredAny>,
            local: Option<IgnoredAny>,
            nfs: Option<IgnoredAny>,
            photon_persistent_disk: Option<IgnoredAny>,
            portworx_volume: Option<IgnoredAny>,
            quobyte: Option<IgnoredAny>,
            rbd: Option<IgnoredAny>,
            #[serde(rename = "scaleIO")]
            scale_io: Option<IgnoredAny>,
            storageos: Option<IgnoredAny>,
            vsphere_volume: Option<IgnoredAny>,
        }
        impl Spec {
            fn in_tree(&self) -> Option<&'static str> {
                let sources = [
                    ("awsElasticBlockStore", &self.aws_elastic_block_store),
                    ("azureDisk", &self.azure_disk),
                    ("azureFile", &self.azure_file),
                    ("cephfs", &self.cephfs),
                    ("cinder", &self.cinder),
                    ("fc", &self.fc),
                    ("flexVolume", &self.flex_volume),
                    ("flocker", &self.flocker),
                    ("gcePersistentDisk", &self.gce_persistent_disk),
                    ("glusterfs", &self.glusterfs),
                    ("hostPath", &self.host_path),
                    ("iscsi", &self.iscsi),
                    ("local", &self.local),
                    ("nfs", &self.nfs),
                    ("photonPersistentDisk", &self.photon_persistent_disk),
                    ("portworxVolume", &self.portworx_volume),
                    ("quobyte", &self.quobyte),
                    ("rbd", &self.rbd),
                    ("scaleIO", &self.scale_io),
                    ("storageos", &self.storageos),
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
            uid: Option<Uid>,
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
        let storage = spec.capacity.and_then(|capacity| capacity.storage);
        let capacity = storage
            .as_ref()
            .map(|amount| {
                amount
                    .parse()
                    .map_err(|source| DecodeError::Quantity { path: "spec.capacity.storage", source })
            })
            .transpose()?;
        let modes = access_mode_list("spec.accessModes", spec.access_modes)?;
        let notation = VolumeNotation {
            capacity: storage.zip(capacity).and_then(|(amount, capacity)| amount.other_notation(capacity)),
            access_modes: modes.notation,
        };
        let class = meta.annotation(names::CLASS_BETA).map(Into::into);
        let class = class.or(spec.storage_class_name.map(|class| class.0));
        Ok(Self {
            in_tree_source: in_tree,
            name: cofferdam_domain::VolumeName::new(name),
            capacity,
            access_modes: modes.set,
            notation: (notation != VolumeNotation::default()).then(|| Box::new(notation)),
            mode: volume_mode(spec.volume_mode.as_deref())?,
            class: class.unwrap_or_default(),
            attributes_class: spec.volume_attributes_class_name.unwrap_or_default(),
            reclaim_policy: ReclaimPolicy::parse(
                spec.persistent_volume_reclaim_policy.as_deref().unwrap_or("Retain"),
            ),
            claim_ref: spec.claim_ref.map(|r| ClaimRef {
                key: ClaimKey::new(r.namespace.0, r.name.0),
                uid: r.uid.filter(|uid| !uid.is_empty()),
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

    fn key(&self) -> &Self::Key {
        &self.name
    }

    fn meta(&self) -> &ObjectMeta {
        &self.meta
    }
}

#[cfg(test)]
mod tests {
    use cofferdam_domain::AccessMode::{ReadOnlyMany, ReadWriteOnce};
    use serde_json::{Value, json};

    use super::*;
    use crate::objects::decode::object;

    fn decode_volume(spec: Value) -> Volume {
        let metadata = json!({"name": "v", "uid": "u", "resourceVersion": "7"});
        object::<Volume>(&json!({"metadata": metadata, "spec": spec}).to_string()).unwrap().unwrap()
    }

    #[test]
    fn the_notation_of_capacity_and_access_modes_is_kept_if_it_is_unusual() {
        #[rustfmt::skip] // one row per spec
        let table = [
            (json!({"capacity": {"storage": "2Gi"}, "accessModes": ["ReadWriteOnce", "ReadOnlyMany"]}),
                false, Some("2Gi"), vec![ReadWriteOnce, ReadOnlyMany]),
            (json!({"capacity": {"storage": "2G"}, "accessModes": ["ReadOnlyMany", "ReadWriteOnce"]}),
                true, Some("2G"), vec![ReadOnlyMany, ReadWriteOnce]),
            (json!({"capacity": {"storage": 2048}, "accessModes": ["ReadWriteOnce", "ReadWriteOnce"]}),
                true, Some("2048"), vec![ReadWriteOnce, ReadWriteOnce]),
            (json!({}), false, None, vec![]),
        ];
        for (spec, is_unusual, capacity, modes) in table {
            let volume = decode_volume(spec);
            assert_eq!(volume.notation.is_some(), is_unusual, "{volume:?}");
            assert_eq!(volume.capacity_text().as_deref(), capacity);
            assert_eq!(volume.access_mode_list(), modes);
        }
    }

    #[test]
    fn the_in_tree_source_and_its_csi_driver_are_decoded() {
        let in_tree = |spec: Value| {
            let volume = decode_volume(spec);
            let driver = volume.migrated_driver().map(str::to_owned);
            (volume.in_tree_source, volume.attachable_in_tree_source(), driver)
        };
        let ebs = Some("ebs.csi.aws.com".to_owned());
        let ebs_source = Some("awsElasticBlockStore");
        assert_eq!(
            in_tree(json!({"awsElasticBlockStore": {"volumeID": "vol-1"}})),
            (ebs_source, ebs_source, ebs)
        );
        assert_eq!(in_tree(json!({"scaleIO": {}})), (Some("scaleIO"), None, None));
        assert_eq!(in_tree(json!({"iscsi": {}})), (Some("iscsi"), Some("iscsi"), None));
        assert_eq!(in_tree(json!({"nfs": {}})), (Some("nfs"), None, None));
        assert_eq!(in_tree(json!({"csi": {"driver": "d", "volumeHandle": "h"}})), (None, None, None));
    }
}
