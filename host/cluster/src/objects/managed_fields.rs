//! Writers of fields, by `metadata.managedFields`.

use serde_json::Value;

/// Returns the field managers that own a field of an object. `field` is a path of `fieldsV1`, such as
/// `["f:status", "f:phase"]`. A client that changes a field with an update or a patch becomes its only owner.
/// Empty if the object names no owner.
pub fn field_managers<'a>(object: &'a Value, field: &[&str]) -> Vec<&'a str> {
    let entries = object.pointer("/metadata/managedFields").and_then(Value::as_array);
    let owner = |entry: &'a Value| {
        field.iter().try_fold(entry.get("fieldsV1")?, |fields, step| fields.get(step))?;
        entry.get("manager")?.as_str()
    };
    entries.into_iter().flatten().filter_map(owner).collect()
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
            (object(&["7".to_owned(), entry("a", phase)]), vec!["a"]),
            ("7".to_owned(), vec![]),
        ];
        for (json, managers) in cases {
            let object = serde_json::from_str(&json).unwrap();
            assert_eq!(field_managers(&object, PHASE), managers, "{json}");
        }
    }
}
