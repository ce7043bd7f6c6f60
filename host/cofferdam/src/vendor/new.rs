//! `cofferdam backend new`: a project for a new driver.
//!
//! The project is the driver of `examples/starter` with another name, and carries the SDK beside it: it builds wherever cargo
//! reaches the registry of crates, without a checkout of this repository.

use std::path::{Path, PathBuf};

use include_dir::{Dir, DirEntry, include_dir};

use super::{VendorError, flags::NewFlags};

/// The driver that a project begins with.
const STARTER: &str = include_str!("../../../../examples/starter/src/lib.rs");
/// The SDK and the contract, as they are built into this program.
static SDK: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/../../guest-sdk");
static WIT: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/../../wit");
/// The workspace's versions of what the SDK depends on.
const WORKSPACE: &str = include_str!("../../../../Cargo.toml");
/// The dependencies of the SDK and the starter.
const DEPENDENCIES: [&str; 5] = ["percent-encoding", "serde", "serde_json", "sha2", "wit-bindgen"];
/// Longest name of a crate that cargo's registry takes.
const MAX_NAME: usize = 64;

/// Makes the project; the text is what to do next.
///
/// # Errors
/// [`VendorError`], when the name is none of a crate, the directory holds something, or it cannot be written.
pub(crate) fn new(flags: &NewFlags) -> Result<String, VendorError> {
    let name = &flags.name;
    let valid = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'_';
    if name.len() > MAX_NAME
        || !name.bytes().all(valid)
        || !name.starts_with(|first: char| first.is_ascii_lowercase())
    {
        return Err(VendorError::Argument(format!(
            "{name:?} is no name of a driver: expected up to {MAX_NAME} of a-z, 0-9, - and _, beginning with a letter"
        )));
    }
    let directory = flags.directory.clone().unwrap_or_else(|| PathBuf::from(name));
    if directory.read_dir().is_ok_and(|mut entries| entries.next().is_some()) {
        return Err(VendorError::Argument(format!(
            "{} exists and is not empty: expected a new directory",
            directory.display()
        )));
    }
    let file = name.replace('-', "_");
    let driver = name.replace('_', "-");
    let library = STARTER.replace("starter.example.com", &format!("{driver}.example.com"));
    for (path, text) in [
        ("Cargo.toml", manifest(name)?),
        ("rust-toolchain.toml", TOOLCHAIN.to_owned()),
        (".gitignore", "/target\n".to_owned()),
        (".cargo/config.toml", CARGO_CONFIG.to_owned()),
        ("README.md", README.replace("{name}", name).replace("{file}", &file)),
        ("src/lib.rs", library),
    ] {
        write(&directory.join(path), text.as_bytes())?;
    }
    copy(&SDK, &directory.join("sdk/guest-sdk"))?;
    copy(&WIT, &directory.join("sdk/wit"))?;
    Ok(NEXT.replace("{directory}", &directory.display().to_string()).replace("{file}", &file))
}

/// The project's manifest. It is a workspace with the SDK as a member, whose own manifest then needs no change.
fn manifest(name: &str) -> Result<String, VendorError> {
    let line = |dependency: &&str| {
        let begins = |line: &&str| {
            line.strip_prefix(*dependency).is_some_and(|rest| rest.trim_start().starts_with('='))
        };
        WORKSPACE.lines().find(begins).map(str::to_owned).ok_or_else(|| {
            VendorError::Argument(format!("this program was built without the version of {dependency}"))
        })
    };
    let dependencies = DEPENDENCIES.iter().map(line).collect::<Result<Vec<_>, _>>()?.join("\n");
    Ok(MANIFEST.replace("{name}", name).replace("{dependencies}", &dependencies))
}

fn copy(directory: &Dir<'_>, to: &Path) -> Result<(), VendorError> {
    for entry in directory.entries() {
        match entry {
            DirEntry::Dir(inner) => copy(inner, &to.join(inner.path().file_name().unwrap_or_default()))?,
            DirEntry::File(file) => {
                write(&to.join(file.path().file_name().unwrap_or_default()), file.contents())?;
            }
        }
    }
    Ok(())
}

fn write(path: &Path, content: &[u8]) -> Result<(), VendorError> {
    let failed = |source| VendorError::Write { path: path.to_owned(), source };
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
channel = "stable"
targets = ["wasm32-wasip2"]
"#;

const CARGO_CONFIG: &str = r#"[alias]
component = "build --release --target wasm32-wasip2"
"#;

const README: &str = r"# {name}

A storage driver for Cofferdam: one WebAssembly component.

    cargo test                                                        # unit tests, on this machine
    cargo component                                                   # builds target/wasm32-wasip2/release/{file}.wasm
    cofferdam backend inspect target/wasm32-wasip2/release/{file}.wasm
    cofferdam backend test target/wasm32-wasip2/release/{file}.wasm
    cofferdam dev --backend target/wasm32-wasip2/release/{file}.wasm

`src/lib.rs` keeps volumes in the `state` import; put your storage there. `sdk/` is the SDK and the contract of the program that
made this project; `cargo doc --open -p cofferdam-guest` shows its documentation.
";

const NEXT: &str = "made {directory}\n
next:
  cd {directory}
  rustup target add wasm32-wasip2
  cargo component
  cofferdam backend test target/wasm32-wasip2/release/{file}.wasm
";
