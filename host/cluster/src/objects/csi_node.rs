//! CSINode.

use std::collections::BTreeMap;

use cofferdam_domain::{CsiNode, DriverName, NodeName, ObjectMeta};
use serde::Deserialize;

use super::{DecodeError, Kind, error::parse_json, meta::Meta, strings::InternedStr};
use crate::api::ApiResource;

impl Kind for CsiNode {
    type Key = NodeName;
    const RESOURCE: ApiResource = ApiResource {
        group: "storage.k8s.io",
        version: "v1",
        kind: "CSINode",
        plural: "csinodes",
        namespaced: false,
    };

    fn decode(json: &str) -> Result<Self, DecodeError> {
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
        let owners = metadata.owners().collect();
        Ok(Self { name, meta: metadata.into_domain()?, owners, node_ids: ids, topology_keys })
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
    use serde_json::{Value, json};

    use super::*;
    use crate::objects::decode::object;

    #[test]
    fn the_owners_of_a_csi_node_are_decoded() {
        let owner = json!({"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u-1"});
        let metadata = json!({"name": "n", "resourceVersion": "7", "ownerReferences": [owner]});
        let node = object::<CsiNode>(&json!({"metadata": metadata}).to_string()).unwrap().unwrap();
        assert_eq!(*node.owners, ["u-1".into()]);
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
}
