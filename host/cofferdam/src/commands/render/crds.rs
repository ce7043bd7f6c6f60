//! `cofferdam render crds`: the CustomResourceDefinitions of the chart `cofferdam-snapshot-crds`.

/// The definitions, one document each.
pub(super) const DEFINITIONS: [&str; 3] = [
    include_str!("../../../../../deploy/helm/cofferdam-snapshot-crds/templates/volumesnapshots.yaml"),
    include_str!("../../../../../deploy/helm/cofferdam-snapshot-crds/templates/volumesnapshotcontents.yaml"),
    include_str!("../../../../../deploy/helm/cofferdam-snapshot-crds/templates/volumesnapshotclasses.yaml"),
];

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::DEFINITIONS;

    /// Calls `visit` for each schema with its path.
    fn visit_schemas(schema: &Value, path: &str, visit: &mut impl FnMut(&str, &Value)) {
        visit(path, schema);
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            visit_schemas(property, &format!("{path}.{name}"), visit);
        }
    }

    #[test]
    fn every_field_of_a_definition_has_a_description() {
        for text in DEFINITIONS {
            // Helm would render the text as a template.
            assert!(!text.contains("{{"), "{text}");
            let definition: Value = serde_saphyr::from_str(text).unwrap();
            for version in definition["spec"]["versions"].as_array().unwrap() {
                visit_schemas(&version["schema"]["openAPIV3Schema"], "", &mut |path, schema| {
                    let described = schema["description"].as_str().is_some_and(|text| text.ends_with('.'));
                    assert!(described || path == ".metadata", "{path}");
                });
            }
        }
    }

    #[test]
    fn a_definition_is_approved_and_stores_one_version() {
        let names = ["volumesnapshots", "volumesnapshotcontents", "volumesnapshotclasses"];
        for (text, name) in DEFINITIONS.iter().zip(names) {
            let definition: Value = serde_saphyr::from_str(text).unwrap();
            let metadata = &definition["metadata"];
            assert_eq!(metadata["name"], format!("{name}.snapshot.storage.k8s.io"));
            let approval = metadata["annotations"]["api-approved.kubernetes.io"].as_str().unwrap();
            assert!(approval.starts_with("https://github.com/kubernetes-csi/external-snapshotter/pull/"));
            assert_eq!(metadata["annotations"]["helm.sh/resource-policy"], "keep");
            let versions: Vec<Value> = definition["spec"]["versions"]
                .as_array()
                .unwrap()
                .iter()
                .map(|version| serde_json::json!([version["name"], version["served"], version["storage"]]))
                .collect();
            assert_eq!(
                Value::from(versions),
                serde_json::json!([["v1", true, true], ["v1beta1", false, false]])
            );
        }
    }
}
