//! Attacks by drivers, by editors of PersistentVolumes and VolumeAttachments, and by pod authors: all are
//! rejected. What was staged under an earlier policy can still be unstaged.

use cofferdam_domain::storage::{ConnectionInfo, ErrorKind, VolumeCapability};
use cofferdam_node::{ConnectionKind, DeviceContent, InlinePolicy, NodePolicy, NodeVolumes, StableIdPattern};

use crate::support::{
    MIB, block_capability, connection_info, inline_request, make_directory_and_stage, mount_capability,
    nfs_export, policy, publish_request, restart, single_writer, stage_request, staging_path, target_path,
    test_node,
};

/// Stages a volume that must be rejected, and checks that nothing is left. Returns the kind of the error.
fn stage_error_kind(
    policy: NodePolicy,
    connection: ConnectionInfo,
    capability: VolumeCapability,
) -> ErrorKind {
    let node = restart(test_node(), policy);
    let error = make_directory_and_stage(&node, &stage_request("v", connection, capability)).unwrap_err();
    assert!(!error.to_string().contains('\n'));
    node.unstage("v", &staging_path("v")).unwrap();
    assert_eq!(node.mounter().leftovers(), "");
    assert!(node.mounter().host().mounts_at(&staging_path("v")).is_empty());
    error.kind()
}

#[test]
fn everything_not_named_in_the_policy_is_denied() {
    use ErrorKind::{InvalidArgument, NotFound, PermissionDenied};
    let policy_with = |kind: ConnectionKind| NodePolicy { connection_kinds: [kind].into(), ..policy() };
    // The policy, the volume's connection info, the result.
    let table = [
        (NodePolicy::default(), connection_info("directory", &[("path", "one")]), PermissionDenied),
        (NodePolicy::default(), connection_info("image", &[("path", "blank")]), PermissionDenied),
        (NodePolicy::default(), connection_info("tmpfs", &[("size", "4096")]), PermissionDenied),
        (
            NodePolicy::default(),
            connection_info("local-device", &[("stable-id", "wwn-blank")]),
            PermissionDenied,
        ),
        (NodePolicy::default(), connection_info("none", &[]), PermissionDenied),
        (
            policy_with(ConnectionKind::Image),
            connection_info("directory", &[("path", "one")]),
            PermissionDenied,
        ),
        (policy_with(ConnectionKind::Tmpfs), connection_info("none", &[]), PermissionDenied),
        (policy(), connection_info("directory", &[("path", "/etc")]), InvalidArgument),
        (policy(), connection_info("directory", &[("path", "../images")]), InvalidArgument),
        (policy(), connection_info("directory", &[("path", "one/../../etc")]), InvalidArgument),
        (policy(), connection_info("directory", &[("path", "/srv/directories/one")]), InvalidArgument),
        (policy(), connection_info("directory", &[("path", "other")]), NotFound),
        (policy(), connection_info("image", &[("path", "blank\0")]), InvalidArgument),
        (policy(), connection_info("tmpfs", &[("size", "67108865")]), PermissionDenied),
        (policy(), connection_info("tmpfs", &[("size", "1"), ("mode", "7777")]), InvalidArgument),
        (policy(), connection_info("local-device", &[("stable-id", "ata-system")]), PermissionDenied),
        (policy(), connection_info("local-device", &[("stable-id", "wwn-other")]), NotFound),
        (policy(), connection_info("local-device", &[("stable-id", "wwn-../../sda")]), InvalidArgument),
        (policy(), connection_info("nfs", &[("server", "10.0.0.1")]), InvalidArgument),
        (policy(), connection_info("csi", &[]), InvalidArgument),
        (policy(), ConnectionInfo { version: 2, ..connection_info("none", &[]) }, InvalidArgument),
    ];
    for (policy, connection, expected) in table {
        let connection_text = format!("{connection:?}");
        assert_eq!(stage_error_kind(policy, connection, single_writer()), expected, "{connection_text}");
    }
}

#[test]
fn mount_options_outside_the_allow_list_are_denied() {
    let kinds = [
        connection_info("directory", &[("path", "one")]),
        connection_info("image", &[("path", "blank")]),
        connection_info("tmpfs", &[("size", "4096")]),
        connection_info("none", &[]),
    ];
    for connection in kinds {
        for flag in
            ["suid", "dev", "bind", "size=1t", "mode=7777", "uid=0", "remount", "nouuid", "X-mount.mkdir"]
        {
            let capability = mount_capability("", &["nosuid", flag], "");
            assert_eq!(
                stage_error_kind(policy(), connection.clone(), capability),
                ErrorKind::PermissionDenied,
                "{flag}"
            );
        }
    }
    let node = test_node();
    make_directory_and_stage(
        &node,
        &stage_request("v", connection_info("image", &[("path", "blank")]), single_writer()),
    )
    .unwrap();
    let attributes = node.mounter().host().mounts_at(&staging_path("v"))[0].attributes;
    assert!(attributes.no_suid && attributes.no_devices && !attributes.no_exec && !attributes.read_only);
}

#[test]
fn device_in_use_is_not_staged() {
    for user in ["a mount", "partitions", "holders", "swap", "an exclusive opener"] {
        for capability in [single_writer(), block_capability()] {
            let node = test_node();
            node.mounter().host().add_disk("wwn-held", MIB, DeviceContent::Blank, vec![user.to_owned()]);
            let request =
                stage_request("v", connection_info("local-device", &[("stable-id", "wwn-held")]), capability);
            let error = make_directory_and_stage(&node, &request).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::FailedPrecondition);
            assert!(error.to_string().contains(user), "{error}");
        }
    }
}

#[test]
fn device_with_data_is_never_formatted() {
    let image = |path: &str| connection_info("image", &[("path", path)]);
    assert_eq!(stage_error_kind(policy(), image("raw"), single_writer()), ErrorKind::FailedPrecondition);
    assert_eq!(
        stage_error_kind(policy(), image("xfs"), mount_capability("ext4", &[], "")),
        ErrorKind::FailedPrecondition
    );
    for content in [
        DeviceContent::Filesystem("btrfs".to_owned()),
        DeviceContent::Other("a partition table".to_owned()),
        DeviceContent::Unknown,
    ] {
        let node = test_node();
        node.mounter().host().add_image("/srv/images/strange", MIB, content).unwrap();
        let error = make_directory_and_stage(&node, &stage_request("v", image("strange"), single_writer()))
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::FailedPrecondition);
        assert_eq!(node.mounter().host().image("/srv/images/strange").unwrap().format_count, 0);
    }
}

#[test]
fn filesystem_not_named_in_the_policy_is_denied() {
    let ext4 = || NodePolicy { filesystems: [cofferdam_node::Filesystem::Ext4].into(), ..policy() };
    let image = |path: &str| connection_info("image", &[("path", path)]);
    assert_eq!(stage_error_kind(ext4(), image("xfs"), single_writer()), ErrorKind::PermissionDenied);
    assert_eq!(
        stage_error_kind(ext4(), image("blank"), mount_capability("xfs", &[], "")),
        ErrorKind::PermissionDenied
    );
}

#[test]
fn volume_with_a_content_source_is_never_formatted() {
    let node = test_node();
    let mut request = stage_request("v", connection_info("image", &[("path", "blank")]), single_writer());
    request.has_content_source = true;
    assert_eq!(make_directory_and_stage(&node, &request).unwrap_err().kind(), ErrorKind::FailedPrecondition);
    assert_eq!(node.mounter().host().image("/srv/images/blank").unwrap().format_count, 0);
    // A clone of an xfs volume has the UUID of its source.
    let mut request = stage_request("w", connection_info("image", &[("path", "xfs")]), single_writer());
    request.has_content_source = true;
    make_directory_and_stage(&node, &request).unwrap();
    let effects = node.mounter().faults().effects.join(" ");
    assert!(effects.contains("nouuid"), "{effects}");
}

#[test]
fn two_volumes_never_share_storage() {
    let kinds = [
        connection_info("image", &[("path", "blank")]),
        connection_info("local-device", &[("stable-id", "wwn-blank")]),
    ];
    for connection in kinds {
        let node = test_node();
        make_directory_and_stage(&node, &stage_request("v", connection.clone(), single_writer())).unwrap();
        let error = make_directory_and_stage(&node, &stage_request("w", connection.clone(), single_writer()))
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::FailedPrecondition, "{error}");
        // Through the other volume's staging path.
        let mut conflicting = stage_request("w", connection, single_writer());
        conflicting.staging_path = staging_path("v");
        assert_eq!(node.stage(&conflicting).unwrap_err().kind(), ErrorKind::FailedPrecondition);
        let mut publish = publish_request("w", "p", single_writer());
        publish.staging_path = staging_path("v");
        assert_eq!(node.publish(&publish).unwrap_err().kind(), ErrorKind::FailedPrecondition);
        assert_eq!(node.unstage("w", &staging_path("v")).unwrap_err().kind(), ErrorKind::NotFound);
    }
}

#[test]
fn directories_are_shared_only_if_the_policy_says_so() {
    let directory = |path: &str| connection_info("directory", &[("path", path)]);
    for path in ["one", "one/below", "other"] {
        let node = test_node();
        node.mounter().host().create_directories("/srv/directories/one/below").unwrap();
        node.mounter().host().create_directories("/srv/directories/other").unwrap();
        make_directory_and_stage(&node, &stage_request("v", directory("one"), single_writer())).unwrap();
        let second = stage_request("w", directory(path), single_writer());
        let result = make_directory_and_stage(&node, &second).map_err(|error| error.kind());
        assert_eq!(result.err(), (path != "other").then_some(ErrorKind::FailedPrecondition), "{path}");
        // The directory of the first volume is below that of the third one.
        let third = stage_request("x", directory("one"), single_writer());
        if path == "other" {
            node.unstage("v", &staging_path("v")).unwrap();
            make_directory_and_stage(&node, &third).unwrap();
        }
        let node = restart(node, NodePolicy { shared_directories: true, ..policy() });
        node.stage(&second).unwrap();
        for volume in ["v", "w", "x"] {
            node.unstage(volume, &staging_path(volume)).unwrap();
        }
        assert_eq!(node.mounter().leftovers(), "");
    }
}

#[test]
fn a_partition_needs_a_pattern_that_names_partitions() {
    let stage = |pattern: &str| {
        let stable_ids = vec![StableIdPattern::new(pattern).unwrap()];
        let node = restart(test_node(), NodePolicy { stable_ids, ..policy() });
        node.mounter().host().add_disk("wwn-0x5-part1", MIB, DeviceContent::Blank, Vec::new());
        let device = connection_info("local-device", &[("stable-id", "wwn-0x5-part1")]);
        make_directory_and_stage(&node, &stage_request("v", device, single_writer()))
            .map_err(|error| error.kind())
    };
    assert_eq!(stage("wwn-*"), Err(ErrorKind::PermissionDenied));
    assert_eq!(stage("wwn-*-part*"), Ok(()));
}

#[test]
fn an_image_in_the_place_of_another_one_is_not_formatted_again() {
    let image = || stage_request("v", connection_info("image", &[("path", "blank")]), single_writer());
    for is_replaced in [false, true] {
        let node = test_node();
        let host = node.mounter().host().clone();
        host.create_directories(&staging_path("v")).unwrap();
        // The process ends while it formats the image.
        let mut effects = 0;
        while host.image("/srv/images/blank").unwrap().content == DeviceContent::Blank {
            effects += 1;
            node.mounter().set_crash_after(Some(effects), true);
            node.stage(&image()).unwrap_err();
        }
        node.mounter().set_crash_after(None, false);
        if is_replaced {
            host.reboot();
            host.remove("/srv/images/blank").unwrap();
            host.add_image("/srv/images/blank", 16 * MIB, DeviceContent::Unknown).unwrap();
        }
        let result = node.stage(&image()).map_err(|error| error.kind());
        assert_eq!(result.err(), is_replaced.then_some(ErrorKind::FailedPrecondition));
    }
}

#[test]
fn an_export_is_used_only_as_the_policy_says() {
    let stage = |node: &NodeVolumes<_>, volume: &str, server: &str, path: &str| {
        make_directory_and_stage(node, &stage_request(volume, nfs_export(server, path), single_writer()))
    };
    let node = test_node();
    for (server, path) in [
        ("192.0.2.1", "/srv/volumes/one"),
        ("10.0.0.5", "/srv/volumes"),
        ("10.0.0.5", "/etc"),
        ("other.example.com", "/srv/volumes/one"),
        ("::ffff:192.0.2.1", "/srv/volumes/one"),
    ] {
        let error = stage(&node, "v", server, path).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{server} {path}: {error}");
    }
    // A name whose addresses are outside of the rule's networks.
    node.mounter().host().add_name("nas.example.com", &["192.0.2.1".parse().unwrap()]);
    let error = stage(&node, "v", "nas.example.com", "/srv/volumes/one").unwrap_err();
    assert!(error.to_string().contains("nas.example.com has the addresses 192.0.2.1"), "{error}");
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    assert_eq!(node.mounter().leftovers(), "");

    stage(&node, "v", "10.0.0.5", "/srv/volumes/one").unwrap();
    let mounts = node.mounter().host().mounts_at(&staging_path("v"));
    assert!(mounts[0].attributes.no_suid && mounts[0].attributes.no_devices, "{mounts:?}");
    for path in ["/srv/volumes/one", "/srv/volumes/one/below"] {
        let error = stage(&node, "w", "::ffff:10.0.0.5", path).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::FailedPrecondition, "{path}: {error}");
    }
    node.unstage("v", &staging_path("v")).unwrap();

    // NFS 4 follows symbolic links in the path.
    node.mounter().host().add_export_link("10.0.0.5:/srv/volumes/link", "10.0.0.5:/etc");
    let error = stage(&node, "w", "10.0.0.5", "/srv/volumes/link").unwrap_err();
    assert!(error.to_string().contains("10.0.0.5:/etc for 10.0.0.5:/srv/volumes/link"), "{error}");
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    assert_eq!(node.mounter().leftovers(), "");
}

#[test]
fn an_image_in_the_directory_of_another_volume_is_rejected() {
    let policy = NodePolicy {
        directory_root: Some("/srv/images/".to_owned()),
        image_root: Some("/srv/images".to_owned()),
        ..policy()
    };
    let node = restart(test_node(), policy);
    node.mounter().host().create_directories("/srv/images/pool").unwrap();
    let host = node.mounter().host();
    host.add_image("/srv/images/pool/image", 16 * MIB, DeviceContent::Blank).unwrap();
    let directory = connection_info("directory", &[("path", "pool")]);
    make_directory_and_stage(&node, &stage_request("v", directory, single_writer())).unwrap();
    let image = connection_info("image", &[("path", "pool/image")]);
    let error = make_directory_and_stage(&node, &stage_request("w", image, single_writer())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::FailedPrecondition, "{error}");
    assert_eq!(node.mounter().host().image("/srv/images/pool/image").unwrap().format_count, 0);
}

#[test]
fn volumes_can_be_unstaged_after_the_policy_was_tightened() {
    let node = test_node();
    make_directory_and_stage(
        &node,
        &stage_request("v", connection_info("image", &[("path", "blank")]), single_writer()),
    )
    .unwrap();
    node.publish(&publish_request("v", "p", single_writer())).unwrap();
    let node = restart(node, NodePolicy::default());
    node.unpublish("v", &target_path("p")).unwrap();
    node.unstage("v", &staging_path("v")).unwrap();
    assert_eq!(node.mounter().leftovers(), "");
}

#[test]
fn inline_volumes_are_tmpfs_within_the_size_limit() {
    let node = test_node();
    for size in [Some(0), Some(MIB + 1), Some(u64::MAX)] {
        let error = node.publish_inline(&inline_request("p", size)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
    }
    let mut raw = inline_request("p", None);
    raw.capability = block_capability();
    assert_eq!(node.publish_inline(&raw).unwrap_err().kind(), ErrorKind::InvalidArgument);
    node.publish_inline(&inline_request("p", Some(4096))).unwrap();
    node.publish_inline(&inline_request("p", Some(4096))).unwrap();
    let error = node.publish_inline(&inline_request("p", Some(8192))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    let mounts = node.mounter().host().mounts_at(&target_path("p"));
    assert_eq!(mounts.len(), 1);
    assert!(mounts[0].attributes.no_suid && mounts[0].attributes.no_devices);
    node.unpublish(&inline_request("p", None).volume, &target_path("p")).unwrap();
    assert_eq!(node.mounter().leftovers(), "");

    let node = restart(node, NodePolicy { inline: InlinePolicy::default(), ..policy() });
    let error = node.publish_inline(&inline_request("p", Some(4096))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
}

#[test]
fn all_tmpfs_together_are_within_the_total() {
    let tmpfs = || connection_info("tmpfs", &[("size", "1048576")]);
    let total = |total| NodePolicy { tmpfs_total_bytes: Some(total), ..policy() };
    let node = restart(test_node(), total(3 * MIB));
    let expand = |volume: &str| {
        let request = cofferdam_node::ExpandRequest {
            volume: volume.to_owned(),
            volume_path: staging_path(volume),
            required: Some(2 * MIB),
            limit: None,
            is_size_published: true,
        };
        node.expand(&request)
    };
    for volume in ["v", "w"] {
        make_directory_and_stage(&node, &stage_request(volume, tmpfs(), single_writer())).unwrap();
    }
    expand("v").unwrap();
    for error in [
        expand("w").unwrap_err(),
        node.publish_inline(&inline_request("p", None)).unwrap_err(),
        make_directory_and_stage(&node, &stage_request("x", tmpfs(), single_writer())).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::FailedPrecondition);
        assert!(
            error.to_string().contains("3145728 bytes of other volumes")
                || error.to_string().contains("2097152 bytes beside 2097152"),
            "{error}"
        );
    }
    node.unstage("w", &staging_path("w")).unwrap();
    node.publish_inline(&inline_request("p", None)).unwrap();
    node.publish_inline(&inline_request("p", None)).unwrap();
    // Volumes that a reboot has unmounted take no memory.
    node.mounter().host().reboot();
    make_directory_and_stage(&node, &stage_request("x", tmpfs(), single_writer())).unwrap();
    let error = node.stage(&stage_request("v", tmpfs(), single_writer())).map_err(|error| error.to_string());
    assert_eq!(error, Ok(()), "2 MiB and 1 MiB");
    assert!(NodePolicy { tmpfs_total_bytes: Some(1), ..NodePolicy::default() }.validate().is_err());
}

#[test]
fn paths_outside_the_kubelet_root_are_rejected() {
    let node = test_node();
    let request = stage_request("v", connection_info("none", &[]), single_writer());
    make_directory_and_stage(&node, &request).unwrap();
    for path in [
        "/etc",
        "/var/lib/kubelet",
        "/var/lib/kubelet/../../../etc",
        "pods/x",
        "/var/lib/kubelet/pods/../../x",
    ] {
        let mut publish = publish_request("v", "p", single_writer());
        publish.target_path = path.to_owned();
        assert_eq!(node.publish(&publish).unwrap_err().kind(), ErrorKind::InvalidArgument, "{path}");
        assert_eq!(node.unpublish("v", path).unwrap_err().kind(), ErrorKind::InvalidArgument, "{path}");
        assert_eq!(node.unstage("v", path).unwrap_err().kind(), ErrorKind::InvalidArgument, "{path}");
        let stage = cofferdam_node::StageRequest { staging_path: path.to_owned(), ..request.clone() };
        assert_eq!(node.stage(&stage).unwrap_err().kind(), ErrorKind::InvalidArgument, "{path}");
    }
}
