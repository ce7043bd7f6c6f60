#![allow(clippy::type_complexity, reason = "the type of a table's rows is written once, at the table")]

use std::collections::BTreeMap;

use cofferdam_domain::{BindingMode, ObjectMeta, ReclaimPolicy, StorageClass};

use super::split;

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

#[test]
fn reserved_parameters_are_read_and_the_others_go_to_the_driver() {
    /// Parameters → what the driver receives, filesystem type.
    type Case = (
        &'static [(&'static str, &'static str)],
        &'static [(&'static str, &'static str)],
        Option<&'static str>,
    );
    let cases: [Case; 7] = [
        (&[], &[], None),
        (&[("tier", "fast")], &[("tier", "fast")], None),
        (&[("csi.storage.k8s.io/fstype", "xfs"), ("a", "b")], &[("a", "b")], Some("xfs")),
        (&[("fsType", "ext4")], &[("fsType", "ext4")], Some("ext4")),
        (&[("csi.storage.k8s.io/fstype", "")], &[], None),
        (&[("csi.storage.k8s.io/node-expand-secret-namespace", "n"), ("a", "b")], &[("a", "b")], None),
        (&[("csiNodeStageSecretName", "s")], &[("csiNodeStageSecretName", "s")], None),
    ];
    for (given, driver, fs_type) in cases {
        let parameters = split(&class(given)).unwrap();
        let expected: BTreeMap<_, _> =
            driver.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        assert_eq!(parameters.for_driver, expected, "{given:?}");
        assert_eq!(parameters.fs_type.as_deref(), fs_type, "{given:?}");
    }
}

#[test]
fn errors_name_the_class_and_the_key() {
    let cases: [(&[(&str, &str)], &[&str]); 3] = [
        (
            &[("csi.storage.k8s.io/fs-type", "xfs")],
            &["gold", "csi.storage.k8s.io/fs-type", "unknown", "fstype"],
        ),
        (
            &[("csi.storage.k8s.io/provisioner-secret-key", "s")],
            &["gold", "csi.storage.k8s.io/provisioner-secret-key", "unknown", "provisioner-secret-name"],
        ),
        (&[("csi.storage.k8s.io/fstype", "xfs"), ("FSTYPE", "xfs")], &["gold", "FSTYPE", "several"]),
    ];
    for (given, words) in cases {
        let message = split(&class(given)).unwrap_err().to_string();
        for word in words {
            assert!(message.contains(word), "{message}: {word}");
        }
    }
}
