//! Node.

use std::collections::{BTreeMap, BTreeSet};

use cofferdam_domain::{
    DriverName, Node, NodeName, NodeVolumeStatus, ObjectMeta, StringMap, UniqueVolumeName, names,
};
use serde::Deserialize;

use super::{DecodeError, Kind, error::parse_json, meta::LabelledMeta, strings::OwnedStr};
use crate::api::ApiResource;

impl Kind for Node {
    type Key = NodeName;
    const RESOURCE: ApiResource =
        ApiResource { group: "", version: "v1", kind: "Node", plural: "nodes", namespaced: false };

    fn decode(json: &str) -> Result<Self, DecodeError> {
        #[derive(Deserialize)]
        struct Wire {
            // A driver's topology may use any label.
            metadata: LabelledMeta,
            #[serde(default)]
            spec: Spec,
            #[serde(default)]
            status: Status,
        }
        #[derive(Deserialize, Default)]
        #[serde(default)]
        struct Spec {
            #[serde(rename = "providerID")]
            provider_id: Option<Box<str>>,
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
        let taints = spec.taints.unwrap_or_default();
        let startup_taints: BTreeSet<DriverName> =
            taints.iter().filter_map(|taint| names::driver_of_startup_taint(&taint.key)).collect();
        Ok(Self {
            name,
            meta,
            labels: labels.iter().map(|(key, value)| (key.into(), value.into())).collect(),
            provider_id: spec.provider_id.filter(|id| !id.is_empty()),
            controller_managed: managed,
            ready: status.conditions.iter().flatten().any(ready),
            out_of_service: taints.iter().any(|taint| &*taint.key == names::OUT_OF_SERVICE_TAINT),
            startup_taints: startup_taints.into_iter().collect(),
            volumes: volumes.into_values().collect(),
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
    use serde_json::json;

    use super::*;
    use crate::objects::decode::object;

    #[test]
    fn node_spec_and_status_are_decoded() {
        let json = json!({
            "metadata": {
                "name": "n", "resourceVersion": "7",
                "annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": ""},
            },
            "spec": {"providerID": "aws:///a/i-0abc", "taints": [
                {"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"},
                {"key": "d.example.com/agent-not-ready", "effect": "NoExecute"},
                {"key": "d.example.com/agent-not-ready", "effect": "NoSchedule"},
                {"key": "a.example.com/agent-not-ready", "effect": "NoSchedule"},
                {"key": "d.example.com/other", "effect": "NoSchedule"},
                {"key": "/agent-not-ready", "effect": "NoSchedule"},
            ]},
            "status": {
                "conditions": [{"type": "Ready", "status": "True"}],
                "volumesAttached": [{"name": "b", "devicePath": "/dev/b"}, {"name": "a", "devicePath": ""}],
                "volumesInUse": ["b", "c"],
            },
        });
        let node = object::<Node>(&json.to_string()).unwrap().unwrap();
        assert!(node.controller_managed && node.ready && node.out_of_service);
        assert_eq!(node.provider_id.as_deref(), Some("aws:///a/i-0abc"));
        assert_eq!(*node.startup_taints, ["a.example.com".into(), "d.example.com".into()]);
        let volume = |name: &str, attached, device_path: &str, in_use| NodeVolumeStatus {
            name: name.into(),
            attached,
            device_path: device_path.into(),
            in_use,
        };
        let (a, b) = (volume("a", true, "", false), volume("b", true, "/dev/b", true));
        assert_eq!(*node.volumes, [a, b.clone(), volume("c", false, "", true)]);
        assert_eq!((node.volume(&"b".into()), node.volume(&"d".into())), (Some(&b), None));
        let bare = json!({"metadata": {"name": "n", "resourceVersion": "7"}, "spec": {"providerID": ""}, "status": {"conditions": [
            {"type": "Ready", "status": "Unknown"}, {"type": "DiskPressure", "status": "True"},
        ]}});
        let node = object::<Node>(&bare.to_string()).unwrap().unwrap();
        assert!(!node.controller_managed && !node.ready && !node.out_of_service && node.volumes.is_empty());
        assert_eq!(node.provider_id, None);
    }

    #[test]
    fn node_keeps_labels_and_drops_annotations() {
        let json = json!({
            "metadata": {
                "name": "n", "uid": "u", "resourceVersion": "7", "labels": {"zone": "a"},
                    "annotations": {"long": "text"},
            },
            "spec": {"taints": []}, "status": {"images": [{"names": ["i"]}]},
        });
        let node = object::<Node>(&json.to_string()).unwrap().unwrap();
        assert_eq!(node.labels, BTreeMap::from([("zone".to_owned(), "a".to_owned())]));
        assert!(node.meta.labels.is_empty() && node.meta.annotations.is_empty());
    }
}
