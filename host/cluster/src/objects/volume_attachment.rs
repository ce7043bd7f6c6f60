//! VolumeAttachment.

use cofferdam_domain::{
    DriverName, NodeName, ObjectMeta, VolumeAttachment, VolumeAttachmentName, VolumeAttachmentSource,
    VolumeError, VolumeName,
};
use serde::{Deserialize, de::IgnoredAny};

use super::{
    DecodeError, Kind,
    error::parse_json,
    meta::Meta,
    strings::{DriverDataPolicy, InternedMap, InternedStr, OwnedStr},
};
use crate::api::ApiResource;

impl Kind for VolumeAttachment {
    type Key = VolumeAttachmentName;
    const RESOURCE: ApiResource = ApiResource {
        group: "storage.k8s.io",
        version: "v1",
        kind: "VolumeAttachment",
        plural: "volumeattachments",
        namespaced: false,
    };

    fn decode(json: &str) -> Result<Self, DecodeError> {
        #[derive(Deserialize)]
        struct Wire {
            metadata: Meta,
            spec: Spec,
            #[serde(default)]
            status: Status,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Spec {
            attacher: InternedStr,
            node_name: InternedStr,
            #[serde(default)]
            source: Source,
        }
        #[derive(Deserialize, Default)]
        #[serde(rename_all = "camelCase", default)]
        struct Source {
            persistent_volume_name: Option<OwnedStr>,
            inline_volume_spec: Option<IgnoredAny>,
        }
        #[derive(Deserialize, Default)]
        #[serde(rename_all = "camelCase", default)]
        struct Status {
            attached: bool,
            attachment_metadata: Option<InternedMap<DriverDataPolicy>>,
            attach_error: Option<Failure>,
            detach_error: Option<Failure>,
        }
        #[derive(Deserialize, Default)]
        #[serde(rename_all = "camelCase", default)]
        struct Failure {
            message: String,
            error_code: Option<i32>,
        }
        let error = |failure: Failure| {
            Box::new(VolumeError { message: failure.message, error_code: failure.error_code })
        };
        let Wire { metadata, spec, status } = parse_json(json)?;
        let volume = spec.source.persistent_volume_name.filter(|name| !name.0.is_empty());
        Ok(Self {
            name: VolumeAttachmentName::new(metadata.name()),
            meta: metadata.into_domain()?,
            attacher: DriverName::new(spec.attacher.0),
            source: match (volume, spec.source.inline_volume_spec) {
                (Some(volume), None) => VolumeAttachmentSource::Volume(VolumeName::new(volume.0)),
                (None, Some(IgnoredAny)) => VolumeAttachmentSource::Inline,
                (None, None) => VolumeAttachmentSource::Invalid(0),
                (Some(_), Some(IgnoredAny)) => VolumeAttachmentSource::Invalid(2),
            },
            node: NodeName::new(spec.node_name.0),
            attached: status.attached,
            attachment_metadata: status.attachment_metadata.unwrap_or_default().map,
            attach_error: status.attach_error.map(error),
            detach_error: status.detach_error.map(error),
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

    fn decode_attachment(spec: Value, status: Value) -> VolumeAttachment {
        let metadata = json!({"name": "a", "uid": "u", "resourceVersion": "7"});
        let json = json!({"metadata": metadata, "spec": spec, "status": status}).to_string();
        object::<VolumeAttachment>(&json).unwrap().unwrap()
    }

    #[test]
    fn volume_attachment_fields_are_decoded() {
        let source_of = |source: Value| {
            decode_attachment(json!({"attacher": "d", "nodeName": "n", "source": source}), json!({})).source
        };
        assert_eq!(
            source_of(json!({"persistentVolumeName": "v"})),
            VolumeAttachmentSource::Volume("v".into())
        );
        assert_eq!(source_of(json!({"inlineVolumeSpec": {"csi": {}}})), VolumeAttachmentSource::Inline);
        assert_eq!(source_of(json!({})), VolumeAttachmentSource::Invalid(0));
        assert_eq!(source_of(json!({"persistentVolumeName": ""})), VolumeAttachmentSource::Invalid(0));
        let both = json!({"persistentVolumeName": "v", "inlineVolumeSpec": {}});
        assert_eq!(source_of(both), VolumeAttachmentSource::Invalid(2));
        let read = decode_attachment(
            json!({"attacher": "d", "nodeName": "n", "source": {"persistentVolumeName": "v"}}),
            json!({
                "attached": true, "attachmentMetadata": {"k": "v"},
                "attachError": {"time": "2026-01-01T00:00:00Z", "message": "m", "errorCode": 8},
                "detachError": {"message": "n", "time": null},
            }),
        );
        assert_eq!((read.attacher.as_str(), read.node.as_str(), read.attached), ("d", "n", true));
        assert_eq!(read.attachment_metadata.iter().collect::<Vec<_>>(), [("k", "v")]);
        let error = |message: &str, code| {
            Some(Box::new(VolumeError { message: message.to_owned(), error_code: code }))
        };
        assert_eq!((read.attach_error, read.detach_error), (error("m", Some(8)), error("n", None)));
    }
}
