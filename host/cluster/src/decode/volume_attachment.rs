//! VolumeAttachment, CSINode, CSIDriver and Node.

use std::collections::BTreeMap;

use cofferdam_domain::{
    CsiDriver, CsiNode, DriverName, Node, NodeName, NodeVolumeStatus, ObjectMeta, StringMap,
    UniqueVolumeName, VolumeAttachment, VolumeAttachmentName, VolumeAttachmentSource, VolumeError,
    VolumeName, names,
};
use serde::{Deserialize, de::IgnoredAny};

use super::{
    Meta, parse_json,
    strings::{DriverDataPolicy, InternedMap, InternedStr, OwnedStr},
};
use crate::{
    cache::VolumeAttachmentIndex,
    kind::{ApiResource, Kind},
};

const STORAGE: &str = "storage.k8s.io";

impl Kind for VolumeAttachment {
    type Key = VolumeAttachmentName;
    type Index = VolumeAttachmentIndex;
    const RESOURCE: ApiResource = ApiResource {
        group: STORAGE,
        version: "v1",
        kind: "VolumeAttachment",
        plural: "volumeattachments",
        namespaced: false,
    };

    fn decode(json: &str) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Wire {
            metadata: Meta,
            spec: Spec,
            #[serde(default)]
            status: Status,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Spec {
            attacher: InternedStr,
            node_name: InternedStr,
            #[serde(default)]
            source: Source,
        }
        #[derive(Deserialize, Default)]
        #[serde(rename_all = "camelCase", default)]
        struct Source {
            persistent_volume_name: Option<OwnedStr>,
            inline_volume_spec: Option<IgnoredAny>,
        }
        #[derive(Deserialize, Default)]
        #[serde(rename_all = "camelCase", default)]
        struct Status {
            attached: bool,
            attachment_metadata: Option<InternedMap<DriverDataPolicy>>,
            attach_error: Option<Failure>,
            detach_error: Option<Failure>,
        }
        #[derive(Deserialize, Default)]
        #[serde(rename_all = "camelCase", default)]
        struct Failure {
            message: String,
            error_code: Option<i32>,
        }
        let error = |failure: Failure| {
            Box::new(VolumeError { message: failure.message, error_code: failure.error_code })
        };
        let Wire { metadata, spec, status } = parse_json(json)?;
        let volume = spec.source.persistent_volume_name.filter(|name| !name.0.is_empty());
        Ok(Self {
            name: VolumeAttachmentName::new(metadata.name()),
            meta: metadata.into_domain()?,
            attacher: DriverName::new(spec.attacher.0),
            source: match (volume, spec.source.inline_volume_spec) {
                (Some(volume), None) => VolumeAttachmentSource::Volume(VolumeName::new(volume.0)),
                (None, Some(IgnoredAny)) => VolumeAttachmentSource::Inline,
                (None, None) => VolumeAttachmentSource::Invalid(0),
                (Some(_), Some(IgnoredAny)) => VolumeAttachmentSource::Invalid(2),
            },
            node: NodeName::new(spec.node_name.0),
            attached: status.attached,
            attachment_metadata: status.attachment_metadata.unwrap_or_default().map,
            attach_error: status.attach_error.map(error),
            detach_error: status.detach_error.map(error),
        })
    }

    fn key(&self) -> Self::Key {
        self.name.clone()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.meta
    }
}

impl Kind for CsiNode {
    type Key = NodeName;
    type Index = ();
    const RESOURCE: ApiResource =
        ApiResource { group: STORAGE, version: "v1", kind: "CSINode", plural: "csinodes", namespaced: false };

    fn decode(json: &str) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Wire {
            metadata: Meta,
            #[serde(default)]
            spec: Spec,
        }
        #[derive(Deserialize, Default)]
        #[serde(default)]
        struct Spec {
            drivers: Option<Vec<Driver>>,
        }
        #[derive(Deserialize)]
        struct Driver {
            name: InternedStr,
            #[serde(rename = "nodeID")]
            id: String,
            #[serde(rename = "topologyKeys")]
            keys: Option<Vec<String>>,
        }
        let Wire { metadata, spec } = parse_json(json)?;
        let (mut ids, mut topology_keys) = (BTreeMap::new(), BTreeMap::new());
        for Driver { name, id, keys } in spec.drivers.into_iter().flatten() {
            let name = DriverName::new(name.0);
            topology_keys.insert(name.clone(), keys.unwrap_or_default());
            ids.insert(name, id.into());
        }
        let name = NodeName::new(metadata.name());
        Ok(Self { name, meta: metadata.into_domain()?, node_ids: ids, topology_keys })
    }

    fn key(&self) -> Self::Key {
        self.name.clone()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.meta
    }
}

impl Kind for CsiDriver {
    type Key = DriverName;
    type Index = ();
    const RESOURCE: ApiResource = ApiResource {
        group: STORAGE,
        version: "v1",
        kind: "CSIDriver",
        plural: "csidrivers",
        namespaced: false,
    };

    fn decode(json: &str) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Wire {
            metadata: Meta,
            #[serde(default)]
            spec: Spec,
        }
        #[derive(Deserialize, Default)]
        #[serde(rename_all = "camelCase", default)]
        struct Spec {
            attach_required: Option<bool>,
        }
        let Wire { metadata, spec } = parse_json(json)?;
        Ok(Self {
            name: DriverName::new(metadata.name()),
            meta: metadata.into_domain()?,
            attach_required: spec.attach_required.unwrap_or(true),
        })
    }

    fn key(&self) -> Self::Key {
        self.name.clone()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.meta
    }
}

impl Kind for Node {
    type Key = NodeName;
    type Index = ();
    const RESOURCE: ApiResource =
        ApiResource { group: "", version: "v1", kind: "Node", plural: "nodes", namespaced: false };

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
        #[serde(default)]
        struct Spec {
            taints: Option<Vec<Taint>>,
        }
        #[derive(Deserialize)]
        struct Taint {
            key: Box<str>,
        }
        #[derive(Deserialize, Default)]
        #[serde(rename_all = "camelCase", default)]
        struct Status {
            conditions: Option<Vec<Condition>>,
            volumes_attached: Option<Vec<NodeAttachedVolume>>,
            volumes_in_use: Option<Vec<OwnedStr>>,
        }
        #[derive(Deserialize)]
        struct Condition {
            #[serde(rename = "type")]
            kind: Box<str>,
            status: Box<str>,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct NodeAttachedVolume {
            name: OwnedStr,
            #[serde(default)]
            device_path: Box<str>,
        }
        let Wire { metadata, spec, status } = parse_json(json)?;
        let name = NodeName::new(metadata.name());
        let mut meta = metadata.into_domain()?;
        let managed = meta.has_annotation(names::CONTROLLER_MANAGED_ATTACH);
        meta.annotations = StringMap::default();
        let labels = std::mem::take(&mut meta.labels);
        let mut volumes: BTreeMap<UniqueVolumeName, NodeVolumeStatus> = BTreeMap::new();
        let blank = |name: &UniqueVolumeName| NodeVolumeStatus {
            name: name.clone(),
            attached: false,
            device_path: Box::default(),
            in_use: false,
        };
        for NodeAttachedVolume { name: OwnedStr(name), device_path } in
            status.volumes_attached.into_iter().flatten()
        {
            let name = UniqueVolumeName::new(name);
            let volume = volumes.entry(name.clone()).or_insert_with(|| blank(&name));
            (volume.attached, volume.device_path) = (true, device_path);
        }
        for OwnedStr(name) in status.volumes_in_use.into_iter().flatten() {
            let name = UniqueVolumeName::new(name);
            volumes.entry(name.clone()).or_insert_with(|| blank(&name)).in_use = true;
        }
        let ready = |condition: &Condition| &*condition.kind == "Ready" && &*condition.status == "True";
        Ok(Self {
            name,
            meta,
            labels: labels.iter().map(|(key, value)| (key.into(), value.into())).collect(),
            controller_managed: managed,
            ready: status.conditions.iter().flatten().any(ready),
            out_of_service: spec
                .taints
                .iter()
                .flatten()
                .any(|taint| &*taint.key == names::OUT_OF_SERVICE_TAINT),
            volumes: volumes.into_values().collect(),
        })
    }

    fn key(&self) -> Self::Key {
        self.name.clone()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.meta
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::decode::object;

    fn decode_attachment(spec: Value, status: Value) -> VolumeAttachment {
        let metadata = json!({"name": "a", "uid": "u", "resourceVersion": "7"});
        let json = json!({"metadata": metadata, "spec": spec, "status": status}).to_string();
        object::<VolumeAttachment>(&json).unwrap().unwrap()
    }

    #[test]
    fn volume_attachment_fields_are_decoded() {
        let source_of = |source: Value| {
            decode_attachment(json!({"attacher": "d", "nodeName": "n", "source": source}), json!({})).source
        };
        assert_eq!(
            source_of(json!({"persistentVolumeName": "v"})),
            VolumeAttachmentSource::Volume("v".into())
        );
        assert_eq!(source_of(json!({"inlineVolumeSpec": {"csi": {}}})), VolumeAttachmentSource::Inline);
        assert_eq!(source_of(json!({})), VolumeAttachmentSource::Invalid(0));
        assert_eq!(source_of(json!({"persistentVolumeName": ""})), VolumeAttachmentSource::Invalid(0));
        let both = json!({"persistentVolumeName": "v", "inlineVolumeSpec": {}});
        assert_eq!(source_of(both), VolumeAttachmentSource::Invalid(2));
        let read = decode_attachment(
            json!({"attacher": "d", "nodeName": "n", "source": {"persistentVolumeName": "v"}}),
            json!({
                "attached": true, "attachmentMetadata": {"k": "v"},
                "attachError": {"time": "2026-01-01T00:00:00Z", "message": "m", "errorCode": 8},
                "detachError": {"message": "n", "time": null},
            }),
        );
        assert_eq!((read.attacher.as_str(), read.node.as_str(), read.attached), ("d", "n", true));
        assert_eq!(read.attachment_metadata.iter().collect::<Vec<_>>(), [("k", "v")]);
        let error = |message: &str, code| {
            Some(Box::new(VolumeError { message: message.to_owned(), error_code: code }))
        };
        assert_eq!((read.attach_error, read.detach_error), (error("m", Some(8)), error("n", None)));
    }

    #[test]
    fn csi_node_ids_and_topology_keys_are_decoded() {
        let read = |spec: Value| {
            let metadata = json!({"name": "n", "uid": "u", "resourceVersion": "7"});
            object::<CsiNode>(&json!({"metadata": metadata, "spec": spec}).to_string()).unwrap().unwrap()
        };
        assert!(read(json!({"drivers": null})).node_ids.is_empty());
        let drivers = json!({"drivers": [{"name": "d", "nodeID": "id-1", "topologyKeys": ["k"]}]});
        let node = read(drivers);
        assert_eq!(node.node_ids, BTreeMap::from([("d".into(), "id-1".into())]));
        assert_eq!(node.topology_keys, BTreeMap::from([("d".into(), vec!["k".to_owned()])]));
        let none = read(json!({"drivers": [{"name": "d", "nodeID": "id-1", "topologyKeys": null}]}));
        assert_eq!(none.topology_keys, BTreeMap::from([("d".into(), Vec::new())]));
    }

    #[test]
    fn csi_driver_attach_required_defaults_to_true() {
        let read = |spec: Value| {
            let metadata = json!({"name": "d", "resourceVersion": "7"});
            let json = json!({"metadata": metadata, "spec": spec}).to_string();
            object::<CsiDriver>(&json).unwrap().unwrap().attach_required
        };
        assert!(read(json!({})) && read(json!({"attachRequired": true})));
        assert!(!read(json!({"attachRequired": false})));
    }

    #[test]
    fn node_volume_status_conditions_and_taints_are_decoded() {
        let json = json!({
            "metadata": {
                "name": "n", "resourceVersion": "7",
                "annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": ""},
            },
            "spec": {"taints": [{"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}]},
            "status": {
                "conditions": [{"type": "Ready", "status": "True"}],
                "volumesAttached": [{"name": "b", "devicePath": "/dev/b"}, {"name": "a", "devicePath": ""}],
                "volumesInUse": ["b", "c"],
            },
        });
        let node = object::<Node>(&json.to_string()).unwrap().unwrap();
        assert!(node.controller_managed && node.ready && node.out_of_service);
        let volume = |name: &str, attached, device_path: &str, in_use| NodeVolumeStatus {
            name: name.into(),
            attached,
            device_path: device_path.into(),
            in_use,
        };
        let (a, b) = (volume("a", true, "", false), volume("b", true, "/dev/b", true));
        assert_eq!(*node.volumes, [a, b.clone(), volume("c", false, "", true)]);
        assert_eq!((node.volume(&"b".into()), node.volume(&"d".into())), (Some(&b), None));
        let bare = json!({"metadata": {"name": "n", "resourceVersion": "7"}, "status": {"conditions": [
            {"type": "Ready", "status": "Unknown"}, {"type": "DiskPressure", "status": "True"},
        ]}});
        let node = object::<Node>(&bare.to_string()).unwrap().unwrap();
        assert!(!node.controller_managed && !node.ready && !node.out_of_service && node.volumes.is_empty());
    }

    #[test]
    fn node_keeps_labels_and_drops_annotations() {
        let json = json!({
            "metadata": {
                "name": "n", "uid": "u", "resourceVersion": "7", "labels": {"zone": "a"}, "annotations": {"long": "text"},
            },
            "spec": {"taints": []}, "status": {"images": [{"names": ["i"]}]},
        });
        let node = object::<Node>(&json.to_string()).unwrap().unwrap();
        assert_eq!(node.labels, BTreeMap::from([("zone".to_owned(), "a".to_owned())]));
        assert!(node.meta.labels.is_empty() && node.meta.annotations.is_empty());
    }
}
