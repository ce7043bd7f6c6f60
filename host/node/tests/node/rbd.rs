//! Kind `rbd`: which images are mapped and unmapped, and which devices are used.

use cofferdam_domain::storage::{ConnectionInfo, ErrorKind, Secrets};
use cofferdam_node::{DeviceContent, Mounter as _, NodeVolumes};

use crate::{
    fault_injection::FaultyMounter,
    support::{
        FSID, MIB, ceph_secrets, expand, make_directory_and_stage, parse_image, policy, rbd_image, restart,
        single_writer, stage_request, stage_single_writer as stage, staging_path, test_node, unstage,
    },
};

/// The image with another value of a field.
fn with_field(field: &str, value: &str) -> ConnectionInfo {
    let mut connection = rbd_image(1);
    connection.fields.insert(field.to_owned(), value.to_owned());
    connection
}

#[test]
fn a_cluster_or_pool_outside_the_policy_is_denied() {
    let node = test_node();
    for (field, value) in [
        ("monitors", "192.0.2.1:6789"),
        ("monitors", "10.0.0.3:3300"),
        ("monitors", "10.0.0.3:6789,192.0.2.1:6789"),
        ("cluster-fsid", "11111111-3f3c-4e0a-9d0e-3f5f2f1b7a10"),
        ("pool", "other"),
        ("namespace", "tenant"),
    ] {
        let (kind, message) = stage(&node, "v", with_field(field, value)).unwrap_err();
        assert_eq!(kind, ErrorKind::PermissionDenied, "{field} {value}: {message}");
    }
    assert_eq!(node.mounter().faults().effects, Vec::<String>::new());
}

#[test]
fn the_key_is_neither_recorded_nor_shown() {
    let node = test_node();
    let mut request = stage_request("v", rbd_image(1), single_writer());
    for (secrets, expected) in [
        (Secrets::default(), "no node-stage secret \"userID\""),
        (ceph_secrets("SECRET%"), "\"userKey\" is invalid"),
        (ceph_secrets("AQAB"), "the key is wrong"),
    ] {
        request.secrets = secrets;
        let error = make_directory_and_stage(&node, &request).unwrap_err().to_string();
        assert!(error.contains(expected) && !error.contains("SECRET"), "{error}");
        assert_eq!(node.mounter().leftovers(), "");
    }
    request.secrets = ceph_secrets("AQAA");
    node.stage(&request).unwrap();
    let record = serde_json::to_string(&node.mounter().record("v").unwrap()).unwrap();
    let shown = format!("{record} {request:?} {:?}", node.mounter().faults().effects);
    assert!(record.contains("image-1") && !shown.contains("AQAA"), "{shown}");
    // A mapped image needs no key.
    request.secrets = Secrets::default();
    node.stage(&request).unwrap();
    unstage(&node, "v");
    assert_eq!(node.mounter().leftovers(), "");
}

#[test]
fn another_cluster_or_image_behind_the_same_names_is_unmapped() {
    let other_fsid = "11111111-3f3c-4e0a-9d0e-3f5f2f1b7a10";
    for (field, value) in [("cluster-fsid", other_fsid), ("image-id", "99")] {
        let node = test_node();
        let host = node.mounter().host();
        host.remove_rbd_image("rbd-blank");
        let wrong = parse_image(&with_field(field, value));
        host.add_rbd_image("wrong", &wrong, 16 * MIB, DeviceContent::Blank);
        let (kind, message) = stage(&node, "v", rbd_image(1)).unwrap_err();
        assert_eq!(kind, ErrorKind::FailedPrecondition, "{message}");
        assert!(message.contains(&format!(
            "expected the image volumes/image-1 with id 10ab1 of the Ceph cluster {FSID}"
        )));
        assert!(message.contains(value), "{message}");
        assert_eq!((host.disk("wrong").format_count, node.mounter().leftovers().as_str()), (0, ""));
        // The process ends after it has mapped the wrong image.
        node.mounter().set_crash_after(Some(2), false);
        stage(&node, "v", rbd_image(1)).unwrap_err();
        let node = restart(node, policy());
        assert!(node.mounter().leftovers().contains("wrong is mapped"));
        unstage(&node, "v");
        assert_eq!(node.mounter().leftovers(), "");
    }
}

/// A node with a staged volume, and the device of another image of its names, mapped with this key.
fn node_with_namesake(key_name: Option<&str>) -> NodeVolumes<FaultyMounter> {
    let node = test_node();
    stage(&node, "v", rbd_image(1)).unwrap();
    let host = node.mounter().host();
    let namesake = parse_image(&with_field("image-id", "99"));
    host.add_rbd_image("namesake", &namesake, 16 * MIB, DeviceContent::Blank);
    let own = node.mounter().rbd_devices().unwrap()[0].key_name.clone();
    host.map_rbd_image("namesake", key_name.or(own.as_deref()));
    node
}

/// The ids of the mapped images.
fn mapped_ids(node: &NodeVolumes<FaultyMounter>) -> Vec<String> {
    node.mounter().rbd_devices().unwrap().into_iter().map(|device| device.image_id).collect()
}

#[test]
fn an_image_that_an_administrator_has_mapped_stays_mapped() {
    let node = node_with_namesake(Some("client.admin"));
    unstage(&node, "v");
    assert_eq!(mapped_ids(&node), ["99"]);
}

#[test]
fn a_device_that_cannot_be_unmapped_does_not_keep_another_one() {
    let node = node_with_namesake(None);
    assert_eq!(mapped_ids(&node).len(), 2);
    // The first effect unmounts.
    node.mounter().fail_after(1);
    let error = node.unstage("v", &staging_path("v")).unwrap_err().to_string();
    assert!(error.contains("unmap the volume's image") && error.contains("no space left"), "{error}");
    assert_eq!(mapped_ids(&node), ["10ab1"]);
    unstage(&node, "v");
    assert_eq!(node.mounter().leftovers(), "");
}

#[test]
fn two_volumes_never_have_one_image() {
    let node = test_node();
    stage(&node, "v", rbd_image(1)).unwrap();
    for second in [rbd_image(1), with_field("monitors", "10.0.0.4:6789"), with_field("image", "renamed")] {
        let (kind, message) = stage(&node, "w", second).unwrap_err();
        assert_eq!(kind, ErrorKind::FailedPrecondition, "{message}");
    }
    unstage(&node, "v");
    stage(&node, "w", rbd_image(1)).unwrap();
    unstage(&node, "w");
    assert_eq!(node.mounter().leftovers(), "");
}

#[test]
fn an_image_in_use_is_neither_staged_nor_formatted() {
    let node = test_node();
    node.mounter().host().create_directories(&staging_path("v")).unwrap();
    node.mounter().set_crash_after(Some(2), false);
    stage(&node, "v", rbd_image(1)).unwrap_err();
    let node = restart(node, policy());
    node.mounter().host().add_disk_user("rbd-blank", "held by dm-0");
    let (_, message) = stage(&node, "v", rbd_image(1)).unwrap_err();
    assert!(message.contains("in use: held by dm-0"), "{message}");
    assert_eq!(node.mounter().host().disk("rbd-blank").format_count, 0);
    assert_eq!(node.mounter().rbd_devices().unwrap().len(), 1, "the device of another user is unmapped");
}

#[test]
fn an_image_grows_and_never_shrinks() {
    let node = test_node();
    let host = node.mounter().host();
    stage(&node, "v", rbd_image(1)).unwrap();
    let error = expand(&node, 32 * MIB).unwrap_err();
    assert!(error.contains("16777216 bytes: expected at least 33554432"), "{error}");
    host.resize_rbd_image("rbd-blank", 32 * MIB);
    assert_eq!(expand(&node, 32 * MIB), Ok(Some(32 * MIB)));
    assert_eq!(host.disk("rbd-blank").filesystem_size, 32 * MIB);
    host.resize_rbd_image("rbd-blank", 8 * MIB);
    for error in [stage(&node, "v", rbd_image(1)).unwrap_err().1, expand(&node, MIB).unwrap_err()] {
        assert!(error.contains("8388608 bytes: expected the 33554432"), "{error}");
    }
}
