//! Pod.

use cofferdam_domain::{NodeName, ObjectMeta, Pod, PodKey, StringMap};
use serde::{Deserialize, de::IgnoredAny};

use super::{
    DecodeError, Kind,
    error::parse_json,
    meta::Meta,
    strings::{InternedStr, OwnedStr},
};
use crate::api::ApiResource;

impl Kind for Pod {
    type Key = PodKey;
    const RESOURCE: ApiResource =
        ApiResource { group: "", version: "v1", kind: "Pod", plural: "pods", namespaced: true };

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
            node_name: Option<InternedStr>,
            volumes: Option<Vec<PodVolume>>,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct PodVolume {
            name: Box<str>,
            persistent_volume_claim: Option<ClaimSource>,
            ephemeral: Option<IgnoredAny>,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct ClaimSource {
            claim_name: OwnedStr,
        }
        #[derive(Deserialize, Default)]
        #[serde(rename_all = "camelCase", default)]
        struct Status {
            phase: Option<Box<str>>,
            container_statuses: Option<Vec<ContainerStatus>>,
            init_container_statuses: Option<Vec<ContainerStatus>>,
            ephemeral_container_statuses: Option<Vec<ContainerStatus>>,
        }
        #[derive(Deserialize, Default)]
        #[serde(default)]
        struct ContainerStatus {
            state: ContainerState,
        }
        #[derive(Deserialize, Default)]
        #[serde(default)]
        struct ContainerState {
            waiting: Option<IgnoredAny>,
            terminated: Option<IgnoredAny>,
        }
        let Wire { metadata, spec, status } = parse_json(json)?;
        let running = [
            &status.container_statuses,
            &status.init_container_statuses,
            &status.ephemeral_container_statuses,
        ]
        .into_iter()
        .flatten()
        .flatten()
        // As in Kubernetes, a container without a state counts as running.
        .any(|status| status.state.waiting.is_none() && status.state.terminated.is_none());
        let deleting = metadata.deletion_timestamp.is_some();
        let shut_down = deleting && metadata.deletion_grace_period_seconds == Some(0);
        let mut claims = Vec::new();
        let mut ephemeral_claims = Vec::new();
        for volume in spec.volumes.unwrap_or_default() {
            if let Some(source) = volume.persistent_volume_claim {
                claims.push(source.claim_name.0);
            } else if volume.ephemeral.is_some() {
                ephemeral_claims.push(format!("{}-{}", metadata.name(), volume.name).into());
            }
        }
        Ok(Self {
            key: PodKey::new(metadata.namespace(), metadata.name()),
            meta: ObjectMeta { annotations: StringMap::default(), ..metadata.into_domain()? },
            node: spec.node_name.filter(|node| !node.0.is_empty()).map(|node| NodeName::new(node.0)),
            terminated: matches!(status.phase.as_deref(), Some("Failed" | "Succeeded"))
                || (deleting && !running),
            zero_grace_period: shut_down,
            claims: claims.into(),
            ephemeral_claims: ephemeral_claims.into(),
        })
    }

    fn key(&self) -> &PodKey {
        &self.key
    }

    fn meta(&self) -> &ObjectMeta {
        &self.meta
    }
}
