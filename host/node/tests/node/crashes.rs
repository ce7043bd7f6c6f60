//! Crash tests: the process crashes after every effect of every scenario; if that effect is a format, also
//! during it. The node may then reboot. Then kubelet repeats the call (after a reboot, all calls) and
//! completes the scenario, or gives up and undoes everything. A second test lets each effect fail without a
//! crash.

use cofferdam_node::{DeviceContent, NodeError, NodeVolumes};

use crate::{
    fault_injection::FaultyMounter,
    support::{
        MIB, inline_request, make_directory_and_stage, publish_request, stage_request, staging_path,
        target_path, test_node, volume_kinds,
    },
};

type ScenarioStep = Box<dyn Fn(&NodeVolumes<FaultyMounter>) -> Result<(), NodeError>>;

/// The lifecycle of each volume of [`volume_kinds`] and of an inline volume, as kubelet's calls.
fn scenarios() -> Vec<(String, Vec<ScenarioStep>)> {
    let mut scenarios: Vec<(String, Vec<ScenarioStep>)> = Vec::new();
    for (name, connection, capability) in volume_kinds() {
        let stage_request = stage_request(name, connection, capability.clone());
        let mut first = publish_request(name, "first", capability.clone());
        first.read_only = true;
        let expand = cofferdam_node::ExpandRequest {
            volume: name.to_owned(),
            volume_path: staging_path(name),
            required: Some(if name.starts_with("nvme") || name.starts_with("rbd") { 32 * MIB } else { MIB }),
            limit: None,
            is_size_published: true,
        };
        let second = publish_request(name, "second", capability);
        scenarios.push((
            name.to_owned(),
            vec![
                Box::new(move |node| make_directory_and_stage(node, &stage_request)),
                Box::new(move |node| node.publish(&first)),
                Box::new(move |node| {
                    for namespace in ["nvme-blank", "nvme-raw"] {
                        node.mounter().host().resize_namespace(namespace, 32 * MIB);
                    }
                    for image in ["rbd-blank", "rbd-raw"] {
                        node.mounter().host().resize_rbd_image(image, 32 * MIB);
                    }
                    node.expand(&expand).map(drop)
                }),
                Box::new(move |node| node.unpublish(name, &target_path("first"))),
                Box::new(move |node| node.publish(&second)),
                Box::new(move |node| node.unpublish(name, &target_path("second"))),
                Box::new(move |node| node.unstage(name, &staging_path(name))),
            ],
        ));
    }
    let (volume, request) = (inline_request("first", None).volume, inline_request("first", None));
    scenarios.push((
        "inline".to_owned(),
        vec![
            Box::new(move |node| node.publish_inline(&request)),
            Box::new(move |node| node.unpublish(&volume, &target_path("first"))),
        ],
    ));
    scenarios
}

/// Undoes everything, like kubelet when it gives up, and checks that nothing is left.
fn undo_all(node: &NodeVolumes<FaultyMounter>, volume: &str) {
    let volume = if volume == "inline" { inline_request("first", None).volume } else { volume.to_owned() };
    for name in ["first", "second"] {
        node.unpublish(&volume, &target_path(name)).unwrap();
        assert!(!node.mounter().host().exists(&target_path(name)), "{name}");
    }
    node.unstage(&volume, &staging_path(&volume)).unwrap();
    assert_eq!(node.mounter().leftovers(), "");
}

fn count_effects(steps: &[ScenarioStep]) -> usize {
    let node = test_node();
    for step in steps {
        step(&node).unwrap();
    }
    let effects = node.mounter().faults().effects.len();
    assert_eq!(node.mounter().leftovers(), "");
    effects
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum AfterCrash {
    Retry,
    Undo,
    RebootAndRetry,
    RebootAndUndo,
}

#[test]
fn every_scenario_converges_after_a_crash_at_any_effect() {
    let mut runs = 0;
    for (name, steps) in scenarios() {
        let effects = count_effects(&steps);
        assert!(effects >= 4, "{name}: {effects}");
        for after_crash in
            [AfterCrash::Retry, AfterCrash::Undo, AfterCrash::RebootAndRetry, AfterCrash::RebootAndUndo]
        {
            for (crash_after, is_partial) in
                (1..=effects).flat_map(|crash_after| [(crash_after, false), (crash_after, true)])
            {
                let node = test_node();
                node.mounter().set_crash_after(Some(crash_after), is_partial);
                let mut crashed_step = None;
                for (index, step) in steps.iter().enumerate() {
                    if step(&node).is_err() {
                        assert!(node.mounter().has_crashed(), "{name} {crash_after}");
                        crashed_step = Some(index);
                        break;
                    }
                }
                node.mounter().set_crash_after(None, false);
                runs += 1;
                if matches!(after_crash, AfterCrash::RebootAndRetry | AfterCrash::RebootAndUndo) {
                    node.mounter().host().reboot();
                }
                if matches!(after_crash, AfterCrash::Undo | AfterCrash::RebootAndUndo) {
                    undo_all(&node, &name);
                    continue;
                }
                // After a reboot, kubelet stages and publishes again.
                let first_step = if after_crash == AfterCrash::RebootAndRetry {
                    0
                } else {
                    crashed_step.unwrap_or(steps.len())
                };
                for (index, step) in steps.iter().enumerate().skip(first_step) {
                    step(&node).unwrap_or_else(|error| {
                        panic!(
                            "{name}, crash after {crash_after} (partial {is_partial}), {after_crash:?}, \
                             step {index}: {error}"
                        )
                    });
                }
                undo_all(&node, &name);
                let image = node.mounter().host().image("/srv/images/blank").unwrap();
                let format_result = (image.format_count, image.content);
                if name == "image" {
                    assert!(
                        matches!(format_result, (1 | 2, DeviceContent::Filesystem(_))),
                        "{format_result:?}"
                    );
                } else {
                    assert_eq!(format_result, (0, DeviceContent::Blank), "{name}");
                }
                for (volume, blank, raw) in
                    [("nvme", "nvme-blank", "nvme-raw"), ("rbd", "rbd-blank", "rbd-raw")]
                {
                    let disk = node.mounter().host().disk(blank);
                    let expected = if name == volume { 1..=2 } else { 0..=0 };
                    assert!(expected.contains(&disk.format_count), "{name}: {disk:?}");
                    assert_eq!(node.mounter().host().disk(raw).format_count, 0);
                }
                let raw_image = node.mounter().host().image("/srv/images/raw").unwrap();
                assert_eq!(
                    (raw_image.format_count, raw_image.content),
                    (0, DeviceContent::Other("data".to_owned()))
                );
            }
        }
    }
    assert!(runs > 500, "{runs}");
}

#[test]
fn every_scenario_converges_after_any_failed_effect() {
    let mut failures = 0;
    for (name, steps) in scenarios() {
        for has_no_retry in [false, true] {
            for failing_effect in 0..count_effects(&steps) {
                let node = test_node();
                node.mounter().fail_after(failing_effect);
                for (index, step) in steps.iter().enumerate() {
                    let Err(error) = step(&node) else { continue };
                    assert!(error.to_string().contains("no space left"), "{name} {failing_effect}: {error}");
                    failures += 1;
                    if has_no_retry {
                        break;
                    }
                    // kubelet retries.
                    step(&node)
                        .unwrap_or_else(|error| panic!("{name} {failing_effect}, step {index}: {error}"));
                }
                undo_all(&node, &name);
            }
        }
    }
    assert!(failures > 100, "{failures}");
}
