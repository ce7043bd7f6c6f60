//! `metadata` of an object.

use std::sync::Arc;

use cofferdam_domain::{ObjectMeta, Uid, ids::ResourceVersion};
use serde::Deserialize;

use super::{
    DecodeError,
    strings::{
        AnnotationPolicy, InternPolicy, InternedMap, InternedStr, LabelPolicy, NoLabels, OwnedStr,
        intern_list,
    },
};

/// `metadata` on the wire, of a kind whose labels are read.
pub(crate) type LabelledMeta = Meta<LabelPolicy>;

/// `metadata` on the wire. `L` selects the labels that are kept.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default, bound = "L: InternPolicy + Default")]
pub(crate) struct Meta<L = NoLabels> {
    name: OwnedStr,
    namespace: InternedStr,
    uid: Option<Uid>,
    resource_version: Option<Box<str>>,
    pub(crate) deletion_timestamp: Option<Box<str>>,
    pub(crate) deletion_grace_period_seconds: Option<i64>,
    creation_timestamp: Option<Box<str>>,
    finalizers: Option<Vec<InternedStr>>,
    annotations: Option<InternedMap<AnnotationPolicy>>,
    labels: Option<InternedMap<L>>,
    owner_references: Option<Vec<OwnerReference>>,
}

#[derive(Deserialize)]
struct OwnerReference {
    uid: Uid,
    controller: Option<bool>,
}

impl<L> Meta<L> {
    /// `name`
    pub(crate) fn name(&self) -> Arc<str> {
        Arc::clone(&self.name.0)
    }

    /// `namespace`; empty for cluster-scoped objects.
    pub(crate) fn namespace(&self) -> Arc<str> {
        Arc::clone(&self.namespace.0)
    }

    /// Uid of the owner reference with `controller: true`; `None` if there is none.
    pub(crate) fn controller(&self) -> Option<Uid> {
        let mut owners = self.owner_references.iter().flatten();
        owners.find(|owner| owner.controller == Some(true)).map(|owner| owner.uid.clone())
    }

    /// Uids of the owner references.
    pub(crate) fn owners(&self) -> impl Iterator<Item = Uid> {
        self.owner_references.iter().flatten().map(|owner| owner.uid.clone())
    }

    /// `uid`; empty if absent.
    pub(crate) fn uid(&self) -> Uid {
        self.uid.clone().unwrap_or_default()
    }

    /// `resourceVersion`; 0 if absent.
    pub(crate) fn resource_version(&self) -> Result<ResourceVersion, DecodeError> {
        match self.resource_version.as_deref() {
            None | Some("") => Ok(ResourceVersion::default()),
            Some(text) => Ok(text.parse()?),
        }
    }

    pub(crate) fn into_domain(self) -> Result<ObjectMeta, DecodeError> {
        let version = self.resource_version()?;
        let created_ms = match self.creation_timestamp.as_deref() {
            None => 0,
            Some(text) => text
                .parse::<jiff::Timestamp>()
                .map_err(|_| DecodeError::Value {
                    path: "metadata.creationTimestamp",
                    value: text.to_owned(),
                    expected: "an RFC 3339 time",
                })?
                .as_millisecond(),
        };
        Ok(ObjectMeta {
            uid: self.uid(),
            resource_version: version,
            deleting: self.deletion_timestamp.is_some(),
            created_ms,
            finalizers: intern_list(self.finalizers.into_iter().flatten().map(|name| name.0).collect()),
            annotations: self.annotations.unwrap_or_default().map,
            labels: self.labels.unwrap_or_default().map,
        })
    }
}

#[cfg(test)]
mod tests {
    use cofferdam_domain::{Claim, ObjectMeta, Volume, names};
    use serde_json::json;

    use crate::objects::{Kind, decode::object};

    /// Decodes an object with a label, an annotation that the controllers read, and one that they do not.
    fn meta<K: Kind>() -> ObjectMeta {
        let metadata = json!({
            "name": "a", "namespace": "n", "resourceVersion": "1", "labels": {"tier": "gold"},
            "annotations": {
                names::SELECTED_NODE: "node-1", "example.com/note": "text",
                "kubectl.kubernetes.io/last-applied-configuration": "{}",
            },
        });
        object::<K>(&json!({"metadata": metadata}).to_string()).unwrap().unwrap().meta().clone()
    }

    #[test]
    fn only_metadata_that_the_controllers_read_is_kept() {
        for meta in [meta::<Claim>(), meta::<Volume>()] {
            let annotations: Vec<_> = meta.annotations.iter().collect();
            assert_eq!(annotations, [(names::SELECTED_NODE, "node-1")]);
        }
        assert!(meta::<Claim>().labels.is_empty());
        let labels = meta::<Volume>().labels;
        assert_eq!(labels.iter().collect::<Vec<_>>(), [("tier", "gold")]);
    }
}
