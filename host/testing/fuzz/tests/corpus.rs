//! The committed inputs: each holds the properties of its target.

use std::{collections::BTreeSet, fs, path::Path};

use cofferdam_fuzz::TARGETS;

/// Most bytes of all inputs together: they are part of every clone.
const MAX_CORPUS_BYTES: usize = 200_000;

fn names(directory: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

#[test]
fn committed_inputs_hold_the_properties_of_their_target() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let mut total = 0;
    for (name, target) in TARGETS {
        let directory = corpus.join(name);
        let inputs = names(&directory);
        assert!(!inputs.is_empty(), "{} has no inputs", directory.display());
        for input in inputs {
            // The output of a failed test ends with its input.
            println!("{name}/{input}");
            let data = fs::read(directory.join(input)).unwrap();
            total += data.len();
            target(&data);
        }
    }
    assert!(total <= MAX_CORPUS_BYTES, "{total} bytes of inputs, expected at most {MAX_CORPUS_BYTES}");
}

#[test]
fn every_target_has_a_corpus_and_a_program() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR"));
    let targets: BTreeSet<String> = TARGETS.map(|(name, _)| name.to_owned()).into();
    assert_eq!(names(&directory.join("corpus")), targets);
    let programs = targets.iter().map(|name| format!("{name}.rs")).collect();
    assert_eq!(names(&directory.join("fuzz/fuzz_targets")), programs);
}
