//! CSIDriver.

use cofferdam_domain::{CsiDriver, DriverName, ObjectMeta};
use serde::Deserialize;

use super::{DecodeError, Kind, error::parse_json, meta::Meta};
use crate::api::ApiResource;

impl Kind for CsiDriver {
    type Key = DriverName;
    const RESOURCE: ApiResource = ApiResource {
        group: "storage.k8s.io",
        version: "v1",
        kind: "CSIDriver",
        plural: "csidrivers",
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
    fn csi_driver_attach_required_defaults_to_true() {
        let read = |spec: Value| {
            let metadata = json!({"name": "d", "resourceVersion": "7"});
            let json = json!({"metadata": metadata, "spec": spec}).to_string();
            object::<CsiDriver>(&json).unwrap().unwrap().attach_required
        };
        assert!(read(json!({})) && read(json!({"attachRequired": true})));
        assert!(!read(json!({"attachRequired": false})));
    }
}
