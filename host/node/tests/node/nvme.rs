//! Kind `nvme-tcp`: which controllers are connected and disconnected, and which disks are used.

use std::thread;

use cofferdam_domain::storage::{ConnectionInfo, ErrorKind};
use cofferdam_fake_host::FakeHost;
use cofferdam_node::{ControllerState, DeviceContent, NodeVolumes};

use crate::{
    fault_injection::FaultyMounter,
    support::{
        MIB, connection_info, expand, make_directory_and_stage, mount_capability, nvme_namespace,
        parse_namespace, policy, restart, single_writer, stage_request, stage_single_writer, staging_path,
        test_node, unstage,
    },
};

const ONE: &str = "nqn.2024-01.com.example:one";
const NGUID: &str = "11111111111111111111111111111111";
const UUID: &str = "0f6d1e52-3f3c-4e0a-9d0e-3f5f2f1b7a10";

fn stage(node: &NodeVolumes<FaultyMounter>, volume: &str, connection: ConnectionInfo) -> Result<(), String> {
    stage_single_writer(node, volume, connection).map_err(|(_, message)| message)
}

/// The portals of the node role's controllers.
fn portals(host: &FakeHost) -> Vec<String> {
    let own = host.controllers().into_iter().filter(|controller| controller.is_own);
    own.map(|controller| controller.portal.to_string()).collect()
}

fn namespace(portals: &str, nqn: &str, nguid: &str) -> ConnectionInfo {
    connection_info("nvme-tcp", &[("portals", portals), ("nqn", nqn), ("nguid", nguid)])
}

#[test]
fn a_portal_or_subsystem_outside_the_policy_is_denied() {
    let node = test_node();
    for (portals, nqn) in [
        ("192.0.2.1:4420", ONE),
        ("10.0.0.8:4421", ONE),
        ("10.0.0.8:4420,192.0.2.1:4420", ONE),
        ("[::ffff:192.0.2.1]:4420", ONE),
        ("10.0.0.8:4420", "nqn.2024-01.com.example.other:one"),
    ] {
        let (kind, message) = stage_single_writer(&node, "v", namespace(portals, nqn, NGUID)).unwrap_err();
        assert_eq!(kind, ErrorKind::PermissionDenied, "{portals} {nqn}: {message}");
    }
    assert_eq!(node.mounter().faults().effects, Vec::<String>::new());
}

#[test]
fn volumes_of_a_subsystem_share_its_controllers() {
    let node = test_node();
    let host = node.mounter().host();
    stage(&node, "v", nvme_namespace(1)).unwrap();
    stage(&node, "w", nvme_namespace(2)).unwrap();
    assert_eq!(portals(host), ["10.0.0.8:4420", "10.0.0.9:4420"]);
    unstage(&node, "v");
    assert_eq!(portals(host), ["10.0.0.8:4420", "10.0.0.9:4420"], "the other volume needs them");
    unstage(&node, "w");
    assert_eq!(node.mounter().leftovers(), "");
}

#[test]
fn one_connected_portal_is_enough() {
    let node = test_node();
    stage(&node, "v", namespace("10.0.0.7:4420,10.0.0.9:4420", ONE, NGUID)).unwrap();
    assert_eq!(portals(node.mounter().host()), ["10.0.0.9:4420"]);
    unstage(&node, "v");
    let error = stage(&node, "v", namespace("10.0.0.7:4420", ONE, NGUID)).unwrap_err();
    assert!(error.contains("10.0.0.7:4420 does not respond"), "{error}");
    assert_eq!(node.mounter().leftovers(), "");
}

#[test]
fn controllers_of_administrators_are_neither_used_nor_disconnected() {
    let node = test_node();
    let host = node.mounter().host();
    host.connect_controller(ONE, "10.0.0.8:4420".parse().unwrap());
    stage(&node, "v", nvme_namespace(1)).unwrap();
    assert_eq!(portals(host), ["10.0.0.8:4420", "10.0.0.9:4420"]);
    unstage(&node, "v");
    assert_eq!(node.mounter().leftovers(), "");
    assert_eq!(host.controllers().len(), 1, "that of the administrator");
}

#[test]
fn a_controller_stays_while_a_disk_of_its_subsystem_is_in_use() {
    let node = test_node();
    let host = node.mounter().host();
    stage(&node, "v", nvme_namespace(1)).unwrap();
    host.add_disk_user("nvme-raw", "held by dm-0");
    unstage(&node, "v");
    assert_eq!(portals(host).len(), 2);
    let error = stage(&node, "w", nvme_namespace(2)).unwrap_err();
    assert!(error.contains("in use: held by dm-0"), "{error}");
}

#[test]
fn a_namespace_that_is_missing_ambiguous_or_elsewhere_is_named() {
    let two = "nqn.2024-01.com.example:two";
    let node = test_node();
    let host = node.mounter().host();
    let missing = "33333333333333333333333333333333";
    let error = stage(&node, "v", namespace("10.0.0.8", ONE, missing)).unwrap_err();
    assert!(error.contains(&format!("nguid {missing} of the NVMe subsystem {ONE}")), "{error}");
    assert_eq!(node.mounter().leftovers(), "");

    // The identifier belongs to another subsystem, or to two disks.
    let other = namespace("10.0.0.8:4420", two, "44444444444444444444444444444444");
    host.add_namespace("nvme-two", &parse_namespace(&other), 16 * MIB, DeviceContent::Blank);
    host.connect_controller(two, "10.0.0.8:4420".parse().unwrap());
    let wrong = namespace("10.0.0.8:4420", ONE, "44444444444444444444444444444444");
    let error = stage(&node, "v", wrong).unwrap_err();
    assert!(error.contains("belongs to the subsystem") && error.contains(two), "{error}");
    let twin = parse_namespace(&nvme_namespace(1));
    host.add_namespace("nvme-twin", &twin, 16 * MIB, DeviceContent::Blank);
    let error = stage(&node, "v", nvme_namespace(1)).unwrap_err();
    assert!(error.contains("expected one disk"), "{error}");
    assert_eq!(node.mounter().leftovers(), "");
    assert_eq!(host.disk("nvme-blank").format_count + host.disk("nvme-twin").format_count, 0);
}

#[test]
fn two_volumes_never_have_one_namespace() {
    let node = test_node();
    let uuid = cofferdam_node::NvmeNamespace::parse("10.0.0.8", ONE, None, Some(UUID)).unwrap();
    node.mounter().host().set_namespace_uuid("nvme-blank", uuid.id.bytes());
    stage(&node, "v", nvme_namespace(1)).unwrap();
    let fields = [("portals", "10.0.0.8"), ("nqn", ONE)];
    let by_uuid = connection_info("nvme-tcp", &[fields[0], fields[1], ("uuid", UUID)]);
    let digits_as_uuid = "11111111-1111-1111-1111-111111111111";
    for second in [
        nvme_namespace(1),
        namespace("[::ffff:10.0.0.8]", ONE, NGUID),
        connection_info("nvme-tcp", &[fields[0], fields[1], ("uuid", digits_as_uuid)]),
        by_uuid.clone(),
    ] {
        let (kind, message) = stage_single_writer(&node, "w", second).unwrap_err();
        assert_eq!(kind, ErrorKind::FailedPrecondition, "{message}");
    }
    // The first volume is recorded, and no longer mounted.
    node.mounter().host().reboot();
    stage(&node, "w", by_uuid.clone()).unwrap();
    let error = stage(&node, "v", nvme_namespace(1)).unwrap_err();
    assert!(error.contains("is in use"), "{error}");
    unstage(&node, "v");
    stage(&node, "w", by_uuid).unwrap();
    unstage(&node, "w");
    assert_eq!(node.mounter().leftovers(), "");
}

#[test]
fn a_volume_that_was_shrunk_is_not_used() {
    let node = test_node();
    let host = node.mounter().host();
    stage(&node, "v", nvme_namespace(1)).unwrap();
    host.resize_namespace("nvme-blank", 8 * MIB);
    for error in [stage(&node, "v", nvme_namespace(1)).unwrap_err(), expand(&node, MIB).unwrap_err()] {
        assert!(error.contains("8388608 bytes: expected the 16777216"), "{error}");
    }
    // After a reboot, the record still has the size.
    host.reboot();
    assert!(stage(&node, "v", nvme_namespace(1)).unwrap_err().contains("8388608 bytes"));
    let mut elsewhere = stage_request("v", nvme_namespace(1), single_writer());
    elsewhere.staging_path = staging_path("elsewhere");
    let error = make_directory_and_stage(&node, &elsewhere).unwrap_err().to_string();
    assert!(error.contains("8388608 bytes"), "{error}");
}

#[test]
fn a_namespace_that_connected_controllers_have_not_heard_of_is_read() {
    let node = test_node();
    let host = node.mounter().host();
    stage(&node, "v", nvme_namespace(1)).unwrap();
    let new = namespace("10.0.0.8:4420,10.0.0.9:4420", ONE, "55555555555555555555555555555555");
    host.add_unannounced_namespace("nvme-new", &parse_namespace(&new), 16 * MIB, DeviceContent::Blank);
    stage(&node, "w", new).unwrap();
    assert_eq!(host.disk("nvme-new").format_count, 1);
    unstage(&node, "w");
    unstage(&node, "v");
    assert_eq!(node.mounter().leftovers(), "");
}

#[test]
fn an_expansion_makes_the_controllers_read_the_size() {
    let node = test_node();
    let host = node.mounter().host();
    stage(&node, "v", nvme_namespace(1)).unwrap();
    let error = expand(&node, 32 * MIB).unwrap_err();
    assert!(error.contains("16777216 bytes: expected at least 33554432"), "{error}");
    host.resize_namespace("nvme-blank", 32 * MIB);
    assert_eq!(expand(&node, 32 * MIB), Ok(Some(32 * MIB)));
    assert_eq!(host.disk("nvme-blank").filesystem_size, 32 * MIB);
    let rescans =
        || node.mounter().faults().effects.iter().filter(|effect| effect.starts_with("rescan")).count();
    let before = rescans();
    assert_eq!(expand(&node, 32 * MIB), Ok(Some(32 * MIB)));
    assert_eq!(rescans(), before);
}

#[test]
fn a_subsystem_that_does_not_respond_is_not_waited_for() {
    let node = test_node();
    let host = node.mounter().host();
    stage(&node, "v", nvme_namespace(1)).unwrap();
    host.set_controller_state(ControllerState::Reconnecting);
    let connections = portals(host);
    for error in [stage(&node, "w", nvme_namespace(2)).unwrap_err(), expand(&node, MIB).unwrap_err()] {
        assert!(error.contains("does not respond: the kernel reconnects nvme"), "{error}");
    }
    assert_eq!(portals(host), connections, "not connected twice, not disconnected");
    unstage(&node, "v");
    assert_eq!(node.mounter().leftovers(), "");
}

#[test]
fn a_filesystem_of_another_type_is_neither_mounted_nor_formatted() {
    let node = test_node();
    let xfs = make_directory_and_stage(
        &node,
        &stage_request("v", nvme_namespace(1), mount_capability("xfs", &[], "")),
    );
    xfs.unwrap();
    unstage(&node, "v");
    let ext4 = stage_request("v", nvme_namespace(1), mount_capability("ext4", &[], ""));
    let error = make_directory_and_stage(&node, &ext4).unwrap_err().to_string();
    assert!(error.contains("\"xfs\" filesystem: expected ext4"), "{error}");
    assert_eq!(node.mounter().host().disk("nvme-blank").format_count, 1);
    assert_eq!(node.mounter().leftovers(), "");
}

#[test]
fn the_subsystem_of_replaced_connection_info_is_disconnected() {
    let node = test_node();
    let two = namespace("10.0.0.6:4420", "nqn.2024-01.com.example:two", "55555555555555555555555555555555");
    node.mounter().host().add_namespace("nvme-two", &parse_namespace(&two), 16 * MIB, DeviceContent::Blank);
    node.mounter().host().create_directories(&staging_path("v")).unwrap();
    // The process ends after it has connected.
    node.mounter().set_crash_after(Some(3), false);
    stage(&node, "v", nvme_namespace(1)).unwrap_err();
    let node = restart(node, policy());
    assert_eq!(portals(node.mounter().host()).len(), 2);
    stage(&node, "v", two).unwrap();
    assert_eq!(portals(node.mounter().host()), ["10.0.0.6:4420"]);
    unstage(&node, "v");
    assert_eq!(node.mounter().leftovers(), "");
}

#[test]
fn a_connection_that_takes_long_delays_no_other_volume() {
    let node = test_node();
    let two = namespace("10.0.0.6:4420", "nqn.2024-01.com.example:two", "55555555555555555555555555555555");
    node.mounter().host().add_namespace("nvme-two", &parse_namespace(&two), 16 * MIB, DeviceContent::Blank);
    let (reached, resume) = node.mounter().pause_before("connect");
    thread::scope(|scope| {
        let first = scope.spawn(|| stage(&node, "v", nvme_namespace(1)));
        reached.recv().unwrap();
        stage(&node, "w", two).unwrap();
        stage(&node, "x", connection_info("directory", &[("path", "one")])).unwrap();
        unstage(&node, "w");
        resume.send(()).unwrap();
        first.join().unwrap().unwrap();
    });
}

#[test]
fn a_volume_that_waits_to_connect_is_not_disconnected() {
    let node = test_node();
    stage(&node, "v", nvme_namespace(1)).unwrap();
    let (reached, resume) = node.mounter().pause_before("disconnect");
    thread::scope(|scope| {
        let first = scope.spawn(|| unstage(&node, "v"));
        reached.recv().unwrap();
        // The lock of the subsystem delays this volume until the controllers are gone. It connects them
        // again.
        let second = scope.spawn(|| stage(&node, "w", nvme_namespace(2)));
        resume.send(()).unwrap();
        first.join().unwrap();
        second.join().unwrap().unwrap();
    });
    assert_eq!(portals(node.mounter().host()).len(), 2);
    unstage(&node, "w");
    assert_eq!(node.mounter().leftovers(), "");
}
