//! `cofferdam backend new`: a project for a new driver.
//!
//! The project is the driver of `examples/starter` with another name, and carries the SDK beside it: it
//! builds wherever cargo reaches the registry of crates, without a checkout of this repository.

use std::path::{Path, PathBuf};

use include_dir::{Dir, DirEntry, include_dir};

use super::{BackendCommandError, flags::NewFlags};

/// The driver that a project begins with.
const STARTER: &str = include_str!("../../../../../examples/starter/src/lib.rs");
/// The SDK and the contract, as they are built into this program.
static SDK: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/../../guest-sdk");
static WIT: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/../../wit");
/// The workspace's versions of what the SDK depends on.
const WORKSPACE_MANIFEST: &str = include_str!("../../../../../Cargo.toml");
/// The versions of everything that the SDK was built and tested with.
const WORKSPACE_LOCK: &str = include_str!("../../../../../Cargo.lock");
/// The compiler that it was built and tested with.
const RUST_TOOLCHAIN_FILE: &str = include_str!("../../../../../rust-toolchain.toml");
/// The dependencies of the SDK and the starter.
const DEPENDENCIES: [&str; 5] = ["percent-encoding", "serde", "serde_json", "sha2", "wit-bindgen"];
/// The SDK's crate.
const SDK_CRATE: &str = "cofferdam-guest";
/// What follows a crate's name in the driver's.
const DRIVER_NAME_SUFFIX: &str = ".example.com";
/// Longest name of a crate: with the domain it is a driver's name of 63 characters, the longest that the
/// contract has.
const MAX_NAME: usize = 63 - DRIVER_NAME_SUFFIX.len();
/// Names that Rust has already: its keywords, and the crates of its own distribution.
const RESERVED_NAMES: [&str; 59] = [
    "abstract",
    "alloc",
    "as",
    "async",
    "await",
    "become",
    "box",
    "break",
    "const",
    "continue",
    "core",
    "crate",
    "do",
    "dyn",
    "else",
    "enum",
    "extern",
    "false",
    "final",
    "fn",
    "for",
    "gen",
    "if",
    "impl",
    "in",
    "let",
    "loop",
    "macro",
    "match",
    "mod",
    "move",
    "mut",
    "override",
    "priv",
    "proc-macro",
    "pub",
    "ref",
    "return",
    "self",
    "static",
    "std",
    "struct",
    "super",
    "test",
    "trait",
    "true",
    "try",
    "type",
    "typeof",
    "union",
    "unsafe",
    "unsized",
    "use",
    "virtual",
    "where",
    "while",
    "yield",
    "cargo",
    "rustc",
];

/// Makes the project; the text is what to do next.
///
/// # Errors
/// [`VendorError`], when the name is none of a driver and a crate, the directory holds something, or it
/// cannot be written.
pub(crate) fn new(flags: &NewFlags) -> Result<String, BackendCommandError> {
    let name = &flags.name;
    let packages = locked_packages()?;
    check_name(name, &packages)?;
    let directory = flags.directory.clone().unwrap_or_else(|| PathBuf::from(name));
    if directory.read_dir().is_ok_and(|mut entries| entries.next().is_some()) {
        return Err(BackendCommandError::Argument(format!(
            "{} exists and is not empty: expected a new directory",
            directory.display()
        )));
    }
    let file = name.replace('-', "_");
    let library = STARTER.replace("starter.example.com", &format!("{name}{DRIVER_NAME_SUFFIX}"));
    for (path, text) in [
        ("Cargo.toml", manifest_file(name)?),
        ("Cargo.lock", lock_file(name, &packages)),
        ("rust-toolchain.toml", toolchain_file()?),
        (".gitignore", "/target\n*.redb\n*.redb.lock\n".to_owned()),
        (".cargo/config.toml", CARGO_CONFIG.to_owned()),
        ("README.md", README.replace("{name}", name).replace("{file}", &file)),
        ("src/lib.rs", library),
    ] {
        write_file(&directory.join(path), text.as_bytes())?;
    }
    copy_directory(&SDK, &directory.join("sdk/guest-sdk"))?;
    copy_directory(&WIT, &directory.join("sdk/wit"))?;
    Ok(NEXT_STEPS.replace("{directory}", &directory.display().to_string()).replace("{file}", &file))
}

/// Refuses what cannot be the name of a crate beside those that the project uses, or cannot begin the name of
/// a driver.
fn check_name(name: &str, packages: &[Package<'_>]) -> Result<(), BackendCommandError> {
    let name_error = |reason: String| {
        Err(BackendCommandError::Argument(format!("{name:?} is no name of a driver: {reason}")))
    };
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let well_formed = name.bytes().all(inner)
        && name.starts_with(|first: char| first.is_ascii_lowercase())
        && !name.ends_with('-');
    if name.len() > MAX_NAME || !well_formed {
        return name_error(format!(
            "expected up to {MAX_NAME} of a-z, 0-9 and -, beginning with a letter and not ending with -"
        ));
    }
    if RESERVED_NAMES.contains(&name) {
        return name_error("Rust has that name already; expected another".to_owned());
    }
    // In a program's text both are spelled with `_`.
    if packages.iter().any(|package| package.name.replace('_', "-") == name) {
        return name_error("the project uses a crate of that name; expected another".to_owned());
    }
    Ok(())
}

/// A package of the lock file.
struct Package<'a> {
    name: &'a str,
    /// Its lines, without the one that begins a package.
    block: &'a str,
}

impl<'a> Package<'a> {
    fn field(block: &'a str, key: &str) -> Option<&'a str> {
        let value = |line: &'a str| line.strip_prefix(key)?.strip_prefix(" = \"")?.strip_suffix('"');
        block.lines().find_map(value)
    }

    /// What it needs: names, with a version where several have the name.
    fn dependencies(&self) -> impl Iterator<Item = (&'a str, Option<&'a str>)> {
        let lines = self.block.lines().filter_map(|line| line.strip_prefix(" \"")?.strip_suffix("\","));
        lines.map(|entry| match entry.split_once(' ') {
            Some((name, version)) => (name, Some(version)),
            None => (entry, None),
        })
    }

    fn matches(&self, (name, version): (&str, Option<&str>)) -> bool {
        self.name == name && version.is_none_or(|version| Self::field(self.block, "version") == Some(version))
    }
}

/// The SDK and everything that it needs, in the order of the lock file.
fn locked_packages() -> Result<Vec<Package<'static>>, BackendCommandError> {
    let mut remaining: Vec<_> = WORKSPACE_LOCK
        .split("[[package]]\n")
        .skip(1)
        .filter_map(|block| Some(Package { name: Package::field(block, "name")?, block: block.trim_end() }))
        .collect();
    let mut packages = Vec::new();
    let mut unresolved = vec![(SDK_CRATE, None)];
    while let Some(dependency) = unresolved.pop() {
        let (found, others) =
            remaining.into_iter().partition::<Vec<_>, _>(|package| package.matches(dependency));
        remaining = others;
        unresolved.extend(found.iter().flat_map(Package::dependencies));
        packages.extend(found);
    }
    if packages.is_empty() {
        return Err(BackendCommandError::Argument(format!(
            "this program was built without the versions of {SDK_CRATE}"
        )));
    }
    // As cargo does: by name, then by version.
    packages.sort_by_key(|package| package.block);
    Ok(packages)
}

/// The project's lock file. Cargo's first build takes out what others of this program's crates need of the
/// same crates, and changes nothing else.
fn lock_file(name: &str, packages: &[Package<'_>]) -> String {
    let own_block = format!(
        "name = \"{name}\"\nversion = \"0.1.0\"\ndependencies = [\n \"{SDK_CRATE}\",\n \"serde\",\n]"
    );
    let mut blocks: Vec<_> = packages.iter().map(|package| (package.name, package.block)).collect();
    blocks.push((name, &own_block));
    blocks.sort_by_key(|(name, _)| *name);
    let blocks: Vec<_> = blocks.into_iter().map(|(_, block)| format!("[[package]]\n{block}\n")).collect();
    format!(
        "# This file is automatically @generated by Cargo.\n# It is not intended for manual editing.\nversion = 4\n\n{}",
        blocks.join("\n")
    )
}

/// The toolchain file, with the compiler of this program.
fn toolchain_file() -> Result<String, BackendCommandError> {
    let channel = Package::field(RUST_TOOLCHAIN_FILE, "channel").ok_or_else(|| {
        BackendCommandError::Argument("this program was built without its compiler's version".to_owned())
    })?;
    Ok(TOOLCHAIN.replace("{channel}", channel))
}

/// The project's manifest. It is a workspace with the SDK as a member, whose own manifest then needs no
/// change.
fn manifest_file(name: &str) -> Result<String, BackendCommandError> {
    let line = |dependency: &&str| {
        let begins = |line: &&str| {
            line.strip_prefix(*dependency).is_some_and(|rest| rest.trim_start().starts_with('='))
        };
        WORKSPACE_MANIFEST.lines().find(begins).map(str::to_owned).ok_or_else(|| {
            BackendCommandError::Argument(format!(
                "this program was built without the version of {dependency}"
            ))
        })
    };
    let dependencies = DEPENDENCIES.iter().map(line).collect::<Result<Vec<_>, _>>()?.join("\n");
    Ok(MANIFEST.replace("{name}", name).replace("{dependencies}", &dependencies))
}

fn copy_directory(directory: &Dir<'_>, to: &Path) -> Result<(), BackendCommandError> {
    for entry in directory.entries() {
        match entry {
            DirEntry::Dir(inner) => {
                copy_directory(inner, &to.join(inner.path().file_name().unwrap_or_default()))?
            }
            DirEntry::File(file) => {
                write_file(&to.join(file.path().file_name().unwrap_or_default()), file.contents())?;
            }
        }
    }
    Ok(())
}

fn write_file(path: &Path, content: &[u8]) -> Result<(), BackendCommandError> {
    let failed = |source| BackendCommandError::Write { path: path.to_owned(), source };
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).map_err(failed)?;
    }
    std::fs::write(path, content).map_err(failed)
}

const MANIFEST: &str = r#"[package]
name = "{name}"
version = "0.1.0"
edition = "2024"

[lib]
crate-type = ["cdylib", "rlib"]

[dependencies]
cofferdam-guest = { path = "sdk/guest-sdk" }
serde = { version = "1", features = ["derive"] }

[workspace]
members = ["sdk/guest-sdk"]
resolver = "3"

# What the SDK takes from its workspace.
[workspace.package]
version = "0.1.0"
edition = "2024"
rust-version = "1.95"
license = "Apache-2.0"
publish = false

[workspace.dependencies]
{dependencies}

[workspace.lints.rust]

# Small, and the same bytes every time.
[profile.release]
opt-level = "s"
lto = true
codegen-units = 1
strip = true
"#;

const TOOLCHAIN: &str = r#"[toolchain]
# What the SDK is tested with; it needs at least 1.95.
channel = "{channel}"
targets = ["wasm32-wasip2"]
"#;

const CARGO_CONFIG: &str = r#"[alias]
component = "build --release --target wasm32-wasip2"

# The stack: the default, 1 MiB, is most of a driver's memory, which has to be wiped after each call.
[target.wasm32-wasip2]
rustflags = ["-Clink-arg=-zstack-size=131072"]
"#;

const README: &str = r"# {name}

A storage driver for Cofferdam: one WebAssembly component.

    cargo test                                                        # unit tests, on this machine
    cargo component                                                   # builds target/wasm32-wasip2/release/{file}.wasm
    cofferdam backend inspect target/wasm32-wasip2/release/{file}.wasm
    cofferdam backend test target/wasm32-wasip2/release/{file}.wasm
    cofferdam dev --backend target/wasm32-wasip2/release/{file}.wasm

`Cargo.lock` has the versions that the SDK was tested with. The first build shortens it; then keep it in your repository.

`src/lib.rs` keeps volumes in the `state` import; put your storage there. `sdk/` is the SDK and the contract of the program that
made this project; `cargo doc --open -p cofferdam-guest` shows its documentation.
";

const NEXT_STEPS: &str = "made {directory}\n
next:
  cd {directory}
  rustup target add wasm32-wasip2
  cargo component
  cofferdam backend test target/wasm32-wasip2/release/{file}.wasm
";

#[cfg(test)]
mod tests {
    use super::*;

    fn name_error(name: &str) -> Option<String> {
        check_name(name, &locked_packages().unwrap()).err().map(|error| error.to_string())
    }

    #[test]
    fn only_valid_crate_and_driver_names_are_accepted() {
        let longest = "n".repeat(51);
        for name in ["a", "my-array", "a1", "x--y", "serde-array", "tests", &longest] {
            assert_eq!(name_error(name), None, "{name}");
            let driver = format!("{name}{DRIVER_NAME_SUFFIX}");
            assert!(driver.len() <= 63, "{driver}");
        }
        let too_long = "n".repeat(52);
        for name in ["", "-a", "a-", "1a", "A", "my_array", "a_", "ä", "a.b", "a/b", "..", &too_long] {
            let refused = name_error(name).unwrap();
            assert!(refused.starts_with(&format!("{name:?} is no name")), "{refused}");
            assert!(refused.contains("up to 51 of a-z, 0-9 and -"), "{refused}");
        }
        for name in ["core", "std", "test", "fn", "self", "async", "proc-macro"] {
            assert!(name_error(name).unwrap().contains("Rust has that name"), "{name}");
        }
        for name in ["serde", "serde-json", "cofferdam-guest", "sha2", "wit-bindgen", "percent-encoding"] {
            assert!(name_error(name).unwrap().contains("uses a crate of that name"), "{name}");
        }
    }

    #[test]
    fn a_new_project_pins_this_programs_versions_and_compiler() {
        let packages = locked_packages().unwrap();
        assert!(
            packages.iter().all(|package| package.name != "wasmtime"),
            "what the SDK does not need is left out"
        );
        let lock = lock_file("my-array", &packages);
        for name in DEPENDENCIES.iter().chain(&[SDK_CRATE, "my-array"]) {
            assert_eq!(lock.matches(&format!("[[package]]\nname = \"{name}\"\n")).count(), 1, "{name}");
        }
        let digest = |text: &str| text.lines().filter(|line| line.starts_with("checksum")).count();
        assert_eq!(digest(&lock), packages.len() - 1, "everything but the SDK comes with its digest");
        assert!(toolchain_file().unwrap().contains("channel = \"1."));
        assert!(manifest_file("my-array").unwrap().contains("name = \"my-array\""));
    }
}
