//! Results of each call: repeated, with other arguments, in the wrong order, for missing volumes, and after
//! failures of the same call.

use cofferdam_domain::storage::{AccessType, CsiAccessMode, ErrorKind, VolumeCapability};
use cofferdam_node::ExpandRequest;

use crate::support::{
    MIB, block_capability, connection_info, filesystem_capability, make_directory_and_stage,
    mount_capability, publish_request, single_writer, stage_request, staging_path, target_path, test_node,
    volume_kinds,
};

#[test]
fn repeated_calls_succeed_without_new_effects() {
    for (name, connection, capability) in volume_kinds() {
        let node = test_node();
        let mut effects = Vec::new();
        for _ in 0..3 {
            make_directory_and_stage(&node, &stage_request(name, connection.clone(), capability.clone()))
                .unwrap();
            node.publish(&publish_request(name, "p", capability.clone())).unwrap();
            effects.push(node.mounter().faults().effects.clone());
        }
        // The tool itself checks whether the filesystem covers the device.
        let repeated: Vec<String> = effects[2].iter().skip(effects[1].len()).cloned().collect();
        assert!(repeated.iter().all(|effect| effect.starts_with("grow")), "{name}: {repeated:?}");
        for _ in 0..3 {
            node.unpublish(name, &target_path("p")).unwrap();
        }
        for _ in 0..3 {
            node.unstage(name, &staging_path(name)).unwrap();
        }
        assert_eq!(node.mounter().leftovers(), "", "{name}");
        assert!(node.mounter().host().exists(&staging_path(name)), "kubelet created it and removes it");
    }
}

#[test]
fn second_publish_follows_the_csi_table() {
    use CsiAccessMode as Mode;
    use ErrorKind::{AlreadyExists, FailedPrecondition};
    #[rustfmt::skip] // CSI's table: mode, other target, other arguments, result
    let table = [
        (Mode::SingleNodeWriter,       false, false, None),
        (Mode::SingleNodeWriter,       false, true,  Some(AlreadyExists)),
        (Mode::SingleNodeWriter,       true,  false, Some(FailedPrecondition)),
        (Mode::SingleNodeSingleWriter, false, false, None),
        (Mode::SingleNodeSingleWriter, false, true,  Some(AlreadyExists)),
        (Mode::SingleNodeSingleWriter, true,  false, Some(FailedPrecondition)),
        (Mode::SingleNodeReaderOnly,   true,  false, Some(FailedPrecondition)),
        (Mode::SingleNodeMultiWriter,  false, false, None),
        (Mode::SingleNodeMultiWriter,  false, true,  Some(AlreadyExists)),
        (Mode::SingleNodeMultiWriter,  true,  false, None),
        (Mode::SingleNodeMultiWriter,  true,  true,  None),
        (Mode::MultiNodeMultiWriter,   true,  false, None),
        (Mode::MultiNodeMultiWriter,   false, true,  Some(AlreadyExists)),
        (Mode::MultiNodeSingleWriter,  true,  true,  None),
        (Mode::MultiNodeReaderOnly,    true,  false, None),
    ];
    for (mode, is_other_target, is_read_only, expected) in table {
        let node = test_node();
        make_directory_and_stage(
            &node,
            &stage_request(
                "v",
                connection_info("directory", &[("path", "one")]),
                filesystem_capability(mode),
            ),
        )
        .unwrap();
        let first = publish_request("v", "p", filesystem_capability(mode));
        node.publish(&first).unwrap();
        let mut second = first;
        second.read_only = is_read_only;
        if is_other_target {
            second.target_path = target_path("q");
        }
        let error_kind = node.publish(&second).err().map(|error| error.kind());
        assert_eq!(error_kind, expected, "{mode:?} elsewhere {is_other_target} otherwise {is_read_only}");
    }
}

#[test]
fn missing_and_conflicting_volumes_and_paths_are_rejected() {
    let node = test_node();
    let kind = |error: Result<(), cofferdam_node::NodeError>| error.unwrap_err().kind();
    let directory = || connection_info("directory", &[("path", "one")]);
    // kubelet creates the staging path.
    assert_eq!(
        kind(node.stage(&stage_request("v", directory(), single_writer()))),
        ErrorKind::FailedPrecondition
    );
    assert_eq!(
        kind(node.publish(&publish_request("v", "p", single_writer()))),
        ErrorKind::FailedPrecondition
    );
    make_directory_and_stage(&node, &stage_request("v", directory(), single_writer())).unwrap();
    // Staged with other arguments, at the same path and elsewhere.
    assert_eq!(
        kind(node.stage(&stage_request("v", directory(), mount_capability("", &["noexec"], "")))),
        ErrorKind::AlreadyExists
    );
    let mut other_request = stage_request("v", directory(), single_writer());
    other_request.staging_path = staging_path("w");
    assert_eq!(kind(make_directory_and_stage(&node, &other_request)), ErrorKind::FailedPrecondition);
    assert_eq!(kind(node.unstage("v", &staging_path("w"))), ErrorKind::FailedPrecondition);
    // Another access type, and a volume that is not a block device.
    assert_eq!(kind(node.publish(&publish_request("v", "p", block_capability()))), ErrorKind::AlreadyExists);
    assert_eq!(
        kind(make_directory_and_stage(&node, &stage_request("w", directory(), block_capability()))),
        ErrorKind::InvalidArgument
    );
    // A file at the target path.
    node.mounter().host().write_file(&target_path("file"), 1).unwrap();
    assert_eq!(
        kind(node.publish(&publish_request("v", "file", single_writer()))),
        ErrorKind::FailedPrecondition
    );
    assert_eq!(kind(node.unpublish("v", &target_path("file"))), ErrorKind::FailedPrecondition);
    // A published volume cannot be unstaged.
    node.publish(&publish_request("v", "p", single_writer())).unwrap();
    assert_eq!(kind(node.unstage("v", &staging_path("v"))), ErrorKind::FailedPrecondition);
    // Neither staged nor published.
    node.unpublish("other", &target_path("other")).unwrap();
    node.unstage("other", &staging_path("other")).unwrap();
    // Another volume's target path, and the volume's own staging path.
    assert_eq!(kind(node.unpublish("other", &target_path("p"))), ErrorKind::NotFound);
    assert_eq!(kind(node.unpublish("v", &staging_path("v"))), ErrorKind::NotFound);
}

#[test]
fn failed_stage_is_rolled_back() {
    let (raw, blank) =
        (|| connection_info("image", &[("path", "raw")]), || connection_info("image", &[("path", "blank")]));
    let rows = [
        ("data without a filesystem", raw(), single_writer(), ErrorKind::FailedPrecondition),
        (
            "an option that is not allowed",
            blank(),
            mount_capability("ext4", &["suid"], ""),
            ErrorKind::PermissionDenied,
        ),
        (
            "an option of a directory",
            connection_info("directory", &[("path", "one")]),
            mount_capability("", &["suid"], ""),
            ErrorKind::PermissionDenied,
        ),
    ];
    for (name, connection, capability, kind) in rows {
        let node = test_node();
        let error = make_directory_and_stage(&node, &stage_request("v", connection, capability)).unwrap_err();
        assert_eq!(error.kind(), kind, "{name}: {error}");
        assert!(node.mounter().leftovers().is_empty(), "{name}: a record stays");
        assert_eq!(node.mounter().leftovers(), "", "{name}");
    }
    // A record from before a reboot does not mean that the volume is staged.
    let node = test_node();
    make_directory_and_stage(&node, &stage_request("v", blank(), single_writer())).unwrap();
    node.publish(&publish_request("v", "p", single_writer())).unwrap();
    node.mounter().host().reboot();
    let other_filesystem = cofferdam_node::DeviceContent::Filesystem("btrfs".to_owned());
    node.mounter().host().write_image("/srv/images/blank", other_filesystem).unwrap();
    make_directory_and_stage(&node, &stage_request("v", blank(), single_writer())).unwrap_err();
    assert_eq!(node.mounter().leftovers(), "");
    // A volume that was staged before stays staged.
    let node = crate::support::test_node();
    make_directory_and_stage(&node, &stage_request("v", blank(), single_writer())).unwrap();
    node.stage(&stage_request("v", blank(), mount_capability("ext4", &["suid"], ""))).unwrap_err();
    assert_eq!(node.mounter().host().mounts_at(&staging_path("v")).len(), 1);
}

#[test]
fn failed_publish_is_rolled_back() {
    use cofferdam_node::Mounter as _;
    let node = test_node();
    make_directory_and_stage(
        &node,
        &stage_request("v", connection_info("image", &[("path", "blank")]), single_writer()),
    )
    .unwrap();
    let before = node.mounter().records().unwrap();
    let request = publish_request("v", "p", mount_capability("ext4", &[], "7"));
    node.mounter().fail_set_mount_group();
    assert!(node.publish(&request).is_err());
    assert_eq!(node.mounter().records().unwrap(), before, "the record says that it is published");
    assert!(node.mounter().host().mounts_at(&request.target_path).is_empty());
    node.unstage("v", &staging_path("v")).unwrap();
    assert_eq!(node.mounter().leftovers(), "");
}

#[test]
fn unreadable_record_blocks_stage_but_not_unpublish_or_unstage() {
    let node = test_node();
    let connection_info = || connection_info("directory", &[("path", "one")]);
    make_directory_and_stage(&node, &stage_request("v", connection_info(), single_writer())).unwrap();
    node.publish(&publish_request("v", "p", single_writer())).unwrap();
    node.mounter().faults().unreadable_records = vec!["the record /records/x.json: EOF".to_owned()];
    node.unpublish("v", &target_path("p")).unwrap();
    node.unstage("v", &staging_path("v")).unwrap();
    assert_eq!(node.mounter().leftovers(), "");
    let error = node.stage(&stage_request("v", connection_info(), single_writer())).unwrap_err().to_string();
    assert!(error.contains("/records/x.json") && error.contains("repaired or removed"), "{error}");
}

#[test]
fn volume_used_as_a_raw_block_device_is_never_formatted() {
    use cofferdam_node::DeviceContent;
    let node = test_node();
    let blank_image = || connection_info("image", &[("path", "blank")]);
    // Crash during mkfs.
    let effects = |node: &cofferdam_node::NodeVolumes<_>| {
        let node: &cofferdam_node::NodeVolumes<crate::fault_injection::FaultyMounter> = node;
        node.mounter().faults().effects.clone()
    };
    let reference_node = crate::support::test_node();
    make_directory_and_stage(&reference_node, &stage_request("v", blank_image(), single_writer())).unwrap();
    let crash_after =
        effects(&reference_node).iter().position(|effect| effect.starts_with("mkfs")).unwrap() + 1;
    node.mounter().host().create_directories(&staging_path("v")).unwrap();
    node.mounter().set_crash_after(Some(crash_after), true);
    node.stage(&stage_request("v", blank_image(), single_writer())).unwrap_err();
    node.mounter().set_crash_after(None, false);
    // A pod writes to the raw device, then the node crashes.
    node.stage(&stage_request("v", blank_image(), block_capability())).unwrap();
    node.mounter().host().reboot();
    node.mounter().host().write_image("/srv/images/blank", DeviceContent::Unknown).unwrap();
    let error = node.stage(&stage_request("v", blank_image(), single_writer())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::FailedPrecondition, "{error}");
    assert!(error.to_string().contains("not formatted"), "{error}");
}

#[test]
fn unpublish_never_removes_data_in_the_target_directory() {
    let node = test_node();
    node.mounter().host().create_directories(&target_path("p/data")).unwrap();
    let error = node.unpublish("v", &target_path("p")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::FailedPrecondition, "{error}");
    assert!(node.mounter().host().exists(&target_path("p/data")));
}

#[test]
fn unsupported_access_modes_and_filesystems_are_rejected() {
    let image = || connection_info("image", &[("path", "blank")]);
    for mode in [CsiAccessMode::MultiNodeMultiWriter, CsiAccessMode::MultiNodeSingleWriter] {
        let error =
            make_directory_and_stage(&test_node(), &stage_request("v", image(), filesystem_capability(mode)))
                .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::FailedPrecondition, "{mode:?}");
        let raw = VolumeCapability { access_mode: mode, access_type: AccessType::Block };
        make_directory_and_stage(&test_node(), &stage_request("v", image(), raw)).unwrap();
    }
    let error = make_directory_and_stage(
        &test_node(),
        &stage_request("v", image(), mount_capability("btrfs", &[], "")),
    )
    .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    // For readers, a blank volume is not formatted, and the filesystem itself is read-only.
    let readers = filesystem_capability(CsiAccessMode::MultiNodeReaderOnly);
    let error =
        make_directory_and_stage(&test_node(), &stage_request("v", image(), readers.clone())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::FailedPrecondition);
    let node = test_node();
    make_directory_and_stage(
        &node,
        &stage_request("v", connection_info("image", &[("path", "xfs")]), readers.clone()),
    )
    .unwrap();
    node.publish(&publish_request("v", "p", readers)).unwrap();
    for path in [staging_path("v"), target_path("p")] {
        assert!(node.mounter().host().mounts_at(&path)[0].attributes.read_only, "{path}");
    }
    let effects = node.mounter().faults().effects.join(" ");
    assert!(!effects.contains("fsck") && !effects.contains("grow"), "{effects}");
    assert!(effects.contains("norecovery"), "another node may use the journal: {effects}");
    assert!(!node.volume_stats("v", &target_path("p")).unwrap().condition.abnormal);
}

#[test]
fn volume_mount_group_is_applied_or_rejected() {
    use cofferdam_node::Mounter as _;
    for (group, expected) in
        [("2000", Ok(Some(2000))), ("", Ok(None)), ("root", Err(())), ("4294967295", Err(()))]
    {
        let node = test_node();
        let capability = mount_capability("", &[], group);
        make_directory_and_stage(
            &node,
            &stage_request("v", connection_info("tmpfs", &[("size", "4096")]), capability.clone()),
        )
        .unwrap();
        let result = node.publish(&publish_request("v", "p", capability));
        match expected {
            Err(()) => assert_eq!(result.unwrap_err().kind(), ErrorKind::InvalidArgument, "{group}"),
            Ok(expected) => {
                result.unwrap();
                let found =
                    node.mounter().mount_group(&crate::support::kubelet_path(&target_path("p"))).unwrap();
                assert_eq!(found, expected);
            }
        }
    }
}

#[test]
fn volume_stats_report_usage_and_condition() {
    let node = test_node();
    make_directory_and_stage(
        &node,
        &stage_request("v", connection_info("image", &[("path", "blank")]), single_writer()),
    )
    .unwrap();
    node.publish(&publish_request("v", "p", single_writer())).unwrap();
    make_directory_and_stage(
        &node,
        &stage_request("raw", connection_info("image", &[("path", "raw")]), block_capability()),
    )
    .unwrap();
    node.publish(&publish_request("raw", "q", block_capability())).unwrap();
    for path in [staging_path("v"), target_path("p")] {
        let stats = node.volume_stats("v", &path).unwrap();
        assert_eq!((stats.usage.total, stats.usage.inodes, stats.is_block), (16 * MIB, 10, false));
        assert!(!stats.condition.abnormal);
    }
    for path in [staging_path("raw"), target_path("q")] {
        let stats = node.volume_stats("raw", &path).unwrap();
        assert_eq!((stats.usage.total, stats.usage.inodes, stats.is_block), (16 * MIB, 0, true));
    }
    let missing = [
        ("other", target_path("p")),
        ("v", target_path("q")),
        ("v", "/etc".to_owned()),
        ("v", target_path("x")),
    ];
    for (volume, path) in missing {
        assert_eq!(
            node.volume_stats(volume, &path).unwrap_err().kind(),
            ErrorKind::NotFound,
            "{volume} {path}"
        );
    }
    node.mounter().host().break_filesystem(&target_path("p"));
    assert!(node.volume_stats("v", &target_path("p")).unwrap().condition.abnormal);
    node.mounter().host().reboot();
    assert_eq!(node.volume_stats("v", &target_path("p")).unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn node_expand_grows_filesystem_and_tmpfs_within_limits() {
    let expand = |volume: &str, path: String, required, limit| ExpandRequest {
        volume: volume.to_owned(),
        volume_path: path,
        required,
        limit,
        is_size_published: true,
    };
    let node = test_node();
    for (name, path, capability) in [("v", "blank", single_writer()), ("raw", "raw", block_capability())] {
        make_directory_and_stage(
            &node,
            &stage_request(name, connection_info("image", &[("path", path)]), capability.clone()),
        )
        .unwrap();
        node.publish(&publish_request(name, name, capability)).unwrap();
        let request = expand(name, target_path(name), Some(32 * MIB), None);
        assert_eq!(
            node.expand(&request).unwrap_err().kind(),
            ErrorKind::OutOfRange,
            "the image is unchanged"
        );
        node.mounter().host().resize_image(&format!("/srv/images/{path}"), 32 * MIB).unwrap();
        assert_eq!(node.expand(&request).unwrap(), Some(32 * MIB));
        assert_eq!(node.expand(&request).unwrap(), Some(32 * MIB));
        assert_eq!(node.volume_stats(name, &target_path(name)).unwrap().usage.total, 32 * MIB, "{name}");
        let low_limit = expand(name, target_path(name), None, Some(MIB));
        assert_eq!(node.expand(&low_limit).unwrap_err().kind(), ErrorKind::OutOfRange);
        let inverted_range = expand(name, target_path(name), Some(2), Some(1));
        assert_eq!(node.expand(&inverted_range).unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
    assert_eq!(node.mounter().host().image("/srv/images/blank").unwrap().filesystem_size, 32 * MIB);
    // An image that was enlarged while unstaged is expanded at the next stage.
    node.unpublish("v", &target_path("v")).unwrap();
    node.unstage("v", &staging_path("v")).unwrap();
    node.mounter().host().resize_image("/srv/images/blank", 64 * MIB).unwrap();
    make_directory_and_stage(
        &node,
        &stage_request("v", connection_info("image", &[("path", "blank")]), single_writer()),
    )
    .unwrap();
    assert_eq!(node.mounter().host().image("/srv/images/blank").unwrap().filesystem_size, 64 * MIB);
    // A tmpfs expands up to the policy's limit.
    make_directory_and_stage(
        &node,
        &stage_request("m", connection_info("tmpfs", &[("size", "1048576")]), single_writer()),
    )
    .unwrap();
    assert_eq!(node.expand(&expand("m", staging_path("m"), Some(2 * MIB), None)).unwrap(), Some(2 * MIB));
    node.mounter().host().reboot();
    make_directory_and_stage(
        &node,
        &stage_request("m", connection_info("tmpfs", &[("size", "1048576")]), single_writer()),
    )
    .unwrap();
    let total_after_reboot = node.volume_stats("m", &staging_path("m")).unwrap().usage.total;
    assert_eq!(total_after_reboot, 2 * MIB, "the expanded size survives a reboot");
    let without_published_size =
        ExpandRequest { is_size_published: false, ..expand("m", staging_path("m"), Some(4 * MIB), None) };
    assert_eq!(node.expand(&without_published_size).unwrap_err().kind(), ErrorKind::FailedPrecondition);
    let error = node.expand(&expand("m", staging_path("m"), Some(65 * MIB), None)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfRange);
    assert_eq!(
        node.expand(&expand("x", staging_path("m"), None, None)).unwrap_err().kind(),
        ErrorKind::NotFound
    );
}
