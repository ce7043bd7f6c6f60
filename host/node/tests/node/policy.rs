//! Attackers: a driver's own answers, edited PersistentVolumes and VolumeAttachments, and authors of pods.
//! They get nowhere.

use cofferdam_domain::storage::{ConnectionInfo, ErrorKind, VolumeCapability};
use cofferdam_node::{Content, InlinePolicy, Kind, Policy};

use crate::{
    model::Disk,
    support::{
        MIB, again, attachment, block, do_stage, inline, node, policy, publish, stage, staging, target, with,
        writer,
    },
};

/// Stages, and shows that a refusal left nothing behind.
fn refused(policy: Policy, attachment: ConnectionInfo, capability: VolumeCapability) -> ErrorKind {
    let node = again(node(), policy);
    let error = do_stage(&node, &stage("v", attachment, capability)).unwrap_err();
    assert!(!error.to_string().contains('\n'));
    node.unstage("v", &staging("v")).unwrap();
    assert_eq!(node.machine().left_behind(), "");
    assert!(node.machine().mounts_at(&staging("v")).is_empty());
    error.kind()
}

#[test]
fn nothing_is_allowed_that_is_not_named() {
    use ErrorKind::{InvalidArgument, NotFound, PermissionDenied};
    let only = |kind: Kind| Policy { attachments: [kind].into(), ..policy() };
    #[rustfmt::skip] // one row a case: the policy, what stands in the volume, the answer
    let table = [
        (Policy::default(),     attachment("directory", &[("path", "one")]),            PermissionDenied),
        (Policy::default(),     attachment("image", &[("path", "blank")]),              PermissionDenied),
        (Policy::default(),     attachment("tmpfs", &[("size", "4096")]),               PermissionDenied),
        (Policy::default(),     attachment("local-device", &[("stable-id", "wwn-blank")]), PermissionDenied),
        (Policy::default(),     attachment("none", &[]),                                PermissionDenied),
        (only(Kind::Image),     attachment("directory", &[("path", "one")]),            PermissionDenied),
        (only(Kind::Tmpfs),     attachment("none", &[]),                                PermissionDenied),
        (policy(),              attachment("directory", &[("path", "/etc")]),           InvalidArgument),
        (policy(),              attachment("directory", &[("path", "../images")]),      InvalidArgument),
        (policy(),              attachment("directory", &[("path", "one/../../etc")]),  InvalidArgument),
        (policy(),              attachment("directory", &[("path", "/srv/directories/one")]), InvalidArgument),
        (policy(),              attachment("directory", &[("path", "other")]),          NotFound),
        (policy(),              attachment("image", &[("path", "blank\0")]),            InvalidArgument),
        (policy(),              attachment("tmpfs", &[("size", "67108865")]),           PermissionDenied),
        (policy(),              attachment("tmpfs", &[("size", "1"), ("mode", "7777")]), InvalidArgument),
        (policy(),              attachment("local-device", &[("stable-id", "ata-system")]), PermissionDenied),
        (policy(),              attachment("local-device", &[("stable-id", "wwn-other")]), NotFound),
        (policy(),              attachment("local-device", &[("stable-id", "wwn-../../sda")]), InvalidArgument),
        (policy(),              attachment("nfs", &[("server", "10.0.0.1")]),           InvalidArgument),
        (policy(),              attachment("csi", &[]),                                 InvalidArgument),
        (policy(),              ConnectionInfo { version: 2, ..attachment("none", &[]) }, InvalidArgument),
    ];
    for (policy, attachment, expected) in table {
        let shown = format!("{attachment:?}");
        assert_eq!(refused(policy, attachment, writer()), expected, "{shown}");
    }
}

#[test]
fn mount_options_of_a_class_are_on_a_list() {
    let kinds = [
        attachment("directory", &[("path", "one")]),
        attachment("image", &[("path", "blank")]),
        attachment("tmpfs", &[("size", "4096")]),
        attachment("none", &[]),
    ];
    for attachment in kinds {
        for flag in
            ["suid", "dev", "bind", "size=1t", "mode=7777", "uid=0", "remount", "nouuid", "X-mount.mkdir"]
        {
            let capability = with("", &["nosuid", flag], "");
            assert_eq!(
                refused(policy(), attachment.clone(), capability),
                ErrorKind::PermissionDenied,
                "{flag}"
            );
        }
    }
    let node = node();
    do_stage(&node, &stage("v", attachment("image", &[("path", "blank")]), writer())).unwrap();
    let attributes = node.machine().mounts_at(&staging("v"))[0].attributes;
    assert!(attributes.no_suid && attributes.no_devices && !attributes.no_exec && !attributes.read_only);
}

#[test]
fn a_device_that_something_else_holds_is_left_alone() {
    for held in ["a mount", "partitions", "holders", "swap", "an exclusive opener"] {
        for capability in [writer(), block()] {
            let node = node();
            let disk = Disk { held: vec![held.to_owned()], ..Disk::new(Content::Blank, MIB) };
            node.machine().device_at("wwn-held", disk);
            let request = stage("v", attachment("local-device", &[("stable-id", "wwn-held")]), capability);
            let error = do_stage(&node, &request).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::FailedPrecondition);
            assert!(error.to_string().contains(held), "{error}");
        }
    }
}

#[test]
fn a_device_with_anything_on_it_is_never_formatted() {
    let image = |path: &str| attachment("image", &[("path", path)]);
    assert_eq!(refused(policy(), image("raw"), writer()), ErrorKind::FailedPrecondition);
    assert_eq!(refused(policy(), image("xfs"), with("ext4", &[], "")), ErrorKind::FailedPrecondition);
    for content in [
        Content::Filesystem("btrfs".to_owned()),
        Content::Other("a partition table".to_owned()),
        Content::Unknown,
    ] {
        let node = node();
        node.machine().image_at("/srv/images/strange", Disk::new(content, MIB));
        let error = do_stage(&node, &stage("v", image("strange"), writer())).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::FailedPrecondition);
        assert_eq!(node.machine().with_image("/srv/images/strange", |disk| disk.made), 0);
    }
}

#[test]
fn filesystems_are_named_too() {
    let ext4 = || Policy { filesystems: [cofferdam_node::Filesystem::Ext4].into(), ..policy() };
    let image = |path: &str| attachment("image", &[("path", path)]);
    assert_eq!(refused(ext4(), image("xfs"), writer()), ErrorKind::PermissionDenied);
    assert_eq!(refused(ext4(), image("blank"), with("xfs", &[], "")), ErrorKind::PermissionDenied);
}

#[test]
fn what_was_cloned_or_restored_is_never_formatted() {
    let node = node();
    let mut request = stage("v", attachment("image", &[("path", "blank")]), writer());
    request.cloned = true;
    assert_eq!(do_stage(&node, &request).unwrap_err().kind(), ErrorKind::FailedPrecondition);
    assert_eq!(node.machine().with_image("/srv/images/blank", |disk| disk.made), 0);
    // A clone of xfs has the uuid of its origin.
    let mut request = stage("w", attachment("image", &[("path", "xfs")]), writer());
    request.cloned = true;
    do_stage(&node, &request).unwrap();
    let effects = node.machine().state().effects.join(" ");
    assert!(effects.contains("nouuid"), "{effects}");
}

#[test]
fn two_volumes_never_have_the_same_storage() {
    let kinds = [
        attachment("image", &[("path", "blank")]),
        attachment("local-device", &[("stable-id", "wwn-blank")]),
    ];
    for attachment in kinds {
        let node = node();
        do_stage(&node, &stage("v", attachment.clone(), writer())).unwrap();
        let error = do_stage(&node, &stage("w", attachment.clone(), writer())).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::FailedPrecondition, "{error}");
        // The way in through the other volume's staging path.
        let mut stolen = stage("w", attachment, writer());
        stolen.staging_path = staging("v");
        assert_eq!(node.stage(&stolen).unwrap_err().kind(), ErrorKind::FailedPrecondition);
        let mut publish = publish("w", "p", writer());
        publish.staging_path = staging("v");
        assert_eq!(node.publish(&publish).unwrap_err().kind(), ErrorKind::FailedPrecondition);
        assert_eq!(node.unstage("w", &staging("v")).unwrap_err().kind(), ErrorKind::NotFound);
    }
}

#[test]
fn what_was_done_can_be_undone_after_the_policy_was_closed() {
    let node = node();
    do_stage(&node, &stage("v", attachment("image", &[("path", "blank")]), writer())).unwrap();
    node.publish(&publish("v", "p", writer())).unwrap();
    let node = again(node, Policy::default());
    node.unpublish("v", &target("p")).unwrap();
    node.unstage("v", &staging("v")).unwrap();
    assert_eq!(node.machine().left_behind(), "");
}

#[test]
fn inline_volumes_are_memory_within_a_limit() {
    let node = node();
    for size in [Some(0), Some(MIB + 1), Some(u64::MAX)] {
        let error = node.publish_inline(&inline("p", size)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
    }
    let mut raw = inline("p", None);
    raw.capability = block();
    assert_eq!(node.publish_inline(&raw).unwrap_err().kind(), ErrorKind::InvalidArgument);
    node.publish_inline(&inline("p", Some(4096))).unwrap();
    node.publish_inline(&inline("p", Some(4096))).unwrap();
    let error = node.publish_inline(&inline("p", Some(8192))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    let mounts = node.machine().mounts_at(&target("p"));
    assert_eq!(mounts.len(), 1);
    assert!(mounts[0].attributes.no_suid && mounts[0].attributes.no_devices);
    node.unpublish(&inline("p", None).volume, &target("p")).unwrap();
    assert_eq!(node.machine().left_behind(), "");

    let node = again(node, Policy { inline: InlinePolicy::default(), ..policy() });
    let error = node.publish_inline(&inline("p", Some(4096))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
}

#[test]
fn paths_are_kubelets_own() {
    let node = node();
    let request = stage("v", attachment("none", &[]), writer());
    do_stage(&node, &request).unwrap();
    for path in [
        "/etc",
        "/var/lib/kubelet",
        "/var/lib/kubelet/../../../etc",
        "pods/x",
        "/var/lib/kubelet/pods/../../x",
    ] {
        let mut publish = publish("v", "p", writer());
        publish.target_path = path.to_owned();
        assert_eq!(node.publish(&publish).unwrap_err().kind(), ErrorKind::InvalidArgument, "{path}");
        assert_eq!(node.unpublish("v", path).unwrap_err().kind(), ErrorKind::InvalidArgument, "{path}");
        assert_eq!(node.unstage("v", path).unwrap_err().kind(), ErrorKind::InvalidArgument, "{path}");
        let stage = cofferdam_node::Stage { staging_path: path.to_owned(), ..request.clone() };
        assert_eq!(node.stage(&stage).unwrap_err().kind(), ErrorKind::InvalidArgument, "{path}");
    }
}
