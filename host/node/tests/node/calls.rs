//! What each call answers: repeated, with other arguments, in the wrong order, and for what is not there.

use cofferdam_domain::storage::{AccessType, CsiAccessMode, ErrorKind, VolumeCapability};
use cofferdam_node::Expand;

use crate::support::{
    MIB, attachment, block, do_stage, filesystem, node, publish, sorts, stage, staging, target, with, writer,
};

#[test]
fn every_call_may_be_repeated() {
    for (name, attachment, capability) in sorts() {
        let node = node();
        let mut effects = Vec::new();
        for _ in 0..3 {
            do_stage(&node, &stage(name, attachment.clone(), capability.clone())).unwrap();
            node.publish(&publish(name, "p", capability.clone())).unwrap();
            effects.push(node.machine().state().effects.clone());
        }
        // To look whether a filesystem covers its device is the tool's own work.
        let again: Vec<String> = effects[2].iter().skip(effects[1].len()).cloned().collect();
        assert!(again.iter().all(|effect| effect.starts_with("grow")), "{name}: {again:?}");
        for _ in 0..3 {
            node.unpublish(name, &target("p")).unwrap();
        }
        for _ in 0..3 {
            node.unstage(name, &staging(name)).unwrap();
        }
        assert_eq!(node.machine().left_behind(), "", "{name}");
        assert!(node.machine().exists(&staging(name)), "kubelet made it, and removes it");
    }
}

#[test]
fn a_second_publication() {
    use CsiAccessMode as Mode;
    use ErrorKind::{AlreadyExists, FailedPrecondition};
    #[rustfmt::skip] // the table of CSI: mode, other target, other arguments, the answer
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
    for (mode, elsewhere, otherwise, expected) in table {
        let node = node();
        do_stage(&node, &stage("v", attachment("directory", &[("path", "one")]), filesystem(mode))).unwrap();
        let first = publish("v", "p", filesystem(mode));
        node.publish(&first).unwrap();
        let mut second = first;
        second.read_only = otherwise;
        if elsewhere {
            second.target_path = target("q");
        }
        let answer = node.publish(&second).err().map(|error| error.kind());
        assert_eq!(answer, expected, "{mode:?} elsewhere {elsewhere} otherwise {otherwise}");
    }
}

#[test]
fn what_is_not_there_and_what_is_in_the_way() {
    let node = node();
    let kind = |error: Result<(), cofferdam_node::NodeError>| error.unwrap_err().kind();
    let directory = || attachment("directory", &[("path", "one")]);
    // Kubelet makes the staging path.
    assert_eq!(kind(node.stage(&stage("v", directory(), writer()))), ErrorKind::FailedPrecondition);
    assert_eq!(kind(node.publish(&publish("v", "p", writer()))), ErrorKind::FailedPrecondition);
    do_stage(&node, &stage("v", directory(), writer())).unwrap();
    // Staged in another way, at the same path and elsewhere.
    assert_eq!(
        kind(node.stage(&stage("v", directory(), with("", &["noexec"], "")))),
        ErrorKind::AlreadyExists
    );
    let mut elsewhere = stage("v", directory(), writer());
    elsewhere.staging_path = staging("w");
    assert_eq!(kind(do_stage(&node, &elsewhere)), ErrorKind::FailedPrecondition);
    assert_eq!(kind(node.unstage("v", &staging("w"))), ErrorKind::FailedPrecondition);
    // The other type of access, and what is no device.
    assert_eq!(kind(node.publish(&publish("v", "p", block()))), ErrorKind::AlreadyExists);
    assert_eq!(kind(do_stage(&node, &stage("w", directory(), block()))), ErrorKind::InvalidArgument);
    // A file where the target shall be.
    node.machine().file_at(&target("file"), 1);
    assert_eq!(kind(node.publish(&publish("v", "file", writer()))), ErrorKind::FailedPrecondition);
    assert_eq!(kind(node.unpublish("v", &target("file"))), ErrorKind::FailedPrecondition);
    // Published, so not to be unstaged.
    node.publish(&publish("v", "p", writer())).unwrap();
    assert_eq!(kind(node.unstage("v", &staging("v"))), ErrorKind::FailedPrecondition);
    // Never staged, never published.
    node.unpublish("other", &target("other")).unwrap();
    node.unstage("other", &staging("other")).unwrap();
    // Another volume's target, and one's own staging path as target.
    assert_eq!(kind(node.unpublish("other", &target("p"))), ErrorKind::NotFound);
    assert_eq!(kind(node.unpublish("v", &staging("v"))), ErrorKind::NotFound);
}

#[test]
fn what_a_failed_stage_has_done_is_undone() {
    let (raw, blank) =
        (|| attachment("image", &[("path", "raw")]), || attachment("image", &[("path", "blank")]));
    let rows = [
        ("data that is no filesystem", raw(), writer(), ErrorKind::FailedPrecondition),
        ("an option that is not allowed", blank(), with("ext4", &["suid"], ""), ErrorKind::PermissionDenied),
        (
            "an option of a directory",
            attachment("directory", &[("path", "one")]),
            with("", &["suid"], ""),
            ErrorKind::PermissionDenied,
        ),
    ];
    for (name, attachment, capability, kind) in rows {
        let node = node();
        let error = do_stage(&node, &stage("v", attachment, capability)).unwrap_err();
        assert_eq!(error.kind(), kind, "{name}: {error}");
        assert!(node.machine().left_behind().is_empty(), "{name}: a record stays");
        assert_eq!(node.machine().left_behind(), "", "{name}");
    }
    // Nor does a record of before a reboot say that anything is staged.
    let node = node();
    do_stage(&node, &stage("v", blank(), writer())).unwrap();
    node.publish(&publish("v", "p", writer())).unwrap();
    node.machine().reboot();
    node.machine().with_image("/srv/images/blank", |disk| {
        disk.content = cofferdam_node::Content::Filesystem("btrfs".to_owned());
    });
    do_stage(&node, &stage("v", blank(), writer())).unwrap_err();
    assert_eq!(node.machine().left_behind(), "");
    // What was staged before stays so, and what somebody else has mounted is not ours to undo.
    let node = crate::support::node();
    do_stage(&node, &stage("v", blank(), writer())).unwrap();
    node.stage(&stage("v", blank(), with("ext4", &["suid"], ""))).unwrap_err();
    assert_eq!(node.machine().mounts_at(&staging("v")).len(), 1);
}

#[test]
fn what_a_failed_publication_has_done_is_undone() {
    use cofferdam_node::Machine as _;
    let node = node();
    do_stage(&node, &stage("v", attachment("image", &[("path", "blank")]), writer())).unwrap();
    let before = node.machine().records().unwrap();
    let grouped = publish("v", "p", with("ext4", &[], "7"));
    node.machine().refuse_groups();
    assert!(node.publish(&grouped).is_err());
    assert_eq!(node.machine().records().unwrap(), before, "the record says that it is published");
    assert!(node.machine().mounts_at(&grouped.target_path).is_empty());
    node.unstage("v", &staging("v")).unwrap();
    assert_eq!(node.machine().left_behind(), "");
}

#[test]
fn a_record_that_cannot_be_read_stops_nothing_that_gives_back() {
    let node = node();
    let one = || attachment("directory", &[("path", "one")]);
    do_stage(&node, &stage("v", one(), writer())).unwrap();
    node.publish(&publish("v", "p", writer())).unwrap();
    node.machine().state().unreadable = vec!["the record /records/x.json: EOF".to_owned()];
    node.unpublish("v", &target("p")).unwrap();
    node.unstage("v", &staging("v")).unwrap();
    assert_eq!(node.machine().left_behind(), "");
    let error = node.stage(&stage("v", one(), writer())).unwrap_err().to_string();
    assert!(error.contains("/records/x.json") && error.contains("repaired or removed"), "{error}");
}

#[test]
fn what_was_used_as_a_raw_device_is_never_formatted() {
    use cofferdam_node::Content;
    let node = node();
    let blank = || attachment("image", &[("path", "blank")]);
    // It dies while a filesystem is made.
    let effects = |node: &cofferdam_node::Node<_>| {
        let node: &cofferdam_node::Node<crate::model::Model> = node;
        node.machine().state().effects.clone()
    };
    let whole = crate::support::node();
    do_stage(&whole, &stage("v", blank(), writer())).unwrap();
    let until = effects(&whole).iter().position(|effect| effect.starts_with("mkfs")).unwrap() + 1;
    node.machine().directory_at(&staging("v"));
    node.machine().live(Some(until), true);
    node.stage(&stage("v", blank(), writer())).unwrap_err();
    node.machine().live(None, false);
    // A user's pod writes to the raw device, and the machine goes down.
    node.stage(&stage("v", blank(), block())).unwrap();
    node.machine().reboot();
    node.machine().with_image("/srv/images/blank", |disk| disk.content = Content::Unknown);
    let error = node.stage(&stage("v", blank(), writer())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::FailedPrecondition, "{error}");
    assert!(error.to_string().contains("not formatted"), "{error}");
}

#[test]
fn data_beneath_a_target_is_never_removed() {
    let node = node();
    node.machine().directory_at(&target("p/data"));
    let error = node.unpublish("v", &target("p")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::FailedPrecondition, "{error}");
    assert!(node.machine().exists(&target("p/data")));
}

#[test]
fn modes_that_a_volume_cannot_have() {
    let image = || attachment("image", &[("path", "blank")]);
    for mode in [CsiAccessMode::MultiNodeMultiWriter, CsiAccessMode::MultiNodeSingleWriter] {
        let error = do_stage(&node(), &stage("v", image(), filesystem(mode))).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::FailedPrecondition, "{mode:?}");
        let raw = VolumeCapability { access_mode: mode, access_type: AccessType::Block };
        do_stage(&node(), &stage("v", image(), raw)).unwrap();
    }
    let error = do_stage(&node(), &stage("v", image(), with("btrfs", &[], ""))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    // Readers get no blank volume formatted, and what they get is read-only down to the filesystem.
    let readers = filesystem(CsiAccessMode::MultiNodeReaderOnly);
    let error = do_stage(&node(), &stage("v", image(), readers.clone())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::FailedPrecondition);
    let node = node();
    do_stage(&node, &stage("v", attachment("image", &[("path", "xfs")]), readers.clone())).unwrap();
    node.publish(&publish("v", "p", readers)).unwrap();
    for path in [staging("v"), target("p")] {
        assert!(node.machine().mounts_at(&path)[0].attributes.read_only, "{path}");
    }
    let effects = node.machine().state().effects.join(" ");
    assert!(!effects.contains("fsck") && !effects.contains("grow"), "{effects}");
    assert!(!node.statistics("v", &target("p")).unwrap().health.abnormal);
}

#[test]
fn groups() {
    use cofferdam_node::Machine as _;
    for (group, expected) in
        [("2000", Ok(Some(2000))), ("", Ok(None)), ("root", Err(())), ("4294967295", Err(()))]
    {
        let node = node();
        let capability = with("", &[], group);
        do_stage(&node, &stage("v", attachment("tmpfs", &[("size", "4096")]), capability.clone())).unwrap();
        let published = node.publish(&publish("v", "p", capability));
        match expected {
            Err(()) => assert_eq!(published.unwrap_err().kind(), ErrorKind::InvalidArgument, "{group}"),
            Ok(expected) => {
                published.unwrap();
                let found = node.machine().group(&crate::support::place(&target("p"))).unwrap();
                assert_eq!(found, expected);
            }
        }
    }
}

#[test]
fn statistics() {
    let node = node();
    do_stage(&node, &stage("v", attachment("image", &[("path", "blank")]), writer())).unwrap();
    node.publish(&publish("v", "p", writer())).unwrap();
    do_stage(&node, &stage("raw", attachment("image", &[("path", "raw")]), block())).unwrap();
    node.publish(&publish("raw", "q", block())).unwrap();
    for path in [staging("v"), target("p")] {
        let found = node.statistics("v", &path).unwrap();
        assert_eq!((found.usage.total, found.usage.inodes, found.block), (16 * MIB, 10, false));
        assert!(!found.health.abnormal);
    }
    for path in [staging("raw"), target("q")] {
        let found = node.statistics("raw", &path).unwrap();
        assert_eq!((found.usage.total, found.usage.inodes, found.block), (16 * MIB, 0, true));
    }
    let missing = [("other", target("p")), ("v", target("q")), ("v", "/etc".to_owned()), ("v", target("x"))];
    for (volume, path) in missing {
        assert_eq!(
            node.statistics(volume, &path).unwrap_err().kind(),
            ErrorKind::NotFound,
            "{volume} {path}"
        );
    }
    node.machine().break_filesystem(&target("p"));
    assert!(node.statistics("v", &target("p")).unwrap().health.abnormal);
    node.machine().reboot();
    assert_eq!(node.statistics("v", &target("p")).unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn a_volume_grows_with_its_storage() {
    let expand = |volume: &str, path: String, required, limit| Expand {
        volume: volume.to_owned(),
        volume_path: path,
        required,
        limit,
        published: true,
    };
    let node = node();
    for (name, path, capability) in [("v", "blank", writer()), ("raw", "raw", block())] {
        do_stage(&node, &stage(name, attachment("image", &[("path", path)]), capability.clone())).unwrap();
        node.publish(&publish(name, name, capability)).unwrap();
        let wish = expand(name, target(name), Some(32 * MIB), None);
        assert_eq!(node.expand(&wish).unwrap_err().kind(), ErrorKind::OutOfRange, "the image is as it was");
        node.machine().with_image(&format!("/srv/images/{path}"), |disk| disk.size = 32 * MIB);
        assert_eq!(node.expand(&wish).unwrap(), Some(32 * MIB));
        assert_eq!(node.expand(&wish).unwrap(), Some(32 * MIB));
        assert_eq!(node.statistics(name, &target(name)).unwrap().usage.total, 32 * MIB, "{name}");
        let low = expand(name, target(name), None, Some(MIB));
        assert_eq!(node.expand(&low).unwrap_err().kind(), ErrorKind::OutOfRange);
        let upside_down = expand(name, target(name), Some(2), Some(1));
        assert_eq!(node.expand(&upside_down).unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
    assert_eq!(node.machine().with_image("/srv/images/blank", |disk| disk.covers), 32 * MIB);
    // An image that grew while it was not staged is grown when it is.
    node.unpublish("v", &target("v")).unwrap();
    node.unstage("v", &staging("v")).unwrap();
    node.machine().with_image("/srv/images/blank", |disk| disk.size = 64 * MIB);
    do_stage(&node, &stage("v", attachment("image", &[("path", "blank")]), writer())).unwrap();
    assert_eq!(node.machine().with_image("/srv/images/blank", |disk| disk.covers), 64 * MIB);
    // Memory grows to what the policy allows.
    do_stage(&node, &stage("m", attachment("tmpfs", &[("size", "1048576")]), writer())).unwrap();
    assert_eq!(node.expand(&expand("m", staging("m"), Some(2 * MIB), None)).unwrap(), Some(2 * MIB));
    node.machine().reboot();
    do_stage(&node, &stage("m", attachment("tmpfs", &[("size", "1048576")]), writer())).unwrap();
    let after = node.statistics("m", &staging("m")).unwrap().usage.total;
    assert_eq!(after, 2 * MIB, "small again after a reboot");
    let said_once = Expand { published: false, ..expand("m", staging("m"), Some(4 * MIB), None) };
    assert_eq!(node.expand(&said_once).unwrap_err().kind(), ErrorKind::FailedPrecondition);
    let error = node.expand(&expand("m", staging("m"), Some(65 * MIB), None)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfRange);
    assert_eq!(node.expand(&expand("x", staging("m"), None, None)).unwrap_err().kind(), ErrorKind::NotFound);
}
