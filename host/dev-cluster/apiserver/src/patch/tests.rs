use http::StatusCode;
use serde_json::{Value, json};

use super::parse;
use crate::descriptors::ResourceKind;
use crate::request::PatchType;

fn apply_patch(patch_type: PatchType, value: Value, patch: &Value) -> Value {
    parse(patch_type, patch.to_string().as_bytes()).unwrap().apply(ResourceKind::Pod, value).unwrap()
}

#[test]
fn merge_patches_follow_rfc_7386() {
    for (value, patch, expected) in [
        (json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"})),
        (json!({"a": "b"}), json!({"b": "c"}), json!({"a": "b", "b": "c"})),
        (json!({"a": "b", "b": "c"}), json!({"a": null}), json!({"b": "c"})),
        (json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"})),
        (json!({"a": [{"b": "c"}]}), json!({"a": [1]}), json!({"a": [1]})),
        (json!({"a": {"b": "c"}}), json!({"a": {"b": "d", "c": null}}), json!({"a": {"b": "d"}})),
        (json!({}), json!({"a": {"bb": {"ccc": null}}}), json!({"a": {"bb": {}}})),
    ] {
        assert_eq!(apply_patch(PatchType::Merge, value, &patch), expected, "{patch}");
    }
}

#[test]
fn strategic_patches_merge_lists_by_key() {
    let pod = || {
        json!({
            "metadata": {"finalizers": ["a"], "labels": {"x": "1", "y": "2"}},
            "spec": {
                "containers": [
                    {"name": "one", "image": "i1", "env": [{"name": "A", "value": "1"}]},
                    {"name": "two", "image": "i2"},
                ],
                "tolerations": [{"key": "k"}],
                "volumes": [{"name": "v", "emptyDir": {}}],
            },
        })
    };
    for (patch, pointer, expected) in [
        (json!({"metadata": {"finalizers": ["b", "a"]}}), "/metadata/finalizers", json!(["b", "a"])),
        (
            json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"]}}),
            "/metadata/finalizers",
            json!([]),
        ),
        (json!({"metadata": {"labels": {"x": null}}}), "/metadata/labels", json!({"y": "2"})),
        (
            json!({"metadata": {"labels": {"$patch": "replace", "z": "3"}}}),
            "/metadata/labels",
            json!({"z": "3"}),
        ),
        (
            json!({"spec": {"containers": [{"name": "two", "image": "new"}]}}),
            "/spec/containers/1",
            json!({"name": "two", "image": "new"}),
        ),
        (
            json!({"spec": {"containers": [{"name": "one", "env": [{"name": "B", "value": "2"}]}]}}),
            "/spec/containers/0/env",
            // New elements come first.
            json!([{"name": "B", "value": "2"}, {"name": "A", "value": "1"}]),
        ),
        (
            json!({"spec": {"containers": [{"name": "one", "$patch": "delete"}]}}),
            "/spec/containers",
            json!([{"name": "two", "image": "i2"}]),
        ),
        (
            json!({"spec": {"containers": [{"$patch": "replace"}, {"name": "x"}]}}),
            "/spec/containers",
            json!([{"name": "x"}]),
        ),
        (json!({"spec": {"tolerations": [{"key": "n"}]}}), "/spec/tolerations", json!([{"key": "n"}])),
        (
            json!({"spec": {"volumes": [{"$retainKeys": ["name", "hostPath"], "name": "v",
                "hostPath": {"path": "/"}}]}}),
            "/spec/volumes",
            json!([{"name": "v", "hostPath": {"path": "/"}}]),
        ),
        (
            json!({"spec": {
                "$setElementOrder/containers": [{"name": "three"}, {"name": "two"}, {"name": "one"}],
                "containers": [{"name": "three"}],
            }}),
            "/spec/containers",
            json!([
                {"name": "three"},
                {"name": "two", "image": "i2"},
                {"name": "one", "image": "i1", "env": [{"name": "A", "value": "1"}]},
            ]),
        ),
    ] {
        let result = apply_patch(PatchType::Strategic, pod(), &patch);
        assert_eq!(result.pointer(pointer), Some(&expected), "{patch}");
    }
}

#[test]
fn strategic_patch_without_the_merge_key_is_rejected() {
    let patch = json!({"spec": {"containers": [{"image": "x"}]}});
    let patch = parse(PatchType::Strategic, patch.to_string().as_bytes()).unwrap();
    let error = patch.apply(ResourceKind::Pod, json!({})).unwrap_err();
    assert!(error.message.contains("does not contain declared merge key: name"), "{}", error.message);
}

#[test]
fn a_failed_json_patch_test_is_unprocessable() {
    let patch = json!([{"op": "test", "path": "/metadata/uid", "value": "1"}]);
    let patch = parse(PatchType::Json, patch.to_string().as_bytes()).unwrap();
    let error = patch.apply(ResourceKind::Pod, json!({"metadata": {"uid": "2"}})).unwrap_err();
    assert_eq!((error.code, error.reason), (StatusCode::UNPROCESSABLE_ENTITY, "Invalid"));
}

#[test]
fn malformed_patches_are_bad_requests() {
    for (patch_type, body) in [(PatchType::Json, "{}"), (PatchType::Merge, "[]"), (PatchType::Strategic, "{")]
    {
        let error = parse(patch_type, body.as_bytes()).unwrap_err();
        assert_eq!(error.code, StatusCode::BAD_REQUEST, "{body}");
    }
}

#[test]
fn an_unknown_operation_is_unprocessable() {
    let error = parse(PatchType::Json, br#"[{"op":"fly"}]"#).unwrap_err();
    assert_eq!(error.code, StatusCode::UNPROCESSABLE_ENTITY);
}
