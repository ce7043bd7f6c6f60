//! `cofferdam backend new`: a project for a new driver.
//!
//! The project is the driver of `examples/starter` with another name and a copy of the SDK. It builds without
//! a checkout of this repository if cargo can reach the crate registry.

use std::path::{Path, PathBuf};

use include_dir::{Dir, DirEntry, include_dir};

use super::error::BackendCommandError;
use crate::cli::backend::NewFlags;

/// Source of the initial driver.
const STARTER: &str = include_str!("../../../../../examples/starter/src/lib.rs");
/// The SDK and the contract, embedded in this program.
static SDK: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/../../guest-sdk");
static WIT: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/../../wit");
/// Manifest of this workspace, which has the versions of the SDK's dependencies.
const WORKSPACE_MANIFEST: &str = include_str!("../../../../../Cargo.toml");
/// Lock file of this workspace: versions of all packages with which the SDK was built and tested.
const WORKSPACE_LOCK: &str = include_str!("../../../../../Cargo.lock");
/// Toolchain file of this workspace: version of the compiler with which the SDK was built and tested.
const RUST_TOOLCHAIN_FILE: &str = include_str!("../../../../../rust-toolchain.toml");
/// Dependencies of the SDK and the starter.
const DEPENDENCIES: [&str; 10] = [
    "base64",
    "http",
    "percent-encoding",
    "quick-xml",
    "serde",
    "serde_json",
    "sha1",
    "sha2",
    "time",
    "wit-bindgen",
];
/// Name of the SDK's crate.
const SDK_CRATE: &str = "cofferdam-guest";
/// Suffix of the driver's name after the crate's name.
const DRIVER_NAME_SUFFIX: &str = ".example.com";
/// Longest name of a crate. With the suffix it is a driver name of 63 characters, the limit of the contract.
const MAX_NAME: usize = 63 - DRIVER_NAME_SUFFIX.len();
/// Names reserved by Rust: keywords, and crates of its distribution.
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

/// Creates the project; returns the next steps.
///
/// # Errors
/// [`BackendCommandError`] if the name is not valid for a driver and a crate, or the directory is not empty
/// or cannot be written.
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

/// Rejects names that cannot start a driver's name, that Rust reserves, or that another crate of the project
/// has.
fn check_name(name: &str, packages: &[Package<'_>]) -> Result<(), BackendCommandError> {
    let name_error = |reason: String| {
        Err(BackendCommandError::Argument(format!("{name:?} is not the name of a driver: {reason}")))
    };
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let well_formed = name.bytes().all(inner)
        && name.starts_with(|first: char| first.is_ascii_lowercase())
        && !name.ends_with('-');
    if name.len() > MAX_NAME || !well_formed {
        return name_error(format!(
            "expected up to {MAX_NAME} of a-z, 0-9 and -, starting with a letter and not ending with -"
        ));
    }
    if RESERVED_NAMES.contains(&name) {
        return name_error("the name is reserved by Rust; expected another".to_owned());
    }
    // Rust writes both names with `_`.
    if packages.iter().any(|package| package.name.replace('_', "-") == name) {
        return name_error("the project uses a crate of that name; expected another".to_owned());
    }
    Ok(())
}

/// A package of the lock file.
struct Package<'a> {
    name: &'a str,
    /// The package's lines in the lock file, without the line `[[package]]`.
    block: &'a str,
}

impl<'a> Package<'a> {
    fn field(block: &'a str, key: &str) -> Option<&'a str> {
        let value = |line: &'a str| line.strip_prefix(key)?.strip_prefix(" = \"")?.strip_suffix('"');
        block.lines().find_map(value)
    }

    /// Dependencies: names, with a version if several packages have the name.
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

/// The SDK and its transitive dependencies, in the order of the lock file.
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
    // Cargo sorts by name, then by version.
    packages.sort_by_key(|package| package.block);
    Ok(packages)
}

/// The project's lock file. The first build removes dependencies that only other crates of this workspace
/// need, and changes nothing else.
fn lock_file(name: &str, packages: &[Package<'_>]) -> String {
    let own_block = format!(
        "name = \"{name}\"\nversion = \"0.1.0\"\ndependencies = [\n \"{SDK_CRATE}\",\n \"serde\",\n]"
    );
    let mut blocks: Vec<_> = packages.iter().map(|package| (package.name, package.block)).collect();
    blocks.push((name, &own_block));
    blocks.sort_by_key(|(name, _)| *name);
    let blocks: Vec<_> = blocks.into_iter().map(|(_, block)| format!("[[package]]\n{block}\n")).collect();
    format!(
        "# This file is automatically @generated by Cargo.\n# It is not intended for manual \
         editing.\nversion = 4\n\n{}",
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

/// The project's manifest. It is a workspace with the SDK as a member, so that the SDK's manifest needs no
/// changes.
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

# Inherited by the SDK.
[workspace.package]
version = "0.1.0"
edition = "2024"
rust-version = "1.95"
license = "Apache-2.0"
publish = false

[workspace.dependencies]
{dependencies}

[workspace.lints.rust]

# Small and reproducible.
[profile.release]
opt-level = "s"
lto = true
codegen-units = 1
strip = true
"#;

const TOOLCHAIN: &str = r#"[toolchain]
# The SDK is tested with this version; it needs at least 1.95.
channel = "{channel}"
targets = ["wasm32-wasip2"]
"#;

const CARGO_CONFIG: &str = r#"[alias]
component = "build --release --target wasm32-wasip2"

# Stack size: the default, 1 MiB, is most of a driver's memory, which is zeroed after each call.
[target.wasm32-wasip2]
rustflags = ["-Clink-arg=-zstack-size=131072"]
"#;

const README: &str = r"# {name}

A storage driver for Cofferdam: one WebAssembly component.

    cargo test                 # unit tests, on this machine
    cargo component            # builds target/wasm32-wasip2/release/{file}.wasm
    cofferdam backend inspect target/wasm32-wasip2/release/{file}.wasm
    cofferdam backend test target/wasm32-wasip2/release/{file}.wasm
    cofferdam dev --backend target/wasm32-wasip2/release/{file}.wasm

`Cargo.lock` has the versions with which the SDK was tested.
The first build removes unused packages; then commit the file.

`src/lib.rs` stores volumes in the `state` import; replace that with your storage.
`sdk/` has the SDK and the contract of the program that created this project.
`cargo doc --open -p cofferdam-guest` shows its documentation.
";

const NEXT_STEPS: &str = "created {directory}\n
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
            assert!(refused.starts_with(&format!("{name:?} is not the name")), "{refused}");
            assert!(refused.contains("up to 51 of a-z, 0-9 and -"), "{refused}");
        }
        for name in ["core", "std", "test", "fn", "self", "async", "proc-macro"] {
            assert!(name_error(name).unwrap().contains("reserved by Rust"), "{name}");
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
            "packages that the SDK does not need are removed"
        );
        let lock = lock_file("my-array", &packages);
        for name in DEPENDENCIES.iter().chain(&[SDK_CRATE, "my-array"]) {
            assert_eq!(lock.matches(&format!("[[package]]\nname = \"{name}\"\n")).count(), 1, "{name}");
        }
        let digest = |text: &str| text.lines().filter(|line| line.starts_with("checksum")).count();
        assert_eq!(digest(&lock), packages.len() - 1, "every package but the SDK has a checksum");
        assert!(toolchain_file().unwrap().contains("channel = \"1."));
        assert!(manifest_file("my-array").unwrap().contains("name = \"my-array\""));
    }
}
