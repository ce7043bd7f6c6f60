//! Compiles guests to WebAssembly components from a build script, with a cargo process of its own.
//!
//! The outer cargo holds the lock of its target directory while a build script runs, so guests have another
//! target directory. All profiles of the host share it, because guests are built with one profile only.
#![forbid(unsafe_code)]
#![expect(
    clippy::print_stdout,
    reason = "cargo reads a build script's instructions from its standard output"
)]

use std::{
    env,
    error::Error,
    ffi::OsString,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

const TARGET: &str = "wasm32-wasip2";
const PROFILE: &str = "guest";

/// A guest crate of this workspace.
#[derive(Clone, Copy, Debug)]
pub struct GuestPackage {
    /// Cargo's package name.
    pub package: &'static str,
    /// Directory, relative to the workspace.
    pub directory: &'static str,
    /// Environment variable that passes the path of the component to the crate being built.
    pub path_variable: &'static str,
}

/// Builds the guests and passes the path of each component to the crate whose build script calls this.
///
/// # Errors
/// The workspace is not found, the target cannot be installed, or a guest does not build.
pub fn build(guests: &[GuestPackage]) -> Result<(), Box<dyn Error>> {
    let root = workspace()?;
    for watched in ["wit", "guest-sdk", "Cargo.toml", "Cargo.lock"] {
        println!("cargo:rerun-if-changed={}", root.join(watched).display());
    }
    let target = target_directory()?;
    install_target(&root)?;
    for guest in guests {
        println!("cargo:rerun-if-changed={}", root.join(guest.directory).display());
        let component = build_guest(guest, &root, &target)?;
        println!("cargo:rustc-env={}={}", guest.path_variable, component.display());
    }
    Ok(())
}

/// The closest ancestor of the calling crate's directory with a `Cargo.lock`.
fn workspace() -> Result<PathBuf, Box<dyn Error>> {
    let manifest = PathBuf::from(variable("CARGO_MANIFEST_DIR")?).canonicalize()?;
    let root = manifest.ancestors().find(|directory| directory.join("Cargo.lock").is_file());
    Ok(root.ok_or_else(|| format!("no Cargo.lock in {} or above", manifest.display()))?.to_owned())
}

fn variable(name: &str) -> Result<OsString, Box<dyn Error>> {
    Ok(env::var_os(name).ok_or_else(|| format!("cargo has not set {name}"))?)
}

/// A directory beside the host's profiles: `OUT_DIR` is `<target>/<profile>/build/<package>/out`.
fn target_directory() -> Result<PathBuf, Box<dyn Error>> {
    let out = PathBuf::from(variable("OUT_DIR")?);
    let target = out
        .ancestors()
        .nth(4)
        .ok_or_else(|| format!("OUT_DIR is {out:?}; expected four folders above it"))?;
    Ok(target.join("guests"))
}

/// Adds the target to the toolchain if rustup reports that it is missing. Without rustup the compiler reports
/// a missing target.
fn install_target(root: &Path) -> Result<(), Box<dyn Error>> {
    let rustup = |arguments: &[&str]| {
        Command::new("rustup").args(arguments).current_dir(root).stderr(Stdio::inherit()).output().ok()
    };
    let Some(installed) = rustup(&["target", "list", "--installed"]) else { return Ok(()) };
    if String::from_utf8_lossy(&installed.stdout).lines().any(|line| line == TARGET) {
        return Ok(());
    }
    match rustup(&["target", "add", TARGET]) {
        Some(added) if added.status.success() => Ok(()),
        _ => Err(format!("the compiler lacks the target {TARGET}: run `rustup target add {TARGET}`").into()),
    }
}

fn build_guest(guest: &GuestPackage, root: &Path, target: &Path) -> Result<PathBuf, Box<dyn Error>> {
    let mut cargo = Command::new(variable("CARGO")?);
    cargo
        .args(["build", "--locked", "--package", guest.package, "--target", TARGET, "--profile", PROFILE])
        .arg("--target-dir")
        .arg(target)
        .current_dir(root);
    for (name, _) in env::vars_os() {
        if name.to_str().is_some_and(is_from_outer_build) {
            cargo.env_remove(name);
        }
    }
    let status = cargo.status()?;
    if !status.success() {
        return Err(format!("{} does not build for {TARGET}: {status}", guest.package).into());
    }
    let file = format!("{}.wasm", guest.package.replace('-', "_"));
    let component = target.join(TARGET).join(PROFILE).join(file);
    if !component.is_file() {
        return Err(format!("cargo has not written {}", component.display()).into());
    }
    Ok(component)
}

/// Returns `true` if the outer cargo, clippy or a coverage tool set this variable for the host's compilation.
/// Guests must not inherit it.
fn is_from_outer_build(name: &str) -> bool {
    const KEPT: [&str; 2] = ["CARGO_HOME", "CARGO_NET_OFFLINE"];
    let prefixes = ["CARGO", "RUSTC", "RUSTFLAGS", "RUSTDOC", "CLIPPY", "LLVM_PROFILE", "DEP_"];
    let cargo_input = ["OUT_DIR", "TARGET", "HOST", "NUM_JOBS", "OPT_LEVEL", "PROFILE", "DEBUG"];
    let of_registry =
        name.starts_with("CARGO_REGISTR") || name.starts_with("CARGO_HTTP") || name.starts_with("CARGO_NET");
    !KEPT.contains(&name)
        && !of_registry
        && (prefixes.iter().any(|prefix| name.starts_with(prefix)) || cargo_input.contains(&name))
}
