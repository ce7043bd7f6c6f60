//! Tests that send requests with one mutated field, for every field of every request, and requests with
//! random bytes. For each response, the status code is one that CSI allows, the message of an error is not
//! empty, and the server has not panicked. With a mutated field, no status message contains a secret of the
//! request.

use cofferdam_backend::testing::ScriptedBackend;
use prost::Message as _;
use protox::prost_reflect::{DynamicMessage, FieldDescriptor, Kind, MapKey, ReflectMessage as _, Value};
use tonic::{Code, Status};

use super::validation::{ValidationFixture, descriptor_pool, valid_requests};

/// Replacement values of a string: empty, with special characters, with lengths around CSI's limits, and ids
/// with a meaning for the scripted backend.
fn string_values() -> Vec<String> {
    let mut texts: Vec<String> =
        ["", "/", "..", "a/../../b", "a\nb", "\0", "\u{7f}", "\u{feff}", "🦀", "missing", "open", " "]
            .map(str::to_owned)
            .into();
    texts.extend([127, 128, 129, 256, 257, 4 << 10, (4 << 10) + 1, 300 << 10].map(|bytes| "x".repeat(bytes)));
    texts.push("ä".repeat(64) + "x");
    texts.push(format!("csi-{}", "0".repeat(64)));
    texts
}

/// Replacement values of a singular field.
fn scalar_values(kind: &Kind) -> Vec<Value> {
    match kind {
        Kind::String => string_values().into_iter().map(Value::String).collect(),
        Kind::Int64 => [i64::MIN, -1, 0, 1, i64::MAX].map(Value::I64).into(),
        Kind::Int32 => [i32::MIN, -1, 0, 1, i32::MAX].map(Value::I32).into(),
        Kind::Bool => [true, false].map(Value::Bool).into(),
        Kind::Enum(_) => [i32::MIN, -1, 0, 1, 5, 99, i32::MAX].map(Value::EnumNumber).into(),
        Kind::Message(message) => vec![Value::Message(DynamicMessage::new(message.clone()))],
        other => panic!("a request has a field of {other:?}"),
    }
}

/// Replacement values of any field.
fn replacements(field: &FieldDescriptor, present: &Value) -> Vec<Value> {
    if field.is_map() {
        let pair = |key: String, value: String| [(MapKey::String(key), Value::String(value))];
        let mut maps = vec![Value::Map(Default::default())];
        if matches!(field.kind().as_message().unwrap().map_entry_value_field().kind(), Kind::String) {
            maps.extend(string_values().into_iter().flat_map(|text| {
                [
                    Value::Map(pair(text.clone(), "x".to_owned()).into()),
                    Value::Map(pair("k".to_owned(), text).into()),
                ]
            }));
        }
        return maps;
    }
    if field.is_list() {
        let mut items = present.as_list().unwrap().to_vec();
        items.extend(items.clone());
        let each = scalar_values(&field.kind()).into_iter().map(|value| Value::List(vec![value]));
        return [Value::List(Vec::new()), Value::List(items)].into_iter().chain(each).collect();
    }
    scalar_values(&field.kind())
}

/// Returns messages that differ from a valid one in one field, with a description of the change.
fn variants(valid: &DynamicMessage) -> Vec<(String, DynamicMessage)> {
    let mut messages = Vec::new();
    for field in valid.descriptor().fields() {
        let present = valid.get_field(&field).into_owned();
        let mut add_variant = |change_text: String, value: Option<Value>| {
            let mut variant = valid.clone();
            match value {
                Some(value) => variant.set_field(&field, value),
                None => variant.clear_field(&field),
            }
            messages.push((format!("{}{change_text}", field.name()), variant));
        };
        add_variant(" absent".to_owned(), None);
        for value in replacements(&field, &present) {
            let value_text: String = format!("{value:?}").chars().take(50).collect();
            add_variant(format!(" = {value_text}"), Some(value));
        }
        // Nested messages, recursively.
        let inner = match &present {
            Value::Message(inner) if valid.has_field(&field) => Some(inner.clone()),
            Value::List(list) => list.first().and_then(Value::as_message).cloned(),
            _ => None,
        };
        for (change_text, inner) in inner.iter().flat_map(variants) {
            let value = match &present {
                Value::List(_) => Value::List(vec![Value::Message(inner)]),
                _ => Value::Message(inner),
            };
            add_variant(format!(".{change_text}"), Some(value));
        }
    }
    messages
}

fn check_status(context: &str, result: Result<(), Status>, also_allowed: &[Code]) {
    use Code::{Aborted, FailedPrecondition, InvalidArgument, NotFound, Unavailable};
    let Err(status) = result else { return };
    // `Internal` is the scripted backend's error for a read.
    let allowed = [InvalidArgument, NotFound, Aborted, FailedPrecondition, Unavailable];
    assert!(
        allowed.contains(&status.code()) || also_allowed.contains(&status.code()),
        "{context}: {status:?}"
    );
    assert!(!status.message().is_empty() && status.details().is_empty(), "{context}: {status:?}");
    assert!(!status.message().contains('\n') && status.message().len() < 2_000, "{context}: {status:?}");
}

#[tokio::test]
async fn mutated_fields_yield_valid_csi_codes_without_secrets() {
    let (pool, fixture) = (descriptor_pool(), ValidationFixture::new(ScriptedBackend::complete()));
    let mut count = 0;
    for (method, bytes) in valid_requests() {
        fixture.send(method, &bytes).await.unwrap_or_else(|status| panic!("{method}: {status:?}"));
        let message = pool.get_message_by_name(&format!("csi.v1.{method}Request")).unwrap();
        let valid = DynamicMessage::decode(message, bytes.as_slice()).unwrap();
        for (change, message_variant) in variants(&valid) {
            count += 1;
            let is_read = ["Get", "List", "Validate"].iter().any(|read| method.contains(read));
            let also_allowed: &[Code] = if is_read { &[Code::Internal] } else { &[] };
            let result = fixture.send(method, &message_variant.encode_to_vec()).await;
            let has_secret = result.as_ref().err().is_some_and(|status| status.message().contains("hunter2"));
            assert!(!has_secret, "{method} {change}: {result:?}");
            check_status(&format!("{method} {change}"), result, also_allowed);
        }
    }
    assert!(count > 1_500, "{count} variants");
}

#[tokio::test]
async fn random_bytes_yield_valid_csi_codes() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let fixture = ValidationFixture::new(ScriptedBackend::complete());
    let requests = valid_requests();
    for _ in 0..4_000 {
        let (method, valid) = requests.get(random.usize(..requests.len())).unwrap();
        let mut bytes = valid.clone();
        for _ in 0..random.usize(1..=4) {
            match random.u8(0..4) {
                // A field number, a wire type, a length or a character.
                0 if !bytes.is_empty() => {
                    let at = random.usize(..bytes.len());
                    *bytes.get_mut(at).unwrap() = random.u8(..);
                }
                1 => bytes.truncate(random.usize(..=bytes.len())),
                2 => bytes.insert(random.usize(..=bytes.len()), random.u8(..)),
                _ => {
                    let (_, other) = requests.get(random.usize(..requests.len())).unwrap();
                    bytes.extend(other);
                }
            }
        }
        // The decoder rejects malformed messages.
        let result = fixture.send(method, &bytes).await;
        check_status(&format!("seed {seed}: {method} {bytes:?}"), result, &[Code::Internal]);
    }
    assert!(!fixture.backend.requests().is_empty());
}
