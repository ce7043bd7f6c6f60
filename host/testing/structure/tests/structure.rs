//! Rules for the structure of the workspace: few cycles among modules, and dependencies of crates as
//! `docs/architecture.md` shows them.

use std::{collections::BTreeSet, fs};

use cofferdam_structure::{crates, modules, repository};

/// Maximum number of module cycles in the whole workspace. A change may lower this number and must not raise
/// it.
const MAX_CYCLES: usize = 1;

#[test]
fn few_crates_have_module_cycles() {
    let mut found = Vec::new();
    for directory in crates::directories(&repository()).unwrap() {
        let src = directory.join("src");
        if !src.is_dir() {
            continue;
        }
        for cycle in modules::cycles(&modules::references(&src).unwrap()) {
            let names: Vec<String> =
                cycle.iter().map(|module| format!("crate::{}", module.join("::"))).collect();
            found.push(format!("{}: {}", directory.display(), names.join(", ")));
        }
    }
    assert!(
        found.len() <= MAX_CYCLES,
        "{} cycles among modules, expected at most {MAX_CYCLES}:\n{}",
        found.len(),
        found.join("\n")
    );
}

/// The table "Crates" lists for each crate exactly the workspace's crates in `[dependencies]` of its
/// `Cargo.toml`. Only drivers, the guest SDK, guests, examples, and crates for tests may be absent from the
/// table.
#[test]
fn crates_depend_on_what_the_architecture_page_says() {
    let page = fs::read_to_string(repository().join("docs/architecture.md")).unwrap();
    let dependencies = crates::dependencies(&repository()).unwrap();
    let mut shown = BTreeSet::new();
    for row in page.lines().filter(|line| line.starts_with("| `cofferdam")) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let [_, name, _, uses, ..] = cells.as_slice() else { panic!("not a row of the table: {row}") };
        let name = name.trim_matches('`');
        let uses: BTreeSet<String> = uses
            .split(',')
            .map(|used| used.trim().trim_matches('`').to_owned())
            .filter(|used| used != "–")
            .collect();
        let uses: BTreeSet<String> = uses.into_iter().map(|used| format!("cofferdam-{used}")).collect();
        let actual = dependencies.get(name).unwrap_or_else(|| panic!("docs/architecture.md names {name}"));
        assert_eq!(&uses, actual, "dependencies of {name}: docs/architecture.md on the left");
        shown.insert(name.to_owned());
    }
    let host = |name: &&String| {
        let other = [
            "backend-",
            "guest",
            "example",
            "fake-array",
            "test-guests",
            "structure",
            "conformance",
            "differential",
        ];
        !other.iter().any(|part| name.strip_prefix("cofferdam-").is_some_and(|name| name.starts_with(part)))
    };
    let missing: Vec<&String> =
        dependencies.keys().filter(host).filter(|name| !shown.contains(*name)).collect();
    assert!(missing.is_empty(), "docs/architecture.md does not show {missing:?}");
}
