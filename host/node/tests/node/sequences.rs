//! Random sequences of calls, crashes and reboots: successful stage, publish, unpublish and unstage calls
//! have their effect, no rule of the fake host is violated, images with content are never formatted, and
//! everything can be undone at the end.

use cofferdam_domain::storage::{AccessType, CsiAccessMode, VolumeCapability};
use cofferdam_node::{DeviceContent, NodeVolumes};

use crate::{
    fault_injection::FaultyMounter,
    support::{
        make_directory_and_stage, publish_request, stage_request, staging_path, target_path, test_node,
        volume_kinds,
    },
};

const SEEDS: u64 = 400;
const CALLS: usize = 60;
const TARGETS: [&str; 3] = ["a", "b", "c"];

fn mode(rng: &mut fastrand::Rng) -> CsiAccessMode {
    let modes = [
        CsiAccessMode::SingleNodeWriter,
        CsiAccessMode::SingleNodeWriter,
        CsiAccessMode::SingleNodeMultiWriter,
        CsiAccessMode::SingleNodeSingleWriter,
        CsiAccessMode::SingleNodeReaderOnly,
        CsiAccessMode::MultiNodeReaderOnly,
        CsiAccessMode::MultiNodeMultiWriter,
    ];
    modes[rng.usize(..modes.len())]
}

/// Makes one random call; an expansion is followed by a statistics call. If it is a successful stage,
/// publish, unpublish or unstage call, its effect is checked.
fn call(node: &NodeVolumes<FaultyMounter>, rng: &mut fastrand::Rng) {
    let volume_kinds = volume_kinds();
    let (volume, connection, capability) = volume_kinds[rng.usize(..volume_kinds.len())].clone();
    let capability = VolumeCapability { access_mode: mode(rng), ..capability };
    let name = format!("{volume}-{}", TARGETS[rng.usize(..TARGETS.len())]);
    let mounter = node.mounter();
    match rng.u8(..6) {
        0 | 1 => {
            let block = matches!(capability.access_type, AccessType::Block);
            if make_directory_and_stage(node, &stage_request(volume, connection, capability)).is_ok() {
                let at =
                    if block { format!("{}/device", staging_path(volume)) } else { staging_path(volume) };
                assert_eq!(mounter.host().mounts_at(&at).len(), 1, "{volume}");
            }
        }
        2 => {
            let mut request = publish_request(volume, &name, capability);
            request.read_only = rng.bool();
            if node.publish(&request).is_ok() {
                let mounts = mounter.host().mounts_at(&target_path(&name));
                assert_eq!(mounts.len(), 1, "{volume}");
                assert!(mounts[0].attributes.read_only || !request.read_only, "{volume}");
            }
        }
        3 => {
            if node.unpublish(volume, &target_path(&name)).is_ok() {
                assert!(
                    !mounter.host().exists(&target_path(&name))
                        && mounter.host().mounts_at(&target_path(&name)).is_empty()
                );
            }
        }
        4 => {
            if node.unstage(volume, &staging_path(volume)).is_ok() {
                assert!(mounter.host().mounts_at(&staging_path(volume)).is_empty());
                for name in TARGETS.map(|name| format!("{volume}-{name}")) {
                    assert!(
                        mounter.host().mounts_at(&target_path(&name)).is_empty(),
                        "{volume} is unstaged while published"
                    );
                }
            }
        }
        _ => {
            let expand = cofferdam_node::ExpandRequest {
                volume: volume.to_owned(),
                volume_path: staging_path(volume),
                required: Some(rng.u64(1..40 << 20)),
                limit: None,
                is_size_published: true,
            };
            // It may fail; only the fake host's invariants count.
            let _ = node.expand(&expand);
            let _ = node.volume_stats(volume, &target_path(&name));
        }
    }
}

fn run_seed(seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let node = test_node();
    for _ in 0..CALLS {
        if rng.u8(..4) == 0 {
            node.mounter().set_crash_after(Some(rng.usize(1..8)), rng.bool());
        }
        call(&node, &mut rng);
        if node.mounter().has_crashed() || rng.u8(..8) == 0 {
            node.mounter().set_crash_after(None, false);
        }
        if rng.u8(..40) == 0 {
            node.mounter().host().reboot();
        }
    }
    node.mounter().set_crash_after(None, false);
    for (volume, _, _) in volume_kinds() {
        for name in TARGETS {
            node.unpublish(volume, &target_path(&format!("{volume}-{name}"))).unwrap();
        }
        node.unstage(volume, &staging_path(volume)).unwrap();
    }
    assert_eq!(node.mounter().leftovers(), "");
    for (path, content) in [
        ("raw", DeviceContent::Other("data".to_owned())),
        ("xfs", DeviceContent::Filesystem("xfs".to_owned())),
    ] {
        let disk = node.mounter().host().image(&format!("/srv/images/{path}")).unwrap();
        assert_eq!((disk.format_count, disk.content), (0, content), "{path}");
    }
}

#[test]
fn random_calls_crashes_and_reboots_can_all_be_undone() {
    for seed in 0..SEEDS {
        if let Err(problem) = std::panic::catch_unwind(|| run_seed(seed)) {
            panic!("seed {seed}: {:?}", problem.downcast_ref::<String>());
        }
    }
}
