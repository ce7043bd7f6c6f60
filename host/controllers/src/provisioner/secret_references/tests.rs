//! Tests of the Secrets that a StorageClass names.
#![allow(clippy::type_complexity, reason = "the type of a table's rows is written once, at the table")]

use cofferdam_cluster::decode;
use cofferdam_domain::{BindingMode, ObjectMeta, ReclaimPolicy};
use serde_json::{Value, json};

use super::*;

type Pairs = &'static [(&'static str, &'static str)];

fn class(parameters: &[(&str, &str)]) -> StorageClass {
    StorageClass {
        name: "gold".into(),
        meta: ObjectMeta::default(),
        provisioner: "drv".into(),
        parameters: parameters.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
        reclaim_policy: ReclaimPolicy::Delete,
        mount_options: Vec::new(),
        binding_mode: Some(BindingMode::Immediate),
        allowed_topologies: Vec::new(),
    }
}

fn resolve_all(parameters: &[(&str, &str)]) -> Result<IntentSecrets, String> {
    let annotations = [("team", "red"), ("example.com/s", "blue"), ("wide", "a/../b")];
    let annotations = annotations.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    let (volume, claim) = ("pvc-1".into(), ClaimKey::new("apps", "c"));
    let values = TokenValues { volume: &volume, claim: &claim, annotations: &annotations };
    resolve(&class(parameters), values).map_err(|error| error.to_string())
}

/// The resolved Secrets as `purpose=namespace/name`.
fn lines(secrets: &IntentSecrets) -> Vec<String> {
    let IntentSecrets {
        provisioner,
        controller_publish,
        node_stage,
        node_publish,
        controller_expand,
        node_expand,
        controller_modify,
    } = secrets;
    let purposes = [
        ("provisioner", provisioner),
        ("publish", controller_publish),
        ("stage", node_stage),
        ("node-publish", node_publish),
        ("expand", controller_expand),
        ("node-expand", node_expand),
        ("modify", controller_modify),
    ];
    let line =
        |(purpose, secret): (&str, &Option<SecretRef>)| Some(format!("{purpose}={}", secret.as_ref()?));
    purposes.into_iter().filter_map(line).collect()
}

#[test]
fn every_purpose_has_its_own_secret_or_the_default() {
    #[rustfmt::skip] // one row a class
    let table: [(Pairs, &[&str]); 10] = [
        (&[], &[]),
        (&[("csi.storage.k8s.io/provisioner-secret-name", "s"),
           ("csi.storage.k8s.io/provisioner-secret-namespace", "n")], &["provisioner=n/s"]),
        (&[("csi.storage.k8s.io/controller-publish-secret-name", "s"),
           ("csi.storage.k8s.io/controller-publish-secret-namespace", "n")], &["publish=n/s"]),
        (&[("csi.storage.k8s.io/node-stage-secret-name", "s"),
           ("csi.storage.k8s.io/node-stage-secret-namespace", "n"),
           ("csi.storage.k8s.io/node-publish-secret-name", "p"),
           ("csi.storage.k8s.io/node-publish-secret-namespace", "n")], &["stage=n/s", "node-publish=n/p"]),
        (&[("csi.storage.k8s.io/controller-expand-secret-name", "s"),
           ("csi.storage.k8s.io/controller-expand-secret-namespace", "n"),
           ("csi.storage.k8s.io/node-expand-secret-name", "e"),
           ("csi.storage.k8s.io/node-expand-secret-namespace", "n")], &["expand=n/s", "node-expand=n/e"]),
        (&[("csi.storage.k8s.io/controller-modify-secret-name", "s"),
           ("csi.storage.k8s.io/controller-modify-secret-namespace", "n")], &["modify=n/s"]),
        (&[("csiProvisionerSecretName", "s"), ("csiProvisionerSecretNamespace", "n"),
           ("csiControllerPublishSecretName", "t"), ("csiControllerPublishSecretNamespace", "n"),
           ("csiNodeStageSecretName", "u"), ("csiNodeStageSecretNamespace", "n"),
           ("csiNodePublishSecretName", "v"), ("csiNodePublishSecretNamespace", "n")],
         &["provisioner=n/s", "publish=n/t", "stage=n/u", "node-publish=n/v"]),
        // external-provisioner counts names and namespaces separately.
        (&[("csiProvisionerSecretName", "s"), ("csi.storage.k8s.io/provisioner-secret-namespace", "n")],
         &["provisioner=n/s"]),
        (&[("csi.storage.k8s.io/secret-name", "d"), ("csi.storage.k8s.io/secret-namespace", "n")],
         &["provisioner=n/d", "publish=n/d", "stage=n/d", "node-publish=n/d", "expand=n/d", "node-expand=n/d",
           "modify=n/d"]),
        (&[("csi.storage.k8s.io/secret-name", "d"), ("csi.storage.k8s.io/secret-namespace", "n"),
           ("csiProvisionerSecretName", "s"), ("csiProvisionerSecretNamespace", "m")],
         &["provisioner=m/s", "publish=n/d", "stage=n/d", "node-publish=n/d", "expand=n/d", "node-expand=n/d",
           "modify=n/d"]),
    ];
    for (parameters, expected) in table {
        assert_eq!(lines(&resolve_all(parameters).unwrap()), expected, "{parameters:?}");
    }
}

/// Name and namespace of the provisioner's Secret → `namespace/name`, or words of the error.
#[test]
fn templates_are_resolved() {
    const NAME: &str = "csi.storage.k8s.io/provisioner-secret-name";
    const NAMESPACE: &str = "csi.storage.k8s.io/provisioner-secret-namespace";
    let long = "x".repeat(64);
    #[rustfmt::skip] // one row a reference
    let table: [(&str, &str, Result<&str, &[&str]>); 19] = [
        ("s",                                  "n",                Ok("n/s")),
        ("${pvc.name}",                        "${pvc.namespace}", Ok("apps/c")),
        ("${pv.name}.s",                       "${pv.name}",       Ok("pvc-1/pvc-1.s")),
        ("${pvc.namespace}-${pvc.name}",       "n",                Ok("n/apps-c")),
        ("${pvc.annotations['team']}",         "n",                Ok("n/red")),
        ("a-${pvc.annotations['example.com/s']}", "n",             Ok("n/a-blue")),
        ("s",               "${pvc.name}",                 Err(&["gold", NAMESPACE, "\"pvc.name\""])),
        ("s",               "${pvc.annotations['team']}",  Err(&[NAMESPACE, "pvc.annotations['team']"])),
        ("${pvc.uid}",      "n",                           Err(&[NAME, "\"pvc.uid\"", "${pvc.name}"])),
        ("$x-${z}",         "n",                           Err(&[NAME, "\"x\", \"z\""])),
        ("$pv.name",        "n",                           Err(&[NAME, "\"pv\""])),
        ("${pvc.annotations['absent']}", "n",              Err(&[NAME, "pvc.annotations['absent']"])),
        ("${pvc.annotations['wide']}", "n",                Err(&[NAME, "\"a/../b\"", "DNS subdomain"])),
        ("Upper",           "n",                           Err(&[NAME, "\"Upper\"", "DNS subdomain"])),
        ("s",               "a.b",                         Err(&[NAMESPACE, "\"a.b\"", "DNS label"])),
        ("s",               &long,                         Err(&[NAMESPACE, "DNS label"])),
        ("",                "n",                           Err(&["gold", "empty", NAME])),
        ("s",               "",                            Err(&["gold", "empty", NAMESPACE])),
        ("${}",             "n",                           Err(&[NAME, "\"\"", "DNS subdomain"])),
    ];
    for (name, namespace, expected) in table {
        let resolved = resolve_all(&[(NAME, name), (NAMESPACE, namespace)]);
        let resolved = resolved.map(|secrets| secrets.provisioner.unwrap().to_string());
        match expected {
            Ok(expected) => assert_eq!(resolved.as_deref(), Ok(expected)),
            Err(words) => {
                let error = resolved.unwrap_err();
                words.iter().for_each(|word| assert!(error.contains(word), "{error}: {word}"));
            }
        }
    }
}

#[test]
fn incomplete_and_contradictory_pairs_are_errors() {
    #[rustfmt::skip] // one row a class
    let table: [(Pairs, &[&str]); 6] = [
        (&[("csi.storage.k8s.io/node-stage-secret-name", "s")],
         &["gold", "csi.storage.k8s.io/node-stage-secret-name", "alone"]),
        (&[("csiNodePublishSecretNamespace", "n")], &["csiNodePublishSecretNamespace", "alone"]),
        (&[("csi.storage.k8s.io/secret-namespace", "n")], &["csi.storage.k8s.io/secret-namespace", "alone"]),
        (&[("csi.storage.k8s.io/provisioner-secret-name", "s"), ("csiProvisionerSecretName", "s"),
           ("csi.storage.k8s.io/provisioner-secret-namespace", "n"), ("csiProvisionerSecretNamespace", "n")],
         &["gold", "csi.storage.k8s.io/provisioner-secret-name and csiProvisionerSecretName"]),
        (&[("csi.storage.k8s.io/provisioner-secret-name", "s"),
           ("csi.storage.k8s.io/provisioner-secret-namespace", "n"), ("csiProvisionerSecretNamespace", "n")],
         &["provisioner-secret-namespace and csiProvisionerSecretNamespace"]),
        // The default does not complete a pair.
        (&[("csi.storage.k8s.io/secret-name", "d"), ("csi.storage.k8s.io/secret-namespace", "n"),
           ("csi.storage.k8s.io/controller-modify-secret-name", "s")],
         &["csi.storage.k8s.io/controller-modify-secret-name", "alone"]),
    ];
    for (parameters, words) in table {
        let error = resolve_all(parameters).unwrap_err();
        words.iter().for_each(|word| assert!(error.contains(word), "{error}: {word}"));
    }
}

#[test]
fn only_templates_of_names_use_annotations() {
    let uses = |parameters: Pairs| uses_annotations(&class(parameters));
    assert!(!uses(&[]));
    assert!(!uses(&[("csi.storage.k8s.io/secret-name", "${pvc.name}")]));
    assert!(uses(&[("csi.storage.k8s.io/secret-name", "a-${pvc.annotations['team']}")]));
    assert!(uses(&[("csiNodeStageSecretName", "${pvc.annotations['team']}")]));
    // Not a token of a namespace: the resolution fails, whatever the annotations are.
    assert!(!uses(&[("csi.storage.k8s.io/secret-namespace", "${pvc.annotations['team']}")]));
}

fn released_volume(annotations: &Value, claim_ref: bool) -> Volume {
    let claim_ref = claim_ref.then(|| json!({"namespace": "apps", "name": "c", "uid": "u"}));
    let object = json!({
        "metadata": {"name": "pvc-1", "uid": "v", "resourceVersion": "1", "annotations": annotations},
        "spec": {
            "storageClassName": "gold", "claimRef": claim_ref,
            "csi": {"driver": "drv", "volumeHandle": "h"},
        },
    });
    decode::object::<Volume>(&object.to_string()).unwrap().unwrap()
}

#[test]
fn annotations_or_the_class_name_the_secret_of_a_deletion() {
    const NAME: &str = names::DELETION_SECRET_NAME;
    let annotations =
        |name: &str, namespace: &str| json!({NAME: name, names::DELETION_SECRET_NAMESPACE: namespace});
    let name_only = json!({NAME: "s"});
    let named: Pairs = &[
        ("csi.storage.k8s.io/provisioner-secret-name", "c-${pvc.name}"),
        ("csi.storage.k8s.io/provisioner-secret-namespace", "${pvc.namespace}"),
    ];
    let annotated: Pairs = &[
        ("csi.storage.k8s.io/secret-name", "${pvc.annotations['team']}"),
        ("csi.storage.k8s.io/secret-namespace", "n"),
    ];
    let other: Pairs = &[
        ("csi.storage.k8s.io/node-stage-secret-name", "s"),
        ("csi.storage.k8s.io/node-stage-secret-namespace", "n"),
    ];
    #[rustfmt::skip] // one row a volume: annotations, claimRef, class
    let table: [(Value, bool, Option<Pairs>, Result<Option<&str>, &str>); 12] = [
        (annotations("s", "n"), true,  Some(named),     Ok(Some("n/s"))),
        (annotations("s", "n"), true,  None,            Ok(Some("n/s"))),
        (annotations("", ""),   true,  Some(named),     Ok(None)),
        (annotations("s", ""),  true,  Some(named),     Ok(None)),
        (annotations("", "n"),  true,  Some(named),     Ok(None)),
        (name_only,             true,  Some(named),     Ok(Some("apps/c-c"))),
        (json!({}),             true,  Some(named),     Ok(Some("apps/c-c"))),
        (json!({}),             true,  Some(&[]),       Ok(None)),
        (json!({}),             true,  Some(other),     Ok(None)),
        (json!({}),             true,  None,            Ok(None)),
        (json!({}),             false, Some(named),     Ok(None)),
        (json!({}),             true,  Some(annotated), Err("pvc.annotations['team']")),
    ];
    for (annotations, claim_ref, parameters, expected) in table {
        let volume = released_volume(&annotations, claim_ref);
        let found = deletion_secret(&volume, parameters.map(class).as_ref());
        let found = found.map(|secret| secret.map(|secret| secret.to_string()));
        match expected {
            Ok(expected) => assert_eq!(found.unwrap().as_deref(), expected, "{annotations}"),
            Err(word) => assert!(found.unwrap_err().to_string().contains(word), "{annotations}"),
        }
    }
}
