//! VolumeAttributesClass.

use std::collections::BTreeMap;

use cofferdam_domain::{ObjectMeta, VolumeAttributesClass, VolumeAttributesClassName};
use serde::Deserialize;

use super::{DecodeError, Kind, error::parse_json, meta::Meta};
use crate::api::ApiResource;

impl Kind for VolumeAttributesClass {
    type Key = VolumeAttributesClassName;
    const RESOURCE: ApiResource = ApiResource {
        group: "storage.k8s.io",
        version: "v1",
        kind: "VolumeAttributesClass",
        plural: "volumeattributesclasses",
        namespaced: false,
    };
    /// Kubernetes serves v1 since 1.34.
    const OPTIONAL: bool = true;

    fn decode(json: &str) -> Result<Self, DecodeError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Wire {
            metadata: Meta,
            driver_name: String,
            parameters: Option<BTreeMap<String, String>>,
        }
        let Wire { metadata, driver_name, parameters } = parse_json(json)?;
        let name = metadata.name();
        Ok(Self {
            name: VolumeAttributesClassName::new(name),
            meta: metadata.into_domain()?,
            driver: driver_name.into(),
            parameters: parameters.unwrap_or_default(),
        })
    }

    fn key(&self) -> &Self::Key {
        &self.name
    }

    fn meta(&self) -> &ObjectMeta {
        &self.meta
    }
}
