//! The pins in the repository.

use std::{collections::BTreeSet, fs, path::Path};

use cofferdam_image::Pins;

fn crate_directory() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The node's image has exactly the tools that `host/node/src/linux/tools.rs` lists.
#[test]
fn the_tools_of_the_image_are_those_of_the_node_role() {
    let source = crate_directory().join("../../host/node/src/linux/tools.rs");
    let source = fs::read_to_string(source).unwrap();
    let names = source.lines().filter_map(|line| line.trim().strip_prefix("Self::")?.split_once(" => \""));
    let expected: BTreeSet<&str> = names.filter_map(|(_, name)| name.strip_suffix("\",")).collect();
    assert!(expected.contains("losetup"), "tools.rs has another form: {expected:?}");
    let pins = Pins::read(&crate_directory().join("packages.toml")).unwrap();
    let programs: BTreeSet<&str> =
        pins.node.programs.iter().filter_map(|path| path.rsplit('/').next()).collect();
    assert_eq!(programs, expected, "deploy/image/packages.toml on the left");
}

/// The images have a name for each sidecar of `host/cofferdam/src/sidecar/program.rs`.
#[test]
fn the_sidecars_of_the_images_are_those_of_the_program() {
    let source = crate_directory().join("../../host/cofferdam/src/sidecar/program.rs");
    let source = fs::read_to_string(source).unwrap();
    let names = source.split("fn program(").nth(1).and_then(|rest| rest.split("fn ").next()).unwrap();
    let names = names.lines().filter_map(|line| line.trim().strip_prefix("Self::")?.split_once(" => \""));
    let expected: BTreeSet<&str> = names.filter_map(|(_, name)| name.strip_suffix("\",")).collect();
    assert_eq!(cofferdam_image::SIDECARS.into_iter().collect::<BTreeSet<_>>(), expected);
}
