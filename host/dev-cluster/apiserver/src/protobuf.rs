//! Request bodies in Kubernetes' protobuf format, which `kubectl create
//! namespace|configmap|secret|serviceaccount` sends. Bodies of other kinds must be JSON or YAML, and objects
//! are never returned in protobuf.

use serde_json::{Map, Value};

use crate::base64;
use crate::descriptors::ResourceKind;

/// Prefix of protobuf bodies.
const MAGIC: &[u8] = b"k8s\0";

/// The JSON type of a numbered field.
#[derive(Clone, Copy)]
enum ProtobufField {
    String(&'static str),
    StringList(&'static str),
    Bool(&'static str),
    /// A map of strings.
    StringMap(&'static str),
    /// A map from strings to bytes, in base64.
    BytesMap(&'static str),
    Message(&'static str, &'static [(u64, ProtobufField)]),
    /// A field that is decoded but not used: one that only the server sets, or one of the envelope.
    Ignored,
}

const META: ProtobufField = ProtobufField::Message(
    "metadata",
    &[
        (1, ProtobufField::String("name")),
        (2, ProtobufField::String("generateName")),
        (3, ProtobufField::String("namespace")),
        (4, ProtobufField::Ignored),
        (5, ProtobufField::Ignored),
        (6, ProtobufField::String("resourceVersion")),
        (7, ProtobufField::Ignored),
        (8, ProtobufField::Ignored),
        (11, ProtobufField::StringMap("labels")),
        (12, ProtobufField::StringMap("annotations")),
        (14, ProtobufField::StringList("finalizers")),
        (17, ProtobufField::Ignored),
    ],
);

fn fields(kind: ResourceKind) -> Option<&'static [(u64, ProtobufField)]> {
    Some(match kind {
        ResourceKind::Namespace => &[
            (1, META),
            (2, ProtobufField::Message("spec", &[(1, ProtobufField::StringList("finalizers"))])),
            (3, ProtobufField::Ignored),
        ],
        ResourceKind::ConfigMap => &[
            (1, META),
            (2, ProtobufField::StringMap("data")),
            (3, ProtobufField::BytesMap("binaryData")),
            (4, ProtobufField::Bool("immutable")),
        ],
        ResourceKind::Secret => &[
            (1, META),
            (2, ProtobufField::BytesMap("data")),
            (3, ProtobufField::String("type")),
            (4, ProtobufField::StringMap("stringData")),
            (5, ProtobufField::Bool("immutable")),
        ],
        ResourceKind::ServiceAccount => {
            &[(1, META), (4, ProtobufField::Bool("automountServiceAccountToken"))]
        }
        ResourceKind::Pod
        | ResourceKind::Node
        | ResourceKind::PersistentVolume
        | ResourceKind::PersistentVolumeClaim
        | ResourceKind::Event
        | ResourceKind::StorageClass
        | ResourceKind::CsiDriver
        | ResourceKind::CsiNode
        | ResourceKind::CsiStorageCapacity
        | ResourceKind::VolumeAttachment
        | ResourceKind::VolumeAttributesClass
        | ResourceKind::Lease
        | ResourceKind::VolumeSnapshot
        | ResourceKind::VolumeSnapshotContent
        | ResourceKind::VolumeSnapshotClass => return None,
    })
}

/// Returns `true` if protobuf bodies of this kind are supported.
pub(crate) fn is_supported(kind: ResourceKind) -> bool {
    fields(kind).is_some()
}

/// Decodes an object. `None` if it is malformed or has an unsupported field.
pub(crate) fn decode(kind: ResourceKind, body: &[u8]) -> Option<Value> {
    let envelope = message(
        body.strip_prefix(MAGIC)?,
        &[
            (
                1,
                ProtobufField::Message(
                    "type",
                    &[(1, ProtobufField::String("apiVersion")), (2, ProtobufField::String("kind"))],
                ),
            ),
            (3, ProtobufField::Ignored),
            (4, ProtobufField::Ignored),
        ],
        // The field with the encoded object.
        2,
    )?;
    let (mut object, _) = message(envelope.1?, fields(kind)?, 0)?;
    for (member, value) in envelope.0.get("type").and_then(Value::as_object).into_iter().flatten() {
        object.insert(member.clone(), value.clone());
    }
    Some(Value::Object(object))
}

/// The supported wire types.
enum WireValue<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

fn varint(input: &mut &[u8]) -> Option<u64> {
    let mut number = 0_u64;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = input.split_first()?;
        *input = rest;
        number |= u64::from(byte & 0x7f).checked_shl(shift)?;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

fn next<'a>(input: &mut &'a [u8]) -> Option<(u64, WireValue<'a>)> {
    let tag = varint(input)?;
    let wire = match tag & 7 {
        0 => WireValue::Number(varint(input)?),
        2 => {
            let length = usize::try_from(varint(input)?).ok()?;
            let (bytes, rest) = input.split_at_checked(length)?;
            *input = rest;
            WireValue::Bytes(bytes)
        }
        _ => return None,
    };
    Some((tag >> 3, wire))
}

/// The decoded members, and the bytes of the raw field.
type Message<'a> = (Map<String, Value>, Option<&'a [u8]>);

/// Decodes a message. The bytes of `raw_field` are returned undecoded.
fn message<'a>(mut input: &'a [u8], fields: &[(u64, ProtobufField)], raw_field: u64) -> Option<Message<'a>> {
    let mut map = Map::new();
    let mut raw_bytes = None;
    while !input.is_empty() {
        let (number, wire) = next(&mut input)?;
        if let WireValue::Bytes(bytes) = wire
            && number == raw_field
        {
            raw_bytes = Some(bytes);
            continue;
        }
        let (_, field) = fields.iter().find(|(known, _)| *known == number)?;
        insert_field(&mut map, *field, &wire)?;
    }
    Some((map, raw_bytes))
}

fn insert_field(map: &mut Map<String, Value>, field: ProtobufField, wire: &WireValue<'_>) -> Option<()> {
    let bytes = match wire {
        WireValue::Bytes(bytes) => *bytes,
        WireValue::Number(number) => {
            return match field {
                ProtobufField::Bool(name) => {
                    map.insert(name.to_owned(), Value::Bool(*number != 0));
                    Some(())
                }
                ProtobufField::Ignored => Some(()),
                ProtobufField::String(_)
                | ProtobufField::StringList(_)
                | ProtobufField::StringMap(_)
                | ProtobufField::BytesMap(_)
                | ProtobufField::Message(..) => None,
            };
        }
    };
    match field {
        ProtobufField::String(name) => {
            let text = std::str::from_utf8(bytes).ok()?;
            // Empty strings count as absent.
            if !text.is_empty() {
                map.insert(name.to_owned(), Value::from(text));
            }
        }
        ProtobufField::StringList(name) => {
            let list = map.entry(name).or_insert_with(|| Value::Array(Vec::new()));
            list.as_array_mut()?.push(Value::from(std::str::from_utf8(bytes).ok()?));
        }
        ProtobufField::StringMap(name) => {
            let (key, value) = entry(bytes)?;
            let text = Value::from(std::str::from_utf8(value).ok()?);
            insert(map, name, key, text)?;
        }
        ProtobufField::BytesMap(name) => {
            let (key, value) = entry(bytes)?;
            insert(map, name, key, Value::from(base64::encode(value)))?;
        }
        ProtobufField::Message(name, fields) => {
            map.insert(name.to_owned(), Value::Object(message(bytes, fields, 0)?.0));
        }
        ProtobufField::Ignored => {}
        ProtobufField::Bool(_) => return None,
    }
    Some(())
}

fn insert(map: &mut Map<String, Value>, name: &str, key: &str, value: Value) -> Option<()> {
    let member = map.entry(name).or_insert_with(|| Value::Object(Map::new()));
    member.as_object_mut()?.insert(key.to_owned(), value);
    Some(())
}

/// A map entry: key 1, value 2.
fn entry(mut input: &[u8]) -> Option<(&str, &[u8])> {
    let (mut key, mut value): (&[u8], &[u8]) = (&[], &[]);
    while !input.is_empty() {
        match next(&mut input)? {
            (1, WireValue::Bytes(bytes)) => key = bytes,
            (2, WireValue::Bytes(bytes)) => value = bytes,
            _ => return None,
        }
    }
    Some((std::str::from_utf8(key).ok()?, value))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{ResourceKind, decode};

    fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        [&[number << 3 | 2, u8::try_from(bytes.len()).unwrap()], bytes].concat()
    }

    fn envelope(object: &[u8]) -> Vec<u8> {
        let types = [field(1, b"v1"), field(2, b"Secret")].concat();
        [b"k8s\0".to_vec(), field(1, &types), field(2, object), field(3, b""), field(4, b"")].concat()
    }

    #[test]
    fn a_protobuf_secret_is_decoded() {
        let label = [field(1, b"k"), field(2, b"v")].concat();
        let meta = [field(1, b"s"), field(3, b""), field(8, &[]), field(11, &label)].concat();
        let data = [field(1, b"key"), field(2, b"foobar")].concat();
        let secret = [field(1, &meta), field(2, &data), field(3, b"Opaque"), vec![5 << 3, 1]].concat();
        assert_eq!(
            decode(ResourceKind::Secret, &envelope(&secret)),
            Some(json!({
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": "s", "labels": {"k": "v"}},
                "data": {"key": "Zm9vYmFy"},
                "type": "Opaque",
                "immutable": true,
            }))
        );
    }

    #[test]
    fn malformed_protobuf_is_rejected() {
        for body in [
            b"".to_vec(),
            b"k8s\0".to_vec(),
            b"{}".to_vec(),
            envelope(&[0xff]),
            envelope(&field(15, b"x")),
            envelope(&[1 << 3 | 2, 200]),
            envelope(&[0xff; 12]),
        ] {
            assert_eq!(decode(ResourceKind::Secret, &body), None, "{body:?}");
        }
    }
}
