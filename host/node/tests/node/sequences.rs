//! Random sequences of calls, deaths and reboots: what an answer promised is there, the model's rules hold at
//! every step, and everything can be undone at the end.

use cofferdam_domain::storage::{AccessType, CsiAccessMode, VolumeCapability};
use cofferdam_node::{Content, Node};

use crate::{
    model::Model,
    support::{do_stage, node, publish, sorts, stage, staging, target},
};

const SEEDS: u64 = 400;
const CALLS: usize = 60;
const TARGETS: [&str; 3] = ["a", "b", "c"];

fn mode(random: &mut fastrand::Rng) -> CsiAccessMode {
    let modes = [
        CsiAccessMode::SingleNodeWriter,
        CsiAccessMode::SingleNodeWriter,
        CsiAccessMode::SingleNodeMultiWriter,
        CsiAccessMode::SingleNodeSingleWriter,
        CsiAccessMode::SingleNodeReaderOnly,
        CsiAccessMode::MultiNodeReaderOnly,
        CsiAccessMode::MultiNodeMultiWriter,
    ];
    modes[random.usize(..modes.len())]
}

/// One call; what it promises is looked up when it says that it has done it.
fn call(node: &Node<Model>, random: &mut fastrand::Rng) {
    let sorts = sorts();
    let (volume, attachment, capability) = sorts[random.usize(..sorts.len())].clone();
    let capability = VolumeCapability { access_mode: mode(random), ..capability };
    let name = format!("{volume}-{}", TARGETS[random.usize(..TARGETS.len())]);
    let model = node.machine();
    match random.u8(..6) {
        0 | 1 => {
            let block = matches!(capability.access_type, AccessType::Block);
            if do_stage(node, &stage(volume, attachment, capability)).is_ok() {
                let at = if block { format!("{}/device", staging(volume)) } else { staging(volume) };
                assert_eq!(model.mounts_at(&at).len(), 1, "{volume}");
            }
        }
        2 => {
            let mut request = publish(volume, &name, capability);
            request.read_only = random.bool();
            if node.publish(&request).is_ok() {
                let mounts = model.mounts_at(&target(&name));
                assert_eq!(mounts.len(), 1, "{volume}");
                assert!(mounts[0].attributes.read_only || !request.read_only, "{volume}");
            }
        }
        3 => {
            if node.unpublish(volume, &target(&name)).is_ok() {
                assert!(!model.exists(&target(&name)) && model.mounts_at(&target(&name)).is_empty());
            }
        }
        4 => {
            if node.unstage(volume, &staging(volume)).is_ok() {
                assert!(model.mounts_at(&staging(volume)).is_empty());
                for name in TARGETS.map(|name| format!("{volume}-{name}")) {
                    assert!(
                        model.mounts_at(&target(&name)).is_empty(),
                        "{volume} is unstaged while published"
                    );
                }
            }
        }
        _ => {
            let expand = cofferdam_node::Expand {
                volume: volume.to_owned(),
                volume_path: staging(volume),
                required: Some(random.u64(1..40 << 20)),
                limit: None,
                published: true,
            };
            // It may be too much, or not staged: the model's rules are what counts.
            let _ = node.expand(&expand);
            let _ = node.statistics(volume, &target(&name));
        }
    }
}

fn run(seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let node = node();
    for _ in 0..CALLS {
        if random.u8(..4) == 0 {
            node.machine().live(Some(random.usize(1..8)), random.bool());
        }
        call(&node, &mut random);
        if node.machine().died() || random.u8(..8) == 0 {
            node.machine().live(None, false);
        }
        if random.u8(..40) == 0 {
            node.machine().reboot();
        }
    }
    node.machine().live(None, false);
    for (volume, _, _) in sorts() {
        for name in TARGETS {
            node.unpublish(volume, &target(&format!("{volume}-{name}"))).unwrap();
        }
        node.unstage(volume, &staging(volume)).unwrap();
    }
    assert_eq!(node.machine().left_behind(), "");
    for (path, content) in
        [("raw", Content::Other("data".to_owned())), ("xfs", Content::Filesystem("xfs".to_owned()))]
    {
        let disk = node.machine().with_image(&format!("/srv/images/{path}"), |disk| disk.clone());
        assert_eq!((disk.made, disk.content), (0, content), "{path}");
    }
}

#[test]
fn whatever_is_called_in_whatever_order() {
    for seed in 0..SEEDS {
        if let Err(problem) = std::panic::catch_unwind(|| run(seed)) {
            panic!("seed {seed}: {:?}", problem.downcast_ref::<String>());
        }
    }
}
