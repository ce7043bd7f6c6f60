//! The process dies after every single effect of every scenario, comes back, and hears the same call again;
//! or kubelet gives up and undoes it.

use cofferdam_node::{Content, Node, NodeError};

use crate::{
    model::Model,
    support::{MIB, do_stage, inline, node, publish, sorts, stage, staging, target},
};

type Scenario = Box<dyn Fn(&Node<Model>) -> Result<(), NodeError>>;

/// The life of a volume of every sort, as kubelet asks for it.
fn lives() -> Vec<(String, Vec<Scenario>)> {
    let mut lives: Vec<(String, Vec<Scenario>)> = Vec::new();
    for (name, attachment, capability) in sorts() {
        let staged = stage(name, attachment, capability.clone());
        let mut first = publish(name, "first", capability.clone());
        first.read_only = true;
        let expand = cofferdam_node::Expand {
            volume: name.to_owned(),
            volume_path: staging(name),
            required: Some(MIB),
            limit: None,
            published: true,
        };
        let second = publish(name, "second", capability);
        lives.push((
            name.to_owned(),
            vec![
                Box::new(move |node| do_stage(node, &staged)),
                Box::new(move |node| node.publish(&first)),
                Box::new(move |node| node.expand(&expand).map(drop)),
                Box::new(move |node| node.unpublish(name, &target("first"))),
                Box::new(move |node| node.publish(&second)),
                Box::new(move |node| node.unpublish(name, &target("second"))),
                Box::new(move |node| node.unstage(name, &staging(name))),
            ],
        ));
    }
    let (volume, request) = (inline("first", None).volume, inline("first", None));
    lives.push((
        "inline".to_owned(),
        vec![
            Box::new(move |node| node.publish_inline(&request)),
            Box::new(move |node| node.unpublish(&volume, &target("first"))),
        ],
    ));
    lives
}

/// Everything undone, as kubelet does when it has given up.
fn undo(node: &Node<Model>, volume: &str) {
    let volume = if volume == "inline" { inline("first", None).volume } else { volume.to_owned() };
    for name in ["first", "second"] {
        node.unpublish(&volume, &target(name)).unwrap();
        assert!(!node.machine().exists(&target(name)), "{name}");
    }
    node.unstage(&volume, &staging(&volume)).unwrap();
    assert_eq!(node.machine().left_behind(), "");
}

fn effects_of(steps: &[Scenario]) -> usize {
    let node = node();
    for step in steps {
        step(&node).unwrap();
    }
    let effects = node.machine().state().effects.len();
    assert_eq!(node.machine().left_behind(), "");
    effects
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum After {
    Again,
    Undo,
    RebootAndAgain,
    RebootAndUndo,
}

#[test]
fn it_may_die_after_any_effect() {
    let mut runs = 0;
    for (name, steps) in lives() {
        let effects = effects_of(&steps);
        assert!(effects >= 4, "{name}: {effects}");
        for after in [After::Again, After::Undo, After::RebootAndAgain, After::RebootAndUndo] {
            for (life, half) in (1..=effects).flat_map(|life| [(life, false), (life, true)]) {
                let node = node();
                node.machine().live(Some(life), half);
                let mut died_in = None;
                for (index, step) in steps.iter().enumerate() {
                    if step(&node).is_err() {
                        assert!(node.machine().died(), "{name} {life}");
                        died_in = Some(index);
                        break;
                    }
                }
                node.machine().live(None, false);
                runs += 1;
                if matches!(after, After::RebootAndAgain | After::RebootAndUndo) {
                    node.machine().reboot();
                }
                if matches!(after, After::Undo | After::RebootAndUndo) {
                    undo(&node, &name);
                    continue;
                }
                // After a reboot kubelet stages and publishes from the beginning.
                let from = if after == After::RebootAndAgain { 0 } else { died_in.unwrap_or(steps.len()) };
                for (index, step) in steps.iter().enumerate().skip(from) {
                    step(&node).unwrap_or_else(|error| {
                        panic!("{name}, dead after {life} (half {half}), {after:?}, step {index}: {error}")
                    });
                }
                undo(&node, &name);
                let made =
                    node.machine().with_image("/srv/images/blank", |disk| (disk.made, disk.content.clone()));
                if name == "image" {
                    assert!(matches!(made, (1 | 2, Content::Filesystem(_))), "{made:?}");
                } else {
                    assert_eq!(made, (0, Content::Blank), "{name}");
                }
                let raw = node.machine().with_image("/srv/images/raw", |disk| disk.clone());
                assert_eq!((raw.made, raw.content), (0, Content::Other("data".to_owned())));
            }
        }
    }
    assert!(runs > 500, "{runs}");
}

#[test]
fn any_effect_may_fail() {
    let mut failures = 0;
    for (name, steps) in lives() {
        for gives_up in [false, true] {
            for after in 0..effects_of(&steps) {
                let node = node();
                node.machine().fail_after(after);
                for (index, step) in steps.iter().enumerate() {
                    let Err(error) = step(&node) else { continue };
                    assert!(error.to_string().contains("no space left"), "{name} {after}: {error}");
                    failures += 1;
                    if gives_up {
                        break;
                    }
                    // Kubelet calls again.
                    step(&node).unwrap_or_else(|error| panic!("{name} {after}, step {index}: {error}"));
                }
                undo(&node, &name);
            }
        }
    }
    assert!(failures > 100, "{failures}");
}
