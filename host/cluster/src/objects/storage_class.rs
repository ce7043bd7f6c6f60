//! StorageClass.

use std::collections::BTreeMap;

use cofferdam_domain::{BindingMode, ObjectMeta, ReclaimPolicy, StorageClass, StorageClassName};
use serde::Deserialize;

use super::{DecodeError, Kind, error::parse_json, meta::Meta};
use crate::api::ApiResource;

impl Kind for StorageClass {
    type Key = StorageClassName;
    const RESOURCE: ApiResource = ApiResource {
        group: "storage.k8s.io",
        version: "v1",
        kind: "StorageClass",
        plural: "storageclasses",
        namespaced: false,
    };

    fn decode(json: &str) -> Result<Self, DecodeError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Wire {
            metadata: Meta,
            provisioner: String,
            parameters: Option<BTreeMap<String, String>>,
            reclaim_policy: Option<Box<str>>,
            mount_options: Option<Vec<String>>,
            volume_binding_mode: Option<Box<str>>,
            allowed_topologies: Option<Vec<Term>>,
        }
        #[derive(Deserialize, Default)]
        #[serde(rename_all = "camelCase", default)]
        struct Term {
            match_label_expressions: Option<Vec<TermExpression>>,
        }
        #[derive(Deserialize)]
        struct TermExpression {
            key: String,
            values: Vec<String>,
        }
        let wire: Wire = parse_json(json)?;
        let name = wire.metadata.name();
        let binding_mode = match wire.volume_binding_mode.as_deref() {
            None => None,
            Some("Immediate") => Some(BindingMode::Immediate),
            Some("WaitForFirstConsumer") => Some(BindingMode::WaitForFirstConsumer),
            Some(other) => {
                return Err(DecodeError::Value {
                    path: "volumeBindingMode",
                    value: other.to_owned(),
                    expected: "Immediate or WaitForFirstConsumer",
                });
            }
        };
        Ok(Self {
            name: StorageClassName::new(name),
            meta: wire.metadata.into_domain()?,
            provisioner: wire.provisioner.into(),
            parameters: wire.parameters.unwrap_or_default(),
            reclaim_policy: ReclaimPolicy::parse(wire.reclaim_policy.as_deref().unwrap_or("Delete")),
            mount_options: wire.mount_options.unwrap_or_default(),
            binding_mode,
            allowed_topologies: wire
                .allowed_topologies
                .unwrap_or_default()
                .into_iter()
                .map(|term| {
                    let expressions = term.match_label_expressions.unwrap_or_default();
                    expressions.into_iter().map(|e| (e.key, e.values)).collect()
                })
                .collect(),
        })
    }

    fn key(&self) -> &Self::Key {
        &self.name
    }

    fn meta(&self) -> &ObjectMeta {
        &self.meta
    }
}
