//! The ConfigMap that marks a restored cluster.

use cofferdam_domain::{ObjectMeta, Uid};
use serde::Deserialize;

use super::{DecodeError, Kind, error::parse_json};
use crate::api::{ApiResource, Scope};

/// Name of the restore marker.
pub const RESTORE_MARKER_NAME: &str = "cofferdam-restored";

/// The restore marker. Volume deletion is frozen while it exists; its content is for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestoreMarker {
    name: Box<str>,
    meta: ObjectMeta,
}

impl Kind for RestoreMarker {
    type Key = Box<str>;
    const RESOURCE: ApiResource =
        ApiResource { group: "", version: "v1", kind: "ConfigMap", plural: "configmaps", namespaced: true };

    fn decode(json: &str) -> Result<Self, DecodeError> {
        #[derive(Deserialize)]
        struct Wire {
            metadata: Meta,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Meta {
            name: Box<str>,
            uid: Box<str>,
            resource_version: String,
        }
        let Wire { metadata } = parse_json(json)?;
        let resource_version = metadata.resource_version.parse()?;
        let meta = ObjectMeta { uid: Uid::new(metadata.uid), resource_version, ..ObjectMeta::default() };
        Ok(Self { name: metadata.name, meta })
    }

    fn key(&self) -> &Box<str> {
        &self.name
    }

    fn meta(&self) -> &ObjectMeta {
        &self.meta
    }
}

/// Selects the restore marker of a namespace.
pub fn marker_scope(namespace: &str) -> Scope {
    Scope {
        namespace: Some(namespace.to_owned()),
        field_selector: Some(format!("metadata.name={RESTORE_MARKER_NAME}")),
        label_selector: None,
    }
}
