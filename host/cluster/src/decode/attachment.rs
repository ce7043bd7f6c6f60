//! VolumeAttachment, CSINode and Node.

use std::collections::BTreeMap;

use cofferdam_domain::{
    Attachment, AttachmentError, AttachmentName, AttachmentSource, CsiNode, Node, NodeObject, ObjectMeta,
    StringMap,
};
use serde::{Deserialize, de::IgnoredAny};

use super::{Meta, read};
use crate::{
    cache::AttachmentIndex,
    kind::{Kind, Resource},
};

const STORAGE: &str = "storage.k8s.io";

impl Kind for Attachment {
    type Key = AttachmentName;
    type Index = AttachmentIndex;
    const RESOURCE: Resource = Resource {
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
            attacher: String,
            node_name: String,
            #[serde(default)]
            source: Source,
        }
        #[derive(Deserialize, Default)]
        #[serde(rename_all = "camelCase", default)]
        struct Source {
            persistent_volume_name: Option<String>,
            inline_volume_spec: Option<IgnoredAny>,
        }
        #[derive(Deserialize, Default)]
        #[serde(rename_all = "camelCase", default)]
        struct Status {
            attached: bool,
            attachment_metadata: Option<BTreeMap<String, String>>,
            attach_error: Option<Failure>,
            detach_error: Option<Failure>,
        }
        #[derive(Deserialize, Default)]
        #[serde(rename_all = "camelCase", default)]
        struct Failure {
            message: String,
            error_code: Option<i32>,
        }
        let error = |failure: Failure| AttachmentError { message: failure.message, code: failure.error_code };
        let Wire { metadata, spec, status } = read(json)?;
        let volume = spec.source.persistent_volume_name.filter(|name| !name.is_empty());
        Ok(Self {
            name: AttachmentName::new(metadata.name.clone()),
            meta: metadata.into_domain()?,
            attacher: spec.attacher.into(),
            source: match (volume, spec.source.inline_volume_spec) {
                (Some(volume), None) => AttachmentSource::Volume(volume.into()),
                (None, Some(IgnoredAny)) => AttachmentSource::Inline,
                (None, None) => AttachmentSource::Unclear(0),
                (Some(_), Some(IgnoredAny)) => AttachmentSource::Unclear(2),
            },
            node: spec.node_name.into(),
            attached: status.attached,
            metadata: status.attachment_metadata.unwrap_or_default(),
            attach_error: status.attach_error.map(error),
            detach_error: status.detach_error.map(error),
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

impl Kind for CsiNode {
    type Key = NodeObject;
    type Index = ();
    const RESOURCE: Resource =
        Resource { group: STORAGE, version: "v1", kind: "CSINode", plural: "csinodes", namespaced: false };

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
            name: String,
            #[serde(rename = "nodeID")]
            id: String,
            #[serde(rename = "topologyKeys")]
            keys: Option<Vec<String>>,
        }
        let Wire { metadata, spec } = read(json)?;
        let (mut ids, mut topology_keys) = (BTreeMap::new(), BTreeMap::new());
        for Driver { name, id, keys } in spec.drivers.into_iter().flatten() {
            topology_keys.insert(name.as_str().into(), keys.unwrap_or_default());
            ids.insert(name.into(), id.into());
        }
        let name = NodeObject::new(metadata.name.clone());
        Ok(Self { name, meta: metadata.into_domain()?, ids, topology_keys })
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

impl Kind for Node {
    type Key = NodeObject;
    type Index = ();
    const RESOURCE: Resource =
        Resource { group: "", version: "v1", kind: "Node", plural: "nodes", namespaced: false };

    fn decode(json: &str) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Wire {
            metadata: Meta,
        }
        let Wire { metadata } = read(json)?;
        let name = NodeObject::new(metadata.name.clone());
        let mut meta = metadata.into_domain()?;
        meta.annotations = StringMap::default();
        let labels = std::mem::take(&mut meta.labels);
        Ok(Self {
            name,
            meta,
            labels: labels.iter().map(|(key, value)| (key.into(), value.into())).collect(),
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

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::decode::object;

    fn attachment(spec: Value, status: Value) -> Attachment {
        let metadata = json!({"name": "a", "uid": "u", "resourceVersion": "7"});
        let json = json!({"metadata": metadata, "spec": spec, "status": status}).to_string();
        object::<Attachment>(&json).unwrap().unwrap()
    }

    #[test]
    fn attachments_are_read() {
        let of = |source: Value| {
            attachment(json!({"attacher": "d", "nodeName": "n", "source": source}), json!({})).source
        };
        assert_eq!(of(json!({"persistentVolumeName": "v"})), AttachmentSource::Volume("v".into()));
        assert_eq!(of(json!({"inlineVolumeSpec": {"csi": {}}})), AttachmentSource::Inline);
        assert_eq!(of(json!({})), AttachmentSource::Unclear(0));
        assert_eq!(of(json!({"persistentVolumeName": ""})), AttachmentSource::Unclear(0));
        let both = json!({"persistentVolumeName": "v", "inlineVolumeSpec": {}});
        assert_eq!(of(both), AttachmentSource::Unclear(2));
        let read = attachment(
            json!({"attacher": "d", "nodeName": "n", "source": {"persistentVolumeName": "v"}}),
            json!({
                "attached": true, "attachmentMetadata": {"k": "v"},
                "attachError": {"time": "2026-01-01T00:00:00Z", "message": "m", "errorCode": 8},
                "detachError": {"message": "n", "time": null},
            }),
        );
        assert_eq!((read.attacher.as_str(), read.node.as_str(), read.attached), ("d", "n", true));
        assert_eq!(read.metadata, BTreeMap::from([("k".to_owned(), "v".to_owned())]));
        let error = |message: &str, code| Some(AttachmentError { message: message.to_owned(), code });
        assert_eq!((read.attach_error, read.detach_error), (error("m", Some(8)), error("n", None)));
    }

    #[test]
    fn nodes_tell_their_ids() {
        let read = |spec: Value| {
            let metadata = json!({"name": "n", "uid": "u", "resourceVersion": "7"});
            object::<CsiNode>(&json!({"metadata": metadata, "spec": spec}).to_string()).unwrap().unwrap()
        };
        assert!(read(json!({"drivers": null})).ids.is_empty());
        let drivers = json!({"drivers": [{"name": "d", "nodeID": "id-1", "topologyKeys": ["k"]}]});
        let node = read(drivers);
        assert_eq!(node.ids, BTreeMap::from([("d".into(), "id-1".into())]));
        assert_eq!(node.topology_keys, BTreeMap::from([("d".into(), vec!["k".to_owned()])]));
        let none = read(json!({"drivers": [{"name": "d", "nodeID": "id-1", "topologyKeys": null}]}));
        assert_eq!(none.topology_keys, BTreeMap::from([("d".into(), Vec::new())]));
    }

    #[test]
    fn of_nodes_only_the_labels_are_kept() {
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
