//! PersistentVolumeClaim.

use std::collections::BTreeMap;

use cofferdam_domain::{
    Claim, ClaimKey, ClaimPhase, LabelSelector, LabelSelectorRequirement, ObjectMeta, Quantity, VolumeName,
    claim::DataSource, selector::InvalidRequirement,
};
use serde::Deserialize;

use super::{
    DecodeError, Kind, claim_progress as progress,
    error::parse_json,
    fields::{ResourceList, access_mode_list, access_modes, volume_mode},
    meta::Meta,
    strings::{InternedStr, OwnedStr},
};
use crate::api::ApiResource;

type Map = BTreeMap<Box<str>, Box<str>>;

impl Kind for Claim {
    type Key = ClaimKey;
    const RESOURCE: ApiResource = ApiResource {
        group: "",
        version: "v1",
        kind: "PersistentVolumeClaim",
        plural: "persistentvolumeclaims",
        namespaced: true,
    };

    fn decode(json: &str) -> Result<Self, DecodeError> {
        #[derive(Deserialize)]
        struct Wire {
            metadata: Meta,
            #[serde(default)]
            spec: Spec,
            #[serde(default)]
            status: Status,
        }
        #[derive(Deserialize, Default)]
        #[serde(rename_all = "camelCase", default)]
        struct Spec {
            volume_name: Option<OwnedStr>,
            storage_class_name: Option<InternedStr>,
            access_modes: Option<Vec<Box<str>>>,
            volume_mode: Option<Box<str>>,
            resources: Resources,
            selector: Option<WireLabelSelector>,
            volume_attributes_class_name: Option<Box<str>>,
            data_source: Option<Source>,
            data_source_ref: Option<Source>,
        }
        #[derive(Deserialize, Default)]
        struct Resources {
            requests: Option<ResourceList>,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Source {
            api_group: Option<Box<str>>,
            kind: Box<str>,
            name: Box<str>,
            namespace: Option<Box<str>>,
        }
        #[derive(Deserialize, Default)]
        #[serde(rename_all = "camelCase", default)]
        struct Status {
            phase: Option<Box<str>>,
            access_modes: Option<Vec<Box<str>>>,
            capacity: Option<ResourceList>,
            current_volume_attributes_class_name: Option<Box<str>>,
            allocated_resources: Option<ResourceList>,
            allocated_resource_statuses: Option<progress::ResourceStatuses>,
            modify_volume_status: Option<progress::WireModifyVolumeStatus>,
            conditions: Option<Vec<progress::WireCondition>>,
        }
        let Wire { metadata, spec, status } = parse_json(json)?;
        let key = ClaimKey::new(metadata.namespace(), metadata.name());
        let source = spec.data_source.or(spec.data_source_ref);
        let status_modes = access_mode_list("status.accessModes", status.access_modes)?;
        Ok(Self {
            key,
            controller_uid: metadata.controller(),
            meta: metadata.into_domain()?,
            volume: spec.volume_name.filter(|name| !name.0.is_empty()).map(|name| VolumeName::new(name.0)),
            class: spec.storage_class_name.map(|name| name.0),
            access_modes: access_modes("spec.accessModes", spec.access_modes)?,
            mode: volume_mode(spec.volume_mode.as_deref())?,
            request: spec
                .resources
                .requests
                .and_then(|requests| requests.storage)
                .map_or_else(|| Quantity::parse(""), |amount| amount.parse())
                .map_err(Box::new),
            selector: spec.selector.map(|labels| Box::new(selector(labels))),
            attributes_class: spec.volume_attributes_class_name.unwrap_or_default(),
            source: source.map(|s| {
                Box::new(DataSource {
                    group: s.api_group.unwrap_or_default(),
                    kind: s.kind,
                    name: s.name,
                    namespace: s.namespace.filter(|namespace| !namespace.is_empty()),
                })
            }),
            phase: match status.phase.as_deref() {
                Some("Bound") => ClaimPhase::Bound,
                Some("Lost") => ClaimPhase::Lost,
                None | Some(_) => ClaimPhase::Pending,
            },
            status_access_modes: status_modes.set,
            status_access_mode_list: status_modes.notation,
            status_capacity: status
                .capacity
                .and_then(|capacity| capacity.storage)
                .and_then(|amount| amount.parse().ok()),
            status_attributes_class: status.current_volume_attributes_class_name,
            progress: progress::progress(
                status.allocated_resources,
                status.allocated_resource_statuses,
                status.modify_volume_status,
                status.conditions,
            ),
        })
    }

    fn key(&self) -> &ClaimKey {
        &self.key
    }

    fn meta(&self) -> &ObjectMeta {
        &self.meta
    }
}

/// Converts a label selector. The error is kept for the event on the claim.
fn selector(selector: WireLabelSelector) -> Result<LabelSelector, InvalidRequirement> {
    let mut requirements: Vec<LabelSelectorRequirement> = selector
        .match_labels
        .unwrap_or_default()
        .into_iter()
        .map(|(key, value)| LabelSelectorRequirement::In(key, vec![value]))
        .collect();
    for WireRequirement { key, operator, values } in selector.match_expressions.unwrap_or_default() {
        let values = values.unwrap_or_default();
        requirements.push(match (&*operator, values.is_empty()) {
            ("In", false) => LabelSelectorRequirement::In(key, values),
            ("NotIn", false) => LabelSelectorRequirement::NotIn(key, values),
            ("Exists", true) => LabelSelectorRequirement::Exists(key),
            ("DoesNotExist", true) => LabelSelectorRequirement::DoesNotExist(key),
            _ => {
                return Err(InvalidRequirement { key, operator, values: values.len() });
            }
        });
    }
    Ok(LabelSelector { requirements })
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireLabelSelector {
    match_labels: Option<Map>,
    match_expressions: Option<Vec<WireRequirement>>,
}

#[derive(Deserialize)]
struct WireRequirement {
    key: Box<str>,
    operator: Box<str>,
    values: Option<Vec<Box<str>>>,
}
