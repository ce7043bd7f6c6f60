//! VolumeAttributesClass.

use std::collections::BTreeMap;

use cofferdam_domain::{AttributesClass, AttributesClassName, ObjectMeta};
use serde::Deserialize;

use super::{Meta, read};
use crate::kind::{Kind, Resource};

impl Kind for AttributesClass {
    type Key = AttributesClassName;
    type Index = ();
    const RESOURCE: Resource = Resource {
        group: "storage.k8s.io",
        version: "v1",
        kind: "VolumeAttributesClass",
        plural: "volumeattributesclasses",
        namespaced: false,
    };
    /// v1 of it came with Kubernetes 1.34.
    const OPTIONAL: bool = true;

    fn decode(json: &str) -> Result<Self, String> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Wire {
            metadata: Meta,
            driver_name: String,
            parameters: Option<BTreeMap<String, String>>,
        }
        let Wire { metadata, driver_name, parameters } = read(json)?;
        let name = metadata.name();
        Ok(Self {
            name: AttributesClassName::new(name),
            meta: metadata.into_domain()?,
            driver: driver_name.into(),
            parameters: parameters.unwrap_or_default(),
        })
    }

    fn key(&self) -> Self::Key {
        self.name.clone()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.meta
    }
}
