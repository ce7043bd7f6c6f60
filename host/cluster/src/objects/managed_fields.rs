//! Writers of fields, by `metadata.managedFields`.

use serde::Deserialize;
use serde_json::Value;

/// Returns the field managers that own a field of an object in JSON. `field` is a path of `fieldsV1`, such as
/// `["f:status", "f:phase"]`. A client that changes a field with an update or a patch becomes its only owner.
/// Empty if the object names no owner.
pub fn field_managers(json: &str, field: &[&str]) -> Vec<String> {
    #[derive(Deserialize)]
    struct Object {
        metadata: Metadata,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Metadata {
        #[serde(default)]
        managed_fields: Vec<Entry>,
    }
    #[derive(Deserialize)]
    struct Entry {
        #[serde(default)]
        manager: String,
        #[serde(default, rename = "fieldsV1")]
        fields: Value,
    }
    let Ok(Object { metadata }) = serde_json::from_str(json) else { return Vec::new() };
    let owns = |fields: &Value| field.iter().try_fold(fields, |fields, step| fields.get(step)).is_some();
    let entries = metadata.managed_fields.into_iter().filter(|entry| owns(&entry.fields));
    entries.map(|entry| entry.manager).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_of_a_field() {
        const PHASE: &[&str] = &["f:status", "f:phase"];
        let entry = |manager: &str, fields: &str| format!(r#"{{"manager":"{manager}","fieldsV1":{fields}}}"#);
        let object = |entries: &[String]| {
            format!(r#"{{"metadata":{{"managedFields":[{}]}},"status":{{}}}}"#, entries.join(","))
        };
        let phase = r#"{"f:status":{"f:phase":{}}}"#;
        #[rustfmt::skip] // one row a case
        let cases = [
            (object(&[entry("a", phase)]), vec!["a"]),
            (object(&[entry("a", r#"{"f:status":{"f:reason":{}}}"#)]), vec![]),
            (object(&[entry("a", phase), entry("b", phase), entry("c", "{}")]), vec!["a", "b"]),
            (object(&[]), vec![]),
            (r#"{"metadata":{}}"#.to_owned(), vec![]),
            (object(&["{}".to_owned()]), vec![]),
            (object(&["7".to_owned()]), vec![]),
            ("7".to_owned(), vec![]),
        ];
        for (json, managers) in cases {
            assert_eq!(field_managers(&json, PHASE), managers, "{json}");
        }
    }
}
